//! Rows, by COPY.

use super::plan::{Job, TABLES, Table};
use super::{Mix, Seed};
use anyhow::{Context, Result};
use jiff::Timestamp;
use sqlx::postgres::PgConnection;
use sqlx::{AssertSqlSafe, Connection};
use std::fmt::Write;

/// Bytes sent at a time.
const CHUNK: usize = 1 << 20;

/// What an application has that lists a deck's jobs and a video's tracks, beside the live-row indexes of its migrations.
const INDEXES: &str = "CREATE INDEX ON \"SlideJob\" (\"deckId\"); CREATE INDEX ON \"SlideExportJob\" (\"deckId\"); \
    CREATE INDEX ON \"VideoJob\" (\"videoId\"); CREATE INDEX ON \"VideoExportJob\" (\"videoId\"); \
    CREATE INDEX ON narration_jobs (video_id); CREATE INDEX ON \"VideoTrack\" (\"videoId\")";

/// Tracks of each video.
const TRACKS: usize = 3;

pub(super) async fn fill(seed: Seed, url: &str) -> Result<()> {
    let mut db = PgConnection::connect(url).await.context("connecting to fill the tables")?;
    for table in &TABLES {
        jobs(&mut db, seed, table).await.with_context(|| format!("filling {}", table.name))?;
    }
    parents(&mut db, seed).await.context("filling the parents' tables")?;
    sqlx::raw_sql(INDEXES).execute(&mut db).await.context("making the application's own indexes")?;
    // What autovacuum would have done by now: without it the first passes would measure that.
    sqlx::raw_sql("VACUUM ANALYZE").execute(&mut db).await.context("vacuuming")?;
    db.close().await.context("closing the connection that filled the tables")
}

async fn jobs(db: &mut PgConnection, seed: Seed, table: &Table) -> Result<()> {
    let Table { name, parent, kind, kind_value, created_at, updated_at, .. } = table;
    let columns = format!("id, {parent}, {kind}, status, progress, error, {created_at}, {updated_at}");
    let (stale, fresh) = (minutes_ago(2 * 60)?, minutes_ago(5)?);
    let own = seed.jobs().filter(|job| job.table().name == *name);
    let live = own.map(|job| {
        let at = if job.is_candidate { &stale } else { &fresh };
        let (id, parent, status) = (job.row_id(), job.parent_id(), job.status());
        format!("{id}\t{parent}\t{kind_value}\t{status}\t0\t\\N\t{at}\t{at}\n")
    });
    // As many rows that are over: most rows of a real table are.
    let first = seed.size.ids + seed.size.candidates;
    let over = (first..first + seed.size.candidates).map(Job::fresh).filter(|job| job.table().name == *name);
    let over = over.map(|job| {
        let (id, parent) = (job.row_id(), job.parent_id());
        format!("{id}\t{parent}\t{kind_value}\tCOMPLETED\t100\t\\N\t{stale}\t{stale}\n")
    });
    copy(db, &format!("COPY {name} ({columns}) FROM STDIN"), live.chain(over)).await
}

/// A deck or a video of its own for each candidate, under way; videos with their tracks.
async fn parents(db: &mut PgConnection, seed: Seed) -> Result<()> {
    let of = |is_of_deck: bool| {
        let candidates = (0..seed.size.candidates).map(|number| Job::candidate(number, Mix::Usual));
        candidates.filter(move |job| job.table().is_of_deck == is_of_deck).map(Job::parent_id)
    };
    let decks = of(true).map(|id| format!("{id}\tDeck {id}\tGENERATING\tEXPORTING\n"));
    copy(db, "COPY \"SlideDeck\" (id, title, status, \"exportStatus\") FROM STDIN", decks).await?;
    let videos = of(false).map(|id| format!("{id}\tVideo {id}\tCOMPOSING\tEXPORTING\tNARRATING\n"));
    let columns = "id, title, status, \"exportStatus\", narration_status";
    copy(db, &format!("COPY \"Video\" ({columns}) FROM STDIN"), videos).await?;
    let tracks = of(false).map(|id| {
        (0..TRACKS).fold(String::new(), |mut lines, n| {
            let _infallible = writeln!(lines, "{id}-{n}\t{id}\t{n}\tclip\tmedia://{id}/{n}\t{n}000\t{n}999");
            lines
        })
    });
    let columns = "id, \"videoId\", position, kind, \"sourceUrl\", \"startMs\", \"endMs\"";
    copy(db, &format!("COPY \"VideoTrack\" ({columns}) FROM STDIN"), tracks).await
}

async fn copy(db: &mut PgConnection, statement: &str, lines: impl Iterator<Item = String>) -> Result<()> {
    let mut copy = db.copy_in_raw(statement).await?;
    let mut chunk = String::with_capacity(CHUNK * 2);
    for line in lines {
        chunk += &line;
        if chunk.len() >= CHUNK {
            copy.send(chunk.as_bytes()).await?;
            chunk.clear();
        }
    }
    copy.send(chunk.as_bytes()).await?;
    copy.finish().await?;
    Ok(())
}

/// UTC, as both kinds of time column read it in a session whose zone is UTC.
fn minutes_ago(minutes: u64) -> Result<String> {
    let at = Timestamp::from_millisecond(i64::try_from(super::now_ms()? - minutes * 60_000)?)?;
    Ok(format!("{at:.3}").replace('T', " ").replace('Z', ""))
}

/// Runs a statement made of our own names on the server's own database.
pub(crate) async fn administer(url: &str, statement: &str) -> Result<()> {
    let mut db = PgConnection::connect(url).await.context("connecting as the administrator")?;
    let done = sqlx::raw_sql(AssertSqlSafe(statement.to_owned())).execute(&mut db).await;
    done.with_context(|| format!("running {statement}"))?;
    db.close().await.context("closing the administrator's connection")
}
