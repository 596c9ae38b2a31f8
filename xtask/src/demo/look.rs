//! What is there now: rows, what their parents show, and entries.

use super::application::{Shape, Table};
use super::scenario::{SITUATIONS, Situation};
use super::stage::Stage;
use anyhow::{Context, Result};
use salvage_services::postgres::psql;
use serde_json::Value;
use std::collections::BTreeMap;

/// One job as it is found.
#[derive(Clone, Debug)]
pub(super) struct Found {
    /// The row's status.
    pub(super) row: String,
    pub(super) error: Option<String>,
    pub(super) parent: String,
    /// Where its entry is: a state of BullMQ's, `none`, or `active` with what is known of
    /// its worker: the lock is renewed for as long as that lives.
    pub(super) entry: String,
    /// Changes with every write to the row, even one that writes the same values.
    pub(super) version: String,
}

/// Looks at every situation's job, in their order.
pub(super) fn look(stage: &mut Stage) -> Result<Vec<Found>> {
    let mut rows = rows(&stage.servers.database)?;
    let mut found = Vec::new();
    for (index, situation) in SITUATIONS.iter().enumerate() {
        let row = rows
            .remove(&(situation.table, situation.id.to_owned()))
            .with_context(|| format!("the row {} is gone", situation.id))?;
        let entry = entry(stage, index, situation)?;
        let text = |name: &str| row[name].as_str().map(str::to_owned);
        found.push(Found {
            row: text("status").context("a row without its status")?,
            error: text("error"),
            parent: text("parent").unwrap_or_else(|| "none".to_owned()),
            entry,
            version: text("version").context("a row without its version")?,
        });
    }
    Ok(found)
}

/// The rows of all five job tables, each as one JSON object.
fn rows(database: &str) -> Result<BTreeMap<(Table, String), Value>> {
    let mut rows = BTreeMap::new();
    for of in Table::ALL {
        let Shape { table, updated_at, parent_id, parent_table, parent_shown, .. } = of.shape();
        let statement = format!(
            "SELECT json_build_object('id', j.id::text, 'status', j.status::text, 'error', j.error, \
             'version', j.xmin::text || ' ' || j.{updated_at}::text, 'parent', {parent_shown}) \
             FROM {table} j LEFT JOIN {parent_table} p ON p.id = j.{parent_id}"
        );
        let lines = psql(database, &["--command", &statement]).with_context(|| format!("reading {table}"))?;
        for line in lines.lines() {
            let row: Value = serde_json::from_str(line).with_context(|| format!("reading {table}"))?;
            let id = row["id"].as_str().context("a row without its id")?.to_owned();
            rows.insert((of, id), row);
        }
    }
    Ok(rows)
}

fn entry(stage: &mut Stage, index: usize, situation: &Situation) -> Result<String> {
    let queue = situation.table.shape().queue;
    let entry = stage.entries[index].clone();
    let state = stage.producer.state(queue, &entry)?;
    if state == "unknown" {
        return Ok("none".to_owned());
    }
    if state != "active" {
        return Ok(state);
    }
    let lock = format!("bull:{queue}:{entry}:lock");
    let is_locked = stage.servers.redis.command(&["EXISTS", &lock])? == "1";
    Ok(if is_locked { "active (alive)" } else { "active (dead)" }.to_owned())
}
