//! Whether an absence may be believed: since when has this Redis provably lost nothing?
//!
//! ```text
//!                    first seen                    nonce missing or another's · `id` fell · keys evicted
//!   (no memory) ───────────────▶ epoch since now ──────────────────────────────────────────▶ epoch since now
//!                                   │      ▲ nonce, `id` and evictions as remembered: goes on
//!                                   │      │ (a restart with persistence, a clean failover)
//!                                   └──────┘
//!                                `accept`: trusted whatever a row's age, until the epoch ends
//! ```
//!
//! An orphan is acted on only if its row was written after the epoch of each of its queues began: then its entry cannot
//! have been lost together with Redis's data. And its source must be *corroborated* in this epoch, or in another
//! application's healthy Redis everything would be an orphan.

use std::fmt;
use std::time::Duration;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::snapshot::{QueueReading, Server};

/// How much later than the epoch's begin a row must have been written: the application's clock, which wrote
/// `updatedAt`, may be ahead of the database's, which timed the epoch.
pub const SKEW_MARGIN: Duration = Duration::from_secs(60);

/// What PostgreSQL remembers of a queue, shared by all hosts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct QueueMemory {
    /// The last nonce known to be written.
    pub nonce: Option<String>,
    /// The one being written when the last pass ended; a crash between the two stores leaves either in Redis.
    pub nonce_next: Option<String>,
    /// Highest `id` seen in this epoch.
    pub id_counter: Option<u64>,
    /// Whether the queue ever had an `id`, in any epoch.
    pub ever_had_jobs: bool,
    /// The node's run id at the last snapshot.
    pub run_id: String,
    /// Its replication id.
    pub replid: String,
    /// Its evicted keys.
    pub evicted_keys: u64,
    /// When the epoch began; database clock.
    pub epoch_began: Timestamp,
    /// When Redis was last found to have lost something, perhaps; `None` if never since the queue was first met.
    pub lost_at: Option<Timestamp>,
    /// When the operator accepted this epoch, if so.
    pub accepted_at: Option<Timestamp>,
}

impl QueueMemory {
    /// The memory once its next nonce is known to be written: nothing else will do any more.
    #[must_use]
    pub fn expecting_next(&self) -> Self {
        Self { nonce: self.nonce_next.clone(), nonce_next: None, ..self.clone() }
    }
}

/// What a new snapshot means for a queue's epoch.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "verdict", rename_all = "kebab-case")]
pub enum Continuity {
    /// Never seen before, or never marked with a nonce: an epoch begins.
    FirstContact,
    /// Nothing was lost: the epoch goes on.
    Continues,
    /// Data may have been lost: a new epoch begins.
    Broken(Break),
}

/// What broke an epoch.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub enum Break {
    /// Our key is gone.
    NonceMissing,
    /// Our key holds a nonce we do not know.
    NonceForeign,
    /// The counter fell, or is gone.
    IdFell {
        /// What was remembered.
        from: u64,
        /// What is there.
        to: Option<u64>,
    },
    /// Keys were evicted, under a policy that may evict a job.
    Evicted {
        /// How many since the last pass, or since the start of the process.
        keys: u64,
    },
}

impl fmt::Display for Break {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NonceMissing => f.write_str("the host's own key is gone: Redis was wiped, or lost what it had"),
            Self::NonceForeign => f.write_str(
                "the host's own key holds an unknown nonce: an older dump was restored, or a stale node answers",
            ),
            Self::IdFell { from, to: Some(to) } => write!(f, "the queue's `id` fell from {from} to {to}"),
            Self::IdFell { from, to: None } => write!(f, "the queue's `id` was {from} and is gone"),
            Self::Evicted { keys } => {
                write!(f, "Redis evicted {keys} keys, and jobs may be among them; set maxmemory-policy noeviction")
            }
        }
    }
}

/// Compares what PostgreSQL remembers of a queue with what the snapshot holds.
#[must_use]
pub fn follow(memory: Option<&QueueMemory>, reading: &QueueReading, server: &Server) -> Continuity {
    let Some(memory) = memory else { return Continuity::FirstContact };
    if let Some(keys) = evicted(memory, server) {
        return Continuity::Broken(Break::Evicted { keys });
    }
    if let Some(from) = memory.id_counter.filter(|from| reading.id_counter.is_none_or(|to| to < *from)) {
        return Continuity::Broken(Break::IdFell { from, to: reading.id_counter });
    }
    let known = [&memory.nonce, &memory.nonce_next];
    match &reading.nonce {
        // Nothing was ever written here (no trace of BullMQ so far), so a wipe could not have been noticed.
        None if known.iter().all(|nonce| nonce.is_none()) => Continuity::FirstContact,
        None => Continuity::Broken(Break::NonceMissing),
        // The queue held no nonce when it was looked at, so this one may have been written elsewhere: into whatever answered
        // a moment later. Where another server answers now, it is met for the first time.
        Some(_) if memory.nonce.is_none() && !is_same_run(memory, server) => Continuity::FirstContact,
        Some(nonce) if known.iter().any(|known| known.as_ref() == Some(nonce)) => Continuity::Continues,
        Some(_) => Continuity::Broken(Break::NonceForeign),
    }
}

/// Of a server that does not tell its run nobody knows.
fn is_same_run(memory: &QueueMemory, server: &Server) -> bool {
    memory.run_id == server.run_id && !server.run_id.is_empty()
}

fn evicted(memory: &QueueMemory, server: &Server) -> Option<u64> {
    // A count that fell began anew, also where no run is told.
    let is_counted_on = memory.run_id == server.run_id && memory.evicted_keys <= server.evicted_keys;
    let keys = server.evicted_keys - if is_counted_on { memory.evicted_keys } else { 0 };
    (keys > 0 && server.may_evict_jobs()).then_some(keys)
}

/// The memory after a snapshot. `nonce_next` is the nonce about to be written; `now` is the database's clock, read after
/// the snapshot, so that an epoch never begins before the loss it follows.
#[must_use]
pub fn remember(
    memory: Option<&QueueMemory>,
    continuity: &Continuity,
    reading: &QueueReading,
    server: &Server,
    nonce_next: Option<String>,
    now: Timestamp,
) -> QueueMemory {
    let kept = memory.filter(|_| *continuity == Continuity::Continues);
    let unbroken = memory.filter(|_| !matches!(continuity, Continuity::Broken(_)));
    QueueMemory {
        nonce: reading.nonce.clone(),
        nonce_next,
        id_counter: reading.id_counter,
        ever_had_jobs: reading.id_counter.is_some() || memory.is_some_and(|memory| memory.ever_had_jobs),
        run_id: server.run_id.clone(),
        replid: server.replid.clone(),
        evicted_keys: server.evicted_keys,
        epoch_began: kept.map_or(now, |memory| memory.epoch_began),
        lost_at: match continuity {
            Continuity::Broken(_) => Some(now),
            Continuity::FirstContact | Continuity::Continues => memory.and_then(|memory| memory.lost_at),
        },
        accepted_at: unbroken.and_then(|memory| memory.accepted_at),
    }
}

/// Whether an orphan's absence may be acted on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Trust {
    /// It may.
    Proven,
    /// Its row is older than the epoch of these queues.
    BeforeEpoch {
        /// Each that stands in the way; at least one.
        queues: Vec<String>,
        /// Since when all of them are known to have lost nothing.
        began: Timestamp,
    },
    /// No job of the source was ever seen in its queues in this epoch.
    Uncorroborated,
    /// Nothing confirms what the manifest says of the source's table and queues.
    Unconfirmed {
        /// Its queues.
        queues: Vec<String>,
    },
}

impl fmt::Display for Trust {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Proven => f.write_str("proven"),
            Self::BeforeEpoch { queues, began } => write!(
                f,
                "the row is older than what is known of {}, which may have lost entries before {began:.0}; \
                 if what is there now is the truth, run `salvage accept {}`",
                queues.join(" and "),
                queues.join(" ")
            ),
            Self::Uncorroborated => f.write_str(
                "no job of this source was ever seen in its queues: is this the right Redis? \
                 If it is, run `salvage accept` for one of them",
            ),
            Self::Unconfirmed { queues } => write!(
                f,
                "no row of this source was ever attributed to an entry under its present manifest, so nothing confirms its \
                 statuses, queues and rules; if they are right, run `salvage accept {}`",
                queues.join(" ")
            ),
        }
    }
}

/// What is known of an orphan's source.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Known {
    /// An entry of it was seen in its queues in this epoch.
    pub is_corroborated: bool,
    /// Something confirms its declaration ([`crate::declaration`]).
    pub is_confirmed: bool,
}

/// Whether the absence of a row written at `updated` may be acted on. `queues` are the memories of every queue of its
/// source, by name.
#[must_use]
pub fn trust(updated: Timestamp, queues: &[(&str, &QueueMemory)], source: Known) -> Trust {
    let limit = |memory: &QueueMemory| memory.epoch_began.checked_add(SKEW_MARGIN).unwrap_or(Timestamp::MAX);
    let blocks = |memory: &QueueMemory| {
        memory.ever_had_jobs && memory.accepted_at.is_none() && updated <= limit(memory)
    };
    let blocking = || queues.iter().filter(|(_, memory)| blocks(memory));
    if let Some(began) = blocking().map(|(_, memory)| memory.epoch_began).max() {
        return Trust::BeforeEpoch {
            queues: blocking().map(|(queue, _)| (*queue).to_owned()).collect(),
            began,
        };
    }
    let is_accepted = queues.iter().any(|(_, memory)| memory.accepted_at.is_some());
    if !is_accepted && !source.is_corroborated {
        Trust::Uncorroborated
    } else if !source.is_confirmed {
        Trust::Unconfirmed { queues: queues.iter().map(|(queue, _)| (*queue).to_owned()).collect() }
    } else {
        Trust::Proven
    }
}

/// The time after which a row must have been written to speak for or against a declaration: when Redis last lost something,
/// and a margin. An epoch that began because the queue was met for the first time is no such moment: that is just when a
/// wrong declaration has to be noticed.
#[must_use]
pub fn settled_since<'m>(queues: impl Iterator<Item = &'m QueueMemory>) -> Timestamp {
    let lost_at = queues.filter_map(|memory| memory.lost_at).max();
    lost_at.map_or(Timestamp::MIN, |at| at.checked_add(SKEW_MARGIN).unwrap_or(Timestamp::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures::server;
    use crate::snapshot::UNTOLD;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).expect("a time in range")
    }

    fn reading(nonce: Option<&str>, id_counter: Option<u64>) -> QueueReading {
        QueueReading { nonce: nonce.map(Into::into), id_counter, has_meta: true, ..QueueReading::default() }
    }

    const KNOWN: Known = Known { is_corroborated: true, is_confirmed: true };

    fn memory() -> QueueMemory {
        let first = reading(Some("a"), Some(6));
        remember(None, &Continuity::FirstContact, &first, &server(), Some("b".into()), at(1_000))
    }

    #[test]
    fn either_nonce_continues_an_epoch() {
        for nonce in ["a", "b"] {
            assert_eq!(
                follow(Some(&memory()), &reading(Some(nonce), Some(6)), &server()),
                Continuity::Continues
            );
        }
    }

    #[test]
    fn a_lost_or_foreign_nonce_breaks_it() {
        let broken = |nonce| follow(Some(&memory()), &reading(nonce, Some(900)), &server());
        assert_eq!(broken(None), Continuity::Broken(Break::NonceMissing));
        assert_eq!(broken(Some("z")), Continuity::Broken(Break::NonceForeign));
    }

    #[test]
    fn a_fallen_counter_breaks_it() {
        let follow = |to| follow(Some(&memory()), &reading(Some("b"), to), &server());
        assert_eq!(follow(Some(5)), Continuity::Broken(Break::IdFell { from: 6, to: Some(5) }));
        assert_eq!(follow(None), Continuity::Broken(Break::IdFell { from: 6, to: None }));
    }

    #[test]
    fn a_restart_with_persistence_continues_it() {
        let restarted = Server { run_id: "run-2".into(), replid: "repl-2".into(), ..server() };
        assert_eq!(follow(Some(&memory()), &reading(Some("b"), Some(6)), &restarted), Continuity::Continues);
    }

    #[test]
    fn a_first_nonce_that_another_server_holds_continues_nothing() {
        let first = |server: &Server| {
            let seen = remember(
                None,
                &Continuity::FirstContact,
                &reading(None, Some(6)),
                server,
                Some("b".into()),
                at(0),
            );
            follow(Some(&seen), &reading(Some("b"), Some(900)), &self::server())
        };
        assert_eq!(first(&server()), Continuity::Continues);
        let other = Server { run_id: "run-0".into(), ..server() };
        assert_eq!(first(&other), Continuity::FirstContact);
    }

    #[test]
    fn evictions_break_it_unless_jobs_are_never_evicted() {
        let evicting = |policy: &str| Server { evicted_keys: 3, maxmemory_policy: policy.into(), ..server() };
        let follow = |policy| follow(Some(&memory()), &reading(Some("b"), Some(6)), &evicting(policy));
        assert_eq!(follow("allkeys-lru"), Continuity::Broken(Break::Evicted { keys: 3 }));
        assert_eq!(follow("volatile-lru"), Continuity::Continues);
        assert_eq!(follow("noeviction"), Continuity::Continues);
        assert_eq!(follow(UNTOLD), Continuity::Broken(Break::Evicted { keys: 3 }));
    }

    #[test]
    fn a_server_that_does_not_tell_its_run_is_followed_by_its_nonce_and_its_count() {
        let untold = |evicted_keys| Server {
            run_id: String::new(),
            evicted_keys,
            maxmemory_policy: UNTOLD.into(),
            ..server()
        };
        let seen = QueueMemory { run_id: String::new(), evicted_keys: 3, ..memory() };
        let follow = |memory: &QueueMemory, evicted| {
            follow(Some(memory), &reading(Some("b"), Some(6)), &untold(evicted))
        };
        assert_eq!(follow(&seen, 3), Continuity::Continues);
        assert_eq!(follow(&seen, 5), Continuity::Broken(Break::Evicted { keys: 2 }));
        assert_eq!(follow(&seen, 1), Continuity::Broken(Break::Evicted { keys: 1 }), "it counts anew");
        let unmarked = QueueMemory { nonce: None, nonce_next: Some("b".into()), ..seen };
        assert_eq!(follow(&unmarked, 3), Continuity::FirstContact, "it may be another one");
    }

    #[test]
    fn a_broken_epoch_forgets_that_it_was_accepted() {
        let accepted = QueueMemory { accepted_at: Some(at(1_500)), ..memory() };
        let broken = Continuity::Broken(Break::NonceMissing);
        let after = remember(Some(&accepted), &broken, &reading(None, None), &server(), None, at(2_000));
        assert_eq!((after.epoch_began, after.accepted_at, after.ever_had_jobs), (at(2_000), None, true));
        assert_eq!(after.lost_at, Some(at(2_000)));
    }

    #[test]
    fn a_queue_accepted_without_a_trace_begins_its_epoch_with_its_first_nonce_and_stays_accepted() {
        let unmarked =
            QueueMemory { nonce: None, nonce_next: None, accepted_at: Some(at(1_500)), ..memory() };
        let continuity = follow(Some(&unmarked), &reading(None, Some(7)), &server());
        assert_eq!(continuity, Continuity::FirstContact);
        let after = remember(
            Some(&unmarked),
            &continuity,
            &reading(None, Some(7)),
            &server(),
            Some("c".into()),
            at(2_000),
        );
        assert_eq!((after.epoch_began, after.accepted_at), (at(2_000), Some(at(1_500))));
    }

    #[test]
    fn a_row_is_acted_on_only_if_written_after_every_epoch_of_its_source() {
        let old = memory();
        let young = QueueMemory { epoch_began: at(5_000), ..memory() };
        let queues = [("a", &old), ("b", &young)];
        let margin = i64::try_from(SKEW_MARGIN.as_secs()).expect("a small margin");
        let before = Trust::BeforeEpoch { queues: vec!["b".into()], began: at(5_000) };
        assert_eq!(trust(at(5_000 + margin), &queues, KNOWN), before);
        assert_eq!(trust(at(5_001 + margin), &queues, KNOWN), Trust::Proven);
        let unseen = Known { is_corroborated: false, ..KNOWN };
        assert_eq!(trust(at(5_001 + margin), &queues, unseen), Trust::Uncorroborated);
        let claimed = Known { is_confirmed: false, ..KNOWN };
        let unconfirmed = Trust::Unconfirmed { queues: vec!["a".into(), "b".into()] };
        assert_eq!(trust(at(5_001 + margin), &queues, claimed), unconfirmed);
        assert_eq!(settled_since([&old, &young].into_iter()), Timestamp::MIN);
        let lost = QueueMemory { lost_at: Some(at(5_000)), ..memory() };
        assert_eq!(settled_since([&old, &lost].into_iter()), at(5_000 + margin));
    }

    #[test]
    fn a_queue_that_never_had_a_job_does_not_block() {
        let old = memory();
        let unused =
            QueueMemory { ever_had_jobs: false, id_counter: None, epoch_began: at(9_000), ..memory() };
        assert_eq!(trust(at(5_000), &[("a", &old), ("b", &unused)], KNOWN), Trust::Proven);
    }

    #[test]
    fn acceptance_stands_in_for_age_and_corroboration() {
        let accepted = QueueMemory { accepted_at: Some(at(5_100)), epoch_began: at(5_000), ..memory() };
        let unseen = Known { is_corroborated: false, ..KNOWN };
        assert_eq!(trust(at(10), &[("a", &accepted)], unseen), Trust::Proven);
    }
}
