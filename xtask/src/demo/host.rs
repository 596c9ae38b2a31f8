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

use super::stage::Servers;

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
pub(super) struct Host {
    binary: PathBuf,
    folder: TempDir,
}

/// What a pass reports of one job.
pub(super) struct Told {
    /// `requeue`, `fail`, `hold` or `none`.
    pub(super) decision: String,
    pub(super) reason: Option<String>,
    /// `applied`, `before-epoch`, …; empty if nothing was tried.
    pub(super) outcome: String,
}

/// What a pass reports: the jobs that are in no queue, by source (`slides/generation`) and id.
pub(super) type Report = BTreeMap<(String, String), Told>;

impl Host {
    /// Writes `salvage.toml`.
    pub(super) fn new(binary: PathBuf, servers: &Servers) -> Result<Self> {
        let folder =
            tempfile::Builder::new().prefix("salvage-demo-").tempdir().context("making the host's folder")?;
        let file = folder.path().join("salvage.toml");
        fs::write(&file, settings(servers, folder.path()))
            .with_context(|| format!("writing {}", file.display()))?;
        Ok(Self { binary, folder })
    }

    /// Runs one command and returns what it printed.
    ///
    /// Errors: it failed (the last lines of its log are in the message), or took longer than two minutes.
    pub(super) fn salvage(&self, args: &[&str]) -> Result<String> {
        let shown = format!("salvage {}", args.join(" "));
        println!("$ {shown}");
        let [stdout, stderr] = ["stdout", "stderr"].map(|name| self.folder.path().join(name));
        let mut command = Command::new(&self.binary);
        // Only the file speaks: settings in the environment of whoever runs the demo are for another Salvage.
        for (name, _) in std::env::vars_os() {
            if is_setting(&name.to_string_lossy()) {
                command.env_remove(name);
            }
        }
        let mut child = Guard(
            command
                .args(args)
                .current_dir(self.folder.path())
                .stdin(Stdio::null())
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

    /// One pass.
    pub(super) fn once(&self) -> Result<Report> {
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

fn settings(servers: &Servers, folder: &Path) -> String {
    let text = |path: PathBuf| Value::from(path.to_string_lossy()).to_string();
    format!(
        "[database]\nurl = \"{}\"\n\n[redis]\nurl = \"{}\"\n\n\
         # Shorter than the defaults, since somebody is watching.\n\
         [pass]\nsettle = \"2s\"\nstart_delay = \"5s..6s\"\n\n\
         [handlers]\ndir = {}\ngrants = \"listed\"\ncache_dir = {}\n{GRANTS}",
        servers.database,
        servers.redis.url(),
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
struct Guard(Child);

impl Drop for Guard {
    fn drop(&mut self) {
        // It has usually ended, and a destructor has nobody to tell.
        drop(self.0.kill());
        drop(self.0.wait());
    }
}
