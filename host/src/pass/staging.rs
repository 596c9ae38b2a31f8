//! From what was decided to what is written: look, act on a stage, look whether it is to be seen, go on.
//!
//! Where a source has lost few jobs there is one stage. Where it has lost many (a mass loss), the stages grow from one
//! job, and each must be found in its queues or rows before the next begins: see `salvage_core::stages`. The look that
//! finds it is also the one on which the next stage rests, for an act never rests on an old look.

use std::borrow::Cow;
use std::cell::Cell;
use std::collections::BTreeMap;

use salvage_core::act::{Act, act};
use salvage_core::alarm::AlarmKind;
use salvage_core::decision::DecisionKind;
use salvage_core::ledger::Intent;
use salvage_core::outcome::Outcome;
use salvage_core::parking::Parked;
use salvage_core::settings::spread;
use salvage_core::sighting::Sighting;
use salvage_core::stages::{Stage, Stages, is_mass};
use salvage_core::storm::STORM_MIN;

use super::acting::Acting;
use super::gather::Gathered;
use super::known::Known;
use super::looking_again::Again;
use super::reporting::Steps;
use super::{Case, Pass};
use crate::ports::{Clock, Jobs, Ledger, Outside, StoreFailure};

/// What came of one stage.
struct Ended {
    /// Acts that were begun. The others keep their place for a later stage.
    begun: usize,
    /// The cases whose act was applied, or may have been: they have to be seen.
    done: Vec<usize>,
}

impl<O: Outside> Pass<'_, O> {
    /// Acts on every case that is to be acted on, stage by stage; each gets its outcome.
    pub(super) async fn act(
        &self,
        gathered: &Gathered,
        known: &Known,
        cases: &mut [Case],
    ) -> Result<(), StoreFailure> {
        let Some(licence) = &self.licence else { return Ok(()) };
        if !self.settle(cases, licence).await? {
            return Ok(());
        }
        let Some(Again { mut look, .. }) = self.look_again(gathered, known, cases, &[]).await? else {
            return Ok(());
        };
        let mut stages = self.stages(gathered, known, cases).await?;
        let mut acts_left = self.settings.acts_max as usize;
        loop {
            self.refuse_deep(&look, cases);
            let acts = self.next_stage(gathered, &stages, cases, acts_left);
            let acting =
                Acting { pass: self, gathered, known, look: &look, licence, is_halted: Cell::new(false) };
            if acts.is_empty() || !acting.may_go_on() {
                return Ok(());
            }
            let mut steps = Steps::begin(self.outside);
            let ended = acting.stage(acts, cases).await?;
            steps.stage_ended(ended.begun);
            acts_left -= ended.begun;
            let is_left =
                cases.iter().any(|case| case.is_to_act() && stages[case.candidate.source].size() > 0);
            if !is_left || !acting.may_go_on() {
                return Ok(());
            }
            if ended.begun == 0 {
                tracing::warn!(
                    "the queues take so long to read that no act may rest on it; all is left to the next pass"
                );
                return Ok(());
            }
            if acts_left == 0 {
                let acts_max = self.settings.acts_max;
                tracing::warn!(acts_max, "more orphans than one pass acts on; the rest waits");
                return Ok(());
            }
            let Some(again) = self.look_again(gathered, known, cases, &ended.done).await? else {
                return Ok(());
            };
            self.check(gathered, &mut stages, cases, &ended.done, &again.of_acts).await?;
            look = again.look;
        }
    }

    /// How each source's orphans are acted on: many of them in stages, with an alarm.
    async fn stages(
        &self,
        gathered: &Gathered,
        known: &Known,
        cases: &[Case],
    ) -> Result<Vec<Stages>, StoreFailure> {
        let mut stages = Vec::new();
        for (index, source) in gathered.sources.iter().enumerate() {
            let own = || cases.iter().filter(|case| case.candidate.source == index);
            let scheduled = known.scheduled.get(&index).map_or(0, |scheduled| *scheduled as usize);
            let judged = own().filter(|case| !matches!(case.sighting, Sighting::Unknown { .. })).count();
            let judged = judged + scheduled;
            let orphans = own().filter(|case| case.is_to_act()).count();
            let fails = own().filter(|case| case.is_to_act() && case.is_of_a_storm()).count();
            let is_many = is_mass(orphans, judged) || fails > STORM_MIN;
            if is_many {
                let text = format!(
                    "mass loss: {orphans} of {judged} candidates that could be judged are lost; they are put back or failed \
                     in growing stages, each seen before the next begins; find out what lost them"
                );
                self.alarm(&source.name, AlarmKind::MassLoss, text).await?;
            }
            stages.push(Stages::new(is_many));
        }
        Ok(stages)
    }

    /// The acts of the next stage, over all sources: at most `acts_left`.
    fn next_stage(
        &self,
        gathered: &Gathered,
        stages: &[Stages],
        cases: &[Case],
        acts_left: usize,
    ) -> Vec<(usize, Act)> {
        let mut room: Vec<usize> = stages.iter().map(Stages::size).collect();
        let mut acts = Vec::new();
        for (index, case) in
            cases.iter().enumerate().filter(|(_, case)| case.is_to_act() && case.is_confirmed)
        {
            let room = &mut room[case.candidate.source];
            if *room == 0 || acts.len() == acts_left {
                continue;
            }
            let (Some(ruling), Some(digest)) = (&case.ruling, &case.inputs_digest) else { continue };
            let delay = spread(&self.settings.start_delay, self.outside.clock().fraction());
            if let Some(act) = act(&gathered.sources, &case.candidate, ruling, digest, delay) {
                acts.push((index, act));
                *room -= 1;
            }
        }
        acts
    }

    /// Whether what the last stage did is to be seen: a queue holds the job, or its row is not live any more (it was
    /// failed, or a worker has been quicker than we). Where it is not, that source's acts end here, with an alarm.
    async fn check(
        &self,
        gathered: &Gathered,
        stages: &mut [Stages],
        cases: &[Case],
        done: &[usize],
        sightings: &[Sighting],
    ) -> Result<(), StoreFailure> {
        for (index, (stages, source)) in stages.iter_mut().zip(&gathered.sources).enumerate() {
            if !stages.are_many() {
                continue;
            }
            let own = done.iter().zip(sightings).filter(|(case, _)| cases[**case].candidate.source == index);
            let (scheduled, missing): (Vec<_>, Vec<_>) =
                own.partition(|(_, sighting)| matches!(sighting, Sighting::Scheduled { .. }));
            let done = scheduled.len() + missing.len();
            let row_id = |(case, _): (&usize, _)| Cow::from(&cases[*case].candidate.token.id);
            let row_ids: Vec<_> = missing.into_iter().map(row_id).collect();
            let are_live = match row_ids.is_empty() {
                true => vec![],
                false => self.outside.jobs().are_live(source, &row_ids).await?,
            };
            let live = are_live.into_iter().filter(|is_live| *is_live).count();
            if let Err(unseen) = stages.go_on(Stage { done, seen: done - live }) {
                self.alarm(&source.name, AlarmKind::Unseen, unseen.to_string()).await?;
            }
        }
        Ok(())
    }
}

impl<O: Outside> Acting<'_, O> {
    /// Intends, acts and takes back what came to nothing; each case that was begun gets its outcome.
    async fn stage(&self, acts: Vec<(usize, Act)>, cases: &mut [Case]) -> Result<Ended, StoreFailure> {
        let ledger = self.pass.outside.ledger();
        let (pass_id, fence) = (&self.licence.pass_id, &self.licence.fence);
        let intents: Vec<Intent> =
            acts.iter().map(|(index, _)| intent(self.gathered, &cases[*index])).collect();
        self.pass.check_lease()?;
        ledger.intend(pass_id, fence, &intents).await?;
        let outcomes = self.carry_out(&acts, cases).await;
        let (mut ended, mut unneeded) = (Ended { begun: 0, done: vec![] }, vec![]);
        let mut parked: BTreeMap<usize, Parked> = BTreeMap::new();
        for (((index, _), outcome), intent) in acts.into_iter().zip(outcomes).zip(intents) {
            if outcome.as_ref().is_none_or(Outcome::enqueued_nothing) {
                unneeded.push(intent);
            }
            ended.begun += usize::from(outcome.is_some());
            match &outcome {
                Some(Outcome::Applied | Outcome::Indeterminate(_)) => ended.done.push(index),
                Some(Outcome::Parked(why)) => {
                    parked.insert(index, self.park(&cases[index], why));
                }
                _ => {}
            }
            cases[index].outcome = outcome;
        }
        ledger.withdraw(pass_id, &unneeded).await?;
        for (index, parked) in &parked {
            cases[*index].outcome = Some(Outcome::Parked(parked.to_string()));
        }
        self.pass.check_lease()?;
        ledger.park(&parked.into_values().collect::<Vec<_>>(), fence).await?;
        Ok(ended)
    }

    fn park(&self, case: &Case, why: &str) -> Parked {
        let source = &self.gathered.sources[case.candidate.source].name;
        Parked::again(case.parked.as_ref(), source, &case.candidate.token, why, self.gathered.now)
    }
}

fn intent(gathered: &Gathered, case: &Case) -> Intent {
    Intent {
        source: gathered.sources[case.candidate.source].name.clone(),
        job_id: case.candidate.token.id.clone(),
        is_requeue: case.decision.kind == DecisionKind::Requeue,
    }
}
