//! Measures Salvage on private servers: against the procedure it replaces, and against the least that its reads can cost.
//!
//! `cargo xtask bench` builds everything and runs it. What was measured, and what follows from it, is in
//! `docs/performance.md`; what is aimed at is in `targets.toml`.
//!
//! | module | what it is for |
//! |---|---|
//! | `compare` | Salvage, the Node reference and the floor in turns, on the same seeded servers |
//! | `snapshot` | what each way of taking a snapshot costs Redis and its other clients |
//! | `seed` | the example application's tables and queues, the same for the same sizes |
//! | `meter` | what a run costs Redis and another of its clients |
//! | `launch` | what a run costs as a process |
#![expect(clippy::print_stdout, clippy::print_stderr, reason = "a command line talks to the terminal")]

mod compare;
mod launch;
mod meter;
mod seed;
mod snapshot;

use anyhow::Result;
use clap::{Parser, Subcommand};
use std::process::ExitCode;

#[derive(Parser)]
#[command(name = "salvage-bench", about = "Measures Salvage on private servers")]
struct Arguments {
    #[command(subcommand)]
    what: What,
}

#[derive(Subcommand)]
enum What {
    /// Salvage, the Node reference and the floor, in turns
    Compare(compare::Options),
    /// What each way of taking a snapshot costs
    Snapshot(snapshot::Options),
    /// One look of `snapshot`, in a process of its own
    #[command(hide = true)]
    Look(snapshot::LookOptions),
    /// The floor of `compare`, in a process of its own
    #[command(hide = true)]
    Floor(compare::FloorOptions),
    /// Runs a command and writes down what it cost
    #[command(hide = true)]
    Launch(launch::Options),
}

fn main() -> ExitCode {
    let done = match Arguments::parse().what {
        What::Compare(options) => compare::run(&options),
        What::Snapshot(options) => snapshot::run(&options),
        What::Look(options) => snapshot::look(&options),
        What::Floor(options) => compare::floor(&options),
        What::Launch(options) => launch::run(&options),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// One thread: what is measured shares the machine with us.
fn runtime() -> Result<tokio::runtime::Runtime> {
    Ok(tokio::runtime::Builder::new_current_thread().enable_all().build()?)
}
