//! Property: whatever jobs do while we read, one that is there all the time is never judged absent; and reading state by
//! state, which looks just as careful, fails the same property.
//!
//! What came at one instant is read a page at a time, twice, and jobs go on moving between the pages, as they do while the
//! host pages a copy. Only what is read does not move.

use std::cell::RefCell;

use proptest::prelude::*;
use proptest::test_runner::{Config, TestError, TestRunner};

use crate::candidate::Candidate;
use crate::fixtures::{candidate, queue, snapshot, source};
use crate::lookup::Lookup;
use crate::naming::Entry;
use crate::payload::Payload;
use crate::scan::{Accepted, Scan};
use crate::sighting::Sighting;
use crate::snapshot::{IdsPage, QueueReading, Snapshot, State};
use crate::source::{IdKind, ResolvedSource};

const QUEUES: [&str; 2] = ["a", "b"];

/// An id under an older rule: only the payload tells whose it is.
const OLD_ID: &str = "42";

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

    /// Whether the entry's hash is there: it lies in the queue, so it goes where its entry goes.
    fn holds(&self, entry: &Entry) -> bool {
        let is_here = |queue: usize| *QUEUES[queue] == *entry.queue;
        if entry.id == self.entry_id {
            self.places.iter().any(|(queue, _)| is_here(*queue))
        } else {
            self.neighbour.is_some_and(|(queue, _)| is_here(queue))
        }
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

/// Between which queues jobs move.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Rooms {
    /// Whatever their id.
    Both,
    /// A job under an older id stays in its queue. One that changes queue between the snapshot and its payload counts as
    /// departed: that is what the second look is for, and this property is about one look.
    OneForOldIds,
}

/// A world, and what happens in it before each read.
fn histories(rooms: Rooms) -> impl Strategy<Value = (World, Vec<Vec<Step>>)> {
    let world = (0_usize..2, states(), prop_oneof![Just("slide-7"), Just(OLD_ID)]).prop_map(
        |(queue, state, entry_id)| World { places: vec![(queue, state)], entry_id, neighbour: None },
    );
    let steps = proptest::collection::vec(proptest::collection::vec(steps(), 0..3), 24);
    (world, steps).prop_map(move |(world, mut steps)| {
        if rooms == Rooms::OneForOldIds && world.entry_id == OLD_ID {
            let stays = |step: &Step| !matches!(step, Step::Job(Move::ToOtherQueue(_)));
            steps.iter_mut().for_each(|steps| steps.retain(stays));
        }
        (world, steps)
    })
}

/// Reads a world as it goes on; each read lets the next steps happen first.
struct Reader {
    world: World,
    steps: std::vec::IntoIter<Vec<Step>>,
}

impl Reader {
    fn new((world, steps): (World, Vec<Vec<Step>>)) -> Self {
        Self { world, steps: steps.into_iter() }
    }

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

    /// The payloads first, of what was there before; then the snapshot that decides who is there.
    fn judge_with_early_payloads(&mut self) -> Sighting {
        let early = self.atomic();
        let was_there = |entry: &Entry| early.queues[&*entry.queue].entries().any(|(_, id)| id == entry.id);
        let late = self.atomic();
        judge(&late, || {}, |entry| Some(if was_there(entry) { payload(entry) } else { FOREIGN }), |_| true)
    }
}

/// The host's own procedure over a snapshot: look up by id, then by the payloads that `read` finds, and look again at an
/// entry that has lost its own. `turn` is called before each page of ids.
fn judge<'p>(
    snapshot: &Snapshot,
    mut turn: impl FnMut(),
    mut read: impl FnMut(&Entry) -> Option<&'p str>,
    mut is_listed: impl FnMut(&Entry) -> bool,
) -> Sighting {
    let rules = [("a", "slide-{id}"), ("b", "slide-{id}")];
    let sources: Vec<ResolvedSource> = vec![source("slides", IdKind::Text, &rules)];
    let candidates: Vec<Candidate> = vec![candidate(0, "7")];
    let accepted = Accepted::default();
    let mut lookup = Lookup::new(&sources, &candidates, 0);
    for (name, state, page) in pages(snapshot, |_| true) {
        turn();
        lookup.see(name, state, &page);
    }
    let mut scan = Scan::new(lookup, &accepted);
    let (wanted, naming) = (scan.queues(), scan.naming());
    for (name, state, page) in pages(snapshot, |name| wanted.contains(name)) {
        turn();
        let is_clear = naming.named_by_rule(name, page.ids.iter()).is_clear;
        for (id, _) in page.ids.iter().zip(is_clear).filter(|(_, is_clear)| !is_clear) {
            let entry = Entry { queue: name.into(), state, id: id.clone() };
            let payload =
                read(&entry).map(|data| Payload::named(if data == FOREIGN { "ping" } else { "work" }, data));
            if scan.read(&entry, &payload.unwrap_or_default()) {
                scan.looked_again(&entry, is_listed(&entry));
            }
        }
    }
    scan.finish(snapshot).sightings.remove(0)
}

/// Every id of these queues on a page of its own, `active` last in each.
fn pages(snapshot: &Snapshot, is_wanted: impl Fn(&str) -> bool) -> Vec<(&str, State, IdsPage<'static>)> {
    let page = |id: &str| IdsPage { ids: vec![id.to_owned()].into(), flaw: None };
    let queues = snapshot.queues.iter().filter(|(name, _)| is_wanted(name));
    queues
        .flat_map(|(name, reading)| {
            reading.entries().map(move |(state, id)| (name.as_str(), state, page(id)))
        })
        .collect()
}

/// The payload of somebody else's entry.
const FOREIGN: &str = "null";

fn payload(entry: &Entry) -> &'static str {
    if entry.id == "99" { r#"{"jobId":"other"}"# } else { r#"{"jobId":"7"}"# }
}

fn check(is_absent: bool) -> Result<(), TestCaseError> {
    prop_assert!(!is_absent, "a job that was there was judged absent");
    Ok(())
}

/// A snapshot as `look` takes it, then payloads while the world goes on.
fn judged_absent(history: (World, Vec<Vec<Step>>), look: fn(&mut Reader) -> Snapshot) -> bool {
    let mut reader = Reader::new(history);
    let snapshot = look(&mut reader);
    let reader = RefCell::new(reader);
    let holds = |entry: &Entry| reader.borrow_mut().next().holds(entry);
    let turn = || {
        reader.borrow_mut().next();
    };
    let sighting = judge(&snapshot, turn, |entry| holds(entry).then(|| payload(entry)), holds);
    matches!(sighting, Sighting::Absent { .. })
}

proptest! {
    #![proptest_config(Config::with_cases(2_000))]

    #[test]
    fn a_job_that_is_there_all_the_time_is_never_absent(history in histories(Rooms::OneForOldIds)) {
        check(judged_absent(history, Reader::atomic))?;
    }
}

/// The negative twins: without them, the property might hold for want of anything that could break it.
fn assert_broken(rooms: Rooms, is_absent: fn((World, Vec<Vec<Step>>)) -> bool) {
    let mut runner = TestRunner::deterministic();
    let broken = runner.run(&histories(rooms), |history| check(is_absent(history)));
    assert!(matches!(broken, Err(TestError::Fail(..))), "expected a false absence, found {broken:?}");
}

#[test]
fn reading_state_by_state_judges_present_jobs_absent() {
    assert_broken(Rooms::OneForOldIds, |history| judged_absent(history, Reader::one_by_one));
}

#[test]
fn reading_payloads_before_the_snapshot_judges_present_jobs_absent() {
    assert_broken(Rooms::Both, |history| {
        matches!(Reader::new(history).judge_with_early_payloads(), Sighting::Absent { .. })
    });
}
