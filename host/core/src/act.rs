//! The one write Salvage makes for an orphan: job row, parent row, ledger and queue, all or nothing.

use std::time::Duration;

use crate::candidate::Candidate;
use crate::decision::{Requeue, Ruling};
use crate::manifest::{JobType, ParentChange, QueueRule, Source};
use crate::outcome::Outcome;
use crate::source::{ResolvedSource, Sibling, siblings};

/// PostgreSQL's own end of a transaction of ours that hangs: a frozen holder must not block the application.
pub const STATEMENT_TIMEOUT: Duration = Duration::from_secs(5);

/// How long a transaction of ours waits for a lock. Well below PostgreSQL's `deadlock_timeout`, so that in a deadlock
/// it is always we who give way.
pub const LOCK_TIMEOUT: Duration = Duration::from_millis(250);

/// How old the second look may be when an act begins. Beyond it, what the look did not find may have come meanwhile under
/// an id that the script does not know; what is left waits for the next pass.
pub const LOOK_AGE_MAX: Duration = Duration::from_secs(15);

/// Acts in flight at once.
pub const ACTS_CONCURRENT: usize = 8;

/// A write to be made under condition.
#[derive(Debug, Clone)]
pub struct Act {
    /// The orphan; its row token is the condition.
    pub candidate: Candidate,
    /// What to write.
    pub change: Change,
    /// The parent to change with it, if its status allows.
    pub parent: Option<ParentAct>,
    /// Digest of the inputs the decision rests on; they are read again in the transaction.
    pub inputs_digest: String,
    /// Where the job would be, in every queue of its source: (queue, entry id).
    pub places: Vec<Place>,
}

/// Where an entry of a job would be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    /// The queue.
    pub queue: String,
    /// The entry's id there.
    pub entry_id: String,
}

/// Every place where a row's job would be, in the order of the source's queues.
#[must_use]
pub fn places(source: &Source, row_id: &str) -> Vec<Place> {
    let place = |rule: &QueueRule| Place { queue: rule.name.clone(), entry_id: rule.job_id.render(row_id) };
    source.queues.iter().map(place).collect()
}

/// The job's new state.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Change {
    /// QUEUED again, with an entry in a queue.
    Requeue {
        /// What to enqueue, and where.
        requeue: Requeue,
        /// Its id there.
        entry_id: String,
        /// How long it waits before a worker may take it.
        delay: Duration,
    },
    /// FAILED.
    Fail {
        /// What the row will say.
        reason: String,
    },
}

/// The parent's part of an act.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ParentAct {
    /// The compare-and-set.
    pub change: ParentChange,
    /// While one of these is live, the parent is left alone.
    pub siblings: Vec<Sibling>,
}

/// The act for a ruling; `None` for a ruling that writes nothing.
#[must_use]
pub fn act(
    sources: &[ResolvedSource],
    candidate: &Candidate,
    ruling: &Ruling,
    inputs_digest: &str,
    delay: Duration,
) -> Option<Act> {
    let source = &sources[candidate.source].declared;
    let row_id = &candidate.token.id;
    let job_type = source.job_type(&candidate.job_type);
    let (change, parent) = match ruling {
        Ruling::Requeue(requeue) => {
            let entry_id = source.queue(&requeue.queue)?.job_id.render(row_id);
            let change = Change::Requeue { requeue: requeue.clone(), entry_id, delay };
            (change, job_type.and_then(|job_type: &JobType| job_type.on_requeue.clone()))
        }
        Ruling::Fail { reason } => {
            let change = Change::Fail { reason: reason.clone() };
            (change, job_type.and_then(|job_type| job_type.on_fail.clone()))
        }
        Ruling::Hold { .. } | Ruling::Refused { .. } => return None,
    };
    Some(Act {
        candidate: candidate.clone(),
        change,
        parent: parent.map(|change| ParentAct { siblings: siblings(sources, &change), change }),
        inputs_digest: inputs_digest.to_owned(),
        places: places(source, row_id),
    })
}

/// What the queue's script did.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ScriptAnswer {
    /// The job was enqueued, or, for a fail, is in no state of any of its queues.
    Clear,
    /// The job is back in a queue. Nothing was written.
    Present {
        /// The queue.
        queue: String,
        /// The state's key.
        state: String,
    },
    /// The queue's condition forbids it. Nothing was written.
    Refused(QueueRefusal),
}

/// Why the script refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum QueueRefusal {
    /// The deadline passed before the script ran.
    #[error("late: the act's deadline had passed when the queue was reached")]
    Late,
    /// A newer pass was here.
    #[error("fenced: a newer pass (generation {generation}) works on queue {queue:?}")]
    Fenced {
        /// The queue.
        queue: String,
        /// Its generation.
        generation: u64,
    },
    /// Our nonce is not there any more: Redis was wiped or restored since the snapshot.
    #[error("epoch: the host's nonce in queue {queue:?} is not the one of this pass")]
    Epoch {
        /// The queue.
        queue: String,
    },
    /// `meta` was there at the snapshot and is not now.
    #[error("meta-missing: queue {queue:?} lost its `meta` since the snapshot")]
    MetaMissing {
        /// The queue.
        queue: String,
    },
    /// Enqueuing into a paused queue can lose the job at resume.
    #[error("paused: queue {queue:?} is paused; it is tried again in the next pass")]
    Paused {
        /// The queue.
        queue: String,
    },
    /// A worker holds the job's lock.
    #[error("locked: a worker holds the lock of entry {entry_id:?} in queue {queue:?}")]
    Locked {
        /// The queue.
        queue: String,
        /// The entry.
        entry_id: String,
    },
    /// The leftover hash belongs to a flow.
    #[error("flow: entry {entry_id:?} of queue {queue:?} belongs to a flow")]
    Flow {
        /// The queue.
        queue: String,
        /// The entry.
        entry_id: String,
    },
    /// The leftover hash belongs to a scheduler.
    #[error("scheduler: entry {entry_id:?} of queue {queue:?} belongs to a job scheduler")]
    Scheduler {
        /// The queue.
        queue: String,
        /// The entry.
        entry_id: String,
    },
    /// Such an entry cannot be put into a queue at all.
    #[error("unfit: entry {entry_id:?} cannot be put into queue {queue:?}: {why}")]
    Unfit {
        /// The queue.
        queue: String,
        /// The entry.
        entry_id: String,
        /// Why not.
        why: &'static str,
    },
    /// A key is not of BullMQ's type.
    #[error("wrong-type: key {key} of queue {queue:?} is not what BullMQ writes")]
    WrongType {
        /// The queue.
        queue: String,
        /// The key.
        key: String,
    },
}

impl ScriptAnswer {
    /// The outcome if it is not the clean success that lets the transaction commit.
    #[must_use]
    pub fn obstacle(self) -> Option<Outcome> {
        match self {
            Self::Clear => None,
            Self::Present { queue, state } => {
                Some(Outcome::Superseded(format!("the job is back in queue {queue:?} ({state})")))
            }
            Self::Refused(why) => Some(Outcome::Refused(why.to_string())),
        }
    }
}
