//! `salvage run`: a pass at start, then one every interval, until the end is asked for.

use std::time::Duration;

use salvage_core::report::{LeaseState, Report, SourceCounts};
use salvage_core::settings::{PassSettings, spread};

use crate::pass::{self, Mode};
use crate::ports::{Clock, Lease, Outside, StoreFailure};
use crate::stop::Stop;

/// After a pass that failed the next one comes sooner: what failed is often back within seconds.
const RETRY_AFTER: Duration = Duration::from_secs(30);

/// Hosts that wait for a lease to run out ask again within this time after it, not all at once.
const EXPIRY_SPREAD: Duration = Duration::from_secs(1);

/// Passes of several hosts drift apart by up to this part of the interval.
const JITTER: f64 = 0.1;

/// Runs passes until `stop`; no failure of a store ends it.
pub async fn run<O: Outside>(outside: &O, settings: &PassSettings, stop: &Stop) {
    let mut passes_skipped = 0;
    while !stop.is_requested() {
        let began = outside.clock().now();
        let ended = pass::run(outside, settings, Mode::Act, stop).await;
        let after = After::of(outside, &ended).await;
        passes_skipped += u64::from(after != After::Pass);
        tell(&ended);
        let took = outside.clock().now().saturating_sub(began);
        let pause = pause(settings.interval, after, outside.clock().fraction()).saturating_sub(took);
        if after != After::Pass && !stop.is_requested() {
            tracing::info!(passes_skipped, next_in_ms = pause.as_millis(), "the next attempt is scheduled");
        }
        tokio::select! {
            // Not a sleep: an interval runs through suspend.
            () = outside.clock().until(outside.clock().now() + pause) => {}
            () = stop.requested() => {}
        }
    }
    tracing::info!("stopped");
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
    async fn of<O: Outside>(outside: &O, ended: &Result<Report, StoreFailure>) -> Self {
        match ended.as_ref().map(|report| report.pass.lease) {
            Err(StoreFailure::LeaseLost(_)) => Self::LeaseLost,
            Err(_) | Ok(LeaseState::Unreachable) => Self::Failure,
            Ok(LeaseState::Held) => Self::Held(outside.lease().expires_in().await.unwrap_or(None)),
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
fn tell(ended: &Result<Report, StoreFailure>) {
    let report = match ended {
        Ok(report) => report,
        Err(failure) => {
            tracing::error!(%failure, "pass failed; what it had written is whole, the rest waits for the next pass");
            return;
        }
    };
    if report.pass.lease != LeaseState::Acquired {
        return;
    }
    let total = |count: fn(&SourceCounts) -> u64| report.sources.iter().map(count).sum::<u64>();
    tracing::info!(
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
