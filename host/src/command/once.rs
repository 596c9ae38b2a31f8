//! `salvage once` and `salvage plan`: one pass, and what came of it.
//!
//! Every reason why nothing could be done is printed, not only logged: results are read where nobody keeps the log.

use salvage_core::lease::Scope;
use salvage_core::report::{JobReport, LeaseState, PassSummary, QueueReport, Report, SourceCounts};
use salvage_core::settings::PassSettings;
use salvage_core::source::SourceName;
use salvage_core::text::name;
use serde_json::Value;

use super::explain::{known_sources, source_name, there_are};
use super::payload::Payloads;
use super::{CommandError, Done, say, say_json};
use crate::cli::{Exit, Part};
use crate::pass::{self, Mode};
use crate::ports::{Handlers, Outside, StoreFailure};
use crate::stop::Stop;
use crate::wasm::Registry;

mod jobs;
mod summary;
mod unserved;
mod words;

/// What to print, and how.
#[derive(Debug, Clone, Default)]
pub struct Show {
    /// Of which source, and how many jobs.
    pub part: Part,
    /// Payloads, too.
    pub payload: bool,
    /// For programs.
    pub json: bool,
}

/// Runs one pass, or one for each domain that has a lease of its own, and prints what came of it.
///
/// # Errors
/// If the source to be shown is not known, PostgreSQL failed or standard output is closed.
pub async fn once<O: Outside>(
    outside: &O,
    handlers: &Registry,
    settings: &PassSettings,
    mode: Mode,
    show: &Show,
    stop: &Stop,
) -> Done {
    if let Some(unserved) = unserved::unserved(handlers) {
        return unserved.tell(show.json);
    }
    let asked = show.part.source.as_deref();
    let source = asked.map(|asked| serving(asked, outside)).transpose()?;
    let passes = pass::run_each(outside, settings, mode, stop).await;
    let mut printed = Printed {
        source,
        payloads: Payloads::of(&outside.handlers().domains(), show.payload),
        show,
        is_first: true,
    };
    let (mut reports, mut failed) = (Vec::new(), None);
    for (scope, ended) in passes {
        match ended {
            Ok(report) => {
                printed.report(&scope, &report)?;
                reports.push(report);
            }
            Err(failure) => {
                printed.failure(&scope, &failure)?;
                if failed.is_none() {
                    failed = Some(failure);
                } else {
                    // The first is told when the process ends.
                    tracing::error!(%scope, %failure, "pass failed");
                }
            }
        }
    }
    // What came of the others is told in text; one object that leaves some out would not be understood.
    if let Some(failure) = failed {
        return Err(failure.into());
    }
    let report = Report::merged(reports);
    let exit = exit(&report);
    if show.json {
        printed.json(report)?;
    } else {
        summary::refused_files(handlers)?;
    }
    Ok(exit)
}

/// A source of a handler that serves.
fn serving<O: Outside>(asked: &str, outside: &O) -> Result<SourceName, CommandError> {
    let known = known_sources(&outside.handlers().domains());
    let source = source_name(asked, &known)?;
    if known.contains(&source) {
        return Ok(source);
    }
    Err(CommandError::Unknown(format!("no handler that serves has a source {source}; {}", there_are(&known))))
}

fn exit(report: &Report) -> Exit {
    match report.pass.lease {
        LeaseState::Held => Exit::Skipped,
        LeaseState::Unreachable => Exit::NothingJudged,
        LeaseState::Acquired | LeaseState::NotTaken if report.judged_nothing() => Exit::NothingJudged,
        LeaseState::Acquired | LeaseState::NotTaken => Exit::Done,
    }
}

/// What is on stdout, pass by pass.
struct Printed<'a> {
    /// The only one to be shown.
    source: Option<SourceName>,
    payloads: Payloads,
    show: &'a Show,
    is_first: bool,
}

impl Printed<'_> {
    fn report(&mut self, scope: &Scope, report: &Report) -> Result<(), CommandError> {
        if self.show.json || !self.concerns(scope) {
            return Ok(());
        }
        self.head(scope)?;
        let shown = Shown::of(report, self.source.as_ref());
        summary::before(&shown)?;
        let read = report.queues.iter().filter(|of| of.attribution.entries() > 0 && self.source.is_none());
        for QueueReport { queue, attribution } in read {
            say(format_args!("entries of {}: {attribution}", name(queue)))?;
        }
        jobs::print(&shown, self.limit(), &self.payloads)?;
        summary::after(&shown)
    }

    /// Where there are others, whose outcomes are printed.
    fn failure(&mut self, scope: &Scope, failure: &StoreFailure) -> Result<(), CommandError> {
        if self.show.json || matches!(scope, Scope::Global) {
            return Ok(());
        }
        self.head(scope)?;
        say(format_args!("pass failed: {failure}"))
    }

    /// Says whose pass it was, where each domain has its own.
    fn head(&mut self, scope: &Scope) -> Result<(), CommandError> {
        if !std::mem::replace(&mut self.is_first, false) {
            say("")?;
        }
        match scope {
            Scope::Global => Ok(()),
            Scope::Domain(domain) => say(format_args!("domain {domain}")),
        }
    }

    fn concerns(&self, scope: &Scope) -> bool {
        self.source.as_ref().is_none_or(|source| scope.covers(&source.domain))
    }

    fn limit(&self) -> usize {
        self.show.part.limit.map_or(usize::MAX, |limit| limit as usize)
    }

    fn json(&self, mut report: Report) -> Result<(), CommandError> {
        if let Some(name) = &self.source {
            report.sources.retain(|of| is_of(name, &of.domain, &of.source));
            report.jobs.retain(|of| is_of(name, &of.domain, &of.source));
        }
        report.jobs.truncate(self.limit());
        if !self.show.payload {
            return say_json(&report);
        }
        let mut value = serde_json::to_value(&report).expect("a report has text keys and finite numbers");
        let jobs = value["jobs"].as_array_mut().into_iter().flatten();
        for (value, job) in jobs.zip(&report.jobs) {
            value["payload"] = self.payloads.json(job).unwrap_or(Value::Null);
        }
        say_json(&value)
    }
}

/// What of a report is shown.
struct Shown<'r> {
    pass: &'r PassSummary,
    sources: Vec<&'r SourceCounts>,
    jobs: Vec<&'r JobReport>,
    /// The only source, if there is more in the report.
    only: Option<&'r SourceName>,
}

impl<'r> Shown<'r> {
    fn of(report: &'r Report, only: Option<&'r SourceName>) -> Self {
        let is_shown = |domain: &str, source: &str| only.is_none_or(|name| is_of(name, domain, source));
        Self {
            pass: &report.pass,
            sources: report.sources.iter().filter(|of| is_shown(&of.domain, &of.source)).collect(),
            jobs: report.jobs.iter().filter(|of| is_shown(&of.domain, &of.source)).collect(),
            only,
        }
    }

    /// Whether nothing was to be written.
    fn is_dry(&self) -> bool {
        self.pass.lease == LeaseState::NotTaken
    }
}

fn is_of(name: &SourceName, domain: &str, source: &str) -> bool {
    name.domain == domain && name.source == source
}
