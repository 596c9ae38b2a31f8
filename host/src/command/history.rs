//! `salvage history`: the last passes.

use std::time::Duration;

use salvage_core::alarm::Alarm;
use salvage_core::ledger::PassRecord;

use super::text::{beside, drawn, table};
use super::{Done, say, say_json};
use crate::cli::Exit;
use crate::ports::{Ledger, Outside};

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
        format!("alarm of generation {}: {source}: {text}", pass.generation)
    };
    pass.alarms.iter().map(alarm)
}

fn row(pass: &PassRecord) -> [String; 12] {
    let total = |key: &str| {
        let sources = pass.sources.as_array().into_iter().flatten();
        sources.filter_map(|source| source.get(key)?.as_u64()).sum::<u64>().to_string()
    };
    let took = pass.duration_ms.map(|ms| salvage_core::settings::human(Duration::from_millis(ms)));
    [
        format!("{:.0}", pass.started_at),
        pass.scope.clone(),
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
