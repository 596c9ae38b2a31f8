//! What the domain owns: the job table, its types and queues, and what is read for a judgement.

use salvage_handler_sdk::{JobNames, JobType, Manifest, ParentChange, QueueRule, Read, Source, Table};

/// The domain `slides`.
pub const MANIFEST: Manifest = Manifest {
    domain: "slides",
    description: "Generation of slide decks and their outlines.",
    sources: &[GENERATION],
};

const GENERATION: Source = Source {
    name: "generation",
    table: Table {
        table: "SlideJob",
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
        JobType::restart_safe("GENERATION").on_fail(DECK_FAILS),
        // A begun outline has spent its model budget and may be half written; nobody wants to pay for it twice unasked.
        JobType::not_restart_safe("OUTLINE").on_fail(DECK_FAILS),
    ],
    queues: &[
        QueueRule::new("slide-generation", "slide-{id}", "jobId", JOB_NAMES),
        QueueRule::new("slide-export", "slide-{id}", "jobId", JOB_NAMES),
    ],
    reads: &[Read {
        name: "deck",
        table: "SlideDeck",
        columns: &["id", "title", "status"],
        match_column: "id",
        job_column: "deckId",
        order_by: &[],
        limit: 1,
    }],
};

/// Those of BullMQ. Whatever else lies in these queues has other names.
const JOB_NAMES: JobNames = JobNames::Only(&["generate", "outline"]);

const DECK_FAILS: ParentChange = ParentChange {
    table: "SlideDeck",
    key: "id",
    job_column: "deckId",
    status_column: "status",
    from: &["GENERATING"],
    to: "FAILED",
    error: Some("error"),
    updated_at: Some("updatedAt"),
};
