//! Case files as questions: a job and its inputs, as the host would send them, and the answer in the files' form.

use std::path::{Path, PathBuf};

use salvage_core::candidate::{Candidate, LiveStatus, RowToken};
use salvage_core::decision::{self, Circumstances, Decision, Ruling};
use salvage_core::manifest::{HandlerManifest, Source};
use salvage_core::settings::PassSettings;
use salvage_core::sighting::Residue;
use salvage_core::source::{ColumnTypes, IdKind, ResolvedSource, SourceName, Standing};
use salvage_handler_sdk as sdk;
use salvage_handler_sdk::cases::{Case, Declared, DeclaredRead};
use serde::Serialize;
use serde_json::Value;

use crate::command::CommandError;
use crate::ports::{Answer, HandlerFault, Input, JobInputs, Question};

/// One file of a folder of cases.
pub(super) struct CaseFile {
    pub(super) path: PathBuf,
    pub(super) text: String,
    /// Or why it is none.
    pub(super) case: Result<Case, String>,
}

impl CaseFile {
    /// Its name in the folder.
    pub(super) fn name(&self) -> String {
        self.path.file_name().unwrap_or_default().to_string_lossy().into_owned()
    }
}

/// Every `*.json` of a folder, in the order of their names; at least one.
///
/// # Errors
/// If there is none, or the folder or a file could not be read.
pub(super) fn read(folder: &Path) -> Result<Vec<CaseFile>, CommandError> {
    let unreadable =
        |path: &Path| CommandError::file(format!("the cases in {} cannot be read", path.display()));
    let paths = sdk::cases::paths(folder).map_err(unreadable(folder))?;
    if paths.is_empty() {
        let why = format!("{} holds no case (*.json)", folder.display());
        return Err(CommandError::Unknown(why));
    }
    let read = |path: PathBuf| {
        let text = std::fs::read_to_string(&path).map_err(unreadable(&path))?;
        Ok(CaseFile { case: Case::parse(&text), path, text })
    };
    paths.into_iter().map(read).collect()
}

/// What a handler is asked, made of a case.
#[derive(Debug)]
pub(super) struct Scene {
    candidate: Candidate,
    source: ResolvedSource,
    inputs: JobInputs,
    residue: Residue,
    recoveries: u32,
}

impl Scene {
    /// Joins a case with what the handler declares.
    ///
    /// # Errors
    /// What in the case no host could send to this handler, a sentence each.
    pub(super) fn new(case: &Case, manifest: &HandlerManifest, digest: &str) -> Result<Self, Vec<String>> {
        let job = &case.job;
        let Some(source) = manifest.sources.iter().find(|source| source.name == job.source) else {
            return Err(vec![format!("the manifest declares no source `{}`", job.source)]);
        };
        let declared = declared(source);
        let mut faults = case.faults(&declared);
        let updated = job.updated_at().parse();
        if updated.is_err() {
            faults.push(format!("`updated_at` is no time in RFC 3339: `{}`", job.updated_at()));
        }
        let (Ok(updated), true) = (updated, faults.is_empty()) else { return Err(faults) };
        let is_queued = job.status == source.table.queued;
        Ok(Self {
            candidate: Candidate {
                source: 0,
                token: RowToken {
                    id: job.id.clone(),
                    status: job.status.clone(),
                    updated_at: job.updated_at().to_owned(),
                    xmin: String::new(),
                },
                status: if is_queued { LiveStatus::Queued } else { LiveStatus::Processing },
                job_type: job.job_type.clone(),
                updated,
            },
            source: ResolvedSource {
                name: SourceName { domain: manifest.domain.clone(), source: source.name.clone() },
                declared: source.clone(),
                id_kind: IdKind::Text,
                types: ColumnTypes::default(),
                standing: Standing::Active,
                component_digest: digest.to_owned(),
                database_role: None,
            },
            inputs: JobInputs {
                columns: case.columns(&declared),
                reads: reads(case, source),
                digest: String::new(),
            },
            residue: residue(job.residue, job.failed_reason.clone()),
            recoveries: job.recoveries,
        })
    }

    pub(super) fn question(&self) -> Question<'_> {
        Question {
            candidate: &self.candidate,
            source: &self.source,
            inputs: &self.inputs,
            residue: &self.residue,
            recoveries: self.recoveries,
        }
    }

    /// Why the host would not do what was decided, if it would refuse it.
    pub(super) fn refusal(&self, answer: &Answer, settings: &PassSettings) -> Option<String> {
        let mut reads = self.inputs.reads.iter();
        let circumstances = Circumstances {
            candidate: &self.candidate,
            source: &self.source.declared,
            residue: &self.residue,
            // Whatever finished, finished long ago.
            redis_now_ms: u64::MAX,
            recoveries: self.recoveries,
            truncated_input: reads.find(|input| input.truncated).map(|input| input.name.as_str()),
        };
        match decision::rule(answer.decision.clone().ok()?, &circumstances, settings) {
            Ruling::Refused { why, .. } => Some(why),
            Ruling::Fail { .. } | Ruling::Hold { .. } | Ruling::Requeue(_) => None,
        }
    }
}

/// In the declared order, as a host sends them.
fn reads(case: &Case, source: &Source) -> Vec<Input> {
    let mut given: Vec<_> = case.raw_inputs().collect();
    let place = |name: &str| source.reads.iter().position(|read| read.name == name);
    given.sort_by_key(|input| place(&input.name));
    let input =
        |input: sdk::RawInput| Input { name: input.name, rows: input.rows, truncated: input.truncated };
    given.into_iter().map(input).collect()
}

fn residue(of: sdk::Residue, reason: Option<String>) -> Residue {
    match of {
        sdk::Residue::None => Residue::None,
        sdk::Residue::Completed => Residue::Completed { finished_ms: 0 },
        sdk::Residue::Failed => Residue::Failed { finished_ms: 0, reason },
        sdk::Residue::HashOnly => Residue::HashOnly,
    }
}

fn declared(source: &Source) -> Declared<'_> {
    let table = &source.table;
    let reads = source.reads.iter().map(|read| DeclaredRead {
        name: &read.name,
        columns: read.columns.iter().map(String::as_str).collect(),
        limit: read.limit,
    });
    Declared {
        source: &source.name,
        id: &table.id,
        status: &table.status,
        updated_at: &table.updated_at,
        job_type: table.job_type.as_deref(),
        progress: table.progress.as_deref(),
        error: table.error.as_deref(),
        extra_columns: table.extra_columns.iter().map(String::as_str).collect(),
        live: [&table.queued, &table.processing],
        job_types: source.job_types.iter().map(|job_type| job_type.name.as_str()).collect(),
        reads: reads.collect(),
    }
}

/// An answer as case files spell it, its keys in their order.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub(super) enum Decided {
    Requeue { queue: String, name: String, data: Value, options: Value },
    Fail { reason: String },
    Hold { reason: String },
    None { reason: String },
}

impl Decided {
    pub(super) fn of(answer: &Answer) -> Self {
        match &answer.decision {
            Ok(Decision::Requeue(requeue)) => Self::Requeue {
                queue: requeue.queue.clone(),
                name: requeue.name.clone(),
                data: json(&requeue.data),
                options: json(&requeue.options),
            },
            Ok(Decision::Fail(reason)) => Self::Fail { reason: reason.clone() },
            Ok(Decision::Hold(reason)) => Self::Hold { reason: reason.clone() },
            // In the handler's own words, as when its cases are run natively.
            Err(HandlerFault::Error(reason)) => Self::None { reason: reason.clone() },
            Err(fault) => Self::None { reason: fault.to_string() },
        }
    }

    pub(super) const fn kind(&self) -> &'static str {
        match self {
            Self::Requeue { .. } => "requeue",
            Self::Fail { .. } => "fail",
            Self::Hold { .. } => "hold",
            Self::None { .. } => "none",
        }
    }

    pub(super) fn value(&self) -> Value {
        serde_json::to_value(self).expect("text and JSON values are JSON")
    }

    /// Over several lines.
    pub(super) fn text(&self) -> String {
        serde_json::to_string_pretty(self).expect("text and JSON values are JSON")
    }
}

/// What is not JSON is refused by the host; here it is shown as the text it is.
fn json(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|_| Value::String(text.to_owned()))
}
