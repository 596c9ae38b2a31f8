//! What befalls Redis: wiped, rolled back, failed over, swapped for another application's, or robbed of the lease.

use std::collections::BTreeMap;
use std::time::Duration;

use salvage_core::snapshot::State;

use super::domains::QUEUES;
use super::redis::{Listed, Queue, SimRedis};
use super::scheduler::Event;
use super::workers::LOCK_TTL;
use super::world::{Dump, World};

/// Dumps that are kept.
const DUMPS_MAX: usize = 4;

/// A dump so many marks old holds a nonce that nobody remembers: two are.
const MARKS_FORGOTTEN: u32 = 2;

impl World {
    pub(super) fn disaster(&mut self) {
        match self.random.below(8) {
            0 => self.flush(),
            1 => self.restore_old_dump(),
            2 => self.fail_over(),
            3 => self.lead_hosts_astray(),
            4 | 5 => self.lose_lease(),
            _ => self.dump(),
        }
        self.note_presence();
    }

    fn dump(&mut self) {
        if self.dumps.len() == DUMPS_MAX {
            self.dumps.remove(0);
        }
        self.dumps.push(Dump { queues: self.redis.queues.clone() });
    }

    fn flush(&mut self) {
        self.tally.disasters += 1;
        self.tell(|| "DISASTER: Redis was flushed".to_owned());
        self.redis.queues.clear();
        self.redis.leases.clear();
        self.note_loss();
    }

    /// Restores what Redis held before at least two marks.
    fn restore_old_dump(&mut self) {
        let marks = |queues: &BTreeMap<String, Queue>, name: &str, scope: &str| {
            queues.get(name).and_then(|queue| queue.marks.get(scope)).copied().unwrap_or(0)
        };
        let scopes: Vec<String> = self.scopes().iter().map(ToString::to_string).collect();
        let is_old = |dump: &Dump| {
            QUEUES.iter().all(|name| {
                let is_forgotten = |scope: &String| {
                    marks(&self.redis.queues, name, scope)
                        >= marks(&dump.queues, name, scope) + MARKS_FORGOTTEN
                };
                scopes.iter().all(is_forgotten)
            })
        };
        let Some(dump) = self.dumps.iter().find(|dump| is_old(dump)).cloned() else { return };
        self.tally.disasters += 1;
        self.tell(|| "DISASTER: an old dump was restored".to_owned());
        self.redis.queues = dump.queues;
        self.redis.leases.clear();
        self.redis.run_id += 1;
        self.note_loss();
    }

    /// A replica takes over that lacks the last moments. Nobody can notice, and what it holds is the truth.
    fn fail_over(&mut self) {
        self.tally.disasters += 1;
        let (behind, lost_at) = (self.redis.clone(), self.truths.lost_at);
        let lag = self.random.ms(1..1_500);
        self.deed_after(
            lag,
            Box::new(move |world| {
                if world.truths.lost_at != lost_at {
                    // What was lost since is lost on every replica.
                    return;
                }
                world
                    .tell(|| format!("DISASTER: a replica took over that was {} ms behind", lag.as_millis()));
                let run_id = world.redis.run_id + 1;
                world.redis = SimRedis { run_id, ..behind };
                world.age_locks();
                world.note_presence();
            }),
        );
    }

    /// For a while the hosts reach the Redis of another application, healthy and with queues of the same names.
    fn lead_hosts_astray(&mut self) {
        // An operator who begins to look there would accept it: a person's mistake, of which nobody can know.
        let operator = self.profile.hosts + 1;
        if self.wrong_redis.is_some() || self.truths.is_about_to_look(operator) {
            return;
        }
        self.tally.disasters += 1;
        let queues = QUEUES.map(|name| {
            let mut queue = Queue::used(1 + self.random.next() % 500);
            let listed = Listed { id: "order-1".to_owned(), job: None, due: Duration::ZERO };
            queue.add(State::Waiting, listed, r#"{"jobId":"order-1"}"#.to_owned());
            (name.to_owned(), queue)
        });
        self.tell(|| "DISASTER: the hosts are led to another Redis".to_owned());
        self.wrong_redis = Some(SimRedis { run_id: 900, ..SimRedis::new(queues.into()) });
        let while_ms = self.random.ms(1_000..900_000);
        self.deed_after(
            while_ms,
            Box::new(|world| {
                world.wrong_redis = None;
                world.tell(|| "the hosts are back at their Redis".to_owned());
            }),
        );
    }

    /// The lease is gone while its holder works, and another host begins.
    pub(super) fn lose_lease(&mut self) {
        self.redis.leases.clear();
        self.tell(|| "DISASTER: the lease is gone, and another host starts".to_owned());
        self.after(Duration::ZERO, Event::Start(self.profile.hosts));
    }

    fn note_loss(&mut self) {
        self.truths.lost_at = [Some(self.now()); QUEUES.len()];
        self.age_locks();
        if self.random.coin() {
            let pause = self.random.ms(1_000..400_000);
            self.after(pause, Event::Start(self.profile.hosts + 1));
        }
    }

    /// A lock that came back with old data is nobody's, and runs out.
    fn age_locks(&mut self) {
        let until = self.now() + LOCK_TTL;
        let (jobs, redis) = (&self.jobs, &mut self.redis);
        for (index, name) in QUEUES.iter().enumerate() {
            let is_held = |entry: &String| {
                jobs.iter()
                    .filter_map(|job| job.run.as_ref())
                    .any(|run| run.queue == index && run.entry == *entry)
            };
            let locks = redis.queue(name).locks.iter_mut();
            locks.filter(|(entry, _)| !is_held(entry)).for_each(|(_, lock)| *lock = (*lock).min(until));
        }
    }
}
