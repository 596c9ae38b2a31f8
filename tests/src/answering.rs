//! A host whose handlers answer what a test tells them to, on real servers.

use salvage::clock::MachineClock;
use salvage::host::Host;
use salvage::ports::{Answer, HandlerFault, Handlers, LoadedDomain, Outside, Question};
use salvage::postgres::Postgres;
use salvage::redis::{RedisLease, RedisQueues};
use salvage_core::decision::Decision;

type Decide<'t> = Box<dyn Fn(&Question<'_>) -> Result<Decision, HandlerFault> + 't>;

/// A host whose handlers declare what the loaded ones do, unless the test says otherwise, and answer by a closure.
pub struct Answering<'t> {
    host: &'t Host,
    handlers: FakeHandlers<'t>,
}

impl<'t> Answering<'t> {
    /// Every orphan of every domain is decided by `decide`.
    pub fn new(
        host: &'t Host,
        decide: impl Fn(&Question<'_>) -> Result<Decision, HandlerFault> + 't,
    ) -> Self {
        let domains = host.handlers.domains();
        Self { host, handlers: FakeHandlers { domains, decide: Box::new(decide) } }
    }

    /// The domains declare something else.
    #[must_use]
    pub fn declaring(mut self, change: impl FnOnce(&mut Vec<LoadedDomain>)) -> Self {
        change(&mut self.handlers.domains);
        self
    }
}

impl<'t> Outside for Answering<'t> {
    type Lease = RedisLease;
    type Queues = RedisQueues;
    type Jobs = Postgres;
    type Ledger = Postgres;
    type Handlers = FakeHandlers<'t>;
    type Clock = MachineClock;

    fn lease(&self) -> &RedisLease {
        self.host.lease()
    }
    fn queues(&self) -> &RedisQueues {
        self.host.queues()
    }
    fn jobs(&self) -> &Postgres {
        self.host.jobs()
    }
    fn ledger(&self) -> &Postgres {
        self.host.ledger()
    }
    fn handlers(&self) -> &FakeHandlers<'t> {
        &self.handlers
    }
    fn clock(&self) -> &MachineClock {
        self.host.clock()
    }
}

/// Handlers that are closures.
pub struct FakeHandlers<'t> {
    domains: Vec<LoadedDomain>,
    decide: Decide<'t>,
}

impl Handlers for FakeHandlers<'_> {
    fn domains(&self) -> Vec<LoadedDomain> {
        self.domains.clone()
    }

    async fn decide(&self, question: &Question<'_>) -> Answer {
        Answer { decision: (self.decide)(question), usage: None }
    }
}
