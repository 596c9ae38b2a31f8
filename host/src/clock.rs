//! Time and randomness of the machine: the only place that asks for either.

use std::time::Duration;

use crate::ports::Clock;

/// The machine's clock and random source.
#[derive(Debug, Clone, Copy, Default)]
pub struct MachineClock;

impl MachineClock {
    /// How long the processor has run this thread. Stands still while the thread waits, while others run in its place, and
    /// while the process or the machine is stopped.
    #[must_use]
    pub fn of_thread() -> Duration {
        read(libc::CLOCK_THREAD_CPUTIME_ID)
    }
}

fn read(clock: libc::clockid_t) -> Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is a valid, writable timespec for the length of the call.
    let status = unsafe { libc::clock_gettime(clock, &raw mut time) };
    assert_eq!(status, 0, "the clocks asked for exist since Linux 2.6.39");
    let seconds = u64::try_from(time.tv_sec).expect("neither clock is ever negative");
    Duration::new(seconds, u32::try_from(time.tv_nsec).expect("nanoseconds are below a billion"))
}

impl Clock for MachineClock {
    fn now(&self) -> Duration {
        read(libc::CLOCK_BOOTTIME)
    }

    /// On `CLOCK_MONOTONIC`, which stands still in suspend.
    async fn sleep(&self, duration: Duration) {
        tokio::time::sleep(duration).await;
    }

    fn token(&self) -> String {
        format!("{:032x}", rand::random::<u128>())
    }

    fn fraction(&self) -> f64 {
        rand::random::<f64>()
    }
}
