//! What the tests of judging share: systems in a known condition, digests of both stores, and a host whose calls are
//! written down.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context, Result};
use futures_util::future::LocalBoxFuture;
use salvage::clock::MachineClock;
use salvage::host::Host;
use salvage::ports::{self, Answer, Ask, Handlers, LoadedDomain, Outside, Question, QueueTerms, Queues};
use salvage::postgres::Postgres;
use salvage::redis::{RedisLease, RedisQueues};
use salvage::wasm::Live;
use salvage_core::act::{Act, Place, ScriptAnswer};
use salvage_core::lease::Fence;
use salvage_core::payload::{Data, Payload};
use salvage_core::sighting::{QueueFailure, Residue};
use salvage_core::snapshot::{IdsCopy, IdsPage, Snapshot, Stalled, State};
use salvage_tests::rival::{Moment, Rival, Rivalled};
use salvage_tests::services::redis_url;
use salvage_tests::system::System;
use sqlx::AssertSqlSafe;

/// Every queue of the shipped handlers.
pub(crate) const QUEUES: [&str; 5] =
    ["slide-generation", "slide-export", "video-composition", "video-export", "narration"];

/// The queue of most tests.
pub(crate) const QUEUE: &str = "slide-generation";

/// The second queue of the same source.
pub(crate) const OTHER: &str = "slide-export";

/// A system that has run for a day, whose queues are in use and empty.
pub(crate) async fn running() -> Result<System> {
    running_on(&redis_url()?).await
}

/// The same on a Redis of the test's own.
pub(crate) async fn running_on(redis_url: &str) -> Result<System> {
    let system = System::on(redis_url).await?;
    system.used_queues(&QUEUES).await?;
    system.known_since_yesterday().await?;
    Ok(system)
}

/// Puts an entry into a state of a queue, as BullMQ does: its id in the list or set, its payload in its hash.
pub(crate) async fn entry(system: &System, queue: &str, state: State, id: &str, data: &str) -> Result<()> {
    system.redis::<()>(&["HSET", &system.key(queue, id), "name", "generate", "data", data]).await?;
    listed(system, queue, state, id).await
}

/// Lists an id in a state of a queue, without a hash.
pub(crate) async fn listed(system: &System, queue: &str, state: State, id: &str) -> Result<()> {
    let key = system.key(queue, state.key());
    if state.is_list() {
        system.redis::<()>(&["LPUSH", &key, id]).await
    } else {
        system.redis::<()>(&["ZADD", &key, "1", id]).await
    }
}

/// Inserts so many stale QUEUED slide jobs, `s1` …, of deck `d1`.
pub(crate) async fn many_stale(system: &System, count: i32) -> Result<()> {
    let insert = "INSERT INTO \"SlideJob\" (id, \"deckId\", type, status, \"updatedAt\") \
         SELECT 's' || n, 'd1', 'GENERATION', 'QUEUED', (now() AT TIME ZONE 'UTC') - interval '2 hours' \
         FROM generate_series(1, $1) AS n";
    sqlx::query(insert).bind(count).execute(system.db.pool()).await.context("inserting many slide jobs")?;
    Ok(())
}

/// When each queue's epoch began, as PostgreSQL prints it.
pub(crate) async fn epochs(system: &System) -> Result<BTreeMap<String, String>> {
    let select = "SELECT queue, epoch_began::text FROM salvage.queues";
    let rows: Vec<(String, String)> = sqlx::query_as(select).fetch_all(system.db.pool()).await?;
    Ok(rows.into_iter().collect())
}

/// Runs one statement.
pub(crate) async fn sql(system: &System, statement: &str) -> Result<()> {
    sqlx::raw_sql(AssertSqlSafe(statement.to_owned()))
        .execute(system.db.pool())
        .await
        .with_context(|| statement.to_owned())?;
    Ok(())
}

/// The host against a rival.
pub(crate) fn against<'t>(host: &'t Host, rival: Rival<'t>) -> Rivalled<'t> {
    Rivalled::new(host, rival)
}

/// A rival that acts at one moment.
pub(crate) fn at<'t>(when: Moment, act: impl Fn() -> LocalBoxFuture<'t, ()> + 't) -> Rival<'t> {
    Box::new(move |moment| if moment == when { act() } else { Box::pin(async {}) })
}

/// What a pass asked of the queues.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Call {
    Snapshot(BTreeSet<String>),
    Payloads { queue: String, ids: Vec<String>, gone: usize },
    Residues(usize),
}

/// How the writing of a nonce goes wrong: the pass is told of a timeout.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mark {
    Done,
    NotDone,
}

/// A host whose calls to the queues are written down, with handlers of the test's choice.
pub(crate) struct Watched<'t, H> {
    host: &'t Host,
    handlers: &'t H,
    pub(crate) queues: WatchedQueues<'t>,
}

impl<'t> Watched<'t, Live> {
    /// With the host's own handlers.
    pub(crate) fn new(host: &'t Host) -> Self {
        Self::with(host, &host.handlers)
    }
}

impl<'t, H> Watched<'t, H> {
    pub(crate) fn with(host: &'t Host, handlers: &'t H) -> Self {
        let queues = WatchedQueues {
            inner: &host.queues,
            calls: RefCell::default(),
            failing_marks: Cell::new(None),
            failing_payloads: Cell::new(false),
        };
        Self { host, handlers, queues }
    }

    /// The payload reads so far: (queue, ids).
    pub(crate) fn payload_reads(&self) -> Vec<(String, Vec<String>)> {
        let calls = self.queues.calls.borrow();
        let reads = calls.iter().filter_map(|call| match call {
            Call::Payloads { queue, ids, .. } => Some((queue.clone(), ids.clone())),
            _ => None,
        });
        reads.collect()
    }
}

impl<'t, H: Handlers> Outside for Watched<'t, H> {
    type Lease = RedisLease;
    type Queues = WatchedQueues<'t>;
    type Jobs = Postgres;
    type Ledger = Postgres;
    type Handlers = H;
    type Clock = MachineClock;

    fn lease(&self) -> &RedisLease {
        &self.host.lease
    }
    fn queues(&self) -> &Self::Queues {
        &self.queues
    }
    fn jobs(&self) -> &Postgres {
        &self.host.postgres
    }
    fn ledger(&self) -> &Postgres {
        &self.host.postgres
    }
    fn handlers(&self) -> &H {
        self.handlers
    }
    fn clock(&self) -> &MachineClock {
        &MachineClock
    }
}

/// The real queues.
pub(crate) struct WatchedQueues<'t> {
    inner: &'t RedisQueues,
    pub(crate) calls: RefCell<Vec<Call>>,
    pub(crate) failing_marks: Cell<Option<Mark>>,
    /// Whether no payload can be read.
    pub(crate) failing_payloads: Cell<bool>,
}

impl Queues for WatchedQueues<'_> {
    async fn snapshot(&self, ask: &Ask<'_>) -> Result<Snapshot, QueueFailure> {
        self.calls.borrow_mut().push(Call::Snapshot(ask.queues.clone()));
        self.inner.snapshot(ask).await
    }
    async fn page(
        &self,
        copy: &IdsCopy,
        from: usize,
        count: usize,
    ) -> Result<IdsPage<'static>, QueueFailure> {
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
        if self.failing_payloads.get() {
            return Err(QueueFailure::Timeout { timeout_ms: 5_000 });
        }
        let payloads = self.inner.payloads(queue, entry_ids).await;
        let gone = payloads.iter().flatten().filter(|payload| payload.data == Data::Missing).count();
        let call = Call::Payloads { queue: queue.to_owned(), ids: entry_ids.to_vec(), gone };
        self.calls.borrow_mut().push(call);
        payloads
    }
    async fn residues(&self, jobs: &[Vec<Place>]) -> Result<Vec<Residue>, QueueFailure> {
        self.calls.borrow_mut().push(Call::Residues(jobs.len()));
        self.inner.residues(jobs).await
    }
    async fn mark(&self, marks: &BTreeMap<String, ports::Mark>, fence: &Fence) -> Result<(), QueueFailure> {
        let fate = self.failing_marks.get();
        if fate != Some(Mark::NotDone) {
            self.inner.mark(marks, fence).await?;
        }
        fate.map_or(Ok(()), |_| Err(QueueFailure::Timeout { timeout_ms: 5_000 }))
    }
    async fn act(&self, act: &Act, terms: &QueueTerms) -> Result<ScriptAnswer, QueueFailure> {
        self.inner.act(act, terms).await
    }
    async fn stalled(&self, queue: &str, active: &[String]) -> Result<Vec<Stalled>, QueueFailure> {
        self.inner.stalled(queue, active).await
    }
    fn commands_sent(&self) -> u64 {
        self.inner.commands_sent()
    }
}

/// The shipped handlers, and what they were told of each orphan.
pub(crate) struct Overheard<'t> {
    pub(crate) inner: &'t Live,
    /// (row id, residue), in the order of the questions.
    pub(crate) told: RefCell<Vec<(String, Residue)>>,
}

impl Handlers for Overheard<'_> {
    fn domains(&self) -> Vec<LoadedDomain> {
        self.inner.domains()
    }
    async fn decide(&self, question: &Question<'_>) -> Answer {
        let id = question.candidate.token.id.clone();
        self.told.borrow_mut().push((id, question.residue.clone()));
        self.inner.decide(question).await
    }
}
