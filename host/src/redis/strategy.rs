//! Which way a snapshot is taken: so that Redis is held up little, and never by paging what moves.
//!
//! Redis does one thing at a time, so whatever a look costs it costs every other client. What each way costs was measured
//! (`docs/snapshots.md`), and decides:
//!
//! - A few thousand ids cost little in any way. They come as ranges, in the one reply, and nothing is written.
//! - A list is copied in a tenth of the time that it takes to read, or less: lists are packed, and a copy of a million ids
//!   is a copy of a few thousand blocks. So long ones are copied at the snapshot's instant, and the copies read in pages.
//! - Whatever reads a sorted set at one instant visits each of its entries, all over the memory, and that is most of the
//!   cost. So long ones are left out of the first look: most candidates are found without, or by their ids. Only if any is
//!   left are they read. Then as copies in lists: no slower than a range, and the host need not hold all ids at once.
//!
//! Payloads are bounded by bytes: a reply takes as much of Redis's memory until the client has read it, and a Redis that is
//! near its limit refuses the application's writes then, or evicts its keys.

use std::collections::BTreeMap;

use salvage_core::sighting::QueueFailure;
use salvage_core::snapshot::State;

/// What an id takes of Redis's memory: for ids of 31 bytes, 33 were measured in a copy and 38 in a reply. SORT needs some
/// more while it is at work, and ids may be longer.
const BYTES_PER_ID: u64 = 128;

/// A look may take up to this part of the memory that Redis has left.
const MEMORY_SHARE: u64 = 2;

/// Bytes of payloads that a page may hold however little memory is left. As much as a look at a few thousand ids takes.
pub(super) const PAGE_SURE: u64 = 256 << 10;

/// Bytes of payloads that a page may hold at most: Redis is busy for two to four milliseconds with them.
pub(super) const PAGE_MAX: u64 = 1 << 20;

/// A page or reply of payloads may take one in so many of the bytes that Redis has left.
pub(super) const PAGE_SHARE: u64 = 8;

/// Bytes of a reply that holds one payload at most: on a line of 100 Mbit/s it takes two seconds, and the host holds it
/// three times for a moment.
const REPLY_MAX: u64 = 24 << 20;

/// Bytes of a payload that is read at all.
const PAYLOAD_MAX: u64 = 64 << 20;

/// To read a part of a payload, Redis holds it four times for as long as the script runs.
const PART_SHARE: u64 = 4;

/// Bytes that Redis is taken to have left if it does not say.
const LEFT_UNKNOWN: u64 = 64 << 20;

/// For how much there is room when a payload is read alone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Room {
    /// Bytes of one reply.
    pub(super) reply: u64,
    /// Bytes of a payload that is read in several of them; a longer one is not read.
    pub(super) payload: u64,
}

impl Room {
    /// With so many bytes left below Redis's limit, if it says so.
    pub(super) fn within(left: Option<u64>) -> Self {
        let left = left.unwrap_or(LEFT_UNKNOWN);
        Self { reply: REPLY_MAX.min(left / PAGE_SHARE), payload: PAYLOAD_MAX.min(left / PART_SHARE) }
    }
}

/// Where one way of taking a snapshot gives way to another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SnapshotLimits {
    /// Up to so many ids in all wanted queues together are read as ranges, in one round trip and without writing anything.
    pub ranges_max: usize,
    /// A state of no more ids than this is read as a range among long ones, too.
    pub short_max: usize,
}

impl SnapshotLimits {
    /// What was measured to hold Redis up least (`docs/snapshots.md`). On a crowded machine, where the longest stall was to
    /// be 20 ms, a range took 0.2 µs an id of a list and up to 2 µs an id of a sorted set: 10,000 ids are the most that
    /// keep within it. A thousand take a tenth of that, less than the round trips of another copy.
    #[must_use]
    pub const fn measured() -> Self {
        Self { ranges_max: 10_000, short_max: 1_000 }
    }

    /// Whatever can be copied is copied.
    #[must_use]
    pub const fn all_copies() -> Self {
        Self { ranges_max: 0, short_max: 0 }
    }

    /// Nothing is copied or left out, however long it is.
    #[must_use]
    pub const fn all_ranges() -> Self {
        Self { ranges_max: usize::MAX, short_max: usize::MAX }
    }
}

/// How much there is to read, asked for before anything is read. It may have changed by then, which costs time at worst.
#[derive(Debug, Clone, Default)]
pub(super) struct Sizes {
    /// Ids by queue and state.
    pub(super) lengths: BTreeMap<String, BTreeMap<State, usize>>,
    /// Bytes below Redis's own limit or, if it has none, the machine's. `None` if it does not say.
    pub(super) free: Option<u64>,
}

/// How a long state is read, if not as a range.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Way {
    /// In a copy.
    Copy,
    /// Not at all.
    LeaveOut,
}

/// The states that are not read as ranges.
pub(super) type Ways = BTreeMap<(String, State), Way>;

impl Sizes {
    /// How to read what is not to be read as ranges.
    ///
    /// # Errors
    /// If there is too little memory left even for a reply with all ids.
    pub(super) fn ways(
        &self,
        is_whole: bool,
        may_copy: bool,
        limits: &SnapshotLimits,
    ) -> Result<Ways, QueueFailure> {
        let total: usize = self.states().map(|(.., length)| length).sum();
        if total <= limits.ranges_max {
            return Ok(Ways::new());
        }
        let is_long = |length| length > limits.short_max;
        let is_left_out = |state: State, length| is_long(length) && !state.is_list() && !is_whole;
        let read = self.states().filter(|(_, state, length)| !is_left_out(*state, *length));
        let ids: usize = read.map(|(.., length)| length).sum();
        if let Some(free) = self.free.filter(|free| !fits(ids, *free)) {
            return Err(QueueFailure::NoRoom { ids, free });
        }
        // Copies take room: none are made without knowing that there is some.
        let may_copy = may_copy && self.free.is_some();
        let way = |state, length| match is_left_out(state, length) {
            true => Some(Way::LeaveOut),
            false => (may_copy && is_long(length)).then_some(Way::Copy),
        };
        let ways = self
            .states()
            .filter_map(|(queue, state, length)| Some(((queue.to_owned(), state), way(state, length)?)));
        Ok(ways.collect())
    }

    fn states(&self) -> impl Iterator<Item = (&str, State, usize)> {
        let queues = self.lengths.iter();
        queues.flat_map(|(queue, states)| states.iter().map(move |(state, &n)| (queue.as_str(), *state, n)))
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

    fn ways(
        lengths: &[(State, usize)],
        is_whole: bool,
        may_copy: bool,
        free: Option<u64>,
    ) -> Vec<(State, Way)> {
        let ways = sizes(lengths, free).ways(is_whole, may_copy, &SnapshotLimits::measured());
        ways.expect("room").into_iter().map(|((_, state), way)| (state, way)).collect()
    }

    #[test]
    fn only_long_states_among_many_ids_are_copied() {
        let lengths = [(State::Waiting, 9_000), (State::Active, 900), (State::Delayed, 100)];
        assert_eq!(ways(&lengths, true, true, PLENTY), []);
        let lengths = [(State::Waiting, 9_000), (State::Active, 900), (State::Delayed, 50_000)];
        let copied = [(State::Waiting, Way::Copy), (State::Delayed, Way::Copy)];
        assert_eq!(ways(&lengths, true, true, PLENTY), copied);
    }

    #[test]
    fn long_sorted_sets_are_left_out_where_no_absence_is_to_be_proven() {
        let lengths = [(State::Waiting, 9_000), (State::Delayed, 50_000), (State::Prioritized, 900)];
        let left_out = (State::Delayed, Way::LeaveOut);
        assert_eq!(ways(&lengths, false, true, PLENTY), [(State::Waiting, Way::Copy), left_out]);
        assert_eq!(ways(&lengths, false, false, PLENTY), [left_out]);
    }

    #[test]
    fn nothing_is_copied_where_nothing_may_be_written_or_memory_is_unknown() {
        let lengths = [(State::Waiting, 100_000)];
        assert_eq!(ways(&lengths, true, false, PLENTY), []);
        assert_eq!(ways(&lengths, true, true, None), []);
    }

    #[test]
    fn near_its_memory_limit_redis_is_asked_for_few_ids_only() {
        let long = sizes(&[(State::Waiting, 50_000), (State::Delayed, 50_000)], Some(1_000_000));
        for (is_whole, may_copy, ids) in
            [(true, true, 100_000), (true, false, 100_000), (false, true, 50_000)]
        {
            let found = long.ways(is_whole, may_copy, &SnapshotLimits::measured());
            assert_eq!(found, Err(QueueFailure::NoRoom { ids, free: 1_000_000 }));
        }
        assert_eq!(ways(&[(State::Waiting, 10_000)], true, true, Some(0)), []);
    }

    #[test]
    fn a_payload_alone_takes_a_small_part_of_the_memory_that_is_left() {
        let mib = |count: u64| count << 20;
        let room = |left| (Room::within(left).reply, Room::within(left).payload);
        assert_eq!(room(PLENTY), (REPLY_MAX, PAYLOAD_MAX));
        assert_eq!(room(Some(mib(60))), (mib(60) / 8, mib(15)));
        assert_eq!(room(Some(0)), (0, 0));
        assert_eq!(room(None), (mib(8), mib(16)), "as long as it does not say");
    }

    #[test]
    fn everything_or_nothing_is_copied_if_so_wanted() {
        let lengths = [(State::Waiting, 1), (State::Delayed, 2), (State::Paused, 0)];
        let found = |limits| sizes(&lengths, PLENTY).ways(true, true, &limits).expect("room").len();
        assert_eq!(found(SnapshotLimits::all_copies()), 2);
        assert_eq!(found(SnapshotLimits::all_ranges()), 0);
    }
}
