//! The command line: what may be asked, and with which exit code it is answered.

use std::path::PathBuf;
use std::time::Duration;

use clap::{ArgGroup, Args, Parser, Subcommand, ValueEnum};

use crate::config::units;

/// What stands below the list of commands.
const AFTER_HELP: &str = "\
First steps:
  salvage migrate              make Salvage's own tables
  salvage handler check FILE   print the grants a handler needs, for salvage.toml
  salvage doctor               see what is missing
  salvage plan                 see what a pass would do
  salvage accept --all         say once that what the queues hold is the truth
  salvage run                  recover, from now on

Exit codes: 0 done, 1 failed (or no handler serves), 2 usage, 3 configuration (or the handlers' folder cannot be read),
4 nothing could be judged, 5 a handler decides otherwise than expected, 6 another host holds the lease.
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
        part: Part,
        #[command(flatten)]
        output: Output,
    },
    /// Show what a pass would do, and write nothing
    Plan {
        #[command(flatten)]
        part: Part,
        /// Show the payload of each job that would be put back, unless its handler has `redact`
        #[arg(long)]
        payload: bool,
        #[command(flatten)]
        output: Output,
    },
    /// Tell the story of one job: what the queues said of it, what was decided, what was done
    Explain {
        /// Such as `slides/generation`, or just `generation` if only one domain has such a source
        source: String,
        /// The id of the job's row
        id: String,
        /// Show the payload that was put back, or would be now, as far as it is known, unless its handler has `redact`. Makes
        /// a pass that writes nothing, as `plan` does
        #[arg(long)]
        payload: bool,
        #[command(flatten)]
        output: Output,
    },
    /// List the last passes, or the jobs that they put back or failed, newest first
    History {
        /// List jobs that were put back or marked failed, in place of passes
        #[arg(long)]
        jobs: bool,
        /// How many passes or jobs, at most 1000
        #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..=1000))]
        limit: u32,
        /// Only jobs of this source, `domain/source`, or just its name if only one domain has such a source
        #[arg(long, requires = "jobs")]
        source: Option<String>,
        /// Only jobs of the last so many hours or minutes, such as `24h`
        #[arg(long, requires = "jobs", value_name = "TIME", value_parser = units::duration)]
        since: Option<Duration>,
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
    /// Vouch for something that the system itself does not confirm, so that what waits for it is recovered
    Accept(Box<Accept>),
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
#[group(skip)]
#[command(group = ArgGroup::new("what").required(true).args([
    "queues", "all", "new", "foreign", "declaration", "entry", "parked", "list",
]))]
pub struct Accept {
    /// Accept queues as they are: Redis lost nothing of what they held
    #[arg(value_name = "QUEUE")]
    pub queues: Vec<String>,
    /// Accept every queue of every handler that is granted something, except those that were never seen
    #[arg(long)]
    pub all: bool,
    /// Accept a queue that was never seen: its name is right, the application has yet to use it
    #[arg(long, value_name = "QUEUE")]
    pub new: Option<String>,
    /// Accept the entries of one job name in a queue as somebody else's
    #[arg(long, num_args = 2, value_names = ["QUEUE", "NAME"])]
    pub foreign: Option<Vec<String>>,
    /// Accept that rows of a source may be without an entry, against its control group
    #[arg(long, value_name = "SOURCE")]
    pub declaration: Option<String>,
    /// Accept one entry of a queue that cannot be read or attributed as nobody's job
    #[arg(long, num_args = 2, value_names = ["QUEUE", "ID"])]
    pub entry: Option<Vec<String>>,
    /// Try a parked job again in the next pass, or all of its source: what made PostgreSQL reject it was mended
    #[arg(long, num_args = 1..=2, value_names = ["SOURCE", "ID"])]
    pub parked: Option<Vec<String>>,
    /// List what is accepted
    #[arg(long)]
    pub list: bool,
    /// Take back what was accepted: QUEUE, --foreign, --declaration or --entry
    #[arg(long, conflicts_with_all = ["all", "new", "parked", "list"])]
    pub revoke: bool,
    /// Do not ask on a terminal
    #[arg(long)]
    pub yes: bool,
    #[command(flatten)]
    pub output: Output,
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

/// What of a pass to print.
#[derive(Debug, Clone, Default, Args)]
pub struct Part {
    /// Print only what concerns this source, `domain/source`, or just its name if only one domain has such a source. The pass,
    /// and the exit code, are about all sources
    #[arg(long)]
    pub source: Option<String>,
    /// Print at most so many jobs. The pass looks at all of them
    #[arg(long, value_name = "JOBS", value_parser = clap::value_parser!(u32).range(1..))]
    pub limit: Option<u32>,
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
    /// Failed; also if no handler serves.
    Failed = 1,
    // 2 is the command line's own: usage.
    /// The configuration cannot be used, or the handlers' folder that it names.
    Config = 3,
    /// The lease was unreachable, the queues could not be read, or every candidate is unknown.
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
