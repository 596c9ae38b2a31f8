//! Everything both stores hold, to be compared: what a pass, a plan or a late writer changed.

use std::collections::BTreeMap;

use anyhow::{Context, Result};
use sqlx::{AssertSqlSafe, PgPool};

use crate::system::System;

/// Both stores at one moment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stores {
    /// Each table's rows as text, with their last writer: a write of the same values is seen, too.
    pub tables: BTreeMap<String, String>,
    /// Each key's value as Redis dumps it, and when it expires (ms since 1970; negative: never).
    pub keys: BTreeMap<String, (Vec<u8>, i64)>,
}

impl Stores {
    /// What a system's database and prefix hold.
    pub async fn of(system: &System) -> Result<Self> {
        Ok(Self { tables: tables(system.db.pool()).await?, keys: keys(system).await? })
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

async fn tables(db: &PgPool) -> Result<BTreeMap<String, String>> {
    let list = "SELECT format('%I.%I', schemaname, tablename) FROM pg_tables \
                WHERE schemaname IN ('public', 'salvage') ORDER BY 1";
    let names: Vec<String> = sqlx::query_scalar(list).fetch_all(db).await.context("listing tables")?;
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

async fn keys(system: &System) -> Result<BTreeMap<String, (Vec<u8>, i64)>> {
    let names: Vec<String> = system.redis(&["KEYS", &format!("{}:*", system.prefix)]).await?;
    let mut keys = BTreeMap::new();
    for name in names {
        let value: Option<Vec<u8>> = system.redis(&["DUMP", &name]).await?;
        let expires_ms = system.redis(&["PEXPIRETIME", &name]).await?;
        // None: it expired since it was listed.
        keys.extend(value.map(|value| (name, (value, expires_ms))));
    }
    Ok(keys)
}
