//! Where the queues are, as the host is told.

use std::fmt;
use std::io;
use std::path::PathBuf;
use std::time::Duration;

use redis::RedisError;

/// Where the queues are.
#[derive(Clone)]
pub struct RedisSettings {
    /// Which servers.
    pub servers: Servers,
    /// BullMQ's key prefix, `bull` unless the application says otherwise. In a cluster it has a hash tag.
    pub prefix: String,
    /// Longest wait for a connection, and for each reply.
    pub timeout: Duration,
    /// For servers whose URL is `rediss://`.
    pub tls: TlsFiles,
}

/// How the server is found that holds the queues. A URL is `redis://[user:password@]host[:port][/database]`, or the same
/// with `rediss` for TLS.
#[derive(Clone)]
pub enum Servers {
    /// It is this one.
    Single {
        /// Its URL.
        url: String,
    },
    /// Sentinels know.
    Sentinel {
        /// URLs of the Sentinels, with their own users and passwords, if they ask for any. At least one.
        nodes: Vec<String>,
        /// What they call the master.
        master_name: String,
        /// User, password, database and TLS of the master, as a URL; its host and port do not matter.
        url: Option<String>,
    },
    /// It is the node of a cluster that holds the prefix's slot.
    Cluster {
        /// URLs of some nodes. At least one. The others are logged in to like the one that named them.
        nodes: Vec<String>,
    },
}

/// PEM files.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TlsFiles {
    /// Certificates of the authorities to trust, instead of the machine's own.
    pub ca: Option<PathBuf>,
    /// Our certificate (with those between it and an authority) and its key, for servers that ask for one.
    pub identity: Option<(PathBuf, PathBuf)>,
}

/// A setting of `[redis]` cannot be used. Never tells a URL, which may hold a password.
#[derive(Debug, thiserror::Error)]
pub enum InvalidSettings {
    /// Not the URL of a Redis server.
    #[error(
        "[redis] {setting} cannot be used: {why}; expected redis://[user:password@]host[:port][/database]"
    )]
    Url {
        /// The setting.
        setting: &'static str,
        /// What is wrong with it.
        why: String,
    },
    /// A file cannot be read.
    #[error("[redis] {setting}: cannot read {}", path.display())]
    Unreadable {
        /// The setting.
        setting: &'static str,
        /// The file.
        path: PathBuf,
        /// Why not.
        #[source]
        source: io::Error,
    },
    /// A file is not what it should be.
    #[error("[redis] {setting}: {} holds no {expected} in PEM form", path.display())]
    NotPem {
        /// The setting.
        setting: &'static str,
        /// The file.
        path: PathBuf,
        /// What it should hold.
        expected: &'static str,
    },
    /// No address of any server.
    #[error("[redis] nodes: names no server")]
    NoNodes,
}

impl RedisSettings {
    /// One server, without files for TLS.
    #[must_use]
    pub fn single(url: &str, prefix: &str, timeout: Duration) -> Self {
        let servers = Servers::Single { url: url.to_owned() };
        Self { servers, prefix: prefix.to_owned(), timeout, tls: TlsFiles::default() }
    }
}

impl fmt::Debug for RedisSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // URLs may hold passwords.
        let Self { servers: _, prefix, timeout, tls } = self;
        f.debug_struct("RedisSettings")
            .field("prefix", prefix)
            .field("timeout", timeout)
            .field("tls", tls)
            .finish_non_exhaustive()
    }
}

impl InvalidSettings {
    pub(super) fn url(setting: &'static str, error: &RedisError) -> Self {
        // These are fixed sentences; the detail, which may quote a part of the URL, is left out.
        let whole = error.to_string();
        let sentence = whole.split(" - ").next().unwrap_or("it does not parse");
        Self::Url { setting, why: sentence.to_owned() }
    }
}
