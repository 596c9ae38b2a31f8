//! What each BullMQ version left behind is put back by whole passes, and runs once; a paused queue is waited for.

use anyhow::Result;
use salvage_tests::bullmq::{BULLMQ_4, BULLMQ_5, BULLMQ_5_0, BULLMQ_5_40, BULLMQ_6, BullMq};
use salvage_tests::system::{System, job, source, story};
use serde_json::json;

use crate::versions_world::{QUEUE, add, count, each_once, insert, named, row, running, worker};

/// Lets a worker end a job, and makes it look as if that was two minutes ago: within a minute the application may be about
/// to write its row.
async fn leave_finished(system: &System, bullmq: &BullMq, row: &str, behaviour: &str) -> Result<()> {
    add(bullmq, row, json!({})).await?;
    bullmq.start_worker(QUEUE, json!({ "behaviour": behaviour, "message": "out of ink" })).await?;
    bullmq.wait_runs(1, json!({ "jobId": row, "ended": true })).await?;
    bullmq.call("stopWorker", json!({ "worker": QUEUE })).await?;
    let set = if behaviour == "fail" { "failed" } else { "completed" };
    system.redis::<f64>(&["ZINCRBY", &system.key(QUEUE, set), "-120000", &format!("slide-{row}")]).await?;
    Ok(())
}

/// A hash that is in no state.
async fn leave_hash(system: &System, bullmq: &BullMq, row: &str, without: &[&str]) -> Result<()> {
    add(bullmq, row, json!({})).await?;
    let entry = format!("slide-{row}");
    system.redis::<i64>(&["LREM", &system.key(QUEUE, "wait"), "0", &entry]).await?;
    for field in without {
        system.redis::<i64>(&["HDEL", &system.key(QUEUE, &entry), field]).await?;
    }
    Ok(())
}

/// Orphans over every residue, and five jobs of a paused queue.
async fn check_recovery(version: &str) -> Result<()> {
    const ORPHANS: [(&str, &str); 5] = [
        ("nothing", "none"),
        ("completed", "completed"),
        ("failed", "failed"),
        ("hash", "hash-only"),
        ("partial", "hash-only"),
    ];
    let system = running().await?;
    let bullmq = system.bullmq_of(version).await?;
    leave_finished(&system, &bullmq, "completed", "complete").await?;
    leave_finished(&system, &bullmq, "failed", "fail").await?;
    leave_hash(&system, &bullmq, "hash", &[]).await?;
    leave_hash(&system, &bullmq, "partial", &["opts", "data"]).await?;
    let held = named("held", 5);
    for row in &held {
        add(&bullmq, row, json!({})).await?;
    }
    bullmq.call("pause", json!({ "queue": QUEUE })).await?;
    insert(&system, held.iter().cloned().chain(ORPHANS.map(|(row, _)| row.to_owned()))).await?;

    let before = row(&system, "failed").await?;
    let report = system.pass().await?;
    let counts = source(&report, "slides/generation");
    assert_eq!((counts.scheduled, counts.absent, counts.unknown), (5, 5, 0), "{version}: {report:#?}");
    assert_eq!((counts.refused, counts.requeued, counts.failed), (5, 0, 0), "{version}: {report:#?}");
    for (orphan, residue) in ORPHANS {
        let job = job(&report, orphan);
        assert_eq!(job.sighting.residue, Some(residue), "{version} {orphan}");
        assert_eq!(story(&report, orphan), "absent requeue refused", "{version} {orphan}");
        let why = job.outcome.as_ref().and_then(|outcome| outcome.why.as_deref()).unwrap_or_default();
        assert!(why.contains("paused"), "{version} {orphan}: {why}");
    }
    assert_eq!(row(&system, "failed").await?, before, "{version}");

    bullmq.call("resume", json!({ "queue": QUEUE })).await?;
    let report = system.pass().await?;
    let counts = source(&report, "slides/generation");
    assert_eq!((counts.scheduled, counts.requeued), (5, 5), "{version}: {report:#?}");
    bullmq.close().await?;

    let workers = system.bullmq_of(version).await?;
    workers.start_worker(QUEUE, worker(&system)).await?;
    let rows: Vec<String> = held.into_iter().chain(ORPHANS.map(|(row, _)| row.to_owned())).collect();
    let runs = workers.wait_runs(rows.len(), json!({ "ended": true })).await?;
    workers.call("stopWorker", json!({ "worker": QUEUE })).await?;
    assert_eq!(count(&workers.runs(json!({})).await?), each_once(&rows), "{version}");
    for run in &runs {
        let is_orphan = ORPHANS.iter().any(|(row, _)| run.data["jobId"] == *row);
        let status = if is_orphan { "QUEUED" } else { "PROCESSING" };
        assert_eq!(run.row, json!({ "status": status }), "{version} {}", run.id);
    }
    let report = system.pass().await?;
    assert_eq!(source(&report, "slides/generation").live, 0, "{version}: {report:#?}");
    workers.close().await
}

#[tokio::test]
async fn orphans_of_a_paused_queue_of_bullmq_4_18_run_once_after_its_resume() -> Result<()> {
    check_recovery(BULLMQ_4).await
}

#[tokio::test]
async fn orphans_of_a_paused_queue_of_bullmq_5_0_run_once_after_its_resume() -> Result<()> {
    check_recovery(BULLMQ_5_0).await
}

#[tokio::test]
async fn orphans_of_a_paused_queue_of_bullmq_5_40_run_once_after_its_resume() -> Result<()> {
    check_recovery(BULLMQ_5_40).await
}

#[tokio::test]
async fn orphans_of_a_paused_queue_of_bullmq_5_81_run_once_after_its_resume() -> Result<()> {
    check_recovery(BULLMQ_5).await
}

#[tokio::test]
async fn orphans_of_a_paused_queue_of_bullmq_6_7_run_once_after_its_resume() -> Result<()> {
    check_recovery(BULLMQ_6).await
}
