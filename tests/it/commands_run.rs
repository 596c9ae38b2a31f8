//! `salvage run`: passes at its interval, through every failure of a store, until SIGTERM.

use std::time::Duration;

use anyhow::Result;
use salvage_tests::example::{Deck, Jobs, SlideJob};
use salvage_tests::services::{Database, Ended, Postgres, Redis, Template};
use salvage_tests::system::System;
use sqlx::Connection;

use crate::commands::{Running, running, salvage, until_true};

/// "Promptly": far below the 60 s or 5 min that a process which does not listen would still wait.
const PROMPTLY: Duration = Duration::from_secs(20);

fn run(system: &System, settings: &[(&str, &str)]) -> Result<Running> {
    let mut command = system.salvage(&["run"])?;
    Running::start(command.envs(settings.iter().copied()))
}

async fn lease_is_free(system: &System) -> Result<bool> {
    Ok(system.redis::<u32>(&["EXISTS", &format!("{}:lock", system.prefix)]).await? == 0)
}

/// Asks it to end, and sees it end well.
async fn ends_well(mut process: Running, system: &System) -> Result<()> {
    process.terminate()?;
    let (code, took) = process.ended().await?;
    assert_eq!(code, Some(0), "{}", process.stderr());
    assert!(took < PROMPTLY, "it took {took:?}");
    assert!(lease_is_free(system).await?, "the lease was kept");
    Ok(())
}

#[tokio::test]
async fn run_makes_a_pass_each_interval_and_history_tells_them() -> Result<()> {
    let system = System::fresh().await?;
    let mut process = run(&system, &[("SALVAGE_PASS__INTERVAL", "1s")])?;
    process.says("pass done", 3).await?;
    ends_well(process, &system).await?;
    let passes = salvage(&system, &["history", "--json"])?.ended_with(0)?.json()?;
    let passes = passes.as_array().expect("an array");
    assert!(passes.len() >= 3, "{passes:#?}");
    let generations: Vec<u64> = passes.iter().filter_map(|pass| pass["generation"].as_u64()).collect();
    assert!(generations.is_sorted_by(|newer, older| newer > older), "{generations:?}");
    let two = salvage(&system, &["history", "--limit", "2"])?.ended_with(0)?;
    assert_eq!(two.stdout.lines().count(), 3, "a header and two passes: {two:#?}");
    Ok(())
}

#[tokio::test]
async fn sigterm_while_it_waits_ends_it_at_once() -> Result<()> {
    let system = System::fresh().await?;
    let mut process = run(&system, &[])?;
    process.says("pass done", 1).await?;
    ends_well(process, &system).await
}

#[tokio::test]
async fn sigterm_while_the_queues_settle_ends_it_at_once_and_writes_nothing() -> Result<()> {
    let system = running().await?;
    Deck::generating("d1").insert(system.db.pool()).await?;
    SlideJob::processing("s1").stale().of("d1").insert(system.db.pool()).await?;
    let before = SlideJob::read(system.db.pool(), "s1").await?;
    let mut process = run(&system, &[("SALVAGE_PASS__SETTLE", "60s")])?;
    process.says("looking again before anything is written", 1).await?;
    ends_well(process, &system).await?;
    assert_eq!(SlideJob::read(system.db.pool(), "s1").await?, before);
    Ok(())
}

/// Goal: SIGTERM in the middle of an act changes a row wholly or not at all, and begins no other. Method: a trigger that
/// waits for a lock of ours makes every act stop between its row and its queue; more orphans than acts at a time.
#[tokio::test]
async fn sigterm_in_the_middle_of_an_act_leaves_each_row_whole_or_untouched() -> Result<()> {
    const ORPHANS: usize = 20;
    let system = running().await?;
    let db = system.db.pool();
    Deck::generating("d1").insert(db).await?;
    for index in 0..ORPHANS {
        SlideJob::processing(format!("s{index}")).stale().of("d1").insert(db).await?;
    }
    // Not pg_advisory_xact_lock itself: the act's lock_timeout would end the wait.
    let trigger = "CREATE FUNCTION gate() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN \
         WHILE NOT pg_try_advisory_xact_lock_shared(4711) LOOP PERFORM pg_sleep(0.01); END LOOP; RETURN NEW; END $$; \
         CREATE TRIGGER gate BEFORE UPDATE ON \"SlideJob\" FOR EACH ROW EXECUTE FUNCTION gate()";
    sqlx::raw_sql(trigger).execute(db).await?;
    let mut gate = sqlx::PgConnection::connect(system.db.url()).await?;
    sqlx::query("SELECT pg_advisory_lock(4711)").execute(&mut gate).await?;

    let process = run(&system, &[])?;
    until_true(
        db,
        "SELECT count(*) > 0 FROM pg_stat_activity WHERE datname = current_database() \
         AND application_name = 'salvage' AND wait_event = 'PgSleep'",
    )
    .await?;
    process.terminate()?;
    sqlx::query("SELECT pg_advisory_unlock(4711)").execute(&mut gate).await?;
    ends_well(process, &system).await?;

    let mut untouched = 0;
    for index in 0..ORPHANS {
        let id = format!("s{index}");
        let row = SlideJob::read(db, &id).await?.expect("the row");
        let key = system.key("slide-generation", "delayed");
        let entry: Option<f64> = system.redis(&["ZSCORE", &key, &format!("slide-{id}")]).await?;
        match row.status.as_str() {
            "QUEUED" => assert!(entry.is_some(), "{id} was written, and its queue was not"),
            "PROCESSING" => assert!(entry.is_none(), "the queue of {id} was written, and it was not"),
            other => panic!("{id} is {other}"),
        }
        untouched += usize::from(row.status == "PROCESSING");
    }
    assert!(untouched > 0, "every act was begun after SIGTERM");
    let report = salvage(&system, &["once", "--json"])?.ended_with(0)?.json()?;
    let slides = report["sources"][2].clone();
    assert_eq!(slides["requeued"], untouched, "the next pass does the rest: {slides:#}");
    Ok(())
}

#[tokio::test]
async fn run_lives_through_a_redis_that_is_down_at_start() -> Result<()> {
    let mut redis = Redis::start()?;
    let system = System::on(&redis.url()).await?;
    redis.kill()?;
    let mut process = run(&system, &[("SALVAGE_PASS__INTERVAL", "1s")])?;
    process.says("pass skipped: the lease could not be taken", 2).await?;
    process.says("passes_skipped=2", 1).await?;
    redis.start_again()?;
    process.says("pass done", 1).await?;
    process.terminate()?;
    assert_eq!(process.ended().await?.0, Some(0));
    assert_eq!(redis.command(&["EXISTS", &format!("{}:lock", system.prefix)])?, "0");
    Ok(())
}

#[tokio::test]
async fn run_lives_through_a_postgresql_that_is_down_at_start_and_restarted_later() -> Result<()> {
    let system = System::fresh().await?;
    let mut postgres = Postgres::start()?;
    let db = Database::on(&postgres.url("postgres"), Template::Migrated).await?;
    postgres.end(Ended::Interrupted)?;
    let mut process = run(&system, &[("DATABASE_URL", db.url()), ("SALVAGE_PASS__INTERVAL", "1s")])?;
    process.says("pass failed", 2).await?;
    assert!(process.stderr().contains("no connection to PostgreSQL"), "{}", process.stderr());
    assert!(lease_is_free_soon(&system).await?, "a failed pass keeps no lease");
    postgres.start_again()?;
    process.says("pass done", 1).await?;
    postgres.restart()?;
    let done = process.said("pass done");
    process.says("pass done", done + 1).await?;
    ends_well(process, &system).await
}

/// Between two passes it is free; during one it is not.
async fn lease_is_free_soon(system: &System) -> Result<bool> {
    for _ in 0..1000 {
        if lease_is_free(system).await? {
            return Ok(true);
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    Ok(false)
}

#[tokio::test]
async fn run_skips_and_counts_while_another_host_holds_the_lease() -> Result<()> {
    let system = System::fresh().await?;
    let lock = format!("{}:lock", system.prefix);
    system.redis::<()>(&["SET", &lock, "another", "EX", "600"]).await?;
    let mut process = run(&system, &[("SALVAGE_PASS__INTERVAL", "1s")])?;
    process.says("pass skipped: another host holds the lease", 2).await?;
    process.says("passes_skipped=2", 1).await?;
    assert_eq!(system.redis::<String>(&["GET", &lock]).await?, "another");
    system.redis::<()>(&["DEL", &lock]).await?;
    process.says("pass done", 1).await?;
    ends_well(process, &system).await
}

#[tokio::test]
async fn after_a_holder_died_the_next_attempt_comes_when_its_lease_runs_out() -> Result<()> {
    let system = System::fresh().await?;
    system.redis::<()>(&["SET", &format!("{}:lock", system.prefix), "dead", "PX", "8000"]).await?;
    // The interval is 5 minutes: far beyond the deadline of this wait.
    let mut process = run(&system, &[])?;
    process.says("pass skipped: another host holds the lease", 1).await?;
    process.says("pass done", 1).await?;
    ends_well(process, &system).await
}
