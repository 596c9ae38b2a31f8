//! The second look, and then the writes: one transaction per job, the queue last.

use std::cell::Cell;

use futures_util::StreamExt;
use salvage_core::act::{ACTS_CONCURRENT, Act, LOOK_AGE_MAX, STATEMENT_TIMEOUT, act};
use salvage_core::decision::DecisionKind;
use salvage_core::epoch::{Continuity, follow};
use salvage_core::ledger::Intent;
use salvage_core::outcome::Outcome;
use salvage_core::settings::spread;
use salvage_core::sighting::{Doubt, Sighting};
use salvage_core::source::Standing;

use super::gather::Gathered;
use super::known::Known;
use super::look::Look;
use super::{Case, Licence, Pass};
use crate::ports::{Clock, HeldJob, Hold, Jobs, Ledger, Outside, QueueTerms, Queues, StoreFailure};

impl<O: Outside> Pass<'_, O> {
    /// Acts on every case that is to be acted on; each gets its outcome.
    pub(crate) async fn act(
        &self,
        gathered: &Gathered,
        known: &Known,
        cases: &mut [Case],
    ) -> Result<(), StoreFailure> {
        let Some(licence) = &self.licence else { return Ok(()) };
        let Some(second) = self.look_again(gathered, known, cases).await? else { return Ok(()) };
        let acts = self.acts(gathered, cases);
        if acts.is_empty() || self.stop.is_requested() {
            return Ok(());
        }
        let intents: Vec<Intent> = acts.iter().map(|(index, _)| intent(gathered, &cases[*index])).collect();
        self.outside.ledger().intend(&licence.pass_id, &licence.fence, &intents).await?;
        let is_halted = Cell::new(false);
        let acting = Acting { pass: self, gathered, known, second: &second, licence, is_halted };
        let outcomes = acting.carry_out(&acts, cases).await;
        let mut unneeded = Vec::new();
        for (((index, _), outcome), intent) in acts.into_iter().zip(outcomes).zip(intents) {
            if outcome.as_ref().is_none_or(Outcome::enqueued_nothing) {
                unneeded.push(intent);
            }
            cases[index].outcome = outcome;
        }
        self.outside.ledger().withdraw(&licence.pass_id, &unneeded).await
    }

    /// Waits until the queues had time to settle, then looks again at what is to be acted on. What is not absent in both
    /// looks is left alone: a hand-off that heals by itself. `None` if there is nothing to act on or no answer.
    async fn look_again(
        &self,
        gathered: &Gathered,
        known: &Known,
        cases: &mut [Case],
    ) -> Result<Option<Look>, StoreFailure> {
        let mut orphans: Vec<&mut Case> = cases.iter_mut().filter(|case| case.is_to_act()).collect();
        if orphans.is_empty() {
            return Ok(None);
        }
        let settle_ms = self.settings.settle.as_millis();
        tracing::info!(orphans = orphans.len(), settle_ms, "looking again before anything is written");
        tokio::select! {
            () = self.outside.clock().sleep(self.settings.settle) => {}
            () = self.stop.requested() => return Ok(None),
        }
        let candidates: Vec<_> = orphans.iter().map(|case| case.candidate.clone()).collect();
        let second = match self.look_for_all(&gathered.sources, &candidates).await {
            Ok(second) => second,
            Err(failure) => {
                for case in orphans {
                    case.sighting = Sighting::Unknown { why: Doubt::Redis(failure.clone()) };
                }
                return Ok(None);
            }
        };
        let judged = self.judge_by(&second, &gathered.sources, &candidates, known).await?;
        for (case, sighting) in orphans.iter_mut().zip(judged.sightings) {
            case.is_confirmed = matches!(sighting, Sighting::Absent { .. });
            if !case.is_confirmed {
                tracing::info!(
                    source = %gathered.sources[case.candidate.source].name,
                    candidate.id = case.candidate.token.id,
                    "left alone: absent at the first look, not at the second"
                );
                case.sighting = sighting;
            }
        }
        hold_back_broken(gathered, known, &second, orphans);
        Ok(Some(second))
    }

    fn acts(&self, gathered: &Gathered, cases: &[Case]) -> Vec<(usize, Act)> {
        let mut acts = Vec::new();
        for (index, case) in
            cases.iter().enumerate().filter(|(_, case)| case.is_to_act() && case.is_confirmed)
        {
            if acts.len() >= self.settings.acts_max as usize {
                tracing::warn!(
                    acts_max = self.settings.acts_max,
                    "more orphans than one pass acts on; the rest waits"
                );
                break;
            }
            let (Some(ruling), Some(digest)) = (&case.ruling, &case.inputs_digest) else { continue };
            let delay = spread(&self.settings.start_delay, self.outside.clock().fraction());
            acts.extend(
                act(&gathered.sources, &case.candidate, ruling, digest, delay).map(|act| (index, act)),
            );
        }
        acts
    }
}

/// The acts of one pass, and all they need.
struct Acting<'p, O> {
    pass: &'p Pass<'p, O>,
    gathered: &'p Gathered,
    known: &'p Known,
    second: &'p Look,
    licence: &'p Licence,
    /// A store failed as a whole: the next act would meet the same.
    is_halted: Cell<bool>,
}

impl<O: Outside> Acting<'_, O> {
    /// One outcome per act, in their order; `None` for an act that was not begun.
    async fn carry_out(&self, acts: &[(usize, Act)], cases: &[Case]) -> Vec<Option<Outcome>> {
        let terms = QueueTerms {
            fence: self.licence.fence.clone(),
            deadline_ms: 0,
            nonces: self.known.nonces.clone(),
            with_meta: self.second.with_meta(),
        };
        let begin = |(index, act): &(usize, Act)| {
            let (case, act, terms) = (&cases[*index], act.clone(), &terms);
            async move {
                if !self.may_begin() {
                    return None;
                }
                // Counted from before the transaction opens: PostgreSQL ends a frozen transaction after the same
                // time, so the script never enqueues for a row that can no longer be committed.
                let deadline_ms = self.pass.now_of_redis(self.second) + millis(STATEMENT_TIMEOUT);
                let outcome = self.one(case, &act, &QueueTerms { deadline_ms, ..terms.clone() }).await;
                self.log(case, &outcome);
                Some(outcome)
            }
        };
        futures_util::stream::iter(acts).map(begin).buffered(ACTS_CONCURRENT).collect().await
    }

    fn may_begin(&self) -> bool {
        let now = self.pass.outside.clock().now();
        let is_recent = self.second.age(now) < LOOK_AGE_MAX;
        is_recent
            && self.licence.trusted.holds_at(now)
            && !self.is_halted.get()
            && !self.pass.stop.is_requested()
    }

    async fn one(&self, case: &Case, act: &Act, terms: &QueueTerms) -> Outcome {
        let source = &self.gathered.sources[case.candidate.source];
        let entry = self.pass.entry(self.gathered, self.known, case, Some(&Outcome::Applied));
        let held = match self.pass.outside.jobs().hold(source, act, &self.licence.fence, &entry).await {
            Ok(Hold::Held(held)) => held,
            Ok(Hold::Not(outcome)) => return outcome,
            Err(failure) => {
                self.is_halted.set(self.is_halted.get() || !failure.is_local());
                return Outcome::Refused(failure.to_string());
            }
        };
        // The queue comes last: everything that PostgreSQL can refuse has been refused by now.
        let obstacle = match self.pass.outside.queues().act(act, terms).await {
            Ok(answer) => answer.obstacle(),
            Err(failure) if failure.is_indeterminate() => {
                Some(Outcome::Indeterminate(format!("the queue did not confirm: {failure}")))
            }
            Err(failure) => Some(Outcome::Refused(failure.to_string())),
        };
        if let Some(outcome) = obstacle {
            held.roll_back().await;
            return outcome;
        }
        match held.commit().await {
            Ok(()) => Outcome::Applied,
            Err(failure) => Outcome::Indeterminate(format!("the commit was not confirmed: {failure}")),
        }
    }

    fn log(&self, case: &Case, outcome: &Outcome) {
        if let Outcome::Parked(why) = outcome {
            let (source, id) = (&self.gathered.sources[case.candidate.source].name, &case.candidate.token.id);
            tracing::warn!(%source, candidate.id = id, "PostgreSQL rejects what would be written for this job: {why}");
        }
        tracing::info!(
            source = %self.gathered.sources[case.candidate.source].name,
            candidate.id = case.candidate.token.id,
            candidate.r#type = case.candidate.job_type,
            decision = case.decision.kind.word(),
            reason = case.decision.reason,
            outcome = outcome.word(),
            why = outcome.why(),
            generation = self.licence.fence.generation,
            "act"
        );
    }
}

fn intent(gathered: &Gathered, case: &Case) -> Intent {
    Intent {
        source: gathered.sources[case.candidate.source].name.clone(),
        job_id: case.candidate.token.id.clone(),
        is_requeue: case.decision.kind == DecisionKind::Requeue,
    }
}

/// An observed handler's orphans are judged and planned, never acted on; that is said before anything else, for its
/// queues are not marked, and so their epoch begins anew in every pass.
pub(super) fn refuse_observed(gathered: &Gathered, cases: &mut [Case]) {
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

/// Redis may have lost data between the two looks: then the second one proves nothing, however often it is repeated.
fn hold_back_broken(gathered: &Gathered, known: &Known, second: &Look, orphans: Vec<&mut Case>) {
    for case in orphans {
        let declared = &gathered.sources[case.candidate.source].declared;
        let broken = declared.queues.iter().find_map(|rule| {
            let memory = known.memories.get(&rule.name)?;
            let reading = second.snapshot.queues.get(&rule.name)?;
            match follow(Some(&memory.expecting_next()), reading, &second.snapshot.server) {
                Continuity::Broken(why) => Some(format!("queue {:?}: {why}", rule.name)),
                Continuity::FirstContact | Continuity::Continues => None,
            }
        });
        if let Some(why) = broken.filter(|_| case.is_to_act()) {
            case.outcome = Some(Outcome::BeforeEpoch(why));
        }
    }
}

fn millis(duration: std::time::Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
