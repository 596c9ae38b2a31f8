//! How much there is to read, and how much memory Redis has left: asked for before a snapshot, to choose how to take it.

use std::collections::{BTreeMap, BTreeSet};

use redis::Value;
use salvage_core::sighting::QueueFailure;
use salvage_core::snapshot::State;

use super::connection::Connection;
use super::keys::Keys;
use super::reading::ask_length;
use super::strategy::Sizes;
use super::{info, reply};

/// Asks for the lengths of all six states of each queue. Not at one instant: they only help to choose.
pub(super) async fn read(
    connection: &Connection,
    prefix: &str,
    queues: &BTreeSet<String>,
) -> Result<Sizes, QueueFailure> {
    let mut commands = redis::pipe();
    commands.cmd("INFO").arg("memory");
    for queue in queues {
        let keys = Keys::new(prefix, queue);
        for state in State::ALL {
            ask_length(&mut commands, &keys, state);
        }
    }
    let mut replies = connection.ask(&commands).await?.into_iter();
    let memory = reply::text("INFO", replies.next().unwrap_or_default())?;
    let mut sizes = Sizes { lengths: BTreeMap::new(), free: memory.as_deref().and_then(info::memory_free) };
    for queue in queues {
        let mut lengths = BTreeMap::new();
        for state in State::ALL {
            lengths.insert(state, length(&replies.next().unwrap_or_default())?);
        }
        sizes.lengths.insert(queue.clone(), lengths);
    }
    Ok(sizes)
}

fn length(reply: &Value) -> Result<usize, QueueFailure> {
    match reply {
        // The snapshot itself tells what is wrong with the key.
        reply if reply::is_wrong_type(reply) => Ok(0),
        Value::Int(length) => Ok(usize::try_from(*length).unwrap_or(0)),
        other => Err(reply::unexpected("LLEN or ZCARD", other)),
    }
}

#[cfg(test)]
mod tests {
    use super::reply::testing::parsed;
    use super::*;

    #[test]
    fn a_length_is_a_number_and_everything_else_is_no_zero() {
        assert_eq!(length(&parsed(":7\r\n")), Ok(7));
        assert_eq!(length(&parsed("-WRONGTYPE kind\r\n")), Ok(0));
        for odd in ["$-1\r\n", "-NOPERM no\r\n", "-LOADING wait\r\n", "*0\r\n"] {
            assert!(length(&parsed(odd)).is_err(), "{odd:?}");
        }
    }
}
