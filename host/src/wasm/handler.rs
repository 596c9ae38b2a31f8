//! One loaded component, and a call to it: a fresh store, an instance, the question, an answer or a fault.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use salvage_core::decision::shorten;
use wasmtime::Store;
use wasmtime::component::InstancePre;

use super::contract::{self, HandlerPre};
use super::engine::{CALLS_MAX, Runtime, Turn};
use super::limits::{Limits, OverOutput};
use super::stopwatch::Stopwatch;
use super::store::{self, State};
use super::ticks::TICK;
use super::{convert, fault, rehearsal};
use crate::ports::{Answer, HandlerFault, Question};

/// A compiled component, ready to be called any number of times at once. Clones share what is compiled.
#[derive(Clone)]
pub(super) struct Handler {
    /// For its log lines: the domain, or the file's name before that is known.
    name: Arc<str>,
    pre: HandlerPre<State>,
    runtime: Runtime,
    limits: Limits,
}

impl Handler {
    /// A component whose imports are met.
    ///
    /// # Errors
    /// If it does not export the contract's interface.
    pub(super) fn new(
        runtime: &Runtime,
        name: &str,
        pre: InstancePre<State>,
        limits: Limits,
    ) -> wasmtime::Result<Self> {
        Ok(Self { name: name.into(), pre: HandlerPre::new(pre)?, runtime: runtime.clone(), limits })
    }

    /// The same, called by its domain.
    pub(super) fn renamed(self, domain: &str) -> Self {
        Self { name: domain.into(), ..self }
    }

    /// The same, under other limits.
    pub(super) fn within(&self, limits: Limits) -> Self {
        Self { limits, ..self.clone() }
    }

    /// Makes an instance and drops it: what cannot be instantiated at load never can.
    ///
    /// # Errors
    /// How it ended.
    pub(super) async fn try_instance(&self) -> Result<(), HandlerFault> {
        let turn = self.runtime.turn().await;
        let watch = Stopwatch::default();
        let mut store = self.store(&watch);
        let call = async { self.pre.instantiate_async(&mut store).await.map(drop) };
        let began = self.within_limits(&turn, &watch, call).await;
        self.settle(began, &store)
    }

    /// Asks what it owns.
    ///
    /// # Errors
    /// How it ended.
    pub(super) async fn describe(&self) -> Result<contract::HandlerManifest, HandlerFault> {
        let turn = self.runtime.turn().await;
        let watch = Stopwatch::default();
        let mut store = self.store(&watch);
        let call = async {
            let instance = self.pre.instantiate_async(&mut store).await?;
            let manifest = instance.salvage_handler_domain().call_describe(&mut store).await?;
            let (bytes, limit) = (convert::manifest_bytes(&manifest), self.limits.output);
            if bytes > limit { Err(OverOutput { bytes, limit }.into()) } else { Ok(manifest) }
        };
        let described = self.within_limits(&turn, &watch, call).await;
        self.settle(described, &store)
    }

    /// Asks what shall become of one orphan. Run time is counted from the handler's turn on, instantiation included.
    pub(super) async fn decide(&self, question: &Question<'_>) -> Answer {
        self.decide_in(question).await.0
    }

    /// The same, with the store the call had.
    pub(super) async fn decide_in(&self, question: &Question<'_>) -> (Answer, Store<State>) {
        let updated_at = convert::updated_at(question);
        let rows = convert::rows(question);
        let (job, inputs) = (convert::job(question, &updated_at), convert::inputs(question, &rows));
        let turn = self.runtime.turn().await;
        let watch = Stopwatch::default();
        let mut store = self.store(&watch);
        let mut answered = 0;
        let call = async {
            let instance = self.pre.instantiate_async(&mut store).await?;
            let answer = instance.salvage_handler_domain().call_decide(&mut store, job, &inputs).await?;
            let (bytes, limit) = (convert::answer_bytes(&answer), self.limits.output);
            answered = bytes;
            if bytes > limit { Err(OverOutput { bytes, limit }.into()) } else { Ok(answer) }
        };
        let decided = self.within_limits(&turn, &watch, call).await;
        let decision = match self.settle(decided, &store) {
            Ok(Ok(decision)) => Ok(convert::decision(decision)),
            Ok(Err(text)) => Err(HandlerFault::Error(shorten(&text))),
            Err(fault) => Err(fault),
        };
        let usage = store.data().usage(watch.at_rest(), answered, &self.limits);
        (Answer { decision, usage: Some(usage) }, store)
    }

    fn store(&self, watch: &Stopwatch) -> Store<State> {
        let open = if self.runtime.counts_fuel() { rehearsal::open } else { store::open };
        open(self.runtime.engine(), &self.name, &self.limits, watch)
    }

    /// Times a call, and ends one that does not run but waits in a host function, which the epoch cannot see: `None`.
    ///
    /// Such a call has not had its share of the time in which it and all others that there can be have run. Time is told by
    /// ticks: a process that was stopped would find that any other clock has gone on.
    async fn within_limits<T>(
        &self,
        turn: &Turn<'_>,
        watch: &Stopwatch,
        call: impl Future<Output = wasmtime::Result<T>>,
    ) -> Option<wasmtime::Result<T>> {
        let call = pin!(call);
        let mut call = watch.time(call);
        let patience = self.limits.run_time.saturating_mul(CALLS_MAX).max(TICK);
        let share = self.limits.run_time / CALLS_MAX;
        loop {
            let (ticks, ran) = (turn.ticking.count(), watch.at_rest());
            let mut left = patience;
            while !left.is_zero() {
                if let Ok(ended) = tokio::time::timeout(left, &mut call).await {
                    return Some(ended);
                }
                let ticked = u32::try_from(turn.ticking.count() - ticks).unwrap_or(u32::MAX);
                left = patience.saturating_sub(TICK.saturating_mul(ticked));
            }
            if watch.at_rest() - ran < share.max(Duration::from_nanos(1)) {
                return None;
            }
        }
    }

    /// What a call came to; `None` if it was given up.
    fn settle<T>(&self, ended: Option<wasmtime::Result<T>>, store: &Store<State>) -> Result<T, HandlerFault> {
        store.data().report_dropped();
        match ended {
            Some(Ok(value)) => Ok(value),
            Some(Err(error)) => Err(fault::of(&error, store.data(), &self.limits)),
            None => Err(fault::over_time(&self.limits)),
        }
    }
}
