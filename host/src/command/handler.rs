//! `salvage handler list`, and one file for each of its neighbours.

use std::path::Path;

use serde_json::json;

use super::text::beside;
use super::{CommandError, Done, say, say_json};
use crate::cli::Exit;
use crate::config::OfflineConfig;
use crate::host::{limits, widest_limits};
use crate::wasm::{
    EngineFault, LoadFault, LoadReport, LoadState, Registry, Rehearsal, Running, Runtime, Told,
};

mod accept;
mod cases;
pub mod check;
pub mod diff;
mod imports;
mod manifests;
pub mod new;
mod rehearse;
pub mod replay;
mod templates;
pub mod test;

/// Digits of a digest that are shown to people.
const DIGEST_DIGITS: usize = 12;

/// Prints each file of the folder as it would be loaded now: whether it serves, and if not, why; and what a host that runs
/// on the same folder and machine makes of it.
///
/// # Errors
/// If the folder could not be read or standard output is closed.
pub fn list(handlers: &Registry, running: Option<&Running>, json: bool) -> Done {
    if let Some(fault) = handlers.folder_fault() {
        return Err(CommandError::Handler(fault.to_string()));
    }
    if json {
        let line = |report: &LoadReport| as_json(report, running);
        say_json(&handlers.reports().iter().map(line).collect::<Vec<_>>())?;
        return Ok(Exit::Done);
    }
    if handlers.reports().is_empty() {
        say("no handler: the folder of [handlers] dir holds no .wasm file; put one there")?;
    }
    for report in handlers.reports() {
        tell(&report)?;
    }
    if let Some(running) = running {
        tell_running(running)?;
    }
    Ok(Exit::Done)
}

/// A file's state, name and digest, shortened.
pub(super) fn line(report: &LoadReport) -> String {
    let digest = report.digest.as_deref().map_or("", short);
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

/// What the running host says, which may be of another time.
fn tell_running(running: &Running) -> Result<(), CommandError> {
    say(format_args!("\nin the host that runs (process {}):", running.pid))?;
    for told in &running.files {
        say(format_args!("  {}", told_line(told)))?;
        if let Some(why) = told.why.as_deref().filter(|_| told.state == "quarantined") {
            say(beside("    ", why))?;
        }
    }
    Ok(())
}

fn told_line(told: &Told) -> String {
    let sha = |digest: &Option<String>| digest.as_deref().map(short).unwrap_or_default().to_owned();
    let older = match &told.serves_on {
        Some(_) => format!("; sha256 {}… serves on", sha(&told.serves_on)),
        None => String::new(),
    };
    let domain = told.domain.as_deref().unwrap_or("no domain");
    let when = if told.is_next { " from its next pass on" } else { "" };
    format!("{domain}: {} ({}, sha256 {}…{older}){when}", told.state, told.file, sha(&told.digest))
}

/// The digits of a digest that are shown to people.
fn short(digest: &str) -> &str {
    &digest[..DIGEST_DIGITS.min(digest.len())]
}

/// Why a handler does not act, and lines to paste, which begin at the left so that they can be.
pub(super) fn explained(report: &LoadReport) -> Option<(String, Vec<String>)> {
    let why = report.why()?;
    let mut lines = why.lines().map(str::to_owned);
    Some((lines.next().unwrap_or_default(), lines.collect()))
}

fn as_json(report: &LoadReport, running: Option<&Running>) -> serde_json::Value {
    let told = |running: &Running| running.files.iter().find(|told| told.file == report.file).cloned();
    json!({
        "file": report.file,
        "digest": report.digest,
        "domain": report.domain,
        "state": report.state.word(),
        "reached": reached(&report.state),
        "why": report.why(),
        "running": running.map(|running| json!({ "pid": running.pid, "handler": told(running) })),
    })
}

/// The last step that a file passed on its way.
const fn reached(state: &LoadState) -> &'static str {
    match state {
        LoadState::Refused { reached, .. } => reached.word(),
        state => state.word(),
    }
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
