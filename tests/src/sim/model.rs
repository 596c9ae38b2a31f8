//! The models without a history: a world at rest that a test arranges, for the contracts that models and real adapters
//! both keep (`it/contract_*.rs`).

use std::time::Duration;

use salvage_core::snapshot::State;

use super::clock::wall_ms;
use super::domains::QUEUES;
pub use super::host::SimHost;
use super::postgres::{Holder, Row, Target};
use super::redis::{Finished, Hash, Listed, Queue};
use super::simulation::Simulation;
use super::world::World;

/// Long enough for a whole test.
const FOR_LONG: Duration = Duration::from_secs(3_600);

/// The ports on empty models, and what a test may do to these.
pub struct Model {
    /// The ports.
    pub ports: SimHost,
}

/// Runs a test on models with empty queues that are in use, one deck that is GENERATING, and no job.
pub fn on_model<T>(test: impl AsyncFnOnce(&Model) -> T) -> T {
    let mut world = World::new(0, None);
    world.profile.calm_down();
    world.is_calm = true;
    world.jobs.clear();
    world.postgres.tables.iter_mut().for_each(std::collections::BTreeMap::clear);
    world.postgres.decks.truncate(1);
    world.postgres.decks[0].as_mut().expect("made with the world").status = ["GENERATING", "NONE"];
    for name in QUEUES {
        *world.redis.queue(name) = Queue::used(7);
    }
    let mut simulation = Simulation::new(world);
    let model = Model { ports: simulation.visitor() };
    simulation.finish(test(&model))
}

impl Model {
    fn queue<T>(&self, name: &str, change: impl FnOnce(&mut Queue) -> T) -> T {
        change(self.ports.world.borrow_mut().redis.queue(name))
    }

    /// Lists an entry, without a hash.
    pub fn list(&self, queue: &str, state: State, entry_id: &str) {
        let listed = Listed { id: entry_id.to_owned(), job: None, due: Duration::ZERO };
        self.queue(queue, |queue| queue.list(state, listed));
    }

    /// Leaves an entry's hash, perhaps of a flow or of a scheduler.
    pub fn leave_hash(&self, queue: &str, entry_id: &str, is_flow: bool, is_scheduled: bool) {
        let hash = Hash { data: "{}".to_owned(), job: None, is_flow, is_scheduled };
        self.queue(queue, |queue| queue.hashes.insert(entry_id.to_owned(), hash));
    }

    /// Leaves a finished entry.
    pub fn leave_finished(&self, queue: &str, entry_id: &str, is_failed: bool) {
        let at_ms = wall_ms(self.ports.world.borrow().now());
        self.leave_hash(queue, entry_id, false, false);
        self.queue(queue, |queue| queue.finished.insert(entry_id.to_owned(), Finished { at_ms, is_failed }));
    }

    /// A worker holds an entry's lock.
    pub fn lock_entry(&self, queue: &str, entry_id: &str) {
        let until = self.ports.world.borrow().now() + FOR_LONG;
        self.queue(queue, |queue| queue.locks.insert(entry_id.to_owned(), until));
    }

    /// Pauses a queue.
    pub fn pause(&self, queue: &str) {
        self.queue(queue, |queue| queue.is_paused = true);
    }

    /// Takes a queue's `meta` away.
    pub fn drop_meta(&self, queue: &str) {
        self.queue(queue, |queue| queue.has_meta = false);
    }

    /// Writes the host's own key.
    pub fn mark(&self, queue: &str, generation: Option<u64>, nonce: Option<&str>) {
        self.queue(queue, |queue| {
            queue.nonces.extend(nonce.map(|nonce| ("global".to_owned(), nonce.to_owned())));
            queue.generations.extend(generation.map(|generation| ("global".to_owned(), generation)));
        });
    }

    /// A generation of the one deck, two hours old and PROCESSING.
    pub fn insert_generation(&self, id: &str) {
        let mut world = self.ports.world.borrow_mut();
        let row = Row {
            deck: 0,
            job_type: "GENERATION",
            status: "PROCESSING",
            progress: 40,
            error: None,
            updated: world.wall() - Duration::from_secs(7_200),
            written: Duration::ZERO,
            xmin: world.postgres.xid(),
        };
        world.postgres.tables[0].insert(id.to_owned(), row);
    }

    /// Writes a generation's row as another writer would.
    pub fn write_row(&self, id: &str, status: Option<&'static str>) {
        let mut world = self.ports.world.borrow_mut();
        let xmin = world.postgres.xid();
        let row = world.postgres.tables[0].get_mut(id).expect("the row is there");
        row.xmin = xmin;
        row.progress += 1;
        row.status = status.unwrap_or(row.status);
    }

    /// Deletes a generation's row.
    pub fn delete_row(&self, id: &str) {
        self.ports.world.borrow_mut().postgres.tables[0].remove(id);
    }

    /// Somebody's transaction holds a generation's row.
    pub fn lock_row(&self, id: &str) {
        let mut world = self.ports.world.borrow_mut();
        let until = world.now() + FOR_LONG;
        world.postgres.locks.insert(Target::Job(0, id.to_owned()), Holder::Application(until));
    }

    /// Somebody's transaction holds the deck.
    pub fn lock_deck(&self) {
        let mut world = self.ports.world.borrow_mut();
        let until = world.now() + FOR_LONG;
        world.postgres.locks.insert(Target::Deck(0), Holder::Application(until));
    }

    /// Changes the deck's status.
    pub fn write_deck(&self, status: &'static str) {
        let mut world = self.ports.world.borrow_mut();
        world.postgres.decks[0].as_mut().expect("the deck is there").status[0] = status;
    }

    /// A generation's status and progress; `None` if its row is gone.
    pub fn row(&self, id: &str) -> Option<(String, u32)> {
        let world = self.ports.world.borrow();
        world.postgres.row(0, id).map(|row| (row.status.to_owned(), row.progress))
    }

    /// The deck's status.
    pub fn deck(&self) -> String {
        let world = self.ports.world.borrow();
        world.postgres.decks[0].as_ref().expect("the deck is there").status[0].to_owned()
    }
}
