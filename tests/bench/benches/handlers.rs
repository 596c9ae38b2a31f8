//! What a handler costs: compiled and loaded once, then a fresh store, an instance and a decision for each orphan.
//!
//! `cargo xtask build --handlers`, then `cargo bench --package salvage-bench --bench handlers`.

use std::path::{Path, PathBuf};

use criterion::{Criterion, criterion_group, criterion_main};
use salvage::ports::{Handlers, Input, JobInputs, Question};
use salvage::wasm::{Registry, Runtime, Terms};
use salvage_core::candidate::{Candidate, LiveStatus, RowToken};
use salvage_core::decision::Decision;
use salvage_core::grants::GrantsMode;
use salvage_core::sighting::Residue;
use salvage_core::source::{ColumnTypes, IdKind, ResolvedSource, SourceName, Standing};
use serde_json::json;
use tempfile::TempDir;
use tokio::runtime::Builder;

criterion_group!(benches, load, decide);
criterion_main!(benches);

/// From three files to three handlers that serve: what a process does at its start.
fn load(criterion: &mut Criterion) {
    let rt = Builder::new_multi_thread().enable_all().build().expect("a runtime");
    let mut group = criterion.benchmark_group("load");
    group.sample_size(10);
    group.bench_function("three handlers", |bencher| bencher.iter(|| rt.block_on(registry(None))));
    let cache = tempfile::tempdir().expect("a folder for the cache");
    rt.block_on(registry(Some(cache.path())));
    group.bench_function("three handlers, kept compiled", |bencher| {
        bencher.iter(|| rt.block_on(registry(Some(cache.path()))));
    });
}

/// One orphan: a fail, which reads nothing, of a handler in Rust and of one in TypeScript that decides the same; and a
/// composition of three tracks, which is put back.
fn decide(criterion: &mut Criterion) {
    let rt = Builder::new_current_thread().enable_all().build().expect("a runtime");
    let registry = rt.block_on(registry(None));
    let mut group = criterion.benchmark_group("decide");
    let pdf = Orphan::new(&registry, "exports", "slide-export", "PDF", vec![]);
    group.bench_function("an export, failed", |bencher| {
        bencher.iter(|| rt.block_on(pdf.ask(&registry)));
    });
    let (_folder, typescript) = rt.block_on(typescript());
    let pdf = Orphan::new(&typescript, "exports", "slide-export", "PDF", vec![]);
    group.bench_function("an export, failed, by TypeScript", |bencher| {
        bencher.iter(|| rt.block_on(pdf.ask(&typescript)));
    });
    let video = json!({ "id": "v", "title": "Video v", "status": "COMPOSING" }).to_string();
    let track = |n: u32| json!({ "kind": "clip", "sourceUrl": format!("media://v/{n}"), "startMs": n, "endMs": n + 1 });
    let input = |name: &str, rows| Input { name: name.to_owned(), rows, truncated: false };
    let tracks = (0..3).map(|n| track(n).to_string()).collect();
    let reads = vec![input("video", vec![video]), input("tracks", tracks)];
    let composition = Orphan::new(&registry, "video-composition", "composition", "COMPOSITION", reads);
    group.bench_function("a composition, put back", |bencher| {
        bencher.iter(|| rt.block_on(composition.ask(&registry)));
    });
}

async fn registry(cache: Option<&Path>) -> Registry {
    let runtime = Runtime::start_with(cache).expect("an engine");
    let terms = Terms { mode: GrantsMode::Declared, ..Terms::of(folder()) };
    let registry = Registry::load(&runtime, terms).await;
    assert_eq!(registry.domains().len(), 3, "run `cargo xtask build --handlers` first");
    registry
}

/// The exports' handler in TypeScript, with the folder it was loaded from.
async fn typescript() -> (TempDir, Registry) {
    let folder = tempfile::tempdir().expect("a folder for the handler");
    let built = Path::new(env!("CARGO_MANIFEST_DIR")).join("../data/exports-typescript.wasm");
    std::fs::copy(built, folder.path().join("exports.wasm")).expect("the component in tests/data");
    let runtime = Runtime::start().expect("an engine");
    let terms = Terms { mode: GrantsMode::Declared, ..Terms::of(folder.path().to_owned()) };
    let registry = Registry::load(&runtime, terms).await;
    (folder, registry)
}

/// `target/handlers`, unless the environment says otherwise.
fn folder() -> PathBuf {
    let built = || Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/handlers");
    std::env::var_os("SALVAGE_TEST_HANDLERS").map_or_else(built, PathBuf::from)
}

struct Orphan {
    source: ResolvedSource,
    candidate: Candidate,
    inputs: JobInputs,
}

impl Orphan {
    fn new(registry: &Registry, domain: &str, source: &str, job_type: &str, reads: Vec<Input>) -> Self {
        let domains = registry.domains();
        let loaded = domains.iter().find(|loaded| loaded.manifest.domain == domain).expect("the domain");
        let declared = loaded.manifest.sources.iter().find(|declared| declared.name == source);
        let declared = declared.expect("the source").clone();
        let token = RowToken {
            id: "c000000000000000000000001".to_owned(),
            status: "QUEUED".to_owned(),
            updated_at: "2026-01-31 09:00:00".to_owned(),
            xmin: "7".to_owned(),
        };
        let candidate = Candidate {
            source: 0,
            token,
            status: LiveStatus::Queued,
            job_type: job_type.to_owned(),
            updated: jiff::Timestamp::UNIX_EPOCH,
        };
        let source = ResolvedSource {
            name: SourceName { domain: domain.to_owned(), source: declared.name.clone() },
            declared,
            id_kind: IdKind::Text,
            types: ColumnTypes::default(),
            standing: Standing::Active,
            component_digest: loaded.digest.clone(),
            database_role: None,
        };
        let inputs = JobInputs { columns: "{}".to_owned(), reads, digest: String::new() };
        Self { source, candidate, inputs }
    }

    async fn ask(&self, registry: &Registry) -> Decision {
        let Self { source, candidate, inputs } = self;
        let question = Question { candidate, source, inputs, residue: &Residue::None, recoveries: 0 };
        registry.decide(&question).await.decision.expect("a decision")
    }
}
