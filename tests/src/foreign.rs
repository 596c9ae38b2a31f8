//! Applications that are deliberately unlike the example: tables, queues and producers of a test's own.
//!
//! A handler for them needs no compiler: a built component carries its manifest and its decision as JSON, which a test
//! writes over ([`Handler`]). Everything else is a [`System`] as for the example application.

use std::ops::{Deref, DerefMut};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use serde_json::{Value, json};
use sqlx::AssertSqlSafe;
use tempfile::TempDir;

use crate::services::redis_url;
use crate::system::System;

/// What `tests/hostile` is built to.
///
/// # Panics
/// If it was not built.
pub fn hostile() -> Vec<u8> {
    let variable = "SALVAGE_TEST_HOSTILE";
    let folder = std::env::var_os(variable)
        .unwrap_or_else(|| panic!("{variable} is not set: run the tests by `cargo xtask test`"));
    let path = Path::new(&folder).join("hostile_handlers.wasm");
    std::fs::read(&path).unwrap_or_else(|error| panic!("reading {}: {error}", path.display()))
}

/// The hostile handler with another manifest, and perhaps a key `decides`, written over its own.
///
/// # Panics
/// If the text is longer than its room.
pub fn declaring(manifest: &Value) -> Vec<u8> {
    const MARK: &[u8] = b"@hostile-manifest@";
    const ROOM: usize = 32 * 1024;
    let mut file = hostile();
    let at = file.windows(MARK.len()).position(|window| window == MARK).expect("the mark");
    let text = manifest.to_string();
    let room = &mut file[at + MARK.len()..at + ROOM];
    room.fill(b' ');
    room[..text.len()].copy_from_slice(text.as_bytes());
    file
}

/// A queue rule with the payload key `jobId`; no names at all stand for any name.
pub fn queue_rule(name: &str, job_id: &str, job_names: &[&str]) -> Value {
    let names = if job_names.is_empty() { json!("Any") } else { json!({ "Only": job_names }) };
    json!({ "name": name, "job_id": job_id, "payload_key": "jobId", "job_names": names, "foreign_names": [] })
}

/// A handler of domain `foreign` with one source `jobs`, over table `jobs(id, status, error, updated_at)` with statuses in
/// capitals and one type `any`; it puts every job back into its first queue. Change `manifest` and `decides` as needed.
#[derive(Debug, Clone)]
pub struct Handler {
    pub manifest: Value,
    pub decides: Value,
}

impl Handler {
    /// With these queues, see [`queue_rule`].
    ///
    /// # Panics
    /// If there is none.
    pub fn of(queues: &[Value]) -> Self {
        let first = &queues[0];
        let name = first["job_names"]["Only"][0].as_str().unwrap_or("work");
        let decides = json!({ "requeue": {
            "queue": first["name"], "name": name, "data": { "jobId": "{id}", "again": true }, "options": {},
        } });
        let manifest = json!({
            "domain": "foreign",
            "description": "An application unlike the example.",
            "sources": [{
                "name": "jobs",
                "table": {
                    "table": "jobs", "id": "id", "status": "status", "updated_at": "updated_at", "error": "error",
                    "extra_columns": [], "queued": "QUEUED", "processing": "PROCESSING", "failed": "FAILED",
                },
                "job_types": [{ "name": "any", "restart_safe": true }],
                "queues": queues,
                "reads": [],
            }],
        });
        Self { manifest, decides }
    }

    /// Its one source.
    pub fn source(&mut self) -> &mut Value {
        &mut self.manifest["sources"][0]
    }

    /// The component.
    pub fn component(&self) -> Vec<u8> {
        let mut text = self.manifest.clone();
        text["decides"] = self.decides.clone();
        declaring(&text)
    }
}

/// The table that [`Handler::of`] declares, with ids of this SQL type.
pub fn jobs_table(id_type: &str) -> String {
    format!(
        "CREATE TABLE public.jobs (id {id_type} PRIMARY KEY, status text NOT NULL, error text, \
         updated_at timestamptz NOT NULL DEFAULT now())"
    )
}

/// A host beside an application unlike the example, on the shared servers or on a Redis of the test's own.
pub struct Foreign {
    system: System,
    handlers: TempDir,
}

impl Foreign {
    /// With these tables, which `sql` creates, and this handler, which is granted all that it declares.
    pub async fn with(sql: &str, handler: &Handler) -> Result<Self> {
        Self::on(&redis_url()?, sql, handler).await
    }

    /// The same on another Redis.
    pub async fn on(redis_url: &str, sql: &str, handler: &Handler) -> Result<Self> {
        let handlers = tempfile::tempdir()?;
        // The host reads the manifest before the tables exist, as it may in production.
        std::fs::write(handlers.path().join("foreign.wasm"), handler.component())?;
        let system = System::with(redis_url, handlers.path(), "grants = \"declared\"").await?;
        let foreign = Self { system, handlers };
        foreign.sql(sql).await?;
        Ok(foreign)
    }

    /// The handlers' folder.
    pub fn handlers(&self) -> PathBuf {
        self.handlers.path().to_owned()
    }

    /// Runs statements as the superuser.
    pub async fn sql(&self, statements: &str) -> Result<()> {
        sqlx::raw_sql(AssertSqlSafe(statements.to_owned()))
            .execute(self.db.pool())
            .await
            .with_context(|| statements.to_owned())?;
        Ok(())
    }

    /// The first column of a query's rows, as text.
    pub async fn column(&self, query: &str) -> Result<Vec<String>> {
        let rows: Vec<(String,)> =
            sqlx::query_as(AssertSqlSafe(query.to_owned())).fetch_all(self.db.pool()).await?;
        Ok(rows.into_iter().map(|(value,)| value).collect())
    }

    /// Inserts rows into `jobs`, last written so many minutes ago.
    pub async fn rows(
        &self,
        ids: impl IntoIterator<Item = String>,
        status: &str,
        minutes: i64,
    ) -> Result<()> {
        for id in ids {
            let insert = format!(
                "INSERT INTO jobs (id, status, updated_at) VALUES ('{id}', '{status}', now() - interval '{minutes} minutes')"
            );
            self.sql(&insert).await?;
        }
        Ok(())
    }

    /// How many entries all six states of a queue hold.
    pub async fn entries(&self, queue: &str) -> Result<usize> {
        let mut total: usize = 0;
        for state in ["wait", "paused", "active"] {
            total += self.redis::<usize>(&["LLEN", &self.key(queue, state)]).await?;
        }
        for state in ["delayed", "prioritized", "waiting-children"] {
            total += self.redis::<usize>(&["ZCARD", &self.key(queue, state)]).await?;
        }
        Ok(total)
    }
}

impl Deref for Foreign {
    type Target = System;

    fn deref(&self) -> &System {
        &self.system
    }
}

impl DerefMut for Foreign {
    fn deref_mut(&mut self) -> &mut System {
        &mut self.system
    }
}
