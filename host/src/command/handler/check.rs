//! `salvage handler check`: all that can be said of a component before it serves.

use std::path::Path;

use salvage_core::grants::{needed, quote, quote_table};
use salvage_core::manifest::{HandlerManifest, ParentChange, Source};
use salvage_core::settings::human;
use salvage_core::source::Standing;
use serde::Serialize;
use serde_json::json;

use super::imports;
use crate::cli::Exit;
use crate::command::text::beside;
use crate::command::{CommandError, Done, say, say_json};
use crate::config::OfflineConfig;
use crate::host::{limits, runtime, terms};
use crate::ports::{Jobs, LoadedDomain, StoreFailure};
use crate::postgres::Postgres;
use crate::wasm::{Checked, Limits, LoadState, Placed, check_placed};

/// How a source fits the database.
#[derive(Debug, Serialize)]
struct Fit {
    /// `domain/source`.
    source: String,
    /// Each a sentence; none if it fits.
    faults: Vec<String>,
    /// Statements that would give its table the small index of live rows, where it has none.
    missing_indexes: Vec<String>,
}

/// Checks one file as loading would, beside the files of the folder, and against the database if there is one to ask; prints
/// what the handler declares and the grants it needs. Ends with failed if it would be refused, or if the database does not
/// fit or does not answer.
///
/// # Errors
/// If the file is no sound handler, or standard output is closed.
pub async fn check(config: &OfflineConfig, database: Option<&Postgres>, file: &Path, json: bool) -> Done {
    let runtime = runtime(&config.handlers)?;
    let placed = check_placed(&runtime, file, terms(&config.handlers)).await;
    let placed = placed.map_err(|fault| super::cannot_serve(file, &fault))?;
    let checked = &placed.checked;
    let fits = match database {
        Some(database) => Some(against(database, checked).await),
        None => None,
    };
    let own = limits(&config.handlers.limits(&checked.manifest.domain));
    if json {
        say_as_json(&placed, &own, fits.as_ref())?;
    } else {
        tell(file, checked, &own)?;
        tell_fits(fits.as_ref())?;
        tell_place(&placed)?;
    }
    let fits_database = match &fits {
        None => true,
        Some(Ok(fits)) => fits.iter().all(|fit| fit.faults.is_empty()),
        Some(Err(_)) => false,
    };
    let is_refused = matches!(placed.report.state, LoadState::Refused { .. });
    Ok(if fits_database && !is_refused { Exit::Done } else { Exit::Failed })
}

/// What would become of it in the folder, and what to add so that it acts.
fn tell_place(placed: &Placed) -> Result<(), CommandError> {
    let manifest = &placed.checked.manifest;
    say("")?;
    for file in &placed.in_its_way {
        let note =
            format!("{file} in the folder serves the same domain: put this file in its place, not beside it");
        say(beside("note ", &note))?;
    }
    let grants = needed(manifest).lines().join("\n");
    let grants = format!("[handler.{}.grants]\n{grants}", manifest.domain);
    match &placed.report.state {
        LoadState::Active => {
            say(
                "Put into the folder of [handlers] dir, it acts: it may do all that it declares, which is\n",
            )?;
            return say(grants);
        }
        LoadState::Refused { fault, .. } => {
            let fault = fault.to_string();
            let mut lines = fault.lines();
            let first = lines.next().unwrap_or_default();
            say(beside(
                "BAD  ",
                &format!("put into the folder of [handlers] dir, it would be refused: {first}"),
            ))?;
            lines.try_for_each(say)?;
            return Ok(());
        }
        LoadState::Observed { .. } | LoadState::Loading(_) | LoadState::Quarantined { .. } => {}
    }
    say("To let it act, put it into the folder of [handlers] dir and add to salvage.toml:\n")?;
    say(grants)
}

fn say_as_json(
    placed: &Placed,
    limits: &Limits,
    fits: Option<&Result<Vec<Fit>, StoreFailure>>,
) -> Result<(), CommandError> {
    let checked = &placed.checked;
    let database = match fits {
        None => json!(null),
        Some(Ok(fits)) => json!({ "sources": fits, "fault": null }),
        Some(Err(failure)) => json!({ "sources": [], "fault": failure.to_string() }),
    };
    say_json(&json!({
        "manifest": checked.manifest,
        "digest": checked.digest,
        "limits": {
            "run_time_ms": u64::try_from(limits.run_time.as_millis()).unwrap_or(u64::MAX),
            "memory_bytes": limits.memory,
            "output_bytes": limits.output,
            "log_bytes": limits.log,
        },
        "imports": checked.imports,
        "database": database,
        "grants": needed(&checked.manifest).lines(),
        "state": placed.report.state.word(),
        "why": placed.report.why(),
        "in_its_way": placed.in_its_way,
    }))
}

/// Holds the manifest against the live catalog. Reads only.
async fn against(database: &Postgres, checked: &Checked) -> Result<Vec<Fit>, StoreFailure> {
    let domain = LoadedDomain {
        manifest: checked.manifest.clone(),
        standing: Standing::Observed,
        digest: checked.digest.clone(),
        database_role: None,
        capture: salvage_core::capture::CapturePolicy::default(),
    };
    let (sources, misfits) = database.resolve(&[domain]).await?;
    let mut fits = Vec::new();
    for source in &sources {
        let missing_indexes = database.index_plan(source).await?.statements;
        fits.push(Fit { source: source.name.to_string(), faults: vec![], missing_indexes });
    }
    let misfit = misfits.into_iter().map(|misfit| Fit {
        source: misfit.source.to_string(),
        faults: misfit.faults,
        missing_indexes: vec![],
    });
    fits.extend(misfit);
    fits.sort_by(|a, b| a.source.cmp(&b.source));
    Ok(fits)
}

fn tell_fits(fits: Option<&Result<Vec<Fit>, StoreFailure>>) -> Result<(), CommandError> {
    let fits = match fits {
        None => return say("\nNot held against a database: [database] url is not set."),
        Some(Err(failure)) => {
            return say(beside("\nBAD  ", &format!("not held against the database: {failure}")));
        }
        Some(Ok(fits)) => fits,
    };
    say("\nHeld against the database:")?;
    for Fit { source, faults, missing_indexes } in fits {
        if faults.is_empty() {
            say(beside("ok   ", &format!("{source}: tables, columns and statuses are as declared")))?;
        }
        for fault in faults {
            say(beside("BAD  ", &format!("{source}: {fault}")))?;
        }
        if !missing_indexes.is_empty() {
            let note = "no index of live rows; `salvage doctor --create-indexes` runs, while the application goes on:";
            say(beside("note ", &format!("{source}: {note}")))?;
        }
        for statement in missing_indexes {
            say(format_args!("{statement};"))?;
        }
    }
    Ok(())
}

fn tell(file: &Path, checked: &Checked, limits: &Limits) -> Result<(), CommandError> {
    let manifest = &checked.manifest;
    say(format_args!("{} is a sound handler of domain {:?}", file.display(), manifest.domain))?;
    if !manifest.description.is_empty() {
        say(beside("  about   ", &manifest.description))?;
    }
    say(format_args!("  sha256  {}", checked.digest))?;
    say(beside("  limits  ", &limits_in_words(limits)))?;
    for (index, (found, names)) in imports::explained(&checked.imports).into_iter().enumerate() {
        let label = if index == 0 { "  imports " } else { "          " };
        say(beside(label, &format!("{}: {found}", names.join(", "))))?;
    }
    if checked.imports.is_empty() {
        say("  imports nothing")?;
    }
    manifest.sources.iter().try_for_each(|source| tell_source(manifest, source))
}

fn tell_source(manifest: &HandlerManifest, source: &Source) -> Result<(), CommandError> {
    let table = &source.table;
    let mapped = [Some(&table.id), Some(&table.status), Some(&table.updated_at)];
    let optional = [&table.job_type, &table.progress, &table.error].map(Option::as_ref);
    let columns = mapped.into_iter().chain(optional).flatten().chain(&table.extra_columns);
    let columns: Vec<String> = columns.map(|column| quote(column)).collect();
    let types: Vec<String> = source.job_types.iter().map(job_type_in_words).collect();
    let queues: Vec<String> = source
        .queues
        .iter()
        .map(|rule| format!("{} ({})", rule.name, String::from(rule.job_id.clone())))
        .collect();
    say(format_args!("\n{}/{}", manifest.domain, source.name))?;
    say(format_args!("  table   {}", quote_table(&table.table)))?;
    say(beside("  columns ", &columns.join(", ")))?;
    say(beside(
        "  status  ",
        &format!("{} or {}; failed is {}", table.queued, table.processing, table.failed),
    ))?;
    say(beside("  types   ", &types.join(", ")))?;
    say(beside("  queues  ", &queues.join(", ")))?;
    for read in &source.reads {
        let columns: Vec<String> = read.columns.iter().map(|column| quote(column)).collect();
        let read = format!(
            "{} = {}({}) where {} is the job's {}, at most {}",
            read.name,
            quote_table(&read.table),
            columns.join(", "),
            quote(&read.match_column),
            quote(&read.job_column),
            read.limit
        );
        say(beside("  reads   ", &read))?;
    }
    for job_type in &source.job_types {
        for (when, change) in [("fails", &job_type.on_fail), ("is put back", &job_type.on_requeue)] {
            if let Some(change) = change {
                say(beside("  parent  ", &format!("{} {when}: {}", job_type.name, change_in_words(change))))?;
            }
        }
    }
    Ok(())
}

fn job_type_in_words(job_type: &salvage_core::manifest::JobType) -> String {
    let mut notes = Vec::new();
    if !job_type.restart_safe {
        notes.push("not restart-safe".to_owned());
    }
    for (status, threshold) in
        [("queued", job_type.stale_after_queued), ("processing", job_type.stale_after_processing)]
    {
        notes.extend(threshold.map(|age| format!("{status} for {}", human(age))));
    }
    if notes.is_empty() { job_type.name.clone() } else { format!("{} ({})", job_type.name, notes.join(", ")) }
}

fn change_in_words(change: &ParentChange) -> String {
    format!(
        "{}.{} from {} to {}",
        quote_table(&change.table),
        quote(&change.status_column),
        change.from.join(" or "),
        change.to
    )
}

fn limits_in_words(limits: &Limits) -> String {
    format!(
        "run time {}, memory {}, output {}, log {}",
        human(limits.run_time),
        bytes(limits.memory),
        bytes(limits.output),
        bytes(limits.log)
    )
}

/// In the largest unit that leaves a whole number.
fn bytes(count: u64) -> String {
    let units = [("GiB", 1_u64 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)];
    let whole = units.into_iter().find(|(_, size)| count >= *size && count.is_multiple_of(*size));
    whole.map_or_else(|| format!("{count} bytes"), |(unit, size)| format!("{} {unit}", count / size))
}

#[cfg(test)]
mod tests {
    use super::bytes;

    #[test]
    fn bytes_are_whole_numbers_of_their_unit() {
        assert_eq!(bytes(64 << 20), "64 MiB");
        assert_eq!(bytes(1536 << 10), "1536 KiB");
        assert_eq!(bytes(1_000), "1000 bytes");
    }
}
