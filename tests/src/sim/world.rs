//! Everything of a simulation but the hosts' own state: both stores, the application's jobs, and the truth about them.

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::Timestamp;
use salvage::ports::{Declaration, LoadedDomain};
use salvage_core::declaration::declaration;
use salvage_core::epoch::QueueMemory;
use salvage_core::lease::Scope;
use salvage_core::snapshot::State;
use salvage_core::source::ResolvedSource;

use super::clock::{PAST, wall};
use super::domains::{self, QUEUES, SOURCES, Shape, TYPES};
use super::oracle::{PassTruth, Truths, Violation};
use super::postgres::{Row, SimPostgres};
use super::profile::Profile;
use super::random::Random;
use super::redis::{Listed, Queue, SimRedis};
use super::scheduler::{Deed, Event, Process, Scheduler};
use super::tally::Tally;
use super::twins::Twin;

/// A queue of the application that no manifest names.
const HIDDEN_QUEUE: &str = "slide-urgent";

/// How old rows may be when it begins.
const AGE_MAX_MS: u64 = 3_600_000;

/// A worker's run of a job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Run {
    pub(super) queue: usize,
    pub(super) entry: String,
    pub(super) has_begun: bool,
}

/// A job of the application, and what is true of it.
#[derive(Debug, Clone)]
pub(super) struct Job {
    pub(super) source: usize,
    pub(super) id: String,
    /// The entry id that its producer uses.
    pub(super) entry: String,
    /// Whether that is another than the current rule's.
    pub(super) is_legacy: bool,
    /// What its payloads look like.
    pub(super) shape: Shape,
    /// The worker that runs it, whether or not the queue still holds its entry.
    pub(super) run: Option<Run>,
    /// Since when the application is between two stores with it, or between two queues. It heals by itself.
    pub(super) handed_over_since: Option<Duration>,
    /// Before that the application hands nothing over again: see [`super::application`].
    pub(super) next_handover: Duration,
    /// When an entry under an older id last changed queue.
    pub(super) moved_at: Option<Duration>,
    /// Since when it has had an entry at every instant.
    pub(super) present_since: Option<Duration>,
    /// How often a host has put it back.
    pub(super) recovered: u32,
}

impl Job {
    /// As its producer makes it, under the current rule.
    fn new(source: usize, id: String, entry: String) -> Self {
        Self {
            source,
            id,
            entry,
            is_legacy: false,
            shape: Shape::Plain,
            run: None,
            handed_over_since: None,
            next_handover: Duration::ZERO,
            moved_at: None,
            present_since: None,
            recovered: 0,
        }
    }
}

/// A copy of what Redis held.
#[derive(Debug, Clone)]
pub(super) struct Dump {
    pub(super) queues: BTreeMap<String, Queue>,
}

/// The world.
pub(super) struct World {
    pub(super) random: Random,
    pub(super) scheduler: Scheduler,
    pub(super) profile: Profile,
    pub(super) twin: Option<Twin>,
    pub(super) postgres: SimPostgres,
    /// The application's Redis.
    pub(super) redis: SimRedis,
    /// Another application's, while the hosts are led to it.
    pub(super) wrong_redis: Option<SimRedis>,
    pub(super) dumps: Vec<Dump>,
    pub(super) jobs: Vec<Job>,
    pub(super) domains: Vec<LoadedDomain>,
    pub(super) sources: Vec<ResolvedSource>,
    pub(super) truths: Truths,
    pub(super) tally: Tally,
    pub(super) violation: Option<Violation>,
    /// The application makes no moves any more.
    pub(super) is_calm: bool,
    pub(super) story: Option<Vec<String>>,
    tokens: u64,
}

impl World {
    pub(super) fn new(seed: u64, twin: Option<Twin>) -> Self {
        let mut random = Random::new(seed);
        let profile = Profile::of(&mut random);
        let domains = domains::loaded();
        let sources = domains::resolved(&domains);
        let decks = 1 + random.below(4);
        let queues = QUEUES.map(|name| (name.to_owned(), Queue::used(2 + random.next() % 100)));
        let mut world = Self {
            random,
            scheduler: Scheduler::starting_at(PAST),
            profile,
            twin,
            postgres: SimPostgres::new(decks),
            redis: SimRedis::new(queues.into()),
            wrong_redis: None,
            dumps: vec![],
            jobs: vec![],
            domains,
            sources,
            truths: Truths::default(),
            tally: Tally::default(),
            violation: None,
            is_calm: false,
            story: None,
            tokens: 0,
        };
        world.populate();
        world
    }

    /// Jobs in all conditions, and queues that were known for long or not at all.
    fn populate(&mut self) {
        for _ in 0..1 + self.random.below(5) {
            let deck = self.random.below(self.postgres.decks.len());
            let job = self.new_job(deck);
            let age = self.random.ms(0..AGE_MAX_MS);
            let row = self.postgres.tables[self.jobs[job].source].get_mut(&self.jobs[job].id);
            let row = row.expect("just made");
            row.written -= age;
            row.updated -= age;
            row.status = if self.random.coin() { "QUEUED" } else { "PROCESSING" };
            let waiting = if self.profile.has_traffic { 8 } else { 4 };
            match self.random.below(10) {
                kind if kind < waiting => self.add_entry(job, State::Waiting),
                kind if kind == waiting => {
                    self.add_entry(job, State::Waiting);
                    self.take(job);
                }
                _ => {}
            }
        }
        if self.profile.is_misdeclared {
            self.hide_jobs();
        }
        if self.profile.is_known {
            self.know_the_queues();
        }
        self.note_presence();
    }

    /// Jobs whose queue is missing from the manifest: most of them young, two of them old enough to look lost.
    fn hide_jobs(&mut self) {
        const YOUNG: usize = 6;
        const OLD: usize = 2;
        let stale_after = self.profile.settings.stale_after;
        for number in 0..YOUNG + OLD {
            let index = self.jobs.len();
            let id = format!("h{index}");
            let minutes = u32::try_from(number).unwrap_or(0);
            let age = if number < YOUNG { stale_after / 8 * (minutes + 1) } else { stale_after * 2 };
            let row = Row {
                deck: 0,
                job_type: TYPES[0][0],
                status: "QUEUED",
                progress: 0,
                error: None,
                updated: self.wall_of_application() - age,
                written: self.now() - age,
                xmin: self.postgres.xid(),
            };
            self.postgres.tables[0].insert(id.clone(), row);
            let listed = Listed { id: domains::entry_id(0, &id), job: Some(index), due: Duration::ZERO };
            self.redis.queue(HIDDEN_QUEUE).add(State::Waiting, listed, domains::payload(&id));
            let entry = domains::entry_id(0, &id);
            self.jobs.push(Job { is_legacy: true, ..Job::new(0, id, entry) });
        }
    }

    fn know_the_queues(&mut self) {
        let (began, server) = (wall(Duration::ZERO), self.redis.server());
        let scopes = self.scopes();
        for (name, scope) in QUEUES.iter().flat_map(|name| scopes.iter().map(move |scope| (*name, scope))) {
            let token = self.token();
            let queue = self.redis.queue(name);
            queue.nonces.insert(scope.to_string(), token.clone());
            let memory = QueueMemory {
                nonce: Some(token),
                nonce_next: None,
                id_counter: queue.id_counter,
                ever_had_jobs: true,
                run_id: server.run_id.clone(),
                replid: server.replid.clone(),
                evicted_keys: 0,
                epoch_began: began,
                accepted_at: None,
                lost_at: None,
            };
            let key = (scope.to_string(), name.to_owned());
            self.postgres.records.memories.insert(key, memory);
        }
        let seen: Vec<_> =
            self.sources.iter().map(|source| (source.name.clone(), QUEUES[0].to_owned())).collect();
        self.postgres.records.corroborate(&seen, began);
        for source in &self.sources {
            let declaration =
                Declaration { source: source.name.clone(), text: declaration(&source.declared) };
            self.postgres.records.declaration(&declaration).is_confirmed = true;
        }
    }

    /// A new row, QUEUED, as yet without an entry.
    pub(super) fn new_job(&mut self, deck: usize) -> usize {
        let index = self.jobs.len();
        let source = self.random.below(SOURCES);
        let id = format!("{}{index}", ["s", "e"][source]);
        let shape = if self.random.permille(self.profile.odd_payloads) {
            self.random.pick(&[Shape::Wrapped, Shape::Opaque])
        } else {
            Shape::Plain
        };
        let is_legacy = shape != Shape::Plain || self.profile.has_legacy && self.random.coin();
        let entry = match (is_legacy, self.random.below(3)) {
            (false, _) => domains::entry_id(source, &id),
            (true, 0) => format!("{}", 1_000 + index),
            (true, 1) => domains::entry_id(source, &format!("old-{index}")),
            (true, _) => format!("job:{index}"),
        };
        let row = Row {
            deck,
            job_type: self.random.pick(&TYPES[source]),
            status: "QUEUED",
            progress: 0,
            error: None,
            updated: self.wall_of_application(),
            written: self.now(),
            xmin: self.postgres.xid(),
        };
        if let Some(deck) = &mut self.postgres.decks[row.deck]
            && self.random.permille(800)
        {
            deck.status[source] = domains::PARENT_BUSY[source];
        }
        self.postgres.tables[source].insert(id.clone(), row);
        self.jobs.push(Job { is_legacy, shape, ..Job::new(source, id, entry) });
        index
    }

    /// The application adds the job's entry to a queue, as its producer would.
    pub(super) fn add_entry(&mut self, job: usize, state: State) {
        let of = &self.jobs[job];
        let queue = if self.random.permille(800) { of.source } else { 1 - of.source };
        let (entry, data) = (of.entry.clone(), domains::payload_of(of.shape, &of.id));
        let due = self.now() + self.random.ms(10_000..600_000);
        let queue = self.redis.queue(QUEUES[queue]);
        let state = if queue.is_paused && state == State::Waiting { State::Paused } else { state };
        queue.add(state, Listed { id: entry, job: Some(job), due }, data);
        self.note_presence();
    }

    /// The leases of the deployment.
    pub(super) fn scopes(&self) -> Vec<Scope> {
        let domains = self.domains.iter().map(|domain| domain.manifest.domain.as_str());
        self.profile.settings.lease_scope.scopes(domains)
    }

    pub(super) fn now(&self) -> Duration {
        self.scheduler.now()
    }

    /// PostgreSQL's clock.
    pub(super) fn wall(&self) -> Timestamp {
        wall(self.now())
    }

    /// The application's, which writes `updatedAt`.
    pub(super) fn wall_of_application(&self) -> Timestamp {
        self.wall() + jiff::SignedDuration::from_secs(self.profile.clock_ahead_s)
    }

    /// The Redis that the hosts reach.
    pub(super) fn redis_of_hosts(&mut self) -> &mut SimRedis {
        self.wrong_redis.as_mut().unwrap_or(&mut self.redis)
    }

    /// The job of a row.
    pub(super) fn job_of(&self, source: usize, id: &str) -> Option<usize> {
        self.jobs.iter().position(|job| job.source == source && job.id == id)
    }

    pub(super) fn token(&mut self) -> String {
        self.tokens += 1;
        format!("t{}", self.tokens)
    }

    pub(super) fn after(&mut self, delay: Duration, event: Event) {
        self.scheduler.after(delay, event);
    }

    pub(super) fn deed_after(&mut self, delay: Duration, deed: Deed) {
        self.after(delay, Event::Deed(deed));
    }

    /// Lets time do its work.
    pub(super) fn expire(&mut self) {
        let now = self.now();
        self.postgres.expire(now);
        self.redis.expire(now);
        if let Some(wrong) = &mut self.wrong_redis {
            wrong.expire(now);
        }
    }

    /// The process's pass under way; a new one if it has none yet.
    pub(super) fn pass_of(&mut self, process: Process) -> &mut PassTruth {
        self.truths.pass(process)
    }

    /// What kind of world it is, for whoever replays a seed.
    pub(super) fn tell_profile(&mut self) {
        let profile = format!("{:?}", self.profile);
        self.tell(|| profile);
        for job in 0..self.jobs.len() {
            let of = format!("{:?}", self.jobs[job]);
            let row = format!("{:?}", self.postgres.row(self.jobs[job].source, &self.jobs[job].id));
            self.tell(|| format!("{of} {row}"));
        }
    }

    /// A line for whoever replays a seed.
    pub(super) fn tell(&mut self, line: impl FnOnce() -> String) {
        let now = self.now();
        if let Some(story) = &mut self.story {
            story.push(format!("{:>12.3} s  {}", (now - PAST).as_secs_f64(), line()));
        }
    }
}
