//! `salvage explain SOURCE ID`: the story of one job, from the ledger.

use jiff::Timestamp;
use salvage_core::epoch::Continuity;
use salvage_core::ledger::StoryLine;
use salvage_core::settings::PassSettings;
use salvage_core::source::SourceName;
use salvage_core::text::{name, reason};
use serde_json::{Value, json};

use super::text::{beside, counted};
use super::{CommandError, Done, say, say_json};
use crate::cli::Exit;
use crate::ports::{Handlers, Ledger, LoadedDomain, Outside};
use crate::stop::Stop;

mod payload;

/// Digits of a digest that are shown to people.
const DIGITS: usize = 12;

/// What to print, and how.
#[derive(Debug, Clone, Copy)]
pub struct Show {
    /// The payload, too.
    pub payload: bool,
    /// For programs.
    pub json: bool,
}

/// Prints a job's story, oldest first, and its payload if that is asked for.
///
/// # Errors
/// If the source is not known, a store did not answer or standard output is closed.
pub async fn explain<O: Outside>(
    outside: &O,
    settings: &PassSettings,
    (source, id): (&str, &str),
    show: Show,
    stop: &Stop,
) -> Done {
    outside.ledger().check_schema().await?;
    let known = known_sources(&outside.handlers().domains());
    let source = source_name(source, &known)?;
    let story = outside.ledger().story(&source, id).await?;
    // The story of a source outlives its handler; but without either it is a mistyped name.
    if story.is_empty() && !known.contains(&source) {
        let why = format!(
            "no handler that serves has a source {source}, and nothing is recorded of it; {}",
            there_are(&known)
        );
        return Err(CommandError::Unknown(why));
    }
    let payload = match show.payload {
        true => Some(payload::known(outside, settings, stop, (&source, id), &story).await?),
        false => None,
    };
    if show.json {
        match payload {
            Some(known) => {
                say_json(&json!({ "story": story, "payloads": known.payloads, "why": known.why }))?
            }
            None => say_json(&story)?,
        }
        return Ok(Exit::Done);
    }
    if story.is_empty() {
        let text = "nothing is recorded: no pass of the last 30 days found this job anything but scheduled, or there is \
                    no such row, or it is not old enough yet";
        say(beside(&format!("{} {}: ", name(&source.to_string()), name(id)), text))?;
    }
    for (index, line) in story.iter().enumerate() {
        if index > 0 {
            say("")?;
        }
        tell(&source, id, line)?;
    }
    payload.map_or(Ok(()), |known| known.tell())?;
    Ok(Exit::Done)
}

/// Every source of every handler that serves.
pub(super) fn known_sources(domains: &[LoadedDomain]) -> Vec<SourceName> {
    let of_domain = |domain: &LoadedDomain| {
        let named = |source: &salvage_core::manifest::Source| SourceName {
            domain: domain.manifest.domain.clone(),
            source: source.name.clone(),
        };
        domain.manifest.sources.iter().map(named).collect::<Vec<_>>()
    };
    domains.iter().flat_map(of_domain).collect()
}

/// `domain/source`, or a bare source that only one domain has.
pub(super) fn source_name(asked: &str, known: &[SourceName]) -> Result<SourceName, CommandError> {
    if let Some((domain, source)) = asked.split_once('/') {
        return Ok(SourceName { domain: domain.to_owned(), source: source.to_owned() });
    }
    let fitting: Vec<&SourceName> = known.iter().filter(|name| name.source == asked).collect();
    match fitting.as_slice() {
        [only] => Ok((*only).clone()),
        [] => Err(CommandError::Unknown(format!(
            "no handler that serves has a source {asked:?}; {}",
            there_are(known)
        ))),
        several => Err(CommandError::Unknown(format!(
            "several domains have a source {asked:?}: say which of {}",
            names(several.iter().copied())
        ))),
    }
}

pub(super) fn there_are(known: &[SourceName]) -> String {
    if known.is_empty() {
        return "no handler serves, and `salvage handler list` says why".to_owned();
    }
    format!("there are {}", names(known.iter()))
}

fn names<'a>(of: impl Iterator<Item = &'a SourceName>) -> String {
    of.map(ToString::to_string).collect::<Vec<_>>().join(", ")
}

fn tell(source: &SourceName, id: &str, line: &StoryLine) -> Result<(), CommandError> {
    let seen = match line.times {
        1 => format!("{:.0}, generation {}", line.first_at, line.generation),
        times => format!(
            "{:.0} to {:.0}, {times} passes, the last of generation {}",
            line.first_at, line.last_at, line.generation
        ),
    };
    let with = |word: &str, why: Option<&str>| match why {
        Some(why) => format!("{}: {}", name(word), reason(why)),
        None => name(word).into_owned(),
    };
    say(format_args!("{} {}, {seen}", name(&source.to_string()), name(id)))?;
    let row = &line.row;
    let (status, updated_at, xmin) = (text(&row["status"]), text(&row["updatedAt"]), text(&row["xmin"]));
    say(format_args!("  row       {status}, updated at {updated_at}, xmin {xmin}"))?;
    let residue = line.sighting == "absent";
    let left = line.sighting_why.as_deref().filter(|why| !residue || *why != "none");
    let left = left.map(|why| if residue { format!("left behind: {why}") } else { why.to_owned() });
    say(beside("  sighting  ", &with(&line.sighting, left.as_deref())))?;
    say(beside("  decision  ", &with(&line.decision, line.decision_reason.as_deref())))?;
    let outcome = line.outcome.as_deref().unwrap_or("none, nothing was tried");
    say(beside("  outcome   ", &with(outcome, line.outcome_why.as_deref())))?;
    if let Some(digest) = &line.component_digest {
        say(format_args!("  handler   sha256 {}", shortened(digest)))?;
    }
    for evidence in evidence(&line.evidence) {
        say(format_args!("  evidence  {evidence}"))?;
    }
    Ok(())
}

/// What the judgement rested on, a line each; `--json` has it whole.
fn evidence(of: &Value) -> Vec<String> {
    let mut lines = Vec::new();
    let taken_ms = of["snapshot_ms"].as_i64().filter(|ms| *ms > 0);
    if let Some(at) = taken_ms.and_then(|ms| Timestamp::from_millisecond(ms).ok()) {
        let second = if of["second_look"] == true { ", and a second look agreed" } else { "" };
        lines.push(format!("queues read at {at:.0} under prefix {:?}{second}", text(&of["prefix"])));
    }
    let server = &of["server"];
    if server.is_object() {
        let loading = if server["loading"] == true { ", loading" } else { "" };
        lines.push(format!(
            "Redis: {}{loading}, run {}, replication {}, {} evicted under {}",
            text(&server["role"]),
            text(&server["run_id"]),
            text(&server["replid"]),
            counted(server["evicted_keys"].as_u64().unwrap_or(0), "key"),
            text(&server["maxmemory_policy"])
        ));
    }
    for (queue, evidence) in of["queues"].as_object().into_iter().flatten() {
        lines.push(format!(
            "queue {}: {}; {}",
            name(queue),
            seen(&evidence["seen"]),
            epoch(evidence, server)
        ));
    }
    if let Some(scan) = of["scan"].as_object() {
        let count = |key: &str| scan.get(key).and_then(Value::as_u64).unwrap_or(0);
        lines.push(format!(
            "payloads: {} read, {} foreign, {} departed, {} unreadable",
            count("read"),
            count("foreign"),
            count("departed"),
            count("unreadable")
        ));
    }
    lines.extend(used(&of["usage"]));
    lines
}

/// What the handler's call used of its limits, if it was called.
fn used(usage: &Value) -> Option<String> {
    let of_limit = |name: &str, unit: f64| {
        let number = |key: &str| Some(usage[name][key].as_f64()? / unit);
        Some(format!("{:.1} of {:.0}", number("used")?, number("limit")?))
    };
    let (ms, kib, mib) = (1e3, 1024.0, 1024.0 * 1024.0);
    Some(format!(
        "the handler's call used {} ms, {} MiB of memory, {} KiB of output, {} KiB of log",
        of_limit("run-time-us", ms)?,
        of_limit("memory", mib)?,
        of_limit("output", kib)?,
        of_limit("log", kib)?
    ))
}

/// What a queue held.
fn seen(of: &Value) -> String {
    if !of.is_object() {
        return "not read".to_owned();
    }
    let counter = of["id"].as_u64().map_or_else(|| "no counter".to_owned(), |id| format!("counter {id}"));
    let meta = if of["meta"] == true { "" } else { ", no meta" };
    let mut told = format!("{}, {counter}{meta}", counted(of["ids"].as_u64().unwrap_or(0), "scheduled id"));
    for flaw in of["flaws"].as_array().into_iter().flatten() {
        let key = flaw["key"].as_str().map(|key| format!(" {}", name(key))).unwrap_or_default();
        told += &format!(", {}{key}", text(&flaw["kind"]));
    }
    if let (Some(count), entry) = (of["unreadable"]["count"].as_u64(), &of["unreadable"]["entry"]) {
        told += &format!(", {count} unreadable, such as {:?}", text(entry));
    }
    told
}

/// What was known of a queue's epoch, and by what.
fn epoch(of: &Value, server: &Value) -> String {
    let began = of["epoch_began"].as_str().and_then(|began| began.parse::<Timestamp>().ok());
    let since = began.map_or_else(|| "no epoch".to_owned(), |began| format!("epoch since {began:.0}"));
    let is_another = |key: &str| of["remembered"][key] != server[key];
    let ground = match serde_json::from_value(of["continuity"].clone()) {
        Ok(Continuity::FirstContact) => " (first contact)".to_owned(),
        Ok(Continuity::Continues) if is_another("run_id") => " (nonce kept over a restart)".to_owned(),
        Ok(Continuity::Continues) if is_another("replid") => " (nonce kept over a failover)".to_owned(),
        Ok(Continuity::Continues) => " (nonce kept)".to_owned(),
        Ok(Continuity::Broken(why)) => format!(": {why}"),
        Err(_) => ", which this look could not confirm".to_owned(),
    };
    let accepted = if of["accepted"] == true { ", accepted" } else { "" };
    format!("{since}{ground}{accepted}")
}

/// A text without quotes, fit to be shown; anything else as JSON.
fn text(value: &Value) -> String {
    let text = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    name(&text).into_owned()
}

fn shortened(digest: &str) -> String {
    digest.chars().take(DIGITS).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(domain: &str, source: &str) -> SourceName {
        SourceName { domain: domain.into(), source: source.into() }
    }

    fn refused(asked: &str, known: &[SourceName]) -> String {
        source_name(asked, known).expect_err("a refusal").to_string()
    }

    /// Of a queue that held two ids, as Redis run `r1` had it before.
    fn told(seen: Value, continuity: Value) -> String {
        let of = serde_json::json!({
            "server": { "run_id": "r2", "replid": "p1" },
            "queues": { "q": {
                "epoch_began": "2026-01-31T09:00:00.000000Z",
                "accepted": true,
                "continuity": continuity,
                "remembered": { "run_id": "r1", "replid": "p1" },
                "seen": seen,
            } },
        });
        evidence(&of).pop().expect("a line of the queue")
    }

    #[test]
    fn a_queue_is_a_line_that_says_what_was_seen_and_what_is_known_by_it() {
        let whole = serde_json::json!({ "id": 7, "ids": 2, "meta": true, "flaws": [], "unreadable": null });
        assert_eq!(
            told(whole.clone(), serde_json::json!({ "verdict": "continues" })),
            "queue q: 2 scheduled ids, counter 7; epoch since 2026-01-31T09:00:00Z (nonce kept over a restart), accepted"
        );
        assert_eq!(
            told(whole, serde_json::json!({ "verdict": "broken", "kind": "id-fell", "from": 9, "to": 7 })),
            "queue q: 2 scheduled ids, counter 7; epoch since 2026-01-31T09:00:00Z: the queue's `id` fell from 9 to 7, accepted"
        );
        let flawed = serde_json::json!({
            "id": null, "ids": 2, "meta": false,
            "flaws": [{ "kind": "wrong-type", "key": "bull:q:id", "expected": "string" }],
            "unreadable": { "count": 3, "entry": "ghost", "fault": "no-payload" },
        });
        assert_eq!(
            told(flawed, Value::Null),
            "queue q: 2 scheduled ids, no counter, no meta, wrong-type bull:q:id, 3 unreadable, such as \"ghost\"; \
             epoch since 2026-01-31T09:00:00Z, which this look could not confirm, accepted"
        );
        assert!(told(Value::Null, Value::Null).starts_with("queue q: not read; "));
    }

    #[test]
    fn a_bare_source_is_enough_if_only_one_domain_has_it() {
        let known = [name("slides", "generation"), name("texts", "generation"), name("texts", "import")];
        assert_eq!(source_name("import", &known).expect("the only one"), known[2]);
        assert_eq!(source_name("gone/import", &known).expect("a full name"), name("gone", "import"));
        assert_eq!(
            refused("generation", &known),
            "several domains have a source \"generation\": say which of slides/generation, texts/generation"
        );
        assert_eq!(
            refused("export", &known[2..]),
            "no handler that serves has a source \"export\"; there are texts/import"
        );
        assert_eq!(
            refused("export", &[]),
            "no handler that serves has a source \"export\"; no handler serves, and `salvage handler list` says why"
        );
    }
}
