//! What the writes cost by themselves, on private servers: putting a job back in its queue, and the ledger.
//!
//! `cargo bench --package salvage-bench --bench stores`. The whole act, with the row's transaction around it, is measured
//! by `cargo xtask bench`.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use futures_util::StreamExt;
use salvage::ports::{Ledger, QueueTerms, Queues};
use salvage::postgres::{Pooler, Postgres};
use salvage::redis::{RedisQueues, RedisSettings};
use salvage_core::act::{ACTS_CONCURRENT, Act, Change, Place, ScriptAnswer};
use salvage_core::candidate::{Candidate, LiveStatus, RowToken};
use salvage_core::decision::Requeue;
use salvage_core::lease::Fence;
use salvage_core::ledger::{Entry, Evidence, Intent};
use salvage_core::source::SourceName;
use serde_json::json;
use tokio::runtime::Builder;

const QUEUE: &str = "slide-generation";
const OTHER: &str = "slide-export";

/// Acts of one measurement.
const ACTS: usize = 1_000;

/// As many stories as the pass writes in one statement.
const STORIES: usize = 500;

criterion_group!(benches, requeue, ledger);
criterion_main!(benches);

/// The queue's script, as many at once as a pass has in flight. Each act has an id of its own.
fn requeue(criterion: &mut Criterion) {
    let rt = Builder::new_current_thread().enable_all().build().expect("a runtime");
    let server = salvage_services::Redis::start().expect("a private Redis");
    let settings = RedisSettings::single(&server.url(), "bull", Duration::from_secs(30));
    let queues = RedisQueues::new(&settings).expect("settings");
    let terms = QueueTerms {
        fence: fence(),
        deadline_ms: u64::MAX >> 12,
        nonces: BTreeMap::new(),
        with_meta: BTreeSet::new(),
    };
    let mut next = 0;
    let mut group = criterion.benchmark_group("queue script");
    group.throughput(Throughput::Elements(ACTS as u64)).sample_size(10);
    group.bench_function("requeue", |bencher| {
        bencher.iter(|| {
            next += ACTS;
            let acts = (next..next + ACTS).map(act);
            let run = |act: Act| {
                let (queues, terms) = (&queues, &terms);
                async move { assert_eq!(queues.act(&act, terms).await, Ok(ScriptAnswer::Clear)) }
            };
            rt.block_on(futures_util::stream::iter(acts.map(run)).buffered(ACTS_CONCURRENT).count());
        });
    });
}

/// A batch of stories that were not told yet, the same told again, and a batch of intents.
fn ledger(criterion: &mut Criterion) {
    let rt = Builder::new_current_thread().enable_all().build().expect("a runtime");
    let server = salvage_services::Postgres::start().expect("a private PostgreSQL");
    let postgres = Postgres::new(&server.url("postgres"), Pooler::None, "bull").expect("a URL");
    let fence = rt.block_on(async {
        postgres.migrate().await.expect("the schema");
        postgres.raise_fence("global", "token").await.expect("a fence")
    });
    let mut group = criterion.benchmark_group("ledger");
    group.throughput(Throughput::Elements(STORIES as u64)).sample_size(10);
    let mut next = 0;
    let mut fresh = || {
        next += STORIES;
        (next..next + STORIES).map(story).collect::<Vec<Entry>>()
    };
    group.bench_function("new stories", |bencher| {
        bencher.iter(|| rt.block_on(postgres.record(&fresh(), &fence)).expect("recorded"));
    });
    let told: Vec<Entry> = (0..STORIES).map(story).collect();
    group.bench_function("stories as before", |bencher| {
        bencher.iter(|| rt.block_on(postgres.record(&told, &fence)).expect("recorded"));
    });
    let intents: Vec<Intent> =
        (0..STORIES).map(|n| Intent { source: source(), job_id: row_id(n), is_requeue: true }).collect();
    group.bench_function("intents", |bencher| {
        bencher.iter(|| rt.block_on(postgres.intend("pass", &fence, &intents)).expect("recorded"));
    });
}

fn row_id(number: usize) -> String {
    format!("c{number:024}")
}

fn source() -> SourceName {
    SourceName { domain: "slides".into(), source: "generation".into() }
}

fn fence() -> Fence {
    Fence { scope: "global".into(), generation: 5, pass_token: "token".into() }
}

fn act(number: usize) -> Act {
    let id = row_id(number);
    let entry_id = format!("slide-{id}");
    let place = |queue: &str| Place { queue: queue.into(), entry_id: entry_id.clone() };
    let places = vec![place(QUEUE), place(OTHER)];
    let requeue = Requeue {
        queue: QUEUE.into(),
        name: "generate".into(),
        data: json!({ "jobId": id, "deckId": "deck", "title": "Deck", "type": "GENERATION" }).to_string(),
        options: r#"{"attempts":3,"backoff":{"type":"exponential","delay":5000}}"#.into(),
    };
    Act {
        candidate: Candidate {
            source: 0,
            token: RowToken {
                id,
                status: "QUEUED".into(),
                updated_at: "2026-01-31 09:00:00".into(),
                xmin: "7".into(),
            },
            status: LiveStatus::Queued,
            job_type: "GENERATION".into(),
            updated: jiff::Timestamp::UNIX_EPOCH,
        },
        change: Change::Requeue { requeue, entry_id, delay: Duration::from_secs(3_600) },
        parent: None,
        inputs_digest: String::new(),
        places,
    }
}

fn story(number: usize) -> Entry {
    Entry {
        source: source(),
        job_id: row_id(number),
        job_type: "GENERATION".into(),
        row: json!({ "status": "QUEUED", "updatedAt": "2026-01-31 09:00:00", "xmin": "7" }),
        evidence: Evidence { generation: 1, ..Evidence::default() },
        sighting: "absent".into(),
        sighting_why: None,
        inputs_digest: Some("0".repeat(64)),
        component_digest: Some("0".repeat(64)),
        decision: "requeue".into(),
        decision_reason: None,
        outcome: Some("before-epoch".into()),
        outcome_why: Some("its queue is not accepted yet".into()),
        decide_us: Some(80),
    }
}
