//! What the domain owns: the job table, its types and queues, and what is read for a judgement.
//!
//! Names are those of the database, without quotes. `salvage handler check` holds them against it.

use salvage_handler_sdk::{
    JobNames, JobType, Manifest, ParentChange, QueueRule, Read, Source, Table,
};

/// The domain `{{name}}`.
pub const MANIFEST: Manifest = Manifest {
    domain: "{{name}}",
    description: "Jobs of {{name}}.",
    sources: &[JOBS],
};

const JOBS: Source = Source {
    name: "jobs",
    table: Table {
        table: "{{snake}}_jobs",
        id: "id",
        status: "status",
        updated_at: "updated_at",
        job_type: Some("type"),
        progress: None,
        error: Some("error"),
        extra_columns: &[],
        queued: "QUEUED",
        processing: "PROCESSING",
        failed: "FAILED",
    },
    // `not_restart_safe` for a type that must not be begun twice.
    job_types: &[JobType::restart_safe("BUILD").on_fail(ITEM_FAILS)],
    // Every queue in which a job of this table may be; one that is missing makes jobs look lost that are not.
    // An entry of another name than these that carries no row's id is taken for somebody else's.
    queues: &[QueueRule::new(
        "{{name}}",
        "{{name}}-{id}",
        "jobId",
        JobNames::Only(&["build"]),
    )],
    // Rows that `decide` is shown.
    reads: &[Read {
        name: "item",
        table: "{{snake}}_items",
        columns: &["id", "title"],
        match_column: "id",
        job_column: "item_id",
        order_by: &[],
        limit: 1,
    }],
};

/// Only from BUILDING: an item that is ready stays so, whatever becomes of a later job.
const ITEM_FAILS: ParentChange = ParentChange {
    table: "{{snake}}_items",
    key: "id",
    job_column: "item_id",
    status_column: "status",
    from: &["BUILDING"],
    to: "FAILED",
    error: None,
    updated_at: None,
};
