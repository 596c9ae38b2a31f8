//! Thousands of histories in which everything goes wrong that can: no promise is broken. See `salvage_tests::sim`.

use salvage_tests::sim::{self, Tally};

use crate::simulator_runs::{asked_for, first_seed, replayed, total};

/// Histories of one test run.
const SEEDS: u64 = 10_000;

#[test]
fn no_history_breaks_a_promise() {
    if let Some(seed) = replayed() {
        let ending = sim::run(seed, None, true);
        ending.story.iter().for_each(|line| println!("{line}"));
        assert_eq!(ending.violation, None, "seed {seed}");
        return;
    }
    let broken = first_seed(asked_for(SEEDS), |seed| sim::run(seed, None, false).violation);
    if let Some((seed, violation)) = broken {
        panic!("seed {seed}: {violation}\nSALVAGE_SIM_SEED={seed} replays it and prints its story");
    }
}

/// Histories in which nothing happens would keep every promise.
#[test]
fn histories_are_eventful() {
    let tally = total(500, |seed| sim::run(seed, None, false).tally);
    println!("{tally:#?}");
    let Tally { passes, requeued, failed, parents, refused, superseded, .. } = tally;
    let Tally { crashes, freezes, faults, disasters, moves, accepts, fenced, .. } = tally;
    let of_passes = [passes, requeued, failed, parents, refused, superseded, accepts, fenced];
    let of_dangers = [crashes, freezes, faults, disasters, moves];
    for count in of_passes.into_iter().chain(of_dangers) {
        assert!(count > 50, "{tally:#?}");
    }
}

#[test]
fn a_seed_tells_the_same_story_again() {
    for seed in 0..20 {
        let [one, other] = [(); 2].map(|()| sim::run(seed, None, true));
        assert_eq!(one.story, other.story, "seed {seed}");
        assert!(one.story.len() > 10, "seed {seed} tells nothing");
    }
}
