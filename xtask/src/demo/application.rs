//! The example application's side: its tables, what it enqueues, and what its workers write. See DESIGN.md, section 6,
//! and `migrations/example/`.

use super::scenario::{SITUATIONS, Situation};
use anyhow::{Context, Result};
use salvage_services::postgres::psql;
use serde_json::{Value, json};

/// One of the five job tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Table {
    Slide,
    Video,
    Narration,
    SlideExport,
    VideoExport,
}

/// What differs between the tables; names as SQL writes them.
pub(crate) struct Shape {
    pub(crate) table: &'static str,
    pub(crate) id_type: &'static str,
    pub(crate) kind: &'static str,
    pub(crate) updated_at: &'static str,
    /// The time now, as `updated_at` holds it.
    pub(crate) now: &'static str,
    /// The job's column that names its parent.
    pub(crate) parent_id: &'static str,
    pub(crate) parent_table: &'static str,
    /// The parent's column that a worker sets to READY.
    pub(crate) parent_status: &'static str,
    /// What the product shows of the parent, of the alias `p`.
    pub(crate) parent_shown: &'static str,
    /// Salvage's name of the job's source.
    pub(crate) source: &'static str,
    pub(crate) queue: &'static str,
    /// An entry's id is this and the row's id.
    pub(crate) entry_prefix: &'static str,
}

const SLIDE_JOB: Shape = Shape {
    table: "\"SlideJob\"",
    id_type: "text",
    kind: "type",
    updated_at: "\"updatedAt\"",
    // `timestamp(3)` holds UTC, whatever the session's time zone is.
    now: "(clock_timestamp() AT TIME ZONE 'UTC')",
    parent_id: "\"deckId\"",
    parent_table: "\"SlideDeck\"",
    parent_status: "status",
    parent_shown: "p.status::text",
    source: "slides/generation",
    queue: "slide-generation",
    entry_prefix: "slide-",
};

const VIDEO_JOB: Shape = Shape {
    table: "\"VideoJob\"",
    parent_id: "\"videoId\"",
    parent_table: "\"Video\"",
    source: "video-composition/composition",
    queue: "video-composition",
    entry_prefix: "video-",
    ..SLIDE_JOB
};

const NARRATION_JOB: Shape = Shape {
    table: "narration_jobs",
    id_type: "uuid",
    kind: "kind",
    updated_at: "updated_at",
    now: "clock_timestamp()",
    parent_id: "video_id",
    parent_status: "narration_status",
    parent_shown: "p.status::text || ', narration ' || p.narration_status",
    source: "video-composition/narration",
    queue: "narration",
    entry_prefix: "",
    ..VIDEO_JOB
};

const SLIDE_EXPORT_JOB: Shape = Shape {
    table: "\"SlideExportJob\"",
    kind: "format",
    parent_status: "\"exportStatus\"",
    parent_shown: "p.status::text || ', export ' || p.\"exportStatus\"::text",
    source: "exports/slide-export",
    queue: "slide-export",
    entry_prefix: "export-",
    ..SLIDE_JOB
};

const VIDEO_EXPORT_JOB: Shape = Shape {
    table: "\"VideoExportJob\"",
    id_type: "bigint",
    parent_id: "\"videoId\"",
    parent_table: "\"Video\"",
    source: "exports/video-export",
    queue: "video-export",
    ..SLIDE_EXPORT_JOB
};

impl Table {
    pub(crate) const ALL: [Self; 5] =
        [Self::Slide, Self::Video, Self::Narration, Self::SlideExport, Self::VideoExport];

    pub(crate) const fn shape(self) -> Shape {
        match self {
            Self::Slide => SLIDE_JOB,
            Self::Video => VIDEO_JOB,
            Self::Narration => NARRATION_JOB,
            Self::SlideExport => SLIDE_EXPORT_JOB,
            Self::VideoExport => VIDEO_EXPORT_JOB,
        }
    }

    /// A worker's first statement; $1 is the row's id.
    pub(crate) fn on_start(self) -> String {
        let Shape { table, id_type, updated_at, now, .. } = self.shape();
        format!(
            "UPDATE {table} SET status = 'PROCESSING', progress = 10, {updated_at} = {now} \
             WHERE id = $1::text::{id_type}"
        )
    }

    /// A worker's last statement, when the work is done; $1 is the row's id.
    pub(crate) fn on_end(self) -> String {
        let Shape { table, id_type, updated_at, now, parent_id, parent_table, parent_status, .. } =
            self.shape();
        format!(
            "WITH done AS (UPDATE {table} SET status = 'COMPLETED', progress = 100, error = NULL, {updated_at} = {now} \
             WHERE id = $1::text::{id_type} RETURNING {parent_id} AS parent) \
             UPDATE {parent_table} SET {parent_status} = 'READY' FROM done WHERE {parent_table}.id = done.parent"
        )
    }
}

impl Situation {
    /// The entry's id by the current rule.
    pub(super) fn entry_by_rule(&self) -> String {
        format!("{}{}", self.table.shape().entry_prefix, self.id)
    }

    /// Each job has a deck or video of its own.
    pub(super) fn parent_id(&self) -> String {
        let kind = if self.table.shape().parent_table == SLIDE_JOB.parent_table { "deck" } else { "video" };
        format!("{kind}-{}", self.id)
    }

    fn title(&self) -> String {
        format!("Title of {}", self.parent_id())
    }

    /// BullMQ's name of such jobs.
    pub(super) fn job_name(&self) -> &'static str {
        match (self.table, self.kind) {
            (Table::Slide, "OUTLINE") => "outline",
            (Table::Slide, _) => "generate",
            (Table::Video, "PREVIEW") => "preview",
            (Table::Video, _) => "compose",
            (Table::Narration, _) => "narrate",
            (Table::SlideExport | Table::VideoExport, _) => "export",
        }
    }

    /// What the producer enqueues.
    pub(super) fn payload(&self) -> Value {
        let (job, parent, title) = (self.id, self.parent_id(), self.title());
        match self.table {
            Table::Slide => json!({ "jobId": job, "deckId": parent, "title": title, "type": self.kind }),
            Table::Video if self.kind == "COMPOSITION" => {
                json!({ "jobId": job, "videoId": parent, "title": title, "tracks": self.tracks() })
            }
            Table::Video => json!({ "jobId": job, "videoId": parent, "quality": "draft" }),
            Table::Narration => {
                json!({ "jobId": job, "videoId": parent, "script": "Welcome.", "voice": "alto" })
            }
            Table::SlideExport => json!({ "jobId": job, "deckId": parent, "pages": "1-12" }),
            Table::VideoExport => json!({ "jobId": job, "videoId": parent, "width": 1280 }),
        }
    }

    /// Three tracks, one second each, in order.
    fn tracks(&self) -> Vec<Value> {
        let track = |n: u32| {
            let source = format!("media://{}/{n}", self.parent_id());
            json!({ "kind": "clip", "sourceUrl": source, "startMs": n * 1000, "endMs": (n + 1) * 1000 })
        };
        (0..3).map(track).collect()
    }

    fn insert_parent(&self) -> String {
        let (id, title) = (self.parent_id(), self.title());
        let table = self.table.shape().parent_table;
        let (columns, statuses) = match (self.table, self.kind) {
            (Table::Slide, _) => ("status", "'GENERATING'"),
            (Table::Video, "COMPOSITION") => ("status", "'COMPOSING'"),
            (Table::Video, _) => ("status", "'READY'"),
            (Table::Narration, _) => ("status, narration_status", "'READY', 'NARRATING'"),
            (Table::SlideExport | Table::VideoExport, _) => {
                ("status, \"exportStatus\"", "'READY', 'EXPORTING'")
            }
        };
        format!("INSERT INTO {table} (id, title, {columns}) VALUES ('{id}', '{title}', {statuses});")
    }

    fn insert_job(&self) -> String {
        let Shape { table, parent_id, kind, .. } = self.table.shape();
        format!(
            "INSERT INTO {table} (id, {parent_id}, {kind}) VALUES ('{}', '{}', '{}');",
            self.id,
            self.parent_id(),
            self.kind
        )
    }

    fn insert_tracks(&self) -> String {
        if self.table != Table::Video || self.kind != "COMPOSITION" {
            return String::new();
        }
        let video = self.parent_id();
        // Not in the order of their positions: a composition that is rebuilt has to sort them.
        format!(
            "INSERT INTO \"VideoTrack\" (id, \"videoId\", position, kind, \"sourceUrl\", \"startMs\", \"endMs\") \
             SELECT '{video}-' || n, '{video}', n, 'clip', 'media://{video}/' || n, n * 1000, (n + 1) * 1000 \
             FROM generate_series(2, 0, -1) n;"
        )
    }
}

/// The producer's rows: for each situation a deck or video, its tracks, and a QUEUED job.
pub(super) fn insert_rows(database: &str) -> Result<()> {
    // Every text in these statements is ours, and none holds a quote.
    let insert = |situation: &Situation| {
        [situation.insert_parent(), situation.insert_tracks(), situation.insert_job()].concat()
    };
    let script: String = SITUATIONS.iter().map(insert).collect();
    psql(database, &["--command", &script]).context("inserting the demo's rows").map(drop)
}

/// What the row says.
pub(super) fn status(database: &str, situation: &Situation) -> Result<String> {
    let statement =
        format!("SELECT status FROM {} WHERE id = '{}'", situation.table.shape().table, situation.id);
    psql(database, &["--command", &statement]).with_context(|| format!("reading {}", situation.id))
}

/// Somebody takes this situation's tracks out of its video.
pub(super) fn delete_tracks(database: &str, situation: &Situation) -> Result<()> {
    let statement = format!("DELETE FROM \"VideoTrack\" WHERE \"videoId\" = '{}'", situation.parent_id());
    psql(database, &["--command", &statement]).context("deleting a video's tracks").map(drop)
}

/// Sets every job row back by so many hours: to Salvage that is as good as waiting.
pub(super) fn age_rows(database: &str, hours: u32) -> Result<()> {
    let age = |table: Table| {
        let Shape { table, updated_at, .. } = table.shape();
        format!("UPDATE {table} SET {updated_at} = {updated_at} - interval '{hours} hours';")
    };
    let script: String = Table::ALL.map(age).concat();
    psql(database, &["--command", &script]).context("setting the rows back").map(drop)
}
