//! What goes wrong, in an order that a seed decides.

use super::audit::Key;
use super::chance::Chance;
use super::crew::Crew;
use super::hosts::Hosts;
use super::queue::{Entry, LOSE_ACTIVE_LUA, LOSE_WAITING_LUA};
use super::world::World;
use crate::demo::application::Table;
use anyhow::{Context, Result};
use salvage_services::Ended;
use std::collections::BTreeSet;
use std::time::{Duration, Instant};

/// From one disaster to the next.
const CALM: std::ops::Range<Duration> = Duration::from_millis(700)..Duration::from_millis(2_500);

/// How long whoever was killed stays dead.
const DEAD: std::ops::Range<Duration> = Duration::from_millis(500)..Duration::from_secs(4);

/// How long a host stays frozen: mostly past the 8 s of its lease.
const FROZEN: std::ops::Range<Duration> = Duration::from_secs(5)..Duration::from_secs(14);

/// How long a server is away, beside what it takes to start. Far below the 8 s after which a worker's lock runs out.
const AWAY: std::ops::Range<Duration> = Duration::from_millis(100)..Duration::from_millis(1_500);

/// Entries lost at a time, over all queues. Few: a mass of them is another test's subject, and waits for an operator.
const LOST_MAX: usize = 6;

/// What can happen. One that is named more than once happens more often.
const EVENTS: [Event; 12] = [
    Event::EntriesLost,
    Event::EntriesLost,
    Event::EntriesLost,
    Event::EntriesLost,
    Event::WorkersKilled,
    Event::WorkersKilled,
    Event::HostKilled,
    Event::HostKilled,
    Event::HostFrozen,
    Event::HostFrozen,
    Event::RedisRestarted,
    Event::PostgresRestarted,
];

/// A disaster, in the order in which they are counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Event {
    EntriesLost,
    WorkersKilled,
    HostKilled,
    HostFrozen,
    RedisRestarted,
    PostgresRestarted,
}

impl Event {
    pub(super) const ALL: [Self; 6] = [
        Self::EntriesLost,
        Self::WorkersKilled,
        Self::HostKilled,
        Self::HostFrozen,
        Self::RedisRestarted,
        Self::PostgresRestarted,
    ];

    pub(super) const fn words(self) -> &'static str {
        match self {
            Self::EntriesLost => "entries lost",
            Self::WorkersKilled => "processes of workers killed",
            Self::HostKilled => "hosts killed",
            Self::HostFrozen => "hosts frozen and woken",
            Self::RedisRestarted => "Redis killed or restarted",
            Self::PostgresRestarted => "PostgreSQL crashed or restarted",
        }
    }
}

/// What was done, for the audit and for the reader.
#[derive(Default)]
pub(super) struct Done {
    counts: [u64; 6],
    /// Jobs whose entry was lost on purpose.
    pub(super) lost: BTreeSet<Key>,
}

impl Done {
    pub(super) const fn count(&self, event: Event) -> u64 {
        self.counts[event as usize]
    }
}

/// How long until somebody comes back.
enum Back {
    Crew(usize),
    Host(usize),
    FrozenHost(usize),
}

/// Everything that can be broken.
pub(super) struct Chaos<'a> {
    pub(super) world: World,
    pub(super) hosts: Hosts<'a>,
    crews: Vec<Option<Crew>>,
    crews_so_far: usize,
    chance: Chance,
    next: Instant,
    later: Vec<(Instant, Back)>,
    pub(super) done: Done,
}

impl<'a> Chaos<'a> {
    /// Starts the workers; the hosts run already.
    pub(super) fn start(world: World, hosts: Hosts<'a>, crews: usize, seed: u64) -> Result<Self> {
        let mut chaos = Self {
            world,
            hosts,
            crews: Vec::new(),
            crews_so_far: 0,
            chance: Chance::new(seed),
            next: Instant::now(),
            later: Vec::new(),
            done: Done::default(),
        };
        for index in 0..crews {
            chaos.crews.push(None);
            chaos.start_crew(index)?;
        }
        Ok(chaos)
    }

    /// Brings back whose time it is, and lets the next disaster happen when it is due.
    pub(super) fn go_on(&mut self) -> Result<()> {
        let now = Instant::now();
        self.bring_back(|at| at <= now)?;
        self.hosts.check()?;
        if now >= self.next {
            let event = *self.chance.one_of(&EVENTS);
            self.happen(event).with_context(|| format!("{event:?}"))?;
            self.next = Instant::now() + self.chance.within(CALM);
        }
        Ok(())
    }

    /// Brings everybody back.
    pub(super) fn end(&mut self) -> Result<()> {
        self.bring_back(|_| true)
    }

    fn bring_back(&mut self, is_due: impl Fn(Instant) -> bool) -> Result<()> {
        let (due, later) = std::mem::take(&mut self.later).into_iter().partition(|(at, _)| is_due(*at));
        self.later = later;
        for (_, back) in due {
            match back {
                Back::Crew(index) => self.start_crew(index)?,
                Back::Host(index) => self.hosts.start_again(index)?,
                // It may have been killed in its sleep.
                Back::FrozenHost(index) => drop(self.hosts.thaw(index)?),
            }
        }
        Ok(())
    }

    fn happen(&mut self, event: Event) -> Result<()> {
        let times = match event {
            Event::EntriesLost => self.lose_entries()?,
            Event::WorkersKilled => self.kill_workers()?,
            Event::HostKilled => {
                let index = self.chance.below(self.hosts.count());
                let was_alive = self.hosts.kill(index);
                self.come_back(DEAD, Back::Host(index));
                u64::from(was_alive)
            }
            Event::HostFrozen => {
                let index = self.chance.below(self.hosts.count());
                let is_frozen = self.hosts.freeze(index)?;
                self.come_back(FROZEN, Back::FrozenHost(index));
                u64::from(is_frozen)
            }
            Event::RedisRestarted => self.restart_redis()?,
            Event::PostgresRestarted => self.restart_postgres()?,
        };
        self.done.counts[event as usize] += times;
        Ok(())
    }

    fn come_back(&mut self, after: std::ops::Range<Duration>, back: Back) {
        let at = Instant::now() + self.chance.within(after);
        self.later.push((at, back));
    }

    fn start_crew(&mut self, index: usize) -> Result<()> {
        if self.crews[index].is_none() {
            self.crews_so_far += 1;
            let name = format!("crew-{}", self.crews_so_far);
            let redis_url = self.world.redis.url();
            self.crews[index] = Some(Crew::start(&name, &self.world.database, &redis_url)?);
        }
        Ok(())
    }

    /// Of what waits or is due in all queues, some at random; of some the hash stays.
    fn lose_entries(&mut self) -> Result<u64> {
        let mut waiting: Vec<Entry> = self.world.entries()?;
        waiting.retain(|entry| ["wait", "delayed"].contains(&entry.state.as_str()));
        let mut lost = 0;
        for _ in 0..=self.chance.below(LOST_MAX) {
            if waiting.is_empty() {
                break;
            }
            let Entry { queue, id, .. } = waiting.swap_remove(self.chance.below(waiting.len()));
            let whole = if self.chance.one_in(3) { "0" } else { "1" };
            let job = self.world.redis.command(&["EVAL", LOSE_WAITING_LUA, "0", &queue, &id, whole])?;
            if !job.is_empty() {
                self.note_lost(&queue, &job);
                lost += 1;
            }
        }
        Ok(lost)
    }

    /// Half of what they leave active is lost with them; the rest BullMQ puts back when their locks run out.
    fn kill_workers(&mut self) -> Result<u64> {
        let index = self.chance.below(self.crews.len());
        let Some(crew) = self.crews[index].take() else { return Ok(0) };
        let name = crew.name.clone();
        crew.kill()?;
        // Of its last second only: an entry of an earlier run may be with another worker by now.
        let left = self.world.sql(&format!(
            "SELECT entry ->> 'queue', entry ->> 'id', job FROM soak.runs WHERE worker = '{name}' \
             AND completed_at IS NULL AND began_at > clock_timestamp() - interval '1 s' ORDER BY id"
        ))?;
        for line in left.lines() {
            let fields: Vec<&str> = line.split('|').collect();
            let [queue, id, job] = fields[..] else { continue };
            if self.chance.one_in(2)
                && self.world.redis.command(&["EVAL", LOSE_ACTIVE_LUA, "0", queue, id])? == "1"
            {
                self.note_lost(queue, job);
            }
        }
        self.come_back(DEAD, Back::Crew(index));
        Ok(1)
    }

    fn note_lost(&mut self, queue: &str, job: &str) {
        let source = source_of(queue).to_owned();
        self.done.lost.insert(Key { source, job: job.to_owned() });
    }

    fn restart_redis(&mut self) -> Result<u64> {
        let away = self.chance.within(AWAY);
        if self.chance.one_in(2) {
            self.world.redis.kill()?
        } else {
            self.world.redis.stop_saving()?
        }
        std::thread::sleep(away);
        self.world.redis.start_again()?;
        Ok(1)
    }

    fn restart_postgres(&mut self) -> Result<u64> {
        let away = self.chance.within(AWAY);
        let how = *self.chance.one_of(&[Ended::Interrupted, Ended::Quit, Ended::Killed]);
        self.world.postgres.end(how)?;
        std::thread::sleep(away);
        self.world.postgres.start_again()?;
        Ok(1)
    }
}

/// The source whose jobs the application puts into this queue.
pub(super) fn source_of(queue: &str) -> &'static str {
    let table = Table::ALL.into_iter().find(|table| table.shape().queue == queue);
    table.map_or("", |table| table.shape().source)
}
