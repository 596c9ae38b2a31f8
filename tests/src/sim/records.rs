//! Salvage's own tables in the model: fence, what is remembered of queues, corroboration, intents.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use salvage::ports::{Confirmation, Declaration};
use salvage_core::candidate::LiveStatus;
use salvage_core::declaration::Declared;
use salvage_core::epoch::QueueMemory;
use salvage_core::lease::Fence;
use salvage_core::ledger::Intent;
use salvage_core::source::SourceName;

/// An intent as it is kept.
#[derive(Debug)]
pub(super) struct Intended {
    pass_id: String,
    intent: Intent,
    at: Timestamp,
    is_withdrawn: bool,
}

/// The schema `salvage`.
#[derive(Debug, Default)]
pub(super) struct Records {
    fences: BTreeMap<String, (u64, String)>,
    /// By scope and queue.
    pub(super) memories: BTreeMap<(String, String), QueueMemory>,
    corroborations: BTreeMap<(SourceName, String), Timestamp>,
    intents: Vec<Intended>,
    pub(super) accepted_entries: BTreeSet<(String, String)>,
    pub(super) foreign_names: BTreeSet<(String, String)>,
    declarations: BTreeMap<(SourceName, String), Declared>,
}

impl Records {
    pub(super) fn raise(&mut self, scope: &str, pass_token: &str) -> Fence {
        let generation = self.generation(scope) + 1;
        self.fences.insert(scope.to_owned(), (generation, pass_token.to_owned()));
        Fence { scope: scope.to_owned(), generation, pass_token: pass_token.to_owned() }
    }

    pub(super) fn generation(&self, scope: &str) -> u64 {
        self.fences.get(scope).map_or(0, |(generation, _)| *generation)
    }

    pub(super) fn is_newest(&self, fence: &Fence) -> bool {
        let newest = self.fences.get(&fence.scope);
        newest
            .is_some_and(|(generation, token)| *generation == fence.generation && *token == fence.pass_token)
    }

    /// The sources seen in a queue since that queue's epoch began, as the scope remembers it.
    pub(super) fn corroborated(&self, scope: &str) -> BTreeSet<SourceName> {
        let holds = |queue: &String, at: &Timestamp| {
            let memory = self.memories.get(&(scope.to_owned(), queue.clone()));
            memory.is_some_and(|memory| *at >= memory.epoch_began)
        };
        let seen = self.corroborations.iter().filter(|((_, queue), at)| holds(queue, at));
        seen.map(|((source, _), _)| source.clone()).collect()
    }

    /// What a scope remembers of queues.
    pub(super) fn memories_of(&self, scope: &str) -> BTreeMap<String, QueueMemory> {
        let own = self.memories.iter().filter(|((of, _), _)| of == scope);
        own.map(|((_, queue), memory)| (queue.clone(), memory.clone())).collect()
    }

    pub(super) fn corroborate(&mut self, seen: &[(SourceName, String)], now: Timestamp) {
        for key in seen {
            let at = self.corroborations.entry(key.clone()).or_insert(now);
            *at = (*at).max(now);
        }
    }

    pub(super) fn declaration(&mut self, of: &Declaration) -> &mut Declared {
        self.declarations.entry((of.source.clone(), of.text.clone())).or_default()
    }

    /// Whether a control group of this type and status has failed: its orphans wait for the operator.
    pub(super) fn failed(&self, job_type: &str, status: &str) -> bool {
        let status = if status == "QUEUED" { LiveStatus::Queued } else { LiveStatus::Processing };
        let failed = self.declarations.values().flat_map(|declared| &declared.failed);
        failed.into_iter().any(|control| control.is_of(job_type, status))
    }

    pub(super) fn declared(&mut self, of: &[Declaration]) -> Vec<Declared> {
        of.iter().map(|of| self.declaration(of).clone()).collect()
    }

    /// Takes in what a pass found for declarations, and against them.
    pub(super) fn confirm(&mut self, confirmations: &[Confirmation]) {
        for Confirmation { declaration, is_confirmed, controls } in confirmations {
            let declared = self.declaration(declaration);
            declared.is_confirmed |= is_confirmed;
            for control in controls.iter().filter(|control| control.figures.passed().is_some()) {
                declared.failed.retain(|failed| !failed.is_of(&control.job_type, control.status));
                if control.figures.passed() == Some(false) {
                    declared.failed.push(control.clone());
                }
            }
        }
    }

    pub(super) fn intend(&mut self, pass_id: &str, intents: &[Intent], at: Timestamp) {
        let intended = |intent: &Intent| Intended {
            pass_id: pass_id.to_owned(),
            intent: intent.clone(),
            at,
            is_withdrawn: false,
        };
        self.intents.extend(intents.iter().map(intended));
    }

    pub(super) fn withdraw(&mut self, pass_id: &str, intents: &[Intent]) {
        for kept in &mut self.intents {
            kept.is_withdrawn |= kept.pass_id == pass_id && intents.contains(&kept.intent);
        }
    }

    pub(super) fn recoveries(&self, source: &SourceName, job_id: &str, since: Timestamp) -> u32 {
        let counts = |kept: &&Intended| {
            kept.intent.is_requeue
                && !kept.is_withdrawn
                && kept.at >= since
                && kept.intent.source == *source
                && kept.intent.job_id == job_id
        };
        u32::try_from(self.intents.iter().filter(counts).count()).unwrap_or(u32::MAX)
    }
}
