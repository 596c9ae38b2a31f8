//! Active entries whose lock is gone: their worker died, or is frozen. They are scheduled and nothing is done about them,
//! for BullMQ's own workers take them up again; but if no worker lives, nobody else would tell.

use std::borrow::Cow;

use salvage_core::manifest::QueueRule;
use salvage_core::naming;
use salvage_core::payload::{Data, row_named_in};
use salvage_core::sighting::QueueFailure;
use salvage_core::snapshot::{QueueReading, Stalled, State};
use salvage_core::source::ResolvedSource;

use super::known::Known;
use super::look::Pages;
use super::{Pass, log_failure};
use crate::ports::{Jobs, Outside, Queues, StoreFailure};

/// Entries named in the log in one pass. Reached, the log says how many there are.
const LOGGED_MAX: usize = 100;

impl<O: Outside> Pass<'_, O> {
    /// Logs each stalled entry with its queue and age, and counts them for the sources whose jobs they are. An entry of no
    /// source is logged only.
    pub(crate) async fn stalled(
        &self,
        sources: &[ResolvedSource],
        known: &Known,
    ) -> Result<Vec<u64>, StoreFailure> {
        let mut counts = vec![0; sources.len()];
        let Ok(look) = &known.look else { return Ok(counts) };
        let mut total = 0;
        for (queue, rules) in naming::rules_by_queue(sources) {
            let Some(reading) = look.snapshot.queues.get(queue) else { continue };
            let stalled = match self.stalled_in(queue, reading).await {
                Ok(stalled) => stalled,
                Err(failure) => {
                    log_failure("stalled entries could not be counted", &failure);
                    continue;
                }
            };
            for entry in stalled.iter().take(LOGGED_MAX.saturating_sub(total)) {
                warn_of(queue, entry, look.snapshot.at_ms);
            }
            total += stalled.len();
            self.count(sources, queue, &rules, &stalled, &mut counts).await?;
        }
        if total > LOGGED_MAX {
            tracing::warn!(stalled = total, logged_max = LOGGED_MAX, "more stalled entries than are named");
        }
        Ok(counts)
    }

    /// Only the first page of active entries is looked at: a queue with more of them has other worries.
    async fn stalled_in(&self, queue: &str, reading: &QueueReading) -> Result<Vec<Stalled>, QueueFailure> {
        let queues = self.outside.queues();
        match Pages::of(reading, State::Active).next(queues).await? {
            Some(active) if !active.ids.is_empty() => queues.stalled(queue, &active.ids).await,
            _ => Ok(vec![]),
        }
    }

    /// Whose jobs they are: by the ids; those that fit no rule by the live rows that their payloads name.
    async fn count(
        &self,
        sources: &[ResolvedSource],
        queue: &str,
        rules: &[(usize, &QueueRule)],
        stalled: &[Stalled],
        counts: &mut [u64],
    ) -> Result<(), StoreFailure> {
        let mut others = vec![];
        for entry in stalled {
            let fits = |(source, rule): &&(usize, &QueueRule)| {
                rule.job_id
                    .extract(&entry.entry_id)
                    .and_then(|text| sources[*source].id_kind.normalise(text))
                    .is_some()
            };
            let own: Vec<usize> = rules.iter().filter(fits).map(|(source, _)| *source).collect();
            if own.is_empty() {
                others.push(entry);
            }
            for source in own {
                counts[source] += 1;
            }
        }
        let ids: Vec<String> = others.iter().map(|entry| entry.entry_id.clone()).collect();
        let mut named: Vec<Vec<Cow<'_, str>>> = vec![vec![]; rules.len()];
        let read = self.each_payload(queue, &ids, |_, payload| {
            let Data::Text(text) = payload.data else { return };
            for ((source, rule), named) in rules.iter().zip(&mut named) {
                named.extend(row_named_in(&text, &sources[*source], rule).map(Cow::Owned));
            }
        });
        if let Err(failure) = read.await {
            log_failure("stalled entries are counted by their ids alone", &failure);
        }
        for ((source, _), named) in rules.iter().zip(named) {
            for page in named.chunks(self.settings.page_size as usize) {
                let are_live = self.outside.jobs().are_live(&sources[*source], page).await?;
                counts[*source] += are_live.into_iter().filter(|is_live| *is_live).count() as u64;
            }
        }
        Ok(())
    }
}

fn warn_of(queue: &str, entry: &Stalled, now_ms: u64) {
    let entry_id = &entry.entry_id;
    match entry.age_ms(now_ms) {
        Some(age_ms) => tracing::warn!(
            queue,
            entry.id = entry_id,
            age_ms,
            "stalled: {entry_id} of {queue} was taken {age_ms} ms ago, and no worker holds its lock"
        ),
        None => tracing::warn!(
            queue,
            entry.id = entry_id,
            "stalled: {entry_id} of {queue} is active without a lock, and no worker said when it took it"
        ),
    }
}
