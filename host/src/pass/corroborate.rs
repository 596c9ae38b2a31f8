//! Whether these queues are this application's at all: was any job of a source ever seen in them?

use std::collections::{BTreeMap, BTreeSet};

use salvage_core::candidate::Candidate;
use salvage_core::declaration::Declared;
use salvage_core::lookup::Sample;
use salvage_core::manifest::QueueRule;
use salvage_core::naming::is_counted;
use salvage_core::payload::{Data, Payload, row_named_in};
use salvage_core::scan::Verdict;
use salvage_core::sighting::Sighting;
use salvage_core::snapshot::QueueReading;
use salvage_core::source::{ResolvedSource, SourceName};

use super::gather::Gathered;
use super::known::Known;
use super::{LookedUp, Pass, log_failure};
use crate::ports::{Jobs, Ledger, Outside, StoreFailure};

/// The sources of which an entry was seen.
#[derive(Debug, Default)]
pub(crate) struct Seen {
    /// In this epoch.
    pub(crate) in_epoch: BTreeSet<usize>,
    /// In this pass, under the declaration that is in force.
    pub(crate) in_pass: BTreeSet<usize>,
}

impl<O: Outside> Pass<'_, O> {
    /// The sources of which an entry was seen in this epoch, in this pass or an earlier one; and those of which one was seen
    /// in this pass. What is new is recorded.
    ///
    /// Free where a candidate was just found; otherwise a sample is asked for, and only for sources with orphans. A source
    /// that was seen in the epoch is asked about again if its declaration is not confirmed.
    pub(crate) async fn corroborate(
        &self,
        gathered: &Gathered,
        LookedUp { candidates, riders }: &LookedUp,
        known: &Known,
        judged: &Verdict,
        declared: &[Declared],
    ) -> Result<Seen, StoreFailure> {
        let mut of_pass = Seen::default();
        let (Ok(look), Some(looked_at)) = (&known.look, known.looked_at) else { return Ok(of_pass) };
        let recorded = self.outside.ledger().corroborated(self.scope.as_str()).await?;
        let mut seen: Vec<(SourceName, String)> = Vec::new();
        for (index, source) in gathered.own().iter().enumerate() {
            // A record may stem from an epoch that ended just now, which a dry run does not write down.
            let goes_on = source.declared.queues.iter().any(|rule| known.continued.contains(&rule.name));
            let is_corroborated = recorded.contains(&source.name) && goes_on;
            if is_corroborated {
                of_pass.in_epoch.insert(index);
            }
            if is_corroborated && declared[index].is_confirmed {
                continue;
            }
            let own = || candidates.iter().zip(&judged.sightings).filter(|(of, _)| of.source == index);
            let found = own().find_map(|(of, sighting)| match sighting {
                Sighting::Scheduled { queue, .. } if is_telling(source, of, queue) => Some(queue.clone()),
                Sighting::Scheduled { .. } | Sighting::Absent { .. } | Sighting::Unknown { .. } => None,
            });
            let own_candidates = candidates[..candidates.len() - riders].iter().zip(&judged.sightings);
            let has_orphans = own_candidates
                .into_iter()
                .any(|(of, sighting)| of.source == index && matches!(sighting, Sighting::Absent { .. }));
            let found = match found {
                None if has_orphans => {
                    let (by_rule, named) = (&judged.by_rule[index], &judged.named[index]);
                    self.sample(source, by_rule, named, &look.snapshot.queues).await?
                }
                found => found,
            };
            if let Some(queue) = found {
                of_pass.in_epoch.insert(index);
                of_pass.in_pass.insert(index);
                seen.push((source.name.clone(), queue));
            }
        }
        if self.licence.is_some() && !seen.is_empty() {
            self.check_lease()?;
            // Seen when the look was taken, and no later: a host that froze since must not vouch for another epoch.
            self.outside.ledger().corroborate(&seen, looked_at).await?;
        }
        Ok(of_pass)
    }

    /// A queue that holds an entry whose id or payload names an existing row of the source, in whatever status.
    async fn sample(
        &self,
        source: &ResolvedSource,
        by_rule: &Sample,
        named: &BTreeMap<String, String>,
        queues: &BTreeMap<String, QueueReading>,
    ) -> Result<Option<String>, StoreFailure> {
        let jobs = self.outside.jobs();
        let ids: Vec<String> = named.keys().cloned().collect();
        if !ids.is_empty() && !jobs.existing(source, &ids).await?.is_empty() {
            return Ok(named.values().next().cloned());
        }
        for rule in &source.declared.queues {
            let Some(reading) = queues.get(&rule.name) else { continue };
            let scheduled = by_rule.get(&rule.name).into_iter().flatten().cloned();
            let by_id: Vec<String> = scheduled.chain(retained_by_rule(source, rule, reading)).collect();
            if !by_id.is_empty() && !jobs.existing(source, &by_id).await?.is_empty() {
                return Ok(Some(rule.name.clone()));
            }
            let by_payload = self.row_ids_by_payload(source, rule, &reading.retained).await;
            if !by_payload.is_empty() && !jobs.existing(source, &by_payload).await?.is_empty() {
                return Ok(Some(rule.name.clone()));
            }
        }
        Ok(None)
    }

    async fn row_ids_by_payload(
        &self,
        source: &ResolvedSource,
        rule: &QueueRule,
        entry_ids: &[String],
    ) -> Vec<String> {
        let mut row_ids = vec![];
        let read = self.each_payload(&rule.name, entry_ids, |_, payload| {
            row_ids.extend(row_id_in(&payload, source, rule));
        });
        if let Err(failure) = read.await {
            log_failure("retained entries could not be read; the source stays uncorroborated", &failure);
            return vec![];
        }
        row_ids
    }
}

/// Whether finding a candidate says that the declaration is right. An id of digits alone may be one that BullMQ counted out
/// to another job.
fn is_telling(source: &ResolvedSource, candidate: &Candidate, queue: &str) -> bool {
    let rule = source.declared.queue(queue);
    rule.is_some_and(|rule| !is_counted(&rule.job_id.render(&candidate.token.id)))
}

fn row_id_in(payload: &Payload, source: &ResolvedSource, rule: &QueueRule) -> Option<String> {
    match &payload.data {
        Data::Text(text) => row_named_in(text, source, rule),
        Data::Missing | Data::TooLong { .. } => None,
    }
}

fn retained_by_rule(
    source: &ResolvedSource,
    rule: &QueueRule,
    reading: &QueueReading,
) -> impl Iterator<Item = String> {
    let row_id = |entry_id: &String| source.id_kind.normalise(rule.job_id.extract(entry_id)?);
    reading.retained.iter().filter(|entry_id| !is_counted(entry_id)).filter_map(row_id)
}
