//! What one call has to itself: an empty world, its limits, and what it said before it ended.
//!
//! A handler sees no files, no environment, no arguments and no network. Its clocks stand still and its random numbers are
//! always the same, so that a decision depends on nothing but the question and can be replayed.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use salvage_core::usage::{Spent, Usage};
use tokio::io::AsyncWrite;
use wasmtime::component::{Linker, ResourceTable, WasmStr};
use wasmtime::{Engine, Store, StoreContextMut, UpdateDeadline};
use wasmtime_wasi::cli::{IsTerminal, StdoutStream};
use wasmtime_wasi::p2::{OutputStream, Pollable, StreamError, StreamResult};
use wasmtime_wasi::{
    Deterministic, HostMonotonicClock, HostWallClock, WasiCtx, WasiCtxBuilder, WasiCtxView, WasiView,
};

use super::contract::{HOST_LOG, Level};
use super::limits::{Limits, MemoryLimiter, OverOutput, OverTime};
use super::stopwatch::Stopwatch;

/// The last bytes of stderr that are kept: a panic's message is its end.
const STDERR_KEPT_BYTES: usize = 4 * 1024;

/// Most bytes a guest may write to a stream, or draw at random, in one go.
const CHUNK_BYTES: usize = 64 * 1024;

/// Most things of the host a guest may hold at once, such as streams. A usual one holds about ten.
const HANDLES_MAX: usize = 1_000;

/// Where handlers' lines stand in the host's log; part of `salvage` for its filters.
const TARGET: &str = "salvage::handler";

/// What a store carries.
pub(super) struct State {
    pub(super) wasi: WasiCtx,
    table: ResourceTable,
    memory: MemoryLimiter,
    pub(super) log: Log,
    pub(super) stdout: Written,
    pub(super) stderr: Written,
}

impl WasiView for State {
    fn ctx(&mut self) -> WasiCtxView<'_> {
        WasiCtxView { ctx: &mut self.wasi, table: &mut self.table }
    }
}

/// A new store for one call of the handler `name`, timed by `watch`, its deadline set: instantiation runs code of the guest,
/// too.
pub(super) fn open(engine: &Engine, name: &Arc<str>, limits: &Limits, watch: &Stopwatch) -> Store<State> {
    let stdout = Written::new(limits.output, 0);
    let stderr = Written::new(limits.output, STDERR_KEPT_BYTES);
    let mut table = ResourceTable::new();
    table.set_max_capacity(HANDLES_MAX);
    let state = State {
        wasi: empty_world(&stdout, &stderr),
        table,
        memory: MemoryLimiter::new(limits.memory),
        log: Log { name: Arc::clone(name), used: 0, left: limits.log, dropped: 0 },
        stdout,
        stderr,
    };
    let mut store = Store::new(engine, state);
    store.limiter(|state| &mut state.memory);
    store.set_max_component_handles(HANDLES_MAX);
    // Bounds what the host copies out of the guest at once. No honest value is larger than the memory it lies in; a list
    // that names the same string a million times is.
    store.set_hostcall_fuel(usize::try_from(limits.memory).unwrap_or(usize::MAX));
    store.set_epoch_deadline(1);
    store.epoch_deadline_callback(budget(limits.run_time, watch.clone()));
    store
}

/// Called at the first check after each tick: yields until the call has run for its time.
fn budget(
    run_time: Duration,
    watch: Stopwatch,
) -> impl FnMut(StoreContextMut<'_, State>) -> wasmtime::Result<UpdateDeadline> + Send + Sync + 'static {
    move |_| if watch.running() < run_time { Ok(UpdateDeadline::Yield(1)) } else { Err(OverTime.into()) }
}

fn empty_world(stdout: &Written, stderr: &Written) -> WasiCtx {
    let seed = || Deterministic::new((0..=u8::MAX).collect());
    let mut world = WasiCtxBuilder::new();
    world
        .wall_clock(StoppedClock)
        .monotonic_clock(StoppedClock)
        .secure_random(seed())
        .insecure_random(seed())
        .insecure_random_seed(0);
    deny_all(&mut world, stdout, stderr).build()
}

/// What every world has in common: two streams that are counted, and nothing else.
pub(super) fn deny_all<'a>(
    world: &'a mut WasiCtxBuilder,
    stdout: &Written,
    stderr: &Written,
) -> &'a mut WasiCtxBuilder {
    world
        .stdout(stdout.clone())
        .stderr(stderr.clone())
        .max_random_size(CHUNK_BYTES as u64)
        .allow_tcp(false)
        .allow_udp(false)
        .allow_ip_name_lookup(false)
}

/// 1970-01-01T00:00:00Z, for ever: plainly no time of day.
struct StoppedClock;

impl HostWallClock for StoppedClock {
    fn resolution(&self) -> Duration {
        Duration::from_nanos(1)
    }

    fn now(&self) -> Duration {
        Duration::ZERO
    }
}

impl HostMonotonicClock for StoppedClock {
    fn resolution(&self) -> u64 {
        1
    }

    fn now(&self) -> u64 {
        0
    }
}

/// A stream whose bytes are counted and, but for the last few, dropped.
#[derive(Clone)]
pub(super) struct Written(Arc<Mutex<Counted>>);

struct Counted {
    bytes: u64,
    limit: u64,
    kept: Vec<u8>,
    kept_max: usize,
}

impl Written {
    fn new(limit: u64, kept_max: usize) -> Self {
        Self(Arc::new(Mutex::new(Counted { bytes: 0, limit, kept: Vec::new(), kept_max })))
    }

    /// Bytes written.
    pub(super) fn bytes(&self) -> u64 {
        self.with(|counted| counted.bytes)
    }

    /// The last bytes, as text.
    pub(super) fn tail(&self) -> String {
        self.with(|counted| String::from_utf8_lossy(&counted.kept).into_owned())
    }

    fn with<T>(&self, f: impl FnOnce(&mut Counted) -> T) -> T {
        f(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Counted {
    fn add(&mut self, bytes: &[u8]) -> Result<(), OverOutput> {
        self.bytes = self.bytes.saturating_add(bytes.len() as u64);
        if self.bytes > self.limit {
            return Err(OverOutput { bytes: self.bytes, limit: self.limit });
        }
        self.kept.extend_from_slice(&bytes[bytes.len().saturating_sub(self.kept_max)..]);
        self.kept.drain(..self.kept.len().saturating_sub(self.kept_max));
        Ok(())
    }
}

impl IsTerminal for Written {
    fn is_terminal(&self) -> bool {
        false
    }
}

impl StdoutStream for Written {
    /// Never asked for: only WASI 0.2 is linked.
    fn async_stream(&self) -> Box<dyn AsyncWrite + Send + Sync> {
        Box::new(tokio::io::sink())
    }

    fn p2_stream(&self) -> Box<dyn OutputStream> {
        Box::new(self.clone())
    }
}

#[wasmtime_wasi::async_trait]
impl Pollable for Written {
    async fn ready(&mut self) {}
}

impl OutputStream for Written {
    fn write(&mut self, bytes: Bytes) -> StreamResult<()> {
        self.with(|counted| counted.add(&bytes)).map_err(|over| StreamError::Trap(over.into()))
    }

    fn flush(&mut self) -> StreamResult<()> {
        Ok(())
    }

    fn check_write(&mut self) -> StreamResult<usize> {
        Ok(CHUNK_BYTES)
    }
}

/// The handler's lines in the host's log.
pub(super) struct Log {
    name: Arc<str>,
    /// Bytes, those that were dropped included.
    used: u64,
    left: u64,
    dropped: u64,
}

/// Offers `host-log`. By hand, because the generated trait copies a message into the host before it could be cut.
pub(super) fn add_host_log(linker: &mut Linker<State>) -> wasmtime::Result<()> {
    linker.instance(HOST_LOG)?.func_wrap(
        "log",
        |mut store: StoreContextMut<'_, State>, (level, message): (Level, WasmStr)| {
            let left = usize::try_from(store.data().log.left).unwrap_or(usize::MAX);
            let (line, kept, whole) = {
                let whole = message.to_str(&store)?;
                let kept = whole.floor_char_boundary(left);
                (one_line(&whole[..kept]), kept, whole.len())
            };
            let log = &mut store.data_mut().log;
            log.dropped = log.dropped.saturating_add((whole - kept) as u64);
            log.used = log.used.saturating_add(whole as u64);
            // What comes after a line that was cut would be read as its end.
            log.left = if kept < whole { 0 } else { log.left - kept as u64 };
            log.write(level, &line);
            Ok(())
        },
    )
}

/// Control characters would let a handler write lines that look like the host's own.
fn one_line(message: &str) -> String {
    message.chars().map(|c| if c.is_control() { ' ' } else { c }).collect()
}

impl Log {
    fn write(&self, level: Level, line: &str) {
        let name = &*self.name;
        match level {
            _ if line.is_empty() => {}
            Level::Debug => tracing::debug!(target: TARGET, { handler.name = name }, "{line}"),
            Level::Info => tracing::info!(target: TARGET, { handler.name = name }, "{line}"),
            Level::Warn => tracing::warn!(target: TARGET, { handler.name = name }, "{line}"),
            Level::Error => tracing::error!(target: TARGET, { handler.name = name }, "{line}"),
        }
    }
}

impl State {
    /// What the call has used: `took`, and `answered` bytes of answer.
    pub(super) fn usage(&self, took: Duration, answered: u64, limits: &Limits) -> Usage {
        let micros = |duration: Duration| u64::try_from(duration.as_micros()).unwrap_or(u64::MAX);
        let written = self.stdout.bytes().max(self.stderr.bytes());
        Usage {
            run_time_us: Spent { used: micros(took), limit: micros(limits.run_time) },
            memory: Spent { used: self.memory.wanted_most(), limit: limits.memory },
            output: Spent { used: answered.max(written), limit: limits.output },
            log: Spent { used: self.log.used, limit: limits.log },
        }
    }

    /// Says once what was dropped.
    pub(super) fn report_dropped(&self) {
        let name = &*self.log.name;
        let (dropped, stdout) = (self.log.dropped, self.stdout.bytes());
        if dropped > 0 {
            tracing::warn!(
                target: TARGET,
                { handler.name = name, dropped_bytes = dropped },
                "dropped {dropped} bytes of log lines over the handler's limit"
            );
        }
        if stdout > 0 {
            tracing::debug!(
                target: TARGET,
                { handler.name = name, stdout_bytes = stdout },
                "dropped {stdout} bytes written to stdout"
            );
        }
    }
}
