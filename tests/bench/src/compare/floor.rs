//! The least that the look-up's reads can cost: the candidates by one SELECT a table, the ids of all states by one MULTI,
//! and the payloads of those entries that only their payload tells, 200 at a time. Nothing is made of what was read.

use crate::meter::millis;
use crate::seed::{Fate, Job, Seed, Size, TABLES};
use anyhow::{Context, Result, ensure};
use redis::aio::MultiplexedConnection;
use serde_json::json;
use sqlx::postgres::{PgConnection, PgRow};
use sqlx::{AssertSqlSafe, Connection};
use std::time::Instant;

/// As many payloads as Salvage reads at a time by default.
const PAGE: usize = 200;

#[derive(clap::Args)]
pub(crate) struct Options {
    #[arg(long)]
    size: Size,
}

pub(crate) fn run(options: &Options) -> Result<()> {
    crate::runtime()?.block_on(measure(options.size))
}

async fn measure(size: Size) -> Result<()> {
    let variable = |name: &str| std::env::var(name).with_context(|| format!("{name} is not set"));
    let patient = redis::AsyncConnectionConfig::new().set_response_timeout(None);
    let client = redis::Client::open(variable("REDIS_URL")?)?;
    let mut redis = client.get_multiplexed_async_connection_with_config(&patient).await?;
    let mut db = PgConnection::connect(&variable("DATABASE_URL")?).await?;
    let old: Vec<Job> = Seed::usual(size).jobs().filter(|job| job.fate == Fate::OldId).collect();

    let began = Instant::now();
    let candidates = select(&mut db).await?;
    let selected = began.elapsed();
    let snapshot = snapshot(&mut redis).await?;
    let snapped = began.elapsed();
    let payloads = payloads(&mut redis, &old).await?;
    let total = began.elapsed();

    ensure!(candidates == size.candidates, "{candidates} candidates");
    ensure!(payloads == old.len(), "{payloads} payloads");
    let told = json!({
        "select_ms": millis(selected),
        "snapshot_ms": millis(snapped - selected),
        "payloads_ms": millis(total - snapped),
        "lookup_ms": millis(total),
        "commands_sent": snapshot + payloads,
    });
    println!("{told}");
    Ok(())
}

async fn select(db: &mut PgConnection) -> Result<usize> {
    let mut candidates = 0;
    for table in &TABLES {
        let at = table.updated_at;
        let statement = format!(
            "SELECT id::text, status::text, {at}::text, xmin::text, {} FROM {} \
             WHERE status IN ('QUEUED', 'PROCESSING') AND {at} < now() - interval '1 hour' ORDER BY {}.id",
            table.kind, table.name, table.name
        );
        let rows: Vec<PgRow> = sqlx::query(AssertSqlSafe(statement)).fetch_all(&mut *db).await?;
        candidates += rows.len();
    }
    Ok(candidates)
}

/// Returns how many commands it sent.
async fn snapshot(redis: &mut MultiplexedConnection) -> Result<usize> {
    let mut commands = redis::pipe();
    commands.atomic();
    for table in &TABLES {
        for state in ["wait", "paused", "active"] {
            commands.cmd("LRANGE").arg(format!("bull:{}:{state}", table.queue)).arg(0).arg(-1);
        }
        for state in ["waiting-children", "delayed", "prioritized"] {
            commands.cmd("ZRANGE").arg(format!("bull:{}:{state}", table.queue)).arg(0).arg(-1);
        }
    }
    let replies: Vec<redis::Value> = commands.query_async(redis).await?;
    // With MULTI and EXEC.
    Ok(replies.len() + 2)
}

async fn payloads(redis: &mut MultiplexedConnection, jobs: &[Job]) -> Result<usize> {
    let mut read = 0;
    for page in jobs.chunks(PAGE) {
        let mut commands = redis::pipe();
        for job in page {
            commands.cmd("HGET").arg(format!("bull:{}:{}", job.table().queue, job.entry_id())).arg("data");
        }
        let payloads: Vec<String> = commands.query_async(redis).await?;
        read += payloads.len();
    }
    Ok(read)
}
