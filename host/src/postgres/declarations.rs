//! What confirms each source's declaration, and which names operators called somebody else's.

use std::collections::BTreeSet;

use jiff::Timestamp;
use salvage_core::candidate::LiveStatus;
use salvage_core::control::{Control, Figures};
use salvage_core::declaration::Declared;
use salvage_core::lease::Fence;
use serde::Serialize;

use super::candidates::{instant, rfc3339};
use super::ledger::document;
use super::session::{Mode, Statement};
use super::{Postgres, fence};
use crate::ports::{Acceptance, Confirmation, Declaration, StoreFailure, Word};

/// A declaration's digest is made here and nowhere else.
macro_rules! asked {
    () => {
        "(SELECT a.place, a.domain, a.source, encode(sha256(convert_to(a.declaration, 'UTF8')), 'hex') AS digest \
         FROM jsonb_to_recordset($2::text::jsonb) AS a(place bigint, domain text, source text, declaration text)) AS a"
    };
}

const READ: &str = concat!(
    "SELECT a.place, d.confirmed_at IS NOT NULL, d.accepted_queues, d.vouched_at IS NOT NULL FROM ",
    asked!(),
    " JOIN salvage.declarations AS d ON d.prefix = $1 AND d.domain = a.domain AND d.source = a.source \
     AND d.digest = a.digest"
);

const READ_FAILED: &str = concat!(
    "SELECT a.place, c.job_type, c.status, c.by_id, c.by_payload, c.left_over, c.missing FROM ",
    asked!(),
    " JOIN salvage.failed_controls AS c ON c.prefix = $1 AND c.domain = a.domain AND c.source = a.source \
     AND c.digest = a.digest ORDER BY c.job_type, c.status"
);

const CONFIRM: &str = concat!(
    "INSERT INTO salvage.declarations AS d (prefix, domain, source, digest, confirmed_at) \
     SELECT $1, a.domain, a.source, a.digest, $3::text::timestamptz FROM ",
    asked!(),
    " ORDER BY 2, 3, 4 ON CONFLICT (prefix, domain, source, digest) DO UPDATE \
     SET confirmed_at = coalesce(d.confirmed_at, EXCLUDED.confirmed_at)"
);

const PASSED: &str = concat!(
    "DELETE FROM salvage.failed_controls AS c USING ",
    asked!(),
    " WHERE c.prefix = $1 AND c.domain = a.domain AND c.source = a.source AND c.digest = a.digest \
     AND c.job_type = $3 AND c.status = $4"
);

const FAILED: &str = concat!(
    "INSERT INTO salvage.failed_controls AS c (prefix, domain, source, digest, job_type, status, by_id, by_payload, \
     left_over, missing, at) SELECT $1, a.domain, a.source, a.digest, $3, $4, $5, $6, $7, $8, $9::text::timestamptz FROM ",
    asked!(),
    " ON CONFLICT (prefix, domain, source, digest, job_type, status) DO UPDATE SET by_id = EXCLUDED.by_id, \
     by_payload = EXCLUDED.by_payload, left_over = EXCLUDED.left_over, missing = EXCLUDED.missing, at = EXCLUDED.at"
);

const ACCEPT_QUEUES: &str = concat!(
    "INSERT INTO salvage.declarations AS d (prefix, domain, source, digest, accepted_queues) \
     SELECT $1, a.domain, a.source, a.digest, $3::text[] FROM ",
    asked!(),
    " ON CONFLICT (prefix, domain, source, digest) DO UPDATE SET accepted_queues = \
     (SELECT array_agg(DISTINCT q ORDER BY q) FROM unnest(d.accepted_queues || EXCLUDED.accepted_queues) AS q)"
);

const VOUCH: &str = concat!(
    "INSERT INTO salvage.declarations AS d (prefix, domain, source, digest, vouched_by, vouched_at) \
     SELECT $1, a.domain, a.source, a.digest, $3, $4::text::timestamptz FROM ",
    asked!(),
    " ON CONFLICT (prefix, domain, source, digest) DO UPDATE SET vouched_by = EXCLUDED.vouched_by, \
     vouched_at = EXCLUDED.vouched_at"
);

const NAMES: &str = "SELECT n.queue, n.name FROM salvage.foreign_names AS n WHERE n.prefix = $1";

const ACCEPT_NAME: &str = "INSERT INTO salvage.foreign_names AS n (prefix, queue, name, who, at) \
    VALUES ($1, $2, $3, $4, $5::text::timestamptz) \
    ON CONFLICT (prefix, queue, name) DO UPDATE SET who = EXCLUDED.who, at = EXCLUDED.at";

const END_NAME: &str =
    "DELETE FROM salvage.foreign_names AS n WHERE n.prefix = $1 AND n.queue = $2 AND n.name = $3";

/// Everything that operators said and that is in force, the newest first.
const LIST: &str = "SELECT l.kind, l.words, l.who, round(extract(epoch FROM l.at) * 1000000)::bigint FROM ( \
    SELECT 'queue' AS kind, ARRAY[q.queue] AS words, \
        (SELECT a.who FROM salvage.accepted AS a WHERE a.prefix = q.prefix AND a.queue = q.queue \
         ORDER BY a.at DESC LIMIT 1) AS who, max(q.accepted_at) AS at \
    FROM salvage.queue_memories AS q WHERE q.prefix = $1 AND q.accepted_at IS NOT NULL GROUP BY q.prefix, q.queue \
    UNION ALL SELECT 'entry', ARRAY[e.queue, e.entry_id], e.who, e.at FROM salvage.accepted_entries AS e WHERE e.prefix = $1 \
    UNION ALL SELECT 'foreign', ARRAY[n.queue, n.name], n.who, n.at FROM salvage.foreign_names AS n WHERE n.prefix = $1 \
    UNION ALL SELECT 'declaration', ARRAY[d.domain || '/' || d.source, left(d.digest, 12)], d.vouched_by, d.vouched_at \
    FROM salvage.declarations AS d WHERE d.prefix = $1 AND d.vouched_at IS NOT NULL \
    ) AS l ORDER BY l.at DESC, l.kind, l.words";

const REVOKE_QUEUE: [&str; 3] = [
    "UPDATE salvage.queues AS q SET accepted_at = NULL WHERE q.prefix = $1 AND q.queue = $2 AND q.accepted_at IS NOT NULL",
    "UPDATE salvage.domain_queues AS q SET accepted_at = NULL \
     WHERE q.prefix = $1 AND q.queue = $2 AND q.accepted_at IS NOT NULL",
    "UPDATE salvage.declarations AS d SET accepted_queues = array_remove(d.accepted_queues, $2) \
     WHERE d.prefix = $1 AND $2 = ANY(d.accepted_queues)",
];

const REVOKE_ENTRY: &str =
    "DELETE FROM salvage.accepted_entries AS e WHERE e.prefix = $1 AND e.queue = $2 AND e.entry_id = $3";

const REVOKE_DECLARATION: &str = "UPDATE salvage.declarations AS d SET vouched_at = NULL, vouched_by = NULL \
    WHERE d.prefix = $1 AND d.domain = $2 AND d.source = $3 AND d.vouched_at IS NOT NULL";

/// Declarations as one document.
fn asked<'a>(declarations: impl IntoIterator<Item = &'a Declaration>) -> String {
    #[derive(Serialize)]
    struct Asked<'a> {
        place: usize,
        domain: &'a str,
        source: &'a str,
        declaration: &'a str,
    }
    let rows = declarations.into_iter().enumerate().map(|(place, of)| Asked {
        place,
        domain: &of.source.domain,
        source: &of.source.source,
        declaration: &of.text,
    });
    document(&rows.collect::<Vec<_>>())
}

const fn word(status: LiveStatus) -> &'static str {
    match status {
        LiveStatus::Queued => "QUEUED",
        LiveStatus::Processing => "PROCESSING",
    }
}

fn signed(count: u64) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}

pub(super) async fn read(
    postgres: &Postgres,
    declarations: &[Declaration],
) -> Result<Vec<Declared>, StoreFailure> {
    type Row = (i64, bool, Vec<String>, bool);
    type FailedRow = (i64, String, String, i64, i64, i64, i64);
    let mut session = postgres.open(Mode::Read, "read what confirms the declarations").await?;
    let statement = |text| Statement::fixed(text).bind(&postgres.prefix).bind(asked(declarations));
    let rows: Vec<Row> = session.all(statement(READ)).await?;
    let failed: Vec<FailedRow> = session.all(statement(READ_FAILED)).await?;
    session.commit().await?;
    let mut found = vec![Declared::default(); declarations.len()];
    let place = |place: i64| usize::try_from(place).unwrap_or(usize::MAX);
    for (at, is_confirmed, accepted_queues, is_vouched_for) in rows {
        if let Some(declared) = found.get_mut(place(at)) {
            let accepted_queues = accepted_queues.into_iter().collect();
            *declared = Declared { is_confirmed, accepted_queues, is_vouched_for, failed: vec![] };
        }
    }
    for (at, job_type, status, by_id, by_payload, left, missing) in failed {
        let status = if status == "QUEUED" { LiveStatus::Queued } else { LiveStatus::Processing };
        let [by_id, by_payload, left, missing] = [by_id, by_payload, left, missing].map(i64::unsigned_abs);
        let figures = Figures { by_id, by_payload, left, missing, unread: 0 };
        if let Some(declared) = found.get_mut(place(at)) {
            declared.failed.push(Control { job_type, status, figures });
        }
    }
    Ok(found)
}

pub(super) async fn confirm(
    postgres: &Postgres,
    confirmations: &[Confirmation],
    now: Timestamp,
    fence: &Fence,
) -> Result<(), StoreFailure> {
    let mut session = fence::open(postgres, fence, "record what confirms the declarations").await?;
    let confirmed: Vec<&Declaration> =
        confirmations.iter().filter(|of| of.is_confirmed).map(|of| &of.declaration).collect();
    if !confirmed.is_empty() {
        let statement = Statement::fixed(CONFIRM).bind(&postgres.prefix).bind(asked(confirmed));
        session.execute(statement.bind(rfc3339(now))).await?;
    }
    for Confirmation { declaration, controls, .. } in confirmations {
        for Control { job_type, status, figures } in controls {
            let statement = |text| {
                let statement = Statement::fixed(text).bind(&postgres.prefix).bind(asked([declaration]));
                statement.bind(job_type).bind(word(*status))
            };
            let Figures { by_id, by_payload, left, missing, .. } = *figures;
            match figures.passed() {
                None => {}
                Some(true) => {
                    session.execute(statement(PASSED)).await?;
                }
                Some(false) => {
                    let statement = statement(FAILED).bind(signed(by_id)).bind(signed(by_payload));
                    let statement = statement.bind(signed(left)).bind(signed(missing)).bind(rfc3339(now));
                    session.execute(statement).await?;
                }
            }
        }
    }
    session.commit().await
}

pub(super) async fn accept(
    postgres: &Postgres,
    declaration: &Declaration,
    queues: &BTreeSet<String>,
) -> Result<(), StoreFailure> {
    let mut session =
        postgres.open(Mode::Write, "record which queues of a declaration were accepted").await?;
    let queues: Vec<&str> = queues.iter().map(String::as_str).collect();
    let statement = Statement::fixed(ACCEPT_QUEUES).bind(&postgres.prefix).bind(asked([declaration]));
    session.execute(statement.bind(queues)).await?;
    session.commit().await
}

pub(super) async fn vouch(
    postgres: &Postgres,
    declaration: &Declaration,
    who: &str,
    now: Timestamp,
) -> Result<(), StoreFailure> {
    let mut session = postgres.open(Mode::Write, "record who vouched for a declaration").await?;
    let statement = Statement::fixed(VOUCH).bind(&postgres.prefix).bind(asked([declaration]));
    session.execute(statement.bind(who).bind(rfc3339(now))).await?;
    session.commit().await
}

pub(super) async fn names(postgres: &Postgres) -> Result<BTreeSet<(String, String)>, StoreFailure> {
    let mut session = postgres.open(Mode::Read, "read the accepted foreign names").await?;
    let rows: Vec<(String, String)> = session.all(Statement::fixed(NAMES).bind(&postgres.prefix)).await?;
    session.commit().await?;
    Ok(rows.into_iter().collect())
}

pub(super) async fn accept_name(
    postgres: &Postgres,
    queue: &str,
    name: &str,
    who: &str,
    now: Timestamp,
) -> Result<(), StoreFailure> {
    let mut session = postgres.open(Mode::Write, "accept a foreign name").await?;
    let statement = Statement::fixed(ACCEPT_NAME).bind(&postgres.prefix).bind(queue).bind(name);
    session.execute(statement.bind(who).bind(rfc3339(now))).await?;
    session.commit().await
}

pub(super) async fn list(postgres: &Postgres) -> Result<Vec<Acceptance>, StoreFailure> {
    type Row = (String, Vec<String>, Option<String>, i64);
    let mut session = postgres.open(Mode::Read, "list what was accepted").await?;
    let rows: Vec<Row> = session.all(Statement::fixed(LIST).bind(&postgres.prefix)).await?;
    session.commit().await?;
    let acceptance = |(kind, words, who, at): Row| {
        let mut words = words.into_iter();
        let mut next = || words.next().unwrap_or_default();
        let word = match kind.as_str() {
            "entry" => Word::Entry { queue: next(), entry_id: next() },
            "foreign" => Word::Foreign { queue: next(), name: next() },
            "declaration" => Word::Declaration { source: next(), digest: next() },
            _ => Word::Queue { queue: next() },
        };
        Some(Acceptance { word, who: who.unwrap_or_default(), at: instant(at)? })
    };
    Ok(rows.into_iter().filter_map(acceptance).collect())
}

/// Returns whether anything was in force.
pub(super) async fn revoke(postgres: &Postgres, word: &Word) -> Result<bool, StoreFailure> {
    let mut session = postgres.open(Mode::Write, "revoke what was accepted").await?;
    let on = |text, words: &[&str]| {
        let statement = Statement::fixed(text).bind(&postgres.prefix);
        words.iter().fold(statement, |statement, word| statement.bind(*word))
    };
    let statements: Vec<Statement> = match word {
        Word::Queue { queue } => REVOKE_QUEUE.iter().map(|text| on(text, &[queue])).collect(),
        Word::Entry { queue, entry_id } => vec![on(REVOKE_ENTRY, &[queue, entry_id])],
        Word::Foreign { queue, name } => vec![on(END_NAME, &[queue, name])],
        Word::Declaration { source, .. } => {
            let (domain, source) = source.split_once('/').unwrap_or(("", source));
            vec![on(REVOKE_DECLARATION, &[domain, source])]
        }
    };
    let mut revoked = 0;
    for statement in statements {
        revoked += session.execute(statement).await?;
    }
    session.commit().await?;
    Ok(revoked > 0)
}
