//! Connections whose transaction ended a moment ago, for the next one.
//!
//! The pool asks a connection whether it is still there when it comes and when it goes: two round trips more for an act of
//! seven. And it has it back only then, so who asks for the next transaction at once would be given a new connection.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use sqlx::pool::PoolConnection;

/// What is kept; clones share it.
#[derive(Debug, Clone, Default)]
pub(super) struct AtHand(Arc<Mutex<Vec<PoolConnection<sqlx::Postgres>>>>);

impl AtHand {
    pub(super) fn keep(&self, connection: PoolConnection<sqlx::Postgres>) {
        self.kept().push(connection);
    }

    /// The one that was used last. It may have been lost meanwhile.
    pub(super) fn take(&self) -> Option<PoolConnection<sqlx::Postgres>> {
        self.kept().pop()
    }

    /// All but one go back to the pool, which closes what is old or in excess.
    pub(super) fn rest(&self) {
        self.kept().truncate(1);
    }

    /// Lets none of them be used again.
    pub(super) fn close_all(&self) {
        for mut connection in self.kept().drain(..) {
            connection.close_on_drop();
        }
    }

    fn kept(&self) -> MutexGuard<'_, Vec<PoolConnection<sqlx::Postgres>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
