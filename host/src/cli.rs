//! The command line: what may be asked, and with which exit code it is answered.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};

/// Finds and recovers orphaned jobs: rows in PostgreSQL whose `BullMQ` entry is gone.
#[derive(Debug, Parser)]
#[command(name = "salvage", version, about, disable_help_subcommand = true)]
pub struct Cli {
    /// Settings file; without it `./salvage.toml`, if there, and the environment
    #[arg(long, global = true, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// Everything that can be asked.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Run a pass now and then one every interval, until SIGTERM
    Run,
    /// Run one pass
    Once {
        /// Take no lease and write nothing
        #[arg(long)]
        dry_run: bool,
        #[command(flatten)]
        output: Output,
    },
    /// Show what a pass would do, and write nothing
    Plan {
        #[command(flatten)]
        output: Output,
    },
    /// Tell the story of one job
    Explain {
        /// `domain/source`, or the bare source if it is unique
        source: String,
        /// The row's id
        id: String,
        #[command(flatten)]
        output: Output,
    },
    /// List the last passes
    History {
        /// How many
        #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..=1000))]
        limit: u32,
        #[command(flatten)]
        output: Output,
    },
    /// Check connections, schema, handlers, queues and indexes
    Doctor {
        /// Build the live-row index of each job table that has none (CONCURRENTLY)
        #[arg(long)]
        create_indexes: bool,
        #[command(flatten)]
        output: Output,
    },
    /// Declare that what Redis holds now is the truth
    Accept(Accept),
    /// Create or update Salvage's own tables (schema `salvage`)
    Migrate,
    /// Look at handlers
    #[command(subcommand)]
    Handler(HandlerCommand),
}

/// What to accept.
#[derive(Debug, Args)]
#[group(required = true, multiple = false)]
pub struct Accept {
    /// These queues
    #[arg(value_name = "QUEUE")]
    pub queues: Vec<String>,
    /// Every queue of every loaded handler
    #[arg(long)]
    pub all: bool,
    /// One unreadable entry, as harmless
    #[arg(long, num_args = 2, value_names = ["QUEUE", "ID"])]
    pub entry: Option<Vec<String>>,
}

/// What can be asked of handlers.
#[derive(Debug, Subcommand)]
pub enum HandlerCommand {
    /// List the handlers of the configured folder, and why one does not serve
    List {
        #[command(flatten)]
        output: Output,
    },
    /// Check one component file, and print the grants it needs
    Check {
        /// The `.wasm` file
        file: PathBuf,
        #[command(flatten)]
        output: Output,
    },
}

/// How to print.
#[derive(Debug, Clone, Copy, Args)]
pub struct Output {
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// The exit codes of every command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Exit {
    /// Done; also if there was nothing to do.
    Done = 0,
    /// Failed.
    Failed = 1,
    // 2 is the command line's own: usage.
    /// The configuration cannot be used.
    Config = 3,
    /// The lease was unreachable, or every candidate is unknown.
    NothingJudged = 4,
    // 5 is a check that found a regression.
    /// Another host holds the lease.
    Skipped = 6,
}

impl From<Exit> for std::process::ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(exit as u8)
    }
}
