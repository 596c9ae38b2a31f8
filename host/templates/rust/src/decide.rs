//! Whether a lost job can be put back: a pure function, without clock, randomness or anything but its arguments.

use salvage_handler_sdk::{Backoff, Decision, Error, Inputs, Job, Options, json};

const OPTIONS: Options = Options::new()
    .attempts(3)
    .backoff(Backoff::Exponential(5_000));

/// Puts the job back if its item is still there.
pub fn decide(job: &Job, inputs: &Inputs) -> Result<Decision, Error> {
    let Some(item) = inputs.first("item")? else {
        return Ok(Decision::fail(job.reason(
            "The item of this job no longer exists, so it cannot be built.",
        )));
    };
    let data = json!({
        "jobId": job.id,
        "itemId": item.text("id")?,
        "title": item.text("title")?,
    });
    Ok(Decision::requeue("{{name}}", "build", data, OPTIONS))
}
