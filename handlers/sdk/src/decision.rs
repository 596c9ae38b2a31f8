//! What shall become of a job.

use crate::{Error, Inputs, Job, Options};
use serde_json::Value;

/// A handler's judgement: a pure function of the job and its inputs.
///
/// An error costs this one orphan its decision in this pass, as a panic does.
pub type Decide = fn(&Job, &Inputs) -> Result<Decision, Error>;

/// A handler's answer for one orphan.
#[derive(Debug, Clone, PartialEq)]
pub enum Decision {
    /// Its input can be rebuilt: put it back.
    Requeue(Requeue),
    /// It cannot: mark it failed. The reason is written to the row and shown to users.
    Fail(String),
    /// Leave it for now; asked again next pass. The reason is for the operator.
    Hold(String),
}

/// A BullMQ job to enqueue.
#[derive(Debug, Clone, PartialEq)]
pub struct Requeue {
    /// One of the source's queues. The entry's id follows that queue's rule.
    pub queue: String,
    /// BullMQ's job name.
    pub name: String,
    /// The payload: an object that carries the job's id under the queue's payload key.
    pub data: Value,
    /// BullMQ's options for the job.
    pub options: Options,
}

impl Decision {
    /// Puts the job back into `queue` with this BullMQ job name, payload and options.
    pub fn requeue(queue: impl Into<String>, name: impl Into<String>, data: Value, options: Options) -> Self {
        Decision::Requeue(Requeue { queue: queue.into(), name: name.into(), data, options })
    }

    /// Marks the job failed. The reason is one sentence that a user understands; see [`Job::reason`].
    pub fn fail(reason: impl Into<String>) -> Self {
        Decision::Fail(reason.into())
    }

    /// Leaves the job for now. The reason tells the operator what has to change.
    pub fn hold(reason: impl Into<String>) -> Self {
        Decision::Hold(reason.into())
    }
}
