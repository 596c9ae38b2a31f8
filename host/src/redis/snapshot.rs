//! The snapshot: every queue's ids in all six states, and what proves that they are all, in one MULTI.
//!
//! One MULTI because a job moves while it is looked for: reading state by state on a busy queue judged up to 29 % of the
//! present jobs absent, one MULTI none. The price is one stall of Redis, about 40 ms for 100,000 ids.
//!
//! A connection that breaks half-way leaves nothing: what had arrived is dropped. A key of a wrong type spoils its own
//! queue only; anything wrong with TIME or INFO spoils all.

use std::collections::BTreeSet;
use std::vec;

use redis::{Pipeline, Value};
use salvage_core::sighting::QueueFailure;
use salvage_core::snapshot::{Flaw, QueueReading, Server, Snapshot, State, is_marker};

use super::connection::Connection;
use super::keys::{HOST, Keys, NONCE};
use super::{info, reply};

/// Ids of retained finished entries read per queue and set: enough to see whose jobs a queue holds.
const RETAINED_MAX: usize = 25;

/// Reads one reading per queue.
pub(super) async fn read(
    connection: &Connection,
    prefix: &str,
    queues: &BTreeSet<String>,
) -> Result<Snapshot, QueueFailure> {
    let mut commands = redis::pipe();
    commands.cmd("TIME").cmd("INFO");
    for queue in queues {
        ask(&mut commands, &Keys::new(prefix, queue));
    }
    let mut replies = connection.ask_at_one_instant(&commands).await?.into_iter();
    let at_ms = time(&replies.next().unwrap_or_default())?;
    let server = server(replies.next().unwrap_or_default())?;
    let readings = queues.iter().map(|queue| {
        let reader = Reader::new(&mut replies, Keys::new(prefix, queue));
        (queue.clone(), reader.read(prefix))
    });
    let snapshot = Snapshot { at_ms, server, queues: readings.collect() };
    if snapshot.server_fault().is_some() {
        // The master may be behind the same name by now.
        connection.leave_node();
    }
    Ok(snapshot)
}

/// The commands of one queue, in the order in which [`Reader::read`] takes the replies.
fn ask(commands: &mut Pipeline, keys: &Keys) {
    for state in State::ALL {
        commands.cmd(if state.is_list() { "LRANGE" } else { "ZRANGE" }).arg(keys.state(state)).arg(0).arg(-1);
    }
    commands.cmd("GET").arg(keys.own("id"));
    commands.cmd("EXISTS").arg(keys.own("meta"));
    commands.cmd("HEXISTS").arg(keys.own("meta")).arg("paused");
    commands.cmd("EXISTS").arg(keys.own("groups"));
    commands.cmd("HGET").arg(keys.host()).arg(NONCE);
    for finished in ["completed", "failed"] {
        commands.cmd("ZREVRANGE").arg(keys.own(finished)).arg(0).arg(RETAINED_MAX - 1).arg("WITHSCORES");
    }
}

/// Takes the replies of one queue.
struct Reader<'a> {
    replies: &'a mut vec::IntoIter<Value>,
    keys: Keys,
    flaws: Vec<Flaw>,
}

impl<'a> Reader<'a> {
    fn new(replies: &'a mut vec::IntoIter<Value>, keys: Keys) -> Self {
        Self { replies, keys, flaws: vec![] }
    }

    fn read(mut self, prefix: &str) -> QueueReading {
        let mut reading = QueueReading::default();
        for state in State::ALL {
            let kind = if state.is_list() { "list" } else { "sorted set" };
            reading.ids.insert(state, self.ids(state.key(), kind));
        }
        let id = self.text("id", "string");
        reading.id_counter = id.as_deref().and_then(|id| self.counter(id));
        reading.has_meta = self.flag("meta", "hash");
        reading.is_paused = self.flag("meta", "hash");
        if self.flag("groups", "sorted set") {
            self.flaws.push(Flaw::ProGroups);
        }
        reading.nonce = self.text(HOST, "hash");
        reading.retained = self.retained();
        // A key of a wrong type, or one that could not be read, is a trace of something.
        if id.is_none() && !reading.has_meta && self.flaws.is_empty() {
            self.flaws.push(Flaw::NoTrace { prefix: prefix.to_owned() });
        }
        reading.flaws = self.flaws;
        reading
    }

    /// The next reply, unless it is an error.
    fn next(&mut self, key: &str, expected: &'static str) -> Option<Value> {
        let value = self.replies.next().unwrap_or_default();
        if reply::is_wrong_type(&value) {
            self.flaw(Flaw::WrongType { key: self.keys.own(key), expected });
            return None;
        }
        if matches!(value, Value::ServerError(_)) {
            self.odd(key, &value);
            return None;
        }
        Some(value)
    }

    /// The ids of a list or set, markers left out.
    fn ids(&mut self, key: &str, kind: &'static str) -> Vec<String> {
        let Some(value) = self.next(key, kind) else { return vec![] };
        let Value::Array(items) = value else {
            self.odd(key, &value);
            return vec![];
        };
        // Each id keeps the memory in which it arrived: a million of them have 51 MB.
        items.into_iter().filter_map(|item| self.id(key, item)).filter(|id| !is_marker(id)).collect()
    }

    fn id(&mut self, key: &str, item: Value) -> Option<String> {
        let Value::BulkString(bytes) = item else {
            self.odd(key, &item);
            return None;
        };
        let id = String::from_utf8(bytes);
        if id.is_err() {
            self.flaw(Flaw::OpaqueId);
        }
        id.ok()
    }

    fn text(&mut self, key: &str, kind: &'static str) -> Option<String> {
        let value = self.next(key, kind)?;
        let described = reply::describe(&value);
        match reply::text("GET", value) {
            Ok(text) => text,
            Err(_) => {
                self.flaw(Flaw::BadReply { key: self.keys.own(key), found: described });
                None
            }
        }
    }

    fn counter(&mut self, id: &str) -> Option<u64> {
        let number = id.parse().ok();
        if number.is_none() {
            self.flaw(Flaw::BadReply {
                key: self.keys.own("id"),
                found: "a string that is no number".to_owned(),
            });
        }
        number
    }

    fn flag(&mut self, key: &str, kind: &'static str) -> bool {
        let Some(value) = self.next(key, kind) else { return false };
        reply::flag("EXISTS", &value).unwrap_or_else(|_| {
            self.odd(key, &value);
            false
        })
    }

    /// The last finished of both sets, newest first.
    fn retained(&mut self) -> Vec<String> {
        let mut finished = self.finished("completed");
        finished.extend(self.finished("failed"));
        finished.sort_by(|(a, _), (b, _)| b.total_cmp(a));
        finished.into_iter().take(RETAINED_MAX).map(|(_, id)| id).collect()
    }

    fn finished(&mut self, key: &str) -> Vec<(f64, String)> {
        let Some(value) = self.next(key, "sorted set") else { return vec![] };
        let Value::Array(items) = value else {
            self.odd(key, &value);
            return vec![];
        };
        let mut finished = vec![];
        let mut items = items.into_iter();
        // A sample: what is odd in it is left out, for nothing is called absent on its word.
        while let (Some(id), Some(score)) = (items.next(), items.next()) {
            let pair = (reply::text("ZREVRANGE", id), reply::text("ZREVRANGE", score));
            let (Ok(Some(id)), Ok(Some(score))) = pair else { continue };
            finished.extend(score.parse().ok().map(|score: f64| (score, id)));
        }
        finished
    }

    fn odd(&mut self, key: &str, value: &Value) {
        self.flaw(Flaw::BadReply { key: self.keys.own(key), found: reply::describe(value) });
    }

    /// Once each: a list of a million odd ids is one flaw.
    fn flaw(&mut self, flaw: Flaw) {
        if !self.flaws.contains(&flaw) {
            self.flaws.push(flaw);
        }
    }
}

/// Redis's clock, milliseconds since 1970.
fn time(value: &Value) -> Result<u64, QueueFailure> {
    let part = |value: &Value| match value {
        Value::BulkString(bytes) => std::str::from_utf8(bytes).ok()?.parse::<u64>().ok(),
        _ => None,
    };
    let parts = match value {
        Value::Array(parts) => parts.as_slice(),
        _ => &[],
    };
    let [seconds, micros] = parts else { return Err(reply::unexpected("TIME", value)) };
    let ms = part(seconds).zip(part(micros)).map(|(seconds, micros)| seconds * 1_000 + micros / 1_000);
    ms.ok_or_else(|| QueueFailure::UnexpectedReply { command: "TIME", found: "no numbers".to_owned() })
}

fn server(value: Value) -> Result<Server, QueueFailure> {
    match reply::text("INFO", value)? {
        Some(info) => info::parse(&info),
        None => Err(reply::unexpected("INFO", &Value::Nil)),
    }
}

#[cfg(test)]
mod tests {
    use super::reply::testing::parsed;
    use super::*;

    /// The replies of a healthy, empty queue, in order.
    const HEALTHY: [&str; 13] = [
        "*0\r\n",        // wait
        "*0\r\n",        // waiting-children
        "*0\r\n",        // delayed
        "*0\r\n",        // paused
        "*0\r\n",        // prioritized
        "*0\r\n",        // active
        "$1\r\n7\r\n",   // id
        ":1\r\n",        // meta
        ":0\r\n",        // meta.paused
        ":0\r\n",        // groups
        "$3\r\nabc\r\n", // nonce
        "*0\r\n",        // completed
        "*0\r\n",        // failed
    ];
    const WAIT: usize = 0;
    const ID: usize = 6;
    const META: usize = 7;
    const GROUPS: usize = 9;
    const COMPLETED: usize = 11;
    const FAILED: usize = 12;

    fn read(changes: &[(usize, &str)]) -> QueueReading {
        let mut wire = HEALTHY;
        for &(position, reply) in changes {
            wire[position] = reply;
        }
        let mut replies: vec::IntoIter<Value> = wire.map(parsed).to_vec().into_iter();
        Reader::new(&mut replies, Keys::new("bull", "slides")).read("bull")
    }

    fn bad(key: &str, found: &str) -> Vec<Flaw> {
        vec![Flaw::BadReply { key: format!("bull:slides:{key}"), found: found.to_owned() }]
    }

    #[test]
    fn as_many_replies_are_taken_as_commands_are_sent() {
        let mut commands = redis::pipe();
        ask(&mut commands, &Keys::new("bull", "slides"));
        assert_eq!(commands.len(), HEALTHY.len());
    }

    #[test]
    fn a_healthy_empty_queue_has_no_flaw() {
        let reading = read(&[]);
        assert_eq!(reading.flaws, []);
        assert_eq!((reading.id_counter, reading.has_meta, reading.is_paused), (Some(7), true, false));
        assert_eq!(reading.nonce.as_deref(), Some("abc"));
        assert_eq!(reading.entries().count(), 0);
    }

    #[test]
    fn markers_are_no_entries() {
        let reading = read(&[(WAIT, "*3\r\n$3\r\n0:0\r\n$4\r\njobs\r\n$7\r\n0:12345\r\n")]);
        assert_eq!(reading.ids[&State::Waiting], ["jobs"]);
    }

    #[test]
    fn a_wrong_type_is_a_flaw_and_the_other_states_still_count() {
        let wrong = "-WRONGTYPE Operation against a key holding the wrong kind of value\r\n";
        let reading = read(&[(WAIT, wrong), (2, "*1\r\n$1\r\nx\r\n")]);
        let expected = Flaw::WrongType { key: "bull:slides:wait".into(), expected: "list" };
        assert_eq!(reading.flaws, [expected]);
        assert_eq!(reading.ids[&State::Delayed], ["x"]);
    }

    #[test]
    fn nil_is_not_an_empty_list() {
        assert_eq!(read(&[(WAIT, "$-1\r\n")]).flaws, bad("wait", "nil"));
        assert_eq!(read(&[(WAIT, "*-1\r\n")]).flaws, bad("wait", "nil"));
        assert_eq!(read(&[(COMPLETED, "$-1\r\n")]).flaws, bad("completed", "nil"));
    }

    #[test]
    fn a_reply_of_another_form_is_a_flaw() {
        assert_eq!(read(&[(WAIT, ":1\r\n")]).flaws, bad("wait", "an integer"));
        assert_eq!(read(&[(WAIT, "*1\r\n:1\r\n")]).flaws, bad("wait", "an integer"));
        assert_eq!(read(&[(ID, "$3\r\nabc\r\n")]).flaws, bad("id", "a string that is no number"));
        assert_eq!(read(&[(META, "$1\r\n1\r\n")]).flaws, bad("meta", "a string of 1 bytes"));
        assert_eq!(read(&[(WAIT, "-TRYAGAIN later\r\n")]).flaws, bad("wait", "error TRYAGAIN"));
    }

    #[test]
    fn an_id_that_is_not_utf_8_is_a_flaw_once() {
        let opaque = || Value::BulkString(vec![0xff]);
        let mut replies: vec::IntoIter<Value> = HEALTHY.map(parsed).to_vec().into_iter();
        replies.as_mut_slice()[WAIT] =
            Value::Array(vec![opaque(), Value::BulkString(b"x".to_vec()), opaque()]);
        let reading = Reader::new(&mut replies, Keys::new("bull", "slides")).read("bull");
        assert_eq!(reading.flaws, [Flaw::OpaqueId]);
        assert_eq!(reading.ids[&State::Waiting], ["x"]);
    }

    #[test]
    fn a_queue_without_id_and_meta_has_no_trace() {
        let nothing = [(ID, "$-1\r\n"), (META, ":0\r\n")];
        assert_eq!(read(&nothing).flaws, [Flaw::NoTrace { prefix: "bull".into() }]);
        assert_eq!(read(&nothing[..1]).flaws, []);
        assert_eq!(read(&nothing[1..]).flaws, []);
    }

    #[test]
    fn pro_groups_are_a_flaw() {
        assert_eq!(read(&[(GROUPS, ":1\r\n")]).flaws, [Flaw::ProGroups]);
    }

    #[test]
    fn retained_entries_are_the_newest_of_both_sets() {
        let completed = "*4\r\n$1\r\nb\r\n$2\r\n20\r\n$1\r\na\r\n$2\r\n10\r\n";
        let failed = "*2\r\n$1\r\nc\r\n$2\r\n15\r\n";
        assert_eq!(read(&[(COMPLETED, completed), (FAILED, failed)]).retained, ["b", "c", "a"]);
    }

    #[test]
    fn an_odd_time_is_a_failure() {
        assert_eq!(time(&parsed("*2\r\n$4\r\n1000\r\n$6\r\n999999\r\n")), Ok(1_000_999));
        for odd in ["$-1\r\n", "*0\r\n", "*2\r\n$1\r\nx\r\n$1\r\n1\r\n", "-NOPERM no\r\n"] {
            assert!(time(&parsed(odd)).is_err(), "{odd:?}");
        }
        assert!(server(parsed("$-1\r\n")).is_err());
        assert!(server(parsed("-NOPERM no\r\n")).is_err());
    }
}
