//! `salvage once` and `salvage plan`: one pass, and what came of it.

use salvage_core::report::{JobReport, LeaseState, Report};
use salvage_core::settings::PassSettings;

use super::{CommandError, Done, say, say_json, table};
use crate::cli::Exit;
use crate::pass::{self, Mode};
use crate::ports::Outside;
use crate::stop::Stop;

/// Runs one pass and prints its report.
///
/// # Errors
/// If PostgreSQL failed or standard output is closed.
pub async fn once<O: Outside>(
    outside: &O,
    settings: &PassSettings,
    mode: Mode,
    json: bool,
    stop: &Stop,
) -> Done {
    let report = pass::run(outside, settings, mode, stop).await?;
    if json {
        say_json(&report)?;
    } else {
        print(&report)?;
    }
    Ok(exit(&report))
}

fn exit(report: &Report) -> Exit {
    match report.pass.lease {
        LeaseState::Held => Exit::Skipped,
        LeaseState::Unreachable => Exit::NothingJudged,
        LeaseState::Acquired | LeaseState::NotTaken if report.judged_nothing() => Exit::NothingJudged,
        LeaseState::Acquired | LeaseState::NotTaken => Exit::Done,
    }
}

fn print(report: &Report) -> Result<(), CommandError> {
    match report.pass.lease {
        LeaseState::Held => return say("skipped: another host holds the lease"),
        LeaseState::Unreachable => return say("skipped: the lease could not be taken, Redis did not answer"),
        LeaseState::Acquired | LeaseState::NotTaken => {}
    }
    let mut sources =
        table(["SOURCE", "LIVE", "CANDIDATES", "SCHEDULED", "ABSENT", "UNKNOWN", "REQUEUED", "FAILED"]);
    for source in &report.sources {
        let name = format!("{}/{}", source.domain, source.source);
        let counts = [
            source.live,
            source.candidates,
            source.scheduled,
            source.absent,
            source.unknown,
            source.requeued,
            source.failed,
        ];
        sources.add_row(std::iter::once(name).chain(counts.map(|count| count.to_string())));
    }
    say(sources)?;
    if report.jobs.is_empty() {
        return say("\nno orphan");
    }
    let mut jobs = table(["SOURCE", "JOB", "TYPE", "STATUS", "SIGHTING", "DECISION", "OUTCOME"]);
    for job in &report.jobs {
        jobs.add_row(row(job));
    }
    say(format_args!("\n{jobs}"))
}

fn row(job: &JobReport) -> [String; 7] {
    let with = |word: &str, why: &Option<String>| match why {
        Some(why) => format!("{word}: {why}"),
        None => word.to_owned(),
    };
    let sighting = match job.sighting.residue {
        Some("none") | None => with(job.sighting.kind, &job.sighting.why),
        Some(residue) => format!("{} (left: {residue})", job.sighting.kind),
    };
    [
        format!("{}/{}", job.domain, job.source),
        job.id.clone(),
        job.job_type.clone().unwrap_or_default(),
        job.status.clone(),
        sighting,
        with(job.decision.kind.word(), &job.decision.reason),
        job.outcome.as_ref().map(|outcome| with(outcome.kind, &outcome.why)).unwrap_or_default(),
    ]
}
