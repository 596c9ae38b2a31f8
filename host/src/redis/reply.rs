//! Raw replies, taken apart by hand: what is not of the expected type is a failure, and nil is never an empty list.
//!
//! The client library would turn nil into an empty collection and has no names for many of Redis's error codes (BUSY,
//! OOM, WRONGTYPE …), so its conversions are not used anywhere.

use redis::{ServerError, Value};
use salvage_core::sighting::QueueFailure;

/// How Redis 7.0 begins the refusal of a command inside a script; there the code is `ERR`.
const FORBIDDEN_IN_SCRIPT: &str = "The user executing the script can't ";

/// How Redis 7.0 begins the refusal of a key inside a script that is not served here (any more); the code is `ERR`.
const ASTRAY_IN_SCRIPT: &str = "Script attempted to ";

/// What stands before the cause when EXEC itself is refused.
const CAUSE_OF_ABORT: &str = "because of: ";

/// An error reply as core names it, by its code.
pub(super) fn refusal(error: &ServerError) -> QueueFailure {
    named(error.code(), error.details().unwrap_or("without further words"))
}

fn named(code: &str, detail: &str) -> QueueFailure {
    // EXEC itself was refused: the cause follows, with a code of its own.
    if let Some((_, cause)) = detail.split_once(CAUSE_OF_ABORT).filter(|_| code == "EXECABORT") {
        let (code, detail) = cause.split_once(' ').unwrap_or((cause, "without further words"));
        return named(code, detail);
    }
    let (is_code, code, detail) = (code, code.to_owned(), detail.to_owned());
    match is_code {
        "LOADING" => QueueFailure::Loading,
        "BUSY" => QueueFailure::Busy,
        "READONLY" => QueueFailure::ReadOnly,
        "MASTERDOWN" => QueueFailure::MasterDown,
        "MOVED" | "ASK" | "TRYAGAIN" | "CLUSTERDOWN" | "CROSSSLOT" => QueueFailure::Cluster { code },
        "NOAUTH" | "WRONGPASS" => QueueFailure::Credentials { code },
        "NOPERM" => QueueFailure::Forbidden { detail },
        "WRONGTYPE" => QueueFailure::WrongType { detail },
        "OOM" | "MISCONF" | "NOREPLICAS" => QueueFailure::WritesRefused { code },
        "ERR" if detail.starts_with(FORBIDDEN_IN_SCRIPT) => QueueFailure::Forbidden { detail },
        "ERR" if detail.starts_with(ASTRAY_IN_SCRIPT) => {
            QueueFailure::Cluster { code: astray(&detail).to_owned() }
        }
        _ => QueueFailure::Error { code, detail },
    }
}

/// The code that the refusal has outside of a script.
fn astray(detail: &str) -> &'static str {
    if detail.contains("cluster is down") {
        "CLUSTERDOWN"
    } else if detail.contains("do not hash to the same slot") {
        "CROSSSLOT"
    } else {
        "ASK"
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

/// A text of bytes. What is not UTF-8 is read as BullMQ reads it: each odd byte replaced. The ids of rows survive that.
pub(super) fn lossy(bytes: Vec<u8>) -> String {
    String::from_utf8(bytes).unwrap_or_else(|odd| String::from_utf8_lossy(odd.as_bytes()).into_owned())
}

/// 0 or 1.
pub(super) fn flag(command: &'static str, value: &Value) -> Result<bool, QueueFailure> {
    match value {
        Value::Int(0) => Ok(false),
        Value::Int(1) => Ok(true),
        other => Err(unexpected(command, other)),
    }
}

/// How many there are.
pub(super) fn count(command: &'static str, value: &Value) -> Result<u64, QueueFailure> {
    match value {
        Value::Int(count) if *count >= 0 => Ok(count.unsigned_abs()),
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
        assert_eq!(failure("-BUSY Redis is busy running a script\r\n"), QueueFailure::Busy);
        assert_eq!(failure("-READONLY You can't write\r\n"), QueueFailure::ReadOnly);
        assert_eq!(failure("-MASTERDOWN Link with MASTER is down\r\n"), QueueFailure::MasterDown);
        for code in ["NOAUTH", "WRONGPASS"] {
            let expected = QueueFailure::Credentials { code: code.into() };
            assert_eq!(failure(&format!("-{code} no entry\r\n")), expected);
        }
        for code in ["MOVED", "ASK", "TRYAGAIN", "CLUSTERDOWN", "CROSSSLOT"] {
            let expected = QueueFailure::Cluster { code: code.into() };
            assert_eq!(failure(&format!("-{code} 1 host:1\r\n")), expected);
        }
        for code in ["OOM", "MISCONF", "NOREPLICAS"] {
            let expected = QueueFailure::WritesRefused { code: code.into() };
            assert_eq!(failure(&format!("-{code} no\r\n")), expected);
        }
        let detail = || "because of this".to_owned();
        let told = |code: &str| failure(&format!("-{code} because of this\r\n"));
        assert_eq!(told("NOPERM"), QueueFailure::Forbidden { detail: detail() });
        assert_eq!(told("WRONGTYPE"), QueueFailure::WrongType { detail: detail() });
        for code in ["ERR", "XYZZY"] {
            assert_eq!(told(code), QueueFailure::Error { code: code.into(), detail: detail() });
        }
    }

    #[test]
    fn what_a_script_was_refused_is_told_by_its_words() {
        let forbidden =
            failure("-ERR The user executing the script can't run this command or subcommand\r\n");
        assert!(matches!(forbidden, QueueFailure::Forbidden { .. }), "{forbidden:?}");
        for (words, code) in [
            ("Script attempted to access a non local key in a cluster node", "ASK"),
            ("Script attempted to access keys that do not hash to the same slot", "CROSSSLOT"),
            ("Script attempted to execute a command while the cluster is down", "CLUSTERDOWN"),
        ] {
            let expected = QueueFailure::Cluster { code: code.into() };
            assert_eq!(failure(&format!("-ERR {words} script: 1234, on @user_script:1.\r\n")), expected);
        }
    }

    #[test]
    fn a_refused_exec_is_told_by_its_cause() {
        let refused = failure("-EXECABORT Transaction discarded because of: NOPERM no exec\r\n");
        assert_eq!(refused, QueueFailure::Forbidden { detail: "no exec".into() });
    }

    #[test]
    fn a_refused_command_fails_the_whole_transaction_with_its_own_reason() {
        let replies =
            ["+OK\r\n", "+QUEUED\r\n", "-NOPERM no key\r\n", "-EXECABORT Transaction discarded\r\n"];
        let expected = QueueFailure::Forbidden { detail: "no key".into() };
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
