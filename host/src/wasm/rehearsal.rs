//! A handler on trial: asked by its author, not by a pass.
//!
//! Each question is put twice. The first time as in a pass: the same engine, the same limits, the same empty world. The second
//! time in an engine that counts fuel, and in *another* empty world, with another time of day and other random numbers. A
//! decision that differs depends on something that is neither the job nor its inputs. In a pass clock and randomness are
//! fixed, so it would be repeated there, but only as long as nobody compiles the handler anew.
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
use super::store::{self, State};
use crate::ports::{Answer, Question};

/// What counting fuel may cost, at most.
const FUEL_SLOWDOWN: u32 = 4;

/// 2033-05-18T03:33:20Z.
const OTHER_TIME: Duration = Duration::from_secs(2_000_000_000);

/// One component, compiled twice.
pub struct Rehearsal {
    as_in_a_pass: Handler,
    counted: Handler,
    checked: Checked,
}

/// The two runtimes of every rehearsal of a process.
pub struct Stage {
    plain: Runtime,
    counting: Runtime,
}

/// What a handler answered the second time.
#[derive(Debug, Clone)]
pub struct Counted {
    /// As the first.
    pub answer: Answer,
    /// Fuel used, from instantiation to the answer.
    pub fuel: u64,
}

impl Stage {
    /// Starts both engines.
    ///
    /// # Errors
    /// If the engine does not work on this machine.
    pub fn start() -> Result<Self, super::EngineFault> {
        Ok(Self { plain: Runtime::start()?, counting: Runtime::start_counting_fuel()? })
    }

    /// Loads one file as a host would, but for grants and owners: within the `widest` limits of any domain until its own is
    /// known, and then within those.
    ///
    /// # Errors
    /// The first fault found.
    pub async fn rehearsal(
        &self,
        path: &Path,
        widest: &Limits,
        own: impl Fn(&str) -> Limits,
    ) -> Result<Rehearsal, LoadFault> {
        let attempt = load::file(&self.plain, path, widest).await;
        let mut plain = attempt.sound?;
        let own = own(&plain.manifest.domain);
        plain.handler.limit(own);
        let patient = |limits: &Limits| Limits { run_time: limits.run_time * FUEL_SLOWDOWN, ..*limits };
        let mut counted = load::file(&self.counting, path, &patient(widest)).await.sound?;
        counted.handler.limit(patient(&own));
        let digest = attempt.digest.unwrap_or_default();
        let checked = Checked { manifest: plain.manifest, digest, imports: plain.imports };
        Ok(Rehearsal { as_in_a_pass: plain.handler, counted: counted.handler, checked })
    }
}

impl Rehearsal {
    /// What it declares.
    #[must_use]
    pub const fn checked(&self) -> &Checked {
        &self.checked
    }

    /// Asks as a pass would.
    pub async fn decide(&self, question: &Question<'_>) -> Answer {
        self.as_in_a_pass.decide(question).await
    }

    /// Asks in the other world.
    pub async fn decide_counted(&self, question: &Question<'_>) -> Counted {
        let (answer, store) = self.counted.decide_in(question).await;
        // Fails only where fuel is not counted.
        let left = store.get_fuel().unwrap_or(u64::MAX);
        Counted { answer, fuel: u64::MAX - left }
    }
}

/// A store for one call in an engine that counts fuel: the usual one with a full tank, in another world.
pub(super) fn open(engine: &Engine, name: &Arc<str>, limits: &Limits) -> Store<State> {
    let mut store = store::open(engine, name, limits);
    store.set_fuel(u64::MAX).expect("this engine counts fuel");
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
