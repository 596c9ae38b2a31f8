//! One trait per thing outside, in core's words. A port never shows a driver's type, and the adapters behind the ports
//! never see each other: only the pass holds several at once.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::time::Duration;

use jiff::Timestamp;
use salvage_core::act::{Act, Place, ScriptAnswer};
use salvage_core::alarm::Alarm;
use salvage_core::candidate::{Candidate, LiveRow, RowToken};
use salvage_core::decision::Decision;
use salvage_core::epoch::QueueMemory;
use salvage_core::lease::{self, Fence, LeaseAnswer, LeaseLoss, Scope};
use salvage_core::ledger::{Entry, Intent, PassRecord, StoryLine};
use salvage_core::manifest::HandlerManifest;
use salvage_core::outcome::Outcome;
use salvage_core::parking::Parked;
use salvage_core::report::SourceCounts;
use salvage_core::sighting::{QueueFailure, Residue};
use salvage_core::snapshot::{IdsCopy, IdsPage, Snapshot, Stalled, State};
use salvage_core::source::{ResolvedSource, SourceName, Standing};
use salvage_core::storm::Storm;
use salvage_core::usage::Usage;

/// Everything a pass needs of the outside, under one name.
pub trait Outside {
    /// The right to run.
    type Lease: Lease;
    /// Redis's queues.
    type Queues: Queues;
    /// PostgreSQL's job rows.
    type Jobs: Jobs;
    /// Salvage's own tables.
    type Ledger: Ledger;
    /// The domains' components.
    type Handlers: Handlers;
    /// Time and randomness.
    type Clock: Clock;

    /// The right to run.
    fn lease(&self) -> &Self::Lease;
    /// Redis's queues.
    fn queues(&self) -> &Self::Queues;
    /// PostgreSQL's job rows.
    fn jobs(&self) -> &Self::Jobs;
    /// Salvage's own tables.
    fn ledger(&self) -> &Self::Ledger;
    /// The domains' components.
    fn handlers(&self) -> &Self::Handlers;
    /// Time and randomness.
    fn clock(&self) -> &Self::Clock;
}

/// Time and randomness: the only place that asks for either.
pub trait Clock {
    /// Time since boot, running through suspend (`CLOCK_BOOTTIME`).
    fn now(&self) -> Duration;
    /// Returns after `duration`. A timer may stand still while the machine is suspended.
    async fn sleep(&self, duration: Duration);
    /// Returns once [`Self::now`] has come to `instant`, a second late at most: also if the machine was suspended meanwhile.
    async fn until(&self, instant: Duration) {
        while let Some(left) = instant.checked_sub(self.now()).filter(|left| !left.is_zero()) {
            self.sleep(left.min(Duration::from_secs(1))).await;
        }
    }
    /// 128 random bits, as 32 hex digits.
    fn token(&self) -> String;
    /// Random, evenly spread over 0 to 1.
    fn fraction(&self) -> f64;
}

/// The keys that say who may run a pass, one for each scope.
pub trait Lease {
    /// Takes the lease if nobody holds it.
    ///
    /// If the reply is lost, the key is read back: our token in it means that we hold the lease.
    ///
    /// # Errors
    /// If Redis does not answer. The key may then be ours until it expires.
    async fn acquire(&self, scope: &Scope, owner: &str, ttl: Duration) -> Result<LeaseAnswer, QueueFailure>;

    /// Lets the lease begin anew if it is still `owner`'s; returns whether it was. One that expired is not taken again.
    ///
    /// # Errors
    /// If Redis does not answer. The lease may or may not have been prolonged, so trust does not grow.
    async fn renew(&self, scope: &Scope, owner: &str, ttl: Duration) -> Result<bool, QueueFailure>;

    /// How long until the key runs out, if somebody holds it.
    ///
    /// # Errors
    /// If Redis does not answer.
    async fn expires_in(&self, _: &Scope) -> Result<Option<Duration>, QueueFailure> {
        Ok(None)
    }

    /// Gives the lease back if it is still `owner`'s; returns whether it was.
    ///
    /// # Errors
    /// If Redis does not answer. The key then expires by itself.
    async fn release(&self, scope: &Scope, owner: &str) -> Result<bool, QueueFailure>;
}

/// What a look at the queues is to find out, and what it may do for it.
#[derive(Debug, Clone, Copy)]
pub struct Ask<'a> {
    /// The queues whose guards are read, and some of their active entries.
    pub queues: &'a BTreeSet<String>,
    /// Those among them whose ids are wanted, in all six states.
    pub wanted: &'a BTreeSet<String>,
    /// Whether nothing of them may be left out, so that absence is proven. Otherwise long sorted sets are: they cost Redis
    /// most, and whoever is found without them needs no proof.
    pub is_whole: bool,
    /// Names the copies this look may make in Redis; `None` if it may write nothing.
    pub copies: Option<&'a str>,
    /// Whose nonce is read: each scope of the lease leaves its own in a queue.
    pub scope: &'a str,
}

impl<'a> Ask<'a> {
    /// For the guards alone.
    #[must_use]
    pub fn guards(queues: &'a BTreeSet<String>) -> Self {
        const NONE: &BTreeSet<String> = &BTreeSet::new();
        Self { queues, wanted: NONE, is_whole: false, copies: None, scope: lease::GLOBAL }
    }

    /// For all ids of all these queues, without writing anything.
    #[must_use]
    pub const fn ids(queues: &'a BTreeSet<String>) -> Self {
        Self { queues, wanted: queues, is_whole: true, copies: None, scope: lease::GLOBAL }
    }

    /// The same, with the nonce of another scope.
    #[must_use]
    pub const fn of_scope(self, scope: &'a str) -> Self {
        Self { scope, ..self }
    }
}

/// The queues, as they are in Redis.
pub trait Queues {
    /// Reads all queues at one instant, as cheaply as what is asked for allows. One reading per queue.
    ///
    /// May leave copies of ids in Redis if the ask allows it, see [`Self::remove_copies`].
    ///
    /// # Errors
    /// If there is no complete snapshot. What is wrong with one queue alone is a flaw of its reading, not an error.
    async fn snapshot(&self, ask: &Ask<'_>) -> Result<Snapshot, QueueFailure>;

    /// A part of what a snapshot left in a copy: `count` ids from position `from` on, or as many as there are. A copy that
    /// is not whole any more is a flaw of the page.
    ///
    /// # Errors
    /// If Redis did not answer.
    async fn page(&self, copy: &IdsCopy, from: usize, count: usize)
    -> Result<IdsPage<'static>, QueueFailure>;

    /// Whether each entry is in a state whose key is a sorted set, in their order; not all at one instant.
    ///
    /// # Errors
    /// If Redis did not answer.
    async fn are_in_set(
        &self,
        queue: &str,
        state: State,
        entry_ids: &[String],
    ) -> Result<Vec<bool>, QueueFailure>;

    /// Removes all copies that snapshots of this process left in Redis. If that fails it is logged: they expire.
    async fn remove_copies(&self);

    /// Reads `data` of each entry, in the order of `entry_ids`; `None` where it is gone. At most a page at a time.
    ///
    /// # Errors
    /// If any of them could not be read.
    async fn payloads(&self, queue: &str, entry_ids: &[String]) -> Result<Vec<Option<String>>, QueueFailure>;

    /// What each job left behind, over all its places; in the order of `jobs`.
    ///
    /// # Errors
    /// If any of them could not be read.
    async fn residues(&self, jobs: &[Vec<Place>]) -> Result<Vec<Residue>, QueueFailure>;

    /// Writes the nonce of the fence's scope into each queue's own key, and raises its generation to the fence's: all or none.
    /// A queue is only marked if its key still holds what the look at it found.
    ///
    /// # Errors
    /// If any may not have been written; [`QueueFailure::Fenced`] under a greater generation of the fence's scope,
    /// [`QueueFailure::Changed`] if this is not what was looked at.
    async fn mark(&self, marks: &BTreeMap<String, Mark>, fence: &Fence) -> Result<(), QueueFailure>;

    /// Runs the act's part in the queues: enqueues, or only proves that the job is in no state.
    ///
    /// # Errors
    /// If Redis did not answer; [`QueueFailure::is_indeterminate`] tells whether it may have been done.
    async fn act(&self, act: &Act, terms: &QueueTerms) -> Result<ScriptAnswer, QueueFailure>;

    /// Those of `active`, in their order, that are active still and have no lock: stalled in BullMQ's sense. Never acted
    /// on.
    ///
    /// # Errors
    /// If they could not be read.
    async fn stalled(&self, queue: &str, active: &[String]) -> Result<Vec<Stalled>, QueueFailure>;

    /// Commands sent since the process started.
    fn commands_sent(&self) -> u64;
}

/// A queue's new nonce, and the one it replaces.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mark {
    /// What the look found. Anything else is another Redis, or one that lost data since: a nonce written there would
    /// vouch for what nobody has seen.
    pub found: Option<String>,
    /// What to write.
    pub nonce: String,
}

/// The conditions under which a queue's script may write.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct QueueTerms {
    /// The pass's fence: the script refuses under a greater generation of its scope, and raises it.
    pub fence: Fence,
    /// Redis time after which the script refuses, milliseconds since 1970.
    pub deadline_ms: u64,
    /// The nonce each of the act's queues must hold; no entry for a queue that holds none.
    pub nonces: BTreeMap<String, String>,
    /// The queues that had a `meta` at the snapshot.
    pub with_meta: BTreeSet<String>,
}

/// Why a pass cannot go on: PostgreSQL gave no answer, or not the one that was asked for, or the pass lost its right to write.
#[derive(Debug, thiserror::Error)]
pub enum StoreFailure {
    /// No connection.
    #[error("no connection to PostgreSQL: {0}; check [database] url and that the server is up")]
    Unreachable(String),
    /// User, password or database refused.
    #[error("PostgreSQL refused the connection: {0}; check user, password and database in [database] url")]
    Denied(String),
    /// Salvage's own tables are missing or older than this version.
    #[error("schema `salvage` is {found}: run `salvage migrate`")]
    Schema {
        /// What was found instead.
        found: String,
    },
    /// A statement was refused.
    #[error("PostgreSQL refused to {attempted}: {message} (SQLSTATE {code})")]
    Refused {
        /// What was attempted, e.g. `list the candidates of slides/generation`.
        attempted: String,
        /// Its five characters.
        code: String,
        /// PostgreSQL's words, without values.
        message: String,
    },
    /// It takes no writes: a failover has left us at a standby, or somebody set it read-only.
    #[error(
        "PostgreSQL takes no writes: {message} (SQLSTATE 25006); if it is a standby, the next pass looks for the new primary"
    )]
    ReadOnly {
        /// PostgreSQL's words.
        message: String,
    },
    /// A newer pass of this scope has begun.
    #[error("superseded: generation {ours} is not the newest any more")]
    Fenced {
        /// Our generation.
        ours: u64,
    },
    /// Hosts of the other kind of `[lease] scope` are at work on the same tables.
    #[error(
        "this host has [lease] scope = {ours:?}, but a pass of scope {found:?} began {seconds} s ago: give all hosts the \
         same; after a change, the new kind begins once the old one was not used for {rest_seconds} s"
    )]
    OtherScope {
        /// The setting of this host.
        ours: &'static str,
        /// `global`, or a domain.
        found: String,
        /// Since that pass began.
        seconds: u64,
        /// How long it must be.
        rest_seconds: u64,
    },
    /// What was to be done cannot be done through a transaction pooler.
    #[error(
        "to {attempted} takes a connection to PostgreSQL itself, and [database] pooler = \"transaction\" says that there is \
         a pooler in between: run this once with DATABASE_URL naming the server and SALVAGE_DATABASE__POOLER=none"
    )]
    Pooled {
        /// What was attempted.
        attempted: &'static str,
    },
    /// This pass's lease is not to be trusted any more.
    #[error("the lease was lost: {0}")]
    LeaseLost(LeaseLoss),
    /// A reply that cannot be.
    #[error("PostgreSQL sent an unexpected reply to {attempted}: {detail}")]
    Unexpected {
        /// What was attempted.
        attempted: String,
        /// What is odd about it.
        detail: String,
    },
}

impl StoreFailure {
    /// Whether it concerns the statement alone, so that other work can go on.
    ///
    /// Exhausted resources (53) and trouble of the server itself (58, XX) will refuse the next statement as well, unless
    /// it was a trigger that raised them.
    #[must_use]
    pub fn is_local(&self) -> bool {
        match self {
            Self::Refused { code, .. } => !["53", "58", "XX"].iter().any(|class| code.starts_with(class)),
            Self::Unexpected { .. } => true,
            _ => false,
        }
    }
}

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

    /// Which of `row_ids` (in the column's form) are live rows of the source. There may be as many as a queue has entries.
    ///
    /// # Errors
    /// If the table could not be read.
    async fn live_among<'r>(
        &self,
        source: &ResolvedSource,
        row_ids: Vec<Cow<'r, str>>,
    ) -> Result<HashSet<Cow<'r, str>>, StoreFailure>;

    /// Whether any of `row_ids` is a row of the source, in whatever status.
    ///
    /// # Errors
    /// If the table could not be read.
    async fn any_exists(&self, source: &ResolvedSource, row_ids: &[String]) -> Result<bool, StoreFailure>;

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

    /// The story of one job, oldest first.
    ///
    /// # Errors
    /// If it could not be read.
    async fn story(&self, source: &SourceName, job_id: &str) -> Result<Vec<StoryLine>, StoreFailure>;
}

/// What `decide` is shown.
#[derive(Debug)]
pub struct Question<'a> {
    /// The orphan.
    pub candidate: &'a Candidate,
    /// Its source.
    pub source: &'a ResolvedSource,
    /// Its row and reads.
    pub inputs: &'a JobInputs,
    /// What it left behind.
    pub residue: &'a Residue,
    /// Recoveries within the window.
    pub recoveries: u32,
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

/// Why a handler gave no decision. Costs that orphan its decision in this pass, never the pass.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum HandlerFault {
    /// It ran longer than it may.
    #[error("timeout: ran longer than {limit_ms} ms")]
    Timeout {
        /// The limit.
        limit_ms: u64,
    },
    /// It wanted more memory than it may have.
    #[error("memory: wanted {wanted} bytes over all memories, the limit is {limit}")]
    Memory {
        /// Bytes over all its memories.
        wanted: u64,
        /// The limit.
        limit: u64,
    },
    /// Its answer, or what it wrote to stdout or stderr, is larger than it may be.
    #[error("output: answered or wrote {bytes} bytes, the limit is {limit}")]
    Output {
        /// Bytes of the answer, or bytes written when it was ended.
        bytes: u64,
        /// The limit.
        limit: u64,
    },
    /// It trapped.
    #[error("trap: {message}")]
    Trap {
        /// The panic message with its place if there is one, else the engine's first line.
        message: String,
    },
    /// It returned an error of its own.
    #[error("handler error: {0}")]
    Error(String),
    /// It failed so often that it is hardly asked any more; the text has reason and ways out.
    #[error("quarantined: {0}")]
    Quarantined(String),
    /// No such handler serves any more.
    #[error("no handler serves domain {0:?}")]
    NotLoaded(String),
}

/// A decision and what it took.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Answer {
    /// What the handler answered.
    pub decision: Result<Decision, HandlerFault>,
    /// What the call used; `None` if there was none.
    pub usage: Option<Usage>,
}

/// The domains' components.
pub trait Handlers {
    /// Every domain that serves, in the order in which they were loaded.
    fn domains(&self) -> Vec<LoadedDomain>;

    /// What was loaded meanwhile takes its place. To be called before each pass, and never while one is under way: a pass
    /// asks the same build of a handler from beginning to end.
    async fn between_passes(&self) {}

    /// Asks a domain's handler for one orphan, in a fresh store, within its limits.
    async fn decide(&self, question: &Question<'_>) -> Answer;
}
