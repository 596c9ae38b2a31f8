//! The port of Salvage's own tables on the model.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use jiff::Timestamp;
use salvage::ports::{Acceptance, Confirmation, Declaration, Ledger, StoreFailure, Word};
use salvage_core::alarm::Alarm;
use salvage_core::declaration::Declared;
use salvage_core::epoch::QueueMemory;
use salvage_core::lease::Fence;
use salvage_core::ledger::{ActRecord, ActsAsked, Entry, Intent, PassRecord, StoryLine};
use salvage_core::parking::Parked;
use salvage_core::report::SourceCounts;
use salvage_core::source::SourceName;
use salvage_core::storm::Storm;

use super::domains::queue_index;
use super::host::{Lost, SimHost};
use super::host_jobs::LOCK_POLL;
use super::postgres::IDLE_MAX;
use super::redis::JOB_NAME;
use super::twins::Twin;
use super::world::World;

impl SimHost {
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
}

impl Ledger for SimHost {
    async fn check_schema(&self) -> Result<(), StoreFailure> {
        Ok(())
    }

    async fn raise_fence(&self, scope: &str, pass_token: &str) -> Result<Fence, StoreFailure> {
        // Who accepts begins anew with each lease: a look before that one counts for another.
        self.world.borrow_mut().truths.begin_pass(self.process);
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

    async fn declarations(&self, declarations: &[Declaration]) -> Result<Vec<Declared>, StoreFailure> {
        self.read(|world| world.postgres.records.declared(declarations)).await
    }

    async fn confirm(
        &self,
        confirmations: &[Confirmation],
        _: Timestamp,
        fence: &Fence,
    ) -> Result<(), StoreFailure> {
        let confirmations = confirmations.to_vec();
        self.write_fenced(fence, move |world| world.postgres.records.confirm(&confirmations)).await
    }

    async fn accept_queues(
        &self,
        declaration: &Declaration,
        queues: &BTreeSet<String>,
    ) -> Result<(), StoreFailure> {
        let (declaration, queues) = (declaration.clone(), queues.clone());
        let accept = move |world: &mut World, _: bool| {
            world.postgres.records.declaration(&declaration).accepted_queues.extend(queues);
        };
        Ok(self.send(accept).await?)
    }

    async fn vouch(&self, declaration: &Declaration, _: &str, _: Timestamp) -> Result<(), StoreFailure> {
        let declaration = declaration.clone();
        let vouch = move |world: &mut World, _: bool| {
            world.postgres.records.declaration(&declaration).is_vouched_for = true;
        };
        Ok(self.send(vouch).await?)
    }

    async fn foreign_names(&self) -> Result<BTreeSet<(String, String)>, StoreFailure> {
        let mut names = self.read(|world| world.postgres.records.foreign_names.clone()).await?;
        if self.is_twin(Twin::AcceptVouchesForNames) {
            let world = self.world.borrow();
            let accepted =
                world.postgres.records.memories.iter().filter(|(_, memory)| memory.accepted_at.is_some());
            names.extend(accepted.map(|((_, queue), _)| (queue.clone(), JOB_NAME.to_owned())));
        }
        Ok(names)
    }

    async fn accept_foreign(
        &self,
        queue: &str,
        name: &str,
        _: &str,
        _: Timestamp,
    ) -> Result<(), StoreFailure> {
        let key = (queue.to_owned(), name.to_owned());
        self.send(move |world, _| world.postgres.records.foreign_names.insert(key)).await?;
        Ok(())
    }

    async fn acceptances(&self) -> Result<Vec<Acceptance>, StoreFailure> {
        Ok(vec![])
    }

    async fn revoke(&self, word: &Word) -> Result<bool, StoreFailure> {
        let Word::Foreign { queue, name } = word.clone() else { return Ok(false) };
        let revoke = move |world: &mut World, _: bool| {
            world.postgres.records.foreign_names.remove(&(queue.clone(), name.clone()))
        };
        Ok(self.send(revoke).await?)
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

    async fn acts(&self, _: &ActsAsked) -> Result<Vec<ActRecord>, StoreFailure> {
        Ok(vec![])
    }

    async fn told_sources(&self) -> Result<BTreeSet<SourceName>, StoreFailure> {
        Ok(BTreeSet::new())
    }

    async fn story(&self, _: &SourceName, _: &str) -> Result<Vec<StoryLine>, StoreFailure> {
        Ok(vec![])
    }
}
