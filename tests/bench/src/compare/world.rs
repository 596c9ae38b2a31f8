//! The seeded servers, and Salvage beside them.

use crate::launch::{self, Ended};
use crate::seed::{Seed, administer};
use anyhow::{Context, Result};
use salvage_services::postgres::psql;
use salvage_services::{Postgres, Redis, example};
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use tempfile::TempDir;

/// What was seeded; reads only.
pub(super) const SEEDED: &str = "seeded";

/// A copy of it that an acting pass may change.
pub(super) const COPY: &str = "acting";

/// As a server with a few gigabytes would have it, and without maintenance that falls into one run and not into the next.
const POSTGRES_SETTINGS: [&str; 3] = ["shared_buffers=512MB", "autovacuum=off", "max_wal_size=4GB"];

/// What is logged: what the operator sees by default, and how long each step of a pass took.
pub(super) const LOGGED: &str = "warn,salvage=info,salvage::pass=debug";

/// Private servers with the example's rows and entries, which an operator has accepted as they are.
pub(super) struct World {
    postgres: Postgres,
    pub(super) redis: Redis,
    folder: TempDir,
    binary: PathBuf,
}

impl World {
    pub(super) fn seeded(seed: Seed) -> Result<Self> {
        let postgres = Postgres::start_with(&POSTGRES_SETTINGS)?;
        let redis = Redis::start()?;
        let folder = tempfile::Builder::new().prefix("salvage-bench-").tempdir()?;
        psql(&postgres.url("postgres"), &["--command", &format!("CREATE DATABASE {SEEDED}")])?;
        example::migrate(&postgres.url(SEEDED), &root().join("migrations/example"))?;
        crate::runtime()?.block_on(seed.fill(&redis.url(), &postgres.url(SEEDED)))?;
        let world = Self { postgres, redis, folder, binary: variable("SALVAGE_TEST_BIN")?.into() };
        world.configure()?;
        world.salvage(SEEDED, &["migrate"])?;
        world.salvage(SEEDED, &["accept", "--all"])?;
        world.redis.save().context("saving the seeded queues")?;
        Ok(world)
    }

    /// Runs one command on a database, measured.
    pub(super) fn salvage(&self, database: &str, arguments: &[&str]) -> Result<Ended> {
        let command = std::iter::once(self.binary.clone().into_os_string());
        let command: Vec<OsString> = command.chain(arguments.iter().map(OsString::from)).collect();
        let environment = [("DATABASE_URL", self.postgres.url(database)), ("RUST_LOG", LOGGED.to_owned())];
        let environment: Vec<(&str, &str)> =
            environment.iter().map(|(name, value)| (*name, value.as_str())).collect();
        launch::measured(self.folder.path(), &command, &environment)
            .with_context(|| format!("salvage {}", arguments.join(" ")))
    }

    /// Undoes what an acting pass did to the queues, and gives it a fresh copy of the rows.
    pub(super) fn restore(&mut self) -> Result<()> {
        self.redis.kill()?;
        self.redis.start_again()?;
        let server = self.postgres.url("postgres");
        crate::runtime()?.block_on(async {
            administer(&server, &format!("DROP DATABASE IF EXISTS {COPY}")).await?;
            administer(&server, &format!("CREATE DATABASE {COPY} TEMPLATE {SEEDED} STRATEGY file_copy")).await
        })
    }

    pub(super) fn database_url(&self, database: &str) -> String {
        self.postgres.url(database)
    }

    pub(super) fn folder(&self) -> &Path {
        self.folder.path()
    }

    pub(super) fn binary(&self) -> &Path {
        &self.binary
    }

    fn configure(&self) -> Result<()> {
        let handlers = PathBuf::from(variable("SALVAGE_TEST_HANDLERS")?);
        // Written as TOML writes it, whatever is in the path.
        let text = |path: &Path| toml::Value::from(path.to_string_lossy().as_ref()).to_string();
        let settings = format!(
            "[redis]\nurl = \"{}\"\n\n[pass]\nsettle = \"1ms\"\nacts_max = 100000\n\n\
             [handlers]\ndir = {}\ngrants = \"declared\"\ncache_dir = {}\n\n[log]\nformat = \"json\"\n",
            self.redis.url(),
            text(&handlers),
            text(&self.folder.path().join("cache")),
        );
        fs::write(self.folder.path().join("salvage.toml"), settings).context("writing the settings")
    }
}

/// The workspace's root.
pub(super) fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

pub(super) fn variable(name: &str) -> Result<OsString> {
    std::env::var_os(name).with_context(|| format!("{name} is not set: run `cargo xtask bench`"))
}
