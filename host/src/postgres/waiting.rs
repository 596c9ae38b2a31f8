//! What waits, shared by all hosts: storms for the operator's word, rejected rows for their time.

use std::collections::BTreeMap;

use jiff::Timestamp;
use salvage_core::candidate::RowToken;
use salvage_core::lease::Fence;
use salvage_core::parking::Parked;
use salvage_core::source::SourceName;
use salvage_core::storm::Storm;
use serde::Serialize;

use super::candidates::{instant, rfc3339};
use super::ledger::document;
use super::session::{Mode, Statement};
use super::{Postgres, fence};
use crate::ports::StoreFailure;

const STORMS: &str = "SELECT s.domain, s.source, s.orphans, round(extract(epoch FROM s.seen_at) * 1000000)::bigint \
    FROM salvage.storms AS s WHERE s.prefix = $1";

const END_STORMS: &str = "DELETE FROM salvage.storms AS s \
    USING jsonb_to_recordset($2::text::jsonb) AS n(domain text, source text, orphans bigint) \
    WHERE s.prefix = $1 AND s.domain = n.domain AND s.source = n.source AND n.orphans = 0";

const REMEMBER_STORMS: &str = "INSERT INTO salvage.storms AS s (prefix, domain, source, orphans, seen_at) \
    SELECT $1, n.domain, n.source, n.orphans, $3::text::timestamptz \
    FROM jsonb_to_recordset($2::text::jsonb) AS n(domain text, source text, orphans bigint) \
    WHERE n.orphans > 0 ORDER BY n.domain, n.source \
    ON CONFLICT (prefix, domain, source) DO UPDATE SET orphans = EXCLUDED.orphans";

const PARKED: &str = "SELECT j.position, k.status, k.updated_at, k.xmin_text, k.why, k.times, \
    round(extract(epoch FROM k.until) * 1000000)::bigint \
    FROM jsonb_to_recordset($1::text::jsonb) AS j(position bigint, domain text, source text, job_id text) \
    JOIN salvage.parked AS k ON k.domain = j.domain AND k.source = j.source AND k.job_id = j.job_id";

const PARK: &str = "INSERT INTO salvage.parked AS k \
    (domain, source, job_id, status, updated_at, xmin_text, why, times, until) \
    SELECT p.domain, p.source, p.job_id, p.status, p.updated_at, p.xmin_text, p.why, p.times, p.until \
    FROM jsonb_to_recordset($1::text::jsonb) AS p(domain text, source text, job_id text, status text, \
    updated_at text, xmin_text text, why text, times bigint, until timestamptz) \
    ORDER BY p.domain, p.source, p.job_id \
    ON CONFLICT (domain, source, job_id) DO UPDATE SET status = EXCLUDED.status, updated_at = EXCLUDED.updated_at, \
    xmin_text = EXCLUDED.xmin_text, why = EXCLUDED.why, times = EXCLUDED.times, until = EXCLUDED.until";

const RELEASE: &str = "UPDATE salvage.parked AS k SET times = 0, until = clock_timestamp(), released_by = $4, \
    released_at = clock_timestamp() WHERE k.domain = $1 AND k.source = $2 AND ($3::text IS NULL OR k.job_id = $3::text) \
    AND k.until > clock_timestamp()";

const PARKED_NOW: &str = "SELECT k.domain, k.source, count(*), min(k.job_id), \
    round(extract(epoch FROM min(k.until)) * 1000000)::bigint, \
    (array_agg(k.why ORDER BY k.job_id))[1] \
    FROM salvage.parked AS k WHERE k.until > clock_timestamp() GROUP BY k.domain, k.source ORDER BY 1, 2";

/// The parked rows of one source, for `doctor`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ParkedCount {
    /// The source.
    pub source: SourceName,
    /// Rows that wait.
    pub rows: u64,
    /// One of them.
    pub example: String,
    /// Why that one was rejected.
    pub why: String,
    /// When the first of all is tried again; database clock.
    pub until: Timestamp,
}

/// One job, by its position in a list.
#[derive(Serialize)]
struct Job<'a> {
    position: usize,
    domain: &'a str,
    source: &'a str,
    job_id: &'a str,
}

/// A parked row as it is written.
#[derive(Serialize)]
struct Row<'a> {
    domain: &'a str,
    source: &'a str,
    job_id: &'a str,
    status: &'a str,
    updated_at: &'a str,
    xmin_text: &'a str,
    why: &'a str,
    times: u32,
    until: String,
}

pub(super) async fn storms(postgres: &Postgres) -> Result<BTreeMap<SourceName, Storm>, StoreFailure> {
    let mut session = postgres.open(Mode::Read, "read the storms").await?;
    let statement = Statement::fixed(STORMS).bind(&postgres.prefix);
    let rows: Vec<(String, String, i64, i64)> = session.all(statement).await?;
    session.commit().await?;
    let storm = |(domain, source, orphans, seen_at): (String, String, i64, i64)| {
        // A time that is none cannot have been accepted since.
        let seen_at = instant(seen_at).unwrap_or(Timestamp::MAX);
        (SourceName { domain, source }, Storm { seen_at, orphans: orphans.unsigned_abs() })
    };
    Ok(rows.into_iter().map(storm).collect())
}

pub(super) async fn remember_storms(
    postgres: &Postgres,
    orphans: &BTreeMap<SourceName, u64>,
    now: Timestamp,
    fence: &Fence,
) -> Result<(), StoreFailure> {
    #[derive(Serialize)]
    struct Now<'a> {
        domain: &'a str,
        source: &'a str,
        orphans: u64,
    }
    if orphans.is_empty() {
        return Ok(());
    }
    let rows: Vec<Now<'_>> = orphans
        .iter()
        .map(|(SourceName { domain, source }, orphans)| Now { domain, source, orphans: *orphans })
        .collect();
    let rows = document(&rows);
    let mut session = fence::open(postgres, fence, "remember the storms").await?;
    session.execute(Statement::fixed(END_STORMS).bind(&postgres.prefix).bind(&rows)).await?;
    let statement = Statement::fixed(REMEMBER_STORMS).bind(&postgres.prefix).bind(&rows);
    session.execute(statement.bind(rfc3339(now))).await?;
    session.commit().await
}

pub(super) async fn parked(
    postgres: &Postgres,
    jobs: &[(SourceName, String)],
) -> Result<Vec<Option<Parked>>, StoreFailure> {
    type Found = (i64, String, String, String, String, i64, i64);
    if jobs.is_empty() {
        return Ok(vec![]);
    }
    let asked: Vec<Job<'_>> = jobs
        .iter()
        .enumerate()
        .map(|(position, (SourceName { domain, source }, job_id))| Job { position, domain, source, job_id })
        .collect();
    let mut session = postgres.open(Mode::Read, "read which jobs are parked").await?;
    let rows: Vec<Found> = session.all(Statement::fixed(PARKED).bind(document(&asked))).await?;
    session.commit().await?;
    let mut found = vec![None; jobs.len()];
    for (position, status, updated_at, xmin, why, times, until) in rows {
        let Some((slot, (source, id))) =
            usize::try_from(position).ok().and_then(|at| Some((found.get_mut(at)?, &jobs[at])))
        else {
            continue;
        };
        *slot = Some(Parked {
            source: source.clone(),
            token: RowToken { id: id.clone(), status, updated_at, xmin },
            why,
            times: u32::try_from(times).unwrap_or(u32::MAX),
            until: instant(until).unwrap_or(Timestamp::MIN),
        });
    }
    Ok(found)
}

pub(super) async fn park(postgres: &Postgres, parked: &[Parked], fence: &Fence) -> Result<(), StoreFailure> {
    if parked.is_empty() {
        return Ok(());
    }
    let row = |Parked { source, token, why, times, until }: &'_ Parked| {
        let SourceName { domain, source } = source;
        let RowToken { id, status, updated_at, xmin } = token;
        let until = rfc3339(*until);
        serde_json::to_value(Row {
            domain,
            source,
            job_id: id,
            status,
            updated_at,
            xmin_text: xmin,
            why,
            times: *times,
            until,
        })
        .expect("our own rows have text keys and finite numbers")
    };
    let rows: Vec<serde_json::Value> = parked.iter().map(row).collect();
    let mut session = fence::open(postgres, fence, "park rows").await?;
    session.execute(Statement::fixed(PARK).bind(document(&rows))).await?;
    session.commit().await
}

pub(super) async fn release(
    postgres: &Postgres,
    source: &SourceName,
    job_id: Option<&str>,
    who: &str,
) -> Result<u64, StoreFailure> {
    let mut session = postgres.open(Mode::Write, "release parked rows").await?;
    let statement =
        Statement::fixed(RELEASE).bind(&source.domain).bind(&source.source).bind(job_id).bind(who);
    let released = session.execute(statement).await?;
    session.commit().await?;
    Ok(released)
}

impl Postgres {
    /// The rows that wait now because PostgreSQL rejects their change, source by source.
    ///
    /// # Errors
    /// If they could not be read.
    pub async fn parked_now(&self) -> Result<Vec<ParkedCount>, StoreFailure> {
        type Found = (String, String, i64, String, i64, String);
        let mut session = self.open(Mode::Read, "count parked rows").await?;
        let rows: Vec<Found> = session.all(Statement::fixed(PARKED_NOW)).await?;
        session.commit().await?;
        let count = |(domain, source, rows, example, until, why): Found| ParkedCount {
            source: SourceName { domain, source },
            rows: rows.unsigned_abs(),
            example,
            why,
            until: instant(until).unwrap_or(Timestamp::MIN),
        };
        Ok(rows.into_iter().map(count).collect())
    }
}
