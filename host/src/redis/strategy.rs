//! Which way a snapshot is taken: as cheaply as its size allows, and never by paging what moves.
//!
//! Redis does one thing at a time, so whatever a look costs it costs every other client. What each way costs was measured
//! (`docs/snapshots.md`; Redis 7.0, ids of 30 bytes):
//!
//! | way | busy per id | what comes over the wire |
//! |---|---|---|
//! | range of a list or a sorted set | 0.05–0.15 µs | every id, in one reply |
//! | COPY of a list | 0.004 µs, ten times that in fresh memory | pages |
//! | COPY of a sorted set | 1 µs | pages |
//! | SORT of a sorted set into a list | 0.3 µs | pages |
//! | LPOS of an id that is not there | 0.025 µs | nothing |
//! | ZMSCORE | 1 µs per id that is looked for, however long the set | nothing |
//!
//! So long lists are copied, and sorted sets come as ranges until their reply would fill the host's memory: copying them
//! holds Redis up longer than reading them. A few jobs among many ids are looked for by their ids first; if all are found,
//! no ids are read at all. That can never prove an absence: the entry may have another id, and only all ids tell.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use salvage_core::act::Place;
use salvage_core::sighting::QueueFailure;
use salvage_core::snapshot::State;

/// Redis's own cost of an id: its text, an entry of a list or of a reply, and some slack.
const BYTES_PER_ID: u64 = 128;

/// A look may take up to this part of the memory that Redis has left.
const MEMORY_SHARE: u64 = 2;

/// Redis is busy for so long with one id of a list that LPOS walks.
const LPOS_PER_ID: Duration = Duration::from_nanos(25);

/// Redis is busy for so long with one place of a job, in three sorted sets and three lists, besides walking the lists.
const PROBE_PER_PLACE: Duration = Duration::from_micros(4);

/// Where one way of taking a snapshot gives way to another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SnapshotLimits {
    /// Up to so many ids in all wanted queues together are read as ranges, in one round trip and without writing anything.
    pub ranges_max: usize,
    /// Of so many ids in all sorted sets together the reply still fits the host; if there are more, they are copied, too.
    pub sorted_sets_max: usize,
    /// A state of no more ids than this is not worth a copy.
    pub short_max: usize,
    /// Longest time for which Redis may be busy looking for jobs by their ids.
    pub probe_max: Duration,
}

impl SnapshotLimits {
    /// What was measured to hold Redis up least (`docs/snapshots.md`).
    #[must_use]
    pub const fn measured() -> Self {
        Self {
            ranges_max: 20_000,
            sorted_sets_max: 1_000_000,
            short_max: 1_000,
            probe_max: Duration::from_millis(5),
        }
    }

    /// Whatever can be copied is copied.
    #[must_use]
    pub const fn all_copies() -> Self {
        Self { ranges_max: 0, sorted_sets_max: 0, short_max: 0, probe_max: Duration::ZERO }
    }

    /// Nothing is copied or looked for by its id, however long it is.
    #[must_use]
    pub const fn all_ranges() -> Self {
        Self {
            ranges_max: usize::MAX,
            sorted_sets_max: usize::MAX,
            short_max: usize::MAX,
            probe_max: Duration::ZERO,
        }
    }
}

/// How long Redis is busy with one LPOS that walks lists of so many ids.
fn walk(listed: usize) -> Duration {
    LPOS_PER_ID.saturating_mul(narrow(listed))
}

fn narrow(count: usize) -> u32 {
    u32::try_from(count).unwrap_or(u32::MAX)
}

/// How much there is to read, asked for before anything is read. It may have changed by then, which costs time at worst.
#[derive(Debug, Clone, Default)]
pub(super) struct Sizes {
    /// Ids by queue and state.
    pub(super) lengths: BTreeMap<String, BTreeMap<State, usize>>,
    /// Bytes below Redis's own limit or, if it has none, the machine's. `None` if it does not say.
    pub(super) free: Option<u64>,
}

/// The states that are to be copied; all others are read as ranges.
pub(super) type Copied = BTreeSet<(String, State)>;

impl Sizes {
    fn states(&self) -> impl Iterator<Item = (&str, State, usize)> {
        let queues = self.lengths.iter();
        queues.flat_map(|(queue, states)| states.iter().map(move |(state, &n)| (queue.as_str(), *state, n)))
    }

    fn total(&self) -> usize {
        self.states().map(|(.., length)| length).sum()
    }

    /// What to copy.
    ///
    /// # Errors
    /// If there is too little memory left even for a reply with all ids.
    pub(super) fn copied(&self, may_copy: bool, limits: &SnapshotLimits) -> Result<Copied, QueueFailure> {
        let total = self.total();
        if total <= limits.ranges_max {
            return Ok(Copied::new());
        }
        match self.free {
            Some(free) if !fits(total, free) => Err(QueueFailure::NoRoom { ids: total, free }),
            Some(_) if may_copy => Ok(self.long_states(limits)),
            // Copies take room: none are made without knowing that there is some.
            _ => Ok(Copied::new()),
        }
    }

    fn long_states(&self, limits: &SnapshotLimits) -> Copied {
        let in_sets: usize = self.states().filter(|(_, state, _)| !state.is_list()).map(|(.., n)| n).sum();
        let is_copied = |state: State, length| {
            length > limits.short_max && (state.is_list() || in_sets > limits.sorted_sets_max)
        };
        let long = self.states().filter(|(_, state, length)| is_copied(*state, *length));
        long.map(|(queue, state, _)| (queue.to_owned(), state)).collect()
    }

    /// Whether looking for these jobs by their ids first costs so much less than reading all ids that it is worth a try.
    pub(super) fn is_probe_worth(&self, jobs: &[Vec<Place>], limits: &SnapshotLimits) -> bool {
        if jobs.is_empty() || self.total() <= limits.ranges_max {
            return false;
        }
        let listed = |queue: &str| {
            let lists = self.lengths.get(queue).into_iter().flatten().filter(|(state, _)| state.is_list());
            lists.map(|(_, length)| *length).sum::<usize>()
        };
        let cost = jobs.iter().flatten().try_fold(Duration::ZERO, |sum, place| {
            Some(sum + PROBE_PER_PLACE + walk(listed(&place.queue))).filter(|sum| *sum <= limits.probe_max)
        });
        cost.is_some()
    }
}

const fn fits(ids: usize, free: u64) -> bool {
    (ids as u64).saturating_mul(BYTES_PER_ID).saturating_mul(MEMORY_SHARE) <= free
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLENTY: Option<u64> = Some(1 << 40);

    fn sizes(lengths: &[(State, usize)], free: Option<u64>) -> Sizes {
        Sizes { lengths: [("q".to_owned(), lengths.iter().copied().collect())].into(), free }
    }

    fn copied(lengths: &[(State, usize)], may_copy: bool, free: Option<u64>) -> Vec<State> {
        let copied = sizes(lengths, free).copied(may_copy, &SnapshotLimits::measured());
        copied.expect("room").into_iter().map(|(_, state)| state).collect()
    }

    #[test]
    fn only_long_lists_are_copied_and_only_among_many_ids() {
        let lengths = [(State::Waiting, 19_000), (State::Active, 900), (State::Delayed, 100)];
        assert_eq!(copied(&lengths, true, PLENTY), []);
        let lengths = [(State::Waiting, 19_000), (State::Active, 900), (State::Delayed, 50_000)];
        assert_eq!(copied(&lengths, true, PLENTY), [State::Waiting]);
    }

    #[test]
    fn sorted_sets_are_copied_only_when_their_ids_fill_the_host() {
        let lengths =
            [(State::Delayed, 400_000), (State::Prioritized, 700_000), (State::WaitingChildren, 10)];
        assert_eq!(copied(&lengths, true, PLENTY), [State::Delayed, State::Prioritized]);
        assert_eq!(copied(&lengths[1..], true, PLENTY), []);
    }

    #[test]
    fn nothing_is_copied_where_nothing_may_be_written_or_memory_is_unknown() {
        let lengths = [(State::Waiting, 100_000)];
        assert_eq!(copied(&lengths, false, PLENTY), []);
        assert_eq!(copied(&lengths, true, None), []);
    }

    #[test]
    fn near_its_memory_limit_redis_is_asked_for_few_ids_only() {
        let long = sizes(&[(State::Waiting, 100_000)], Some(1_000_000));
        for may_copy in [true, false] {
            let found = long.copied(may_copy, &SnapshotLimits::measured());
            assert_eq!(found, Err(QueueFailure::NoRoom { ids: 100_000, free: 1_000_000 }));
        }
        assert_eq!(copied(&[(State::Waiting, 20_000)], true, Some(0)), []);
    }

    #[test]
    fn everything_or_nothing_is_copied_if_so_wanted() {
        let lengths = [(State::Waiting, 1), (State::Delayed, 2), (State::Paused, 0)];
        let found = |limits| sizes(&lengths, PLENTY).copied(true, &limits).expect("room").len();
        assert_eq!(found(SnapshotLimits::all_copies()), 2);
        assert_eq!(found(SnapshotLimits::all_ranges()), 0);
    }

    #[test]
    fn a_handful_is_looked_for_by_id_where_no_long_list_must_be_walked_for_it() {
        let job = || vec![Place { queue: "q".into(), entry_id: "slide-1".into() }];
        let jobs = |count: usize| std::iter::repeat_with(job).take(count).collect::<Vec<_>>();
        let is_worth = |lengths: &[(State, usize)], count| {
            sizes(lengths, PLENTY).is_probe_worth(&jobs(count), &SnapshotLimits::measured())
        };
        assert!(is_worth(&[(State::Delayed, 1_000_000)], 1_000));
        assert!(is_worth(&[(State::Waiting, 100_000)], 1));
        assert!(!is_worth(&[(State::Waiting, 100_000)], 3), "three walks take longer than a copy");
        assert!(!is_worth(&[(State::Waiting, 1_000_000)], 1));
        assert!(!is_worth(&[(State::Delayed, 1_000)], 1), "reading all of it is cheap");
        assert!(!is_worth(&[(State::Delayed, 1_000_000)], 0));
    }
}
