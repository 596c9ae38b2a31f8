//! The component's side of the contract: our types to the contract's and back, in one place.
//!
//! Not meant to be used directly; [`export!`](crate::export) does.

use crate::log::Level;
use crate::manifest as declared;
use crate::{Decide, RawInput, Residue, Row};

/// Generated from the contract.
#[allow(unreachable_pub, missing_docs, clippy::all, reason = "generated code")]
pub mod bindings {
    wit_bindgen::generate!({
        path: "../../wit/v0.1",
        world: "handler",
        pub_export_macro: true,
    });
}

pub use bindings::exports::salvage::handler::domain::Guest;
pub use bindings::salvage::handler::types::{Decision, HandlerManifest, Input, Job};
use bindings::salvage::handler::{host_log, types};

/// Runs a handler's judgement on what the host sent.
pub fn decide(job: Job, inputs: Vec<Input>, decide: Decide) -> Result<Decision, String> {
    judge(job, inputs, decide).map_err(|error| error.chain())
}

fn judge(job: Job, inputs: Vec<Input>, decide: Decide) -> Result<Decision, crate::Error> {
    let inputs = crate::Inputs::parse(inputs.into_iter().map(raw_input))?;
    let columns = crate::Job::parse_columns(&job.columns)?;
    Ok(decision(decide(&job_judged(job, columns), &inputs)?))
}

fn raw_input(input: Input) -> RawInput {
    RawInput { name: input.name, rows: input.rows, truncated: input.truncated }
}

fn job_judged(job: Job, columns: Row) -> crate::Job {
    crate::Job {
        domain: job.domain,
        source: job.source,
        id: job.id,
        job_type: job.type_,
        status: job.status,
        updated_at: job.updated_at,
        columns,
        recoveries: job.recoveries,
        residue: match job.residue {
            types::Residue::None => Residue::None,
            types::Residue::Completed => Residue::Completed,
            types::Residue::Failed => Residue::Failed,
            types::Residue::HashOnly => Residue::HashOnly,
        },
        failed_reason: job.failed_reason,
    }
}

fn decision(decision: crate::Decision) -> Decision {
    match decision {
        crate::Decision::Requeue(requeue) => Decision::Requeue(types::Requeue {
            queue: requeue.queue,
            name: requeue.name,
            data: requeue.data.to_string(),
            options: serde_json::json!(requeue.options).to_string(),
        }),
        crate::Decision::Fail(reason) => Decision::Fail(reason),
        crate::Decision::Hold(reason) => Decision::Hold(reason),
    }
}

/// Writes a line into the host's log.
pub fn log(level: Level, message: &str) {
    let level = match level {
        Level::Debug => host_log::Level::Debug,
        Level::Info => host_log::Level::Info,
        Level::Warn => host_log::Level::Warn,
        Level::Error => host_log::Level::Error,
    };
    host_log::log(level, message);
}

/// The manifest as the contract spells it.
pub fn describe(manifest: &declared::Manifest) -> HandlerManifest {
    HandlerManifest {
        domain: manifest.domain.to_owned(),
        description: manifest.description.to_owned(),
        sources: manifest.sources.iter().map(source).collect(),
    }
}

fn source(source: &declared::Source) -> types::Source {
    types::Source {
        name: source.name.to_owned(),
        table: table(&source.table),
        job_types: source.job_types.iter().map(job_type).collect(),
        queues: source.queues.iter().map(queue).collect(),
        reads: source.reads.iter().map(read).collect(),
    }
}

fn table(table: &declared::Table) -> types::TableMapping {
    types::TableMapping {
        table: table.table.to_owned(),
        id: table.id.to_owned(),
        status: table.status.to_owned(),
        updated_at: table.updated_at.to_owned(),
        job_type: table.job_type.map(str::to_owned),
        progress: table.progress.map(str::to_owned),
        error: table.error.map(str::to_owned),
        extra_columns: owned(table.extra_columns),
        queued: table.queued.to_owned(),
        processing: table.processing.to_owned(),
        failed: table.failed.to_owned(),
    }
}

fn job_type(job_type: &declared::JobType) -> types::JobType {
    let ms = |threshold: std::time::Duration| u64::try_from(threshold.as_millis()).unwrap_or(u64::MAX);
    types::JobType {
        name: job_type.name.to_owned(),
        stale_after_queued_ms: job_type.stale_after_queued.map(ms),
        stale_after_processing_ms: job_type.stale_after_processing.map(ms),
        restart_safe: job_type.restart_safe,
        on_fail: job_type.on_fail.as_ref().map(parent_change),
        on_requeue: job_type.on_requeue.as_ref().map(parent_change),
    }
}

fn parent_change(change: &declared::ParentChange) -> types::ParentChange {
    types::ParentChange {
        table: change.table.to_owned(),
        key: change.key.to_owned(),
        job_column: change.job_column.to_owned(),
        status_column: change.status_column.to_owned(),
        from: owned(change.from),
        to: change.to.to_owned(),
        error: change.error.map(str::to_owned),
        updated_at: change.updated_at.map(str::to_owned),
    }
}

fn queue(rule: &declared::QueueRule) -> types::QueueRule {
    types::QueueRule {
        name: rule.name.to_owned(),
        job_id: rule.job_id.to_owned(),
        payload_key: rule.payload_key.to_owned(),
        job_names: match rule.job_names {
            declared::JobNames::Any => types::JobNames::Any,
            declared::JobNames::Only(names) => types::JobNames::Only(owned(names)),
        },
        foreign_names: owned(rule.foreign_names),
        name_key: rule.name_key.map(str::to_owned),
        ours_when: rule
            .ours_when
            .map(|ours| types::PayloadMatch { path: ours.path.to_owned(), in_: owned(ours.is_in) }),
    }
}

fn read(read: &declared::Read) -> types::Read {
    types::Read {
        name: read.name.to_owned(),
        table: read.table.to_owned(),
        columns: owned(read.columns),
        match_column: read.match_column.to_owned(),
        job_column: read.job_column.to_owned(),
        order_by: owned(read.order_by),
        limit: read.limit,
    }
}

fn owned(names: &[&str]) -> Vec<String> {
    names.iter().map(|&name| name.to_owned()).collect()
}
