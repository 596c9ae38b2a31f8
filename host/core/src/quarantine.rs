//! When a handler that only fails is left in peace, and how it gets out again.
//!
//! ```text
//!             FAULTS calls in PASSES passes failed, none answered
//!   trusted ────────────────────────────────────────────────────▶ quarantined
//!      ▲                                                               │
//!      └──────────── an answer about another job, one try a pass ──────┘
//! ```
//!
//! A trap costs one orphan its decision; one bad row must not cost the others theirs. So it is not a number of traps that
//! counts but a number of traps without any answer in between, and even then the handler is tried once in each pass, on a
//! job it has not failed on. A new build begins anew, and so does a new process.

use std::collections::BTreeSet;

/// Calls that fail one after the other.
pub const FAULTS: u32 = 10;

/// Passes among which they fall: a bad quarter of an hour of the machine is no reason.
pub const PASSES: u32 = 3;

/// Most jobs remembered as failed on.
const JOBS_MAX: usize = 1_000;

/// How one build of a handler has fared since its last answer.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Quarantine {
    faults: u32,
    passes: u32,
    /// Whether the pass under way is among `passes`.
    has_failed_in_pass: bool,
    /// Whether the one try of the pass under way was made.
    is_tried: bool,
    /// Ids of the jobs it failed on.
    jobs: BTreeSet<String>,
    /// Why, the last time.
    last: String,
    is_on: bool,
}

/// What a call changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Turn {
    /// It is quarantined from now on.
    Quarantined,
    /// It is trusted again.
    Released,
}

impl Quarantine {
    /// A pass begins.
    pub const fn pass_begins(&mut self) {
        self.has_failed_in_pass = false;
        self.is_tried = false;
    }

    /// Whether it may be asked about a job; in quarantine, `true` is the one try of this pass.
    pub fn may_ask(&mut self, job_id: &str) -> bool {
        if !self.is_on {
            return true;
        }
        if self.is_tried || self.jobs.contains(job_id) {
            return false;
        }
        self.is_tried = true;
        true
    }

    /// A call failed: it trapped, or ran out of one of its limits.
    pub fn failed(&mut self, job_id: &str, why: &str) -> Option<Turn> {
        self.faults = self.faults.saturating_add(1);
        if !self.has_failed_in_pass {
            self.has_failed_in_pass = true;
            self.passes = self.passes.saturating_add(1);
        }
        if self.jobs.len() < JOBS_MAX {
            self.jobs.insert(job_id.to_owned());
        }
        why.clone_into(&mut self.last);
        if self.is_on || self.faults < FAULTS || self.passes < PASSES {
            return None;
        }
        self.is_on = true;
        Some(Turn::Quarantined)
    }

    /// A call was answered, with whatever decision.
    pub fn answered(&mut self) -> Option<Turn> {
        let was_on = std::mem::take(self).is_on;
        was_on.then_some(Turn::Released)
    }

    /// Why it is quarantined, and the ways out; `None` if it is not.
    #[must_use]
    pub fn why(&self) -> Option<String> {
        self.is_on.then(|| {
            format!(
                "its last {} calls, in {} passes, all failed, the last one with: {}; its jobs wait until a \
                 new build of it is there, the host is started again, or it answers for another job (tried once a pass)",
                self.faults, self.passes, self.last
            )
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Asks about each of `jobs` in one pass, all of which fail; returns those that were asked about.
    fn fails<'j>(quarantine: &mut Quarantine, jobs: &[&'j str]) -> Vec<&'j str> {
        quarantine.pass_begins();
        let ask = |job: &&&'j str| {
            let may_ask = quarantine.may_ask(job);
            if may_ask {
                quarantine.failed(job, "trap");
            }
            may_ask
        };
        jobs.iter().filter(ask).copied().collect()
    }

    #[test]
    fn ten_faults_in_three_passes_without_an_answer_are_enough_and_less_is_not() {
        let mut many = Quarantine::default();
        let jobs: Vec<String> = (0..50).map(|job| job.to_string()).collect();
        let jobs: Vec<&str> = jobs.iter().map(String::as_str).collect();
        fails(&mut many, &jobs);
        fails(&mut many, &jobs);
        assert_eq!(many.why(), None, "two passes");
        assert_eq!(fails(&mut many, &jobs), ["0"], "the first call of the third");
        assert!(many.why().is_some_and(|why| why.contains("its last 101 calls, in 3 passes")));

        let mut few = Quarantine::default();
        for _ in 0..9 {
            fails(&mut few, &["a"]);
        }
        assert_eq!(few.why(), None, "nine faults");
        assert_eq!(few.failed("a", "trap"), Some(Turn::Quarantined));
    }

    #[test]
    fn one_bad_job_among_good_ones_is_no_reason() {
        let mut quarantine = Quarantine::default();
        for _ in 0..100 {
            fails(&mut quarantine, &["bad", "worse"]);
            quarantine.answered();
        }
        assert_eq!(quarantine.why(), None);
    }

    #[test]
    fn in_quarantine_one_other_job_is_tried_in_each_pass_and_an_answer_releases() {
        let mut quarantine = Quarantine::default();
        for _ in 0..10 {
            fails(&mut quarantine, &["a"]);
        }
        assert!(quarantine.why().is_some());
        assert_eq!(fails(&mut quarantine, &["a", "b", "c"]), ["b"]);
        assert_eq!(fails(&mut quarantine, &["a", "b", "c", "d"]), ["c"]);
        quarantine.pass_begins();
        assert!(!quarantine.may_ask("a") && quarantine.may_ask("d"));
        assert_eq!(quarantine.answered(), Some(Turn::Released));
        assert_eq!((quarantine.why(), quarantine.may_ask("a")), (None, true));
    }
}
