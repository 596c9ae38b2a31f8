//! The support library does what it says; where it fails, no other test is worth reading.

use anyhow::Result;
use salvage_tests::bullmq::{BULLMQ_ALL, BullMq};
use salvage_tests::example::{
    Deck, Jobs, NarrationJob, SlideExportJob, SlideJob, Video, VideoExportJob, VideoJob, uuid,
};
use salvage_tests::services::{Database, fresh_prefix, redis_url};
use salvage_tests::stores::Stores;
use salvage_tests::system::System;
use serde_json::json;

#[tokio::test]
async fn each_job_table_takes_its_rows() -> Result<()> {
    async fn check<J: Jobs>(db: &Database, ids: [String; 2]) -> Result<()> {
        let [stale, done] = ids;
        J::processing(&stale).stale().insert(db.pool()).await?;
        J::completed(&done).insert(db.pool()).await?;
        let before = J::read(db.pool(), &stale).await?.expect("the row is there");
        assert_eq!((before.status.as_str(), before.progress), ("PROCESSING", 40));

        assert!(J::write_progress(db.pool(), &stale, 41).await?);
        let after = J::read(db.pool(), &stale).await?.expect("the row is there");
        assert_eq!(after.updated_at, before.updated_at);
        assert_ne!(after.xmin, before.xmin);

        assert!(J::complete(db.pool(), &stale).await?);
        let after = J::read(db.pool(), &stale).await?.expect("the row is there");
        assert_eq!(after.status, "COMPLETED");
        assert_ne!(after.updated_at, before.updated_at);
        Ok(())
    }

    let db = Database::example().await?;
    check::<SlideJob>(&db, ["s1".into(), "s2".into()]).await?;
    check::<VideoJob>(&db, ["v1".into(), "v2".into()]).await?;
    check::<NarrationJob>(&db, [uuid(1), uuid(2)]).await?;
    check::<SlideExportJob>(&db, ["e1".into(), "e2".into()]).await?;
    check::<VideoExportJob>(&db, ["1".into(), "2".into()]).await?;
    Ok(())
}

/// A hash this large is a table, which Redis moves to its larger place a bucket at a time, whenever a field is read.
#[tokio::test]
async fn both_stores_are_as_they_were_when_they_were_only_read() -> Result<()> {
    let system = System::fresh().await?;
    let key = system.key("slide-generation", "slide-s1");
    let long = "x".repeat(100);
    for field in ["name", "data", "opts", "timestamp", "delay"] {
        system.redis::<()>(&["HSET", &key, field, &long]).await?;
    }
    let before = Stores::of(&system).await?;
    for _ in 0..8 {
        system.redis::<String>(&["HGET", &key, "data"]).await?;
    }
    assert_eq!(Stores::of(&system).await?, before);
    system.redis::<()>(&["HSET", &key, "delay", "0"]).await?;
    assert_ne!(Stores::of(&system).await?, before);
    Ok(())
}

#[tokio::test]
async fn parents_read_back_as_written() -> Result<()> {
    let db = Database::example().await?;
    Deck::ready("d1").exporting().insert(db.pool()).await?;
    let deck = Deck::read(db.pool(), "d1").await?.expect("the deck is there");
    assert_eq!((deck.status.as_str(), deck.export_status.as_str()), ("READY", "EXPORTING"));

    Video::composing("v1").narrating().tracks(2).insert(db.pool()).await?;
    let video = Video::read(db.pool(), "v1").await?.expect("the video is there");
    assert_eq!((video.status.as_str(), video.narration_status.as_str()), ("COMPOSING", "NARRATING"));
    let tracks: i64 = sqlx::query_scalar("SELECT count(*) FROM \"VideoTrack\"").fetch_one(db.pool()).await?;
    assert_eq!(tracks, 2);
    Ok(())
}

#[tokio::test]
async fn databases_of_two_tests_are_apart() -> Result<()> {
    let (one, other) = tokio::try_join!(Database::example(), Database::example())?;
    SlideJob::queued("s1").insert(one.pool()).await?;
    assert!(SlideJob::read(other.pool(), "s1").await?.is_none());
    Ok(())
}

#[tokio::test]
async fn every_bullmq_runs_a_job_that_reads_its_row() -> Result<()> {
    let db = Database::example().await?;
    SlideJob::queued("s1").insert(db.pool()).await?;
    for version in BULLMQ_ALL {
        let bullmq = BullMq::open_version(version, &redis_url()?, &fresh_prefix()).await?;
        bullmq
            .add("slide-generation", "generate", json!({"jobId": "s1"}), json!({"jobId": "slide-s1"}))
            .await?;
        assert_eq!(bullmq.state("slide-generation", "slide-s1").await?, "waiting", "{version}");

        let read_row = "SELECT status::text FROM \"SlideJob\" WHERE id = $1";
        bullmq.start_worker("slide-generation", json!({"database": db.url(), "readRow": read_row})).await?;
        let runs = bullmq.wait_runs(1, json!({"job": "slide-s1", "ended": true})).await?;
        assert_eq!(runs[0].row, json!({"status": "QUEUED"}), "{version}");
        assert_eq!(runs[0].outcome.as_deref(), Some("completed"), "{version}");
        bullmq.close().await?;
    }
    Ok(())
}

#[tokio::test]
async fn killed_worker_leaves_its_job_active() -> Result<()> {
    let prefix = fresh_prefix();
    let doomed = BullMq::open(&redis_url()?, &prefix).await?;
    doomed.add("q", "n", json!({"jobId": "s1"}), json!({"jobId": "s1"})).await?;
    doomed.start_worker("q", json!({"behaviour": "hang"})).await?;
    doomed.wait_runs(1, json!({"job": "s1"})).await?;
    doomed.kill().await?;

    let witness = BullMq::open(&redis_url()?, &prefix).await?;
    assert_eq!(witness.state("q", "s1").await?, "active");
    assert!(witness.runs(json!({})).await?.is_empty(), "another process has another record");
    Ok(())
}

#[tokio::test]
async fn driver_says_what_went_wrong() -> Result<()> {
    let bullmq = BullMq::open(&redis_url()?, &fresh_prefix()).await?;
    let error = bullmq.wait_runs(1, json!({"queue": "q", "deadlineMs": 1})).await.expect_err("nothing ran");
    assert!(format!("{error:#}").contains("0 of 1 runs"), "{error:#}");
    assert!(bullmq.call("dance", json!({})).await.is_err());
    Ok(())
}
