//! Whether everything ended as `scenario` says.

use super::driver::Run;
use super::host::Report;
use super::look::Found;
use super::scenario::{SITUATIONS, Situation, State, Verdict};
use std::fmt::Debug;

/// Everything that is not as expected, in the order in which it was seen.
#[derive(Default)]
pub(super) struct Differences {
    all: Vec<String>,
}

impl Differences {
    /// One sentence each.
    pub(super) fn list(&self) -> &[String] {
        &self.all
    }

    /// Rows, parents and entries at one look; `expected` picks the state of this look.
    pub(super) fn check_states(&mut self, when: &str, found: &[Found], expected: fn(&Situation) -> &State) {
        for (situation, found) in SITUATIONS.iter().zip(found) {
            let State { row, parent, entry } = expected(situation);
            self.check(situation, when, "the row", row, &found.row.as_str());
            self.check(situation, when, "the parent", parent, &found.parent.as_str());
            self.check(situation, when, "the entry", entry, &found.entry.as_str());
        }
    }

    /// A first pass on queues it does not know yet: every orphan waits, and nothing is written.
    pub(super) fn check_first_pass(&mut self, report: &Report, before: &[Found], after: &[Found]) {
        let when = "before `accept`";
        for (situation, (before, after)) in SITUATIONS.iter().zip(before.iter().zip(after)) {
            let outcome = report.get(&situation.key()).map(|told| told.outcome.as_str());
            let expected = (!matches!(situation.verdict, Verdict::LeftAlone(_))).then_some("before-epoch");
            self.check(situation, when, "the outcome", &expected, &outcome);
            self.check(situation, when, "the row's version", &before.version, &after.version);
        }
    }

    /// The pass that acts: the right decision for each, carried out; the rest not even written to.
    pub(super) fn check_recovery(&mut self, report: &Report, before: &[Found], after: &[Found]) {
        let when = "after the recovery";
        for (situation, (before, after)) in SITUATIONS.iter().zip(before.iter().zip(after)) {
            let told = report.get(&situation.key());
            let decided = told.map(|told| (told.decision.as_str(), told.outcome.as_str()));
            let expected = match situation.verdict {
                Verdict::LeftAlone(_) => None,
                Verdict::PutBack(_) => Some(("requeue", "applied")),
                Verdict::MarkedFailed => Some(("fail", "applied")),
            };
            self.check(situation, when, "decision and outcome", &expected, &decided);
            match situation.verdict {
                Verdict::LeftAlone(_) => {
                    self.check(situation, when, "the row's version", &before.version, &after.version);
                }
                Verdict::PutBack(_) => self.check(situation, when, "the row's error", &None, &after.error),
                Verdict::MarkedFailed => {
                    let reason = told.and_then(|told| told.reason.clone()).or(Some("a reason".to_owned()));
                    self.check(situation, when, "the row's error", &reason, &after.error);
                }
            }
        }
    }

    /// How often each job was begun, before and after the recovery, and that what was put back is what was lost.
    pub(super) fn check_runs(&mut self, before: &[Run], all: &[Run]) {
        let when = "at the end";
        for situation in &SITUATIONS {
            let earlier = before.iter().filter(|run| situation.is_of(run)).count();
            let later: Vec<&Run> = all.iter().filter(|run| situation.is_of(run)).skip(earlier).collect();
            self.check(situation, when, "runs before the recovery", &situation.runs_before, &earlier);
            self.check(situation, when, "runs after it", &situation.runs_after, &later.len());
            for run in later {
                self.check(situation, when, "the payload", &situation.payload(), &run.data);
            }
        }
    }

    /// A pass after everything: there is nothing left to do.
    pub(super) fn check_last_pass(&mut self, report: &Report) {
        for (source, id) in report.keys() {
            self.all
                .push(format!("{source} {id}: after everything, expected in a queue or ended, found absent"));
        }
    }

    fn check<T: PartialEq + Debug>(
        &mut self,
        of: &Situation,
        when: &str,
        what: &str,
        expected: &T,
        found: &T,
    ) {
        if expected != found {
            let (source, id) = of.key();
            self.all.push(format!("{source} {id}: {what} {when}: expected {expected:?}, found {found:?}"));
        }
    }
}

impl Situation {
    /// How a report names it.
    pub(super) fn key(&self) -> (String, String) {
        (self.table.shape().source.to_owned(), self.id.to_owned())
    }

    /// Whether this run was of its job. Row ids are unique within a queue's jobs only.
    pub(super) fn is_of(&self, run: &Run) -> bool {
        run.queue == self.table.shape().queue && run.job == self.id
    }
}
