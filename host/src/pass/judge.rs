//! Looks the candidates up in a snapshot, and reads payloads only for what is left unresolved.

use std::collections::{BTreeMap, HashSet};

use salvage_core::act::places;
use salvage_core::candidate::Candidate;
use salvage_core::lookup;
use salvage_core::scan::{self, Entry, Scan, ScanCounts, Verdict};
use salvage_core::sighting::{Doubt, QueueFailure, Sighting};
use salvage_core::snapshot::Snapshot;
use salvage_core::source::ResolvedSource;

use super::known::Known;
use super::look::Look;
use super::{Pass, log_failure};
use crate::ports::{Jobs, Outside, Queues, StoreFailure};

/// Row ids asked for in one query of live rows.
const LIVE_IDS_PER_QUERY: usize = 10_000;

/// One sighting per candidate, and how it was come by.
pub(crate) struct Judged {
    pub(crate) sightings: Vec<Sighting>,
    /// What the scan saw; `None` if no payload was needed.
    pub(crate) scan: Option<ScanCounts>,
    /// Per source, row ids that payloads named, with their queue.
    pub(crate) named: Vec<BTreeMap<String, String>>,
}

/// Why a scan ended early.
enum Broken {
    Queues(QueueFailure),
    Store(StoreFailure),
}

impl From<QueueFailure> for Broken {
    fn from(failure: QueueFailure) -> Self {
        Self::Queues(failure)
    }
}

impl From<StoreFailure> for Broken {
    fn from(failure: StoreFailure) -> Self {
        Self::Store(failure)
    }
}

impl<O: Outside> Pass<'_, O> {
    /// Judges by the first look.
    pub(crate) async fn judge(
        &self,
        sources: &[ResolvedSource],
        candidates: &[Candidate],
        known: &Known,
    ) -> Result<Judged, StoreFailure> {
        match &known.look {
            Ok(look) => self.judge_by(look, sources, candidates, known).await,
            Err(failure) => Ok(Judged {
                sightings: scan::all_unknown(candidates, failure),
                scan: None,
                named: vec![BTreeMap::new(); sources.len()],
            }),
        }
    }

    /// Judges by any look: the second one uses what the first has made known of the queues.
    pub(crate) async fn judge_by(
        &self,
        look: &Look,
        sources: &[ResolvedSource],
        candidates: &[Candidate],
        known: &Known,
    ) -> Result<Judged, StoreFailure> {
        let snapshot = &look.snapshot;
        let sightings = lookup::direct(sources, candidates, snapshot);
        let mut scan = Scan::new(sources, candidates, sightings, &known.accepted_entries);
        let is_scanned = scan.is_needed() && snapshot.server_fault().is_none();
        let read = if is_scanned { self.read_payloads(&mut scan, snapshot, sources).await } else { Ok(()) };
        let verdict = match read {
            Ok(()) => scan.finish(snapshot, &known.vouched()),
            Err(Broken::Queues(failure)) => {
                log_failure("payloads could not be read: what was not found is unknown", &failure);
                scan.abandon(&failure)
            }
            Err(Broken::Store(failure)) => return Err(failure),
        };
        let Verdict { mut sightings, counts, named } = verdict;
        self.add_residues(sources, candidates, &mut sightings).await;
        Ok(Judged { sightings, scan: is_scanned.then_some(counts), named })
    }

    async fn read_payloads(
        &self,
        scan: &mut Scan<'_>,
        snapshot: &Snapshot,
        sources: &[ResolvedSource],
    ) -> Result<(), Broken> {
        for queue in scan.queues() {
            let live = self.live_rows_named_in(scan, &queue, snapshot, sources).await?;
            let entries = scan.entries(&queue, snapshot, &live);
            // A page never spans two states: `active` comes last, whole.
            for state in entries.chunk_by(|a, b| a.state == b.state) {
                for page in state.chunks(self.settings.page_size as usize) {
                    if !scan.is_needed() {
                        return Ok(());
                    }
                    self.read_page(scan, &queue, page).await?;
                }
            }
        }
        Ok(())
    }

    async fn live_rows_named_in(
        &self,
        scan: &Scan<'_>,
        queue: &str,
        snapshot: &Snapshot,
        sources: &[ResolvedSource],
    ) -> Result<HashSet<(usize, String)>, StoreFailure> {
        let mut live = HashSet::new();
        for (source, row_ids) in scan.named_by_rule(queue, snapshot) {
            for chunk in row_ids.chunks(LIVE_IDS_PER_QUERY) {
                let found = self.outside.jobs().live_among(&sources[source], chunk).await?;
                live.extend(found.into_iter().map(|row_id| (source, row_id)));
            }
        }
        Ok(live)
    }

    async fn read_page(&self, scan: &mut Scan<'_>, queue: &str, page: &[Entry]) -> Result<(), QueueFailure> {
        let queues = self.outside.queues();
        let ids: Vec<String> = page.iter().map(|entry| entry.id.clone()).collect();
        let payloads = queues.payloads(queue, &ids).await?;
        let mut gone: Vec<&Entry> = Vec::new();
        for (entry, payload) in page.iter().zip(&payloads) {
            if scan.read(entry, payload.as_deref()) {
                gone.push(entry);
            }
        }
        if gone.is_empty() {
            return Ok(());
        }
        let ids: Vec<String> = gone.iter().map(|entry| entry.id.clone()).collect();
        let listed = queues.are_listed(queue, &ids).await?;
        for (entry, is_listed) in gone.into_iter().zip(listed) {
            scan.looked_again(entry, is_listed);
        }
        Ok(())
    }

    /// Reads what the absent jobs left behind; where that fails, nothing is known of them.
    async fn add_residues(
        &self,
        sources: &[ResolvedSource],
        candidates: &[Candidate],
        sightings: &mut [Sighting],
    ) {
        let absent: Vec<usize> = (0..sightings.len())
            .filter(|index| matches!(sightings[*index], Sighting::Absent { .. }))
            .collect();
        for page in absent.chunks(self.settings.page_size as usize) {
            let jobs: Vec<_> = page
                .iter()
                .map(|index| &candidates[*index])
                .map(|candidate| places(&sources[candidate.source].declared, &candidate.token.id))
                .collect();
            match self.outside.queues().residues(&jobs).await {
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
