//! What became of every job, and whether it may have.

use std::collections::{BTreeMap, BTreeSet};

/// A job: its source, such as `slides/generation`, and its row's id.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Key {
    pub(super) source: String,
    pub(super) job: String,
}

/// A row at the end.
#[derive(Clone, Debug)]
pub(super) struct Row {
    pub(super) key: Key,
    pub(super) kind: String,
    pub(super) status: String,
    pub(super) error: Option<String>,
}

/// A worker began a job.
#[derive(Clone, Debug)]
pub(super) struct Run {
    pub(super) key: Key,
    /// When its entry was made: two entries of one job, one after the other, differ in it.
    pub(super) entry_made_at: i64,
    /// Salvage made the entry.
    pub(super) is_ours: bool,
    /// Runs are numbered in the order in which they began.
    pub(super) number: i64,
    /// It told the row that the job is completed.
    pub(super) is_completed: bool,
}

/// What the ledger holds of a job, one line per story.
#[derive(Clone, Debug)]
pub(super) struct Story {
    pub(super) key: Key,
    pub(super) decision: String,
    pub(super) outcome: String,
    pub(super) reason: Option<String>,
}

/// Everything that is judged.
#[derive(Clone, Debug, Default)]
pub(super) struct Facts {
    pub(super) rows: Vec<Row>,
    /// Jobs with a live entry, with how many.
    pub(super) entries: BTreeMap<Key, usize>,
    /// Those among them that are due only long after the soak.
    pub(super) for_later: BTreeSet<Key>,
    pub(super) runs: Vec<Run>,
    pub(super) stories: Vec<Story>,
    /// Jobs whose entry was lost on purpose.
    pub(super) lost: BTreeSet<Key>,
    /// Jobs seen with two live entries at one instant, at any time.
    pub(super) doubled: BTreeSet<Key>,
    /// Writes of a host's that must not be: what, job or parent, detail.
    pub(super) wrongs: Vec<(String, Key, String)>,
}

/// The counts that are printed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Counts {
    pub(super) jobs: usize,
    pub(super) completed: usize,
    pub(super) failed: usize,
    pub(super) queued: usize,
    pub(super) recoveries: usize,
    pub(super) doubled: usize,
    pub(super) run_twice: usize,
    pub(super) terminal_changed: usize,
    pub(super) parents_downgraded: usize,
}

/// A job that did not end as it must, or was treated as it must not be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Violation {
    pub(super) key: Key,
    pub(super) what: String,
}

/// Counts everything and finds every violation.
pub(super) fn audit(facts: &Facts) -> (Counts, Vec<Violation>) {
    let mut counts = Counts { jobs: facts.rows.len(), ..Counts::default() };
    let mut violations = Vec::new();
    let mut violate = |key: &Key, what: String| violations.push(Violation { key: key.clone(), what });
    for row in &facts.rows {
        match end_of(row, facts) {
            Ok(End::Completed) => counts.completed += 1,
            Ok(End::Failed) => counts.failed += 1,
            Ok(End::Queued) => counts.queued += 1,
            Err(what) => violate(&row.key, what),
        }
    }
    let doubled_now = facts.entries.iter().filter(|(_, count)| **count > 1).map(|(key, _)| key);
    let doubled: BTreeSet<&Key> = facts.doubled.iter().chain(doubled_now).collect();
    counts.doubled = doubled.len();
    for key in doubled {
        violate(key, "had two live entries".to_owned());
    }
    for key in run_twice(&facts.runs) {
        counts.run_twice += 1;
        violate(key, "was completed, and run again or meanwhile from an entry of ours".to_owned());
    }
    for (what, key, detail) in &facts.wrongs {
        let count = match what.as_str() {
            "parent downgraded" => &mut counts.parents_downgraded,
            _ => &mut counts.terminal_changed,
        };
        *count += 1;
        violate(key, format!("{what}: {detail}"));
    }
    let is_recovery = |story: &&Story| story.decision == "requeue" && story.outcome == "applied";
    counts.recoveries = facts.stories.iter().filter(is_recovery).count();
    (counts, violations)
}

enum End {
    Completed,
    Failed,
    Queued,
}

fn end_of(row: &Row, facts: &Facts) -> Result<End, String> {
    match row.status.as_str() {
        "COMPLETED" => Ok(End::Completed),
        "FAILED" => failed_truly(row, facts).map(|()| End::Failed),
        "QUEUED" if facts.entries.contains_key(&row.key) => Ok(End::Queued),
        "QUEUED" => Err("is QUEUED and has no entry".to_owned()),
        other => Err(format!("is still {other}")),
    }
}

/// Only Salvage fails rows here. Its reason is true if the ledger holds it for a failure that was applied, if something did
/// happen to the job, and if it is one that cannot be begun again: by its type, or after the recoveries it speaks of.
fn failed_truly(row: &Row, facts: &Facts) -> Result<(), String> {
    let of_this = || facts.stories.iter().filter(|story| story.key == row.key);
    let applied = |decision: &'static str| {
        of_this().filter(move |story| story.decision == decision && story.outcome == "applied")
    };
    let reason = row.error.as_deref().unwrap_or_default();
    if !applied("fail").any(|story| story.reason.as_deref() == Some(reason)) {
        return Err(format!("is FAILED, and the ledger does not hold its reason {reason:?}"));
    }
    let runs = || facts.runs.iter().filter(|run| run.key == row.key);
    let was_cut_short = runs().next().is_some() && runs().all(|run| !run.is_completed);
    // A worker that met a PostgreSQL that was down could not even note that it ran: then BullMQ's own word tells.
    let was_given_up = reason.contains("its last attempt failed:");
    if !facts.lost.contains(&row.key) && !was_cut_short && !was_given_up {
        return Err(format!("is FAILED ({reason:?}), and nothing had happened to it"));
    }
    let can_be_begun_again = ["GENERATION", "OUTLINE", "COMPOSITION"].contains(&row.kind.as_str());
    let begun_outline = row.kind == "OUTLINE" && runs().next().is_some();
    let often = reason.contains("recovered 3 times") && applied("requeue").count() >= 3;
    if can_be_begun_again && !begun_outline && !often {
        return Err(format!("is FAILED ({reason:?}), and could have been begun again"));
    }
    Ok(())
}

/// Jobs that ran twice because of us: a run completed the job, and another began later than that run, from an entry that
/// Salvage had made and that is not the first run's own. A job that BullMQ runs again from the same entry, because a worker
/// died or seemed dead, is BullMQ's doing.
fn run_twice(runs: &[Run]) -> BTreeSet<&Key> {
    let mut by_job: BTreeMap<&Key, Vec<&Run>> = BTreeMap::new();
    for run in runs {
        by_job.entry(&run.key).or_default().push(run);
    }
    let is_twice = |runs: &[&Run]| {
        runs.iter().filter(|run| run.is_ours).any(|ours| {
            runs.iter().any(|other| {
                other.is_completed && other.number < ours.number && other.entry_made_at != ours.entry_made_at
            })
        })
    };
    by_job.into_iter().filter(|(_, runs)| is_twice(runs)).map(|(key, _)| key).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key() -> Key {
        Key { source: "slides/generation".into(), job: "j1".into() }
    }

    fn row(kind: &str, status: &str, error: Option<&str>) -> Row {
        Row { key: key(), kind: kind.into(), status: status.into(), error: error.map(str::to_owned) }
    }

    fn run(number: i64, entry_made_at: i64, is_ours: bool, is_completed: bool) -> Run {
        Run { key: key(), entry_made_at, is_ours, number, is_completed }
    }

    fn story(decision: &str, reason: Option<&str>) -> Story {
        let reason = reason.map(str::to_owned);
        Story { key: key(), decision: decision.into(), outcome: "applied".into(), reason }
    }

    /// What is wrong with the one job of these facts.
    fn check(facts: &Facts, expected: &[&str]) {
        let (_, violations) = audit(facts);
        assert_eq!(violations.len(), expected.len(), "{violations:#?}");
        for (violation, word) in violations.iter().zip(expected) {
            assert!(violation.what.contains(word), "{violation:?} does not say {word:?}");
        }
    }

    fn with_row(row: Row) -> Facts {
        Facts { rows: vec![row], ..Facts::default() }
    }

    #[test]
    fn a_job_ends_completed_or_queued_with_an_entry() {
        check(&with_row(row("GENERATION", "COMPLETED", None)), &[]);
        check(&with_row(row("GENERATION", "PROCESSING", None)), &["still PROCESSING"]);
        let mut queued = with_row(row("GENERATION", "QUEUED", None));
        check(&queued, &["no entry"]);
        queued.entries.insert(key(), 1);
        check(&queued, &[]);
        queued.entries.insert(key(), 2);
        check(&queued, &["two live entries"]);
    }

    #[test]
    fn a_failure_needs_a_reason_that_is_in_the_ledger_and_true() {
        let mut facts = with_row(row("PDF", "FAILED", Some("because")));
        check(&facts, &["does not hold its reason"]);
        facts.stories = vec![story("fail", Some("because"))];
        check(&facts, &["nothing had happened"]);
        let given_up = "because (its last attempt failed: connect ECONNREFUSED)";
        let told = Facts { stories: vec![story("fail", Some(given_up))], ..Facts::default() };
        check(&Facts { rows: vec![row("PDF", "FAILED", Some(given_up))], ..told }, &[]);
        facts.lost.insert(key());
        check(&facts, &[]);
        facts.rows = vec![row("OUTLINE", "FAILED", Some("because"))];
        check(&facts, &["could have been begun again"]);
        facts.runs = vec![run(1, 10, false, false)];
        check(&facts, &[]);
        facts.lost.clear();
        check(&facts, &[]);
        facts.rows = vec![row("GENERATION", "FAILED", Some("recovered 3 times"))];
        facts.stories = vec![story("fail", Some("recovered 3 times"))];
        check(&facts, &["could have been begun again"]);
        facts.stories.extend([(); 3].map(|()| story("requeue", None)));
        check(&facts, &[]);
    }

    #[test]
    fn only_a_second_entry_of_ours_makes_a_completed_job_run_twice_because_of_us() {
        let mut facts = with_row(row("GENERATION", "COMPLETED", None));
        for (second, expected) in [
            (run(2, 10, false, true), &[][..]),
            (run(2, 20, false, true), &[]),
            (run(2, 20, true, true), &["was completed, and run again"]),
        ] {
            facts.runs = vec![run(1, 10, false, true), second];
            check(&facts, expected);
        }
        facts.runs = vec![run(1, 10, false, false), run(2, 20, true, true)];
        check(&facts, &[]);
    }

    #[test]
    fn what_a_host_must_not_write_is_counted_by_its_kind() {
        let wrong = |what: &str| (what.to_owned(), key(), "READY to FAILED".to_owned());
        let wrongs = vec![wrong("parent downgraded"), wrong("terminal row changed")];
        let (counts, violations) = audit(&Facts { wrongs, ..Facts::default() });
        assert_eq!((counts.parents_downgraded, counts.terminal_changed, violations.len()), (1, 1, 2));
    }
}
