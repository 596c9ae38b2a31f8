//! What Redis said at one instant: the ids of every scheduled state of every queue of the pass.
//!
//! The adapter reads it in one MULTI, so it is a point in time across all queues. A reading may be *flawed*: what it
//! does list still counts as present, but nothing may be called absent on its word.
//!
//! The ids of a long state do not come with the snapshot: Redis copies them at that instant, and the copy is read a page
//! at a time, so that neither Redis nor the host has to hold them all in one reply. A copy does not change any more,
//! whatever the jobs do meanwhile; one that is lost on the way is a flaw.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;

use serde::Serialize;

use crate::sighting::QueueFailure;

/// The states in which BullMQ still holds a job, in the order in which payloads are read: `active` last, because an
/// entry that moves while payloads are read moves towards `active`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum State {
    /// In `wait`.
    Waiting,
    /// In `waiting-children`: a flow parent.
    WaitingChildren,
    /// In `delayed`.
    Delayed,
    /// In `paused`: the `wait` of a paused queue before BullMQ 6.
    Paused,
    /// In `prioritized`.
    Prioritized,
    /// In `active`.
    Active,
}

impl State {
    /// All six, in scan order.
    pub const ALL: [Self; 6] =
        [Self::Waiting, Self::WaitingChildren, Self::Delayed, Self::Paused, Self::Prioritized, Self::Active];

    /// The suffix of BullMQ's key.
    #[must_use]
    pub const fn key(self) -> &'static str {
        match self {
            Self::Waiting => "wait",
            Self::WaitingChildren => "waiting-children",
            Self::Delayed => "delayed",
            Self::Paused => "paused",
            Self::Prioritized => "prioritized",
            Self::Active => "active",
        }
    }

    /// Whether the key is a list; the others are sorted sets.
    #[must_use]
    pub const fn is_list(self) -> bool {
        matches!(self, Self::Waiting | Self::Paused | Self::Active)
    }
}

impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Waiting => "waiting",
            other => other.key(),
        })
    }
}

/// One atomic read of all queues of the pass.
#[derive(Debug, Clone)]
pub struct Snapshot {
    /// The key prefix under which the queues were looked for.
    pub prefix: String,
    /// Redis's own clock at the snapshot, milliseconds since 1970.
    pub at_ms: u64,
    /// The node that answered.
    pub server: Server,
    /// One reading per queue that was asked for.
    pub queues: BTreeMap<String, QueueReading>,
}

/// What the node says of itself.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Server {
    /// `master` or `slave`.
    pub role: String,
    /// Still loading its data.
    pub loading: bool,
    /// Changes with every start of the process; empty if it does not tell.
    pub run_id: String,
    /// Changes with every failover; empty if it does not tell.
    pub replid: String,
    /// Keys evicted for memory since the process started.
    pub evicted_keys: u64,
    /// E.g. `noeviction`, or [`UNTOLD`].
    pub maxmemory_policy: String,
}

/// Stands for what a server does not tell of itself, such as its policy.
pub const UNTOLD: &str = "untold";

impl Server {
    /// Whether it may evict what has no time to live, as BullMQ's entries have none. One that does not tell may.
    #[must_use]
    pub fn may_evict_jobs(&self) -> bool {
        self.maxmemory_policy != "noeviction" && !self.maxmemory_policy.starts_with("volatile-")
    }
}

/// What one queue held.
#[derive(Debug, Clone, Default)]
pub struct QueueReading {
    /// Entry ids by state, of those states whose ids came with the snapshot; markers (`0:…`) left out. Complete unless
    /// `flaws` says otherwise.
    pub ids: BTreeMap<State, Vec<String>>,
    /// The states whose ids lie in a copy. A state that is neither here nor in `ids` was left out, or could not be read.
    pub copies: BTreeMap<State, IdsCopy>,
    /// How many ids each state held, markers among them.
    pub lengths: BTreeMap<State, usize>,
    /// The counter BullMQ raises on every add; absent if no job was ever added.
    pub id_counter: Option<u64>,
    /// Whether `meta` is there.
    pub has_meta: bool,
    /// Whether `meta` says that the queue is paused.
    pub is_paused: bool,
    /// The nonce in our own key, if any.
    pub nonce: Option<String>,
    /// A few ids of retained finished entries, newest first.
    pub retained: Vec<String>,
    /// What forbids to call anything absent from this queue.
    pub flaws: Vec<Flaw>,
}

/// The ids of one state as they were at the snapshot, copied to a key of our own.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IdsCopy {
    /// The whole key.
    pub key: String,
    /// How many ids it holds, markers among them: with one less it is not the copy that was made.
    pub length: usize,
}

/// Some ids of one state, in no order that means anything.
#[derive(Debug, Clone, Default)]
pub struct IdsPage<'a> {
    /// Markers left out.
    pub ids: Cow<'a, [String]>,
    /// What was wrong with the page, if anything: then nothing may be called absent from its queue.
    pub flaw: Option<Flaw>,
}

/// A reason why a queue's reading proves no absence.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub enum Flaw {
    /// A key is of another type than BullMQ's.
    WrongType {
        /// The whole key.
        key: String,
        /// What it should be.
        expected: &'static str,
    },
    /// An element of the reply had an unexpected form or was an error.
    BadReply {
        /// The whole key.
        key: String,
        /// What was found, without payload.
        found: String,
    },
    /// Neither `meta` nor `id`: wrong prefix, database or host, or a queue that never was.
    NoTrace {
        /// The prefix that was read.
        prefix: String,
    },
    /// `BullMQ` Pro groups: their waiting jobs are in none of the lists we read.
    ProGroups,
    /// An entry id that is not UTF-8 cannot be looked at again.
    OpaqueId,
    /// The copy of a state's ids was gone, or not whole any more, before it was read to its end.
    CopyLost {
        /// Its whole key.
        key: String,
    },
}

impl Flaw {
    /// Whether it says only that nothing is there, which the operator may accept.
    #[must_use]
    pub const fn is_lack_of_trace(&self) -> bool {
        matches!(self, Self::NoTrace { .. })
    }
}

impl fmt::Display for Flaw {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::WrongType { key, expected } => {
                write!(f, "key {key} is not a {expected} (WRONGTYPE): something other than BullMQ writes it")
            }
            Self::BadReply { key, found } => write!(f, "reply for key {key} could not be used: {found}"),
            Self::NoTrace { prefix } => write!(
                f,
                "neither `id` nor `meta` exists under prefix {prefix:?}: check [redis] url and prefix, \
                 or accept the queue if it is new"
            ),
            Self::ProGroups => f.write_str("it holds BullMQ Pro groups, which this version cannot read"),
            Self::OpaqueId => f.write_str("an entry's id is not UTF-8"),
            Self::CopyLost { key } => write!(
                f,
                "our copy {key} of its ids vanished while it was read: it expired, or Redis evicted or lost it"
            ),
        }
    }
}

/// An active entry whose lock is gone: stalled, in `BullMQ`'s sense. Scheduled all the same, and never acted on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stalled {
    /// The entry.
    pub entry_id: String,
    /// When a worker took it, by the worker's clock, milliseconds since 1970. `None` if it died before it said so, or if
    /// the entry has no hash.
    pub taken_ms: Option<u64>,
}

impl Stalled {
    /// How long ago a worker took it, milliseconds. Compares two machines' clocks; 0 where the worker's is ahead.
    #[must_use]
    pub fn age_ms(&self, now_ms: u64) -> Option<u64> {
        self.taken_ms.map(|taken_ms| now_ms.saturating_sub(taken_ms))
    }
}

impl Snapshot {
    /// Lets go of the ids once they have been seen. From then on it proves no absence.
    pub fn forget_ids(&mut self) {
        self.queues.values_mut().for_each(|reading| reading.ids = BTreeMap::new());
    }

    /// Why this node may not prove an absence, if it may not.
    #[must_use]
    pub fn server_fault(&self) -> Option<QueueFailure> {
        if self.server.loading {
            return Some(QueueFailure::Loading);
        }
        (self.server.role != "master").then(|| QueueFailure::NotMaster { role: self.server.role.clone() })
    }

    /// How many ids all queues hold together, markers among them.
    #[must_use]
    pub fn ids_total(&self) -> usize {
        self.queues.values().map(QueueReading::ids_total).sum()
    }
}

impl QueueReading {
    /// Whether BullMQ ever wrote here.
    #[must_use]
    pub const fn has_trace(&self) -> bool {
        self.has_meta || self.id_counter.is_some()
    }

    /// How many ids it holds, markers among them.
    #[must_use]
    pub fn ids_total(&self) -> usize {
        self.lengths.values().sum()
    }

    /// The states whose ids are not to be had.
    pub fn missing(&self) -> impl Iterator<Item = State> {
        State::ALL
            .into_iter()
            .filter(|state| !self.ids.contains_key(state) && !self.copies.contains_key(state))
    }

    /// Whether the ids of every state are to be had. Without them, nobody can be called absent.
    #[must_use]
    pub fn has_every_state(&self) -> bool {
        self.missing().next().is_none()
    }

    /// Every entry whose id came with the snapshot, `active` last. Those in a copy are not among them.
    pub fn entries(&self) -> impl Iterator<Item = (State, &str)> {
        State::ALL
            .into_iter()
            .flat_map(|state| self.ids.get(&state).into_iter().flatten().map(move |id| (state, id.as_str())))
    }
}

/// Whether an id in a list is one of `BullMQ`'s markers and no job.
#[must_use]
pub fn is_marker(entry_id: &str) -> bool {
    entry_id.starts_with("0:")
}
