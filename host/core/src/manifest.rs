//! What a domain declares: its job tables, job types, queues and reads.
//!
//! The native twin of the WIT record `handler-manifest`; the rules a manifest must keep on its own, without a database,
//! are in [`HandlerManifest::faults`].

use std::collections::BTreeSet;
use std::fmt;
use std::time::Duration;

use serde::Serialize;

use crate::lease;

/// Everything a handler declares. `domain` is its name everywhere.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct HandlerManifest {
    /// Unique among the handlers of a host.
    pub domain: String,
    /// One sentence for the operator.
    pub description: String,
    /// At least one.
    pub sources: Vec<Source>,
}

/// One job table with its queues and job types.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Source {
    /// Unique within the domain.
    pub name: String,
    /// Where the rows are.
    pub table: TableMapping,
    /// At least one; exactly one if the table has no type column.
    pub job_types: Vec<JobType>,
    /// Every queue in which a job of this source may be. At least one.
    pub queues: Vec<QueueRule>,
    /// Rows to read for `decide`.
    pub reads: Vec<Read>,
}

/// A job table's columns, as the catalog names them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct TableMapping {
    /// `Table` or `schema.table`, unquoted.
    pub table: String,
    /// Primary key: text, uuid or bigint.
    pub id: String,
    /// Text or enum.
    pub status: String,
    /// `timestamp(n)`, taken as UTC, or `timestamptz`.
    pub updated_at: String,
    /// Absent: every row is of the one declared type.
    pub job_type: Option<String>,
    /// Set to 0 on requeue.
    pub progress: Option<String>,
    /// Set to the reason on fail, to NULL on requeue.
    pub error: Option<String>,
    /// Further columns shown to `decide`.
    pub extra_columns: Vec<String>,
    /// Status of a job that waits.
    pub queued: String,
    /// Status of a job a worker has taken.
    pub processing: String,
    /// Status that `fail` writes.
    pub failed: String,
}

/// A job type and what may be done for it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct JobType {
    /// Value of the type column.
    pub name: String,
    /// Age at which a QUEUED row becomes a candidate; absent: the operator's default.
    pub stale_after_queued: Option<Duration>,
    /// The same for a PROCESSING row.
    pub stale_after_processing: Option<Duration>,
    /// Whether a job that had begun may be begun again.
    pub restart_safe: bool,
    /// Parent change when the job is marked failed.
    pub on_fail: Option<ParentChange>,
    /// Parent change when the job is put back.
    pub on_requeue: Option<ParentChange>,
}

/// A compare-and-set on the one parent row of a job.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ParentChange {
    /// The parent's table.
    pub table: String,
    /// Its key column.
    pub key: String,
    /// The job table's column that holds that key.
    pub job_column: String,
    /// The parent's status column.
    pub status_column: String,
    /// Changed only from one of these.
    pub from: Vec<String>,
    /// The new status.
    pub to: String,
    /// Text column that receives the job's reason.
    pub error: Option<String>,
    /// Timestamp column set to the database's time.
    pub updated_at: Option<String>,
}

impl ParentChange {
    /// The columns of the parent that it writes.
    pub fn written(&self) -> impl Iterator<Item = &String> {
        [&self.status_column].into_iter().chain(&self.error).chain(&self.updated_at)
    }
}

/// A queue and how this source's jobs are recognised in it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct QueueRule {
    /// BullMQ's queue name, without the prefix.
    pub name: String,
    /// Current rule for the entry's id.
    pub job_id: IdTemplate,
    /// Key of the payload that holds the row's id.
    pub payload_key: String,
    /// Names of the source's jobs in this queue.
    pub job_names: JobNames,
    /// Names of entries that are never jobs of the source, whatever their ids and payloads say.
    pub foreign_names: Vec<String>,
    /// Where the payload holds what serves as the job's name; `None`: the job's own name.
    pub name_key: Option<PayloadPath>,
    /// A payload value that tells the source's entries from others of the same name.
    pub ours_when: Option<PayloadMatch>,
}

impl QueueRule {
    /// A queue whose entries may have any name.
    #[must_use]
    pub fn new(name: &str, job_id: IdTemplate, payload_key: &str) -> Self {
        Self {
            name: name.to_owned(),
            job_id,
            payload_key: payload_key.to_owned(),
            job_names: JobNames::Any,
            foreign_names: vec![],
            name_key: None,
            ours_when: None,
        }
    }
}

/// The names of a source's jobs in a queue.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum JobNames {
    /// Any: no entry is foreign by its name.
    Any,
    /// These; at least one.
    Only(Vec<String>),
}

/// A value of the payload and what it has to be.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct PayloadMatch {
    /// Where it is.
    pub path: PayloadPath,
    /// Any of these; a number matches its text. At least one.
    #[serde(rename = "in")]
    pub is_in: Vec<String>,
}

/// Keys of nested objects of a payload, written with dots between them: `meta.kind`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(into = "String")]
pub struct PayloadPath(Vec<String>);

impl PayloadPath {
    /// Parses a path; `None` if any of its keys is empty.
    #[must_use]
    pub fn parse(path: &str) -> Option<Self> {
        let keys: Vec<String> = path.split('.').map(str::to_owned).collect();
        keys.iter().all(|key| !key.is_empty()).then_some(Self(keys))
    }

    /// Its keys, the outermost first; at least one.
    #[must_use]
    pub fn keys(&self) -> &[String] {
        &self.0
    }
}

impl From<PayloadPath> for String {
    fn from(path: PayloadPath) -> Self {
        path.0.join(".")
    }
}

impl fmt::Display for PayloadPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.join("."))
    }
}

/// Rows of another table, read for `decide` by one equality.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Read {
    /// Unique within the source.
    pub name: String,
    /// The table to read.
    pub table: String,
    /// At least one.
    pub columns: Vec<String>,
    /// The column of `table` that must equal `job_column`.
    pub match_column: String,
    /// The column of the job's row.
    pub job_column: String,
    /// Columns of `table`; at least one if several rows may come, so that their order is repeatable.
    pub order_by: Vec<String>,
    /// Most rows per job.
    pub limit: u32,
}

/// Most rows a read may ask for per job.
pub const READ_LIMIT_MAX: u32 = 10_000;

/// A job-id rule: literal text around one `{id}`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(into = "String")]
pub struct IdTemplate {
    before: String,
    after: String,
}

impl IdTemplate {
    /// Parses a rule such as `slide-{id}`; `None` unless `{id}` occurs exactly once.
    #[must_use]
    pub fn parse(rule: &str) -> Option<Self> {
        let (before, after) = rule.split_once("{id}")?;
        (!after.contains("{id}")).then(|| Self { before: before.to_owned(), after: after.to_owned() })
    }

    /// The entry id of a row.
    #[must_use]
    pub fn render(&self, row_id: &str) -> String {
        format!("{}{row_id}{}", self.before, self.after)
    }

    /// The text in the place of `{id}`, if `entry_id` has this rule's form.
    #[must_use]
    pub fn extract<'a>(&self, entry_id: &'a str) -> Option<&'a str> {
        entry_id.strip_prefix(&self.before)?.strip_suffix(&self.after).filter(|id| !id.is_empty())
    }
}

impl From<IdTemplate> for String {
    fn from(template: IdTemplate) -> Self {
        template.render("{id}")
    }
}

impl Source {
    /// The declared type of that name.
    #[must_use]
    pub fn job_type(&self, name: &str) -> Option<&JobType> {
        self.job_types.iter().find(|job_type| job_type.name == name)
    }

    /// This source's rule for a queue.
    #[must_use]
    pub fn queue(&self, name: &str) -> Option<&QueueRule> {
        self.queues.iter().find(|queue| queue.name == name)
    }
}

impl HandlerManifest {
    /// Every rule this manifest breaks, as sentences for its author; empty if it is sound on its own.
    #[must_use]
    pub fn faults(&self) -> Vec<String> {
        let mut faults = Vec::new();
        if !is_plain_name(&self.domain) {
            faults.push(format!("domain {:?} must be lower-case letters, digits and `-`", self.domain));
        }
        if self.domain == lease::GLOBAL {
            faults.push(format!("domain {:?}: that is the name of the lease over all domains", self.domain));
        }
        if self.sources.is_empty() {
            faults.push("no source declared: a handler owns at least one job table".to_owned());
        }
        duplicates(self.sources.iter().map(|source| source.name.as_str()), "source", &mut faults);
        for source in &self.sources {
            let mut own = Vec::new();
            source.faults(&mut own);
            faults.extend(own.into_iter().map(|fault| format!("source {:?}: {fault}", source.name)));
        }
        faults
    }
}

impl Source {
    fn faults(&self, faults: &mut Vec<String>) {
        if !is_plain_name(&self.name) {
            faults.push("its name must be lower-case letters, digits and `-`".to_owned());
        }
        self.table.faults(faults);
        if self.job_types.is_empty() {
            faults.push("no job type declared".to_owned());
        }
        if self.table.job_type.is_none() && self.job_types.len() > 1 {
            faults.push("several job types, but no type column to tell them apart".to_owned());
        }
        duplicates(self.job_types.iter().map(|job_type| job_type.name.as_str()), "job type", faults);
        if self.queues.is_empty() {
            faults.push("no queue declared".to_owned());
        }
        duplicates(self.queues.iter().map(|queue| queue.name.as_str()), "queue", faults);
        for queue in &self.queues {
            let mut own = Vec::new();
            queue.faults(&mut own);
            faults.extend(own.into_iter().map(|fault| format!("queue {:?}: {fault}", queue.name)));
        }
        duplicates(self.reads.iter().map(|read| read.name.as_str()), "read", faults);
        for read in &self.reads {
            read.faults(faults);
        }
        for job_type in &self.job_types {
            for change in job_type.on_fail.iter().chain(&job_type.on_requeue) {
                if change.from.is_empty() {
                    faults.push(format!(
                        "job type {:?}: its parent change names no status to change from",
                        job_type.name
                    ));
                }
            }
        }
    }
}

impl QueueRule {
    fn faults(&self, faults: &mut Vec<String>) {
        if self.name.is_empty() || self.payload_key.is_empty() {
            faults.push("name and payload key must not be empty".to_owned());
        }
        if let JobNames::Only(names) = &self.job_names {
            if names.is_empty() {
                faults.push("its job names must be `any` or at least one name".to_owned());
            }
            duplicates(names.iter().map(String::as_str), "job name", faults);
            for name in self.foreign_names.iter().filter(|name| names.contains(name)) {
                faults.push(format!("{name:?} is both a job name and a foreign name"));
            }
        }
        duplicates(self.foreign_names.iter().map(String::as_str), "foreign name", faults);
        if self.ours_when.as_ref().is_some_and(|ours| ours.is_in.is_empty()) {
            faults.push("its ours-when names no value".to_owned());
        }
    }
}

impl TableMapping {
    fn faults(&self, faults: &mut Vec<String>) {
        for (what, value) in [
            ("table", &self.table),
            ("id column", &self.id),
            ("status column", &self.status),
            ("updated-at column", &self.updated_at),
        ] {
            if value.is_empty() {
                faults.push(format!("its {what} must not be empty"));
            }
        }
        let statuses = BTreeSet::from([&self.queued, &self.processing, &self.failed]);
        if statuses.len() < 3 {
            faults
                .push("its queued, processing and failed statuses must be three different names".to_owned());
        }
    }
}

impl Read {
    fn faults(&self, faults: &mut Vec<String>) {
        if self.columns.is_empty() {
            faults.push(format!("read {:?}: no column to read", self.name));
        }
        if self.order_by.is_empty() && self.limit > 1 {
            faults.push(format!("read {:?}: no order, so a decision could not be repeated", self.name));
        }
        if self.limit == 0 || self.limit > READ_LIMIT_MAX {
            faults.push(format!("read {:?}: limit {} must be 1 to {READ_LIMIT_MAX}", self.name, self.limit));
        }
    }
}

fn is_plain_name(name: &str) -> bool {
    !name.is_empty() && name.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-')
}

fn duplicates<'a>(names: impl Iterator<Item = &'a str>, what: &str, faults: &mut Vec<String>) {
    let mut seen = BTreeSet::new();
    for name in names {
        if !seen.insert(name) {
            faults.push(format!("{what} {name:?} is declared twice"));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check_rule(rule: &str, entry_id: &str, expected: Option<&str>) {
        let template = IdTemplate::parse(rule).expect("a rule with one {id}");
        assert_eq!(template.extract(entry_id), expected, "{entry_id} under {rule}");
    }

    #[test]
    fn a_rule_extracts_what_it_renders_and_nothing_else() {
        check_rule("slide-{id}", "slide-a1", Some("a1"));
        check_rule("slide-{id}", "slide-", None);
        check_rule("slide-{id}", "export-a1", None);
        check_rule("{id}", "5", Some("5"));
        check_rule("a-{id}-z", "a-z", None);
    }

    #[test]
    fn a_rule_has_the_id_exactly_once() {
        assert_eq!(IdTemplate::parse("slide"), None);
        assert_eq!(IdTemplate::parse("{id}-{id}"), None);
    }
}
