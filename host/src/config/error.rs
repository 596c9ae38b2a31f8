//! What is wrong with a configuration, where, and how it looks on a terminal and in a log.
//!
//! Source text that reaches an error was redacted before ([`super::redact`]), and no message quotes a URL.

use std::fmt;
use std::io::{self, IsTerminal};
use std::path::PathBuf;
use std::sync::Arc;

use miette::{Diagnostic, GraphicalReportHandler, GraphicalTheme, NamedSource, SourceSpan};

/// Why there is no configuration. Exit code 3.
///
/// `Display` tells everything in plain lines; [`ConfigError::render`] shows the places in the file as well.
#[derive(Debug, thiserror::Error, Diagnostic)]
pub enum ConfigError {
    /// The file that was asked for is not there.
    #[error("no configuration file at {}", path.display())]
    #[diagnostic(help(
        "check the path given with --config, or leave it out to use ./salvage.toml or the environment"
    ))]
    Missing {
        /// As it was given.
        path: PathBuf,
    },
    /// The file is there and cannot be read.
    #[error("cannot read the configuration file {}", path.display())]
    Unreadable {
        /// Its path.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// Settings are wrong.
    #[error("{}", listed(faults))]
    Faulty {
        /// All of them, the file's in its order, then the environment's. At least one.
        faults: Vec<Fault>,
    },
}

/// One thing that is wrong.
#[derive(Debug, thiserror::Error, Diagnostic)]
#[error("{message}")]
pub struct Fault {
    pub(super) message: String,
    /// `salvage.toml:3:15`, or a variable's name; `None` if it is nowhere.
    pub(super) place: Option<String>,
    #[help]
    pub(super) help: Option<String>,
    #[source_code]
    pub(super) text: Option<Arc<NamedSource<String>>>,
    #[label]
    pub(super) span: Option<SourceSpan>,
}

impl Fault {
    /// `FILE:LINE:COLUMN` (both from 1, the column in characters), or the environment variable; `None` for what is
    /// missing altogether.
    #[must_use]
    pub fn place(&self) -> Option<&str> {
        self.place.as_deref()
    }
}

/// One line a fault: place, message, help.
fn listed(faults: &[Fault]) -> String {
    let line = |fault: &Fault| {
        let place = fault.place.as_ref().map(|place| format!("{place}: ")).unwrap_or_default();
        let help = fault.help.as_ref().map(|help| format!(" ({help})")).unwrap_or_default();
        format!("{place}{}{help}", fault.message)
    };
    let lines: Vec<String> = faults.iter().map(line).collect();
    match lines.as_slice() {
        [one] => format!("invalid configuration: {one}"),
        many => format!("invalid configuration, {} faults:\n{}", many.len(), many.join("\n")),
    }
}

/// How a report is drawn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Drawing {
    /// For a terminal: line-drawing characters and colours.
    Coloured,
    /// For a file or a pipe: ASCII only.
    Plain,
}

impl Drawing {
    /// What suits this process's stderr; colours are left out for a pipe, and where `NO_COLOR` is set.
    #[must_use]
    pub fn for_stderr() -> Self {
        let wants_none = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
        if io::stderr().is_terminal() && !wants_none { Self::Coloured } else { Self::Plain }
    }
}

/// Columns of a drawn report where the terminal's width is not asked for.
const REPORT_WIDTH: usize = 120;

impl ConfigError {
    /// The whole report, with an excerpt of the file at each place; several lines, the last one ended.
    #[must_use]
    pub fn render(&self, drawing: Drawing) -> String {
        match self {
            Self::Faulty { faults } => faults.iter().map(|fault| drawn(fault, drawing)).collect(),
            Self::Missing { .. } | Self::Unreadable { .. } => drawn(self, drawing),
        }
    }
}

fn drawn(diagnostic: &dyn Diagnostic, drawing: Drawing) -> String {
    let theme = match drawing {
        Drawing::Coloured => GraphicalTheme::unicode(),
        Drawing::Plain => GraphicalTheme::none(),
    };
    let mut report = String::new();
    let handler = GraphicalReportHandler::new_themed(theme).with_width(REPORT_WIDTH).with_links(false);
    match handler.render_report(&mut report, diagnostic) {
        Ok(()) => report,
        Err(fmt::Error) => format!("{diagnostic}\n"),
    }
}
