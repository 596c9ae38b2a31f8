//! `salvage handler diff`: what two builds declare otherwise, and what they decide otherwise when asked the same.

use std::collections::BTreeMap;
use std::path::Path;

use salvage_handler_sdk::cases::{Case, difference};
use serde::Serialize;
use serde_json::{Value, json};

use super::cases::{self, CaseFile, Decided, Scene};
use super::manifests::{Altered, altered};
use super::replay;
use crate::cli::Exit;
use crate::command::text::counted;
use crate::command::{CommandError, Done, say, say_json};
use crate::config::OfflineConfig;
use crate::postgres::Postgres;
use crate::wasm::{Rehearsal, Runtime};

/// One question that the builds answer differently.
#[derive(Debug, Serialize)]
pub(super) struct Change {
    /// File or job.
    name: String,
    /// Kind of the old decision.
    old: String,
    /// Kind of the new one.
    new: String,
    /// Line by line.
    #[serde(skip)]
    difference: String,
}

/// What became of all questions.
#[derive(Debug, Default)]
pub(super) struct Comparison {
    /// What is declared otherwise; where decisions alone are compared, nothing.
    manifest: Vec<Altered>,
    same: u64,
    changes: Vec<Change>,
}

/// What both builds are asked.
pub enum Corpus<'a> {
    /// The cases of a folder.
    Cases(&'a Path),
    /// The newest questions that passes asked of the domain, at most so many.
    Captured(Option<&'a Postgres>, u32),
}

/// Compares the manifests, and puts every question to both builds.
///
/// # Errors
/// If a file is no sound handler or no case, could not be read, or there is no question. What the manifests say otherwise is
/// told all the same.
pub async fn diff(config: &OfflineConfig, old: &Path, new: &Path, corpus: Corpus<'_>, json: bool) -> Done {
    let runtime = Runtime::start()?;
    let old = super::rehearsal(config, &runtime, old).await?;
    let new = super::rehearsal(config, &runtime, new).await?;
    let manifest = altered(&old.checked().manifest, &new.checked().manifest);
    let mut comparison = Comparison { manifest, ..Comparison::default() };
    let questions = questions(&old, corpus).await;
    if questions.is_err() && !json {
        comparison.tell_manifest()?;
    }
    for (name, case) in questions? {
        let (old, new) = (answer(&old, &case).await, answer(&new, &case).await);
        comparison.add(name, &old.value(), &new.value());
    }
    comparison.tell(json)
}

async fn questions(old: &Rehearsal, corpus: Corpus<'_>) -> Result<Vec<(String, Case)>, CommandError> {
    match corpus {
        Corpus::Cases(folder) => {
            let named = |file: CaseFile| {
                let (name, path) = (file.name(), file.path);
                let odd = |fault| CommandError::Unknown(format!("{}: {fault}", path.display()));
                Ok((name, file.case.map_err(odd)?))
            };
            cases::read(folder)?.into_iter().map(named).collect()
        }
        Corpus::Captured(database, limit) => {
            let captures = replay::captures(database, &old.checked().manifest.domain, limit).await?;
            captures.iter().map(|captured| Ok((replay::name(captured), replay::case(captured)?))).collect()
        }
    }
}

/// What a build decides; if it does not declare what the case speaks of, why.
pub(super) async fn answer(build: &Rehearsal, case: &Case) -> Decided {
    match Scene::new(case, &build.checked().manifest, "") {
        Ok(scene) => Decided::of(&build.decide(&scene.question()).await.answer),
        Err(faults) => Decided::None { reason: format!("not asked: {}", faults.join("; ")) },
    }
}

impl Comparison {
    /// Both as case files spell them.
    pub(super) fn add(&mut self, name: String, old: &Value, new: &Value) {
        let kind = |decided: &Value| decided["kind"].as_str().unwrap_or_default().to_owned();
        match difference(old, new) {
            None => self.same += 1,
            Some(difference) => {
                self.changes.push(Change { name, old: kind(old), new: kind(new), difference });
            }
        }
    }

    /// Prints it; ends with a regression if anything changed.
    pub(super) fn tell(&self, json: bool) -> Done {
        let by_kind = self.by_kind();
        if json {
            let kinds =
                by_kind.iter().map(|((old, new), count)| json!({ "old": old, "new": new, "count": count }));
            say_json(&json!({
                "manifest": self.manifest,
                "same": self.same,
                "changed": self.changes.len(),
                "by_kind": kinds.collect::<Vec<_>>(),
                "changes": self.changes,
            }))?;
        } else {
            self.tell_manifest()?;
            for change in &self.changes {
                say(format_args!(
                    "{}: {} → {}\n  - old, + new:\n{}\n",
                    change.name, change.old, change.new, change.difference
                ))?;
            }
            let asked = counted(self.same + self.changes.len() as u64, "decision");
            say(format_args!("{asked}: {} the same, {} changed", self.same, self.changes.len()))?;
            for ((old, new), count) in &by_kind {
                let words = if old == new { " (with other words or contents)" } else { "" };
                say(format_args!("  {count} {old} → {new}{words}"))?;
            }
        }
        let is_same = self.changes.is_empty() && self.manifest.is_empty();
        Ok(if is_same { Exit::Done } else { Exit::Regression })
    }

    /// What is declared comes first: a build that decides the same may still be the wrong one.
    fn tell_manifest(&self) -> Result<(), CommandError> {
        if self.manifest.is_empty() {
            return Ok(());
        }
        say("the manifest declares otherwise (old → new):")?;
        for altered in &self.manifest {
            say(format_args!("  {}", altered.line()))?;
        }
        say("")
    }

    fn by_kind(&self) -> BTreeMap<(&str, &str), u64> {
        let mut by_kind = BTreeMap::new();
        for change in &self.changes {
            *by_kind.entry((change.old.as_str(), change.new.as_str())).or_default() += 1;
        }
        by_kind
    }
}
