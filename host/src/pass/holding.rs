//! What may not be acted on now, and why: said before anything is written, so that a dry run says the same.

use std::collections::{BTreeMap, BTreeSet};

use salvage_core::alarm::AlarmKind;
use salvage_core::backlog::Backlog;
use salvage_core::decision::Ruling;
use salvage_core::epoch::QueueMemory;
use salvage_core::outcome::Outcome;
use salvage_core::source::{ResolvedSource, SourceName, Standing};
use salvage_core::storm::{self, STORM_MIN};

use super::controls::Controls;
use super::gather::Gathered;
use super::known::Known;
use super::look::Look;
use super::{Case, Pass};
use crate::ports::{Ledger, Outside, StoreFailure};

impl<O: Outside> Pass<'_, O> {
    /// Gives every orphan that has to wait the outcome that says for what.
    pub(super) async fn hold_back(
        &self,
        gathered: &Gathered,
        known: &Known,
        corroborated: &BTreeSet<usize>,
        controls: &Controls,
        cases: &mut [Case],
    ) -> Result<(), StoreFailure> {
        refuse_observed(gathered, cases);
        known.hold_back(&gathered.sources, corroborated, controls, cases);
        self.hold_back_parked(gathered, cases).await?;
        self.hold_back_storms(gathered, known, cases).await?;
        if let Ok(look) = &known.look {
            self.refuse_deep(look, cases);
        }
        Ok(())
    }

    /// Rows that PostgreSQL rejected not long ago are not tried again yet.
    async fn hold_back_parked(&self, gathered: &Gathered, cases: &mut [Case]) -> Result<(), StoreFailure> {
        let mut orphans: Vec<&mut Case> = cases.iter_mut().filter(|case| case.is_to_act()).collect();
        for page in orphans.chunks_mut(self.settings.page_size as usize) {
            let name = |case: &&mut Case| gathered.sources[case.candidate.source].name.clone();
            let jobs: Vec<(SourceName, String)> =
                page.iter().map(|case| (name(case), case.candidate.token.id.clone())).collect();
            let found = self.outside.ledger().parked(&jobs).await?;
            for (case, parked) in page.iter_mut().zip(found) {
                if let Some(parked) = &parked
                    && parked.holds(&case.candidate.token, gathered.now)
                {
                    case.outcome = Some(Outcome::Parked(parked.to_string()));
                }
                case.parked = parked;
            }
        }
        Ok(())
    }

    /// A mass of fails waits for the operator. It is remembered from the pass that first sees it, and also while its
    /// orphans wait for their epoch, so that one acceptance does for both.
    async fn hold_back_storms(
        &self,
        gathered: &Gathered,
        known: &Known,
        cases: &mut [Case],
    ) -> Result<(), StoreFailure> {
        let remembered = self.outside.ledger().storms().await?;
        let mut seen = BTreeMap::new();
        for (index, source) in gathered.own().iter().enumerate() {
            let mut orphans: Vec<&mut Case> = cases
                .iter_mut()
                .filter(|case| case.candidate.source == index && case.is_of_a_storm())
                .collect();
            let (is_storm, before) = (orphans.len() > STORM_MIN, remembered.get(&source.name));
            if is_storm || before.is_some() {
                seen.insert(source.name.clone(), if is_storm { orphans.len() as u64 } else { 0 });
            }
            let queues: Vec<Option<&QueueMemory>> =
                source.declared.queues.iter().map(|rule| known.memories.get(&rule.name)).collect();
            orphans.retain(|case| !storm::is_covered(case.candidate.updated, &queues, before));
            if orphans.len() <= STORM_MIN {
                continue;
            }
            let why = storm_of(orphans.len(), source);
            // The others wait for their epoch already.
            orphans.retain(|case| case.outcome.is_none());
            if !orphans.is_empty() {
                self.alarm(&source.name, AlarmKind::Storm, why.clone()).await?;
            }
            for case in orphans {
                case.outcome = Some(Outcome::Storm(why.clone()));
            }
        }
        self.check_lease()?;
        match &self.licence {
            Some(licence) => self.outside.ledger().remember_storms(&seen, gathered.now, &licence.fence).await,
            None => Ok(()),
        }
    }

    /// Nothing is put into a queue that is too deep already, what this pass is about to add counted in.
    pub(super) fn refuse_deep(&self, look: &Look, cases: &mut [Case]) {
        let mut backlog = Backlog::of(&look.snapshot, self.settings.queue_depth_max);
        let mut refused: BTreeMap<String, usize> = BTreeMap::new();
        for case in cases.iter_mut().filter(|case| case.is_to_act()) {
            let Some(Ruling::Requeue(requeue)) = &case.ruling else { continue };
            if let Err(why) = backlog.admit(&requeue.queue) {
                *refused.entry(requeue.queue.clone()).or_default() += 1;
                case.outcome = Some(Outcome::Refused(why));
            }
        }
        for (queue, orphans) in refused {
            tracing::warn!(queue, orphans, "too many jobs wait in this queue to put back more");
        }
    }
}

fn storm_of(orphans: usize, source: &ResolvedSource) -> String {
    let queues: Vec<&str> = source.declared.queues.iter().map(|rule| rule.name.as_str()).collect();
    format!(
        "{orphans} jobs of this source would be marked failed, and nothing is left that says they ever ran: more than \
         {STORM_MIN} at once wait until somebody has looked; if they are really lost, `salvage accept {}` lets the next \
         pass fail them, in stages",
        queues.join(" ")
    )
}

/// An observed handler's orphans are judged and planned, never acted on; that is said before anything else, for its
/// queues are not marked, and so their epoch begins anew in every pass.
fn refuse_observed(gathered: &Gathered, cases: &mut [Case]) {
    for case in cases.iter_mut().filter(|case| case.is_to_act()) {
        let source = &gathered.sources[case.candidate.source];
        if source.standing == Standing::Observed {
            let domain = &source.name.domain;
            let why = format!(
                "observed only: there is no [handler.{domain}.grants]; `salvage handler check` prints one"
            );
            case.outcome = Some(Outcome::Refused(why));
        }
    }
}
