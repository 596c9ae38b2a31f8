//! The snapshot: every queue's ids in all six states, and what proves that they are all, in one MULTI.
//!
//! One MULTI because a job moves while it is looked for: reading state by state on a busy queue judged up to 29 % of the
//! present jobs absent, one MULTI none. What the MULTI holds depends on how much there is to read (see `strategy`): ranges
//! of ids, copies of long states that are paged afterwards, or only the jobs that were asked for. The guards are the same
//! in each.
//!
//! A connection that breaks half-way leaves nothing: what had arrived is dropped. A key of a wrong type spoils its own
//! queue only; anything wrong with TIME or INFO spoils all.

use std::collections::BTreeMap;
use std::vec;

use redis::{Pipeline, Value};
use salvage_core::sighting::QueueFailure;
use salvage_core::snapshot::{Flaw, IdsCopy, QueueReading, Server, Snapshot, State, is_marker};

use super::connection::Connection;
use super::copies::{self, Copies};
use super::keys::{HOST, Keys, NONCE};
use super::probe::Probe;
use super::strategy::{Copied, SnapshotLimits};
use super::{info, reply, sizes};
use crate::ports::Ask;

/// Ids of retained finished entries read per queue and set: enough to see whose jobs a queue holds.
const RETAINED_MAX: usize = 25;

/// Active ids read where no ids are wanted: enough to see whether any are stalled.
const ACTIVE_MAX: usize = 10_000;

/// Takes snapshots of the queues under a prefix.
#[derive(Debug, Clone, Copy)]
pub(super) struct Camera<'a> {
    pub(super) connection: &'a Connection,
    pub(super) prefix: &'a str,
    pub(super) copies: &'a Copies,
    pub(super) limits: &'a SnapshotLimits,
}

impl Camera<'_> {
    /// Chooses the cheapest way, and goes it.
    pub(super) async fn take(&self, ask: &Ask<'_>) -> Result<Snapshot, QueueFailure> {
        if ask.wanted.is_empty() {
            return self.take_guards(ask, &Probe::new(&[])).await;
        }
        let sizes = sizes::read(self.connection, self.prefix, ask.wanted).await?;
        if sizes.is_probe_worth(ask.jobs, self.limits) {
            match self.take_guards(ask, &Probe::new(ask.jobs)).await {
                Ok(probed) if probed.found.is_some() => return Ok(probed),
                Err(failure) if !copies::is_refusal(&failure) => return Err(failure),
                // Not all were found, or Redis does not let us look for them: that takes all ids.
                _ => {}
            }
        }
        let copied = sizes.copied(ask.copies.is_some(), self.limits)?;
        if !copied.is_empty() {
            match self.take_ids(ask, &copied).await {
                Err(failure) if copies::is_refusal(&failure) => {
                    tracing::warn!(%failure, "ids could not be copied, so they are read in one reply");
                }
                answered => return answered,
            }
        }
        sizes.copied(false, self.limits)?;
        self.take_ids(ask, &Copied::new()).await
    }

    /// No more than the guards of all queues, some active entries, and the jobs of the probe.
    async fn take_guards(&self, ask: &Ask<'_>, probe: &Probe<'_>) -> Result<Snapshot, QueueFailure> {
        let reads = |_: &str, state| if state == State::Active { Read::First } else { Read::Nothing };
        self.take_at_one_instant(ask, &reads, probe).await
    }

    async fn take_ids(&self, ask: &Ask<'_>, copied: &Copied) -> Result<Snapshot, QueueFailure> {
        let reads = |queue: &str, state| match (ask.wanted.contains(queue), ask.copies) {
            (true, Some(token)) if copied.contains(&(queue.to_owned(), state)) => Read::Copy(token),
            (true, _) => Read::Range,
            (false, _) if state == State::Active => Read::First,
            (false, _) => Read::Nothing,
        };
        self.take_at_one_instant(ask, &reads, &Probe::new(&[])).await
    }

    async fn take_at_one_instant<'t>(
        &self,
        ask: &Ask<'_>,
        reads: &impl Fn(&str, State) -> Read<'t>,
        probe: &Probe<'_>,
    ) -> Result<Snapshot, QueueFailure> {
        let plan = |queue: &String| {
            let reads = State::ALL.into_iter().map(|state| (state, reads(queue, state)));
            (queue.clone(), QueuePlan { keys: Keys::new(self.prefix, queue), reads: reads.collect() })
        };
        let plans: Vec<(String, QueuePlan<'_>)> = ask.queues.iter().map(plan).collect();
        let mut commands = redis::pipe();
        commands.cmd("TIME").cmd("INFO");
        for (_, plan) in &plans {
            plan.ask(&mut commands, self.copies);
        }
        probe.ask(&mut commands, self.prefix);
        let mut replies = self.connection.ask_at_one_instant(&commands).await?.into_iter();
        let at_ms = time(&replies.next().unwrap_or_default())?;
        let server = server(replies.next().unwrap_or_default())?;
        let mut queues = BTreeMap::new();
        for (queue, plan) in plans {
            queues.insert(queue, Reader::new(&mut replies, &plan.keys).read(self.prefix, &plan.reads));
        }
        let found = probe.found(&mut replies).filter(|found| !found.is_empty());
        let snapshot = Snapshot { prefix: self.prefix.to_owned(), at_ms, server, queues, found };
        if snapshot.server_fault().is_some() {
            // The master may be behind the same name by now.
            self.connection.leave_node();
        }
        Ok(snapshot)
    }
}

/// How the ids of one state are read.
#[derive(Debug, Clone, Copy)]
enum Read<'t> {
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
struct QueuePlan<'t> {
    keys: Keys,
    reads: Vec<(State, Read<'t>)>,
}

impl QueuePlan<'_> {
    /// The commands, in the order in which [`Reader::read`] takes the replies.
    fn ask(&self, commands: &mut Pipeline, copies: &Copies) {
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
        commands.cmd("HGET").arg(keys.host()).arg(NONCE);
        for finished in ["completed", "failed"] {
            commands.cmd("ZREVRANGE").arg(keys.own(finished)).arg(0).arg(RETAINED_MAX - 1).arg("WITHSCORES");
        }
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

impl<'a> Reader<'a> {
    const fn new(replies: &'a mut vec::IntoIter<Value>, keys: &'a Keys) -> Self {
        Self { replies, keys, flaws: vec![] }
    }

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

    fn ranges() -> Vec<(State, Read<'static>)> {
        State::ALL.map(|state| (state, Read::Range)).to_vec()
    }

    fn read(changes: &[(usize, &str)]) -> QueueReading {
        let mut wire = HEALTHY;
        for &(position, reply) in changes {
            wire[position] = reply;
        }
        let mut replies: vec::IntoIter<Value> = wire.map(parsed).to_vec().into_iter();
        Reader::new(&mut replies, &Keys::new("bull", "slides")).read("bull", &ranges())
    }

    fn bad(key: &str, found: &str) -> Vec<Flaw> {
        vec![Flaw::BadReply { key: format!("bull:slides:{key}"), found: found.to_owned() }]
    }

    #[test]
    fn as_many_replies_are_taken_as_commands_are_sent() {
        let mut commands = redis::pipe();
        let plan = QueuePlan { keys: Keys::new("bull", "slides"), reads: ranges() };
        plan.ask(&mut commands, &Copies::default());
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
        let reading = Reader::new(&mut replies, &Keys::new("bull", "slides")).read("bull", &ranges());
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
            let plan = [(State::Waiting, Read::Copy("t"))];
            let replies = wire.map(parsed).into_iter().chain(HEALTHY[ID..].iter().map(|wire| parsed(wire)));
            let mut replies = replies.collect::<Vec<_>>().into_iter();
            Reader::new(&mut replies, &Keys::new("bull", "slides")).read("bull", &plan)
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
