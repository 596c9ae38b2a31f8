//! Redis: the lease, the queues' snapshot, and the one script that puts a job back.
//!
//! Nothing here knows BullMQ's library: a BullMQ `Queue` would write its `meta` key by being opened. What is read and
//! written are the keys themselves; the facts they rest on are cited where they are used.
//!
//! | file | does | writes |
//! |---|---|---|
//! | `connection` | finds the server and connects when first asked, reconnects by itself, bounds every wait, counts commands | nothing |
//! | `reply` | tells a well-typed reply from everything else | nothing |
//! | `sizes`, `strategy` | how much there is to read, and so in which way | nothing |
//! | `snapshot`, `reading`, `info` | all queues at one instant, and the node that says so | nothing |
//! | `copies` | long states, copied at that instant and read in pages | `<queue>:salvage:copy:…`, with a time to live |
//! | `payloads`, `fields`, `sets`, `residues`, `stalled` | one entry, or a page of them, bounded by bytes | nothing |
//! | `names` | which queues exist, as a hint | nothing |
//! | `lease` | `SET NX`, and scripts that name the owner | the lease key |
//! | `mark` | our nonce and generation | `<queue>:salvage:host` |
//! | `act`, `options` | runs `requeue.lua`, the only thing that puts a job back in a queue | the job's keys |
//!
//! Nothing ever writes a queue's `meta`.

mod act;
mod connection;
mod copies;
mod fields;
mod info;
mod keys;
mod lease;
mod mark;
mod names;
mod options;
mod payloads;
mod reading;
mod reply;
mod residues;
mod script;
mod sets;
mod sizes;
mod snapshot;
mod stalled;
mod strategy;

use std::collections::BTreeMap;
use std::sync::Arc;

use salvage_core::act::{Act, Place, ScriptAnswer};
use salvage_core::lease::Fence;
use salvage_core::payload::Payload;
use salvage_core::settings::hash_tag;
use salvage_core::sighting::{QueueFailure, Residue};
use salvage_core::snapshot::{IdsCopy, IdsPage, Snapshot, Stalled, State};

pub use self::connection::{InvalidSettings, RedisSettings, Servers, TlsFiles};
pub use self::lease::RedisLease;
pub use self::strategy::SnapshotLimits;

use self::connection::Connection;
use self::copies::Copies;
use self::keys::Keys;
use self::snapshot::Camera;
use crate::ports::{Ask, Mark, QueueTerms, Queues};

/// The queues under one prefix of one Redis. Clones share the connection and its count of commands.
#[derive(Debug, Clone)]
pub struct RedisQueues {
    connection: Arc<Connection>,
    prefix: String,
    copies: Arc<Copies>,
    limits: SnapshotLimits,
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
        let (copies, limits) = (Arc::default(), SnapshotLimits::measured());
        Ok(Self { connection, prefix: settings.prefix.clone(), hash_tag, copies, limits })
    }

    /// The same queues, whose snapshots are taken in other ways than what was measured to be best.
    #[must_use]
    pub const fn with_limits(mut self, limits: SnapshotLimits) -> Self {
        self.limits = limits;
        self
    }

    /// The leases under `key`, on the same connection: in a cluster, `{bull}:` is put before a key that lies in another
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
    async fn snapshot(&self, ask: &Ask<'_>) -> Result<Snapshot, QueueFailure> {
        let Self { connection, prefix, copies, limits, .. } = self;
        Camera { connection, prefix, copies, limits }.take(ask).await
    }

    async fn page(
        &self,
        copy: &IdsCopy,
        from: usize,
        count: usize,
    ) -> Result<IdsPage<'static>, QueueFailure> {
        self.copies.page(&self.connection, copy, from, count).await
    }

    async fn are_in_set(
        &self,
        queue: &str,
        state: State,
        entry_ids: &[String],
    ) -> Result<Vec<bool>, QueueFailure> {
        sets::read(&self.connection, &self.keys(queue), state, entry_ids).await
    }

    async fn remove_copies(&self) {
        self.copies.remove_all(&self.connection).await;
    }

    async fn payloads(&self, queue: &str, entry_ids: &[String]) -> Result<Vec<Payload>, QueueFailure> {
        payloads::read(&self.connection, &self.keys(queue), entry_ids).await
    }

    async fn existing_queues(&self) -> Result<Vec<String>, QueueFailure> {
        names::existing(&self.connection, &self.prefix).await
    }

    async fn residues(&self, jobs: &[Vec<Place>]) -> Result<Vec<Residue>, QueueFailure> {
        residues::read(&self.connection, &self.prefix, jobs).await
    }

    async fn mark(&self, marks: &BTreeMap<String, Mark>, fence: &Fence) -> Result<(), QueueFailure> {
        mark::write(&self.connection, &self.prefix, marks, fence).await
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
