//! The command line: what may be asked, and with which exit code it is answered.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};

/// What stands below the list of commands.
const AFTER_HELP: &str = "\
First steps:
  salvage migrate              make Salvage's own tables
  salvage handler check FILE   print the grants a handler needs, for salvage.toml
  salvage doctor               see what is missing
  salvage plan                 see what a pass would do
  salvage accept --all         say once that what the queues hold is the truth
  salvage run                  recover, from now on

Exit codes: 0 done, 1 failed, 2 usage, 3 configuration, 4 nothing could be judged, 6 another host holds the lease.
Results go to stdout, logs to stderr; RUST_LOG=salvage=debug logs more.";

/// Finds and recovers orphaned jobs: rows in PostgreSQL whose BullMQ entry is gone
#[derive(Debug, Parser)]
#[command(name = "salvage", version, about, after_help = AFTER_HELP, disable_help_subcommand = true)]
pub struct Cli {
    /// Settings; without it ./salvage.toml, if it is there, and the environment
    #[arg(long, global = true, value_name = "FILE", display_order = 100)]
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
    /// Run one pass, and tell what came of it
    Once {
        /// Take no lease and write nothing in either store, as `plan` does
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
    /// Tell the story of one job: what the queues said of it, what was decided, what was done
    Explain {
        /// Such as `slides/generation`, or just `generation` if only one domain has such a source
        source: String,
        /// The id of the job's row
        id: String,
        #[command(flatten)]
        output: Output,
    },
    /// List the last passes, newest first
    History {
        /// How many passes, at most 1000
        #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..=1000))]
        limit: u32,
        #[command(flatten)]
        output: Output,
    },
    /// Check connections, schema, handlers, queues and indexes
    Doctor {
        /// Build the small index of live rows on each job table that has none, CONCURRENTLY
        #[arg(long)]
        create_indexes: bool,
        #[command(flatten)]
        output: Output,
    },
    /// Say that what queues hold now is the truth, so that what waits for it is recovered
    Accept(Accept),
    /// Create or update Salvage's own tables, in schema `salvage`
    Migrate,
    /// List the handlers, or check one
    #[command(subcommand)]
    Handler(HandlerCommand),
}

/// What to accept.
#[derive(Debug, Args)]
#[group(required = true, multiple = false)]
pub struct Accept {
    /// The queues to accept as they are
    #[arg(value_name = "QUEUE")]
    pub queues: Vec<String>,
    /// Accept every queue of every handler that is granted something
    #[arg(long)]
    pub all: bool,
    /// Accept one unreadable entry of a queue as nobody's job
    #[arg(long, num_args = 2, value_names = ["QUEUE", "ID"])]
    pub entry: Option<Vec<String>>,
    /// Try a parked job again in the next pass, or all of its source: what made PostgreSQL reject it was mended
    #[arg(long, num_args = 1..=2, value_names = ["SOURCE", "ID"])]
    pub parked: Option<Vec<String>>,
}

/// What can be asked of handlers.
#[derive(Debug, Subcommand)]
pub enum HandlerCommand {
    /// List the handlers of the configured folder, and say why one does not act
    List {
        #[command(flatten)]
        output: Output,
    },
    /// Check one component file, and print the grants it needs
    Check {
        /// The component, a .wasm file
        file: PathBuf,
        #[command(flatten)]
        output: Output,
    },
}

/// How to print.
#[derive(Debug, Clone, Copy, Args)]
pub struct Output {
    /// Print JSON, for programs
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
