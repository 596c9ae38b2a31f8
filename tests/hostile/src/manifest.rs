//! The manifest that tests overwrite.

use std::hint::black_box;

use serde::Deserialize;
use serde_json::Value;

use crate::guest::types::HandlerManifest;

/// Where the text begins in the file's bytes.
const MARK: &[u8] = b"@hostile-manifest@";

/// Room for the mark and the text, filled up with spaces.
const ROOM: usize = 32 * 1024;

/// What is declared if nobody overwrites it.
const DEFAULT: &[u8] = br#"{
    "domain": "hostile",
    "description": "Does everything a handler must not.",
    "sources": [{
        "name": "jobs",
        "table": {
            "table": "HostileJob", "id": "id", "status": "status", "updated_at": "updatedAt", "job_type": "type",
            "extra_columns": [], "queued": "QUEUED", "processing": "PROCESSING", "failed": "FAILED"
        },
        "job_types": [{ "name": "ANY", "restart_safe": true }],
        "queues": [{ "name": "hostile", "job_id": "hostile-{id}", "payload_key": "jobId", "job_names": "Any", "foreign_names": [] }],
        "reads": []
    }]
}"#;

static TEXT: [u8; ROOM] = text();

const fn text() -> [u8; ROOM] {
    let mut text = [b' '; ROOM];
    let mut at = 0;
    while at < MARK.len() {
        text[at] = MARK[at];
        at += 1;
    }
    while at < MARK.len() + DEFAULT.len() {
        text[at] = DEFAULT[at - MARK.len()];
        at += 1;
    }
    text
}

/// What the text says.
#[derive(Deserialize)]
#[serde(untagged)]
pub(crate) enum Told {
    /// Behave like `decide` does for a job of that id.
    Behave { describe: String },
    /// Declare this.
    Declare(HandlerManifest),
}

/// What is decided for every job, where the text says so.
#[derive(Deserialize)]
pub(crate) struct Decides {
    /// `requeue` {queue, name, data, options}, or `fail` or `hold` with a reason. `{id}` in its texts is the job's id.
    pub(crate) decides: Option<Value>,
}

pub(crate) fn told() -> Told {
    read()
}

pub(crate) fn decides() -> Option<Value> {
    read::<Decides>().decides
}

/// Reads the text as it is in the file, not as it was when this was compiled.
fn read<T: for<'t> Deserialize<'t>>() -> T {
    let text = &black_box(&TEXT)[MARK.len()..];
    serde_json::from_slice(text).expect("the test wrote a manifest")
}
