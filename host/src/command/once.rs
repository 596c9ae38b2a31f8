//! `salvage once` and `salvage plan`: one pass, and what came of it.

use std::time::Duration;

use salvage_core::decision::DecisionKind;
use salvage_core::lease::Scope;
use salvage_core::report::{JobReport, LeaseState, PassSummary, Report, SourceCounts};
use salvage_core::settings::{PassSettings, human};

use super::text::{beside, counted, drawn, table};
use super::{CommandError, Done, say, say_json};
use crate::cli::Exit;
use crate::pass::{self, Mode};
use crate::ports::Outside;
use crate::stop::Stop;

/// Runs one pass, or one for each domain that has a lease of its own, and prints what came of it.
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
    let passes = pass::run_each(outside, settings, mode, stop).await;
    let mut reports = Vec::new();
    let mut failed = None;
    for (scope, ended) in passes {
        match ended {
            Ok(report) => {
                if !json {
                    head(&scope, !reports.is_empty())?;
                    print(&report)?;
                }
                reports.push(report);
            }
            Err(failure) if failed.is_none() => failed = Some(failure),
            // The first is told when the process ends.
            Err(failure) => tracing::error!(%scope, %failure, "pass failed"),
        }
    }
    // What came of the others is told in text; one object that leaves some out would not be understood.
    if let Some(failure) = failed {
        return Err(failure.into());
    }
    let report = Report::merged(reports);
    if json {
        say_json(&report)?;
    }
    Ok(exit(&report))
}

/// Says whose pass it was, where each domain has its own.
fn head(scope: &Scope, is_further: bool) -> Result<(), CommandError> {
    if is_further {
        say("")?;
    }
    match scope {
        Scope::Global => Ok(()),
        Scope::Domain(domain) => say(format_args!("domain {domain}")),
    }
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
        LeaseState::Held => {
            return say("skipped: another host holds the lease; it works, or it died and the lease runs out");
        }
        LeaseState::Unreachable => {
            return say("skipped: Redis did not answer, so the lease could not be taken; the log says why");
        }
        LeaseState::Acquired | LeaseState::NotTaken => {}
    }
    say(heading(&report.pass))?;
    if report.sources.is_empty() {
        return say("\nno source: no handler serves; `salvage handler list` says why");
    }
    let is_dry = report.pass.lease == LeaseState::NotTaken;
    let mut sources =
        table(["SOURCE", "LIVE", "CANDIDATES", "SCHEDULED", "ABSENT", "UNKNOWN", "WHAT CAME OF IT"], 1..6);
    for source in &report.sources {
        let counts = [source.live, source.candidates, source.scheduled, source.absent, source.unknown];
        let came = if is_dry { would_come(report, source) } else { came(source) };
        let row = std::iter::once(name(source)).chain(counts.map(|count| count.to_string()));
        sources.add_row(row.chain([came]));
    }
    say(format_args!("\n{}", drawn(&sources)))?;
    for job in &report.jobs {
        say(format_args!("\n{}", block(job, is_dry)))?;
    }
    let remarks = remarks(report, is_dry);
    if !remarks.is_empty() {
        say("")?;
    }
    for remark in remarks {
        say(beside("", &remark))?;
    }
    Ok(())
}

fn heading(pass: &PassSummary) -> String {
    let what = match pass.generation {
        Some(generation) => format!("pass of generation {generation}"),
        None => "dry run, nothing was written".to_owned(),
    };
    let took = human(Duration::from_millis(pass.duration_ms));
    let scan = if pass.scan_ran { ", payloads were read" } else { "" };
    format!("{what}: took {took}, {} to Redis{scan}", counted(pass.redis_commands, "command"))
}

fn name(source: &SourceCounts) -> String {
    format!("{}/{}", source.domain, source.source)
}

/// Every counter that is not zero.
fn came(source: &SourceCounts) -> String {
    listed(&[
        (source.requeued, "requeued"),
        (source.failed, "failed"),
        (source.held, "held"),
        (source.superseded, "superseded"),
        (source.gone, "gone"),
        (source.refused, "refused"),
        (source.indeterminate, "indeterminate"),
        (source.parked, "parked"),
        (source.trapped, "trapped"),
        (source.before_epoch, "before-epoch"),
        (source.storm, "storm"),
    ])
}

fn would_come(report: &Report, source: &SourceCounts) -> String {
    let of_source = |job: &&JobReport| job.domain == source.domain && job.source == source.source;
    let to = |kind| report.jobs.iter().filter(of_source).filter(|job| is_planned(job, kind)).count() as u64;
    listed(&[
        (to(DecisionKind::Requeue), "to requeue"),
        (to(DecisionKind::Fail), "to fail"),
        (source.held, "held"),
        (source.refused, "refused"),
        (source.parked, "parked"),
        (source.trapped, "trapped"),
        (source.before_epoch, "before-epoch"),
        (source.storm, "storm"),
    ])
}

fn listed(counts: &[(u64, &str)]) -> String {
    let some = counts.iter().filter(|(count, _)| *count > 0);
    let words: Vec<String> = some.map(|(count, word)| format!("{count} {word}")).collect();
    if words.is_empty() { "-".to_owned() } else { words.join(", ") }
}

/// Whether a pass that may write would try this.
fn is_planned(job: &JobReport, kind: DecisionKind) -> bool {
    job.sighting.kind == "absent" && job.decision.kind == kind && job.outcome.is_none()
}

/// One job in a few lines: a table would need a line of 200 columns.
fn block(job: &JobReport, is_dry: bool) -> String {
    let job_type = job.job_type.as_deref().unwrap_or("no type");
    let mut lines = vec![format!("{}/{} {} ({job_type}, {})", job.domain, job.source, job.id, job.status)];
    let mut line = |label: &str, word: &str, why: Option<&str>| {
        let text = why.map_or_else(|| word.to_owned(), |why| format!("{word}: {why}"));
        lines.push(beside(&format!("  {label:<9}"), &text));
    };
    let residue = job.sighting.residue.filter(|residue| *residue != "none");
    let left = residue.map(|residue| format!("left behind: {residue}"));
    line("sighting", job.sighting.kind, job.sighting.why.as_deref().or(left.as_deref()));
    if job.decision.kind != DecisionKind::None || job.decision.reason.is_some() {
        line("decision", job.decision.kind.word(), job.decision.reason.as_deref());
    }
    let is_decided = matches!(job.decision.kind, DecisionKind::Requeue | DecisionKind::Fail);
    match &job.outcome {
        Some(outcome) => line("outcome", outcome.kind, outcome.why.as_deref()),
        None if is_decided && is_dry => line("outcome", "none yet, this is a dry run", None),
        None if is_decided => line("outcome", "none, it was left for the next pass", None),
        None => {}
    }
    lines.join("\n")
}

/// What else is worth knowing, and what to do next.
fn remarks(report: &Report, is_dry: bool) -> Vec<String> {
    let mut remarks = Vec::new();
    for source in &report.sources {
        let name = name(source);
        if source.undeclared > 0 {
            let rows = counted(source.undeclared, "live row");
            remarks.push(format!("{name}: {rows} of a type that no handler declares; never touched"));
        }
        if source.clock_skew > 0 {
            let rows = counted(source.clock_skew, "live row");
            remarks.push(format!(
                "{name}: {rows} with a time of update in the future: whose clock is wrong, the application's?"
            ));
        }
        if source.stalled > 0 {
            let jobs = counted(source.stalled, "active job");
            remarks.push(format!("{name}: {jobs} without a worker's lock (stalled); left to BullMQ"));
        }
    }
    let total = |count: fn(&SourceCounts) -> u64| report.sources.iter().map(count).sum::<u64>();
    let to = |kind| report.jobs.iter().filter(|job| is_planned(job, kind)).count() as u64;
    let (requeue, fail) = (to(DecisionKind::Requeue), to(DecisionKind::Fail));
    if is_dry && requeue + fail > 0 {
        remarks.push(format!("`salvage once` would look again, then requeue {requeue} and fail {fail}"));
    }
    let waiting = total(|source| source.before_epoch) + total(|source| source.storm);
    if waiting > 0 {
        remarks.push(format!(
            "{} for `salvage accept QUEUE` or `salvage accept --all`: it says that what the queues hold now is the truth",
            if waiting == 1 { "1 orphan waits".to_owned() } else { format!("{waiting} orphans wait") }
        ));
    }
    if report.judged_nothing() {
        remarks.push(
            "nothing could be judged, so nothing was done; `salvage doctor` looks for the cause".to_owned(),
        );
    } else if report.jobs.is_empty() {
        let candidates = total(|source| source.candidates);
        remarks.push(match candidates {
            0 => "no orphan: no live row is old enough to be looked up".to_owned(),
            _ => format!(
                "no orphan: {} scheduled",
                if candidates == 1 { "the one candidate is" } else { "all candidates are" }
            ),
        });
    }
    remarks
}
