//! `salvage handler test`: case files against a component, in the engine and within the limits of a pass.

use std::collections::BTreeSet;
use std::path::Path;

use salvage_core::manifest::HandlerManifest;
use serde_json::{Value, json};

use super::accept::with_expected;
use super::cases::{self, CaseFile};
use super::rehearse::{Pair, Verdict, rehearse};
use crate::cli::Exit;
use crate::clock::MachineClock;
use crate::command::text::{counted, drawn, table};
use crate::command::{CommandError, Done, say, say_json};
use crate::config::OfflineConfig;
use crate::ports::Clock;
use crate::wasm::Runtime;

/// Runs every case of a folder; with `accept`, writes what was decided into the files that expect something else.
///
/// # Errors
/// If the file is no sound handler, there is no case, or a file could not be read or written.
pub async fn test(config: &OfflineConfig, file: &Path, folder: &Path, accept: bool, json: bool) -> Done {
    let pair = Pair {
        as_in_a_pass: super::rehearsal(config, &Runtime::start()?, file).await?,
        elsewhere: super::rehearsal(config, &Runtime::start_counting_fuel()?, file).await?,
    };
    let checked = pair.as_in_a_pass.checked();
    let files = cases::read(folder)?;
    let mut verdicts = rehearse(&pair, &checked.manifest, &files, &config.pass, &MachineClock.token()).await;
    let accepted = if accept { accept_all(&files, &mut verdicts)? } else { vec![] };
    // A broken file would be told a second time, as a type without a case.
    let whole = files.iter().all(|file| file.case.is_ok());
    let untested = if whole { types_without_case(&checked.manifest, &files) } else { vec![] };
    let failed = verdicts.iter().filter(|verdict| verdict.failure.is_some()).count();
    if json {
        say_json(&json!({
            "domain": checked.manifest.domain,
            "digest": checked.digest,
            "cases": files.iter().zip(&verdicts).map(|(file, verdict)| as_json(file, verdict)).collect::<Vec<_>>(),
            "accepted": accepted,
            "untested": untested,
        }))?;
    } else {
        tell(&files, &verdicts)?;
        for name in &accepted {
            say(format_args!("{name}: now expects what was decided"))?;
        }
        for missing in &untested {
            say(format_args!("no case for {missing}"))?;
        }
        say(summary(files.len(), failed, untested.len()))?;
    }
    Ok(if failed == 0 && untested.is_empty() { Exit::Done } else { Exit::Regression })
}

fn summary(cases: usize, failed: usize, untested: usize) -> String {
    let all = counted(cases as u64, "case");
    match (failed, untested) {
        (0, 0) => format!("{all}, each decided twice: all as expected"),
        (0, _) => format!("{all}, each decided twice: all as expected, but not every job type has one"),
        (failed, _) => format!("{all}, each decided twice: {failed} not as expected"),
    }
}

fn tell(files: &[CaseFile], verdicts: &[Verdict]) -> Result<(), CommandError> {
    let mut shown = table(["", "case", "decision", "fuel"], 3..4);
    for (file, verdict) in files.iter().zip(verdicts) {
        let mark = if verdict.failure.is_none() { "ok" } else { "FAIL" };
        let kind = verdict.decided.as_ref().map_or("-", |decided| decided.kind());
        shown.add_row([mark.to_owned(), file.name(), kind.to_owned(), verdict.fuel.to_string()]);
    }
    say(drawn(&shown))?;
    say("")?;
    for (file, verdict) in files.iter().zip(verdicts) {
        let Some(failure) = &verdict.failure else { continue };
        let about = file.case.as_ref().map_or(String::new(), |case| format!(" {}", case.about));
        say(format_args!("{}:{about}\n{}\n", file.path.display(), failure.text()))?;
    }
    Ok(())
}

fn as_json(file: &CaseFile, verdict: &Verdict) -> Value {
    json!({
        "file": file.name(),
        "about": file.case.as_ref().ok().map(|case| &case.about),
        "decision": verdict.decided,
        "fuel": verdict.fuel,
        "took_ms": verdict.took.as_secs_f64() * 1_000.0,
        "failure": verdict.failure,
    })
}

/// Returns the names of the files that were written.
fn accept_all(files: &[CaseFile], verdicts: &mut [Verdict]) -> Result<Vec<String>, CommandError> {
    let mut accepted = Vec::new();
    for (file, verdict) in files.iter().zip(verdicts) {
        let Some(decided) = &verdict.decided else { continue };
        let Some(text) = verdict
            .failure
            .as_ref()
            .filter(|failure| failure.is_acceptable())
            .and_then(|_| with_expected(&file.text, &decided.text()))
        else {
            continue;
        };
        let unwritable = CommandError::file(format!("{} cannot be written", file.path.display()));
        std::fs::write(&file.path, text).map_err(unwritable)?;
        verdict.failure = None;
        accepted.push(file.name());
    }
    Ok(accepted)
}

fn types_without_case(manifest: &HandlerManifest, files: &[CaseFile]) -> Vec<String> {
    let cases = files.iter().filter_map(|file| file.case.as_ref().ok());
    let seen: BTreeSet<(&str, &str)> =
        cases.map(|case| (case.job.source.as_str(), case.job.job_type.as_str())).collect();
    let declared = manifest.sources.iter().flat_map(|source| {
        source.job_types.iter().map(|job_type| (source.name.as_str(), job_type.name.as_str()))
    });
    declared
        .filter(|of| !seen.contains(of))
        .map(|(source, job_type)| format!("job type {job_type} of {}/{source}", manifest.domain))
        .collect()
}
