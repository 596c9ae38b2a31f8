//! Chance that a seed repeats: `SplitMix64`, which is small, even, and not for secrets.

use std::ops::Range;
use std::time::Duration;

/// A stream of numbers; the same for the same seed.
pub(super) struct Chance(u64);

impl Chance {
    pub(super) const fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// The next number.
    pub(super) const fn number(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// From 0 to `end - 1`; `end` is not 0. Its bias is far too small to matter here.
    pub(super) fn below(&mut self, end: usize) -> usize {
        let end = u64::try_from(end).expect("usize has 64 bits at most");
        usize::try_from(self.number() % end).expect("less than a usize")
    }

    pub(super) fn one_in(&mut self, many: usize) -> bool {
        self.below(many) == 0
    }

    pub(super) fn one_of<'t, T>(&mut self, these: &'t [T]) -> &'t T {
        &these[self.below(these.len())]
    }

    /// To the millisecond.
    pub(super) fn within(&mut self, range: Range<Duration>) -> Duration {
        let width_ms = usize::try_from((range.end - range.start).as_millis()).expect("minutes");
        range.start + Duration::from_millis(self.below(width_ms) as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::Chance;

    #[test]
    fn a_seed_repeats_its_numbers_and_another_has_others() {
        let numbers = |seed| {
            let mut chance = Chance::new(seed);
            [(); 8].map(|()| chance.number())
        };
        assert_eq!(numbers(7), numbers(7));
        assert_ne!(numbers(7), numbers(8));
    }
}
