//! The port of the job rows on the model of PostgreSQL.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::time::Duration;

use jiff::Timestamp;
use salvage::ports::{Census, Group, HeldJob, Hold, JobInputs, Jobs, LoadedDomain, Misfit, StoreFailure};
use salvage_core::act::{Act, LOCK_TIMEOUT, ScriptAnswer};
use salvage_core::candidate::{LiveRow, LiveStatus, RowToken};
use salvage_core::lease::Fence;
use salvage_core::ledger::Entry;
use salvage_core::outcome::Outcome;
use salvage_core::source::ResolvedSource;

use super::domains::source_index;
use super::host::{Lost, Shared, SimHost};
use super::host_queues::terms_of;
use super::postgres::{Guard, Transaction};
use super::twins::Twin;
use super::world::World;

/// How often a waiter for a lock looks again.
pub(super) const LOCK_POLL: Duration = Duration::from_millis(40);

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
    pub(super) async fn read<T>(&self, effect: impl FnOnce(&mut World) -> T) -> Result<T, StoreFailure> {
        Ok(self.ask(effect).await?)
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

    async fn young_rows(
        &self,
        source: &ResolvedSource,
        groups: &[Group],
        limit: u32,
    ) -> Result<Vec<LiveRow>, StoreFailure> {
        if self.is_twin(Twin::NoControl) {
            return Ok(vec![]);
        }
        let list = |world: &mut World| {
            let table = &world.postgres.tables[source_index(source)];
            let of_group = |group: &Group| {
                let status = match group.status {
                    LiveStatus::Queued => &source.declared.table.queued,
                    LiveStatus::Processing => &source.declared.table.processing,
                };
                let young = table.iter().map(|(id, row)| row.listed(id)).filter(|row| {
                    let is_young = row.updated.is_some_and(|at| at >= group.from && at < group.before);
                    is_young && row.status == *status && row.job_type.as_deref() == Some(&group.job_type)
                });
                let mut young: Vec<LiveRow> = young.collect();
                young.sort_by_key(|row| row.updated);
                young.truncate(limit as usize);
                young
            };
            groups.iter().flat_map(of_group).collect()
        };
        self.read(list).await
    }

    async fn are_live(
        &self,
        source: &ResolvedSource,
        row_ids: &[Cow<'_, str>],
    ) -> Result<Vec<bool>, StoreFailure> {
        let find = |world: &mut World| {
            let table = &world.postgres.tables[source_index(source)];
            let is_live =
                |id: &Cow<'_, str>| table.get(id.as_ref()).is_some_and(super::postgres::Row::is_live);
            row_ids.iter().map(is_live).collect()
        };
        self.read(find).await
    }

    async fn existing(
        &self,
        source: &ResolvedSource,
        row_ids: &[String],
    ) -> Result<BTreeSet<String>, StoreFailure> {
        let find = |world: &mut World| {
            let table = &world.postgres.tables[source_index(source)];
            row_ids.iter().filter(|id| table.contains_key(*id)).cloned().collect()
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

impl World {
    pub(super) fn is_fence_held(&self, scope: &str) -> bool {
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
