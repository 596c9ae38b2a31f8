//! Turns what a pass found and did into its report.

use std::time::Duration;

use salvage_core::candidate::LiveRow;
use salvage_core::decision::DecisionKind;
use salvage_core::report::{
    DecisionReport, JobReport, LeaseState, OutcomeReport, PassSummary, QueueReport, Report, SightingReport,
    SourceCounts,
};
use salvage_core::sighting::{Doubt, Sighting};

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

/// The report of a pass that did not begin.
pub(crate) fn skipped<O: Outside>(meter: &Meter, outside: &O, lease: LeaseState) -> Report {
    Report { pass: meter.summary(outside, lease), sources: vec![], jobs: vec![], queues: vec![] }
}

/// The report of a pass.
pub(crate) fn report<O: Outside>(
    meter: &Meter,
    outside: &O,
    licence: Option<&Licence>,
    lease: LeaseState,
    body: Body,
) -> Report {
    let pass = PassSummary {
        id: licence.map(|licence| licence.pass_id.clone()),
        generation: licence.map(|licence| licence.fence.generation),
        started_at: Some(rfc3339(body.gathered.now)),
        scan_ran: body.scan_ran,
        ..meter.summary(outside, lease)
    };
    let sources = count(&body);
    let odd = body.gathered.odd.iter().map(|(source, row, why)| odd_job(&body, *source, row, why));
    let judged = body.cases.iter().filter(|case| !matches!(case.sighting, Sighting::Scheduled { .. }));
    let jobs = judged.map(|case| job(&body, case)).chain(odd).collect();
    let queue = |(queue, attribution)| QueueReport { queue, attribution };
    Report { pass, sources, jobs, queues: body.attribution.into_iter().map(queue).collect() }
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

fn job(body: &Body, case: &Case) -> JobReport {
    let name = &body.gathered.sources[case.candidate.source].name;
    JobReport {
        domain: name.domain.clone(),
        source: name.source.clone(),
        id: case.candidate.token.id.clone(),
        job_type: Some(case.candidate.job_type.clone()),
        status: case.candidate.token.status.clone(),
        sighting: SightingReport::from(&case.sighting),
        decision: DecisionReport { kind: case.decision.kind, reason: case.decision.reason.clone() },
        outcome: case.outcome.as_ref().map(OutcomeReport::from),
    }
}

fn odd_job(body: &Body, source: usize, row: &LiveRow, why: &str) -> JobReport {
    let name = &body.gathered.sources[source].name;
    JobReport {
        domain: name.domain.clone(),
        source: name.source.clone(),
        id: row.id.clone(),
        job_type: row.job_type.clone(),
        status: row.status.clone(),
        sighting: SightingReport::from(&Sighting::Unknown { why: Doubt::Row(why.to_owned()) }),
        decision: DecisionReport { kind: DecisionKind::None, reason: None },
        outcome: None,
    }
}
