//! Which active entries have lost their lock, and since when their worker had them.
//!
//! The ids come from the pass's snapshot, so on a busy queue many of these entries have ended meanwhile, and their locks
//! with them. Those without a lock are therefore looked at again, at one instant: still active, and still without one.
//! That also passes over an entry that a worker of BullMQ 4 was about to lock, for there it becomes active one command
//! earlier.

use std::collections::HashSet;

use redis::Value;
use salvage_core::sighting::QueueFailure;
use salvage_core::snapshot::{Stalled, State};

use super::connection::Connection;
use super::fields::{self, Field};
use super::keys::Keys;
use super::reply;

/// Entries asked for in one pipeline.
const PAGE: usize = 1_000;

/// Ids of `active` among which they are looked for. It is asked about the first 20,000 at most; more may have come since.
const ACTIVE_MAX: usize = 50_000;

/// Digits of a number of milliseconds are fewer.
const TIME_BYTES: usize = 32;

/// Those of `active` that are stalled, in their order.
pub(super) async fn read(
    connection: &Connection,
    keys: &Keys,
    active: &[String],
) -> Result<Vec<Stalled>, QueueFailure> {
    let mut stalled = vec![];
    for page in active.chunks(PAGE) {
        let unlocked = unlocked(connection, keys, page).await?;
        if !unlocked.is_empty() {
            stalled.extend(still_active(connection, keys, &unlocked).await?);
        }
    }
    Ok(stalled)
}

async fn unlocked<'a>(
    connection: &Connection,
    keys: &Keys,
    active: &'a [String],
) -> Result<Vec<&'a String>, QueueFailure> {
    // As a rule all are locked, which one command tells.
    let mut commands = redis::pipe();
    commands.cmd("EXISTS").arg(active.iter().map(|entry_id| keys.lock(entry_id)).collect::<Vec<_>>());
    let reply = connection.ask(&commands).await?.into_iter().next().unwrap_or_default();
    if reply::count("EXISTS", &reply)? == active.len() as u64 {
        return Ok(vec![]);
    }
    let mut commands = redis::pipe();
    for entry_id in active {
        commands.cmd("EXISTS").arg(keys.lock(entry_id));
    }
    let replies = connection.ask(&commands).await?;
    let mut unlocked = vec![];
    for (entry_id, reply) in active.iter().zip(&replies) {
        if !reply::flag("EXISTS", reply)? {
            unlocked.push(entry_id);
        }
    }
    Ok(unlocked)
}

async fn still_active(
    connection: &Connection,
    keys: &Keys,
    unlocked: &[&String],
) -> Result<Vec<Stalled>, QueueFailure> {
    let mut commands = redis::pipe();
    commands.cmd("LRANGE").arg(keys.state(State::Active)).arg(0).arg(ACTIVE_MAX - 1);
    for entry_id in unlocked {
        commands.cmd("EXISTS").arg(keys.lock(entry_id));
    }
    let mut replies = connection.ask_at_one_instant(&commands).await?.into_iter();
    let active = match replies.next() {
        Some(Value::Array(ids)) => ids,
        other => return Err(reply::unexpected("LRANGE", &other.unwrap_or_default())),
    };
    let active: HashSet<&[u8]> = active.iter().filter_map(bytes).collect();
    let mut stalled = vec![];
    for entry_id in unlocked {
        let is_locked = reply::flag("EXISTS", &replies.next().unwrap_or_default())?;
        if !is_locked && active.contains(entry_id.as_bytes()) {
            stalled.push((*entry_id).clone());
        }
    }
    since(connection, keys, stalled).await
}

/// Whatever stands in their hashes is only reported: without a number, the age is unknown.
async fn since(
    connection: &Connection,
    keys: &Keys,
    stalled: Vec<String>,
) -> Result<Vec<Stalled>, QueueFailure> {
    let hashes: Vec<String> = stalled.iter().map(|entry_id| keys.entry(entry_id)).collect();
    let taken = fields::read(connection, &hashes, "processedOn", TIME_BYTES).await?;
    let taken_ms = |field| match field {
        Field::Text(text) => text.parse().ok(),
        Field::None | Field::TooLong { .. } => None,
    };
    let stalled = stalled.into_iter().zip(taken);
    Ok(stalled.map(|(entry_id, field)| Stalled { entry_id, taken_ms: taken_ms(field) }).collect())
}

fn bytes(value: &Value) -> Option<&[u8]> {
    match value {
        Value::BulkString(bytes) => Some(bytes),
        _ => None,
    }
}
