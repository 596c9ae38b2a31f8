//! Acts: a row is written only as it was judged, or not at all. Reading and writing are separate calls here, so each
//! test slips its rival in between.

use std::time::{Duration, Instant};

use anyhow::Result;
use salvage::ports::{HeldJob as _, Hold, Jobs as _, Ledger as _, StoreFailure};
use salvage::postgres::{Pooler, Postgres};
use salvage_core::act::Act;
use salvage_core::lease::Fence;
use salvage_core::outcome::Outcome;
use salvage_tests::example::{
    Deck, Jobs, NarrationJob, SlideExportJob, SlideJob, Video, VideoExportJob, VideoJob, uuid,
};
use salvage_tests::services::Database;
use sqlx::{AssertSqlSafe, PgPool};

use crate::postgres_fixtures::{Bench, entry, fail, held, refusal, requeue};

async fn run(pool: &PgPool, sql: &str) -> Result<()> {
    sqlx::raw_sql(AssertSqlSafe(sql.to_owned())).execute(pool).await?;
    Ok(())
}

/// One orphan of a deck, the act that fails it, and the fence.
async fn failing_generation(deck: Deck) -> Result<(Bench, Act, Fence)> {
    let bench = Bench::new().await?;
    deck.insert(bench.db.pool()).await?;
    SlideJob::processing("s1").of("d1").stale().insert(bench.db.pool()).await?;
    let act = bench.act("generation", "s1", fail()).await?;
    let fence = bench.fence().await?;
    Ok((bench, act, fence))
}

fn check_superseded(outcome: Outcome, because: &str) {
    match outcome {
        Outcome::Superseded(why) => assert!(why.contains(because), "{why:?} does not say {because:?}"),
        other => panic!("expected superseded, found {other:?}"),
    }
}

fn check_parked(outcome: Outcome, because: &str) {
    match outcome {
        Outcome::Parked(why) => assert!(why.contains(because), "{why:?} does not say {because:?}"),
        other => panic!("expected parked, found {other:?}"),
    }
}

#[tokio::test]
async fn a_fail_writes_job_parent_and_ledger_together() -> Result<()> {
    let (bench, act, fence) = failing_generation(Deck::generating("d1").exporting()).await?;
    let before = SlideJob::read(bench.db.pool(), "s1").await?.expect("the row");
    let held = held(bench.hold(&act, &fence).await?);
    assert_eq!(SlideJob::read(bench.db.pool(), "s1").await?.as_ref(), Some(&before), "seen before COMMIT");
    held.commit().await?;

    let row = SlideJob::read(bench.db.pool(), "s1").await?.expect("the row");
    assert_eq!((row.status.as_str(), row.progress), ("FAILED", 40));
    assert_eq!(row.error.as_deref(), Some("The job was lost."));
    assert!(row.updated_at > before.updated_at);
    let deck = Deck::read(bench.db.pool(), "d1").await?.expect("the deck");
    assert_eq!((deck.status.as_str(), deck.export_status.as_str()), ("FAILED", "EXPORTING"));
    assert_eq!(deck.error.as_deref(), Some("The job was lost."));
    let story = bench.postgres.story(&bench.source("generation").name, "s1").await?;
    assert_eq!(story.len(), 1);
    assert_eq!((story[0].decision.as_str(), story[0].outcome.as_deref()), ("fail", Some("applied")));
    Ok(())
}

#[tokio::test]
async fn a_requeue_resets_rows_with_ids_of_every_kind() -> Result<()> {
    async fn check<J: Jobs>(bench: &Bench, fence: &Fence, source: &str, queue: &str, id: &str) -> Result<()> {
        J::processing(id).stale().error("before").insert(bench.db.pool()).await?;
        let act = bench.act(source, id, requeue(queue)).await?;
        held(bench.hold(&act, fence).await?).commit().await?;
        let row = J::read(bench.db.pool(), id).await?.expect("the row");
        assert_eq!((row.status.as_str(), row.progress, row.error), ("QUEUED", 0, None), "{source}");
        Ok(())
    }
    let bench = Bench::new().await?;
    let fence = bench.fence().await?;
    check::<SlideJob>(&bench, &fence, "generation", "slide-generation", "it's \"odd\" \\").await?;
    check::<NarrationJob>(&bench, &fence, "narration", "narration", &uuid(1)).await?;
    check::<VideoExportJob>(&bench, &fence, "video-export", "video-export", "42").await
}

#[tokio::test]
async fn a_write_is_later_than_the_row_even_if_the_row_is_ahead_of_the_clock() -> Result<()> {
    let bench = Bench::new().await?;
    let fence = bench.fence().await?;
    for (id, source, queue) in
        [("s1", "generation", "slide-generation"), (uuid(1).as_str(), "narration", "narration")]
    {
        match source {
            "generation" => SlideJob::queued(id).updated_ago(-3_000).insert(bench.db.pool()).await?,
            _ => NarrationJob::queued(id).updated_ago(-3_000).insert(bench.db.pool()).await?,
        }
        let before = bench.candidate(source, id).await?.updated;
        let act = bench.act(source, id, requeue(queue)).await?;
        held(bench.hold(&act, &fence).await?).commit().await?;
        let after = bench.candidate(source, id).await?.updated;
        let unit_us = if source == "generation" { 1_000 } else { 1 };
        assert_eq!(after.as_microsecond() - before.as_microsecond(), unit_us, "{source}");
    }
    Ok(())
}

#[tokio::test]
async fn a_dropped_or_rolled_back_hold_leaves_everything_as_it_was() -> Result<()> {
    let (bench, act, fence) = failing_generation(Deck::generating("d1")).await?;
    let before = SlideJob::read(bench.db.pool(), "s1").await?;
    held(bench.hold(&act, &fence).await?).roll_back().await;
    drop(held(bench.hold(&act, &fence).await?));
    // The connection of the dropped one is being closed; until PostgreSQL has noticed, the row is locked.
    loop {
        match bench.hold(&act, &fence).await? {
            Hold::Held(held) => break held.roll_back().await,
            Hold::Not(outcome) => check_superseded(outcome, "locked"),
        }
    }
    assert_eq!(SlideJob::read(bench.db.pool(), "s1").await?, before);
    assert_eq!(Deck::read(bench.db.pool(), "d1").await?.expect("the deck").status, "GENERATING");
    assert!(bench.postgres.story(&bench.source("generation").name, "s1").await?.is_empty());
    Ok(())
}

#[tokio::test]
async fn a_row_that_was_completed_in_between_is_superseded_and_untouched() -> Result<()> {
    let (bench, act, fence) = failing_generation(Deck::generating("d1")).await?;
    SlideJob::complete(bench.db.pool(), "s1").await?;
    let before = SlideJob::read(bench.db.pool(), "s1").await?;
    check_superseded(refusal(bench.hold(&act, &fence).await?), "COMPLETED");
    assert_eq!(SlideJob::read(bench.db.pool(), "s1").await?, before);
    assert_eq!(Deck::read(bench.db.pool(), "d1").await?.expect("the deck").status, "GENERATING");
    Ok(())
}

#[tokio::test]
async fn progress_written_in_between_supersedes_though_status_and_time_are_the_same() -> Result<()> {
    let (bench, act, fence) = failing_generation(Deck::generating("d1")).await?;
    SlideJob::write_progress(bench.db.pool(), "s1", 41).await?;
    check_superseded(refusal(bench.hold(&act, &fence).await?), "as they were");
    assert_eq!(SlideJob::read(bench.db.pool(), "s1").await?.expect("the row").progress, 41);
    Ok(())
}

#[tokio::test]
async fn a_deleted_row_is_gone() -> Result<()> {
    let (bench, act, fence) = failing_generation(Deck::generating("d1")).await?;
    run(bench.db.pool(), "DELETE FROM \"SlideJob\"").await?;
    assert_eq!(refusal(bench.hold(&act, &fence).await?), Outcome::Gone);
    Ok(())
}

#[tokio::test]
async fn a_row_that_a_worker_has_locked_is_not_waited_for() -> Result<()> {
    let (bench, act, fence) = failing_generation(Deck::generating("d1")).await?;
    let mut worker = bench.db.pool().begin().await?;
    sqlx::query("UPDATE \"SlideJob\" SET progress = 50 WHERE id = 's1'").execute(&mut *worker).await?;
    let began = Instant::now();
    check_superseded(refusal(bench.hold(&act, &fence).await?), "locked");
    assert!(began.elapsed() < Duration::from_millis(200), "it waited {:?}", began.elapsed());
    worker.commit().await?;
    assert_eq!(SlideJob::read(bench.db.pool(), "s1").await?.expect("the row").progress, 50);
    Ok(())
}

#[tokio::test]
async fn a_parent_that_somebody_has_locked_ends_the_act_within_the_lock_timeout() -> Result<()> {
    let (bench, act, fence) = failing_generation(Deck::generating("d1")).await?;
    let mut application = bench.db.pool().begin().await?;
    sqlx::query("SELECT 1 FROM \"SlideDeck\" FOR UPDATE").execute(&mut *application).await?;
    check_superseded(refusal(bench.hold(&act, &fence).await?), "locked");
    application.rollback().await?;
    assert_eq!(SlideJob::read(bench.db.pool(), "s1").await?.expect("the row").status, "PROCESSING");
    Ok(())
}

/// Goal: in a deadlock it is never the application that dies. Method: it locks the parent and then wants the job, while
/// we hold the job and want the parent.
#[tokio::test]
async fn an_application_that_locks_the_parent_first_is_never_the_one_that_dies() -> Result<()> {
    let (bench, act, fence) = failing_generation(Deck::generating("d1")).await?;
    let mut application = bench.db.pool().begin().await?;
    sqlx::query("SELECT 1 FROM \"SlideDeck\" FOR UPDATE").execute(&mut *application).await?;
    let lock_job = async {
        tokio::time::sleep(Duration::from_millis(50)).await;
        let lock = sqlx::query("SELECT 1 FROM \"SlideJob\" FOR UPDATE");
        let began = Instant::now();
        lock.execute(&mut *application).await.map(|_| began.elapsed())
    };
    let (hold, waited) = tokio::join!(bench.hold(&act, &fence), lock_job);
    check_superseded(refusal(hold?), "locked");
    assert!(
        waited? < Duration::from_secs(1),
        "the application waited as long as a deadlock takes to be found"
    );
    application.commit().await?;
    Ok(())
}

#[tokio::test]
async fn a_ready_parent_is_never_downgraded() -> Result<()> {
    let (bench, act, fence) = failing_generation(Deck::generating("d1")).await?;
    run(bench.db.pool(), "UPDATE \"SlideDeck\" SET status = 'READY'").await?;
    held(bench.hold(&act, &fence).await?).commit().await?;
    assert_eq!(SlideJob::read(bench.db.pool(), "s1").await?.expect("the row").status, "FAILED");
    let deck = Deck::read(bench.db.pool(), "d1").await?.expect("the deck");
    assert_eq!((deck.status.as_str(), deck.error), ("READY", None));
    Ok(())
}

#[tokio::test]
async fn a_failed_export_changes_the_export_status_only() -> Result<()> {
    let bench = Bench::new().await?;
    Deck::ready("d1").exporting().insert(bench.db.pool()).await?;
    SlideExportJob::processing("e1").of("d1").stale().insert(bench.db.pool()).await?;
    let act = bench.act("slide-export", "e1", fail()).await?;
    held(bench.hold(&act, &bench.fence().await?).await?).commit().await?;
    let deck = Deck::read(bench.db.pool(), "d1").await?.expect("the deck");
    assert_eq!((deck.status.as_str(), deck.export_status.as_str()), ("READY", "FAILED"));
    Ok(())
}

#[tokio::test]
async fn a_deleted_parent_does_not_keep_the_job_from_failing() -> Result<()> {
    let (bench, _, fence) = failing_generation(Deck::generating("d1")).await?;
    run(bench.db.pool(), "DELETE FROM \"SlideDeck\"").await?;
    // The deck is an input: the act must have been decided without it.
    let act = bench.act("generation", "s1", fail()).await?;
    held(bench.hold(&act, &fence).await?).commit().await?;
    assert_eq!(SlideJob::read(bench.db.pool(), "s1").await?.expect("the row").status, "FAILED");
    Ok(())
}

#[tokio::test]
async fn a_parent_is_left_alone_while_a_sibling_is_live() -> Result<()> {
    let bench = Bench::new().await?;
    let pool = bench.db.pool();
    Deck::ready("d1").exporting().insert(pool).await?;
    SlideExportJob::processing("pdf").of("d1").stale().insert(pool).await?;
    SlideExportJob::processing("pptx").of("d1").kind("PPTX").insert(pool).await?;
    // Neither another deck's job, nor a job of another parent column, nor a finished one is a sibling.
    SlideExportJob::processing("other").of("d2").insert(pool).await?;
    SlideJob::processing("s1").of("d1").insert(pool).await?;
    let fence = bench.fence().await?;
    let act = bench.act("slide-export", "pdf", fail()).await?;
    held(bench.hold(&act, &fence).await?).commit().await?;
    assert_eq!(SlideExportJob::read(pool, "pdf").await?.expect("the row").status, "FAILED");
    assert_eq!(Deck::read(pool, "d1").await?.expect("the deck").export_status, "EXPORTING");

    let act = bench.act("slide-export", "pptx", fail()).await?;
    held(bench.hold(&act, &fence).await?).commit().await?;
    assert_eq!(Deck::read(pool, "d1").await?.expect("the deck").export_status, "FAILED");
    Ok(())
}

#[tokio::test]
async fn siblings_that_fail_at_once_all_fail_in_this_pass_and_the_parent_follows() -> Result<()> {
    let bench = Bench::new().await?;
    let pool = bench.db.pool();
    Deck::ready("d1").exporting().insert(pool).await?;
    let mut acts = Vec::new();
    for id in ["a", "b", "c", "d"] {
        SlideExportJob::processing(id).of("d1").stale().insert(pool).await?;
        acts.push(bench.act("slide-export", id, fail()).await?);
    }
    let fence = bench.fence().await?;
    let act = async |act: &Act| -> Result<()> {
        held(bench.hold(act, &fence).await?).commit().await?;
        Ok(())
    };
    tokio::try_join!(act(&acts[0]), act(&acts[1]), act(&acts[2]), act(&acts[3]))?;
    for id in ["a", "b", "c", "d"] {
        assert_eq!(SlideExportJob::read(pool, id).await?.expect("the row").status, "FAILED");
    }
    assert_eq!(Deck::read(pool, "d1").await?.expect("the deck").export_status, "FAILED");
    Ok(())
}

#[tokio::test]
async fn inputs_that_changed_since_the_decision_supersede_it() -> Result<()> {
    let bench = Bench::new().await?;
    let pool = bench.db.pool();
    Video::composing("v1").tracks(2).insert(pool).await?;
    VideoJob::processing("j1").of("v1").stale().insert(pool).await?;
    let fence = bench.fence().await?;
    let changes = [
        "UPDATE \"VideoTrack\" SET \"startMs\" = 7 WHERE position = 1",
        "UPDATE \"Video\" SET status = 'CANCELLED'",
        "DELETE FROM \"Video\"",
    ];
    for change in changes {
        let act = bench.act("composition", "j1", requeue("video-composition")).await?;
        run(pool, change).await?;
        check_superseded(refusal(bench.hold(&act, &fence).await?), "inputs");
    }
    assert_eq!(VideoJob::read(pool, "j1").await?.expect("the row").status, "PROCESSING");
    Ok(())
}

#[tokio::test]
async fn a_newer_pass_of_the_scope_ends_this_one_and_another_scope_does_not() -> Result<()> {
    let (bench, act, _) = failing_generation(Deck::generating("d1")).await?;
    // From now on each domain has its own.
    let at_once = bench.postgres.clone().with_scope_rest(Duration::ZERO);
    let fence = at_once.raise_fence("slides", "ours").await?;
    bench.postgres.raise_fence("exports", "other").await?;
    held(bench.hold(&act, &fence).await?).roll_back().await;

    let newer = bench.postgres.raise_fence("slides", "newer").await?;
    assert_eq!(newer.generation, fence.generation + 1);
    let failure = bench.hold(&act, &fence).await.expect_err("fenced");
    assert!(matches!(failure.downcast_ref(), Some(StoreFailure::Fenced { .. })), "{failure:?}");
    let stolen = Fence { pass_token: "guessed".into(), ..newer.clone() };
    assert!(bench.hold(&act, &stolen).await.is_err(), "the generation alone is not enough");
    assert_eq!(SlideJob::read(bench.db.pool(), "s1").await?.expect("the row").status, "PROCESSING");
    held(bench.hold(&act, &newer).await?).commit().await.map_err(Into::into)
}

/// Goal: no act can commit after the fence was raised. Method: one is open while the fence is raised; the raising waits.
#[tokio::test]
async fn the_fence_waits_for_an_act_that_is_under_way() -> Result<()> {
    let (bench, act, fence) = failing_generation(Deck::generating("d1")).await?;
    let held = held(bench.hold(&act, &fence).await?);
    let raise = bench.postgres.raise_fence("global", "newer");
    let commit = async {
        tokio::time::sleep(Duration::from_millis(400)).await;
        let asked_at = Instant::now();
        held.commit().await.map(|()| asked_at)
    };
    let (raised, asked_to_commit) = tokio::join!(async { raise.await.map(|_| Instant::now()) }, commit);
    assert!(raised? > asked_to_commit?, "the fence was raised while an act was open");
    Ok(())
}

#[tokio::test]
async fn a_holder_that_freezes_is_ended_by_postgresql_and_keeps_nobody_waiting_longer() -> Result<()> {
    let (bench, act, fence) = failing_generation(Deck::generating("d1")).await?;
    let frozen = held(bench.hold(&act, &fence).await?);
    let began = Instant::now();
    let newer = bench.postgres.raise_fence("global", "newer").await?;
    assert!(began.elapsed() < Duration::from_secs(7), "the next host waited {:?}", began.elapsed());
    held(bench.hold(&act, &newer).await?).roll_back().await;
    frozen.commit().await.expect_err("it was ended");
    assert_eq!(SlideJob::read(bench.db.pool(), "s1").await?.expect("the row").status, "PROCESSING");
    Ok(())
}

#[tokio::test]
async fn a_row_that_postgresql_rejects_is_parked_with_its_words_and_without_values() -> Result<()> {
    let check = async |prepare: &str, because: &str| -> Result<()> {
        let (bench, act, fence) = failing_generation(Deck::generating("d1")).await?;
        run(bench.db.pool(), prepare).await?;
        let outcome = refusal(bench.hold(&act, &fence).await?);
        assert!(!format!("{outcome:?}").contains("The job was lost"), "it quotes the row: {outcome:?}");
        check_parked(outcome, because);
        assert_eq!(SlideJob::read(bench.db.pool(), "s1").await?.expect("the row").status, "PROCESSING");
        assert_eq!(Deck::read(bench.db.pool(), "d1").await?.expect("the deck").status, "GENERATING");
        Ok(())
    };
    check("ALTER TABLE \"SlideJob\" ADD CONSTRAINT never_fails CHECK (status <> 'FAILED')", "never_fails")
        .await?;
    check("ALTER TABLE \"SlideDeck\" ADD CONSTRAINT deck_rule CHECK (status <> 'FAILED')", "deck_rule")
        .await?;
    let trigger = |body: &str, when: &str| {
        format!(
            "CREATE FUNCTION f() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN {body} END $$; \
             CREATE {when} ON \"SlideJob\" {} FOR EACH ROW EXECUTE FUNCTION f()",
            if when.contains("CONSTRAINT") { "DEFERRABLE INITIALLY DEFERRED" } else { "" }
        )
    };
    let before = "TRIGGER t BEFORE UPDATE";
    check(&trigger("RAISE EXCEPTION 'not today';", before), "not today (SQLSTATE P0001)").await?;
    check(&trigger("RETURN NULL;", before), "keeps the row from being written").await?;
    check(&trigger("NEW.status := 'CANCELLED'; RETURN NEW;", before), "CANCELLED").await?;
    let deferred = "CONSTRAINT TRIGGER t AFTER UPDATE";
    check(&trigger("RAISE EXCEPTION 'at commit';", deferred), "at commit (SQLSTATE P0001)").await
}

#[tokio::test]
async fn a_reason_is_cut_to_the_columns_length() -> Result<()> {
    let db = Database::example().await?;
    run(db.pool(), "ALTER TABLE \"SlideJob\" ALTER error TYPE varchar(7)").await?;
    let bench = Bench::on(db, |_| {}).await?;
    SlideJob::processing("s1").stale().insert(bench.db.pool()).await?;
    let act = bench.act("generation", "s1", fail()).await?;
    held(bench.hold(&act, &bench.fence().await?).await?).commit().await?;
    let row = SlideJob::read(bench.db.pool(), "s1").await?.expect("the row");
    assert_eq!(row.error.as_deref(), Some("The job"));
    Ok(())
}

#[tokio::test]
async fn rows_of_a_partitioned_table_are_written_like_any_other() -> Result<()> {
    let db = Database::example().await?;
    run(
        db.pool(),
        "CREATE TABLE jobs (LIKE \"VideoExportJob\" INCLUDING DEFAULTS) PARTITION BY RANGE (id); \
         CREATE TABLE jobs_low PARTITION OF jobs FOR VALUES FROM (0) TO (100); \
         CREATE TABLE jobs_high PARTITION OF jobs FOR VALUES FROM (100) TO (200); \
         INSERT INTO jobs (id, \"videoId\", format) VALUES (9, 'v1', 'MP4'), (150, 'v1', 'MP4')",
    )
    .await?;
    let bench = Bench::on(db, |domains| domains[2].manifest.sources[1].table.table = "jobs".into()).await?;
    Video::ready("v1").exporting().insert(bench.db.pool()).await?;
    let fence = bench.fence().await?;
    for (id, expected) in [("150", "EXPORTING"), ("9", "FAILED")] {
        let act = bench.act("video-export", id, fail()).await?;
        held(bench.hold(&act, &fence).await?).commit().await?;
        let video = Video::read(bench.db.pool(), "v1").await?.expect("the video");
        assert_eq!(video.export_status, expected, "after {id}");
    }
    Ok(())
}

#[tokio::test]
async fn a_read_only_server_is_a_failure_of_the_pass_not_of_the_row() -> Result<()> {
    let (bench, act, fence) = failing_generation(Deck::generating("d1")).await?;
    let set = format!("ALTER DATABASE {} SET default_transaction_read_only = on", bench.db.name());
    run(bench.db.pool(), &set).await?;
    let postgres = Postgres::new(bench.db.url(), Pooler::None, "bull")?;
    let source = bench.source("generation");
    let failure = postgres.hold(source, &act, &fence, &entry(source, &act)).await.expect_err("read-only");
    assert!(!failure.is_local(), "{failure:?}");
    assert!(failure.to_string().contains("25006"), "{failure}");
    Ok(())
}
