//! The one connection: opened when first asked for, replaced after any failure, never waited for without a limit.
//!
//! A connection that broke, or did not reply in time, is thrown away at once, so a late reply can never be read as the
//! answer to another command. The next call opens a new one; nobody has to restart the host. Redis may have restarted
//! while nothing was asked of it, and the old connection only shows when it is used: a call that may be sent twice
//! ([`Connection::ask`]) is then sent once more, on a new connection.
//!
//! Also thrown away is a connection on which Redis refused to serve: after a failover behind a host name, the old
//! address may go on answering READONLY for ever.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use redis::aio::{ConnectionLike, MultiplexedConnection};
use redis::{
    AsyncConnectionConfig, Client, IntoConnectionInfo, Pipeline, ProtocolVersion, RedisError, Value,
};
use salvage_core::sighting::QueueFailure;
use tokio::time::timeout;

use super::reply;

/// `[redis] url` is not the URL of a Redis server. Never tells the URL, which may hold a password.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("[redis] url cannot be used: {0}; expected redis://[user:password@]host[:port][/database]")]
pub struct InvalidUrl(String);

/// A connection that may not be there yet.
pub(super) struct Connection {
    client: Client,
    credentials: Option<Credentials>,
    database: i64,
    timeout: Duration,
    open: Mutex<Option<Open>>,
    /// Held while connecting, so that calls side by side open one connection and not many.
    connecting: tokio::sync::Mutex<()>,
    opened: AtomicU64,
    commands_sent: AtomicU64,
}

struct Credentials {
    user: Option<String>,
    password: String,
}

#[derive(Clone)]
struct Open {
    /// Tells one connection from its successor.
    number: u64,
    redis: MultiplexedConnection,
}

impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connection").field("timeout", &self.timeout).finish_non_exhaustive()
    }
}

impl Connection {
    /// Does not connect.
    pub(super) fn new(url: &str, timeout: Duration) -> Result<Self, InvalidUrl> {
        let info = url.into_connection_info().map_err(|error| invalid_url(&error))?;
        let settings = info.redis_settings();
        let user = settings.username().map(str::to_owned);
        let credentials =
            settings.password().map(|password| Credentials { user, password: password.to_owned() });
        let database = settings.db();
        // The library's own log-in drops the code of the reply, and with it whether the password was wrong; so we log
        // in ourselves.
        let plain = redis::RedisConnectionInfo::default()
            .set_protocol(ProtocolVersion::RESP2)
            .set_skip_set_lib_name();
        let client = Client::open(info.set_redis_settings(plain)).map_err(|error| invalid_url(&error))?;
        Ok(Self {
            client,
            credentials,
            database,
            timeout,
            open: Mutex::new(None),
            connecting: tokio::sync::Mutex::new(()),
            opened: AtomicU64::new(0),
            commands_sent: AtomicU64::new(0),
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
            answered => answered,
        }
    }

    /// Sends commands at most once. One reply per command, in order; error replies among them.
    ///
    /// # Errors
    /// If the replies did not all come in time; [`QueueFailure::is_indeterminate`] tells whether any may have been
    /// carried out.
    pub(super) async fn tell(&self, commands: &Pipeline) -> Result<Vec<Value>, QueueFailure> {
        let (open, _) = self.opened().await?;
        self.exchange(open, commands).await
    }

    /// Sends commands that read, as one MULTI: nothing else happens in between. One reply per command, without those
    /// of MULTI and EXEC; an error that concerns one command alone stays in its place.
    ///
    /// # Errors
    /// If there is no complete reply, or Redis refused the transaction.
    pub(super) async fn ask_at_one_instant(&self, commands: &Pipeline) -> Result<Vec<Value>, QueueFailure> {
        // Not the library's own transaction mode: it takes the replies apart itself, loses the reason of an abort, and
        // cannot tell an error reply to MULTI.
        let mut transaction = redis::pipe();
        transaction.cmd("MULTI");
        for command in commands.cmd_iter() {
            transaction.add_command(command.clone());
        }
        transaction.cmd("EXEC");
        reply::executed(self.ask(&transaction).await?)
    }

    /// Has the next call open a new connection: this one leads to a node of no use.
    pub(super) fn leave_node(&self) {
        *self.slot() = None;
    }

    /// Commands sent since the process started, those that log in included.
    pub(super) fn commands_sent(&self) -> u64 {
        self.commands_sent.load(Ordering::Relaxed)
    }

    async fn exchange(&self, mut open: Open, commands: &Pipeline) -> Result<Vec<Value>, QueueFailure> {
        let number = open.number;
        let answered = self.within_time(&mut open.redis, commands).await;
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

    async fn within_time(
        &self,
        redis: &mut MultiplexedConnection,
        commands: &Pipeline,
    ) -> Result<Vec<Value>, QueueFailure> {
        let count = commands.len();
        if count == 0 {
            return Ok(vec![]);
        }
        self.commands_sent.fetch_add(count as u64, Ordering::Relaxed);
        match timeout(self.timeout, redis.req_packed_commands(commands, 0, count)).await {
            Ok(Ok(replies)) if replies.len() == count => Ok(replies),
            Ok(Ok(replies)) => {
                let found = format!("{} replies to {count} commands", replies.len());
                Err(QueueFailure::UnexpectedReply { command: "a pipeline", found })
            }
            Ok(Err(error)) => Err(QueueFailure::Dropped { detail: cause(&error) }),
            Err(_) => Err(QueueFailure::Timeout { timeout_ms: self.timeout_ms() }),
        }
    }

    /// The connection, and whether it was opened for this call.
    async fn opened(&self) -> Result<(Open, bool), QueueFailure> {
        if let Some(open) = self.slot().clone() {
            return Ok((open, false));
        }
        // The limit includes the wait for another call that is connecting.
        let opened = timeout(self.timeout, async {
            let _turn = self.connecting.lock().await;
            if let Some(open) = self.slot().clone() {
                return Ok((open, false));
            }
            let open = self.connect().await?;
            *self.slot() = Some(open.clone());
            Ok((open, true))
        });
        opened.await.unwrap_or_else(|_| Err(self.not_connected()))
    }

    async fn connect(&self) -> Result<Open, QueueFailure> {
        // Our own limits are longer than the library's 500 ms a reply: a snapshot of a million ids has 51 MB.
        let config = AsyncConnectionConfig::new().set_connection_timeout(None).set_response_timeout(None);
        let connected = self.client.get_multiplexed_async_connection_with_config(&config).await;
        let mut redis = connected.map_err(|error| QueueFailure::Refused { detail: cause(&error) })?;
        self.log_in(&mut redis).await?;
        Ok(Open { number: self.opened.fetch_add(1, Ordering::Relaxed), redis })
    }

    async fn log_in(&self, redis: &mut MultiplexedConnection) -> Result<(), QueueFailure> {
        let mut commands = redis::pipe();
        if let Some(Credentials { user, password }) = &self.credentials {
            commands.cmd("AUTH").arg(user.as_deref()).arg(password);
        }
        if self.database != 0 {
            commands.cmd("SELECT").arg(self.database);
        }
        let replies = match self.within_time(redis, &commands).await {
            // Nothing was sent that could have been carried out.
            Err(QueueFailure::Dropped { detail }) => return Err(QueueFailure::Refused { detail }),
            Err(QueueFailure::Timeout { .. }) => return Err(self.not_connected()),
            answered => answered?,
        };
        match replies.iter().find(|reply| !matches!(reply, Value::Okay)) {
            None => Ok(()),
            Some(Value::ServerError(error)) => Err(without_words(reply::refusal(error))),
            Some(other) => Err(reply::unexpected("AUTH or SELECT", other)),
        }
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

    fn not_connected(&self) -> QueueFailure {
        QueueFailure::Refused { detail: format!("not connected within {} ms", self.timeout_ms()) }
    }

    fn timeout_ms(&self) -> u64 {
        u64::try_from(self.timeout.as_millis()).unwrap_or(u64::MAX)
    }
}

/// Whether another node, or the same one later, might answer otherwise.
fn refuses_to_serve(reply: &Value) -> bool {
    let Value::ServerError(error) = reply else { return false };
    matches!(error.code(), "READONLY" | "MASTERDOWN" | "LOADING" | "NOAUTH" | "CLUSTERDOWN")
}

/// The system's words for what broke; of anything else only its kind, for the library's words may quote a reply.
fn cause(error: &RedisError) -> String {
    if error.is_io_error() { error.to_string() } else { error.category().to_owned() }
}

/// A refused log-in, without Redis's words: for an unknown command they repeat its arguments, and so the password.
fn without_words(failure: QueueFailure) -> QueueFailure {
    match failure {
        QueueFailure::Error { code, .. } => {
            let detail = "it refused to log in or to select the database; check [redis] url".to_owned();
            QueueFailure::Error { code, detail }
        }
        other => other,
    }
}

fn invalid_url(error: &RedisError) -> InvalidUrl {
    // These are fixed sentences; the detail, which may quote a part of the URL, is left out.
    let whole = error.to_string();
    let sentence = whole.split(" - ").next().unwrap_or("it does not parse");
    InvalidUrl(sentence.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn a_url_that_cannot_be_used_is_refused_without_its_password() {
        for url in [
            "",
            "hunter2",
            "http://:hunter2@host",
            "rediss://:hunter2@host",
            "redis://:hunter2@host:port",
            "redis://:hunter2@host/db",
            "redis://:hunter2@host?protocol=hunter2",
            "redis://:hunter2@",
        ] {
            let error = Connection::new(url, SECOND).expect_err(url);
            let told = format!("{error} {error:?}");
            assert!(!told.contains("hunter2"), "{told}");
            assert!(told.contains("[redis] url"), "{told}");
        }
    }

    #[test]
    fn debug_output_holds_no_password() {
        let connection = Connection::new("redis://me:hunter2@host:6379/3", SECOND).expect("a sound URL");
        let told = format!("{connection:?} {:?}", connection.client);
        assert!(!told.contains("hunter2"), "{told}");
    }

    #[tokio::test]
    async fn a_closed_port_is_refused_and_nothing_counts_as_sent() {
        // Port 1 is the port multiplexer's, which nobody runs.
        let connection = Connection::new("redis://127.0.0.1:1", SECOND).expect("a sound URL");
        let failure = connection.ask(redis::pipe().cmd("PING")).await.expect_err("nobody listens");
        assert!(matches!(failure, QueueFailure::Refused { .. }), "{failure:?}");
        assert!(!failure.is_indeterminate());
        assert_eq!(connection.commands_sent(), 0);
    }
}
