//! A live queue of each BullMQ version, judged again and again while its jobs move: what is there is never called absent.
//!
//! Goal: the claim that sets the host apart. Method: jobs that BullMQ holds all the time, because they fail and are
//! retried for ever, move through all states by every way there is; a pass after the other judges their rows. Beside them
//! other jobs come and go. The negative twin reads the same queue state by state, page by page, and misses some.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use salvage_tests::bullmq::{BULLMQ_4, BULLMQ_5, BULLMQ_5_0, BULLMQ_5_40, BULLMQ_6, BullMq};
use salvage_tests::example::{Jobs, SlideJob};
use salvage_tests::system::{System, source};
use serde_json::{Value, json};

const QUEUE: &str = "slide-generation";

/// Passes that judge one version's queue: 210 over the five versions.
const PASSES: usize = 42;

/// A paged scan follows every so many passes.
const PASSES_PER_SCAN: usize = 4;

/// The states in which BullMQ holds a job, as its `getState` calls them.
const SCHEDULED: [&str; 7] =
    ["waiting", "waiting-children", "delayed", "paused", "prioritized", "active", "wait"];

/// Jobs that are there all the time, and rows that say so.
struct Crowd {
    /// Row ids.
    rows: Vec<String>,
    /// Entry ids, in the same order.
    entries: Vec<String>,
}

impl Crowd {
    const fn new() -> Self {
        Self { rows: vec![], entries: vec![] }
    }

    /// A job that fails, waits for 40 ms and is retried, for ever.
    fn retrier(&mut self, row: String, entry: String, with: &[(&str, Value)]) -> Value {
        let mut opts = json!({ "jobId": entry, "attempts": 1_000_000, "backoff": 40 });
        for (key, value) in with {
            opts[*key] = value.clone();
        }
        let data = json!({ "jobId": row, "behaviour": "fail" });
        self.rows.push(row);
        self.entries.push(entry);
        json!({ "name": "generate", "queueName": QUEUE, "data": data, "opts": opts })
    }

    fn named(&mut self, kind: &str, number: u32, with: &[(&str, Value)]) -> Value {
        let row = format!("{kind}{number}");
        let entry = format!("slide-{row}");
        self.retrier(row, entry, with)
    }

    /// Adds 330 of them.
    async fn add_all(&mut self, bullmq: &BullMq) -> Result<()> {
        let mut jobs = vec![];
        for number in 0..160 {
            jobs.push(self.named("plain", number, &[]));
        }
        for number in 0..60 {
            jobs.push(self.named("urgent", number, &[("priority", (1 + number % 5).into())]));
        }
        for number in 0..40 {
            jobs.push(self.named("later", number, &[("delay", (100 * number).into())]));
        }
        // Entries under the id of an older rule are found by their payload alone.
        for number in 0..20 {
            jobs.push(self.retrier(format!("old{number}"), format!("legacy-{number}"), &[]));
        }
        bullmq.call("addMany", json!({ "queue": QUEUE, "jobs": jobs })).await?;
        for number in 0..20 {
            // The parent waits for a child that never ends.
            let mut parent = self.named("parent", number, &[]);
            parent["children"] = json!([self.named("child", number, &[])]);
            bullmq.call("addFlow", json!({ "flow": parent })).await?;
        }
        for number in 0..10 {
            // The parent is released by a child that completes.
            let mut parent = self.named("released", number, &[]);
            let child = json!({ "name": "part", "queueName": QUEUE, "data": { "behaviour": "complete" } });
            parent["children"] = json!([child]);
            bullmq.call("addFlow", json!({ "flow": parent })).await?;
        }
        Ok(())
    }

    /// How many of them a paged scan misses.
    async fn missed_by_paging(&self, bullmq: &BullMq) -> Result<usize> {
        let found = bullmq.call("pagedScan", json!({ "queue": QUEUE })).await?;
        let found: BTreeSet<String> = serde_json::from_value(found)?;
        Ok(self.rows.iter().filter(|row| !found.contains(*row)).count())
    }

    /// Asks BullMQ itself, job by job: it holds every one.
    async fn is_held(&self, bullmq: &BullMq) -> Result<()> {
        let states = bullmq.call("states", json!({ "queue": QUEUE, "jobs": self.entries })).await?;
        let states = states.as_array().context("states: no list")?;
        assert_eq!(states.len(), self.entries.len());
        for (entry, state) in self.entries.iter().zip(states) {
            let state = state.as_str().unwrap_or_default();
            assert!(SCHEDULED.contains(&state), "{entry} is {state}: it should have been there all the time");
        }
        Ok(())
    }
}

async fn insert(system: &System, crowd: &Crowd) -> Result<()> {
    for (number, row) in crowd.rows.iter().enumerate() {
        let job = if number % 2 == 0 { SlideJob::queued(row) } else { SlideJob::processing(row) };
        job.stale().insert(system.db.pool()).await?;
    }
    Ok(())
}

/// Judges a live queue of a version, and scans it the naive way in between.
#[expect(
    clippy::print_stdout,
    reason = "how often the other procedure is wrong is worth knowing, not only that it is"
)]
async fn check(version: &str) -> Result<()> {
    let system = System::fresh().await?;
    let (workers, mover) = tokio::try_join!(system.bullmq_of(version), system.bullmq_of(version))?;
    let mut crowd = Crowd::new();
    crowd.add_all(&workers).await?;
    insert(&system, &crowd).await?;
    let jobs = crowd.rows.len();
    let as_told = json!({ "behaviour": "as-told", "delayMs": 5, "concurrency": 60 });
    workers.start_worker(QUEUE, as_told).await?;
    workers.wait_runs(jobs, json!({ "queue": QUEUE })).await?;
    mover.call("startMoves", json!({ "queue": QUEUE, "jobs": crowd.entries, "child": QUEUE })).await?;

    let (mut snapshots, mut naive_judged, mut naive_wrong) = (0, 0, 0);
    let mut in_passes = Duration::ZERO;
    for round in 0..PASSES {
        let began = Instant::now();
        let report = system.plan().await?;
        in_passes += began.elapsed();
        let counts = source(&report, "slides/generation");
        let seen = (counts.candidates, counts.scheduled, counts.absent, counts.unknown);
        assert_eq!(seen, (jobs as u64, jobs as u64, 0, 0), "{version}, round {round}: {:?}", report.jobs);
        assert!(report.pass.scan_ran, "{version}: the old ids are found by their payloads alone");
        snapshots += 1;
        if round % PASSES_PER_SCAN == 0 {
            naive_judged += jobs;
            naive_wrong += crowd.missed_by_paging(&mover).await?;
        }
    }
    // A machine too busy for the workers may have kept the queue still by chance.
    while naive_wrong == 0 && naive_judged < 100 * jobs {
        naive_judged += jobs;
        naive_wrong += crowd.missed_by_paging(&mover).await?;
    }
    crowd.is_held(&workers).await?;
    let moves = mover.call("stopMoves", json!({ "queue": QUEUE })).await?;
    let runs = workers.runs(json!({ "queue": QUEUE })).await?.len();
    println!(
        "{version}: {snapshots} snapshots of {jobs} jobs, 0 false absences; {:.1} % by pages of 200, state by state; \
         {runs} runs meanwhile, {moves}; {in_passes:?} in passes",
        100.0 * naive_wrong as f64 / naive_judged as f64,
    );
    assert!(naive_wrong > 0, "{version}: the queue was too quiet to prove anything");
    assert!(runs > 2 * jobs, "{version}: {runs} runs");
    for kind in ["priority", "pause", "removal", "flow"] {
        assert!(moves[kind].as_u64() > Some(5), "{version}: {moves}");
    }
    workers.kill().await?;
    mover.kill().await
}

#[tokio::test]
async fn a_live_queue_of_bullmq_4_18_shows_every_job() -> Result<()> {
    check(BULLMQ_4).await
}

#[tokio::test]
async fn a_live_queue_of_bullmq_5_0_shows_every_job() -> Result<()> {
    check(BULLMQ_5_0).await
}

#[tokio::test]
async fn a_live_queue_of_bullmq_5_40_shows_every_job() -> Result<()> {
    check(BULLMQ_5_40).await
}

#[tokio::test]
async fn a_live_queue_of_bullmq_5_81_shows_every_job() -> Result<()> {
    check(BULLMQ_5).await
}

#[tokio::test]
async fn a_live_queue_of_bullmq_6_7_shows_every_job() -> Result<()> {
    check(BULLMQ_6).await
}

#[tokio::test]
async fn forty_passes_leave_jobs_that_retry_for_ever_alone() -> Result<()> {
    let system = System::fresh().await?;
    system.used_queues(&[QUEUE, "slide-export"]).await?;
    system.known_since_yesterday().await?;
    let bullmq = system.bullmq().await?;
    let mut crowd = Crowd::new();
    let jobs: Vec<Value> = (0..300).map(|number| crowd.named("plain", number, &[])).collect();
    bullmq.call("addMany", json!({ "queue": QUEUE, "jobs": jobs })).await?;
    insert(&system, &crowd).await?;
    let versions = "SELECT id, xmin::text FROM \"SlideJob\" ORDER BY id";
    let before: Vec<(String, String)> = sqlx::query_as(versions).fetch_all(system.db.pool()).await?;
    let worker = json!({ "behaviour": "fail", "delayMs": 5, "concurrency": 60 });
    bullmq.start_worker(QUEUE, worker).await?;
    bullmq.wait_runs(300, json!({})).await?;
    for round in 0..40 {
        let report = system.pass().await?;
        let counts = source(&report, "slides/generation");
        let seen = (counts.candidates, counts.scheduled, counts.absent, counts.unknown);
        assert_eq!(seen, (300, 300, 0, 0), "round {round}: {:?}", report.jobs);
        assert_eq!(counts.stalled, 0, "round {round}: every active job has its lock");
    }
    let after: Vec<(String, String)> = sqlx::query_as(versions).fetch_all(system.db.pool()).await?;
    assert_eq!(after, before, "no row was written");
    bullmq.kill().await
}
