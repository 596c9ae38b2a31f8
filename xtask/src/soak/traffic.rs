//! The application's producer: rows, then entries, all the while, whatever its servers are going through.

use super::chance::Chance;
use super::crew::complaints;
use crate::demo::application::{Shape, Table};
use crate::demo::driver::Driver;
use crate::interrupt;
use anyhow::{Context, Result, anyhow, bail};
use salvage_services::postgres::psql;
use serde_json::{Value, json};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

/// From one batch to the next.
const BATCH_EVERY: Duration = Duration::from_millis(500);

/// Jobs in a batch: with two crews of workers, about a third of what they could do.
const BATCH: u64 = 6;

/// How long the producer rests after its database did not take a batch.
const AGAIN_AFTER: Duration = Duration::from_millis(250);

/// As often it tries, which is far longer than any of the soak's outages.
const TRIES_MAX: u32 = 240;

/// Of so many jobs one is for much later: at the end it must still wait.
const FOR_LATER_ONE_IN: usize = 25;

/// Of so many jobs one has an entry whose id is of an older rule.
const OLD_ID_ONE_IN: usize = 25;

/// An entry that comes before its row must not run before the row is there, whatever happens to PostgreSQL meanwhile.
const OLD_ID_DELAY_MS: u32 = 20_000;

/// Of so many jobs one is not tried again by BullMQ, so that a failure leaves a `failed` entry behind.
const ONE_ATTEMPT_ONE_IN: usize = 20;

/// The producer's thread.
pub(super) struct Traffic {
    is_over: Arc<AtomicBool>,
    jobs: Arc<AtomicU64>,
    thread: JoinHandle<Result<()>>,
}

impl Traffic {
    /// `leaves_failed`: whether jobs may fail for good in their queue, which a host looks at only after a minute.
    pub(super) fn start(database: &str, redis_url: &str, seed: u64, leaves_failed: bool) -> Result<Self> {
        let (is_over, jobs) = (Arc::<AtomicBool>::default(), Arc::<AtomicU64>::default());
        let mut producer = Producer {
            database: database.to_owned(),
            driver: Driver::open_complaining(redis_url, complaints()?)?,
            chance: Chance::new(seed ^ 0xa11),
            leaves_failed,
        };
        let (over, count) = (Arc::clone(&is_over), Arc::clone(&jobs));
        let thread = std::thread::spawn(move || {
            while !over.load(Ordering::Relaxed) && !interrupt::came() {
                let first = count.load(Ordering::Relaxed);
                producer.batch(first..first + BATCH)?;
                count.fetch_add(BATCH, Ordering::Relaxed);
                std::thread::sleep(BATCH_EVERY);
            }
            Ok(())
        });
        Ok(Self { is_over, jobs, thread })
    }

    /// Jobs made so far.
    pub(super) fn jobs(&self) -> u64 {
        self.jobs.load(Ordering::Relaxed)
    }

    /// Whether it gave up.
    pub(super) fn has_ended(&self) -> bool {
        self.thread.is_finished()
    }

    /// Ends after the current batch.
    pub(super) fn end(self) -> Result<()> {
        self.is_over.store(true, Ordering::Relaxed);
        self.thread.join().map_err(|_| anyhow!("the producer panicked"))?.context("the producer gave up")
    }
}

struct Producer {
    database: String,
    driver: Driver,
    chance: Chance,
    leaves_failed: bool,
}

/// One job to be.
struct Job {
    table: Table,
    kind: &'static str,
    id: String,
    has_old_id: bool,
}

impl Producer {
    fn batch(&mut self, numbers: std::ops::Range<u64>) -> Result<()> {
        let jobs: Vec<Job> = numbers.map(|number| self.job(number)).collect();
        let (old, new): (Vec<&Job>, Vec<&Job>) = jobs.iter().partition(|job| job.has_old_id);
        // An id of an older rule does not keep a second entry out, so such an entry comes first: if its row came first and
        // this process were slow, the row would rightly be taken for an orphan. By the current rule there is only one.
        old.iter().try_for_each(|job| self.add(job))?;
        self.insert(&jobs.iter().map(Job::insert).collect::<String>())?;
        new.iter().try_for_each(|job| self.add(job))
    }

    fn job(&mut self, number: u64) -> Job {
        let table = *self.chance.one_of(&Table::ALL);
        let kind = match table {
            Table::Slide => *self.chance.one_of(&["GENERATION", "GENERATION", "GENERATION", "OUTLINE"]),
            Table::Video => *self.chance.one_of(&["COMPOSITION", "COMPOSITION", "COMPOSITION", "PREVIEW"]),
            Table::Narration => "narration",
            Table::SlideExport => "PDF",
            Table::VideoExport => "MP4",
        };
        let id = match table {
            Table::Narration => format!("00000000-0000-4000-8000-{number:012}"),
            Table::VideoExport => format!("{}", number + 1),
            _ => format!("j{number}"),
        };
        Job { table, kind, id, has_old_id: self.chance.one_in(OLD_ID_ONE_IN) }
    }

    /// All or nothing, and never twice: a batch of which it is not known whether it was committed is simply sent again.
    fn insert(&self, script: &str) -> Result<()> {
        for _ in 0..TRIES_MAX {
            if psql(&self.database, &["--command", script]).is_ok() {
                return Ok(());
            }
            if interrupt::came() {
                bail!("interrupted");
            }
            std::thread::sleep(AGAIN_AFTER);
        }
        psql(&self.database, &["--command", script]).context("inserting a batch of jobs").map(drop)
    }

    /// The client waits for its Redis by itself, and an id that is there already is left alone.
    fn add(&mut self, job: &Job) -> Result<()> {
        let Shape { queue, entry_prefix, .. } = job.table.shape();
        let is_last_attempt = self.leaves_failed && self.chance.one_in(ONE_ATTEMPT_ONE_IN);
        let mut options = json!({
            "jobId": format!("{entry_prefix}{}", job.id),
            "attempts": if is_last_attempt { 1 } else { 8 },
            "backoff": { "type": "fixed", "delay": 1_000 },
        });
        if job.has_old_id {
            options["jobId"] = format!("of-{}", job.id).into();
            options["delay"] = OLD_ID_DELAY_MS.into();
        } else if self.chance.one_in(FOR_LATER_ONE_IN) {
            options["delay"] = (12 * 3_600_000).into();
        } else if self.chance.one_in(3) {
            // A while in which an entry can be lost.
            options["delay"] = 3_000.into();
        }
        self.driver.add(queue, "by-the-application", &job.payload(), &options).map(drop)
    }
}

impl Job {
    /// A deck or video of its own.
    fn parent(&self) -> String {
        format!("of-{}", self.id)
    }

    /// `by` tells an entry of the application's from one of Salvage's, whose payloads are rebuilt from rows.
    fn payload(&self) -> Value {
        json!({ "jobId": self.id, "parent": self.parent(), "by": "the application" })
    }

    /// Parent, tracks and job. Every text is ours, and none holds a quote.
    fn insert(&self) -> String {
        let Shape { table, parent_id, parent_table, kind, .. } = self.table.shape();
        let (id, parent, type_name) = (&self.id, self.parent(), self.kind);
        let (columns, statuses) = match (self.table, self.kind) {
            (Table::Slide, _) => ("status", "'GENERATING'"),
            (Table::Video, "COMPOSITION") => ("status", "'COMPOSING'"),
            (Table::Video, _) => ("status", "'READY'"),
            (Table::Narration, _) => ("status, narration_status", "'READY', 'NARRATING'"),
            (Table::SlideExport | Table::VideoExport, _) => {
                ("status, \"exportStatus\"", "'READY', 'EXPORTING'")
            }
        };
        let tracks = if type_name == "COMPOSITION" {
            format!(
                "INSERT INTO \"VideoTrack\" (id, \"videoId\", position, kind, \"sourceUrl\", \"startMs\", \"endMs\") \
                 VALUES ('{parent}', '{parent}', 0, 'clip', 'media://clip', 0, 1000) ON CONFLICT DO NOTHING;"
            )
        } else {
            String::new()
        };
        format!(
            "INSERT INTO {parent_table} (id, title, {columns}) VALUES ('{parent}', 'Title', {statuses}) \
             ON CONFLICT DO NOTHING; {tracks} \
             INSERT INTO {table} (id, {parent_id}, {kind}) VALUES ('{id}', '{parent}', '{type_name}') ON CONFLICT DO NOTHING;"
        )
    }
}
