//! What the domain owns: two job tables with their types and queues.
//!
//! A failed export changes the export status of its deck or video and nothing else: the deck that could not be exported
//! is as READY as before, and its `error` speaks of its generation.

use salvage_handler_sdk::{JobNames, JobType, Manifest, ParentChange, QueueRule, Source, Table};

/// The domain `exports`.
pub const MANIFEST: Manifest = Manifest {
    domain: "exports",
    description: "Exports of slide decks and videos to files.",
    sources: &[SLIDE_EXPORT, VIDEO_EXPORT],
};

const SLIDE_EXPORT: Source = Source {
    name: "slide-export",
    table: export_jobs("SlideExportJob"),
    job_types: &[
        JobType::restart_safe("PDF").on_fail(DECK_EXPORT_FAILS),
        JobType::restart_safe("PPTX").on_fail(DECK_EXPORT_FAILS),
    ],
    queues: &[
        QueueRule::new("slide-export", "export-{id}", "jobId", JOB_NAMES),
        QueueRule::new("slide-generation", "export-{id}", "jobId", JOB_NAMES),
    ],
    reads: &[],
};

const VIDEO_EXPORT: Source = Source {
    name: "video-export",
    table: export_jobs("VideoExportJob"),
    job_types: &[
        JobType::restart_safe("MP4").on_fail(VIDEO_EXPORT_FAILS),
        JobType::restart_safe("GIF").on_fail(VIDEO_EXPORT_FAILS),
    ],
    queues: &[
        QueueRule::new("video-export", "export-{id}", "jobId", JOB_NAMES),
        QueueRule::new("video-composition", "export-{id}", "jobId", JOB_NAMES),
    ],
    reads: &[],
};

/// That of BullMQ, in all four queues. Whatever else lies there has other names.
const JOB_NAMES: JobNames = JobNames::Only(&["export"]);

/// What both job tables have in common; the format of the file is the job type.
const fn export_jobs(table: &'static str) -> Table {
    Table {
        table,
        id: "id",
        status: "status",
        updated_at: "updatedAt",
        job_type: Some("format"),
        progress: Some("progress"),
        error: Some("error"),
        extra_columns: &[],
        queued: "QUEUED",
        processing: "PROCESSING",
        failed: "FAILED",
    }
}

const DECK_EXPORT_FAILS: ParentChange = export_fails("SlideDeck", "deckId");
const VIDEO_EXPORT_FAILS: ParentChange = export_fails("Video", "videoId");

const fn export_fails(table: &'static str, job_column: &'static str) -> ParentChange {
    ParentChange {
        table,
        key: "id",
        job_column,
        status_column: "exportStatus",
        from: &["EXPORTING"],
        to: "FAILED",
        error: None,
        updated_at: None,
    }
}
