//! The ports of Redis on the model: lease and queues.

use std::collections::BTreeMap;
use std::time::Duration;

use salvage::ports::{Ask, Lease, Mark, QueueTerms, Queues};
use salvage_core::act::{Act, Change, Place, QueueRefusal, ScriptAnswer};
use salvage_core::lease::{Fence, LeaseAnswer, Scope};
use salvage_core::payload::{Data, Payload};
use salvage_core::sighting::{QueueFailure, Residue};
use salvage_core::snapshot::{Flaw, IdsCopy, IdsPage, QueueReading, Snapshot, Stalled, State};

use super::clock::wall_ms;
use super::domains::{QUEUES, source_of};
use super::host::{Lost, SimHost};
use super::oracle::Sender;
use super::redis::{Hash, LeaseKey, Listed, PREFIX, slot};
use super::scheduler::Process;
use super::script::ScriptTerms;
use super::twins::Twin;
use super::world::World;

impl From<Lost> for QueueFailure {
    fn from(lost: Lost) -> Self {
        match lost {
            Lost::Refused => Self::Refused { detail: "simulated".to_owned() },
            Lost::NoReply => Self::Timeout { timeout_ms: 5_000 },
        }
    }
}

impl Lease for SimHost {
    async fn acquire(&self, scope: &Scope, owner: &str, ttl: Duration) -> Result<LeaseAnswer, QueueFailure> {
        let (owner, process, scope) = (owner.to_owned(), self.process, scope.to_string());
        let take = {
            let (owner, scope) = (owner.clone(), scope.clone());
            move |world: &mut World, _: bool| {
                let until = world.now() + ttl;
                let leases = &mut world.redis_of_hosts().leases;
                let is_free = !leases.contains_key(&scope);
                if is_free {
                    leases.insert(scope, LeaseKey { owner, until });
                }
                is_free
            }
        };
        let answer = match self.send(take).await {
            Ok(true) => LeaseAnswer::Acquired,
            Ok(false) => LeaseAnswer::Held,
            Err(Lost::Refused) => return Err(Lost::Refused.into()),
            // The key itself tells.
            Err(Lost::NoReply) => {
                let holder = self.ask(|world| world.redis_of_hosts().leases.get(&scope).cloned()).await?;
                match holder {
                    Some(lease) if lease.owner == owner => LeaseAnswer::Acquired,
                    Some(_) => LeaseAnswer::Held,
                    None => return Err(Lost::NoReply.into()),
                }
            }
        };
        if answer == LeaseAnswer::Acquired {
            self.first_look.take();
            let mut world = self.world.borrow_mut();
            world.truths.begin_pass(process);
            world.tally.passes += 1;
            world.tell(|| format!("host {}: begins a pass", process.slot));
        }
        Ok(answer)
    }

    async fn renew(&self, scope: &Scope, owner: &str, ttl: Duration) -> Result<bool, QueueFailure> {
        let (scope, owner) = (scope.to_string(), owner.to_owned());
        let renew = move |world: &mut World, _: bool| {
            let until = world.now() + ttl;
            let lease = world.redis_of_hosts().leases.get_mut(&scope).filter(|lease| lease.owner == owner);
            lease.map(|lease| lease.until = until).is_some()
        };
        Ok(self.send(renew).await?)
    }

    async fn expires_in(&self, scope: &Scope) -> Result<Option<Duration>, QueueFailure> {
        let left = |world: &mut World| {
            let now = world.now();
            world.redis_of_hosts().leases.get(scope.as_str()).map(|lease| lease.until.saturating_sub(now))
        };
        Ok(self.ask(left).await?)
    }

    async fn release(&self, scope: &Scope, owner: &str) -> Result<bool, QueueFailure> {
        let (scope, owner) = (scope.to_string(), owner.to_owned());
        let give_back = move |world: &mut World, _: bool| {
            let leases = &mut world.redis_of_hosts().leases;
            let is_ours = leases.get(&scope).is_some_and(|lease| lease.owner == owner);
            if is_ours {
                leases.remove(&scope);
            }
            is_ours
        };
        Ok(self.send(give_back).await?)
    }
}

/// How many pages a twin reads of a part before it comes to the next, and how long each takes.
const PAGES: u32 = 3;
const READ_TIME: Duration = Duration::from_millis(5);

/// A part of a snapshot: this queue, these states.
type Part = (String, Vec<State>);

impl SimHost {
    /// The instants at which a look reads: one, unless a twin reads piece by piece.
    fn parts(&self, ask: &Ask<'_>) -> Vec<Vec<Part>> {
        let whole = |queue: &String| (queue.clone(), State::ALL.to_vec());
        match self.twin() {
            Some(Twin::OneSnapshotPerQueue) => ask.queues.iter().map(|queue| vec![whole(queue)]).collect(),
            Some(Twin::SeparateReads) => {
                let one = |queue: &String, state: State| vec![(queue.clone(), vec![state])];
                let states = |queue| State::ALL.into_iter().map(move |state| one(queue, state));
                ask.queues.iter().flat_map(states).collect()
            }
            _ => vec![ask.queues.iter().map(whole).collect()],
        }
    }

    async fn take_snapshot(&self, ask: &Ask<'_>) -> Result<Snapshot, QueueFailure> {
        let process = self.process;
        let mut snapshot: Option<Snapshot> = None;
        for part in self.parts(ask) {
            if snapshot.is_some() {
                // Page by page, as a queue of some length is read.
                for _ in 0..PAGES {
                    self.pause(READ_TIME).await;
                }
            }
            let read = self.ask(|world| world.read(process, ask, &part)).await?;
            match &mut snapshot {
                None => snapshot = Some(read),
                Some(snapshot) => join(snapshot, read),
            }
        }
        Ok(snapshot.unwrap_or_else(|| self.world.borrow_mut().read(process, ask, &[])))
    }

    /// What a twin makes of a look.
    fn bend(&self, scope: &str, snapshot: &mut Snapshot) {
        if self.is_twin(Twin::NoSecondLook) {
            // The second look sees what the first saw, so it is none. Its guards are fresh, for they are not a look.
            match &*self.first_look.borrow() {
                None => {}
                Some(first) => {
                    for (queue, reading) in &mut snapshot.queues {
                        let Some(seen) = first.queues.get(queue) else { continue };
                        (reading.ids, reading.lengths) = (seen.ids.clone(), seen.lengths.clone());
                        reading.copies = BTreeMap::new();
                    }
                }
            }
            let is_first = self.first_look.borrow().is_none();
            if is_first {
                self.first_look.replace(Some(snapshot.clone()));
            }
        }
        if self.is_twin(Twin::NoEpoch) {
            // The nonce that is expected is always found: together with memories that never end (see `queue_memories`)
            // and a script that asks for none, nobody notices a loss.
            for (queue, reading) in &mut snapshot.queues {
                reading.nonce = self.marked_in(scope, queue);
            }
        }
    }
}

/// Adds what was read at a later instant.
fn join(snapshot: &mut Snapshot, later: Snapshot) {
    for (queue, reading) in later.queues {
        match snapshot.queues.get_mut(&queue) {
            None => {
                snapshot.queues.insert(queue, reading);
            }
            Some(known) => {
                known.ids.extend(reading.ids);
                known.lengths.extend(reading.lengths);
                known.copies.extend(reading.copies);
            }
        }
    }
}

impl World {
    /// One instant's reading.
    fn read(&mut self, process: Process, ask: &Ask<'_>, part: &[Part]) -> Snapshot {
        let (now, is_astray) = (self.now(), self.wrong_redis.is_some());
        let pass = self.pass_of(process);
        pass.first_look.get_or_insert(now);
        pass.looked_astray |= is_astray;
        if !std::mem::replace(&mut pass.is_looking, true) {
            pass.last_look = Some(now);
        }
        let leaves_out = !ask.is_whole && self.twin.is_none() && self.random.permille(300);
        let copies = ask.copies.filter(|_| self.twin.is_none() && self.random.permille(100));
        let redis = self.redis_of_hosts();
        let mut queues = BTreeMap::new();
        let mut copied = vec![];
        for (name, states) in part {
            let mut reading = redis.queue(name).reading(ask.scope, ask.wanted.contains(name));
            // Long sorted sets are left out where nothing need be proven.
            reading.ids.retain(|state, _| states.contains(state) && (state.is_list() || !leaves_out));
            reading.lengths.retain(|state, _| states.contains(state));
            if let Some(token) = copies {
                copied.extend(copy(&mut reading, name, token));
            }
            queues.insert(name.clone(), reading);
        }
        redis.copies.extend(copied);
        let server = redis.server();
        self.tell(|| format!("host {}: looks at the queues", process.slot));
        Snapshot { prefix: PREFIX.to_owned(), at_ms: wall_ms(now), server, queues }
    }

    /// What a mark writes.
    fn mark_queues(&mut self, marks: &BTreeMap<String, Mark>, fence: &Fence) -> Result<(), QueueFailure> {
        let vouches_blindly = self.twin == Some(Twin::NoEpoch);
        let redis = self.redis_of_hosts();
        for (name, mark) in marks {
            let queue = redis.queue(name);
            let found = queue.generations.get(&fence.scope).copied().unwrap_or(0);
            if found > fence.generation {
                self.tally.fenced += 1;
                return Err(QueueFailure::Fenced { queue: name.clone(), generation: found });
            }
            let holds = queue.nonces.get(&fence.scope);
            let is_known = holds == mark.found.as_ref() || holds == Some(&mark.nonce);
            if !is_known && !vouches_blindly {
                return Err(QueueFailure::Changed { queue: name.clone() });
            }
        }
        for (name, mark) in marks {
            let queue = redis.queue(name);
            queue.nonces.insert(fence.scope.clone(), mark.nonce.clone());
            queue.generations.insert(fence.scope.clone(), fence.generation);
            *queue.marks.entry(fence.scope.clone()).or_default() += 1;
        }
        Ok(())
    }

    /// What an act's script does.
    fn run_act(&mut self, process: Process, act: &Act, terms: &QueueTerms, sender: Sender) -> ScriptAnswer {
        let now = self.now();
        self.pass_of(process).is_looking = false;
        let job = self.job_of(source_of(act), &act.candidate.token.id);
        let is_unfenced = self.twin == Some(Twin::NoFenceInScript);
        let knows_no_epoch = self.twin == Some(Twin::NoEpoch);
        let script = ScriptTerms {
            scope: terms.fence.scope.clone(),
            generation: (!is_unfenced).then_some(terms.fence.generation),
            deadline_ms: terms.deadline_ms,
            // A pass's nonce is no other pass's, so a script that compares it is fenced by it as well.
            nonces: if is_unfenced || knows_no_epoch { BTreeMap::new() } else { terms.nonces.clone() },
            with_meta: terms.with_meta.iter().filter(|_| !knows_no_epoch).cloned().collect(),
        };
        let stored = act.places.iter().filter_map(|place| {
            self.redis_of_hosts().queue(&place.queue).generations.get(&script.scope).copied()
        });
        let stored = stored.max().unwrap_or(0);
        let answer = match (&act.change, self.twin) {
            (Change::Requeue { .. }, Some(Twin::PlainAdd)) => self.plain_add(act, job),
            _ => self.redis_of_hosts().run_script(act, &script, job, now),
        };
        self.note_presence();
        self.note_answer(&answer);
        let id = &act.candidate.token.id;
        self.tell(|| format!("host {}: script for {id} ({sender:?}): {answer:?}", process.slot));
        match &answer {
            ScriptAnswer::Clear => {
                self.check_script(process, act, &terms.fence, sender, stored);
                let is_added = self.has_entry(act);
                let own = self.postgres.transactions.values_mut();
                let mut own = own.filter(|of| of.process == process && of.act.candidate == act.candidate);
                if let Some(transaction) = own.next() {
                    transaction.is_cleared = is_added;
                }
            }
            ScriptAnswer::Refused(QueueRefusal::Fenced { .. }) => self.tally.fenced += 1,
            _ => {}
        }
        answer
    }

    /// Whether the queue holds what the act has put there; a fail puts nothing anywhere.
    fn has_entry(&mut self, act: &Act) -> bool {
        match &act.change {
            Change::Requeue { requeue, entry_id, .. } => {
                self.redis_of_hosts().queue(&requeue.queue).find(entry_id).is_some()
            }
            Change::Fail { .. } => true,
        }
    }

    /// `BullMQ`'s own add: no look at other queues, and with a hash left over it does nothing and reports success.
    fn plain_add(&mut self, act: &Act, job: Option<usize>) -> ScriptAnswer {
        if let Change::Requeue { requeue, entry_id, delay } = &act.change {
            let due = self.now() + *delay;
            let listed = Listed { id: entry_id.clone(), job, due };
            let data = requeue.data.clone();
            self.redis_of_hosts().queue(&requeue.queue).add(State::Delayed, listed, data);
        }
        ScriptAnswer::Clear
    }
}

/// Moves a reading's ids into copies.
fn copy(reading: &mut QueueReading, queue: &str, token: &str) -> Vec<(String, Vec<String>)> {
    let mut made = vec![];
    for (state, ids) in std::mem::take(&mut reading.ids) {
        let key = format!("{queue}:{}:{token}", state.key());
        reading.copies.insert(state, IdsCopy { key: key.clone(), length: ids.len() });
        made.push((key, ids));
    }
    made
}

impl Queues for SimHost {
    async fn snapshot(&self, ask: &Ask<'_>) -> Result<Snapshot, QueueFailure> {
        let taken = self.take_snapshot(ask).await;
        if taken.is_err() {
            self.world.borrow_mut().pass_of(self.process).has_failed_look = true;
        }
        let mut snapshot = match taken {
            Err(_) if self.is_twin(Twin::ErrorAsAbsence) => {
                // As if a client took a failed read for an empty answer: the guards are fine, the lists are empty.
                let process = self.process;
                let mut world = self.world.borrow_mut();
                let whole: Vec<Part> =
                    ask.queues.iter().map(|queue| (queue.clone(), State::ALL.to_vec())).collect();
                let mut empty = world.read(process, &Ask { copies: None, ..*ask }, &whole);
                for reading in empty.queues.values_mut() {
                    reading.ids.values_mut().for_each(Vec::clear);
                }
                empty
            }
            other => other?,
        };
        self.bend(ask.scope, &mut snapshot);
        Ok(snapshot)
    }

    async fn page(
        &self,
        copy: &IdsCopy,
        from: usize,
        count: usize,
    ) -> Result<IdsPage<'static>, QueueFailure> {
        let read = |world: &mut World| world.redis_of_hosts().copies.get(&copy.key).cloned();
        let Some(ids) = self.ask(read).await? else {
            return Ok(IdsPage { ids: vec![].into(), flaw: Some(Flaw::CopyLost { key: copy.key.clone() }) });
        };
        let page: Vec<String> = ids.into_iter().skip(from).take(count).collect();
        Ok(IdsPage { ids: page.into(), flaw: None })
    }

    async fn remove_copies(&self) {
        self.world.borrow_mut().redis_of_hosts().copies.clear();
    }

    async fn payloads(&self, queue: &str, entry_ids: &[String]) -> Result<Vec<Payload>, QueueFailure> {
        let read = |world: &mut World| {
            let queue = world.redis_of_hosts().queue(queue);
            let payload = |id: &String| queue.hashes.get(id).map(Hash::payload).unwrap_or_default();
            entry_ids.iter().map(payload).collect()
        };
        let mut payloads: Vec<Payload> = self.ask(read).await?;
        if self.is_twin(Twin::UnattributedAsForeign) {
            // Under another name, and without what by-value would find: so a pass takes it for somebody else's.
            let odd = payloads
                .iter_mut()
                .filter(|payload| matches!(&payload.data, Data::Text(text) if !text.contains("jobId")));
            odd.for_each(|payload| *payload = Payload::named("ping", "{}"));
        }
        Ok(payloads)
    }

    async fn are_in_set(
        &self,
        queue: &str,
        state: State,
        entry_ids: &[String],
    ) -> Result<Vec<bool>, QueueFailure> {
        let read = |world: &mut World| {
            let listed = &world.redis_of_hosts().queue(queue).states[slot(state)];
            entry_ids.iter().map(|id| listed.iter().any(|it| it.id == *id)).collect()
        };
        Ok(self.ask(read).await?)
    }

    async fn residues(&self, jobs: &[Vec<Place>]) -> Result<Vec<Residue>, QueueFailure> {
        let read = |world: &mut World| {
            let redis = world.redis_of_hosts();
            jobs.iter().map(|places| redis.residue(places)).collect()
        };
        Ok(self.ask(read).await?)
    }

    async fn mark(&self, marks: &BTreeMap<String, Mark>, fence: &Fence) -> Result<(), QueueFailure> {
        let key = |queue: &String| (fence.scope.clone(), queue.clone());
        let nonces = marks.iter().map(|(queue, mark)| (key(queue), mark.nonce.clone()));
        self.marked.borrow_mut().extend(nonces);
        // Who looks after that looks at what holds the mark.
        self.world.borrow_mut().pass_of(self.process).is_looking = false;
        let (marks, fence) = (marks.clone(), fence.clone());
        self.send(move |world, _| world.mark_queues(&marks, &fence)).await?
    }

    async fn act(&self, act: &Act, terms: &QueueTerms) -> Result<ScriptAnswer, QueueFailure> {
        if self.is_twin(Twin::EnqueueBeforeUpdate) {
            // Done already, see `hold`.
            return Ok(ScriptAnswer::Clear);
        }
        self.act_on_queue(act, terms).await
    }

    async fn stalled(&self, queue: &str, active: &[String]) -> Result<Vec<Stalled>, QueueFailure> {
        let read = |world: &mut World| {
            let now = world.now();
            world.redis_of_hosts().queue(queue).stalled(active, now)
        };
        Ok(self.ask(read).await?)
    }

    fn commands_sent(&self) -> u64 {
        self.commands.get()
    }
}

impl SimHost {
    /// The nonce that was last written into a queue, as far as this host knows.
    pub(super) fn marked_in(&self, scope: &str, queue: &str) -> Option<String> {
        self.marked.borrow().get(&(scope.to_owned(), queue.to_owned())).cloned()
    }

    /// All of them, by queue.
    pub(super) fn nonces_of(&self, scope: &str) -> BTreeMap<String, String> {
        let marked = self.marked.borrow();
        let own = marked.iter().filter(|((of, _), _)| of == scope);
        own.map(|((_, queue), nonce)| (queue.clone(), nonce.clone())).collect()
    }

    pub(super) async fn act_on_queue(
        &self,
        act: &Act,
        terms: &QueueTerms,
    ) -> Result<ScriptAnswer, QueueFailure> {
        let (process, act, terms) = (self.process, act.clone(), terms.clone());
        let run = move |world: &mut World, is_waited_for: bool| {
            let sender = if is_waited_for { Sender::Waits } else { Sender::Gone };
            world.run_act(process, &act, &terms, sender)
        };
        Ok(self.send(run).await?)
    }
}

/// The terms of a healthy pass, for a twin that writes the queue before it has any.
pub(super) fn terms_of(fence: &Fence, now: Duration, nonces: BTreeMap<String, String>) -> QueueTerms {
    QueueTerms {
        fence: fence.clone(),
        deadline_ms: wall_ms(now) + 5_000,
        nonces,
        with_meta: QUEUES.iter().map(|queue| (*queue).to_owned()).collect(),
    }
}
