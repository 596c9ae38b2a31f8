//! The one connection: opened when first asked for, replaced after any failure, never waited for without a limit.
//!
//! A connection that broke, or did not reply in time, is thrown away at once, so a late reply can never be read as the
//! answer to another command. The next call opens a new one; nobody has to restart the host. Redis may have restarted
//! while nothing was asked of it, and the old connection only shows when it is used: a call that may be sent twice
//! ([`Connection::ask`]) is then sent once more, on a new connection.
//!
//! Also thrown away is a connection on which Redis refused to serve: after a failover behind a host name, the old
//! address may go on answering READONLY for ever, and a node of a cluster MOVED.
//!
//! | file | subject |
//! |---|---|
//! | `settings` | what the host is told |
//! | `deployment` | which server it is: the one given, the one that Sentinels name, the owner of a slot |
//! | `node`, `tls` | reaching one server, and logging in |
//! | `wire` | sending, within a limit |

mod deployment;
mod node;
mod settings;
mod tls;
mod wire;

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use redis::aio::MultiplexedConnection;
use redis::{Pipeline, Value};
use salvage_core::sighting::QueueFailure;
use tokio::time::timeout;

pub use self::settings::{InvalidSettings, RedisSettings, Servers, TlsFiles};

use self::deployment::Deployment;
use self::wire::{Wire, not_connected};
use super::reply;

/// A connection that may not be there yet.
pub(super) struct Connection {
    deployment: Deployment,
    wire: Wire,
    open: Mutex<Option<Open>>,
    /// Held while connecting, so that calls side by side open one connection and not many.
    connecting: tokio::sync::Mutex<()>,
    opened: AtomicU64,
}

#[derive(Clone)]
struct Open {
    /// Tells one connection from its successor.
    number: u64,
    redis: MultiplexedConnection,
}

impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connection").field("timeout", &self.wire.timeout()).finish_non_exhaustive()
    }
}

impl Connection {
    /// Does not connect.
    pub(super) fn new(settings: &RedisSettings) -> Result<Self, InvalidSettings> {
        Ok(Self {
            deployment: Deployment::new(settings)?,
            wire: Wire::new(settings.timeout),
            open: Mutex::new(None),
            connecting: tokio::sync::Mutex::new(()),
            opened: AtomicU64::new(0),
        })
    }

    /// Sends commands that read, or that may be repeated. One reply per command, in order; error replies among them.
    ///
    /// # Errors
    /// If the replies did not all come in time. Some or all commands may have been carried out, also twice.
    pub(super) async fn ask(&self, commands: &Pipeline) -> Result<Vec<Value>, QueueFailure> {
        let (open, is_fresh) = self.opened().await?;
        match self.exchange(open, commands).await {
            Err(QueueFailure::Dropped { .. }) if !is_fresh => self.tell(commands).await,
            Ok(replies) if !is_fresh && replies.iter().any(is_moved) => self.tell(commands).await,
            answered => answered,
        }
    }

    /// Sends commands, each of which is carried out at most once. One reply per command, in order; error replies among
    /// them.
    ///
    /// # Errors
    /// If the replies did not all come in time; [`QueueFailure::is_indeterminate`] tells whether any may have been
    /// carried out.
    pub(super) async fn tell(&self, commands: &Pipeline) -> Result<Vec<Value>, QueueFailure> {
        let (open, is_fresh) = self.opened().await?;
        match self.exchange(open, commands).await {
            // The slot has a new owner, and nothing was done by the old one.
            Ok(replies) if !is_fresh && replies.iter().all(is_moved) => {
                let (open, _) = self.opened().await?;
                self.exchange(open, commands).await
            }
            answered => answered,
        }
    }

    /// Sends commands that read, as one MULTI: nothing else happens in between. One reply per command, without those
    /// of MULTI and EXEC; an error that concerns one command alone stays in its place.
    ///
    /// # Errors
    /// If there is no complete reply, or Redis refused the transaction.
    pub(super) async fn ask_at_one_instant(&self, commands: &Pipeline) -> Result<Vec<Value>, QueueFailure> {
        reply::executed(self.ask(&transaction(commands)).await?)
    }

    /// The same for commands that write: the transaction is carried out at most once.
    ///
    /// # Errors
    /// As above. If there is no complete reply, it may have been carried out.
    pub(super) async fn tell_at_one_instant(&self, commands: &Pipeline) -> Result<Vec<Value>, QueueFailure> {
        reply::executed(self.tell(&transaction(commands)).await?)
    }

    /// Has the next call open a new connection: this one leads to a node of no use.
    pub(super) fn leave_node(&self) {
        *self.slot() = None;
    }

    /// Commands sent since the process started, those that log in included.
    pub(super) fn commands_sent(&self) -> u64 {
        self.wire.sent()
    }

    async fn exchange(&self, mut open: Open, commands: &Pipeline) -> Result<Vec<Value>, QueueFailure> {
        let number = open.number;
        let answered = self.wire.send(&mut open.redis, commands).await;
        let is_worn = match &answered {
            Ok(replies) => replies.iter().any(refuses_to_serve),
            Err(_) => true,
        };
        if is_worn {
            drop(open);
            self.discard(number);
        }
        answered
    }

    /// The connection, and whether it was opened for this call.
    async fn opened(&self) -> Result<(Open, bool), QueueFailure> {
        if let Some(open) = self.slot().clone() {
            return Ok((open, false));
        }
        // The limit includes the wait for another call that is connecting.
        let opened = timeout(self.wire.timeout(), async {
            let _turn = self.connecting.lock().await;
            if let Some(open) = self.slot().clone() {
                return Ok((open, false));
            }
            let redis = self.deployment.connect(&self.wire).await?;
            let open = Open { number: self.opened.fetch_add(1, Ordering::Relaxed), redis };
            *self.slot() = Some(open.clone());
            Ok((open, true))
        });
        opened.await.unwrap_or_else(|_| Err(not_connected(self.wire.timeout())))
    }

    /// Only this connection: another call may have replaced it already.
    fn discard(&self, number: u64) {
        let mut slot = self.slot();
        if slot.as_ref().is_some_and(|open| open.number == number) {
            *slot = None;
        }
    }

    /// Never held across a wait.
    fn slot(&self) -> MutexGuard<'_, Option<Open>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The commands between MULTI and EXEC.
///
/// Not the library's own transaction mode: it takes the replies apart itself, loses the reason of an abort, and cannot
/// tell an error reply to MULTI.
fn transaction(commands: &Pipeline) -> Pipeline {
    let mut transaction = redis::pipe();
    transaction.cmd("MULTI");
    for command in commands.cmd_iter() {
        transaction.add_command(command.clone());
    }
    transaction.cmd("EXEC");
    transaction
}

/// Whether it is for another node of the cluster, which a new connection finds.
fn is_moved(reply: &Value) -> bool {
    matches!(reply, Value::ServerError(error) if error.code() == "MOVED")
}

/// Whether another node, or the same one later, might answer otherwise.
fn refuses_to_serve(reply: &Value) -> bool {
    let Value::ServerError(error) = reply else { return false };
    matches!(error.code(), "READONLY" | "MASTERDOWN" | "LOADING" | "NOAUTH" | "CLUSTERDOWN" | "MOVED")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn connection(url: &str) -> Result<Connection, InvalidSettings> {
        Connection::new(&RedisSettings::single(url, "bull", std::time::Duration::from_secs(1)))
    }

    #[test]
    fn a_url_that_cannot_be_used_is_refused_without_its_password() {
        for url in [
            "",
            "hunter2",
            "http://:hunter2@host",
            "redis://:hunter2@host:port",
            "rediss://:hunter2@host#hunter2",
            "redis://:hunter2@host/db",
            "redis://:hunter2@host?protocol=hunter2",
            "redis://:hunter2@",
        ] {
            let error = connection(url).expect_err(url);
            let told = format!("{error} {error:?}");
            assert!(!told.contains("hunter2"), "{told}");
            assert!(told.contains("[redis] url"), "{told}");
        }
    }

    #[test]
    fn debug_output_holds_no_password() {
        let url = "redis://me:hunter2@host:6379/3";
        let settings = RedisSettings::single(url, "bull", std::time::Duration::from_secs(1));
        let told = format!("{:?} {settings:?}", connection(url).expect("a sound URL"));
        assert!(!told.contains("hunter2"), "{told}");
    }

    #[tokio::test]
    async fn a_closed_port_is_refused_and_nothing_counts_as_sent() {
        // Port 1 is the port multiplexer's, which nobody runs.
        let connection = connection("redis://127.0.0.1:1").expect("a sound URL");
        let failure = connection.ask(redis::pipe().cmd("PING")).await.expect_err("nobody listens");
        assert!(matches!(failure, QueueFailure::Refused { .. }), "{failure:?}");
        assert!(!failure.is_indeterminate());
        assert_eq!(connection.commands_sent(), 0);
    }
}
