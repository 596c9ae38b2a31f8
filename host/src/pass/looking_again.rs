//! Every look after the first: what is to be acted on must still be absent, and as it was.

use salvage_core::candidate::Candidate;
use salvage_core::epoch::{Continuity, follow};
use salvage_core::outcome::Outcome;
use salvage_core::sighting::{Doubt, Residue, Sighting};

use super::gather::Gathered;
use super::known::Known;
use super::look::Look;
use super::{Case, Licence, Pass};
use crate::ports::{Clock, Outside, StoreFailure};

/// A look at what is to be acted on, and at what has just been.
pub(super) struct Again {
    pub(super) look: Look,
    /// Of each act that was asked about, in their order.
    pub(super) of_acts: Vec<Sighting>,
}

impl<O: Outside> Pass<'_, O> {
    /// Waits until the queues had time to settle. Returns false if there is nothing to wait for, or no time.
    ///
    /// # Errors
    /// If the lease was lost meanwhile: then it does not wait any longer.
    pub(super) async fn settle(&self, cases: &[Case], licence: &Licence) -> Result<bool, StoreFailure> {
        let orphans = cases.iter().filter(|case| case.is_to_act()).count();
        if orphans == 0 {
            return Ok(false);
        }
        let settle_ms = self.settings.settle.as_millis();
        tracing::info!(orphans, settle_ms, "looking again before anything is written");
        tokio::select! {
            () = self.outside.clock().sleep(self.settings.settle) => {}
            () = self.stop.requested() => return Ok(false),
            () = licence.trusted.lost() => {}
        }
        self.check_lease()?;
        Ok(true)
    }

    /// Looks again at what is to be acted on. What is not absent in every look is left alone: a hand-off that heals by
    /// itself. `acts` are cases that were acted on, whose jobs are looked for as well. `None` if the queues gave no
    /// answer: then nothing is known of any of them.
    pub(super) async fn look_again(
        &self,
        gathered: &Gathered,
        known: &Known,
        cases: &mut [Case],
        acts: &[usize],
    ) -> Result<Option<Again>, StoreFailure> {
        let orphans: Vec<usize> = (0..cases.len()).filter(|index| cases[*index].is_to_act()).collect();
        let candidates: Vec<Candidate> =
            orphans.iter().chain(acts).map(|index| cases[*index].candidate.clone()).collect();
        let mut look = match self.look_for_all(&gathered.sources, &candidates).await {
            Ok(look) => look,
            Err(failure) => {
                for index in orphans {
                    cases[index].sighting = Sighting::Unknown { why: Doubt::Redis(failure.clone()) };
                }
                return Ok(None);
            }
        };
        let judged = self.judge_by(&mut look, &gathered.sources, &candidates, 0, &known.accepted()).await?;
        let mut sightings = judged.sightings;
        let of_acts = sightings.split_off(orphans.len());
        for (index, sighting) in orphans.iter().zip(&sightings) {
            confirm(gathered, &mut cases[*index], sighting);
        }
        hold_back_broken(gathered, known, &look, cases);
        for (index, sighting) in orphans.iter().zip(&sightings) {
            leave_what_ran(&mut cases[*index], sighting);
        }
        Ok(Some(Again { look, of_acts }))
    }
}

fn confirm(gathered: &Gathered, case: &mut Case, sighting: &Sighting) {
    case.is_confirmed = matches!(sighting, Sighting::Absent { .. });
    if !case.is_confirmed {
        tracing::info!(
            source = %gathered.sources[case.candidate.source].name,
            candidate.id = case.candidate.token.id,
            "left alone: absent at an earlier look, not at this one"
        );
        case.sighting = sighting.clone();
    }
}

/// A job that left something else behind than when it was decided on has run, or was removed, in between. Its row may be
/// about to say so, as it may be while what was found at the first look is still fresh.
fn leave_what_ran(case: &mut Case, sighting: &Sighting) {
    if let (true, Sighting::Absent { residue: then }, Sighting::Absent { residue: now }) =
        (case.is_to_act(), &case.sighting, sighting)
        && now != then
    {
        let why = format!(
            "what it left in its queues changed since it was decided: {} then, {} now",
            described(then),
            described(now)
        );
        case.outcome = Some(Outcome::Superseded(why));
    }
}

fn described(residue: &Residue) -> String {
    match residue.finished_ms() {
        Some(finished_ms) => format!("{} (at {finished_ms} ms)", residue.word()),
        None => residue.word().to_owned(),
    }
}

/// Redis may have lost data between two looks: then the later one proves nothing, however often it is repeated.
fn hold_back_broken(gathered: &Gathered, known: &Known, look: &Look, cases: &mut [Case]) {
    for case in cases.iter_mut().filter(|case| case.is_to_act()) {
        let declared = &gathered.sources[case.candidate.source].declared;
        let broken = declared.queues.iter().find_map(|rule| {
            let memory = known.memories.get(&rule.name)?;
            let reading = look.snapshot.queues.get(&rule.name)?;
            match follow(Some(&memory.expecting_next()), reading, &look.snapshot.server) {
                Continuity::Broken(why) => Some(format!("queue {:?}: {why}", rule.name)),
                Continuity::FirstContact | Continuity::Continues => None,
            }
        });
        if let Some(why) = broken {
            case.outcome = Some(Outcome::BeforeEpoch(why));
        }
    }
}
