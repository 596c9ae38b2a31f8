//! A line a job, source by source; a reason that several jobs share is told once, below.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::time::Duration;

use jiff::Timestamp;
use salvage_core::report::JobReport;
use salvage_core::text::{name, reason};

use super::super::payload::Payloads;
use super::super::text::{beside, counted, rough, rows};
use super::super::{CommandError, say};
use super::Shown;
use super::words::{Phrase, Words, words};

/// Most ids beside a reason; the lines of the others carry its number.
const IDS_MAX: usize = 20;

/// Prints at most `limit` jobs, and their payloads if they are asked for.
pub(super) fn print(shown: &Shown<'_>, limit: usize, payloads: &Payloads) -> Result<(), CommandError> {
    lines(shown, limit, payloads).into_iter().try_for_each(say)
}

/// A job on its way to a line.
struct Told<'r> {
    job: &'r JobReport,
    words: Words,
}

fn lines(shown: &Shown<'_>, limit: usize, payloads: &Payloads) -> Vec<String> {
    let jobs: Vec<Told<'_>> =
        shown.jobs.iter().map(|job| Told { job, words: words(job, shown.is_dry()) }).collect();
    let now = shown.pass.started_at.as_deref().and_then(|at| at.parse().ok());
    let shared = Shared::of(&jobs);
    let (mut lines, mut room) = (Vec::new(), limit);
    for of_source in by_source(&jobs) {
        let mut of_source = sorted(of_source);
        of_source.truncate(room);
        room -= of_source.len();
        let Some(first) = of_source.first() else { break };
        lines.push(String::new());
        lines.push(format!("{}/{}", name(&first.job.domain), name(&first.job.source)));
        lines.extend(table(&of_source, now, &shared, payloads));
    }
    let left = jobs.len().saturating_sub(limit);
    if left > 0 {
        lines.push(format!("\n… and {}; --limit says how many are shown", counted(left as u64, "more job")));
    }
    lines.extend(shared.lines());
    lines
}

/// One list for each source, in the order of their first jobs: rows that cannot be judged come last in a report.
fn by_source<'j, 'r>(jobs: &'j [Told<'r>]) -> Vec<Vec<&'j Told<'r>>> {
    let mut sources: Vec<Vec<&Told<'_>>> = Vec::new();
    for told in jobs {
        let is_its = |of: &&mut Vec<&Told<'_>>| {
            let first = of[0].job;
            first.domain == told.job.domain && first.source == told.job.source
        };
        match sources.iter_mut().find(is_its) {
            Some(of_source) => of_source.push(told),
            None => sources.push(vec![told]),
        }
    }
    sources
}

/// Those of which the same is told stand together; else in their order.
fn sorted<'j, 'r>(mut jobs: Vec<&'j Told<'r>>) -> Vec<&'j Told<'r>> {
    let key = |told: &Told<'_>| {
        let phrases: Vec<&str> = told.words.phrases.iter().map(|phrase| phrase.words).collect();
        (told.words.seen, phrases)
    };
    let mut order = Vec::new();
    for told in &jobs {
        let key = key(told);
        if !order.contains(&key) {
            order.push(key);
        }
    }
    jobs.sort_by_cached_key(|told| order.iter().position(|of| *of == key(told)));
    jobs
}

fn table(
    jobs: &[&Told<'_>],
    now: Option<Timestamp>,
    shared: &Shared<'_>,
    payloads: &Payloads,
) -> Vec<String> {
    let row = |told: &&Told<'_>| {
        let job = told.job;
        let job_type = job.job_type.as_deref().map_or("-".into(), name);
        let cells = [name(&job.id), job_type, name(&job.status), age(job, now).into()];
        (cells.map(Cow::into_owned), sentence(&told.words, shared))
    };
    let rows = rows((["ID", "TYPE", "STATUS", "AGE"], "WHAT"), &jobs.iter().map(row).collect::<Vec<_>>());
    let below = std::iter::once(vec![]).chain(jobs.iter().map(|told| payloads.lines(told.job)));
    rows.into_iter().zip(below).flat_map(|(row, below)| std::iter::once(row).chain(below)).collect()
}

fn age(job: &JobReport, now: Option<Timestamp>) -> String {
    let updated: Option<Timestamp> = job.updated_at.as_deref().and_then(|at| at.parse().ok());
    let (Some(now), Some(updated)) = (now, updated) else { return "-".to_owned() };
    // Younger than now is nobody, but for a clock that is wrong.
    rough(Duration::try_from(now.duration_since(updated)).unwrap_or_default())
}

fn sentence(words: &Words, shared: &Shared<'_>) -> String {
    let phrase = |phrase: &Phrase| match phrase.why.as_deref() {
        None => phrase.words.to_owned(),
        Some(why) => match shared.number(why) {
            Some(number) => format!("{} [{number}]", phrase.words),
            None => format!("{}: {}", phrase.words, reason(why)),
        },
    };
    let phrases: Vec<String> = words.phrases.iter().map(phrase).collect();
    let phrases = phrases.join("; ");
    if words.seen.is_empty() { phrases } else { format!("{}: {phrases}", words.seen) }
}

/// Reasons that several jobs have in common, with their numbers and the ids of the jobs.
struct Shared<'r>(BTreeMap<&'r str, (usize, Vec<&'r str>)>);

impl<'r> Shared<'r> {
    fn of(jobs: &'r [Told<'_>]) -> Self {
        let mut ids: BTreeMap<&str, (usize, Vec<&str>)> = BTreeMap::new();
        let mut number = 0;
        for told in jobs {
            let mut reasons: Vec<&str> = reasons(told).collect();
            reasons.dedup();
            for why in reasons {
                let (numbered, ids) = ids.entry(why).or_default();
                ids.push(&told.job.id);
                if ids.len() == 2 {
                    number += 1;
                    *numbered = number;
                }
            }
        }
        ids.retain(|_, (_, ids)| ids.len() > 1);
        Self(ids)
    }

    fn number(&self, why: &str) -> Option<usize> {
        self.0.get(why).map(|(number, _)| *number)
    }

    /// Each reason with how many jobs have it, and which.
    fn lines(&self) -> Vec<String> {
        let mut numbered: Vec<_> = self.0.iter().map(|(why, (number, ids))| (*number, *why, ids)).collect();
        numbered.sort_unstable();
        let line = |(number, why, ids): (usize, &str, &Vec<&str>)| {
            let named: Vec<_> = ids.iter().take(IDS_MAX).map(|id| name(id)).collect();
            let more = ids.len().saturating_sub(IDS_MAX);
            let more = if more > 0 { format!(" and {more} more") } else { String::new() };
            let text = format!("{} jobs ({}{more}): {}", ids.len(), named.join(", "), reason(why));
            beside(&format!("[{number}] "), &text)
        };
        let empty = (!numbered.is_empty()).then(String::new);
        empty.into_iter().chain(numbered.into_iter().map(line)).collect()
    }
}

fn reasons<'t>(told: &'t Told<'_>) -> impl Iterator<Item = &'t str> {
    told.words.phrases.iter().filter_map(|phrase| phrase.why.as_deref())
}

#[cfg(test)]
mod tests {
    use salvage_core::decision::DecisionKind;
    use salvage_core::report::{LeaseState, PassSummary};

    use super::super::words::tests::{orphan, with};
    use super::*;

    fn told(jobs: &[JobReport], limit: usize) -> String {
        let pass = PassSummary {
            id: None,
            generation: None,
            lease: LeaseState::NotTaken,
            started_at: Some("2026-01-31T11:30:00.000000Z".into()),
            duration_ms: 1,
            redis_commands: 1,
            scan_ran: false,
            why: None,
            queues_in_doubt: vec![],
        };
        let shown = Shown { pass: &pass, sources: vec![], jobs: jobs.iter().collect(), only: None };
        lines(&shown, limit, &Payloads::of(&[], false)).join("\n")
    }

    #[test]
    fn each_job_is_one_line_and_a_shared_reason_is_told_once_with_its_jobs() {
        let waits = |id: &str, reason: &str| JobReport {
            id: id.to_owned(),
            ..with(DecisionKind::Fail, reason, Some(("before-epoch", "Redis may have lost it")))
        };
        let video = JobReport { domain: "video".into(), job_type: None, updated_at: None, ..orphan("v-1") };
        let jobs = [
            waits("a", "deck 1 is gone"),
            orphan("long-id"),
            waits("c", "deck 2 is gone"),
            orphan("d"),
            video,
            orphan("last"),
        ];
        insta::assert_snapshot!(told(&jobs, usize::MAX), @r"

        slides/generation
        ID       TYPE     STATUS  AGE  WHAT
        a        OUTLINE  QUEUED  2 h  in no queue: waits for accept [1]; then to be marked failed: deck 1 is gone
        c        OUTLINE  QUEUED  2 h  in no queue: waits for accept [1]; then to be marked failed: deck 2 is gone
        long-id  OUTLINE  QUEUED  2 h  in no queue: to be put back
        d        OUTLINE  QUEUED  2 h  in no queue: to be put back
        last     OUTLINE  QUEUED  2 h  in no queue: to be put back

        video/generation
        ID   TYPE  STATUS  AGE  WHAT
        v-1  -     QUEUED  -    in no queue: to be put back

        [1] 2 jobs (a, c): Redis may have lost it
        ");
    }

    #[test]
    fn a_limit_leaves_jobs_out_and_says_so() {
        let jobs = ["a", "b", "c"].map(orphan);
        insta::assert_snapshot!(told(&jobs, 2), @r"

        slides/generation
        ID  TYPE     STATUS  AGE  WHAT
        a   OUTLINE  QUEUED  2 h  in no queue: to be put back
        b   OUTLINE  QUEUED  2 h  in no queue: to be put back

        … and 1 more job; --limit says how many are shown
        ");
    }

    #[test]
    fn an_id_cannot_forge_a_line_or_act_on_a_terminal() {
        let hostile =
            JobReport { status: "\u{1b}[2J".into(), ..orphan("a\nb  OUTLINE  in no queue\u{202e}") };
        insta::assert_snapshot!(told(&[hostile], usize::MAX), @r"

        slides/generation
        ID                                  TYPE     STATUS     AGE  WHAT
        a\nb  OUTLINE  in no queue\u{202e}  OUTLINE  \u{1b}[2J  2 h  in no queue: to be put back
        ");
    }
}
