//! `cargo xtask soak-handlers`: what handlers cost a host that goes on for long.

use crate::{build, paths, run};
use anyhow::Result;
use std::process::Command;

#[derive(clap::Args)]
pub(crate) struct Options {
    /// Calls of a handler
    #[arg(long, default_value_t = 100_000)]
    calls: usize,
    /// Swaps of its file
    #[arg(long, default_value_t = 200)]
    swaps: usize,
    /// Build for debugging: sooner there, and far slower
    #[arg(long)]
    dev: bool,
}

pub(crate) fn run(options: &Options) -> Result<()> {
    build::handlers()?;
    let mut cargo = Command::new(paths::cargo());
    cargo.args(["run", "--package", "salvage-tests", "--example", "soak_handlers"]);
    if !options.dev {
        cargo.arg("--release");
    }
    cargo
        .arg("--")
        .arg(paths::handlers())
        .args([options.calls, options.swaps].map(|count| count.to_string()));
    run::step("call and swap handlers", || run::command(cargo.current_dir(paths::root())))
}
