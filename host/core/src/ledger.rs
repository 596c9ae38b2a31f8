//! What Salvage writes down of every decision, and on what evidence.

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::alarm::Alarm;
use crate::epoch::{Continuity, QueueMemory};
use crate::scan::{ScanCounts, Unreadable};
use crate::snapshot::{Flaw, QueueReading, Server, Snapshot};
use crate::source::SourceName;
use crate::usage::Usage;

/// Of a nonce's 32 random digits: enough to tell one from another.
const NONCE_DIGITS: usize = 8;

/// Of a run or replication id's 40 digits: as many as `salvage doctor` shows.
const SERVER_DIGITS: usize = 12;

/// One orphan's story in one pass. A story that does not change from pass to pass stays one ledger row with a count.
#[derive(Debug, Clone)]
pub struct Entry {
    /// Its source.
    pub source: SourceName,
    /// Its row id.
    pub job_id: String,
    /// Its type.
    pub job_type: String,
    /// Status, updatedAt and xmin as read.
    pub row: serde_json::Value,
    /// What the judgement rests on.
    pub evidence: Evidence,
    /// `scheduled`, `absent` or `unknown`.
    pub sighting: String,
    /// Residue or doubt.
    pub sighting_why: Option<String>,
    /// Digest of the inputs the handler saw.
    pub inputs_digest: Option<String>,
    /// Digest of the component that decided.
    pub component_digest: Option<String>,
    /// `requeue`, `fail`, `hold` or `none`.
    pub decision: String,
    /// The decision's reason.
    pub decision_reason: Option<String>,
    /// The outcome's word; `None` if nothing was tried.
    pub outcome: Option<String>,
    /// The outcome's sentence.
    pub outcome_why: Option<String>,
    /// How long `decide` ran, microseconds.
    pub decide_us: Option<u64>,
}

/// What a judgement rests on, the same for every orphan of a pass but for its queues: what each guard saw, beside what was
/// remembered. Identifiers are shortened, for this is kept with every story.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Evidence {
    /// The pass's generation.
    pub generation: u64,
    /// The database's clock at the candidate query, RFC 3339.
    pub cutoff_base: String,
    /// Redis's clock at the first snapshot, ms since 1970; 0 if there is none.
    pub snapshot_ms: u64,
    /// The key prefix of the queues; empty if there is no snapshot.
    pub prefix: String,
    /// The node that answered: its role, whether it was loading, who it is, what it evicted. `None` if there is no snapshot.
    pub server: Option<Server>,
    /// Per queue of the source.
    pub queues: BTreeMap<String, QueueEvidence>,
    /// What the scan saw, if one ran.
    pub scan: Option<ScanCounts>,
    /// Whether a second look confirmed it.
    pub second_look: bool,
    /// What the handler's call used of its limits; `None` if it was not called.
    pub usage: Option<Usage>,
}

/// What was known of one queue.
#[derive(Debug, Clone, Default, Serialize)]
pub struct QueueEvidence {
    /// When its epoch began, RFC 3339; empty if it never did.
    pub epoch_began: String,
    /// Whether the operator accepted that epoch.
    pub accepted: bool,
    /// What comparing what was seen with what was remembered said of the epoch. `None` if it could not be compared: there is
    /// no snapshot, its node may not speak for the queue, or a key of the queue is not what it should be.
    pub continuity: Option<Continuity>,
    /// What the snapshot saw; `None` if there is none.
    pub seen: Option<Seen>,
    /// What the pass before had left; `None` if none had met the queue.
    pub remembered: Option<Remembered>,
}

/// What the snapshot saw of one queue.
#[derive(Debug, Clone, Serialize)]
pub struct Seen {
    /// The first characters of the nonce in our own key.
    pub nonce: Option<String>,
    /// BullMQ's counter.
    pub id: Option<u64>,
    /// Whether `meta` was there.
    pub meta: bool,
    /// Ids in the six states.
    pub ids: usize,
    /// What forbids to call anything absent: elements of another type, Pro groups, no trace of BullMQ. None: all of that
    /// was looked at and found right.
    pub flaws: Vec<Flaw>,
    /// Entries without a readable payload; `None` if there was none, or no payload was needed.
    pub unreadable: Option<Unreadable>,
}

/// What was remembered of one queue, and of the node that held it.
#[derive(Debug, Clone, Serialize)]
pub struct Remembered {
    /// The first characters of the one or two nonces that will do.
    pub nonces: Vec<String>,
    /// BullMQ's counter may not be lower.
    pub id: Option<u64>,
    /// Another run id is a restart.
    pub run_id: String,
    /// Another replication id is a failover.
    pub replid: String,
    /// More evicted keys than these are a loss, under a policy that may evict a job.
    pub evicted_keys: u64,
}

impl Evidence {
    /// Takes note of the snapshot itself.
    #[must_use]
    pub fn at(self, snapshot: &Snapshot) -> Self {
        let server = &snapshot.server;
        let server = Server {
            run_id: shortened(&server.run_id, SERVER_DIGITS),
            replid: shortened(&server.replid, SERVER_DIGITS),
            ..server.clone()
        };
        Self { snapshot_ms: snapshot.at_ms, prefix: snapshot.prefix.clone(), server: Some(server), ..self }
    }
}

impl Seen {
    /// Of a queue's reading, and what of its entries could not be read.
    #[must_use]
    pub fn new(reading: &QueueReading, unreadable: Option<&Unreadable>) -> Self {
        Self {
            nonce: reading.nonce.as_deref().map(|nonce| shortened(nonce, NONCE_DIGITS)),
            id: reading.id_counter,
            meta: reading.has_meta,
            ids: reading.ids_total(),
            flaws: reading.flaws.clone(),
            unreadable: unreadable.cloned(),
        }
    }
}

impl From<&QueueMemory> for Remembered {
    fn from(memory: &QueueMemory) -> Self {
        let next = memory.nonce_next.as_ref().filter(|next| memory.nonce.as_ref() != Some(next));
        let nonces = memory.nonce.iter().chain(next);
        Self {
            nonces: nonces.map(|nonce| shortened(nonce, NONCE_DIGITS)).collect(),
            id: memory.id_counter,
            run_id: shortened(&memory.run_id, SERVER_DIGITS),
            replid: shortened(&memory.replid, SERVER_DIGITS),
            evicted_keys: memory.evicted_keys,
        }
    }
}

fn shortened(text: &str, digits: usize) -> String {
    text.chars().take(digits).collect()
}

/// Written before the acts: what may be about to happen. The recovery cap counts these.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Intent {
    /// Its source.
    pub source: SourceName,
    /// Its row id.
    pub job_id: String,
    /// Whether it is a requeue; fails are not counted as recoveries.
    pub is_requeue: bool,
}

/// One pass, as `history` shows it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PassRecord {
    /// Its id.
    pub id: String,
    /// What its lease covered: `global`, or a domain.
    pub scope: String,
    /// Its generation.
    pub generation: u64,
    /// When it began; database clock.
    pub started_at: Timestamp,
    /// How long it took; `None` while it runs or if it died.
    pub duration_ms: Option<u64>,
    /// Its counters, as in `once --json`.
    pub sources: serde_json::Value,
    /// What it was alarmed at.
    pub alarms: Vec<Alarm>,
}

/// A job that was put back or marked failed, or may have been, as `history --jobs` shows it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ActRecord {
    /// When; database clock.
    pub at: Timestamp,
    /// The pass's generation.
    pub generation: u64,
    /// The handler's domain.
    pub domain: String,
    /// The source's name.
    pub source: String,
    /// The row's id.
    pub id: String,
    /// The job type.
    #[serde(rename = "type")]
    pub job_type: String,
    /// The row's status before.
    pub status: Option<String>,
    /// `requeue` or `fail`.
    pub decision: String,
    /// Its reason.
    pub reason: Option<String>,
    /// `applied` or `indeterminate`.
    pub outcome: String,
    /// Its sentence.
    pub why: Option<String>,
}

/// Which of them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ActsAsked {
    /// At most so many, the newest.
    pub limit: u32,
    /// Only of this source.
    pub source: Option<SourceName>,
    /// Only of the last so long.
    pub since: Option<Duration>,
}

/// One line of a job's story, as `explain` shows it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StoryLine {
    /// First pass that told it, database clock.
    pub first_at: Timestamp,
    /// Last pass that told it.
    pub last_at: Timestamp,
    /// How many passes told it.
    pub times: u64,
    /// The last pass's generation.
    pub generation: u64,
    /// Status, updatedAt and xmin as read.
    pub row: serde_json::Value,
    /// What the judgement rested on.
    pub evidence: serde_json::Value,
    /// `scheduled`, `absent` or `unknown`.
    pub sighting: String,
    /// Residue or doubt.
    pub sighting_why: Option<String>,
    /// `requeue`, `fail`, `hold` or `none`.
    pub decision: String,
    /// Its reason.
    pub decision_reason: Option<String>,
    /// The outcome's word.
    pub outcome: Option<String>,
    /// Its sentence.
    pub outcome_why: Option<String>,
    /// Digest of the component that decided.
    pub component_digest: Option<String>,
}
