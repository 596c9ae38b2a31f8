//! One atomic look at all queues of the pass.

use std::collections::BTreeSet;
use std::time::Duration;

use salvage_core::sighting::QueueFailure;
use salvage_core::snapshot::Snapshot;
use salvage_core::source::ResolvedSource;

use super::{Pass, log_failure};
use crate::ports::{Clock, Outside, Queues};

/// A snapshot and when we had it, on our own clock.
pub(crate) struct Look {
    pub(crate) snapshot: Snapshot,
    taken_at: Duration,
}

impl Look {
    /// Redis's clock at our instant `now`. A little behind the truth (by the time the reply took), so that a deadline
    /// made from it comes early rather than late.
    pub(crate) fn redis_now_ms(&self, now: Duration) -> u64 {
        self.snapshot.at_ms + u64::try_from(self.age(now).as_millis()).unwrap_or(u64::MAX / 2)
    }

    /// How long we have had it.
    pub(crate) const fn age(&self, now: Duration) -> Duration {
        now.saturating_sub(self.taken_at)
    }

    /// The queues that have a `meta`.
    pub(crate) fn with_meta(&self) -> BTreeSet<String> {
        let queues = self.snapshot.queues.iter();
        queues.filter(|(_, reading)| reading.has_meta).map(|(queue, _)| queue.clone()).collect()
    }
}

impl<O: Outside> Pass<'_, O> {
    pub(crate) async fn look(&self, sources: &[ResolvedSource]) -> Result<Look, QueueFailure> {
        let snapshot = self.outside.queues().snapshot(&queue_names(sources)).await;
        let taken_at = self.outside.clock().now();
        match snapshot {
            Ok(snapshot) => Ok(Look { snapshot, taken_at }),
            Err(failure) => {
                log_failure(
                    "the queues could not be read: nothing is known, and nothing will be written",
                    &failure,
                );
                Err(failure)
            }
        }
    }
}

/// Every queue of these sources, once.
#[must_use]
pub fn queue_names<'s>(sources: impl IntoIterator<Item = &'s ResolvedSource>) -> BTreeSet<String> {
    let queues = sources.into_iter().flat_map(|source| &source.declared.queues);
    queues.map(|queue| queue.name.clone()).collect()
}
