//! The example application as it is after years: rows in its five job tables, entries in its five queues.
//!
//! Everything follows from the sizes, so two runs have the same to do. Of the candidates (rows not touched for two hours)
//! 70 % are in their queue under the current id rule, 10 % under an id that BullMQ counted out itself, 5 % are retained as
//! completed, 5 % as failed, and 10 % are gone. All other entries belong to rows that were touched five minutes ago.

mod plan;
mod postgres;
mod redis;

pub(crate) use plan::{Fate, Job, Size, TABLES};
pub(crate) use postgres::administer;

use anyhow::{Context, Result};
use std::time::{SystemTime, UNIX_EPOCH};

/// Characters of input in each entry's payload.
pub(crate) const PAYLOAD_CHARS: usize = 500;

/// What to fill the stores with.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Seed {
    pub(crate) size: Size,
    pub(crate) mix: Mix,
    pub(crate) payload_chars: usize,
}

/// Where the candidates are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mix {
    /// As above.
    Usual,
    /// All in their queues under the current rule.
    AllScheduled,
    /// Half are gone of those that are put back, so that it is no mass loss. The exports are all in their queues: so many
    /// that would be failed are a storm, which waits.
    HalfAbsent,
}

impl Seed {
    pub(crate) fn usual(size: Size) -> Self {
        Self { size, mix: Mix::Usual, payload_chars: PAYLOAD_CHARS }
    }

    /// Fills an empty Redis and an empty database that has the example's tables.
    pub(crate) async fn fill(self, redis_url: &str, database_url: &str) -> Result<()> {
        postgres::fill(self, database_url).await?;
        redis::fill(self, redis_url).await
    }

    /// The candidates, then the other jobs that are in queues.
    pub(crate) fn jobs(self) -> impl Iterator<Item = Job> {
        let candidates = (0..self.size.candidates).map(move |number| Job::candidate(number, self.mix));
        let listed =
            (0..self.size.candidates).filter(move |number| plan::fate(*number, self.mix).is_listed()).count();
        let others = self.size.ids.saturating_sub(listed);
        candidates.chain((0..others).map(move |number| Job::fresh(self.size.candidates + number)))
    }
}

/// This machine's clock, ms since 1970.
fn now_ms() -> Result<u64> {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).context("a clock before 1970")?;
    u64::try_from(since.as_millis()).context("a clock far beyond our time")
}
