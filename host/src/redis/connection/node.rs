//! One server: its address, and how it is logged in to.

use redis::aio::MultiplexedConnection;
use redis::{
    AsyncConnectionConfig, Client, ConnectionAddr, ConnectionInfo, IntoConnectionInfo, ProtocolVersion,
    RedisConnectionInfo, RedisError, Value,
};
use salvage_core::sighting::QueueFailure;

use super::settings::InvalidSettings;
use super::tls::{self, Trust};
use super::wire::{Wire, refused};
use crate::redis::reply;

/// A server that is not connected.
#[derive(Clone)]
pub(super) struct Node {
    info: ConnectionInfo,
    credentials: Option<Credentials>,
    database: i64,
}

#[derive(Clone)]
struct Credentials {
    user: Option<String>,
    password: String,
}

impl Node {
    /// Reads the URL, which is that of `setting`. Does not connect.
    pub(super) fn new(setting: &'static str, url: &str, trust: &Trust) -> Result<Self, InvalidSettings> {
        let invalid = |error: RedisError| InvalidSettings::url(setting, &error);
        let info = url.into_connection_info().map_err(invalid)?;
        let settings = info.redis_settings();
        let user = settings.username().map(str::to_owned);
        let credentials =
            settings.password().map(|password| Credentials { user, password: password.to_owned() });
        let database = settings.db();
        // The library's own log-in drops the code of the reply, and with it whether the password was wrong; so we log
        // in ourselves.
        let plain =
            RedisConnectionInfo::default().set_protocol(ProtocolVersion::RESP2).set_skip_set_lib_name();
        let info = trust.given_to(info.set_redis_settings(plain)).map_err(invalid)?;
        Ok(Self { info, credentials, database })
    }

    /// A server that is reached in the same way and asks for no log-in.
    pub(super) fn without_login(&self) -> Self {
        Self { info: self.info.clone(), credentials: None, database: 0 }
    }

    /// The server at another address, reached and logged in to in the same way.
    pub(super) fn at(&self, host: &str, port: u16) -> Self {
        let host = host.to_owned();
        let addr = match self.info.addr() {
            ConnectionAddr::TcpTls { insecure, tls_params, .. } => {
                ConnectionAddr::TcpTls { host, port, insecure: *insecure, tls_params: tls_params.clone() }
            }
            _ => ConnectionAddr::Tcp(host, port),
        };
        Self { info: self.info.clone().set_addr(addr), ..self.clone() }
    }

    /// The server at another port of the same host.
    pub(super) fn at_port(&self, port: u16) -> Self {
        match self.info.addr() {
            ConnectionAddr::Tcp(host, _) | ConnectionAddr::TcpTls { host, .. } => self.at(host, port),
            _ => self.clone(),
        }
    }

    /// Connects and logs in; takes as long as it takes.
    pub(super) async fn connect(&self, wire: &Wire) -> Result<MultiplexedConnection, QueueFailure> {
        // Our own limits are longer than the library's 500 ms a reply: a snapshot of a million ids has 51 MB.
        let config = AsyncConnectionConfig::new().set_connection_timeout(None).set_response_timeout(None);
        let client = Client::open(self.info.clone()).map_err(|error| refused(&error))?;
        let connected = client.get_multiplexed_async_connection_with_config(&config).await;
        let mut redis = connected.map_err(|error| refused(&error))?;
        if matches!(self.info.addr(), ConnectionAddr::TcpTls { .. }) {
            self.end_handshake(&mut redis, wire).await?;
        }
        self.log_in(&mut redis, wire).await?;
        Ok(redis)
    }

    /// In TLS 1.3 a server judges our certificate after our own side of the handshake has ended, so only its first reply,
    /// of whatever kind, shows that it lets us in.
    async fn end_handshake(
        &self,
        redis: &mut MultiplexedConnection,
        wire: &Wire,
    ) -> Result<(), QueueFailure> {
        match wire.send_first(redis, redis::pipe().cmd("PING")).await {
            Err(QueueFailure::Refused { detail }) => {
                Err(QueueFailure::Tls { detail: tls::let_down(&detail) })
            }
            answered => answered.map(drop),
        }
    }

    async fn log_in(&self, redis: &mut MultiplexedConnection, wire: &Wire) -> Result<(), QueueFailure> {
        let mut commands = redis::pipe();
        if let Some(Credentials { user, password }) = &self.credentials {
            commands.cmd("AUTH").arg(user.as_deref()).arg(password);
        }
        if self.database != 0 {
            commands.cmd("SELECT").arg(self.database);
        }
        let replies = wire.send_first(redis, &commands).await?;
        match replies.iter().find(|reply| !matches!(reply, Value::Okay)) {
            None => Ok(()),
            Some(Value::ServerError(error)) => Err(without_words(reply::refusal(error))),
            Some(other) => Err(reply::unexpected("AUTH or SELECT", other)),
        }
    }
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
