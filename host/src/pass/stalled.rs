//! Active entries whose lock is gone: their worker died, or is frozen. They are scheduled and nothing is done about them,
//! for BullMQ's own workers take them up again; but if no worker lives, nobody else would tell.

use salvage_core::lookup;
use salvage_core::scan::named_row;
use salvage_core::snapshot::{Stalled, State};
use salvage_core::source::ResolvedSource;

use super::known::Known;
use super::{Pass, log_failure};
use crate::ports::{Outside, Queues};

/// Entries named in the log in one pass. Reached, the log says how many there are.
const LOGGED_MAX: usize = 100;

impl<O: Outside> Pass<'_, O> {
    /// Logs each stalled entry with its queue and age, and counts them for the sources whose jobs they are. An entry of no
    /// source is logged only.
    pub(crate) async fn stalled(&self, sources: &[ResolvedSource], known: &Known) -> Vec<u64> {
        let mut counts = vec![0; sources.len()];
        let Ok(look) = &known.look else { return counts };
        let mut total = 0;
        for (queue, rules) in lookup::rules_by_queue(sources) {
            let active = look.snapshot.queues.get(queue).and_then(|reading| reading.ids.get(&State::Active));
            let Some(active) = active.filter(|ids| !ids.is_empty()) else { continue };
            let stalled = match self.outside.queues().stalled(queue, active).await {
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
            for page in stalled.chunks(self.settings.page_size as usize) {
                let payloads = self.payloads_of(queue, page).await;
                for (entry, payload) in page.iter().zip(payloads) {
                    for (source, rule) in &rules {
                        let of = &sources[*source];
                        let by_id = || of.id_kind.normalise(rule.job_id.extract(&entry.entry_id)?);
                        let by_payload = || named_row(payload.as_ref()?, of, rule);
                        counts[*source] += u64::from(by_id().or_else(by_payload).is_some());
                    }
                }
            }
        }
        if total > LOGGED_MAX {
            tracing::warn!(stalled = total, logged_max = LOGGED_MAX, "more stalled entries than are named");
        }
        counts
    }

    /// One per entry; `None` where there is none, or it could not be read.
    async fn payloads_of(&self, queue: &str, stalled: &[Stalled]) -> Vec<Option<serde_json::Value>> {
        let ids: Vec<String> = stalled.iter().map(|entry| entry.entry_id.clone()).collect();
        match self.outside.queues().payloads(queue, &ids).await {
            Ok(payloads) => {
                let parse = |payload: Option<String>| serde_json::from_str(&payload?).ok();
                payloads.into_iter().map(parse).collect()
            }
            Err(failure) => {
                log_failure("stalled entries are counted by their ids alone", &failure);
                vec![None; ids.len()]
            }
        }
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
