//! The shape of a case file; described in the parent module.

use super::declared::Declared;
use super::rules;
use crate::{Error, Job, RawInput, Residue};
use serde::Deserialize;
use serde_json::{Map, Value};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// A point in time for cases that are not about time.
const UPDATED_AT_DEFAULT: &str = "2026-01-01T00:00:00.000000Z";

/// One case.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Case {
    /// What it shows, in a sentence.
    pub about: String,
    /// The orphan.
    pub job: CaseJob,
    /// By the name of the read.
    #[serde(default)]
    pub inputs: BTreeMap<String, CaseInput>,
    /// The decision; `None` if nobody has said yet.
    pub expected: Option<Value>,
}

/// The orphan of a case.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CaseJob {
    /// The source's name.
    pub source: String,
    /// The row's id as text.
    pub id: String,
    /// The job type.
    #[serde(rename = "type")]
    pub job_type: String,
    /// The row's status.
    pub status: String,
    updated_at: Option<String>,
    /// What of the row is not filled in from the rest.
    #[serde(default)]
    pub columns: Map<String, Value>,
    /// How often it was recovered.
    #[serde(default)]
    pub recoveries: u32,
    /// What it left behind.
    #[serde(default = "residue_none")]
    pub residue: Residue,
    /// BullMQ's reason, if the residue is `failed`.
    pub failed_reason: Option<String>,
}

/// The rows of one read.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CaseInput {
    /// In the read's order.
    pub rows: Vec<Map<String, Value>>,
    /// More were there.
    #[serde(default)]
    pub truncated: bool,
}

fn residue_none() -> Residue {
    Residue::None
}

/// The case files of a folder, `*.json`, in the order of their names.
///
/// # Errors
/// If the folder could not be listed.
pub fn paths(cases_dir: &Path) -> std::io::Result<Vec<PathBuf>> {
    let mut paths = Vec::new();
    for entry in std::fs::read_dir(cases_dir)? {
        let path = entry?.path();
        if path.extension().is_some_and(|extension| extension == "json") {
            paths.push(path);
        }
    }
    paths.sort();
    Ok(paths)
}

impl Case {
    /// Reads a case file's text.
    ///
    /// # Errors
    /// Where it is no case, and why.
    pub fn parse(text: &str) -> Result<Self, String> {
        serde_json::from_str(text).map_err(|error| format!("not a case: {error}"))
    }

    /// What a host could not send: one sentence for each column, status or input that `declared` does not have so.
    pub fn faults(&self, declared: &Declared<'_>) -> Vec<String> {
        rules::case_faults(self, declared)
    }

    /// The job's columns as the host would send them, a JSON object: the mapped ones from the rest of the job, then what
    /// the case spells.
    pub fn columns(&self, declared: &Declared<'_>) -> String {
        let job = &self.job;
        let mut columns = Map::new();
        columns.insert(declared.id.to_owned(), job.id.as_str().into());
        columns.insert(declared.status.to_owned(), job.status.as_str().into());
        columns.insert(declared.updated_at.to_owned(), job.updated_at().into());
        if let Some(column) = declared.job_type {
            columns.insert(column.to_owned(), job.job_type.as_str().into());
        }
        if let Some(column) = declared.progress {
            columns.insert(column.to_owned(), 0.into());
        }
        if let Some(column) = declared.error {
            columns.insert(column.to_owned(), Value::Null);
        }
        columns.extend(job.columns.clone());
        Value::Object(columns).to_string()
    }

    /// The inputs as the host would send them, so that a case goes through the same parser.
    pub fn raw_inputs(&self) -> impl Iterator<Item = RawInput> {
        self.inputs.iter().map(|(name, input)| RawInput {
            name: name.clone(),
            rows: input.rows.iter().map(|row| Value::Object(row.clone()).to_string()).collect(),
            truncated: input.truncated,
        })
    }

    /// The job as `decide` is handed it.
    pub(super) fn build(&self, domain: &str, declared: &Declared<'_>) -> Result<Job, Error> {
        let job = &self.job;
        Ok(Job {
            domain: domain.to_owned(),
            source: job.source.clone(),
            id: job.id.clone(),
            job_type: job.job_type.clone(),
            status: job.status.clone(),
            updated_at: job.updated_at().to_owned(),
            columns: Job::parse_columns(&self.columns(declared))?,
            recoveries: job.recoveries,
            residue: job.residue,
            failed_reason: job.failed_reason.clone(),
        })
    }
}

impl CaseJob {
    /// When the row was last written, RFC 3339; the same for every case that does not say.
    pub fn updated_at(&self) -> &str {
        self.updated_at.as_deref().unwrap_or(UPDATED_AT_DEFAULT)
    }
}
