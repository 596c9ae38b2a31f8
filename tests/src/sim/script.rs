//! The requeue script on the model of Redis: one atomic step, like the real one, with the same refusals in the same order.

use std::collections::BTreeMap;
use std::time::Duration;

use salvage_core::act::{Act, Change, Place, QueueRefusal, ScriptAnswer};
use salvage_core::snapshot::State;

use super::clock::wall_ms;
use super::redis::{Listed, SimRedis};

/// The terms as the script gets them.
#[derive(Debug, Clone)]
pub(super) struct ScriptTerms {
    pub(super) scope: String,
    /// `None`: generations are not looked at, nor nonces, which change with every pass and so fence as well.
    pub(super) generation: Option<u64>,
    pub(super) deadline_ms: u64,
    pub(super) nonces: BTreeMap<String, String>,
    pub(super) with_meta: Vec<String>,
}

impl SimRedis {
    /// The requeue script: check first, write last. `job` is the act's, in truth.
    pub(super) fn run_script(
        &mut self,
        act: &Act,
        terms: &ScriptTerms,
        job: Option<usize>,
        now: Duration,
    ) -> ScriptAnswer {
        if let Some(answer) = self.objection(act, terms, now) {
            return answer;
        }
        for place in &act.places {
            if let Some(generation) = terms.generation {
                self.queue(&place.queue).generations.insert(terms.scope.clone(), generation);
            }
        }
        if let Change::Requeue { requeue, entry_id, delay } = &act.change {
            let queue = self.queue(&requeue.queue);
            queue.finished.remove(entry_id);
            queue.hashes.remove(entry_id);
            let listed = Listed { id: entry_id.clone(), job, due: now + *delay };
            let has_meta = queue.has_meta;
            queue.add(State::Delayed, listed, requeue.data.clone());
            queue.has_meta = has_meta;
        }
        ScriptAnswer::Clear
    }

    /// The first thing that forbids the act, in the script's order.
    fn objection(&mut self, act: &Act, terms: &ScriptTerms, now: Duration) -> Option<ScriptAnswer> {
        let refused = |refusal| Some(ScriptAnswer::Refused(refusal));
        if wall_ms(now) > terms.deadline_ms {
            return refused(QueueRefusal::Late);
        }
        let names = || act.places.iter().map(|place| place.queue.clone());
        for queue in names().filter(|_| terms.generation.is_some()) {
            let found = self.queue(&queue).generations.get(&terms.scope).copied();
            if let Some(generation) = found.filter(|found| Some(*found) > terms.generation) {
                return refused(QueueRefusal::Fenced { queue, generation });
            }
        }
        for queue in names() {
            let expected = terms.nonces.get(&queue);
            if expected.is_some() && self.queue(&queue).nonces.get(&terms.scope) != expected {
                return refused(QueueRefusal::Epoch { queue });
            }
        }
        for queue in names().filter(|queue| terms.with_meta.contains(queue)) {
            if !self.queue(&queue).has_meta {
                return refused(QueueRefusal::MetaMissing { queue });
            }
        }
        let target = match &act.change {
            Change::Requeue { requeue, .. } => Some(requeue.queue.clone()),
            Change::Fail { .. } => None,
        };
        if let Some(queue) = target.clone().filter(|queue| self.queue(queue).is_paused) {
            return refused(QueueRefusal::Paused { queue });
        }
        for Place { queue, entry_id } in &act.places {
            if let Some(state) = self.queue(queue).find(entry_id) {
                let state = state.key().to_owned();
                return Some(ScriptAnswer::Present { queue: queue.clone(), state });
            }
        }
        for Place { queue, entry_id } in act.places.clone() {
            if self.queue(&queue).is_locked(&entry_id, now) {
                return refused(QueueRefusal::Locked { queue, entry_id });
            }
        }
        for Place { queue, entry_id } in act.places.clone().into_iter().filter(|_| target.is_some()) {
            let Some(hash) = self.queue(&queue).hashes.get(&entry_id).cloned() else { continue };
            if hash.is_flow {
                return refused(QueueRefusal::Flow { queue, entry_id });
            }
            if hash.is_scheduled {
                return refused(QueueRefusal::Scheduler { queue, entry_id });
            }
        }
        None
    }
}
