//! Parked rows: those whose change PostgreSQL rejects are tried again ever more rarely, and never in every pass.
//!
//! A constraint or a trigger says no as often as it is asked. What changes its mind is somebody who mends the row (its
//! token changes), or what rejects it (then they say so: `salvage accept --parked`).

use std::fmt;
use std::time::Duration;

use jiff::Timestamp;

use crate::candidate::RowToken;
use crate::source::SourceName;

/// From the first rejection of a row to the next attempt.
pub const BACKOFF_MIN: Duration = Duration::from_secs(15 * 60);

/// Longest time from one attempt to the next.
pub const BACKOFF_MAX: Duration = Duration::from_secs(24 * 3600);

/// A row that PostgreSQL rejects, as PostgreSQL itself remembers it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Parked {
    /// Its source.
    pub source: SourceName,
    /// The row as it was rejected.
    pub token: RowToken,
    /// PostgreSQL's message, without values.
    pub why: String,
    /// Attempts with this token since somebody last released it.
    pub times: u32,
    /// Not tried again before; database clock.
    pub until: Timestamp,
}

impl Parked {
    /// Parks a row that was rejected at `now`; `before` is what was remembered of it.
    #[must_use]
    pub fn again(
        before: Option<&Self>,
        source: &SourceName,
        token: &RowToken,
        why: &str,
        now: Timestamp,
    ) -> Self {
        let before = before.filter(|before| before.token == *token);
        let times = before.map_or(1, |before| before.times.saturating_add(1));
        Self {
            source: source.clone(),
            token: token.clone(),
            why: why.to_owned(),
            times,
            until: now.checked_add(backoff(times)).unwrap_or(Timestamp::MAX),
        }
    }

    /// Whether the row has to wait at `now`: it is the very one that was rejected, and its time has not come.
    #[must_use]
    pub fn holds(&self, token: &RowToken, now: Timestamp) -> bool {
        self.token == *token && now < self.until
    }
}

impl fmt::Display for Parked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { source, token, why, times, until } = self;
        let tried = if *times == 1 { "once".to_owned() } else { format!("{times} times") };
        write!(
            f,
            "{why}; tried {tried}, again after {until:.0}, when the row changes, or in the next pass after \
             `salvage accept --parked {source} {}`",
            token.id
        )
    }
}

/// How long a row waits after it was rejected so often: twice as long each time.
fn backoff(times: u32) -> Duration {
    let doublings = times.saturating_sub(1).min(16);
    BACKOFF_MIN.saturating_mul(1 << doublings).min(BACKOFF_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn source() -> SourceName {
        SourceName { domain: "slides".into(), source: "generation".into() }
    }

    fn token(xmin: &str) -> RowToken {
        RowToken {
            id: "s1".into(),
            status: "QUEUED".into(),
            updated_at: "2026-01-31 09:00:00".into(),
            xmin: xmin.into(),
        }
    }

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).expect("a time in range")
    }

    fn park(before: Option<&Parked>, xmin: &str, second: i64) -> Parked {
        Parked::again(before, &source(), &token(xmin), "no", at(second))
    }

    #[test]
    fn each_rejection_doubles_the_wait_up_to_a_day() {
        let mut parked = park(None, "7", 0);
        let mut minutes = vec![];
        for _ in 0..10 {
            minutes.push(parked.until.as_second() / 60);
            parked = park(Some(&parked), "7", 0);
        }
        assert_eq!(minutes, [15, 30, 60, 120, 240, 480, 960, 1_440, 1_440, 1_440]);
        let often = Parked { times: u32::MAX, ..parked };
        assert_eq!(park(Some(&often), "7", 0).until, at(24 * 3600));
    }

    #[test]
    fn a_row_waits_until_its_time_has_come_or_its_token_changes() {
        let parked = park(None, "7", 0);
        assert!(parked.holds(&token("7"), at(899)));
        assert!(!parked.holds(&token("7"), at(900)));
        assert!(!parked.holds(&token("8"), at(0)));
    }

    #[test]
    fn a_row_that_was_written_since_begins_anew() {
        let parked = park(Some(&park(None, "7", 0)), "7", 0);
        assert_eq!((parked.times, park(Some(&parked), "8", 0).times), (2, 1));
    }

    #[test]
    fn it_says_why_until_when_and_the_way_out() {
        assert_eq!(
            park(None, "7", 0).to_string(),
            "no; tried once, again after 1970-01-01T00:15:00Z, when the row changes, or in the next pass after \
             `salvage accept --parked slides/generation s1`"
        );
    }
}
