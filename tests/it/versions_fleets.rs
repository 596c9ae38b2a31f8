//! Fleets of two BullMQ versions on one queue, which disagree on where a paused queue keeps its jobs.

use anyhow::Result;
use salvage_tests::bullmq::{BULLMQ_4, BULLMQ_5, BULLMQ_5_0, BULLMQ_5_40, BULLMQ_6};
use salvage_tests::system::{source, story};
use serde_json::json;

use crate::versions_world::{QUEUE, add, count, each_once, insert, named, row, running, worker};

/// One version pauses, the other adds meanwhile, and either resumes. Up to 5.x a paused queue's jobs are in `paused`, and
/// its resume overwrites `wait`; from 6 on they are in `wait`, and its resume merges both.
async fn check_mixed_fleet(older: &str) -> Result<()> {
    let system = running().await?;
    let (old, new) = tokio::try_join!(system.bullmq_of(older), system.bullmq_of(BULLMQ_6))?;
    for (number, (pauses, adds, resumes)) in
        [(&old, &new, &new), (&new, &old, &new), (&old, &new, &old), (&new, &old, &old)]
            .into_iter()
            .enumerate()
    {
        let case = format!("{older}, case {number}");
        let (early, late) = (named(&format!("early{number}-"), 5), named(&format!("late{number}-"), 5));
        let orphan = format!("orphan{number}");
        for row in &early {
            add(pauses, row, json!({})).await?;
        }
        pauses.call("pause", json!({ "queue": QUEUE })).await?;
        for row in &late {
            add(adds, row, json!({})).await?;
        }
        let rows: Vec<String> = early.into_iter().chain(late).chain([orphan.clone()]).collect();
        insert(&system, rows.iter().cloned()).await?;
        let before = row(&system, &orphan).await?;
        let report = system.pass().await?;
        let counts = source(&report, "slides/generation");
        assert_eq!((counts.scheduled, counts.absent, counts.refused), (10, 1, 1), "{case}: {report:#?}");
        assert_eq!(story(&report, &orphan), "absent requeue refused", "{case}");
        assert_eq!(row(&system, &orphan).await?, before, "{case}");

        resumes.call("resume", json!({ "queue": QUEUE })).await?;
        let report = system.pass().await?;
        let counts = source(&report, "slides/generation");
        // What the older resume overwrote is lost to BullMQ, and is put back like any other orphan.
        let overwritten = if std::ptr::eq(resumes, &old) { 5 } else { 0 };
        assert_eq!(
            (counts.scheduled, counts.requeued),
            (10 - overwritten, 1 + overwritten),
            "{case}: {report:#?}"
        );
        let lost = report.jobs.iter().filter(|job| job.sighting.residue == Some("hash-only")).count();
        assert_eq!(lost as u64, overwritten, "{case}");

        resumes.start_worker(QUEUE, worker(&system)).await?;
        for row in &rows {
            resumes.wait_runs(1, json!({ "jobId": row, "ended": true })).await?;
        }
        resumes.call("stopWorker", json!({ "worker": QUEUE })).await?;
        let mut runs = count(&resumes.runs(json!({})).await?);
        runs.retain(|row, _| rows.contains(row));
        assert_eq!(runs, each_once(&rows), "{case}");
        let report = system.pass().await?;
        assert_eq!(source(&report, "slides/generation").live, 0, "{case}: {report:#?}");
    }
    old.close().await?;
    new.close().await
}

#[tokio::test]
async fn a_fleet_of_bullmq_4_18_and_6_7_loses_nothing_over_a_pause() -> Result<()> {
    check_mixed_fleet(BULLMQ_4).await
}

#[tokio::test]
async fn a_fleet_of_bullmq_5_0_and_6_7_loses_nothing_over_a_pause() -> Result<()> {
    check_mixed_fleet(BULLMQ_5_0).await
}

#[tokio::test]
async fn a_fleet_of_bullmq_5_40_and_6_7_loses_nothing_over_a_pause() -> Result<()> {
    check_mixed_fleet(BULLMQ_5_40).await
}

#[tokio::test]
async fn a_fleet_of_bullmq_5_81_and_6_7_loses_nothing_over_a_pause() -> Result<()> {
    check_mixed_fleet(BULLMQ_5).await
}
