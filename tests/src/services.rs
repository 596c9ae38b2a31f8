//! What each test has to itself: a database, a key prefix, files for what its processes print.
//!
//! `cargo xtask test` starts one PostgreSQL and one Redis for all tests and says where they are in the environment.
//! A test that stops, freezes or wipes a server starts one of its own ([`Postgres::start`], [`Redis::start`]).
//!
//! | variable | what it holds |
//! |---|---|
//! | `SALVAGE_TEST_POSTGRES_URL` | superuser's URL of the shared PostgreSQL |
//! | `SALVAGE_TEST_REDIS_URL` | URL of the shared Redis |
//! | `SALVAGE_TEST_BIN` | path of the `salvage` binary, a debug build |
//! | `SALVAGE_TEST_HANDLERS` | folder of the built handlers |
//! | `SALVAGE_TEST_HOSTILE` | folder of the handler that misbehaves on demand |
//! | `SALVAGE_TEST_BULLMQ` | folder of the npm packages and the driver |
//! | `SALVAGE_TEST_OUTPUT` | folder for what processes print; searched for leaks after the run |
//! | `XDG_CACHE_HOME` | where compiled handlers are kept, for all tests and all runs |
//! | `SALVAGE_TEST_POSTGRES_BIN`, `SALVAGE_TEST_REDIS_SERVER` | programs of private servers; found on the PATH if not set |

use anyhow::{Context, Result, bail};
use salvage_services::postgres::url_of_database;
use sqlx::postgres::PgPoolOptions;
use sqlx::{AssertSqlSafe, Connection, PgConnection, PgPool};
use std::env;
use std::ffi::OsString;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

pub use salvage_services::postgres::psql;
pub use salvage_services::{
    Certificates, Cluster, Ended, MARKER_PASSWORD, MARKER_PAYLOAD, PgBouncer, Postgres, Redis, RedisOptions,
    until,
};

/// Key of the advisory lock under which templates are made: tests of one run are many processes.
const TEMPLATES_LOCK: i64 = 0x5a17_a6e0;

/// Connections of one test's pool. Few, because many tests share a server.
const POOL_MAX: u32 = 8;

/// Shared superuser URL of the server, any database.
pub fn postgres_url() -> Result<String> {
    variable("SALVAGE_TEST_POSTGRES_URL")
}

/// The shared Redis. Keys only under [`fresh_prefix`]; never flushed, stopped or configured.
pub fn redis_url() -> Result<String> {
    variable("SALVAGE_TEST_REDIS_URL")
}

/// The `salvage` binary under test.
pub fn salvage_binary() -> Result<PathBuf> {
    if let Ok(old) = env::var("SALVAGE_OLD_BIN") {
        return Ok(old.into());
    } // TEMPORARY
    variable("SALVAGE_TEST_BIN").map(PathBuf::from)
}

/// The folder of the built handlers, `NAME.wasm` each. Shared: copy what a test wants to change.
pub fn handlers_folder() -> Result<PathBuf> {
    variable("SALVAGE_TEST_HANDLERS").map(PathBuf::from)
}

/// The folder of the npm packages and the driver.
pub(crate) fn bullmq_folder() -> Result<PathBuf> {
    variable("SALVAGE_TEST_BULLMQ").map(PathBuf::from)
}

/// The environment of a host in this process: where it keeps compiled handlers, and nothing else. Compiling them for each
/// test anew would take longer than most tests.
pub fn cache_home() -> impl Iterator<Item = (OsString, OsString)> {
    let name = "XDG_CACHE_HOME";
    env::var_os(name).map(|value| (name.into(), value)).into_iter()
}

/// A new file for what a process prints. `cargo xtask test` searches all of them for leaked secrets and payloads.
pub fn output_file(name: &str) -> Result<File> {
    let folder = PathBuf::from(variable("SALVAGE_TEST_OUTPUT")?);
    let file = folder.join(format!("{name}-{}.log", unique()));
    File::create(&file).with_context(|| format!("making {}", file.display()))
}

/// A BullMQ key prefix that no other test has.
pub fn fresh_prefix() -> String {
    format!("t{}", unique())
}

fn variable(name: &str) -> Result<String> {
    env::var(name).with_context(|| {
        format!("{name} is not set: run the tests by `cargo xtask test`, which starts the servers")
    })
}

/// Unique among the processes of a test run, and within this one. Letters, digits and `_` only.
fn unique() -> String {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    format!("{}_{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed))
}

/// A database of one test, dropped with it.
pub struct Database {
    pool: PgPool,
    url: String,
    name: String,
}

impl Database {
    /// With the example application's tables, empty; without Salvage's own.
    pub async fn example() -> Result<Self> {
        Self::on(&postgres_url()?, Template::Example).await
    }

    /// With the example application's tables, empty, and Salvage's own as `salvage migrate` makes them.
    pub async fn migrated() -> Result<Self> {
        Self::on(&postgres_url()?, Template::Migrated).await
    }

    /// The same on another server, e.g. one that the test is going to freeze: `Database::on(&server.url("postgres"), …)`.
    pub async fn on(server: &str, template: Template) -> Result<Self> {
        let mut connection = PgConnection::connect(&url_of_database(server, "postgres"))
            .await
            .context("connecting to the test server")?;
        template.ensure(server, &mut connection).await?;
        let name = format!("test_{}", unique());
        create_database(&mut connection, &name, template.name()).await?;
        connection.close().await.context("closing the connection that made the database")?;
        let url = url_of_database(server, &name);
        let pool = PgPoolOptions::new()
            .max_connections(POOL_MAX)
            .connect(&url)
            .await
            .with_context(|| format!("connecting to the test's database {name}"))?;
        Ok(Self { pool, url, name })
    }

    pub fn pool(&self) -> &PgPool {
        &self.pool
    }

    /// The superuser's URL; it holds the marked password.
    pub fn url(&self) -> &str {
        &self.url
    }

    pub fn name(&self) -> &str {
        &self.name
    }
}

impl Drop for Database {
    fn drop(&mut self) {
        // Hundreds of databases would fill the disk before the server goes. If the test ended its server, there is
        // nothing to drop, and that is fine.
        let server = url_of_database(&self.url, "postgres");
        drop(psql(&server, &["--command", &format!("DROP DATABASE {} WITH (FORCE)", self.name)]));
    }
}

/// What a fresh database is copied from. Made once per server, by the first test that wants it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Template {
    /// The example application's tables.
    Example,
    /// Those and Salvage's.
    Migrated,
}

impl Template {
    fn name(self) -> &'static str {
        match self {
            Self::Example => "salvage_template_example",
            Self::Migrated => "salvage_template_migrated",
        }
    }

    /// Makes the template if it is not there. It gets its name only when it is whole, so a process that dies half-way
    /// leaves nothing that another would take for it.
    async fn ensure(self, server: &str, connection: &mut PgConnection) -> Result<()> {
        if exists(connection, self.name()).await? {
            return Ok(());
        }
        lock_templates(connection, true).await?;
        let made = self.make_missing(server, connection).await;
        lock_templates(connection, false).await?;
        made.with_context(|| format!("making the database template {}", self.name()))
    }

    /// Under the lock: makes this template, and the one it builds on.
    async fn make_missing(self, server: &str, connection: &mut PgConnection) -> Result<()> {
        for template in [Self::Example, Self::Migrated] {
            if !exists(connection, template.name()).await? {
                let unfinished = format!("{}_unfinished", template.name());
                run(connection, format!("DROP DATABASE IF EXISTS {unfinished} WITH (FORCE)")).await?;
                create_database(connection, &unfinished, template.made_from()).await?;
                template.fill(url_of_database(server, &unfinished)).await?;
                run(connection, format!("ALTER DATABASE {unfinished} RENAME TO {}", template.name())).await?;
            }
            if template == self {
                break;
            }
        }
        Ok(())
    }

    fn made_from(self) -> &'static str {
        match self {
            Self::Example => "template0",
            Self::Migrated => Self::Example.name(),
        }
    }

    /// Blocks for as long as psql or `salvage migrate` takes, so on a thread of its own.
    async fn fill(self, url: String) -> Result<()> {
        let fill = move || match self {
            Self::Example => salvage_services::example::migrate(&url, &example_migrations()).map(drop),
            Self::Migrated => salvage_migrate(&url),
        };
        tokio::task::spawn_blocking(fill).await.context("filling a template panicked")?
    }
}

/// `migrations/example`.
pub fn example_migrations() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../migrations/example")
}

/// Runs `salvage migrate` of the binary under test on a database.
fn salvage_migrate(url: &str) -> Result<()> {
    // An empty folder of its own, so that no `salvage.toml` that happens to lie about is read.
    let folder = tempfile::tempdir().context("making a folder to run `salvage migrate` in")?;
    let output = Command::new(salvage_binary()?)
        .arg("migrate")
        .current_dir(folder.path())
        .env("DATABASE_URL", url)
        // Required by the settings, not used by `migrate`: nothing listens on port 1.
        .env("REDIS_URL", "redis://127.0.0.1:1")
        .output()
        .context("starting `salvage migrate`")?;
    if !output.status.success() {
        bail!(
            "`salvage migrate` failed ({}): {}",
            output.status,
            String::from_utf8_lossy(&output.stderr).trim_end()
        );
    }
    Ok(())
}

async fn lock_templates(connection: &mut PgConnection, take: bool) -> Result<()> {
    let statement =
        if take { "SELECT pg_advisory_lock($1)::text" } else { "SELECT pg_advisory_unlock($1)::text" };
    sqlx::query(statement).bind(TEMPLATES_LOCK).execute(connection).await.context("locking the templates")?;
    Ok(())
}

async fn exists(connection: &mut PgConnection, database: &str) -> Result<bool> {
    sqlx::query_scalar("SELECT EXISTS (SELECT FROM pg_database WHERE datname = $1)")
        .bind(database)
        .fetch_one(connection)
        .await
        .with_context(|| format!("asking whether the database {database} is there"))
}

async fn create_database(connection: &mut PgConnection, name: &str, template: &str) -> Result<()> {
    run(connection, format!("CREATE DATABASE {name} TEMPLATE {template}")).await
}

/// Runs a statement made of our own names.
async fn run(connection: &mut PgConnection, statement: String) -> Result<()> {
    let failed = format!("running {statement}");
    sqlx::raw_sql(AssertSqlSafe(statement)).execute(connection).await.context(failed)?;
    Ok(())
}

/// A copy of the built handlers in a temporary folder, for a test that adds, breaks or swaps some.
pub fn copied_handlers() -> Result<tempfile::TempDir> {
    let copy = tempfile::tempdir().context("making a folder for handlers")?;
    let folder = handlers_folder()?;
    for entry in fs::read_dir(&folder).with_context(|| format!("listing {}", folder.display()))? {
        let file = entry.with_context(|| format!("listing {}", folder.display()))?.path();
        let name = file.file_name().context("a file without a name")?;
        fs::copy(&file, copy.path().join(name)).with_context(|| format!("copying {}", file.display()))?;
    }
    Ok(copy)
}
