//! What the last passes left waiting: for the operator's word, or for its time.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use salvage_core::alarm::AlarmKind;
use salvage_core::epoch::QueueMemory;
use salvage_core::lease::Scope;
use salvage_core::ledger::PassRecord;
use salvage_core::source::{ResolvedSource, SourceName};
use salvage_core::storm::Storm;

use super::super::text::counted;
use super::{Findings, Health};
use crate::host::Host;
use crate::pass::queue_names;
use crate::ports::{Ledger, StoreFailure};

/// Passes that are looked through for the last one of each source: more than there are scopes.
const PASSES_MAX: u32 = 100;

/// What PostgreSQL remembers of it.
struct Remembered {
    /// Of each lease: what its passes remember of each queue.
    memories: Vec<(Scope, BTreeMap<String, QueueMemory>)>,
    storms: BTreeMap<SourceName, Storm>,
    /// Ended passes, newest first.
    passes: Vec<PassRecord>,
}

impl Remembered {
    async fn read(host: &Host, scopes: &[Scope], sources: &[ResolvedSource]) -> Result<Self, StoreFailure> {
        let mut passes = host.postgres.history(PASSES_MAX).await?;
        passes.retain(|pass| pass.duration_ms.is_some());
        let mut memories = Vec::new();
        for scope in scopes {
            let of_scope = host.postgres.queue_memories(scope.as_str(), &queue_names(sources)).await?;
            memories.push((scope.clone(), of_scope));
        }
        Ok(Self { memories, storms: host.postgres.storms().await?, passes })
    }

    /// The memory of each queue of a source; `None` for one never seen.
    fn of(&self, source: &ResolvedSource) -> Vec<Option<&QueueMemory>> {
        let own = self.memories.iter().find(|(scope, _)| scope.covers(&source.name.domain));
        source.declared.queues.iter().map(|rule| own?.1.get(&rule.name)).collect()
    }
}

/// Every reason for which orphans wait, source by source; nothing where none does.
pub(super) async fn waiting(
    host: &Host,
    scopes: &[Scope],
    sources: &[ResolvedSource],
    findings: &mut Findings,
) {
    let remembered = match Remembered::read(host, scopes, sources).await {
        Ok(remembered) => remembered,
        Err(failure) => return findings.bad("waiting", failure.to_string()),
    };
    for source in sources {
        let subject = format!("source {}", source.name);
        if let Some((pass, orphans)) = before_epoch(&remembered.passes, &source.name) {
            epoch(&subject, source, pass, orphans, &remembered.of(source), findings);
        }
        if let Some(of_source) = remembered.storms.get(&source.name) {
            storm(&subject, source, of_source, &remembered.of(source), findings);
        }
    }
    parked(host, findings).await;
    alarms(&remembered.passes, findings);
}

/// The last pass of a source, and how many of its orphans wait for their epoch since.
fn before_epoch<'p>(passes: &'p [PassRecord], of: &SourceName) -> Option<(&'p PassRecord, u64)> {
    passes
        .iter()
        .find_map(|pass| {
            let sources = pass.sources.as_array()?;
            let own = sources
                .iter()
                .find(|source| source["domain"] == of.domain && source["source"] == of.source)?;
            Some((pass, own["before_epoch"].as_u64().unwrap_or(0)))
        })
        .filter(|(_, orphans)| *orphans > 0)
}

fn epoch(
    subject: &str,
    source: &ResolvedSource,
    pass: &PassRecord,
    orphans: u64,
    queues: &[Option<&QueueMemory>],
    findings: &mut Findings,
) {
    let (orphans, at) = (counted(orphans, "orphan"), pass.started_at);
    let is_accepted = |memory: &Option<&QueueMemory>| {
        memory.is_some_and(|memory| memory.accepted_at.is_some_and(|accepted| accepted >= at))
    };
    if queues.iter().all(is_accepted) {
        let detail = format!("{orphans} waited at {at:.0}; accepted since, the next pass recovers them");
        return findings.note(subject, detail);
    }
    findings.bad(
        subject,
        format!(
            "{orphans} waited at {at:.0}, for Redis may have lost their entries; `salvage plan` shows what would become of \
             them; if what the queues hold is the truth, run `{}`",
            accept(source)
        ),
    );
}

fn storm(
    subject: &str,
    source: &ResolvedSource,
    storm: &Storm,
    queues: &[Option<&QueueMemory>],
    findings: &mut Findings,
) {
    let Storm { seen_at, orphans } = storm;
    let orphans = counted(*orphans, "job");
    match storm.accepted_at(queues) {
        Some(at) => findings.note(
            subject,
            format!("storm of {orphans} since {seen_at:.0}, accepted {at:.0}: passes fail them, in stages"),
        ),
        None => findings.bad(
            subject,
            format!(
                "storm since {seen_at:.0}: {orphans} would be marked failed, and nothing is left that says they ever ran; \
                 `salvage plan` lists them; if they are really lost, run `{}`",
                accept(source)
            ),
        ),
    }
}

fn accept(source: &ResolvedSource) -> String {
    let queues: Vec<&str> = source.declared.queues.iter().map(|rule| rule.name.as_str()).collect();
    format!("salvage accept {}", queues.join(" "))
}

async fn parked(host: &Host, findings: &mut Findings) {
    let parked = match host.postgres.parked_now().await {
        Ok(parked) => parked,
        Err(failure) => return findings.bad("parked jobs", failure.to_string()),
    };
    for of in parked {
        let (source, jobs) = (&of.source, counted(of.rows, "job"));
        let detail = format!(
            "{jobs} parked, PostgreSQL rejects what would be written, for {} it says: {}; the first is tried again after \
             {:.0}; once that is mended, run `salvage accept --parked {source}`",
            of.example, of.why, of.until
        );
        findings.add(Health::Bad, &format!("source {source}"), detail, vec![]);
    }
}

/// What the last pass of each source was alarmed at. A storm that is not over was told of already.
fn alarms(passes: &[PassRecord], findings: &mut Findings) {
    let mut told: BTreeSet<String> = BTreeSet::new();
    for pass in passes {
        let at: Timestamp = pass.started_at;
        for alarm in pass.alarms.iter().filter(|alarm| alarm.kind != AlarmKind::Storm) {
            if !told.contains(&alarm.source.to_string()) {
                findings.note(
                    &format!("source {}", alarm.source),
                    format!("alarm of the pass at {at:.0}: {}", alarm.text),
                );
            }
        }
        let sources = pass.sources.as_array().into_iter().flatten();
        let name =
            |of: &serde_json::Value| Some(format!("{}/{}", of["domain"].as_str()?, of["source"].as_str()?));
        told.extend(sources.filter_map(name));
    }
}
