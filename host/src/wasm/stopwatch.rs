//! How long a call itself has run.
//!
//! A call is polled again and again, each time on one thread. What the processor spends on that thread during a poll is the
//! call's; what happens between two polls is not, nor is the time in which the process is stopped, the machine suspended or
//! another process run. So the time limit means the same on a busy machine as on an idle one.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use crate::clock::MachineClock;

/// The time of one call; clones show the same.
#[derive(Debug, Clone, Default)]
pub(super) struct Stopwatch(Arc<Times>);

/// In nanoseconds. Only the thread that polls writes.
#[derive(Debug, Default)]
struct Times {
    /// Of polls that have ended.
    ended: AtomicU64,
    /// The thread's clock when the poll that is under way began.
    began: AtomicU64,
}

/// A future whose polls are timed.
pub(super) struct Timed<F> {
    call: F,
    watch: Stopwatch,
}

impl Stopwatch {
    /// Times every poll of a call.
    pub(super) fn time<F: Future>(&self, call: F) -> Timed<F> {
        Timed { call, watch: self.clone() }
    }

    /// What the call has run when none of its polls is under way.
    pub(super) fn at_rest(&self) -> Duration {
        Duration::from_nanos(self.0.ended.load(Ordering::Relaxed))
    }

    /// The same from within a poll, on its thread.
    pub(super) fn running(&self) -> Duration {
        let began = self.0.began.load(Ordering::Relaxed);
        self.at_rest() + Duration::from_nanos(nanos_of_thread().saturating_sub(began))
    }
}

fn nanos_of_thread() -> u64 {
    u64::try_from(MachineClock::of_thread().as_nanos()).unwrap_or(u64::MAX)
}

impl<F: Future + Unpin> Future for Timed<F> {
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        self.watch.0.began.store(nanos_of_thread(), Ordering::Relaxed);
        let polled = Pin::new(&mut self.call).poll(context);
        let ended = u64::try_from(self.watch.running().as_nanos()).unwrap_or(u64::MAX);
        self.watch.0.ended.store(ended, Ordering::Relaxed);
        polled
    }
}

#[cfg(test)]
mod tests {
    use std::hint::black_box;
    use std::pin::pin;

    use super::*;

    /// Uses up that much of the processor.
    fn work(time: Duration) {
        let began = MachineClock::of_thread();
        while MachineClock::of_thread() - began < time {
            black_box(());
        }
    }

    #[tokio::test]
    async fn only_what_is_done_in_polls_counts() {
        let (watch, piece) = (Stopwatch::default(), Duration::from_millis(20));
        let call = pin!(async {
            work(piece);
            assert!(watch.running() >= piece);
            tokio::task::yield_now().await;
            std::thread::sleep(piece);
            tokio::time::sleep(piece).await;
            work(piece);
        });
        let mut timed = pin!(watch.time(call));
        tokio::select! {
            biased;
            () = &mut timed => {}
            // Polled in between, by somebody else.
            () = async { loop { work(piece); tokio::task::yield_now().await; } } => {}
        }
        let ran = watch.at_rest();
        assert!(ran >= 2 * piece && ran < 3 * piece, "{ran:?}");
    }
}
