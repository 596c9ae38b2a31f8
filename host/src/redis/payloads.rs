//! Payloads of entries, a page at a time.

use redis::Value;
use salvage_core::payload::{Data, Payload};
use salvage_core::sighting::QueueFailure;

use super::connection::Connection;
use super::keys::Keys;
use super::reply;

/// What is read of an entry's hash, in the order of [`payload`].
const FIELDS: [&str; 3] = ["name", "processedOn", "data"];

/// Reads the payload of each entry in one pipeline.
pub(super) async fn read(
    connection: &Connection,
    keys: &Keys,
    entry_ids: &[String],
) -> Result<Vec<Payload>, QueueFailure> {
    let mut commands = redis::pipe();
    for entry_id in entry_ids {
        commands.cmd("HMGET").arg(keys.entry(entry_id)).arg(&FIELDS);
    }
    connection.ask(&commands).await?.into_iter().map(payload).collect()
}

fn payload(reply: Value) -> Result<Payload, QueueFailure> {
    match reply {
        Value::Array(fields) if fields.len() == FIELDS.len() => {
            let mut fields = fields.into_iter().map(text);
            let mut next = || fields.next().unwrap_or(Ok(None));
            let (name, processed_on, data) = (next()?, next()?, next()?);
            Ok(Payload {
                name,
                processed_ms: processed_on.and_then(|text| text.parse().ok()),
                data: data.map_or(Data::Missing, Data::Text),
            })
        }
        // A listed id whose key is no hash has no payload: the entry is unreadable, which concerns it alone.
        reply if reply::is_wrong_type(&reply) => Ok(Payload::default()),
        other => Err(reply::unexpected("HMGET", &other)),
    }
}

/// A field's text. What is not UTF-8 is read as BullMQ reads it: each odd byte replaced. The ids of rows survive that.
fn text(field: Value) -> Result<Option<String>, QueueFailure> {
    match field {
        Value::Nil => Ok(None),
        Value::BulkString(bytes) => {
            let text = String::from_utf8(bytes);
            Ok(Some(text.unwrap_or_else(|odd| String::from_utf8_lossy(odd.as_bytes()).into_owned())))
        }
        other => Err(reply::unexpected("HMGET", &other)),
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
    fn odd_bytes_do_not_hide_the_rest() {
        let data = Value::BulkString(b"{\"jobId\":\"7\",\"x\":\"\xff\"}".to_vec());
        let read = payload(Value::Array(vec![Value::Nil, Value::Nil, data]));
        let data = Data::Text("{\"jobId\":\"7\",\"x\":\"\u{fffd}\"}".into());
        assert_eq!(read, Ok(Payload { data, ..Payload::default() }));
    }
}
