//! The clock that interrupts guests. It runs while a call is under way and rests otherwise, so that a host between two passes
//! costs nothing.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::thread::{self, Thread};
use std::time::Duration;

use wasmtime::EngineWeak;

/// Between two ticks of the epoch.
pub(super) const TICK: Duration = Duration::from_millis(10);

/// The thread that raises an engine's epoch; it ends with this.
pub(super) struct Ticks {
    shared: Arc<Shared>,
    thread: Thread,
}

#[derive(Default)]
struct Shared {
    calls: AtomicUsize,
    ticks: AtomicU64,
    is_over: AtomicBool,
}

/// As long as it lives, the epoch is raised.
pub(super) struct Ticking<'t>(&'t Ticks);

impl Ticks {
    /// Starts the thread, at rest.
    ///
    /// # Errors
    /// If there is no thread to be had.
    pub(super) fn start(engine: EngineWeak) -> std::io::Result<Self> {
        let shared = Arc::<Shared>::default();
        let run = {
            let shared = Arc::clone(&shared);
            move || shared.tick(&engine)
        };
        let spawned = thread::Builder::new().name("handler-ticks".to_owned()).spawn(run)?;
        Ok(Self { shared, thread: spawned.thread().clone() })
    }

    /// Ticks from here on, for one more call.
    pub(super) fn for_a_call(&self) -> Ticking<'_> {
        if self.shared.calls.fetch_add(1, Ordering::AcqRel) == 0 {
            self.thread.unpark();
        }
        Ticking(self)
    }
}

impl Ticking<'_> {
    /// Ticks since the engine started. A process that is stopped does not tick, whatever other clocks say.
    pub(super) fn count(&self) -> u64 {
        self.0.shared.ticks.load(Ordering::Acquire)
    }
}

impl Drop for Ticks {
    fn drop(&mut self) {
        self.shared.is_over.store(true, Ordering::Release);
        self.thread.unpark();
    }
}

impl Drop for Ticking<'_> {
    fn drop(&mut self) {
        self.0.shared.calls.fetch_sub(1, Ordering::AcqRel);
    }
}

impl Shared {
    fn tick(&self, engine: &EngineWeak) {
        while !self.is_over.load(Ordering::Acquire) {
            if self.calls.load(Ordering::Acquire) == 0 {
                // Whoever begins a call or ends the clock after this look leaves a token, with which it comes back at once.
                thread::park();
                continue;
            }
            thread::sleep(TICK);
            let Some(engine) = engine.upgrade() else { break };
            engine.increment_epoch();
            self.ticks.fetch_add(1, Ordering::AcqRel);
        }
    }
}
