//! Whether given entries are in a sorted set: asked by id where a look left a long set out.
//!
//! It can only say that an entry is there. Who is not found may be there under another id, and it takes all ids to tell.

use redis::Value;
use salvage_core::sighting::QueueFailure;
use salvage_core::snapshot::State;

use super::connection::Connection;
use super::keys::Keys;
use super::reply;

/// Ids in one command: Redis is busy with them for one to three milliseconds.
const IDS_PER_COMMAND: usize = 1_000;

/// Commands sent together; Redis can serve others between any two.
const COMMANDS_PER_TRIP: usize = 10;

/// One answer per entry, in their order; not all at one instant.
pub(super) async fn read(
    connection: &Connection,
    keys: &Keys,
    state: State,
    entry_ids: &[String],
) -> Result<Vec<bool>, QueueFailure> {
    let mut are_there = Vec::with_capacity(entry_ids.len());
    for ids in entry_ids.chunks(IDS_PER_COMMAND * COMMANDS_PER_TRIP) {
        let mut commands = redis::pipe();
        for ids in ids.chunks(IDS_PER_COMMAND) {
            commands.cmd("ZMSCORE").arg(keys.state(state)).arg(ids);
        }
        let replies = connection.ask(&commands).await?;
        for (reply, ids) in replies.iter().zip(ids.chunks(IDS_PER_COMMAND)) {
            are_there.extend(scores(reply, ids.len())?);
        }
    }
    Ok(are_there)
}

fn scores(reply: &Value, count: usize) -> Result<Vec<bool>, QueueFailure> {
    let is_there = |score: &Value| match score {
        Value::Nil => Ok(false),
        Value::BulkString(_) => Ok(true),
        other => Err(reply::unexpected("ZMSCORE", other)),
    };
    match reply {
        Value::Array(scores) if scores.len() == count => scores.iter().map(is_there).collect(),
        other => Err(reply::unexpected("ZMSCORE", other)),
    }
}

#[cfg(test)]
mod tests {
    use super::super::reply::testing::parsed;
    use super::*;

    #[test]
    fn scores_come_in_the_order_of_the_ids_and_anything_else_is_no_answer() {
        let answer = |wire| scores(&parsed(wire), 2);
        assert_eq!(answer("*2\r\n$-1\r\n$1\r\n5\r\n"), Ok(vec![false, true]));
        for odd in ["*0\r\n", "*1\r\n$-1\r\n", "$-1\r\n", "-WRONGTYPE kind\r\n", "*2\r\n$-1\r\n*0\r\n"] {
            assert!(answer(odd).is_err(), "{odd:?}");
        }
    }
}
