//! The handlers of a process that goes on: those that serve now, and those that will from the next pass on.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::registry::Registry;
use crate::ports::{Answer, Handlers, LoadedDomain, Question};

/// The handlers, exchanged as a whole and between passes only. What a pass still holds of the old ones stays until it has
/// ended.
pub struct Live(Mutex<Both>);

struct Both {
    serving: Arc<Registry>,
    next: Option<Arc<Registry>>,
}

impl Live {
    /// These serve at once.
    #[must_use]
    pub fn new(serving: Registry) -> Self {
        Self(Mutex::new(Both { serving: Arc::new(serving), next: None }))
    }

    fn lock(&self) -> MutexGuard<'_, Both> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Those that serve now.
    #[must_use]
    pub fn now(&self) -> Arc<Registry> {
        Arc::clone(&self.lock().serving)
    }

    /// Those that serve from the next pass on, which may be those that do now.
    #[must_use]
    pub fn newest(&self) -> Arc<Registry> {
        let both = self.lock();
        Arc::clone(both.next.as_ref().unwrap_or(&both.serving))
    }

    /// These serve from the next pass on; what differs from those offered before is logged.
    pub fn offer(&self, next: Registry) {
        next.log_changes(&self.newest());
        self.lock().next = Some(Arc::new(next));
    }
}

impl Handlers for Live {
    fn domains(&self) -> Vec<LoadedDomain> {
        self.now().domains()
    }

    async fn between_passes(&self) {
        let serving = {
            let mut both = self.lock();
            if let Some(next) = both.next.take() {
                both.serving = next;
            }
            Arc::clone(&both.serving)
        };
        serving.pass_begins();
    }

    async fn decide(&self, question: &Question<'_>) -> Answer {
        self.now().decide(question).await
    }
}
