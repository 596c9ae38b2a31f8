//! Acts on real servers: what is put back, what is failed, and what is left alone.

use anyhow::Result;
use salvage_tests::example::{Deck, Jobs, SlideExportJob, SlideJob};
use salvage_tests::system::{System, job, source, story};

const SLIDE_QUEUES: [&str; 2] = ["slide-generation", "slide-export"];

/// A system that has run for a day, whose slide queues are in use and empty.
async fn running() -> Result<System> {
    let system = System::fresh().await?;
    system.used_queues(&SLIDE_QUEUES).await?;
    system.known_since_yesterday().await?;
    Ok(system)
}

#[tokio::test]
async fn a_lost_job_that_can_be_rebuilt_is_queued_again_and_a_second_pass_changes_nothing() -> Result<()> {
    let system = running().await?;
    Deck::generating("d1").insert(system.db.pool()).await?;
    SlideJob::processing("s1").stale().of("d1").insert(system.db.pool()).await?;
    let report = system.pass().await?;
    assert_eq!(story(&report, "s1"), "absent requeue applied", "{report:#?}");
    assert_eq!(source(&report, "slides/generation").requeued, 1);
    let row = SlideJob::read(system.db.pool(), "s1").await?.expect("the row");
    assert_eq!((row.status.as_str(), row.progress, row.error), ("QUEUED", 0, None));
    let delayed: Vec<String> =
        system.redis(&["ZRANGE", &system.key("slide-generation", "delayed"), "0", "-1"]).await?;
    assert_eq!(delayed, ["slide-s1"]);
    let again = system.pass().await?;
    assert!(again.jobs.is_empty(), "{again:#?}");
    Ok(())
}

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
