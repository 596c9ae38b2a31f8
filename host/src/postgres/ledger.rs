//! Salvage's own record: passes, intents, and the story of every orphan. No payload is ever in it;
//! what is kept to be asked again, where the operator said so, is `captures`.
//!
//! Many rows travel as one JSON document and are taken apart in SQL: one parameter, whatever their number.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use jiff::Timestamp;
use salvage_core::alarm::Alarm;
use salvage_core::lease::Fence;
use salvage_core::ledger::{ActRecord, ActsAsked, Entry, Intent, PassRecord, StoryLine};
use salvage_core::report::SourceCounts;
use salvage_core::source::SourceName;
use serde::Serialize;
use serde_json::Value;
use sha2::{Digest, Sha256};

use super::candidates::{instant, rfc3339};
use super::inputs::hex;
use super::session::{Mode, Session, Statement};
use super::{Postgres, fence};
use crate::ports::StoreFailure;

const BEGAN: &str = "INSERT INTO salvage.passes (id, scope, generation, started_at) \
    VALUES ($1, $2, $3, $4::text::timestamptz)";

const ENDED: &str =
    "UPDATE salvage.passes AS p SET duration_ms = $2, sources = $3::text::jsonb WHERE p.id = $1";

const ALARM: &str = "UPDATE salvage.passes AS p SET alarms = p.alarms || $2::text::jsonb WHERE p.id = $1";

/// What is older than 30 days, at most 5,000 rows at once: more than a pass adds, and little enough to be quick.
const PRUNE: [&str; 5] = [
    "DELETE FROM salvage.ledger WHERE id IN (SELECT l.id FROM salvage.ledger AS l \
     WHERE l.last_at < clock_timestamp() - interval '30 days' ORDER BY l.last_at LIMIT 5000)",
    "DELETE FROM salvage.intents WHERE id IN (SELECT i.id FROM salvage.intents AS i \
     WHERE i.at < clock_timestamp() - interval '30 days' ORDER BY i.at LIMIT 5000)",
    "DELETE FROM salvage.captures WHERE id IN (SELECT c.id FROM salvage.captures AS c \
     WHERE c.at < clock_timestamp() - interval '30 days' ORDER BY c.at LIMIT 5000)",
    "DELETE FROM salvage.passes WHERE id IN (SELECT p.id FROM salvage.passes AS p \
     WHERE p.started_at < clock_timestamp() - interval '30 days' ORDER BY p.started_at LIMIT 5000)",
    // Its time came long ago, and it was not rejected since.
    "DELETE FROM salvage.parked WHERE (domain, source, job_id) IN (SELECT k.domain, k.source, k.job_id \
     FROM salvage.parked AS k WHERE k.until < clock_timestamp() - interval '30 days' ORDER BY k.until LIMIT 5000)",
];

const INTEND: &str = "INSERT INTO salvage.intents (pass_id, generation, domain, source, job_id, is_requeue) \
    SELECT $1, $2, i.domain, i.source, i.job_id, i.is_requeue FROM jsonb_to_recordset($3::text::jsonb) \
    AS i(domain text, source text, job_id text, is_requeue boolean)";

const WITHDRAW: &str = "UPDATE salvage.intents AS i SET withdrawn = true \
    FROM jsonb_to_recordset($2::text::jsonb) AS w(domain text, source text, job_id text, is_requeue boolean) \
    WHERE i.domain = w.domain AND i.source = w.source AND i.job_id = w.job_id AND i.is_requeue = w.is_requeue \
    AND i.pass_id = $1";

const RECOVERIES: &str = "SELECT count(i.id) FROM jsonb_to_recordset($1::text::jsonb) \
    AS j(position bigint, domain text, source text, job_id text) LEFT JOIN salvage.intents AS i \
    ON i.domain = j.domain AND i.source = j.source AND i.job_id = j.job_id \
    AND i.is_requeue AND NOT i.withdrawn AND i.at >= $2::text::timestamptz \
    GROUP BY j.position ORDER BY j.position";

const RECORD: &str = "INSERT INTO salvage.ledger AS l (domain, source, job_id, story, job_type, \"row\", evidence, \
    generation, sighting, sighting_why, inputs_digest, component_digest, decision, decision_reason, outcome, \
    outcome_why, decide_us) \
    SELECT e.domain, e.source, e.job_id, e.story, e.job_type, e.\"row\", e.evidence, e.generation, e.sighting, \
    e.sighting_why, e.inputs_digest, e.component_digest, e.decision, e.decision_reason, e.outcome, e.outcome_why, \
    e.decide_us FROM jsonb_to_recordset($1::text::jsonb) AS e(domain text, source text, job_id text, story text, \
    job_type text, \"row\" jsonb, evidence jsonb, generation bigint, sighting text, sighting_why text, \
    inputs_digest text, component_digest text, decision text, decision_reason text, outcome text, outcome_why text, \
    decide_us bigint) \
    ON CONFLICT (domain, source, job_id, story) DO UPDATE SET times = l.times + 1, last_at = clock_timestamp(), \
    generation = EXCLUDED.generation, evidence = EXCLUDED.evidence, sighting_why = EXCLUDED.sighting_why, \
    inputs_digest = EXCLUDED.inputs_digest, component_digest = EXCLUDED.component_digest, \
    decision_reason = EXCLUDED.decision_reason, outcome_why = EXCLUDED.outcome_why, decide_us = EXCLUDED.decide_us";

const HISTORY: &str = "SELECT p.id, p.scope, p.generation, round(extract(epoch FROM p.started_at) * 1000000)::bigint, \
    p.duration_ms, p.sources, p.alarms FROM salvage.passes AS p ORDER BY p.started_at DESC LIMIT $1";

/// By the index on `last_at`, from its end. The story of an act is told once, for its row token never comes again.
const ACTS: &str = "SELECT round(extract(epoch FROM l.last_at) * 1000000)::bigint, l.generation, l.domain, l.source, \
    l.job_id, l.job_type, l.\"row\" ->> 'status', l.decision, l.decision_reason, l.outcome, l.outcome_why \
    FROM salvage.ledger AS l WHERE l.outcome IN ('applied', 'indeterminate') \
    AND ($2::text IS NULL OR (l.domain = $2 AND l.source = $3)) \
    AND l.last_at >= now() - $4::bigint * interval '1 second' \
    ORDER BY l.last_at DESC, l.id DESC LIMIT $1";

/// Of the newest passes, and of the stories: there one step into the index for each source, however many stories it has.
const TOLD_SOURCES: &str = "WITH RECURSIVE told AS ( \
    (SELECT l.domain, l.source FROM salvage.ledger AS l ORDER BY l.domain, l.source LIMIT 1) \
    UNION ALL SELECT n.domain, n.source FROM told AS t CROSS JOIN LATERAL (SELECT l.domain, l.source \
    FROM salvage.ledger AS l WHERE (l.domain, l.source) > (t.domain, t.source) ORDER BY l.domain, l.source LIMIT 1) AS n) \
    SELECT t.domain, t.source FROM told AS t UNION SELECT s ->> 'domain', s ->> 'source' \
    FROM (SELECT p.sources FROM salvage.passes AS p WHERE jsonb_typeof(p.sources) = 'array' ORDER BY p.started_at DESC LIMIT 100) AS p, \
    jsonb_array_elements(p.sources) AS s";

const STORY: &str = "SELECT round(extract(epoch FROM l.first_at) * 1000000)::bigint, \
    round(extract(epoch FROM l.last_at) * 1000000)::bigint, l.times, l.generation, l.\"row\", l.evidence, l.sighting, \
    l.sighting_why, l.decision, l.decision_reason, l.outcome, l.outcome_why, l.component_digest \
    FROM salvage.ledger AS l WHERE l.domain = $1 AND l.source = $2 AND l.job_id = $3 ORDER BY l.first_at, l.id";

/// Rows as one JSON document that PostgreSQL can read: its text holds no NUL.
pub(super) fn document(rows: &impl Serialize) -> String {
    let mut value = serde_json::to_value(rows).expect("our own rows have text keys and finite numbers");
    replace_nul(&mut value);
    value.to_string()
}

fn replace_nul(value: &mut Value) {
    match value {
        Value::String(text) if text.contains('\0') => *text = text.replace('\0', "\u{fffd}"),
        Value::Array(items) => items.iter_mut().for_each(replace_nul),
        Value::Object(items) => items.values_mut().for_each(replace_nul),
        _ => {}
    }
}

pub(super) async fn pass_began(
    postgres: &Postgres,
    pass_id: &str,
    fence: &Fence,
    started_at: Timestamp,
) -> Result<(), StoreFailure> {
    let mut session = postgres.open(Mode::Write, "record that a pass began").await?;
    let statement = Statement::fixed(BEGAN).bind(pass_id).bind(&fence.scope).bind(signed(fence.generation));
    session.execute(statement.bind(rfc3339(started_at))).await?;
    session.commit().await
}

pub(super) async fn pass_ended(
    postgres: &Postgres,
    pass_id: &str,
    duration: Duration,
    sources: &[SourceCounts],
) -> Result<(), StoreFailure> {
    let mut session = postgres.open(Mode::Write, "record how a pass ended").await?;
    let duration_ms = i64::try_from(duration.as_millis()).unwrap_or(i64::MAX);
    let statement = Statement::fixed(ENDED).bind(pass_id).bind(duration_ms).bind(document(&sources));
    session.execute(statement).await?;
    session.commit().await?;
    if let Err(error) = prune(postgres).await {
        // The pass is recorded; the next one prunes what this one could not.
        tracing::warn!(error = %error, "the ledger was not pruned: {error}");
    }
    Ok(())
}

pub(super) async fn alarm(postgres: &Postgres, pass_id: &str, alarm: &Alarm) -> Result<(), StoreFailure> {
    let mut session = postgres.open(Mode::Write, "record an alarm").await?;
    session.execute(Statement::fixed(ALARM).bind(pass_id).bind(document(&[alarm]))).await?;
    session.commit().await
}

async fn prune(postgres: &Postgres) -> Result<(), StoreFailure> {
    for statement in PRUNE {
        let mut session = postgres.open(Mode::Write, "prune the ledger").await?;
        session.execute(Statement::fixed(statement)).await?;
        session.commit().await?;
    }
    Ok(())
}

pub(super) async fn intend(
    postgres: &Postgres,
    pass_id: &str,
    fence: &Fence,
    intents: &[Intent],
) -> Result<(), StoreFailure> {
    let mut session = fence::open(postgres, fence, "record what is about to be done").await?;
    let statement = Statement::fixed(INTEND).bind(pass_id).bind(signed(fence.generation));
    session.execute(statement.bind(intent_rows(intents))).await?;
    session.commit().await
}

pub(super) async fn withdraw(
    postgres: &Postgres,
    pass_id: &str,
    intents: &[Intent],
) -> Result<(), StoreFailure> {
    if intents.is_empty() {
        return Ok(());
    }
    let mut session = postgres.open(Mode::Write, "withdraw intents").await?;
    session.execute(Statement::fixed(WITHDRAW).bind(pass_id).bind(intent_rows(intents))).await?;
    session.commit().await
}

fn intent_rows(intents: &[Intent]) -> String {
    #[derive(Serialize)]
    struct Row<'a> {
        domain: &'a str,
        source: &'a str,
        job_id: &'a str,
        is_requeue: bool,
    }
    let rows: Vec<Row<'_>> = intents
        .iter()
        .map(|Intent { source: SourceName { domain, source }, job_id, is_requeue }| Row {
            domain,
            source,
            job_id,
            is_requeue: *is_requeue,
        })
        .collect();
    document(&rows)
}

pub(super) async fn recoveries(
    postgres: &Postgres,
    jobs: &[(SourceName, String)],
    since: Timestamp,
) -> Result<Vec<u32>, StoreFailure> {
    #[derive(Serialize)]
    struct Row<'a> {
        position: usize,
        domain: &'a str,
        source: &'a str,
        job_id: &'a str,
    }
    if jobs.is_empty() {
        return Ok(Vec::new());
    }
    let attempted = "count recoveries";
    let rows: Vec<Row<'_>> = jobs
        .iter()
        .enumerate()
        .map(|(position, (SourceName { domain, source }, job_id))| Row { position, domain, source, job_id })
        .collect();
    let mut session = postgres.open(Mode::Read, attempted).await?;
    let statement = Statement::fixed(RECOVERIES).bind(document(&rows)).bind(rfc3339(since));
    let counts: Vec<(i64,)> = session.all(statement).await?;
    session.commit().await?;
    if counts.len() != jobs.len() {
        let detail = format!("{} counts for {} jobs", counts.len(), jobs.len());
        return Err(StoreFailure::Unexpected { attempted: attempted.to_owned(), detail });
    }
    Ok(counts.into_iter().map(|(count,)| u32::try_from(count).unwrap_or(u32::MAX)).collect())
}

/// An entry as it is written.
#[derive(Serialize)]
struct Row<'a> {
    domain: &'a str,
    source: &'a str,
    job_id: &'a str,
    story: String,
    job_type: &'a str,
    row: &'a Value,
    evidence: Value,
    generation: i64,
    sighting: &'a str,
    sighting_why: Option<&'a str>,
    inputs_digest: Option<&'a str>,
    component_digest: Option<&'a str>,
    decision: &'a str,
    decision_reason: Option<&'a str>,
    outcome: Option<&'a str>,
    outcome_why: Option<&'a str>,
    decide_us: Option<i64>,
}

impl<'a> Row<'a> {
    fn new(entry: &'a Entry) -> Self {
        Self {
            domain: &entry.source.domain,
            source: &entry.source.source,
            job_id: &entry.job_id,
            story: story_digest(entry),
            job_type: &entry.job_type,
            row: &entry.row,
            evidence: serde_json::to_value(&entry.evidence)
                .expect("evidence has text keys and finite numbers"),
            generation: signed(entry.evidence.generation),
            sighting: &entry.sighting,
            sighting_why: entry.sighting_why.as_deref(),
            inputs_digest: entry.inputs_digest.as_deref(),
            component_digest: entry.component_digest.as_deref(),
            decision: &entry.decision,
            decision_reason: entry.decision_reason.as_deref(),
            outcome: entry.outcome.as_deref(),
            outcome_why: entry.outcome_why.as_deref(),
            decide_us: entry.decide_us.map(signed),
        }
    }
}

/// What makes a story another one: row token, sighting, decision and outcome. Not their reasons, which may carry an age
/// or the name of one entry among many and change with every pass; the last pass's are kept.
fn story_digest(entry: &Entry) -> String {
    // A JSON array keeps its parts apart; serde_json's objects are ordered by key.
    let parts = serde_json::json!([entry.row, entry.sighting, entry.decision, entry.outcome]);
    hex(&Sha256::digest(parts.to_string()))
}

pub(super) async fn record(
    postgres: &Postgres,
    entries: &[Entry],
    fence: &Fence,
) -> Result<(), StoreFailure> {
    if entries.is_empty() {
        return Ok(());
    }
    let mut session = fence::open(postgres, fence, "record the ledger").await?;
    write(&mut session, entries).await?;
    session.commit().await
}

/// Writes entries in the transaction of whoever has one open: an act records itself or is not.
///
/// Always in the order of the unique key, so that two writers never wait for each other in a circle; one entry of each
/// story, because one statement may update a row only once.
pub(super) async fn write(session: &mut Session, entries: &[Entry]) -> Result<(), StoreFailure> {
    let keyed = |row: Row<'_>| {
        let key = [row.domain, row.source, row.job_id, &row.story].map(str::to_owned);
        (key, serde_json::to_value(row).expect("our own rows have text keys and finite numbers"))
    };
    let rows: BTreeMap<[String; 4], Value> = entries.iter().map(Row::new).map(keyed).collect();
    let rows: Vec<Value> = rows.into_values().collect();
    session.execute(Statement::fixed(RECORD).bind(document(&rows))).await?;
    Ok(())
}

pub(super) async fn history(postgres: &Postgres, limit: u32) -> Result<Vec<PassRecord>, StoreFailure> {
    type Row = (String, String, i64, i64, Option<i64>, Option<Value>, Value);
    let mut session = postgres.open(Mode::Read, "read the last passes").await?;
    let rows: Vec<Row> = session.all(Statement::fixed(HISTORY).bind(i64::from(limit))).await?;
    session.commit().await?;
    let record = |(id, scope, generation, started_at, duration_ms, sources, alarms): Row| PassRecord {
        id,
        scope,
        generation: generation.unsigned_abs(),
        started_at: instant(started_at).unwrap_or(Timestamp::UNIX_EPOCH),
        duration_ms: duration_ms.map(i64::unsigned_abs),
        sources: sources.unwrap_or(Value::Null),
        // Written by us; if somebody made them something else, the pass is shown all the same.
        alarms: serde_json::from_value(alarms).unwrap_or_default(),
    };
    Ok(rows.into_iter().map(record).collect())
}

/// Longer than anything is kept.
const EVER: Duration = Duration::from_secs(100 * 365 * 24 * 3600);

pub(super) async fn acts(postgres: &Postgres, asked: &ActsAsked) -> Result<Vec<ActRecord>, StoreFailure> {
    type Row = (
        i64,
        i64,
        String,
        String,
        String,
        String,
        Option<String>,
        String,
        Option<String>,
        String,
        Option<String>,
    );
    let mut session = postgres.open(Mode::Read, "read what was put back or failed").await?;
    let (domain, source) = asked.source.as_ref().map(|name| (&*name.domain, &*name.source)).unzip();
    let since_seconds = i64::try_from(asked.since.unwrap_or(EVER).as_secs()).unwrap_or(i64::MAX);
    let statement = Statement::fixed(ACTS).bind(i64::from(asked.limit)).bind(domain).bind(source);
    let rows: Vec<Row> = session.all(statement.bind(since_seconds)).await?;
    session.commit().await?;
    let record = |row: Row| {
        let (at, generation, domain, source, id, job_type, status, decision, reason, outcome, why) = row;
        ActRecord {
            at: instant(at).unwrap_or(Timestamp::UNIX_EPOCH),
            generation: generation.unsigned_abs(),
            domain,
            source,
            id,
            job_type,
            status,
            decision,
            reason,
            outcome,
            why,
        }
    };
    Ok(rows.into_iter().map(record).collect())
}

pub(super) async fn told_sources(postgres: &Postgres) -> Result<BTreeSet<SourceName>, StoreFailure> {
    let mut session = postgres.open(Mode::Read, "read which sources are recorded").await?;
    let rows: Vec<(String, String)> = session.all(Statement::fixed(TOLD_SOURCES)).await?;
    session.commit().await?;
    Ok(rows.into_iter().map(|(domain, source)| SourceName { domain, source }).collect())
}

/// A line of a story as it comes.
type Line = (
    i64,
    i64,
    i64,
    i64,
    Value,
    Value,
    String,
    Option<String>,
    String,
    Option<String>,
    Option<String>,
    Option<String>,
    Option<String>,
);

pub(super) async fn story(
    postgres: &Postgres,
    source: &SourceName,
    job_id: &str,
) -> Result<Vec<StoryLine>, StoreFailure> {
    let mut session = postgres.open(Mode::Read, format!("read the story of a job of {source}")).await?;
    let statement = Statement::fixed(STORY).bind(&source.domain).bind(&source.source).bind(job_id);
    let rows: Vec<Line> = session.all(statement).await?;
    session.commit().await?;
    Ok(rows.into_iter().map(line).collect())
}

fn line(row: Line) -> StoryLine {
    let (
        first,
        last,
        times,
        generation,
        row,
        evidence,
        sighting,
        sighting_why,
        decision,
        reason,
        outcome,
        why,
        digest,
    ) = row;
    StoryLine {
        first_at: instant(first).unwrap_or(Timestamp::UNIX_EPOCH),
        last_at: instant(last).unwrap_or(Timestamp::UNIX_EPOCH),
        times: times.unsigned_abs(),
        generation: generation.unsigned_abs(),
        row,
        evidence,
        sighting,
        sighting_why,
        decision,
        decision_reason: reason,
        outcome,
        outcome_why: why,
        component_digest: digest,
    }
}

fn signed(count: u64) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use salvage_core::ledger::Evidence;

    fn entry() -> Entry {
        Entry {
            source: SourceName { domain: "slides".into(), source: "generation".into() },
            job_id: "a".into(),
            job_type: "OUTLINE".into(),
            row: serde_json::json!({"status": "QUEUED", "updatedAt": "x", "xmin": "7"}),
            evidence: Evidence::default(),
            sighting: "absent".into(),
            sighting_why: None,
            inputs_digest: None,
            component_digest: None,
            decision: "hold".into(),
            decision_reason: Some("because".into()),
            outcome: None,
            outcome_why: None,
            decide_us: Some(5),
        }
    }

    #[test]
    fn a_story_is_another_one_by_row_sighting_decision_or_outcome_and_by_nothing_else() {
        let same = [
            Entry { decision_reason: Some("finished 40 ms ago".into()), ..entry() },
            Entry { evidence: Evidence { generation: 9, ..Evidence::default() }, ..entry() },
            Entry { decide_us: None, ..entry() },
        ];
        let other = [
            Entry { row: serde_json::json!({"status": "QUEUED", "updatedAt": "x", "xmin": "8"}), ..entry() },
            Entry { sighting: "unknown".into(), ..entry() },
            Entry { decision: "fail".into(), ..entry() },
            Entry { outcome: Some("gone".into()), ..entry() },
        ];
        assert!(same.iter().all(|one| story_digest(one) == story_digest(&entry())));
        assert!(other.iter().all(|one| story_digest(one) != story_digest(&entry())));
    }

    #[test]
    fn a_document_holds_no_nul_and_keeps_what_only_looks_like_one() {
        assert_eq!(document(&["a\0b"]), "[\"a\u{fffd}b\"]");
        assert_eq!(document(&["\\u0000"]), "[\"\\\\u0000\"]");
    }
}
