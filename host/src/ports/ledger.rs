//! Salvage's own tables.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use jiff::Timestamp;
use salvage_core::alarm::Alarm;
use salvage_core::control::Control;
use salvage_core::declaration::Declared;
use salvage_core::epoch::QueueMemory;
use salvage_core::lease::Fence;
use salvage_core::ledger::{ActRecord, ActsAsked, Entry, Intent, PassRecord, StoryLine};
use salvage_core::parking::Parked;
use salvage_core::report::SourceCounts;
use salvage_core::source::SourceName;
use salvage_core::storm::Storm;

use super::StoreFailure;

/// Salvage's own tables.
pub trait Ledger {
    /// Fails unless the schema is there and current.
    ///
    /// # Errors
    /// [`StoreFailure::Schema`], or if PostgreSQL does not answer.
    async fn check_schema(&self) -> Result<(), StoreFailure>;

    /// Raises the scope's generation by one and makes `pass_token` the only one that may write.
    ///
    /// # Errors
    /// If it may not have been raised; [`StoreFailure::OtherScope`] if hosts of the other kind of scope are at work.
    async fn raise_fence(&self, scope: &str, pass_token: &str) -> Result<Fence, StoreFailure>;

    /// Keeps questions to handlers; one that is kept already is not kept twice. A ledger may keep none.
    ///
    /// # Errors
    /// If they were not kept.
    async fn capture(&self, captured: &[Captured]) -> Result<(), StoreFailure> {
        let _ = captured;
        Ok(())
    }

    /// When a job's handler last answered to put it back, and the answer as it was captured; `None` if it was not, or not as
    /// a whole. A ledger may keep none.
    ///
    /// # Errors
    /// If it could not be read.
    async fn captured_requeue(
        &self,
        source: &SourceName,
        job_id: &str,
    ) -> Result<Option<(Timestamp, String)>, StoreFailure> {
        let _ = (source, job_id);
        Ok(None)
    }

    /// Records that a pass began.
    ///
    /// # Errors
    /// If it was not recorded.
    async fn pass_began(
        &self,
        pass_id: &str,
        fence: &Fence,
        started_at: Timestamp,
    ) -> Result<(), StoreFailure>;

    /// Records how a pass ended, and prunes what is past its retention, in a small batch.
    ///
    /// # Errors
    /// If it was not recorded.
    async fn pass_ended(
        &self,
        pass_id: &str,
        duration: Duration,
        sources: &[SourceCounts],
    ) -> Result<(), StoreFailure>;

    /// What the passes of a scope remember of each queue; no entry for one they never saw.
    ///
    /// # Errors
    /// If it could not be read.
    async fn queue_memories(
        &self,
        scope: &str,
        queues: &BTreeSet<String>,
    ) -> Result<BTreeMap<String, QueueMemory>, StoreFailure>;

    /// What the passes of a scope remember of every queue they ever saw under this host's prefix.
    ///
    /// # Errors
    /// If it could not be read.
    async fn all_queue_memories(&self, scope: &str) -> Result<BTreeMap<String, QueueMemory>, StoreFailure>;

    /// Remembers queues for the fence's scope, and under the fence.
    ///
    /// # Errors
    /// [`StoreFailure::Fenced`] or if nothing was written.
    async fn remember_queues(
        &self,
        memories: &BTreeMap<String, QueueMemory>,
        fence: &Fence,
    ) -> Result<(), StoreFailure>;

    /// The sources corroborated by a queue since that queue's epoch, as the scope remembers it, began.
    ///
    /// # Errors
    /// If it could not be read.
    async fn corroborated(&self, scope: &str) -> Result<BTreeSet<SourceName>, StoreFailure>;

    /// Records that `queue` held an entry of `source` at `now`.
    ///
    /// # Errors
    /// If it was not recorded.
    async fn corroborate(&self, seen: &[(SourceName, String)], now: Timestamp) -> Result<(), StoreFailure>;

    /// Records who accepted a queue, and when.
    ///
    /// # Errors
    /// If it was not recorded.
    async fn accepted_by(&self, queue: &str, who: &str, now: Timestamp) -> Result<(), StoreFailure>;

    /// Entries the operator marked as harmless: (queue, entry id).
    ///
    /// # Errors
    /// If they could not be read.
    async fn accepted_entries(&self) -> Result<BTreeSet<(String, String)>, StoreFailure>;

    /// Marks an entry as harmless.
    ///
    /// # Errors
    /// If it was not recorded.
    async fn accept_entry(
        &self,
        queue: &str,
        entry_id: &str,
        who: &str,
        now: Timestamp,
    ) -> Result<(), StoreFailure>;

    /// What is remembered of each declaration; in their order.
    ///
    /// # Errors
    /// If it could not be read.
    async fn declarations(&self, declarations: &[Declaration]) -> Result<Vec<Declared>, StoreFailure>;

    /// Remembers what a pass found to confirm declarations, or to speak against them, at `now`.
    ///
    /// # Errors
    /// [`StoreFailure::Fenced`] or if nothing was written.
    async fn confirm(
        &self,
        confirmations: &[Confirmation],
        now: Timestamp,
        fence: &Fence,
    ) -> Result<(), StoreFailure>;

    /// Remembers that these queues were accepted while a declaration was in force.
    ///
    /// # Errors
    /// If it was not recorded.
    async fn accept_queues(
        &self,
        declaration: &Declaration,
        queues: &BTreeSet<String>,
    ) -> Result<(), StoreFailure>;

    /// Records that the operator vouches for a declaration, whatever its control groups say.
    ///
    /// # Errors
    /// If it was not recorded.
    async fn vouch(&self, declaration: &Declaration, who: &str, now: Timestamp) -> Result<(), StoreFailure>;

    /// Job names that the operator called somebody else's: (queue, name).
    ///
    /// # Errors
    /// If they could not be read.
    async fn foreign_names(&self) -> Result<BTreeSet<(String, String)>, StoreFailure>;

    /// Marks a job name as somebody else's.
    ///
    /// # Errors
    /// If it was not recorded.
    async fn accept_foreign(
        &self,
        queue: &str,
        name: &str,
        who: &str,
        now: Timestamp,
    ) -> Result<(), StoreFailure>;

    /// Everything that operators said and that is in force, the newest first.
    ///
    /// # Errors
    /// If it could not be read.
    async fn acceptances(&self) -> Result<Vec<Acceptance>, StoreFailure>;

    /// Ends what an operator said; returns whether it was in force.
    ///
    /// # Errors
    /// If it may still be in force.
    async fn revoke(&self, word: &Word) -> Result<bool, StoreFailure>;

    /// How often each job was put back since `since`; in the order of `jobs`.
    ///
    /// # Errors
    /// If it could not be read.
    async fn recoveries(
        &self,
        jobs: &[(SourceName, String)],
        since: Timestamp,
    ) -> Result<Vec<u32>, StoreFailure>;

    /// Commits the intents of this pass in one batch, under the fence.
    ///
    /// # Errors
    /// [`StoreFailure::Fenced`], or if they were not recorded: then nothing may be acted on.
    async fn intend(&self, pass_id: &str, fence: &Fence, intents: &[Intent]) -> Result<(), StoreFailure>;

    /// Takes back intents of which it is proven that nothing was enqueued.
    ///
    /// # Errors
    /// If they still count; the cap is then stricter than it need be.
    async fn withdraw(&self, pass_id: &str, intents: &[Intent]) -> Result<(), StoreFailure>;

    /// Adds an alarm to the record of a pass that is under way.
    ///
    /// # Errors
    /// If it was not recorded.
    async fn alarm(&self, pass_id: &str, alarm: &Alarm) -> Result<(), StoreFailure>;

    /// The storms that the last pass saw, under this host's prefix.
    ///
    /// # Errors
    /// If they could not be read.
    async fn storms(&self) -> Result<BTreeMap<SourceName, Storm>, StoreFailure>;

    /// Remembers for each source how many orphans its storm has, seen at `now` unless it was seen before; none: the storm
    /// is over, and the next one has to be accepted anew.
    ///
    /// # Errors
    /// [`StoreFailure::Fenced`] or if nothing was written.
    async fn remember_storms(
        &self,
        orphans: &BTreeMap<SourceName, u64>,
        now: Timestamp,
        fence: &Fence,
    ) -> Result<(), StoreFailure>;

    /// What is remembered of each job whose change was rejected; in the order of `jobs`.
    ///
    /// # Errors
    /// If it could not be read.
    async fn parked(&self, jobs: &[(SourceName, String)]) -> Result<Vec<Option<Parked>>, StoreFailure>;

    /// Remembers rows that were rejected, in place of what was remembered of them.
    ///
    /// # Errors
    /// [`StoreFailure::Fenced`] or if nothing was written.
    async fn park(&self, parked: &[Parked], fence: &Fence) -> Result<(), StoreFailure>;

    /// Lets the next pass try a parked job of `source` again, or all of them; returns how many wait no more.
    ///
    /// # Errors
    /// If none was released.
    async fn release_parked(
        &self,
        source: &SourceName,
        job_id: Option<&str>,
        who: &str,
    ) -> Result<u64, StoreFailure>;

    /// Records stories that were not written by an act's own transaction, in one batch, under the fence: a pass that was
    /// superseded on its way has judged by what is not true any more, and tells nothing.
    ///
    /// # Errors
    /// [`StoreFailure::Fenced`], or if they were not recorded.
    async fn record(&self, entries: &[Entry], fence: &Fence) -> Result<(), StoreFailure>;

    /// The last passes, newest first.
    ///
    /// # Errors
    /// If they could not be read.
    async fn history(&self, limit: u32) -> Result<Vec<PassRecord>, StoreFailure>;

    /// The jobs that were put back or marked failed, or may have been, newest first.
    ///
    /// # Errors
    /// If they could not be read.
    async fn acts(&self, asked: &ActsAsked) -> Result<Vec<ActRecord>, StoreFailure>;

    /// Every source that a recorded pass looked at, or of which a story is recorded.
    ///
    /// # Errors
    /// If they could not be read.
    async fn told_sources(&self) -> Result<BTreeSet<SourceName>, StoreFailure>;

    /// The story of one job, oldest first.
    ///
    /// # Errors
    /// If it could not be read.
    async fn story(&self, source: &SourceName, job_id: &str) -> Result<Vec<StoryLine>, StoreFailure>;
}

/// What a source's manifest says of its table and queues.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Declaration {
    /// The source.
    pub source: SourceName,
    /// See [`salvage_core::declaration::declaration`].
    pub text: String,
}

/// What a pass found for a declaration, or against it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Confirmation {
    /// The declaration.
    pub declaration: Declaration,
    /// Whether a row of the source was attributed to an entry under it.
    pub is_confirmed: bool,
    /// Its control groups.
    pub controls: Vec<Control>,
}

/// Something an operator vouched for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Word {
    /// A queue, as it is: Redis lost nothing of it.
    Queue {
        /// The queue.
        queue: String,
    },
    /// An entry: it is harmless.
    Entry {
        /// Its queue.
        queue: String,
        /// Its id.
        entry_id: String,
    },
    /// A job name: its entries are somebody else's.
    Foreign {
        /// The queue.
        queue: String,
        /// The name.
        name: String,
    },
    /// A source's declaration, against its control group.
    Declaration {
        /// `domain/source`.
        source: String,
        /// The first digits of its digest; not looked at when it is revoked.
        digest: String,
    },
}

/// A word in force.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Acceptance {
    /// What was said.
    pub word: Word,
    /// By whom; empty if it is not known.
    pub who: String,
    /// When; database clock.
    pub at: Timestamp,
}

/// A question to a handler and its answer, as they are kept.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Captured {
    /// Whose job it was about.
    pub source: SourceName,
    /// Its row's id.
    pub job_id: String,
    /// SHA-256 of the component that was asked, hex.
    pub component_digest: String,
    /// JSON in the form of a case file, without the columns that are not to be kept.
    pub question: String,
    /// JSON in the form of a case's `expected`; its kind alone if columns were left out.
    pub decision: String,
    /// Whether columns were left out.
    pub is_redacted: bool,
}
