//! One field of many hashes, of each its beginning: bounded, whatever stands there.

use std::sync::LazyLock;

use redis::Value;
use salvage_core::sighting::QueueFailure;

use super::connection::Connection;
use super::reply;
use super::script::{COMMAND, Call, Script};

static FIELDS: LazyLock<Script> = LazyLock::new(|| Script::new(include_str!("fields.lua")));

/// Hashes asked for in one script. With [`READ_MAX`], Redis is busy with them for ten milliseconds at worst.
const HASHES_MAX: usize = 200;

/// A field that is longer than this is not read: to give out its beginning, Redis copies all of it.
const READ_MAX: u64 = 16 << 10;

/// What stands in a field.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Field {
    /// Nothing, or the key is no hash.
    None,
    /// Its beginning; odd bytes replaced.
    Text(String),
    /// More than is read.
    TooLong {
        /// Its length.
        bytes: u64,
    },
}

/// Reads the first `told` bytes of a field of each hash, in their order.
pub(super) async fn read(
    connection: &Connection,
    keys: &[String],
    field: &str,
    told: usize,
) -> Result<Vec<Field>, QueueFailure> {
    let mut fields = Vec::with_capacity(keys.len());
    for keys in keys.chunks(HASHES_MAX) {
        let mut call = Call::default();
        for key in keys {
            call.key(key.clone());
        }
        call.arg(field).arg(told).arg(READ_MAX);
        match FIELDS.ask(connection, &call).await? {
            Value::Array(answers) if answers.len() == keys.len() => {
                for answer in answers {
                    fields.push(one(answer)?);
                }
            }
            other => return Err(reply::unexpected(COMMAND, &other)),
        }
    }
    Ok(fields)
}

fn one(answer: Value) -> Result<Field, QueueFailure> {
    match answer {
        Value::Nil => Ok(Field::None),
        Value::BulkString(bytes) => Ok(Field::Text(reply::lossy(bytes))),
        length => Ok(Field::TooLong { bytes: reply::count(COMMAND, &length)? }),
    }
}

#[cfg(test)]
mod tests {
    use super::reply::testing::parsed;
    use super::*;

    #[test]
    fn a_field_is_a_text_nothing_or_too_long() {
        assert_eq!(one(parsed("$-1\r\n")), Ok(Field::None));
        assert_eq!(one(parsed("$2\r\nab\r\n")), Ok(Field::Text("ab".into())));
        assert_eq!(one(Value::BulkString(vec![b'a', 0xff])), Ok(Field::Text("a\u{fffd}".into())));
        assert_eq!(one(parsed(":20000\r\n")), Ok(Field::TooLong { bytes: 20_000 }));
        for odd in ["*0\r\n", ":-1\r\n", "-NOPERM no\r\n"] {
            assert!(one(parsed(odd)).is_err(), "{odd:?}");
        }
    }
}
