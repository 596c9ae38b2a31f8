//! What happened in a history, in numbers.

/// What happened, for whoever asks; and how often, so that nobody takes an empty history for a peaceful one.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Tally {
    /// Passes that took the lease.
    pub passes: u64,
    /// Jobs put back, committed.
    pub requeued: u64,
    /// Jobs marked failed, committed.
    pub failed: u64,
    /// Parents changed with them.
    pub parents: u64,
    /// Scripts that ran and refused.
    pub refused: u64,
    /// Acts that found their row moved on or locked.
    pub superseded: u64,
    /// Hosts that died.
    pub crashes: u64,
    /// Hosts that froze.
    pub freezes: u64,
    /// Requests or replies that were lost.
    pub faults: u64,
    /// Disasters of Redis.
    pub disasters: u64,
    /// Moves of the application.
    pub moves: u64,
    /// Waits for the operator that ended with `accept`.
    pub accepts: u64,
    /// Writes that a newer fence refused, in either store.
    pub fenced: u64,
}

impl Tally {
    /// Adds another history's numbers.
    pub fn add(&mut self, other: &Self) {
        let pairs = [
            (&mut self.passes, other.passes),
            (&mut self.requeued, other.requeued),
            (&mut self.failed, other.failed),
            (&mut self.parents, other.parents),
            (&mut self.refused, other.refused),
            (&mut self.superseded, other.superseded),
            (&mut self.crashes, other.crashes),
            (&mut self.freezes, other.freezes),
            (&mut self.faults, other.faults),
            (&mut self.disasters, other.disasters),
            (&mut self.moves, other.moves),
            (&mut self.accepts, other.accepts),
            (&mut self.fenced, other.fenced),
        ];
        for (sum, count) in pairs {
            *sum += count;
        }
    }
}
