//! What is known of a job and becomes of it, in words.

use salvage_core::decision::DecisionKind;
use salvage_core::report::JobReport;

/// A job in words.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Words {
    /// What the queues say.
    pub(super) seen: &'static str,
    /// What becomes of it, and of what was decided.
    pub(super) phrases: Vec<Phrase>,
    /// The same in a word, for a sum.
    pub(super) sum: &'static str,
}

/// A few words, and the sentence that explains them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Phrase {
    pub(super) words: &'static str,
    pub(super) why: Option<String>,
}

/// Of a dry run: what a pass would do.
pub(super) fn words(job: &JobReport, is_dry: bool) -> Words {
    if job.sighting.kind == "unknown" {
        let phrase = Phrase { words: "not judged", why: job.sighting.why.clone() };
        return Words { seen: "", phrases: vec![phrase], sum: "not judged" };
    }
    let outcome = job.outcome.as_ref();
    let why = outcome.and_then(|outcome| outcome.why.clone());
    let became = |words: &'static str| Phrase { words, why: why.clone() };
    let was = || decided(job, "was to be put back", "was to be marked failed");
    let then = || decided(job, "then to be put back", "then to be marked failed");
    let with = |words: &'static str, decided: Option<Phrase>| -> Vec<Phrase> {
        std::iter::once(became(words)).chain(decided).collect()
    };
    let (phrases, sum) = match outcome.map(|outcome| outcome.kind) {
        None => undone(job, is_dry),
        Some("applied") if job.decision.kind == DecisionKind::Requeue => done(job, "put back"),
        Some("applied") => done(job, "marked failed"),
        Some("superseded") => (with("moved on meanwhile", None), "moved on"),
        Some("gone") => (with("its row is gone", None), "gone"),
        Some("refused") => (with("refused", was()), "refused"),
        Some("parked") => (with("parked", was()), "parked"),
        Some("indeterminate") => (with("perhaps done, the next pass looks again", was()), "perhaps done"),
        Some("before-epoch") => (with("waits for accept", then()), "waiting for accept"),
        Some("storm") => (with("storm, waits for accept", then()), "waiting for accept (storm)"),
        Some(other) => (with(other, was()), other),
    };
    Words { seen: seen(job), phrases, sum }
}

fn seen(job: &JobReport) -> &'static str {
    match job.sighting.residue {
        Some("completed") => "in no queue, its completed entry is kept",
        Some("failed") => "in no queue, its failed entry is kept",
        Some("hash-only") => "in no queue, its data is left behind",
        _ => "in no queue",
    }
}

/// Nothing was tried, and nothing stands in the way.
fn undone(job: &JobReport, is_dry: bool) -> (Vec<Phrase>, &'static str) {
    const LEFT: &str = "left for the next pass";
    let (words, sum) = match (job.decision.kind, is_dry) {
        (DecisionKind::Hold, _) => ("held", "held"),
        (DecisionKind::None, _) => ("no decision", "no decision"),
        (DecisionKind::Requeue, true) => ("to be put back", "to be put back"),
        (DecisionKind::Fail, true) => ("to be marked failed", "to be marked failed"),
        (DecisionKind::Requeue, false) => ("to be put back, left for the next pass", LEFT),
        (DecisionKind::Fail, false) => ("to be marked failed, left for the next pass", LEFT),
    };
    (done(job, words).0, sum)
}

/// As it was decided.
fn done(job: &JobReport, words: &'static str) -> (Vec<Phrase>, &'static str) {
    (vec![Phrase { words, why: job.decision.reason.clone() }], words)
}

/// What was decided, if it was.
fn decided(job: &JobReport, requeue: &'static str, fail: &'static str) -> Option<Phrase> {
    let words = match job.decision.kind {
        DecisionKind::Requeue => requeue,
        DecisionKind::Fail => fail,
        DecisionKind::Hold | DecisionKind::None => return None,
    };
    Some(Phrase { words, why: job.decision.reason.clone() })
}

#[cfg(test)]
pub(super) mod tests {
    use salvage_core::report::{DecisionReport, OutcomeReport, SightingReport};

    use super::*;

    /// An orphan of `slides/generation`.
    pub(crate) fn orphan(id: &str) -> JobReport {
        JobReport {
            domain: "slides".into(),
            source: "generation".into(),
            id: id.into(),
            job_type: Some("OUTLINE".into()),
            status: "QUEUED".into(),
            updated_at: Some("2026-01-31T09:00:00.000000Z".into()),
            sighting: SightingReport {
                kind: "absent",
                queue: None,
                state: None,
                residue: Some("none"),
                why: None,
            },
            decision: DecisionReport { kind: DecisionKind::Requeue, reason: None },
            outcome: None,
            requeue: None,
        }
    }

    pub(crate) fn with(kind: DecisionKind, reason: &str, outcome: Option<(&'static str, &str)>) -> JobReport {
        let decision = DecisionReport { kind, reason: Some(reason.to_owned()).filter(|why| !why.is_empty()) };
        let outcome = outcome.map(|(kind, why)| OutcomeReport { kind, why: Some(why.to_owned()) });
        JobReport { decision, outcome, ..orphan("a") }
    }

    fn check(job: &JobReport, is_dry: bool, expected: &str) {
        let words = words(job, is_dry);
        let phrase = |phrase: &Phrase| match &phrase.why {
            Some(why) => format!("{} ({why})", phrase.words),
            None => phrase.words.to_owned(),
        };
        let phrases: Vec<String> = words.phrases.iter().map(phrase).collect();
        assert_eq!(format!("{}: {}", words.seen, phrases.join("; ")), expected);
    }

    #[test]
    fn a_job_is_told_in_words_and_not_in_codes() {
        use DecisionKind::{Fail, Hold, None as Undecided, Requeue};
        for (kind, outcome, is_dry, expected) in [
            (Requeue, None, true, "in no queue: to be put back (r)"),
            (Fail, None, true, "in no queue: to be marked failed (r)"),
            (Fail, None, false, "in no queue: to be marked failed, left for the next pass (r)"),
            (Hold, None, true, "in no queue: held (r)"),
            (Undecided, None, true, "in no queue: no decision (r)"),
            (Requeue, Some("applied"), false, "in no queue: put back (r)"),
            (Fail, Some("applied"), false, "in no queue: marked failed (r)"),
            (Fail, Some("superseded"), false, "in no queue: moved on meanwhile (o)"),
            (Fail, Some("gone"), false, "in no queue: its row is gone (o)"),
            (Requeue, Some("refused"), true, "in no queue: refused (o); was to be put back (r)"),
            (Undecided, Some("refused"), true, "in no queue: refused (o)"),
            (Fail, Some("parked"), true, "in no queue: parked (o); was to be marked failed (r)"),
            (
                Requeue,
                Some("indeterminate"),
                false,
                "in no queue: perhaps done, the next pass looks again (o); was to be put back (r)",
            ),
            (
                Fail,
                Some("before-epoch"),
                true,
                "in no queue: waits for accept (o); then to be marked failed (r)",
            ),
            (
                Fail,
                Some("storm"),
                true,
                "in no queue: storm, waits for accept (o); then to be marked failed (r)",
            ),
        ] {
            check(&with(kind, "r", outcome.map(|kind| (kind, "o"))), is_dry, expected);
        }
    }

    #[test]
    fn what_the_queues_say_comes_first() {
        let residue = |residue| {
            let sighting = SightingReport { residue: Some(residue), ..orphan("a").sighting };
            JobReport { sighting, ..orphan("a") }
        };
        check(&residue("completed"), true, "in no queue, its completed entry is kept: to be put back");
        check(&residue("failed"), true, "in no queue, its failed entry is kept: to be put back");
        check(&residue("hash-only"), true, "in no queue, its data is left behind: to be put back");
        let sighting = SightingReport { kind: "unknown", why: Some("w".into()), ..orphan("a").sighting };
        let unknown = with(DecisionKind::None, "", None);
        check(&JobReport { sighting, ..unknown }, true, ": not judged (w)");
    }
}
