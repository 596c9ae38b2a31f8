//! Payloads of entries, a page at a time.

use redis::Value;
use salvage_core::sighting::QueueFailure;

use super::connection::Connection;
use super::keys::Keys;
use super::reply;

/// Reads `data` of each entry in one pipeline. `None` where there is no hash or no `data` in it.
pub(super) async fn read(
    connection: &Connection,
    keys: &Keys,
    entry_ids: &[String],
) -> Result<Vec<Option<String>>, QueueFailure> {
    let mut commands = redis::pipe();
    for entry_id in entry_ids {
        commands.cmd("HGET").arg(keys.entry(entry_id)).arg("data");
    }
    connection.ask(&commands).await?.into_iter().map(payload).collect()
}

fn payload(reply: Value) -> Result<Option<String>, QueueFailure> {
    match reply {
        Value::Nil => Ok(None),
        // What is not UTF-8 is read as BullMQ reads it: each odd byte replaced. The ids of rows survive that.
        Value::BulkString(bytes) => {
            let text = String::from_utf8(bytes);
            Ok(Some(text.unwrap_or_else(|odd| String::from_utf8_lossy(odd.as_bytes()).into_owned())))
        }
        // A listed id whose key is no hash has no payload: the entry is unreadable, which concerns it alone.
        reply if reply::is_wrong_type(&reply) => Ok(None),
        other => Err(reply::unexpected("HGET", &other)),
    }
}

#[cfg(test)]
mod tests {
    use super::reply::testing::parsed;
    use super::*;

    #[test]
    fn a_missing_payload_and_an_error_are_told_apart() {
        assert_eq!(payload(parsed("$2\r\n{}\r\n")), Ok(Some("{}".into())));
        assert_eq!(payload(parsed("$-1\r\n")), Ok(None));
        assert_eq!(payload(parsed("-WRONGTYPE kind\r\n")), Ok(None));
        for odd in ["-BUSY script\r\n", "-NOPERM no\r\n", ":1\r\n", "*0\r\n", "*-1\r\n"] {
            let is_nil = parsed(odd) == Value::Nil;
            assert_eq!(payload(parsed(odd)).is_err(), !is_nil, "{odd:?}");
        }
    }

    #[test]
    fn odd_bytes_do_not_hide_the_rest() {
        let payload = payload(Value::BulkString(b"{\"jobId\":\"7\",\"x\":\"\xff\"}".to_vec()));
        assert_eq!(payload, Ok(Some("{\"jobId\":\"7\",\"x\":\"\u{fffd}\"}".into())));
    }
}
