//! What the operator's settings say about handlers, in this room's words.

use std::collections::BTreeMap;
use std::path::PathBuf;

use salvage_core::grants::{Grants, GrantsMode};
use salvage_core::manifest::HandlerManifest;

use super::limits::Limits;

/// Gives a handler the manifest that the operator's thresholds make of its own; an error says why they make no sense.
pub type Adjust = Box<dyn Fn(HandlerManifest) -> Result<HandlerManifest, String> + Send + Sync>;

/// The operator's settings. Domains that no map names have none of their own.
pub struct Terms {
    /// The folder of the files.
    pub folder: PathBuf,
    /// Whether manifests need grants.
    pub mode: GrantsMode,
    /// By domain.
    pub grants: BTreeMap<String, Grants>,
    /// The only build that may serve a domain: SHA-256 of its file, lower-case hex.
    pub pins: BTreeMap<String, String>,
    /// The role under which PostgreSQL runs what is done for a domain.
    pub roles: BTreeMap<String, String>,
    /// Of handlers without limits of their own.
    pub limits: Limits,
    /// By domain.
    pub own_limits: BTreeMap<String, Limits>,
    /// Thresholds.
    pub adjust: Adjust,
}

impl Terms {
    /// The defaults, for a folder.
    #[must_use]
    pub fn of(folder: PathBuf) -> Self {
        Self {
            folder,
            mode: GrantsMode::default(),
            grants: BTreeMap::new(),
            pins: BTreeMap::new(),
            roles: BTreeMap::new(),
            limits: Limits::default(),
            own_limits: BTreeMap::new(),
            adjust: Box::new(Ok),
        }
    }

    /// Whose limits apply is known only once a file has said its domain, so it is tried under the widest.
    pub(super) fn trial(&self) -> Limits {
        self.own_limits.values().fold(self.limits, |a, b| Limits {
            run_time: a.run_time.max(b.run_time),
            memory: a.memory.max(b.memory),
            output: a.output.max(b.output),
            log: a.log.max(b.log),
        })
    }

    pub(super) fn limits(&self, domain: &str) -> Limits {
        self.own_limits.get(domain).copied().unwrap_or(self.limits)
    }
}
