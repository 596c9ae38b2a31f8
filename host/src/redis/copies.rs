//! Copies of long states: made within the snapshot's MULTI, read a page at a time, removed afterwards.
//!
//! A copy lies at `<prefix>:<queue>:salvage:copy:<token>:<state>`, in the slot of its queue, where no entry's id meets it.
//! It expires by itself, also if the host dies. It is always a list, whatever it was made from: a list of any length is
//! freed in no time, a long sorted set would hold Redis up for half a second.

use std::collections::BTreeSet;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use redis::{Pipeline, Value};
use salvage_core::sighting::QueueFailure;
use salvage_core::snapshot::{Flaw, IdsCopy, IdsPage, State, is_marker};

use super::connection::Connection;
use super::keys::Keys;
use super::reply;

/// How long a copy outlives the last page that was read of any. Longer than it takes to read the payloads of a page of
/// ids (20,000), even large ones over a slow line; short enough for what a host leaves behind that dies.
const TIME_TO_LIVE: Duration = Duration::from_secs(5 * 60);

/// The keys of all copies that may be there.
#[derive(Debug, Default)]
pub(super) struct Copies(Mutex<BTreeSet<String>>);

impl Copies {
    /// Adds the commands that copy a state to a key that is not there yet. [`is_made`] understands their replies.
    pub(super) fn make(&self, commands: &mut Pipeline, keys: &Keys, state: State, token: &str) {
        let (from, to) = (keys.state(state), keys.copy(state, token));
        if state.is_list() {
            commands.cmd("COPY").arg(from).arg(&to);
        } else {
            commands.cmd("SORT").arg(from).arg("BY").arg("nosort").arg("STORE").arg(&to);
        }
        expire(commands, &to);
        self.keys().insert(to);
    }

    /// Reads a part of a copy. All copies live on for their whole time again: while a long one is read, others wait for
    /// their turn.
    pub(super) async fn page(
        &self,
        connection: &Connection,
        copy: &IdsCopy,
        from: usize,
        count: usize,
    ) -> Result<IdsPage<'static>, QueueFailure> {
        let count = count.min(copy.length.saturating_sub(from));
        if count == 0 {
            return Ok(IdsPage::default());
        }
        let mut commands = redis::pipe();
        commands.cmd("LRANGE").arg(&copy.key).arg(from).arg(from + count - 1);
        self.keys().iter().for_each(|key| expire(&mut commands, key));
        let reply = connection.ask(&commands).await?.into_iter().next().unwrap_or_default();
        page(reply, copy, count)
    }

    /// Removes whatever may be there.
    pub(super) async fn remove_all(&self, connection: &Connection) {
        let keys = std::mem::take(&mut *self.keys());
        if keys.is_empty() {
            return;
        }
        let mut commands = redis::pipe();
        for key in keys {
            commands.cmd("UNLINK").arg(key);
        }
        let removed = connection.ask(&commands).await;
        if let Err(failure) = removed.and_then(|replies| replies.iter().try_for_each(is_removed)) {
            let seconds = TIME_TO_LIVE.as_secs();
            tracing::warn!(%failure, "copies of ids could not be removed; they expire within {seconds} s");
        }
    }

    /// Never held across a wait.
    fn keys(&self) -> MutexGuard<'_, BTreeSet<String>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Whether a state of that length was copied, by the reply to COPY or SORT.
pub(super) fn is_made(state: State, length: usize, copied: &Value, expires: &Value) -> bool {
    let expected = if state.is_list() { 1 } else { i64::try_from(length).unwrap_or(i64::MAX) };
    *copied == Value::Int(expected) && *expires == Value::Int(1)
}

/// Whether Redis answered, and the answer was no: it may not write now, or we may not, or it does not know the command.
/// Reading without a copy asks less of it. Without any answer, asking for something else would not help.
pub(super) const fn is_refusal(failure: &QueueFailure) -> bool {
    !matches!(
        failure,
        QueueFailure::Refused { .. }
            | QueueFailure::Tls { .. }
            | QueueFailure::NoMaster { .. }
            | QueueFailure::Timeout { .. }
            | QueueFailure::Dropped { .. }
    )
}

fn page(reply: Value, copy: &IdsCopy, count: usize) -> Result<IdsPage<'static>, QueueFailure> {
    let lost = || IdsPage { ids: vec![].into(), flaw: Some(Flaw::CopyLost { key: copy.key.clone() }) };
    let items = match reply {
        Value::Array(items) if items.len() == count => items,
        // Too few: never a short answer, always a flaw.
        Value::Array(_) => return Ok(lost()),
        reply if reply::is_wrong_type(&reply) => return Ok(lost()),
        other => return Err(reply::unexpected("LRANGE", &other)),
    };
    let mut ids = Vec::with_capacity(items.len());
    let mut flaw = None;
    for item in items {
        let Value::BulkString(bytes) = item else { return Err(reply::unexpected("LRANGE", &item)) };
        match String::from_utf8(bytes) {
            Ok(id) if is_marker(&id) => {}
            Ok(id) => ids.push(id),
            Err(_) => flaw = Some(Flaw::OpaqueId),
        }
    }
    Ok(IdsPage { ids: ids.into(), flaw })
}

fn is_removed(reply: &Value) -> Result<(), QueueFailure> {
    reply::flag("UNLINK", reply).map(drop)
}

fn expire(commands: &mut Pipeline, key: &str) {
    let ttl_ms = u64::try_from(TIME_TO_LIVE.as_millis()).unwrap_or(u64::MAX);
    commands.cmd("PEXPIRE").arg(key).arg(ttl_ms);
}

#[cfg(test)]
mod tests {
    use super::reply::testing::parsed;
    use super::*;

    fn read(wire: &str) -> Result<(Vec<String>, Option<Flaw>), QueueFailure> {
        let copy = IdsCopy { key: "copy".into(), length: 9 };
        page(parsed(wire), &copy, 2).map(|page| (page.ids.into_owned(), page.flaw))
    }

    #[test]
    fn a_page_holds_exactly_what_was_asked_for_or_the_copy_is_lost() {
        assert_eq!(read("*2\r\n$1\r\na\r\n$1\r\nb\r\n"), Ok((vec!["a".into(), "b".into()], None)));
        assert_eq!(read("*2\r\n$1\r\na\r\n$3\r\n0:7\r\n"), Ok((vec!["a".into()], None)));
        let lost = Ok((vec![], Some(Flaw::CopyLost { key: "copy".into() })));
        for short in ["*0\r\n", "*1\r\n$1\r\na\r\n", "-WRONGTYPE kind\r\n"] {
            assert_eq!(read(short), lost, "{short:?}");
        }
        for odd in ["$-1\r\n", ":1\r\n", "-NOPERM no\r\n", "*2\r\n:1\r\n:2\r\n"] {
            assert!(read(odd).is_err(), "{odd:?}");
        }
    }

    #[test]
    fn an_id_that_is_not_utf_8_is_a_flaw_and_the_others_count() {
        let copy = IdsCopy { key: "copy".into(), length: 2 };
        let items = vec![Value::BulkString(vec![0xff]), Value::BulkString(b"x".to_vec())];
        let page = page(Value::Array(items), &copy, 2).expect("a page");
        assert_eq!((page.ids.into_owned(), page.flaw), (vec!["x".to_owned()], Some(Flaw::OpaqueId)));
    }

    #[test]
    fn a_copy_counts_only_if_it_is_whole_and_expires() {
        let made = |state, copied: &str, expires: &str| is_made(state, 5, &parsed(copied), &parsed(expires));
        assert!(made(State::Waiting, ":1\r\n", ":1\r\n"));
        assert!(made(State::Delayed, ":5\r\n", ":1\r\n"));
        for (copied, expires) in [(":0\r\n", ":1\r\n"), ("-OOM no\r\n", ":0\r\n"), (":1\r\n", ":0\r\n")] {
            assert!(!made(State::Waiting, copied, expires));
        }
        assert!(!made(State::Delayed, ":4\r\n", ":1\r\n"));
    }
}
