//! One judgement per source.

mod composition;
mod narration;

use salvage_handler_sdk::{Decision, Error, Inputs, Job};

/// Asks the judgement of the job's source and type.
pub fn decide(job: &Job, inputs: &Inputs) -> Result<Decision, Error> {
    match (job.source.as_str(), job.job_type.as_str()) {
        ("composition", "COMPOSITION") => composition::decide_composition(job, inputs),
        ("composition", "PREVIEW") => Ok(composition::decide_preview(job)),
        ("narration", _) => Ok(narration::decide(job)),
        _ => Err(job.no_rule()),
    }
}
