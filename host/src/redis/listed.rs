//! Whether given entries are in a scheduled state.

use std::collections::HashSet;

use redis::{Pipeline, Value};
use salvage_core::sighting::QueueFailure;
use salvage_core::snapshot::State;

use super::connection::Connection;
use super::keys::Keys;
use super::reply;

/// Up to so many ids are looked for one by one in the lists. LPOS walks the whole list for an absent id (2.8 ms at
/// 100,000 ids) and reading the whole list costs about as much as a dozen such walks.
const WALKS_MAX: usize = 12;

/// Whether each entry is in any of the six states, all at one instant.
pub(super) async fn are_listed(
    connection: &Connection,
    keys: &Keys,
    entry_ids: &[String],
) -> Result<Vec<bool>, QueueFailure> {
    if entry_ids.len() <= WALKS_MAX {
        walk(connection, keys, entry_ids).await
    } else {
        compare(connection, keys, entry_ids).await
    }
}

async fn walk(connection: &Connection, keys: &Keys, entry_ids: &[String]) -> Result<Vec<bool>, QueueFailure> {
    let mut commands = redis::pipe();
    for entry_id in entry_ids {
        for state in State::ALL {
            commands
                .cmd(if state.is_list() { "LPOS" } else { "ZSCORE" })
                .arg(keys.state(state))
                .arg(entry_id);
        }
    }
    let replies = connection.ask_at_one_instant(&commands).await?;
    replies.chunks(State::ALL.len()).map(any_found).collect()
}

async fn compare(
    connection: &Connection,
    keys: &Keys,
    entry_ids: &[String],
) -> Result<Vec<bool>, QueueFailure> {
    let (lists, sets): (Vec<State>, Vec<State>) = State::ALL.into_iter().partition(|state| state.is_list());
    let mut commands = redis::pipe();
    for state in &lists {
        commands.cmd("LRANGE").arg(keys.state(*state)).arg(0).arg(-1);
    }
    for entry_id in entry_ids {
        ask_scores(&mut commands, keys, &sets, entry_id);
    }
    let mut replies = connection.ask_at_one_instant(&commands).await?;
    let scores = replies.split_off(lists.len());
    let mut listed = HashSet::new();
    for reply in replies {
        let Value::Array(ids) = reply else { return Err(reply::unexpected("LRANGE", &reply)) };
        listed.extend(ids.into_iter().filter_map(|id| match id {
            Value::BulkString(bytes) => Some(bytes),
            _ => None,
        }));
    }
    let scores = scores.chunks(sets.len());
    let is_listed = |(entry_id, scores): (&String, &[Value])| {
        Ok(any_found(scores)? || listed.contains(entry_id.as_bytes()))
    };
    entry_ids.iter().zip(scores).map(is_listed).collect()
}

fn ask_scores(commands: &mut Pipeline, keys: &Keys, sets: &[State], entry_id: &str) {
    for state in sets {
        commands.cmd("ZSCORE").arg(keys.state(*state)).arg(entry_id);
    }
}

/// All of them are looked at: an error is never outvoted by a find, nor passed over as an absence.
fn any_found(replies: &[Value]) -> Result<bool, QueueFailure> {
    replies.iter().try_fold(false, |found, reply| Ok(found | reply::is_found("LPOS or ZSCORE", reply)?))
}

#[cfg(test)]
mod tests {
    use super::reply::testing::parsed;
    use super::*;

    #[test]
    fn one_error_spoils_the_answer_wherever_it_stands() {
        let found =
            |replies: &[&str]| any_found(&replies.iter().map(|wire| parsed(wire)).collect::<Vec<_>>());
        assert_eq!(found(&["$-1\r\n", "$-1\r\n"]), Ok(false));
        assert_eq!(found(&["$-1\r\n", ":0\r\n"]), Ok(true));
        assert_eq!(found(&["$1\r\n5\r\n", "$-1\r\n"]), Ok(true));
        assert!(found(&["$1\r\n5\r\n", "-WRONGTYPE kind\r\n"]).is_err());
        assert!(found(&["$-1\r\n", "*0\r\n"]).is_err());
    }
}
