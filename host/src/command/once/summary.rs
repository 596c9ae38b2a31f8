//! What stands before and after the lines of the jobs: the pass, the counters, sums, and what to do next.

use std::collections::BTreeMap;
use std::time::Duration;

use salvage_core::decision::DecisionKind;
use salvage_core::report::{JobReport, LeaseState, PassSummary, QueueInDoubt, SourceCounts};
use salvage_core::text::{name, reason};

use super::super::text::{beside, counted, drawn, rough, table};
use super::super::{CommandError, say};
use super::Shown;
use super::words::words;
use crate::wasm::{LoadState, Registry};

/// Prints the pass and the counters of its sources, or why there are none.
pub(super) fn before(shown: &Shown<'_>) -> Result<(), CommandError> {
    let why = shown.pass.why.as_deref().map(reason).unwrap_or_default();
    match shown.pass.lease {
        LeaseState::Held => {
            return say("skipped: another host holds the lease; it works, or it died and the lease runs out");
        }
        LeaseState::Unreachable => {
            return say(beside("", &format!("skipped, for the lease could not be taken: {why}")));
        }
        LeaseState::Acquired | LeaseState::NotTaken => {}
    }
    say(heading(shown.pass))?;
    if shown.pass.why.is_some() {
        say(beside("", &format!("the queues could not be read: {why}")))?;
    }
    if shown.sources.is_empty() {
        return say("\nno source: none fits the database; `salvage doctor` says why");
    }
    let mut sources =
        table(["SOURCE", "LIVE", "CANDIDATES", "SCHEDULED", "ABSENT", "UNKNOWN", "WHAT CAME OF IT"], 1..6);
    for source in &shown.sources {
        let counts = [source.live, source.candidates, source.scheduled, source.absent, source.unknown];
        let came = if shown.is_dry() { would_come(shown, source) } else { came(source) };
        let row = std::iter::once(full_name(source)).chain(counts.map(|count| count.to_string()));
        sources.add_row(row.chain([came]));
    }
    say(format_args!("\n{}", drawn(&sources)))
}

/// Prints what the jobs come to, and what else is worth knowing.
pub(super) fn after(shown: &Shown<'_>) -> Result<(), CommandError> {
    if !matches!(shown.pass.lease, LeaseState::Acquired | LeaseState::NotTaken) || shown.sources.is_empty() {
        return Ok(());
    }
    let remarks = sum(shown).into_iter().chain(remarks(shown));
    let remarks: Vec<String> = remarks.chain(conclusion(shown)).collect();
    if !remarks.is_empty() {
        say("")?;
    }
    remarks.iter().try_for_each(|remark| say(beside("", remark)))
}

/// Prints which files of handlers do not serve: nobody looks at their jobs.
pub(super) fn refused_files(handlers: &Registry) -> Result<(), CommandError> {
    for report in handlers.reports() {
        if let LoadState::Refused { fault, .. } = &report.state {
            let label = format!("{} does not serve, and its jobs are not looked at: ", name(&report.file));
            say(beside(&label, &reason(&fault.to_string())))?;
        }
    }
    Ok(())
}

fn heading(pass: &PassSummary) -> String {
    let what = match pass.generation {
        Some(generation) => format!("pass of generation {generation}"),
        None => "dry run, nothing was written".to_owned(),
    };
    let took = rough(Duration::from_millis(pass.duration_ms));
    let scan = if pass.scan_ran { ", payloads were read" } else { "" };
    format!("{what}: took {took}, {} to Redis{scan}", counted(pass.redis_commands, "command"))
}

fn full_name(source: &SourceCounts) -> String {
    format!("{}/{}", name(&source.domain), name(&source.source))
}

/// Every counter that is not zero.
fn came(source: &SourceCounts) -> String {
    listed(&[
        (source.requeued, "put back"),
        (source.failed, "marked failed"),
        (source.held, "held"),
        (source.superseded, "moved on"),
        (source.gone, "gone"),
        (source.refused, "refused"),
        (source.indeterminate, "perhaps done"),
        (source.parked, "parked"),
        (source.trapped, "without a decision"),
        (source.before_epoch, "waiting for accept"),
        (source.storm, "waiting for accept (storm)"),
    ])
}

fn would_come(shown: &Shown<'_>, source: &SourceCounts) -> String {
    let of_source = |job: &&&JobReport| job.domain == source.domain && job.source == source.source;
    let to = |kind| shown.jobs.iter().filter(of_source).filter(|job| is_planned(job, kind)).count() as u64;
    let planned = SourceCounts { requeued: 0, failed: 0, ..source.clone() };
    let planned_acts = listed(&[
        (to(DecisionKind::Requeue), "to be put back"),
        (to(DecisionKind::Fail), "to be marked failed"),
    ]);
    match (planned_acts.as_str(), came(&planned)) {
        (_, rest) if rest == NONE => planned_acts,
        (NONE, rest) => rest,
        (acts, rest) => format!("{acts}, {rest}"),
    }
}

/// In place of an empty cell.
const NONE: &str = "-";

fn listed(counts: &[(u64, &str)]) -> String {
    let some = counts.iter().filter(|(count, _)| *count > 0);
    let words: Vec<String> = some.map(|(count, word)| format!("{count} {word}")).collect();
    if words.is_empty() { NONE.to_owned() } else { words.join(", ") }
}

/// Whether a pass that may write would try this.
fn is_planned(job: &JobReport, kind: DecisionKind) -> bool {
    job.sighting.kind == "absent" && job.decision.kind == kind && job.outcome.is_none()
}

/// How many jobs come to what, in all.
fn sum(shown: &Shown<'_>) -> Option<String> {
    let mut counts: BTreeMap<&str, u64> = BTreeMap::new();
    let mut order = Vec::new();
    for job in &shown.jobs {
        let word = words(job, shown.is_dry()).sum;
        let count = counts.entry(word).or_default();
        if *count == 0 {
            order.push(word);
        }
        *count += 1;
    }
    let counted_words: Vec<(u64, &str)> = order.into_iter().map(|word| (counts[word], word)).collect();
    let jobs = shown.jobs.len() as u64;
    (jobs > 0).then(|| format!("in all {}: {}", counted(jobs, "job"), listed(&counted_words)))
}

/// What is worth knowing of the sources and the queues.
fn remarks(shown: &Shown<'_>) -> Vec<String> {
    let mut remarks = Vec::new();
    for source in &shown.sources {
        let name = full_name(source);
        if source.undeclared > 0 {
            let rows = counted(source.undeclared, "live row");
            remarks.push(format!("{name}: {rows} of a type that no handler declares; never touched"));
        }
        if source.clock_skew > 0 {
            let rows = counted(source.clock_skew, "live row");
            remarks.push(format!(
                "{name}: {rows} with a time of update in the future: check the application's clock"
            ));
        }
        if source.stalled > 0 {
            let jobs = counted(source.stalled, "active job");
            remarks.push(format!("{name}: {jobs} without a worker's lock (stalled); left to BullMQ"));
        }
    }
    if shown.pass.why.is_none() {
        remarks.extend(in_doubt(&shown.pass.queues_in_doubt));
    }
    remarks
}

/// The queues that prove nothing, those of the same reason together.
fn in_doubt(queues: &[QueueInDoubt]) -> Vec<String> {
    let mut by_why: Vec<(&str, Vec<String>)> = Vec::new();
    for QueueInDoubt { queue, why } in queues {
        let queue = name(queue).into_owned();
        match by_why.iter_mut().find(|(of, _)| of == why) {
            Some((_, queues)) => queues.push(queue),
            None => by_why.push((why, vec![queue])),
        }
    }
    let told = |(why, queues): (&str, Vec<String>)| {
        let noun = if queues.len() == 1 { "queue" } else { "queues" };
        format!("{noun} {} cannot be judged: {}", queues.join(", "), reason(why))
    };
    by_why.into_iter().map(told).collect()
}

/// What comes next.
fn conclusion(shown: &Shown<'_>) -> Vec<String> {
    let mut remarks = Vec::new();
    let total =
        |count: fn(&SourceCounts) -> u64| shown.sources.iter().map(|source| count(source)).sum::<u64>();
    let to = |kind| shown.jobs.iter().filter(|job| is_planned(job, kind)).count() as u64;
    let (requeue, fail) = (to(DecisionKind::Requeue), to(DecisionKind::Fail));
    if shown.is_dry() && requeue + fail > 0 {
        remarks
            .push(format!("`salvage once` would look again, then put back {requeue} and mark {fail} failed"));
    }
    let waiting = total(|source| source.before_epoch) + total(|source| source.storm);
    if waiting > 0 {
        remarks.push(format!(
            "{} for `salvage accept QUEUE` or `salvage accept --all`: it says that what the queues hold now is the truth",
            if waiting == 1 { "1 orphan waits".to_owned() } else { format!("{waiting} orphans wait") }
        ));
    }
    let (candidates, unknown) = (total(|source| source.candidates), total(|source| source.unknown));
    let is_blind = shown.pass.why.is_some() && total(|source| source.scheduled) == 0;
    if is_blind || (candidates > 0 && candidates == unknown) {
        remarks.push(
            "nothing could be judged, so nothing was done; `salvage doctor` looks for the cause".to_owned(),
        );
    } else if shown.jobs.is_empty() {
        remarks.push(match candidates {
            0 => "no orphan: no live row is old enough to be looked up".to_owned(),
            1 => "no orphan: the one candidate is scheduled".to_owned(),
            _ => "no orphan: all candidates are scheduled".to_owned(),
        });
    }
    if let Some(only) = shown.only {
        remarks.push(format!("only {only} is shown; the pass was about all sources"));
    }
    remarks
}
