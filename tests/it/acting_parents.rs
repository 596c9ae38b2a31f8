//! Parents follow their jobs, by compare-and-set, and never under a live sibling.

use anyhow::Result;
use salvage::pass::Mode;
use salvage_tests::example::{Deck, Jobs, NarrationJob, SlideExportJob, SlideJob, Video, uuid};
use salvage_tests::rival::{Moment, Rivalled, once_at};
use salvage_tests::system::story;

use crate::acting::{running, sql, status};

/// A9.
#[tokio::test]
async fn a_deck_that_becomes_ready_while_its_generation_fails_stays_ready() -> Result<()> {
    for moment in [Moment::BeforeFirstLook, Moment::Settling, Moment::BeforeHold] {
        let system = running().await?;
        let pool = system.db.pool();
        Deck::generating("d1").insert(pool).await?;
        // Not restart-safe, so it is failed whatever the handler says.
        SlideJob::processing("s1").kind("OUTLINE").stale().of("d1").insert(pool).await?;
        let rival = once_at(moment, async || sql(&system, "UPDATE \"SlideDeck\" SET status = 'READY'").await);
        system.run(&Rivalled::new(&system.host, rival), Mode::Act).await?;
        // Where the deck was part of what was decided on, it takes another pass.
        let report = system.pass().await?;
        assert!(["scheduled", "absent fail applied"].contains(&story(&report, "s1").as_str()), "{report:#?}");
        assert_eq!(status::<SlideJob>(&system, "s1").await?, "FAILED", "{moment:?}");
        let deck = Deck::read(pool, "d1").await?.expect("the deck");
        assert_eq!((deck.status.as_str(), deck.error), ("READY", None), "{moment:?}");
    }
    Ok(())
}

/// A9, where the parent is no input of the decision.
#[tokio::test]
async fn a_parent_that_is_no_input_is_changed_only_from_the_status_it_has_at_the_write() -> Result<()> {
    let system = running().await?;
    let pool = system.db.pool();
    Deck::ready("d1").exporting().insert(pool).await?;
    SlideExportJob::processing("e1").stale().of("d1").insert(pool).await?;
    Video::ready("v1").narrating().insert(pool).await?;
    NarrationJob::processing(uuid(1)).stale().of("v1").insert(pool).await?;
    let finish = "UPDATE \"SlideDeck\" SET \"exportStatus\" = 'READY'; \
                  UPDATE \"Video\" SET narration_status = 'READY'";
    let rival = once_at(Moment::BeforeHold, async || sql(&system, finish).await);
    let report = system.run(&Rivalled::new(&system.host, rival), Mode::Act).await?;
    for id in ["e1", uuid(1).as_str()] {
        assert_eq!(story(&report, id), "absent fail applied", "{report:#?}");
    }
    assert_eq!(Deck::read(pool, "d1").await?.expect("the deck").export_status, "READY");
    assert_eq!(Video::read(pool, "v1").await?.expect("the video").narration_status, "READY");
    Ok(())
}

/// A19.
#[tokio::test]
async fn a_failed_pdf_does_not_fail_the_pptx_that_still_runs() -> Result<()> {
    let system = running().await?;
    let pool = system.db.pool();
    Deck::ready("d1").exporting().insert(pool).await?;
    SlideExportJob::processing("pdf").stale().of("d1").insert(pool).await?;
    SlideExportJob::processing("pptx").kind("PPTX").of("d1").insert(pool).await?;
    let report = system.pass().await?;
    assert_eq!(story(&report, "pdf"), "absent fail applied", "{report:#?}");
    assert_eq!(status::<SlideExportJob>(&system, "pdf").await?, "FAILED");
    assert_eq!(status::<SlideExportJob>(&system, "pptx").await?, "PROCESSING");
    assert_eq!(Deck::read(pool, "d1").await?.expect("the deck").export_status, "EXPORTING");
    Ok(())
}

/// A19, when the PPTX is lost as well.
#[tokio::test]
async fn siblings_that_are_lost_together_take_the_parent_with_them() -> Result<()> {
    let system = running().await?;
    let pool = system.db.pool();
    Deck::ready("d1").exporting().insert(pool).await?;
    SlideExportJob::processing("pdf").stale().of("d1").insert(pool).await?;
    SlideExportJob::queued("pptx").kind("PPTX").stale().of("d1").insert(pool).await?;
    system.pass().await?;
    assert_eq!(status::<SlideExportJob>(&system, "pdf").await?, "FAILED");
    assert_eq!(status::<SlideExportJob>(&system, "pptx").await?, "FAILED");
    assert_eq!(Deck::read(pool, "d1").await?.expect("the deck").export_status, "FAILED");
    Ok(())
}
