//! `cargo xtask bench-snapshot`: what each way of taking a snapshot costs, see `docs/snapshots.md`.

use crate::{paths, run, setup};
use anyhow::Result;
use salvage_services::tools;
use std::process::Command;

#[derive(clap::Args)]
pub(crate) struct Options {
    /// How many ids the queue holds; several may be given [default: 100000 1000000]
    sizes: Vec<usize>,
}

pub(crate) fn run(options: &Options) -> Result<()> {
    setup::run()?;
    let mut cargo = Command::new(paths::cargo());
    cargo.args(["run", "--release", "--package", "salvage-tests", "--example", "bench_snapshot", "--"]);
    cargo.args(options.sizes.iter().map(usize::to_string));
    cargo.env(tools::REDIS_SERVER, tools::redis_server()?).current_dir(paths::root());
    run::step("measure snapshots", || run::command(&mut cargo))
}
