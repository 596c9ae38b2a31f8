//! Sending commands and waiting for their replies, never without a limit.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use redis::aio::{ConnectionLike, MultiplexedConnection};
use redis::{Pipeline, RedisError, Value};
use salvage_core::sighting::QueueFailure;
use tokio::time::timeout;

use super::tls;

/// The limit, and the count of what was sent.
pub(super) struct Wire {
    timeout: Duration,
    sent: AtomicU64,
}

impl Wire {
    pub(super) fn new(timeout: Duration) -> Self {
        Self { timeout, sent: AtomicU64::new(0) }
    }

    /// Longest wait for a connection, and for each reply.
    pub(super) fn timeout(&self) -> Duration {
        self.timeout
    }

    /// Commands sent since the process started.
    pub(super) fn sent(&self) -> u64 {
        self.sent.load(Ordering::Relaxed)
    }

    /// One reply per command, in order; error replies among them.
    pub(super) async fn send(
        &self,
        redis: &mut MultiplexedConnection,
        commands: &Pipeline,
    ) -> Result<Vec<Value>, QueueFailure> {
        let count = commands.len();
        if count == 0 {
            return Ok(vec![]);
        }
        self.sent.fetch_add(count as u64, Ordering::Relaxed);
        match timeout(self.timeout, redis.req_packed_commands(commands, 0, count)).await {
            Ok(Ok(replies)) if replies.len() == count => Ok(replies),
            Ok(Ok(replies)) => {
                let found = format!("{} replies to {count} commands", replies.len());
                Err(QueueFailure::UnexpectedReply { command: "a pipeline", found })
            }
            Ok(Err(error)) => Err(broken(&error)),
            Err(_) => Err(QueueFailure::Timeout { timeout_ms: milliseconds(self.timeout) }),
        }
    }

    /// The same for commands that only prepare a connection: whatever fails, it was not made.
    pub(super) async fn send_first(
        &self,
        redis: &mut MultiplexedConnection,
        commands: &Pipeline,
    ) -> Result<Vec<Value>, QueueFailure> {
        match self.send(redis, commands).await {
            Err(QueueFailure::Dropped { detail }) => Err(QueueFailure::Refused { detail }),
            Err(QueueFailure::Timeout { .. }) => Err(not_connected(self.timeout)),
            answered => answered,
        }
    }
}

/// The failure for a connection that was not made in time.
pub(super) fn not_connected(within: Duration) -> QueueFailure {
    QueueFailure::Refused { detail: format!("not connected within {} ms", milliseconds(within)) }
}

/// The failure for a connection that was not made.
pub(super) fn refused(error: &RedisError) -> QueueFailure {
    match tls::complaint(error) {
        Some(detail) => QueueFailure::Tls { detail },
        None => QueueFailure::Refused { detail: cause(error) },
    }
}

fn broken(error: &RedisError) -> QueueFailure {
    // A server may end its part of the handshake after we have sent our first command, which it then never read.
    match tls::complaint(error) {
        Some(detail) => QueueFailure::Tls { detail },
        None => QueueFailure::Dropped { detail: cause(error) },
    }
}

/// The system's words for what broke; of anything else only its kind, for the library's words may quote a reply.
fn cause(error: &RedisError) -> String {
    if error.is_io_error() { error.to_string() } else { error.category().to_owned() }
}

fn milliseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
