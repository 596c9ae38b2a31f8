//! The shape of a case file; described in the parent module.

use crate::{Error, Job, RawInput, Residue, Row, Table};
use serde::Deserialize;
use serde_json::{Map, Value};
use std::collections::BTreeMap;

/// A point in time for cases that are not about time.
const UPDATED_AT_DEFAULT: &str = "2026-01-01T00:00:00.000000Z";

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Case {
    pub(super) about: String,
    pub(super) job: CaseJob,
    #[serde(default)]
    pub(super) inputs: BTreeMap<String, CaseInput>,
    pub(super) expected: Value,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct CaseJob {
    pub(super) source: String,
    pub(super) id: String,
    #[serde(rename = "type")]
    pub(super) job_type: String,
    pub(super) status: String,
    updated_at: Option<String>,
    #[serde(default)]
    pub(super) columns: Map<String, Value>,
    #[serde(default)]
    recoveries: u32,
    #[serde(default = "residue_none")]
    residue: Residue,
    failed_reason: Option<String>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct CaseInput {
    pub(super) rows: Vec<Map<String, Value>>,
    #[serde(default)]
    pub(super) truncated: bool,
}

fn residue_none() -> Residue {
    Residue::None
}

impl Case {
    /// The inputs as the host would send them, so that a case goes through the same parser.
    pub(super) fn raw_inputs(&self) -> impl Iterator<Item = RawInput> {
        self.inputs.iter().map(|(name, input)| RawInput {
            name: name.clone(),
            rows: input.rows.iter().map(|row| Value::Object(row.clone()).to_string()).collect(),
            truncated: input.truncated,
        })
    }
}

impl CaseJob {
    pub(super) fn build(&self, domain: &str, table: &Table) -> Result<Job, Error> {
        let updated_at = self.updated_at.as_deref().unwrap_or(UPDATED_AT_DEFAULT);
        Ok(Job {
            domain: domain.to_owned(),
            source: self.source.clone(),
            id: self.id.clone(),
            job_type: self.job_type.clone(),
            status: self.status.clone(),
            updated_at: updated_at.to_owned(),
            columns: self.row(table, updated_at)?,
            recoveries: self.recoveries,
            residue: self.residue,
            failed_reason: self.failed_reason.clone(),
        })
    }

    /// The columns as the host would send them: the mapped ones from the rest of the job, then what the case spells.
    fn row(&self, table: &Table, updated_at: &str) -> Result<Row, Error> {
        let mut columns = Map::new();
        columns.insert(table.id.to_owned(), self.id.as_str().into());
        columns.insert(table.status.to_owned(), self.status.as_str().into());
        columns.insert(table.updated_at.to_owned(), updated_at.into());
        if let Some(column) = table.job_type {
            columns.insert(column.to_owned(), self.job_type.as_str().into());
        }
        if let Some(column) = table.progress {
            columns.insert(column.to_owned(), 0.into());
        }
        if let Some(column) = table.error {
            columns.insert(column.to_owned(), Value::Null);
        }
        columns.extend(self.columns.clone());
        Job::parse_columns(&Value::Object(columns).to_string())
    }
}
