//! The ports of PostgreSQL on the model: job rows and Salvage's own tables.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use jiff::Timestamp;
use salvage::ports::{Census, HeldJob, Hold, JobInputs, Jobs, Ledger, LoadedDomain, Misfit, StoreFailure};
use salvage_core::act::{Act, LOCK_TIMEOUT, ScriptAnswer};
use salvage_core::alarm::Alarm;
use salvage_core::candidate::{LiveRow, RowToken};
use salvage_core::epoch::QueueMemory;
use salvage_core::lease::Fence;
use salvage_core::ledger::{Entry, Intent, PassRecord, StoryLine};
use salvage_core::outcome::Outcome;
use salvage_core::parking::Parked;
use salvage_core::report::SourceCounts;
use salvage_core::source::{ResolvedSource, SourceName};
use salvage_core::storm::Storm;

use super::domains::{queue_index, source_index};
use super::host::{Lost, Shared, SimHost};
use super::host_queues::terms_of;
use super::postgres::{Guard, IDLE_MAX, Transaction};
use super::twins::Twin;
use super::world::World;

/// How often a waiter for a lock looks again.
const LOCK_POLL: Duration = Duration::from_millis(40);

impl From<Lost> for StoreFailure {
    fn from(_: Lost) -> Self {
        Self::Unreachable("simulated".to_owned())
    }
}

/// An open transaction.
pub struct SimHeld {
    host_world: Shared,
    xid: u64,
    /// For its messages.
    host: SimHost,
}

impl HeldJob for SimHeld {
    async fn commit(self) -> Result<(), StoreFailure> {
        let xid = self.xid;
        self.host.send(move |world, _| world.commit(xid)).await?
    }

    async fn roll_back(self) {
        self.host_world.borrow_mut().roll_back(self.xid);
        self.host.travel().await;
    }
}

impl World {
    /// Makes a transaction true.
    fn commit(&mut self, xid: u64) -> Result<(), StoreFailure> {
        let Some(transaction) = self.postgres.transactions.get(&xid) else {
            return Err(StoreFailure::Unreachable("the transaction was ended".to_owned()));
        };
        let (source, id) = (transaction.source, transaction.act.candidate.token.id.clone());
        let transaction = self.postgres.end(xid).expect("just seen");
        let found = self.postgres.row(source, &id).cloned();
        self.check_commit(&transaction, found.as_ref());
        self.tell(|| format!("host {}: committed job {id}", transaction.process.slot));
        let Transaction { after: Some(after), parent, act, .. } = transaction else { return Ok(()) };
        let is_requeue = matches!(act.change, salvage_core::act::Change::Requeue { .. });
        self.tally.requeued += u64::from(is_requeue);
        self.tally.failed += u64::from(!is_requeue);
        if found.is_some() {
            self.postgres.tables[source].insert(id.clone(), after);
        }
        if let Some(change) = parent {
            self.write_parent(change, source, &id);
        }
        Ok(())
    }

    fn write_parent(&mut self, (deck, column, to): (usize, usize, &'static str), source: usize, id: &str) {
        self.check_parent(deck, column, to, source, id);
        self.tally.parents += 1;
        if let Some(deck) = &mut self.postgres.decks[deck] {
            deck.status[column] = to;
        }
    }

    /// Ends a transaction, and looks whether anything of it stays.
    fn roll_back(&mut self, xid: u64) {
        let Some(transaction) = self.postgres.end(xid) else { return };
        if self.twin == Some(Twin::ParentOutside) && transaction.parent.is_some() {
            let id = transaction.act.candidate.token.id;
            self.violated(6, || format!("a parent was changed, and its job {id} was not"));
        }
    }

    fn digest_of(&self, source: usize, id: &str) -> Option<String> {
        let row = self.postgres.row(source, id)?;
        let title = self.postgres.decks[row.deck].as_ref().map(|deck| deck.title);
        Some(format!("{:?} {} {title:?}", row.token(id), row.progress))
    }

    /// Ends a connection whose host got no reply: PostgreSQL notices at once, or when the transaction has idled.
    fn lose_connection(&mut self, xid: u64) {
        if self.random.coin() {
            self.roll_back(xid);
        }
    }
}

impl SimHost {
    async fn read<T>(&self, effect: impl FnOnce(&mut World) -> T) -> Result<T, StoreFailure> {
        Ok(self.ask(effect).await?)
    }

    /// A small transaction under the fence.
    async fn write_fenced(
        &self,
        fence: &Fence,
        effect: impl FnOnce(&mut World) + 'static,
    ) -> Result<(), StoreFailure> {
        let (fence, ours) = (fence.clone(), fence.generation);
        let is_fenced = !self.is_twin(Twin::NoFenceInPostgres);
        let write = move |world: &mut World, _: bool| {
            if !world.postgres.records.is_newest(&fence) {
                if is_fenced {
                    world.tally.fenced += 1;
                    return Err(StoreFailure::Fenced { ours });
                }
                world
                    .violated(5, || format!("generation {ours} wrote to PostgreSQL after a newer one began"));
            }
            effect(world);
            Ok(())
        };
        self.send(write).await?
    }

    /// Steps 1 to 7 as PostgreSQL does them.
    async fn hold_row(
        &self,
        source: usize,
        act: &Act,
        fence: &Fence,
    ) -> Result<Result<u64, Outcome>, StoreFailure> {
        let process = self.process;
        let (is_fenced, guard) = {
            let twin = self.twin();
            let guard = if twin == Some(Twin::GuardedByIdOnly) { Guard::IdAlone } else { Guard::WholeToken };
            (twin != Some(Twin::NoFenceInPostgres), guard)
        };
        let begin = |world: &mut World| {
            let now = world.now();
            let job = world.job_of(source, &act.candidate.token.id);
            world.check_begun(process, job);
            let xid = world.postgres.begin(process, fence, (source, act), now, is_fenced);
            let xid = xid.map_err(|()| {
                world.tally.fenced += 1;
                StoreFailure::Fenced { ours: fence.generation }
            })?;
            Ok(match world.postgres.lock_job(xid, guard) {
                Ok(()) => Ok(xid),
                Err(outcome) => {
                    world.postgres.end(xid);
                    Err(outcome)
                }
            })
        };
        let begun: Result<Result<u64, Outcome>, StoreFailure> = self.read(begin).await?;
        let xid = match begun? {
            Ok(xid) => xid,
            Err(outcome) => return Ok(Err(outcome)),
        };
        let mut waited = Duration::ZERO;
        while self.world.borrow_mut().wait_for_parent(xid) {
            if waited >= LOCK_TIMEOUT {
                self.world.borrow_mut().roll_back(xid);
                return Ok(Err(Outcome::Superseded("locked: the parent".to_owned())));
            }
            self.pause(LOCK_POLL).await;
            waited += LOCK_POLL;
        }
        let check = |world: &mut World| {
            // The digest covers the row's own columns, so a write guarded by the id alone does not compare it.
            let digest = world.digest_of(source, &act.candidate.token.id);
            if guard == Guard::WholeToken && digest.as_ref() != Some(&act.inputs_digest) {
                world.roll_back(xid);
                return Err(Outcome::Superseded("the inputs changed".to_owned()));
            }
            let (wall, now) = (world.wall(), world.now());
            world.postgres.stage(xid, wall, now);
            if world.twin == Some(Twin::ParentOutside) {
                // In a transaction of its own, which nothing takes back.
                let parent = world.postgres.transactions.get(&xid).and_then(|of| of.parent);
                if let Some((deck, column, to)) = parent
                    && let Some(deck) = &mut world.postgres.decks[deck]
                {
                    deck.status[column] = to;
                }
            }
            Ok(xid)
        };
        match self.read(check).await {
            Ok(staged) => Ok(staged),
            Err(failure) => {
                self.world.borrow_mut().lose_connection(xid);
                Err(failure)
            }
        }
    }
}

impl World {
    fn wait_for_parent(&mut self, xid: u64) -> bool {
        let now = self.now();
        self.postgres.transactions.contains_key(&xid) && self.postgres.lock_parent(xid, now).is_none()
    }
}

impl Jobs for SimHost {
    type Held = SimHeld;

    async fn now(&self) -> Result<Timestamp, StoreFailure> {
        self.read(|world| world.wall()).await
    }

    async fn resolve(&self, _: &[LoadedDomain]) -> Result<(Vec<ResolvedSource>, Vec<Misfit>), StoreFailure> {
        self.read(|world| (world.sources.clone(), vec![])).await
    }

    async fn census(
        &self,
        source: &ResolvedSource,
        _: &BTreeSet<String>,
        _: Timestamp,
    ) -> Result<Census, StoreFailure> {
        let count = |world: &mut World| {
            let rows = world.postgres.tables[source_index(source)].values();
            Census { live: rows.filter(|row| row.is_live()).count() as u64, ..Census::default() }
        };
        self.read(count).await
    }

    async fn live_rows(
        &self,
        source: &ResolvedSource,
        before: Timestamp,
        after: Option<&str>,
        limit: u32,
    ) -> Result<Vec<LiveRow>, StoreFailure> {
        let list = |world: &mut World| {
            let rows = world.postgres.tables[source_index(source)].iter();
            let rows = rows.filter(|(id, _)| after.is_none_or(|after| id.as_str() > after));
            let rows = rows.filter(|(_, row)| row.is_live() && row.updated < before);
            rows.map(|(id, row)| row.listed(id)).take(limit as usize).collect()
        };
        self.read(list).await
    }

    async fn live_among(
        &self,
        source: &ResolvedSource,
        row_ids: &[String],
    ) -> Result<BTreeSet<String>, StoreFailure> {
        let find = |world: &mut World| {
            let table = &world.postgres.tables[source_index(source)];
            let is_live = |id: &&String| table.get(*id).is_some_and(super::postgres::Row::is_live);
            row_ids.iter().filter(is_live).cloned().collect()
        };
        self.read(find).await
    }

    async fn any_exists(&self, source: &ResolvedSource, row_ids: &[String]) -> Result<bool, StoreFailure> {
        let find = |world: &mut World| {
            let table = &world.postgres.tables[source_index(source)];
            row_ids.iter().any(|id| table.contains_key(id))
        };
        self.read(find).await
    }

    async fn inputs(
        &self,
        source: &ResolvedSource,
        tokens: &[&RowToken],
    ) -> Result<Vec<Option<JobInputs>>, StoreFailure> {
        let source = source_index(source);
        let read = |world: &mut World| {
            let inputs = |token: &&RowToken| {
                let row = world.postgres.row(source, &token.id)?;
                let digest = world.digest_of(source, &token.id)?;
                let inputs = JobInputs { columns: "{}".to_owned(), reads: vec![], digest };
                row.has_token(token).then_some(inputs)
            };
            tokens.iter().map(inputs).collect()
        };
        self.read(read).await
    }

    async fn hold(
        &self,
        source: &ResolvedSource,
        act: &Act,
        fence: &Fence,
        _: &Entry,
    ) -> Result<Hold<SimHeld>, StoreFailure> {
        if self.is_twin(Twin::EnqueueBeforeUpdate) {
            let terms = terms_of(fence, self.world.borrow().now(), self.nonces_of(&fence.scope));
            match self.act_on_queue(act, &terms).await {
                Ok(ScriptAnswer::Clear) => {}
                Ok(answer) => {
                    let outcome = answer.obstacle().expect("everything but `Clear` is one");
                    return Ok(Hold::Not(outcome));
                }
                Err(failure) => return Ok(Hold::Not(Outcome::Indeterminate(failure.to_string()))),
            }
        }
        match self.hold_row(source_index(source), act, fence).await? {
            Ok(xid) => {
                let host = Self::new(&self.world, self.process);
                if self.is_twin(Twin::EnqueueBeforeUpdate)
                    && let Some(own) = self.world.borrow_mut().postgres.transactions.get_mut(&xid)
                {
                    own.is_cleared = true;
                }
                Ok(Hold::Held(SimHeld { host_world: std::rc::Rc::clone(&self.world), xid, host }))
            }
            Err(outcome) => {
                self.world.borrow_mut().tally.superseded += 1;
                Ok(Hold::Not(outcome))
            }
        }
    }
}

impl Ledger for SimHost {
    async fn check_schema(&self) -> Result<(), StoreFailure> {
        Ok(())
    }

    async fn raise_fence(&self, scope: &str, pass_token: &str) -> Result<Fence, StoreFailure> {
        // Writers hold the fence's row; whoever raises it waits for them, until PostgreSQL has ended them.
        let mut waited = Duration::ZERO;
        while !self.is_twin(Twin::NoFenceInPostgres) && self.world.borrow().is_fence_held(scope) {
            if waited > IDLE_MAX * 2 {
                return Err(Lost::NoReply.into());
            }
            self.pause(LOCK_POLL).await;
            waited += LOCK_POLL;
        }
        let (scope, token) = (scope.to_owned(), pass_token.to_owned());
        let is_fenced = !self.is_twin(Twin::NoFenceInPostgres);
        let raise = move |world: &mut World, _: bool| {
            if is_fenced && world.is_fence_held(&scope) {
                return Err(StoreFailure::from(Lost::NoReply));
            }
            Ok(world.postgres.records.raise(&scope, &token))
        };
        self.send(raise).await?
    }

    async fn pass_began(&self, _: &str, _: &Fence, _: Timestamp) -> Result<(), StoreFailure> {
        self.read(|_| ()).await
    }

    async fn pass_ended(&self, _: &str, _: Duration, _: &[SourceCounts]) -> Result<(), StoreFailure> {
        self.read(|_| ()).await
    }

    async fn queue_memories(
        &self,
        scope: &str,
        queues: &BTreeSet<String>,
    ) -> Result<BTreeMap<String, QueueMemory>, StoreFailure> {
        let mut memories = self.read(|world| world.postgres.records.memories_of(scope)).await?;
        memories.retain(|queue, _| queues.contains(queue));
        if self.is_twin(Twin::NoEpoch) {
            // An epoch that began in the beginning and never ends.
            for (queue, memory) in &mut memories {
                let marked = self.marked_in(scope, queue);
                (memory.nonce, memory.nonce_next) = (marked, None);
                memory.id_counter = None;
                memory.epoch_began = Timestamp::MIN;
                memory.accepted_at = Some(Timestamp::MIN);
            }
        }
        Ok(memories)
    }

    async fn all_queue_memories(&self, scope: &str) -> Result<BTreeMap<String, QueueMemory>, StoreFailure> {
        self.read(|world| world.postgres.records.memories_of(scope)).await
    }

    async fn remember_queues(
        &self,
        memories: &BTreeMap<String, QueueMemory>,
        fence: &Fence,
    ) -> Result<(), StoreFailure> {
        let (memories, process, scope) = (memories.clone(), self.process, fence.scope.clone());
        let remember = move |world: &mut World| {
            let looked_at = world.pass_of(process).last_look;
            for (queue, memory) in memories {
                let key = (scope.clone(), queue);
                let before = world.postgres.records.memories.get(&key).and_then(|it| it.accepted_at);
                // Whoever accepts, accepts what the snapshot showed.
                if memory.accepted_at.is_some() && memory.accepted_at != before {
                    world.truths.accept(&scope, queue_index(&key.1), looked_at);
                }
                world.postgres.records.memories.insert(key, memory);
            }
        };
        self.write_fenced(fence, remember).await
    }

    async fn corroborated(&self, scope: &str) -> Result<BTreeSet<SourceName>, StoreFailure> {
        self.read(|world| world.postgres.records.corroborated(scope)).await
    }

    async fn corroborate(&self, seen: &[(SourceName, String)], now: Timestamp) -> Result<(), StoreFailure> {
        let seen = seen.to_vec();
        Ok(self.send(move |world, _| world.postgres.records.corroborate(&seen, now)).await?)
    }

    async fn accepted_by(&self, _: &str, _: &str, _: Timestamp) -> Result<(), StoreFailure> {
        self.read(|_| ()).await
    }

    async fn accepted_entries(&self) -> Result<BTreeSet<(String, String)>, StoreFailure> {
        self.read(|world| world.postgres.records.accepted_entries.clone()).await
    }

    async fn accept_entry(
        &self,
        queue: &str,
        entry_id: &str,
        _: &str,
        _: Timestamp,
    ) -> Result<(), StoreFailure> {
        let key = (queue.to_owned(), entry_id.to_owned());
        self.send(move |world, _| world.postgres.records.accepted_entries.insert(key)).await?;
        Ok(())
    }

    async fn recoveries(
        &self,
        jobs: &[(SourceName, String)],
        since: Timestamp,
    ) -> Result<Vec<u32>, StoreFailure> {
        let count = |world: &mut World| {
            let records = &world.postgres.records;
            jobs.iter().map(|(source, id)| records.recoveries(source, id, since)).collect()
        };
        self.read(count).await
    }

    async fn intend(&self, pass_id: &str, fence: &Fence, intents: &[Intent]) -> Result<(), StoreFailure> {
        let (pass_id, intents) = (pass_id.to_owned(), intents.to_vec());
        let intend = move |world: &mut World| {
            let now = world.wall();
            world.postgres.records.intend(&pass_id, &intents, now);
        };
        self.write_fenced(fence, intend).await
    }

    async fn withdraw(&self, pass_id: &str, intents: &[Intent]) -> Result<(), StoreFailure> {
        let (pass_id, intents) = (pass_id.to_owned(), intents.to_vec());
        Ok(self.send(move |world, _| world.postgres.records.withdraw(&pass_id, &intents)).await?)
    }

    async fn alarm(&self, _: &str, _: &Alarm) -> Result<(), StoreFailure> {
        self.read(|_| ()).await
    }

    async fn storms(&self) -> Result<BTreeMap<SourceName, Storm>, StoreFailure> {
        // This world has too few jobs for a storm.
        self.read(|_| BTreeMap::new()).await
    }

    async fn remember_storms(
        &self,
        _: &BTreeMap<SourceName, u64>,
        _: Timestamp,
        fence: &Fence,
    ) -> Result<(), StoreFailure> {
        self.write_fenced(fence, |_| {}).await
    }

    async fn parked(&self, jobs: &[(SourceName, String)]) -> Result<Vec<Option<Parked>>, StoreFailure> {
        // No row of this world is ever rejected.
        self.read(|_| vec![None; jobs.len()]).await
    }

    async fn park(&self, parked: &[Parked], fence: &Fence) -> Result<(), StoreFailure> {
        if parked.is_empty() {
            return Ok(());
        }
        self.write_fenced(fence, |_| {}).await
    }

    async fn release_parked(&self, _: &SourceName, _: Option<&str>, _: &str) -> Result<u64, StoreFailure> {
        Ok(0)
    }

    async fn record(&self, _: &[Entry], fence: &Fence) -> Result<(), StoreFailure> {
        self.write_fenced(fence, |_| {}).await
    }

    async fn history(&self, _: u32) -> Result<Vec<PassRecord>, StoreFailure> {
        Ok(vec![])
    }

    async fn story(&self, _: &SourceName, _: &str) -> Result<Vec<StoryLine>, StoreFailure> {
        Ok(vec![])
    }
}

impl World {
    fn is_fence_held(&self, scope: &str) -> bool {
        self.postgres.transactions.values().any(|transaction| transaction.fence.scope == scope)
    }

    /// Ends what a dead process left in PostgreSQL; with `is_noticed`, at once.
    pub(super) fn bury(&mut self, process: super::scheduler::Process, is_noticed: bool) {
        let own = self.postgres.transactions.iter().filter(|(_, of)| of.process == process);
        let own: Vec<u64> = own.map(|(xid, _)| *xid).filter(|_| is_noticed).collect();
        for xid in own {
            self.roll_back(xid);
        }
    }
}
