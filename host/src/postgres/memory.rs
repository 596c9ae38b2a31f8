//! What is remembered of queues between passes, by Redis's key prefix: epochs, corroboration, what operators accepted.
//!
//! Many rows travel as one JSON document and are taken apart in SQL: one parameter, whatever their number.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use salvage_core::epoch::QueueMemory;
use salvage_core::lease::{Fence, GLOBAL};
use salvage_core::source::SourceName;
use serde::Serialize;

use super::candidates::{instant, rfc3339};
use super::ledger::document;
use super::session::{Mode, Statement};
use super::{Postgres, fence};
use crate::ports::StoreFailure;

const READ: &str = "SELECT q.queue, q.nonce, q.nonce_next, q.id_counter, q.ever_had_jobs, q.run_id, q.replid, \
    q.evicted_keys, round(extract(epoch FROM q.epoch_began) * 1000000)::bigint, \
    round(extract(epoch FROM q.accepted_at) * 1000000)::bigint, round(extract(epoch FROM q.lost_at) * 1000000)::bigint \
    FROM salvage.queue_memories AS q \
    WHERE q.scope = $1 AND q.prefix = $2 AND ($3::text[] IS NULL OR q.queue = ANY($3::text[]))";

/// Under a fence, so that a pass and an operator who accepts cannot lose each other's nonce.
macro_rules! remember {
    (into $table:literal by ($($key:literal),*) as ($($value:literal),*)) => {
        concat!(
            "INSERT INTO salvage.", $table, " AS q (", $($key, ", ",)* "nonce, nonce_next, id_counter, ever_had_jobs, \
            run_id, replid, evicted_keys, epoch_began, accepted_at, lost_at) \
            SELECT ", $($value, ", ",)* "m.nonce, m.nonce_next, m.id_counter, m.ever_had_jobs, m.run_id, m.replid, \
            m.evicted_keys, m.epoch_began, m.accepted_at, m.lost_at \
            FROM jsonb_to_recordset($2::text::jsonb) AS m(queue text, nonce text, nonce_next text, id_counter bigint, \
            ever_had_jobs boolean, run_id text, replid text, evicted_keys bigint, epoch_began timestamptz, \
            accepted_at timestamptz, lost_at timestamptz) ORDER BY m.queue \
            ON CONFLICT (", remember!(@list $($key),*), ") DO UPDATE SET nonce = EXCLUDED.nonce, \
            nonce_next = EXCLUDED.nonce_next, id_counter = EXCLUDED.id_counter, \
            ever_had_jobs = EXCLUDED.ever_had_jobs, run_id = EXCLUDED.run_id, replid = EXCLUDED.replid, \
            evicted_keys = EXCLUDED.evicted_keys, epoch_began = EXCLUDED.epoch_began, \
            accepted_at = EXCLUDED.accepted_at, lost_at = EXCLUDED.lost_at"
        )
    };
    (@list $first:literal $(, $more:literal)*) => { concat!($first $(, ", ", $more)*) };
}

const REMEMBER: &str = remember!(into "queues" by ("prefix", "queue") as ("$1", "m.queue"));

const REMEMBER_FOR_DOMAIN: &str =
    remember!(into "domain_queues" by ("domain", "prefix", "queue") as ("$3", "$1", "m.queue"));

const CORROBORATED: &str = "SELECT DISTINCT c.domain, c.source FROM salvage.corroborations AS c \
    JOIN salvage.queue_memories AS q ON q.prefix = c.prefix AND q.queue = c.queue \
    WHERE q.scope = $1 AND c.prefix = $2 AND c.seen_at >= q.epoch_began";

const CORROBORATE: &str = "INSERT INTO salvage.corroborations AS c (prefix, domain, source, queue, seen_at) \
    SELECT DISTINCT $1, s.domain, s.source, s.queue, $3::text::timestamptz \
    FROM jsonb_to_recordset($2::text::jsonb) AS s(domain text, source text, queue text) \
    ORDER BY 2, 3, 4 \
    ON CONFLICT (prefix, domain, source, queue) DO UPDATE SET seen_at = GREATEST(c.seen_at, EXCLUDED.seen_at)";

const ACCEPTED_BY: &str = "INSERT INTO salvage.accepted (prefix, queue, who, at) \
    VALUES ($1, $2, $3, $4::text::timestamptz)";

const ACCEPTED_ENTRIES: &str =
    "SELECT e.queue, e.entry_id FROM salvage.accepted_entries AS e WHERE e.prefix = $1";

const ACCEPT_ENTRY: &str = "INSERT INTO salvage.accepted_entries AS e (prefix, queue, entry_id, who, at) \
    VALUES ($1, $2, $3, $4, $5::text::timestamptz) \
    ON CONFLICT (prefix, queue, entry_id) DO UPDATE SET who = EXCLUDED.who, at = EXCLUDED.at";

pub(super) async fn of_queues(
    postgres: &Postgres,
    scope: &str,
    queues: &BTreeSet<String>,
) -> Result<BTreeMap<String, QueueMemory>, StoreFailure> {
    read(postgres, scope, Some(queues.iter().map(String::as_str).collect())).await
}

pub(super) async fn of_all_queues(
    postgres: &Postgres,
    scope: &str,
) -> Result<BTreeMap<String, QueueMemory>, StoreFailure> {
    read(postgres, scope, None).await
}

/// A row as it comes.
type Row = (
    String,
    Option<String>,
    Option<String>,
    Option<i64>,
    bool,
    String,
    String,
    i64,
    i64,
    Option<i64>,
    Option<i64>,
);

async fn read(
    postgres: &Postgres,
    scope: &str,
    queues: Option<Vec<&str>>,
) -> Result<BTreeMap<String, QueueMemory>, StoreFailure> {
    let mut session = postgres.open(Mode::Read, "read what is remembered of the queues").await?;
    let statement = Statement::fixed(READ).bind(scope).bind(&postgres.prefix).bind(queues);
    let rows: Vec<Row> = session.all(statement).await?;
    session.commit().await?;
    Ok(rows.into_iter().map(memory).collect())
}

fn memory(row: Row) -> (String, QueueMemory) {
    let (
        queue,
        nonce,
        nonce_next,
        id_counter,
        ever_had_jobs,
        run_id,
        replid,
        evicted_keys,
        began,
        accepted,
        lost,
    ) = row;
    let memory = QueueMemory {
        nonce,
        nonce_next,
        id_counter: id_counter.map(i64::unsigned_abs),
        ever_had_jobs,
        run_id,
        replid,
        evicted_keys: evicted_keys.unsigned_abs(),
        // Written by us, so it is a time; if somebody made it none, an epoch that never began is the safe reading.
        epoch_began: instant(began).unwrap_or(Timestamp::MAX),
        accepted_at: accepted.and_then(instant),
        lost_at: lost.and_then(instant),
    };
    (queue, memory)
}

/// A memory as it is written. Redis's own counters are signed, so none is beyond `bigint`.
#[derive(Serialize)]
struct Remembered<'a> {
    queue: &'a str,
    nonce: Option<&'a str>,
    nonce_next: Option<&'a str>,
    id_counter: Option<i64>,
    ever_had_jobs: bool,
    run_id: &'a str,
    replid: &'a str,
    evicted_keys: i64,
    epoch_began: String,
    accepted_at: Option<String>,
    lost_at: Option<String>,
}

impl<'a> Remembered<'a> {
    fn new((queue, memory): (&'a String, &'a QueueMemory)) -> Self {
        Self {
            queue,
            nonce: memory.nonce.as_deref(),
            nonce_next: memory.nonce_next.as_deref(),
            id_counter: memory.id_counter.map(signed),
            ever_had_jobs: memory.ever_had_jobs,
            run_id: &memory.run_id,
            replid: &memory.replid,
            evicted_keys: signed(memory.evicted_keys),
            epoch_began: rfc3339(memory.epoch_began),
            accepted_at: memory.accepted_at.map(rfc3339),
            lost_at: memory.lost_at.map(rfc3339),
        }
    }
}

fn signed(count: u64) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}

pub(super) async fn remember(
    postgres: &Postgres,
    memories: &BTreeMap<String, QueueMemory>,
    fence: &Fence,
) -> Result<(), StoreFailure> {
    let mut session = fence::open(postgres, fence, "remember the queues").await?;
    let rows: Vec<Remembered<'_>> = memories.iter().map(Remembered::new).collect();
    let statement = |text| Statement::fixed(text).bind(&postgres.prefix).bind(document(&rows));
    let statement = match fence.scope.as_str() {
        GLOBAL => statement(REMEMBER),
        domain => statement(REMEMBER_FOR_DOMAIN).bind(domain),
    };
    session.execute(statement).await?;
    session.commit().await
}

pub(super) async fn corroborated(
    postgres: &Postgres,
    scope: &str,
) -> Result<BTreeSet<SourceName>, StoreFailure> {
    let mut session = postgres.open(Mode::Read, "read which sources are corroborated").await?;
    let statement = Statement::fixed(CORROBORATED).bind(scope).bind(&postgres.prefix);
    let rows: Vec<(String, String)> = session.all(statement).await?;
    session.commit().await?;
    Ok(rows.into_iter().map(|(domain, source)| SourceName { domain, source }).collect())
}

pub(super) async fn corroborate(
    postgres: &Postgres,
    seen: &[(SourceName, String)],
    now: Timestamp,
) -> Result<(), StoreFailure> {
    #[derive(Serialize)]
    struct Seen<'a> {
        domain: &'a str,
        source: &'a str,
        queue: &'a str,
    }
    if seen.is_empty() {
        return Ok(());
    }
    let rows: Vec<Seen<'_>> =
        seen.iter().map(|(SourceName { domain, source }, queue)| Seen { domain, source, queue }).collect();
    let mut session = postgres.open(Mode::Write, "corroborate the sources").await?;
    let statement = Statement::fixed(CORROBORATE).bind(&postgres.prefix).bind(document(&rows));
    session.execute(statement.bind(rfc3339(now))).await?;
    session.commit().await
}

pub(super) async fn accepted_by(
    postgres: &Postgres,
    queue: &str,
    who: &str,
    now: Timestamp,
) -> Result<(), StoreFailure> {
    let mut session = postgres.open(Mode::Write, "record who accepted a queue").await?;
    let statement = Statement::fixed(ACCEPTED_BY).bind(&postgres.prefix).bind(queue).bind(who);
    session.execute(statement.bind(rfc3339(now))).await?;
    session.commit().await
}

pub(super) async fn accepted_entries(
    postgres: &Postgres,
) -> Result<BTreeSet<(String, String)>, StoreFailure> {
    let mut session = postgres.open(Mode::Read, "read the accepted entries").await?;
    let rows: Vec<(String, String)> =
        session.all(Statement::fixed(ACCEPTED_ENTRIES).bind(&postgres.prefix)).await?;
    session.commit().await?;
    Ok(rows.into_iter().collect())
}

pub(super) async fn accept_entry(
    postgres: &Postgres,
    queue: &str,
    entry_id: &str,
    who: &str,
    now: Timestamp,
) -> Result<(), StoreFailure> {
    let mut session = postgres.open(Mode::Write, "accept an entry").await?;
    let statement = Statement::fixed(ACCEPT_ENTRY).bind(&postgres.prefix).bind(queue).bind(entry_id);
    session.execute(statement.bind(who).bind(rfc3339(now))).await?;
    session.commit().await
}
