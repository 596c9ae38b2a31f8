//! An export cannot be rebuilt: its render settings (pages, size, quality) went into the payload and into no table.

use salvage_handler_sdk::{Decision, Error, Inputs, Job};

/// Always a fail, the same for both sources; the reason tells what the queue knows.
pub fn decide(job: &Job, _inputs: &Inputs) -> Result<Decision, Error> {
    let format = &job.job_type;
    Ok(Decision::fail(job.reason(&format!(
        "This {format} export cannot be resumed because its render settings are not stored; please export again."
    ))))
}
