//! The job rows.

use std::borrow::Cow;
use std::collections::BTreeSet;

use jiff::Timestamp;
use salvage_core::act::Act;
use salvage_core::candidate::{LiveRow, LiveStatus, RowToken};
use salvage_core::capture::CapturePolicy;
use salvage_core::lease::Fence;
use salvage_core::ledger::Entry;
use salvage_core::manifest::HandlerManifest;
use salvage_core::outcome::Outcome;
use salvage_core::source::{ResolvedSource, SourceName, Standing};

use super::StoreFailure;

/// A domain as it was loaded, before the catalog was asked.
#[derive(Debug, Clone)]
pub struct LoadedDomain {
    /// What it declares; sound on its own.
    pub manifest: HandlerManifest,
    /// What its grants allow.
    pub standing: Standing,
    /// SHA-256 of the component, hex.
    pub digest: String,
    /// The role under which PostgreSQL runs what is read and written for it.
    pub database_role: Option<String>,
    /// What is kept of its questions, and what of them is not.
    pub capture: CapturePolicy,
}

/// A source whose manifest does not fit the live catalog.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Misfit {
    /// The source.
    pub source: SourceName,
    /// Each fault in a sentence: which table, column or status, what was expected, what was found.
    pub faults: Vec<String>,
}

/// What a source's table holds besides candidates.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Census {
    /// Rows QUEUED or PROCESSING.
    pub live: u64,
    /// Of those, of a type no source of that table declares.
    pub undeclared: u64,
    /// Of those, with `updatedAt` further in the future than clocks drift.
    pub clock_skew: u64,
}

/// Young rows of one type and status, written at or after `from` and before `before`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Group {
    /// The job type.
    pub job_type: String,
    /// Whether they wait or are begun.
    pub status: LiveStatus,
    /// The time at which they begin.
    pub from: Timestamp,
    /// The time at which they end.
    pub before: Timestamp,
}

/// What the handler will see of one orphan.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JobInputs {
    /// One JSON object: the mapped and extra columns.
    pub columns: String,
    /// One per declared read, in its order.
    pub reads: Vec<Input>,
    /// SHA-256 over all of the above, hex.
    pub digest: String,
}

/// The rows of one read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Input {
    /// The read's name.
    pub name: String,
    /// Each one JSON object, in the read's order; at most its limit.
    pub rows: Vec<String>,
    /// More were there.
    pub truncated: bool,
}

/// The job rows.
pub trait Jobs {
    /// A transaction that holds a job's row.
    type Held: HeldJob;

    /// The database's clock, microseconds.
    ///
    /// # Errors
    /// If PostgreSQL does not answer.
    async fn now(&self) -> Result<Timestamp, StoreFailure>;

    /// Joins what the domains declare with the live catalog. A source that does not fit is a misfit, not an error.
    ///
    /// # Errors
    /// If the catalog could not be read.
    async fn resolve(
        &self,
        domains: &[LoadedDomain],
    ) -> Result<(Vec<ResolvedSource>, Vec<Misfit>), StoreFailure>;

    /// Counts a source's live rows. `declared` are the types of all sources on the same table.
    ///
    /// # Errors
    /// If the table could not be read.
    async fn census(
        &self,
        source: &ResolvedSource,
        declared: &BTreeSet<String>,
        now: Timestamp,
    ) -> Result<Census, StoreFailure>;

    /// One page of live rows of the source's own types written before `before`, or with an odd `updatedAt`, ordered by id
    /// in the column's own order, beginning after `after`. Fewer than `limit` rows: the last page.
    ///
    /// # Errors
    /// If the table could not be read.
    async fn live_rows(
        &self,
        source: &ResolvedSource,
        before: Timestamp,
        after: Option<&str>,
        limit: u32,
    ) -> Result<Vec<LiveRow>, StoreFailure>;

    /// Young live rows of a source for its control group: of each of these groups the oldest, at most `limit`.
    ///
    /// # Errors
    /// If the table could not be read.
    async fn young_rows(
        &self,
        source: &ResolvedSource,
        groups: &[Group],
        limit: u32,
    ) -> Result<Vec<LiveRow>, StoreFailure>;

    /// Whether each of `row_ids` (in the column's form) is a live row of the source, in their order. There may be as many as
    /// a queue has entries.
    ///
    /// # Errors
    /// If the table could not be read.
    async fn are_live(
        &self,
        source: &ResolvedSource,
        row_ids: &[Cow<'_, str>],
    ) -> Result<Vec<bool>, StoreFailure>;

    /// Those of `row_ids` that are rows of the source, in whatever status.
    ///
    /// # Errors
    /// If the table could not be read.
    async fn existing(
        &self,
        source: &ResolvedSource,
        row_ids: &[String],
    ) -> Result<BTreeSet<String>, StoreFailure>;

    /// What the handler will see of each row, read in one READ ONLY transaction; `None` where the row changed since its
    /// token was read.
    ///
    /// # Errors
    /// If a read failed.
    async fn inputs(
        &self,
        source: &ResolvedSource,
        tokens: &[&RowToken],
    ) -> Result<Vec<Option<JobInputs>>, StoreFailure>;

    /// Steps 1 to 7 of an act: opens a transaction, checks the fence, takes the job's row by its whole token and the
    /// parent's row, compares the inputs, writes both and the ledger, and leaves the transaction open for the queue.
    ///
    /// # Errors
    /// If PostgreSQL failed; nothing was written.
    async fn hold(
        &self,
        source: &ResolvedSource,
        act: &Act,
        fence: &Fence,
        entry: &Entry,
    ) -> Result<Hold<Self::Held>, StoreFailure>;
}

/// How [`Jobs::hold`] ended.
#[derive(Debug)]
pub enum Hold<T> {
    /// The row is ours and changed; the queue comes next.
    Held(T),
    /// The row is not ours to change; the transaction is over and nothing was written.
    Not(Outcome),
}

/// An open transaction that changed a job's row. Dropped, it is rolled back.
pub trait HeldJob {
    /// Makes the change true.
    ///
    /// # Errors
    /// If the reply was lost or refused: the change may or may not be true.
    async fn commit(self) -> Result<(), StoreFailure>;

    /// Takes everything back.
    async fn roll_back(self);
}
