//! The right to run a pass, and how long it may be trusted.
//!
//! Two things that are never mixed: the *owner token* is random and says who may release the lease; the *fence* grows
//! and says how fresh a writer is. The lease saves double work, the fence is the safety.

use std::time::Duration;

use serde::Serialize;

/// How long before the key's expiry the holder stops trusting it: a write under way must end within it.
pub const TRUST_MARGIN: Duration = Duration::from_secs(10);

/// How the attempt to take the lease ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LeaseAnswer {
    /// Ours.
    Acquired,
    /// Another host holds it.
    Held,
}

/// Until when a lease is trusted, on a clock that runs through suspend.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Trusted {
    until: Duration,
}

impl Trusted {
    /// `asked_at` is the instant *before* the request was sent; the margin is never more than a tenth of the TTL.
    #[must_use]
    pub fn from(asked_at: Duration, ttl: Duration) -> Self {
        Self { until: asked_at + ttl - TRUST_MARGIN.min(ttl / 10) }
    }

    /// Whether the holder may begin a write at `now`.
    #[must_use]
    pub fn holds_at(self, now: Duration) -> bool {
        now < self.until
    }
}

/// Makes a late writer harmless in both stores.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Fence {
    /// What the lease covers: `global`, or a domain.
    pub scope: String,
    /// Grows by one with every pass of the scope.
    pub generation: u64,
    /// The pass's own random token.
    #[serde(skip)]
    pub pass_token: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn trust_ends_a_margin_before_the_key_expires() {
        let second = Duration::from_secs;
        let trusted = Trusted::from(second(100), second(600));
        assert!(trusted.holds_at(second(100 + 589)));
        assert!(!trusted.holds_at(second(100 + 590)));
        assert!(!Trusted::from(second(0), second(2)).holds_at(Duration::from_millis(1_800)));
    }
}
