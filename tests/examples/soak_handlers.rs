//! What handlers cost a host that goes on for long: many calls, and many swaps under them.
//!
//! `cargo xtask soak-handlers` runs it. A host's handlers, without stores: the shipped slides' handler is asked again and again,
//! each time in a fresh store, while its file is replaced in turn by two builds. Prints the time of a call, and the
//! process's memory as it goes; fails if that grows.
#![expect(clippy::print_stdout, reason = "it prints its figures")]

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use salvage::ports::{Handlers, Input, JobInputs, Question};
use salvage::wasm::{Live, Loader, Runtime, STILL, Terms};
use salvage_core::candidate::{Candidate, LiveStatus, RowToken};
use salvage_core::grants::GrantsMode;
use salvage_core::sighting::Residue;
use salvage_core::source::{ColumnTypes, IdKind, ResolvedSource, SourceName, Standing};
use serde_json::json;

/// Growth that is no leak: the allocator's own, and what is measured while a build is being loaded.
const GROWTH_MAX_KIB: u64 = 16 * 1024;

/// Rows of its read.
const ROWS: usize = 5;

#[tokio::main]
async fn main() -> Result<()> {
    let mut arguments = std::env::args().skip(1);
    let folder = PathBuf::from(arguments.next().context("the folder of the built handlers is missing")?);
    let mut number = |default: usize| arguments.next().map_or(Ok(default), |text| text.parse());
    let (calls, swaps) = (number(100_000)?, number(200)?);
    let mut host = Host::start(&folder).await?;
    // What is made once is made now.
    host.calls(calls / 20).await?;
    host.swaps(swaps / 20).await?;
    println!("| what | how many | median | memory before | after |\n|---|---|---|---|---|");
    let before = rss_kib()?;
    let median = host.calls(calls).await?;
    let between = rss_kib()?;
    println!("| calls | {calls} | {median:?} | {before} KiB | {between} KiB |");
    let median = host.swaps(swaps).await?;
    let after = rss_kib()?;
    println!("| swaps | {swaps} | {median:?} | {between} KiB | {after} KiB |");
    let grown = between.max(after).saturating_sub(before);
    ensure!(grown < GROWTH_MAX_KIB, "{grown} KiB more than before");
    Ok(())
}

/// A host's handlers, and a folder of one file.
struct Host {
    file: PathBuf,
    builds: [Vec<u8>; 2],
    loader: Loader,
    live: Live,
    now: Duration,
    _folder: tempfile::TempDir,
}

impl Host {
    async fn start(handlers: &Path) -> Result<Self> {
        let folder = tempfile::tempdir()?;
        let file = folder.path().join("slides.wasm");
        let path = handlers.join("slides.wasm");
        let first = std::fs::read(&path).with_context(|| format!("reading {}", path.display()))?;
        // The same with a custom section more.
        let second = [&first[..], &[0, 2, 1, b'x']].concat();
        std::fs::write(&file, &first)?;
        let terms = Terms { mode: GrantsMode::Declared, ..Terms::of(folder.path().to_owned()) };
        let mut loader = Loader::start(&Runtime::start()?, terms).await;
        let live = Live::new(loader.settle());
        loader.confirm();
        Ok(Self { file, builds: [first, second], loader, live, now: Duration::ZERO, _folder: folder })
    }

    /// Asks so often; the median time of a call.
    async fn calls(&self, count: usize) -> Result<Duration> {
        let orphan = Orphan::new(&self.live)?;
        let mut times = Vec::with_capacity(count);
        for _ in 0..count {
            let began = Instant::now();
            orphan.ask(&self.live).await?;
            times.push(began.elapsed());
        }
        Ok(median(times))
    }

    /// Replaces the file so often, each time until the new build serves and has answered; the median time of a swap.
    async fn swaps(&mut self, count: usize) -> Result<Duration> {
        let mut times = Vec::with_capacity(count);
        for _ in 0..count {
            self.builds.reverse();
            std::fs::write(&self.file, &self.builds[0])?;
            let began = Instant::now();
            let mut is_changed = false;
            for _ in 0..2 {
                self.now += STILL;
                is_changed = self.loader.look(self.now).await.is_changed;
            }
            ensure!(is_changed, "the new build was not seen");
            self.live.offer(self.loader.settle());
            self.loader.confirm();
            self.live.between_passes().await;
            Orphan::new(&self.live)?.ask(&self.live).await?;
            times.push(began.elapsed());
        }
        Ok(median(times))
    }
}

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort();
    times.get(times.len() / 2).copied().unwrap_or_default()
}

/// A generation that is lost, of eight columns, and a read of several rows.
struct Orphan {
    candidate: Candidate,
    source: ResolvedSource,
    inputs: JobInputs,
}

impl Orphan {
    fn new(live: &Live) -> Result<Self> {
        let loaded = live.domains().into_iter().next().context("no handler serves")?;
        let declared = loaded.manifest.sources[0].clone();
        let columns = json!({ "id": "j1", "deckId": "d1", "type": "GENERATION", "status": "QUEUED", "progress": 0,
            "error": null, "createdAt": "2026-01-31T09:00:00.000000Z", "updatedAt": "2026-01-31T09:00:00.000000Z" });
        let row = json!({ "id": "d1", "title": "Whales", "status": "GENERATING" }).to_string();
        let token = RowToken {
            id: "j1".to_owned(),
            status: declared.table.queued.clone(),
            updated_at: "2026-01-31 09:00:00".to_owned(),
            xmin: "1".to_owned(),
        };
        Ok(Self {
            candidate: Candidate {
                source: 0,
                token,
                status: LiveStatus::Queued,
                job_type: "GENERATION".to_owned(),
                updated: "2026-01-31T09:00:00Z".parse()?,
            },
            source: ResolvedSource {
                name: SourceName { domain: loaded.manifest.domain.clone(), source: declared.name.clone() },
                declared,
                id_kind: IdKind::Text,
                types: ColumnTypes::default(),
                standing: Standing::Active,
                component_digest: loaded.digest,
                database_role: None,
            },
            inputs: JobInputs {
                columns: columns.to_string(),
                reads: vec![Input { name: "deck".to_owned(), rows: vec![row; ROWS], truncated: false }],
                digest: String::new(),
            },
        })
    }

    async fn ask(&self, live: &Live) -> Result<()> {
        let Self { candidate, source, inputs } = self;
        let question = Question { candidate, source, inputs, residue: &Residue::None, recoveries: 0 };
        live.decide(&question).await.decision?;
        Ok(())
    }
}

/// What this process holds in memory now.
fn rss_kib() -> Result<u64> {
    let status =
        std::fs::read_to_string("/proc/self/status").context("reading this system's process table")?;
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).context("no size of this process")?;
    line.split_whitespace().nth(1).context("no number")?.parse().context("no number")
}
