//! Mass loss: how many orphans of one source are acted on before the stores are asked whether it worked.
//!
//! ```text
//!   not many ──▶ all at once
//!   many ──▶ 1 ──seen──▶ 4 ──seen──▶ 16 ──seen──▶ 64 …
//!            └─────┴─ not seen ─┴──▶ no more in this pass
//! ```
//!
//! When suddenly most jobs of a source look lost, either they are, or we are wrong about all of them at once. A mistake
//! of that kind shall cost one job, not a thousand.

use std::fmt;

/// Up to so many orphans of one source are not many, whatever their share.
pub const MASS_MIN: usize = 20;

/// Acts of the first stage.
const FIRST: usize = 1;

/// How many times as many as were seen the next stage has.
const GROWTH: usize = 4;

/// Whether so many orphans that may be acted on, of so many candidates that could be judged, are a mass loss.
#[must_use]
pub const fn is_mass(orphans: usize, judged: usize) -> bool {
    orphans > MASS_MIN && orphans > judged / 2
}

/// The acts of one source in one pass, on their way through its stages.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stages {
    next: Next,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Next {
    All,
    Stage(usize),
    Nothing,
}

/// What became of the acts of a stage, as the stores tell once it is over.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Stage {
    /// Acts that were applied, or may have been.
    pub done: usize,
    /// Of those, the ones whose job a queue holds, or whose row is not live any more.
    pub seen: usize,
}

/// What was done and cannot be seen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Unseen {
    stage: Stage,
}

impl fmt::Display for Unseen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Stage { done, seen } = self.stage;
        write!(
            f,
            "of {done} just put back or failed, only {seen} can be found so in their queue or row: nothing more is done \
             for this source in this pass; look for what takes them away before the next one begins anew with one job"
        )
    }
}

impl Stages {
    /// In stages, or all at once.
    #[must_use]
    pub const fn new(is_many: bool) -> Self {
        Self { next: if is_many { Next::Stage(FIRST) } else { Next::All } }
    }

    /// Whether each stage has to be seen before the next.
    #[must_use]
    pub const fn are_many(&self) -> bool {
        !matches!(self.next, Next::All)
    }

    /// At most so many acts in the next stage; none once a stage was not seen.
    #[must_use]
    pub const fn size(&self) -> usize {
        match self.next {
            Next::All => usize::MAX,
            Next::Stage(size) => size,
            Next::Nothing => 0,
        }
    }

    /// Goes on to the next stage. One in which nothing could be done proves nothing, and is tried again on other
    /// orphans: the first of them may be refused for ever.
    ///
    /// # Errors
    /// If what was done is not to be seen: no more acts in this pass.
    pub fn go_on(&mut self, stage: Stage) -> Result<(), Unseen> {
        if let Next::Stage(size) = self.next {
            if stage.seen < stage.done {
                self.next = Next::Nothing;
                return Err(Unseen { stage });
            }
            self.next = Next::Stage(if stage.seen == 0 { size } else { stage.seen.saturating_mul(GROWTH) });
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn all_seen(count: usize) -> Stage {
        Stage { done: count, seen: count }
    }

    #[test]
    fn more_than_twenty_and_more_than_half_are_many() {
        for (orphans, judged, expected) in [
            (20, 20, false),
            (21, 21, true),
            (21, 42, false),
            (22, 42, true),
            (300, 700, false),
            (0, 0, false),
        ] {
            assert_eq!(is_mass(orphans, judged), expected, "{orphans} of {judged}");
        }
    }

    #[test]
    fn stages_grow_fourfold_while_each_is_seen() {
        let mut stages = Stages::new(true);
        for expected in [1, 4, 16, 64, 256, 1024] {
            assert_eq!(stages.size(), expected);
            stages.go_on(all_seen(expected)).expect("it was seen");
        }
    }

    #[test]
    fn a_stage_that_is_not_seen_is_the_last() {
        let mut stages = Stages::new(true);
        stages.go_on(all_seen(1)).expect("it was seen");
        let unseen = stages.go_on(Stage { done: 4, seen: 3 }).expect_err("one is missing");
        assert!(unseen.to_string().starts_with("of 4 "), "{unseen}");
        assert_eq!(stages.size(), 0);
        stages.go_on(Stage::default()).expect("there was nothing to be seen");
        assert_eq!(stages.size(), 0, "whatever comes after it");
    }

    #[test]
    fn not_many_are_acted_on_at_once_and_never_checked() {
        let mut stages = Stages::new(false);
        assert_eq!((stages.size(), stages.are_many()), (usize::MAX, false));
        stages.go_on(Stage { done: 7, seen: 0 }).expect("nobody looked");
        assert_eq!(stages.size(), usize::MAX);
    }

    proptest! {
        /// However many of a stage are refused or lost, what is acted on unseen is never more than four times what was
        /// seen, or one.
        #[test]
        fn a_stage_is_never_more_than_four_times_what_was_seen(parts in prop::collection::vec((0..=100_usize, 0..=100_usize), 0..12)) {
            let mut stages = Stages::new(true);
            let mut seen_most = 0;
            for (done, seen) in parts {
                let size = stages.size();
                prop_assert!(size <= (seen_most * GROWTH).max(FIRST), "{} after {}", size, seen_most);
                let done = size * done / 100;
                let seen = done * seen / 100;
                seen_most = seen_most.max(seen);
                let went_on = stages.go_on(Stage { done, seen }).is_ok();
                prop_assert_eq!(went_on, seen == done);
            }
        }
    }
}
