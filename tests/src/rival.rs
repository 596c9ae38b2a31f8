//! Races made plain: a rival that acts at a chosen moment of a pass, and replies that are lost on the way.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use futures_util::future::LocalBoxFuture;
use jiff::Timestamp;
use salvage::clock::MachineClock;
use salvage::host::Host;
use salvage::ports::{
    Census, Clock, Hold, JobInputs, Jobs, LoadedDomain, Misfit, Outside, QueueTerms, Queues, StoreFailure,
};
use salvage::postgres::{Held, Postgres};
use salvage::redis::{RedisLease, RedisQueues};
use salvage::wasm::Registry;
use salvage_core::act::{Act, Place, ScriptAnswer};
use salvage_core::candidate::{LiveRow, RowToken};
use salvage_core::lease::Fence;
use salvage_core::ledger::Entry;
use salvage_core::sighting::{QueueFailure, Residue};
use salvage_core::snapshot::{Snapshot, Stalled};
use salvage_core::source::ResolvedSource;

/// A moment of a pass at which others may act.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Moment {
    /// The candidates of a source were read, no queue yet.
    BeforeFirstLook,
    /// A snapshot was taken; its payloads are not read yet.
    AfterLook(u32),
    /// Between the two looks.
    Settling,
    /// Before the act's transaction opens.
    BeforeHold,
    /// The row is changed and locked; the queue comes next.
    BeforeQueue,
    /// The queue is done; the commit comes next.
    BeforeCommit,
}

/// What others do at a moment.
pub type Rival<'t> = Box<dyn Fn(Moment) -> LocalBoxFuture<'t, ()> + 't>;

/// A host with a rival.
pub struct Rivalled<'t> {
    host: &'t Host,
    jobs: RivalledJobs<'t>,
    queues: RivalledQueues<'t>,
    clock: RivalledClock<'t>,
}

impl<'t> Rivalled<'t> {
    /// Every moment waits until the rival is done.
    pub fn new(host: &'t Host, rival: &'t Rival<'t>) -> Self {
        Self {
            host,
            jobs: RivalledJobs { inner: &host.postgres, rival },
            queues: RivalledQueues {
                inner: &host.queues,
                rival,
                looks: Default::default(),
                loses_act_replies: false,
            },
            clock: RivalledClock { rival },
        }
    }

    /// The queue does what it is asked to, and its reply never arrives.
    #[must_use]
    pub fn losing_act_replies(mut self) -> Self {
        self.queues.loses_act_replies = true;
        self
    }
}

impl<'t> Outside for Rivalled<'t> {
    type Lease = RedisLease;
    type Queues = RivalledQueues<'t>;
    type Jobs = RivalledJobs<'t>;
    type Ledger = Postgres;
    type Handlers = Registry;
    type Clock = RivalledClock<'t>;

    fn lease(&self) -> &RedisLease {
        &self.host.lease
    }
    fn queues(&self) -> &Self::Queues {
        &self.queues
    }
    fn jobs(&self) -> &Self::Jobs {
        &self.jobs
    }
    fn ledger(&self) -> &Postgres {
        &self.host.postgres
    }
    fn handlers(&self) -> &Registry {
        &self.host.handlers
    }
    fn clock(&self) -> &Self::Clock {
        &self.clock
    }
}

/// The machine's clock; the wait between the looks is the rival's.
pub struct RivalledClock<'t> {
    rival: &'t Rival<'t>,
}

impl Clock for RivalledClock<'_> {
    fn now(&self) -> Duration {
        MachineClock.now()
    }
    async fn sleep(&self, _: Duration) {
        (self.rival)(Moment::Settling).await;
    }
    fn token(&self) -> String {
        MachineClock.token()
    }
    fn fraction(&self) -> f64 {
        MachineClock.fraction()
    }
}

/// The real queues, with moments in between.
pub struct RivalledQueues<'t> {
    inner: &'t RedisQueues,
    rival: &'t Rival<'t>,
    looks: std::cell::Cell<u32>,
    loses_act_replies: bool,
}

impl Queues for RivalledQueues<'_> {
    async fn snapshot(&self, queues: &BTreeSet<String>) -> Result<Snapshot, QueueFailure> {
        if self.looks.get() == 0 {
            (self.rival)(Moment::BeforeFirstLook).await;
        }
        let snapshot = self.inner.snapshot(queues).await;
        self.looks.set(self.looks.get() + 1);
        (self.rival)(Moment::AfterLook(self.looks.get())).await;
        snapshot
    }
    async fn payloads(&self, queue: &str, entry_ids: &[String]) -> Result<Vec<Option<String>>, QueueFailure> {
        self.inner.payloads(queue, entry_ids).await
    }
    async fn are_listed(&self, queue: &str, entry_ids: &[String]) -> Result<Vec<bool>, QueueFailure> {
        self.inner.are_listed(queue, entry_ids).await
    }
    async fn residues(&self, jobs: &[Vec<Place>]) -> Result<Vec<Residue>, QueueFailure> {
        self.inner.residues(jobs).await
    }
    async fn mark(&self, nonces: &BTreeMap<String, String>, fence: &Fence) -> Result<(), QueueFailure> {
        self.inner.mark(nonces, fence).await
    }
    async fn act(&self, act: &Act, terms: &QueueTerms) -> Result<ScriptAnswer, QueueFailure> {
        (self.rival)(Moment::BeforeQueue).await;
        let answer = self.inner.act(act, terms).await;
        (self.rival)(Moment::BeforeCommit).await;
        if self.loses_act_replies { Err(QueueFailure::Timeout { timeout_ms: 5_000 }) } else { answer }
    }
    async fn stalled(&self, queue: &str, active: &[String]) -> Result<Vec<Stalled>, QueueFailure> {
        self.inner.stalled(queue, active).await
    }
    fn commands_sent(&self) -> u64 {
        self.inner.commands_sent()
    }
}

/// The real job rows, with a moment before each act.
pub struct RivalledJobs<'t> {
    inner: &'t Postgres,
    rival: &'t Rival<'t>,
}

impl Jobs for RivalledJobs<'_> {
    type Held = Held;

    async fn now(&self) -> Result<Timestamp, StoreFailure> {
        self.inner.now().await
    }
    async fn resolve(
        &self,
        domains: &[LoadedDomain],
    ) -> Result<(Vec<ResolvedSource>, Vec<Misfit>), StoreFailure> {
        self.inner.resolve(domains).await
    }
    async fn census(
        &self,
        source: &ResolvedSource,
        declared: &BTreeSet<String>,
        now: Timestamp,
    ) -> Result<Census, StoreFailure> {
        self.inner.census(source, declared, now).await
    }
    async fn live_rows(
        &self,
        source: &ResolvedSource,
        before: Timestamp,
        after: Option<&str>,
        limit: u32,
    ) -> Result<Vec<LiveRow>, StoreFailure> {
        self.inner.live_rows(source, before, after, limit).await
    }
    async fn live_among(
        &self,
        source: &ResolvedSource,
        row_ids: &[String],
    ) -> Result<BTreeSet<String>, StoreFailure> {
        self.inner.live_among(source, row_ids).await
    }
    async fn any_exists(&self, source: &ResolvedSource, row_ids: &[String]) -> Result<bool, StoreFailure> {
        self.inner.any_exists(source, row_ids).await
    }
    async fn inputs(
        &self,
        source: &ResolvedSource,
        tokens: &[&RowToken],
    ) -> Result<Vec<Option<JobInputs>>, StoreFailure> {
        self.inner.inputs(source, tokens).await
    }
    async fn hold(
        &self,
        source: &ResolvedSource,
        act: &Act,
        fence: &Fence,
        entry: &Entry,
    ) -> Result<Hold<Held>, StoreFailure> {
        (self.rival)(Moment::BeforeHold).await;
        self.inner.hold(source, act, fence, entry).await
    }
}
