//! Names of keys: BullMQ's, and those of ours in each queue.

use salvage_core::lease::GLOBAL;
use salvage_core::snapshot::State;

/// Our own key in a queue, a hash: for each scope of the lease a nonce ([`nonce`]) and `generation:<scope>`. No id of a
/// job meets it, because BullMQ refuses ids of this form.
pub(super) const HOST: &str = "salvage:host";

/// Field of [`HOST`] that holds a scope's nonce: `nonce` for the one over all domains, else `nonce:<scope>`.
pub(super) fn nonce(scope: &str) -> String {
    if scope == GLOBAL { "nonce".to_owned() } else { format!("nonce:{scope}") }
}

/// The keys of one queue.
#[derive(Debug, Clone)]
pub(super) struct Keys(String);

impl Keys {
    pub(super) fn new(prefix: &str, queue: &str) -> Self {
        Self(format!("{prefix}:{queue}:"))
    }

    /// What all keys of the queue begin with, the last colon included.
    pub(super) fn start(&self) -> &str {
        &self.0
    }

    /// One of BullMQ's own keys, e.g. `meta`.
    pub(super) fn own(&self, suffix: &str) -> String {
        format!("{}{suffix}", self.0)
    }

    pub(super) fn state(&self, state: State) -> String {
        self.own(state.key())
    }

    /// The hash of an entry.
    pub(super) fn entry(&self, entry_id: &str) -> String {
        self.own(entry_id)
    }

    /// The lock of the worker that runs the entry.
    pub(super) fn lock(&self, entry_id: &str) -> String {
        format!("{}{entry_id}:lock", self.0)
    }

    /// Our own copy of a state's ids.
    pub(super) fn copy(&self, state: State, token: &str) -> String {
        self.own(&format!("salvage:copy:{token}:{}", state.key()))
    }

    pub(super) fn host(&self) -> String {
        self.own(HOST)
    }
}
