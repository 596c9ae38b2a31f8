//! Runs a world: takes event after event, lets hosts go on, die, freeze and start again.

use std::future::Future;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use salvage::schedule;
use salvage::stop::{StopSwitch, stop};

use super::host::{Shared, SimHost};
use super::scheduler::{Deed, Event, Gate, Process};
use super::world::World;

/// Moves before one step of a host, at most.
const MOVES_MAX: usize = 5;

/// A process that lives in a slot.
struct Life {
    future: Pin<Box<dyn Future<Output = ()>>>,
    switch: StopSwitch,
}

/// A slot for a process.
#[derive(Default)]
struct Slot {
    life: Option<Life>,
    starts: u32,
    frozen_until: Option<Duration>,
}

/// A world and the processes in it.
pub(super) struct Simulation {
    pub(super) world: Shared,
    slots: Vec<Slot>,
}

/// What befalls a process at a step.
enum Trouble {
    Crash,
    /// SIGTERM.
    Terminate,
    Freeze(Duration),
}

impl Simulation {
    pub(super) fn new(world: World) -> Self {
        // The hosts, one that starts when a lease is lost, the operator, and whoever looks at the world at rest.
        let slots = (0..world.profile.hosts + 3).map(|_| Slot::default()).collect();
        Self { world: Rc::new(std::cell::RefCell::new(world)), slots }
    }

    fn operator(&self) -> usize {
        self.slots.len() - 2
    }

    /// The restless part of a history.
    pub(super) fn run_restless(&mut self) {
        let end = {
            let mut world = self.world.borrow_mut();
            for slot in 0..world.profile.hosts {
                let delay = world.random.ms(0..40_000);
                world.after(delay, Event::Start(slot));
            }
            let first = world.random.ms(0..10_000);
            world.after(first, Event::Moves);
            world.now() + world.profile.restless
        };
        loop {
            {
                let world = self.world.borrow();
                if world.violation.is_some() || world.scheduler.next_at().is_none_or(|at| at > end) {
                    break;
                }
            }
            self.step();
        }
        self.end_all();
    }

    /// Ends every process: some die, some are asked.
    fn end_all(&mut self) {
        for slot in 0..self.slots.len() {
            self.kill(slot);
        }
    }

    /// Takes one event. Returns whether there was one.
    pub(super) fn step(&mut self) -> bool {
        let Some(event) = self.next_event() else { return false };
        match event {
            Event::Open(gate) => self.open(&gate),
            Event::Arrive(sender, deed) => self.arrive(sender, deed),
            Event::Deed(deed) => deed(&mut self.world.borrow_mut()),
            Event::Moves => {
                let mut world = self.world.borrow_mut();
                if world.is_calm {
                    return true;
                }
                world.make_a_move();
                let every = world.profile.moves_every.as_millis();
                let next = world.random.ms(0..u64::try_from(every * 2).unwrap_or(u64::MAX));
                world.after(next, Event::Moves);
            }
            Event::Start(slot) => {
                let (is_calm, is_astray) = {
                    let world = self.world.borrow();
                    (world.is_calm, world.wrong_redis.is_some())
                };
                // An operator accepts no Redis that is not theirs.
                let is_misled = is_astray && slot == self.operator();
                if !is_calm && !is_misled {
                    self.start(slot);
                }
            }
        }
        true
    }

    fn next_event(&self) -> Option<Event> {
        let mut world = self.world.borrow_mut();
        let event = world.scheduler.next()?;
        world.expire();
        Some(event)
    }

    /// Others may come first.
    fn rival(&self) {
        let mut world = self.world.borrow_mut();
        let rival = world.profile.rival;
        for _ in 0..MOVES_MAX {
            if !world.random.permille(rival) {
                break;
            }
            world.make_a_move();
        }
    }

    fn arrive(&mut self, sender: Process, deed: Deed) {
        if self.is_struck_down(sender) {
            {
                let mut world = self.world.borrow_mut();
                let delay = world.random.ms(20..1_500);
                world.after(delay, Event::Arrive(sender, deed));
            }
            return self.crash(sender.slot);
        }
        self.rival();
        deed(&mut self.world.borrow_mut());
    }

    /// The worst moment to die: what was sent is under way.
    fn is_struck_down(&self, sender: Process) -> bool {
        let mut world = self.world.borrow_mut();
        let crash = world.profile.crash * 3;
        world.truths.is_alive(sender)
            && self.slots[sender.slot].life.is_some()
            && world.random.permille(crash)
    }

    /// The process dies; perhaps with a machine that held the lease as well, and then another takes over at once.
    fn crash(&mut self, slot: usize) {
        {
            let mut world = self.world.borrow_mut();
            world.tally.crashes += 1;
            world.tell(|| format!("CRASH: process {slot} dies"));
            let is_outage = world.random.permille(400);
            let pause = if is_outage { Duration::ZERO } else { world.random.ms(0..30_000) };
            if is_outage {
                world.lose_lease();
            }
            world.after(pause, Event::Start(slot));
        }
        self.kill(slot);
    }

    fn open(&mut self, gate: &Rc<Gate>) {
        let slot = gate.process.slot;
        let is_alive = self.world.borrow().truths.is_alive(gate.process);
        if gate.is_open() || !is_alive {
            return;
        }
        if let Some(until) = self.slots[slot].frozen_until {
            let mut world = self.world.borrow_mut();
            let now = world.now();
            if now < until {
                return world.after(until - now, Event::Open(Rc::clone(gate)));
            }
            drop(world);
            self.slots[slot].frozen_until = None;
        }
        match self.trouble(slot) {
            Some(Trouble::Crash) => self.crash(slot),
            Some(Trouble::Freeze(duration)) => {
                let mut world = self.world.borrow_mut();
                world.tally.freezes += 1;
                world.tell(|| format!("FREEZE: process {slot} for {} ms", duration.as_millis()));
                self.slots[slot].frozen_until = Some(world.now() + duration);
                world.after(duration, Event::Open(Rc::clone(gate)));
            }
            Some(Trouble::Terminate) => {
                self.world.borrow_mut().tell(|| format!("SIGTERM: process {slot}"));
                self.world.borrow_mut().after(Duration::ZERO, Event::Open(Rc::clone(gate)));
                if let Some(life) = &self.slots[slot].life {
                    life.switch.request();
                }
                self.poll(slot);
            }
            None => {
                self.rival();
                gate.open();
                self.poll(slot);
            }
        }
    }

    /// A process that only sleeps between two passes is left alone: nothing could go wrong with it.
    fn trouble(&self, slot: usize) -> Option<Trouble> {
        self.slots[slot].life.as_ref()?;
        let mut world = self.world.borrow_mut();
        let (crash, freeze) = (world.profile.crash, world.profile.freeze);
        if world.random.permille(crash) {
            return Some(if world.random.permille(800) { Trouble::Crash } else { Trouble::Terminate });
        }
        if !world.random.permille(freeze) {
            return None;
        }
        let ttl_ms = u64::try_from(world.profile.settings.lease_ttl.as_millis()).unwrap_or(u64::MAX);
        let kind = world.random.below(3);
        Some(Trouble::Freeze(match kind {
            0 => world.random.ms(10..4_000),
            1 => world.random.ms(4_000..10_000),
            _ => world.random.ms(ttl_ms..ttl_ms * 3 / 2),
        }))
    }

    /// Ends a process on the spot. What it had sent arrives all the same.
    fn kill(&mut self, slot: usize) {
        let process = Process { slot, start: self.slots[slot].starts };
        let life = self.slots[slot].life.take();
        self.slots[slot].frozen_until = None;
        if life.is_some() {
            drop(life);
            let mut world = self.world.borrow_mut();
            world.truths.died(process);
            let held_up = if world.random.coin() { Duration::ZERO } else { world.random.ms(0..4_000) };
            let is_on_its_way = world.scheduler.hold_up(process, held_up);
            // Whatever took the host may have taken its lease, too: then its successor is there before what it had sent.
            let is_succeeded = is_on_its_way && world.random.coin();
            let is_noticed = is_succeeded || world.random.coin();
            world.bury(process, is_noticed);
            if is_succeeded {
                world.lose_lease();
            }
        }
    }

    /// Begins a new life in a slot, unless one goes on there.
    fn start(&mut self, slot: usize) {
        if self.slots[slot].life.is_some() {
            return;
        }
        self.slots[slot].starts += 1;
        let process = Process { slot, start: self.slots[slot].starts };
        self.world.borrow_mut().truths.born(process);
        let host = SimHost::new(&self.world, process);
        let settings = self.world.borrow().profile.settings.clone();
        let (switch, stop) = stop();
        self.world.borrow_mut().tell(|| format!("process {slot} starts"));
        let future: Pin<Box<dyn Future<Output = ()>>> = if slot == self.operator() {
            Box::pin(async move {
                super::rest::accept(&host).await;
            })
        } else {
            Box::pin(async move { schedule::run(&host, &settings, &stop).await })
        };
        self.slots[slot].life = Some(Life { future, switch });
        self.poll(slot);
    }

    fn poll(&mut self, slot: usize) {
        let Some(life) = &mut self.slots[slot].life else { return };
        let mut context = Context::from_waker(Waker::noop());
        if life.future.as_mut().poll(&mut context).is_ready() {
            let process = Process { slot, start: self.slots[slot].starts };
            self.slots[slot].life = None;
            let mut world = self.world.borrow_mut();
            world.truths.died(process);
            let pause = world.random.ms(1_000..60_000);
            if slot != self.slots.len() - 2 {
                world.after(pause, Event::Start(slot));
            }
        }
    }

    /// Someone who is not in a slot of their own, for as long as a call of [`Self::finish`] takes.
    pub(super) fn visitor(&mut self) -> SimHost {
        let slot = self.slots.len() - 1;
        self.slots[slot].starts += 1;
        let process = Process { slot, start: self.slots[slot].starts };
        self.world.borrow_mut().truths.born(process);
        SimHost::new(&self.world, process)
    }

    /// Lets the world go on until `future` is done.
    ///
    /// # Panics
    /// If it waits for something that never comes.
    pub(super) fn finish<T>(&mut self, future: impl Future<Output = T>) -> T {
        let mut future = pin!(future);
        loop {
            let mut context = Context::from_waker(Waker::noop());
            if let Poll::Ready(done) = future.as_mut().poll(&mut context) {
                return done;
            }
            assert!(self.step(), "the future waits, and nothing is to come");
        }
    }
}
