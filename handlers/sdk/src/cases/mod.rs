//! Case files: a handler's judgement tested as data, natively and without a host.
//!
//! A case is one JSON file that says what the job and its inputs are and what is expected of `decide`:
//!
//! ```json
//! {
//!   "about": "a deck that was deleted cannot be generated",
//!   "job": { "source": "generation", "id": "j1", "type": "GENERATION", "status": "QUEUED", "columns": { "deckId": "d1" } },
//!   "inputs": { "deck": { "rows": [] } },
//!   "expected": { "kind": "fail", "reason": "The slide deck of this job no longer exists." }
//! }
//! ```
//!
//! - `job` may also have `updated_at`, `recoveries` (0), `residue` (`none`, `completed`, `failed`, `hash-only`) and
//!   `failed_reason`. `columns` holds the extra columns; the mapped ones are filled in from the rest, and may be
//!   overridden.
//! - `inputs` has one entry per read of the source: `rows`, and `truncated` (false).
//! - `expected` is `{"kind": "requeue", "queue", "name", "data", "options"}`, `{"kind": "fail" or "hold", "reason"}`, or
//!   `{"kind": "none", "reason"}` where `decide` returns an error. A case without it fails; `salvage handler test --accept`
//!   writes down what was decided.
//!
//! Beside comparing, the runner holds the manifest, each case and each decision against the rules that the host
//! enforces (`rules.rs`), so that a case cannot pass here and be refused there. It also wants a case for each job type.

mod declared;
mod diff;
mod file;
mod rules;

pub use declared::{Declared, DeclaredRead};
pub use diff::lines as difference;
pub use file::{Case, CaseInput, CaseJob, paths};

use crate::{Decide, Decision, Inputs, Manifest, Source};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::path::Path;

/// Runs every `*.json` in the folder `cases` of a handler's package; panics with all that is wrong, by file.
///
/// A test of one line: `cases::check(env!("CARGO_MANIFEST_DIR"), &MANIFEST, decide)`. A folder without cases fails.
pub fn check(package_dir: impl AsRef<Path>, manifest: &Manifest, decide: Decide) {
    let failures = run(&package_dir.as_ref().join("cases"), manifest, decide);
    assert!(failures.is_empty(), "\n{}\n", failures.join("\n"));
}

/// Runs every `*.json` of a folder, in the order of their names. Returns one message per failure; empty means all is
/// well.
pub fn run(cases_dir: &Path, manifest: &Manifest, decide: Decide) -> Vec<String> {
    let mut failures: Vec<String> =
        rules::manifest_faults(manifest).into_iter().map(|fault| format!("manifest: {fault}")).collect();
    let paths = match paths(cases_dir) {
        Ok(paths) if paths.is_empty() => {
            failures.push(format!("{}: no case files (*.json)", cases_dir.display()));
            return failures;
        }
        Ok(paths) => paths,
        Err(error) => {
            failures.push(format!("{}: {error}", cases_dir.display()));
            return failures;
        }
    };
    let mut types_seen = BTreeSet::new();
    for path in paths {
        let name = Path::new("cases").join(path.file_name().unwrap_or_default());
        match judge_file(&path, manifest, decide) {
            Ok(seen) => drop(types_seen.insert(seen)),
            Err(failure) => failures.push(format!("{}: {failure}", name.display())),
        }
    }
    // Only once all files pass: a broken file would be reported a second time as a type without a case.
    if failures.is_empty() {
        failures.extend(types_without_case(manifest, &types_seen));
    }
    failures
}

/// Runs one case file. Returns the source and job type that it was about.
fn judge_file(path: &Path, manifest: &Manifest, decide: Decide) -> Result<(String, String), String> {
    let text = std::fs::read_to_string(path).map_err(|error| error.to_string())?;
    let case = Case::parse(&text)?;
    judge(&case, manifest, decide).map_err(|failure| format!("{}\n{failure}", case.about))?;
    Ok((case.job.source, case.job.job_type))
}

fn judge(case: &Case, manifest: &Manifest, decide: Decide) -> Result<(), String> {
    let source = manifest
        .source(&case.job.source)
        .ok_or_else(|| format!("  the manifest declares no source `{}`", case.job.source))?;
    let declared = Declared::from(source);
    report(case.faults(&declared))?;
    let job = case.build(manifest.domain, &declared).map_err(|error| indent(&error.chain()))?;
    let inputs = Inputs::parse(case.raw_inputs()).map_err(|error| indent(&error.chain()))?;
    let decided = decide(&job, &inputs);
    if let Ok(decision) = &decided {
        report(rules::decision_faults(case, source, decision))?;
    }
    let decided = match &decided {
        Ok(decision) => decision_json(decision),
        Err(error) => json!({ "kind": "none", "reason": error.chain() }),
    };
    let Some(expected) = &case.expected else {
        return Err(format!("  nothing is expected yet; decided:\n{decided:#}"));
    };
    match diff::lines(expected, &decided) {
        Some(diff) => Err(format!("  - expected, + decided:\n{diff}")),
        None => Ok(()),
    }
}

fn decision_json(decision: &Decision) -> Value {
    match decision {
        Decision::Requeue(requeue) => json!({
            "kind": "requeue",
            "queue": requeue.queue,
            "name": requeue.name,
            "data": requeue.data,
            "options": requeue.options,
        }),
        Decision::Fail(reason) => json!({ "kind": "fail", "reason": reason }),
        Decision::Hold(reason) => json!({ "kind": "hold", "reason": reason }),
    }
}

fn types_without_case(manifest: &Manifest, seen: &BTreeSet<(String, String)>) -> Vec<String> {
    let missing = |source: &'static Source| {
        source
            .job_types
            .iter()
            .filter(|job_type| !seen.contains(&(source.name.to_owned(), job_type.name.to_owned())))
            .map(|job_type| {
                format!("cases: none for job type `{}` of source `{}`", job_type.name, source.name)
            })
    };
    manifest.sources.iter().flat_map(missing).collect()
}

fn report(faults: Vec<String>) -> Result<(), String> {
    if faults.is_empty() {
        Ok(())
    } else {
        Err(faults.iter().map(|fault| indent(fault)).collect::<Vec<_>>().join("\n"))
    }
}

fn indent(line: &str) -> String {
    format!("  {line}")
}

#[cfg(test)]
mod tests;
