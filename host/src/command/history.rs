//! `salvage history`: the last passes, or the jobs that they put back or failed.

use std::collections::BTreeSet;
use std::time::Duration;

use salvage_core::alarm::Alarm;
use salvage_core::ledger::{ActRecord, ActsAsked, PassRecord};
use salvage_core::source::SourceName;
use salvage_core::text::{name, reason};

use super::text::{beside, drawn, rough, rows, table};
use super::{CommandError, Done, say, say_json};
use crate::cli::Exit;
use crate::ports::{Ledger, Outside};

/// Prints the jobs that were put back or marked failed, newest first, a line each.
///
/// # Errors
/// If the source is not known, the ledger could not be read or standard output is closed.
pub async fn jobs<O: Outside>(
    outside: &O,
    limit: u32,
    source: Option<&str>,
    since: Option<Duration>,
    json: bool,
) -> Done {
    let ledger = outside.ledger();
    ledger.check_schema().await?;
    let source = match source {
        Some(asked) => Some(recorded(asked, &ledger.told_sources().await?)?),
        None => None,
    };
    let acts = ledger.acts(&ActsAsked { limit, source, since }).await?;
    if json {
        say_json(&acts)?;
        return Ok(Exit::Done);
    }
    if acts.is_empty() {
        say("no job was put back or marked failed in that time; what is recorded is kept for 30 days")?;
        return Ok(Exit::Done);
    }
    let lines = rows(
        (["TIME", "SOURCE", "ID", "TYPE", "WAS"], "BECAME"),
        &acts.iter().map(act_row).collect::<Vec<_>>(),
    );
    lines.into_iter().try_for_each(say)?;
    Ok(Exit::Done)
}

/// Of the sources of which something is recorded: the handlers are not needed to read the ledger, and may be gone.
fn recorded(asked: &str, known: &BTreeSet<SourceName>) -> Result<SourceName, CommandError> {
    let fits = |name: &&SourceName| name.source == asked || name.to_string() == asked;
    let fitting: Vec<&SourceName> = known.iter().filter(fits).collect();
    let names = |of: &mut dyn Iterator<Item = &SourceName>| {
        of.map(ToString::to_string).collect::<Vec<_>>().join(", ")
    };
    Err(CommandError::Unknown(match fitting.as_slice() {
        [only] => return Ok((*only).clone()),
        [] if known.is_empty() => "no pass is recorded, so no source is known".to_owned(),
        [] => format!("nothing is recorded of a source {asked:?}; there are {}", names(&mut known.iter())),
        several => format!(
            "several domains have a source {asked:?}: say which of {}",
            names(&mut several.iter().copied())
        ),
    }))
}

fn act_row(act: &ActRecord) -> ([String; 5], String) {
    let became = match (act.decision.as_str(), act.outcome.as_str()) {
        ("requeue", "applied") => "put back",
        ("fail", "applied") => "marked failed",
        ("requeue", _) => "perhaps put back",
        _ => "perhaps marked failed",
    };
    let why = [&act.why, &act.reason].into_iter().flatten().map(|why| format!(": {}", reason(why)));
    let cells = [
        format!("{:.0}", act.at),
        format!("{}/{}", name(&act.domain), name(&act.source)),
        name(&act.id).into_owned(),
        name(&act.job_type).into_owned(),
        act.status.as_deref().map_or("-".into(), name).into_owned(),
    ];
    (cells, std::iter::once(became.to_owned()).chain(why).collect())
}

/// Prints the last passes, newest first, and what they were alarmed at.
///
/// # Errors
/// If they could not be read or standard output is closed.
pub async fn history<O: Outside>(outside: &O, limit: u32, json: bool) -> Done {
    outside.ledger().check_schema().await?;
    let passes = outside.ledger().history(limit).await?;
    if json {
        say_json(&passes)?;
        return Ok(Exit::Done);
    }
    if passes.is_empty() {
        say("no pass yet: `salvage once` runs one")?;
        return Ok(Exit::Done);
    }
    let header = [
        "STARTED",
        "SCOPE",
        "GENERATION",
        "TOOK",
        "CANDIDATES",
        "SCHEDULED",
        "UNKNOWN",
        "REQUEUED",
        "FAILED",
        "PARKED",
        "BEFORE-EPOCH",
        "STORM",
    ];
    let mut lines = table(header, 2..12);
    for pass in &passes {
        lines.add_row(row(pass));
    }
    say(drawn(&lines))?;
    let alarms: Vec<String> = passes.iter().flat_map(alarms).collect();
    if !alarms.is_empty() {
        say("")?;
    }
    for alarm in alarms {
        say(beside("", &alarm))?;
    }
    Ok(Exit::Done)
}

fn alarms(pass: &PassRecord) -> impl Iterator<Item = String> {
    let alarm = |Alarm { source, text, .. }: &Alarm| {
        format!("alarm of generation {}: {}: {}", pass.generation, name(&source.to_string()), reason(text))
    };
    pass.alarms.iter().map(alarm)
}

fn row(pass: &PassRecord) -> [String; 12] {
    let total = |key: &str| {
        let sources = pass.sources.as_array().into_iter().flatten();
        sources.filter_map(|source| source.get(key)?.as_u64()).sum::<u64>().to_string()
    };
    let took = pass.duration_ms.map(|ms| rough(Duration::from_millis(ms)));
    [
        format!("{:.0}", pass.started_at),
        name(&pass.scope).into_owned(),
        pass.generation.to_string(),
        took.unwrap_or_else(|| "not ended".to_owned()),
        total("candidates"),
        total("scheduled"),
        total("unknown"),
        total("requeued"),
        total("failed"),
        total("parked"),
        total("before_epoch"),
        total("storm"),
    ]
}
