//! Which questions to handlers are kept, so that another build can be asked them later, and what of them is not.
//!
//! Only where the operator said so: a question holds the rows that a decision was made on. Columns that are named are replaced
//! before anything leaves the process.

use std::collections::BTreeSet;

use serde_json::{Map, Value};

use crate::grants::plain;
use crate::manifest::{HandlerManifest, Source};

/// What one handler's settings say.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Capture {
    /// `capture_inputs`.
    pub inputs: Option<bool>,
    /// `redact`: columns in SQL's notation, `"Table".column`.
    pub redact: Vec<String>,
}

/// What stands for a text that is not kept.
pub const REDACTED: &str = "redacted";

/// What is kept of a handler's questions, and what of them is never kept or shown.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CapturePolicy {
    /// Whether the questions are kept at all.
    pub is_kept: bool,
    /// What is taken out of them; of payloads, which may repeat it, nothing is shown.
    pub redaction: Redaction,
}

impl CapturePolicy {
    /// What is taken out of the questions; `None` if they are not kept.
    #[must_use]
    pub fn kept(&self) -> Option<&Redaction> {
        self.is_kept.then_some(&self.redaction)
    }
}

/// The columns of one handler that are not kept.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Redaction(BTreeSet<String>);

impl Capture {
    /// What that means. `by_default`: whether questions are kept where the handler's settings do not say.
    #[must_use]
    pub fn policy(&self, by_default: bool) -> CapturePolicy {
        let redaction = Redaction(self.redact.iter().map(|column| plain(column)).collect());
        CapturePolicy { is_kept: self.inputs.unwrap_or(by_default), redaction }
    }
}

impl Redaction {
    /// Whether everything is kept.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// A row of `table` without what is not kept. What is replaced stays of its kind, so that a handler can still read it:
    /// NULL stays NULL, a number becomes 0, a number in a text `"0"`.
    #[must_use]
    pub fn row(&self, table: &str, mut row: Map<String, Value>) -> Map<String, Value> {
        for (column, value) in &mut row {
            if self.0.contains(&format!("{table}.{column}")) {
                *value = replaced(value);
            }
        }
        row
    }
}

fn replaced(value: &Value) -> Value {
    match value {
        Value::Null => Value::Null,
        Value::Bool(_) => Value::Bool(false),
        Value::Number(_) => 0.into(),
        Value::String(text) if text.parse::<f64>().is_ok() => "0".into(),
        Value::String(_) => REDACTED.into(),
        Value::Array(_) => Value::Array(vec![]),
        Value::Object(_) => Value::Object(Map::new()),
    }
}

/// The entries of `redact` that name no column the handler is ever shown: each is a slip that would keep what was not to be.
#[must_use]
pub fn without_effect(redact: &[String], manifest: &HandlerManifest) -> Vec<String> {
    let shown: BTreeSet<String> = manifest.sources.iter().flat_map(shown_columns).collect();
    redact.iter().filter(|column| !shown.contains(&plain(column))).cloned().collect()
}

fn shown_columns(source: &Source) -> Vec<String> {
    let table = &source.table;
    let optional = [&table.job_type, &table.progress, &table.error];
    let mapped = [&table.id, &table.status, &table.updated_at].into_iter();
    let job = mapped.chain(optional.into_iter().flatten()).chain(&table.extra_columns);
    let job = job.map(|column| format!("{}.{column}", table.table));
    let reads = source
        .reads
        .iter()
        .flat_map(|read| read.columns.iter().map(|column| format!("{}.{column}", read.table)));
    job.chain(reads).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures;
    use crate::source::IdKind;

    #[test]
    fn nothing_is_kept_unless_somebody_says_so() {
        let kept = |by_default: bool, inputs: Option<bool>| {
            let redact = vec!["\"Video\".title".to_owned()];
            Capture { inputs, redact }.policy(by_default)
        };
        assert_eq!(Capture::default().policy(false).kept(), None);
        assert_eq!(Capture::default().policy(true).kept(), Some(&Redaction::default()));
        for (by_default, inputs) in [(false, None), (true, Some(false))] {
            assert_eq!(kept(by_default, inputs).kept(), None);
            assert!(!kept(by_default, inputs).redaction.is_empty(), "what is redacted is never shown");
        }
        for (by_default, inputs) in [(true, None), (false, Some(true))] {
            assert!(kept(by_default, inputs).kept().is_some_and(|redaction| !redaction.is_empty()));
        }
    }

    #[test]
    fn a_redacted_value_is_gone_and_its_kind_stays() {
        let names = ["a", "b", "c", "d"].map(|column| format!("\"Video\".{column}"));
        let redaction = Redaction(names.iter().map(|name| plain(name)).collect());
        let row =
            serde_json::json!({ "a": "secret", "b": 7, "c": null, "d": "9007199254740993", "e": "kept" });
        let Value::Object(row) = row else { unreachable!("an object was written") };
        let kept = Value::Object(redaction.row("Video", row.clone()));
        assert_eq!(kept, serde_json::json!({ "a": REDACTED, "b": 0, "c": null, "d": "0", "e": "kept" }));
        assert_eq!(redaction.row("video", row.clone()), row, "another table's");
    }

    #[test]
    fn an_entry_that_hides_nothing_is_found() {
        let source = fixtures::source("Jobs", IdKind::Text, &[("q", "x-{id}")]).declared;
        let id = format!("\"{}\".{}", source.table.table, source.table.id);
        let manifest =
            HandlerManifest { domain: "d".into(), description: String::new(), sources: vec![source] };
        let slips = vec![id, "\"Jobs\".titel".to_owned(), "jobs.title".to_owned()];
        assert_eq!(without_effect(&slips, &manifest), slips[1..]);
    }
}
