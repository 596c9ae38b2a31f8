//! One loaded component, and a call to it: a fresh store, an instance, the question, an answer or a fault.

use std::sync::Arc;

use salvage_core::decision::shorten;
use wasmtime::Store;
use wasmtime::component::InstancePre;

use super::contract::{self, HandlerPre};
use super::engine::{CALLS_MAX, Runtime};
use super::limits::{Limits, OverOutput};
use super::store::{self, State};
use super::{convert, fault};
use crate::clock::MachineClock;
use crate::ports::{Answer, Clock, HandlerFault, Question};

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
        let _call = self.turn().await;
        let mut store = self.store();
        let began =
            self.within_limits(async { self.pre.instantiate_async(&mut store).await.map(drop) }).await;
        self.settle(began, &store)
    }

    /// Asks what it owns.
    ///
    /// # Errors
    /// How it ended.
    pub(super) async fn describe(&self) -> Result<contract::HandlerManifest, HandlerFault> {
        let _call = self.turn().await;
        let mut store = self.store();
        let called = self.within_limits(async {
            let instance = self.pre.instantiate_async(&mut store).await?;
            let manifest = instance.salvage_handler_domain().call_describe(&mut store).await?;
            let (bytes, limit) = (convert::manifest_bytes(&manifest), self.limits.output);
            if bytes > limit { Err(OverOutput { bytes, limit }.into()) } else { Ok(manifest) }
        });
        let described = called.await;
        self.settle(described, &store)
    }

    /// Asks what shall become of one orphan. Run time is counted from the handler's turn on, instantiation included.
    pub(super) async fn decide(&self, question: &Question<'_>) -> Answer {
        let updated_at = convert::updated_at(question);
        let rows = convert::rows(question);
        let (job, inputs) = (convert::job(question, &updated_at), convert::inputs(question, &rows));
        let _call = self.turn().await;
        let began = MachineClock.now();
        let mut store = self.store();
        let called = self.within_limits(async {
            let instance = self.pre.instantiate_async(&mut store).await?;
            let answer = instance.salvage_handler_domain().call_decide(&mut store, job, &inputs).await?;
            let (bytes, limit) = (convert::answer_bytes(&answer), self.limits.output);
            if bytes > limit { Err(OverOutput { bytes, limit }.into()) } else { Ok(answer) }
        });
        let decided = called.await;
        let decision = match self.settle(decided, &store) {
            Ok(Ok(decision)) => Ok(convert::decision(decision)),
            Ok(Err(text)) => Err(HandlerFault::Error(shorten(&text))),
            Err(fault) => Err(fault),
        };
        Answer { decision, took: MachineClock.now().saturating_sub(began) }
    }

    async fn turn(&self) -> tokio::sync::SemaphorePermit<'_> {
        self.runtime.calls().acquire().await.expect("the semaphore is never closed")
    }

    fn store(&self) -> Store<State> {
        store::open(self.runtime.engine(), &self.name, &self.limits)
    }

    /// Ends a call that does not run but waits in a host function, which the epoch cannot see. Long enough for a call that
    /// shares one thread with as many others as there can be: each has its whole budget first.
    async fn within_limits<T>(
        &self,
        call: impl Future<Output = wasmtime::Result<T>>,
    ) -> Option<wasmtime::Result<T>> {
        let patience = self.limits.run_time.saturating_mul(CALLS_MAX);
        tokio::time::timeout(patience, call).await.ok()
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
