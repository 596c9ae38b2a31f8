//! `salvage handler diff`: the same questions to two builds, and what they decide otherwise.

use std::collections::BTreeMap;
use std::path::Path;

use salvage_handler_sdk::cases::{Case, difference};
use serde::Serialize;
use serde_json::json;

use super::cases::{self, Decided, Scene};
use crate::cli::Exit;
use crate::command::text::counted;
use crate::command::{CommandError, Done, say, say_json};
use crate::config::OfflineConfig;
use crate::wasm::{Rehearsal, Runtime};

/// One question that the builds answer differently.
#[derive(Debug, Serialize)]
pub(super) struct Change {
    /// File or job.
    name: String,
    /// Kind of the old decision.
    old: &'static str,
    /// Kind of the new one.
    new: &'static str,
    /// Line by line.
    #[serde(skip)]
    difference: String,
}

/// What became of all questions.
#[derive(Debug, Default)]
pub(super) struct Comparison {
    same: u64,
    changes: Vec<Change>,
}

/// Puts every case of a folder to both builds.
///
/// # Errors
/// If a file is no sound handler or no case, or could not be read.
pub async fn diff(config: &OfflineConfig, old: &Path, new: &Path, folder: &Path, json: bool) -> Done {
    let runtime = Runtime::start()?;
    let old = super::rehearsal(config, &runtime, old).await?;
    let new = super::rehearsal(config, &runtime, new).await?;
    let mut comparison = Comparison::default();
    for file in cases::read(folder)? {
        let case = file
            .case
            .as_ref()
            .map_err(|fault| CommandError::Unknown(format!("{}: {fault}", file.path.display())))?;
        comparison.add(file.name(), answer(&old, case).await, answer(&new, case).await);
    }
    comparison.tell(json)
}

/// What a build decides; if it does not declare what the case speaks of, why.
pub(super) async fn answer(build: &Rehearsal, case: &Case) -> Decided {
    match Scene::new(case, &build.checked().manifest, "") {
        Ok(scene) => Decided::of(&build.decide(&scene.question()).await.answer),
        Err(faults) => Decided::None { reason: format!("not asked: {}", faults.join("; ")) },
    }
}

impl Comparison {
    pub(super) fn add(&mut self, name: String, old: Decided, new: Decided) {
        match difference(&old.value(), &new.value()) {
            None => self.same += 1,
            Some(difference) => {
                self.changes.push(Change { name, old: old.kind(), new: new.kind(), difference });
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
                "same": self.same,
                "changed": self.changes.len(),
                "by_kind": kinds.collect::<Vec<_>>(),
                "changes": self.changes,
            }))?;
        } else {
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
        Ok(if self.changes.is_empty() { Exit::Done } else { Exit::Regression })
    }

    fn by_kind(&self) -> BTreeMap<(&'static str, &'static str), u64> {
        let mut by_kind = BTreeMap::new();
        for change in &self.changes {
            *by_kind.entry((change.old, change.new)).or_default() += 1;
        }
        by_kind
    }
}
