//! Races made plain: a rival that acts at a chosen moment of a pass, and replies that are lost on the way.

use std::borrow::Cow;
use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::time::Duration;

use anyhow::Result as Anyhow;
use futures_util::future::LocalBoxFuture;
use jiff::Timestamp;
use salvage::clock::MachineClock;
use salvage::host::Host;
use salvage::ports::{
    Ask, Census, Clock, Group, Hold, JobInputs, Jobs, LoadedDomain, Mark, Misfit, Outside, QueueTerms,
    Queues, StoreFailure,
};
use salvage::postgres::{Held, Postgres};
use salvage::redis::{RedisLease, RedisQueues};
use salvage::wasm::Live;
use salvage_core::act::{Act, Place, ScriptAnswer};
use salvage_core::candidate::{LiveRow, RowToken};
use salvage_core::lease::Fence;
use salvage_core::ledger::Entry;
use salvage_core::payload::Payload;
use salvage_core::sighting::{QueueFailure, Residue};
use salvage_core::snapshot::{IdsCopy, IdsPage, Snapshot, Stalled, State};
use salvage_core::source::ResolvedSource;
use sqlx::PgPool;

/// A moment of a pass at which others may act.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Moment {
    /// The candidates of a source were read, no queue yet.
    BeforeFirstLook,
    /// A snapshot was taken; its payloads are not read yet.
    AfterLook(u32),
    /// A page of a snapshot's copy is about to be read; counted over the whole pass.
    BeforePage(u32),
    /// Payloads are about to be read; counted over the whole pass.
    BeforePayloads(u32),
    /// Between the two looks.
    Settling,
    /// Before the act's transaction opens.
    BeforeHold,
    /// The row is changed and locked; the queue comes next.
    BeforeQueue,
    /// The queue is done; the commit comes next.
    BeforeCommit,
}

/// What others do at a moment; the pass waits until they are done.
pub type Rival<'t> = Box<dyn Fn(Moment) -> LocalBoxFuture<'t, ()> + 't>;

/// A rival that acts once, when the pass first comes to `moment`. A pass that never comes there fails the test, or it
/// would prove nothing.
pub fn once_at<'t>(moment: Moment, act: impl AsyncFnOnce() -> Anyhow<()> + 't) -> Rival<'t> {
    let unspent = Unspent { moment, act: Cell::new(Some(act)) };
    Box::new(move |at| match unspent.take(at) {
        Some(act) => {
            Box::pin(
                async move { act().await.unwrap_or_else(|error| panic!("the rival at {at:?}: {error:#}")) },
            )
        }
        None => Box::pin(async {}),
    })
}

/// What is still to be done at a moment.
struct Unspent<T> {
    moment: Moment,
    act: Cell<Option<T>>,
}

impl<T> Unspent<T> {
    fn take(&self, at: Moment) -> Option<T> {
        (at == self.moment).then(|| self.act.take()).flatten()
    }
}

impl<T> Drop for Unspent<T> {
    fn drop(&mut self) {
        let is_unspent = self.act.take().is_some();
        assert!(!is_unspent || std::thread::panicking(), "no pass came to {:?}", self.moment);
    }
}

/// A host with a rival.
pub struct Rivalled<'t> {
    host: &'t Host,
    jobs: RivalledJobs<'t>,
    queues: RivalledQueues<'t>,
    clock: RivalledClock<'t>,
}

impl<'t> Rivalled<'t> {
    /// Every moment waits until the rival is done.
    pub fn new(host: &'t Host, rival: Rival<'t>) -> Self {
        let rival = Rc::new(rival);
        Self {
            host,
            jobs: RivalledJobs {
                inner: &host.postgres,
                rival: Rc::clone(&rival),
                answered: Rc::default(),
                unfenced: None,
            },
            queues: RivalledQueues {
                inner: &host.queues,
                rival: Rc::clone(&rival),
                looks: Cell::default(),
                pages: Cell::default(),
                reads: Cell::default(),
                acts: Delivery::Told,
                is_unfenced: false,
            },
            clock: RivalledClock { rival, ahead: Rc::default() },
        }
    }

    /// Without a rival, for what goes wrong on the way.
    pub fn alone(host: &'t Host) -> Self {
        Self::new(host, Box::new(|_| Box::pin(async {})))
    }

    /// The queue does what it is asked to, and its reply never arrives.
    #[must_use]
    pub fn losing_act_replies(mut self) -> Self {
        self.queues.acts = Delivery::DoneAndNotTold;
        self
    }

    /// The queue is never asked, and nobody can tell.
    #[must_use]
    pub fn losing_act_requests(mut self) -> Self {
        self.queues.acts = Delivery::NeitherDoneNorTold;
        self
    }

    /// Without the fence: whatever passes began meanwhile, this one's writes pass for the newest. What the fence is for shows
    /// only without it; no setting of the host does this.
    #[must_use]
    pub fn unfenced(mut self, db: &PgPool) -> Self {
        (self.jobs.unfenced, self.queues.is_unfenced) = (Some(db.clone()), true);
        self
    }

    /// The host's clock is ahead of everybody's.
    #[must_use]
    pub fn ahead_by(mut self, ahead: Duration) -> Self {
        self.clock.ahead = Rc::new(Cell::new(ahead));
        self
    }

    /// Counts in this how often PostgreSQL said which ids are live rows.
    #[must_use]
    pub fn with_answers_counted(mut self, answered: Rc<Cell<u32>>) -> Self {
        self.jobs.answered = answered;
        self
    }

    /// The host's clock is ahead by what this holds, which a rival may change as time goes on.
    #[must_use]
    pub fn with_clock_hand(mut self, ahead: Rc<Cell<Duration>>) -> Self {
        self.clock.ahead = ahead;
        self
    }
}

/// What becomes of an act's request and of its reply.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Delivery {
    Told,
    DoneAndNotTold,
    NeitherDoneNorTold,
}

impl<'t> Outside for Rivalled<'t> {
    type Lease = RedisLease;
    type Queues = RivalledQueues<'t>;
    type Jobs = RivalledJobs<'t>;
    type Ledger = Postgres;
    type Handlers = Live;
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
    fn handlers(&self) -> &Live {
        &self.host.handlers
    }
    fn clock(&self) -> &Self::Clock {
        &self.clock
    }
}

/// The machine's clock, or one ahead of it; the wait between the looks is the rival's.
pub struct RivalledClock<'t> {
    rival: Rc<Rival<'t>>,
    ahead: Rc<Cell<Duration>>,
}

impl Clock for RivalledClock<'_> {
    fn now(&self) -> Duration {
        MachineClock.now() + self.ahead.get()
    }
    async fn sleep(&self, _: Duration) {
        (self.rival)(Moment::Settling).await;
    }
    /// Looks often, because the clock may be put forward at any moment.
    async fn until(&self, instant: Duration) {
        while self.now() < instant {
            MachineClock.sleep(Duration::from_millis(5)).await;
        }
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
    rival: Rc<Rival<'t>>,
    looks: Cell<u32>,
    pages: Cell<u32>,
    reads: Cell<u32>,
    acts: Delivery,
    is_unfenced: bool,
}

impl Queues for RivalledQueues<'_> {
    async fn snapshot(&self, ask: &Ask<'_>) -> Result<Snapshot, QueueFailure> {
        if self.looks.get() == 0 {
            (self.rival)(Moment::BeforeFirstLook).await;
        }
        let snapshot = self.inner.snapshot(ask).await;
        self.looks.set(self.looks.get() + 1);
        (self.rival)(Moment::AfterLook(self.looks.get())).await;
        snapshot
    }
    async fn page(
        &self,
        copy: &IdsCopy,
        from: usize,
        count: usize,
    ) -> Result<IdsPage<'static>, QueueFailure> {
        self.pages.set(self.pages.get() + 1);
        (self.rival)(Moment::BeforePage(self.pages.get())).await;
        self.inner.page(copy, from, count).await
    }
    async fn are_in_set(
        &self,
        queue: &str,
        state: State,
        entry_ids: &[String],
    ) -> Result<Vec<bool>, QueueFailure> {
        self.inner.are_in_set(queue, state, entry_ids).await
    }
    async fn remove_copies(&self) {
        self.inner.remove_copies().await;
    }
    async fn payloads(&self, queue: &str, entry_ids: &[String]) -> Result<Vec<Payload>, QueueFailure> {
        self.reads.set(self.reads.get() + 1);
        (self.rival)(Moment::BeforePayloads(self.reads.get())).await;
        self.inner.payloads(queue, entry_ids).await
    }
    async fn residues(&self, jobs: &[Vec<Place>]) -> Result<Vec<Residue>, QueueFailure> {
        self.inner.residues(jobs).await
    }
    async fn mark(&self, marks: &BTreeMap<String, Mark>, fence: &Fence) -> Result<(), QueueFailure> {
        self.inner.mark(marks, fence).await
    }
    async fn act(&self, act: &Act, terms: &QueueTerms) -> Result<ScriptAnswer, QueueFailure> {
        const LOST: QueueFailure = QueueFailure::Timeout { timeout_ms: 5_000 };
        (self.rival)(Moment::BeforeQueue).await;
        if self.acts == Delivery::NeitherDoneNorTold {
            return Err(LOST);
        }
        let mut terms = terms.clone();
        if self.is_unfenced {
            // Below, so that it is no fence for others.
            terms.fence.scope = format!("unfenced-{}", terms.fence.scope);
            terms.nonces.clear();
            terms.deadline_ms = u64::MAX / 2;
        }
        let answer = self.inner.act(act, &terms).await;
        (self.rival)(Moment::BeforeCommit).await;
        if self.acts == Delivery::DoneAndNotTold { Err(LOST) } else { answer }
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
    rival: Rc<Rival<'t>>,
    answered: Rc<Cell<u32>>,
    /// Where to read the newest fence, to pass it off as ours.
    unfenced: Option<PgPool>,
}

/// The newest fence of that scope: no check refuses it.
async fn newest(db: &PgPool, fence: &Fence) -> Fence {
    let select = "SELECT generation, pass_token FROM salvage.fence WHERE scope = $1";
    let row = sqlx::query_as(select).bind(&fence.scope).fetch_one(db).await;
    let (generation, pass_token): (i64, String) = row.expect("the fence is there");
    Fence { scope: fence.scope.clone(), generation: generation.unsigned_abs(), pass_token }
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
    async fn are_live(
        &self,
        source: &ResolvedSource,
        row_ids: &[Cow<'_, str>],
    ) -> Result<Vec<bool>, StoreFailure> {
        let answer = self.inner.are_live(source, row_ids).await;
        self.answered.set(self.answered.get() + 1);
        answer
    }
    async fn young_rows(
        &self,
        source: &ResolvedSource,
        groups: &[Group],
        limit: u32,
    ) -> Result<Vec<LiveRow>, StoreFailure> {
        self.inner.young_rows(source, groups, limit).await
    }
    async fn existing(
        &self,
        source: &ResolvedSource,
        row_ids: &[String],
    ) -> Result<BTreeSet<String>, StoreFailure> {
        self.inner.existing(source, row_ids).await
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
        match &self.unfenced {
            Some(db) => self.inner.hold(source, act, &newest(db, fence).await, entry).await,
            None => self.inner.hold(source, act, fence, entry).await,
        }
    }
}
