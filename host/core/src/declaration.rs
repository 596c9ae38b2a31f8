//! What a manifest says of a source's table and queues is a claim, until rows and entries of the system confirm it.
//!
//! A declaration is confirmed once a row of the source was attributed to an entry under it; or by the control group
//! ([`crate::control`]); or, where neither can be had, by the operator who accepts all its queues. What was confirmed
//! holds for that declaration alone: another word for a status, another queue, another rule, and it has to be confirmed
//! anew.

use std::collections::BTreeSet;

use serde::Serialize;

use crate::candidate::LiveStatus;
use crate::control::Control;
use crate::manifest::{QueueRule, Source, TableMapping};

/// A source's table mapping and queue rules as one text: the same text is the same declaration.
///
/// # Panics
/// Never: names and rules are always JSON.
#[must_use]
pub fn declaration(source: &Source) -> String {
    #[derive(Serialize)]
    struct Declaration<'a> {
        table: &'a TableMapping,
        queues: &'a [QueueRule],
    }
    let declaration = Declaration { table: &source.table, queues: &source.queues };
    serde_json::to_string(&declaration).expect("names and rules are JSON")
}

/// What is remembered of a declaration.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Declared {
    /// A row of the source was attributed to an entry under it.
    pub is_confirmed: bool,
    /// The queues that the operator accepted while it was in force.
    pub accepted_queues: BTreeSet<String>,
    /// The operator vouched for it, whatever the control group says.
    pub is_vouched_for: bool,
    /// The control groups that it failed, and has not passed since.
    pub failed: Vec<Control>,
}

impl Declared {
    /// The failed control group that keeps orphans of this type and status in doubt. `now` are this pass's.
    #[must_use]
    pub fn doubt<'c>(
        &'c self,
        now: &'c [Control],
        job_type: &str,
        status: LiveStatus,
    ) -> Option<&'c Control> {
        if self.is_vouched_for {
            return None;
        }
        match now.iter().find(|control| control.is_of(job_type, status)) {
            // A failure is never a sign that the declaration is right.
            Some(control) if control.figures.passed() == Some(false) || control.figures.unread > 0 => {
                Some(control)
            }
            Some(control) if control.figures.passed() == Some(true) => None,
            _ => self.failed.iter().find(|control| control.is_of(job_type, status)),
        }
    }

    /// Whether anything confirms the declaration for orphans of this type and status.
    #[must_use]
    pub fn is_believed(&self, source: &Source, now: &[Control], job_type: &str, status: LiveStatus) -> bool {
        let passed =
            |control: &Control| control.is_of(job_type, status) && control.figures.passed() == Some(true);
        let is_accepted = source.queues.iter().all(|rule| self.accepted_queues.contains(&rule.name));
        self.is_confirmed || self.is_vouched_for || is_accepted || now.iter().any(passed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::Figures;
    use crate::fixtures;
    use crate::source::IdKind;

    fn control(found: u64, missing: u64) -> Control {
        let figures = Figures { by_id: found, missing, ..Figures::default() };
        Control { job_type: "T".into(), status: LiveStatus::Queued, figures }
    }

    fn doubts(declared: &Declared, now: &[Control]) -> bool {
        declared.doubt(now, "T", LiveStatus::Queued).is_some()
    }

    #[test]
    fn another_rule_is_another_declaration() {
        let source = fixtures::source("x", IdKind::Text, &[("q", "{id}")]).declared;
        let mut other = source.clone();
        other.queues[0].payload_key = "id".into();
        assert_ne!(declaration(&source), declaration(&other));
        let mut types = source.clone();
        types.job_types.clear();
        assert_eq!(declaration(&source), declaration(&types));
    }

    #[test]
    fn a_failed_control_stays_until_a_large_one_passes_or_the_operator_vouches() {
        let mut declared = Declared { failed: vec![control(0, 3)], ..Declared::default() };
        assert!(doubts(&declared, &[]));
        assert!(doubts(&declared, &[control(19, 0)]), "too few to pass");
        assert!(!doubts(&declared, &[control(20, 0)]));
        declared.is_vouched_for = true;
        assert!(!doubts(&declared, &[control(0, 9)]));
        let fresh = Declared::default();
        assert!(doubts(&fresh, &[control(5, 3)]));
        let mut unread = control(20, 0);
        unread.figures.unread = 1;
        assert!(doubts(&fresh, &[unread]), "a failure is no sign that it is right");
        assert!(fresh.doubt(&[control(5, 3)], "T", LiveStatus::Processing).is_none(), "each status apart");
    }

    #[test]
    fn nothing_is_believed_without_a_confirmation() {
        let source = fixtures::source("x", IdKind::Text, &[("a", "{id}"), ("b", "{id}")]).declared;
        let believed = |declared: &Declared, now: &[Control]| {
            declared.is_believed(&source, now, "T", LiveStatus::Queued)
        };
        let none = Declared::default();
        assert!(!believed(&none, &[]));
        assert!(!believed(&none, &[control(19, 0)]));
        assert!(believed(&none, &[control(20, 1)]));
        assert!(believed(&Declared { is_confirmed: true, ..none.clone() }, &[]));
        let some = Declared { accepted_queues: BTreeSet::from(["a".to_owned()]), ..none.clone() };
        assert!(!believed(&some, &[]), "one of two queues");
        let all = Declared { accepted_queues: ["a", "b"].map(str::to_owned).into(), ..none };
        assert!(believed(&all, &[]));
    }
}
