//! What the queues say of one candidate: present, absent, or nothing at all.

use std::fmt;

use serde::Serialize;

use crate::control::Control;
use crate::mention::Mention;
use crate::scan::Unattributed;
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
    /// An entry that nobody else owns holds the candidate's id.
    Mentioned(Mention),
    /// One of its queues holds an entry that may be any job of the source.
    Unattributed {
        /// The queue.
        queue: String,
        /// The first such entry, and how many there are.
        entry: Unattributed,
    },
    /// A worker is at an entry that is not told to be the source's, since before the row was written: it may be this job.
    ForeignActive {
        /// The queue.
        queue: String,
        /// The entry.
        entry_id: String,
        /// Its job name.
        name: Option<String>,
    },
    /// Too many young rows of its type and status have no entry: the manifest is wrong about where their jobs are.
    Control {
        /// The source.
        source: String,
        /// The group.
        control: Control,
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
    /// `data` is longer than what is read of one entry.
    TooLong,
}

impl fmt::Display for Doubt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Redis(failure) => write!(f, "the queues could not be read: {failure}"),
            Self::Queue { queue, flaw } => write!(f, "queue {queue:?} cannot be judged: {flaw}"),
            Self::Entry { queue, entry_id, fault } => write!(
                f,
                "entry {entry_id:?} of queue {queue:?} is unreadable ({}): it might be this job; \
                 `salvage accept --entry {} {}` marks it as harmless",
                match fault {
                    EntryFault::NoPayload => "it is listed but its payload is gone",
                    EntryFault::NotJson => "its payload is not JSON",
                    EntryFault::TooLong => "its payload is too long to be read",
                },
                pasted(queue, "QUEUE"),
                pasted(entry_id, "ID")
            ),
            Self::Mentioned(Mention { queue, entry_id, name, place }) => write!(
                f,
                "entry {entry_id:?} of queue {queue:?}{} holds this row's id {place}, where the manifest does not look: \
                 it may be this job; correct payload-key or job-id, or name its jobs in foreign-names",
                job_name(name.as_deref())
            ),
            Self::Unattributed { queue, entry } => {
                let Unattributed { count, entry, name, keys } = entry;
                let others = match count {
                    1 => String::new(),
                    count => format!(" and {} more", count - 1),
                };
                let has = match keys.len() {
                    0 => "its payload has no keys".to_owned(),
                    _ => format!("its payload has `{}`", keys.join("`, `")),
                };
                write!(
                    f,
                    "entry {entry:?} of queue {queue:?}{}{others} cannot be attributed to a row, so it may be this job: \
                     {has}; correct payload-key, or, if such jobs are somebody else's, name them in foreign-names or run \
                     `salvage accept --foreign {} {}`",
                    job_name(name.as_deref()),
                    pasted(queue, "QUEUE"),
                    pasted(name.as_deref().unwrap_or_default(), "NAME")
                )
            }
            Self::Control { control: Control { job_type, figures, .. }, .. }
                if figures.passed() != Some(false) =>
            {
                write!(
                    f,
                    "control: {} young rows of type {job_type:?} could not be judged, so absence is not believed in this pass",
                    figures.unread
                )
            }
            Self::Control { source, control: Control { job_type, figures, .. } } => write!(
                f,
                "control: {} of {} young rows of type {job_type:?} have no entry: a queue is missing from the manifest, the \
                 payload key or a status is wrong, or rows wait without an entry by design; correct the manifest, or run \
                 `salvage accept --declaration {source}`",
                figures.missing,
                figures.rows()
            ),
            Self::ForeignActive { queue, entry_id, name } => write!(
                f,
                "a worker has been at entry {entry_id:?} of queue {queue:?}{} since before this row was written, and may \
                 have written it: it is looked at again when that entry has ended",
                job_name(name.as_deref())
            ),
            Self::Row(why) => write!(f, "the row cannot be judged: {why}"),
        }
    }
}

/// A word of a command line that a person may paste: as it is if a shell takes it as it is, else what stands for it.
fn pasted<'t>(text: &'t str, stands_for: &'t str) -> &'t str {
    let is_plain =
        |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '.' | '/' | ':' | '@' | '+' | '=' | '-');
    let is_word = !text.is_empty() && !text.starts_with('-') && text.chars().all(is_plain);
    if is_word { text } else { stands_for }
}

/// A job's name in brackets; nothing if it has none.
fn job_name(name: Option<&str>) -> String {
    name.map(|name| format!(" (job {name:?})")).unwrap_or_default()
}

/// Why Redis gave no answer. Everything that is not a well-typed success ends up here.
///
/// `Display` is the sentence for the operator: what happened and, where it is not plain, what to do.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum QueueFailure {
    /// No connection.
    #[error("no connection to Redis: {detail}; check its address in [redis] and that the server is up")]
    Refused {
        /// The client's words, without the URL.
        detail: String,
    },
    /// No connection that both sides trust.
    #[error("no TLS connection to Redis: {detail}")]
    Tls {
        /// What is wrong, and what to do.
        detail: String,
    },
    /// The Sentinels know no master of that name.
    #[error("no Sentinel of [redis] nodes knows a master named {name:?}: check [redis] master_name")]
    NoMaster {
        /// `[redis] master_name`.
        name: String,
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
    /// Still loading its data (LOADING).
    #[error("Redis is still loading its data")]
    Loading,
    /// A script or function keeps it from answering (BUSY).
    #[error(
        "Redis is busy with somebody's script that does not end; `SCRIPT KILL` ends one that has not written yet"
    )]
    Busy,
    /// A replica: it may be unsynchronised and answer empty.
    #[error("the node's role is {role:?}, not master: {}", role_advice(.role))]
    NotMaster {
        /// What it says it is.
        role: String,
    },
    /// A replica, as a write showed (READONLY).
    #[error("the node is a read-only replica: point [redis] url at the master")]
    ReadOnly,
    /// A replica without its master (MASTERDOWN).
    #[error("the node is a replica that has lost its master: point [redis] url at the master")]
    MasterDown,
    /// The node cannot speak for these keys, now or at all.
    #[error("the Redis cluster does not serve these keys ({code}): {}", cluster_advice(.code))]
    Cluster {
        /// `MOVED`, `ASK`, `TRYAGAIN`, `CLUSTERDOWN` or `CROSSSLOT`.
        code: String,
    },
    /// User or password refused.
    #[error("Redis refused the credentials ({code}): check user and password in [redis]")]
    Credentials {
        /// `NOAUTH` or `WRONGPASS`.
        code: String,
    },
    /// The user may not do this (NOPERM). A script may have stopped half-way, before it enqueued anything.
    #[error("the Redis user may not do this: {detail}; docs/redis.md has the ACL that the host needs")]
    Forbidden {
        /// Redis's words.
        detail: String,
    },
    /// A key is of another type than the command is for (WRONGTYPE).
    #[error("a Redis key is not of its type: {detail}")]
    WrongType {
        /// Redis's words, or which key.
        detail: String,
    },
    /// It takes no writes, while reads count.
    #[error("Redis takes no writes now ({code}): {}", writes_advice(.code))]
    WritesRefused {
        /// `OOM`, `MISCONF` or `NOREPLICAS`.
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
    /// The queue is not the one that was looked at any more. Nothing was written.
    #[error(
        "our own key in queue {queue:?} is not what the look at it found: Redis was wiped, restored or swapped meanwhile"
    )]
    Changed {
        /// The queue.
        queue: String,
    },
    /// So near to its memory limit that reading long queues might push it over.
    #[error(
        "reading {ids} ids takes more memory than Redis has left below its limit ({free} bytes): raise maxmemory"
    )]
    NoRoom {
        /// The ids to be read.
        ids: usize,
        /// Bytes left.
        free: u64,
    },
    /// Any other error reply.
    #[error("Redis answered {code}: {detail}")]
    Error {
        /// The first word of the reply, e.g. `ERR`.
        code: String,
        /// The rest.
        detail: String,
    },
    /// A server that is not quite Redis does not tell what a proof would rest on.
    #[error("INFO of this server does not tell {what}: {why}; nothing can be judged by it")]
    Untold {
        /// The line, or lines of which one would do.
        what: &'static str,
        /// What could be otherwise then.
        why: &'static str,
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

fn role_advice(role: &str) -> &'static str {
    match role {
        // KeyDB with several masters that replicate to each other.
        "active-replica" => {
            "a job that was added at another of the active replicas may not be here yet, so no absence is proven here; it \
             takes a server that has all writes (active-replica no)"
        }
        "sentinel" => "it is a Sentinel: set [redis] mode = \"sentinel\", nodes and master_name",
        _ => "point [redis] url at the master",
    }
}

fn cluster_advice(code: &str) -> &'static str {
    match code {
        "MOVED" => "they lie on another node; the next look asks which, if [redis] mode is \"cluster\"",
        "ASK" | "TRYAGAIN" => "their slot is being moved to another node; wait until it is there",
        "CLUSTERDOWN" => "a part of the cluster is down; see CLUSTER INFO",
        "CROSSSLOT" => "they lie in several slots; [redis] prefix needs a hash tag, such as {bull}",
        _ => "see CLUSTER INFO",
    }
}

fn writes_advice(code: &str) -> &'static str {
    match code {
        "OOM" => "it has reached maxmemory",
        "MISCONF" => "it cannot save to its disk; see Redis's log",
        "NOREPLICAS" => "it has fewer good replicas than min-replicas-to-write",
        _ => "see Redis's log",
    }
}

impl QueueFailure {
    /// Whether what was sent may have been carried out all the same.
    #[must_use]
    pub const fn is_indeterminate(&self) -> bool {
        matches!(self, Self::Timeout { .. } | Self::Dropped { .. } | Self::UnexpectedReply { .. })
    }
}
