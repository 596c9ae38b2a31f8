//! Builders for tests: small sources and candidates that read as what they are.

use crate::candidate::{Candidate, LiveStatus, RowToken};
use crate::lookup::Lookup;
use crate::manifest::{IdTemplate, JobNames, JobType, QueueRule, Source, TableMapping};
use crate::snapshot::{IdsPage, QueueReading, Server, Snapshot, State};
use crate::source::{ColumnTypes, IdKind, ResolvedSource, SourceName, Standing};

/// A source over table `name`, with one restart-safe type `T` and (queue, rule) pairs; the payload key is `jobId`.
pub(crate) fn source(name: &str, id_kind: IdKind, queues: &[(&str, &str)]) -> ResolvedSource {
    let queue = |(name, rule): &(&str, &str)| QueueRule {
        job_names: JobNames::Only(vec!["work".into()]),
        ..QueueRule::new(name, IdTemplate::parse(rule).expect("a rule with one {id}"), "jobId")
    };
    let declared = Source {
        name: name.into(),
        table: table(name),
        job_types: vec![job_type("T", true)],
        queues: queues.iter().map(queue).collect(),
        reads: vec![],
    };
    ResolvedSource {
        name: SourceName { domain: "test".into(), source: name.into() },
        declared,
        id_kind,
        types: ColumnTypes::default(),
        standing: Standing::Active,
        component_digest: "digest".into(),
        database_role: None,
    }
}

pub(crate) fn table(name: &str) -> TableMapping {
    TableMapping {
        table: name.into(),
        id: "id".into(),
        status: "status".into(),
        updated_at: "updatedAt".into(),
        job_type: Some("type".into()),
        progress: None,
        error: None,
        extra_columns: vec![],
        queued: "QUEUED".into(),
        processing: "PROCESSING".into(),
        failed: "FAILED".into(),
    }
}

pub(crate) fn job_type(name: &str, restart_safe: bool) -> JobType {
    JobType {
        name: name.into(),
        stale_after_queued: None,
        stale_after_processing: None,
        restart_safe,
        on_fail: None,
        on_requeue: None,
    }
}

/// A PROCESSING candidate of the source at that index.
pub(crate) fn candidate(source: usize, id: &str) -> Candidate {
    Candidate {
        source,
        token: RowToken {
            id: id.into(),
            status: "PROCESSING".into(),
            updated_at: "2026-01-31 09:00:00".into(),
            xmin: "7".into(),
        },
        status: LiveStatus::Processing,
        job_type: "T".into(),
        updated: jiff::Timestamp::UNIX_EPOCH,
    }
}

/// A healthy queue that holds these entries.
pub(crate) fn queue(entries: &[(State, &str)]) -> QueueReading {
    let ids_of = |state| entries.iter().filter(move |(of, _)| *of == state).map(|(_, id)| (*id).to_owned());
    QueueReading {
        has_meta: true,
        id_counter: Some(100),
        ids: State::ALL.into_iter().map(|state| (state, ids_of(state).collect())).collect(),
        lengths: State::ALL.into_iter().map(|state| (state, ids_of(state).count())).collect(),
        ..QueueReading::default()
    }
}

/// A healthy master that holds these queues.
pub(crate) fn snapshot(queues: Vec<(&str, QueueReading)>) -> Snapshot {
    Snapshot {
        prefix: "bull".into(),
        at_ms: 1_000_000,
        server: server(),
        queues: queues.into_iter().map(|(name, reading)| (name.to_owned(), reading)).collect(),
    }
}

pub(crate) fn server() -> Server {
    Server {
        role: "master".into(),
        loading: false,
        run_id: "run-1".into(),
        replid: "repl-1".into(),
        evicted_keys: 0,
        maxmemory_policy: "noeviction".into(),
    }
}

/// The direct look-up of everything that came with a snapshot.
pub(crate) fn seen<'a>(
    sources: &'a [ResolvedSource],
    candidates: &'a [Candidate],
    snapshot: &Snapshot,
) -> Lookup<'a> {
    let mut lookup = Lookup::new(sources, candidates, 0);
    for (queue, reading) in &snapshot.queues {
        for (state, ids) in &reading.ids {
            lookup.see(queue, *state, &IdsPage { ids: ids.into(), flaw: None });
        }
    }
    lookup
}
