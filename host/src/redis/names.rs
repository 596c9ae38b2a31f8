//! Which queues exist under a prefix: a hint for a person who may have mistyped a name.

use std::collections::BTreeSet;

use redis::Value;
use salvage_core::sighting::QueueFailure;

use super::connection::Connection;
use super::reply;

/// Keys that Redis walks over in one step.
const STEP: usize = 1_000;

/// Steps at most: a million keys, about half a second of Redis in pieces of a millisecond.
const STEPS_MAX: usize = 1_000;

/// Names at most.
const NAMES_MAX: usize = 1_000;

/// Looks for the keys that every queue in use has.
pub(super) async fn existing(connection: &Connection, prefix: &str) -> Result<Vec<String>, QueueFailure> {
    let start = format!("{prefix}:");
    let pattern = format!("{}*:meta", escaped(&start));
    let mut names = BTreeSet::new();
    let mut cursor = "0".to_owned();
    for _ in 0..STEPS_MAX {
        let mut command = redis::pipe();
        command.cmd("SCAN").arg(&cursor).arg("MATCH").arg(&pattern).arg("COUNT").arg(STEP);
        let reply = connection.ask(&command).await?.into_iter().next().unwrap_or_default();
        let keys;
        (cursor, keys) = step(reply)?;
        let queue = |key: &String| Some(key.strip_prefix(&start)?.strip_suffix(":meta")?.to_owned());
        names.extend(keys.iter().filter_map(queue));
        if cursor == "0" || names.len() >= NAMES_MAX {
            break;
        }
    }
    Ok(names.into_iter().take(NAMES_MAX).collect())
}

/// The next cursor, and the keys of this step. A key that is not UTF-8 is no queue of ours.
fn step(reply: Value) -> Result<(String, Vec<String>), QueueFailure> {
    let Value::Array(parts) = reply else { return Err(reply::unexpected("SCAN", &reply)) };
    let mut parts = parts.into_iter();
    let cursor = reply::text("SCAN", parts.next().unwrap_or_default())?;
    match (cursor, parts.next().unwrap_or_default()) {
        (Some(cursor), Value::Array(keys)) => {
            Ok((cursor, keys.into_iter().filter_map(|key| reply::text("SCAN", key).ok().flatten()).collect()))
        }
        (_, other) => Err(reply::unexpected("SCAN", &other)),
    }
}

/// A text as it stands in a pattern of keys.
fn escaped(text: &str) -> String {
    let mut escaped = String::new();
    for character in text.chars() {
        if matches!(character, '*' | '?' | '[' | ']' | '\\' | '^' | '-') {
            escaped.push('\\');
        }
        escaped.push(character);
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::reply::testing::parsed;
    use super::*;

    #[test]
    fn a_step_is_a_cursor_and_keys() {
        let reply = parsed("*2\r\n$1\r\n7\r\n*1\r\n$11\r\nbull:q:meta\r\n");
        assert_eq!(step(reply), Ok(("7".into(), vec!["bull:q:meta".into()])));
        for odd in ["-NOPERM no\r\n", "$-1\r\n", "*1\r\n$1\r\n7\r\n", "*2\r\n$1\r\n7\r\n:1\r\n"] {
            assert!(step(parsed(odd)).is_err(), "{odd:?}");
        }
    }

    #[test]
    fn what_means_something_in_a_pattern_is_escaped() {
        assert_eq!(escaped("{b}*[x]"), "{b}\\*\\[x\\]");
    }
}
