//! Making and changing Salvage's own tables. See `migrations/README.md`.
//!
//! The files are embedded and recorded in `salvage.migrations`. sqlx runs them, but without its own lock: that one waits
//! inside a statement, and CREATE INDEX CONCURRENTLY waits for every statement that is older. Here the one who is not
//! first asks again and again, with nothing open in between. It is a session-level lock, so the connection must be a
//! direct one; closing it gives the lock back.

use std::collections::BTreeSet;
use std::time::Duration;

use sqlx::migrate::{MigrateError, Migration, MigrationType, Migrator};
use sqlx::{Connection, PgConnection, SqlSafeStr};

use super::session::{Mode, Statement, within};
use super::{ACQUIRE_TIMEOUT, Postgres, error};
use crate::ports::StoreFailure;

/// Number, name and text of each file, in order.
const FILES: [(i64, &str, &str); 7] = [
    (1, "fence and passes", include_str!("../../../migrations/host/0001_fence_and_passes.sql")),
    (2, "queues", include_str!("../../../migrations/host/0002_queues.sql")),
    (3, "intents and ledger", include_str!("../../../migrations/host/0003_intents_and_ledger.sql")),
    (4, "domain queues", include_str!("../../../migrations/host/0004_domain_queues.sql")),
    (5, "storms and parked", include_str!("../../../migrations/host/0005_storms_and_parked.sql")),
    (6, "captures", include_str!("../../../migrations/host/0006_captures.sql")),
    (8, "declarations", include_str!("../../../migrations/host/0008_declarations.sql")),
];

/// A file that begins so is run outside of a transaction.
const NO_TRANSACTION: &str = "-- no-transaction";

const HISTORY: &str = "salvage.migrations";

/// "salvage" in ASCII: the advisory lock of whoever migrates.
const LOCK: i64 = 0x0073_616c_7661_6765;

/// How often the lock is asked for, and how many times: a minute in all.
const LOCK_ASKED_EVERY: Duration = Duration::from_millis(200);
const LOCK_ASKED_TIMES: u32 = 300;

const ATTEMPTED: &str = "migrate schema salvage";

impl Postgres {
    /// Brings schema `salvage` to this version, and returns the names of what was applied; none if it was current.
    /// Needs a direct connection, not one through a transaction pooler.
    ///
    /// # Errors
    /// If there is a pooler, a file was refused, or one that was applied has changed since; what came before it stays applied.
    pub async fn migrate(&self) -> Result<Vec<String>, StoreFailure> {
        self.need_direct(ATTEMPTED)?;
        let mut connection = self.connect(ACQUIRE_TIMEOUT).await?;
        let applied = migrate_alone(&mut connection).await;
        // Closing also gives the lock back; if PostgreSQL is not there to hear it, it has done so by itself.
        drop(connection.close().await);
        applied
    }
}

async fn migrate_alone(connection: &mut PgConnection) -> Result<Vec<String>, StoreFailure> {
    take_lock(connection).await?;
    let before = applied(connection).await?;
    // `run` is the documented one, but its future cannot be sent to another thread; sqlx itself goes this way then.
    migrator().run_direct(None, &mut *connection, false).await.map_err(|failure| refusal(&failure))?;
    let is_new = |(version, _, _): &&(i64, &str, &str)| !before.contains(version);
    Ok(FILES.iter().filter(is_new).map(|(version, name, _)| format!("{version:04} {name}")).collect())
}

async fn take_lock(connection: &mut PgConnection) -> Result<(), StoreFailure> {
    for _ in 0..LOCK_ASKED_TIMES {
        let query = sqlx::query_as("SELECT pg_try_advisory_lock($1)").bind(LOCK);
        let (taken,): (bool,) = within(ATTEMPTED, query.fetch_one(&mut *connection)).await?;
        if taken {
            return Ok(());
        }
        tokio::time::sleep(LOCK_ASKED_EVERY).await;
    }
    let minutes = (LOCK_ASKED_EVERY * LOCK_ASKED_TIMES).as_secs() / 60;
    Err(StoreFailure::Unexpected {
        attempted: ATTEMPTED.to_owned(),
        detail: format!("another migration did not end within {minutes} min"),
    })
}

/// The versions that are recorded; none if nothing is.
async fn applied(connection: &mut PgConnection) -> Result<BTreeSet<i64>, StoreFailure> {
    let exists = sqlx::query_as("SELECT to_regclass('salvage.migrations') IS NOT NULL");
    let (exists,): (bool,) = within(ATTEMPTED, exists.fetch_one(&mut *connection)).await?;
    if !exists {
        return Ok(BTreeSet::new());
    }
    let versions = sqlx::query_as(APPLIED);
    let rows: Vec<(i64,)> = within(ATTEMPTED, versions.fetch_all(&mut *connection)).await?;
    Ok(rows.into_iter().map(|(version,)| version).collect())
}

const APPLIED: &str = "SELECT m.version FROM salvage.migrations AS m WHERE m.success";

fn migrator() -> Migrator {
    let migration = |(version, name, text): &(i64, &'static str, &'static str)| {
        let no_transaction = text.starts_with(NO_TRANSACTION);
        Migration::new(*version, (*name).into(), MigrationType::Simple, text.into_sql_str(), no_transaction)
    };
    let mut migrator = Migrator::with_migrations(FILES.iter().map(migration).collect());
    migrator.set_locking(false);
    // An older host may be started again on a newer schema.
    migrator.set_ignore_missing(true);
    migrator.dangerous_set_table_name(HISTORY);
    migrator.create_schema("salvage");
    migrator
}

fn refusal(failure: &MigrateError) -> StoreFailure {
    match failure {
        MigrateError::Execute(failure) => error::failure(ATTEMPTED, failure),
        MigrateError::ExecuteMigration(failure, version) => {
            error::failure(&format!("apply migration {version:04}"), failure)
        }
        MigrateError::VersionMismatch(version) => StoreFailure::Unexpected {
            attempted: ATTEMPTED.to_owned(),
            detail: format!("migration {version:04} was applied with another text than this version's"),
        },
        other => StoreFailure::Unexpected { attempted: ATTEMPTED.to_owned(), detail: other.to_string() },
    }
}

/// Whether every file of this version was applied. Reads only.
pub(super) async fn check(postgres: &Postgres) -> Result<(), StoreFailure> {
    let mut session = postgres.open(Mode::Read, "look for schema salvage").await?;
    let exists = Statement::fixed("SELECT to_regclass('salvage.migrations') IS NOT NULL");
    let (exists,): (bool,) = session.one(exists).await?;
    if !exists {
        session.commit().await?;
        return Err(StoreFailure::Schema { found: "missing".to_owned() });
    }
    let rows: Vec<(i64,)> = session.all(Statement::fixed(APPLIED)).await?;
    session.commit().await?;
    let missing = FILES.iter().find(|(version, _, _)| !rows.contains(&(*version,)));
    match missing {
        None => Ok(()),
        Some((version, name, _)) => Err(StoreFailure::Schema {
            found: format!("older than this version (migration {version:04} {name} is not applied)"),
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_file_of_the_folder_is_embedded_under_its_number_and_name() {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../migrations/host");
        let mut found: Vec<String> = std::fs::read_dir(folder)
            .expect("the migrations' folder")
            .map(|entry| entry.expect("an entry").file_name().to_string_lossy().into_owned())
            .filter(|name| name.ends_with(".sql"))
            .collect();
        found.sort();
        let embedded =
            FILES.iter().map(|(version, name, _)| format!("{version:04}_{}.sql", name.replace(' ', "_")));
        assert_eq!(found, embedded.collect::<Vec<_>>());
    }

    #[test]
    fn every_file_opens_with_why_and_names_its_lock() {
        for (version, _, text) in FILES {
            let opening: Vec<&str> = text.lines().take_while(|line| line.starts_with("--")).collect();
            assert!(opening.len() > 1, "{version:04} does not open with why");
            assert!(opening.iter().any(|line| line.contains("Lock:")), "{version:04} does not name its lock");
        }
    }
}
