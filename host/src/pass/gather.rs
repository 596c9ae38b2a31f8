//! First step: what domains declare, what the tables hold.

use std::collections::{BTreeMap, BTreeSet};

use futures_util::future::{try_join, try_join_all};
use jiff::Timestamp;
use salvage_core::candidate::{self, Candidate, LiveRow, Sorted};
use salvage_core::capture::Redaction;
use salvage_core::source::ResolvedSource;
use tokio::sync::Semaphore;

use super::Pass;
use crate::ports::{Census, Handlers, Jobs, Outside, StoreFailure};

/// Most candidates taken from one source in one pass. Reached, it is logged, and the rest waits for the next pass.
const CANDIDATES_MAX: usize = 1_000_000;

/// Questions about job tables under way at a time, each on a connection of its own: while PostgreSQL is busy with one, the
/// rows of the other are taken in.
const QUESTIONS_AT_ONCE: usize = 2;

/// What a pass read from PostgreSQL before it looked at any queue, and needs to its end.
pub(crate) struct Gathered {
    /// Sources whose manifest fits the catalog, in the order of their handlers: first those the pass works on.
    pub(crate) sources: Vec<ResolvedSource>,
    /// So many of them.
    own: usize,
    /// The database's clock, read once: the base of every cutoff.
    pub(crate) now: Timestamp,
    /// Rows that cannot be judged: (source, row, why).
    pub(crate) odd: Vec<(usize, LiveRow, String)>,
    /// One per source the pass works on.
    pub(crate) census: Vec<Census>,
    /// By domain, what is taken out of its questions; of a domain that is not here none is kept.
    pub(crate) captures: BTreeMap<String, Redaction>,
}

/// A source to be read.
#[derive(Clone, Copy)]
struct Listing<'a> {
    source: &'a ResolvedSource,
    /// Its place among the sources.
    index: usize,
    /// The types that any source on its table declares.
    declared: &'a BTreeSet<String>,
    now: Timestamp,
}

/// What was taken from one source.
#[derive(Default)]
struct Rows {
    candidates: Vec<Candidate>,
    odd: Vec<(usize, LiveRow, String)>,
}

impl Gathered {
    /// The sources the pass works on. The others are known for what they have in common with these: queues and parents.
    pub(crate) fn own(&self) -> &[ResolvedSource] {
        &self.sources[..self.own]
    }
}

impl<O: Outside> Pass<'_, O> {
    /// What there is to look up comes apart from the rest: by source, in id order.
    pub(crate) async fn gather(&self) -> Result<(Gathered, Vec<Candidate>), StoreFailure> {
        let jobs = self.outside.jobs();
        let now = jobs.now().await?;
        let domains = self.outside.handlers().domains();
        let (sources, misfits) = jobs.resolve(&domains).await?;
        for misfit in misfits.into_iter().filter(|misfit| self.scope.covers(&misfit.source.domain)) {
            for fault in misfit.faults {
                tracing::error!(source = %misfit.source, "source left out, its manifest does not fit the database: {fault}");
            }
        }
        let declared = declared_types(&sources);
        let is_own = |source: &ResolvedSource| self.scope.covers(&source.name.domain);
        let (mut sources, others): (Vec<_>, Vec<_>) = sources.into_iter().partition(is_own);
        let own = sources.len();
        sources.extend(others);
        let (mut candidates, mut odd, mut census) = (vec![], vec![], vec![]);
        let turns = Semaphore::new(QUESTIONS_AT_ONCE);
        let reads = sources[..own].iter().enumerate().map(|(index, source)| {
            let read = Listing { source, index, declared: &declared[&source.declared.table.table], now };
            self.read_source(read, &turns)
        });
        for (source, read) in sources.iter().zip(try_join_all(reads).await?) {
            let Some((counted, mut rows)) = read else {
                census.push(Census::default());
                continue;
            };
            tell_oddities(source, &counted);
            census.push(counted);
            candidates.append(&mut rows.candidates);
            odd.append(&mut rows.odd);
        }
        // They are kept to the end of the pass.
        candidates.shrink_to_fit();
        let kept = domains
            .into_iter()
            .filter_map(|domain| Some((domain.manifest.domain, domain.capture.kept().cloned()?)));
        Ok((Gathered { sources, own, now, odd, census, captures: kept.collect() }, candidates))
    }

    /// `None` if PostgreSQL refuses to have this source read: then the others are all the same.
    async fn read_source(
        &self,
        read: Listing<'_>,
        turns: &Semaphore,
    ) -> Result<Option<(Census, Rows)>, StoreFailure> {
        let census = async {
            let _turn = turns.acquire().await;
            self.outside.jobs().census(read.source, read.declared, read.now).await
        };
        match try_join(census, self.list(read, turns)).await {
            Ok(found) => Ok(Some(found)),
            Err(failure) if failure.is_local() => {
                tracing::error!(source = %read.source.name, %failure, "source left out of this pass");
                Ok(None)
            }
            Err(failure) => Err(failure),
        }
    }

    async fn list(&self, read: Listing<'_>, turns: &Semaphore) -> Result<Rows, StoreFailure> {
        let Listing { source, index, now, .. } = read;
        let jobs = self.outside.jobs();
        let before = candidate::latest_cutoff(source, now, self.settings.stale_after);
        let limit = self.settings.rows_per_page();
        let mut after: Option<String> = None;
        let mut into = Rows::default();
        loop {
            let rows = {
                let _turn = turns.acquire().await;
                jobs.live_rows(source, before, after.as_deref(), limit).await?
            };
            let is_last = rows.len() < limit as usize;
            after = rows.last().map(|row| row.id.clone());
            for row in rows {
                match candidate::sort(row, index, source, now, self.settings.stale_after) {
                    Sorted::Candidate(candidate) => into.candidates.push(candidate),
                    Sorted::Odd(row, why) => into.odd.push((index, row, why)),
                    Sorted::Fresh | Sorted::Undeclared => {}
                }
            }
            if into.candidates.len() + into.odd.len() >= CANDIDATES_MAX {
                tracing::warn!(source = %source.name, candidates_max = CANDIDATES_MAX, "more candidates than one pass takes");
                return Ok(into);
            }
            if is_last {
                return Ok(into);
            }
        }
    }
}

fn tell_oddities(source: &ResolvedSource, census: &Census) {
    if census.undeclared > 0 {
        tracing::warn!(source = %source.name, rows = census.undeclared, "live rows of a type that no handler declares are left alone");
    }
    if census.clock_skew > 0 {
        tracing::warn!(source = %source.name, rows = census.clock_skew, "live rows say they were written in the future");
    }
}

/// Per table, the types that any source on it declares. Without a type column every row is of the one declared type.
fn declared_types(sources: &[ResolvedSource]) -> BTreeMap<String, BTreeSet<String>> {
    let mut by_table: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for source in sources {
        let types = source.declared.job_types.iter().map(|job_type| job_type.name.clone());
        by_table.entry(source.declared.table.table.clone()).or_default().extend(types);
    }
    by_table
}
