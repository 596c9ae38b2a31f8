//! What a snapshot reads of one queue: the commands, and what their replies say.
//!
//! Whatever is odd about a reply is a flaw of this queue, under which nothing is called absent from it.

use std::vec;

use redis::{Pipeline, Value};
use salvage_core::snapshot::{Flaw, IdsCopy, QueueReading, State, is_marker};

use super::copies::{self, Copies};
use super::keys::{HOST, Keys};
use super::reply;

/// Ids of retained finished entries read per queue and set: enough to see whose jobs a queue holds.
const RETAINED_MAX: usize = 25;

/// Active ids read where no ids are wanted: enough to see whether any are stalled.
const ACTIVE_MAX: usize = 10_000;

/// How the ids of one state are read.
#[derive(Debug, Clone, Copy)]
pub(super) enum Read<'t> {
    /// All, in the reply.
    Range,
    /// All, in a copy that the token names.
    Copy(&'t str),
    /// The first few of a list.
    First,
    /// Only their number.
    Nothing,
}

/// What is read of one queue.
pub(super) struct QueuePlan<'t> {
    pub(super) keys: Keys,
    pub(super) reads: Vec<(State, Read<'t>)>,
    /// Which field of our own key.
    pub(super) nonce: String,
}

impl QueuePlan<'_> {
    /// Whether anything is written.
    pub(super) fn copies_any(&self) -> bool {
        self.reads.iter().any(|(_, read)| matches!(read, Read::Copy(_)))
    }

    /// The commands, in the order in which [`Self::read`] takes the replies.
    pub(super) fn ask(&self, commands: &mut Pipeline, copies: &Copies) {
        let keys = &self.keys;
        for &(state, read) in &self.reads {
            ask_length(commands, keys, state);
            let range = if state.is_list() { "LRANGE" } else { "ZRANGE" };
            match read {
                Read::Range => {
                    commands.cmd(range).arg(keys.state(state)).arg(0).arg(-1);
                }
                Read::First => {
                    commands.cmd(range).arg(keys.state(state)).arg(0).arg(ACTIVE_MAX - 1);
                }
                Read::Copy(token) => copies.make(commands, keys, state, token),
                Read::Nothing => {}
            }
        }
        commands.cmd("GET").arg(keys.own("id"));
        commands.cmd("EXISTS").arg(keys.own("meta"));
        commands.cmd("HEXISTS").arg(keys.own("meta")).arg("paused");
        commands.cmd("EXISTS").arg(keys.own("groups"));
        commands.cmd("HGET").arg(keys.host()).arg(&self.nonce);
        for finished in ["completed", "failed"] {
            commands.cmd("ZREVRANGE").arg(keys.own(finished)).arg(0).arg(RETAINED_MAX - 1).arg("WITHSCORES");
        }
    }

    /// What the replies say.
    pub(super) fn read(&self, replies: &mut vec::IntoIter<Value>, prefix: &str) -> QueueReading {
        Reader { replies, keys: &self.keys, flaws: vec![] }.read(prefix, &self.reads)
    }
}

/// How many ids a state holds.
pub(super) fn ask_length(commands: &mut Pipeline, keys: &Keys, state: State) {
    commands.cmd(if state.is_list() { "LLEN" } else { "ZCARD" }).arg(keys.state(state));
}

/// Takes the replies of one queue.
struct Reader<'a> {
    replies: &'a mut vec::IntoIter<Value>,
    keys: &'a Keys,
    flaws: Vec<Flaw>,
}

impl Reader<'_> {
    fn read(mut self, prefix: &str, reads: &[(State, Read<'_>)]) -> QueueReading {
        let mut reading = QueueReading::default();
        for &(state, read) in reads {
            self.state(&mut reading, state, read);
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

    fn state(&mut self, reading: &mut QueueReading, state: State, read: Read<'_>) {
        let kind = if state.is_list() { "list" } else { "sorted set" };
        let length = self.length(state.key(), kind);
        reading.lengths.insert(state, length);
        match read {
            Read::Range | Read::First => {
                reading.ids.insert(state, self.ids(state.key(), kind));
            }
            Read::Copy(token) => {
                let copied = self.replies.next().unwrap_or_default();
                let expires = self.replies.next().unwrap_or_default();
                if length == 0 {
                    reading.ids.insert(state, vec![]);
                } else if copies::is_made(state, length, &copied, &expires) {
                    let key = self.keys.copy(state, token);
                    reading.copies.insert(state, IdsCopy { key, length });
                } else {
                    self.odd(state.key(), &copied);
                }
            }
            Read::Nothing => {}
        }
    }

    fn length(&mut self, key: &str, kind: &'static str) -> usize {
        let Some(value) = self.next(key, kind) else { return 0 };
        let Value::Int(length) = value else {
            self.odd(key, &value);
            return 0;
        };
        usize::try_from(length).unwrap_or(0)
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
        // Each id keeps the memory in which it arrived: a million of them have 51 MB. Their list would keep that of the
        // replies, which is two to four times as large.
        let ids = items.into_iter().filter_map(|item| self.id(key, item)).filter(|id| !is_marker(id));
        let mut ids: Vec<String> = ids.collect();
        ids.shrink_to_fit();
        ids
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

#[cfg(test)]
mod tests {
    use super::super::reply::testing::parsed;
    use super::*;

    /// The replies of a healthy, empty queue, in order.
    const HEALTHY: [&str; 19] = [
        ":0\r\n",        // wait: its length, and then its ids
        "*0\r\n",        //
        ":0\r\n",        // waiting-children
        "*0\r\n",        //
        ":0\r\n",        // delayed
        "*0\r\n",        //
        ":0\r\n",        // paused
        "*0\r\n",        //
        ":0\r\n",        // prioritized
        "*0\r\n",        //
        ":0\r\n",        // active
        "*0\r\n",        //
        "$1\r\n7\r\n",   // id
        ":1\r\n",        // meta
        ":0\r\n",        // meta.paused
        ":0\r\n",        // groups
        "$3\r\nabc\r\n", // nonce
        "*0\r\n",        // completed
        "*0\r\n",        // failed
    ];
    const WAIT: usize = 1;
    const DELAYED: usize = 5;
    const ID: usize = 12;
    const META: usize = 13;
    const GROUPS: usize = 15;
    const COMPLETED: usize = 17;
    const FAILED: usize = 18;

    fn ranges() -> QueuePlan<'static> {
        plan(State::ALL.map(|state| (state, Read::Range)).to_vec())
    }

    fn plan<'t>(reads: Vec<(State, Read<'t>)>) -> QueuePlan<'t> {
        QueuePlan { keys: Keys::new("bull", "slides"), reads, nonce: super::super::keys::nonce("global") }
    }

    fn read(changes: &[(usize, &str)]) -> QueueReading {
        let mut wire = HEALTHY;
        for &(position, reply) in changes {
            wire[position] = reply;
        }
        let mut replies: vec::IntoIter<Value> = wire.map(parsed).to_vec().into_iter();
        ranges().read(&mut replies, "bull")
    }

    fn bad(key: &str, found: &str) -> Vec<Flaw> {
        vec![Flaw::BadReply { key: format!("bull:slides:{key}"), found: found.to_owned() }]
    }

    #[test]
    fn as_many_replies_are_taken_as_commands_are_sent() {
        let mut commands = redis::pipe();
        ranges().ask(&mut commands, &Copies::default());
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
        let reading = read(&[(WAIT, wrong), (DELAYED, "*1\r\n$1\r\nx\r\n")]);
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
        let reading = ranges().read(&mut replies, "bull");
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
    fn a_copy_that_was_not_made_leaves_its_state_unread_and_flawed() {
        let copied = |wire: [&str; 3]| {
            let plan = plan(vec![(State::Waiting, Read::Copy("t"))]);
            let replies = wire.map(parsed).into_iter().chain(HEALTHY[ID..].iter().map(|wire| parsed(wire)));
            let mut replies = replies.collect::<Vec<_>>().into_iter();
            plan.read(&mut replies, "bull")
        };
        let reading = copied([":3\r\n", ":1\r\n", ":1\r\n"]);
        let expected = IdsCopy { key: "bull:slides:salvage:copy:t:wait".into(), length: 3 };
        assert_eq!((reading.copies.get(&State::Waiting), reading.flaws.len()), (Some(&expected), 0));
        let reading = copied([":3\r\n", ":0\r\n", ":0\r\n"]);
        assert_eq!(
            (reading.copies.len(), reading.ids.len(), reading.flaws),
            (0, 0, bad("wait", "an integer"))
        );
        let reading = copied([":0\r\n", ":0\r\n", ":0\r\n"]);
        assert_eq!((reading.copies.len(), reading.ids.len(), reading.flaws.len()), (0, 1, 0));
    }
}
