//! Set-up, build, demo and test of the whole house in one place: `cargo xtask …`.
#![expect(clippy::print_stdout, clippy::print_stderr, reason = "a command line talks to the terminal")]

mod bench;
mod build;
mod demo;
mod install;
mod interrupt;
mod leaks;
mod paths;
mod run;
mod setup;
mod soak;
mod soak_handlers;
mod test;
mod typescript;

use clap::{Parser, Subcommand};
use std::process::ExitCode;

#[derive(Parser)]
#[command(name = "cargo xtask", about = "Set-up, build, demo and test of Salvage")]
struct Arguments {
    #[command(subcommand)]
    task: Task,
}

#[derive(Subcommand)]
enum Task {
    /// Install what is missing: Redis, PostgreSQL, Node.js (by apt, as root), the wasm target, the npm packages
    Setup,
    /// Build `target/release/salvage` and `target/handlers/*.wasm`
    Build(build::Options),
    /// Show on real BullMQ queues and workers what Salvage does, and check that it did
    Demo,
    /// Measure Salvage against the procedure it replaces and against the least its reads can cost
    Bench(bench::Options),
    /// Let workers, servers and hosts be killed for minutes, and count what became of every job
    Soak(soak::Options),
    /// Call a handler 100,000 times and swap it 200 times, and look at the time and at the memory it takes
    SoakHandlers(soak_handlers::Options),
    /// Set up, check format and lints, build, and run every test against private servers
    Test(test::Options),
    /// Install jco, build and compare the TypeScript handler, and follow the TypeScript tutorial
    Typescript(typescript::Options),
}

fn main() -> ExitCode {
    interrupt::listen();
    let done = match Arguments::parse().task {
        Task::Setup => setup::run(),
        Task::Build(options) => build::run(&options),
        Task::Demo => demo::run(),
        Task::Bench(options) => bench::run(&options),
        Task::Soak(options) => soak::run(&options),
        Task::SoakHandlers(options) => soak_handlers::run(&options),
        Task::Test(options) => test::run(&options),
        Task::Typescript(options) => typescript::run(&options),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}
