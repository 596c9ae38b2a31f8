//! Redis: the lease, the queues' snapshot, and the one script that puts a job back.
//!
//! Nothing here knows BullMQ's library: a BullMQ `Queue` would write its `meta` key by being opened. What is read and
//! written are the keys themselves; the facts they rest on are cited where they are used.
//!
//! | file | does | writes |
//! |---|---|---|
//! | `connection` | finds the server and connects when first asked, reconnects by itself, bounds every wait, counts commands | nothing |
//! | `reply` | tells a well-typed reply from everything else | nothing |
//! | `snapshot`, `info` | all queues at one instant, and the node that says so | nothing |
//! | `payloads`, `listed`, `residues`, `stalled` | one entry, or a page of them | nothing |
//! | `lease` | `SET NX`, and scripts that name the owner | the lease key |
//! | `mark` | our nonce and generation | `<queue>:salvage:host` |
//! | `act`, `options` | runs `requeue.lua`, the only thing that puts a job back in a queue | the job's keys |
//!
//! Nothing ever writes a queue's `meta`.

mod act;
mod connection;
mod info;
mod keys;
mod lease;
mod listed;
mod mark;
mod options;
mod payloads;
mod reply;
mod residues;
mod script;
mod snapshot;
mod stalled;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use salvage_core::act::{Act, Place, ScriptAnswer};
use salvage_core::lease::Fence;
use salvage_core::settings::hash_tag;
use salvage_core::sighting::{QueueFailure, Residue};
use salvage_core::snapshot::{Snapshot, Stalled};

pub use self::connection::{InvalidSettings, RedisSettings, Servers, TlsFiles};
pub use self::lease::RedisLease;

use self::connection::Connection;
use self::keys::Keys;
use crate::ports::{QueueTerms, Queues};

/// The queues under one prefix of one Redis. Clones share the connection and its count of commands.
#[derive(Debug, Clone)]
pub struct RedisQueues {
    connection: Arc<Connection>,
    prefix: String,
    /// In a cluster, the hash tag that all our keys share.
    hash_tag: Option<String>,
}

impl RedisQueues {
    /// Remembers where Redis is; connects when first asked, so it may be down now.
    ///
    /// # Errors
    /// If a URL is not one of a Redis server, or a file cannot be used.
    pub fn new(settings: &RedisSettings) -> Result<Self, InvalidSettings> {
        let connection = Arc::new(Connection::new(settings)?);
        let is_cluster = matches!(settings.servers, Servers::Cluster { .. });
        let hash_tag = hash_tag(&settings.prefix).filter(|_| is_cluster).map(str::to_owned);
        Ok(Self { connection, prefix: settings.prefix.clone(), hash_tag })
    }

    /// The lease under `key`, on the same connection: in a cluster, `{bull}:` is put before a key that lies in another
    /// slot than the queues of prefix `{bull}`.
    #[must_use]
    pub fn lease(&self, key: impl Into<String>) -> RedisLease {
        let key = key.into();
        let key = match self.hash_tag.as_deref() {
            Some(tag) if hash_tag(&key) != Some(tag) => format!("{{{tag}}}:{key}"),
            _ => key,
        };
        RedisLease::new(Arc::clone(&self.connection), key)
    }

    fn keys(&self, queue: &str) -> Keys {
        Keys::new(&self.prefix, queue)
    }
}

impl Queues for RedisQueues {
    async fn snapshot(&self, queues: &BTreeSet<String>) -> Result<Snapshot, QueueFailure> {
        snapshot::read(&self.connection, &self.prefix, queues).await
    }

    async fn payloads(&self, queue: &str, entry_ids: &[String]) -> Result<Vec<Option<String>>, QueueFailure> {
        payloads::read(&self.connection, &self.keys(queue), entry_ids).await
    }

    async fn are_listed(&self, queue: &str, entry_ids: &[String]) -> Result<Vec<bool>, QueueFailure> {
        listed::are_listed(&self.connection, &self.keys(queue), entry_ids).await
    }

    async fn residues(&self, jobs: &[Vec<Place>]) -> Result<Vec<Residue>, QueueFailure> {
        residues::read(&self.connection, &self.prefix, jobs).await
    }

    async fn mark(&self, nonces: &BTreeMap<String, String>, fence: &Fence) -> Result<(), QueueFailure> {
        mark::write(&self.connection, &self.prefix, nonces, fence).await
    }

    async fn act(&self, act: &Act, terms: &QueueTerms) -> Result<ScriptAnswer, QueueFailure> {
        act::run(&self.connection, &self.prefix, act, terms).await
    }

    async fn stalled(&self, queue: &str, active: &[String]) -> Result<Vec<Stalled>, QueueFailure> {
        stalled::read(&self.connection, &self.keys(queue), active).await
    }

    fn commands_sent(&self) -> u64 {
        self.connection.commands_sent()
    }
}
