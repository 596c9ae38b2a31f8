//! What all handlers of a process share: the compiler, the clock that interrupts them, and what they may import.
//!
//! **Interruption.** Compiled code checks a counter, the engine's epoch, at every loop and call. A thread of the operating
//! system raises it every [`TICK`](super::ticks::TICK) while a call is under way; as a task of the async runtime it would never run once spinning guests hold all
//! worker threads. At each tick a guest yields to its neighbours, and once it has run for its time it ends (see [`super::store`]
//! and [`super::stopwatch`]).
//!
//! **Allocation on demand, not pooled.** A pool saves 3.5 of about 70 µs for a call, and asks in return that somebody
//! knows beforehand how many instances, tables and memories of which size the components of strangers have; one that does
//! not fit fails with the pool's words, and a full pool fails like a fault of the guest. On demand the limits are those of
//! the call's own limiter, whatever the component is made of, and [`CALLS_MAX`] bounds their sum.

use std::path::Path;
use std::sync::Arc;

use tokio::sync::{Semaphore, SemaphorePermit};
use wasmtime::component::{Component, Linker};
use wasmtime::{Config, Engine, WasmBacktraceDetails};

use super::cache::Cache;
use super::check::Contract;
use super::contract::TYPES;
use super::store::State;
use super::ticks::{Ticking, Ticks};

/// Most calls at once. Times [`super::Limits::memory`], the most memory all guests together can hold; more would not be
/// faster, since a call waits for nothing but the processor.
pub(super) const CALLS_MAX: u32 = 8;

/// Stack of a guest's native code, of the 2 MiB its fiber has.
const STACK_BYTES: usize = 512 * 1024;

/// The engine and what it offers to handlers. Cheap to clone; one per process.
#[derive(Clone)]
pub struct Runtime(Arc<Shared>);

struct Shared {
    engine: Engine,
    linker: Linker<State>,
    calls: Semaphore,
    ticks: Ticks,
    contract: Contract,
    cache: Option<Cache>,
    counts_fuel: bool,
}

/// A call's turn: one of [`CALLS_MAX`], with the clock running.
pub(super) struct Turn<'r> {
    pub(super) ticking: Ticking<'r>,
    _permit: SemaphorePermit<'r>,
}

/// The engine does not work on this machine.
#[derive(Debug, thiserror::Error)]
pub enum EngineFault {
    /// It refused its configuration.
    #[error("the WebAssembly engine does not start: {0}")]
    Config(String),
    /// No thread for the ticks.
    #[error("no thread for the WebAssembly engine's clock")]
    Ticker(#[source] std::io::Error),
}

impl Runtime {
    /// Starts the engine and its ticks, which end with the last clone.
    ///
    /// # Errors
    /// If the engine does not work on this machine.
    pub fn start() -> Result<Self, EngineFault> {
        Self::start_with(None)
    }

    /// The same, keeping compiled components below `cache_dir`, if there is one.
    ///
    /// # Errors
    /// If the engine does not work on this machine.
    pub fn start_with(cache_dir: Option<&Path>) -> Result<Self, EngineFault> {
        Self::of(&config(), false, cache_dir)
    }

    /// The same engine with fuel counted, and calls in another world: for [`super::Rehearsal`] only.
    ///
    /// # Errors
    /// If the engine does not work on this machine.
    pub fn start_counting_fuel() -> Result<Self, EngineFault> {
        Self::of(config().consume_fuel(true), true, None)
    }

    fn of(config: &Config, counts_fuel: bool, cache_dir: Option<&Path>) -> Result<Self, EngineFault> {
        let refused = |error: wasmtime::Error| EngineFault::Config(error.to_string());
        let engine = Engine::new(config).map_err(refused)?;
        let linker = linker(&engine).map_err(refused)?;
        let ticks = Ticks::start(engine.weak()).map_err(EngineFault::Ticker)?;
        let calls = Semaphore::new(CALLS_MAX as usize);
        let cache = cache_dir.map(|folder| Cache::new(folder, &engine));
        let contract = Contract::v0_1();
        Ok(Self(Arc::new(Shared { engine, linker, calls, ticks, contract, cache, counts_fuel })))
    }

    /// Compiles a component, or finds it compiled. Blocks, for up to seconds.
    ///
    /// # Errors
    /// If it does not compile.
    pub(super) fn compile(&self, digest: &str, bytes: &[u8]) -> wasmtime::Result<Component> {
        match &self.0.cache {
            Some(cache) => cache.component(self.engine(), digest, bytes),
            None => compiled(self.engine(), digest, bytes),
        }
    }

    pub(super) fn engine(&self) -> &Engine {
        &self.0.engine
    }

    pub(super) fn linker(&self) -> &Linker<State> {
        &self.0.linker
    }

    /// Waits for the turn of one more call, which lasts as long as what is returned.
    pub(super) async fn turn(&self) -> Turn<'_> {
        let permit = self.0.calls.acquire().await.expect("the semaphore is never closed");
        Turn { ticking: self.0.ticks.for_a_call(), _permit: permit }
    }

    pub(super) fn counts_fuel(&self) -> bool {
        self.0.counts_fuel
    }

    pub(super) fn contract(&self) -> &Contract {
        &self.0.contract
    }
}

/// Makes machine code, for up to seconds.
pub(super) fn compiled(engine: &Engine, digest: &str, bytes: &[u8]) -> wasmtime::Result<Component> {
    tracing::debug!(sha256 = digest, bytes = bytes.len(), "a handler is being compiled");
    Component::new(engine, bytes)
}

/// The same inputs give the same decision on every machine: no threads, one NaN, one answer of relaxed SIMD.
fn config() -> Config {
    let mut config = Config::new();
    config
        .wasm_component_model(true)
        .epoch_interruption(true)
        .cranelift_nan_canonicalization(true)
        .relaxed_simd_deterministic(true)
        .shared_memory(false)
        .max_wasm_stack(STACK_BYTES)
        .parallel_compilation(true)
        // Else an environment variable decides, and a cached file of one process would be refused by the next. Names of
        // functions are there without it.
        .wasm_backtrace_details(WasmBacktraceDetails::Disable);
    config
}

/// All of WASI 0.2, behind which there is nothing (see [`State`]), and the host's log.
fn linker(engine: &Engine) -> wasmtime::Result<Linker<State>> {
    let mut linker = Linker::new(engine);
    wasmtime_wasi::p2::add_to_linker_async(&mut linker)?;
    super::store::add_host_log(&mut linker)?;
    // Types only; there is nothing to offer but the name.
    linker.instance(TYPES)?;
    Ok(linker)
}
