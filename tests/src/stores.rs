//! Everything both stores hold, to be compared: what a pass, a plan or a late writer changed.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context, Result};
use redis::FromRedisValue;
use redis::aio::MultiplexedConnection;
use sqlx::{AssertSqlSafe, PgPool};

use crate::system::System;

/// Both stores at one moment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stores {
    /// See [`tables`].
    pub tables: BTreeMap<String, String>,
    /// See [`keys`].
    pub keys: BTreeMap<String, Content>,
}

/// What a key of Redis holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Content {
    /// The value as printable text.
    pub value: String,
    /// Milliseconds since 1970; negative: never.
    pub expires_ms: i64,
}

impl Stores {
    /// What a system's database and prefix hold.
    pub async fn of(system: &System) -> Result<Self> {
        let tables = tables(system.db.pool(), &["public", "salvage"]).await?;
        Ok(Self { tables, keys: keys(&system.connection(), &system.prefix).await? })
    }

    /// The application's own: without Salvage's tables, its key in each queue, and the lease.
    #[must_use]
    pub fn of_the_application(mut self) -> Self {
        self.tables.retain(|table, _| !table.starts_with("salvage."));
        // A queue's keys have its name before their last part; the lease's has not.
        let is_lease = |key: &str| key.ends_with(":lock") && key.matches(':').count() == 1;
        self.keys.retain(|key, _| !key.ends_with(":salvage:host") && !is_lease(key));
        self
    }
}

/// Each table of these schemas: its rows as text, one a line, with their last writer: a write of the same values is seen,
/// too.
pub async fn tables(db: &PgPool, schemas: &[&str]) -> Result<BTreeMap<String, String>> {
    let list =
        "SELECT format('%I.%I', schemaname, tablename) FROM pg_tables WHERE schemaname = ANY($1::text[])";
    let names: Vec<String> =
        sqlx::query_scalar(list).bind(schemas).fetch_all(db).await.context("listing tables")?;
    let mut tables = BTreeMap::new();
    for name in names {
        let dump = format!(
            "SELECT coalesce(string_agg(t.xmin::text || ' ' || t::text, E'\\n' ORDER BY t::text), '') FROM {name} AS t"
        );
        let rows = sqlx::query_scalar(AssertSqlSafe(dump)).fetch_one(db).await;
        tables.insert(name.clone(), rows.with_context(|| format!("dumping {name}"))?);
    }
    Ok(tables)
}

/// Each key of that prefix.
pub async fn keys(redis: &MultiplexedConnection, prefix: &str) -> Result<BTreeMap<String, Content>> {
    let names: Vec<String> = ask(redis, "KEYS", &format!("{prefix}:*")).await?;
    let mut keys = BTreeMap::new();
    for name in names {
        let value = value(redis, &name).await?;
        let expires_ms = ask(redis, "PEXPIRETIME", &name).await?;
        // None: it expired since it was listed.
        keys.extend(value.map(|value| (name, Content { value, expires_ms })));
    }
    Ok(keys)
}

/// Hashes and sets in an order of ours: what Redis dumps of a large one changes its order by being read.
async fn value(redis: &MultiplexedConnection, key: &str) -> Result<Option<String>> {
    let kind: String = ask(redis, "TYPE", key).await?;
    let printable = |bytes: Vec<u8>| bytes.escape_ascii().to_string();
    Ok(match kind.as_str() {
        "hash" => {
            let fields: BTreeMap<Vec<u8>, Vec<u8>> = ask(redis, "HGETALL", key).await?;
            let fields = fields.into_iter().map(|(field, value)| [field, value].map(printable).join(": "));
            Some(fields.collect::<Vec<_>>().join(", "))
        }
        "set" => {
            let members: BTreeSet<Vec<u8>> = ask(redis, "SMEMBERS", key).await?;
            Some(members.into_iter().map(printable).collect::<Vec<_>>().join(", "))
        }
        _ => ask::<Option<Vec<u8>>>(redis, "DUMP", key).await?.map(printable),
    })
}

async fn ask<T: FromRedisValue>(redis: &MultiplexedConnection, command: &str, key: &str) -> Result<T> {
    let answer = redis::cmd(command).arg(key).query_async(&mut redis.clone()).await;
    answer.with_context(|| format!("{command} {key}"))
}
