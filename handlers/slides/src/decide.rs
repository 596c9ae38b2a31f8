//! Whether a lost generation or outline can be begun again: its whole input is the deck.

use salvage_handler_sdk::{Backoff, Decision, Error, Inputs, Job, Options, Row, json};

/// Where generations and outlines are taken from; the other queue of the source is only looked into.
const QUEUE: &str = "slide-generation";

/// A model that is busy is usually back within seconds.
const OPTIONS: Options = Options::new().attempts(3).backoff(Backoff::Exponential(5_000));

/// What depends on the job type.
struct Task {
    /// BullMQ's job name.
    name: &'static str,
    deck_gone: &'static str,
    deck_ready: &'static str,
}

const GENERATE: Task = Task {
    name: "generate",
    deck_gone: "The slide deck of this job no longer exists, so its slides cannot be generated.",
    deck_ready: "The slide deck is already finished, so generating it again would overwrite its slides.",
};

const OUTLINE: Task = Task {
    name: "outline",
    deck_gone: "The slide deck of this job no longer exists, so its outline cannot be written.",
    deck_ready: "The slide deck is already finished, so its outline is no longer needed.",
};

/// Puts the job back if its deck is there and does not already hold the result.
pub fn decide(job: &Job, inputs: &Inputs) -> Result<Decision, Error> {
    let task = match job.job_type.as_str() {
        "GENERATION" => GENERATE,
        "OUTLINE" => OUTLINE,
        _ => return Err(job.no_rule()),
    };
    let Some(deck) = inputs.first("deck")? else {
        return Ok(Decision::fail(job.reason(task.deck_gone)));
    };
    match deck.text("status")? {
        // A worker had begun and the deck is finished: only the job's row was not told. A job that still waits is
        // another matter, since somebody asked for the finished deck to be made anew.
        "READY" if job.status == "PROCESSING" => Ok(Decision::fail(job.reason(task.deck_ready))),
        "DRAFT" | "GENERATING" | "READY" | "FAILED" => begin_again(job, deck, &task),
        unknown => Ok(Decision::hold(format!("deck status `{unknown}` is not known to this handler"))),
    }
}

fn begin_again(job: &Job, deck: &Row, task: &Task) -> Result<Decision, Error> {
    let data = json!({
        "jobId": job.id,
        "deckId": deck.text("id")?,
        "title": deck.text("title")?,
        "type": job.job_type,
    });
    Ok(Decision::requeue(QUEUE, task.name, data, OPTIONS))
}
