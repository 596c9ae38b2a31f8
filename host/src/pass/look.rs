//! One atomic look at all queues of the pass.

use std::collections::BTreeSet;
use std::time::Duration;

use salvage_core::candidate::Candidate;
use salvage_core::sighting::QueueFailure;
use salvage_core::snapshot::{IdsCopy, IdsPage, QueueReading, Snapshot, State};
use salvage_core::source::ResolvedSource;

use super::{Pass, log_failure};
use crate::ports::{Ask, Clock, Outside, Queues};

/// Ids read at a time: Redis was busy for a millisecond with such a page of a copy, and the host holds two megabytes of each. Larger
/// pages make fewer questions to PostgreSQL, each of which walks all live rows.
pub(crate) const IDS_PER_PAGE: usize = 20_000;

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

/// Walks the ids of one state as of a snapshot: they came with it, all at once, or lie in a copy, a page at a time.
pub(crate) struct Pages<'l> {
    here: &'l [String],
    copy: Option<&'l IdsCopy>,
    at: usize,
}

impl<'l> Pages<'l> {
    pub(crate) fn of(reading: &'l QueueReading, state: State) -> Self {
        let here = reading.ids.get(&state).map_or(&[][..], Vec::as_slice);
        Self { here, copy: reading.copies.get(&state), at: 0 }
    }

    /// The next page; `None` after the last.
    pub(crate) async fn next(&mut self, queues: &impl Queues) -> Result<Option<IdsPage<'l>>, QueueFailure> {
        let length = self.copy.map_or(self.here.len(), |copy| copy.length);
        if self.at >= length {
            return Ok(None);
        }
        let from = self.at;
        match self.copy {
            Some(copy) => {
                self.at += IDS_PER_PAGE;
                queues.page(copy, from, IDS_PER_PAGE).await.map(Some)
            }
            None => {
                self.at = length;
                Ok(Some(IdsPage { ids: self.here.into(), flaw: None }))
            }
        }
    }
}

impl<O: Outside> Pass<'_, O> {
    /// The first look: of every queue the guards, and the ids of those where a candidate may be, long sorted sets left out.
    pub(crate) async fn look(
        &self,
        sources: &[ResolvedSource],
        candidates: &[Candidate],
    ) -> Result<Look, QueueFailure> {
        self.look_at(&queue_names(sources), &queues_of(sources, candidates), false).await
    }

    /// The second look: everything in those queues where one of these may be.
    pub(crate) async fn look_for_all(
        &self,
        sources: &[ResolvedSource],
        candidates: &[Candidate],
    ) -> Result<Look, QueueFailure> {
        let queues = queues_of(sources, candidates);
        self.look_at(&queues, &queues, true).await
    }

    async fn look_at(
        &self,
        queues: &BTreeSet<String>,
        wanted: &BTreeSet<String>,
        is_whole: bool,
    ) -> Result<Look, QueueFailure> {
        let snapshot = self.snapshot(queues, wanted, is_whole).await;
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

    /// Everything in these queues, once more.
    pub(crate) async fn whole_snapshot(&self, queues: &BTreeSet<String>) -> Result<Snapshot, QueueFailure> {
        self.snapshot(queues, queues, true).await
    }

    /// A dry run writes nothing, not even a copy that is gone a moment later.
    async fn snapshot(
        &self,
        queues: &BTreeSet<String>,
        wanted: &BTreeSet<String>,
        is_whole: bool,
    ) -> Result<Snapshot, QueueFailure> {
        let copies = self.licence.is_some().then(|| self.outside.clock().token());
        let (copies, scope) = (copies.as_deref(), self.scope.as_str());
        self.outside.queues().snapshot(&Ask { queues, wanted, is_whole, copies, scope }).await
    }
}

/// Every queue where one of these candidates may be.
fn queues_of(sources: &[ResolvedSource], candidates: &[Candidate]) -> BTreeSet<String> {
    let indices: BTreeSet<usize> = candidates.iter().map(|candidate| candidate.source).collect();
    queue_names(indices.into_iter().map(|index| &sources[index]))
}

/// Every queue of these sources, once.
#[must_use]
pub fn queue_names<'s>(sources: impl IntoIterator<Item = &'s ResolvedSource>) -> BTreeSet<String> {
    let queues = sources.into_iter().flat_map(|source| &source.declared.queues);
    queues.map(|queue| queue.name.clone()).collect()
}
