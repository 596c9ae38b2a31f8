//! A whole host on real servers: its own database, its own key prefix, the shipped handlers.
//!
//! In process, so that a test can slip a rival in between two steps ([`crate::rival`]); or as the real binary
//! ([`System::salvage`]), for what only a process shows.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use redis::AsyncConnectionConfig;
use redis::aio::MultiplexedConnection;
use salvage::config;
use salvage::host::{Host, load_handlers};
use salvage::pass::{self, Mode};
use salvage::ports::{Handlers, Outside};
use salvage::stop::{Stop, stop};
use salvage_core::declaration::declaration;
use salvage_core::report::{JobReport, LeaseState, Report, SourceCounts};
use salvage_core::settings::PassSettings;
use tempfile::TempDir;

use crate::bullmq::BullMq;
use crate::services::{Database, cache_home, fresh_prefix, handlers_folder, redis_url, salvage_binary};

/// A host, what it works on, and the settings of its passes.
pub struct System {
    pub db: Database,
    pub host: Host,
    /// Without waiting: no settling, and requeued jobs are due at once. Change what a test is about.
    pub settings: PassSettings,
    pub prefix: String,
    pub redis_url: String,
    folder: TempDir,
    plain: MultiplexedConnection,
    stop: Stop,
    _switch: salvage::stop::StopSwitch,
}

impl System {
    /// On the shared servers, with the shipped handlers and all their grants.
    pub async fn fresh() -> Result<Self> {
        Self::on(&redis_url()?).await
    }

    /// On a Redis of the test's own.
    pub async fn on(redis_url: &str) -> Result<Self> {
        Self::with(redis_url, &handlers_folder()?, "grants = \"declared\"").await
    }

    /// With these handlers, and these lines under `[handlers]`.
    pub async fn with(redis_url: &str, handlers: &Path, lines: &str) -> Result<Self> {
        let redis = format!("url = \"{redis_url}\"");
        Self::open(&redis, fresh_prefix(), redis_url, handlers, lines).await
    }

    /// With these lines under `[redis]` and this prefix; the test itself looks at the server at `redis_url`.
    pub async fn through(redis: &str, prefix: &str, redis_url: &str) -> Result<Self> {
        let granted = "grants = \"declared\"";
        Self::open(redis, prefix.to_owned(), redis_url, &handlers_folder()?, granted).await
    }

    async fn open(
        redis: &str,
        prefix: String,
        redis_url: &str,
        handlers: &Path,
        lines: &str,
    ) -> Result<Self> {
        let db = Database::migrated().await?;
        let folder = tempfile::tempdir()?;
        let text = format!(
            "[database]\nurl = \"{}\"\n[redis]\n{redis}\nprefix = \"{prefix}\"\n\
             [pass]\nsettle = \"1ms\"\nstart_delay = \"5s..5100ms\"\n[lease]\nkey = \"{prefix}:lock\"\n\
             [handlers]\ndir = \"{}\"\n{lines}\n",
            db.url(),
            handlers.display(),
        );
        std::fs::write(folder.path().join("salvage.toml"), &text)?;
        let config = config::parse("salvage.toml", &text, cache_home())?;
        let handlers = load_handlers(&config.handlers).await?;
        let host = Host::new(&config, handlers)?;
        let settings = PassSettings {
            settle: Duration::ZERO,
            start_delay: Duration::ZERO..=Duration::ZERO,
            ..config.pass.clone()
        };
        let plain = connected(redis_url).await?;
        let (switch, stop) = stop();
        let redis_url = redis_url.to_owned();
        Ok(Self { db, host, settings, prefix, redis_url, folder, plain, stop, _switch: switch })
    }

    /// Connects the test itself anew, whose connection ended with a server that it restarted. The host finds out by itself.
    pub async fn reconnect(&mut self) -> Result<()> {
        self.plain = connected(&self.redis_url).await?;
        Ok(())
    }

    /// Another host on the same stores, under the same settings.
    pub async fn another_host(&self) -> Result<Host> {
        let text = std::fs::read_to_string(self.config_file())?;
        let config = config::parse("salvage.toml", &text, cache_home())?;
        Ok(Host::new(&config, load_handlers(&config.handlers).await?)?)
    }

    /// One acting pass.
    pub async fn pass(&self) -> Result<Report> {
        self.run(&self.host, Mode::Act).await
    }

    /// One pass that writes nothing.
    pub async fn plan(&self) -> Result<Report> {
        self.run(&self.host, Mode::DryRun).await
    }

    /// One pass over another outside, such as [`crate::rival::Rivalled`].
    pub async fn run(&self, outside: &impl Outside, mode: Mode) -> Result<Report> {
        Ok(pass::run(outside, &self.settings, mode, &self.stop).await?)
    }

    /// Makes this a system that has run for long: the queues are known since yesterday, and each source was seen in them.
    /// Give the queues their `meta` and `id` first, as an application that uses them would.
    pub async fn known_since_yesterday(&self) -> Result<()> {
        let report = self.pass().await?;
        ensure!(
            report.pass.lease == LeaseState::Acquired,
            "the pass that makes the queues known did not run"
        );
        self.age_epochs().await?;
        let insert = "INSERT INTO salvage.corroborations (prefix, queue, domain, source, seen_at) \
             SELECT DISTINCT q.prefix, q.queue, s.domain, s.source, now() FROM salvage.queue_memories AS q, \
             (VALUES ('slides', 'generation'), ('video-composition', 'composition'), ('video-composition', 'narration'), \
             ('exports', 'slide-export'), ('exports', 'video-export')) AS s (domain, source) ON CONFLICT DO NOTHING";
        sqlx::query(insert).execute(self.db.pool()).await.context("corroborating every source")?;
        self.confirm_declarations().await
    }

    /// As if a row of each source had been attributed to an entry under the declarations that are in force.
    pub async fn confirm_declarations(&self) -> Result<()> {
        let insert = "INSERT INTO salvage.declarations (prefix, domain, source, digest, confirmed_at) \
             VALUES ($1, $2, $3, encode(sha256(convert_to($4, 'UTF8')), 'hex'), now()) ON CONFLICT DO NOTHING";
        for domain in self.host.handlers.domains() {
            for source in &domain.manifest.sources {
                let insert = sqlx::query(insert).bind(&self.prefix).bind(&domain.manifest.domain);
                let insert = insert.bind(&source.name).bind(declaration(source));
                insert.execute(self.db.pool()).await.context("confirming a declaration")?;
            }
        }
        Ok(())
    }

    /// Moves the begin of every epoch to yesterday.
    pub async fn age_epochs(&self) -> Result<()> {
        let update = "UPDATE salvage.queues SET epoch_began = now() - interval '1 day'; \
             UPDATE salvage.domain_queues SET epoch_began = now() - interval '1 day'";
        sqlx::raw_sql(update).execute(self.db.pool()).await.context("ageing the epochs")?;
        Ok(())
    }

    /// Gives each queue what an application that uses it leaves there: `meta`, and an `id` of 100.
    pub async fn used_queues(&self, queues: &[&str]) -> Result<()> {
        for queue in queues {
            self.redis::<()>(&["HSET", &self.key(queue, "meta"), "opts.maxLenEvents", "10000"]).await?;
            self.redis::<()>(&["SET", &self.key(queue, "id"), "100"]).await?;
        }
        Ok(())
    }

    /// A BullMQ key of a queue.
    pub fn key(&self, queue: &str, suffix: &str) -> String {
        format!("{}:{queue}:{suffix}", self.prefix)
    }

    /// A plain connection to Redis.
    #[must_use]
    pub fn connection(&self) -> MultiplexedConnection {
        self.plain.clone()
    }

    /// Runs one Redis command on a plain connection.
    pub async fn redis<T: redis::FromRedisValue>(&self, words: &[&str]) -> Result<T> {
        let mut command = redis::cmd(words[0]);
        command.arg(&words[1..]);
        command.query_async(&mut self.connection()).await.with_context(|| words.join(" "))
    }

    /// A real BullMQ (5.x) on the same queues.
    pub async fn bullmq(&self) -> Result<BullMq> {
        BullMq::open(&self.redis_url, &self.prefix).await
    }

    /// A real BullMQ of another version, e.g. [`crate::bullmq::BULLMQ_4`], on the same queues.
    pub async fn bullmq_of(&self, version: &str) -> Result<BullMq> {
        BullMq::open_version(version, &self.redis_url, &self.prefix).await
    }

    /// The settings file of [`Self::salvage`]; change it before.
    pub fn config_file(&self) -> PathBuf {
        self.folder.path().join("salvage.toml")
    }

    /// The binary under test with this system's settings, in a folder of its own and without our environment's URLs.
    pub fn salvage(&self, arguments: &[&str]) -> Result<Command> {
        let mut command = Command::new(salvage_binary()?);
        command.args(arguments).current_dir(self.folder.path());
        command.env_remove("DATABASE_URL").env_remove("REDIS_URL").env_remove("RUST_LOG");
        Ok(command)
    }
}

/// A plain connection that waits on a busy machine, and for large values, longer than the library's half a second.
pub async fn connected(redis_url: &str) -> Result<MultiplexedConnection> {
    let patient = AsyncConnectionConfig::new().set_response_timeout(Some(Duration::from_secs(30)));
    Ok(redis::Client::open(redis_url)?.get_multiplexed_async_connection_with_config(&patient).await?)
}

/// The counters of one source, `domain/source`.
pub fn source<'r>(report: &'r Report, name: &str) -> &'r SourceCounts {
    let found = report.sources.iter().find(|source| format!("{}/{}", source.domain, source.source) == name);
    found.unwrap_or_else(|| panic!("no source {name} in {report:#?}"))
}

/// The one job with that id that is not scheduled.
pub fn job<'r>(report: &'r Report, id: &str) -> &'r JobReport {
    report.jobs.iter().find(|job| job.id == id).unwrap_or_else(|| panic!("no job {id} in {report:#?}"))
}

/// `sighting decision outcome` of a job, each in one word; `scheduled` if it is not in the report.
pub fn story(report: &Report, id: &str) -> String {
    match report.jobs.iter().find(|job| job.id == id) {
        None => "scheduled".to_owned(),
        Some(job) => {
            let outcome = job.outcome.as_ref().map_or("-", |outcome| outcome.kind);
            format!("{} {} {outcome}", job.sighting.kind, job.decision.kind.word())
        }
    }
}
