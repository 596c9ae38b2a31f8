//! What one call of a handler may use, and who counts its memory.

use std::time::Duration;

use wasmtime::ResourceLimiter;

/// What one call of a handler may use. Each has its own outcome when it is exceeded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Time the processor may spend on it; looked at every 10 ms.
    pub run_time: Duration,
    /// Bytes over all its memories and tables. Bounds what the host holds for it, too.
    pub memory: u64,
    /// Bytes of its answer; also, each for itself, of what it writes to stdout and stderr.
    pub output: u64,
    /// Bytes of its log lines; more are dropped and counted.
    pub log: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            run_time: Duration::from_millis(100),
            memory: 64 * 1024 * 1024,
            output: 1024 * 1024,
            log: 64 * 1024,
        }
    }
}

/// Most core instances, memories and tables of one component, each. Components made of Python need about ten.
const PARTS_MAX: usize = 100;

/// A table element is a pointer.
const ELEMENT_BYTES: u64 = size_of::<usize>() as u64;

/// The call ran past [`Limits::run_time`].
#[derive(Debug, thiserror::Error)]
#[error("ran too long")]
pub(super) struct OverTime;

/// The call wanted more than [`Limits::memory`].
#[derive(Debug, thiserror::Error)]
#[error("wanted {wanted} bytes of memory, the limit is {limit}")]
pub(super) struct OverMemory {
    pub(super) wanted: u64,
    pub(super) limit: u64,
}

/// The call answered or wrote more than [`Limits::output`].
#[derive(Debug, thiserror::Error)]
#[error("wrote {bytes} bytes, the limit is {limit}")]
pub(super) struct OverOutput {
    pub(super) bytes: u64,
    pub(super) limit: u64,
}

/// Counts the bytes of a store's memories and tables and refuses what exceeds the limit.
///
/// The engine asks for each memory separately; a limit per memory would let a component have as many times the limit as
/// it has memories. Shared memories are never asked for, which is why the engine does not allow them.
#[derive(Debug)]
pub(super) struct MemoryLimiter {
    limit: u64,
    used: u64,
    /// What the last permitted growth added, should it fail after all.
    added: u64,
    /// The most that was asked for, whether it was given or not.
    wanted_most: u64,
}

impl MemoryLimiter {
    pub(super) const fn new(limit: u64) -> Self {
        Self { limit, used: 0, added: 0, wanted_most: 0 }
    }

    /// The most bytes that were asked for, whether they were given or not.
    pub(super) const fn wanted_most(&self) -> u64 {
        self.wanted_most
    }

    /// An error and not `false`: the guest would see `false` as a failed growth and trap somewhere, for some reason of its
    /// own, and the outcome would no longer say what it wanted.
    fn grow(&mut self, added: u64) -> wasmtime::Result<bool> {
        let wanted = self.used.saturating_add(added);
        self.wanted_most = self.wanted_most.max(wanted);
        if wanted > self.limit {
            return Err(OverMemory { wanted, limit: self.limit }.into());
        }
        (self.used, self.added) = (wanted, added);
        Ok(true)
    }

    fn take_back(&mut self) {
        self.used -= std::mem::take(&mut self.added);
    }
}

impl ResourceLimiter for MemoryLimiter {
    fn memory_growing(
        &mut self,
        current: usize,
        desired: usize,
        _maximum: Option<usize>,
    ) -> wasmtime::Result<bool> {
        self.grow(desired.saturating_sub(current) as u64)
    }

    fn memory_grow_failed(&mut self, _error: wasmtime::Error) -> wasmtime::Result<()> {
        self.take_back();
        Ok(())
    }

    fn table_growing(
        &mut self,
        current: usize,
        desired: usize,
        _maximum: Option<usize>,
    ) -> wasmtime::Result<bool> {
        self.grow((desired.saturating_sub(current) as u64).saturating_mul(ELEMENT_BYTES))
    }

    fn table_grow_failed(&mut self, _error: wasmtime::Error) -> wasmtime::Result<()> {
        self.take_back();
        Ok(())
    }

    fn instances(&self) -> usize {
        PARTS_MAX
    }

    fn tables(&self) -> usize {
        PARTS_MAX
    }

    fn memories(&self) -> usize {
        PARTS_MAX
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memories_and_tables_add_up() {
        let mut limiter = MemoryLimiter::new(1_000);
        assert!(limiter.memory_growing(0, 400, None).expect("within the limit"));
        assert!(limiter.memory_growing(0, 400, None).expect("within the limit"));
        let error = limiter.table_growing(0, 26, None).expect_err("208 bytes too many");
        let over = error.downcast_ref::<OverMemory>().expect("our own error");
        assert_eq!((over.wanted, over.limit), (1_008, 1_000));
        assert!(limiter.table_growing(0, 25, None).expect("exactly the limit"));
    }

    #[test]
    fn growth_that_failed_is_not_counted() {
        let mut limiter = MemoryLimiter::new(1_000);
        assert!(limiter.memory_growing(0, 900, None).expect("within the limit"));
        limiter.memory_grow_failed(wasmtime::Error::msg("no memory")).expect("never fails");
        assert!(limiter.memory_growing(0, 900, None).expect("free again"));
    }
}
