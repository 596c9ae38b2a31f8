//! The application: producers, workers and admins who share both stores with the hosts.
//!
//! Its moves are small, each as atomic as the real one, and between the halves of what takes two anything may happen. What
//! it hands over (a row that is written after the queue, an entry that is removed and added again) it finishes within
//! two thirds of the settling time, and no job is handed over twice within a lease: a host sees two instants and can be
//! fooled at both by what only ever rests between them. That limit is Salvage's own (`pass.settle`).

use std::time::Duration;

use salvage_core::snapshot::State;

use super::domains::{PARENT_BUSY, QUEUES, SOURCES};
use super::postgres::{Holder, IDLE_MAX, Target};
use super::redis::{Listed, slot};
use super::scheduler::Deed;
use super::world::World;

/// Jobs of one world.
const JOBS_MAX: usize = 7;

/// No pass of a host that does not freeze for longer than its lease takes longer.
const PASS_MAX: Duration = Duration::from_secs(900);

/// How often a blocked writer looks again.
const LOCK_POLL: Duration = Duration::from_millis(50);

/// No application waits longer than this for a lock of ours, whoever it has to queue behind.
const WAIT_MAX: Duration = IDLE_MAX.saturating_mul(3);

/// What a writer makes of a job's row.
type RowWrite = Box<dyn FnOnce(&mut World, usize)>;

/// What the application may do next; the more often it stands here, the more often it is chosen.
const MOVES: [fn(&mut World, usize); 33] = [
    World::take,
    World::take,
    World::take,
    World::begin_run,
    World::begin_run,
    World::progress,
    World::finish_row_first,
    World::finish_row_first,
    World::finish_queue_first,
    World::finish_queue_first,
    World::retry_later,
    World::retry_later,
    World::fail_for_good,
    World::die,
    World::die,
    World::notice_stalled,
    World::remove_entry,
    World::remove_entry,
    World::remove_entry,
    World::strip_entry,
    World::remove_and_add,
    World::remove_and_add,
    World::change_state,
    World::change_state,
    World::change_state,
    World::change_queue,
    World::change_queue,
    World::retry_failed,
    World::retry_by_user,
    World::lock_something,
    World::change_deck,
    World::change_deck,
    World::do_something_rare,
];

/// The same where entries are on the move all the time and little else happens.
const TRAFFIC: [fn(&mut World, usize); 3] = [World::change_state, World::change_queue, World::change_queue];

impl World {
    /// One move of somebody.
    pub(super) fn make_a_move(&mut self) {
        self.tally.moves += 1;
        if self.random.permille(self.profile.disaster) {
            return self.disaster();
        }
        if self.jobs.len() < JOBS_MAX && self.random.permille(if self.profile.has_traffic { 5 } else { 60 }) {
            return self.produce();
        }
        let job = self.random.below(self.jobs.len());
        let is_traffic = self.profile.has_traffic && self.random.permille(950);
        let chosen = if is_traffic { self.random.pick(&TRAFFIC) } else { self.random.pick(&MOVES) };
        chosen(self, job);
        self.note_presence();
    }

    /// A new job of a deck, in one transaction with the deck's own row.
    fn produce(&mut self) {
        let deck = self.random.below(self.postgres.decks.len());
        let since = self.now();
        self.when_free(
            Target::Deck(deck),
            since,
            Box::new(move |world| {
                let job = world.new_job(deck);
                let id = world.jobs[job].id.clone();
                world.tell(|| format!("application: job {id} is new"));
                let gap = world.random.ms(0..300);
                let states = [State::Waiting, State::Waiting, State::Delayed, State::Prioritized];
                let state = world.random.pick(&states);
                world.deed_after(gap, Box::new(move |world| world.add_entry(job, state)));
            }),
        );
    }

    /// Where the job's entries are: queue, state, entry id.
    pub(super) fn entries(&self, job: usize) -> Vec<(usize, State, String)> {
        let mut found = vec![];
        for (index, name) in QUEUES.iter().enumerate() {
            let Some(queue) = self.redis.queues.get(*name) else { continue };
            let own = queue.listed().filter(|(_, listed)| listed.job == Some(job));
            found.extend(own.map(|(state, listed)| (index, state, listed.id.clone())));
        }
        found
    }

    /// An entry that no worker has.
    pub(super) fn idle_entry(&mut self, job: usize) -> Option<(usize, State, String)> {
        let mut entries = self.entries(job);
        entries.retain(|(_, state, _)| *state != State::Active);
        (!entries.is_empty()).then(|| entries.swap_remove(self.random.below(entries.len())))
    }

    /// An admin removes the entry, or an eviction, or whatever it was. A worker that has it runs on.
    fn remove_entry(&mut self, job: usize) {
        for (index, state, id) in self.entries(job) {
            let queue = self.redis.queue(QUEUES[index]);
            queue.unlist(&id);
            queue.hashes.remove(&id);
            queue.locks.remove(&id);
            self.tell(|| format!("admin: removed {id} from {state} of {}", QUEUES[index]));
        }
    }

    /// The same, but the hash stays.
    fn strip_entry(&mut self, job: usize) {
        for (index, state, id) in self.entries(job) {
            if state != State::Active {
                self.redis.queue(QUEUES[index]).unlist(&id);
                self.tell(|| format!("admin: {id} is in no state of {} any more", QUEUES[index]));
            }
        }
    }

    /// Removes the entry and adds it again in a moment.
    fn remove_and_add(&mut self, job: usize) {
        let is_idle = self.jobs[job].run.is_none() && self.idle_entry(job).is_some();
        if !is_idle || !self.may_hand_over(job) {
            return;
        }
        self.remove_entry(job);
        let state = self.random.pick(&[State::Waiting, State::Delayed, State::Prioritized]);
        self.hand_over(
            job,
            Box::new(move |world| {
                world.jobs[job].handed_over_since = None;
                world.add_entry(job, state);
                let id = world.jobs[job].entry.clone();
                world.tell(|| format!("admin: added {id} again"));
            }),
        );
    }

    fn change_state(&mut self, job: usize) {
        let Some((index, from, id)) = self.idle_entry(job) else { return };
        let to = self.random.pick(&[State::Waiting, State::Delayed, State::Prioritized]);
        let due = self.now() + self.random.ms(1_000..600_000);
        let queue = self.redis.queue(QUEUES[index]);
        let to = if queue.is_paused && to == State::Waiting { State::Paused } else { to };
        let listed = queue.unlist(&id).expect("just found");
        queue.list(to, Listed { due, ..listed });
        self.tell(|| format!("application: {id} went from {from} to {to}"));
    }

    /// Adds the entry to the other queue and then removes it here. Under an older id that counts as handing over.
    fn change_queue(&mut self, job: usize) {
        let is_legacy = self.jobs[job].is_legacy;
        let Some((index, state, id)) = self.idle_entry(job) else { return };
        if is_legacy && !self.may_hand_over(job) {
            return;
        }
        let now = self.now();
        let queue = self.redis.queue(QUEUES[index]);
        let listed = queue.states[slot(state)].iter().find(|it| it.id == id).cloned().expect("just found");
        let Some(hash) = queue.hashes.get(&id).cloned() else { return };
        let other = self.redis.queue(QUEUES[1 - index]);
        if other.find(&id).is_some() || other.hashes.contains_key(&id) {
            return;
        }
        other.add(State::Waiting, Listed { due: now, ..listed }, hash.data);
        self.tell(|| format!("application: {id} is in {} too", QUEUES[1 - index]));
        let remove: Deed = Box::new(move |world| world.leave_old_queue(job, index, &id));
        if is_legacy {
            self.jobs[job].next_handover = now + self.handover_pause();
            self.jobs[job].moved_at = Some(now);
            remove(self);
        } else {
            let gap = if self.random.permille(700) { Duration::ZERO } else { self.random.ms(0..2_000) };
            if gap.is_zero() { remove(self) } else { self.deed_after(gap, remove) }
        }
    }

    fn leave_old_queue(&mut self, job: usize, index: usize, id: &str) {
        let is_elsewhere = self.entries(job).iter().any(|(queue, ..)| *queue != index);
        let queue = self.redis.queue(QUEUES[index]);
        if is_elsewhere && queue.find(id).is_some_and(|state| state != State::Active) {
            queue.unlist(id);
            queue.hashes.remove(id);
            self.tell(|| format!("application: {id} has left {}", QUEUES[index]));
        }
        self.note_presence();
    }

    /// Somebody retries a failed entry in the queue.
    fn retry_failed(&mut self, job: usize) {
        let id = self.jobs[job].entry.clone();
        for name in QUEUES {
            let queue = self.redis.queue(name);
            if !queue.finished.get(&id).is_some_and(|finished| finished.is_failed) {
                continue;
            }
            queue.finished.remove(&id);
            let state = if queue.is_paused { State::Paused } else { State::Waiting };
            queue.list(state, Listed { id: id.clone(), job: Some(job), due: Duration::ZERO });
            self.tell(|| format!("admin: retried {id}"));
            self.ask_again(job, &["FAILED", "PROCESSING", "QUEUED"]);
            return;
        }
    }

    /// A user asks for the job again: the row first, then a plain add, which may do nothing.
    fn retry_by_user(&mut self, job: usize) {
        let of = &self.jobs[job];
        let is_over = self.postgres.row(of.source, &of.id).is_some_and(|row| !row.is_live());
        if is_over && of.run.is_none() && of.handed_over_since.is_none() && self.may_hand_over(job) {
            self.ask_again(job, &["FAILED", "COMPLETED", "CANCELLED"]);
            let gap = self.random.ms(0..1_000);
            self.deed_after(gap, Box::new(move |world| world.add_entry(job, State::Waiting)));
        }
    }

    /// Makes a row QUEUED again, in one transaction with its deck's.
    fn ask_again(&mut self, job: usize, from: &'static [&'static str]) {
        let of = &self.jobs[job];
        let Some(deck) = self.postgres.row(of.source, &of.id).map(|row| row.deck) else { return };
        let since = self.now();
        let target = Target::Deck(deck);
        self.when_free(target, since, Box::new(move |world| world.write_status(job, from, "QUEUED")));
    }

    /// Somebody's transaction holds a row for a while.
    fn lock_something(&mut self, job: usize) {
        let of = &self.jobs[job];
        let Some(row) = self.postgres.row(of.source, &of.id) else { return };
        let targets = [Target::Job(of.source, of.id.clone()), Target::Deck(row.deck)];
        let target = targets[self.random.below(2)].clone();
        let until = self.now() + self.random.ms(50..3_000);
        if !self.postgres.is_locked(&target) {
            self.postgres.locks.insert(target, Holder::Application(until));
        }
    }

    fn change_deck(&mut self, job: usize) {
        let of = &self.jobs[job];
        let Some(row) = self.postgres.row(of.source, &of.id) else { return };
        let (deck, column) = (row.deck, self.random.below(SOURCES));
        let status = self.random.pick(&["READY", "FAILED", PARENT_BUSY[column], PARENT_BUSY[column]]);
        let since = self.now();
        self.when_free(
            Target::Deck(deck),
            since,
            Box::new(move |world| {
                if let Some(deck) = &mut world.postgres.decks[deck] {
                    deck.status[column] = status;
                }
            }),
        );
    }

    fn do_something_rare(&mut self, job: usize) {
        let (source, id) = (self.jobs[job].source, self.jobs[job].id.clone());
        let queue = self.random.pick(&QUEUES);
        match self.random.below(5) {
            0 => self.write_status(job, &["QUEUED", "PROCESSING"], "CANCELLED"),
            1 => {
                let since = self.now();
                self.when_free(
                    Target::Job(source, id.clone()),
                    since,
                    Box::new(move |world| {
                        world.postgres.tables[source].remove(&id);
                        world.tell(|| format!("admin: deleted row {id}"));
                    }),
                );
            }
            2 => {
                let Some(deck) = self.postgres.row(source, &id).map(|row| row.deck) else { return };
                if let Some(deck) = &mut self.postgres.decks[deck] {
                    deck.title += 1;
                }
            }
            3 => self.pause_or_resume(queue),
            _ => {
                let number = self.random.below(1_000);
                let listed = Listed { id: format!("repeat:{number}"), job: None, due: Duration::ZERO };
                self.redis.queue(queue).add(State::Delayed, listed, r#"{"ping":true}"#.to_owned());
            }
        }
    }

    /// As `BullMQ` before 6: what waits moves to another list.
    pub(super) fn pause_or_resume(&mut self, name: &str) {
        let queue = self.redis.queue(name);
        let (from, to) =
            if queue.is_paused { (State::Paused, State::Waiting) } else { (State::Waiting, State::Paused) };
        queue.is_paused = !queue.is_paused;
        let moved = std::mem::take(&mut queue.states[slot(from)]);
        queue.states[slot(to)].extend(moved);
        self.tell(|| format!("admin: {name} was paused or resumed"));
    }

    pub(super) fn may_hand_over(&self, job: usize) -> bool {
        let of = &self.jobs[job];
        of.handed_over_since.is_none() && of.next_handover <= self.now()
    }

    /// No two hand-overs of a job within the longest time for which a pass may be trusted, renewals and all.
    fn handover_pause(&self) -> Duration {
        self.profile.settings.lease_ttl.max(PASS_MAX) + self.profile.settings.settle
    }

    /// The job is between two stores, or two queues, until `finish` is done.
    pub(super) fn hand_over(&mut self, job: usize, finish: Deed) {
        let (now, id) = (self.now(), self.jobs[job].id.clone());
        self.tell(|| format!("application: {id} is being handed over"));
        self.jobs[job].handed_over_since = Some(now);
        self.jobs[job].next_handover = now + self.handover_pause();
        let settle_ms = u64::try_from(self.profile.settings.settle.as_millis()).unwrap_or(u64::MAX);
        let gap = self.random.ms(0..settle_ms * 2 / 3);
        self.deed_after(gap, finish);
    }

    /// Sets the row's status if it is one of `from`; waits for whoever holds the row.
    pub(super) fn write_status(&mut self, job: usize, from: &'static [&'static str], to: &'static str) {
        self.write_row(
            job,
            Box::new(move |world, job| {
                let (now, wall) = (world.now(), world.wall_of_application());
                let row = world.row_mut(job);
                if from.contains(&row.status) {
                    (row.status, row.updated, row.written) = (to, wall, now);
                }
                let id = world.jobs[job].id.clone();
                world.tell(|| format!("application: row {id} was to become {to}"));
            }),
        );
    }

    pub(super) fn write_row(&mut self, job: usize, write: RowWrite) {
        let (source, id, now) = (self.jobs[job].source, self.jobs[job].id.clone(), self.now());
        let target = Target::Job(source, id.clone());
        self.when_free(
            target,
            now,
            Box::new(move |world| {
                world.jobs[job].handed_over_since = None;
                if world.postgres.row(source, &id).is_some() {
                    let xid = world.postgres.xid();
                    world.row_mut(job).xmin = xid;
                    write(world, job);
                }
            }),
        );
    }

    pub(super) fn row_mut(&mut self, job: usize) -> &mut super::postgres::Row {
        let of = &self.jobs[job];
        self.postgres.tables[of.source].get_mut(&of.id).expect("looked for before")
    }

    /// Does it once nobody holds the row.
    fn when_free(&mut self, target: Target, since: Duration, deed: Deed) {
        match self.postgres.locks.get(&target) {
            None => deed(self),
            Some(holder) => {
                let waited = self.now() - since;
                if matches!(holder, Holder::Host(_)) && waited > WAIT_MAX {
                    let ms = waited.as_millis();
                    self.violated(10, || format!("the application waited {ms} ms for a row"));
                }
                self.deed_after(LOCK_POLL, Box::new(move |world| world.when_free(target, since, deed)));
            }
        }
    }
}
