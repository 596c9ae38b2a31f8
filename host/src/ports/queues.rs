//! What lies in Redis: the lease and the queues.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use salvage_core::act::{Act, Place, ScriptAnswer};
use salvage_core::lease::{self, Fence, LeaseAnswer, Scope};
use salvage_core::payload::Payload;
use salvage_core::sighting::{QueueFailure, Residue};
use salvage_core::snapshot::{IdsCopy, IdsPage, Snapshot, Stalled, State};

/// The keys that say who may run a pass, one for each scope.
pub trait Lease {
    /// Takes the lease if nobody holds it.
    ///
    /// If the reply is lost, the key is read back: our token in it means that we hold the lease.
    ///
    /// # Errors
    /// If Redis does not answer. The key may then be ours until it expires.
    async fn acquire(&self, scope: &Scope, owner: &str, ttl: Duration) -> Result<LeaseAnswer, QueueFailure>;

    /// Lets the lease begin anew if it is still `owner`'s; returns whether it was. One that expired is not taken again.
    ///
    /// # Errors
    /// If Redis does not answer. The lease may or may not have been prolonged, so trust does not grow.
    async fn renew(&self, scope: &Scope, owner: &str, ttl: Duration) -> Result<bool, QueueFailure>;

    /// How long until the key runs out, if somebody holds it.
    ///
    /// # Errors
    /// If Redis does not answer.
    async fn expires_in(&self, _: &Scope) -> Result<Option<Duration>, QueueFailure> {
        Ok(None)
    }

    /// Gives the lease back if it is still `owner`'s; returns whether it was.
    ///
    /// # Errors
    /// If Redis does not answer. The key then expires by itself.
    async fn release(&self, scope: &Scope, owner: &str) -> Result<bool, QueueFailure>;
}

/// What a look at the queues is to find out, and what it may do for it.
#[derive(Debug, Clone, Copy)]
pub struct Ask<'a> {
    /// The queues whose guards are read, and some of their active entries.
    pub queues: &'a BTreeSet<String>,
    /// Those among them whose ids are wanted, in all six states.
    pub wanted: &'a BTreeSet<String>,
    /// Whether nothing of them may be left out, so that absence is proven. Otherwise long sorted sets are: they cost Redis
    /// most, and whoever is found without them needs no proof.
    pub is_whole: bool,
    /// Names the copies this look may make in Redis; `None` if it may write nothing.
    pub copies: Option<&'a str>,
    /// Whose nonce is read: each scope of the lease leaves its own in a queue.
    pub scope: &'a str,
}

impl<'a> Ask<'a> {
    /// For the guards alone.
    #[must_use]
    pub fn guards(queues: &'a BTreeSet<String>) -> Self {
        const NONE: &BTreeSet<String> = &BTreeSet::new();
        Self { queues, wanted: NONE, is_whole: false, copies: None, scope: lease::GLOBAL }
    }

    /// For all ids of all these queues, without writing anything.
    #[must_use]
    pub const fn ids(queues: &'a BTreeSet<String>) -> Self {
        Self { queues, wanted: queues, is_whole: true, copies: None, scope: lease::GLOBAL }
    }

    /// The same, with the nonce of another scope.
    #[must_use]
    pub const fn of_scope(self, scope: &'a str) -> Self {
        Self { scope, ..self }
    }
}

/// The queues, as they are in Redis.
pub trait Queues {
    /// Reads all queues at one instant, as cheaply as what is asked for allows. One reading per queue.
    ///
    /// May leave copies of ids in Redis if the ask allows it, see [`Self::remove_copies`].
    ///
    /// # Errors
    /// If there is no complete snapshot. What is wrong with one queue alone is a flaw of its reading, not an error.
    async fn snapshot(&self, ask: &Ask<'_>) -> Result<Snapshot, QueueFailure>;

    /// A part of what a snapshot left in a copy: `count` ids from position `from` on, or as many as there are. A copy that
    /// is not whole any more is a flaw of the page.
    ///
    /// # Errors
    /// If Redis did not answer.
    async fn page(&self, copy: &IdsCopy, from: usize, count: usize)
    -> Result<IdsPage<'static>, QueueFailure>;

    /// Whether each entry is in a state whose key is a sorted set, in their order; not all at one instant.
    ///
    /// # Errors
    /// If Redis did not answer.
    async fn are_in_set(
        &self,
        queue: &str,
        state: State,
        entry_ids: &[String],
    ) -> Result<Vec<bool>, QueueFailure>;

    /// Removes all copies that snapshots of this process left in Redis. If that fails it is logged: they expire.
    async fn remove_copies(&self);

    /// Reads the payloads of the first of `entry_ids`, in their order: of as many as one page of bytes holds, and of at least
    /// one. None if there is no id.
    ///
    /// # Errors
    /// If any of them could not be read.
    async fn payloads(&self, queue: &str, entry_ids: &[String]) -> Result<Vec<Payload>, QueueFailure>;

    /// Names of queues that exist under the prefix: some of them, as a hint for a person.
    ///
    /// # Errors
    /// If Redis did not answer, or does not allow it.
    async fn existing_queues(&self) -> Result<Vec<String>, QueueFailure> {
        Ok(vec![])
    }

    /// What each job left behind, over all its places; in the order of `jobs`.
    ///
    /// # Errors
    /// If any of them could not be read.
    async fn residues(&self, jobs: &[Vec<Place>]) -> Result<Vec<Residue>, QueueFailure>;

    /// Writes the nonce of the fence's scope into each queue's own key, and raises its generation to the fence's: all or none.
    /// A queue is only marked if its key still holds what the look at it found.
    ///
    /// # Errors
    /// If any may not have been written; [`QueueFailure::Fenced`] under a greater generation of the fence's scope,
    /// [`QueueFailure::Changed`] if this is not what was looked at.
    async fn mark(&self, marks: &BTreeMap<String, Mark>, fence: &Fence) -> Result<(), QueueFailure>;

    /// Runs the act's part in the queues: enqueues, or only proves that the job is in no state.
    ///
    /// # Errors
    /// If Redis did not answer; [`QueueFailure::is_indeterminate`] tells whether it may have been done.
    async fn act(&self, act: &Act, terms: &QueueTerms) -> Result<ScriptAnswer, QueueFailure>;

    /// Those of `active`, in their order, that are active still and have no lock: stalled in BullMQ's sense. Never acted
    /// on.
    ///
    /// # Errors
    /// If they could not be read.
    async fn stalled(&self, queue: &str, active: &[String]) -> Result<Vec<Stalled>, QueueFailure>;

    /// Commands sent since the process started.
    fn commands_sent(&self) -> u64;
}

/// A queue's new nonce, and the one it replaces.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mark {
    /// What the look found. Anything else is another Redis, or one that lost data since: a nonce written there would
    /// vouch for what nobody has seen.
    pub found: Option<String>,
    /// What to write.
    pub nonce: String,
}

/// The conditions under which a queue's script may write.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct QueueTerms {
    /// The pass's fence: the script refuses under a greater generation of its scope, and raises it.
    pub fence: Fence,
    /// Redis time after which the script refuses, milliseconds since 1970.
    pub deadline_ms: u64,
    /// The nonce each of the act's queues must hold; no entry for a queue that holds none.
    pub nonces: BTreeMap<String, String>,
    /// The queues that had a `meta` at the snapshot.
    pub with_meta: BTreeSet<String>,
}
