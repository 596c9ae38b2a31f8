//! `salvage handler list` and `salvage handler check`.

use std::path::Path;

use salvage_core::grants::needed;
use serde_json::json;

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
        say("no handler: the folder of [handlers] dir holds no .wasm file")?;
    }
    for report in handlers.reports() {
        tell(report)?;
    }
    Ok(Exit::Done)
}

/// A file's state, name and digest, shortened.
pub(super) fn line(report: &LoadReport) -> String {
    let digest = report.digest.as_deref().map_or("", |digest| &digest[..DIGEST_DIGITS.min(digest.len())]);
    format!("{} {} {digest}", report.state.word(), report.file)
}

fn tell(report: &LoadReport) -> Result<(), CommandError> {
    say(format_args!("{}: {}", report.domain.as_deref().unwrap_or("(no domain)"), line(report)))?;
    for line in report.why().iter().flat_map(|why| why.lines()) {
        say(format_args!("    {line}"))?;
    }
    Ok(())
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
    let fault = |fault: crate::wasm::LoadFault| CommandError::Handler(fault.to_string());
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
    say(format_args!(
        "{} is a sound handler of domain {:?}: {}",
        file.display(),
        manifest.domain,
        manifest.description
    ))?;
    say(format_args!("sha256 {}\n", checked.digest))?;
    for source in &manifest.sources {
        let types: Vec<&str> = source.job_types.iter().map(|job_type| job_type.name.as_str()).collect();
        let queues: Vec<String> = source
            .queues
            .iter()
            .map(|rule| format!("{} ({})", rule.name, String::from(rule.job_id.clone())))
            .collect();
        say(format_args!("{}/{}: table {}", manifest.domain, source.name, source.table.table))?;
        say(format_args!("  types   {}", types.join(", ")))?;
        say(format_args!("  queues  {}", queues.join(", ")))?;
    }
    say(format_args!(
        "\nThe grants it needs:\n\n[handler.{}.grants]\n{}",
        manifest.domain,
        grants.join("\n")
    ))?;
    Ok(Exit::Done)
}
