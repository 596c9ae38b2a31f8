//! A handler on trial: asked by its author, not by a pass.
//!
//! In the runtime of a pass it has the same engine, limits and empty world. In the one that counts fuel
//! ([`Runtime::start_counting_fuel`]) it has *another* empty world, with another time of day and other random numbers. A
//! decision that differs between the two depends on something that is neither the job nor its inputs. In a pass clock and
//! randomness are fixed, so it would be repeated there, but only as long as nobody compiles the handler anew.
//!
//! Fuel is counted here only: it makes a call up to twice as slow. The count is the same on every machine.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use wasmtime::{Engine, Store};
use wasmtime_wasi::{Deterministic, HostMonotonicClock, HostWallClock, WasiCtxBuilder};

use super::Limits;
use super::engine::Runtime;
use super::handler::Handler;
use super::load::{self, Checked, LoadFault};
use super::stopwatch::Stopwatch;
use super::store::{self, State};
use crate::ports::{Answer, Question};

/// What counting fuel may cost, at most.
const FUEL_SLOWDOWN: u32 = 4;

/// More than any call within its run time can use.
const FULL_TANK: u64 = u64::MAX;

/// 2033-05-18T03:33:20Z.
const OTHER_TIME: Duration = Duration::from_secs(2_000_000_000);

/// One component, asked by its author.
pub struct Rehearsal {
    handler: Handler,
    checked: Checked,
}

/// What a handler answered, and what that took.
#[derive(Debug, Clone)]
pub struct Counted {
    /// As in a pass.
    pub answer: Answer,
    /// Fuel used, from instantiation to the answer; 0 if the engine counts none.
    pub fuel: u64,
}

impl Rehearsal {
    /// Loads one file as a host would, but for grants and owners: within the `widest` limits of any domain until its own is
    /// known, and then within those. In an engine that counts fuel, run time is more patient.
    ///
    /// # Errors
    /// The first fault found.
    pub async fn load(
        runtime: &Runtime,
        path: &Path,
        widest: &Limits,
        own: impl Fn(&str) -> Limits,
    ) -> Result<Self, Arc<LoadFault>> {
        let slowdown = if runtime.counts_fuel() { FUEL_SLOWDOWN } else { 1 };
        let patient = |limits: Limits| Limits { run_time: limits.run_time * slowdown, ..limits };
        let attempt = load::file(runtime, path, &patient(*widest)).await;
        let build = attempt.built()?;
        let handler = build.handler.within(patient(own(&build.manifest.domain)));
        Ok(Self { handler, checked: build.checked() })
    }

    /// What it declares.
    #[must_use]
    pub const fn checked(&self) -> &Checked {
        &self.checked
    }

    /// Asks it, in a fresh store.
    pub async fn decide(&self, question: &Question<'_>) -> Counted {
        let (answer, store) = self.handler.decide_in(question).await;
        let left = store.get_fuel().unwrap_or(FULL_TANK);
        Counted { answer, fuel: FULL_TANK - left }
    }
}

/// A store for one call in an engine that counts fuel: the usual one with a full tank, in another world.
pub(super) fn open(engine: &Engine, name: &Arc<str>, limits: &Limits, watch: &Stopwatch) -> Store<State> {
    let mut store = store::open(engine, name, limits, watch);
    store.set_fuel(FULL_TANK).expect("this engine counts fuel");
    let state = store.data_mut();
    let seed = || Deterministic::new((0..=u8::MAX).rev().collect());
    let mut world = WasiCtxBuilder::new();
    world
        .wall_clock(OtherClock)
        .monotonic_clock(OtherClock)
        .secure_random(seed())
        .insecure_random(seed())
        .insecure_random_seed(u128::MAX);
    state.wasi = store::deny_all(&mut world, &state.stdout, &state.stderr).build();
    store
}

/// Stands still as well, elsewhere.
struct OtherClock;

impl HostWallClock for OtherClock {
    fn resolution(&self) -> Duration {
        Duration::from_nanos(1)
    }

    fn now(&self) -> Duration {
        OTHER_TIME
    }
}

impl HostMonotonicClock for OtherClock {
    fn resolution(&self) -> u64 {
        1
    }

    fn now(&self) -> u64 {
        u64::try_from(OTHER_TIME.as_nanos()).expect("fits until 2554")
    }
}
