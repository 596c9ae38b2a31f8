//! One file per command: it asks the ports, prints to stdout and says with which code the process ends.

use std::io::{self, Write};

use salvage_core::sighting::QueueFailure;
use salvage_core::text as clean;
use serde::Serialize;

use crate::cli::Exit;
use crate::ports::StoreFailure;

pub mod accept;
pub mod captures;
pub mod doctor;
pub mod explain;
pub mod handler;
pub mod history;
pub mod migrate;
pub mod once;
mod payload;
mod text;

/// Why a command could not do what it was asked.
#[derive(Debug, thiserror::Error)]
pub enum CommandError {
    /// PostgreSQL.
    #[error(transparent)]
    Store(#[from] StoreFailure),
    /// Redis.
    #[error(transparent)]
    Queues(#[from] QueueFailure),
    /// What was asked for is not there.
    #[error("{0}")]
    Unknown(String),
    /// A component cannot be used.
    #[error("{0}")]
    Handler(String),
    /// A file or a folder.
    #[error("{attempted}")]
    File {
        /// What was not possible, with the path.
        attempted: String,
        /// The system's words.
        source: io::Error,
    },
    /// Standard output is closed or full.
    #[error("cannot write to standard output")]
    Output(#[from] io::Error),
}

impl CommandError {
    /// What a failed call to the file system makes of `attempted`.
    pub fn file(attempted: String) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::File { attempted, source }
    }

    /// Whether whoever reads our output has heard enough, such as `head`.
    #[must_use]
    pub fn is_closed_output(&self) -> bool {
        matches!(self, Self::Output(error) if error.kind() == io::ErrorKind::BrokenPipe)
    }
}

/// Prints a line, or lines that were laid out already. What may act on a terminal is written as an escape, wherever it came
/// from; a text that did not come from us has to go through [`clean::shown`] before, for its newlines and its length.
///
/// # Errors
/// If standard output is closed.
pub fn say(line: impl std::fmt::Display) -> Result<(), CommandError> {
    writeln!(io::stdout().lock(), "{}", clean::lines(&line.to_string()))?;
    Ok(())
}

/// Prints a value as one JSON document; what may act on a terminal is escaped as JSON has it, and so the same data.
///
/// # Errors
/// If standard output is closed.
pub fn say_json(value: &impl Serialize) -> Result<(), CommandError> {
    let document = serde_json::to_string_pretty(value).map_err(io::Error::from)?;
    writeln!(io::stdout().lock(), "{}", clean::json(&document))?;
    Ok(())
}

/// The code of a command that did what it was asked.
pub type Done = Result<Exit, CommandError>;
