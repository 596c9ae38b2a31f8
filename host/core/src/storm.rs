//! A storm: many jobs of one source that would be marked failed though they left nothing behind.
//!
//! A requeue that was wrong can be taken back; a thousand jobs marked FAILED by mistake (a handler that misreads its
//! inputs, a parent table that was emptied) are a thousand customers who are told so. So such a mass waits for a person.
//!
//! The way out is `salvage accept` of every queue of the source: its answer, "what the queues hold is the truth", is the
//! one that is needed. An acceptance counts for an orphan if it was given after the storm was first seen; or if the
//! orphan, being older than its queue's epoch, had waited for just that: nobody shall have to accept twice.

use jiff::Timestamp;

use crate::decision::Ruling;
use crate::epoch::{QueueMemory, SKEW_MARGIN};
use crate::sighting::{Residue, Sighting};

/// Up to so many fails without residue in one source are no storm.
pub const STORM_MIN: usize = 20;

/// A storm as PostgreSQL remembers it, from the pass that first saw it until one sees it no more.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Storm {
    /// When it was first seen; database clock.
    pub seen_at: Timestamp,
    /// How many orphans it had in the last pass.
    pub orphans: u64,
}

/// Whether an orphan counts towards a storm: it would be failed, and left nothing behind that says it ever ran.
#[must_use]
pub const fn is_of_a_storm(sighting: &Sighting, ruling: &Ruling) -> bool {
    matches!(sighting, Sighting::Absent { residue: Residue::None }) && matches!(ruling, Ruling::Fail { .. })
}

impl Storm {
    /// When the operator accepted it, if every queue of its source was accepted since it was first seen. `queues` are the
    /// memories of all of them, `None` for a queue never seen.
    #[must_use]
    pub fn accepted_at(&self, queues: &[Option<&QueueMemory>]) -> Option<Timestamp> {
        let accepted = |memory: &Option<&QueueMemory>| memory.and_then(|memory| memory.accepted_at);
        let first = queues.iter().map(accepted).min().flatten();
        first.filter(|first| *first >= self.seen_at)
    }
}

/// Whether the operator's acceptance covers the fail of an orphan whose row was written at `updated`.
#[must_use]
pub fn is_covered(updated: Timestamp, queues: &[Option<&QueueMemory>], storm: Option<&Storm>) -> bool {
    let waited_for_it = |memory: &&QueueMemory| {
        let limit = memory.epoch_began.checked_add(SKEW_MARGIN).unwrap_or(Timestamp::MAX);
        memory.accepted_at.is_some() && memory.ever_had_jobs && updated <= limit
    };
    queues.iter().flatten().any(waited_for_it)
        || storm.and_then(|storm| storm.accepted_at(queues)).is_some_and(|accepted| updated < accepted)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).expect("a time in range")
    }

    fn memory(epoch: i64, accepted: Option<i64>) -> QueueMemory {
        QueueMemory {
            nonce: None,
            nonce_next: None,
            id_counter: Some(1),
            ever_had_jobs: true,
            run_id: String::new(),
            replid: String::new(),
            evicted_keys: 0,
            epoch_began: at(epoch),
            accepted_at: accepted.map(at),
            lost_at: None,
        }
    }

    /// A row written at 5,000, in an epoch that began at 1,000; the storm was first seen at 10,000.
    fn check(accepted: [Option<i64>; 2], expected: bool) {
        let [one, other] = accepted.map(|accepted| memory(1_000, accepted));
        let storm = Storm { seen_at: at(10_000), orphans: 30 };
        let found = is_covered(at(5_000), &[Some(&one), Some(&other)], Some(&storm));
        assert_eq!(found, expected, "{accepted:?}");
    }

    #[test]
    fn a_storm_is_accepted_once_every_queue_was_since_it_was_first_seen() {
        check([None, None], false);
        check([Some(10_001), None], false);
        check([Some(9_999), Some(10_001)], false);
        check([Some(10_000), Some(10_001)], true);
    }

    #[test]
    fn an_acceptance_covers_no_orphan_whose_row_was_written_after_it() {
        let storm = Storm { seen_at: at(10_000), orphans: 30 };
        let accepted = memory(1_000, Some(11_000));
        assert!(is_covered(at(10_999), &[Some(&accepted)], Some(&storm)));
        assert!(!is_covered(at(11_000), &[Some(&accepted)], Some(&storm)));
    }

    #[test]
    fn a_queue_that_was_never_seen_was_never_accepted() {
        let storm = Storm { seen_at: at(10_000), orphans: 30 };
        assert!(!is_covered(at(5_000), &[Some(&memory(1_000, Some(11_000))), None], Some(&storm)));
    }

    #[test]
    fn an_orphan_that_waited_for_its_epoch_to_be_accepted_need_not_wait_again() {
        let covered = |memory: QueueMemory| is_covered(at(5_000), &[Some(&memory), None], None);
        assert!(covered(memory(5_000, Some(9_000))));
        assert!(!covered(memory(5_000, None)));
        assert!(!covered(memory(4_000, Some(9_000))), "its row was written within the epoch");
    }
}
