//! The negative twins: one safeguard each is taken away, at the seam between the pass and the stores. The pass's own code
//! stays what it is; each seam says why it makes the same fault as a pass without the safeguard would.

/// A safeguard that is missing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Twin {
    /// The write repeats the row's id only.
    GuardedByIdOnly,
    /// PostgreSQL takes writes under a stale fence.
    NoFenceInPostgres,
    /// The script takes no notice of a newer pass.
    NoFenceInScript,
    /// The queue is written before the row.
    EnqueueBeforeUpdate,
    /// Each queue is read at its own instant.
    OneSnapshotPerQueue,
    /// Each state of each queue is read at its own instant, `active` last.
    SeparateReads,
    /// The first look is believed.
    NoSecondLook,
    /// Absence is believed whatever became of Redis.
    NoEpoch,
    /// A look that failed counts as one that found nothing.
    ErrorAsAbsence,
    /// The job is put back by `BullMQ`'s own add.
    PlainAdd,
    /// The parent is written outside the job's transaction.
    ParentOutside,
    /// What carries no row's id is somebody else's, whatever its name.
    UnattributedAsForeign,
    /// Accepting a queue vouches for the manifest, too.
    AcceptVouchesForNames,
    /// No young rows are looked up.
    NoControl,
}

impl Twin {
    /// All of them.
    pub const ALL: [Self; 14] = [
        Self::GuardedByIdOnly,
        Self::NoFenceInPostgres,
        Self::NoFenceInScript,
        Self::EnqueueBeforeUpdate,
        Self::OneSnapshotPerQueue,
        Self::SeparateReads,
        Self::NoSecondLook,
        Self::NoEpoch,
        Self::ErrorAsAbsence,
        Self::PlainAdd,
        Self::ParentOutside,
        Self::UnattributedAsForeign,
        Self::AcceptVouchesForNames,
        Self::NoControl,
    ];
}
