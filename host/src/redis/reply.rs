//! Raw replies, taken apart by hand: what is not of the expected type is a failure, and nil is never an empty list.
//!
//! The client library would turn nil into an empty collection and has no names for many of Redis's error codes (BUSY,
//! OOM, WRONGTYPE …), so its conversions are not used anywhere.

use redis::{ServerError, Value};
use salvage_core::sighting::QueueFailure;

/// An error reply as core names it, by its code.
pub(super) fn refusal(error: &ServerError) -> QueueFailure {
    match error.code() {
        "LOADING" => QueueFailure::Loading,
        code @ ("NOAUTH" | "WRONGPASS") => QueueFailure::Credentials { code: code.to_owned() },
        code => QueueFailure::Error {
            code: code.to_owned(),
            detail: error.details().unwrap_or("without further words").to_owned(),
        },
    }
}

/// Whether the key is of another type than the command is for.
pub(super) fn is_wrong_type(value: &Value) -> bool {
    matches!(value, Value::ServerError(error) if error.code() == "WRONGTYPE")
}

/// What a reply is, without its content: it may be a payload.
pub(super) fn describe(value: &Value) -> String {
    match value {
        Value::Nil => "nil".to_owned(),
        Value::Int(_) => "an integer".to_owned(),
        Value::BulkString(bytes) => format!("a string of {} bytes", bytes.len()),
        Value::Array(items) => format!("an array of {}", items.len()),
        Value::SimpleString(_) | Value::Okay => "a status".to_owned(),
        Value::ServerError(error) => format!("error {}", error.code()),
        _ => "a reply of a newer protocol".to_owned(),
    }
}

/// The failure for a reply that is not what `command` returns.
pub(super) fn unexpected(command: &'static str, value: &Value) -> QueueFailure {
    match value {
        Value::ServerError(error) => refusal(error),
        other => QueueFailure::UnexpectedReply { command, found: describe(other) },
    }
}

/// A string, or nil.
pub(super) fn text(command: &'static str, value: Value) -> Result<Option<String>, QueueFailure> {
    match value {
        Value::Nil => Ok(None),
        Value::BulkString(bytes) => match String::from_utf8(bytes) {
            Ok(text) => Ok(Some(text)),
            Err(_) => {
                Err(QueueFailure::UnexpectedReply { command, found: "a string that is not UTF-8".to_owned() })
            }
        },
        other => Err(unexpected(command, &other)),
    }
}

/// 0 or 1.
pub(super) fn flag(command: &'static str, value: &Value) -> Result<bool, QueueFailure> {
    match value {
        Value::Int(0) => Ok(false),
        Value::Int(1) => Ok(true),
        other => Err(unexpected(command, other)),
    }
}

/// Whether there is a position or score: an integer or a string, or nil if not.
pub(super) fn is_found(command: &'static str, value: &Value) -> Result<bool, QueueFailure> {
    match value {
        Value::Nil => Ok(false),
        Value::Int(_) | Value::BulkString(_) => Ok(true),
        other => Err(unexpected(command, other)),
    }
}

/// The replies to the commands between MULTI and EXEC, from all the replies with theirs.
///
/// # Errors
/// If Redis refused any of them while they were queued, or EXEC itself. An error of a command *inside* EXEC is left in
/// its place: it concerns that command alone.
pub(super) fn executed(mut replies: Vec<Value>) -> Result<Vec<Value>, QueueFailure> {
    let exec = replies.pop().unwrap_or_default();
    // The reason is told where a command is queued; EXEC only says that there was one.
    if let Some(error) = replies.iter().find_map(as_error) {
        return Err(refusal(error));
    }
    let (multi, queued) = replies.split_first().unwrap_or((&Value::Nil, &[]));
    let is_queued = |reply: &Value| matches!(reply, Value::SimpleString(status) if status == "QUEUED");
    if !matches!(multi, Value::Okay) || !queued.iter().all(is_queued) {
        return Err(QueueFailure::UnexpectedReply {
            command: "MULTI",
            found: "a command that was not queued".into(),
        });
    }
    match exec {
        Value::Array(items) if items.len() == queued.len() => Ok(items),
        other => Err(unexpected("EXEC", &other)),
    }
}

fn as_error(value: &Value) -> Option<&ServerError> {
    match value {
        Value::ServerError(error) => Some(error),
        _ => None,
    }
}

#[cfg(test)]
pub(super) mod testing {
    use redis::Value;

    /// A reply as it comes over the wire.
    pub(in crate::redis) fn parsed(wire: &str) -> Value {
        redis::parse_redis_value(wire.as_bytes()).expect("a reply of the protocol")
    }
}

#[cfg(test)]
mod tests {
    use super::testing::parsed;
    use super::*;

    fn failure(wire: &str) -> QueueFailure {
        match parsed(wire) {
            Value::ServerError(error) => refusal(&error),
            other => panic!("{other:?} is no error"),
        }
    }

    #[test]
    fn error_codes_are_told_apart_by_their_text() {
        assert_eq!(failure("-LOADING Redis is loading the dataset in memory\r\n"), QueueFailure::Loading);
        for code in ["NOAUTH", "WRONGPASS"] {
            let expected = QueueFailure::Credentials { code: code.into() };
            assert_eq!(failure(&format!("-{code} no entry\r\n")), expected);
        }
        for code in
            ["BUSY", "OOM", "MISCONF", "NOREPLICAS", "READONLY", "MASTERDOWN", "NOPERM", "MOVED", "XYZZY"]
        {
            let expected = QueueFailure::Error { code: code.into(), detail: "because of this".into() };
            assert_eq!(failure(&format!("-{code} because of this\r\n")), expected);
        }
    }

    #[test]
    fn a_refused_command_fails_the_whole_transaction_with_its_own_reason() {
        let replies =
            ["+OK\r\n", "+QUEUED\r\n", "-NOPERM no key\r\n", "-EXECABORT Transaction discarded\r\n"];
        let expected = QueueFailure::Error { code: "NOPERM".into(), detail: "no key".into() };
        assert_eq!(executed(replies.map(parsed).into()), Err(expected));
    }

    #[test]
    fn anything_but_as_many_replies_as_commands_is_a_failure() {
        let exec = |reply: &str| executed(["+OK\r\n", "+QUEUED\r\n", reply].map(parsed).into());
        assert_eq!(exec("*1\r\n:1\r\n"), Ok(vec![Value::Int(1)]));
        for odd in ["*-1\r\n", "*0\r\n", "*2\r\n:1\r\n:1\r\n", ":1\r\n", "+OK\r\n"] {
            assert!(
                matches!(exec(odd), Err(QueueFailure::UnexpectedReply { command: "EXEC", .. })),
                "{odd:?}"
            );
        }
        assert!(executed(vec![]).is_err());
        let not_queued = executed(["+OK\r\n", ":1\r\n", "*1\r\n:1\r\n"].map(parsed).into());
        assert!(matches!(not_queued, Err(QueueFailure::UnexpectedReply { command: "MULTI", .. })));
    }

    #[test]
    fn an_error_inside_exec_stays_in_its_place() {
        let replies = ["+OK\r\n", "+QUEUED\r\n", "+QUEUED\r\n", "*2\r\n-WRONGTYPE kind\r\n:1\r\n"];
        let items = executed(replies.map(parsed).into()).expect("EXEC itself succeeded");
        assert!(is_wrong_type(&items[0]) && items[1] == Value::Int(1));
    }

    #[test]
    fn a_description_never_tells_the_content() {
        for wire in ["$6\r\nsecret\r\n", "*1\r\n$6\r\nsecret\r\n", "+secret\r\n", "-ERR secret\r\n"] {
            assert!(!describe(&parsed(wire)).contains("secret"), "{wire:?}");
        }
    }
}
