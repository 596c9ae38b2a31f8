//! `salvage handler list` and `salvage handler check`.

use std::path::Path;

use salvage_core::grants::{needed, quote_table};
use serde_json::json;

use super::text::beside;
use super::{CommandError, Done, say, say_json};
use crate::cli::Exit;
use crate::wasm::{Limits, LoadReport, LoadState, Registry, Running, Runtime, Told, check_file};

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

/// Checks one file as loading would, and prints what it declares and the grants it needs.
///
/// # Errors
/// If the file is no sound handler, or standard output is closed.
pub async fn check(runtime: &Runtime, file: &Path, limits: &Limits, json: bool) -> Done {
    let fault = |fault: std::sync::Arc<crate::wasm::LoadFault>| {
        CommandError::Handler(format!("{} cannot serve: {fault}", file.display()))
    };
    let checked = check_file(runtime, file, limits).await.map_err(fault)?;
    let manifest = &checked.manifest;
    let grants = needed(manifest).lines();
    if json {
        say_json(&json!({
            "manifest": manifest,
            "digest": checked.digest,
            "imports": checked.imports,
            "grants": grants,
        }))?;
        return Ok(Exit::Done);
    }
    say(format_args!("{} is a sound handler of domain {:?}", file.display(), manifest.domain))?;
    if !manifest.description.is_empty() {
        say(beside("  about   ", &manifest.description))?;
    }
    say(format_args!("  sha256  {}", checked.digest))?;
    for source in &manifest.sources {
        let types: Vec<&str> = source.job_types.iter().map(|job_type| job_type.name.as_str()).collect();
        let queues: Vec<String> = source
            .queues
            .iter()
            .map(|rule| format!("{} ({})", rule.name, String::from(rule.job_id.clone())))
            .collect();
        say(format_args!("\n{}/{}", manifest.domain, source.name))?;
        say(format_args!("  table   {}", quote_table(&source.table.table)))?;
        say(beside("  types   ", &types.join(", ")))?;
        say(beside("  queues  ", &queues.join(", ")))?;
    }
    say("\nTo let it act, put it into the folder of [handlers] dir and add to salvage.toml:\n")?;
    say(format_args!("[handler.{}.grants]\n{}", manifest.domain, grants.join("\n")))?;
    Ok(Exit::Done)
}
