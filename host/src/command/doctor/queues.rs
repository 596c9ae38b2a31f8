//! Redis and the queues: what they hold, since when they are believed, whose their entries are.

use std::collections::BTreeMap;

use salvage_core::control::Control;
use salvage_core::epoch::{Continuity, QueueMemory, follow};
use salvage_core::lease::Scope;
use salvage_core::settings::PassSettings;
use salvage_core::snapshot::{QueueReading, Server, Snapshot, UNTOLD};

use super::super::accept::similar;
use super::super::text::counted;
use super::Findings;
use crate::host::Host;
use crate::pass::survey;
use crate::ports::{Ask, Handlers, Ledger, Queues};
use crate::stop::stop;

/// The queues that one lease covers; Redis itself is told once.
pub(super) async fn queues(
    host: &Host,
    scope: &Scope,
    is_first: bool,
    has_schema: bool,
    findings: &mut Findings,
) {
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
    let has_unseen = snapshot.queues.values().any(|reading| !reading.has_trace());
    let existing = if has_unseen { host.queues.existing_queues().await.unwrap_or_default() } else { vec![] };
    for (name, reading) in &snapshot.queues {
        let subject = match scope {
            Scope::Global => format!("queue {name}"),
            Scope::Domain(domain) => format!("queue {name} ({domain})"),
        };
        let of = Queue { subject: &subject, name, reading, existing: &existing };
        of.tell(memories.as_ref(), &snapshot.server, findings);
    }
}

/// Whose the entries are, and whether young rows are found: what the system itself says of the manifests.
pub(super) async fn attribution(
    host: &Host,
    settings: &PassSettings,
    scope: &Scope,
    findings: &mut Findings,
) {
    let (_switch, never) = stop();
    let survey = match survey::survey(host, settings, scope, &never).await {
        Ok(Ok(survey)) => survey,
        // That Redis does not answer was said above.
        Ok(Err(_)) => return,
        Err(failure) => return findings.bad("attribution", failure.to_string()),
    };
    if !survey.is_whole {
        findings.note("attribution", "the queues are long: their entries were not all looked at");
    }
    for (queue, attribution) in &survey.queues {
        let subject = format!("entries of {queue}");
        let told = attribution.to_string();
        match attribution.unattributed {
            0 => findings.good(&subject, told),
            _ => findings.bad(
                &subject,
                format!("{told}; as long as an entry may be anybody's, no job of the queue is called lost: `salvage plan` names one"),
            ),
        }
    }
    for (source, groups) in &survey.sources {
        for Control { job_type, status, figures } in groups {
            let subject = format!("source {source}");
            let told = format!("{figures} (type {job_type}, {})", format!("{status:?}").to_lowercase());
            match figures.passed() {
                Some(false) => findings.bad(
                    &subject,
                    format!(
                        "{told}: a queue is missing from the manifest, or a payload key or status is wrong"
                    ),
                ),
                _ => findings.good(&subject, told),
            }
        }
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

/// One queue as it was found.
struct Queue<'q> {
    subject: &'q str,
    name: &'q str,
    reading: &'q QueueReading,
    /// Names of queues that exist; only read if one is missing.
    existing: &'q [String],
}

impl Queue<'_> {
    fn tell(
        &self,
        memories: Option<&BTreeMap<String, QueueMemory>>,
        server: &Server,
        findings: &mut Findings,
    ) {
        let Self { subject, name, reading, .. } = self;
        let memory = memories.and_then(|memories| memories.get(*name));
        let is_accepted = memory.is_some_and(|memory| memory.accepted_at.is_some());
        if let Some(flaw) = reading.flaws.iter().find(|flaw| !(flaw.is_lack_of_trace() && is_accepted)) {
            let remedy = match flaw.is_lack_of_trace() {
                true => format!(
                    "; {}; if it is new, run `salvage accept --new {name}`",
                    similar(name, self.existing)
                ),
                false => String::new(),
            };
            return findings.bad(subject, format!("{flaw}{remedy}"));
        }
        let held = self.held();
        if memories.is_none() {
            return findings.good(subject, held);
        }
        match (follow(memory, reading, server), memory) {
            (Continuity::Continues, Some(memory)) => {
                let accepted = memory.accepted_at.map(|at| format!(", accepted {at:.0}")).unwrap_or_default();
                let kept = kept(memory, server);
                findings
                    .good(subject, format!("{held}; epoch since {:.0}{kept}{accepted}", memory.epoch_began));
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

    fn held(&self) -> String {
        let scheduled = counted(self.reading.ids_total() as u64, "job");
        let counter = self.reading.id_counter;
        let counter = counter.map_or_else(|| "never used".to_owned(), |id| format!("counter {id}"));
        let paused = if self.reading.is_paused { ", paused" } else { "" };
        format!("{scheduled} scheduled, {counter}{paused}")
    }
}

fn kept(memory: &QueueMemory, server: &Server) -> &'static str {
    if memory.run_id != server.run_id {
        ", kept over a restart"
    } else if memory.replid != server.replid {
        ", kept over a failover"
    } else {
        ""
    }
}
