//! Job names that are somebody else's.

use std::collections::BTreeSet;

use salvage_core::manifest::{JobNames, QueueRule};
use salvage_core::payload::{Data, Payload, row_named_in};
use salvage_core::snapshot::State;
use salvage_core::source::ResolvedSource;

use super::Operator;
use super::queues::chosen;
use crate::cli::Exit;
use crate::command::text::counted;
use crate::command::{CommandError, Done, say};
use crate::ports::{Ask, Handlers, Jobs, Ledger, Outside, Queues};

/// Entries whose names are looked at: enough to show what is vouched for.
const ENTRIES_MAX: usize = 10_000;

/// Ids shown as examples.
const EXAMPLES: usize = 3;

/// What was found under a name.
#[derive(Default)]
struct Found {
    looked_at: usize,
    entries: usize,
    examples: Vec<String>,
    /// An entry that carries the id of a row, if there is one.
    attributed: Option<String>,
}

/// Marks the entries of a job name in one queue as somebody else's.
///
/// # Errors
/// If the queue is not declared, the name is one of the manifest's, an entry of that name carries a row's id, or a store
/// did not answer.
pub async fn foreign<O: Outside>(outside: &O, queue: &str, name: &str, operator: Operator<'_>) -> Done {
    outside.ledger().check_schema().await?;
    let domains = outside.handlers().domains();
    chosen(&[queue.to_owned()], &domains)?;
    let (sources, _) = outside.jobs().resolve(&domains).await?;
    let rules: Vec<(&ResolvedSource, &QueueRule)> =
        sources.iter().filter_map(|source| Some((source, source.declared.queue(queue)?))).collect();
    let claims = |rule: &QueueRule| matches!(&rule.job_names, JobNames::Only(names) if names.iter().any(|of| of == name));
    if let Some((source, _)) = rules.iter().find(|(_, rule)| claims(rule)) {
        let why = format!(
            "{name:?} is one of the job-names of {} in queue {queue:?}: such entries are its own; correct the manifest instead",
            source.name
        );
        return Err(CommandError::Unknown(why));
    }
    let found = look(outside, queue, name, &rules).await?;
    if let Some(entry_id) = found.attributed {
        let why = format!(
            "entry {entry_id:?} of queue {queue:?} is named {name:?} and carries the id of a row: it is no stranger's"
        );
        return Err(CommandError::Unknown(why));
    }
    say(shown(queue, name, &found))?;
    operator.agrees(&format!("Accept jobs named {name:?} of queue {queue:?} as somebody else's?"))?;
    let (who, now) = (operator.who, outside.jobs().now().await?);
    outside.ledger().accept_foreign(queue, name, who, now).await?;
    tracing::warn!(queue, name, who, "job name accepted as somebody else's");
    say(format_args!(
        "accepted jobs named {name:?} of {queue} as somebody else's, until one carries the id of a row"
    ))?;
    Ok(Exit::Done)
}

fn shown(queue: &str, name: &str, found: &Found) -> String {
    let of =
        format!("of {} looked at", counted(found.looked_at as u64, "entry").replace("entrys", "entries"));
    match found.entries {
        0 => format!("queue {queue:?} holds no entry named {name:?} now, {of}"),
        entries => {
            format!("queue {queue:?} holds {entries} named {name:?}, {of}: {}", found.examples.join(", "))
        }
    }
}

async fn look<O: Outside>(
    outside: &O,
    queue: &str,
    name: &str,
    rules: &[(&ResolvedSource, &QueueRule)],
) -> Result<Found, CommandError> {
    let queues = BTreeSet::from([queue.to_owned()]);
    let snapshot = outside.queues().snapshot(&Ask::ids(&queues)).await?;
    let reading = snapshot.queues.get(queue);
    let ids =
        reading.into_iter().flat_map(|reading| State::ALL.iter().filter_map(|state| reading.ids.get(state)));
    let ids: Vec<String> = ids.flatten().take(ENTRIES_MAX).cloned().collect();
    let (mut found, mut at) = (Found::default(), 0);
    while at < ids.len() {
        let page = &ids[at..ids.len().min(at + 200)];
        let payloads = outside.queues().payloads(queue, page).await?;
        if payloads.is_empty() {
            break;
        }
        for (entry_id, payload) in
            page.iter().zip(&payloads).filter(|(_, of)| of.name.as_deref() == Some(name))
        {
            found.entries += 1;
            if found.examples.len() < EXAMPLES {
                found.examples.push(format!("{entry_id:?}"));
            }
            if found.attributed.is_none() && names_a_row(outside, payload, rules).await? {
                found.attributed = Some(entry_id.clone());
            }
        }
        at += payloads.len();
    }
    found.looked_at = at;
    Ok(found)
}

async fn names_a_row<O: Outside>(
    outside: &O,
    payload: &Payload,
    rules: &[(&ResolvedSource, &QueueRule)],
) -> Result<bool, CommandError> {
    let Data::Text(text) = &payload.data else { return Ok(false) };
    for (source, rule) in rules {
        let Some(row_id) = row_named_in(text, source, rule) else { continue };
        if !outside.jobs().existing(source, &[row_id]).await?.is_empty() {
            return Ok(true);
        }
    }
    Ok(false)
}
