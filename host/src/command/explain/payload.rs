//! The payload of one job, from wherever it is known: the ledger holds none.

use jiff::Timestamp;
use salvage_core::act::places;
use salvage_core::ledger::StoryLine;
use salvage_core::payload::{Data, Payload};
use salvage_core::report::JobReport;
use salvage_core::settings::PassSettings;
use salvage_core::source::SourceName;
use salvage_core::text::{name, reason};
use serde::Serialize;
use serde_json::Value;

use super::super::payload::{INDENT, Payloads, as_text, parsed};
use super::super::text::beside;
use super::super::{CommandError, say};
use crate::pass::{self, Mode};
use crate::ports::{Handlers, Ledger, Outside, Queues};
use crate::stop::Stop;

/// What is known, or why nothing is.
#[derive(Debug, Default, Serialize)]
pub(super) struct Known {
    pub(super) payloads: Vec<Found>,
    /// Why there is none, or why there may be more.
    pub(super) why: Vec<String>,
}

/// A payload.
#[derive(Debug, Serialize)]
pub(super) struct Found {
    from: From,
    /// When it was captured.
    at: Option<Timestamp>,
    queue: String,
    /// The entry's id in that queue; `null` if it is not there.
    entry: Option<String>,
    /// The BullMQ job name, and options; `null` if they were not read.
    name: Option<String>,
    options: Option<Value>,
    data: Value,
    /// The text as it is.
    #[serde(skip)]
    text: String,
}

#[derive(Debug, Clone, Copy, Serialize)]
#[serde(rename_all = "kebab-case")]
enum From {
    /// What a pass would put back now.
    DryRun,
    /// What its handler answered once.
    Captured,
    /// What a queue holds now.
    Queue,
}

/// Looks for the payload of one job: what a pass would put back now, unless the last that was done is that it was put back;
/// what its handler answered, if that was captured; what its queues hold.
pub(super) async fn known<O: Outside>(
    outside: &O,
    settings: &PassSettings,
    stop: &Stop,
    job: (&SourceName, &str),
    story: &[StoryLine],
) -> Result<Known, CommandError> {
    let (source, id) = job;
    let mut known = Known::default();
    if let Some(why) = Payloads::of(&outside.handlers().domains(), true).hidden(&source.domain) {
        known.why.push(why);
        return Ok(known);
    }
    let is_put_back = story
        .iter()
        .max_by_key(|line| line.last_at)
        .is_some_and(|line| line.decision == "requeue" && line.outcome.as_deref() == Some("applied"));
    if !is_put_back {
        would_be_put_back(outside, settings, stop, job, &mut known).await?;
    }
    if known.payloads.is_empty() {
        known.payloads.extend(captured(outside, source, id).await?);
        in_queues(outside, source, id, &mut known).await;
    }
    if known.payloads.is_empty() && known.why.is_empty() {
        let why = "nothing would be put back now, no queue holds an entry under its id, and answers of handlers are kept only \
                   with `capture_inputs`";
        known.why.push(why.to_owned());
    }
    Ok(known)
}

async fn would_be_put_back<O: Outside>(
    outside: &O,
    settings: &PassSettings,
    stop: &Stop,
    (source, id): (&SourceName, &str),
    known: &mut Known,
) -> Result<(), CommandError> {
    let scopes = pass::scopes(outside, settings);
    let Some(scope) = scopes.into_iter().find(|scope| scope.covers(&source.domain)) else { return Ok(()) };
    let report = pass::run_under(outside, settings, &scope, Mode::DryRun, stop).await?;
    known.why.extend(report.pass.why.map(|why| format!("the queues could not be read: {why}")));
    let is_it = |of: &JobReport| of.id == id && of.domain == source.domain && of.source == source.source;
    let requeue = report.jobs.into_iter().find(is_it).and_then(|job| job.requeue);
    known.payloads.extend(requeue.map(|requeue| Found {
        from: From::DryRun,
        at: None,
        queue: requeue.queue,
        entry: None,
        name: Some(requeue.name),
        options: Some(parsed(&requeue.options)),
        data: parsed(&requeue.data),
        text: requeue.data,
    }));
    Ok(())
}

async fn captured<O: Outside>(
    outside: &O,
    source: &SourceName,
    id: &str,
) -> Result<Option<Found>, CommandError> {
    let Some((at, decision)) = outside.ledger().captured_requeue(source, id).await? else { return Ok(None) };
    let decision = parsed(&decision);
    let text = |key: &str| decision[key].as_str().map(str::to_owned);
    Ok(Some(Found {
        from: From::Captured,
        at: Some(at),
        queue: text("queue").unwrap_or_default(),
        entry: None,
        name: text("name"),
        options: Some(decision["options"].clone()),
        text: decision["data"].to_string(),
        data: decision["data"].clone(),
    }))
}

/// Under the id that the current rule gives it, which is the one it is put back under.
async fn in_queues<O: Outside>(outside: &O, source: &SourceName, id: &str, known: &mut Known) {
    let domains = outside.handlers().domains();
    let of_domain = domains.iter().find(|domain| domain.manifest.domain == source.domain);
    let declared = of_domain
        .and_then(|domain| domain.manifest.sources.iter().find(|declared| declared.name == source.source));
    for place in declared.map(|declared| places(declared, id)).unwrap_or_default() {
        let read = outside.queues().payloads(&place.queue, std::slice::from_ref(&place.entry_id)).await;
        let told = |why: &dyn std::fmt::Display| {
            format!("entry {} of queue {} could not be read: {why}", place.entry_id, place.queue)
        };
        match read.map(|read| read.into_iter().next().unwrap_or_default()) {
            Ok(Payload { name, data: Data::Text(text), .. }) => known.payloads.push(Found {
                from: From::Queue,
                at: None,
                queue: place.queue,
                entry: Some(place.entry_id),
                name,
                options: None,
                data: parsed(&text),
                text,
            }),
            Ok(Payload { data: Data::TooLong { bytes }, .. }) => {
                known.why.push(told(&format_args!("it is {bytes} bytes, more than is read of one entry")));
            }
            Ok(Payload { data: Data::Missing, .. }) => {}
            Err(failure) => known.why.push(told(&failure)),
        }
    }
}

impl Known {
    /// Below the story.
    pub(super) fn tell(&self) -> Result<(), CommandError> {
        for found in &self.payloads {
            say(format_args!("\n{}", found.heading()))?;
            if let Some(job_name) = &found.name {
                let options = found.options.as_ref().map(Value::to_string);
                let options = options.map(|options| format!(", options {}", as_text(&options)));
                say(format_args!("{INDENT}job name {}{}", name(job_name), options.unwrap_or_default()))?;
            }
            say(format_args!("{INDENT}{}", as_text(&found.text)))?;
        }
        let none = if self.payloads.is_empty() { "no payload is shown" } else { "there may be more" };
        self.why
            .iter()
            .try_for_each(|why| say(format_args!("\n{}", beside("", &format!("{none}: {}", reason(why))))))
    }
}

impl Found {
    fn heading(&self) -> String {
        let queue = name(&self.queue);
        match self.from {
            From::DryRun => format!("payload that would be put back into queue {queue} now"),
            From::Captured => {
                let at = self.at.map(|at| format!(" at {at:.0}")).unwrap_or_default();
                format!("payload for queue {queue}, as its handler answered{at}")
            }
            From::Queue => {
                let entry = self.entry.as_deref().map(name).unwrap_or_default();
                format!("payload that entry {entry} of queue {queue} holds now")
            }
        }
    }
}
