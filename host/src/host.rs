//! The adapters of one process, bundled for the pass.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::clock::MachineClock;
use crate::config::{self, Config};
use crate::ports::Outside;
use crate::postgres::{self, Pooler, Postgres};
use crate::redis::{InvalidSettings, RedisLease, RedisQueues, RedisSettings, Servers, TlsFiles};
use crate::secret::SecretUrl;
use crate::wasm::{self, EngineFault, Live, Registry, Runtime, Terms};

/// PostgreSQL, Redis, the handlers and the machine's clock.
pub struct Host {
    /// The lease's key in Redis.
    pub lease: RedisLease,
    /// The queues.
    pub queues: RedisQueues,
    /// Job rows and Salvage's own tables.
    pub postgres: Postgres,
    /// The handlers.
    pub handlers: Arc<Live>,
    clock: MachineClock,
}

/// The engine, with its cache where the settings want it.
///
/// # Errors
/// If the engine does not work on this machine.
pub fn runtime(config: &config::Handlers) -> Result<Runtime, EngineFault> {
    Runtime::start_with(config.cache_dir.as_deref())
}

/// Loads the handlers of the configured folder, each under its own settings, once.
///
/// # Errors
/// If the engine does not work on this machine. What is wrong with a file is in the registry's reports.
pub async fn load_handlers(config: &config::Handlers) -> Result<Registry, EngineFault> {
    let registry = Registry::load(&runtime(config)?, terms(config)).await;
    warn_of_idle_sections(config, &registry);
    Ok(registry)
}

/// A section that names no handler is most often a slip of the pen.
pub fn warn_of_idle_sections(config: &config::Handlers, registry: &Registry) {
    for name in config.named.keys().filter(|name| !registry.knows(name)) {
        tracing::warn!(
            "[handler.{name}] has no effect: no handler of that domain is in {}",
            config.dir.display()
        );
    }
}

/// The configuration's handlers as the runtime takes them.
#[must_use]
pub fn terms(config: &config::Handlers) -> Terms {
    fn of_each<T>(
        config: &config::Handlers,
        pick: impl Fn(&config::Handler) -> Option<T>,
    ) -> BTreeMap<String, T> {
        config.named.iter().filter_map(|(name, handler)| Some((name.clone(), pick(handler)?))).collect()
    }
    let whole = config.clone();
    Terms {
        folder: config.dir.clone(),
        mode: config.grants,
        grants: of_each(config, |handler| handler.grants.clone()),
        pins: of_each(config, |handler| handler.sha256.clone()),
        roles: of_each(config, |handler| handler.database_role.clone()),
        limits: limits(&config.limits),
        own_limits: of_each(config, |handler| Some(limits(&handler.limits))),
        adjust: Box::new(move |manifest| {
            whole.with_thresholds(manifest).map_err(|unknown| unknown.to_string())
        }),
    }
}

/// The configuration's limits as the runtime takes them.
#[must_use]
pub const fn limits(of: &config::Limits) -> wasm::Limits {
    wasm::Limits {
        run_time: of.run_time,
        memory: of.memory_bytes,
        output: of.output_bytes,
        log: of.log_bytes,
    }
}

/// A setting that passed the configuration and was refused by its adapter.
#[derive(Debug, thiserror::Error)]
pub enum HostError {
    /// `[database] url`.
    #[error(transparent)]
    Database(postgres::InvalidUrl),
    /// `[redis]`.
    #[error(transparent)]
    Redis(InvalidSettings),
}

impl Host {
    /// Bundles the adapters; connects to nothing, so that the process starts while a store is down.
    ///
    /// # Errors
    /// If a URL or a file cannot be used.
    pub fn new(config: &Config, handlers: Registry) -> Result<Self, HostError> {
        let queues = RedisQueues::new(&redis(&config.redis)).map_err(HostError::Redis)?;
        let pooler = if config.database.is_pooled { Pooler::Transaction } else { Pooler::None };
        let postgres = Postgres::new(config.database.url.expose(), pooler, &config.redis.prefix)
            .map_err(HostError::Database)?
            .with_scope_rest((2 * config.pass.interval).max(config.pass.lease_ttl));
        let (lease, handlers) = (queues.lease(&config.lease.key), Arc::new(Live::new(handlers)));
        Ok(Self { lease, queues, postgres, handlers, clock: MachineClock })
    }
}

/// The configuration's settings as the adapter takes them.
fn redis(of: &config::Redis) -> RedisSettings {
    let text = |url: &SecretUrl| url.expose().to_owned();
    let servers = match &of.servers {
        config::Servers::Single { url } => Servers::Single { url: text(url) },
        config::Servers::Sentinel { nodes, master_name, url } => Servers::Sentinel {
            nodes: nodes.iter().map(text).collect(),
            master_name: master_name.clone(),
            url: url.as_ref().map(text),
        },
        config::Servers::Cluster { nodes } => Servers::Cluster { nodes: nodes.iter().map(text).collect() },
    };
    let tls = TlsFiles { ca: of.ca.clone(), identity: of.identity.clone() };
    RedisSettings { servers, prefix: of.prefix.clone(), timeout: of.timeout, tls }
}

impl Outside for Host {
    type Lease = RedisLease;
    type Queues = RedisQueues;
    type Jobs = Postgres;
    type Ledger = Postgres;
    type Handlers = Live;
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
