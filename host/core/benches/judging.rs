//! What judging costs by itself, without Redis: the ids of a snapshot pass by the candidates once.
//!
//! `cargo bench --package salvage-core`. The adapter has the ids in memory already, so what is measured is taking them
//! apart by the queue's rules, bringing them into the column's form, and finding the candidate.

use std::hint::black_box;

use criterion::{BatchSize, Criterion, Throughput, criterion_group, criterion_main};
use salvage_core::candidate::{Candidate, LiveStatus, RowToken};
use salvage_core::lookup::Lookup;
use salvage_core::manifest::{IdTemplate, QueueRule, Source, TableMapping};
use salvage_core::payload::row_named_in;
use salvage_core::snapshot::{IdsPage, State};
use salvage_core::source::{ColumnTypes, IdKind, ResolvedSource, SourceName, Standing};

const QUEUE: &str = "queue";
const IDS: usize = 1_000_000;
const CANDIDATES: usize = 100_000;

/// As the pass hands them over.
const PAGE: usize = 10_000;

criterion_group!(benches, look_up, index, payload);
criterion_main!(benches);

/// 100,000 candidates among 1,000,000 ids: a tenth of them is not there, so that every id is looked at.
fn look_up(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("look-up of 100k candidates in 1M ids");
    group.throughput(Throughput::Elements(IDS as u64)).sample_size(10);
    for (name, kind, rule) in [
        ("text", IdKind::Text, "job-{id}"),
        ("uuid", IdKind::Uuid, "{id}"),
        ("bigint", IdKind::Bigint, "job-{id}"),
    ] {
        let sources = [source(kind, rule)];
        let ids: Vec<String> = (0..IDS).map(|number| rule.replace("{id}", &row_id(kind, number))).collect();
        let candidates: Vec<Candidate> = (0..CANDIDATES)
            .map(|index| candidate(&row_id(kind, index * IDS / CANDIDATES * 10 / 9)))
            .collect();
        group.bench_function(name, |bencher| {
            bencher.iter_batched(
                || Lookup::new(&sources, &candidates, 0),
                |mut lookup| {
                    for page in ids.chunks(PAGE) {
                        lookup.see(QUEUE, State::Waiting, &IdsPage { ids: page.into(), flaw: None });
                    }
                    lookup.unresolved()
                },
                BatchSize::PerIteration,
            );
        });
    }
}

/// What it takes before the first id is seen.
fn index(criterion: &mut Criterion) {
    let sources = [source(IdKind::Text, "job-{id}")];
    let candidates: Vec<Candidate> =
        (0..CANDIDATES).map(|index| candidate(&row_id(IdKind::Text, index))).collect();
    criterion.bench_function("index of 100k candidates", |bencher| {
        bencher.iter(|| Lookup::new(&sources, black_box(&candidates), 0).unresolved());
    });
}

/// The row's id in a payload of half a kilobyte, which the scan reads of each entry under another id.
fn payload(criterion: &mut Criterion) {
    let payload = format!(r#"{{"jobId":"c0123456789","userId":7,"input":"{}"}}"#, "z".repeat(500));
    let source = source(IdKind::Text, "job-{id}");
    let rule = &source.declared.queues[0];
    criterion.bench_function("row id in a payload of 540 bytes", |bencher| {
        bencher.iter(|| row_named_in(black_box(&payload), &source, rule));
    });
}

fn row_id(kind: IdKind, number: usize) -> String {
    match kind {
        IdKind::Text => format!("c{number:024}"),
        IdKind::Uuid => format!("00000000-0000-4000-8000-{number:012}"),
        IdKind::Bigint => number.to_string(),
    }
}

fn candidate(id: &str) -> Candidate {
    Candidate {
        source: 0,
        token: RowToken {
            id: id.into(),
            status: "QUEUED".into(),
            updated_at: "2026-01-31 09:00:00".into(),
            xmin: "7".into(),
        },
        status: LiveStatus::Queued,
        job_type: "T".into(),
        updated: jiff::Timestamp::UNIX_EPOCH,
    }
}

fn source(id_kind: IdKind, rule: &str) -> ResolvedSource {
    let rule = QueueRule::new(QUEUE, IdTemplate::parse(rule).expect("a rule with one {id}"), "jobId");
    let table = TableMapping {
        table: "Job".into(),
        id: "id".into(),
        status: "status".into(),
        updated_at: "updatedAt".into(),
        job_type: None,
        progress: None,
        error: None,
        extra_columns: vec![],
        queued: "QUEUED".into(),
        processing: "PROCESSING".into(),
        failed: "FAILED".into(),
    };
    ResolvedSource {
        name: SourceName { domain: "bench".into(), source: "jobs".into() },
        declared: Source { name: "jobs".into(), table, job_types: vec![], queues: vec![rule], reads: vec![] },
        id_kind,
        types: ColumnTypes::default(),
        standing: Standing::Active,
        component_digest: String::new(),
        database_role: None,
    }
}
