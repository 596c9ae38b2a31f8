//! What the operator's settings say about handlers, in this room's words.

use std::collections::BTreeMap;
use std::path::PathBuf;

use salvage_core::capture::CapturePolicy;
use salvage_core::grants::{Grants, GrantsMode};
use salvage_core::manifest::HandlerManifest;

use super::limits::Limits;

/// Gives a handler the manifest that the operator's thresholds make of its own; an error says why they make no sense.
pub type Adjust = Box<dyn Fn(HandlerManifest) -> Result<HandlerManifest, String> + Send + Sync>;

/// The operator's settings.
pub struct Terms {
    /// The folder of the files.
    pub folder: PathBuf,
    /// Whether manifests need grants.
    pub mode: GrantsMode,
    /// Of domains without settings of their own.
    pub general: Own,
    /// By domain.
    pub named: BTreeMap<String, Own>,
    /// Thresholds.
    pub adjust: Adjust,
}

/// What the settings say of one handler. Whoever uses them takes them apart as a whole, so that none is forgotten.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Own {
    /// What it may do; `None`: nothing was granted.
    pub grants: Option<Grants>,
    /// The only build that may serve: SHA-256 of its file, lower-case hex.
    pub pin: Option<String>,
    /// The role under which PostgreSQL runs what is done for it.
    pub role: Option<String>,
    /// Of one call.
    pub limits: Limits,
    /// What is kept of its questions, and what of them is not.
    pub capture: CapturePolicy,
}

impl Terms {
    /// The defaults, for a folder.
    #[must_use]
    pub fn of(folder: PathBuf) -> Self {
        Self {
            folder,
            mode: GrantsMode::default(),
            general: Own::default(),
            named: BTreeMap::new(),
            adjust: Box::new(Ok),
        }
    }

    /// The same within other limits, for domains without settings of their own.
    #[must_use]
    pub fn within(self, limits: Limits) -> Self {
        Self { general: Own { limits, ..self.general }, ..self }
    }

    /// Whose limits apply is known only once a file has said its domain, so it is tried under the widest.
    pub(super) fn trial(&self) -> Limits {
        self.named.values().map(|own| own.limits).fold(self.general.limits, |a, b| Limits {
            run_time: a.run_time.max(b.run_time),
            memory: a.memory.max(b.memory),
            output: a.output.max(b.output),
            log: a.log.max(b.log),
        })
    }

    pub(super) fn own(&self, domain: &str) -> &Own {
        self.named.get(domain).unwrap_or(&self.general)
    }
}
