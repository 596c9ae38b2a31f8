//! `salvage handler list`, and one file for each of its neighbours.

use std::path::Path;

use serde_json::json;

use super::text::beside;
use super::{CommandError, Done, say, say_json};
use crate::cli::Exit;
use crate::config::OfflineConfig;
use crate::host::{limits, widest_limits};
use crate::wasm::{EngineFault, LoadFault, LoadReport, Registry, Rehearsal, Runtime};

mod accept;
mod cases;
pub mod check;
pub mod diff;
mod imports;
pub mod new;
mod rehearse;
pub mod replay;
mod templates;
pub mod test;

/// Digits of a digest that are shown to people.
const DIGEST_DIGITS: usize = 12;

/// Prints each file of the folder: whether it serves, and if not, why.
///
/// # Errors
/// If the folder could not be read or standard output is closed.
pub fn list(handlers: &Registry, json: bool) -> Done {
    if let Some(fault) = handlers.folder_fault() {
        return Err(CommandError::Handler(fault.to_string()));
    }
    if json {
        say_json(&handlers.reports().iter().map(as_json).collect::<Vec<_>>())?;
        return Ok(Exit::Done);
    }
    if handlers.reports().is_empty() {
        say("no handler: the folder of [handlers] dir holds no .wasm file; put one there")?;
    }
    for report in handlers.reports() {
        tell(report)?;
    }
    Ok(Exit::Done)
}

/// A file's state, name and digest, shortened.
pub(super) fn line(report: &LoadReport) -> String {
    let digest = report.digest.as_deref().map_or("", |digest| &digest[..DIGEST_DIGITS.min(digest.len())]);
    let sha = if digest.is_empty() { String::new() } else { format!(", sha256 {digest}…") };
    format!("{} ({}{sha})", report.state.word(), report.file)
}

fn tell(report: &LoadReport) -> Result<(), CommandError> {
    say(format_args!("{}: {}", report.domain.as_deref().unwrap_or("no domain"), line(report)))?;
    if let Some((why, lines)) = explained(report) {
        say(beside("    ", &why))?;
        for line in lines {
            say(line)?;
        }
    }
    Ok(())
}

/// Why a handler does not act, and lines to paste, which begin at the left so that they can be.
pub(super) fn explained(report: &LoadReport) -> Option<(String, Vec<String>)> {
    let why = report.why()?;
    let mut lines = why.lines().map(str::to_owned);
    Some((lines.next().unwrap_or_default(), lines.collect()))
}

fn as_json(report: &LoadReport) -> serde_json::Value {
    json!({
        "file": report.file,
        "digest": report.digest,
        "domain": report.domain,
        "state": report.state.word(),
        "why": report.why(),
    })
}

/// Loads a component for questions of its author, under the limits that the configuration gives its domain.
async fn rehearsal(
    config: &OfflineConfig,
    runtime: &Runtime,
    file: &Path,
) -> Result<Rehearsal, CommandError> {
    let own = |domain: &str| limits(&config.handlers.limits(domain));
    let widest = limits(&widest_limits(&config.handlers));
    Rehearsal::load(runtime, file, &widest, own).await.map_err(|fault| cannot_serve(file, &fault))
}

fn cannot_serve(file: &Path, fault: &LoadFault) -> CommandError {
    CommandError::Handler(format!("{} cannot serve: {fault}", file.display()))
}

impl From<EngineFault> for CommandError {
    fn from(fault: EngineFault) -> Self {
        Self::Handler(fault.to_string())
    }
}
