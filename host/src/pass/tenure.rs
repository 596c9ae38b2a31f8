//! The lease while a pass runs: until when it is trusted, its renewal, and its loss.
//!
//! The renewal runs beside the pass, in the same task: it goes on while the pass waits for a store, a handler or the
//! queues to settle, and it ends with the pass. Once lost a lease stays lost, whatever answer comes late: the pass has
//! been told, or has seen by its clock, that another host may be working.
//!
//! Loss cuts nothing off. What is being written is fenced and ends within its own limits; cut off in the middle, it
//! would leave more behind than if it is let finish. What is not begun yet is not begun any more.

use std::cell::{Cell, RefCell};
use std::time::Duration;

use salvage_core::lease::{LeaseLoss, Scope, Trusted};
use salvage_core::sighting::QueueFailure;
use tokio::sync::watch;

use crate::ports::{Clock, Lease, Outside, StoreFailure};

/// How the renewal of a lease went so far.
#[derive(Debug)]
pub(crate) struct Tenure {
    trusted: Cell<Trusted>,
    /// Why the last renewal failed, if it did.
    unconfirmed: RefCell<Option<QueueFailure>>,
    loss: watch::Sender<Option<LeaseLoss>>,
}

impl Tenure {
    /// `asked_at` is the instant before the lease was asked for.
    pub(crate) fn begun(asked_at: Duration, ttl: Duration) -> Self {
        Self {
            trusted: Cell::new(Trusted::from(asked_at, ttl)),
            unconfirmed: RefCell::new(None),
            loss: watch::Sender::new(None),
        }
    }

    /// Whether a write may begin at `now`; if not, it may not later either.
    pub(crate) fn holds_at(&self, now: Duration) -> bool {
        if self.loss.borrow().is_some() {
            return false;
        }
        if !self.trusted.get().holds_at(now) {
            let failure = self.unconfirmed.borrow().clone();
            self.lose(failure.map_or(LeaseLoss::StoodStill, LeaseLoss::NotConfirmed));
            return false;
        }
        true
    }

    /// As [`Self::holds_at`], as a reason to end the pass.
    pub(crate) fn check(&self, now: Duration) -> Result<(), StoreFailure> {
        if self.holds_at(now) {
            return Ok(());
        }
        let loss = self.loss.borrow().clone().unwrap_or(LeaseLoss::StoodStill);
        Err(StoreFailure::LeaseLost(loss))
    }

    /// Returns once the lease is lost.
    pub(crate) async fn lost(&self) {
        // The sender lives as long as we do.
        drop(self.loss.subscribe().wait_for(Option::is_some).await);
    }

    fn lose(&self, loss: LeaseLoss) {
        tracing::error!(%loss, "the lease is lost: this pass begins no further write");
        self.loss.send_replace(Some(loss));
    }

    /// Renews the lease at a third of its time to live, again and again; returns once it is lost.
    pub(crate) async fn keep<O: Outside>(&self, outside: &O, scope: &Scope, owner: &str, ttl: Duration) {
        let clock = outside.clock();
        let mut due = self.trusted.get().renew_at();
        loop {
            clock.until(due).await;
            let asked_at = clock.now();
            if !self.holds_at(asked_at) {
                return;
            }
            let answer = tokio::select! {
                biased;
                answer = outside.lease().renew(scope, owner, ttl) => answer,
                () = clock.until(self.trusted.get().until()) => Err(unanswered(clock.now() - asked_at)),
            };
            match answer {
                Ok(true) => {
                    self.trusted.set(Trusted::from(asked_at, ttl));
                    self.unconfirmed.replace(None);
                    due = self.trusted.get().renew_at();
                }
                Ok(false) => return self.lose(LeaseLoss::NotOurs),
                Err(failure) => {
                    tracing::warn!(%failure, "the lease could not be renewed");
                    self.unconfirmed.replace(Some(failure));
                    due = self.trusted.get().renew_again_at(clock.now());
                }
            }
        }
    }
}

/// The failure of a renewal that was waited for as long as there was time.
fn unanswered(waited: Duration) -> QueueFailure {
    QueueFailure::Timeout { timeout_ms: u64::try_from(waited.as_millis()).unwrap_or(u64::MAX) }
}
