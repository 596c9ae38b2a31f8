//! What Salvage writes down of every decision, and on what evidence.

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::alarm::Alarm;
use crate::scan::ScanCounts;
use crate::source::SourceName;

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

/// What a judgement rests on, the same for every orphan of a pass but for its queues.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Evidence {
    /// The pass's generation.
    pub generation: u64,
    /// The database's clock at the candidate query, RFC 3339.
    pub cutoff_base: String,
    /// Redis's clock at the (last) snapshot, ms since 1970.
    pub snapshot_ms: u64,
    /// The node's run id.
    pub run_id: String,
    /// Per queue of the source.
    pub queues: BTreeMap<String, QueueEvidence>,
    /// What the scan saw, if one ran.
    pub scan: Option<ScanCounts>,
    /// Whether a second look confirmed it.
    pub second_look: bool,
}

/// What was known of one queue.
#[derive(Debug, Clone, Default, Serialize)]
pub struct QueueEvidence {
    /// When its epoch began, RFC 3339.
    pub epoch_began: String,
    /// Whether the operator accepted that epoch.
    pub accepted: bool,
    /// BullMQ's counter.
    pub id_counter: Option<u64>,
    /// Ids in the six states.
    pub ids: usize,
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
