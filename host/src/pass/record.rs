//! Writes down what became of every candidate that is not scheduled.

use salvage_core::ledger::{Entry, Evidence, QueueEvidence, Remembered, Seen};
use salvage_core::outcome::Outcome;
use salvage_core::report::SightingReport;
use salvage_core::sighting::Sighting;
use salvage_core::source::ResolvedSource;

use super::gather::Gathered;
use super::known::Known;
use super::look::Look;
use super::{Case, Pass, rfc3339};
use crate::ports::{Ledger, Outside, StoreFailure};

/// Stories in one statement.
const ENTRIES_PER_BATCH: usize = 500;

impl<O: Outside> Pass<'_, O> {
    /// Records every story that an act's own transaction has not recorded already.
    pub(crate) async fn record(
        &self,
        gathered: &Gathered,
        known: &Known,
        cases: &[Case],
    ) -> Result<(), StoreFailure> {
        let Some(licence) = &self.licence else { return Ok(()) };
        let entries: Vec<Entry> = cases
            .iter()
            .filter(|case| !matches!(case.sighting, Sighting::Scheduled { .. }))
            .filter(|case| case.outcome != Some(Outcome::Applied))
            .map(|case| self.entry(gathered, known, case, case.outcome.as_ref()))
            .collect();
        for batch in entries.chunks(ENTRIES_PER_BATCH) {
            self.check_lease()?;
            self.outside.ledger().record(batch, &licence.fence).await?;
        }
        Ok(())
    }

    /// One story, with the outcome it has or is about to have.
    pub(crate) fn entry(
        &self,
        gathered: &Gathered,
        known: &Known,
        case: &Case,
        outcome: Option<&Outcome>,
    ) -> Entry {
        let source = &gathered.sources[case.candidate.source];
        let token = &case.candidate.token;
        let sighting = SightingReport::from(&case.sighting);
        Entry {
            source: source.name.clone(),
            job_id: token.id.clone(),
            job_type: case.candidate.job_type.clone(),
            row: serde_json::json!({
                "status": token.status,
                "updatedAt": token.updated_at,
                "xmin": token.xmin,
            }),
            evidence: self.evidence(source, gathered, known, case),
            sighting: sighting.kind.to_owned(),
            sighting_why: sighting.why.or_else(|| sighting.residue.map(str::to_owned)),
            inputs_digest: case.inputs_digest.clone(),
            component_digest: case.inputs_digest.as_ref().map(|_| source.component_digest.clone()),
            decision: case.decision.kind.word().to_owned(),
            decision_reason: case.decision.reason.clone(),
            outcome: outcome.map(|outcome| outcome.word().to_owned()),
            outcome_why: outcome.and_then(Outcome::why).map(str::to_owned),
            decide_us: case.decide_took.map(|took| u64::try_from(took.as_micros()).unwrap_or(u64::MAX)),
        }
    }

    fn evidence(&self, source: &ResolvedSource, gathered: &Gathered, known: &Known, case: &Case) -> Evidence {
        let look = known.look.as_ref().ok();
        let rules = source.declared.queues.iter();
        let evidence = Evidence {
            generation: self.licence.as_ref().map_or(0, |licence| licence.fence.generation),
            cutoff_base: rfc3339(gathered.now),
            queues: rules.map(|rule| (rule.name.clone(), queue_evidence(&rule.name, known, look))).collect(),
            scan: known.scan,
            second_look: case.is_confirmed,
            ..Evidence::default()
        };
        match look {
            Some(look) => evidence.at(&look.snapshot),
            None => evidence,
        }
    }
}

fn queue_evidence(queue: &str, known: &Known, look: Option<&Look>) -> QueueEvidence {
    let memory = known.memories.get(queue);
    let reading = look.and_then(|look| look.snapshot.queues.get(queue));
    QueueEvidence {
        epoch_began: memory.map(|memory| rfc3339(memory.epoch_began)).unwrap_or_default(),
        accepted: memory.is_some_and(|memory| memory.accepted_at.is_some()),
        continuity: known.continuity.get(queue).cloned(),
        seen: reading.map(|reading| Seen::new(reading, known.unreadable.get(queue))),
        remembered: known.remembered.get(queue).map(Remembered::from),
    }
}
