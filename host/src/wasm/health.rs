//! How a serving build fares: counts its failed calls, and keeps it from being asked when it only fails.

use std::sync::{Arc, Mutex, PoisonError};

use salvage_core::quarantine::{Quarantine, Turn};

use crate::ports::HandlerFault;

/// Shared by all registries that the build is part of, so that loading another file does not forget it.
#[derive(Debug, Clone, Default)]
pub(super) struct Health(Arc<Mutex<Quarantine>>);

impl Health {
    fn with<T>(&self, look: impl FnOnce(&mut Quarantine) -> T) -> T {
        look(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// A pass begins.
    pub(super) fn pass_begins(&self) {
        self.with(Quarantine::pass_begins);
    }

    /// Why it is quarantined, if it is.
    pub(super) fn quarantine(&self) -> Option<String> {
        self.with(|quarantine| quarantine.why())
    }

    /// Whether it may be asked about a job.
    ///
    /// # Errors
    /// [`HandlerFault::Quarantined`].
    pub(super) fn may_ask(&self, job_id: &str) -> Result<(), HandlerFault> {
        self.with(|quarantine| {
            if quarantine.may_ask(job_id) {
                return Ok(());
            }
            Err(HandlerFault::Quarantined(quarantine.why().unwrap_or_default()))
        })
    }

    /// Counts how a call ended. An error that the handler returns is an answer: it is in its senses.
    pub(super) fn ended<T>(&self, domain: &str, job_id: &str, call: &Result<T, HandlerFault>) {
        let turn = self.with(|quarantine| match call {
            Ok(_) | Err(HandlerFault::Error(_)) => quarantine.answered(),
            Err(HandlerFault::NotLoaded(_) | HandlerFault::Quarantined(_)) => None,
            Err(fault) => quarantine.failed(job_id, &fault.to_string()),
        });
        match turn {
            Some(Turn::Quarantined) => {
                let why = self.quarantine().unwrap_or_default();
                tracing::error!(domain, "handler is quarantined: {why}");
            }
            Some(Turn::Released) => {
                tracing::warn!(domain, "handler answers again and is quarantined no longer");
            }
            None => {}
        }
    }
}
