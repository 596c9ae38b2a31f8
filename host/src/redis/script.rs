//! Lua scripts: sent by their hash, and whole only to a server that does not know them yet.

use redis::{Pipeline, Script as Hashed, Value};
use salvage_core::sighting::QueueFailure;

use super::connection::Connection;
use super::reply;

/// What a script's replies are called in a failure.
pub(super) const COMMAND: &str = "EVALSHA";

/// A script and its hash.
#[derive(Debug)]
pub(super) struct Script {
    source: &'static str,
    hash: String,
}

/// One call of a script.
#[derive(Debug, Default)]
pub(super) struct Call {
    keys: Vec<String>,
    args: Vec<String>,
}

impl Call {
    pub(super) fn key(&mut self, key: String) -> &mut Self {
        self.keys.push(key);
        self
    }

    pub(super) fn arg(&mut self, arg: impl ToString) -> &mut Self {
        self.args.push(arg.to_string());
        self
    }
}

impl Script {
    pub(super) fn new(source: &'static str) -> Self {
        Self { source, hash: Hashed::new(source).get_hash().to_owned() }
    }

    /// Runs the script at most once.
    ///
    /// # Errors
    /// If it did not succeed. An error reply proves that it did not run to its end.
    pub(super) async fn tell(&self, connection: &Connection, call: &Call) -> Result<Value, QueueFailure> {
        let reply = one(connection.tell(&self.command("EVALSHA", &self.hash, call)).await?)?;
        if !is_unknown(&reply) {
            return succeeded(reply);
        }
        // The server has only just been asked and did nothing, so the whole script is no repetition.
        succeeded(one(connection.tell(&self.command("EVAL", self.source, call)).await?)?)
    }

    /// Runs a script that may run twice.
    ///
    /// # Errors
    /// As [`Self::tell`].
    pub(super) async fn ask(&self, connection: &Connection, call: &Call) -> Result<Value, QueueFailure> {
        let reply = one(connection.ask(&self.command("EVALSHA", &self.hash, call)).await?)?;
        if !is_unknown(&reply) {
            return succeeded(reply);
        }
        succeeded(one(connection.ask(&self.command("EVAL", self.source, call)).await?)?)
    }

    fn command(&self, name: &str, script: &str, call: &Call) -> Pipeline {
        let mut command = redis::pipe();
        command.cmd(name).arg(script).arg(call.keys.len()).arg(&call.keys).arg(&call.args);
        command
    }
}

fn one(replies: Vec<Value>) -> Result<Value, QueueFailure> {
    replies.into_iter().next().ok_or_else(|| reply::unexpected(COMMAND, &Value::Nil))
}

fn is_unknown(reply: &Value) -> bool {
    matches!(reply, Value::ServerError(error) if error.code() == "NOSCRIPT")
}

fn succeeded(reply: Value) -> Result<Value, QueueFailure> {
    match reply {
        Value::ServerError(error) => Err(reply::refusal(&error)),
        reply => Ok(reply),
    }
}

/// A script's answer: a word, the number of the key it speaks of, and a text.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Answer {
    word: String,
    key: Option<usize>,
    text: Option<String>,
}

impl Answer {
    pub(super) fn parse(reply: Value) -> Result<Self, QueueFailure> {
        let Value::Array(parts) = reply else { return Err(reply::unexpected(COMMAND, &reply)) };
        let mut parts = parts.into_iter();
        let word = reply::text(COMMAND, parts.next().unwrap_or_default())?;
        let word = word.ok_or_else(|| odd("an answer without a word"))?;
        let key = match parts.next() {
            None => None,
            Some(Value::Int(number)) => usize::try_from(number).ok(),
            Some(other) => return Err(reply::unexpected(COMMAND, &other)),
        };
        let text = reply::text(COMMAND, parts.next().unwrap_or_default())?;
        Ok(Self { word, key, text })
    }

    pub(super) fn word(&self) -> &str {
        &self.word
    }

    /// What the answer speaks of, out of those whose keys the script was given, in their order.
    pub(super) fn of<'a, T>(&self, all: &'a [T]) -> Result<&'a T, QueueFailure> {
        let position = self.key.and_then(|number| number.checked_sub(1));
        position.and_then(|position| all.get(position)).ok_or_else(|| odd("the number of no key"))
    }

    pub(super) fn text(&self) -> Result<String, QueueFailure> {
        self.text.clone().ok_or_else(|| odd("an answer without a text"))
    }

    pub(super) fn number(&self) -> Result<u64, QueueFailure> {
        self.text()?.parse().map_err(|_| odd("a text that is no number"))
    }

    /// The failure for a word that the script does not say.
    pub(super) fn unexpected(&self) -> QueueFailure {
        odd(&format!("the word {:?}", self.word))
    }
}

fn odd(found: &str) -> QueueFailure {
    QueueFailure::UnexpectedReply { command: COMMAND, found: found.to_owned() }
}
