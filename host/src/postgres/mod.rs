//! PostgreSQL: the job rows, and Salvage's own tables. The only SQL of the house.
//!
//! | file | subject |
//! |---|---|
//! | `session`, `at_hand` | one transaction: everything runs in one; and whose connection the next one gets |
//! | `sql` | the only module that builds SQL text at run time |
//! | `catalog` | what a manifest names, joined with what is there |
//! | `candidates`, `inputs` | reading job rows, and what `decide` is shown |
//! | `act` | the only file that writes job rows |
//! | `fence`, `memory`, `ledger`, `waiting`, `captures` | Salvage's own tables |
//! | `indexes` | the live-row index of a job table, when the operator asks for it |
//! | `migrate` | making and changing those |
//!
//! Nothing connects before it is needed, so the host starts while PostgreSQL is down. Nothing takes a session-level lock
//! but `migrate`. Nothing here knows of Redis, except that what is remembered of queues is kept by key prefix.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::str::FromStr;
use std::time::Duration;

use jiff::Timestamp;
use salvage_core::act::{ACTS_CONCURRENT, Act};
use salvage_core::alarm::Alarm;
use salvage_core::candidate::{LiveRow, RowToken};
use salvage_core::declaration::Declared;
use salvage_core::epoch::QueueMemory;
use salvage_core::lease::{Fence, ScopeKind};
use salvage_core::ledger::{ActRecord, ActsAsked, Entry, Intent, PassRecord, StoryLine};
use salvage_core::parking::Parked;
use salvage_core::report::SourceCounts;
use salvage_core::source::{ResolvedSource, SourceName};
use salvage_core::storm::Storm;
use sqlx::pool::PoolConnection;
use sqlx::postgres::{PgConnectOptions, PgPool, PgPoolOptions};
use sqlx::{ConnectOptions, Connection};

use crate::ports::{
    Acceptance, Captured, Census, Confirmation, Declaration, Group, Hold, JobInputs, Jobs, Ledger,
    LoadedDomain, Misfit, StoreFailure, Word,
};

mod act;
mod at_hand;
mod candidates;
mod captures;
mod catalog;
mod declarations;
mod error;
mod fence;
mod indexes;
mod inputs;
mod ledger;
mod memory;
mod migrate;
mod session;
mod sql;
mod waiting;

use self::at_hand::AtHand;

pub use act::Held;
pub use indexes::IndexPlan;
pub use waiting::ParkedCount;

/// How long to wait for a free or a new connection.
const ACQUIRE_TIMEOUT: Duration = Duration::from_secs(5);

/// Who has to wait for longer looks for the cause.
const PATIENCE: Duration = Duration::from_millis(250);

/// How long to ask for the cause after [`ACQUIRE_TIMEOUT`].
const CAUSE_TIMEOUT: Duration = Duration::from_secs(1);

/// One connection per act in flight, and two for what runs beside them.
const CONNECTIONS_MAX: u32 = ACTS_CONCURRENT as u32 + 2;

/// What stands between the host and PostgreSQL.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Pooler {
    /// Nothing, or something that gives a client one server for as long as it is connected.
    #[default]
    None,
    /// A pooler that gives a client another server with every transaction, such as `PgBouncer` in transaction mode.
    Transaction,
}

/// Why a URL cannot be used. Never quotes it: it holds the password.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("[database] url cannot be used: {0}; expected postgres://USER:PASSWORD@HOST[:PORT]/DATABASE")]
pub struct InvalidUrl(String);

impl From<&sqlx::Error> for InvalidUrl {
    fn from(error: &sqlx::Error) -> Self {
        // The outer ones only say that it is about the configuration.
        let mut inmost: &dyn std::error::Error = error;
        while let Some(source) = inmost.source() {
            inmost = source;
        }
        Self(inmost.to_string())
    }
}

/// The adapter. Clones share their connections.
#[derive(Debug, Clone)]
pub struct Postgres {
    pool: PgPool,
    at_hand: AtHand,
    pooler: Pooler,
    /// Redis's key prefix.
    prefix: String,
    /// How long hosts of the other kind of lease scope must have been silent before this kind begins.
    scope_rest: Duration,
    /// In place of what the role or the database says.
    search_path: Option<String>,
}

/// Two intervals of the default.
const SCOPE_REST: Duration = Duration::from_secs(600);

impl Postgres {
    /// Reads the URL; connects to nothing. `prefix` is Redis's key prefix, by which queues are remembered.
    ///
    /// # Errors
    /// If the URL cannot be used; the message does not quote it.
    pub fn new(url: &str, pooler: Pooler, prefix: &str) -> Result<Self, InvalidUrl> {
        let options = PgConnectOptions::from_str(url).map_err(|error| InvalidUrl::from(&error))?;
        let name = options.get_application_name().unwrap_or("salvage").to_owned();
        let mut options = options.application_name(&name).disable_statement_logging();
        if pooler == Pooler::Transaction {
            // A startup option that such poolers refuse; PostgreSQL's default is as good since version 12.
            options = options.extra_float_digits(None);
        }
        let pool = PgPoolOptions::new()
            .max_connections(CONNECTIONS_MAX)
            .acquire_timeout(ACQUIRE_TIMEOUT)
            .connect_lazy_with(options);
        Ok(Self::from_pool(pool, pooler, prefix))
    }

    /// The same over a pool that somebody else has set up.
    #[must_use]
    pub fn from_pool(pool: PgPool, pooler: Pooler, prefix: &str) -> Self {
        let (at_hand, prefix) = (AtHand::default(), prefix.to_owned());
        Self { pool, at_hand, pooler, prefix, scope_rest: SCOPE_REST, search_path: None }
    }

    /// The same, beginning after hosts of the other kind of lease scope have been silent for `rest`: longer than from one
    /// of their passes to the next.
    #[must_use]
    pub fn with_scope_rest(self, rest: Duration) -> Self {
        Self { scope_rest: rest, ..self }
    }

    /// The same, looking for tables without a schema in these, written as SQL has them.
    #[must_use]
    pub fn with_search_path(self, schemas: Option<&str>) -> Self {
        Self { search_path: schemas.map(str::to_owned), ..self }
    }

    /// Fails if hosts of the other kind of lease scope are at work. Reads only.
    ///
    /// # Errors
    /// [`StoreFailure::OtherScope`], or if PostgreSQL does not answer.
    pub async fn check_scope(&self, kind: ScopeKind) -> Result<(), StoreFailure> {
        fence::check_scope(self, kind).await
    }

    /// Fails behind a transaction pooler, whose connections are no place for what outlives a transaction: a session's
    /// lock or setting would end up with strangers.
    fn need_direct(&self, attempted: &'static str) -> Result<(), StoreFailure> {
        if self.is_pooled() { Err(StoreFailure::Pooled { attempted }) } else { Ok(()) }
    }

    fn is_pooled(&self) -> bool {
        self.pooler == Pooler::Transaction
    }

    /// A connection from the pool.
    ///
    /// The pool tries a refused connection again until its time is up and then says only that it is up. So the cause is
    /// asked for by a connection of our own: soon, if the pool has none at all, or after.
    async fn connection(&self) -> Result<PoolConnection<sqlx::Postgres>, StoreFailure> {
        if self.pool.size() == 0 {
            match tokio::time::timeout(PATIENCE, self.pool.acquire()).await {
                Ok(Ok(connection)) => return Ok(connection),
                Ok(Err(failure)) => return Err(self.cause(&failure)),
                Err(_) => self.probe(ACQUIRE_TIMEOUT).await?,
            }
        }
        match self.pool.acquire().await {
            Ok(connection) => Ok(connection),
            Err(failure @ sqlx::Error::PoolTimedOut) => {
                self.probe(CAUSE_TIMEOUT).await?;
                Err(error::failure("connect", &failure))
            }
            Err(failure) => Err(self.cause(&failure)),
        }
    }

    /// Connects and disconnects.
    async fn probe(&self, within: Duration) -> Result<(), StoreFailure> {
        let connection = self.connect(within).await?;
        // It answered; whether the farewell arrives does not matter.
        drop(connection.close().await);
        Ok(())
    }

    /// A connection outside of the pool.
    async fn connect(&self, within: Duration) -> Result<sqlx::PgConnection, StoreFailure> {
        let options = self.pool.connect_options();
        match tokio::time::timeout(within, options.connect()).await {
            Ok(Ok(connection)) => Ok(connection),
            Ok(Err(failure)) => Err(self.cause(&failure)),
            Err(_) => {
                let within = within.as_secs();
                Err(StoreFailure::Unreachable(format!("{} did not answer within {within} s", self.address())))
            }
        }
    }

    /// Why a connection could not be made, with the address if it is that which nobody answers at.
    fn cause(&self, failure: &sqlx::Error) -> StoreFailure {
        match error::failure("connect", failure) {
            // The latter: something listens there that is no PostgreSQL.
            StoreFailure::Unreachable(detail) | StoreFailure::Unexpected { detail, .. } => {
                StoreFailure::Unreachable(format!("{}: {detail}", self.address()))
            }
            // Whatever else PostgreSQL says to a client that connects is about that client.
            StoreFailure::Refused { message, code, .. } => {
                StoreFailure::Denied(format!("{message} (SQLSTATE {code})"))
            }
            other => other,
        }
    }

    fn address(&self) -> String {
        let options = self.pool.connect_options();
        match options.get_socket() {
            Some(socket) => socket.display().to_string(),
            None => format!("{}:{}", options.get_host(), options.get_port()),
        }
    }
}

impl Jobs for Postgres {
    type Held = Held;

    async fn now(&self) -> Result<Timestamp, StoreFailure> {
        candidates::now(self).await
    }

    async fn resolve(
        &self,
        domains: &[LoadedDomain],
    ) -> Result<(Vec<ResolvedSource>, Vec<Misfit>), StoreFailure> {
        catalog::resolve(self, domains).await
    }

    async fn census(
        &self,
        source: &ResolvedSource,
        declared: &BTreeSet<String>,
        now: Timestamp,
    ) -> Result<Census, StoreFailure> {
        candidates::census(self, source, declared, now).await
    }

    async fn live_rows(
        &self,
        source: &ResolvedSource,
        before: Timestamp,
        after: Option<&str>,
        limit: u32,
    ) -> Result<Vec<LiveRow>, StoreFailure> {
        candidates::live_rows(self, source, before, after, limit).await
    }

    async fn are_live(
        &self,
        source: &ResolvedSource,
        row_ids: &[Cow<'_, str>],
    ) -> Result<Vec<bool>, StoreFailure> {
        candidates::are_live(self, source, row_ids).await
    }

    async fn young_rows(
        &self,
        source: &ResolvedSource,
        groups: &[Group],
        limit: u32,
    ) -> Result<Vec<LiveRow>, StoreFailure> {
        candidates::young_rows(self, source, groups, limit).await
    }

    async fn existing(
        &self,
        source: &ResolvedSource,
        row_ids: &[String],
    ) -> Result<BTreeSet<String>, StoreFailure> {
        candidates::existing(self, source, row_ids).await
    }

    async fn inputs(
        &self,
        source: &ResolvedSource,
        tokens: &[&RowToken],
    ) -> Result<Vec<Option<JobInputs>>, StoreFailure> {
        inputs::of_page(self, source, tokens).await
    }

    async fn hold(
        &self,
        source: &ResolvedSource,
        act: &Act,
        fence: &Fence,
        entry: &Entry,
    ) -> Result<Hold<Held>, StoreFailure> {
        act::hold(self, source, act, fence, entry).await
    }
}

impl Ledger for Postgres {
    async fn capture(&self, captured: &[Captured]) -> Result<(), StoreFailure> {
        captures::keep(self, captured).await
    }

    async fn captured_requeue(
        &self,
        source: &SourceName,
        job_id: &str,
    ) -> Result<Option<(Timestamp, String)>, StoreFailure> {
        captures::newest_requeue(self, source, job_id).await
    }

    async fn check_schema(&self) -> Result<(), StoreFailure> {
        migrate::check(self).await
    }

    async fn raise_fence(&self, scope: &str, pass_token: &str) -> Result<Fence, StoreFailure> {
        fence::raise(self, scope, pass_token).await
    }

    async fn pass_began(
        &self,
        pass_id: &str,
        fence: &Fence,
        started_at: Timestamp,
    ) -> Result<(), StoreFailure> {
        ledger::pass_began(self, pass_id, fence, started_at).await
    }

    async fn pass_ended(
        &self,
        pass_id: &str,
        duration: Duration,
        sources: &[SourceCounts],
    ) -> Result<(), StoreFailure> {
        let ended = ledger::pass_ended(self, pass_id, duration, sources).await;
        self.at_hand.rest();
        ended
    }

    async fn queue_memories(
        &self,
        scope: &str,
        queues: &BTreeSet<String>,
    ) -> Result<BTreeMap<String, QueueMemory>, StoreFailure> {
        memory::of_queues(self, scope, queues).await
    }

    async fn all_queue_memories(&self, scope: &str) -> Result<BTreeMap<String, QueueMemory>, StoreFailure> {
        memory::of_all_queues(self, scope).await
    }

    async fn remember_queues(
        &self,
        memories: &BTreeMap<String, QueueMemory>,
        fence: &Fence,
    ) -> Result<(), StoreFailure> {
        memory::remember(self, memories, fence).await
    }

    async fn corroborated(&self, scope: &str) -> Result<BTreeSet<SourceName>, StoreFailure> {
        memory::corroborated(self, scope).await
    }

    async fn corroborate(&self, seen: &[(SourceName, String)], now: Timestamp) -> Result<(), StoreFailure> {
        memory::corroborate(self, seen, now).await
    }

    async fn accepted_by(&self, queue: &str, who: &str, now: Timestamp) -> Result<(), StoreFailure> {
        memory::accepted_by(self, queue, who, now).await
    }

    async fn accepted_entries(&self) -> Result<BTreeSet<(String, String)>, StoreFailure> {
        memory::accepted_entries(self).await
    }

    async fn accept_entry(
        &self,
        queue: &str,
        entry_id: &str,
        who: &str,
        now: Timestamp,
    ) -> Result<(), StoreFailure> {
        memory::accept_entry(self, queue, entry_id, who, now).await
    }

    async fn declarations(&self, declarations: &[Declaration]) -> Result<Vec<Declared>, StoreFailure> {
        declarations::read(self, declarations).await
    }

    async fn confirm(
        &self,
        confirmations: &[Confirmation],
        now: Timestamp,
        fence: &Fence,
    ) -> Result<(), StoreFailure> {
        declarations::confirm(self, confirmations, now, fence).await
    }

    async fn accept_queues(
        &self,
        declaration: &Declaration,
        queues: &BTreeSet<String>,
    ) -> Result<(), StoreFailure> {
        declarations::accept(self, declaration, queues).await
    }

    async fn vouch(&self, declaration: &Declaration, who: &str, now: Timestamp) -> Result<(), StoreFailure> {
        declarations::vouch(self, declaration, who, now).await
    }

    async fn foreign_names(&self) -> Result<BTreeSet<(String, String)>, StoreFailure> {
        declarations::names(self).await
    }

    async fn accept_foreign(
        &self,
        queue: &str,
        name: &str,
        who: &str,
        now: Timestamp,
    ) -> Result<(), StoreFailure> {
        declarations::accept_name(self, queue, name, who, now).await
    }

    async fn acceptances(&self) -> Result<Vec<Acceptance>, StoreFailure> {
        declarations::list(self).await
    }

    async fn revoke(&self, word: &Word) -> Result<bool, StoreFailure> {
        declarations::revoke(self, word).await
    }

    async fn recoveries(
        &self,
        jobs: &[(SourceName, String)],
        since: Timestamp,
    ) -> Result<Vec<u32>, StoreFailure> {
        ledger::recoveries(self, jobs, since).await
    }

    async fn intend(&self, pass_id: &str, fence: &Fence, intents: &[Intent]) -> Result<(), StoreFailure> {
        ledger::intend(self, pass_id, fence, intents).await
    }

    async fn withdraw(&self, pass_id: &str, intents: &[Intent]) -> Result<(), StoreFailure> {
        ledger::withdraw(self, pass_id, intents).await
    }

    async fn alarm(&self, pass_id: &str, alarm: &Alarm) -> Result<(), StoreFailure> {
        ledger::alarm(self, pass_id, alarm).await
    }

    async fn storms(&self) -> Result<BTreeMap<SourceName, Storm>, StoreFailure> {
        waiting::storms(self).await
    }

    async fn remember_storms(
        &self,
        orphans: &BTreeMap<SourceName, u64>,
        now: Timestamp,
        fence: &Fence,
    ) -> Result<(), StoreFailure> {
        waiting::remember_storms(self, orphans, now, fence).await
    }

    async fn parked(&self, jobs: &[(SourceName, String)]) -> Result<Vec<Option<Parked>>, StoreFailure> {
        waiting::parked(self, jobs).await
    }

    async fn park(&self, parked: &[Parked], fence: &Fence) -> Result<(), StoreFailure> {
        waiting::park(self, parked, fence).await
    }

    async fn release_parked(
        &self,
        source: &SourceName,
        job_id: Option<&str>,
        who: &str,
    ) -> Result<u64, StoreFailure> {
        waiting::release(self, source, job_id, who).await
    }

    async fn record(&self, entries: &[Entry], fence: &Fence) -> Result<(), StoreFailure> {
        ledger::record(self, entries, fence).await
    }

    async fn history(&self, limit: u32) -> Result<Vec<PassRecord>, StoreFailure> {
        ledger::history(self, limit).await
    }

    async fn acts(&self, asked: &ActsAsked) -> Result<Vec<ActRecord>, StoreFailure> {
        ledger::acts(self, asked).await
    }

    async fn told_sources(&self) -> Result<BTreeSet<SourceName>, StoreFailure> {
        ledger::told_sources(self).await
    }

    async fn story(&self, source: &SourceName, job_id: &str) -> Result<Vec<StoryLine>, StoreFailure> {
        ledger::story(self, source, job_id).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_send<T: Send>(_: &T) {}

    /// Nothing connects here; the futures are made and dropped.
    #[tokio::test]
    async fn what_the_ports_return_can_run_on_any_thread() {
        let postgres = Postgres::new("postgres://u@127.0.0.1:1/db", Pooler::None, "bull").expect("a URL");
        is_send(&postgres.now());
        is_send(&postgres.resolve(&[]));
        is_send(&postgres.migrate());
        let _not_called =
            |source: &ResolvedSource, act: &Act, fence: &Fence, entry: &Entry, token: &RowToken| {
                is_send(&postgres.remember_queues(&BTreeMap::new(), fence));
                is_send(&postgres.record(&[], fence));
                is_send(&postgres.hold(source, act, fence, entry));
                is_send(&postgres.inputs(source, &[token]));
                is_send(&postgres.live_rows(source, Timestamp::MAX, None, 1));
            };
    }
}
