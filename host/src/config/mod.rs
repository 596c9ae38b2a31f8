//! The operator's settings: one file, the environment over it, defaults below.
//!
//! Precedence, strongest first: a variable `SALVAGE_SECTION__KEY` (such as `SALVAGE_PASS__STALE_AFTER`); `DATABASE_URL`
//! and `REDIS_URL`; the file; the default. A variable that is empty counts as not set; one that begins with `SALVAGE_`
//! and has no `__` is not ours. In a variable's name a handler is written with `_` for `-`, a job type as it is; a list
//! is a TOML array (`SALVAGE_HANDLER__SLIDES__GRANTS__QUEUES="['slide-generation']"`).
//!
//! Nothing is guessed. An unknown key, a number without a unit, a word of a later version: each is a fault with its
//! place, and all faults are told at once. No fault shows a password: see `redact.rs`.
//!
//! Relative paths are relative to the working directory, not to the file.
//!
//! Here are the types; `tree.rs` joins file and environment, `section.rs` reads settings out of that, `read.rs` knows
//! each setting, `database.rs` and `redis_url.rs` what URLs of other drivers say, `units.rs` reads durations and sizes.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use salvage_core::capture::Capture;
use salvage_core::grants::{Grants, GrantsMode};
use salvage_core::manifest::HandlerManifest;
use salvage_core::settings::PassSettings;

use crate::secret::SecretUrl;

mod database;
mod error;
mod parameters;
mod read;
mod redact;
mod redis;
mod redis_url;
mod section;
#[cfg(test)]
mod tests;
mod tree;
pub mod units;

pub use error::{ConfigError, Drawing, Fault};

/// The file that is read, if it is there, when none is named.
pub const FILE_DEFAULT: &str = "salvage.toml";

/// Everything a pass needs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Config {
    /// `[database]`
    pub database: Database,
    /// `[redis]`
    pub redis: Redis,
    /// `[pass]`, and `[lease] ttl` and `scope`.
    pub pass: PassSettings,
    /// `[lease]`
    pub lease: Lease,
    /// `[handlers]`, every `[handler.NAME]`, and what `[ledger]` says of their questions.
    pub handlers: Handlers,
    /// `[log]`
    pub log: Log,
    /// What of the URLs has no effect here, a sentence each, without any value.
    pub notes: Vec<String>,
}

/// What is needed to work on handlers without a store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OfflineConfig {
    /// `[database]`, if a URL is set.
    pub database: Option<Database>,
    /// `[pass]`, and `[lease] ttl` and `scope`.
    pub pass: PassSettings,
    /// `[handlers]` and every `[handler.NAME]`.
    pub handlers: Handlers,
    /// `[log]`
    pub log: Log,
    /// What of the URLs has no effect here, a sentence each, without any value.
    pub notes: Vec<String>,
}

/// `[database]`
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Database {
    /// `postgres://…`, with those parameters that the driver knows.
    pub url: SecretUrl,
    /// `pooler`, or what the URL says of it: whether each transaction may be on another server connection, as behind
    /// `PgBouncer` in that mode.
    pub is_pooled: bool,
    /// The schemas in which tables without one are looked for, as SQL has them; `None`: PostgreSQL's own rule.
    pub search_path: Option<String>,
}

/// `[redis]`
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Redis {
    /// `mode`, and which servers.
    pub servers: Servers,
    /// BullMQ's key prefix, without the colon. In a cluster it has a hash tag.
    pub prefix: String,
    /// For every call.
    pub timeout: Duration,
    /// Certificates of the authorities to trust, instead of the machine's own.
    pub ca: Option<PathBuf>,
    /// `cert` and `key`: ours, for servers that ask for one.
    pub identity: Option<(PathBuf, PathBuf)>,
}

/// `[redis] mode`, and the settings that belong to it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Servers {
    /// `"single"`
    Single {
        /// `redis://…`
        url: SecretUrl,
    },
    /// `"sentinel"`
    Sentinel {
        /// URLs of the Sentinels. At least one.
        nodes: Vec<SecretUrl>,
        /// What they call the master.
        master_name: String,
        /// How the master is logged in to; host and port do not matter.
        url: Option<SecretUrl>,
    },
    /// `"cluster"`
    Cluster {
        /// URLs of some nodes, `url` among them if it is set. At least one.
        nodes: Vec<SecretUrl>,
    },
}

/// `[lease]`, but for `ttl` and `scope`, which are [`PassSettings::lease_ttl`] and [`PassSettings::lease_scope`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lease {
    /// The Redis key, without BullMQ's prefix; that of a domain is followed by `:` and its name.
    pub key: String,
}

/// `[handlers]` and every `[handler.NAME]`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Handlers {
    /// Where the components are.
    pub dir: PathBuf,
    /// Whether manifests need grants.
    pub grants: GrantsMode,
    /// For compiled components; by default `$XDG_CACHE_HOME/salvage` or `$HOME/.cache/salvage`. `None`: they are compiled
    /// anew at each start.
    pub cache_dir: Option<PathBuf>,
    /// Of every handler without limits of its own.
    pub limits: Limits,
    /// `[ledger] capture_inputs`: of every handler that does not say.
    pub capture_inputs: bool,
    /// By domain.
    pub named: BTreeMap<String, Handler>,
}

/// What a handler may use up in one call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// From before it is instantiated to its answer.
    pub run_time: Duration,
    /// Over all its memories.
    pub memory_bytes: u64,
    /// Of its answer.
    pub output_bytes: u64,
    /// Of what it logs; more is cut off.
    pub log_bytes: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            run_time: Duration::from_millis(100),
            memory_bytes: 64 << 20,
            output_bytes: 1 << 20,
            log_bytes: 64 << 10,
        }
    }
}

/// `[handler.NAME]`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Handler {
    /// For every job type of the handler.
    pub thresholds: Thresholds,
    /// `[handler.NAME.types.TYPE]`: for one job type, in every source of the handler that has it.
    pub types: BTreeMap<String, Thresholds>,
    /// Its own limits, or the general ones where it has none.
    pub limits: Limits,
    /// `None`: the handler is only observed, unless manifests are trusted.
    pub grants: Option<Grants>,
    /// The only build that may serve: SHA-256 of its file, lower-case hex.
    pub sha256: Option<String>,
    /// The role under which PostgreSQL runs what is read and written for it.
    pub database_role: Option<String>,
    /// `capture_inputs` and `redact`.
    pub capture: Capture,
}

/// Ages at which a row becomes a candidate; `None`: as the manifest says.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Thresholds {
    /// Of a QUEUED row: `stale_after_queued`, or `stale_after`.
    pub queued: Option<Duration>,
    /// Of a PROCESSING row: `stale_after_processing`, or `stale_after`.
    pub processing: Option<Duration>,
}

/// `[log]`
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Log {
    /// How lines look.
    pub format: LogFormat,
}

/// `[log] format`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum LogFormat {
    /// For people.
    #[default]
    Text,
    /// One JSON object a line.
    Json,
}

/// `[handler.NAME.types]` names job types that the manifest does not declare.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("[handler.{domain}.types] {unknown:?}: the manifest declares no such job type, only {declared:?}")]
pub struct UndeclaredTypes {
    /// The handler.
    pub domain: String,
    /// In order, at least one.
    pub unknown: Vec<String>,
    /// What the manifest declares.
    pub declared: Vec<String>,
}

impl Handlers {
    /// The limits of a handler.
    #[must_use]
    pub fn limits(&self, domain: &str) -> Limits {
        self.named.get(domain).map_or(self.limits, |handler| handler.limits)
    }

    /// The grants of a handler, if it has an entry.
    #[must_use]
    pub fn grants(&self, domain: &str) -> Option<&Grants> {
        self.named.get(domain)?.grants.as_ref()
    }

    /// The manifest with the operator's thresholds in place of its own, job type before handler before manifest.
    ///
    /// # Errors
    /// If thresholds are set for a job type that is not declared: they would silently do nothing.
    pub fn with_thresholds(&self, mut manifest: HandlerManifest) -> Result<HandlerManifest, UndeclaredTypes> {
        let Some(handler) = self.named.get(&manifest.domain) else { return Ok(manifest) };
        let declared: Vec<&str> = manifest
            .sources
            .iter()
            .flat_map(|source| source.job_types.iter().map(|job_type| job_type.name.as_str()))
            .collect();
        let unknown: Vec<String> =
            handler.types.keys().filter(|name| !declared.contains(&name.as_str())).cloned().collect();
        if !unknown.is_empty() {
            let declared = declared.into_iter().map(str::to_owned).collect();
            return Err(UndeclaredTypes { domain: manifest.domain, unknown, declared });
        }
        for job_type in manifest.sources.iter_mut().flat_map(|source| &mut source.job_types) {
            let own = handler.types.get(&job_type.name).copied().unwrap_or_default();
            let queued = own.queued.or(handler.thresholds.queued);
            let processing = own.processing.or(handler.thresholds.processing);
            job_type.stale_after_queued = queued.or(job_type.stale_after_queued);
            job_type.stale_after_processing = processing.or(job_type.stale_after_processing);
        }
        Ok(manifest)
    }
}

/// Loads the settings: of `explicit` (`--config`), or of [`FILE_DEFAULT`] if that is there, and of the environment
/// (in production [`std::env::vars_os`]).
///
/// # Errors
/// If `explicit` is not there, the file cannot be read, or any setting is wrong or missing.
pub fn load(
    explicit: Option<&Path>,
    environment: impl IntoIterator<Item = (OsString, OsString)>,
) -> Result<Config, ConfigError> {
    let file = find(explicit, Path::new(FILE_DEFAULT))?;
    read::config(file.as_ref().map(FileText::borrowed), environment)
}

/// As [`load`], for commands that reach neither store: their URLs may be missing.
///
/// # Errors
/// As those of [`load`].
pub fn load_offline(
    explicit: Option<&Path>,
    environment: impl IntoIterator<Item = (OsString, OsString)>,
) -> Result<OfflineConfig, ConfigError> {
    let file = find(explicit, Path::new(FILE_DEFAULT))?;
    read::offline(file.as_ref().map(FileText::borrowed), environment)
}

/// As [`load`], of a text that `name` stands for in faults.
///
/// # Errors
/// If any setting is wrong or missing.
pub fn parse(
    name: &str,
    text: &str,
    environment: impl IntoIterator<Item = (OsString, OsString)>,
) -> Result<Config, ConfigError> {
    read::config(Some((name, text)), environment)
}

/// A file's name, as faults show it, and content.
struct FileText {
    name: String,
    text: String,
}

impl FileText {
    fn borrowed(&self) -> (&str, &str) {
        (&self.name, &self.text)
    }
}

fn find(explicit: Option<&Path>, default: &Path) -> Result<Option<FileText>, ConfigError> {
    let path = explicit.unwrap_or(default);
    match std::fs::read_to_string(path) {
        Ok(text) => Ok(Some(FileText { name: path.display().to_string(), text })),
        Err(fault) if fault.kind() == io::ErrorKind::NotFound => match explicit {
            Some(path) => Err(ConfigError::Missing { path: path.to_owned() }),
            None => Ok(None),
        },
        Err(source) => Err(ConfigError::Unreadable { path: path.to_owned(), source }),
    }
}
