//! A host as the pass sees it: the production ports, on the models.
//!
//! Each call travels. Before it takes effect and before its answer is known, time passes and anybody may act; a request
//! or its reply may be lost, or late. A write that has been sent arrives even if its sender died meanwhile.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use salvage::ports::{Answer, Clock, HandlerFault, Handlers, LoadedDomain, Outside, Question};
use salvage_core::snapshot::Snapshot;

use super::domains::{self, DECIDE_TIME, source_index};
use super::scheduler::{Event, Gate, Process};
use super::twins::Twin;
use super::world::World;

/// The world, shared by all who live in it.
pub(super) type Shared = Rc<RefCell<World>>;

/// How long a client waits for a reply.
const REPLY_TIMEOUT: Duration = Duration::from_secs(5);

/// One process's way to the world: every port.
pub struct SimHost {
    pub(super) world: Shared,
    pub(super) process: Process,
    domains: Vec<LoadedDomain>,
    /// What a twin remembers of its first look.
    pub(super) first_look: RefCell<Option<Snapshot>>,
    /// By scope and queue, the nonce that this host has last written: what a twin believes to be there.
    pub(super) marked: RefCell<BTreeMap<(String, String), String>>,
    pub(super) commands: Cell<u64>,
}

/// No reply came.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Lost {
    /// The connection was refused: nothing was sent.
    Refused,
    /// It may have been carried out.
    NoReply,
}

impl SimHost {
    pub(super) fn new(world: &Shared, process: Process) -> Self {
        let domains = world.borrow().domains.clone();
        Self {
            world: Rc::clone(world),
            process,
            domains,
            first_look: RefCell::default(),
            marked: RefCell::default(),
            commands: Cell::new(0),
        }
    }

    pub(super) fn twin(&self) -> Option<Twin> {
        self.world.borrow().twin
    }

    pub(super) fn is_twin(&self, twin: Twin) -> bool {
        self.twin() == Some(twin)
    }

    /// Lets time pass.
    pub(super) async fn pause(&self, duration: Duration) {
        let gate = Gate::new(self.process);
        self.world.borrow_mut().after(duration, Event::Open(Rc::clone(&gate)));
        gate.passed().await;
    }

    /// Lets a message travel.
    pub(super) async fn travel(&self) {
        let latency = self.world.borrow_mut().latency();
        self.pause(latency).await;
    }

    /// A read: asked, answered, and lost if it must be.
    ///
    /// # Errors
    /// If the request or the reply was lost.
    pub(super) async fn ask<T>(&self, effect: impl FnOnce(&mut World) -> T) -> Result<T, Lost> {
        self.commands.set(self.commands.get() + 1);
        let fate = self.world.borrow_mut().fate();
        self.travel().await;
        let fails = match fate {
            None => {
                let answer = effect(&mut self.world.borrow_mut());
                self.travel().await;
                return Ok(answer);
            }
            Some(lost) => lost,
        };
        if fails == Lost::NoReply {
            self.pause(REPLY_TIMEOUT).await;
        }
        Err(fails)
    }

    /// A write: once sent, it arrives whoever lives by then, unless the request is lost. `effect` is told whether the
    /// sender still waits.
    ///
    /// # Errors
    /// If no reply came in time.
    pub(super) async fn send<T: 'static>(
        &self,
        effect: impl FnOnce(&mut World, bool) -> T + 'static,
    ) -> Result<T, Lost> {
        self.commands.set(self.commands.get() + 1);
        let fate = self.world.borrow_mut().fate();
        if fate == Some(Lost::Refused) {
            self.travel().await;
            return Err(Lost::Refused);
        }
        let gate = Gate::new(self.process);
        let reply = Rc::new(RefCell::new(None));
        self.world.borrow_mut().dispatch(&gate, &reply, fate.is_some(), effect);
        gate.passed().await;
        reply.take().ok_or(Lost::NoReply)
    }
}

impl World {
    /// Sends a write on its way, and its reply back; either may be late or lost if `is_disturbed`.
    fn dispatch<T: 'static>(
        &mut self,
        gate: &Rc<Gate>,
        reply: &Rc<RefCell<Option<T>>>,
        is_disturbed: bool,
        effect: impl FnOnce(&mut Self, bool) -> T + 'static,
    ) {
        let is_request_lost = is_disturbed && self.random.permille(300);
        let is_reply_lost = is_disturbed && self.random.coin();
        let latency = if is_disturbed { self.random.ms(0..8_000) } else { self.latency() };
        let back = self.latency();
        if is_request_lost || is_reply_lost || latency + back >= REPLY_TIMEOUT {
            self.after(REPLY_TIMEOUT, Event::Open(Rc::clone(gate)));
        }
        if is_request_lost {
            return;
        }
        let (gate, reply, sender) = (Rc::clone(gate), Rc::clone(reply), gate.process);
        let arrival = move |world: &mut Self| {
            let is_waited_for = !gate.is_open() && world.truths.is_alive(sender);
            let answer = effect(world, is_waited_for);
            if !is_reply_lost {
                reply.replace(Some(answer));
                world.after(back, Event::Open(gate));
            }
        };
        self.after(latency, Event::Arrive(sender, Box::new(arrival)));
    }

    /// How long a message takes; seldom long.
    pub(super) fn latency(&mut self) -> Duration {
        if !self.is_calm && self.random.permille(20) {
            self.random.ms(50..1_500)
        } else {
            self.random.ms(0..4)
        }
    }

    /// Whether a request fails, and how.
    pub(super) fn fate(&mut self) -> Option<Lost> {
        if !self.random.permille(self.profile.fault) {
            return None;
        }
        self.tally.faults += 1;
        self.tell(|| "fault: a request fails".to_owned());
        Some(if self.random.permille(300) { Lost::Refused } else { Lost::NoReply })
    }
}

impl Outside for SimHost {
    type Lease = Self;
    type Queues = Self;
    type Jobs = Self;
    type Ledger = Self;
    type Handlers = Self;
    type Clock = Self;

    fn lease(&self) -> &Self {
        self
    }
    fn queues(&self) -> &Self {
        self
    }
    fn jobs(&self) -> &Self {
        self
    }
    fn ledger(&self) -> &Self {
        self
    }
    fn handlers(&self) -> &Self {
        self
    }
    fn clock(&self) -> &Self {
        self
    }
}

impl Clock for SimHost {
    fn now(&self) -> Duration {
        self.world.borrow().now()
    }

    async fn sleep(&self, duration: Duration) {
        // Without a second look nobody waits for one.
        let is_settling = duration == self.world.borrow().profile.settings.settle;
        if !(is_settling && self.is_twin(Twin::NoSecondLook)) {
            self.pause(duration).await;
        }
        if is_settling {
            self.world.borrow_mut().pass_of(self.process).is_looking = false;
        }
    }

    async fn until(&self, instant: Duration) {
        let left = instant.saturating_sub(self.now());
        if !left.is_zero() {
            self.sleep(left).await;
        }
    }

    fn token(&self) -> String {
        self.world.borrow_mut().token()
    }

    fn fraction(&self) -> f64 {
        self.world.borrow_mut().random.fraction()
    }
}

impl Handlers for SimHost {
    fn domains(&self) -> Vec<LoadedDomain> {
        self.domains.clone()
    }

    async fn decide(&self, question: &Question<'_>) -> Answer {
        self.pause(DECIDE_TIME).await;
        let fails = {
            let mut world = self.world.borrow_mut();
            let fault = world.profile.fault;
            world.random.permille(fault)
        };
        let (source, candidate) = (source_index(question.source), question.candidate);
        self.world.borrow_mut().check_judged(self.process, source, &candidate.token.id);
        let decision = if fails {
            Err(HandlerFault::Trap { message: "simulated".to_owned() })
        } else {
            Ok(domains::decide(source, &candidate.job_type, &candidate.token.id))
        };
        Answer { decision, took: DECIDE_TIME }
    }
}
