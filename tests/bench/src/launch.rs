//! A process and what it cost: time from start to exit, processor time, peak memory.
//!
//! A process's peak memory, as the kernel counts it, begins with that of whoever forked it. So a process to be measured is
//! started by a small one of its own: this program again, which has done nothing yet.

use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};
use std::ffi::OsString;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

#[derive(clap::Args)]
pub(crate) struct Options {
    /// Where to write the cost
    #[arg(long)]
    out: PathBuf,
    /// Program and arguments
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, required = true)]
    command: Vec<OsString>,
}

/// What a process cost, and how it ended.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct Cost {
    /// From before its start to its exit.
    pub(crate) wall_ms: f64,
    /// User and system.
    pub(crate) cpu_ms: f64,
    pub(crate) peak_rss_mb: f64,
    /// None: ended by a signal.
    pub(crate) exit_code: Option<i32>,
}

/// The small process's part.
pub(crate) fn run(options: &Options) -> Result<()> {
    let began = Instant::now();
    let mut command = Command::new(&options.command[0]);
    let child = command.args(&options.command[1..]).spawn();
    let child = child.with_context(|| format!("starting {}", options.command[0].display()))?;
    let pid = libc::pid_t::try_from(child.id()).context("a process id beyond pid_t")?;
    let (status, used) = wait(pid)?;
    let cost = Cost {
        wall_ms: began.elapsed().as_secs_f64() * 1e3,
        cpu_ms: millis(used.ru_utime) + millis(used.ru_stime),
        peak_rss_mb: used.ru_maxrss as f64 / 1_024.0,
        exit_code: libc::WIFEXITED(status).then(|| libc::WEXITSTATUS(status)),
    };
    let text = serde_json::to_string(&cost).context("writing the cost as JSON")?;
    fs::write(&options.out, text).with_context(|| format!("writing {}", options.out.display()))
}

fn wait(pid: libc::pid_t) -> Result<(i32, libc::rusage)> {
    let mut status = 0;
    // SAFETY: all-zero is a valid `rusage`, which holds numbers only.
    let mut used: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: both pointers are valid for the call, and the child has not been waited for.
    if unsafe { libc::wait4(pid, &raw mut status, 0, &raw mut used) } == -1 {
        return Err(io::Error::last_os_error()).context("waiting for the process");
    }
    Ok((status, used))
}

fn millis(time: libc::timeval) -> f64 {
    time.tv_sec as f64 * 1e3 + time.tv_usec as f64 / 1e3
}

/// What a measured command printed, and its cost.
pub(crate) struct Ended {
    pub(crate) stdout: String,
    pub(crate) stderr: String,
    pub(crate) cost: Cost,
}

/// Runs a command in `folder`, measured. Errors: it failed, with the end of what it said.
pub(crate) fn measured(folder: &Path, command: &[OsString], environment: &[(&str, &str)]) -> Result<Ended> {
    let [stdout, stderr, cost] = ["stdout", "stderr", "cost"].map(|name| folder.join(name));
    let file = |path: &Path| File::create(path).with_context(|| format!("making {}", path.display()));
    let mut launcher = Command::new(std::env::current_exe().context("finding this program")?);
    launcher.args(["launch".as_ref(), "--out".as_ref(), cost.as_os_str()]).args(command);
    launcher.envs(environment.iter().copied()).current_dir(folder);
    launcher.stdin(Stdio::null()).stdout(file(&stdout)?).stderr(file(&stderr)?);
    let status = launcher.status().context("starting the launcher")?;
    let [stdout, stderr] = [stdout, stderr].map(|path| fs::read_to_string(path).unwrap_or_default());
    if !status.success() {
        bail!("the launcher failed ({status}): {}", stderr.trim_end());
    }
    let cost: Cost = serde_json::from_str(&fs::read_to_string(&cost).context("reading the cost")?)?;
    if cost.exit_code != Some(0) {
        let tail: Vec<&str> = stderr.lines().rev().take(10).collect();
        let tail: Vec<&str> = tail.into_iter().rev().collect();
        bail!("{} exited with {:?}:\n{}", command[0].display(), cost.exit_code, tail.join("\n"));
    }
    Ok(Ended { stdout, stderr, cost })
}
