//! `salvage run`: a pass at start, then one every interval, until the end is asked for.

use std::collections::BTreeMap;
use std::time::Duration;

use salvage_core::lease::Scope;
use salvage_core::report::{LeaseState, Report, SourceCounts};
use salvage_core::settings::{PassSettings, spread};

use crate::pass::{self, Mode};
use crate::ports::{Clock, Handlers, Lease, Outside, StoreFailure};
use crate::stop::Stop;

/// After a pass that failed the next one comes sooner: what failed is often back within seconds.
const RETRY_AFTER: Duration = Duration::from_secs(30);

/// Hosts that wait for a lease to run out ask again within this time after it, not all at once.
const EXPIRY_SPREAD: Duration = Duration::from_secs(1);

/// Passes of several hosts drift apart by up to this part of the interval.
const JITTER: f64 = 0.1;

/// Runs passes until `stop`; no failure of a store ends it.
///
/// One at a time, also where each domain has a lease of its own: what this host does not get to, another one does.
pub async fn run<O: Outside>(outside: &O, settings: &PassSettings, stop: &Stop) {
    let clock = outside.clock();
    let mut agenda = Agenda::default();
    let mut passes_skipped = 0;
    while !stop.is_requested() {
        // Before it is asked which domains there are, and again after the wait, in which others may have come.
        outside.handlers().between_passes().await;
        let Some((scope, due)) = agenda.next(pass::scopes(outside, settings), clock.now()) else {
            tracing::warn!("no handler serves, so there is no domain to take a lease for");
            wait(outside, clock.now() + settings.interval, stop).await;
            continue;
        };
        wait(outside, due, stop).await;
        if stop.is_requested() {
            break;
        }
        outside.handlers().between_passes().await;
        let began = clock.now();
        let ended = pass::run_under(outside, settings, &scope, Mode::Act, stop).await;
        let after = After::of(outside, &scope, &ended).await;
        passes_skipped += u64::from(after != After::Pass);
        tell(&scope, &ended);
        let took = clock.now().saturating_sub(began);
        let pause = pause(settings.interval, after, clock.fraction()).saturating_sub(took);
        if after != After::Pass && !stop.is_requested() {
            let next_in_ms = pause.as_millis();
            tracing::info!(%scope, passes_skipped, next_in_ms, "the next attempt is scheduled");
        }
        agenda.set(scope, clock.now() + pause);
    }
    tracing::info!("stopped");
}

/// Waits until an instant, or until the end is asked for. Not a sleep: an interval runs through suspend.
async fn wait<O: Outside>(outside: &O, instant: Duration, stop: &Stop) {
    tokio::select! {
        () = outside.clock().until(instant) => {}
        () = stop.requested() => {}
    }
}

/// When the next pass of each lease is due.
#[derive(Debug, Default)]
struct Agenda(BTreeMap<Scope, Duration>);

impl Agenda {
    /// The one of `scopes` that is due first, and when; one that is new is due now. `None` if there is none.
    fn next(&self, scopes: Vec<Scope>, now: Duration) -> Option<(Scope, Duration)> {
        let due = |scope: Scope| {
            let due = self.0.get(&scope).copied().unwrap_or(now);
            (scope, due)
        };
        scopes.into_iter().map(due).min_by_key(|(_, due)| *due)
    }

    fn set(&mut self, scope: Scope, due: Duration) {
        self.0.insert(scope, due);
    }
}

/// What the wait for the next pass depends on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum After {
    /// A pass was run.
    Pass,
    /// A store failed.
    Failure,
    /// The lease was lost on the way: this host was frozen, or Redis lost or refused it.
    LeaseLost,
    /// Another host holds the lease, and it runs out after this time unless it is given back before.
    Held(Option<Duration>),
}

impl After {
    async fn of<O: Outside>(outside: &O, scope: &Scope, ended: &Result<Report, StoreFailure>) -> Self {
        match ended.as_ref().map(|report| report.pass.lease) {
            Err(StoreFailure::LeaseLost(_)) => Self::LeaseLost,
            Err(_) | Ok(LeaseState::Unreachable) => Self::Failure,
            Ok(LeaseState::Held) => Self::Held(outside.lease().expires_in(scope).await.unwrap_or(None)),
            Ok(LeaseState::Acquired | LeaseState::NotTaken) => Self::Pass,
        }
    }
}

/// From the start of a pass to the next; `fraction` is random.
///
/// The holder of a lease may have died. Then the next attempt comes when the lease runs out, not an interval later.
fn pause(interval: Duration, after: After, fraction: f64) -> Duration {
    let around =
        |base: Duration| spread(&(base.mul_f64(1.0 - JITTER)..=base.mul_f64(1.0 + JITTER)), fraction);
    match after {
        After::Pass | After::Held(None) => around(interval),
        After::Failure => around(interval.min(RETRY_AFTER)),
        // At once: what a pass looked at before its host was frozen is old, and to lose a lease takes a third of its time
        // to live at least, so this does not run wild.
        After::LeaseLost => Duration::ZERO,
        After::Held(Some(expires_in)) => {
            let expired = expires_in + EXPIRY_SPREAD.mul_f64(fraction.max(JITTER));
            around(interval).min(expired)
        }
    }
}

/// One line per pass.
fn tell(scope: &Scope, ended: &Result<Report, StoreFailure>) {
    let report = match ended {
        Ok(report) => report,
        Err(failure) => {
            tracing::error!(%scope, %failure, "pass failed; what it had written is whole, the rest waits for the next pass");
            return;
        }
    };
    if report.pass.lease != LeaseState::Acquired {
        return;
    }
    let total = |count: fn(&SourceCounts) -> u64| report.sources.iter().map(count).sum::<u64>();
    tracing::info!(
        %scope,
        pass.id = report.pass.id,
        generation = report.pass.generation,
        duration_ms = report.pass.duration_ms,
        candidates = total(|source| source.candidates),
        scheduled = total(|source| source.scheduled),
        unknown = total(|source| source.unknown),
        requeued = total(|source| source.requeued),
        failed = total(|source| source.failed),
        before_epoch = total(|source| source.before_epoch),
        "pass done"
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    const MINUTE: Duration = Duration::from_secs(60);

    #[test]
    fn a_failed_pass_is_repeated_sooner_and_never_later_than_the_interval() {
        assert_eq!(pause(5 * MINUTE, After::Pass, 0.5), 5 * MINUTE);
        assert_eq!(pause(5 * MINUTE, After::Failure, 0.5), RETRY_AFTER);
        assert_eq!(pause(Duration::from_secs(1), After::Failure, 0.5), Duration::from_secs(1));
        assert_eq!(pause(5 * MINUTE, After::Pass, 0.0), Duration::from_secs(270));
    }

    #[test]
    fn the_lease_that_is_due_first_comes_first_and_a_new_one_at_once() {
        let [a, b, c] = ["a", "b", "c"].map(|domain| Scope::Domain(domain.to_owned()));
        let all = || vec![a.clone(), b.clone(), c.clone()];
        let mut agenda = Agenda::default();
        assert_eq!(agenda.next(all(), MINUTE), Some((a.clone(), MINUTE)));
        agenda.set(a.clone(), 6 * MINUTE);
        agenda.set(b.clone(), 3 * MINUTE);
        assert_eq!(agenda.next(all(), 2 * MINUTE), Some((c.clone(), 2 * MINUTE)));
        agenda.set(c.clone(), 7 * MINUTE);
        assert_eq!(agenda.next(all(), 2 * MINUTE), Some((b.clone(), 3 * MINUTE)));
        assert_eq!(agenda.next(vec![c, a.clone()], 2 * MINUTE), Some((a, 6 * MINUTE)), "b serves no more");
        assert_eq!(agenda.next(vec![], MINUTE), None);
    }

    #[test]
    fn a_pass_that_lost_its_lease_starts_over_at_once() {
        assert_eq!(pause(5 * MINUTE, After::LeaseLost, 0.5), Duration::ZERO);
    }

    #[test]
    fn after_a_holder_died_the_next_attempt_comes_when_its_lease_runs_out() {
        let held = |expires_in| After::Held(Some(expires_in));
        for fraction in [0.0, 0.5, 1.0] {
            let next = pause(5 * MINUTE, held(MINUTE), fraction);
            assert!(next > MINUTE && next <= MINUTE + EXPIRY_SPREAD, "{next:?}");
        }
        assert_eq!(pause(5 * MINUTE, held(10 * MINUTE), 0.5), 5 * MINUTE);
        assert_eq!(pause(5 * MINUTE, After::Held(None), 0.5), 5 * MINUTE);
    }
}
