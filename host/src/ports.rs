//! One trait per thing outside, in core's words. A port never shows a driver's type, and the adapters behind the ports
//! never see each other: only the pass holds several at once.

mod failure;
mod handlers;
mod jobs;
mod ledger;
mod queues;

use std::time::Duration;

pub use self::failure::StoreFailure;
pub use self::handlers::{Answer, HandlerFault, Handlers, Question};
pub use self::jobs::{Census, Group, HeldJob, Hold, Input, JobInputs, Jobs, LoadedDomain, Misfit};
pub use self::ledger::{Acceptance, Captured, Confirmation, Declaration, Ledger, Word};
pub use self::queues::{Ask, Lease, Mark, QueueTerms, Queues};

/// Everything a pass needs of the outside, under one name.
pub trait Outside {
    /// The right to run.
    type Lease: Lease;
    /// Redis's queues.
    type Queues: Queues;
    /// PostgreSQL's job rows.
    type Jobs: Jobs;
    /// Salvage's own tables.
    type Ledger: Ledger;
    /// The domains' components.
    type Handlers: Handlers;
    /// Time and randomness.
    type Clock: Clock;

    /// The right to run.
    fn lease(&self) -> &Self::Lease;
    /// Redis's queues.
    fn queues(&self) -> &Self::Queues;
    /// PostgreSQL's job rows.
    fn jobs(&self) -> &Self::Jobs;
    /// Salvage's own tables.
    fn ledger(&self) -> &Self::Ledger;
    /// The domains' components.
    fn handlers(&self) -> &Self::Handlers;
    /// Time and randomness.
    fn clock(&self) -> &Self::Clock;
}

/// Time and randomness: the only place that asks for either.
pub trait Clock {
    /// Time since boot, running through suspend (`CLOCK_BOOTTIME`).
    fn now(&self) -> Duration;
    /// Returns after `duration`. A timer may stand still while the machine is suspended.
    async fn sleep(&self, duration: Duration);
    /// Returns once [`Self::now`] has come to `instant`, a second late at most: also if the machine was suspended meanwhile.
    async fn until(&self, instant: Duration) {
        while let Some(left) = instant.checked_sub(self.now()).filter(|left| !left.is_zero()) {
            self.sleep(left.min(Duration::from_secs(1))).await;
        }
    }
    /// 128 random bits, as 32 hex digits.
    fn token(&self) -> String;
    /// Random, evenly spread over 0 to 1.
    fn fraction(&self) -> f64;
}
