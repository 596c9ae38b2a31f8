//! The questions that are kept to be asked again. See `migrations/host/0006_captures.sql`.

use jiff::Timestamp;
use salvage_core::source::SourceName;
use serde::Serialize;
use sha2::{Digest, Sha256};

use super::Postgres;
use super::candidates::instant;
use super::inputs::hex;
use super::ledger::document;
use super::session::{Mode, Statement};
use crate::ports::{Captured, StoreFailure};

/// Most bytes of one question with its decision; a larger one is not kept.
const CAPTURE_BYTES_MAX: usize = 256 * 1024;

const KEEP: &str = "INSERT INTO salvage.captures (domain, source, job_id, component_digest, digest, question, decision, \
    is_redacted) \
    SELECT c.domain, c.source, c.job_id, c.component_digest, c.digest, c.question::json, c.decision::json, c.is_redacted \
    FROM jsonb_to_recordset($1::text::jsonb) AS c(domain text, source text, job_id text, component_digest text, \
    digest text, question text, decision text, is_redacted boolean) ON CONFLICT DO NOTHING";

const NEWEST: &str = "SELECT c.source, c.job_id, c.component_digest, c.question::text, c.decision::text, c.is_redacted \
    FROM salvage.captures AS c WHERE c.domain = $1 ORDER BY c.at DESC, c.id DESC LIMIT $2";

/// One that was kept whole.
const NEWEST_REQUEUE: &str = "SELECT round(extract(epoch FROM c.at) * 1000000)::bigint, c.decision::text \
    FROM salvage.captures AS c WHERE c.domain = $1 AND c.source = $2 AND c.job_id = $3 AND NOT c.is_redacted \
    AND c.decision ->> 'kind' = 'requeue' ORDER BY c.at DESC, c.id DESC LIMIT 1";

/// So few at a time that each statement ends well within its limit.
const PURGE: &str = "DELETE FROM salvage.captures WHERE id IN (SELECT c.id FROM salvage.captures AS c \
    WHERE $1::text IS NULL OR c.domain = $1 ORDER BY c.id LIMIT 1000)";

#[derive(Serialize)]
struct Row<'a> {
    domain: &'a str,
    source: &'a str,
    job_id: &'a str,
    component_digest: &'a str,
    digest: String,
    question: &'a str,
    decision: &'a str,
    is_redacted: bool,
}

impl<'a> Row<'a> {
    fn new(captured: &'a Captured) -> Self {
        // A JSON array keeps its parts apart.
        let parts = serde_json::json!([captured.question, captured.decision]);
        Self {
            domain: &captured.source.domain,
            source: &captured.source.source,
            job_id: &captured.job_id,
            component_digest: &captured.component_digest,
            digest: hex(&Sha256::digest(parts.to_string())),
            question: &captured.question,
            decision: &captured.decision,
            is_redacted: captured.is_redacted,
        }
    }
}

/// Keeps questions, but for those that are there already and those that are too large.
pub(super) async fn keep(postgres: &Postgres, captures: &[Captured]) -> Result<(), StoreFailure> {
    let is_small = |captured: &&Captured| {
        let bytes = captured.question.len() + captured.decision.len();
        if bytes > CAPTURE_BYTES_MAX {
            let (source, id) = (&captured.source, &captured.job_id);
            tracing::warn!(
                %source, candidate.id = id,
                "not captured: question and decision have {bytes} bytes, more than {CAPTURE_BYTES_MAX}"
            );
        }
        bytes <= CAPTURE_BYTES_MAX
    };
    let rows: Vec<Row<'_>> = captures.iter().filter(is_small).map(Row::new).collect();
    if rows.is_empty() {
        return Ok(());
    }
    let mut session = postgres.open(Mode::Write, "keep the handlers' questions").await?;
    session.execute(Statement::fixed(KEEP).bind(document(&rows))).await?;
    session.commit().await
}

/// A job's newest answer to put it back, and when.
pub(super) async fn newest_requeue(
    postgres: &Postgres,
    source: &SourceName,
    job_id: &str,
) -> Result<Option<(Timestamp, String)>, StoreFailure> {
    let mut session =
        postgres.open(Mode::Read, format!("read what was captured of a job of {source}")).await?;
    let statement = Statement::fixed(NEWEST_REQUEUE).bind(&source.domain).bind(&source.source).bind(job_id);
    let rows: Vec<(i64, String)> = session.all(statement).await?;
    session.commit().await?;
    Ok(rows.into_iter().next().map(|(at, decision)| (instant(at).unwrap_or(Timestamp::UNIX_EPOCH), decision)))
}

impl Postgres {
    /// Removes the questions to a domain's handler, or all; how many there were.
    ///
    /// # Errors
    /// If PostgreSQL refused; what was removed before stays removed.
    pub async fn purge_captures(&self, domain: Option<&str>) -> Result<u64, StoreFailure> {
        let mut removed = 0;
        loop {
            let mut session = self.open(Mode::Write, "remove captured questions").await?;
            let batch = session.execute(Statement::fixed(PURGE).bind(domain)).await?;
            session.commit().await?;
            removed += batch;
            if batch == 0 {
                return Ok(removed);
            }
        }
    }

    /// The newest questions that a domain's handler was asked, as far as they were kept.
    ///
    /// # Errors
    /// If they could not be read.
    pub async fn captures(&self, domain: &str, limit: u32) -> Result<Vec<Captured>, StoreFailure> {
        type Found = (String, String, String, String, String, bool);
        let mut session = self.open(Mode::Read, "read the captured questions").await?;
        let rows: Vec<Found> =
            session.all(Statement::fixed(NEWEST).bind(domain).bind(i64::from(limit))).await?;
        session.commit().await?;
        let captured =
            |(source, job_id, component_digest, question, decision, is_redacted): Found| Captured {
                source: SourceName { domain: domain.to_owned(), source },
                job_id,
                component_digest,
                question,
                decision,
                is_redacted,
            };
        Ok(rows.into_iter().map(captured).collect())
    }
}
