//! The adapters of one process, bundled for the pass.

use std::sync::Arc;

use salvage_core::capture;
use salvage_core::manifest::HandlerManifest;

use crate::clock::MachineClock;
use crate::config::{self, Config};
use crate::ports::Outside;
use crate::postgres::{self, Pooler, Postgres};
use crate::redis::{InvalidSettings, RedisLease, RedisQueues, RedisSettings, Servers, TlsFiles};
use crate::secret::SecretUrl;
use crate::wasm::{self, EngineFault, Live, Own, Registry, Runtime, Terms};

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
    let unnamed = config::Handler { limits: config.limits, ..config::Handler::default() };
    let own = |handler| own(handler, config.capture_inputs);
    let whole = config.clone();
    Terms {
        folder: config.dir.clone(),
        mode: config.grants,
        general: own(&unnamed),
        named: config.named.iter().map(|(name, handler)| (name.clone(), own(handler))).collect(),
        adjust: Box::new(move |manifest| {
            let manifest = whole.with_thresholds(manifest).map_err(|unknown| unknown.to_string())?;
            check_redact(&whole, &manifest)?;
            Ok(manifest)
        }),
    }
}

/// Takes the settings apart as a whole, so that a new one is not forgotten: a running host takes over what comes of this.
fn own(handler: &config::Handler, captures_by_default: bool) -> Own {
    // Thresholds become part of the manifest.
    let config::Handler { thresholds: _, types: _, limits, grants, sha256, database_role, capture } = handler;
    Own {
        grants: grants.clone(),
        pin: sha256.clone(),
        role: database_role.clone(),
        limits: self::limits(limits),
        capture: capture.policy(captures_by_default),
    }
}

/// A slip in `redact` would keep what was not to be kept, and nobody would see it.
fn check_redact(config: &config::Handlers, manifest: &HandlerManifest) -> Result<(), String> {
    let redact = config.named.get(&manifest.domain).map_or(&[][..], |handler| &handler.capture.redact);
    match capture::without_effect(redact, manifest).first() {
        Some(entry) => Err(format!("redact names {entry}, which the handler is never shown")),
        None => Ok(()),
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

/// What any handler may use, each kind for itself.
#[must_use]
pub fn widest_limits(of: &config::Handlers) -> config::Limits {
    of.named.values().map(|handler| handler.limits).fold(of.limits, widest)
}

/// The database alone, for commands that need nothing else; connects to nothing.
///
/// # Errors
/// If the URL cannot be used.
pub fn database(of: &config::Database) -> Result<Postgres, HostError> {
    connected(of, "")
}

fn connected(of: &config::Database, prefix: &str) -> Result<Postgres, HostError> {
    let pooler = if of.is_pooled { Pooler::Transaction } else { Pooler::None };
    let postgres = Postgres::new(of.url.expose(), pooler, prefix).map_err(HostError::Database)?;
    Ok(postgres.with_search_path(of.search_path.as_deref()))
}

fn widest(a: config::Limits, b: config::Limits) -> config::Limits {
    config::Limits {
        run_time: a.run_time.max(b.run_time),
        memory_bytes: a.memory_bytes.max(b.memory_bytes),
        output_bytes: a.output_bytes.max(b.output_bytes),
        log_bytes: a.log_bytes.max(b.log_bytes),
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
        let postgres = connected(&config.database, &config.redis.prefix)?
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
