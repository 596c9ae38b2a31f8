//! What a call of a handler used, beside what it may use. Kept with every decision, so that a team sees its handler come near
//! a limit before it meets it.

use std::time::Duration;

use serde::Serialize;

/// What one call used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct Usage {
    /// Microseconds, instantiation included.
    pub run_time_us: Spent,
    /// Bytes over all memories and tables. More than the limit: that much was asked for, and not given.
    pub memory: Spent,
    /// Bytes of the answer, or of what was written to stdout or stderr, if that is more.
    pub output: Spent,
    /// Bytes of log lines; those beyond the limit were dropped.
    pub log: Spent,
}

/// So much of so much.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Spent {
    /// What was used, or wanted.
    pub used: u64,
    /// What may be used.
    pub limit: u64,
}

impl Usage {
    /// How long the call took.
    #[must_use]
    pub const fn took(&self) -> Duration {
        Duration::from_micros(self.run_time_us.used)
    }
}
