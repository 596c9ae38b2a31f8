//! `salvage handler list` and `salvage handler check`.

use std::path::Path;

use salvage_core::grants::{needed, quote_table};
use serde_json::json;

use super::text::beside;
use super::{CommandError, Done, say, say_json};
use crate::cli::Exit;
use crate::wasm::{Limits, LoadReport, Registry, Runtime, check_file};

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

/// Checks one file as loading would, and prints what it declares and the grants it needs.
///
/// # Errors
/// If the file is no sound handler, or standard output is closed.
pub async fn check(runtime: &Runtime, file: &Path, limits: &Limits, json: bool) -> Done {
    let fault = |fault: crate::wasm::LoadFault| {
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
