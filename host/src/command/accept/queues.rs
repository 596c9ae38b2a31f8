//! Queues as they are: the operator says that Redis lost nothing of what they held.
//!
//! Accepting a queue writes a fresh nonce into it and takes a snapshot, so that it is this very state that is accepted:
//! the one with the nonce. A Redis that loses data afterwards is noticed as ever, and one that lost it a moment before
//! does not hold the nonce.
//!
//! A queue that never showed a trace of BullMQ is not accepted with the others: its name may be wrong, and what is put into
//! it no worker reads. That takes a word of its own, which shows the names that do exist.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use salvage_core::control::Control;
use salvage_core::declaration::declaration;
use salvage_core::epoch::{Continuity, QueueMemory, follow, remember};
use salvage_core::lease::Scope;
use salvage_core::settings::PassSettings;
use salvage_core::snapshot::{QueueReading, Snapshot};
use salvage_core::source::{SourceName, Standing};
use salvage_core::text::name;

use super::Operator;
use crate::cli::Exit;
use crate::command::text::counted;
use crate::command::{CommandError, Done, say};
use crate::pass;
use crate::ports::{Ask, Clock, Declaration, Handlers, Jobs, Ledger, LoadedDomain, Mark, Outside, Queues};
use crate::stop::stop;

/// Accepts queues as they are: for each lease of the deployment that has to do with them. Those that were never seen are
/// named and left out.
///
/// # Errors
/// If a queue is not declared by a loaded handler, or a store did not answer; then nothing is accepted, or, where each
/// domain has its own lease, nothing more.
pub async fn queues<O: Outside>(
    outside: &O,
    settings: &PassSettings,
    asked: &[String],
    operator: Operator<'_>,
) -> Done {
    outside.ledger().check_schema().await?;
    let queues = chosen(asked, &outside.handlers().domains())?;
    let (seen, unseen) = sorted(outside, settings, &queues).await?;
    let names =
        if unseen.is_empty() { vec![] } else { outside.queues().existing_queues().await.unwrap_or_default() };
    for queue in &unseen {
        say(format_args!("{queue}: {}", never_seen(queue, &names)))?;
    }
    if !seen.is_empty() {
        accept_all(outside, settings, &seen, operator).await?;
    }
    Ok(if unseen.is_empty() { Exit::Done } else { Exit::Failed })
}

/// Accepts a queue that was never seen: the operator says that its name is right.
///
/// # Errors
/// As [`queues`]; and if the queue has a trace of BullMQ, for then it is not new.
pub async fn new_queue<O: Outside>(
    outside: &O,
    settings: &PassSettings,
    queue: &str,
    operator: Operator<'_>,
) -> Done {
    outside.ledger().check_schema().await?;
    let queues = chosen(&[queue.to_owned()], &outside.handlers().domains())?;
    let (seen, _) = sorted(outside, settings, &queues).await?;
    if !seen.is_empty() {
        let why =
            format!("queue {queue:?} exists, so it is not new; `salvage accept {queue}` accepts it as it is");
        return Err(CommandError::Unknown(why));
    }
    let names = outside.queues().existing_queues().await.unwrap_or_default();
    say(format_args!("{queue}: no trace of BullMQ; {}", similar(queue, &names)))?;
    accept_all(outside, settings, &queues, operator).await?;
    Ok(Exit::Done)
}

/// What to do about a queue that was never seen.
pub(crate) fn never_seen(queue: &str, existing: &[String]) -> String {
    format!(
        "never seen under this prefix, so it was not accepted: {}; correct the manifest, or run `salvage accept --new {queue}` \
         if the application has yet to use it",
        similar(queue, existing)
    )
}

/// The names of existing queues that are most like this one.
pub(crate) fn similar(queue: &str, existing: &[String]) -> String {
    const SHOWN_MAX: usize = 3;
    let mut near: Vec<(usize, &String)> = existing
        .iter()
        .map(|other| (strsim::osa_distance(&queue.to_lowercase(), &other.to_lowercase()), other))
        .collect();
    near.sort();
    let names: Vec<String> = near.iter().take(SHOWN_MAX).map(|(_, name)| format!("{name:?}")).collect();
    match names.len() {
        0 => "no queue exists under this prefix".to_owned(),
        _ => format!("queues that exist: {}", names.join(", ")),
    }
}

/// The queues that show a trace of BullMQ, or did once; and the others.
async fn sorted<O: Outside>(
    outside: &O,
    settings: &PassSettings,
    queues: &BTreeSet<String>,
) -> Result<(BTreeSet<String>, BTreeSet<String>), CommandError> {
    let snapshot = outside.queues().snapshot(&Ask::guards(queues)).await?;
    let mut known: BTreeSet<String> = snapshot
        .queues
        .iter()
        .filter(|(_, reading)| reading.has_trace())
        .map(|(queue, _)| queue.clone())
        .collect();
    for scope in pass::scopes(outside, settings) {
        let memories = outside.ledger().queue_memories(scope.as_str(), queues).await?;
        let ever =
            memories.into_iter().filter(|(_, memory)| memory.ever_had_jobs || memory.accepted_at.is_some());
        known.extend(ever.map(|(queue, _)| queue));
    }
    Ok(queues.iter().cloned().partition(|queue| known.contains(queue)))
}

async fn accept_all<O: Outside>(
    outside: &O,
    settings: &PassSettings,
    queues: &BTreeSet<String>,
    operator: Operator<'_>,
) -> Result<(), CommandError> {
    show(outside, queues).await?;
    show_attribution(outside, settings, queues).await?;
    operator.agrees("Accept what these queues hold now as the truth?")?;
    let (domains, who) = (outside.handlers().domains(), operator.who);
    let (mut accepted, mut server) = (BTreeMap::new(), None);
    for scope in pass::scopes(outside, settings) {
        let declared = declared(&domains, |domain| scope.covers(&domain.manifest.domain));
        let queues: BTreeSet<String> = queues.intersection(&declared).cloned().collect();
        if !queues.is_empty() {
            let now = accept(outside, &scope, &queues, &mut server).await?;
            accepted.extend(queues.into_iter().map(|queue| (queue, now)));
        }
    }
    accept_for_declarations(outside, &domains, queues).await?;
    for (queue, now) in &accepted {
        outside.ledger().accepted_by(queue, who, *now).await?;
        tracing::warn!(queue, who, "queue accepted: what it holds now counts as the truth");
        say(format_args!("accepted {queue}: what it holds now counts as the truth"))?;
    }
    say("the next pass recovers what waited for this; `salvage plan` shows it")
}

/// What an acceptance says of a manifest: that nobody knows better than it, as long as it declares the same.
///
/// # Errors
/// If PostgreSQL did not answer.
pub async fn accept_for_declarations<O: Outside>(
    outside: &O,
    domains: &[LoadedDomain],
    queues: &BTreeSet<String>,
) -> Result<(), CommandError> {
    for domain in domains {
        for source in &domain.manifest.sources {
            let own = source.queues.iter().map(|rule| &rule.name).filter(|name| queues.contains(*name));
            let own: BTreeSet<String> = own.cloned().collect();
            if !own.is_empty() {
                let name = SourceName { domain: domain.manifest.domain.clone(), source: source.name.clone() };
                let declaration = Declaration { source: name, text: declaration(source) };
                outside.ledger().accept_queues(&declaration, &own).await?;
            }
        }
    }
    Ok(())
}

/// Says what the queues themselves say of the manifests, for which this word does not stand.
async fn show_attribution<O: Outside>(
    outside: &O,
    settings: &PassSettings,
    queues: &BTreeSet<String>,
) -> Result<(), CommandError> {
    let (_switch, never) = stop();
    for scope in pass::scopes(outside, settings) {
        // A look for a person: where it fails, what is accepted is looked at by other means, and fails there.
        let Ok(Ok(survey)) = pass::survey::survey(outside, settings, &scope, &never).await else { continue };
        for (queue, attribution) in survey.queues.iter().filter(|(queue, _)| queues.contains(*queue)) {
            say(format_args!("{}: {attribution}", name(queue)))?;
        }
        for (source, groups) in &survey.sources {
            for Control { job_type, figures, .. } in groups {
                say(format_args!("{source}: {figures} (type {})", name(job_type)))?;
            }
        }
    }
    Ok(())
}

/// Says what is vouched for: how much each queue holds, and some of it.
async fn show<O: Outside>(outside: &O, queues: &BTreeSet<String>) -> Result<(), CommandError> {
    const EXAMPLES: usize = 3;
    let snapshot = outside.queues().snapshot(&Ask::guards(queues)).await?;
    for (queue, reading) in &snapshot.queues {
        let jobs = counted(reading.ids_total() as u64, "scheduled job");
        let counter =
            reading.id_counter.map_or_else(|| "never used".to_owned(), |id| format!("counter {id}"));
        let ids = reading.entries().map(|(_, id)| id).chain(reading.retained.iter().map(String::as_str));
        let examples: Vec<String> = ids.take(EXAMPLES).map(|id| format!("{id:?}")).collect();
        let such_as =
            if examples.is_empty() { String::new() } else { format!(", such as {}", examples.join(", ")) };
        say(format_args!("{queue}: {jobs}, {counter}{such_as}"))?;
    }
    Ok(())
}

/// Accepts queues as they are, for one lease; returns when. `server` is the run id of the Redis that is accepted, known from
/// the first look on: whoever accepts has one in mind.
///
/// # Errors
/// If a store did not answer, a queue changed meanwhile, or another Redis answers; then nothing is accepted.
pub async fn accept<O: Outside>(
    outside: &O,
    scope: &Scope,
    queues: &BTreeSet<String>,
    server: &mut Option<String>,
) -> Result<Timestamp, CommandError> {
    let (ledger, scope) = (outside.ledger(), scope.as_str());
    // A pass that is under way has judged by what was true before: it ends here, and the next one begins anew.
    let fence = ledger.raise_fence(scope, &outside.clock().token()).await?;
    let snapshot = look(outside, scope, queues, server).await?;
    let now = outside.jobs().now().await?;
    let before = ledger.queue_memories(scope, queues).await?;
    let marked = marked(&snapshot, &before, now, || outside.clock().token());
    ledger.remember_queues(&marked, &fence).await?;
    // What the snapshot found is the last nonce that a memory knows to be written.
    let mark = |(queue, memory): (&String, &QueueMemory)| {
        Some((queue.clone(), Mark { found: memory.nonce.clone(), nonce: memory.nonce_next.clone()? }))
    };
    outside.queues().mark(&marked.iter().filter_map(mark).collect(), &fence).await?;
    // Looked at once more: what is accepted is what holds the nonce, and not what was there a moment before it.
    let again = look(outside, scope, queues, server).await?;
    ledger.remember_queues(&accepted(&again, &marked, now)?, &fence).await?;
    Ok(now)
}

/// The asked queues, or those of every handler that is granted something if none is named.
pub(super) fn chosen(asked: &[String], domains: &[LoadedDomain]) -> Result<BTreeSet<String>, CommandError> {
    if asked.is_empty() {
        let granted = declared(domains, |domain| domain.standing == Standing::Active);
        if granted.is_empty() {
            let why =
                "no handler is granted anything, so there is no queue to accept; see `salvage handler list`";
            return Err(CommandError::Unknown(why.to_owned()));
        }
        return Ok(granted);
    }
    let declared = declared(domains, |_| true);
    if declared.is_empty() {
        let why = "no handler serves, so no queue is known; `salvage handler list` says why";
        return Err(CommandError::Unknown(why.to_owned()));
    }
    if let Some(unknown) = asked.iter().find(|queue| !declared.contains(*queue)) {
        let declared = declared.into_iter().collect::<Vec<_>>().join(", ");
        let why = format!("no handler that serves declares queue {unknown:?}; there are {declared}");
        return Err(CommandError::Unknown(why));
    }
    Ok(asked.iter().cloned().collect())
}

/// The queues that these of the domains declare.
fn declared(domains: &[LoadedDomain], is_wanted: impl Fn(&LoadedDomain) -> bool) -> BTreeSet<String> {
    let sources =
        domains.iter().filter(|domain| is_wanted(domain)).flat_map(|domain| &domain.manifest.sources);
    sources.flat_map(|source| source.queues.iter().map(|queue| queue.name.clone())).collect()
}

/// The queues' guards, of a node that may be believed and queues that can be read.
async fn look<O: Outside>(
    outside: &O,
    scope: &str,
    queues: &BTreeSet<String>,
    server: &mut Option<String>,
) -> Result<Snapshot, CommandError> {
    let snapshot = outside.queues().snapshot(&Ask::guards(queues).of_scope(scope)).await?;
    if let Some(failure) = snapshot.server_fault() {
        return Err(failure.into());
    }
    if server.get_or_insert_with(|| snapshot.server.run_id.clone()) != &snapshot.server.run_id {
        let why = "another Redis answers than a moment ago, or it was restarted: nothing more is accepted; try again";
        return Err(CommandError::Unknown(why.to_owned()));
    }
    for (queue, reading) in &snapshot.queues {
        if let Some(flaw) = reading.flaws.iter().find(|flaw| !flaw.is_lack_of_trace()) {
            return Err(CommandError::Unknown(format!(
                "queue {queue:?} cannot be accepted as it is: {flaw}"
            )));
        }
    }
    Ok(snapshot)
}

/// The memories with which each queue gets a fresh nonce.
fn marked(
    snapshot: &Snapshot,
    before: &BTreeMap<String, QueueMemory>,
    now: Timestamp,
    token: impl Fn() -> String,
) -> BTreeMap<String, QueueMemory> {
    let memory = |(queue, reading): (&String, &QueueReading)| {
        let before = before.get(queue);
        let continuity = follow(before, reading, &snapshot.server);
        let memory = remember(before, &continuity, reading, &snapshot.server, Some(token()), now);
        (queue.clone(), memory)
    };
    snapshot.queues.iter().map(memory).collect()
}

/// The memories of queues that hold the nonce they were given.
fn accepted(
    snapshot: &Snapshot,
    marked: &BTreeMap<String, QueueMemory>,
    now: Timestamp,
) -> Result<BTreeMap<String, QueueMemory>, CommandError> {
    let mut memories = BTreeMap::new();
    for (queue, reading) in &snapshot.queues {
        let Some(memory) = marked.get(queue).map(QueueMemory::expecting_next) else { continue };
        let continuity = follow(Some(&memory), reading, &snapshot.server);
        if let Continuity::Broken(why) = continuity {
            return Err(CommandError::Unknown(format!(
                "queue {queue:?} cannot be accepted, for it changed meanwhile: {why}"
            )));
        }
        let memory = remember(Some(&memory), &continuity, reading, &snapshot.server, None, now);
        memories.insert(queue.clone(), QueueMemory { accepted_at: Some(now), ..memory });
    }
    Ok(memories)
}
