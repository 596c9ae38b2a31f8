//! The one source of chance: everything a seed decides comes from here.

use std::ops::Range;
use std::time::Duration;

/// `SplitMix64`: small, quick, and the same everywhere.
#[derive(Debug, Clone)]
pub(super) struct Random(u64);

impl Random {
    pub(super) const fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub(super) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// Evenly from 0 to `count - 1`.
    pub(super) fn below(&mut self, count: usize) -> usize {
        usize::try_from(self.next() % count.max(1) as u64).unwrap_or(0)
    }

    /// Evenly over 0 to 1.
    #[expect(clippy::cast_precision_loss, reason = "53 bits are what a float holds")]
    pub(super) fn fraction(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// True in so many of a thousand cases.
    pub(super) fn permille(&mut self, of_thousand: u32) -> bool {
        self.next() % 1_000 < u64::from(of_thousand)
    }

    pub(super) fn coin(&mut self) -> bool {
        self.permille(500)
    }

    pub(super) fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len())]
    }

    /// Evenly over a range of milliseconds.
    pub(super) fn ms(&mut self, range: Range<u64>) -> Duration {
        Duration::from_millis(range.start + self.next() % (range.end - range.start).max(1))
    }
}
