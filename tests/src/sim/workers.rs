//! The application's workers: they take entries, write rows, fail, retry and die, and `BullMQ` cleans up behind them.

use std::time::Duration;

use salvage_core::snapshot::State;

use super::clock::wall_ms;
use super::domains::QUEUES;
use super::redis::{Finished, Listed, slot};
use super::world::{Run, World};

/// How long a worker's lock outlives it.
pub(super) const LOCK_TTL: Duration = Duration::from_secs(30);

/// A lock that is renewed for as long as its worker lives.
const RENEWED: Duration = Duration::from_secs(1 << 40);

impl World {
    /// A worker takes the job's entry.
    pub(super) fn take(&mut self, job: usize) {
        let Some((index, state, id)) = self.idle_entry(job) else { return };
        let now = self.now();
        let queue = self.redis.queue(QUEUES[index]);
        let is_due = queue.states[slot(state)].iter().any(|it| it.id == id && it.due <= now);
        let is_takeable = match state {
            State::Waiting | State::Prioritized => !queue.is_paused,
            State::Delayed => is_due && !queue.is_paused,
            State::Paused | State::WaitingChildren | State::Active => false,
        };
        if !is_takeable || !queue.hashes.contains_key(&id) || self.jobs[job].run.is_some() {
            return;
        }
        let listed = queue.unlist(&id).expect("just found");
        queue.list(State::Active, listed);
        queue.locks.insert(id.clone(), RENEWED);
        self.tell(|| format!("worker: took {id}"));
        self.jobs[job].run = Some(Run { queue: index, entry: id, has_begun: false });
    }

    pub(super) fn begin_run(&mut self, job: usize) {
        let Some(run) = &mut self.jobs[job].run else { return };
        if !run.has_begun {
            run.has_begun = true;
            self.write_status(job, &["QUEUED", "PROCESSING"], "PROCESSING");
        }
    }

    /// Some writers of progress leave `updatedAt` as it is.
    pub(super) fn progress(&mut self, job: usize) {
        if self.jobs[job].run.as_ref().is_some_and(|run| run.has_begun) {
            let is_timed = self.random.coin();
            self.write_row(
                job,
                Box::new(move |world, job| {
                    let (now, wall) = (world.now(), world.wall_of_application());
                    let row = world.row_mut(job);
                    row.progress += 1;
                    if is_timed {
                        (row.updated, row.written) = (wall, now);
                    }
                }),
            );
        }
    }

    /// The row says COMPLETED before the queue does.
    pub(super) fn finish_row_first(&mut self, job: usize) {
        if self.jobs[job].run.is_some() {
            self.write_status(job, &["QUEUED", "PROCESSING", "FAILED"], "COMPLETED");
            let gap = self.random.ms(0..2_000);
            self.deed_after(gap, Box::new(move |world| world.leave_queue(job, false)));
        }
    }

    /// The queue is done with the job before its row says so; perhaps another process writes the row, from an event.
    pub(super) fn finish_queue_first(&mut self, job: usize) {
        if !self.is_in_hand(job) || !self.may_hand_over(job) {
            return;
        }
        self.leave_queue(job, false);
        self.hand_over(
            job,
            Box::new(move |world| {
                world.write_status(job, &["QUEUED", "PROCESSING"], "COMPLETED");
            }),
        );
    }

    /// An attempt failed, and another comes later.
    pub(super) fn retry_later(&mut self, job: usize) {
        let Some(run) = self.jobs[job].run.take() else { return };
        let due = self.now() + self.random.ms(5_000..900_000);
        let queue = self.redis.queue(QUEUES[run.queue]);
        queue.locks.remove(&run.entry);
        if let Some(listed) = queue.unlist(&run.entry) {
            queue.list(State::Delayed, Listed { due, ..listed });
        }
        self.tell(|| format!("worker: {} is tried again later", run.entry));
    }

    /// The last attempt failed.
    pub(super) fn fail_for_good(&mut self, job: usize) {
        if !self.is_in_hand(job) || !self.may_hand_over(job) {
            return;
        }
        self.leave_queue(job, true);
        self.hand_over(
            job,
            Box::new(move |world| {
                world.write_status(job, &["QUEUED", "PROCESSING"], "FAILED");
            }),
        );
    }

    /// The worker is killed. Its lock runs out by itself.
    pub(super) fn die(&mut self, job: usize) {
        let Some(run) = self.jobs[job].run.take() else { return };
        let until = self.now() + LOCK_TTL;
        if let Some(lock) = self.redis.queue(QUEUES[run.queue]).locks.get_mut(&run.entry) {
            *lock = until;
        }
        self.tell(|| format!("worker: died with {}", run.entry));
    }

    /// `BullMQ` finds an active entry without a lock: it goes back, or has failed once too often, and no row is told.
    pub(super) fn notice_stalled(&mut self, job: usize) {
        let now = self.now();
        for (index, state, id) in self.entries(job) {
            let queue = self.redis.queue(QUEUES[index]);
            if state != State::Active || queue.locks.get(&id).is_some_and(|until| *until > now) {
                continue;
            }
            let listed = queue.unlist(&id).expect("just found");
            if self.random.coin() {
                let state = if queue.is_paused { State::Paused } else { State::Waiting };
                queue.list(state, listed);
            } else {
                queue.finished.insert(id.clone(), Finished { at_ms: wall_ms(now), is_failed: true });
            }
            self.tell(|| format!("queue: {id} had stalled"));
        }
    }

    /// The queue is done with the job that its worker has.
    pub(super) fn leave_queue(&mut self, job: usize, is_failed: bool) {
        let Some(run) = self.jobs[job].run.take() else { return };
        let (now, is_retained) = (self.now(), is_failed || self.random.coin());
        let queue = self.redis.queue(QUEUES[run.queue]);
        queue.locks.remove(&run.entry);
        if queue.find(&run.entry) == Some(State::Active) {
            queue.unlist(&run.entry);
            if is_retained {
                queue.finished.insert(run.entry.clone(), Finished { at_ms: wall_ms(now), is_failed });
            } else {
                queue.hashes.remove(&run.entry);
            }
        }
        self.tell(|| format!("worker: {} has left its queue", run.entry));
        self.note_presence();
    }

    /// Whether a worker runs the job and the queue knows of it: an entry that was removed leaves its worker behind, of which
    /// nobody can know.
    pub(super) fn is_in_hand(&self, job: usize) -> bool {
        let is_active = |run: &Run| {
            let queue = self.redis.queues.get(QUEUES[run.queue]);
            queue.is_some_and(|queue| queue.find(&run.entry) == Some(State::Active))
        };
        self.jobs[job].run.as_ref().is_some_and(is_active)
    }
}
