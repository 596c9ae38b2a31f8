//! What a domain declares, as constants.
//!
//! The shapes mirror `handler-manifest` in `wit/v0.1/handler.wit`, which is the reference for their meaning. All of it
//! is `'static`, so that a manifest depends on nothing but the code. Names are those of the catalog, without quotes.
//! Nothing here is checked: [`cases::check`](crate::cases::check) finds slips early, and the host checks at load.

use std::time::Duration;

/// Everything the host needs to know of a domain.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Manifest {
    /// Unique among the handlers of a host, e.g. `slides`.
    pub domain: &'static str,
    /// One sentence for the operator.
    pub description: &'static str,
    /// At least one job table.
    pub sources: &'static [Source],
}

impl Manifest {
    /// The source of this name, if it is declared.
    pub fn source(&self, name: &str) -> Option<&'static Source> {
        self.sources.iter().find(|source| source.name == name)
    }
}

/// One job table with its queues and job types.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Source {
    /// Unique within the domain, e.g. `generation`.
    pub name: &'static str,
    /// Where the rows are.
    pub table: Table,
    /// At least one; exactly one if the table has no type column. A row of any other type is never touched.
    pub job_types: &'static [JobType],
    /// Every queue in which a job of this source may be; at least one.
    pub queues: &'static [QueueRule],
    /// Rows the host reads for `decide`; may be empty.
    pub reads: &'static [Read],
}

/// A job table and the columns the host uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Table {
    /// The table, `schema.table` if it is outside the search path.
    pub table: &'static str,
    /// Primary key: `text`, `uuid` or `bigint`.
    pub id: &'static str,
    /// `text` or an enum.
    pub status: &'static str,
    /// `timestamp(n)`, taken as UTC, or `timestamptz`.
    pub updated_at: &'static str,
    /// The column that tells the job type. `None`: the table holds one type.
    pub job_type: Option<&'static str>,
    /// A number the host sets to 0 on requeue.
    pub progress: Option<&'static str>,
    /// Text the host sets to the reason on fail and to NULL on requeue.
    pub error: Option<&'static str>,
    /// Further columns of the row to show to `decide`, in [`Job::columns`](crate::Job::columns).
    pub extra_columns: &'static [&'static str],
    /// The status of a job that waits for a worker, also what a requeue writes.
    pub queued: &'static str,
    /// The status of a job a worker has taken.
    pub processing: &'static str,
    /// The status that a fail writes.
    pub failed: &'static str,
}

/// A job type and what may be done for it.
///
/// Made by [`JobType::restart_safe`] or [`JobType::not_restart_safe`], so that nobody leaves the question open.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct JobType {
    /// The value of the type column.
    pub name: &'static str,
    /// A QUEUED row is a candidate once its `updated_at` is this old. `None`: the operator's default.
    pub stale_after_queued: Option<Duration>,
    /// The same for a PROCESSING row.
    pub stale_after_processing: Option<Duration>,
    /// Whether a job that had begun may be begun again. If not, the host turns a requeue of a PROCESSING row into a
    /// fail.
    pub restart_safe: bool,
    /// What happens to the parent row when the job is marked failed.
    pub on_fail: Option<ParentChange>,
    /// What happens to the parent row when the job is put back.
    pub on_requeue: Option<ParentChange>,
}

impl JobType {
    /// A type whose jobs may be begun again after a worker had begun them.
    pub const fn restart_safe(name: &'static str) -> Self {
        JobType {
            name,
            stale_after_queued: None,
            stale_after_processing: None,
            restart_safe: true,
            on_fail: None,
            on_requeue: None,
        }
    }

    /// A type whose jobs may be put back only as long as no worker had begun them.
    pub const fn not_restart_safe(name: &'static str) -> Self {
        JobType { restart_safe: false, ..JobType::restart_safe(name) }
    }

    /// Changes the parent row when a job of this type is marked failed.
    #[must_use]
    pub const fn on_fail(self, change: ParentChange) -> Self {
        JobType { on_fail: Some(change), ..self }
    }

    /// Changes the parent row when a job of this type is put back.
    #[must_use]
    pub const fn on_requeue(self, change: ParentChange) -> Self {
        JobType { on_requeue: Some(change), ..self }
    }

    /// Sets how long a row of this type may stay unchanged before it is a candidate. Counted in whole milliseconds.
    #[must_use]
    pub const fn stale_after(self, queued: Duration, processing: Duration) -> Self {
        JobType { stale_after_queued: Some(queued), stale_after_processing: Some(processing), ..self }
    }
}

/// A compare-and-set on the one parent row of a job, skipped while another live job maps to the same column.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ParentChange {
    /// The parent's table.
    pub table: &'static str,
    /// Its key column.
    pub key: &'static str,
    /// The job table's column that holds that key.
    pub job_column: &'static str,
    /// The parent's status column.
    pub status_column: &'static str,
    /// The change is made only from one of these.
    pub from: &'static [&'static str],
    /// The new status.
    pub to: &'static str,
    /// A text column that receives the same reason as the job.
    pub error: Option<&'static str>,
    /// A timestamp column set to the database's time.
    pub updated_at: Option<&'static str>,
}

/// A queue and how to recognise the source's jobs in it.
///
/// Made by [`QueueRule::new`], so that nobody leaves the names of the jobs open.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct QueueRule {
    /// BullMQ's queue name, without the prefix.
    pub name: &'static str,
    /// The current rule for the entry's id, with `{id}` once, e.g. `slide-{id}`.
    pub job_id: &'static str,
    /// The key of the payload that holds the row's id, e.g. `jobId`.
    pub payload_key: &'static str,
    /// The names that this source's BullMQ jobs have in this queue.
    pub job_names: JobNames,
    /// Names of entries that are never jobs of this source, whatever their ids and payloads say.
    pub foreign_names: &'static [&'static str],
    /// The path of the payload's text that serves as the job's name, where all jobs of the queue have one name.
    pub name_key: Option<&'static str>,
    /// A payload value by which this source's entries are told from others of the same name.
    pub ours_when: Option<PayloadMatch>,
}

impl QueueRule {
    /// A queue where this source's entries have these ids, carry the row's id under this key, and have these names.
    pub const fn new(
        name: &'static str,
        job_id: &'static str,
        payload_key: &'static str,
        job_names: JobNames,
    ) -> Self {
        QueueRule {
            name,
            job_id,
            payload_key,
            job_names,
            foreign_names: &[],
            name_key: None,
            ours_when: None,
        }
    }

    /// Names that are never jobs of this source.
    #[must_use]
    pub const fn foreign(self, names: &'static [&'static str]) -> Self {
        QueueRule { foreign_names: names, ..self }
    }

    /// Takes the text at this path of the payload, e.g. `meta.kind`, for the job's name.
    #[must_use]
    pub const fn named_by(self, path: &'static str) -> Self {
        QueueRule { name_key: Some(path), ..self }
    }

    /// Entries are this source's only if the payload has one of these values at this path.
    #[must_use]
    pub const fn ours_when(self, path: &'static str, is_in: &'static [&'static str]) -> Self {
        QueueRule { ours_when: Some(PayloadMatch { path, is_in }), ..self }
    }
}

/// The names of a source's BullMQ jobs in a queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum JobNames {
    /// Any name: no entry is foreign by its name, and one without a row's id keeps the queue in doubt.
    Any,
    /// These; an entry of another name that carries no row's id is foreign.
    Only(&'static [&'static str]),
}

/// A text or number at a path of the payload, and the values that count.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PayloadMatch {
    /// Keys joined by dots, e.g. `meta.kind`.
    pub path: &'static str,
    /// At least one value.
    pub is_in: &'static [&'static str],
}

/// Rows of another table, read for `decide` by one equality.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Read {
    /// Unique within the source; the name of the input.
    pub name: &'static str,
    /// The table read.
    pub table: &'static str,
    /// Columns to read; at least one.
    pub columns: &'static [&'static str],
    /// The column of this table that must equal …
    pub match_column: &'static str,
    /// … this column of the job's row.
    pub job_column: &'static str,
    /// Columns of this table; makes the order, and so the decision, repeatable.
    pub order_by: &'static [&'static str],
    /// At most this many rows per job. With one more the input is truncated, and the host refuses a requeue.
    pub limit: u32,
}
