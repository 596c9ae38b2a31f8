//! The command line: what may be asked, and with which exit code it is answered.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};

/// What stands below the list of commands.
const AFTER_HELP: &str = "\
First steps:
  salvage migrate              make Salvage's own tables
  salvage handler check FILE   print the grants a handler needs, for salvage.toml
  salvage doctor               see what is missing
  salvage plan                 see what a pass would do
  salvage accept --all         say once that what the queues hold is the truth
  salvage run                  recover, from now on

Exit codes: 0 done, 1 failed, 2 usage, 3 configuration, 4 nothing could be judged, 5 a handler decides otherwise than
expected, 6 another host holds the lease.
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
    /// Remove what passes kept of their questions to handlers
    #[command(subcommand)]
    Captures(CapturesCommand),
    /// List the handlers; make, check, test or compare one
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

/// What can be done with questions that were kept.
#[derive(Debug, Subcommand)]
pub enum CapturesCommand {
    /// Delete them from the database, such as after adding a column to `redact`
    Purge {
        /// Only those to this handler
        #[arg(long, value_name = "NAME")]
        handler: Option<String>,
    },
}

/// What can be asked of handlers.
#[derive(Debug, Subcommand)]
pub enum HandlerCommand {
    /// List the handlers of the configured folder, and say why one does not act
    List {
        #[command(flatten)]
        output: Output,
    },
    /// Make a folder for a new handler that builds and passes its cases as it is
    New {
        /// Its domain: lower-case letters and digits, with `-` between words
        #[arg(value_parser = handler_name)]
        name: String,
        /// The language to write it in
        #[arg(long, value_enum, default_value_t = Language::Rust)]
        lang: Language,
    },
    /// Check one component file, against the database, too, if its URL is set, and print the grants it needs
    Check {
        /// The component, a .wasm file
        file: PathBuf,
        #[command(flatten)]
        output: Output,
    },
    /// Run case files against a component, in the engine and within the limits of a pass
    Test {
        /// The component, a .wasm file
        file: PathBuf,
        /// The folder of the cases, *.json
        #[arg(default_value = "cases")]
        cases: PathBuf,
        /// Write what was decided into the case files that expect something else
        #[arg(long)]
        accept: bool,
        #[command(flatten)]
        output: Output,
    },
    /// Ask two builds the same questions, and tell what they decide otherwise
    Diff {
        /// The component that serves, a .wasm file
        old: PathBuf,
        /// The component that shall take its place
        new: PathBuf,
        /// The folder of the cases, *.json
        #[arg(default_value = "cases", conflicts_with = "captured")]
        cases: PathBuf,
        /// Ask what passes asked, as far as it was captured, instead of the cases of a folder
        #[arg(long)]
        captured: bool,
        #[command(flatten)]
        asked: Asked,
        #[command(flatten)]
        output: Output,
    },
    /// Ask a component what passes asked, and compare with what was decided then (needs `capture_inputs`)
    Replay {
        /// The component, a .wasm file
        file: PathBuf,
        #[command(flatten)]
        asked: Asked,
        #[command(flatten)]
        output: Output,
    },
}

/// How much of what was captured.
#[derive(Debug, Clone, Copy, Args)]
pub struct Asked {
    /// At most so many captured questions, the newest
    #[arg(long, default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub limit: u32,
}

/// What a handler can be begun in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Language {
    /// A crate, with what it needs of Salvage in it
    Rust,
    /// An npm package
    Typescript,
}

/// Longest name of a new handler.
const HANDLER_NAME_CHARS_MAX: usize = 50;

/// Kebab-case: also good for a folder, a package, a table and a queue.
fn handler_name(text: &str) -> Result<String, String> {
    let is_word =
        |word: &str| !word.is_empty() && word.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit());
    let begins_with_letter = text.starts_with(|c: char| c.is_ascii_lowercase());
    if text.len() > HANDLER_NAME_CHARS_MAX {
        Err(format!("a name may have {HANDLER_NAME_CHARS_MAX} characters, this has {}", text.chars().count()))
    } else if begins_with_letter && text.split('-').all(is_word) {
        Ok(text.to_owned())
    } else {
        Err("a name is lower-case letters and digits, with `-` between words, and begins with a letter, \
             such as `video-exports`"
            .to_owned())
    }
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
    /// A check found a regression: a handler decides otherwise than expected.
    Regression = 5,
    /// Another host holds the lease.
    Skipped = 6,
}

impl From<Exit> for std::process::ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(exit as u8)
    }
}
