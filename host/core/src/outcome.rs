//! What became of an orphan.

use serde::Serialize;

/// The end of one orphan's story in one pass.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(tag = "kind", content = "why", rename_all = "kebab-case")]
pub enum Outcome {
    /// Written, in PostgreSQL and, for a requeue, in Redis.
    Applied,
    /// The row moved on, is locked by another, or its job is back in a queue or has run meanwhile. Nothing was written.
    Superseded(String),
    /// The row is not there any more. Nothing was written.
    Gone,
    /// Not allowed, by the host or by the queue's state. Nothing was written.
    Refused(String),
    /// It cannot be said whether it was written; the next pass looks again.
    Indeterminate(String),
    /// PostgreSQL rejects this row's change. Nothing was written.
    Parked(String),
    /// Older than what is known of its queues: waits for `accept`.
    BeforeEpoch(String),
    /// Too many at once would be failed without a trace: waits for `accept`.
    Storm(String),
}

impl Outcome {
    /// Its name in reports and in the ledger.
    #[must_use]
    pub const fn word(&self) -> &'static str {
        match self {
            Self::Applied => "applied",
            Self::Superseded(_) => "superseded",
            Self::Gone => "gone",
            Self::Refused(_) => "refused",
            Self::Indeterminate(_) => "indeterminate",
            Self::Parked(_) => "parked",
            Self::BeforeEpoch(_) => "before-epoch",
            Self::Storm(_) => "storm",
        }
    }

    /// The sentence that goes with it.
    #[must_use]
    pub fn why(&self) -> Option<&str> {
        match self {
            Self::Applied | Self::Gone => None,
            Self::Superseded(why)
            | Self::Refused(why)
            | Self::Indeterminate(why)
            | Self::Parked(why)
            | Self::BeforeEpoch(why)
            | Self::Storm(why) => Some(why),
        }
    }

    /// Whether it is proven that this act put nothing into a queue.
    #[must_use]
    pub const fn enqueued_nothing(&self) -> bool {
        !matches!(self, Self::Applied | Self::Indeterminate(_))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An intent is withdrawn only on proof: the cap of recoveries counts what may have been enqueued.
    #[test]
    fn only_what_was_applied_or_may_have_been_counts_as_a_recovery() {
        let why = String::new;
        for (outcome, enqueued_nothing) in [
            (Outcome::Applied, false),
            (Outcome::Indeterminate(why()), false),
            (Outcome::Superseded(why()), true),
            (Outcome::Gone, true),
            (Outcome::Refused(why()), true),
            (Outcome::Parked(why()), true),
            (Outcome::BeforeEpoch(why()), true),
            (Outcome::Storm(why()), true),
        ] {
            assert_eq!(outcome.enqueued_nothing(), enqueued_nothing, "{outcome:?}");
        }
    }
}
