//! What the domain owns: two job tables, their types and queues, and what is read for a judgement.

use salvage_handler_sdk::{JobNames, JobType, Manifest, ParentChange, QueueRule, Read, Source, Table};

/// The domain `video-composition`.
pub const MANIFEST: Manifest = Manifest {
    domain: "video-composition",
    description: "Composition, preview and narration of videos.",
    sources: &[COMPOSITION, NARRATION],
};

/// More tracks than any video of the application has. A video with more of them is not put back.
pub(crate) const TRACKS_MAX: u32 = 500;

const COMPOSITION: Source = Source {
    name: "composition",
    table: Table {
        table: "VideoJob",
        id: "id",
        status: "status",
        updated_at: "updatedAt",
        job_type: Some("type"),
        progress: Some("progress"),
        error: Some("error"),
        extra_columns: &[],
        queued: "QUEUED",
        processing: "PROCESSING",
        failed: "FAILED",
    },
    job_types: &[
        JobType::restart_safe("COMPOSITION").on_fail(VIDEO_FAILS),
        // A preview says nothing of the video's own state, so the parent stays as it is.
        JobType::restart_safe("PREVIEW"),
    ],
    queues: &[
        QueueRule::new("video-composition", "video-{id}", "jobId", JobNames::Only(&["compose", "preview"])),
        QueueRule::new("video-export", "video-{id}", "jobId", JobNames::Only(&["compose", "preview"])),
    ],
    reads: &[
        Read {
            name: "video",
            table: "Video",
            columns: &["id", "title", "status"],
            match_column: "id",
            job_column: "videoId",
            order_by: &[],
            limit: 1,
        },
        Read {
            name: "tracks",
            table: "VideoTrack",
            columns: &["kind", "sourceUrl", "startMs", "endMs"],
            match_column: "videoId",
            job_column: "videoId",
            // The id only settles ties: positions are not unique in the table.
            order_by: &["position", "id"],
            limit: TRACKS_MAX,
        },
    ],
};

const VIDEO_FAILS: ParentChange = ParentChange {
    table: "Video",
    key: "id",
    job_column: "videoId",
    status_column: "status",
    from: &["COMPOSING"],
    to: "FAILED",
    error: Some("error"),
    updated_at: Some("updatedAt"),
};

const NARRATION: Source = Source {
    name: "narration",
    table: Table {
        table: "narration_jobs",
        id: "id",
        status: "status",
        updated_at: "updated_at",
        job_type: Some("kind"),
        progress: Some("progress"),
        error: Some("error"),
        extra_columns: &[],
        queued: "QUEUED",
        processing: "PROCESSING",
        failed: "FAILED",
    },
    job_types: &[JobType::restart_safe("narration").on_fail(NARRATION_FAILS)],
    queues: &[QueueRule::new("narration", "{id}", "jobId", JobNames::Only(&["narrate"]))],
    reads: &[],
};

const NARRATION_FAILS: ParentChange = ParentChange {
    table: "Video",
    key: "id",
    job_column: "video_id",
    status_column: "narration_status",
    from: &["NARRATING"],
    to: "FAILED",
    // The video's `error` speaks of its composition, which may be fine.
    error: None,
    updated_at: Some("updatedAt"),
};
