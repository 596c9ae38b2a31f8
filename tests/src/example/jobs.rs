//! Rows of the five job tables.

use anyhow::{Context, Result};
use sqlx::{AssertSqlSafe, PgPool, query_as};
use std::fmt::Display;

/// How old `stale` rows are: twice the default threshold of an hour.
const STALE_SECONDS: i64 = 2 * 60 * 60;

/// One of the five job tables, with what differs between them.
#[derive(Clone, Copy, Debug)]
pub struct JobTable {
    /// As SQL writes it.
    pub name: &'static str,
    pub id_type: &'static str,
    pub status_type: &'static str,
    pub parent: &'static str,
    /// The column that tells the job type.
    pub kind: &'static str,
    pub created_at: &'static str,
    pub updated_at: &'static str,
    /// The database's time as these columns hold it.
    pub now: &'static str,
    /// A type to begin with.
    pub kind_default: &'static str,
}

/// `timestamp(3)` holds UTC, whatever the session's time zone is.
const NOW_UTC: &str = "(clock_timestamp() AT TIME ZONE 'UTC')";

const PRISMA: JobTable = JobTable {
    name: "",
    id_type: "text",
    status_type: "\"JobStatus\"",
    parent: "",
    kind: "type",
    created_at: "\"createdAt\"",
    updated_at: "\"updatedAt\"",
    now: NOW_UTC,
    kind_default: "",
};

/// What a job table offers to tests.
pub trait Jobs {
    const TABLE: JobTable;

    /// A row that waits for a worker.
    fn queued(id: impl Display) -> Job {
        Job::new(Self::TABLE, id, "QUEUED")
    }

    /// A row that a worker has taken.
    fn processing(id: impl Display) -> Job {
        Job::new(Self::TABLE, id, "PROCESSING").progress(40)
    }

    fn completed(id: impl Display) -> Job {
        Job::new(Self::TABLE, id, "COMPLETED").progress(100)
    }

    fn failed(id: impl Display) -> Job {
        Job::new(Self::TABLE, id, "FAILED").error("failed before")
    }

    fn cancelled(id: impl Display) -> Job {
        Job::new(Self::TABLE, id, "CANCELLED")
    }

    /// The row as it is now. None: gone.
    fn read(db: &PgPool, id: impl Display) -> impl Future<Output = Result<Option<JobRow>>> {
        read_job(db, Self::TABLE, id.to_string())
    }

    /// A worker finishes the job. False: there is no such row.
    fn complete(db: &PgPool, id: impl Display) -> impl Future<Output = Result<bool>> {
        let JobTable { updated_at, now, .. } = Self::TABLE;
        update_job(
            db,
            Self::TABLE,
            id.to_string(),
            format!("status = 'COMPLETED', progress = 100, {updated_at} = {now}"),
        )
    }

    /// A worker writes progress and nothing else: status and updated-at stay. False: there is no such row.
    fn write_progress(db: &PgPool, id: impl Display, progress: i32) -> impl Future<Output = Result<bool>> {
        update_job(db, Self::TABLE, id.to_string(), format!("progress = {progress}"))
    }
}

/// `"SlideJob"`: GENERATION (default) or OUTLINE, of a deck; text ids.
pub struct SlideJob;
/// `"VideoJob"`: COMPOSITION (default) or PREVIEW, of a video; text ids.
pub struct VideoJob;
/// `narration_jobs`: narration, of a video; uuid ids, see [`uuid`].
pub struct NarrationJob;
/// `"SlideExportJob"`: PDF (default) or PPTX, of a deck; text ids.
pub struct SlideExportJob;
/// `"VideoExportJob"`: MP4 (default) or GIF, of a video; bigint ids.
pub struct VideoExportJob;

impl Jobs for SlideJob {
    const TABLE: JobTable =
        JobTable { name: "\"SlideJob\"", parent: "\"deckId\"", kind_default: "GENERATION", ..PRISMA };
}
impl Jobs for VideoJob {
    const TABLE: JobTable =
        JobTable { name: "\"VideoJob\"", parent: "\"videoId\"", kind_default: "COMPOSITION", ..PRISMA };
}
impl Jobs for NarrationJob {
    const TABLE: JobTable = JobTable {
        name: "narration_jobs",
        id_type: "uuid",
        status_type: "text",
        parent: "video_id",
        kind: "kind",
        created_at: "created_at",
        updated_at: "updated_at",
        now: "clock_timestamp()",
        kind_default: "narration",
    };
}
impl Jobs for SlideExportJob {
    const TABLE: JobTable = JobTable {
        name: "\"SlideExportJob\"",
        parent: "\"deckId\"",
        kind: "format",
        kind_default: "PDF",
        ..PRISMA
    };
}
impl Jobs for VideoExportJob {
    const TABLE: JobTable = JobTable {
        name: "\"VideoExportJob\"",
        id_type: "bigint",
        parent: "\"videoId\"",
        kind: "format",
        kind_default: "MP4",
        ..PRISMA
    };
}

/// A uuid for a narration job, the same for the same number.
pub fn uuid(number: u32) -> String {
    format!("00000000-0000-4000-8000-{number:012}")
}

/// A job row that is going to be inserted. Of a deck or video `parent-1` unless it is said.
#[derive(Clone, Debug)]
#[must_use = "a row that is not inserted tests nothing"]
pub struct Job {
    table: JobTable,
    id: String,
    parent: String,
    kind: String,
    status: String,
    progress: i32,
    error: Option<String>,
    /// Negative: in the future.
    updated_seconds_ago: i64,
}

impl Job {
    fn new(table: JobTable, id: impl Display, status: &str) -> Self {
        Self {
            table,
            id: id.to_string(),
            parent: "parent-1".into(),
            kind: table.kind_default.into(),
            status: status.into(),
            progress: 0,
            error: None,
            updated_seconds_ago: 0,
        }
    }

    /// Of this deck or video. No foreign key asks whether it is there.
    pub fn of(mut self, parent: &str) -> Self {
        self.parent = parent.into();
        self
    }

    /// Of this job type or format.
    pub fn kind(mut self, kind: &str) -> Self {
        self.kind = kind.into();
        self
    }

    /// Touched two hours ago: beyond the default threshold.
    pub fn stale(self) -> Self {
        self.updated_ago(STALE_SECONDS)
    }

    /// Touched so many seconds ago; negative: that far in the future.
    pub fn updated_ago(mut self, seconds: i64) -> Self {
        self.updated_seconds_ago = seconds;
        self
    }

    pub fn progress(mut self, progress: i32) -> Self {
        self.progress = progress;
        self
    }

    pub fn error(mut self, error: &str) -> Self {
        self.error = Some(error.into());
        self
    }

    /// Inserts the row.
    pub async fn insert(self, db: &PgPool) -> Result<()> {
        let JobTable { name, id_type, status_type, parent, kind, created_at, updated_at, now, .. } =
            self.table;
        let time = format!("{now} - make_interval(secs => $7::float8)");
        let statement = format!(
            "INSERT INTO {name} (id, {parent}, {kind}, status, progress, error, {created_at}, {updated_at})
             VALUES ($1::text::{id_type}, $2, $3, $4::text::{status_type}, $5, $6, {time}, {time})"
        );
        sqlx::query(AssertSqlSafe(statement))
            .bind(&self.id)
            .bind(&self.parent)
            .bind(&self.kind)
            .bind(&self.status)
            .bind(self.progress)
            .bind(&self.error)
            .bind(self.updated_seconds_ago)
            .execute(db)
            .await
            .with_context(|| format!("inserting {name} {}", self.id))?;
        Ok(())
    }
}

/// A job row as a test looks at it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JobRow {
    pub status: String,
    pub progress: i32,
    pub error: Option<String>,
    /// The column's text, to be compared.
    pub updated_at: String,
    /// Its last writer's transaction, to be compared: an untouched row keeps it.
    pub xmin: String,
}

async fn read_job(db: &PgPool, table: JobTable, id: String) -> Result<Option<JobRow>> {
    let JobTable { name, id_type, updated_at, .. } = table;
    let statement = format!(
        "SELECT status::text, progress, error, {updated_at}::text, xmin::text
         FROM {name} WHERE id = $1::text::{id_type}"
    );
    let row: Option<(String, i32, Option<String>, String, String)> = query_as(AssertSqlSafe(statement))
        .bind(&id)
        .fetch_optional(db)
        .await
        .with_context(|| format!("reading {name} {id}"))?;
    let named =
        |(status, progress, error, updated_at, xmin)| JobRow { status, progress, error, updated_at, xmin };
    Ok(row.map(named))
}

async fn update_job(db: &PgPool, table: JobTable, id: String, set: String) -> Result<bool> {
    let JobTable { name, id_type, .. } = table;
    let statement = format!("UPDATE {name} SET {set} WHERE id = $1::text::{id_type}");
    let done = sqlx::query(AssertSqlSafe(statement))
        .bind(&id)
        .execute(db)
        .await
        .with_context(|| format!("updating {name} {id}"))?;
    Ok(done.rows_affected() == 1)
}
