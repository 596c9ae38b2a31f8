//! What the simulated deployment declares: two sources over two shared queues, and one kind of parent.
//!
//! | source | types | queues | parent on fail |
//! |---|---|---|---|
//! | slides/generation | GENERATION, OUTLINE (not restart-safe) | both, `slide-{id}` | deck's status |
//! | exports/slide-export | PDF, PPTX (never rebuilt) | both, `export-{id}` | deck's export status |
//!
//! Few, so that thousands of histories a minute pass by; crosswise, so that each queue holds jobs of both and every
//! parent has siblings.

use std::time::Duration;

use salvage::ports::LoadedDomain;
use salvage_core::act::Act;
use salvage_core::decision::{Decision, Requeue};
use salvage_core::manifest::{
    HandlerManifest, IdTemplate, JobNames, JobType, ParentChange, QueueRule, Source, TableMapping,
};
use salvage_core::source::{ColumnTypes, IdKind, ResolvedSource, SourceName, Standing};

use super::redis::JOB_NAME;

/// The queues, by index.
pub(super) const QUEUES: [&str; 2] = ["slide-generation", "slide-export"];

/// How many sources there are; a source's index is its place among the resolved ones.
pub(super) const SOURCES: usize = 2;

/// The types of each source.
pub(super) const TYPES: [[&str; 2]; SOURCES] = [["GENERATION", "OUTLINE"], ["PDF", "PPTX"]];

/// What precedes a row's id in an entry's id, by source.
pub(super) const RULES: [&str; SOURCES] = ["slide-", "export-"];

/// The deck's column that a source's jobs map to.
pub(super) const PARENT_COLUMNS: [&str; SOURCES] = ["status", "exportStatus"];

/// The deck's state of work in that column.
pub(super) const PARENT_BUSY: [&str; SOURCES] = ["GENERATING", "EXPORTING"];

/// The index of a queue.
pub(super) fn queue_index(name: &str) -> usize {
    QUEUES.iter().position(|queue| *queue == name).expect("a queue of the simulation")
}

/// The entry id of a row under the current rule.
pub(super) fn entry_id(source: usize, row_id: &str) -> String {
    format!("{}{row_id}", RULES[source])
}

/// The domains as a registry would hold them.
pub(super) fn loaded() -> Vec<LoadedDomain> {
    let names = [("slides", "generation", "SlideJob"), ("exports", "slide-export", "SlideExportJob")];
    let domain = |(index, (domain, source, table)): (usize, (&str, &str, &str))| LoadedDomain {
        manifest: HandlerManifest {
            domain: domain.into(),
            description: "A simulated domain.".into(),
            sources: vec![declared(index, source, table)],
        },
        standing: Standing::Active,
        digest: "simulated".into(),
        database_role: None,
        capture: salvage_core::capture::CapturePolicy::default(),
    };
    names.into_iter().enumerate().map(domain).collect()
}

/// The sources as the catalog would resolve them.
pub(super) fn resolved(domains: &[LoadedDomain]) -> Vec<ResolvedSource> {
    let of_domain = |domain: &LoadedDomain| {
        let source = |source: &Source| ResolvedSource {
            name: SourceName { domain: domain.manifest.domain.clone(), source: source.name.clone() },
            declared: source.clone(),
            id_kind: IdKind::Text,
            types: ColumnTypes::default(),
            standing: domain.standing,
            component_digest: domain.digest.clone(),
            database_role: None,
        };
        domain.manifest.sources.iter().map(source).collect::<Vec<_>>()
    };
    domains.iter().flat_map(of_domain).collect()
}

/// The index of a resolved source.
pub(super) fn source_index(source: &ResolvedSource) -> usize {
    usize::from(source.name.domain != "slides")
}

/// The index of an act's source; a pass has an order of its own.
pub(super) fn source_of(act: &Act) -> usize {
    let is_it = |rule: &str| act.places.iter().any(|place| place.entry_id.starts_with(rule));
    RULES.iter().position(|rule| is_it(rule)).expect("an act of this world")
}

fn declared(index: usize, name: &str, table: &str) -> Source {
    let job_id = IdTemplate::parse(&format!("{}{{id}}", RULES[index])).expect("a rule with one {id}");
    let rule = |queue: &&str| QueueRule {
        job_names: JobNames::Only(vec![JOB_NAME.into()]),
        ..QueueRule::new(queue, job_id.clone(), "jobId")
    };
    let job_type = |name: &str| JobType {
        name: name.into(),
        stale_after_queued: None,
        stale_after_processing: None,
        restart_safe: name != "OUTLINE",
        on_fail: Some(parent(index, PARENT_BUSY[index], "FAILED")),
        on_requeue: (name == "GENERATION").then(|| parent(index, "FAILED", PARENT_BUSY[index])),
    };
    Source {
        name: name.into(),
        table: TableMapping {
            table: table.into(),
            id: "id".into(),
            status: "status".into(),
            updated_at: "updatedAt".into(),
            job_type: Some("type".into()),
            progress: Some("progress".into()),
            error: Some("error".into()),
            extra_columns: vec![],
            queued: "QUEUED".into(),
            processing: "PROCESSING".into(),
            failed: "FAILED".into(),
        },
        job_types: TYPES[index].map(job_type).to_vec(),
        queues: QUEUES.iter().map(rule).collect(),
        reads: vec![],
    }
}

fn parent(index: usize, from: &str, to: &str) -> ParentChange {
    ParentChange {
        table: "SlideDeck".into(),
        key: "id".into(),
        job_column: "deckId".into(),
        status_column: PARENT_COLUMNS[index].into(),
        from: vec![from.into()],
        to: to.into(),
        error: Some("error".into()),
        updated_at: None,
    }
}

/// What the handlers answer: a PPTX can never be rebuilt, everything else can.
pub(super) fn decide(source: usize, job_type: &str, row_id: &str) -> Decision {
    if job_type == "PPTX" {
        return Decision::Fail("Its template is gone.".into());
    }
    Decision::Requeue(Requeue {
        queue: QUEUES[source].into(),
        name: "run".into(),
        data: payload(row_id),
        options: "{}".into(),
    })
}

/// The payload of a row's job.
pub(super) fn payload(row_id: &str) -> String {
    format!(r#"{{"jobId":"{row_id}"}}"#)
}

/// What a producer's payloads look like.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Shape {
    /// As the manifest says.
    Plain,
    /// The row's id stands where the manifest does not look.
    Wrapped,
    /// No row's id at all.
    Opaque,
}

/// The payload of a row's job, as its producer makes it.
pub(super) fn payload_of(shape: Shape, row_id: &str) -> String {
    match shape {
        Shape::Plain => payload(row_id),
        Shape::Wrapped => format!(r#"{{"body":{{"job":"{row_id}"}}}}"#),
        Shape::Opaque => r#"{"to":"somebody"}"#.to_owned(),
    }
}

/// How long a handler takes.
pub(super) const DECIDE_TIME: Duration = Duration::from_millis(1);
