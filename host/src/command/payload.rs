//! The payload of a job that is put back, for who asks to see it, and nowhere else: not in the log, not in the ledger.

use std::collections::BTreeSet;

use salvage_core::decision::Requeue;
use salvage_core::report::JobReport;
use salvage_core::text::{name, shown};
use serde_json::{Value, json};

use crate::ports::LoadedDomain;

/// Most characters of a payload in text; `--json` has it whole.
const PAYLOAD_CHARS_MAX: usize = 4_000;

/// Before each line, below the line of its job.
pub(super) const INDENT: &str = "    ";

/// Which payloads are shown.
pub(super) struct Payloads {
    /// Domains of which the operator wants columns neither kept nor shown.
    redacting: BTreeSet<String>,
    is_asked: bool,
}

impl Payloads {
    pub(super) fn of(domains: &[LoadedDomain], is_asked: bool) -> Self {
        let redacting = domains.iter().filter(|domain| !domain.capture.redaction.is_empty());
        Self { redacting: redacting.map(|domain| domain.manifest.domain.clone()).collect(), is_asked }
    }

    /// Why none of a domain is shown, if so: a payload may repeat what the operator does not want to be kept or seen. The
    /// same rule as for captured questions, of which only the kind of the decision is then kept.
    pub(super) fn hidden(&self, domain: &str) -> Option<String> {
        self.redacting.contains(domain).then(|| {
            format!("not shown: [handler.{domain}] redact leaves columns out, and a payload may repeat them")
        })
    }

    /// What would be put back of a job, if anything and if it is asked for, below its line.
    pub(super) fn lines(&self, job: &JobReport) -> Vec<String> {
        match &job.requeue {
            Some(requeue) if self.is_asked => match self.hidden(&job.domain) {
                Some(why) => vec![format!("{INDENT}payload {why}")],
                None => lines(requeue),
            },
            _ => vec![],
        }
    }

    /// The same for a program; `None` if nothing would be put back.
    pub(super) fn json(&self, job: &JobReport) -> Option<Value> {
        let requeue = job.requeue.as_ref()?;
        Some(match self.hidden(&job.domain) {
            Some(why) => {
                json!({ "queue": requeue.queue, "name": null, "options": null, "data": null, "why": why })
            }
            None => json!({
                "queue": requeue.queue,
                "name": requeue.name,
                "options": parsed(&requeue.options),
                "data": parsed(&requeue.data),
                "why": null,
            }),
        })
    }
}

/// Where it goes, and what it is, a line each.
pub(super) fn lines(requeue: &Requeue) -> Vec<String> {
    let Requeue { queue, name: job_name, data, options } = requeue;
    let (queue, job_name) = (name(queue), name(job_name));
    vec![
        format!("{INDENT}payload for queue {queue}, job name {job_name}, options {}", as_text(options)),
        format!("{INDENT}{}", as_text(data)),
    ]
}

/// The text as it is, on one line.
pub(super) fn as_text(text: &str) -> String {
    let cut = shown(text, PAYLOAD_CHARS_MAX).into_owned();
    let chars = text.chars().count();
    if chars > PAYLOAD_CHARS_MAX { format!("{cut} ({chars} characters; --json has all)") } else { cut }
}

/// The value of a JSON text; the text itself if it is none.
pub(super) fn parsed(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|_| Value::String(text.to_owned()))
}
