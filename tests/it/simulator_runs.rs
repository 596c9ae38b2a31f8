//! How seeds are run: many at once, or one again.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use salvage_tests::sim::Tally;

/// The seed to run alone, if one is asked for.
pub(crate) fn replayed() -> Option<u64> {
    number("SALVAGE_SIM_SEED")
}

/// How many seeds to run, if another number is asked for.
pub(crate) fn asked_for(usual: u64) -> u64 {
    number("SALVAGE_SIM_SEEDS").unwrap_or(usual)
}

fn number(variable: &str) -> Option<u64> {
    let text = std::env::var(variable).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{variable} must be a number, not {text:?}")))
}

/// Runs seeds on every core, each on some thread, until one of them returns `false`.
fn on_every_core(count: u64, run: impl Fn(u64) -> bool + Sync) {
    let next = AtomicU64::new(0);
    let work = || {
        loop {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if seed >= count {
                return;
            }
            if !run(seed) {
                next.store(count, Ordering::Relaxed);
            }
        }
    };
    let threads = thread::available_parallelism().map_or(2, usize::from);
    thread::scope(|scope| (0..threads).for_each(|_| drop(scope.spawn(work))));
}

/// Adds up what the seeds below `count` tell.
pub(crate) fn total(count: u64, run: impl Fn(u64) -> Tally + Sync) -> Tally {
    let total = Mutex::new(Tally::default());
    on_every_core(count, |seed| {
        let tally = run(seed);
        total.lock().expect("no thread panicked with it").add(&tally);
        true
    });
    total.into_inner().expect("no thread panicked with it")
}

/// The lowest seed found for which `run` has an answer, and that.
pub(crate) fn first_seed<T: Send>(count: u64, run: impl Fn(u64) -> Option<T> + Sync) -> Option<(u64, T)> {
    let found: Mutex<Option<(u64, T)>> = Mutex::new(None);
    on_every_core(count, |seed| {
        let Some(answer) = run(seed) else { return true };
        let mut found = found.lock().expect("no thread panicked with it");
        if found.as_ref().is_none_or(|(lowest, _)| seed < *lowest) {
            *found = Some((seed, answer));
        }
        false
    });
    found.into_inner().expect("no thread panicked with it")
}
