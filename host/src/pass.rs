//! One pass, in order: *take the lease and a new fence; list the candidates; look the queues up; read payloads only if
//! something is unresolved; ask the handlers; look again; act under condition; record; release.*
//!
//! Gathering comes first, deciding second, acting last, and nothing goes back a step. Candidates are read before any
//! queue is: a job that is enqueued after its row was read is then found, while the other order could miss a job that
//! moved from Redis's past into PostgreSQL's future. A pass takes no hint about what changed; it looks at everything and
//! is safe to repeat.
//!
//! A pass works under one lease: on all domains, or, where each domain has its own, on that domain's rows and queues. It
//! knows what the others declare all the same: whose entries lie in a queue that two domains share, and whose jobs have
//! the same parent.

mod acting;
mod alarming;
mod capturing;
mod controls;
mod corroborate;
mod deciding;
mod gather;
mod holding;
mod judge;
mod known;
mod look;
mod looking_again;
mod payloads;
mod record;
mod reporting;
mod scanning;
mod staging;
mod stalled;
pub mod survey;
mod tenure;

use std::collections::{BTreeMap, BTreeSet};
use std::pin::pin;
use std::rc::Rc;
use std::time::Duration;

use futures_util::future::join;
use jiff::Timestamp;
use salvage_core::candidate::Candidate;
use salvage_core::control::Control;
use salvage_core::decision::{DecisionKind, Ruling};
use salvage_core::lease::{Fence, LeaseAnswer, Scope};
use salvage_core::outcome::Outcome;
use salvage_core::parking::Parked;
use salvage_core::report::{LeaseState, Report};
use salvage_core::scan::{Attribution, Verdict};
use salvage_core::settings::PassSettings;
use salvage_core::sighting::{QueueFailure, Sighting};
use salvage_core::source::ResolvedSource;
use salvage_core::storm;
use salvage_core::usage::Usage;

pub use look::queue_names;

use self::tenure::Tenure;
use crate::ports::{Clock, Group, Handlers, Lease, Ledger, Outside, Queues, StoreFailure};
use crate::stop::Stop;

/// Whether a pass may write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// Takes the lease, acts, records.
    Act,
    /// Takes no lease and no fence and writes nothing in either store; may run beside a pass.
    DryRun,
}

/// A candidate that the first look did not find in a queue, and what is known of it so far; each step fills in its part.
#[derive(Debug)]
pub(crate) struct Case {
    candidate: Candidate,
    sighting: Sighting,
    /// What is reported as decided.
    decision: Decided,
    /// What the host will do, if it was decided.
    ruling: Option<Ruling>,
    inputs_digest: Option<String>,
    usage: Option<Usage>,
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
    const fn new(candidate: Candidate, sighting: Sighting) -> Self {
        let decision = Decided { kind: DecisionKind::None, reason: None, is_fault: false };
        Self {
            candidate,
            sighting,
            decision,
            ruling: None,
            inputs_digest: None,
            usage: None,
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
    /// What the pass works on.
    scope: &'a Scope,
    /// `None` in a dry run.
    licence: Option<Licence>,
}

/// What lets a pass write.
#[derive(Debug, Clone)]
pub(crate) struct Licence {
    pass_id: String,
    fence: Fence,
    /// Until when the lease is trusted.
    trusted: Rc<Tenure>,
}

/// The leases of this deployment, in the order in which the domains were loaded.
#[must_use]
pub fn scopes<O: Outside>(outside: &O, settings: &PassSettings) -> Vec<Scope> {
    let domains = outside.handlers().domains();
    settings.lease_scope.scopes(domains.iter().map(|domain| domain.manifest.domain.as_str()))
}

/// Runs one pass under each lease, one after the other, and reports them as one.
///
/// # Errors
/// The first failure, after all were tried: see [`run_under`].
pub async fn run<O: Outside>(
    outside: &O,
    settings: &PassSettings,
    mode: Mode,
    stop: &Stop,
) -> Result<Report, StoreFailure> {
    let passes = run_each(outside, settings, mode, stop).await;
    let reports: Result<Vec<Report>, StoreFailure> = passes.into_iter().map(|(_, ended)| ended).collect();
    reports.map(Report::merged)
}

/// Runs one pass under each lease, one after the other, until the end is asked for. What befalls one concerns no other.
pub async fn run_each<O: Outside>(
    outside: &O,
    settings: &PassSettings,
    mode: Mode,
    stop: &Stop,
) -> Vec<(Scope, Result<Report, StoreFailure>)> {
    let mut passes = Vec::new();
    for scope in scopes(outside, settings) {
        if stop.is_requested() && !passes.is_empty() {
            break;
        }
        let ended = run_under(outside, settings, &scope, mode, stop).await;
        passes.push((scope, ended));
    }
    passes
}

/// Runs one pass under one lease.
///
/// # Errors
/// If PostgreSQL failed as a whole, a newer pass began or the lease was lost. What was written before is whole; the rest
/// is left for the next pass. Redis failing is no error here: it makes candidates unknown.
pub async fn run_under<O: Outside>(
    outside: &O,
    settings: &PassSettings,
    scope: &Scope,
    mode: Mode,
    stop: &Stop,
) -> Result<Report, StoreFailure> {
    let meter = reporting::Meter::start(outside);
    if mode == Mode::DryRun {
        outside.ledger().check_schema().await?;
        let pass = Pass { outside, settings, stop, scope, licence: None };
        let body = pass.body().await?;
        return Ok(reporting::report(&meter, outside, None, LeaseState::NotTaken, body));
    }
    let owner = outside.clock().token();
    let asked_at = outside.clock().now();
    match outside.lease().acquire(scope, &owner, settings.lease_ttl).await {
        Ok(LeaseAnswer::Acquired) => {}
        Ok(LeaseAnswer::Held) => {
            tracing::info!(%scope, "pass skipped: another host holds the lease");
            return Ok(reporting::skipped(&meter, outside, LeaseState::Held, None));
        }
        Err(failure) => {
            tracing::warn!(%scope, %failure, "pass skipped: the lease could not be taken");
            return Ok(reporting::skipped(&meter, outside, LeaseState::Unreachable, Some(&failure)));
        }
    }
    let tenure = Rc::new(Tenure::begun(asked_at, settings.lease_ttl));
    let pass = Pass { outside, settings, stop, scope, licence: None };
    let ended = {
        let mut ended = pin!(pass.under_lease(Rc::clone(&tenure)));
        tokio::select! {
            biased;
            ended = &mut ended => ended,
            // Lost: the pass sees it before its next write, and ends.
            () = tenure.keep(outside, scope, &owner, settings.lease_ttl) => ended.await,
        }
    };
    let ended = ended.map_err(|failure| by_loss(failure, &tenure, outside.clock().now()));
    release(outside, scope, &owner).await;
    let (licence, body) = ended?;
    Ok(reporting::report(&meter, outside, Some(&licence), LeaseState::Acquired, body))
}

/// Who stood still for so long that the lease was lost has lost connections as well: then it is the lease that matters.
fn by_loss(failure: StoreFailure, tenure: &Tenure, now: Duration) -> StoreFailure {
    match (failure, tenure.check(now)) {
        (failure @ (StoreFailure::Fenced { .. } | StoreFailure::LeaseLost(_)), _) | (failure, Ok(())) => {
            failure
        }
        (failure, Err(loss)) => {
            tracing::warn!(%failure, "the pass failed under a lease that was lost");
            loss
        }
    }
}

async fn release<O: Outside>(outside: &O, scope: &Scope, owner: &str) {
    match outside.lease().release(scope, owner).await {
        Ok(true) => {}
        Ok(false) => tracing::warn!("the lease had passed to another host before this pass ended"),
        Err(failure) => tracing::warn!(%failure, "the lease could not be released; it expires by itself"),
    }
}

/// What the body of a pass found and did.
pub(crate) struct Body {
    gathered: gather::Gathered,
    /// Per source, how many candidates the first look found in a queue; no entry is 0.
    scheduled: BTreeMap<usize, u64>,
    cases: Vec<Case>,
    scan_ran: bool,
    stalled: Vec<u64>,
    /// Per queue, whose its entries are, as far as the first look read them.
    attribution: BTreeMap<String, Attribution>,
    doubt: reporting::QueueDoubt,
}

/// What is looked up together: the candidates, and behind them the control rows.
pub(crate) struct LookedUp {
    candidates: Vec<Candidate>,
    riders: usize,
}

impl LookedUp {
    fn of(mut candidates: Vec<Candidate>, rows: Vec<Candidate>) -> Self {
        let riders = rows.len();
        // There may be a million candidates: no room for as many again.
        candidates.reserve_exact(riders);
        candidates.extend(rows);
        Self { candidates, riders }
    }

    /// What became of the control rows, and the candidates without them.
    fn split(
        &mut self,
        sources: &[ResolvedSource],
        known: &known::Known,
        unread: Vec<(usize, Group)>,
        judged: &mut Verdict,
    ) -> (Vec<Vec<Control>>, Vec<Candidate>) {
        let first_row = self.candidates.len() - self.riders;
        let rows = self.candidates.split_off(first_row);
        let sightings = judged.sightings.split_off(first_row);
        let candidates = std::mem::take(&mut self.candidates);
        // Where nobody is absent, the look-up may have ended before all control rows were found.
        let absent = candidates.iter().zip(&judged.sightings);
        let absent = absent.filter(|(_, sighting)| matches!(sighting, Sighting::Absent { .. }));
        let looked_up: BTreeSet<usize> = absent.map(|(candidate, _)| candidate.source).collect();
        let rows = rows.iter().zip(&sightings).enumerate();
        let rows =
            rows.map(|(at, (row, sighting))| (row, sighting, judged.by_payload.contains(&(first_row + at))));
        // What was lost with Redis's data, also as this very look found out, says nothing of a declaration.
        let since: Vec<Timestamp> =
            sources.iter().map(|source| controls::settled_since_loss(source, &known.memories)).collect();
        let rows =
            rows.filter(|(row, ..)| looked_up.contains(&row.source) && row.updated >= since[row.source]);
        (controls::groups(sources.len(), rows, unread), candidates)
    }
}

impl<'a, O: Outside> Pass<'a, O> {
    /// The pass with its fence, from its first to its last record.
    async fn under_lease(self, trusted: Rc<Tenure>) -> Result<(Licence, Body), StoreFailure> {
        let (ledger, clock) = (self.outside.ledger(), self.outside.clock());
        let began = clock.now();
        ledger.check_schema().await?;
        let fence = ledger.raise_fence(self.scope.as_str(), &clock.token()).await?;
        let licence = Licence { pass_id: clock.token(), fence, trusted };
        let pass = Pass { licence: Some(licence.clone()), ..self };
        let body = pass.body().await;
        // Once more, for a pass that ended early.
        pass.outside.queues().remove_copies().await;
        let body = body?;
        pass.check_lease()?;
        let sources = reporting::count(&body);
        ledger.pass_ended(&licence.pass_id, clock.now() - began, &sources).await?;
        Ok((licence, body))
    }

    /// The sentence, between lease and release.
    async fn body(&self) -> Result<Body, StoreFailure> {
        let mut steps = reporting::Steps::begin(self.outside);
        let (gathered, candidates) = self.gather().await?;
        self.check_lease()?;
        if let Some(licence) = &self.licence {
            self.outside.ledger().pass_began(&licence.pass_id, &licence.fence, gathered.now).await?;
        }
        steps.ended("candidates");
        let memories = self.memories(gathered.own()).await?;
        steps.ended("memory");
        // While Redis is busy with the one, PostgreSQL is with the other.
        let with_candidates = candidates.iter().map(|candidate| candidate.source).collect();
        let rows = self.control_rows(&gathered, &with_candidates, &memories.queues);
        let (first, rows) = join(self.look(gathered.own(), &candidates), rows).await;
        steps.ended("look");
        let mut known = self.know(gathered.own(), first, &memories).await?;
        steps.ended("mark");
        let stalled = self.stalled(&gathered.sources, &known).await?;
        steps.ended("stalled");
        let controls::ControlRows { rows, unread } = rows?;
        let mut looked_up = LookedUp::of(candidates, rows);
        let mut judged =
            self.judge(&gathered.sources, &looked_up.candidates, looked_up.riders, &mut known).await?;
        steps.ended("judge");
        let seen = self.corroborate(&gathered, &looked_up, &known, &judged, &memories.declared).await?;
        let (groups, candidates) = looked_up.split(gathered.own(), &known, unread, &mut judged);
        let controls = controls::Controls { declared: memories.declared, groups, confirmed: seen.in_pass };
        controls.doubt_weak(&gathered.sources, &candidates, &mut judged);
        self.end_contradicted(&gathered, &judged.contradicted).await?;
        (known.scan, known.unreadable) = (judged.counts, judged.unreadable);
        let (scheduled, mut cases) = sift(candidates, judged.sightings);
        known.scheduled = scheduled;
        self.control(&gathered, &known, &controls, &mut cases).await?;
        steps.ended("corroborate");
        self.decide(&gathered, &known, &mut cases).await?;
        self.hold_back(&gathered, &known, &seen.in_epoch, &controls, &mut cases).await?;
        steps.ended("decide");
        self.act(&gathered, &known, &mut cases).await?;
        steps.ended("act");
        self.record(&gathered, &known, &cases).await?;
        steps.ended("record");
        let doubt = reporting::QueueDoubt::of(gathered.own(), &known);
        let (scheduled, scan_ran) = (known.scheduled, known.scan.is_some());
        Ok(Body { gathered, scheduled, cases, scan_ran, stalled, attribution: judged.attribution, doubt })
    }

    /// Comes before each write: under a lease that is lost none begins.
    fn check_lease(&self) -> Result<(), StoreFailure> {
        self.licence.as_ref().map_or(Ok(()), |licence| licence.trusted.check(self.outside.clock().now()))
    }

    fn now_of_redis(&self, look: &look::Look) -> u64 {
        look.redis_now_ms(self.outside.clock().now())
    }
}

/// Most candidates are in a queue as a rule, and there is no more to them than their number; the others are cases.
fn sift(candidates: Vec<Candidate>, sightings: Vec<Sighting>) -> (BTreeMap<usize, u64>, Vec<Case>) {
    let (mut scheduled, mut cases) = (BTreeMap::new(), vec![]);
    for (candidate, sighting) in candidates.into_iter().zip(sightings) {
        match sighting {
            Sighting::Scheduled { .. } => *scheduled.entry(candidate.source).or_default() += 1,
            sighting => cases.push(Case::new(candidate, sighting)),
        }
    }
    (scheduled, cases)
}

/// What a failed look means for a log line: the sentence for the operator.
fn log_failure(what: &str, failure: &QueueFailure) {
    tracing::error!(%failure, "{what}");
}

/// RFC 3339, UTC, microseconds.
fn rfc3339(at: Timestamp) -> String {
    format!("{at:.6}")
}
