//! What the queues say of one candidate: present, absent, or nothing at all.

use std::fmt;

use serde::Serialize;

use crate::snapshot::{Flaw, State};

/// The three-valued answer. An error never becomes `Absent`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Sighting {
    /// A queue holds the job in a scheduled state.
    Scheduled {
        /// The queue.
        queue: String,
        /// Its state there.
        state: State,
    },
    /// Every queue of the source was read and none holds it.
    Absent {
        /// What it left behind.
        residue: Residue,
    },
    /// It cannot be said.
    Unknown {
        /// Why not.
        why: Doubt,
    },
}

/// What an absent job left behind.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub enum Residue {
    /// Nothing.
    #[default]
    None,
    /// A retained completed entry.
    Completed {
        /// Redis time, milliseconds since 1970.
        finished_ms: u64,
    },
    /// A retained failed entry.
    Failed {
        /// Redis time, milliseconds since 1970.
        finished_ms: u64,
        /// `BullMQ`'s reason, shortened.
        #[serde(skip)]
        reason: Option<String>,
    },
    /// The entry's hash, in no list.
    HashOnly,
}

impl Residue {
    /// Its name in reports and in the ledger.
    #[must_use]
    pub const fn word(&self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Completed { .. } => "completed",
            Self::Failed { .. } => "failed",
            Self::HashOnly => "hash-only",
        }
    }

    /// When the retained entry finished, milliseconds of Redis's clock.
    #[must_use]
    pub const fn finished_ms(&self) -> Option<u64> {
        match self {
            Self::Completed { finished_ms } | Self::Failed { finished_ms, .. } => Some(*finished_ms),
            Self::None | Self::HashOnly => None,
        }
    }
}

/// Why a candidate cannot be judged.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Doubt {
    /// Redis as a whole did not answer.
    Redis(QueueFailure),
    /// One of the candidate's queues could not be read.
    Queue {
        /// The queue.
        queue: String,
        /// What is wrong with its reading.
        flaw: Flaw,
    },
    /// An entry of one of its queues has no readable payload, so it might be this job under another id.
    Entry {
        /// The queue.
        queue: String,
        /// The entry.
        entry_id: String,
        /// What is wrong with the entry.
        fault: EntryFault,
    },
    /// The row itself is odd.
    Row(String),
}

/// What makes an entry unreadable.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum EntryFault {
    /// Listed, but its hash or the hash's `data` is gone.
    NoPayload,
    /// `data` is not JSON.
    NotJson,
}

impl fmt::Display for Doubt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Redis(failure) => write!(f, "the queues could not be read: {failure}"),
            Self::Queue { queue, flaw } => write!(f, "queue {queue:?} cannot be judged: {flaw}"),
            Self::Entry { queue, entry_id, fault } => write!(
                f,
                "entry {entry_id:?} of queue {queue:?} is unreadable ({}): it might be this job; \
                 `salvage accept --entry {queue} {entry_id}` marks it as harmless",
                match fault {
                    EntryFault::NoPayload => "it is listed but its payload is gone",
                    EntryFault::NotJson => "its payload is not JSON",
                }
            ),
            Self::Row(why) => write!(f, "the row cannot be judged: {why}"),
        }
    }
}

/// Why Redis gave no answer. Everything that is not a well-typed success ends up here.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum QueueFailure {
    /// No connection.
    #[error("no connection to Redis: {detail}; check [redis] url and that the server is up")]
    Refused {
        /// The client's words, without the URL.
        detail: String,
    },
    /// No reply within `[redis] timeout`. What was sent may have been carried out.
    #[error("Redis did not reply within {timeout_ms} ms")]
    Timeout {
        /// The limit.
        timeout_ms: u64,
    },
    /// The connection broke before the reply was whole. What was sent may have been carried out.
    #[error("the connection to Redis broke before it replied: {detail}")]
    Dropped {
        /// The client's words.
        detail: String,
    },
    /// Still loading its data.
    #[error("Redis is still loading its data")]
    Loading,
    /// A replica: it may be unsynchronised and answer empty.
    #[error("the node's role is {role:?}, not master: point [redis] url at the master")]
    NotMaster {
        /// What it says it is.
        role: String,
    },
    /// User or password refused.
    #[error("Redis refused the credentials ({code}): check user and password in [redis] url")]
    Credentials {
        /// `NOAUTH` or `WRONGPASS`.
        code: String,
    },
    /// A newer pass was here. Nothing was written.
    #[error("fenced: a newer pass (generation {generation}) works on queue {queue:?}")]
    Fenced {
        /// The queue.
        queue: String,
        /// Its generation.
        generation: u64,
    },
    /// Any other error reply.
    #[error("Redis answered {code}: {detail}")]
    Error {
        /// The first word of the reply, e.g. `BUSY`.
        code: String,
        /// The rest.
        detail: String,
    },
    /// A reply of a form that cannot be.
    #[error("Redis sent an unexpected reply to {command}: {found}")]
    UnexpectedReply {
        /// What was asked.
        command: &'static str,
        /// What came, without payload.
        found: String,
    },
}

impl QueueFailure {
    /// Whether what was sent may have been carried out all the same.
    #[must_use]
    pub const fn is_indeterminate(&self) -> bool {
        matches!(self, Self::Timeout { .. } | Self::Dropped { .. } | Self::UnexpectedReply { .. })
    }
}
