//! `salvage run`: a pass at start, then one every interval, until the end is asked for.

use std::time::Duration;

use salvage_core::report::{LeaseState, Report};
use salvage_core::settings::{PassSettings, spread};

use crate::pass::{self, Mode};
use crate::ports::{Clock, Outside, StoreFailure};
use crate::stop::Stop;

/// After a pass that failed the next one comes sooner: what failed is often back within seconds.
const RETRY_AFTER: Duration = Duration::from_secs(30);

/// Passes of several hosts drift apart by up to this part of the interval.
const JITTER: f64 = 0.1;

/// Runs passes until `stop`; no failure of a store ends it.
pub async fn run<O: Outside>(outside: &O, settings: &PassSettings, stop: &Stop) {
    while !stop.is_requested() {
        let began = outside.clock().now();
        let ended = pass::run(outside, settings, Mode::Act, stop).await;
        tell(&ended);
        let took = outside.clock().now().saturating_sub(began);
        let pause = pause(settings.interval, ended.is_err(), outside.clock().fraction()).saturating_sub(took);
        tokio::select! {
            () = outside.clock().sleep(pause) => {}
            () = stop.requested() => {}
        }
    }
    tracing::info!("stopped");
}

/// From the start of a pass to the next; `fraction` is random.
fn pause(interval: Duration, has_failed: bool, fraction: f64) -> Duration {
    let base = if has_failed { interval.min(RETRY_AFTER) } else { interval };
    let range = base.mul_f64(1.0 - JITTER)..=base.mul_f64(1.0 + JITTER);
    spread(&range, fraction)
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
    let total =
        |count: fn(&salvage_core::report::SourceCounts) -> u64| report.sources.iter().map(count).sum::<u64>();
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

    #[test]
    fn a_failed_pass_is_repeated_sooner_and_never_later_than_the_interval() {
        let minutes = |count: u64| Duration::from_secs(count * 60);
        assert_eq!(pause(minutes(5), false, 0.5), minutes(5));
        assert_eq!(pause(minutes(5), true, 0.5), RETRY_AFTER);
        assert_eq!(pause(Duration::from_secs(1), true, 0.5), Duration::from_secs(1));
        assert_eq!(pause(minutes(5), false, 0.0), Duration::from_secs(270));
    }
}
