//! One pass, in order: *take the lease and a new fence; list the candidates; look the queues up; read payloads only if
//! something is unresolved; ask the handlers; look again; act under condition; record; release.*
//!
//! Gathering comes first, deciding second, acting last, and nothing goes back a step. Candidates are read before any
//! queue is: a job that is enqueued after its row was read is then found, while the other order could miss a job that
//! moved from Redis's past into PostgreSQL's future. A pass takes no hint about what changed; it looks at everything and
//! is safe to repeat.

mod acting;
mod alarming;
mod corroborate;
mod deciding;
mod gather;
mod holding;
mod judge;
mod known;
mod look;
mod looking_again;
mod record;
mod reporting;
mod scanning;
mod staging;
mod stalled;

use std::time::Duration;

use jiff::Timestamp;
use salvage_core::candidate::Candidate;
use salvage_core::decision::{DecisionKind, Ruling};
use salvage_core::lease::{Fence, LeaseAnswer, Trusted};
use salvage_core::outcome::Outcome;
use salvage_core::parking::Parked;
use salvage_core::report::{LeaseState, Report};
use salvage_core::settings::PassSettings;
use salvage_core::sighting::{QueueFailure, Sighting};
use salvage_core::storm;

pub use look::queue_names;

use crate::ports::{Clock, Lease, Ledger, Outside, Queues, StoreFailure};
use crate::stop::Stop;

/// The scope of the one lease and fence of a deployment.
pub const SCOPE: &str = "global";

/// Whether a pass may write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// Takes the lease, acts, records.
    Act,
    /// Takes no lease and no fence and writes nothing in either store; may run beside a pass.
    DryRun,
}

/// One orphan or other candidate, and what is known of it so far; each step fills in its part.
#[derive(Debug)]
pub(crate) struct Case {
    candidate: Candidate,
    sighting: Sighting,
    /// What is reported as decided.
    decision: Decided,
    /// What the host will do, if it was decided.
    ruling: Option<Ruling>,
    inputs_digest: Option<String>,
    decide_took: Option<Duration>,
    is_confirmed: bool,
    /// What is remembered of an earlier rejection of its change.
    parked: Option<Parked>,
    outcome: Option<Outcome>,
}

/// A decision's kind and reason.
#[derive(Debug)]
pub(crate) struct Decided {
    kind: DecisionKind,
    reason: Option<String>,
    /// The handler failed, rather than not being asked.
    is_fault: bool,
}

impl Case {
    fn new((candidate, sighting): (Candidate, Sighting)) -> Self {
        let decision = Decided { kind: DecisionKind::None, reason: None, is_fault: false };
        Self {
            candidate,
            sighting,
            decision,
            ruling: None,
            inputs_digest: None,
            decide_took: None,
            is_confirmed: false,
            parked: None,
            outcome: None,
        }
    }

    const fn is_absent(&self) -> bool {
        matches!(self.sighting, Sighting::Absent { .. })
    }

    /// Whether it would be failed without a trace, now or once its epoch is accepted.
    fn is_of_a_storm(&self) -> bool {
        let waits_at_most_for_its_epoch = matches!(self.outcome, None | Some(Outcome::BeforeEpoch(_)));
        waits_at_most_for_its_epoch
            && self.ruling.as_ref().is_some_and(|ruling| storm::is_of_a_storm(&self.sighting, ruling))
    }

    /// Whether a write is still intended.
    const fn is_to_act(&self) -> bool {
        self.is_absent()
            && self.outcome.is_none()
            && matches!(self.ruling, Some(Ruling::Requeue(_) | Ruling::Fail { .. }))
    }
}

/// A pass under way.
pub(crate) struct Pass<'a, O> {
    outside: &'a O,
    settings: &'a PassSettings,
    stop: &'a Stop,
    /// `None` in a dry run.
    licence: Option<Licence>,
}

/// What lets a pass write.
#[derive(Debug, Clone)]
pub(crate) struct Licence {
    pass_id: String,
    fence: Fence,
    trusted: Trusted,
}

/// Runs one pass.
///
/// # Errors
/// If PostgreSQL failed as a whole, or a newer pass began. What was written before is whole; the rest is left for the
/// next pass. Redis failing is no error here: it makes candidates unknown.
pub async fn run<O: Outside>(
    outside: &O,
    settings: &PassSettings,
    mode: Mode,
    stop: &Stop,
) -> Result<Report, StoreFailure> {
    let meter = reporting::Meter::start(outside);
    if mode == Mode::DryRun {
        outside.ledger().check_schema().await?;
        let pass = Pass { outside, settings, stop, licence: None };
        let body = pass.body().await?;
        return Ok(reporting::report(&meter, outside, None, LeaseState::NotTaken, body));
    }
    let owner = outside.clock().token();
    let asked_at = outside.clock().now();
    match outside.lease().acquire(&owner, settings.lease_ttl).await {
        Ok(LeaseAnswer::Acquired) => {}
        Ok(LeaseAnswer::Held) => {
            tracing::info!("pass skipped: another host holds the lease");
            return Ok(reporting::skipped(&meter, outside, LeaseState::Held));
        }
        Err(failure) => {
            tracing::warn!(%failure, "pass skipped: the lease could not be taken");
            return Ok(reporting::skipped(&meter, outside, LeaseState::Unreachable));
        }
    }
    let trusted = Trusted::from(asked_at, settings.lease_ttl);
    let ended = under_lease(outside, settings, stop, trusted).await;
    release(outside, &owner).await;
    let (licence, body) = ended?;
    Ok(reporting::report(&meter, outside, Some(&licence), LeaseState::Acquired, body))
}

async fn under_lease<O: Outside>(
    outside: &O,
    settings: &PassSettings,
    stop: &Stop,
    trusted: Trusted,
) -> Result<(Licence, Body), StoreFailure> {
    let (ledger, clock) = (outside.ledger(), outside.clock());
    let began = clock.now();
    ledger.check_schema().await?;
    let fence = ledger.raise_fence(SCOPE, &clock.token()).await?;
    let licence = Licence { pass_id: clock.token(), fence, trusted };
    let pass = Pass { outside, settings, stop, licence: Some(licence.clone()) };
    let body = pass.body().await;
    // For a pass that ended early.
    outside.queues().remove_copies().await;
    let body = body?;
    let sources = reporting::count(&body);
    ledger.pass_ended(&licence.pass_id, clock.now() - began, &sources).await?;
    Ok((licence, body))
}

async fn release<O: Outside>(outside: &O, owner: &str) {
    match outside.lease().release(owner).await {
        Ok(true) => {}
        Ok(false) => tracing::warn!("the lease had passed to another host before this pass ended"),
        Err(failure) => tracing::warn!(%failure, "the lease could not be released; it expires by itself"),
    }
}

/// What the body of a pass found and did.
pub(crate) struct Body {
    gathered: gather::Gathered,
    cases: Vec<Case>,
    scan_ran: bool,
    stalled: Vec<u64>,
}

impl<O: Outside> Pass<'_, O> {
    /// The sentence, between lease and release.
    async fn body(&self) -> Result<Body, StoreFailure> {
        let mut steps = reporting::Steps::begin(self.outside);
        let gathered = self.gather().await?;
        if let Some(licence) = &self.licence {
            self.outside.ledger().pass_began(&licence.pass_id, &licence.fence, gathered.now).await?;
        }
        steps.ended("candidates");
        let first = self.look(&gathered.sources, &gathered.candidates).await;
        steps.ended("look");
        let mut known = self.know(&gathered.sources, first).await?;
        steps.ended("memory");
        let stalled = self.stalled(&gathered.sources, &known).await?;
        steps.ended("stalled");
        let judged = self.judge(&gathered.sources, &gathered.candidates, &known).await?;
        steps.ended("judge");
        let corroborated = self.corroborate(&gathered, &known, &judged).await?;
        (known.scan, known.unreadable) = (judged.scan, judged.unreadable);
        let pairs = gathered.candidates.iter().cloned().zip(judged.sightings);
        let mut cases: Vec<Case> = pairs.map(Case::new).collect();
        steps.ended("corroborate");
        self.decide(&gathered, &known, &mut cases).await?;
        self.hold_back(&gathered, &known, &corroborated, &mut cases).await?;
        steps.ended("decide");
        self.act(&gathered, &known, &mut cases).await?;
        steps.ended("act");
        self.record(&gathered, &known, &cases).await?;
        steps.ended("record");
        Ok(Body { gathered, cases, scan_ran: known.scan.is_some(), stalled })
    }

    fn now_of_redis(&self, look: &look::Look) -> u64 {
        look.redis_now_ms(self.outside.clock().now())
    }
}

/// What a failed look means for a log line: the sentence for the operator.
fn log_failure(what: &str, failure: &QueueFailure) {
    tracing::error!(%failure, "{what}");
}

/// RFC 3339, UTC, microseconds.
fn rfc3339(at: Timestamp) -> String {
    format!("{at:.6}")
}
