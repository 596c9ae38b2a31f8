//! Making the situations: servers, a producer, workers that live, die and come back.

use super::application::{self, Table};
use super::driver::{Driver, Run};
use super::scenario::{Fate, SITUATIONS, Situation};
use crate::{interrupt, paths};
use anyhow::{Context, Result, bail};
use salvage_services::postgres::psql;
use salvage_services::{Postgres, Redis, example, until};
use serde_json::{Value, json};
use std::time::Duration;

/// How much time is skipped. Twice the default `stale_after`, below which a row is not even a candidate.
const HOURS_SKIPPED: u32 = 2;

/// How long the work of a worker that completes takes: long enough for two to overlap, if one job had two entries.
const WORK_MS: u32 = 300;

/// How often the new workers look for entries of dead ones; BullMQ's default of 30 s is long to watch.
const STALLED_CHECK_MS: u32 = 1_000;

/// How long an idle worker may take to begin a job.
const BEGUN_WITHIN: Duration = Duration::from_secs(30);

/// How long the new workers may take for everything; they need about ten seconds.
const IDLE_WITHIN: Duration = Duration::from_secs(90);

/// Private servers with an empty database of the application.
pub(super) struct Servers {
    /// Ended on drop.
    _postgres: Postgres,
    pub(super) redis: Redis,
    /// URL of the application's database.
    pub(super) database: String,
}

impl Servers {
    /// Starts both and applies `migrations/example/`.
    pub(super) fn start() -> Result<Self> {
        let (postgres, redis) = (Postgres::start()?, Redis::start()?);
        psql(&postgres.url("postgres"), &["--command", "CREATE DATABASE demo"])?;
        let database = postgres.url("demo");
        let applied = example::migrate(&database, &paths::root().join("migrations/example"))?;
        println!(
            "PostgreSQL on port {}, with the application's tables ({} migrations)",
            postgres.port(),
            applied.len()
        );
        println!("Redis on port {}", redis.port());
        Ok(Self { _postgres: postgres, redis, database })
    }
}

/// The application under way.
pub(super) struct Stage<'a> {
    pub(super) servers: &'a Servers,
    /// Enqueues, and runs nothing.
    pub(super) producer: Driver,
    /// Has the worker that lives through everything.
    survivor: Driver,
    /// The workers that are started again.
    again: Option<Driver>,
    /// What the killed workers had begun.
    runs_of_killed: Vec<Run>,
    /// Ids of the entries, in the order of the situations.
    pub(super) entries: Vec<String>,
}

impl<'a> Stage<'a> {
    /// The application works, until its workers are killed and Redis loses entries.
    pub(super) fn set(servers: &'a Servers) -> Result<Self> {
        let redis_url = servers.redis.url();
        application::insert_rows(&servers.database)?;
        let mut stage = Self {
            servers,
            producer: Driver::open(&redis_url)?,
            survivor: Driver::open(&redis_url)?,
            again: None,
            runs_of_killed: Vec::new(),
            entries: vec![String::new(); SITUATIONS.len()],
        };
        let mut doomed = Driver::open(&redis_url)?;
        stage.work_that_ends(&mut doomed, Fate::Finishes, "complete")?;
        stage.work_that_lasts()?;
        stage.work_that_ends(&mut doomed, Fate::Fails, "fail")?;
        stage.work_that_hangs(&mut doomed)?;
        // Every worker is busy by now, so these wait.
        for fate in [Fate::Waits, Fate::WaitsUnderOldId, Fate::WaitsEntryLost, Fate::Delayed] {
            stage.enqueue_all(fate)?;
        }
        stage.runs_of_killed = doomed.runs()?;
        doomed.kill()?;
        println!(
            "{} jobs enqueued; the workers of one process killed (SIGKILL), those of another live on",
            SITUATIONS.len()
        );
        stage.lose_entries()?;
        for (_, situation) in with_fate(Fate::WorkerDiesTracksDeleted) {
            application::delete_tracks(&servers.database, situation)?;
        }
        Ok(stage)
    }

    /// Stands in for two hours of waiting.
    pub(super) fn skip_time(&self) -> Result<()> {
        application::age_rows(&self.servers.database, HOURS_SKIPPED)?;
        for (situation, entry) in SITUATIONS.iter().zip(&self.entries) {
            match situation.fate {
                Fate::Fails | Fate::Finishes => self.age_finished(situation, entry)?,
                Fate::WorkerDies => self.expire_lock(situation, entry)?,
                _ => {}
            }
        }
        println!(
            "{HOURS_SKIPPED} hours skipped: `updatedAt` of the rows and BullMQ's own times set back by as much"
        );
        Ok(())
    }

    /// Workers for all queues, and the end of the work that the surviving one was busy with.
    pub(super) fn start_workers_again(&mut self) -> Result<()> {
        let mut again = Driver::open(&self.servers.redis.url())?;
        for table in Table::ALL {
            let how = json!({ "delayMs": WORK_MS, "stalledIntervalMs": STALLED_CHECK_MS });
            start_worker(&mut again, self.servers, table, how)?;
        }
        self.again = Some(again);
        for situation in SITUATIONS.iter().filter(|situation| situation.fate == Fate::Runs) {
            self.survivor.call("release", json!({ "worker": situation.table.shape().queue }))?;
        }
        Ok(())
    }

    /// Waits until nothing waits, runs or is due, so that no more runs can come.
    pub(super) fn wait_until_idle(&mut self) -> Result<()> {
        until("the workers have nothing left to do", IDLE_WITHIN, || {
            if interrupt::came() {
                bail!("interrupted");
            }
            let mut left = 0;
            for table in Table::ALL {
                let counts = self.producer.call("counts", json!({ "queue": table.shape().queue }))?;
                left += ["waiting", "active", "delayed", "prioritized"]
                    .into_iter()
                    .filter_map(|state| counts[state].as_u64())
                    .sum::<u64>();
            }
            let for_later = SITUATIONS.iter().filter(|situation| situation.fate == Fate::Delayed).count();
            Ok(left == for_later as u64)
        })
    }

    /// Everything that any worker ever began; of one job, oldest first.
    pub(super) fn runs(&mut self) -> Result<Vec<Run>> {
        let mut runs = self.survivor.runs()?;
        if let Some(again) = &mut self.again {
            runs.extend(again.runs()?);
        }
        Ok(self.runs_of_killed.iter().cloned().chain(runs).collect())
    }

    fn work_that_ends(&mut self, doomed: &mut Driver, fate: Fate, behaviour: &str) -> Result<()> {
        for (index, situation) in with_fate(fate) {
            start_worker(doomed, self.servers, situation.table, json!({ "behaviour": behaviour }))?;
            self.enqueue(index, situation)?;
            doomed.call("waitRuns", json!({ "jobId": situation.id, "ended": true }))?;
            doomed.call("stopWorker", json!({ "worker": situation.table.shape().queue }))?;
        }
        Ok(())
    }

    fn work_that_lasts(&mut self) -> Result<()> {
        for (index, situation) in with_fate(Fate::Runs) {
            start_worker(&mut self.survivor, self.servers, situation.table, json!({ "behaviour": "hold" }))?;
            self.enqueue(index, situation)?;
            self.wait_until_begun(situation)?;
        }
        Ok(())
    }

    /// A worker for each queue, with as many hands as it is given jobs to die over.
    fn work_that_hangs(&mut self, doomed: &mut Driver) -> Result<()> {
        let fates = [Fate::WorkerDies, Fate::WorkerDiesEntryLost, Fate::WorkerDiesTracksDeleted];
        for table in Table::ALL {
            let all =
                || fates.into_iter().flat_map(with_fate).filter(|(_, situation)| situation.table == table);
            let hands = all().count();
            if hands > 0 {
                start_worker(
                    doomed,
                    self.servers,
                    table,
                    json!({ "behaviour": "hang", "concurrency": hands }),
                )?;
            }
            for (index, situation) in all() {
                self.enqueue(index, situation)?;
                self.wait_until_begun(situation)?;
            }
        }
        Ok(())
    }

    /// Until the worker has told the row, which is the last that it does before the work itself.
    fn wait_until_begun(&self, situation: &Situation) -> Result<()> {
        until(&format!("a worker begins {}", situation.id), BEGUN_WITHIN, || {
            if interrupt::came() {
                bail!("interrupted");
            }
            Ok(application::status(&self.servers.database, situation)? == "PROCESSING")
        })
    }

    fn enqueue_all(&mut self, fate: Fate) -> Result<()> {
        with_fate(fate).try_for_each(|(index, situation)| self.enqueue(index, situation))
    }

    fn enqueue(&mut self, index: usize, situation: &Situation) -> Result<()> {
        let options = match situation.fate {
            Fate::WaitsUnderOldId => json!({}),
            Fate::Delayed => json!({ "jobId": situation.entry_by_rule(), "delay": 12 * 3_600_000 }),
            _ => json!({ "jobId": situation.entry_by_rule() }),
        };
        let queue = situation.table.shape().queue;
        self.entries[index] =
            self.producer.add(queue, situation.job_name(), &situation.payload(), &options)?;
        Ok(())
    }

    /// Redis loses these entries, as it does when it is restored from a copy that is older than they are.
    fn lose_entries(&self) -> Result<()> {
        let mut lost = 0;
        let all = SITUATIONS.iter().zip(&self.entries);
        for (situation, entry) in all.filter(|(situation, _)| situation.fate.loses_entry()) {
            let key = |name: &str| format!("bull:{}:{name}", situation.table.shape().queue);
            self.redis(&["DEL", &key(entry), &key(&format!("{entry}:lock"))])?;
            self.redis(&["LREM", &key("wait"), "0", entry])?;
            self.redis(&["LREM", &key("active"), "0", entry])?;
            self.redis(&["SREM", &key("stalled"), entry])?;
            lost += 1;
        }
        println!("{lost} entries removed from Redis, as a restore from an old copy would");
        Ok(())
    }

    /// A retained entry finished that much longer ago.
    fn age_finished(&self, situation: &Situation, entry: &str) -> Result<()> {
        let key = |name: &str| format!("bull:{}:{name}", situation.table.shape().queue);
        let back = format!("-{}", u64::from(HOURS_SKIPPED) * 3_600_000);
        let set = if situation.fate == Fate::Fails { "failed" } else { "completed" };
        self.redis(&["ZINCRBY", &key(set), &back, entry])?;
        for field in ["finishedOn", "processedOn", "timestamp"] {
            self.redis(&["HINCRBY", &key(entry), field, &back])?;
        }
        Ok(())
    }

    /// The lock of a dead worker runs out after 30 s, and so does the note of when it last looked for dead ones itself.
    fn expire_lock(&self, situation: &Situation, entry: &str) -> Result<()> {
        let key = |name: &str| format!("bull:{}:{name}", situation.table.shape().queue);
        self.redis(&["DEL", &key(&format!("{entry}:lock")), &key("stalled-check")])
    }

    fn redis(&self, words: &[&str]) -> Result<()> {
        self.servers.redis.command(words).with_context(|| format!("asking Redis for {}", words[0])).map(drop)
    }
}

/// The situations of one fate, each with its place among all.
fn with_fate(fate: Fate) -> impl Iterator<Item = (usize, &'static Situation)> {
    SITUATIONS.iter().enumerate().filter(move |(_, situation)| situation.fate == fate)
}

/// Starts a worker for a table's queue that writes rows as the application does; `how` as `startWorker` takes it.
fn start_worker(driver: &mut Driver, servers: &Servers, table: Table, mut how: Value) -> Result<()> {
    how["queue"] = table.shape().queue.into();
    how["database"] = servers.database.as_str().into();
    how["onStart"] = table.on_start().into();
    how["onEnd"] = table.on_end().into();
    how["message"] = "the model gave no answer".into();
    driver.call("startWorker", how).map(drop)
}
