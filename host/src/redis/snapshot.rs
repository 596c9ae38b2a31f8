//! The snapshot: every queue's ids in all six states, and what proves that they are all, in one MULTI.
//!
//! One MULTI because a job moves while it is looked for: reading state by state on a busy queue judged up to 29 % of the
//! present jobs absent, one MULTI none. How the MULTI gets at the ids depends on how many there are (see `strategy`): as
//! ranges, or as copies that are paged afterwards. The guards are the same in each.
//!
//! A connection that breaks half-way leaves nothing: what had arrived is dropped. A key of a wrong type spoils its own
//! queue only; anything wrong with TIME or INFO spoils all.

use std::collections::BTreeMap;

use redis::Value;
use salvage_core::sighting::QueueFailure;
use salvage_core::snapshot::{Server, Snapshot, State};

use super::connection::Connection;
use super::copies::{self, Copies};
use super::keys::{self, Keys};
use super::reading::{QueuePlan, Read};
use super::strategy::{SnapshotLimits, Way, Ways};
use super::{info, reply, sizes};
use crate::ports::Ask;

/// Takes snapshots of the queues under a prefix.
#[derive(Debug, Clone, Copy)]
pub(super) struct Camera<'a> {
    pub(super) connection: &'a Connection,
    pub(super) prefix: &'a str,
    pub(super) copies: &'a Copies,
    pub(super) limits: &'a SnapshotLimits,
}

impl Camera<'_> {
    /// Chooses the cheapest way, and goes it.
    pub(super) async fn take(&self, ask: &Ask<'_>) -> Result<Snapshot, QueueFailure> {
        if ask.wanted.is_empty() {
            return self.take_at_one_instant(ask, &Ways::new()).await;
        }
        let sizes = sizes::read(self.connection, self.prefix, ask.wanted).await?;
        let ways = sizes.ways(ask.is_whole, ask.copies.is_some(), self.limits)?;
        match self.take_at_one_instant(ask, &ways).await {
            Err(failure) if ways.values().any(|way| *way == Way::Copy) && copies::is_refusal(&failure) => {
                tracing::warn!(%failure, "ids could not be copied, so they are read in one reply");
                self.take_at_one_instant(ask, &sizes.ways(ask.is_whole, false, self.limits)?).await
            }
            answered => answered,
        }
    }

    async fn take_at_one_instant(&self, ask: &Ask<'_>, ways: &Ways) -> Result<Snapshot, QueueFailure> {
        let reads = |queue: &String, state| match ways.get(&(queue.clone(), state)) {
            _ if !ask.wanted.contains(queue) && state == State::Active => Read::First,
            _ if !ask.wanted.contains(queue) => Read::Nothing,
            Some(Way::Copy) => ask.copies.map_or(Read::Range, Read::Copy),
            Some(Way::LeaveOut) => Read::Nothing,
            None => Read::Range,
        };
        let plan = |queue: &String| {
            let reads = State::ALL.into_iter().map(|state| (state, reads(queue, state)));
            let nonce = keys::nonce(ask.scope);
            (queue.clone(), QueuePlan { keys: Keys::new(self.prefix, queue), reads: reads.collect(), nonce })
        };
        let plans: Vec<(String, QueuePlan<'_>)> = ask.queues.iter().map(plan).collect();
        let mut commands = redis::pipe();
        commands.cmd("TIME").cmd("INFO");
        for (_, plan) in &plans {
            plan.ask(&mut commands, self.copies);
        }
        // Not asked again under the same names: the first copies could come late, and take the place of the second.
        let is_written = plans.iter().any(|(_, plan)| plan.copies_any());
        let replies = if is_written {
            self.connection.tell_at_one_instant(&commands).await?
        } else {
            self.connection.ask_at_one_instant(&commands).await?
        };
        let mut replies = replies.into_iter();
        let at_ms = time(&replies.next().unwrap_or_default())?;
        let server = server(replies.next().unwrap_or_default())?;
        let mut queues = BTreeMap::new();
        for (queue, plan) in plans {
            queues.insert(queue, plan.read(&mut replies, self.prefix));
        }
        let snapshot = Snapshot { prefix: self.prefix.to_owned(), at_ms, server, queues };
        if snapshot.server_fault().is_some() {
            // The master may be behind the same name by now.
            self.connection.leave_node();
        }
        Ok(snapshot)
    }
}

/// Redis's clock, milliseconds since 1970.
fn time(value: &Value) -> Result<u64, QueueFailure> {
    let part = |value: &Value| match value {
        Value::BulkString(bytes) => std::str::from_utf8(bytes).ok()?.parse::<u64>().ok(),
        _ => None,
    };
    let parts = match value {
        Value::Array(parts) => parts.as_slice(),
        _ => &[],
    };
    let [seconds, micros] = parts else { return Err(reply::unexpected("TIME", value)) };
    let ms = part(seconds).zip(part(micros)).map(|(seconds, micros)| seconds * 1_000 + micros / 1_000);
    ms.ok_or_else(|| QueueFailure::UnexpectedReply { command: "TIME", found: "no numbers".to_owned() })
}

fn server(value: Value) -> Result<Server, QueueFailure> {
    match reply::text("INFO", value)? {
        Some(info) => info::parse(&info),
        None => Err(reply::unexpected("INFO", &Value::Nil)),
    }
}

#[cfg(test)]
mod tests {
    use super::super::reply::testing::parsed;
    use super::*;

    #[test]
    fn an_odd_time_is_a_failure() {
        assert_eq!(time(&parsed("*2\r\n$4\r\n1000\r\n$6\r\n999999\r\n")), Ok(1_000_999));
        for odd in ["$-1\r\n", "*0\r\n", "*2\r\n$1\r\nx\r\n$1\r\n1\r\n", "-NOPERM no\r\n"] {
            assert!(time(&parsed(odd)).is_err(), "{odd:?}");
        }
        assert!(server(parsed("$-1\r\n")).is_err());
        assert!(server(parsed("-NOPERM no\r\n")).is_err());
    }
}
