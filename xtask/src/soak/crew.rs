//! Workers: a process of them for all queues, which tells the rows what the application's workers tell them.

use super::hosts::{APPLICATION_LOG, logs};
use crate::demo::application::Table;
use crate::demo::driver::Driver;
use anyhow::{Context, Result};
use serde_json::json;
use std::fs::File;
use std::process::Stdio;

/// How long a job takes. Far below `stale_after`: a row that a living worker is busy with is never old.
const WORK_MS: u32 = 800;

/// How long a worker's lock outlives it.
const LOCK_MS: u32 = 8_000;

/// How often workers look for entries of dead ones.
const STALLED_CHECK_MS: u32 = 1_000;

/// How often BullMQ itself puts an entry of a dead worker back.
const STALLED_MAX: u32 = 3;

/// A process of workers.
pub(super) struct Crew {
    /// What its runs are recorded under.
    pub(super) name: String,
    driver: Driver,
}

impl Crew {
    pub(super) fn start(name: &str, database: &str, redis_url: &str) -> Result<Self> {
        let mut driver = Driver::open_complaining(redis_url, complaints()?)?;
        for table in Table::ALL {
            let (queue, source) = (table.shape().queue, table.shape().source);
            let begin = format!(
                "INSERT INTO soak.runs (worker, source, job, entry) VALUES ('{name}', '{source}', $1::text, $2::text::jsonb)"
            );
            // BullMQ runs a job again whose worker it thinks dead; the application does not begin again what has ended.
            let on_start = format!("{} AND status IN ('QUEUED', 'PROCESSING')", table.on_start());
            let run_ends = format!(
                "WITH run AS (UPDATE soak.runs SET completed_at = clock_timestamp() WHERE worker = '{name}' \
                 AND source = '{source}' AND job = $1::text AND completed_at IS NULL), "
            );
            let how = json!({
                "queue": queue, "concurrency": 3, "delayMs": WORK_MS, "lockDurationMs": LOCK_MS,
                "stalledIntervalMs": STALLED_CHECK_MS, "maxStalledCount": STALLED_MAX, "record": false,
                "database": database, "onBegin": begin, "onStart": on_start,
                // In the statement that completes the row: one is told as surely as the other.
                "onEnd": table.on_end().replacen("WITH ", &run_ends, 1),
            });
            driver.call("startWorker", how)?;
        }
        Ok(Self { name: name.to_owned(), driver })
    }

    /// SIGKILL, in the middle of whatever its workers do.
    pub(super) fn kill(self) -> Result<()> {
        self.driver.kill()
    }
}

/// Where clients of the application complain, as they do whenever a server is away.
pub(super) fn complaints() -> Result<Stdio> {
    let file = logs().join(APPLICATION_LOG);
    let log = File::options().append(true).open(&file);
    Ok(log.with_context(|| format!("opening {}", file.display()))?.into())
}
