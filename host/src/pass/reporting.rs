//! Turns what a pass found and did into its report.

use std::time::Duration;

use salvage_core::candidate::LiveRow;
use salvage_core::decision::{DecisionKind, Ruling};
use salvage_core::report::{
    DecisionReport, JobReport, LeaseState, OutcomeReport, PassSummary, QueueInDoubt, QueueReport, Report,
    SightingReport, SourceCounts,
};
use salvage_core::sighting::{Doubt, QueueFailure, Sighting};
use salvage_core::snapshot::Flaw;
use salvage_core::source::ResolvedSource;

use super::gather::Gathered;
use super::known::Known;
use super::look::queue_names;
use super::{Body, Case, Licence, rfc3339};
use crate::ports::{Clock, Outside, Queues};

/// Measures a pass from its first to its last step.
pub(crate) struct Meter {
    began: Duration,
    commands: u64,
}

impl Meter {
    pub(crate) fn start<O: Outside>(outside: &O) -> Self {
        Self { began: outside.clock().now(), commands: outside.queues().commands_sent() }
    }

    fn summary<O: Outside>(&self, outside: &O, lease: LeaseState) -> PassSummary {
        let took = outside.clock().now().saturating_sub(self.began);
        PassSummary {
            id: None,
            generation: None,
            lease,
            started_at: None,
            duration_ms: u64::try_from(took.as_millis()).unwrap_or(u64::MAX),
            redis_commands: outside.queues().commands_sent() - self.commands,
            scan_ran: false,
            why: None,
            queues_in_doubt: vec![],
        }
    }
}

/// Tells how long each step of a pass took, for whoever wonders where its time goes (`RUST_LOG=salvage::pass=debug`).
pub(crate) struct Steps<'a, O> {
    outside: &'a O,
    began: Duration,
}

impl<'a, O: Outside> Steps<'a, O> {
    pub(crate) fn begin(outside: &'a O) -> Self {
        Self { outside, began: outside.clock().now() }
    }

    /// Ends a step; the next one begins.
    pub(crate) fn ended(&mut self, step: &'static str) {
        let duration_us = self.lap_us();
        tracing::debug!(step, duration_us, "step");
    }

    /// Ends a stage of so many acts, within the step of that name: all but the looks between the stages.
    pub(crate) fn stage_ended(&mut self, acts: usize) {
        let duration_us = self.lap_us();
        tracing::debug!(acts, duration_us, "stage");
    }

    fn lap_us(&mut self) -> u64 {
        let now = self.outside.clock().now();
        let took = now.saturating_sub(std::mem::replace(&mut self.began, now));
        u64::try_from(took.as_micros()).unwrap_or(u64::MAX)
    }
}

/// The report of a pass that did not begin; `why` if it was not for another host's lease.
pub(crate) fn skipped<O: Outside>(
    meter: &Meter,
    outside: &O,
    lease: LeaseState,
    why: Option<&QueueFailure>,
) -> Report {
    let pass = PassSummary { why: why.map(ToString::to_string), ..meter.summary(outside, lease) };
    Report { pass, sources: vec![], jobs: vec![], queues: vec![] }
}

/// The report of a pass.
pub(crate) fn report<O: Outside>(
    meter: &Meter,
    outside: &O,
    licence: Option<&Licence>,
    lease: LeaseState,
    mut body: Body,
) -> Report {
    let pass = PassSummary {
        id: licence.map(|licence| licence.pass_id.clone()),
        generation: licence.map(|licence| licence.fence.generation),
        started_at: Some(rfc3339(body.gathered.now)),
        scan_ran: body.scan_ran,
        why: body.doubt.why.take(),
        queues_in_doubt: std::mem::take(&mut body.doubt.queues),
        ..meter.summary(outside, lease)
    };
    let sources = count(&body);
    let Body { gathered, cases, attribution, .. } = body;
    let odd = gathered.odd.iter().map(|(source, row, why)| odd_job(&gathered, *source, row, why));
    let judged = cases.into_iter().filter(|case| !matches!(case.sighting, Sighting::Scheduled { .. }));
    let jobs = judged.map(|case| job(&gathered, case, licence.is_none())).chain(odd).collect();
    let queue = |(queue, attribution)| QueueReport { queue, attribution };
    Report { pass, sources, jobs, queues: attribution.into_iter().map(queue).collect() }
}

/// What a pass could not find out of the queues.
#[derive(Debug, Default)]
pub(crate) struct QueueDoubt {
    /// Why none could be read.
    why: Option<String>,
    queues: Vec<QueueInDoubt>,
}

impl QueueDoubt {
    pub(crate) fn of(sources: &[ResolvedSource], known: &Known) -> Self {
        let in_doubt = |queue: &String, why: String| QueueInDoubt { queue: queue.clone(), why };
        let all =
            |why: &str| queue_names(sources).iter().map(|queue| in_doubt(queue, why.to_owned())).collect();
        match &known.look {
            Ok(look) => {
                if let Some(fault) = look.snapshot.server_fault() {
                    let why = fault.to_string();
                    let queues = all(&why);
                    return Self { why: Some(why), queues };
                }
                let accepted = known.accepted().queues;
                let flawed = look.snapshot.queues.iter().filter_map(|(queue, reading)| {
                    let counts = |flaw: &&Flaw| !flaw.is_lack_of_trace() || !accepted.contains(queue);
                    Some(in_doubt(queue, reading.flaws.iter().find(counts)?.to_string()))
                });
                Self { why: None, queues: flawed.collect() }
            }
            Err(failure) => {
                let why = failure.to_string();
                let queues = all(&why);
                Self { why: Some(why), queues }
            }
        }
    }
}

/// The counters of each source the pass works on.
pub(crate) fn count(body: &Body) -> Vec<SourceCounts> {
    let mut counts: Vec<SourceCounts> =
        body.gathered.own().iter().map(|source| SourceCounts::of(&source.name)).collect();
    for ((counts, census), stalled) in counts.iter_mut().zip(&body.gathered.census).zip(&body.stalled) {
        counts.live = census.live;
        counts.undeclared = census.undeclared;
        counts.clock_skew = census.clock_skew;
        counts.stalled = *stalled;
    }
    for (source, ..) in &body.gathered.odd {
        counts[*source].saw(&Sighting::Unknown { why: Doubt::Row(String::new()) });
    }
    for (source, scheduled) in &body.scheduled {
        counts[*source].candidates += scheduled;
        counts[*source].scheduled += scheduled;
    }
    for case in &body.cases {
        let counts = &mut counts[case.candidate.source];
        counts.saw(&case.sighting);
        if case.is_absent() {
            counts.held += u64::from(case.decision.kind == DecisionKind::Hold);
            counts.trapped += u64::from(case.decision.is_fault);
        }
        if let Some(outcome) = &case.outcome {
            counts.ended(outcome, case.decision.kind);
        }
    }
    counts
}

fn job(gathered: &Gathered, case: Case, is_dry: bool) -> JobReport {
    let name = &gathered.sources[case.candidate.source].name;
    let requeue = match case.ruling {
        Some(Ruling::Requeue(requeue)) if is_dry => Some(requeue),
        _ => None,
    };
    JobReport {
        domain: name.domain.clone(),
        source: name.source.clone(),
        updated_at: Some(rfc3339(case.candidate.updated)),
        id: case.candidate.token.id,
        job_type: Some(case.candidate.job_type),
        status: case.candidate.token.status,
        sighting: SightingReport::from(&case.sighting),
        decision: DecisionReport { kind: case.decision.kind, reason: case.decision.reason },
        outcome: case.outcome.as_ref().map(OutcomeReport::from),
        requeue,
    }
}

fn odd_job(gathered: &Gathered, source: usize, row: &LiveRow, why: &str) -> JobReport {
    let name = &gathered.sources[source].name;
    JobReport {
        domain: name.domain.clone(),
        source: name.source.clone(),
        id: row.id.clone(),
        job_type: row.job_type.clone(),
        status: row.status.clone(),
        updated_at: row.updated.map(rfc3339),
        sighting: SightingReport::from(&Sighting::Unknown { why: Doubt::Row(why.to_owned()) }),
        decision: DecisionReport { kind: DecisionKind::None, reason: None },
        outcome: None,
        requeue: None,
    }
}
