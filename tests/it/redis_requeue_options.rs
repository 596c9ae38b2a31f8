//! Options of a job that is put back, and what the workers of every supported BullMQ make of them.
//!
//! The host's rule is in `host_rules`; here it is held against the packages themselves: what it lets pass ends well, and what
//! it refuses would have been lost again.

use std::collections::HashMap;

use anyhow::Result;
use salvage_core::act::ScriptAnswer;
use salvage_tests::bullmq::{BULLMQ_ALL, BullMq};
use serde_json::{Value, json};

use crate::redis_world::{QUEUE, World, requeue_with};

/// As far as the host's rule goes in each direction.
fn sound() -> Vec<Value> {
    let most = u32::MAX;
    let mut sound = vec![
        json!({}),
        json!({ "stackTraceLimit": 0, "keepLogs": 0 }),
        json!({ "stackTraceLimit": most, "keepLogs": most }),
        json!({ "priority": 0 }),
        json!({ "priority": 2_097_151 }),
        json!({ "attempts": most }),
    ];
    for kept in [
        json!(true),
        json!(false),
        json!(-1),
        json!(0),
        json!(1),
        json!(most),
        json!({}),
        json!({ "count": -1, "age": 0 }),
        json!({ "count": 0 }),
        json!({ "count": most, "age": most, "limit": most }),
        json!({ "age": 3600, "limit": 1 }),
    ] {
        sound.push(json!({ "removeOnComplete": kept, "removeOnFail": kept }));
    }
    for backoff in [
        json!(0),
        json!(1),
        json!({ "type": "fixed", "delay": 0 }),
        json!({ "type": "fixed", "delay": 1, "jitter": 1 }),
        json!({ "type": "exponential", "delay": 1, "jitter": 0.5 }),
        json!({ "type": "exponential", "delay": 0, "jitter": 0 }),
    ] {
        sound.push(json!({ "attempts": 2, "backoff": backoff }));
    }
    sound
}

/// Runs all that waits by a worker that does this, until every job has run so often.
async fn run_all(bullmq: &BullMq, behaviour: &str, runs: usize) -> Result<()> {
    bullmq.start_worker(QUEUE, json!({ "behaviour": behaviour, "concurrency": 8 })).await?;
    bullmq.wait_runs(runs, json!({ "ended": true })).await?;
    bullmq.call("stopWorker", json!({ "worker": QUEUE })).await.map(drop)
}

/// How many jobs have ended so, by the queue's events: the finishing script writes them last.
async fn ended(world: &World, event: &str) -> Result<usize> {
    let events: Vec<(String, HashMap<String, String>)> =
        world.command("XRANGE @:slide-generation:events - +").await?;
    Ok(events.iter().filter(|(_, fields)| fields.get("event").is_some_and(|found| found == event)).count())
}

#[tokio::test]
async fn what_the_rule_lets_pass_is_completed_by_every_bullmq() -> Result<()> {
    for version in BULLMQ_ALL {
        let world = World::fresh().await?;
        let bullmq = BullMq::open_version(version, &world.url, &world.prefix).await?;
        let sound = sound();
        for (index, options) in sound.iter().enumerate() {
            let act = requeue_with(&index.to_string(), &options.to_string());
            assert_eq!(world.act(&act).await?, ScriptAnswer::Clear, "{version} {options}");
        }
        run_all(&bullmq, "complete", sound.len()).await?;
        assert_eq!(ended(&world, "completed").await?, sound.len(), "{version}");
        for (index, options) in sound.iter().enumerate() {
            let state = bullmq.state(QUEUE, &format!("slide-{index}")).await?;
            assert!(["completed", "unknown"].contains(&state.as_str()), "{version} {options}: {state}");
        }
        bullmq.close().await?;
    }
    Ok(())
}

#[tokio::test]
async fn what_the_rule_lets_pass_is_tried_again_and_failed_by_every_bullmq() -> Result<()> {
    for version in BULLMQ_ALL {
        let world = World::fresh().await?;
        let bullmq = BullMq::open_version(version, &world.url, &world.prefix).await?;
        // Endless attempts never end.
        let sound: Vec<Value> = sound().into_iter().filter(|of| of["attempts"] != u32::MAX).collect();
        let mut runs = 0;
        for (index, options) in sound.iter().enumerate() {
            let act = requeue_with(&index.to_string(), &options.to_string());
            assert_eq!(world.act(&act).await?, ScriptAnswer::Clear, "{version} {options}");
            runs += usize::try_from(options["attempts"].as_u64().unwrap_or(1))?;
        }
        run_all(&bullmq, "fail", runs).await?;
        assert_eq!(ended(&world, "failed").await?, sound.len(), "{version}");
        for (index, options) in sound.iter().enumerate() {
            let state = bullmq.state(QUEUE, &format!("slide-{index}")).await?;
            assert!(["failed", "unknown"].contains(&state.as_str()), "{version} {options}: {state}");
        }
        bullmq.close().await?;
    }
    Ok(())
}

/// The negative twin. BullMQ's own `add` takes each of these, and the worker does the work; then it throws, or its script
/// stops half-way, and the job stays active or is half ended.
#[tokio::test]
async fn what_the_rule_refuses_never_ends() -> Result<()> {
    for version in BULLMQ_ALL {
        let world = World::fresh().await?;
        let bullmq = BullMq::open_version(version, &world.url, &world.prefix).await?;
        for (behaviour, options) in [
            ("complete", json!({ "removeOnComplete": { "count": "x" } })),
            ("complete", json!({ "removeOnComplete": { "count": 1.5 } })),
            ("complete", json!({ "removeOnComplete": { "age": "x" } })),
            ("fail", json!({ "removeOnFail": { "count": [1] } })),
            ("fail", json!({ "attempts": 2, "backoff": "fixed" })),
            ("fail", json!({ "attempts": 2, "backoff": { "type": "spring", "delay": 1 } })),
        ] {
            let mut theirs = options.clone();
            theirs["jobId"] = "slide-1".into();
            bullmq.add(QUEUE, "generate", json!({ "jobId": "1" }), theirs).await?;
            let runs = bullmq.runs(json!({})).await?.len();
            run_all(&bullmq, behaviour, runs + 1).await?;
            for event in ["completed", "failed"] {
                assert_eq!(ended(&world, event).await?, 0, "{version} {options}");
            }
            bullmq.call("obliterate", json!({ "queue": QUEUE })).await?;
        }
        bullmq.close().await?;
    }
    Ok(())
}
