//! `cargo xtask bench`: measures, on private servers; see `docs/performance.md` and `docs/snapshots.md`.

use crate::{build, paths, run, setup};
use anyhow::{Context, Result};
use salvage_services::tools;
use std::fs;
use std::process::Command;

#[derive(clap::Args)]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct Options {
    #[command(subcommand)]
    part: Option<Part>,
    #[command(flatten)]
    compare: Compare,
}

#[derive(clap::Subcommand)]
enum Part {
    /// Measure what each way of taking a snapshot costs Redis, its other clients and the host
    Snapshot {
        /// How many ids the queue holds; several may be given [default: 100000 1000000]
        sizes: Vec<usize>,
    },
}

#[derive(clap::Args)]
struct Compare {
    /// Ids in all queues, and candidates [default: 10k/1k,100k/1k,100k/10k,1M/100k]
    #[arg(long, value_name = "IDS/CANDIDATES,…")]
    sizes: Option<String>,
    /// Leave out what depends on no size: payloads, nothing to do, idling
    #[arg(long)]
    no_rest: bool,
    /// Only that
    #[arg(long, conflicts_with_all = ["sizes", "no_rest"])]
    only_rest: bool,
    /// Print the figures as JSON, too; they are always left in `target/bench.json`
    #[arg(long)]
    json: bool,
    /// Fail if a ratio of `tests/bench/targets.toml` is missed
    #[arg(long)]
    check: bool,
}

impl Compare {
    fn arguments(&self) -> Vec<String> {
        let flags = [
            ("--no-rest", self.no_rest),
            ("--only-rest", self.only_rest),
            ("--json", self.json),
            ("--check", self.check),
        ];
        let flags = flags.into_iter().filter(|(_, is_set)| *is_set).map(|(flag, _)| flag.to_owned());
        let out = ["--out".to_owned(), paths::target().join("bench.json").display().to_string()];
        let sizes = self.sizes.iter().map(|sizes| format!("--sizes={sizes}"));
        out.into_iter().chain(sizes).chain(flags).collect()
    }
}

pub(crate) fn run(options: &Options) -> Result<()> {
    setup::run()?;
    build::handlers()?;
    let programs = build::release()?;
    let mut bench = Command::new(&programs.bench);
    match &options.part {
        Some(Part::Snapshot { sizes }) => bench.arg("snapshot").args(sizes.iter().map(usize::to_string)),
        None => bench.arg("compare").args(options.compare.arguments()),
    };
    let handlers = fs::canonicalize(paths::handlers()).context("finding the built handlers")?;
    bench
        .env("SALVAGE_TEST_BIN", fs::canonicalize(&programs.salvage).context("finding the built host")?)
        .env("SALVAGE_TEST_HANDLERS", handlers)
        .env("SALVAGE_TEST_BULLMQ", paths::bullmq())
        .env(tools::POSTGRES_BIN, tools::postgres_bin()?)
        .env(tools::REDIS_SERVER, tools::redis_server()?)
        .current_dir(paths::root());
    run::step("measure", || run::command(&mut bench))
}
