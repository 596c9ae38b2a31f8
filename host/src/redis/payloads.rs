//! Payloads of entries, a page of bytes at a time.
//!
//! One script reads a page, and asks for the length of each payload before it reads it. What is too long for a page is read
//! alone: whole, if Redis has the room for such a reply, else in parts, each of them out of the same payload. What is too
//! long for that, too, is only told by its length.

use std::sync::LazyLock;

use redis::Value;
use salvage_core::payload::{Data, Payload};
use salvage_core::sighting::QueueFailure;

use super::connection::Connection;
use super::keys::Keys;
use super::reply;
use super::script::{COMMAND, Call, Script};
use super::strategy::{PAGE_MAX, PAGE_SHARE, PAGE_SURE, Room};

static PAGE: LazyLock<Script> = LazyLock::new(|| Script::new(include_str!("payloads.lua")));
static PART: LazyLock<Script> = LazyLock::new(|| Script::new(include_str!("payload_part.lua")));

/// Entries asked for in one script: Redis is busy with them for a millisecond.
const ENTRIES_MAX: usize = 200;

/// Bytes of a name that are told: more than the name of any job that a manifest declares.
const NAME_MAX: usize = 64 << 10;

/// What is read of an entry's hash, in the order of [`payload`].
const FIELDS: [&str; 3] = ["name", "processedOn", "data"];

/// Reads the payloads of the first of these entries, in their order: of as many as a page holds, and of at least one.
pub(super) async fn read(
    connection: &Connection,
    keys: &Keys,
    entry_ids: &[String],
) -> Result<Vec<Payload>, QueueFailure> {
    let entry_ids = &entry_ids[..entry_ids.len().min(ENTRIES_MAX)];
    let Some(first) = entry_ids.first() else { return Ok(vec![]) };
    let mut call = Call::default();
    for entry_id in entry_ids {
        call.key(keys.entry(entry_id));
    }
    call.arg(PAGE_SURE).arg(PAGE_MAX).arg(PAGE_SHARE).arg(NAME_MAX);
    let (left, mut payloads) = page(PAGE.ask(connection, &call).await?, entry_ids.len())?;
    match payloads.pop() {
        Some(told @ Payload { data: Data::TooLong { bytes }, .. }) if payloads.is_empty() => {
            let key = keys.entry(first);
            Ok(vec![alone(connection, &key, told, bytes, &Room::within(left)).await?])
        }
        last => {
            payloads.extend(last);
            Ok(payloads)
        }
    }
}

/// A payload that is longer than a page, read in the way for which there is room.
async fn alone(
    connection: &Connection,
    key: &str,
    told: Payload,
    bytes: u64,
    room: &Room,
) -> Result<Payload, QueueFailure> {
    if bytes <= room.reply {
        whole(connection, key).await
    } else if bytes <= room.payload {
        Ok(Payload { data: in_parts(connection, key, bytes, room.reply).await?, ..told })
    } else {
        Ok(told)
    }
}

async fn whole(connection: &Connection, key: &str) -> Result<Payload, QueueFailure> {
    let mut commands = redis::pipe();
    commands.cmd("HMGET").arg(key).arg(&FIELDS);
    payload(connection.ask(&commands).await?.into_iter().next().unwrap_or_default())
}

/// Missing if it was changed meanwhile: whoever looks again then reads it anew.
async fn in_parts(
    connection: &Connection,
    key: &str,
    bytes: u64,
    part_max: u64,
) -> Result<Data, QueueFailure> {
    let mut read = vec![];
    let mut digest: Option<Vec<u8>> = None;
    while (read.len() as u64) < bytes {
        let from = read.len() as u64 + 1;
        let mut call = Call::default();
        call.key(key.to_owned()).arg(from).arg(from + part_max - 1).arg(bytes);
        let Some(part) = part(PART.ask(connection, &call).await?)? else { return Ok(Data::Missing) };
        if digest.get_or_insert_with(|| part.digest.clone()) != &part.digest {
            return Ok(Data::Missing);
        }
        if part.bytes.is_empty() {
            let found = format!("no bytes from {from} on of a payload of {bytes}");
            return Err(QueueFailure::UnexpectedReply { command: COMMAND, found });
        }
        read.extend(part.bytes);
    }
    Ok(Data::Text(reply::lossy(read)))
}

/// A part of a payload.
struct Part {
    /// Of the whole.
    digest: Vec<u8>,
    bytes: Vec<u8>,
}

/// `None` if the payload has another length by now.
fn part(reply: Value) -> Result<Option<Part>, QueueFailure> {
    match reply {
        Value::Array(parts) => match <[Value; 3]>::try_from(parts) {
            Ok([Value::Int(_), Value::BulkString(digest), Value::BulkString(bytes)]) => {
                Ok(Some(Part { digest, bytes }))
            }
            Err(parts) if matches!(parts[..], [Value::Int(_)]) => Ok(None),
            Ok(parts) => Err(reply::unexpected(COMMAND, &Value::Array(parts.into()))),
            Err(parts) => Err(reply::unexpected(COMMAND, &Value::Array(parts))),
        },
        other => Err(reply::unexpected(COMMAND, &other)),
    }
}

/// How much memory Redis has left, if it was asked and said so; and the payloads of the first of so many entries.
fn page(reply: Value, entries: usize) -> Result<(Option<u64>, Vec<Payload>), QueueFailure> {
    let Value::Array(items) = reply else { return Err(reply::unexpected(COMMAND, &reply)) };
    let count = items.len().saturating_sub(1) / 4;
    if items.len() != 4 * count + 1 || count == 0 || count > entries {
        return Err(reply::unexpected(COMMAND, &Value::Array(items)));
    }
    let mut items = items.into_iter();
    let mut next = || items.next().unwrap_or_default();
    let left = match next() {
        Value::Nil => None,
        left => Some(reply::count(COMMAND, &left)?),
    };
    let mut payloads = Vec::with_capacity(count);
    for _ in 0..count {
        let (name, processed_on, data, length) = (next(), next(), next(), next());
        let bytes = reply::count(COMMAND, &length)?;
        let read = entry(COMMAND, name, processed_on, data)?;
        payloads.push(match read.data {
            Data::Missing if bytes > 0 => Payload { data: Data::TooLong { bytes }, ..read },
            _ => read,
        });
    }
    Ok((left, payloads))
}

fn payload(reply: Value) -> Result<Payload, QueueFailure> {
    match reply {
        Value::Array(fields) => match <[Value; FIELDS.len()]>::try_from(fields) {
            Ok([name, processed_on, data]) => entry("HMGET", name, processed_on, data),
            Err(fields) => Err(reply::unexpected("HMGET", &Value::Array(fields))),
        },
        // A listed id whose key is no hash has no payload: the entry is unreadable, which concerns it alone.
        reply if reply::is_wrong_type(&reply) => Ok(Payload::default()),
        other => Err(reply::unexpected("HMGET", &other)),
    }
}

fn entry(
    command: &'static str,
    name: Value,
    processed_on: Value,
    data: Value,
) -> Result<Payload, QueueFailure> {
    let processed_ms = text(command, processed_on)?.and_then(|text| text.parse().ok());
    let data = text(command, data)?.map_or(Data::Missing, Data::Text);
    Ok(Payload { name: text(command, name)?, processed_ms, data })
}

fn text(command: &'static str, field: Value) -> Result<Option<String>, QueueFailure> {
    match field {
        Value::Nil => Ok(None),
        Value::BulkString(bytes) => Ok(Some(reply::lossy(bytes))),
        other => Err(reply::unexpected(command, &other)),
    }
}

#[cfg(test)]
mod tests {
    use super::reply::testing::parsed;
    use super::*;

    #[test]
    fn a_missing_payload_and_an_error_are_told_apart() {
        let whole = payload(parsed("*3\r\n$4\r\nwork\r\n$2\r\n12\r\n$2\r\n{}\r\n"));
        assert_eq!(whole, Ok(Payload { processed_ms: Some(12), ..Payload::named("work", "{}") }));
        assert_eq!(payload(parsed("*3\r\n$-1\r\n$-1\r\n$-1\r\n")), Ok(Payload::default()));
        assert_eq!(payload(parsed("-WRONGTYPE kind\r\n")), Ok(Payload::default()));
        for odd in [
            "-BUSY script\r\n",
            "-NOPERM no\r\n",
            ":1\r\n",
            "*0\r\n",
            "$-1\r\n",
            "*3\r\n:1\r\n$-1\r\n$-1\r\n",
        ] {
            assert!(payload(parsed(odd)).is_err(), "{odd:?}");
        }
    }

    #[test]
    fn a_page_tells_of_each_entry_whether_it_has_a_payload_and_of_a_long_one_its_length() {
        let read = |wire: &str| page(parsed(wire), 2);
        let both = "*9\r\n$-1\r\n$4\r\nwork\r\n$-1\r\n$2\r\n{}\r\n:2\r\n$-1\r\n$-1\r\n$-1\r\n:0\r\n";
        assert_eq!(read(both), Ok((None, vec![Payload::named("work", "{}"), Payload::default()])));
        let long = "*5\r\n:7\r\n$4\r\nwork\r\n$-1\r\n$-1\r\n:9000000\r\n";
        let data = Data::TooLong { bytes: 9_000_000 };
        assert_eq!(read(long), Ok((Some(7), vec![Payload { data, ..Payload::named("work", "") }])));
    }

    #[test]
    fn a_page_of_another_form_is_no_page() {
        for odd in [
            "$-1\r\n",
            "-NOPERM no\r\n",
            "*0\r\n",
            "*1\r\n$-1\r\n",
            "*5\r\n$-1\r\n$-1\r\n$-1\r\n$-1\r\n$-1\r\n",
            "*5\r\n$1\r\n7\r\n$-1\r\n$-1\r\n$-1\r\n:0\r\n",
            "*4\r\n$-1\r\n$-1\r\n$-1\r\n:0\r\n",
        ] {
            assert!(page(parsed(odd), 2).is_err(), "{odd:?}");
        }
        let two = "*9\r\n$-1\r\n$-1\r\n$-1\r\n$-1\r\n:0\r\n$-1\r\n$-1\r\n$-1\r\n:0\r\n";
        assert!(page(parsed(two), 2).is_ok() && page(parsed(two), 1).is_err(), "more than was asked for");
    }

    #[test]
    fn a_part_of_a_payload_that_has_another_length_now_is_none() {
        let whole = part(parsed("*3\r\n:3\r\n$2\r\nab\r\n$3\r\nxyz\r\n")).expect("a part");
        assert_eq!(whole.map(|part| part.bytes), Some(b"xyz".to_vec()));
        assert!(part(parsed("*1\r\n:4\r\n")).is_ok_and(|part| part.is_none()));
        for odd in [
            "*0\r\n",
            "$-1\r\n",
            ":3\r\n",
            "*1\r\n$1\r\n3\r\n",
            "*3\r\n:3\r\n$2\r\nab\r\n$-1\r\n",
            "-NOPERM no\r\n",
        ] {
            assert!(part(parsed(odd)).is_err(), "{odd:?}");
        }
    }

    #[test]
    fn odd_bytes_do_not_hide_the_rest() {
        let data = Value::BulkString(b"{\"jobId\":\"7\",\"x\":\"\xff\"}".to_vec());
        let read = payload(Value::Array(vec![Value::Nil, Value::Nil, data]));
        let data = Data::Text("{\"jobId\":\"7\",\"x\":\"\u{fffd}\"}".into());
        assert_eq!(read, Ok(Payload { data, ..Payload::default() }));
    }
}
