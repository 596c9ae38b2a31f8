//! The right to run a pass, how long it may be trusted, and what it takes to keep it.
//!
//! Two things that are never mixed: the *owner token* is random and says who may release the lease; the *fence* grows
//! and says how fresh a writer is. The lease saves double work, the fence is the safety.
//!
//! ```text
//!   asked for                 renewal is due                         trust ends     key expires
//!      ├─────────── ttl/3 ──────────┼────────────────────────────────────┼── margin ──┤
//!      └ a renewal that is confirmed begins all of it anew, from the instant before it was sent
//! ```

use std::fmt;
use std::time::Duration;

use serde::Serialize;

use crate::settings::{PassSettings, human};
use crate::sighting::QueueFailure;

/// How long before the key's expiry the holder stops trusting it: a write under way must end within it.
pub const TRUST_MARGIN: Duration = Duration::from_secs(10);

/// Renewals in one time to live, if none fails: two may be lost before trust ends.
const RENEWALS_PER_TTL: u32 = 3;

/// How soon a renewal that failed is tried again, at most; a short lease has less time to lose.
const RENEW_AGAIN_AFTER: Duration = Duration::from_secs(1);

/// What a lease, and the fence under it, cover.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Scope {
    /// Every domain.
    Global,
    /// One domain.
    Domain(String),
}

/// The scope of every domain, as text.
pub const GLOBAL: &str = "global";

impl Scope {
    /// As it is written in both stores: `global`, or the domain, which is never called so.
    #[must_use]
    pub fn as_str(&self) -> &str {
        match self {
            Self::Global => GLOBAL,
            Self::Domain(domain) => domain,
        }
    }

    /// Whether passes under this lease work on that domain.
    #[must_use]
    pub fn covers(&self, domain: &str) -> bool {
        match self {
            Self::Global => true,
            Self::Domain(own) => own == domain,
        }
    }
}

impl fmt::Display for Scope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// `[lease] scope`: one kind per deployment.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum ScopeKind {
    /// One lease over all domains: one host works at a time.
    #[default]
    Global,
    /// One lease per domain: several hosts share the work.
    Domain,
}

impl ScopeKind {
    /// As the setting has it.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Global => "global",
            Self::Domain => "domain",
        }
    }

    /// The leases of a deployment with these domains, in their order.
    #[must_use]
    pub fn scopes<'d>(self, domains: impl IntoIterator<Item = &'d str>) -> Vec<Scope> {
        match self {
            Self::Global => vec![Scope::Global],
            Self::Domain => domains.into_iter().map(|domain| Scope::Domain(domain.to_owned())).collect(),
        }
    }
}

/// How the attempt to take the lease ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LeaseAnswer {
    /// Ours.
    Acquired,
    /// Another host holds it.
    Held,
}

/// A lease as far as it is trusted, on a clock that runs through suspend.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Trusted {
    asked_at: Duration,
    ttl: Duration,
}

impl Trusted {
    /// `asked_at` is the instant *before* the request was sent, be it for the lease or for its renewal.
    #[must_use]
    pub const fn from(asked_at: Duration, ttl: Duration) -> Self {
        Self { asked_at, ttl }
    }

    /// Whether the holder may begin a write at `now`.
    #[must_use]
    pub fn holds_at(self, now: Duration) -> bool {
        now < self.until()
    }

    /// When trust ends, unless it is renewed before.
    #[must_use]
    pub fn until(self) -> Duration {
        self.asked_at + self.ttl.saturating_sub(margin(self.ttl))
    }

    /// When the next renewal is due.
    #[must_use]
    pub fn renew_at(self) -> Duration {
        self.asked_at + self.ttl / RENEWALS_PER_TTL
    }

    /// When a renewal that failed at `now` is tried again.
    #[must_use]
    pub fn renew_again_at(self, now: Duration) -> Duration {
        now + RENEW_AGAIN_AFTER.min(self.ttl / 10)
    }
}

/// [`TRUST_MARGIN`], and never more than a tenth of the time to live.
fn margin(ttl: Duration) -> Duration {
    TRUST_MARGIN.min(ttl / 10)
}

/// Why a pass may not write any more.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LeaseLoss {
    /// The key was gone, or another's, when it was to be renewed.
    #[error("when it was to be renewed, it had expired or belonged to another host")]
    NotOurs,
    /// Renewals failed until trust ran out.
    #[error("it could not be renewed in time: {0}")]
    NotConfirmed(QueueFailure),
    /// Trust ran out without a renewal being tried: process or machine was frozen, or had no processor to run on.
    #[error("this host stood still until it ran out: it was frozen, or far too busy")]
    StoodStill,
}

/// What a pass needs of its lease without any renewal.
///
/// Renewals are for passes that have much to do. One that could not make a single write without them would do nothing at
/// all whenever Redis is slow to answer, for renewals fail first: at a high cost, in every interval, and with nothing to
/// show. So what is certain to pass between the lease and the first write has to fit: the wait between the two looks.
///
/// Not counted, because it is a limit and not a duration: a look (`[redis] timeout`; usually milliseconds), a transaction
/// (5 s; usually milliseconds), what handlers take. If they do take long, renewals cover it, and if those fail as well,
/// the pass ends before its next write: it costs that pass, and nothing else.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Budget {
    settle: Duration,
    margin: Duration,
    ttl: Duration,
}

impl Budget {
    /// The budget under these settings.
    #[must_use]
    pub fn of(settings: &PassSettings) -> Self {
        Self { settle: settings.settle, margin: margin(settings.lease_ttl), ttl: settings.lease_ttl }
    }

    /// Whether a pass can act before the trust in its lease ends.
    #[must_use]
    pub fn fits(self) -> bool {
        self.needed() < self.ttl
    }

    fn needed(self) -> Duration {
        self.settle.saturating_add(self.margin)
    }
}

impl fmt::Display for Budget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (settle, margin) = (human(self.settle), human(self.margin));
        let (needed, ttl) = (human(self.needed()), human(self.ttl));
        write!(f, "{settle} ([pass] settle) + {margin} (margin before the lease expires) = {needed}")?;
        write!(f, ", which must be less than {ttl} ([lease] ttl)")
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

    const fn ms(count: u64) -> Duration {
        Duration::from_millis(count)
    }

    #[test]
    fn trust_ends_a_margin_before_the_key_expires() {
        let second = Duration::from_secs;
        let trusted = Trusted::from(second(100), second(600));
        assert!(trusted.holds_at(second(100 + 589)));
        assert!(!trusted.holds_at(second(100 + 590)));
        assert!(!Trusted::from(second(0), second(2)).holds_at(ms(1_800)));
    }

    #[test]
    fn a_renewal_is_due_at_a_third_and_tried_again_while_trust_lasts() {
        let second = Duration::from_secs;
        let trusted = Trusted::from(second(100), second(600));
        assert_eq!(trusted.renew_at(), second(300));
        assert_eq!(trusted.renew_again_at(second(305)), second(306));
        assert_eq!(Trusted::from(second(0), second(2)).renew_again_at(second(1)), ms(1_200));
    }

    fn check_budget(settle: Duration, lease_ttl: Duration, expected: bool) {
        let budget = Budget::of(&PassSettings { settle, lease_ttl, ..PassSettings::default() });
        assert_eq!(budget.fits(), expected, "{budget}");
    }

    #[test]
    fn a_pass_can_act_once_before_its_first_renewal_fails() {
        check_budget(ms(30_000), ms(600_000), true);
        check_budget(ms(1), ms(1_000), true);
        check_budget(ms(899), ms(1_000), true);
        check_budget(ms(900), ms(1_000), false);
        check_budget(ms(30_000), ms(30_000), false);
        check_budget(ms(590_000), ms(600_000), false);
        check_budget(Duration::MAX, ms(600_000), false);
    }
}
