//! Liveness beside safety: whatever else lives in a queue, its orphans are recovered within two passes.

use anyhow::Result;
use salvage_tests::bullmq::{BULLMQ_4, BULLMQ_5, BULLMQ_5_0, BULLMQ_5_40, BULLMQ_6, BullMq};
use salvage_tests::example::Deck;
use salvage_tests::system::{System, source};
use serde_json::json;

use crate::versions_world::{OTHER, QUEUE, add, count, each_once, insert, named};

/// Gives a queue what ordinary queues have besides jobs of rows.
async fn make_ordinary(bullmq: &BullMq, version: &str) -> Result<()> {
    let every = json!({ "every": 300 });
    if [BULLMQ_4, BULLMQ_5_0].contains(&version) {
        bullmq.add(QUEUE, "tidy", json!({}), json!({ "repeat": every })).await?;
    } else {
        let scheduler =
            json!({ "queue": QUEUE, "scheduler": "tidy", "repeat": every, "template": { "name": "tidy" } });
        bullmq.call("upsertScheduler", scheduler).await?;
    }
    for number in 0..5 {
        let child =
            json!({ "name": "part", "queueName": "parts-without-worker", "data": { "part": number } });
        let parent =
            json!({ "name": "whole", "queueName": QUEUE, "data": { "parts": 1 }, "children": [child] });
        bullmq.call("addFlow", json!({ "flow": parent })).await?;
    }
    for (number, data) in
        [json!({}), json!(null), json!("ping"), json!([1]), json!({ "jobId": null })].into_iter().enumerate()
    {
        // Some wait all the time, some run at once.
        let opts = json!({ "delay": 60_000 * (number % 2) });
        bullmq.add(QUEUE, "ping", data, opts).await?;
    }
    // The second queue of the source is there and never had a job.
    bullmq.call("counts", json!({ "queue": OTHER })).await.map(drop)
}

/// Fifty orphans among jobs that are there, in a queue where 60 jobs of 40 ms come and go.
async fn check_liveness(version: &str) -> Result<()> {
    let system = System::fresh().await?;
    Deck::generating("d1").insert(system.db.pool()).await?;
    let bullmq = system.bullmq_of(version).await?;
    make_ordinary(&bullmq, version).await?;
    let present = named("present", 120);
    for row in &present {
        add(&bullmq, row, json!({ "delay": 600_000 })).await?;
    }
    let busy = json!({ "delayMs": 40, "concurrency": 60 });
    bullmq.start_worker(QUEUE, busy).await?;
    bullmq.call("startBacklog", json!({ "queue": QUEUE, "jobs": 120 })).await?;
    bullmq.wait_runs(300, json!({ "queue": QUEUE })).await?;
    // Since yesterday, as far as the host knows; but it finds out by itself whose queues these are.
    system.pass().await?;
    system.age_epochs().await?;

    let orphans = named("orphan", 50);
    insert(&system, present.iter().chain(&orphans).cloned()).await?;
    let mut requeued = 0;
    for _ in 0..2 {
        let report = system.pass().await?;
        let counts = source(&report, "slides/generation");
        assert_eq!(counts.candidates, counts.scheduled + counts.absent + counts.unknown, "{version}");
        requeued += counts.requeued;
        assert!(report.pass.scan_ran, "{version}");
        if requeued == 50 {
            break;
        }
    }
    assert_eq!(requeued, 50, "{version}: recovered within two passes");
    for row in &orphans {
        bullmq.wait_runs(1, json!({ "jobId": row, "ended": true })).await?;
    }
    let added = bullmq.call("stopBacklog", json!({ "queue": QUEUE })).await?;
    bullmq.call("stopWorker", json!({ "worker": QUEUE })).await?;
    let mut runs = count(&bullmq.runs(json!({ "queue": QUEUE })).await?);
    runs.retain(|row, _| orphans.contains(row) || present.contains(row));
    assert_eq!(runs, each_once(&orphans), "{version}");
    assert!(added["added"].as_u64() > Some(1_000), "{version}: {added}, a queue too quiet to prove anything");
    bullmq.close().await
}

#[tokio::test]
async fn orphans_in_an_ordinary_queue_of_bullmq_4_18_are_recovered_within_two_passes() -> Result<()> {
    check_liveness(BULLMQ_4).await
}

#[tokio::test]
async fn orphans_in_an_ordinary_queue_of_bullmq_5_0_are_recovered_within_two_passes() -> Result<()> {
    check_liveness(BULLMQ_5_0).await
}

#[tokio::test]
async fn orphans_in_an_ordinary_queue_of_bullmq_5_40_are_recovered_within_two_passes() -> Result<()> {
    check_liveness(BULLMQ_5_40).await
}

#[tokio::test]
async fn orphans_in_an_ordinary_queue_of_bullmq_5_81_are_recovered_within_two_passes() -> Result<()> {
    check_liveness(BULLMQ_5).await
}

#[tokio::test]
async fn orphans_in_an_ordinary_queue_of_bullmq_6_7_are_recovered_within_two_passes() -> Result<()> {
    check_liveness(BULLMQ_6).await
}
