//! Acts on real servers: what is put back, what is failed, and what is left alone.

use anyhow::Result;
use salvage::command::accept::Operator;
use salvage::ports::Ledger;
use salvage_core::source::SourceName;
use salvage_tests::example::{Deck, Jobs, SlideExportJob, SlideJob, Video, VideoJob};
use salvage_tests::stores::Stores;
use salvage_tests::system::{System, job, source, story};
use sqlx::AssertSqlSafe;

pub(crate) const QUEUES: [&str; 5] =
    ["slide-generation", "slide-export", "video-composition", "video-export", "narration"];

/// A system that has run for a day, whose queues are in use and empty.
pub(crate) async fn running() -> Result<System> {
    running_on(System::fresh().await?).await
}

/// The same, of a system that is fresh.
pub(crate) async fn running_on(system: System) -> Result<System> {
    system.used_queues(&QUEUES).await?;
    system.known_since_yesterday().await?;
    Ok(system)
}

/// A running system with one orphan: generation `s1` of deck `d1`, which can be rebuilt.
pub(crate) async fn with_lost_generation() -> Result<System> {
    let system = running().await?;
    lose_generation(&system, "s1").await?;
    Ok(system)
}

/// A stale generation that is in no queue, of a deck of its own.
pub(crate) async fn lose_generation(system: &System, id: &str) -> Result<()> {
    let deck = format!("deck-of-{id}");
    Deck::generating(&deck).insert(system.db.pool()).await?;
    SlideJob::processing(id).stale().of(&deck).insert(system.db.pool()).await
}

/// Runs SQL as the application or its administrator would.
pub(crate) async fn sql(system: &System, statement: &str) -> Result<()> {
    sqlx::raw_sql(AssertSqlSafe(statement.to_owned())).execute(system.db.pool()).await?;
    Ok(())
}

/// The ids that wait in `delayed` of a queue.
pub(crate) async fn delayed(system: &System, queue: &str) -> Result<Vec<String>> {
    system.redis(&["ZRANGE", &system.key(queue, "delayed"), "0", "-1"]).await
}

pub(crate) async fn status<J: Jobs>(system: &System, id: &str) -> Result<String> {
    Ok(J::read(system.db.pool(), id).await?.expect("the row").status)
}

#[tokio::test]
async fn a_lost_job_that_can_be_rebuilt_is_queued_again_and_a_second_pass_changes_nothing() -> Result<()> {
    let system = with_lost_generation().await?;
    let report = system.pass().await?;
    assert_eq!(story(&report, "s1"), "absent requeue applied", "{report:#?}");
    assert_eq!(source(&report, "slides/generation").requeued, 1);
    let row = SlideJob::read(system.db.pool(), "s1").await?.expect("the row");
    assert_eq!((row.status.as_str(), row.progress, row.error), ("QUEUED", 0, None));
    assert_eq!(delayed(&system, "slide-generation").await?, ["slide-s1"]);
    let again = system.pass().await?;
    assert!(again.jobs.is_empty(), "{again:#?}");
    Ok(())
}

/// Goal: whatever the first pass made of its orphans, a second one finds nothing more to do. Method: orphans of every
/// ending, and everything in both stores compared but for what Salvage keeps for itself.
#[tokio::test]
async fn a_second_pass_changes_nothing_of_the_applications_in_either_store() -> Result<()> {
    let system = running().await?;
    lose_generation(&system, "requeued").await?;
    lose_generation(&system, "rejected").await?;
    sql(&system, "ALTER TABLE \"SlideJob\" ADD CHECK (id <> 'rejected' OR status = 'PROCESSING')").await?;
    Deck::ready("d1").exporting().insert(system.db.pool()).await?;
    SlideExportJob::processing("failed").stale().of("d1").insert(system.db.pool()).await?;
    Video::composing("v1").tracks(2).insert(system.db.pool()).await?;
    VideoJob::processing("refused").stale().of("v1").insert(system.db.pool()).await?;
    system.redis::<()>(&["HSET", &system.key("video-composition", "meta"), "paused", "1"]).await?;
    let first = system.pass().await?;
    let expected =
        [("requeued", "requeue applied"), ("failed", "fail applied"), ("refused", "requeue refused")];
    for (id, ending) in expected {
        assert_eq!(story(&first, id), format!("absent {ending}"), "{first:#?}");
    }
    assert_eq!(story(&first, "rejected"), "absent requeue parked", "{first:#?}");

    let before = Stores::of(&system).await?.of_the_application();
    let second = system.pass().await?;
    assert_eq!(story(&second, "requeued"), "scheduled");
    assert_eq!(Stores::of(&system).await?.of_the_application(), before);
    Ok(())
}

/// A8.
#[tokio::test]
async fn an_export_that_cannot_be_rebuilt_fails_and_its_ready_deck_stays_ready() -> Result<()> {
    let system = running().await?;
    Deck::ready("d1").exporting().insert(system.db.pool()).await?;
    SlideExportJob::processing("e1").stale().of("d1").insert(system.db.pool()).await?;
    let report = system.pass().await?;
    assert_eq!(story(&report, "e1"), "absent fail applied", "{report:#?}");
    let deck = Deck::read(system.db.pool(), "d1").await?.expect("the deck");
    assert_eq!((deck.status.as_str(), deck.export_status.as_str(), deck.error), ("READY", "FAILED", None));
    let row = SlideExportJob::read(system.db.pool(), "e1").await?.expect("the row");
    assert_eq!(row.status, "FAILED");
    assert_eq!(row.error, job(&report, "e1").decision.reason);
    Ok(())
}

/// A10.
#[tokio::test]
async fn a_composition_whose_video_is_deleted_or_cancelled_fails_and_says_so() -> Result<()> {
    let system = running().await?;
    let pool = system.db.pool();
    Video::cancelled("v1").tracks(2).insert(pool).await?;
    VideoJob::processing("of-cancelled").stale().of("v1").insert(pool).await?;
    VideoJob::queued("of-deleted").stale().of("no-such-video").insert(pool).await?;
    let report = system.pass().await?;
    for (id, word) in [("of-cancelled", "cancelled"), ("of-deleted", "deleted")] {
        assert_eq!(story(&report, id), "absent fail applied", "{report:#?}");
        let row = VideoJob::read(pool, id).await?.expect("the row");
        assert_eq!(row.status, "FAILED");
        assert!(row.error.as_deref().is_some_and(|reason| reason.contains(word)), "{row:?}");
    }
    assert_eq!(Video::read(pool, "v1").await?.expect("the video").status, "CANCELLED");
    assert!(delayed(&system, "video-composition").await?.is_empty());
    Ok(())
}

/// A11.
#[tokio::test]
async fn a_job_that_was_recovered_three_times_is_failed_the_fourth_time() -> Result<()> {
    let system = with_lost_generation().await?;
    for _ in 0..3 {
        assert_eq!(story(&system.pass().await?, "s1"), "absent requeue applied");
        // It kills its worker, whose row grows old, and its entry is lost with it.
        let hash = system.key("slide-generation", "slide-s1");
        system.redis::<()>(&["DEL", &hash, &system.key("slide-generation", "delayed")]).await?;
        let age =
            "UPDATE \"SlideJob\" SET status = 'PROCESSING', \"updatedAt\" = \"updatedAt\" - interval '2 h'";
        sql(&system, age).await?;
    }
    let report = system.pass().await?;
    assert_eq!(story(&report, "s1"), "absent fail applied", "{report:#?}");
    let row = SlideJob::read(system.db.pool(), "s1").await?.expect("the row");
    assert_eq!(row.status, "FAILED");
    assert!(row.error.as_deref().is_some_and(|reason| reason.contains("recovered 3 times")), "{row:?}");
    assert!(delayed(&system, "slide-generation").await?.is_empty());
    let deck = Deck::read(system.db.pool(), "deck-of-s1").await?.expect("the deck");
    assert_eq!((deck.status.as_str(), deck.error), ("FAILED", row.error));
    Ok(())
}

/// A12.
#[tokio::test]
async fn a_type_that_is_not_restart_safe_is_failed_once_begun_and_queued_again_before() -> Result<()> {
    let system = running().await?;
    let pool = system.db.pool();
    Deck::generating("d1").insert(pool).await?;
    Deck::generating("d2").insert(pool).await?;
    SlideJob::processing("begun").kind("OUTLINE").stale().of("d1").insert(pool).await?;
    SlideJob::queued("waiting").kind("OUTLINE").stale().of("d2").insert(pool).await?;
    let report = system.pass().await?;
    assert_eq!(story(&report, "begun"), "absent fail applied", "{report:#?}");
    assert_eq!(story(&report, "waiting"), "absent requeue applied", "{report:#?}");
    let row = SlideJob::read(pool, "begun").await?.expect("the row");
    assert_eq!(row.status, "FAILED");
    assert!(row.error.as_deref().is_some_and(|reason| reason.contains("cannot be begun again")), "{row:?}");
    assert_eq!(delayed(&system, "slide-generation").await?, ["slide-waiting"]);
    Ok(())
}

/// A13.
#[tokio::test]
async fn a_row_that_postgresql_rejects_is_parked_with_nothing_enqueued_and_the_others_are_recovered()
-> Result<()> {
    let trigger = "CREATE FUNCTION f() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN \
         IF NEW.id = 's2' THEN RAISE EXCEPTION 'rows_end_here'; END IF; RETURN NEW; END $$; \
         CREATE CONSTRAINT TRIGGER t AFTER UPDATE ON \"SlideJob\" DEFERRABLE INITIALLY DEFERRED \
         FOR EACH ROW EXECUTE FUNCTION f()";
    let check =
        "ALTER TABLE \"SlideJob\" ADD CONSTRAINT rows_end_here CHECK (id <> 's2' OR status <> 'QUEUED')";
    for rejection in [check, trigger] {
        let system = running().await?;
        for id in ["s1", "s2", "s3"] {
            lose_generation(&system, id).await?;
        }
        sql(&system, rejection).await?;
        let before = SlideJob::read(system.db.pool(), "s2").await?;
        let report = system.pass().await?;
        assert_eq!(story(&report, "s2"), "absent requeue parked", "{report:#?}");
        let why = job(&report, "s2").outcome.as_ref().and_then(|outcome| outcome.why.clone());
        assert!(why.as_deref().is_some_and(|why| why.contains("rows_end_here")), "{why:?}");
        assert_eq!(SlideJob::read(system.db.pool(), "s2").await?, before);
        let mut enqueued = delayed(&system, "slide-generation").await?;
        enqueued.sort();
        assert_eq!(enqueued, ["slide-s1", "slide-s3"]);
        let hash: bool = system.redis(&["EXISTS", &system.key("slide-generation", "slide-s2")]).await?;
        assert!(!hash, "something of the parked job was enqueued");
        let counts = source(&report, "slides/generation");
        assert_eq!((counts.requeued, counts.parked, counts.failed), (2, 1, 0));
    }
    Ok(())
}

/// A16.
#[tokio::test]
async fn a_row_that_a_worker_holds_locked_is_not_ours_and_the_next_pass_looks_again() -> Result<()> {
    let system = with_lost_generation().await?;
    lose_generation(&system, "free").await?;
    let mut worker = system.db.pool().begin().await?;
    sqlx::query("SELECT 1 FROM \"SlideJob\" WHERE id = 's1' FOR UPDATE").execute(&mut *worker).await?;
    let report = system.pass().await?;
    assert_eq!(story(&report, "s1"), "absent requeue superseded", "{report:#?}");
    let why = job(&report, "s1").outcome.as_ref().and_then(|outcome| outcome.why.clone());
    assert!(why.as_deref().is_some_and(|why| why.starts_with("locked")), "{why:?}");
    assert_eq!(story(&report, "free"), "absent requeue applied", "{report:#?}");
    worker.rollback().await?;
    assert_eq!(story(&system.pass().await?, "s1"), "absent requeue applied");
    Ok(())
}

/// A17. What the application makes of it is its own rule; we only keep out of it, and remember.
#[tokio::test]
async fn a_worker_that_completes_a_job_after_we_failed_it_has_the_last_word_and_the_ledger_keeps_ours()
-> Result<()> {
    let system = running().await?;
    let pool = system.db.pool();
    Deck::ready("d1").exporting().insert(pool).await?;
    SlideExportJob::processing("e1").stale().of("d1").insert(pool).await?;
    assert_eq!(story(&system.pass().await?, "e1"), "absent fail applied");

    assert!(SlideExportJob::complete(pool, "e1").await?, "the worker writes by id alone");
    sql(&system, "UPDATE \"SlideDeck\" SET \"exportStatus\" = 'READY' WHERE id = 'd1'").await?;
    let before = Stores::of(&system).await?.of_the_application();
    assert!(system.pass().await?.jobs.is_empty());
    assert_eq!(Stores::of(&system).await?.of_the_application(), before);
    let name = SourceName { domain: "exports".into(), source: "slide-export".into() };
    let told = system.host.postgres.story(&name, "e1").await?;
    let told: Vec<_> = told.iter().map(|line| (line.decision.as_str(), line.outcome.as_deref())).collect();
    assert_eq!(told, [("fail", Some("applied"))]);
    Ok(())
}

/// A24, the shipped handler: it reads 500 tracks.
#[tokio::test]
async fn a_video_with_one_track_more_than_is_read_is_never_put_back() -> Result<()> {
    let system = running().await?;
    let pool = system.db.pool();
    Video::composing("whole").tracks(500).insert(pool).await?;
    Video::composing("cut-off").tracks(501).insert(pool).await?;
    VideoJob::processing("a").stale().of("whole").insert(pool).await?;
    VideoJob::processing("b").stale().of("cut-off").insert(pool).await?;
    let report = system.pass().await?;
    assert_eq!(story(&report, "a"), "absent requeue applied", "{report:#?}");
    assert_eq!(story(&report, "b"), "absent fail applied", "{report:#?}");
    assert_eq!(delayed(&system, "video-composition").await?, ["video-a"]);
    let data: String = system.redis(&["HGET", &system.key("video-composition", "video-a"), "data"]).await?;
    let data: serde_json::Value = serde_json::from_str(&data)?;
    assert_eq!(data["tracks"].as_array().map(Vec::len), Some(500));
    Ok(())
}

/// Of an epoch that began with this very pass nothing is known, however empty the queues are.
#[tokio::test]
async fn an_orphan_older_than_its_queues_epoch_waits_until_the_operator_accepts() -> Result<()> {
    let system = System::fresh().await?;
    system.used_queues(&QUEUES).await?;
    lose_generation(&system, "s1").await?;
    let before = Stores::of(&system).await?.of_the_application();
    for _ in 0..2 {
        let report = system.pass().await?;
        assert_eq!(story(&report, "s1"), "absent requeue before-epoch", "{report:#?}");
        assert_eq!(source(&report, "slides/generation").before_epoch, 1);
        assert_eq!(Stores::of(&system).await?.of_the_application(), before);
    }
    salvage::command::accept::queues(&system.host, &system.settings, &[], Operator::sure("the operator"))
        .await?;
    assert_eq!(story(&system.pass().await?, "s1"), "absent requeue applied");
    Ok(())
}
