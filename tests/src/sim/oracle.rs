//! The promises, checked against the truth wherever a host takes effect.
//!
//! The simulation knows what no host can: where each job really is, who is about to write its row, when Redis lost data.
//! Every write of a host passes one of the checks below at the instant at which it becomes true; what must hold in the end
//! is checked when the world has come to rest ([`super::rest`]).

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use salvage_core::act::{Act, Change, ScriptAnswer};
use salvage_core::lease::Fence;

use super::domains::{QUEUES, source_of};
use super::postgres::{IDLE_MAX, Row, Transaction};
use super::scheduler::Process;
use super::world::World;

/// A promise was broken.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Violation {
    /// Which of the twelve.
    pub promise: u8,
    /// What happened, in a sentence.
    pub what: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "promise {}: {}", self.promise, self.what)
    }
}

/// What is true of a pass.
#[derive(Debug, Clone, Default)]
pub(super) struct PassTruth {
    /// The instant of its first snapshot.
    pub(super) first_look: Option<Duration>,
    /// A look is under way, which may take several snapshots.
    pub(super) is_looking: bool,
    /// The instant at which its last look began.
    pub(super) last_look: Option<Duration>,
    /// One of its snapshots is of another application's Redis.
    pub(super) looked_astray: bool,
    /// A look failed, or was told to have failed.
    pub(super) has_failed_look: bool,
}

/// What is true of queues and passes.
#[derive(Debug, Default)]
pub(super) struct Truths {
    passes: BTreeMap<usize, (u32, PassTruth)>,
    /// Which start of each slot lives.
    alive: BTreeMap<usize, u32>,
    /// When Redis last lost what each queue had, noticeably.
    pub(super) lost_at: [Option<Duration>; QUEUES.len()],
    /// By scope: the instant of the state that the operator accepted.
    accepted_at: BTreeMap<String, [Option<Duration>; QUEUES.len()]>,
}

impl Truths {
    pub(super) fn pass(&mut self, process: Process) -> &mut PassTruth {
        let entry = self.passes.entry(process.slot).or_default();
        if entry.0 != process.start {
            *entry = (process.start, PassTruth::default());
        }
        &mut entry.1
    }

    pub(super) fn begin_pass(&mut self, process: Process) {
        self.passes.insert(process.slot, (process.start, PassTruth::default()));
    }

    pub(super) fn born(&mut self, process: Process) {
        self.alive.insert(process.slot, process.start);
    }

    pub(super) fn died(&mut self, process: Process) {
        self.alive.retain(|slot, start| (*slot, *start) != (process.slot, process.start));
    }

    pub(super) fn is_alive(&self, process: Process) -> bool {
        self.alive.get(&process.slot) == Some(&process.start)
    }

    /// Whether a process lives in a slot and has not looked at any queue yet.
    pub(super) fn is_about_to_look(&self, slot: usize) -> bool {
        let Some(start) = self.alive.get(&slot) else { return false };
        let pass = self.passes.get(&slot).filter(|(of, _)| of == start);
        pass.is_none_or(|(_, pass)| pass.first_look.is_none())
    }

    /// Whether a queue lost something that nobody has accepted yet for that scope.
    pub(super) fn waits(&self, scope: &str, queue: usize) -> bool {
        let accepted_at = self.accepted_at.get(scope).and_then(|accepted| accepted[queue]);
        self.lost_at[queue].is_some() && accepted_at < self.lost_at[queue]
    }

    pub(super) fn accept(&mut self, scope: &str, queue: usize, at: Option<Duration>) {
        self.accepted_at.entry(scope.to_owned()).or_default()[queue] = at;
    }
}

/// What the sender of a script knows of its fate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Sender {
    /// Waits for the reply, its transaction open.
    Waits,
    /// Died, or gave up. The script ran late, which no sender can prevent.
    Gone,
}

impl World {
    pub(super) fn violated(&mut self, promise: u8, what: impl FnOnce() -> String) {
        if self.violation.is_none() {
            let violation = Violation { promise, what: what() };
            self.tell(|| format!("VIOLATION: {violation}"));
            self.violation = Some(violation);
        }
    }

    /// Brings up to date since when each job has been present: after every change in the application's Redis.
    pub(super) fn note_presence(&mut self) {
        let mut is_present = vec![false; self.jobs.len()];
        for queue in self.redis.queues.values() {
            for job in queue.listed().filter_map(|(_, listed)| listed.job) {
                is_present[job] = true;
            }
        }
        let now = self.now();
        for (job, is_present) in self.jobs.iter_mut().zip(is_present) {
            job.present_since = is_present.then(|| job.present_since.unwrap_or(now));
        }
    }

    /// A handler is asked: the first look has judged the job absent.
    pub(super) fn check_judged(&mut self, process: Process, source: usize, id: &str) {
        let PassTruth { first_look: Some(first_look), looked_astray: false, .. } = *self.pass_of(process)
        else {
            return;
        };
        let Some(job) = self.job_of(source, id).map(|job| &self.jobs[job]) else { return };
        let was_there = job.present_since.is_some_and(|since| since <= first_look);
        // One that changed queue under an older id, between a snapshot and the reading of its payload, may be missed by
        // one look: that is what the second is for.
        let has_moved = job.moved_at.is_some_and(|at| at >= first_look);
        if was_there && !has_moved {
            self.violated(3, || format!("job {id} was in a queue all the time, and a look did not find it"));
        }
    }

    /// An act begins: its pass has judged the job absent, twice, and believes it.
    pub(super) fn check_begun(&mut self, process: Process, job: Option<usize>) {
        let pass = self.pass_of(process).clone();
        if pass.has_failed_look {
            self.violated(2, || "an act began in a pass one of whose looks had failed".to_owned());
        }
        let (Some(job), Some(first_look)) = (job, pass.first_look) else { return };
        let of = &self.jobs[job];
        let was_there = of.present_since.is_some_and(|since| since <= first_look);
        // Under an older id one look may miss it; the application of this world lets that happen only once in a pass.
        if was_there && self.wrong_redis.is_none() {
            let id = of.id.clone();
            self.violated(3, || format!("job {id} was in a queue all the time, and was judged absent"));
        }
    }

    /// A script did its part: it enqueued, or found the job in no state.
    pub(super) fn check_script(
        &mut self,
        process: Process,
        act: &Act,
        fence: &Fence,
        sender: Sender,
        stored: u64,
    ) {
        let id = act.candidate.token.id.clone();
        let source = source_of(act);
        if self.wrong_redis.is_some() {
            return self.violated(9, || format!("job {id} was acted on in another application's Redis"));
        }
        if stored > fence.generation {
            self.violated(5, || {
                format!(
                    "the script of generation {} ran for job {id} after that of {stored}",
                    fence.generation
                )
            });
        }
        self.check_epoch(source, &id, act, &fence.scope);
        let Some(job) = self.job_of(source, &id) else { return };
        self.check_presence(process, job, act);
        if let Some(since) = self.jobs[job].handed_over_since {
            let ms = (self.now() - since).as_millis();
            self.violated(3, || {
                format!("job {id} was acted on while it was handed over, for {ms} ms so far")
            });
        }
        if !matches!(act.change, Change::Requeue { .. }) {
            return;
        }
        let row = self.postgres.row(source, &id);
        let has_moved = row.is_none_or(|row| !row.has_token(&act.candidate.token));
        if sender == Sender::Waits && has_moved {
            self.violated(1, || format!("job {id} was enqueued though its row had moved on"));
        }
        self.jobs[job].recovered += 1;
        let (recovered, cap) = (self.jobs[job].recovered, self.profile.settings.recoveries_max);
        if recovered > cap {
            self.violated(7, || format!("job {id} was recovered {recovered} times, the cap is {cap}"));
        }
    }

    /// No queue of the job lost anything since its row was written, unless the operator accepted that.
    fn check_epoch(&mut self, source: usize, id: &str, act: &Act, scope: &str) {
        let written = self.postgres.row(source, id).filter(|row| row.has_token(&act.candidate.token));
        let Some(written) = written.map(|row| row.written) else { return };
        for (queue, name) in QUEUES.iter().enumerate() {
            let lost_at = self.truths.lost_at[queue];
            if self.truths.waits(scope, queue) && lost_at.is_some_and(|lost_at| written <= lost_at) {
                self.violated(9, || {
                    format!("job {id} was acted on though {name} lost data after its row was written")
                });
            }
        }
    }

    /// At the instant of the script nothing else in the queues is the job.
    fn check_presence(&mut self, process: Process, job: usize, act: &Act) {
        let own = |queue: &str, id: &str| match &act.change {
            Change::Requeue { requeue, entry_id, .. } => requeue.queue == queue && *entry_id == id,
            Change::Fail { .. } => false,
        };
        let is_placed = |queue: &str, id: &str| {
            act.places.iter().any(|place| place.queue == queue && place.entry_id == id)
        };
        let (mut own_count, mut by_rule, mut older) = (0, false, false);
        for (name, queue) in &self.redis.queues {
            for (_, listed) in queue.listed().filter(|(_, listed)| listed.job == Some(job)) {
                if own(name, &listed.id) {
                    own_count += 1;
                } else if is_placed(name, &listed.id) {
                    by_rule = true;
                } else {
                    older = true;
                }
            }
        }
        let id = act.candidate.token.id.clone();
        if by_rule || own_count > 1 {
            self.violated(4, || format!("job {id} was acted on while its queue held its entry"));
        }
        let pass = self.pass_of(process).clone();
        let of = &self.jobs[job];
        // What came under an older id after the last look, the script cannot know; nor, if it changed queue during that
        // look, what came before it.
        let was_seen = pass.last_look.is_some_and(|look| {
            of.present_since.is_some_and(|since| since <= look) && of.moved_at.is_none_or(|at| at < look)
        });
        if older && was_seen {
            self.violated(3, || format!("job {id} was acted on while its queue held it under an older id"));
        }
    }

    /// What the script refused is counted, so that the tally tells whether refusals ever happened.
    pub(super) fn note_answer(&mut self, answer: &ScriptAnswer) {
        self.tally.refused += u64::from(*answer != ScriptAnswer::Clear);
    }

    /// A transaction of a host becomes true.
    pub(super) fn check_commit(&mut self, transaction: &Transaction, found: Option<&Row>) {
        let id = transaction.act.candidate.token.id.clone();
        let fence = &transaction.fence;
        let newest = self.postgres.records.generation(&fence.scope);
        if newest > fence.generation {
            let generation = fence.generation;
            self.violated(5, || format!("generation {generation} wrote row {id} though {newest} had begun"));
        }
        match found {
            None => self.violated(1, || format!("row {id} was written though it is gone")),
            Some(row) if !row.is_live() => {
                let status = row.status;
                self.violated(1, || format!("row {id} was written though it is {status}"));
            }
            Some(row) if !row.has_token(&transaction.act.candidate.token) => {
                self.violated(1, || format!("row {id} was written though it had moved on"));
            }
            Some(_) => {}
        }
        let is_requeue = matches!(transaction.act.change, Change::Requeue { .. });
        if is_requeue && !transaction.is_cleared {
            self.violated(11, || {
                format!("row {id} was put back to QUEUED, and nothing was put into a queue")
            });
        }
        if self.now() > transaction.began + IDLE_MAX * 2 {
            self.violated(10, || format!("row {id} was locked for longer than the timeouts allow"));
        }
    }

    /// A parent is written: with its job, from a status it may have, and under no live sibling.
    pub(super) fn check_parent(&mut self, deck: usize, column: usize, to: &str, source: usize, job: &str) {
        let from = self.postgres.decks[deck].as_ref().map_or("gone", |deck| deck.status[column]);
        if from == "READY" {
            self.violated(6, || format!("deck {deck} was READY and was made {to}"));
        }
        let sibling = self.postgres.tables[column]
            .iter()
            .find(|(id, row)| row.deck == deck && row.is_live() && (column, id.as_str()) != (source, job));
        if let Some((id, _)) = sibling {
            let id = id.clone();
            self.violated(6, || format!("deck {deck} was made {to} though job {id} of it is live"));
        }
    }
}
