//! `salvage explain SOURCE ID`: the story of one job, from the ledger.

use salvage_core::ledger::StoryLine;
use salvage_core::source::SourceName;

use super::{CommandError, Done, say, say_json};
use crate::cli::Exit;
use crate::ports::{Handlers, Ledger, LoadedDomain, Outside};

/// Prints a job's story, oldest first.
///
/// # Errors
/// If the source is not known, the ledger could not be read or standard output is closed.
pub async fn explain<O: Outside>(outside: &O, source: &str, id: &str, json: bool) -> Done {
    outside.ledger().check_schema().await?;
    let source = source_name(source, &outside.handlers().domains())?;
    let story = outside.ledger().story(&source, id).await?;
    if json {
        say_json(&story)?;
        return Ok(Exit::Done);
    }
    if story.is_empty() {
        say(format_args!(
            "nothing is recorded of {source} job {id:?}: in no pass was it anything but scheduled"
        ))?;
    }
    for line in &story {
        tell(line)?;
    }
    Ok(Exit::Done)
}

/// `domain/source`, or a bare source that only one domain has. A full name need not be loaded: its story outlives it.
fn source_name(asked: &str, domains: &[LoadedDomain]) -> Result<SourceName, CommandError> {
    if let Some((domain, source)) = asked.split_once('/') {
        return Ok(SourceName { domain: domain.to_owned(), source: source.to_owned() });
    }
    let all = domains.iter().flat_map(|domain| {
        let name =
            |source: &str| SourceName { domain: domain.manifest.domain.clone(), source: source.to_owned() };
        domain.manifest.sources.iter().map(move |source| name(&source.name))
    });
    let all: Vec<SourceName> = all.collect();
    let mut fitting = all.iter().filter(|name| name.source == asked);
    let list = |names: &mut dyn Iterator<Item = &SourceName>| {
        names.map(ToString::to_string).collect::<Vec<_>>().join(", ")
    };
    match (fitting.next(), fitting.next()) {
        (Some(only), None) => Ok(only.clone()),
        (Some(_), Some(_)) => {
            let several = list(&mut all.iter().filter(|name| name.source == asked));
            Err(CommandError::Unknown(format!(
                "source {asked:?} is in several domains: say which of {several}"
            )))
        }
        (None, _) => Err(CommandError::Unknown(format!(
            "no loaded handler has a source {asked:?}; there are {}",
            list(&mut all.iter())
        ))),
    }
}

fn tell(line: &StoryLine) -> Result<(), CommandError> {
    let seen = match line.times {
        1 => format!("{:.0}", line.first_at),
        times => format!("{:.0} to {:.0}, {times} passes", line.first_at, line.last_at),
    };
    let with = |word: &str, why: &Option<String>| match why {
        Some(why) => format!("{word}: {why}"),
        None => word.to_owned(),
    };
    say(format_args!("{seen} (generation {})", line.generation))?;
    say(format_args!("  row       {}", line.row))?;
    say(format_args!("  sighting  {}", with(&line.sighting, &line.sighting_why)))?;
    say(format_args!("  decision  {}", with(&line.decision, &line.decision_reason)))?;
    let outcome = line.outcome.as_deref().unwrap_or("nothing was tried");
    say(format_args!("  outcome   {}", with(outcome, &line.outcome_why)))?;
    if let Some(digest) = &line.component_digest {
        say(format_args!("  handler   {digest}"))?;
    }
    say(format_args!("  evidence  {}\n", line.evidence))
}
