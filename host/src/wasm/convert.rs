//! Contract types to core's and back, by hand and all in this file.

use std::io;
use std::time::Duration;

use jiff::fmt::temporal::DateTimePrinter;
use salvage_core::decision::{Decision, Requeue};
use salvage_core::manifest::{
    HandlerManifest, IdTemplate, JobNames, JobType, ParentChange, PayloadMatch, PayloadPath, QueueRule, Read,
    Source, TableMapping,
};
use salvage_core::sighting::Residue;

use super::contract::{self, types};
use crate::ports::Question;

/// `updated-at` has microseconds, as PostgreSQL's columns do.
const TIMESTAMPS: DateTimePrinter = DateTimePrinter::new().precision(Some(6));

/// A question's inputs as lists of borrowed rows, which the contract's `input` borrows again.
pub(super) fn rows<'a>(question: &Question<'a>) -> Vec<Vec<&'a str>> {
    question.inputs.reads.iter().map(|read| read.rows.iter().map(String::as_str).collect()).collect()
}

/// The inputs of a question, given [`rows`] of the same.
pub(super) fn inputs<'a>(question: &Question<'a>, rows: &'a [Vec<&'a str>]) -> Vec<contract::Input<'a>> {
    let reads = question.inputs.reads.iter();
    reads
        .zip(rows)
        .map(|(read, rows)| contract::Input { name: &read.name, rows, truncated: read.truncated })
        .collect()
}

/// When the row was last written, as the contract has it.
pub(super) fn updated_at(question: &Question<'_>) -> String {
    TIMESTAMPS.timestamp_to_string(&question.candidate.updated)
}

/// The job of a question, given [`updated_at`] of the same.
pub(super) fn job<'a>(question: &Question<'a>, updated_at: &'a str) -> contract::Job<'a> {
    let (candidate, source) = (question.candidate, &question.source.name);
    let (residue, failed_reason) = match question.residue {
        Residue::None => (types::Residue::None, None),
        Residue::Completed { .. } => (types::Residue::Completed, None),
        Residue::Failed { reason, .. } => (types::Residue::Failed, reason.as_deref()),
        Residue::HashOnly => (types::Residue::HashOnly, None),
    };
    contract::Job {
        domain: &source.domain,
        source: &source.source,
        id: &candidate.token.id,
        type_: &candidate.job_type,
        status: &candidate.token.status,
        updated_at,
        columns: &question.inputs.columns,
        recoveries: question.recoveries,
        residue,
        failed_reason,
    }
}

/// Bytes of an answer.
pub(super) fn answer_bytes(answer: &Result<contract::Decision, String>) -> u64 {
    let bytes = match answer {
        Ok(contract::Decision::Requeue(requeue)) => {
            requeue.queue.len() + requeue.name.len() + requeue.data.len() + requeue.options.len()
        }
        Ok(contract::Decision::Fail(text) | contract::Decision::Hold(text)) | Err(text) => text.len(),
    };
    bytes as u64
}

/// Bytes of a manifest, written as JSON.
pub(super) fn manifest_bytes(manifest: &contract::HandlerManifest) -> u64 {
    struct Counter(u64);
    impl io::Write for Counter {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0 += bytes.len() as u64;
            Ok(bytes.len())
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }
    let mut counter = Counter(0);
    serde_json::to_writer(&mut counter, manifest)
        .expect("records of strings are JSON, and counting never fails");
    counter.0
}

/// A decision in core's words.
pub(super) fn decision(decision: contract::Decision) -> Decision {
    match decision {
        contract::Decision::Requeue(requeue) => Decision::Requeue(Requeue {
            queue: requeue.queue,
            name: requeue.name,
            data: requeue.data,
            options: requeue.options,
        }),
        contract::Decision::Fail(reason) => Decision::Fail(reason),
        contract::Decision::Hold(reason) => Decision::Hold(reason),
    }
}

/// A manifest in core's words.
///
/// # Errors
/// Every rule it breaks, as sentences for its author.
pub(super) fn manifest(declared: contract::HandlerManifest) -> Result<HandlerManifest, Vec<String>> {
    let mut faults = Vec::new();
    let sources = declared.sources.into_iter().map(|from| source(from, &mut faults)).collect();
    let manifest = HandlerManifest { domain: declared.domain, description: declared.description, sources };
    faults.extend(manifest.faults());
    if faults.is_empty() { Ok(manifest) } else { Err(faults) }
}

fn source(declared: types::Source, faults: &mut Vec<String>) -> Source {
    let queues = declared.queues.into_iter().map(|rule| queue(rule, &declared.name, faults)).collect();
    Source {
        table: table(declared.table),
        job_types: declared.job_types.into_iter().map(job_type).collect(),
        queues,
        reads: declared.reads.into_iter().map(read).collect(),
        name: declared.name,
    }
}

fn table(declared: types::TableMapping) -> TableMapping {
    TableMapping {
        table: declared.table,
        id: declared.id,
        status: declared.status,
        updated_at: declared.updated_at,
        job_type: declared.job_type,
        progress: declared.progress,
        error: declared.error,
        extra_columns: declared.extra_columns,
        queued: declared.queued,
        processing: declared.processing,
        failed: declared.failed,
    }
}

fn job_type(declared: types::JobType) -> JobType {
    JobType {
        name: declared.name,
        stale_after_queued: declared.stale_after_queued_ms.map(Duration::from_millis),
        stale_after_processing: declared.stale_after_processing_ms.map(Duration::from_millis),
        restart_safe: declared.restart_safe,
        on_fail: declared.on_fail.map(parent_change),
        on_requeue: declared.on_requeue.map(parent_change),
    }
}

fn parent_change(declared: types::ParentChange) -> ParentChange {
    ParentChange {
        table: declared.table,
        key: declared.key,
        job_column: declared.job_column,
        status_column: declared.status_column,
        from: declared.from,
        to: declared.to,
        error: declared.error,
        updated_at: declared.updated_at,
    }
}

/// A rule without `{id}` is a fault; any rule may stand in for it, since the manifest is refused.
fn queue(declared: types::QueueRule, source: &str, faults: &mut Vec<String>) -> QueueRule {
    let parsed = IdTemplate::parse(&declared.job_id);
    if parsed.is_none() {
        faults.push(format!(
            "source {source:?}: queue {:?}: its job-id rule {:?} must contain {{id}} exactly once",
            declared.name, declared.job_id
        ));
    }
    let job_id = parsed.or_else(|| IdTemplate::parse("{id}")).expect("a rule with one {id}");
    let mut path = |path: String| {
        let parsed = PayloadPath::parse(&path);
        if parsed.is_none() {
            let queue = &declared.name;
            faults.push(format!(
                "source {source:?}: queue {queue:?}: {path:?} is no payload path: expected keys joined by dots, e.g. `meta.kind`"
            ));
        }
        parsed
    };
    QueueRule {
        job_names: match declared.job_names {
            types::JobNames::Any => JobNames::Any,
            types::JobNames::Only(names) => JobNames::Only(names),
        },
        foreign_names: declared.foreign_names,
        name_key: declared.name_key.and_then(&mut path),
        ours_when: declared
            .ours_when
            .and_then(|ours| Some(PayloadMatch { path: path(ours.path)?, is_in: ours.in_ })),
        ..QueueRule::new(&declared.name, job_id, &declared.payload_key)
    }
}

fn read(declared: types::Read) -> Read {
    Read {
        name: declared.name,
        table: declared.table,
        columns: declared.columns,
        match_column: declared.match_column,
        job_column: declared.job_column,
        order_by: declared.order_by,
        limit: declared.limit,
    }
}
