//! A model of Redis as BullMQ and the host use it: each queue's lists, hashes, finished entries and locks, the host's key
//! in each, and the lease.

use std::collections::BTreeMap;
use std::time::Duration;

use salvage_core::act::Place;
use salvage_core::payload::Payload;
use salvage_core::sighting::Residue;
use salvage_core::snapshot::{Flaw, QueueReading, Server, Stalled, State};

/// The prefix of every key.
pub(super) const PREFIX: &str = "bull";

/// The name of every job of ours.
pub(super) const JOB_NAME: &str = "work";

/// A retained entry or two is all that a look asks for.
const RETAINED_MAX: usize = 5;

/// An id in a list or sorted set.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Listed {
    pub(super) id: String,
    /// Whose entry it is in truth, by index; `None` if it is nobody's of ours.
    pub(super) job: Option<usize>,
    /// When a delayed entry is due.
    pub(super) due: Duration,
}

/// An entry's hash.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Hash {
    pub(super) data: String,
    pub(super) job: Option<usize>,
    /// It has a parent or children of a flow.
    pub(super) is_flow: bool,
    /// A scheduler made it.
    pub(super) is_scheduled: bool,
}

impl Hash {
    /// What the host reads of it. Entries that are nobody's of ours have a name of their own.
    pub(super) fn payload(&self) -> Payload {
        Payload::named(if self.job.is_some() { JOB_NAME } else { "ping" }, &self.data)
    }
}

/// A retained entry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Finished {
    pub(super) at_ms: u64,
    pub(super) is_failed: bool,
}

/// One queue.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Queue {
    /// In the order of [`State::ALL`].
    pub(super) states: [Vec<Listed>; 6],
    pub(super) hashes: BTreeMap<String, Hash>,
    pub(super) finished: BTreeMap<String, Finished>,
    pub(super) id_counter: Option<u64>,
    pub(super) has_meta: bool,
    pub(super) is_paused: bool,
    /// By entry: when the lock runs out.
    pub(super) locks: BTreeMap<String, Duration>,
    /// By scope.
    pub(super) nonces: BTreeMap<String, String>,
    pub(super) generations: BTreeMap<String, u64>,
    /// How often a host of each scope marked it: what the simulation knows of a dump's age.
    pub(super) marks: BTreeMap<String, u32>,
}

/// A position in [`Queue::states`].
pub(super) const fn slot(state: State) -> usize {
    match state {
        State::Waiting => 0,
        State::WaitingChildren => 1,
        State::Delayed => 2,
        State::Paused => 3,
        State::Prioritized => 4,
        State::Active => 5,
    }
}

impl Queue {
    /// A queue that is in use and empty.
    pub(super) fn used(id_counter: u64) -> Self {
        Self { id_counter: Some(id_counter), has_meta: true, ..Self::default() }
    }

    pub(super) fn find(&self, id: &str) -> Option<State> {
        State::ALL.into_iter().find(|state| self.states[slot(*state)].iter().any(|listed| listed.id == id))
    }

    /// Every listed entry.
    pub(super) fn listed(&self) -> impl Iterator<Item = (State, &Listed)> {
        State::ALL.into_iter().flat_map(|state| self.states[slot(state)].iter().map(move |it| (state, it)))
    }

    pub(super) fn list(&mut self, state: State, listed: Listed) {
        self.states[slot(state)].push(listed);
    }

    /// Takes an id out of whatever state it is in.
    pub(super) fn unlist(&mut self, id: &str) -> Option<Listed> {
        self.states.iter_mut().find_map(|listed| {
            let position = listed.iter().position(|it| it.id == id)?;
            Some(listed.remove(position))
        })
    }

    /// `BullMQ`'s add: with an id whose hash exists it does nothing. Returns whether it added anything.
    pub(super) fn add(&mut self, state: State, listed: Listed, data: String) -> bool {
        self.has_meta = true;
        *self.id_counter.get_or_insert(0) += 1;
        if self.hashes.contains_key(&listed.id) {
            return false;
        }
        let hash = Hash { data, job: listed.job, is_flow: false, is_scheduled: false };
        self.hashes.insert(listed.id.clone(), hash);
        self.list(state, listed);
        true
    }

    pub(super) fn is_locked(&self, id: &str, now: Duration) -> bool {
        self.locks.get(id).is_some_and(|until| *until > now)
    }

    /// What a snapshot says of it, ids only if they are wanted.
    pub(super) fn reading(&self, scope: &str, wants_ids: bool) -> QueueReading {
        let mut reading = QueueReading {
            id_counter: self.id_counter,
            has_meta: self.has_meta,
            is_paused: self.is_paused,
            nonce: self.nonces.get(scope).cloned(),
            retained: self.finished.keys().take(RETAINED_MAX).cloned().collect(),
            ..QueueReading::default()
        };
        for state in State::ALL {
            let listed = &self.states[slot(state)];
            reading.lengths.insert(state, listed.len());
            if wants_ids {
                reading.ids.insert(state, listed.iter().map(|it| it.id.clone()).collect());
            }
        }
        if !reading.has_trace() {
            reading.flaws.push(Flaw::NoTrace { prefix: PREFIX.to_owned() });
        }
        reading
    }

    fn residue(&self, id: &str) -> Residue {
        match self.finished.get(id) {
            Some(Finished { at_ms, is_failed: false }) => Residue::Completed { finished_ms: *at_ms },
            Some(Finished { at_ms, is_failed: true }) => {
                Residue::Failed { finished_ms: *at_ms, reason: None }
            }
            None if self.hashes.contains_key(id) => Residue::HashOnly,
            None => Residue::None,
        }
    }

    pub(super) fn stalled(&self, active: &[String], now: Duration) -> Vec<Stalled> {
        let is_active = |id: &&String| self.states[slot(State::Active)].iter().any(|it| it.id == **id);
        let lost = active.iter().filter(is_active).filter(|id| !self.is_locked(id, now));
        lost.map(|id| Stalled { entry_id: id.clone(), taken_ms: None }).collect()
    }
}

/// Who has the right to run, and until when.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct LeaseKey {
    pub(super) owner: String,
    pub(super) until: Duration,
}

/// One server.
#[derive(Debug, Clone)]
pub(super) struct SimRedis {
    pub(super) queues: BTreeMap<String, Queue>,
    /// By scope.
    pub(super) leases: BTreeMap<String, LeaseKey>,
    pub(super) copies: BTreeMap<String, Vec<String>>,
    pub(super) run_id: u64,
}

impl SimRedis {
    pub(super) const fn new(queues: BTreeMap<String, Queue>) -> Self {
        Self { queues, leases: BTreeMap::new(), copies: BTreeMap::new(), run_id: 1 }
    }

    pub(super) fn expire(&mut self, now: Duration) {
        self.leases.retain(|_, lease| lease.until > now);
    }

    /// The queue of that name; one that never was is empty.
    pub(super) fn queue(&mut self, name: &str) -> &mut Queue {
        if !self.queues.contains_key(name) {
            self.queues.insert(name.to_owned(), Queue::default());
        }
        self.queues.get_mut(name).expect("just made")
    }

    pub(super) fn server(&self) -> Server {
        Server {
            role: "master".to_owned(),
            loading: false,
            run_id: self.run_id.to_string(),
            replid: self.run_id.to_string(),
            evicted_keys: 0,
            maxmemory_policy: "noeviction".to_owned(),
        }
    }

    /// What a job left behind, over all its places.
    pub(super) fn residue(&mut self, places: &[Place]) -> Residue {
        let mut residue = Residue::None;
        for place in places {
            let here = self.queue(&place.queue).residue(&place.entry_id);
            let weight = |residue: &Residue| (residue.finished_ms(), *residue != Residue::None);
            if weight(&here) > weight(&residue) {
                residue = here;
            }
        }
        residue
    }
}
