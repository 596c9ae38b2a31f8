//! The writes: one transaction per job, the queue last.

use std::cell::Cell;

use futures_util::StreamExt;
use salvage_core::act::{ACTS_CONCURRENT, Act, LOOK_AGE_MAX, STATEMENT_TIMEOUT};
use salvage_core::outcome::Outcome;

use super::gather::Gathered;
use super::known::Known;
use super::look::Look;
use super::{Case, Licence, Pass};
use crate::ports::{Clock, HeldJob, Hold, Jobs, Outside, QueueTerms, Queues};

/// The acts of one stage, and all they need.
pub(super) struct Acting<'p, O> {
    pub(super) pass: &'p Pass<'p, O>,
    pub(super) gathered: &'p Gathered,
    pub(super) known: &'p Known,
    /// The last look: the acts rest on it.
    pub(super) look: &'p Look,
    pub(super) licence: &'p Licence,
    /// A store failed as a whole: the next act would meet the same.
    pub(super) is_halted: Cell<bool>,
}

impl<O: Outside> Acting<'_, O> {
    /// One outcome per act, in their order; `None` for an act that was not begun.
    pub(super) async fn carry_out(&self, acts: &[(usize, Act)], cases: &[Case]) -> Vec<Option<Outcome>> {
        let terms = QueueTerms {
            fence: self.licence.fence.clone(),
            deadline_ms: 0,
            nonces: self.known.nonces.clone(),
            with_meta: self.look.with_meta(),
        };
        let begin = |(index, act): &(usize, Act)| {
            let (case, act, terms) = (&cases[*index], act.clone(), &terms);
            async move {
                if !self.may_begin() {
                    return None;
                }
                // Counted from before the transaction opens: PostgreSQL ends a frozen transaction after the same
                // time, so the script never enqueues for a row that can no longer be committed.
                let deadline_ms = self.pass.now_of_redis(self.look) + millis(STATEMENT_TIMEOUT);
                let outcome = self.one(case, &act, &QueueTerms { deadline_ms, ..terms.clone() }).await;
                self.log(case, &outcome);
                Some(outcome)
            }
        };
        futures_util::stream::iter(acts).map(begin).buffered(ACTS_CONCURRENT).collect().await
    }

    fn may_begin(&self) -> bool {
        self.look.age(self.pass.outside.clock().now()) < LOOK_AGE_MAX && self.may_go_on()
    }

    /// Whether an act may be made at all, if the look it rests on is young enough.
    pub(super) fn may_go_on(&self) -> bool {
        let is_trusted = self.licence.trusted.holds_at(self.pass.outside.clock().now());
        is_trusted && !self.is_halted.get() && !self.pass.stop.is_requested()
    }

    async fn one(&self, case: &Case, act: &Act, terms: &QueueTerms) -> Outcome {
        let source = &self.gathered.sources[case.candidate.source];
        let entry = self.pass.entry(self.gathered, self.known, case, Some(&Outcome::Applied));
        let held = match self.pass.outside.jobs().hold(source, act, &self.licence.fence, &entry).await {
            Ok(Hold::Held(held)) => held,
            Ok(Hold::Not(outcome)) => return outcome,
            Err(failure) => {
                self.is_halted.set(self.is_halted.get() || !failure.is_local());
                return Outcome::Refused(failure.to_string());
            }
        };
        // The queue comes last: everything that PostgreSQL can refuse has been refused by now.
        let obstacle = match self.pass.outside.queues().act(act, terms).await {
            Ok(answer) => answer.obstacle(),
            Err(failure) if failure.is_indeterminate() => {
                Some(Outcome::Indeterminate(format!("the queue did not confirm: {failure}")))
            }
            Err(failure) => Some(Outcome::Refused(failure.to_string())),
        };
        if let Some(outcome) = obstacle {
            held.roll_back().await;
            return outcome;
        }
        match held.commit().await {
            Ok(()) => Outcome::Applied,
            Err(failure) => Outcome::Indeterminate(format!("the commit was not confirmed: {failure}")),
        }
    }

    fn log(&self, case: &Case, outcome: &Outcome) {
        if let Outcome::Parked(why) = outcome {
            let (source, id) = (&self.gathered.sources[case.candidate.source].name, &case.candidate.token.id);
            tracing::warn!(%source, candidate.id = id, "PostgreSQL rejects what would be written for this job: {why}");
        }
        tracing::info!(
            source = %self.gathered.sources[case.candidate.source].name,
            candidate.id = case.candidate.token.id,
            candidate.r#type = case.candidate.job_type,
            decision = case.decision.kind.word(),
            reason = case.decision.reason,
            outcome = outcome.word(),
            why = outcome.why(),
            generation = self.licence.fence.generation,
            "act"
        );
    }
}

fn millis(duration: std::time::Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
