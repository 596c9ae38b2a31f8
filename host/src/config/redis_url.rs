//! A URL of Redis, as clients of several languages write it. See [`super::parameters`].

use super::parameters::{Unheeded, refused, switch};
use super::read::url;
use super::section::Complaint;
use super::tree::Node;
use crate::secret::SecretUrl;

const SCHEMES: [&str; 4] = ["redis", "rediss", "valkey", "valkeys"];

/// Of a server on this machine.
const SOCKET_SCHEMES: [&str; 3] = ["unix", "redis+unix", "valkey+unix"];

/// Parameters that are honoured.
const HONOURED: [&str; 5] = ["db", "user", "username", "pass", "password"];

/// About the application's connections, their waits and their number. The host has one, with waits of its own.
const OF_THE_APPLICATION: [&str; 45] = [
    "family",
    "protocol",
    "client_name",
    "clientname",
    "connectionname",
    "client_info",
    "timeout",
    "connecttimeout",
    "connect_timeout",
    "commandtimeout",
    "command_timeout",
    "sockettimeout",
    "socket_timeout",
    "socket_connect_timeout",
    "socket_keepalive",
    "socket_read_size",
    "dial_timeout",
    "read_timeout",
    "write_timeout",
    "keepalive",
    "nodelay",
    "lazyconnect",
    "enablereadycheck",
    "enableofflinequeue",
    "enableautopipelining",
    "maxretriesperrequest",
    "max_retries",
    "min_retry_backoff",
    "max_retry_backoff",
    "maxloadingretrytime",
    "retry_on_timeout",
    "retry_on_error",
    "autoresubscribe",
    "health_check_interval",
    "decode_responses",
    "encoding",
    "encoding_errors",
    "max_connections",
    "pool_size",
    "poolsize",
    "pool_timeout",
    "min_idle_conns",
    "max_idle_conns",
    "conn_max_idle_time",
    "conn_max_lifetime",
];

/// Parameters without which the connection would be another one: name, why not, what instead.
const REFUSED: [(&str, &str, &str); 14] = [
    ("keyprefix", "is not for BullMQ, whose keys have a prefix of their own", "set [redis] prefix"),
    ("key_prefix", "is not for BullMQ, whose keys have a prefix of their own", "set [redis] prefix"),
    ("sentinels", "is not read here", "set [redis] mode = \"sentinel\", nodes and master_name"),
    ("sentinelmasterid", "is not read here", "set [redis] mode = \"sentinel\", nodes and master_name"),
    ("sentinel_master", "is not read here", "set [redis] mode = \"sentinel\", nodes and master_name"),
    ("master_name", "is not read here", "set [redis] mode = \"sentinel\", nodes and master_name"),
    ("mastername", "is not read here", "set [redis] mode = \"sentinel\", nodes and master_name"),
    ("addr", "is not read here", "set [redis] mode = \"cluster\" and nodes"),
    ("ssl_ca_certs", "is not read here", "set [redis] ca"),
    ("ssl_ca_path", "is not read here", "set [redis] ca"),
    ("ssl_certfile", "is not read here", "set [redis] cert and key"),
    ("ssl_keyfile", "is not read here", "set [redis] cert and key"),
    (
        "ssl_password",
        "is for a key with a password, which is not supported",
        "set [redis] key to a file without one",
    ),
    ("path", "is not read here", "write unix:///PATH for a socket"),
];

/// The URL as the adapter takes it. `may_be_socket`: also a socket's.
pub(super) fn server_url(
    node: &Node,
    may_be_socket: bool,
    unheeded: &mut Unheeded,
) -> Result<SecretUrl, Complaint> {
    let sockets = if may_be_socket { &SOCKET_SCHEMES[..] } else { &[] };
    let url = url(node, &[&SCHEMES[..], sockets].concat(), "redis://:PASSWORD@HOST:6379/0")?;
    if url.expose().contains('#') {
        // `#insecure` is what some clients take for "check nobody".
        let complaint = Complaint::new("a URL of Redis has no part after `#`");
        return Err(complaint.with_help("to trust an authority of your own, set ca"));
    }
    let mut login = Login::default();
    for (name, value) in url.parameters() {
        login.take(&url, &name, &value, unheeded)?;
    }
    if SOCKET_SCHEMES.contains(&url.scheme()) { Ok(login.of_socket(&url)) } else { login.of_server(&url) }
}

/// Whether it is reached by TLS.
pub(super) fn is_tls(url: &SecretUrl) -> bool {
    matches!(url.scheme(), "rediss" | "valkeys")
}

/// What parameters say that a URL usually says in other places.
#[derive(Default)]
struct Login {
    database: Option<String>,
    user: Option<String>,
    password: Option<String>,
}

impl Login {
    fn take(
        &mut self,
        url: &SecretUrl,
        name: &str,
        value: &str,
        unheeded: &mut Unheeded,
    ) -> Result<(), Complaint> {
        let lower = name.to_ascii_lowercase();
        if let Some((_, why, instead)) = REFUSED.iter().find(|(refused, ..)| *refused == lower) {
            return Err(refused(name, why, instead));
        }
        match lower.as_str() {
            "db" if value.parse::<u32>().is_ok() => self.database = Some(value.to_owned()),
            "db" => return Err(refused(name, "is no number", "write the database's number")),
            "user" | "username" => self.user = Some(value.to_owned()),
            "pass" | "password" => self.password = Some(value.to_owned()),
            "ssl" | "tls" if switch(value) == Some(is_tls(url)) => unheeded.known(name),
            "ssl" | "tls" => {
                return Err(refused(
                    name,
                    "and the scheme disagree",
                    "write rediss:// for TLS, redis:// without",
                ));
            }
            "ssl_cert_reqs" | "ssl_check_hostname" | "rejectunauthorized" | "skip_verify" | "insecure" => {
                let is_checked = match (lower.as_str(), value.to_ascii_lowercase().as_str()) {
                    ("skip_verify" | "insecure", value) => switch(value) == Some(false),
                    ("ssl_cert_reqs", value) => value.ends_with("required"),
                    (_, value) => switch(value) == Some(true),
                };
                if !is_checked {
                    let instead = "set [redis] ca to the authority that issued the server's certificate";
                    return Err(refused(
                        name,
                        "asks not to check the server, which is always checked",
                        instead,
                    ));
                }
                unheeded.known(name);
            }
            "readonly" | "read_only" | "read_from_replicas" if switch(value) == Some(false) => {
                unheeded.known(name)
            }
            "readonly" | "read_only" | "read_from_replicas" => {
                return Err(refused(
                    name,
                    "asks for replicas, and the host needs the master",
                    "leave it out",
                ));
            }
            "role" if value == "master" => unheeded.known(name),
            "role" => {
                return Err(refused(
                    name,
                    "asks for replicas, and the host needs the master",
                    "leave it out",
                ));
            }
            known if OF_THE_APPLICATION.contains(&known) => unheeded.known(name),
            _ => unheeded.unknown(name, &HONOURED)?,
        }
        Ok(())
    }

    /// There is no other place in a socket's URL.
    fn of_socket(self, url: &SecretUrl) -> SecretUrl {
        let parameters = [("db", self.database), ("user", self.user), ("pass", self.password)];
        let set = parameters.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?)));
        url.with_parameters(&set.collect::<Vec<_>>())
    }

    fn of_server(self, url: &SecretUrl) -> Result<SecretUrl, Complaint> {
        let mut twice = None;
        let url = url.changed(|url| {
            url.set_query(None);
            if let Some(database) = &self.database {
                let path = url.path().trim_matches('/').to_owned();
                if path.is_empty() {
                    url.set_path(database);
                } else if path != *database {
                    twice = Some("db");
                }
            }
            if let Some(user) = &self.user {
                // Refused only of a URL without a host.
                if !url.username().is_empty() || url.set_username(user).is_err() {
                    twice = Some("user");
                }
            }
            if let Some(password) = &self.password
                && (url.password().is_some() || url.set_password(Some(password)).is_err())
            {
                twice = Some("password");
            }
        });
        match twice {
            Some(name) => {
                Err(refused(name, "is set in another place of the URL, too", "leave one of the two out"))
            }
            None => Ok(url),
        }
    }
}
