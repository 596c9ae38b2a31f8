//! A narration cannot be rebuilt: script and voice are in no table.

use salvage_handler_sdk::{Decision, Job};

pub(super) fn decide(job: &Job) -> Decision {
    Decision::fail(job.reason(
        "This narration cannot be resumed because its script and voice are not stored; please request it again.",
    ))
}
