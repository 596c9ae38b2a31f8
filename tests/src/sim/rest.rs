//! The world at rest: nothing goes wrong any more, and within two passes everything must be right.

use std::collections::BTreeSet;
use std::time::Duration;

use salvage::command::accept;
use salvage::pass::{self, Mode};
use salvage::ports::{Handlers, Outside, StoreFailure};
use salvage::stop::stop;
use salvage_core::report::{LeaseState, Report};
use salvage_core::snapshot::State;

use super::clock::{PAST, wall};
use super::domains::{QUEUES, Shape};
use super::host::SimHost;
use super::redis::Queue;
use super::simulation::Simulation;
use super::workers::LOCK_TTL;
use super::world::World;

/// After the last pass: long enough for what was put into `delayed` to be due.
const MOMENT: Duration = Duration::from_secs(20);

/// How much later than its time to live a lease may be found.
const SLACK: Duration = Duration::from_secs(10);

/// The operator accepts every queue.
pub(super) async fn accept(host: &SimHost) -> bool {
    let queues: BTreeSet<String> = QUEUES.map(str::to_owned).into();
    let scopes = host.world.borrow().scopes();
    let (mut accepted, mut server) = (true, None);
    for scope in scopes {
        accepted = accepted && accept::accept(host, &scope, &queues, &mut server).await.is_ok();
    }
    let domains = host.handlers().domains();
    accepted = accepted && accept::accept_for_declarations(host, &domains, &queues).await.is_ok();
    host.world.borrow_mut().tell(|| format!("operator: accepted: {accepted}"));
    accepted
}

impl Simulation {
    /// Lets everything come to rest, and checks what must hold then.
    pub(super) fn come_to_rest(&mut self) {
        self.calm();
        self.wait(Duration::from_secs(1_000));
        if self.pass_within_ttl().is_none() {
            return;
        }
        if self.world.borrow().needs_operator() {
            self.world.borrow_mut().tally.accepts += 1;
            let host = self.visitor();
            if !self.finish(accept(&host)) {
                return self
                    .world
                    .borrow_mut()
                    .violated(9, || "a calm world could not be accepted".to_owned());
            }
        }
        for _ in 0..2 {
            self.wait(MOMENT);
            self.pass();
        }
        let stages = self.world.borrow().jobs.len();
        let acts_max = self.world.borrow().profile.settings.acts_max as usize;
        // With few acts a pass, as many more as they take.
        for _ in 0..stages / acts_max {
            self.wait(MOMENT);
            self.pass();
        }
        // Where rows stay young for an hour, some may come of age only now, or between two passes.
        let is_slow = self.world.borrow().profile.is_misdeclared;
        if !is_slow {
            self.world.borrow_mut().check_recovered();
        }
        let before = self.world.borrow().application_state();
        self.wait(MOMENT);
        self.pass();
        let mut world = self.world.borrow_mut();
        if !is_slow && world.application_state() != before {
            world.violated(8, || "a pass changed something though nothing had changed".to_owned());
        }
    }

    fn calm(&mut self) {
        let mut world = self.world.borrow_mut();
        world.tell(|| "the world calms down".to_owned());
        world.profile.calm_down();
        world.wrong_redis = None;
        world.is_calm = true;
    }

    fn wait(&mut self, duration: Duration) {
        let host = self.visitor();
        self.finish(host.pause(duration));
        self.world.borrow_mut().settle();
    }

    fn pass(&mut self) -> Option<Report> {
        let host = self.visitor();
        let settings = self.world.borrow().profile.settings.clone();
        let (_switch, stop) = stop();
        let ended: Result<Report, StoreFailure> = self.finish(pass::run(&host, &settings, Mode::Act, &stop));
        match ended {
            Ok(report) => {
                for job in &report.jobs {
                    let why = job.outcome.as_ref().and_then(|outcome| outcome.why.clone());
                    let line = format!("  {}: {} {:?} {why:?}", job.id, job.sighting.kind, job.decision.kind);
                    self.world.borrow_mut().tell(|| line);
                }
                Some(report)
            }
            Err(failure) => {
                let what = format!("a pass failed in a calm world: {failure}");
                self.world.borrow_mut().violated(10, || what);
                None
            }
        }
    }

    /// The first pass after everybody died runs as soon as the lease is free, and that is within its time to live.
    fn pass_within_ttl(&mut self) -> Option<Report> {
        let ttl = self.world.borrow().profile.settings.lease_ttl;
        let began = self.world.borrow().now();
        loop {
            let report = self.pass()?;
            if report.pass.lease == LeaseState::Acquired {
                return Some(report);
            }
            if self.world.borrow().now() > began + ttl + SLACK {
                let what = format!("nobody could take the lease within {} s", ttl.as_secs());
                self.world.borrow_mut().violated(12, || what);
                return None;
            }
            self.wait(Duration::from_secs(1));
        }
    }
}

impl World {
    /// What a person would put right once the trouble is over.
    fn settle(&mut self) {
        for name in QUEUES {
            if self.redis.queue(name).is_paused {
                self.pause_or_resume(name);
            }
        }
        for job in 0..self.jobs.len() {
            if self.jobs[job].run.is_some() {
                self.jobs[job].run = None;
            }
        }
        let until = self.now() + LOCK_TTL;
        for queue in self.redis.queues.values_mut() {
            queue.locks.values_mut().for_each(|lock| *lock = (*lock).min(until));
        }
    }

    /// Whether some queue's past is in doubt.
    fn needs_operator(&self) -> bool {
        let records = &self.postgres.records;
        let began = wall(PAST);
        self.scopes().iter().any(|scope| {
            let memories = records.memories_of(scope.as_str());
            let is_known = |queue: &str| memories.get(queue).is_some_and(|memory| memory.epoch_began < began);
            let is_whole = QUEUES.iter().all(|queue| is_known(queue));
            !is_whole || (0..QUEUES.len()).any(|queue| self.truths.waits(scope.as_str(), queue))
        })
    }

    /// Every live row has an entry; every other has an end.
    fn check_recovered(&mut self) {
        let stale_after = self.profile.settings.stale_after;
        if self.has_unattributed() {
            return;
        }
        let mut lost = vec![];
        for job in &self.jobs {
            let Some(row) = self.postgres.row(job.source, &job.id) else { continue };
            let is_present = job.present_since.is_some();
            let is_doubted = self.postgres.records.failed(row.job_type, row.status);
            if row.is_live() && !is_present && !is_doubted && row.written + stale_after < self.now() {
                lost.push(format!("{} ({}, {})", job.id, row.job_type, row.status));
            }
        }
        if !lost.is_empty() {
            self.violated(11, || format!("not recovered in a calm world: {}", lost.join(", ")));
        }
    }

    /// Whether a queue holds an entry that may be anybody's: then nobody in it is called absent.
    fn has_unattributed(&self) -> bool {
        let is_odd = |job: &Option<usize>| job.is_some_and(|job| self.jobs[job].shape != Shape::Plain);
        let queues = self.redis.queues.values();
        queues.flat_map(Queue::listed).any(|(_, listed)| is_odd(&listed.job))
    }

    /// What the application has in both stores.
    fn application_state(&self) -> String {
        let queues: Vec<_> = self
            .redis
            .queues
            .iter()
            .map(|(name, queue)| {
                let listed: Vec<(State, &str)> =
                    queue.listed().map(|(state, listed)| (state, listed.id.as_str())).collect();
                (name, listed, &queue.hashes, &queue.finished, queue.id_counter)
            })
            .collect();
        format!("{:?} {:?} {queues:?}", self.postgres.tables, self.postgres.decks)
    }
}
