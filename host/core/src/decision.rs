//! A handler's answer for one orphan, and what the host makes of it.
//!
//! The handler proposes, [`rule`] disposes: it refuses what the manifest does not cover, and turns a requeue into a fail
//! where the job may not be begun again or was already recovered too often. The rules that a handler's author can hold a
//! decision against without a host are in `host_rules`.

use std::time::Duration;

use serde::Serialize;
use serde_json::Value;

use crate::candidate::{Candidate, LiveStatus};
use crate::host_rules;
use crate::manifest::Source;
use crate::settings::{PassSettings, human};
use crate::sighting::Residue;

/// What a handler answers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Decision {
    /// Put it back.
    Requeue(Requeue),
    /// Mark it failed, with this reason.
    Fail(String),
    /// Leave it for now.
    Hold(String),
}

/// A job to enqueue, as the handler wrote it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Requeue {
    /// One of the source's queues.
    pub queue: String,
    /// `BullMQ`'s job name.
    pub name: String,
    /// JSON object, the payload. Never logged.
    pub data: String,
    /// JSON object, a few of `BullMQ`'s options.
    pub options: String,
}

/// Longest reason written to a row, in characters; longer ones are cut.
pub const REASON_CHARS_MAX: usize = 1_000;

/// Largest payload a handler may ask to enqueue, in bytes.
pub const DATA_BYTES_MAX: usize = 1024 * 1024;

/// A job whose retained entry finished less than this ago is held: the application may be about to write its row.
pub const FINISHED_GRACE: Duration = Duration::from_secs(60);

/// What the host will do with an orphan.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Ruling {
    /// Put it back.
    Requeue(Requeue),
    /// Mark it failed.
    Fail {
        /// What the row will say.
        reason: String,
    },
    /// Leave it.
    Hold {
        /// For the operator.
        reason: String,
    },
    /// The handler asked for something it may not have.
    Refused {
        /// What it decided.
        kind: DecisionKind,
        /// What it asked for, and why not.
        why: String,
    },
}

/// The decision as it is reported: what kind, and in whose words.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum DecisionKind {
    /// Put it back.
    Requeue,
    /// Mark it failed.
    Fail,
    /// Leave it.
    Hold,
    /// No decision: the handler failed, or was not asked.
    None,
}

impl DecisionKind {
    /// Its name in reports and in the ledger.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Requeue => "requeue",
            Self::Fail => "fail",
            Self::Hold => "hold",
            Self::None => "none",
        }
    }
}

/// What the host knows of an orphan when it rules.
#[derive(Debug)]
pub struct Circumstances<'a> {
    /// The orphan.
    pub candidate: &'a Candidate,
    /// Its source.
    pub source: &'a Source,
    /// What it left behind.
    pub residue: &'a Residue,
    /// Redis's clock at the snapshot.
    pub redis_now_ms: u64,
    /// Recoveries within the window.
    pub recoveries: u32,
    /// The first input that had more rows than its read's limit.
    pub truncated_input: Option<&'a str>,
}

/// Decides what becomes of the handler's answer.
#[must_use]
pub fn rule(decision: Decision, of: &Circumstances<'_>, settings: &PassSettings) -> Ruling {
    if let Some(finished_ms) = of.residue.finished_ms() {
        let age_ms = of.redis_now_ms.saturating_sub(finished_ms);
        if u128::from(age_ms) < FINISHED_GRACE.as_millis() {
            let reason =
                format!("the entry finished {age_ms} ms ago; the application may be about to write its row");
            return Ruling::Hold { reason };
        }
    }
    match decision {
        Decision::Hold(reason) => with_reason(DecisionKind::Hold, &reason, |reason| Ruling::Hold { reason }),
        Decision::Fail(reason) => with_reason(DecisionKind::Fail, &reason, |reason| Ruling::Fail { reason }),
        Decision::Requeue(requeue) => rule_requeue(requeue, of, settings),
    }
}

/// A reason is written to the row or shown to the operator, so there is one.
fn with_reason(kind: DecisionKind, reason: &str, ruling: impl FnOnce(String) -> Ruling) -> Ruling {
    match host_rules::reason_fault(kind.word(), reason) {
        Some(why) => Ruling::Refused { kind, why },
        None => ruling(shorten(reason)),
    }
}

const fn refused(why: String) -> Ruling {
    Ruling::Refused { kind: DecisionKind::Requeue, why }
}

fn rule_requeue(requeue: Requeue, of: &Circumstances<'_>, settings: &PassSettings) -> Ruling {
    if let Err(why) = check_requeue(&requeue, of) {
        return refused(why);
    }
    if let Some(input) = of.truncated_input {
        let why = format!(
            "input {input:?} has more rows than its read's limit, so the payload would be incomplete"
        );
        return refused(why);
    }
    let job_type = &of.candidate.job_type;
    let is_restart_safe = of.source.job_type(job_type).is_some_and(|job_type| job_type.restart_safe);
    if of.candidate.status == LiveStatus::Processing && !is_restart_safe {
        let reason = format!(
            "The job was lost after it had begun, and jobs of type {job_type} cannot be begun again."
        );
        return Ruling::Fail { reason };
    }
    if of.recoveries >= settings.recoveries_max {
        let window = human(settings.recoveries_window);
        let reason =
            format!("The job was recovered {} times within {window} and lost each time.", of.recoveries);
        return Ruling::Fail { reason };
    }
    Ruling::Requeue(requeue)
}

fn check_requeue(requeue: &Requeue, of: &Circumstances<'_>) -> Result<(), String> {
    let Some(rule) = of.source.queue(&requeue.queue) else {
        let declared: Vec<&str> = of.source.queues.iter().map(|queue| queue.name.as_str()).collect();
        return Err(format!(
            "queue {:?} is not declared by the source, which has {}",
            requeue.queue,
            declared.join(", ")
        ));
    };
    if requeue.name.is_empty() {
        return Err("the BullMQ job name is empty".to_owned());
    }
    if requeue.data.len() > DATA_BYTES_MAX {
        return Err(format!("data has {} bytes, more than {DATA_BYTES_MAX}", requeue.data.len()));
    }
    let data = json("data", &requeue.data)?;
    if let Some(fault) = host_rules::payload_fault(&data, &rule.payload_key, &of.candidate.token.id) {
        return Err(fault);
    }
    let Value::Object(options) = json("options", &requeue.options)? else {
        return Err("options is not a JSON object".to_owned());
    };
    let faults = host_rules::option_faults(&options);
    if faults.is_empty() { Ok(()) } else { Err(faults.join("; ")) }
}

fn json(what: &str, text: &str) -> Result<Value, String> {
    // The parser's message may quote the text, and a payload is never logged.
    let odd = |error: serde_json::Error| {
        format!("{what} is not JSON (line {}, column {})", error.line(), error.column())
    };
    serde_json::from_str(text).map_err(odd)
}

/// A text of a handler fit for a row: on one line, without control characters, and no longer than [`REASON_CHARS_MAX`].
#[must_use]
pub fn shorten(reason: &str) -> String {
    shorten_to(reason, REASON_CHARS_MAX)
}

/// The same with a limit of one's own, in characters.
#[must_use]
pub fn shorten_to(reason: &str, chars_max: usize) -> String {
    let mut clean = host_rules::clean(reason);
    if let Some((cut, _)) = clean.char_indices().nth(chars_max) {
        clean.truncate(clean[..cut].trim_end().len());
        clean.push('…');
    }
    clean
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures;
    use crate::source::IdKind;

    fn source() -> Source {
        let mut source = fixtures::source("jobs", IdKind::Text, &[("slides", "slide-{id}")]).declared;
        source.job_types = vec![fixtures::job_type("SAFE", true), fixtures::job_type("ONCE", false)];
        source
    }

    fn candidate(status: LiveStatus, job_type: &str) -> Candidate {
        Candidate { status, job_type: job_type.into(), ..fixtures::candidate(0, "7") }
    }

    fn requeue() -> Requeue {
        Requeue {
            queue: "slides".into(),
            name: "generate".into(),
            data: r#"{"jobId":"7"}"#.into(),
            options: r#"{"attempts":3}"#.into(),
        }
    }

    struct Case {
        status: LiveStatus,
        job_type: &'static str,
        residue: Residue,
        recoveries: u32,
        truncated: bool,
    }

    impl Default for Case {
        fn default() -> Self {
            let (status, residue) = (LiveStatus::Processing, Residue::None);
            Self { status, job_type: "SAFE", residue, recoveries: 0, truncated: false }
        }
    }

    fn ruled(decision: Decision, case: &Case) -> Ruling {
        let circumstances = Circumstances {
            candidate: &candidate(case.status, case.job_type),
            source: &source(),
            residue: &case.residue,
            redis_now_ms: 1_000_000,
            recoveries: case.recoveries,
            truncated_input: case.truncated.then_some("tracks"),
        };
        rule(decision, &circumstances, &PassSettings::default())
    }

    fn check_refused(requeue: Requeue, named: &str) {
        match ruled(Decision::Requeue(requeue), &Case::default()) {
            Ruling::Refused { why, .. } => assert!(why.contains(named), "{why:?} does not name {named:?}"),
            other => panic!("expected a refusal that names {named:?}, found {other:?}"),
        }
    }

    #[test]
    fn a_sound_requeue_stands() {
        assert_eq!(ruled(Decision::Requeue(requeue()), &Case::default()), Ruling::Requeue(requeue()));
        let numeric = Requeue { data: r#"{"jobId":7}"#.into(), ..requeue() };
        assert_eq!(ruled(Decision::Requeue(numeric.clone()), &Case::default()), Ruling::Requeue(numeric));
    }

    #[test]
    fn what_the_manifest_does_not_cover_is_refused_and_named() {
        check_refused(Requeue { queue: "other".into(), ..requeue() }, "\"other\"");
        check_refused(Requeue { data: r#"{"x":"7"}"#.into(), ..requeue() }, "jobId");
        check_refused(Requeue { data: r#"{"jobId":"8"}"#.into(), ..requeue() }, "jobId");
        check_refused(Requeue { data: "[1]".into(), ..requeue() }, "data");
        for key in ["delay", "parent", "jobId", "repeat", "lifo"] {
            check_refused(Requeue { options: format!(r#"{{"{key}":1}}"#), ..requeue() }, key);
        }
        check_refused(Requeue { options: r#"{"attempts":"3"}"#.into(), ..requeue() }, "attempts");
    }

    #[test]
    fn a_payload_is_not_quoted_in_a_refusal() {
        let broken = Requeue { data: "{\"secret\": hunter2".into(), ..requeue() };
        let Ruling::Refused { why, .. } = ruled(Decision::Requeue(broken), &Case::default()) else {
            panic!("broken JSON must be refused")
        };
        assert!(!why.contains("hunter2") && !why.contains("secret"), "{why}");
    }

    #[test]
    fn a_truncated_input_never_requeues() {
        let truncated = Case { truncated: true, ..Case::default() };
        assert!(matches!(ruled(Decision::Requeue(requeue()), &truncated), Ruling::Refused { .. }));
        assert!(matches!(ruled(Decision::Fail("x".into()), &truncated), Ruling::Fail { .. }));
    }

    #[test]
    fn a_begun_job_that_cannot_be_begun_again_fails_and_a_waiting_one_is_requeued() {
        let begun = Case { job_type: "ONCE", ..Case::default() };
        assert!(matches!(ruled(Decision::Requeue(requeue()), &begun), Ruling::Fail { .. }));
        let waiting = Case { job_type: "ONCE", status: LiveStatus::Queued, ..Case::default() };
        assert!(matches!(ruled(Decision::Requeue(requeue()), &waiting), Ruling::Requeue(_)));
    }

    #[test]
    fn the_third_recovery_is_the_last() {
        let twice = Case { recoveries: 2, ..Case::default() };
        assert!(matches!(ruled(Decision::Requeue(requeue()), &twice), Ruling::Requeue(_)));
        let thrice = Case { recoveries: 3, ..Case::default() };
        let expected = "The job was recovered 3 times within 72 h and lost each time.".to_owned();
        assert_eq!(ruled(Decision::Requeue(requeue()), &thrice), Ruling::Fail { reason: expected });
    }

    #[test]
    fn a_job_that_finished_just_now_is_held_whatever_the_handler_says() {
        let fresh = Case { residue: Residue::Completed { finished_ms: 941_000 }, ..Case::default() };
        assert!(matches!(ruled(Decision::Fail("x".into()), &fresh), Ruling::Hold { .. }));
        let old = Case { residue: Residue::Completed { finished_ms: 940_000 }, ..Case::default() };
        assert!(matches!(ruled(Decision::Fail("x".into()), &old), Ruling::Fail { .. }));
    }

    #[test]
    fn a_decision_without_a_reason_is_refused_as_what_it_is() {
        for (decision, kind) in [
            (Decision::Fail("\u{202e} \n".into()), DecisionKind::Fail),
            (Decision::Hold(String::new()), DecisionKind::Hold),
        ] {
            match ruled(decision, &Case::default()) {
                Ruling::Refused { kind: found, why } => {
                    assert_eq!(found, kind);
                    assert!(why.contains("has no reason"), "{why}");
                }
                other => panic!("expected a refusal, found {other:?}"),
            }
        }
    }

    #[test]
    fn a_reason_loses_its_control_characters_and_its_length() {
        assert_eq!(shorten("a\0b\u{1b}[2J"), "ab[2J");
        assert_eq!(shorten(&"é".repeat(REASON_CHARS_MAX)), "é".repeat(REASON_CHARS_MAX));
        assert_eq!(shorten(&"é".repeat(500_000)), format!("{}…", "é".repeat(REASON_CHARS_MAX)));
        assert_eq!(shorten_to("ab cd", 3), "ab…");
        let long = Decision::Fail("x\u{1b}".repeat(500_000));
        let Ruling::Fail { reason } = ruled(long, &Case::default()) else { panic!("it has a reason") };
        assert_eq!(reason.chars().count(), REASON_CHARS_MAX + 1);
    }
}
