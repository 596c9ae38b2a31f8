//! `salvage accept`: the operator says that what Redis holds now is the truth, or that what PostgreSQL rejected was mended.
//!
//! Accepting a queue writes a fresh nonce into it and takes a snapshot, so that it is this very state that is accepted:
//! the one with the nonce. A Redis that loses data afterwards is noticed as ever, and one that lost it a moment before
//! does not hold the nonce.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use salvage_core::epoch::{Continuity, QueueMemory, follow, remember};
use salvage_core::lease::Scope;
use salvage_core::settings::PassSettings;
use salvage_core::snapshot::{QueueReading, Snapshot};
use salvage_core::source::Standing;

use super::explain::{known_sources, source_name, there_are};
use super::text::counted;
use super::{CommandError, Done, say};
use crate::cli::Exit;
use crate::pass;
use crate::ports::{Ask, Clock, Handlers, Jobs, Ledger, LoadedDomain, Mark, Outside, Queues};

/// Accepts queues as they are: for each lease of the deployment that has to do with them.
///
/// # Errors
/// If a queue is not declared by a loaded handler, or a store did not answer; then nothing is accepted, or, where each
/// domain has its own lease, nothing more.
pub async fn queues<O: Outside>(outside: &O, settings: &PassSettings, asked: &[String], who: &str) -> Done {
    outside.ledger().check_schema().await?;
    let domains = outside.handlers().domains();
    let queues = chosen(asked, &domains)?;
    let (mut accepted, mut server) = (BTreeMap::new(), None);
    for scope in pass::scopes(outside, settings) {
        let declared = declared(&domains, |domain| scope.covers(&domain.manifest.domain));
        let queues: BTreeSet<String> = queues.intersection(&declared).cloned().collect();
        if !queues.is_empty() {
            let now = accept(outside, &scope, &queues, &mut server).await?;
            accepted.extend(queues.into_iter().map(|queue| (queue, now)));
        }
    }
    for (queue, now) in &accepted {
        outside.ledger().accepted_by(queue, who, *now).await?;
        tracing::warn!(queue, who, "queue accepted: what it holds now counts as the truth");
        say(format_args!("accepted {queue}: what it holds now counts as the truth"))?;
    }
    say("the next pass recovers what waited for this; `salvage plan` shows it")?;
    Ok(Exit::Done)
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

/// Accepts one unreadable entry as harmless.
///
/// # Errors
/// If the queue is not declared by a loaded handler, or PostgreSQL did not answer.
pub async fn entry<O: Outside>(outside: &O, queue: &str, entry_id: &str, who: &str) -> Done {
    outside.ledger().check_schema().await?;
    chosen(&[queue.to_owned()], &outside.handlers().domains())?;
    let now = outside.jobs().now().await?;
    outside.ledger().accept_entry(queue, entry_id, who, now).await?;
    tracing::warn!(queue, entry.id = entry_id, who, "entry accepted: it counts as nobody's job");
    say(format_args!("accepted entry {entry_id} of {queue}: it counts as nobody's job"))?;
    Ok(Exit::Done)
}

/// Lets the next pass try a parked job of a source again, or all of them.
///
/// # Errors
/// If the source is not known, PostgreSQL did not answer, or nothing of it is parked.
pub async fn parked<O: Outside>(outside: &O, source: &str, job_id: Option<&str>, who: &str) -> Done {
    outside.ledger().check_schema().await?;
    let known = known_sources(&outside.handlers().domains());
    let source = source_name(source, &known)?;
    if !known.contains(&source) {
        let why = format!("no handler that serves has a source {source}; {}", there_are(&known));
        return Err(CommandError::Unknown(why));
    }
    let released = outside.ledger().release_parked(&source, job_id, who).await?;
    if released == 0 {
        let what = job_id.map_or_else(|| format!("no job of {source}"), |id| format!("job {id} of {source}"));
        let is_not = if job_id.is_some() { "is not parked" } else { "is parked" };
        return Err(CommandError::Unknown(format!("{what} {is_not}; `salvage plan` lists what is")));
    }
    tracing::warn!(%source, candidate.id = job_id, who, jobs = released, "parked jobs released");
    say(format_args!("released {} of {source}: the next pass tries again", counted(released, "parked job")))?;
    Ok(Exit::Done)
}

/// The asked queues, or those of every handler that is granted something if none is named.
fn chosen(asked: &[String], domains: &[LoadedDomain]) -> Result<BTreeSet<String>, CommandError> {
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
