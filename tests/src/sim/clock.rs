//! Virtual time. It stands still until the scheduler takes the next event, and then jumps to it.
//!
//! All machines of a simulation share one time, but for the application, whose clock is a little off.

use std::time::Duration;

use jiff::Timestamp;

/// What every wall clock shows when a simulation begins, seconds since 1970.
const START_S: i64 = 1_770_000_000;

/// How long a simulation's past is: rows may be that old when it begins.
pub(super) const PAST: Duration = Duration::from_secs(7 * 24 * 3_600);

/// The wall clock at `now`.
pub(super) fn wall(now: Duration) -> Timestamp {
    Timestamp::from_second(START_S).expect("a time in range") + now
}

/// The same in milliseconds since 1970, as Redis tells it.
pub(super) fn wall_ms(now: Duration) -> u64 {
    START_S.unsigned_abs() * 1_000 + u64::try_from(now.as_millis()).unwrap_or(u64::MAX / 2)
}
