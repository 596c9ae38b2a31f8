//! Property: whatever jobs do while we read, one that is there all the time is never judged absent; and reading state by
//! state, which looks just as careful, fails the same property.

use std::collections::BTreeSet;

use proptest::prelude::*;
use proptest::test_runner::{Config, TestError, TestRunner};

use crate::candidate::Candidate;
use crate::fixtures::{candidate, queue, snapshot, source};
use crate::lookup::direct;
use crate::scan::Scan;
use crate::sighting::Sighting;
use crate::snapshot::{QueueReading, Snapshot, State};
use crate::source::{IdKind, ResolvedSource};

const QUEUES: [&str; 2] = ["a", "b"];

/// What a job may do at once, as BullMQ does it: each is one script on the server, and the job is always somewhere.
#[derive(Debug, Clone, Copy)]
enum Move {
    To(State),
    /// Added to the other queue, then removed from this one.
    ToOtherQueue(State),
}

/// One job that is there all the time, and one beside it that comes and goes.
#[derive(Debug, Clone)]
struct World {
    /// Where the job is; two places while it is handed over.
    places: Vec<(usize, State)>,
    entry_id: &'static str,
    neighbour: Option<(usize, State)>,
}

impl World {
    fn apply(&mut self, step: Step) {
        match step {
            Step::Job(Move::To(state)) => {
                let (queue, _) = self.places[0];
                self.places = vec![(queue, state)];
            }
            Step::Job(Move::ToOtherQueue(state)) => {
                let (queue, old) = self.places[0];
                self.places = vec![(1 - queue, state), (queue, old)];
            }
            Step::HandOver => self.places.truncate(1),
            Step::Neighbour(place) => self.neighbour = place,
        }
    }

    fn reading(&self, index: usize) -> QueueReading {
        let own =
            self.places.iter().filter(|(queue, _)| *queue == index).map(|(_, state)| (*state, self.entry_id));
        let other =
            self.neighbour.iter().filter(|(queue, _)| *queue == index).map(|(_, state)| (*state, "99"));
        queue(&own.chain(other).collect::<Vec<_>>())
    }

    fn holds(&self, entry_id: &str) -> bool {
        entry_id == self.entry_id || self.neighbour.is_some()
    }
}

/// What happens between two reads.
#[derive(Debug, Clone, Copy)]
enum Step {
    Job(Move),
    /// Ends a move to the other queue: the old place is removed.
    HandOver,
    Neighbour(Option<(usize, State)>),
}

fn states() -> impl Strategy<Value = State> {
    proptest::sample::select(State::ALL.to_vec())
}

fn steps() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => states().prop_map(|state| Step::Job(Move::To(state))),
        2 => states().prop_map(|state| Step::Job(Move::ToOtherQueue(state))),
        2 => Just(Step::HandOver),
        1 => proptest::option::of((0_usize..2, states())).prop_map(Step::Neighbour),
    ]
}

/// A world, and what happens in it before each read.
fn histories() -> impl Strategy<Value = (World, Vec<Vec<Step>>)> {
    let world = (0_usize..2, states(), prop_oneof![Just("slide-7"), Just("42")]).prop_map(
        |(queue, state, entry_id)| World { places: vec![(queue, state)], entry_id, neighbour: None },
    );
    (world, proptest::collection::vec(proptest::collection::vec(steps(), 0..3), 16))
}

/// Reads a world as it goes on; each read lets the next steps happen first.
struct Reader {
    world: World,
    steps: std::vec::IntoIter<Vec<Step>>,
}

impl Reader {
    fn next(&mut self) -> &World {
        for step in self.steps.next().into_iter().flatten() {
            self.world.apply(step);
        }
        &self.world
    }

    /// All states of all queues at one instant.
    fn atomic(&mut self) -> Snapshot {
        let world = self.next();
        snapshot(QUEUES.iter().enumerate().map(|(index, name)| (*name, world.reading(index))).collect())
    }

    /// The same keys, one after the other, `active` last.
    fn one_by_one(&mut self) -> Snapshot {
        let mut readings = [queue(&[]), queue(&[])];
        for state in State::ALL {
            for (index, reading) in readings.iter_mut().enumerate() {
                let ids = self.next().reading(index).ids.remove(&state).unwrap_or_default();
                reading.ids.insert(state, ids);
            }
        }
        snapshot(QUEUES.into_iter().zip(readings).collect())
    }

    fn judge(&mut self, snapshot: &Snapshot) -> Sighting {
        let sources: Vec<ResolvedSource> =
            vec![source("slides", IdKind::Text, &[("a", "slide-{id}"), ("b", "slide-{id}")])];
        let candidates: Vec<Candidate> = vec![candidate(0, "7")];
        let accepted = BTreeSet::new();
        let sightings = direct(&sources, &candidates, snapshot);
        let mut scan = Scan::new(&sources, &candidates, sightings, &accepted);
        for name in scan.queues() {
            for entry in scan.entries(&name, snapshot, &std::collections::HashSet::new()) {
                let is_there = self.next().holds(&entry.id);
                let payload = if entry.id == "99" { r#"{"jobId":"other"}"# } else { r#"{"jobId":"7"}"# };
                if scan.read(&entry, is_there.then_some(payload)) {
                    scan.looked_again(&entry, self.next().holds(&entry.id));
                }
            }
        }
        scan.finish(snapshot, &BTreeSet::new()).sightings.remove(0)
    }
}

fn check(history: (World, Vec<Vec<Step>>), read: fn(&mut Reader) -> Snapshot) -> Result<(), TestCaseError> {
    let (world, steps) = history;
    let mut reader = Reader { world, steps: steps.into_iter() };
    let snapshot = read(&mut reader);
    let sighting = reader.judge(&snapshot);
    prop_assert!(!matches!(sighting, Sighting::Absent { .. }), "a job that was there was judged absent");
    Ok(())
}

proptest! {
    #![proptest_config(Config::with_cases(2_000))]

    #[test]
    fn a_job_that_is_there_all_the_time_is_never_absent(history in histories()) {
        check(history, Reader::atomic)?;
    }
}

/// The negative twin: without it, the property above might hold for want of anything that could break it.
#[test]
fn reading_state_by_state_judges_present_jobs_absent() {
    let mut runner = TestRunner::deterministic();
    let broken = runner.run(&histories(), |history| check(history, Reader::one_by_one));
    assert!(matches!(broken, Err(TestError::Fail(..))), "expected a false absence, found {broken:?}");
}
