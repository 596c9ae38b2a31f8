//! `salvage doctor`: is everything there that a pass needs? Takes no lease and writes nothing, but for the indexes it is
//! asked to create.

use std::collections::{BTreeMap, BTreeSet};

use salvage_core::epoch::{Continuity, QueueMemory, follow};
use salvage_core::lease::{Scope, ScopeKind};
use salvage_core::settings::PassSettings;
use salvage_core::snapshot::{QueueReading, Server, Snapshot, UNTOLD};
use salvage_core::source::ResolvedSource;
use serde::Serialize;

mod waiting;

use super::text::{beside, counted};
use super::{CommandError, Done, handler, say, say_json};
use crate::cli::Exit;
use crate::host::Host;
use crate::pass;
use crate::ports::{Ask, Handlers, Jobs, Ledger, Queues, StoreFailure};
use crate::wasm::{LoadState, Running};

/// How one thing is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
enum Health {
    /// As it should be.
    Ok,
    /// Perhaps not what is wanted; a pass works all the same.
    Note,
    /// A pass cannot do its work, or not well.
    Bad,
}

/// One thing that was looked at.
#[derive(Debug, Serialize)]
struct Finding {
    /// What was looked at.
    subject: String,
    /// How it is.
    health: Health,
    /// What was found.
    detail: String,
    /// What to do, or lines to paste.
    remedy: Vec<String>,
}

/// Everything that was looked at, in order.
#[derive(Debug, Default)]
struct Findings(Vec<Finding>);

impl Findings {
    fn add(&mut self, health: Health, subject: &str, detail: impl Into<String>, remedy: Vec<String>) {
        self.0.push(Finding { subject: subject.to_owned(), health, detail: detail.into(), remedy });
    }

    fn good(&mut self, subject: &str, detail: impl Into<String>) {
        self.add(Health::Ok, subject, detail, vec![]);
    }

    fn note(&mut self, subject: &str, detail: impl Into<String>) {
        self.add(Health::Note, subject, detail, vec![]);
    }

    fn bad(&mut self, subject: &str, detail: impl Into<String>) {
        self.add(Health::Bad, subject, detail, vec![]);
    }

    fn count(&self, health: Health) -> u64 {
        self.0.iter().filter(|finding| finding.health == health).count() as u64
    }
}

/// Looks at everything and prints what it finds; fails if something is not as it should be.
///
/// # Errors
/// If standard output is closed. A store that does not answer, or an index that cannot be made, is a finding.
pub async fn doctor(
    host: &Host,
    settings: &PassSettings,
    running: Option<&Running>,
    create_indexes: bool,
    json: bool,
) -> Done {
    let mut findings = Findings::default();
    let has_schema = database(host, &mut findings).await;
    handlers(host, &mut findings);
    quarantined(running, &mut findings);
    // Without a connection there is nothing to add to what was found.
    let sources = match has_schema {
        Some(_) => sources(host, &mut findings).await,
        None => vec![],
    };
    if create_indexes {
        make_indexes(host, &sources, json, &mut findings).await?;
    }
    for source in &sources {
        index(host, source, settings.rows_per_page(), &mut findings).await;
    }
    if has_schema == Some(true) {
        lease(host, settings, &mut findings).await;
    }
    let mut scopes = pass::scopes(host, settings);
    if scopes.is_empty() {
        // No domain serves. Redis is looked at all the same.
        scopes.push(Scope::Global);
    }
    for (index, scope) in scopes.iter().enumerate() {
        queues(host, scope, index == 0, has_schema == Some(true), &mut findings).await;
    }
    if has_schema == Some(true) {
        waiting::waiting(host, &scopes, &sources, &mut findings).await;
    }
    if json {
        say_json(&findings.0)?;
    } else {
        print(&findings)?;
    }
    Ok(if findings.count(Health::Bad) == 0 { Exit::Done } else { Exit::Failed })
}

fn print(findings: &Findings) -> Result<(), CommandError> {
    for Finding { subject, health, detail, remedy } in &findings.0 {
        let mark = match health {
            Health::Ok => "ok   ",
            Health::Note => "note ",
            Health::Bad => "BAD  ",
        };
        say(beside(mark, &format!("{subject}: {detail}")))?;
        for line in remedy {
            say(line)?;
        }
    }
    let (bad, notes) = (findings.count(Health::Bad), findings.count(Health::Note));
    let all = counted(findings.0.len() as u64, "check");
    say(match (bad, notes) {
        (0, 0) => format!("\nall is well: {all}"),
        (0, notes) => format!("\nall is well: {all}, {}", counted(notes, "note")),
        (bad, _) => format!("\nnot well: {bad} of {all} bad"),
    })
}

/// Whether schema `salvage` is there; `None` if PostgreSQL itself is not.
async fn database(host: &Host, findings: &mut Findings) -> Option<bool> {
    let subject = "PostgreSQL";
    match host.postgres.check_schema().await {
        Ok(()) => {
            findings.good(subject, "connected; schema salvage is current");
            Some(true)
        }
        Err(failure) => {
            findings.bad(subject, failure.to_string());
            matches!(failure, StoreFailure::Schema { .. }).then_some(false)
        }
    }
}

/// What a running host on this machine says of builds that this process, just started, thinks well of.
fn quarantined(running: Option<&Running>, findings: &mut Findings) {
    let Some(running) = running else { return };
    for told in running.files.iter().filter(|told| told.state == "quarantined") {
        let subject = format!("handler {}", told.domain.as_ref().unwrap_or(&told.file));
        let why = told.why.as_deref().unwrap_or_default();
        findings.bad(&subject, format!("quarantined in the host that runs (process {}): {why}", running.pid));
    }
}

fn handlers(host: &Host, findings: &mut Findings) {
    let registry = host.handlers.now();
    if let Some(fault) = registry.folder_fault() {
        findings.bad("handlers", fault.to_string());
    } else if registry.reports().is_empty() {
        findings.bad("handlers", "the folder of [handlers] dir holds no .wasm file; put one there");
    }
    for report in registry.reports() {
        let subject = format!("handler {}", report.domain.as_ref().unwrap_or(&report.file));
        let health = match report.state {
            LoadState::Active => Health::Ok,
            LoadState::Observed { .. } => Health::Note,
            LoadState::Refused { .. } | LoadState::Quarantined { .. } | LoadState::Loading(_) => Health::Bad,
        };
        let line = handler::line(&report);
        match handler::explained(&report) {
            None => findings.add(health, &subject, line, vec![]),
            Some((why, remedy)) => findings.add(health, &subject, format!("{line}: {why}"), remedy),
        }
    }
}

/// The sources that fit the catalog.
async fn sources(host: &Host, findings: &mut Findings) -> Vec<ResolvedSource> {
    match host.postgres.resolve(&host.handlers.domains()).await {
        Ok((sources, misfits)) => {
            for misfit in misfits {
                let faults = misfit.faults.join("; ");
                findings.bad(
                    &format!("source {}", misfit.source),
                    format!("left out, its manifest does not fit the database: {faults}"),
                );
            }
            sources
        }
        Err(failure) => {
            findings.bad("sources", failure.to_string());
            vec![]
        }
    }
}

/// Makes what is missing, table by table; one that cannot be made keeps no other from being made.
async fn make_indexes(
    host: &Host,
    sources: &[ResolvedSource],
    json: bool,
    findings: &mut Findings,
) -> Result<(), CommandError> {
    for source in sources {
        let statements = match host.postgres.index_plan(source).await {
            Ok(plan) => plan.statements,
            // The look at the index, which follows, says the same.
            Err(_) => continue,
        };
        for statement in statements {
            if json {
                tracing::info!("{statement};");
            } else {
                say(format_args!("{statement};"))?;
            }
            if let Err(failure) = host.postgres.run_index_statement(&statement).await {
                if matches!(failure, StoreFailure::Pooled { .. }) {
                    findings.bad("indexes", failure.to_string());
                    return Ok(());
                }
                findings.bad(
                    &format!("source {}", source.name),
                    format!(
                        "{failure}; an invalid index may be left, which the next `--create-indexes` drops"
                    ),
                );
                break;
            }
        }
    }
    Ok(())
}

/// Which index serves the candidate query, or how to make one.
async fn index(host: &Host, source: &ResolvedSource, limit: u32, findings: &mut Findings) {
    let subject = format!("source {}", source.name);
    let plan = match host.postgres.candidates_plan(source, limit).await {
        Ok(plan) => plan,
        Err(failure) => return findings.bad(&subject, failure.to_string()),
    };
    let found = found_by(&plan);
    match host.postgres.index_plan(source).await {
        Err(failure) => findings.bad(&subject, failure.to_string()),
        Ok(missing) if missing.statements.is_empty() => {
            findings.good(&subject, format!("candidates are found by {found}"));
        }
        Ok(missing) => {
            let why = format!(
                "no index of live rows, candidates are found by {found}; `salvage doctor --create-indexes` runs, \
                 while the application goes on:"
            );
            let remedy = missing.statements.iter().map(|statement| format!("{statement};")).collect();
            findings.add(Health::Bad, &subject, why, remedy);
        }
    }
}

/// The indexes that a plan reads, or how it does without.
fn found_by(plan: &[String]) -> String {
    let index = |line: &String| {
        let (_, after) = line.split_once("Index Scan ").or_else(|| line.split_once("Index Only Scan "))?;
        let after = after.trim_start_matches("Backward ");
        let name = after.strip_prefix("using ").or_else(|| after.strip_prefix("on "))?;
        Some(name.split(" on ").next().unwrap_or(name).to_owned())
    };
    let indexes: BTreeSet<String> = plan.iter().filter_map(index).collect();
    let has_scan = plan.iter().any(|line| line.contains("Seq Scan"));
    match (indexes.len(), has_scan) {
        (0, _) => "reading the whole table".to_owned(),
        (count, true) => format!("reading whole partitions, and {}", counted_indexes(count, &indexes)),
        (count, false) => counted_indexes(count, &indexes),
    }
}

fn counted_indexes(count: usize, indexes: &BTreeSet<String>) -> String {
    let names = indexes.iter().cloned().collect::<Vec<_>>().join(", ");
    format!("{} {names}", if count == 1 { "index" } else { "indexes" })
}

/// Whether all hosts agree on what a lease covers; nothing to tell where there is one, and all do.
async fn lease(host: &Host, settings: &PassSettings, findings: &mut Findings) {
    let kind = settings.lease_scope;
    match host.postgres.check_scope(kind).await {
        Ok(()) if kind == ScopeKind::Global => {}
        Ok(()) => findings
            .good("lease", "scope domain: each domain has its own, and no host of the other kind is at work"),
        Err(failure) => findings.bad("lease", failure.to_string()),
    }
}

/// The queues that one lease covers; Redis itself is told once.
async fn queues(host: &Host, scope: &Scope, is_first: bool, has_schema: bool, findings: &mut Findings) {
    let domains = host.handlers.domains().into_iter();
    let sources = domains
        .filter(|domain| scope.covers(&domain.manifest.domain))
        .flat_map(|domain| domain.manifest.sources);
    let names = &sources.flat_map(|source| source.queues).map(|queue| queue.name).collect();
    let snapshot = match host.queues.snapshot(&Ask::guards(names).of_scope(scope.as_str())).await {
        Ok(snapshot) => snapshot,
        Err(failure) => return findings.bad("Redis", failure.to_string()),
    };
    if is_first {
        redis(&snapshot, findings);
    }
    // Without them only what the queues hold can be told, and why was said above.
    let memories =
        if has_schema { Some(host.postgres.queue_memories(scope.as_str(), names).await) } else { None };
    let memories = match memories.transpose() {
        Ok(memories) => memories,
        Err(failure) => return findings.bad("queues", failure.to_string()),
    };
    for (name, reading) in &snapshot.queues {
        let subject = match scope {
            Scope::Global => format!("queue {name}"),
            Scope::Domain(domain) => format!("queue {name} ({domain})"),
        };
        queue(&subject, name, reading, memories.as_ref(), &snapshot.server, findings);
    }
}

fn redis(snapshot: &Snapshot, findings: &mut Findings) {
    match snapshot.server_fault() {
        Some(failure) => findings.bad("Redis", failure.to_string()),
        None => findings.good("Redis", node(&snapshot.server)),
    }
    let policy = snapshot.server.maxmemory_policy.as_str();
    if policy == UNTOLD {
        let note = "it does not tell its maxmemory-policy: whether jobs were evicted is seen by its count of evicted keys; \
                    see in the settings of the service that it evicts nothing";
        findings.note("Redis", note);
    } else if policy != "noeviction" {
        findings.bad(
            "Redis",
            format!(
                "maxmemory-policy is {policy}: jobs may be evicted; set noeviction, as BullMQ asks for (where CONFIG is \
                 forbidden, in the settings of the service)"
            ),
        );
    }
}

fn node(server: &Server) -> String {
    let short = |id: &str| if id.is_empty() { UNTOLD.to_owned() } else { id.chars().take(12).collect() };
    format!(
        "connected; {}, run {}, replication {}, {} evicted under {}",
        server.role,
        short(&server.run_id),
        short(&server.replid),
        counted(server.evicted_keys, "key"),
        server.maxmemory_policy
    )
}

fn queue(
    subject: &str,
    name: &str,
    reading: &QueueReading,
    memories: Option<&BTreeMap<String, QueueMemory>>,
    server: &Server,
    findings: &mut Findings,
) {
    let memory = memories.and_then(|memories| memories.get(name));
    let is_accepted = memory.is_some_and(|memory| memory.accepted_at.is_some());
    if let Some(flaw) = reading.flaws.iter().find(|flaw| !(flaw.is_lack_of_trace() && is_accepted)) {
        let remedy =
            if flaw.is_lack_of_trace() { format!(" (`salvage accept {name}`)") } else { String::new() };
        return findings.bad(subject, format!("{flaw}{remedy}"));
    }
    let scheduled = counted(reading.ids_total() as u64, "job");
    let counter = reading.id_counter.map_or_else(|| "never used".to_owned(), |id| format!("counter {id}"));
    let paused = if reading.is_paused { ", paused" } else { "" };
    let held = format!("{scheduled} scheduled, {counter}{paused}");
    if memories.is_none() {
        return findings.good(subject, held);
    }
    match (follow(memory, reading, server), memory) {
        (Continuity::Continues, Some(memory)) => {
            let accepted = memory.accepted_at.map(|at| format!(", accepted {at:.0}")).unwrap_or_default();
            let kept = if memory.run_id != server.run_id {
                ", kept over a restart"
            } else if memory.replid != server.replid {
                ", kept over a failover"
            } else {
                ""
            };
            findings.good(subject, format!("{held}; epoch since {:.0}{kept}{accepted}", memory.epoch_began));
        }
        (Continuity::Broken(why), _) => findings.bad(
            subject,
            format!(
                "{held}; {why}; older orphans will wait: if what it holds now is the truth, run `salvage accept {name}`"
            ),
        ),
        (Continuity::FirstContact, Some(_)) if is_accepted => {
            findings.good(subject, format!("{held}; accepted, its epoch begins with its first job"));
        }
        _ => findings.note(
            subject,
            format!(
                "{held}; no pass has seen it yet: orphans older than the first will wait for `salvage accept {name}`"
            ),
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(plan: &[&str], expected: &str) {
        let plan: Vec<String> = plan.iter().map(|line| (*line).to_owned()).collect();
        assert_eq!(found_by(&plan), expected);
    }

    #[test]
    fn a_plan_names_its_indexes_or_says_that_it_has_none() {
        check(
            &["Limit", "  ->  Index Scan using \"SlideJob_live\" on \"SlideJob\" j"],
            "index \"SlideJob_live\"",
        );
        check(
            &[
                "Limit",
                "  ->  Sort",
                "        ->  Bitmap Heap Scan on \"SlideJob\" j",
                "              ->  Bitmap Index Scan on \"SlideJob_live\"",
            ],
            "index \"SlideJob_live\"",
        );
        check(
            &[
                "Merge Append",
                "  ->  Index Scan using b_live on b j_1",
                "  ->  Index Only Scan using c_live on c j_2",
            ],
            "indexes b_live, c_live",
        );
        check(&["Limit", "  ->  Seq Scan on \"SlideJob\" j"], "reading the whole table");
    }
}
