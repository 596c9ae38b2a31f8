//! What a pass tells: the object that `once --json` prints.
//!
//! Every key is always present; `null` where it does not apply.

use serde::Serialize;

use crate::decision::{DecisionKind, Requeue};
use crate::outcome::Outcome;
use crate::scan::Attribution;
use crate::sighting::Sighting;
use crate::source::SourceName;

/// One pass.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Report {
    /// The pass itself.
    pub pass: PassSummary,
    /// One per source, in the order in which the handlers were loaded.
    pub sources: Vec<SourceCounts>,
    /// Every candidate that is not scheduled.
    pub jobs: Vec<JobReport>,
    /// Whose the entries of each queue are whose payloads were read, in name order.
    pub queues: Vec<QueueReport>,
}

/// Whose the entries of one queue are, as far as a pass had to read them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct QueueReport {
    /// The queue.
    pub queue: String,
    /// The figures.
    #[serde(flatten)]
    pub attribution: Attribution,
}

/// The pass itself.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct PassSummary {
    /// Random; `null` if the pass did not begin.
    pub id: Option<String>,
    /// `null` in a dry run, or if the pass did not begin.
    pub generation: Option<u64>,
    /// How the lease was answered.
    pub lease: LeaseState,
    /// Database clock, RFC 3339; `null` if the pass did not begin.
    pub started_at: Option<String>,
    /// Wall time.
    pub duration_ms: u64,
    /// Commands sent to Redis.
    pub redis_commands: u64,
    /// Whether payloads were read.
    pub scan_ran: bool,
    /// Why the pass did not begin, or no queue could prove an absence; `null` if neither, or if another host holds the lease.
    pub why: Option<String>,
    /// The queues that prove no absence: what is not found elsewhere is unknown. By name.
    pub queues_in_doubt: Vec<QueueInDoubt>,
}

/// A queue that proves no absence.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct QueueInDoubt {
    /// The queue.
    pub queue: String,
    /// Why not.
    pub why: String,
}

/// How the lease was answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum LeaseState {
    /// Ours.
    Acquired,
    /// Another host's.
    Held,
    /// Redis did not answer.
    Unreachable,
    /// A dry run takes none.
    NotTaken,
}

/// The counters of one source. `candidates = scheduled + absent + unknown`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct SourceCounts {
    /// The handler's domain.
    pub domain: String,
    /// The source's name.
    pub source: String,
    /// Rows QUEUED or PROCESSING.
    pub live: u64,
    /// Of those, old enough to be looked up.
    pub candidates: u64,
    /// Present in a queue.
    pub scheduled: u64,
    /// In no queue.
    pub absent: u64,
    /// Cannot be judged.
    pub unknown: u64,
    /// Put back.
    pub requeued: u64,
    /// Marked failed.
    pub failed: u64,
    /// Left, by decision.
    pub held: u64,
    /// Row moved on.
    pub superseded: u64,
    /// Row not there any more.
    pub gone: u64,
    /// Not allowed.
    pub refused: u64,
    /// May have been written.
    pub indeterminate: u64,
    /// Rejected by PostgreSQL.
    pub parked: u64,
    /// The handler failed on them.
    pub trapped: u64,
    /// Wait for `accept`: older than their queues' epoch.
    pub before_epoch: u64,
    /// Wait for `accept`: too many at once.
    pub storm: u64,
    /// Live rows of a type that nobody declares.
    pub undeclared: u64,
    /// Live rows whose `updatedAt` is in the future.
    pub clock_skew: u64,
    /// Active entries without a lock; never acted on.
    pub stalled: u64,
}

/// One candidate that is not scheduled.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct JobReport {
    /// The handler's domain.
    pub domain: String,
    /// The source's name.
    pub source: String,
    /// The row's id.
    pub id: String,
    /// The job type; `null` if the row has none.
    #[serde(rename = "type")]
    pub job_type: Option<String>,
    /// The row's status.
    pub status: String,
    /// When the row was last written, by its own column, RFC 3339; `null` if that is no time.
    pub updated_at: Option<String>,
    /// What the queues say.
    pub sighting: SightingReport,
    /// What was decided.
    pub decision: DecisionReport,
    /// What became of it; `null` if nothing was tried.
    pub outcome: Option<OutcomeReport>,
    /// What would be put back, of a dry run only: for who asks to see the payload, and for nobody else.
    #[serde(skip)]
    pub requeue: Option<Requeue>,
}

/// A sighting, flat.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct SightingReport {
    /// `scheduled`, `absent` or `unknown`.
    pub kind: &'static str,
    /// The queue that holds it.
    pub queue: Option<String>,
    /// Its state there.
    pub state: Option<String>,
    /// What an absent job left behind.
    pub residue: Option<&'static str>,
    /// Why it is unknown.
    pub why: Option<String>,
}

/// A decision, flat.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct DecisionReport {
    /// Its kind.
    pub kind: DecisionKind,
    /// Its reason; for `none`, why there is no decision.
    pub reason: Option<String>,
}

/// An outcome, flat.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct OutcomeReport {
    /// Its word.
    pub kind: &'static str,
    /// Its sentence.
    pub why: Option<String>,
}

impl From<&Sighting> for SightingReport {
    fn from(sighting: &Sighting) -> Self {
        let empty = Self { kind: "absent", queue: None, state: None, residue: None, why: None };
        match sighting {
            Sighting::Scheduled { queue, state } => Self {
                kind: "scheduled",
                queue: Some(queue.clone()),
                state: Some(state.to_string()),
                ..empty
            },
            Sighting::Absent { residue } => Self { residue: Some(residue.word()), ..empty },
            Sighting::Unknown { why } => Self { kind: "unknown", why: Some(why.to_string()), ..empty },
        }
    }
}

impl From<&Outcome> for OutcomeReport {
    fn from(outcome: &Outcome) -> Self {
        Self { kind: outcome.word(), why: outcome.why().map(str::to_owned) }
    }
}

impl SourceCounts {
    /// All zero.
    #[must_use]
    pub fn of(name: &SourceName) -> Self {
        Self { domain: name.domain.clone(), source: name.source.clone(), ..Self::default() }
    }

    /// Counts one candidate's sighting.
    pub const fn saw(&mut self, sighting: &Sighting) {
        self.candidates += 1;
        match sighting {
            Sighting::Scheduled { .. } => self.scheduled += 1,
            Sighting::Absent { .. } => self.absent += 1,
            Sighting::Unknown { .. } => self.unknown += 1,
        }
    }

    /// Counts one outcome; `kind` tells which of `requeued` and `failed` an applied one is.
    pub fn ended(&mut self, outcome: &Outcome, kind: DecisionKind) {
        let counter = match outcome {
            Outcome::Applied if kind == DecisionKind::Requeue => &mut self.requeued,
            Outcome::Applied => &mut self.failed,
            Outcome::Superseded(_) => &mut self.superseded,
            Outcome::Gone => &mut self.gone,
            Outcome::Refused(_) => &mut self.refused,
            Outcome::Indeterminate(_) => &mut self.indeterminate,
            Outcome::Parked(_) => &mut self.parked,
            Outcome::BeforeEpoch(_) => &mut self.before_epoch,
            Outcome::Storm(_) => &mut self.storm,
        };
        *counter += 1;
    }
}

/// The one item; `None` if there are several.
fn only<T>(mut items: impl Iterator<Item = T>) -> Option<T> {
    let first = items.next();
    first.filter(|_| items.next().is_none())
}

/// Each item once, in the order of the first ones.
fn distinct<'a, T: PartialEq + Clone + 'a>(items: impl Iterator<Item = &'a T>) -> Vec<T> {
    let mut kept: Vec<T> = Vec::new();
    for item in items {
        if !kept.contains(item) {
            kept.push(item.clone());
        }
    }
    kept
}

/// Why no pass could do anything, each reason once; `None` if one could.
fn common<'a>(passes: impl Iterator<Item = &'a PassSummary>) -> Option<String> {
    let reasons: Option<Vec<String>> = passes.map(|pass| pass.why.clone()).collect();
    let reasons = distinct(reasons.unwrap_or_default().iter());
    (!reasons.is_empty()).then(|| reasons.join("; "))
}

impl Report {
    /// The reports of several passes, one per domain, as one: sources and jobs in their order, durations and commands in
    /// all. What several passes have, each its own, is `null`; so is it if there is none.
    #[must_use]
    pub fn merged(reports: Vec<Self>) -> Self {
        let all = |state: LeaseState| reports.iter().any(|report| report.pass.lease == state);
        let ranked = [LeaseState::Acquired, LeaseState::Unreachable, LeaseState::Held];
        let lease = ranked.into_iter().find(|state| all(*state)).unwrap_or(LeaseState::NotTaken);
        let summaries = || reports.iter().map(|report| &report.pass);
        let pass = PassSummary {
            id: only(summaries().filter_map(|pass| pass.id.clone())),
            generation: only(summaries().filter_map(|pass| pass.generation)),
            lease,
            // RFC 3339 in one zone sorts as time does.
            started_at: summaries().filter_map(|pass| pass.started_at.clone()).min(),
            duration_ms: summaries().map(|pass| pass.duration_ms).sum(),
            redis_commands: summaries().map(|pass| pass.redis_commands).sum(),
            scan_ran: summaries().any(|pass| pass.scan_ran),
            why: common(summaries().filter(|pass| pass.lease != LeaseState::Held)),
            queues_in_doubt: distinct(summaries().flat_map(|pass| &pass.queues_in_doubt)),
        };
        let (mut sources, mut jobs, mut queues) = (vec![], vec![], vec![]);
        for report in reports {
            sources.extend(report.sources);
            jobs.extend(report.jobs);
            queues.extend(report.queues);
        }
        Self { pass, sources, jobs, queues }
    }

    /// Whether the queues could not be read at all, or there were candidates and not one could be judged.
    #[must_use]
    pub fn judged_nothing(&self) -> bool {
        let total = |count: fn(&SourceCounts) -> u64| self.sources.iter().map(count).sum::<u64>();
        if self.pass.why.is_some() {
            // A replica may still show that a job is there.
            return total(|source| source.scheduled) == 0;
        }
        let candidates = total(|source| source.candidates);
        candidates > 0 && candidates == total(|source| source.unknown)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(lease: LeaseState, why: Option<&str>) -> Report {
        let pass = PassSummary {
            id: None,
            generation: None,
            lease,
            started_at: None,
            duration_ms: 1,
            redis_commands: 1,
            scan_ran: false,
            why: why.map(str::to_owned),
            queues_in_doubt: vec![QueueInDoubt { queue: "q".into(), why: "gone".into() }],
        };
        Report { pass, sources: vec![], jobs: vec![], queues: vec![] }
    }

    #[test]
    fn several_passes_could_do_nothing_only_if_none_could() {
        use LeaseState::{Acquired, Held, Unreachable};
        for (reports, why) in [
            (vec![(Acquired, Some("down")), (Unreachable, Some("down"))], Some("down")),
            (vec![(Acquired, Some("down")), (Acquired, Some("loading"))], Some("down; loading")),
            (vec![(Acquired, Some("down")), (Held, None)], Some("down")),
            (vec![(Acquired, Some("down")), (Acquired, None)], None),
            (vec![(Held, None), (Held, None)], None),
            (vec![], None),
        ] {
            let merged = Report::merged(reports.iter().map(|(lease, why)| report(*lease, *why)).collect());
            assert_eq!(merged.pass.why.as_deref(), why, "{reports:?}");
            assert_eq!(merged.judged_nothing(), why.is_some());
            assert_eq!(
                merged.pass.queues_in_doubt.len(),
                usize::from(!reports.is_empty()),
                "each queue once"
            );
        }
    }
}
