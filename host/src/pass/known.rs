//! What is known of the queues beyond their ids: whether each queue's epoch goes on, and since when it may be believed.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use salvage_core::declaration::Declared;
use salvage_core::epoch::{self, Continuity, QueueMemory, Trust};
use salvage_core::lease::Fence;
use salvage_core::outcome::Outcome;
use salvage_core::scan::{Accepted, ScanCounts, Unreadable};
use salvage_core::sighting::QueueFailure;
use salvage_core::snapshot::{Flaw, QueueReading, Server};
use salvage_core::source::{ResolvedSource, Standing};

use super::controls::{Controls, declaration_of};
use super::look::{Look, queue_names};
use super::{Case, Pass, log_failure};
use crate::ports::{Ask, Clock, Jobs, Ledger, Mark, Outside, Queues, StoreFailure};

/// The first look and what it means.
pub(crate) struct Known {
    /// The snapshot, or why there is none.
    pub(crate) look: Result<Look, QueueFailure>,
    /// What was remembered of each queue before.
    pub(crate) remembered: BTreeMap<String, QueueMemory>,
    /// What comparing the two said of each queue's epoch; no entry where they could not be compared.
    pub(crate) continuity: BTreeMap<String, Continuity>,
    /// The database's clock just after that snapshot, if its node may be believed.
    pub(crate) looked_at: Option<Timestamp>,
    /// Each queue's memory after the snapshot.
    pub(crate) memories: BTreeMap<String, QueueMemory>,
    /// The nonce each marked queue must hold from now on: what this pass wrote.
    pub(crate) nonces: BTreeMap<String, String>,
    /// The queues whose epoch did not begin just now.
    pub(crate) continued: BTreeSet<String>,
    /// Entries the operator marked as harmless.
    pub(crate) accepted_entries: BTreeSet<(String, String)>,
    /// Job names the operator called somebody else's.
    pub(crate) foreign_names: BTreeSet<(String, String)>,
    /// Per source, how many candidates a queue was found to hold; no entry is 0.
    pub(crate) scheduled: BTreeMap<usize, u64>,
    /// What the scan of the first look saw; `None` until then, and if no payload was needed.
    pub(crate) scan: Option<ScanCounts>,
    /// What that scan could not read, by queue.
    pub(crate) unreadable: BTreeMap<String, Unreadable>,
}

/// What PostgreSQL remembers of the pass's queues and sources, read before any queue is.
pub(crate) struct Memories {
    /// Of each queue.
    pub(crate) queues: BTreeMap<String, QueueMemory>,
    /// Entries the operator marked as harmless.
    entries: BTreeSet<(String, String)>,
    /// Job names the operator called somebody else's.
    foreign_names: BTreeSet<(String, String)>,
    /// Of each of the pass's sources: what confirms its declaration.
    pub(crate) declared: Vec<Declared>,
}

fn accepted(
    memories: &BTreeMap<String, QueueMemory>,
    entries: &BTreeSet<(String, String)>,
    foreign: &BTreeSet<(String, String)>,
) -> Accepted {
    let queues = memories.iter().filter(|(_, memory)| memory.accepted_at.is_some());
    Accepted {
        queues: queues.map(|(queue, _)| queue.clone()).collect(),
        entries: entries.clone(),
        foreign: foreign.clone(),
    }
}

impl Known {
    /// Before the look is compared with what is remembered.
    fn before(look: Result<Look, QueueFailure>, memories: &Memories) -> Self {
        let Memories { queues, entries, foreign_names, .. } = memories;
        Self {
            look,
            looked_at: None,
            remembered: queues.clone(),
            continuity: BTreeMap::new(),
            memories: BTreeMap::new(),
            nonces: BTreeMap::new(),
            continued: BTreeSet::new(),
            accepted_entries: entries.clone(),
            foreign_names: foreign_names.clone(),
            scheduled: BTreeMap::new(),
            scan: None,
            unreadable: BTreeMap::new(),
        }
    }

    pub(crate) fn accepted(&self) -> Accepted {
        accepted(&self.memories, &self.accepted_entries, &self.foreign_names)
    }

    /// What the operator accepted, as it was before a look.
    pub(crate) fn accepted_by(memories: &Memories) -> Accepted {
        accepted(&memories.queues, &memories.entries, &memories.foreign_names)
    }

    /// Marks the orphans whose absence may not be acted on yet.
    pub(crate) fn hold_back(
        &self,
        sources: &[ResolvedSource],
        corroborated: &BTreeSet<usize>,
        controls: &Controls,
        cases: &mut [Case],
    ) {
        let mut waiting: BTreeMap<usize, (usize, String)> = BTreeMap::new();
        for case in cases.iter_mut().filter(|case| case.is_to_act()) {
            let source = case.candidate.source;
            let declared = &sources[source].declared;
            let queues: Vec<(&str, &QueueMemory)> = declared
                .queues
                .iter()
                .filter_map(|rule| Some((rule.name.as_str(), self.memories.get(&rule.name)?)))
                .collect();
            let known = epoch::Known {
                is_corroborated: corroborated.contains(&source),
                is_confirmed: controls.is_believed(&sources[source], &case.candidate),
            };
            let trust = epoch::trust(case.candidate.updated, &queues, known);
            if trust != Trust::Proven {
                waiting.entry(source).or_insert_with(|| (0, trust.to_string())).0 += 1;
                case.outcome = Some(Outcome::BeforeEpoch(trust.to_string()));
            }
        }
        for (source, (count, why)) in waiting {
            tracing::warn!(source = %sources[source].name, orphans = count, "orphans wait for `salvage accept`: {why}");
        }
    }
}

impl<O: Outside> Pass<'_, O> {
    /// Reads what is remembered of the queues of these sources and of their declarations.
    pub(crate) async fn memories(&self, sources: &[ResolvedSource]) -> Result<Memories, StoreFailure> {
        let ledger = self.outside.ledger();
        let declarations: Vec<_> = sources.iter().map(declaration_of).collect();
        Ok(Memories {
            queues: ledger.queue_memories(self.scope.as_str(), &queue_names(sources)).await?,
            entries: ledger.accepted_entries().await?,
            foreign_names: ledger.foreign_names().await?,
            declared: ledger.declarations(&declarations).await?,
        })
    }

    /// Compares the look with what PostgreSQL remembers, and, unless this is a dry run, remembers it and writes fresh
    /// nonces. PostgreSQL first: a crash in between leaves the old nonce in Redis, and both are remembered.
    pub(crate) async fn know(
        &self,
        sources: &[ResolvedSource],
        look: Result<Look, QueueFailure>,
        memories: &Memories,
    ) -> Result<Known, StoreFailure> {
        let ledger = self.outside.ledger();
        let mut known = Known::before(look, memories);
        let mut memories = memories.queues.clone();
        let look = match &known.look {
            Ok(look) if look.snapshot.server_fault().is_none() => look,
            // A replica, or a node that is still loading, says nothing about what the master holds.
            _ => {
                known.continued = memories.keys().cloned().collect();
                known.memories = memories;
                return Ok(known);
            }
        };
        let now = self.outside.jobs().now().await?;
        known.looked_at = Some(now);
        let server = &look.snapshot.server;
        let of_active = queue_names(sources.iter().filter(|source| source.standing == Standing::Active));
        let (mut changed, mut marks) = (BTreeMap::new(), BTreeMap::new());
        for (queue, reading) in &look.snapshot.queues {
            let before = memories.remove(queue);
            if !tells_its_epoch(reading) {
                known.memories.extend(before.map(|memory| (queue.clone(), memory)));
                continue;
            }
            let continuity = epoch::follow(before.as_ref(), reading, server);
            if continuity == Continuity::Continues {
                known.continued.insert(queue.clone());
            }
            let is_accepted = before.as_ref().is_some_and(|memory| memory.accepted_at.is_some())
                && !matches!(continuity, Continuity::Broken(_));
            // Nothing is written into a queue of which nobody granted anything, nor where BullMQ never was.
            let is_marked = of_active.contains(queue) && (reading.has_trace() || is_accepted);
            if self.licence.is_some() {
                self.announce(queue, is_marked, &continuity, before.as_ref(), server);
            }
            let nonce = (self.licence.is_some() && is_marked).then(|| self.outside.clock().token());
            if let Some(nonce) = &nonce {
                known.nonces.insert(queue.clone(), nonce.clone());
                marks.insert(queue.clone(), Mark { found: reading.nonce.clone(), nonce: nonce.clone() });
            }
            let memory = epoch::remember(before.as_ref(), &continuity, reading, server, nonce, now);
            // Where nothing is left at all, it may be the wrong database or host, and the right one is back before the next
            // pass with all it had. Nothing is believed meanwhile; if it was wiped, its nonce will still be missing.
            let is_bare = !reading.has_trace() && matches!(continuity, Continuity::Broken(_));
            let remembered = if is_bare { &mut known.memories } else { &mut changed };
            remembered.insert(queue.clone(), memory);
            known.continuity.insert(queue.clone(), continuity);
        }
        self.check_lease()?;
        if let Some(licence) = &self.licence {
            ledger.remember_queues(&changed, &licence.fence).await?;
        }
        known.memories.extend(changed);
        self.check_lease()?;
        if let Some(licence) = &self.licence {
            match self.outside.queues().mark(&marks, &licence.fence).await {
                Ok(()) => self.confirm_first(&mut known, &marks, &licence.fence).await?,
                Err(failure) => {
                    log_failure(
                        "the queues could not be marked, so no absence will be believed in this pass",
                        &failure,
                    );
                    known.look = Err(failure);
                }
            }
        }
        Ok(known)
    }

    /// Where no nonce was found, the first one may have been written into whatever answered a moment after the look. If one
    /// more look finds it on the server that was looked at, a restart keeps the epoch from now on; if not, the next pass
    /// finds out.
    async fn confirm_first(
        &self,
        known: &mut Known,
        marks: &BTreeMap<String, Mark>,
        fence: &Fence,
    ) -> Result<(), StoreFailure> {
        let first = marks.iter().filter(|(_, mark)| mark.found.is_none());
        let first: BTreeSet<String> = first.map(|(queue, _)| queue.clone()).collect();
        let Ok(look) = &known.look else { return Ok(()) };
        if first.is_empty() {
            return Ok(());
        }
        let ask = Ask::guards(&first).of_scope(self.scope.as_str());
        let Ok(again) = self.outside.queues().snapshot(&ask).await else { return Ok(()) };
        if again.server_fault().is_some() || again.server.run_id != look.snapshot.server.run_id {
            return Ok(());
        }
        let mut confirmed = BTreeMap::new();
        for (queue, reading) in again.queues {
            let Some(memory) = known.memories.get_mut(&queue) else { continue };
            if reading.nonce.is_some() && reading.nonce == memory.nonce_next {
                memory.nonce = reading.nonce;
                confirmed.insert(queue, memory.clone());
            }
        }
        self.check_lease()?;
        self.outside.ledger().remember_queues(&confirmed, fence).await
    }

    fn announce(
        &self,
        queue: &str,
        is_marked: bool,
        continuity: &Continuity,
        before: Option<&QueueMemory>,
        server: &Server,
    ) {
        match continuity {
            Continuity::Continues => {
                let Some(before) = before else { return };
                if before.run_id != server.run_id || before.replid != server.replid {
                    tracing::info!(
                        queue,
                        "Redis restarted or failed over and kept what it had; the epoch goes on"
                    );
                }
            }
            // Where nothing is written, every pass meets the queue for the first time.
            Continuity::FirstContact if !is_marked => {
                tracing::debug!(queue, "this queue is not marked; its epoch has not begun")
            }
            Continuity::FirstContact => {
                tracing::info!(queue, "first contact with this queue; its epoch begins now")
            }
            Continuity::Broken(why) => tracing::error!(
                queue,
                "Redis may have lost entries of this queue: {why}; older orphans wait for `salvage accept {queue}`"
            ),
        }
    }
}

/// Whether what a reading says of nonce and counter can be used: with a key of a wrong type it cannot.
fn tells_its_epoch(reading: &QueueReading) -> bool {
    reading.flaws.iter().all(|flaw| matches!(flaw, Flaw::NoTrace { .. } | Flaw::ProGroups | Flaw::OpaqueId))
}
