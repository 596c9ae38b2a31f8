//! Entries, by pipelines, under BullMQ 5's own keys (BullMQ 5.81.5).

use super::Seed;
use super::plan::{Fate, Job, TABLES};
use anyhow::{Context, Result};
use redis::aio::MultiplexedConnection;
use serde_json::json;

/// Entries in one pipeline.
const BATCH: usize = 1_000;

/// Due in an hour, so that nothing moves by itself.
const DELAY_MS: u64 = 3_600_000;

/// The finished ones finished so long ago.
const FINISHED_MS_AGO: u64 = 6_000_000;

pub(super) async fn fill(seed: Seed, url: &str) -> Result<()> {
    let patient = redis::AsyncConnectionConfig::new().set_response_timeout(None);
    let mut redis = redis::Client::open(url)?
        .get_multiplexed_async_connection_with_config(&patient)
        .await
        .context("connecting to fill the queues")?;
    meta(seed, &mut redis).await.context("making the queues")?;
    let input = "z".repeat(seed.payload_chars);
    let now_ms = super::now_ms()?;
    let mut jobs = seed.jobs().filter(|job| job.fate != Fate::Absent).peekable();
    while jobs.peek().is_some() {
        let mut commands = redis::pipe();
        jobs.by_ref().take(BATCH).for_each(|job| add(&mut commands, job, now_ms, &input));
        commands.query_async::<()>(&mut redis).await.context("filling the queues")?;
    }
    Ok(())
}

/// What an application that uses a queue leaves there.
async fn meta(seed: Seed, redis: &mut MultiplexedConnection) -> Result<()> {
    let mut commands = redis::pipe();
    for table in &TABLES {
        let meta = [("opts.maxLenEvents", "10000"), ("version", "bullmq:5.81.5")];
        commands.hset_multiple(format!("bull:{}:meta", table.queue), &meta).ignore();
        let counter = seed.size.ids + 2 * seed.size.candidates;
        commands.set(format!("bull:{}:id", table.queue), counter).ignore();
    }
    Ok(commands.query_async(redis).await?)
}

fn add(commands: &mut redis::Pipeline, job: Job, now_ms: u64, input: &str) {
    let (table, id, state) = (job.table(), job.entry_id(), job.state());
    let key = |suffix: &str| format!("bull:{}:{suffix}", table.queue);
    let number = job.number as u64;
    let data = json!({ "jobId": job.row_id(), "userId": number, "input": input });
    let opts = json!({
        "attempts": 3, "backoff": { "type": "exponential", "delay": 1000 }, "jobId": id,
    });
    let hash = commands.cmd("HSET").arg(key(&id)).arg("name").arg(table.job_name);
    hash.arg("data").arg(data.to_string()).arg("opts").arg(opts.to_string());
    hash.arg("timestamp").arg(now_ms - 2 * DELAY_MS);
    hash.arg("delay").arg(if state == "delayed" { DELAY_MS } else { 0 });
    hash.arg("priority").arg(if state == "prioritized" { 5 } else { 0 });
    let finished_ms = now_ms - FINISHED_MS_AGO;
    match job.fate {
        Fate::Completed => hash.arg("finishedOn").arg(finished_ms).arg("returnvalue").arg("null"),
        Fate::Failed => hash.arg("finishedOn").arg(finished_ms).arg("failedReason").arg("out of ink"),
        _ => hash,
    }
    .ignore();
    let score = match state {
        "wait" | "active" => {
            if state == "active" {
                // Its worker is well.
                commands.cmd("SET").arg(key(&format!("{id}:lock"))).arg("a worker's token").ignore();
            }
            commands.cmd("LPUSH").arg(key(state)).arg(id).ignore();
            return;
        }
        // As BullMQ scores them: the due time and a sequence, the priority and a counter.
        "delayed" => ((now_ms + DELAY_MS + number % 1_000) << 12) + number % 4_096,
        "prioritized" => (5 << 32) + number,
        "waiting-children" => now_ms - 2 * DELAY_MS,
        _ => finished_ms,
    };
    commands.cmd("ZADD").arg(key(state)).arg(score).arg(id).ignore();
}
