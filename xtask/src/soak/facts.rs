//! Reading what the audit judges.

use super::audit::{Facts, Key, Row, Run, Story};
use super::chaos::source_of;
use super::queue::Entry;
use super::world::World;
use crate::demo::application::{Shape, Table};
use anyhow::{Context, Result};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// An entry that is due later than this is for later; all others are due within half a minute.
const FAR: Duration = Duration::from_secs(3_600);

/// Everything as it is now.
pub(super) fn read(world: &World, lost: &BTreeSet<Key>, doubled: &BTreeSet<Key>) -> Result<Facts> {
    let mut facts = Facts { lost: lost.clone(), doubled: doubled.clone(), ..Facts::default() };
    facts.rows = rows(world)?;
    let entries = world.entries()?;
    facts.entries = counted(&entries);
    facts.for_later = for_later(&entries)?;
    let runs = "SELECT json_build_object('source', source, 'job', job, 'made', entry -> 'madeAt', 'number', id, \
         'ours', NOT (entry -> 'data' ? 'by'), 'completed', completed_at IS NOT NULL) FROM soak.runs ORDER BY id";
    facts.runs = objects(world, runs, |run| {
        Ok(Run {
            key: key(run)?,
            entry_made_at: run["made"].as_i64().context("a run without its entry's time")?,
            is_ours: run["ours"] == true,
            number: run["number"].as_i64().context("a run without its number")?,
            is_completed: run["completed"] == true,
        })
    })?;
    let stories = "SELECT json_build_object('source', domain || '/' || source, 'job', job_id, 'decision', decision, \
         'outcome', outcome, 'reason', decision_reason) FROM salvage.ledger ORDER BY id";
    facts.stories = objects(world, stories, |story| {
        let (decision, outcome) = (text(story, "decision"), text(story, "outcome"));
        let reason = story["reason"].as_str().map(str::to_owned);
        Ok(Story { key: key(story)?, decision, outcome, reason })
    })?;
    let wrongs = "SELECT json_build_object('source', coalesce(source, 'parent'), 'job', job, 'what', what, 'detail', detail) \
         FROM soak.wrongs";
    facts.wrongs =
        objects(world, wrongs, |wrong| Ok((text(wrong, "what"), key(wrong)?, text(wrong, "detail"))))?;
    Ok(facts)
}

/// How many live entries each job has.
pub(super) fn counted(entries: &[Entry]) -> BTreeMap<Key, usize> {
    let mut counts = BTreeMap::new();
    for entry in entries {
        *counts.entry(key_of(entry)).or_default() += 1;
    }
    counts
}

/// The jobs whose entries wait for a time that no soak lives to see.
fn for_later(entries: &[Entry]) -> Result<BTreeSet<Key>> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).context("a clock before 1970")?;
    let far = (now + FAR).as_secs_f64() * 1000.0;
    let is_far = |entry: &&Entry| entry.due_ms.is_some_and(|due_ms| due_ms > far);
    Ok(entries.iter().filter(is_far).map(key_of).collect())
}

fn key_of(entry: &Entry) -> Key {
    Key { source: source_of(&entry.queue).to_owned(), job: entry.job.clone() }
}

fn rows(world: &World) -> Result<Vec<Row>> {
    let of_table = |table: Table| {
        let Shape { table, kind, source, .. } = table.shape();
        format!(
            "SELECT json_build_object('source', '{source}', 'job', id::text, 'kind', {kind}, 'status', status::text, \
             'error', error) FROM {table}"
        )
    };
    objects(world, &Table::ALL.map(of_table).join(" UNION ALL "), |row| {
        let error = row["error"].as_str().map(str::to_owned);
        Ok(Row { key: key(row)?, kind: text(row, "kind"), status: text(row, "status"), error })
    })
    .context("reading the rows")
}

/// One of each object that the query lists, one a line.
fn objects<T>(world: &World, query: &str, read: impl Fn(&Value) -> Result<T>) -> Result<Vec<T>> {
    let one = |line: &str| read(&serde_json::from_str(line).context("a line that is no JSON")?);
    world.sql(query)?.lines().map(one).collect()
}

fn key(object: &Value) -> Result<Key> {
    let named = |name: &str| object[name].as_str().map(str::to_owned).context("a record without its job");
    Ok(Key { source: named("source")?, job: named("job")? })
}

fn text(object: &Value, name: &str) -> String {
    object[name].as_str().unwrap_or_default().to_owned()
}
