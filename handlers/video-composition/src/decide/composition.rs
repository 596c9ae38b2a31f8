//! A composition is a function of the video and its tracks, so it is rebuilt from them; a preview is not.

use crate::manifest::TRACKS_MAX;
use salvage_handler_sdk::{Backoff, Decision, Error, Input, Inputs, Job, Options, Row, Value, json};

/// Where compositions are taken from; the other queue of the source is only looked into.
const QUEUE: &str = "video-composition";
const JOB_NAME: &str = "compose";

/// Sources are fetched over the network, which is usually back within seconds.
const OPTIONS: Options = Options::new().attempts(3).backoff(Backoff::Exponential(5_000));

/// Puts the composition back if its video is still wanted and has tracks.
///
/// A finished video is no obstacle: composed again from the same tracks it becomes the same video.
pub(super) fn decide_composition(job: &Job, inputs: &Inputs) -> Result<Decision, Error> {
    let fail = |sentence: &str| Ok(Decision::fail(job.reason(sentence)));
    let Some(video) = inputs.first("video")? else {
        return fail("The video of this job was deleted, so it cannot be composed.");
    };
    match video.text("status")? {
        "CANCELLED" => return fail("The video of this job was cancelled, so it is not composed."),
        "DRAFT" | "COMPOSING" | "READY" | "FAILED" => {}
        unknown => {
            return Ok(Decision::hold(format!("video status `{unknown}` is not known to this handler")));
        }
    }
    let tracks = inputs.get("tracks")?;
    if tracks.truncated {
        // The host would refuse a requeue made on half a video, pass after pass; this tells the user once.
        return fail(&format!(
            "The video has more than {TRACKS_MAX} tracks, which is more than can be put back automatically; please \
             compose it again."
        ));
    }
    if tracks.rows.is_empty() {
        return fail("The video has no tracks, so there is nothing to compose.");
    }
    compose_again(job, video, tracks)
}

/// A preview's settings are in no table.
pub(super) fn decide_preview(job: &Job) -> Decision {
    Decision::fail(job.reason(
        "This preview cannot be resumed because its settings are not stored; please request it again.",
    ))
}

fn compose_again(job: &Job, video: &Row, tracks: &Input) -> Result<Decision, Error> {
    let data = json!({
        "jobId": job.id,
        "videoId": video.text("id")?,
        "title": video.text("title")?,
        "tracks": tracks.rows.iter().map(track).collect::<Result<Vec<_>, _>>()?,
    });
    Ok(Decision::requeue(QUEUE, JOB_NAME, data, OPTIONS))
}

/// One track as the producer writes it. What is NULL in the table (a text track has no source, an open end no time) is
/// null in the payload.
fn track(row: &Row) -> Result<Value, Error> {
    Ok(json!({
        "kind": row.text("kind")?,
        "sourceUrl": row.value("sourceUrl")?,
        "startMs": row.value("startMs")?,
        "endMs": row.value("endMs")?,
    }))
}
