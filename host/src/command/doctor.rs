//! `salvage doctor`: is everything there that a pass needs? Takes no lease and writes nothing, but for the indexes it is
//! asked to create.

use salvage_core::epoch::{Continuity, QueueMemory, follow};
use salvage_core::settings::PassSettings;
use salvage_core::snapshot::{QueueReading, Server};
use salvage_core::source::ResolvedSource;
use serde::Serialize;

use super::{CommandError, Done, handler, say, say_json};
use crate::cli::Exit;
use crate::host::Host;
use crate::pass::queue_names;
use crate::ports::{Handlers, Jobs, Ledger, Queues};

/// One thing that was looked at.
#[derive(Debug, Serialize)]
struct Finding {
    /// What was looked at.
    subject: String,
    /// Whether it is as it should be.
    ok: bool,
    /// What was found, and what to do.
    detail: String,
}

/// Everything that was looked at, in order.
#[derive(Debug, Default)]
struct Findings(Vec<Finding>);

impl Findings {
    fn good(&mut self, subject: impl Into<String>, detail: impl Into<String>) {
        self.0.push(Finding { subject: subject.into(), ok: true, detail: detail.into() });
    }

    fn bad(&mut self, subject: impl Into<String>, detail: impl Into<String>) {
        self.0.push(Finding { subject: subject.into(), ok: false, detail: detail.into() });
    }
}

/// Looks at everything and prints what it finds; fails if something is not as it should be.
///
/// # Errors
/// If an index could not be created, or standard output is closed. A store that does not answer is a finding.
pub async fn doctor(host: &Host, settings: &PassSettings, create_indexes: bool, json: bool) -> Done {
    let mut findings = Findings::default();
    handlers(host, &mut findings);
    let sources = database(host, &mut findings).await;
    if create_indexes {
        for source in &sources {
            make_indexes(host, source).await?;
        }
    }
    for source in &sources {
        index(host, source, settings.page_size, &mut findings).await;
    }
    queues(host, &sources, &mut findings).await;
    let is_well = findings.0.iter().all(|finding| finding.ok);
    if json {
        say_json(&findings.0)?;
    } else {
        for finding in &findings.0 {
            let mark = if finding.ok { "ok  " } else { "BAD " };
            say(format_args!("{mark}{}: {}", finding.subject, finding.detail))?;
        }
    }
    Ok(if is_well { Exit::Done } else { Exit::Failed })
}

fn handlers(host: &Host, findings: &mut Findings) {
    if let Some(fault) = host.handlers.folder_fault() {
        findings.bad("handlers", fault.to_string());
    } else if host.handlers.reports().is_empty() {
        findings.bad("handlers", "the folder of [handlers] dir holds no .wasm file");
    }
    for report in host.handlers.reports() {
        let subject = format!("handler {}", report.domain.as_ref().unwrap_or(&report.file));
        match report.why() {
            None => findings.good(subject, handler::line(report)),
            Some(why) => findings.bad(subject, format!("{}\n{why}", handler::line(report))),
        }
    }
}

/// The sources that fit the catalog.
async fn database(host: &Host, findings: &mut Findings) -> Vec<ResolvedSource> {
    match host.postgres.check_schema().await {
        Ok(()) => findings.good("PostgreSQL", "connected; schema salvage is current"),
        Err(failure) => findings.bad("PostgreSQL", failure.to_string()),
    }
    match host.postgres.resolve(&host.handlers.domains()).await {
        Ok((sources, misfits)) => {
            for misfit in misfits {
                findings.bad(format!("source {}", misfit.source), misfit.faults.join("; "));
            }
            sources
        }
        Err(failure) => {
            findings.bad("sources", failure.to_string());
            vec![]
        }
    }
}

async fn make_indexes(host: &Host, source: &ResolvedSource) -> Result<(), CommandError> {
    for statement in host.postgres.index_plan(source).await?.statements {
        say(format_args!("{statement};"))?;
        host.postgres.run_index_statement(&statement).await?;
    }
    Ok(())
}

/// Which index serves the candidate query, or how to make one.
async fn index(host: &Host, source: &ResolvedSource, page_size: u32, findings: &mut Findings) {
    let subject = format!("source {}", source.name);
    let plan = match host.postgres.candidates_plan(source, page_size).await {
        Ok(plan) => plan,
        Err(failure) => return findings.bad(subject, failure.to_string()),
    };
    let node = plan.iter().find(|line| line.contains("Scan")).map_or("", |line| line.trim());
    match host.postgres.index_plan(source).await {
        Err(failure) => findings.bad(subject, failure.to_string()),
        Ok(missing) if missing.statements.is_empty() => {
            findings.good(subject, format!("candidates by {node}"))
        }
        Ok(missing) => findings.bad(
            subject,
            format!(
                "no live-row index; candidates by {node}; `salvage doctor --create-indexes` runs {}",
                missing.statements.join("; ")
            ),
        ),
    }
}

async fn queues(host: &Host, sources: &[ResolvedSource], findings: &mut Findings) {
    let names = queue_names(sources);
    let snapshot = match host.queues.snapshot(&names).await {
        Ok(snapshot) => snapshot,
        Err(failure) => return findings.bad("Redis", failure.to_string()),
    };
    match snapshot.server_fault() {
        Some(failure) => findings.bad("Redis", failure.to_string()),
        None => findings.good("Redis", node(&snapshot.server)),
    }
    if snapshot.server.maxmemory_policy != "noeviction" {
        let policy = &snapshot.server.maxmemory_policy;
        findings.bad(
            "Redis",
            format!("maxmemory-policy is {policy}: jobs may be evicted; BullMQ needs noeviction"),
        );
    }
    let memories = match host.postgres.queue_memories(&names).await {
        Ok(memories) => memories,
        Err(failure) => return findings.bad("queues", failure.to_string()),
    };
    for (name, reading) in &snapshot.queues {
        queue(name, reading, memories.get(name), &snapshot.server, findings);
    }
}

fn node(server: &Server) -> String {
    format!("connected; role {}, run id {}, {} keys evicted", server.role, server.run_id, server.evicted_keys)
}

fn queue(
    name: &str,
    reading: &QueueReading,
    memory: Option<&QueueMemory>,
    server: &Server,
    findings: &mut Findings,
) {
    let subject = format!("queue {name}");
    let is_accepted = memory.is_some_and(|memory| memory.accepted_at.is_some());
    if let Some(flaw) = reading.flaws.iter().find(|flaw| !(flaw.is_lack_of_trace() && is_accepted)) {
        return findings.bad(subject, flaw.to_string());
    }
    let held = format!(
        "{} scheduled, id {}{}",
        reading.entries().count(),
        reading.id_counter.map_or_else(|| "none".to_owned(), |id| id.to_string()),
        if reading.is_paused { ", paused" } else { "" }
    );
    match (follow(memory, reading, server), memory) {
        (Continuity::Continues, Some(memory)) => {
            let accepted = memory.accepted_at.map(|at| format!(", accepted {at:.0}")).unwrap_or_default();
            findings.good(subject, format!("{held}; epoch since {:.0}{accepted}", memory.epoch_began));
        }
        (Continuity::Broken(why), _) => findings.bad(
            subject,
            format!("{held}; {why}; a new epoch begins with the next pass, or `salvage accept {name}`"),
        ),
        _ => findings.good(
            subject,
            format!("{held}; no pass has seen it yet: older orphans will wait for `salvage accept {name}`"),
        ),
    }
}
