//! Looks the candidates up in a snapshot, and reads payloads only for what is left unresolved.

use std::pin::pin;

use futures_util::stream::{self, StreamExt, TryStreamExt};
use salvage_core::act::places;
use salvage_core::candidate::Candidate;
use salvage_core::lookup::Lookup;
use salvage_core::scan::{Accepted, Scan, Verdict};
use salvage_core::sighting::{Doubt, QueueFailure, Sighting};
use salvage_core::snapshot::{QueueReading, Snapshot, State};
use salvage_core::source::ResolvedSource;

use super::known::Known;
use super::look::{Look, Pages};
use super::scanning::Broken;
use super::{Pass, log_failure};
use crate::ports::{Outside, Queues, StoreFailure};

/// Queues whose sorted sets are asked at a time.
const QUEUES_AT_ONCE: usize = 4;

/// Pages of residues read at a time: while one is taken in, Redis answers for the other.
const PAGES_AT_ONCE: usize = 2;

impl<O: Outside> Pass<'_, O> {
    /// Judges by the first look. The last `riders` candidates are judged with the others, and nothing is read for their sake.
    pub(crate) async fn judge(
        &self,
        sources: &[ResolvedSource],
        candidates: &[Candidate],
        riders: usize,
        known: &mut Known,
    ) -> Result<Verdict, StoreFailure> {
        let accepted = known.accepted();
        match &mut known.look {
            Ok(look) => self.judge_by(look, sources, candidates, riders, &accepted).await,
            Err(failure) => Ok(Verdict::unknown(candidates, sources.len(), failure)),
        }
    }

    /// Judges by any look: the second one uses what the first has made known of the queues. Their ids, and the copies of
    /// them, are not needed any more then.
    pub(crate) async fn judge_by(
        &self,
        look: &mut Look,
        sources: &[ResolvedSource],
        candidates: &[Candidate],
        riders: usize,
        accepted: &Accepted,
    ) -> Result<Verdict, StoreFailure> {
        let judged = self.judge_by_ids(look, sources, candidates, riders, accepted).await;
        look.snapshot.forget_ids();
        self.outside.queues().remove_copies().await;
        judged
    }

    async fn judge_by_ids(
        &self,
        look: &mut Look,
        sources: &[ResolvedSource],
        candidates: &[Candidate],
        riders: usize,
        accepted: &Accepted,
    ) -> Result<Verdict, StoreFailure> {
        let mut lookup = Lookup::new(sources, candidates, riders);
        let (later, looked) = match self.look_up(&mut lookup, &mut look.snapshot).await {
            Ok(later) => (later, Ok(())),
            Err(failure) => (None, Err(Broken::Queues(failure))),
        };
        let snapshot = later.as_ref().unwrap_or(&look.snapshot);
        let mut scan = Scan::new(lookup, accepted);
        let is_scanned = looked.is_ok() && scan.is_needed() && snapshot.server_fault().is_none();
        let read = if is_scanned { self.read_payloads(&mut scan, snapshot, sources).await } else { looked };
        let mut verdict = match read {
            Ok(()) => scan.finish(snapshot),
            Err(Broken::Queues(failure)) => {
                log_failure(
                    "the queues could not be read to the end: what was not found is unknown",
                    &failure,
                );
                scan.abandon(&failure)
            }
            Err(Broken::Store(failure)) => return Err(failure),
        };
        self.add_residues(sources, candidates, &mut verdict.sightings).await;
        verdict.counts = verdict.counts.filter(|_| is_scanned);
        Ok(verdict)
    }

    /// The direct look-up. If long sorted sets were left out of the snapshot, those who may be in one are asked for by their
    /// ids, for who is found needs no proof. If any are left, returns a later snapshot that has everything.
    async fn look_up(
        &self,
        lookup: &mut Lookup<'_>,
        first: &mut Snapshot,
    ) -> Result<Option<Snapshot>, QueueFailure> {
        self.read_ids(lookup, first).await?;
        if let Err(failure) = self.ask_in_sets(lookup, first).await {
            tracing::warn!(%failure, "candidates could not be asked for by their ids, so all ids are read");
        }
        let queues = lookup.queues();
        let is_whole = |queue| first.queues.get(queue).is_some_and(QueueReading::has_every_state);
        if queues.iter().all(is_whole) || first.server_fault().is_some() {
            return Ok(None);
        }
        // All of its ids have passed by, and the later ones take as much room.
        first.forget_ids();
        let later = self.whole_snapshot(&queues).await?;
        self.read_ids(lookup, &later).await?;
        Ok(Some(later))
    }

    /// Every id of the snapshot passes by once, unless all candidates are found before.
    pub(crate) async fn read_ids(
        &self,
        lookup: &mut Lookup<'_>,
        snapshot: &Snapshot,
    ) -> Result<(), QueueFailure> {
        for (queue, reading) in &snapshot.queues {
            for state in State::ALL {
                let mut pages = Pages::of(reading, state);
                while lookup.is_needed()
                    && let Some(page) = pages.next(self.outside.queues()).await?
                {
                    lookup.see(queue, state, &page);
                }
            }
        }
        Ok(())
    }

    /// Set by set, so that who is found in one is not asked for in the next, and several queues at a time.
    async fn ask_in_sets(&self, lookup: &mut Lookup<'_>, snapshot: &Snapshot) -> Result<(), QueueFailure> {
        for state in State::ALL.into_iter().filter(|state| !state.is_list()) {
            let is_missing = |queue: &String| {
                let reading = snapshot.queues.get(queue);
                reading.is_some_and(|reading| reading.missing().any(|missing| missing == state))
            };
            let queues: Vec<String> = lookup.queues().into_iter().filter(is_missing).collect();
            let asked = queues.iter().map(|queue| {
                let (positions, entry_ids): (Vec<usize>, Vec<String>) =
                    lookup.unresolved_in(queue).into_iter().unzip();
                async move {
                    let are_there = self.outside.queues().are_in_set(queue, state, &entry_ids).await?;
                    let found = positions.into_iter().zip(are_there).filter(|(_, is_there)| *is_there);
                    Ok::<_, QueueFailure>(found.map(|(position, _)| position).collect())
                }
            });
            let asked = stream::iter(asked).buffered(QUEUES_AT_ONCE);
            let answers: Vec<Vec<usize>> = asked.try_collect().await?;
            for (queue, found) in queues.iter().zip(answers) {
                found.into_iter().for_each(|position| lookup.found(position, queue, state));
            }
        }
        Ok(())
    }

    /// Reads what the absent jobs left behind; where that fails, nothing is known of them.
    pub(crate) async fn add_residues(
        &self,
        sources: &[ResolvedSource],
        candidates: &[Candidate],
        sightings: &mut [Sighting],
    ) {
        let absent: Vec<usize> = (0..sightings.len())
            .filter(|index| matches!(sightings[*index], Sighting::Absent { .. }))
            .collect();
        let pages = absent.chunks(self.settings.page_size as usize);
        let read = pages.map(|page| async move {
            let jobs: Vec<_> = page
                .iter()
                .map(|index| &candidates[*index])
                .map(|candidate| places(&sources[candidate.source].declared, &candidate.token.id))
                .collect();
            (page, self.outside.queues().residues(&jobs).await)
        });
        let mut read = pin!(stream::iter(read).buffered(PAGES_AT_ONCE));
        while let Some((page, residues)) = read.next().await {
            match residues {
                Ok(residues) => {
                    for (index, residue) in page.iter().zip(residues) {
                        sightings[*index] = Sighting::Absent { residue };
                    }
                }
                Err(failure) => {
                    log_failure("what absent jobs left behind could not be read: they are unknown", &failure);
                    for index in page {
                        sightings[*index] = Sighting::Unknown { why: Doubt::Redis(failure.clone()) };
                    }
                }
            }
        }
    }
}
