//! Files of handlers, good and bad, and questions to ask them.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};
use salvage::ports::{Answer, HandlerFault, Handlers, Input, JobInputs, Question};
use salvage::wasm::{Limits, LoadReport, Own, Registry, Runtime, Terms};
use salvage_core::candidate::{Candidate, LiveStatus, RowToken};
use salvage_core::decision::Decision;
use salvage_core::grants::{Grants, GrantsMode};
use salvage_core::sighting::Residue;
use salvage_core::source::{ColumnTypes, IdKind, ResolvedSource, SourceName, Standing};
pub(crate) use salvage_tests::foreign::{declaring, hostile, queue_rule};
use serde_json::{Value, json};
use tempfile::TempDir;
use wit_component::{ComponentEncoder, StringEncoding, dummy_module, embed_component_metadata};
use wit_parser::{LiftLowerAbi, ManglingAndAbi, Resolve};

/// The contract's text, to be changed in a test.
pub(crate) const CONTRACT: &str = include_str!("../../wit/v0.1/handler.wit");

/// One of the shipped handlers.
pub(crate) fn shipped(name: &str) -> Vec<u8> {
    built("SALVAGE_TEST_HANDLERS", &format!("{name}.wasm")).expect("a shipped handler")
}

fn built(variable: &str, file: &str) -> Result<Vec<u8>> {
    let folder = std::env::var_os(variable)
        .with_context(|| format!("{variable} is not set: run the tests by `cargo xtask test`"))?;
    let path = Path::new(&folder).join(file);
    std::fs::read(&path).with_context(|| format!("reading {}: run `cargo xtask test`", path.display()))
}

/// Another build that does the same: with a custom section more, of this name.
pub(crate) fn rebuilt(mut component: Vec<u8>, name: u8) -> Vec<u8> {
    component.extend([0, 2, 1, name]);
    component
}

/// A sound manifest of one source `jobs` with one job type.
pub(crate) fn manifest(domain: &str, table: &str, job_type: &str) -> Value {
    json!({
        "domain": domain,
        "description": "A domain of a test.",
        "sources": [{
            "name": "jobs",
            "table": {
                "table": table, "id": "id", "status": "status", "updated_at": "updatedAt", "job_type": "type",
                "extra_columns": [], "queued": "QUEUED", "processing": "PROCESSING", "failed": "FAILED",
            },
            "job_types": [{ "name": job_type, "restart_safe": true }],
            "queues": [queue_rule(&format!("{domain}-queue"), "{id}", &["work"])],
            "reads": [],
        }],
    })
}

/// A component of the world `handler` as `wit` has it, whose functions trap.
pub(crate) fn component_of(wit: &str) -> Vec<u8> {
    let mut resolve = Resolve::default();
    let package = resolve.push_source("test.wit", wit).expect("a contract that parses");
    let world = resolve.select_world(&[package], Some("handler")).expect("a world");
    let mut module = dummy_module(&resolve, world, ManglingAndAbi::Legacy(LiftLowerAbi::Sync));
    embed_component_metadata(&mut module, &resolve, world, StringEncoding::UTF8).expect("metadata");
    ComponentEncoder::default().module(&module).expect("a module").encode().expect("a component")
}

/// The component with a further core instance whose only part is a memory of so many 64 KiB pages.
pub(crate) fn with_further_memory(mut component: Vec<u8>, pages: u8) -> Vec<u8> {
    const CORE_MODULE: u8 = 1;
    const CORE_INSTANCE: u8 = 2;
    assert!((64..128).contains(&pages), "so that it takes two LEB128 bytes of which the second is 0");
    let memory_section = [5, 4, 1, 0, pages | 0x80, 0];
    let module = [b"\0asm\x01\0\0\0".as_slice(), &memory_section].concat();
    let index =
        u8::try_from(sections(&component).filter(|id| *id == CORE_MODULE).count()).expect("few modules");
    component.extend([CORE_MODULE, u8::try_from(module.len()).expect("a small module")]);
    component.extend(module);
    // One instance, instantiated from the module, without arguments.
    component.extend([CORE_INSTANCE, 4, 1, 0, index, 0]);
    component
}

/// Ids of the outermost sections.
fn sections(component: &[u8]) -> impl Iterator<Item = u8> {
    let mut rest = &component[8..];
    std::iter::from_fn(move || {
        let (id, after) = rest.split_first()?;
        let size_bytes = 1 + after.iter().position(|byte| byte & 0x80 == 0).expect("a size");
        let (size, body) = after.split_at(size_bytes);
        let size = size.iter().rev().fold(0, |sum, byte| (sum << 7) | usize::from(byte & 0x7f));
        rest = &body[size..];
        Some(*id)
    })
}

/// The usual limits but for time: a test that is about something else shall not fail on a busy machine.
pub(crate) fn patient() -> Limits {
    Limits { run_time: Duration::from_secs(10), ..Limits::default() }
}

/// An engine that finds compiled what an earlier test compiled.
pub(crate) fn runtime() -> Runtime {
    let caches = std::env::var_os("XDG_CACHE_HOME").map(|folder| Path::new(&folder).join("salvage"));
    Runtime::start_with(caches.as_deref()).expect("an engine")
}

/// A folder of handler files.
pub(crate) struct Folder(TempDir);

impl Folder {
    pub(crate) fn of(files: &[(&str, Vec<u8>)]) -> Self {
        let folder = Self(TempDir::new().expect("a temporary folder"));
        for (name, bytes) in files {
            std::fs::write(folder.path().join(name), bytes).expect("a file");
        }
        folder
    }

    pub(crate) fn path(&self) -> PathBuf {
        self.0.path().to_owned()
    }

    pub(crate) async fn load(&self, mode: GrantsMode, grants: &BTreeMap<String, Grants>) -> Registry {
        self.load_within(&patient(), mode, grants).await
    }

    pub(crate) async fn load_within(
        &self,
        limits: &Limits,
        mode: GrantsMode,
        grants: &BTreeMap<String, Grants>,
    ) -> Registry {
        let own = |grants: &Grants| Own { grants: Some(grants.clone()), limits: *limits, ..Own::default() };
        let named = grants.iter().map(|(domain, grants)| (domain.clone(), own(grants))).collect();
        let terms = Terms { mode, named, ..self.terms() }.within(*limits);
        Registry::load(&runtime(), terms).await
    }

    /// The defaults.
    pub(crate) fn terms(&self) -> Terms {
        Terms::of(self.path())
    }

    /// Every handler granted all it declares.
    pub(crate) async fn trusted(&self) -> Registry {
        self.load(GrantsMode::Declared, &BTreeMap::new()).await
    }
}

/// The hostile handler, serving within `limits`.
pub(crate) async fn hostile_within(limits: &Limits) -> Registry {
    let folder = Folder::of(&[("hostile.wasm", hostile())]);
    let registry = folder.load_within(limits, GrantsMode::Declared, &BTreeMap::new()).await;
    assert_eq!(lines(&registry), ["hostile.wasm active"]);
    registry
}

/// Each report in a line: file, state, and why not.
pub(crate) fn lines(registry: &Registry) -> Vec<String> {
    let line = |report: &LoadReport| {
        let why = report.why().map(|why| format!(": {why}")).unwrap_or_default();
        format!("{} {}{why}", report.file, report.state.word())
    };
    registry.reports().iter().map(line).collect()
}

/// The report of the only file.
pub(crate) async fn only_line(file: Vec<u8>) -> String {
    only_line_within(&patient(), file).await
}

/// The same, loaded within `limits`.
pub(crate) async fn only_line_within(limits: &Limits, file: Vec<u8>) -> String {
    let folder = Folder::of(&[("a.wasm", file)]);
    let registry = folder.load_within(limits, GrantsMode::Declared, &BTreeMap::new()).await;
    let lines = lines(&registry);
    assert_eq!(lines.len(), 1);
    lines.into_iter().next().expect("one line")
}

/// An orphan to ask about, queued, without inputs.
pub(crate) struct Orphan {
    pub(crate) source: ResolvedSource,
    pub(crate) candidate: Candidate,
    pub(crate) inputs: JobInputs,
    pub(crate) residue: Residue,
}

impl Orphan {
    /// Of the first source and job type of a domain.
    pub(crate) fn new(registry: &Registry, domain: &str, id: &str) -> Self {
        let loaded = registry.domains().into_iter().find(|loaded| loaded.manifest.domain == domain);
        let loaded = loaded.expect("a domain that serves");
        let declared = loaded.manifest.sources[0].clone();
        let candidate = Candidate {
            source: 0,
            token: RowToken {
                id: id.to_owned(),
                status: declared.table.queued.clone(),
                updated_at: "2026-01-31 09:00:00.1234".to_owned(),
                xmin: "1".to_owned(),
            },
            status: LiveStatus::Queued,
            job_type: declared.job_types[0].name.clone(),
            updated: "2026-01-31T09:00:00.1234Z".parse().expect("a time"),
        };
        let name = SourceName { domain: domain.to_owned(), source: declared.name.clone() };
        let source = ResolvedSource {
            name,
            declared,
            id_kind: IdKind::Text,
            types: ColumnTypes::default(),
            standing: Standing::Active,
            component_digest: loaded.digest,
            database_role: loaded.database_role,
        };
        let inputs = JobInputs { columns: "{}".to_owned(), reads: Vec::new(), digest: String::new() };
        Self { source, candidate, inputs, residue: Residue::None }
    }

    pub(crate) fn columns(mut self, columns: &Value) -> Self {
        self.inputs.columns = columns.to_string();
        self
    }

    pub(crate) fn read(mut self, name: &str, rows: &[Value]) -> Self {
        let rows = rows.iter().map(Value::to_string).collect();
        self.inputs.reads.push(Input { name: name.to_owned(), rows, truncated: false });
        self
    }

    pub(crate) fn residue(mut self, residue: Residue) -> Self {
        self.residue = residue;
        self
    }

    pub(crate) async fn ask_of(&self, handlers: &impl Handlers) -> Result<Decision, HandlerFault> {
        self.ask(handlers).await.decision
    }

    pub(crate) async fn ask(&self, handlers: &impl Handlers) -> Answer {
        let question = Question {
            candidate: &self.candidate,
            source: &self.source,
            inputs: &self.inputs,
            residue: &self.residue,
            recoveries: 2,
        };
        handlers.decide(&question).await
    }
}

/// What the hostile handler's behaviour `id` comes to.
pub(crate) async fn ask(registry: &Registry, id: &str) -> Result<Decision, HandlerFault> {
    Orphan::new(registry, "hostile", id).ask(registry).await.decision
}
