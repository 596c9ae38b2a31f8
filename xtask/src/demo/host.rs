//! Salvage itself: its settings, its commands, and what they report.

use crate::{interrupt, paths};
use anyhow::{Context, Result, bail};
use salvage_services::until;
use serde_json::Value;
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;
use tempfile::TempDir;

/// Longest time one command may take; the first compiles the handlers.
const ENDS_WITHIN: Duration = Duration::from_secs(120);

/// As many lines of its log tell why a command failed.
const TAIL_LINES: usize = 20;

/// What the operator allows each handler; `salvage handler check FILE` prints such an entry.
const GRANTS: &str = r#"
[handler.slides.grants]
tables = ['"SlideJob"']
queues = ["slide-generation", "slide-export"]
read = ['"SlideDeck"(id, title, status)']
parents = ['"SlideDeck".status', '"SlideDeck".error', '"SlideDeck"."updatedAt"']

[handler.video-composition.grants]
tables = ['"VideoJob"', 'narration_jobs']
queues = ["video-composition", "video-export", "narration"]
read = [
    '"Video"(id, title, status)',
    '"VideoTrack"("videoId", position, id, kind, "sourceUrl", "startMs", "endMs")',
]
parents = ['"Video".status', '"Video".narration_status', '"Video".error', '"Video"."updatedAt"']

[handler.exports.grants]
tables = ['"SlideExportJob"', '"VideoExportJob"']
queues = ["slide-export", "slide-generation", "video-export", "video-composition"]
parents = ['"SlideDeck"."exportStatus"', '"Video"."exportStatus"']
"#;

/// A host with settings of its own in a temporary folder, which is also where it runs.
pub(crate) struct Host {
    binary: PathBuf,
    folder: TempDir,
}

/// What a pass reports of one job.
pub(crate) struct Told {
    /// `requeue`, `fail`, `hold` or `none`.
    pub(crate) decision: String,
    pub(crate) reason: Option<String>,
    /// `applied`, `before-epoch`, …; empty if nothing was tried.
    pub(crate) outcome: String,
}

/// What a pass reports: the jobs that are in no queue, by source (`slides/generation`) and id.
pub(crate) type Report = BTreeMap<(String, String), Told>;

impl Host {
    /// Writes `salvage.toml`; `pass` is the text of the sections that say how passes are made.
    pub(crate) fn new(binary: PathBuf, database_url: &str, redis_url: &str, pass: &str) -> Result<Self> {
        let folder =
            tempfile::Builder::new().prefix("salvage-host-").tempdir().context("making the host's folder")?;
        let file = folder.path().join("salvage.toml");
        fs::write(&file, settings(database_url, redis_url, pass, folder.path()))
            .with_context(|| format!("writing {}", file.display()))?;
        Ok(Self { binary, folder })
    }

    /// Runs one command and returns what it printed.
    ///
    /// Errors: it failed (the last lines of its log are in the message), or took longer than two minutes.
    pub(crate) fn salvage(&self, args: &[&str]) -> Result<String> {
        let shown = format!("salvage {}", args.join(" "));
        println!("$ {shown}");
        let [stdout, stderr] = ["stdout", "stderr"].map(|name| self.folder.path().join(name));
        let mut child = Guard(
            self.command(args)
                .stdout(File::create(&stdout).context("making a file for the host's results")?)
                .stderr(File::create(&stderr).context("making a file for the host's log")?)
                .spawn()
                .with_context(|| format!("starting {}", self.binary.display()))?,
        );
        let mut ended = None;
        until(&format!("`{shown}` ends"), ENDS_WITHIN, || {
            if interrupt::came() {
                bail!("interrupted");
            }
            ended = child.0.try_wait().context("waiting for the host")?;
            Ok(ended.is_some())
        })?;
        let [printed, logged] = [stdout, stderr].map(|file| fs::read_to_string(file).unwrap_or_default());
        match ended {
            Some(status) if status.success() => Ok(printed),
            Some(status) => bail!("`{shown}` failed ({status}):\n{}", tail(&logged)),
            None => bail!("`{shown}` did not end"),
        }
    }

    /// A command that is not started yet, with these settings and nobody else's.
    pub(crate) fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(&self.binary);
        // Only the file speaks: settings in the environment of whoever runs the demo are for another Salvage.
        for (name, _) in std::env::vars_os() {
            if is_setting(&name.to_string_lossy()) {
                command.env_remove(name);
            }
        }
        command.args(args).current_dir(self.folder.path()).stdin(Stdio::null());
        command
    }

    /// One pass.
    pub(crate) fn once(&self) -> Result<Report> {
        let printed = self.salvage(&["once", "--json"])?;
        let report: Value =
            serde_json::from_str(&printed).context("reading what `salvage once --json` printed")?;
        let jobs = report["jobs"].as_array().context("a report without its jobs")?;
        jobs.iter().map(read_job).collect()
    }
}

fn read_job(job: &Value) -> Result<((String, String), Told)> {
    let text = |value: &Value| value.as_str().map(str::to_owned);
    let known = |name: &str| text(&job[name]).with_context(|| format!("a reported job without its {name}"));
    let told = Told {
        decision: text(&job["decision"]["kind"]).context("a reported job without its decision")?,
        reason: text(&job["decision"]["reason"]),
        outcome: text(&job["outcome"]["kind"]).unwrap_or_default(),
    };
    Ok(((format!("{}/{}", known("domain")?, known("source")?), known("id")?), told))
}

fn settings(database_url: &str, redis_url: &str, pass: &str, folder: &Path) -> String {
    let text = |path: PathBuf| Value::from(path.to_string_lossy()).to_string();
    format!(
        "[database]\nurl = \"{database_url}\"\n\n[redis]\nurl = \"{redis_url}\"\n\n{pass}\n\
         [handlers]\ndir = {}\ngrants = \"listed\"\ncache_dir = {}\n{GRANTS}",
        text(paths::handlers()),
        text(folder.join("cache")),
    )
}

fn is_setting(name: &str) -> bool {
    name == "DATABASE_URL" || name == "REDIS_URL" || name.starts_with("SALVAGE_")
}

fn tail(text: &str) -> String {
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(TAIL_LINES)..].join("\n")
}

/// A command that is killed if we give up waiting for it.
pub(crate) struct Guard(pub(crate) Child);

impl Drop for Guard {
    fn drop(&mut self) {
        // It has usually ended, and a destructor has nobody to tell.
        drop(self.0.kill());
        drop(self.0.wait());
    }
}
