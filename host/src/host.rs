//! The adapters of one process, bundled for the pass.

use crate::clock::MachineClock;
use crate::config::Config;
use crate::ports::{Outside, StoreFailure};
use crate::postgres::{Pooler, Postgres};
use crate::redis::{InvalidUrl, RedisLease, RedisQueues, RedisSettings};
use crate::wasm::Registry;

/// PostgreSQL, Redis, the handlers and the machine's clock.
pub struct Host {
    /// The lease's key in Redis.
    pub lease: RedisLease,
    /// The queues.
    pub queues: RedisQueues,
    /// Job rows and Salvage's own tables.
    pub postgres: Postgres,
    /// The handlers.
    pub handlers: Registry,
    clock: MachineClock,
}

/// A setting that passed the configuration and was refused by its adapter.
#[derive(Debug, thiserror::Error)]
pub enum HostError {
    /// `[database] url`.
    #[error("[database] url cannot be used")]
    Database(#[source] StoreFailure),
    /// `[redis] url`.
    #[error("[redis] url cannot be used")]
    Redis(#[source] InvalidUrl),
}

impl Host {
    /// Bundles the adapters; connects to nothing, so that the process starts while a store is down.
    ///
    /// # Errors
    /// If a URL cannot be used.
    pub fn new(config: &Config, handlers: Registry) -> Result<Self, HostError> {
        let queues = RedisQueues::new(&RedisSettings {
            url: config.redis.url.expose().to_owned(),
            prefix: config.redis.prefix.clone(),
            timeout: config.redis.timeout,
        })
        .map_err(HostError::Redis)?;
        let postgres = Postgres::new(config.database.url.expose(), Pooler::None, &config.redis.prefix)
            .map_err(HostError::Database)?;
        Ok(Self { lease: queues.lease(&config.lease.key), queues, postgres, handlers, clock: MachineClock })
    }
}

impl Outside for Host {
    type Lease = RedisLease;
    type Queues = RedisQueues;
    type Jobs = Postgres;
    type Ledger = Postgres;
    type Handlers = Registry;
    type Clock = MachineClock;

    fn lease(&self) -> &Self::Lease {
        &self.lease
    }

    fn queues(&self) -> &Self::Queues {
        &self.queues
    }

    fn jobs(&self) -> &Self::Jobs {
        &self.postgres
    }

    fn ledger(&self) -> &Self::Ledger {
        &self.postgres
    }

    fn handlers(&self) -> &Self::Handlers {
        &self.handlers
    }

    fn clock(&self) -> &Self::Clock {
        &self.clock
    }
}
