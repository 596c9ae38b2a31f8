//! The control group: absence is believed only while presence works.
//!
//! Young live rows of a source are looked up like candidates, in the same snapshot. Under a right declaration most of
//! them have an entry. A queue missing from the manifest, a wrong payload key, a wrong word for a status, a producer that
//! changed: each shows here, before an orphan is believed.

use std::fmt;
use std::time::Duration;

use crate::candidate::LiveStatus;
use crate::sighting::{Doubt, Residue, Sighting};

/// Most rows looked up for one source in a pass, over all its groups.
pub const ROWS_MAX: u32 = 200;

/// Rows that a group gets at least, where a source has many types.
pub const ROWS_MIN: u32 = 20;

/// A row has its entry, or is about to have it, for so long after it was written.
pub const AGE_MIN: Duration = Duration::from_secs(120);

/// So many rows without an entry are no chance.
const MISSING_MIN: u64 = 3;

/// A group passes only if it has so many rows.
const PASS_MIN: u64 = 20;

/// What became of the rows of one group.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Figures {
    /// Found by their entries' ids.
    pub by_id: u64,
    /// Found by their entries' payloads.
    pub by_payload: u64,
    /// In no queue, but with something left under their ids that says queue and rule are right.
    pub left: u64,
    /// In no queue.
    pub missing: u64,
    /// Not looked up, or not to the end, because a store did not answer.
    pub unread: u64,
}

impl Figures {
    /// Takes in what was seen of one row. What could not be judged says nothing.
    pub fn take(&mut self, sighting: &Sighting, is_by_payload: bool) {
        match sighting {
            Sighting::Scheduled { .. } if is_by_payload => self.by_payload += 1,
            Sighting::Scheduled { .. } => self.by_id += 1,
            // The job failed, or lost its place in a list: queue and key are right all the same. A finished one says
            // nothing of the kind: its worker may be about to tell the row, or the row waits for something else.
            Sighting::Absent { residue: Residue::Failed { .. } | Residue::HashOnly } => self.left += 1,
            Sighting::Absent { residue: Residue::None | Residue::Completed { .. } } => self.missing += 1,
            Sighting::Unknown { why: Doubt::Redis(_) } => self.unread += 1,
            Sighting::Unknown { .. } => {}
        }
    }

    /// Rows that have an entry, or had one.
    #[must_use]
    pub const fn found(&self) -> u64 {
        self.by_id + self.by_payload + self.left
    }

    /// All rows that could be judged.
    #[must_use]
    pub const fn rows(&self) -> u64 {
        self.found() + self.missing
    }

    /// Whether its rows have entries, as they should; `None` if there are too few of them.
    #[must_use]
    pub const fn passed(&self) -> Option<bool> {
        if self.missing >= MISSING_MIN && self.missing * 10 > self.rows() {
            Some(false)
        } else if self.rows() >= PASS_MIN {
            Some(true)
        } else {
            None
        }
    }
}

impl fmt::Display for Figures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of {} young rows found", self.found(), self.rows())?;
        let kinds =
            [(self.by_id, "by id"), (self.by_payload, "by payload"), (self.left, "by what they left")];
        let told: Vec<String> = kinds
            .iter()
            .filter(|(count, _)| *count > 0)
            .map(|(count, how)| format!("{count} {how}"))
            .collect();
        if told.is_empty() { Ok(()) } else { write!(f, ": {}", told.join(", ")) }
    }
}

/// The group of one job type and status.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Control {
    /// The job type.
    pub job_type: String,
    /// Whether its rows wait or are begun.
    pub status: LiveStatus,
    /// What became of them.
    pub figures: Figures,
}

impl Control {
    /// Whether it speaks of orphans of this type and status.
    #[must_use]
    pub fn is_of(&self, job_type: &str, status: LiveStatus) -> bool {
        self.job_type == job_type && self.status == status
    }
}

/// Takes what was seen of one row into its group.
pub fn tally(
    groups: &mut Vec<Control>,
    job_type: &str,
    status: LiveStatus,
    sighting: &Sighting,
    is_by_payload: bool,
) {
    let at = groups.iter().position(|group| group.is_of(job_type, status)).unwrap_or_else(|| {
        groups.push(Control { job_type: job_type.to_owned(), status, figures: Figures::default() });
        groups.len() - 1
    });
    groups[at].figures.take(sighting, is_by_payload);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sighting::QueueFailure;
    use crate::snapshot::State;

    fn check(found: u64, missing: u64, expected: Option<bool>) {
        let figures = Figures { by_id: found, missing, ..Figures::default() };
        assert_eq!(figures.passed(), expected, "{figures}");
    }

    #[test]
    fn a_group_fails_if_three_and_more_than_a_tenth_are_missing() {
        check(0, 0, None);
        check(0, 2, None);
        check(0, 3, Some(false));
        check(27, 3, Some(true));
        check(26, 3, Some(false));
        check(19, 0, None);
        check(20, 0, Some(true));
        check(18, 2, Some(true));
    }

    #[test]
    fn what_a_row_left_behind_counts_as_found_unless_it_completed() {
        let absent = |residue| Sighting::Absent { residue };
        let mut figures = Figures::default();
        figures.take(&Sighting::Scheduled { queue: "q".into(), state: State::Waiting }, false);
        figures.take(&Sighting::Scheduled { queue: "q".into(), state: State::Waiting }, true);
        figures.take(&absent(Residue::HashOnly), false);
        figures.take(&absent(Residue::Failed { finished_ms: 1, reason: None }), false);
        figures.take(&absent(Residue::Completed { finished_ms: 1 }), false);
        figures.take(&absent(Residue::None), false);
        figures.take(&Sighting::Unknown { why: Doubt::Redis(QueueFailure::Loading) }, false);
        assert_eq!(figures, Figures { by_id: 1, by_payload: 1, left: 2, missing: 2, unread: 1 });
        assert_eq!(
            figures.to_string(),
            "4 of 6 young rows found: 1 by id, 1 by payload, 2 by what they left"
        );
    }
}
