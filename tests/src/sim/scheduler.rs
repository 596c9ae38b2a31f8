//! What happens next: every event has its instant, and events of one instant keep their order.
//!
//! A host is a plain future. Whatever it waits for is a [`Gate`]; when the gate's event comes, the gate opens, its waker is
//! told, and the host is polled. There is no reactor and no thread: the same seed gives the same history.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::future::poll_fn;
use std::rc::Rc;
use std::task::{Poll, Waker};
use std::time::Duration;

use super::world::World;

/// Which process: its slot, and how often the slot was started before. A process that died leaves events behind; they are
/// told from its successor's by that number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Process {
    pub(super) slot: usize,
    pub(super) start: u32,
}

/// Something that one step of a process waits for.
#[derive(Debug)]
pub(super) struct Gate {
    pub(super) process: Process,
    is_open: Cell<bool>,
    waker: RefCell<Option<Waker>>,
}

impl Gate {
    pub(super) fn new(process: Process) -> Rc<Self> {
        Rc::new(Self { process, is_open: Cell::new(false), waker: RefCell::new(None) })
    }

    pub(super) const fn is_open(&self) -> bool {
        self.is_open.get()
    }

    /// Lets through whoever waits, at its next poll.
    pub(super) fn open(&self) {
        self.is_open.set(true);
        if let Some(waker) = self.waker.take() {
            waker.wake();
        }
    }

    pub(super) async fn passed(&self) {
        poll_fn(|context| {
            if self.is_open() {
                return Poll::Ready(());
            }
            self.waker.replace(Some(context.waker().clone()));
            Poll::Pending
        })
        .await;
    }
}

/// Something that reaches a store, or that the application does at its time, whoever else lives by then.
pub(super) type Deed = Box<dyn FnOnce(&mut World)>;

/// What an instant brings.
pub(super) enum Event {
    /// A process goes on.
    Open(Rc<Gate>),
    /// A request of a process reaches its store.
    Arrive(Process, Deed),
    /// The application does the second half of what it began.
    Deed(Deed),
    /// The application makes moves.
    Moves,
    /// A process starts in a slot.
    Start(usize),
}

/// The events to come, and what time it is.
#[derive(Default)]
pub(super) struct Scheduler {
    now: Duration,
    count: u64,
    events: BTreeMap<(Duration, u64), Event>,
}

impl Scheduler {
    pub(super) fn starting_at(now: Duration) -> Self {
        Self { now, ..Self::default() }
    }

    pub(super) const fn now(&self) -> Duration {
        self.now
    }

    pub(super) fn after(&mut self, delay: Duration, event: Event) {
        self.count += 1;
        self.events.insert((self.now + delay, self.count), event);
    }

    /// What a process has sent and has not arrived yet is held up on its way. Whether there is anything.
    pub(super) fn hold_up(&mut self, sender: Process, delay: Duration) -> bool {
        let is_his = |event: &Event| matches!(event, Event::Arrive(process, _) if *process == sender);
        let sent = self.events.extract_if(.., |_, event| is_his(event));
        let sent: Vec<_> = sent.collect();
        let is_on_its_way = !sent.is_empty();
        self.events.extend(sent.into_iter().map(|((at, count), event)| ((at + delay, count), event)));
        is_on_its_way
    }

    /// Takes the next event and lets the time come.
    pub(super) fn next(&mut self) -> Option<Event> {
        let ((at, _), event) = self.events.pop_first()?;
        self.now = self.now.max(at);
        Some(event)
    }

    /// When the next event comes.
    pub(super) fn next_at(&self) -> Option<Duration> {
        self.events.first_key_value().map(|((at, _), _)| *at)
    }
}
