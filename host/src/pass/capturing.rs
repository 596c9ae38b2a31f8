//! Keeps the questions of a pass for `salvage handler replay`, where the operator said so.
//!
//! In the form of a case file, so that a capture can be read, and asked again, like any case.

use salvage_core::capture::Redaction;
use salvage_core::decision::Decision;
use salvage_core::manifest::Source;
use salvage_core::sighting::Residue;
use serde_json::{Map, Value, json};

use super::Pass;
use crate::ports::{Answer, Captured, HandlerFault, Ledger, Outside, Question};

/// Questions of one domain on their way to being kept, if they are.
pub(crate) struct Keeping {
    /// `None`: they are not, as in a dry run.
    redaction: Option<Redaction>,
    captured: Vec<Captured>,
}

impl Keeping {
    pub(crate) fn add(&mut self, question: &Question<'_>, answer: &Answer) {
        if let Some(redaction) = &self.redaction {
            self.captured.push(captured(question, answer, redaction));
        }
    }
}

impl<O: Outside> Pass<'_, O> {
    /// Of a domain whose questions are kept under `redaction`, none yet.
    pub(crate) fn keeping(&self, redaction: Option<&Redaction>) -> Keeping {
        let redaction = self.licence.as_ref().and(redaction.cloned());
        Keeping { redaction, captured: Vec::new() }
    }

    /// Keeps them. That they cannot be kept costs them, and never the pass.
    pub(crate) async fn keep(&self, Keeping { captured, .. }: Keeping) {
        if captured.is_empty() {
            return;
        }
        if let Err(failure) = self.outside.ledger().capture(&captured).await {
            tracing::warn!(%failure, "{} questions to handlers were not captured: {failure}", captured.len());
        }
    }
}

/// A question and its answer as they are kept.
fn captured(question: &Question<'_>, answer: &Answer, redaction: &Redaction) -> Captured {
    let source = question.source;
    Captured {
        source: source.name.clone(),
        job_id: question.candidate.token.id.clone(),
        component_digest: source.component_digest.clone(),
        question: case(question, redaction).to_string(),
        decision: decision(answer, redaction).to_string(),
        is_redacted: !redaction.is_empty(),
    }
}

fn case(question: &Question<'_>, redaction: &Redaction) -> Value {
    let (candidate, source) = (question.candidate, &question.source.declared);
    let failed_reason = match question.residue {
        Residue::Failed { reason, .. } => reason.as_deref(),
        Residue::None | Residue::Completed { .. } | Residue::HashOnly => None,
    };
    json!({
        "about": format!("{} {}", question.source.name, candidate.token.id),
        "job": {
            "source": source.name,
            "id": candidate.token.id,
            "type": candidate.job_type,
            "status": candidate.token.status,
            "updated_at": format!("{:.6}", candidate.updated),
            "columns": redaction.row(&source.table.table, object(&question.inputs.columns)),
            "recoveries": question.recoveries,
            "residue": question.residue.word(),
            "failed_reason": failed_reason,
        },
        "inputs": inputs(question, source, redaction),
    })
}

fn inputs(question: &Question<'_>, source: &Source, redaction: &Redaction) -> Map<String, Value> {
    let reads = source.reads.iter().zip(&question.inputs.reads);
    reads
        .map(|(read, input)| {
            let rows = input.rows.iter().map(|row| redaction.row(&read.table, object(row)));
            let rows: Vec<Map<String, Value>> = rows.collect();
            (input.name.clone(), json!({ "rows": rows, "truncated": input.truncated }))
        })
        .collect()
}

/// The host's own JSON.
fn object(text: &str) -> Map<String, Value> {
    serde_json::from_str(text).unwrap_or_default()
}

/// As case files spell it. Where a column is left out of the question, only the kind: reason and payload may repeat it.
fn decision(answer: &Answer, redaction: &Redaction) -> Value {
    let whole = match &answer.decision {
        Ok(Decision::Requeue(requeue)) => json!({
            "kind": "requeue",
            "queue": requeue.queue,
            "name": requeue.name,
            "data": parsed(&requeue.data),
            "options": parsed(&requeue.options),
        }),
        Ok(Decision::Fail(reason)) => json!({ "kind": "fail", "reason": reason }),
        Ok(Decision::Hold(reason)) => json!({ "kind": "hold", "reason": reason }),
        Err(HandlerFault::Error(reason)) => json!({ "kind": "none", "reason": reason }),
        Err(fault) => json!({ "kind": "none", "reason": fault.to_string() }),
    };
    if redaction.is_empty() { whole } else { json!({ "kind": whole["kind"] }) }
}

fn parsed(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|_| Value::String(text.to_owned()))
}
