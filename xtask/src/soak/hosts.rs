//! Hosts: processes of `salvage run` that are killed, frozen, woken and started again.

use crate::demo::host::{Guard, Host};
use crate::paths;
use anyhow::{Context, Result, bail};
use std::fs::{self, File};
use std::path::PathBuf;
use std::process::Stdio;

/// Short, so that a soak of a minute sees many passes. The lease runs out before a frozen host wakes.
pub(super) const PASS: &str = "[pass]\ninterval = \"2s\"\nstale_after = \"10s\"\nsettle = \"1s\"\nstart_delay = \"5s..6s\"\n\
    [lease]\nttl = \"8s\"\n";

/// What clients of the application complain about.
pub(super) const APPLICATION_LOG: &str = "application.log";

/// A few hosts on the same stores.
pub(super) struct Hosts<'a> {
    settings: &'a Host,
    running: Vec<Option<Guard>>,
}

/// Where hosts and application log.
pub(super) fn logs() -> PathBuf {
    paths::target().join("soak")
}

impl<'a> Hosts<'a> {
    /// Starts `count` of them, with new logs.
    pub(super) fn start(settings: &'a Host, count: usize) -> Result<Self> {
        let folder = logs();
        fs::create_dir_all(&folder).with_context(|| format!("making {}", folder.display()))?;
        let application = folder.join(APPLICATION_LOG);
        File::create(&application).with_context(|| format!("emptying {}", application.display()))?;
        let mut hosts = Self { settings, running: Vec::new() };
        for index in 0..count {
            let log = log(index);
            File::create(&log).with_context(|| format!("emptying {}", log.display()))?;
            hosts.running.push(None);
            hosts.start_again(index)?;
        }
        Ok(hosts)
    }

    pub(super) const fn count(&self) -> usize {
        self.running.len()
    }

    /// Starts this one unless it runs.
    pub(super) fn start_again(&mut self, index: usize) -> Result<()> {
        if self.running[index].is_some() {
            return Ok(());
        }
        let log = File::options().append(true).open(log(index)).context("opening a host's log")?;
        let mut command = self.settings.command(&["run"]);
        command.stdout(Stdio::null()).stderr(log);
        self.running[index] = Some(Guard(command.spawn().context("starting `salvage run`")?));
        Ok(())
    }

    /// SIGKILL. False: it was dead already.
    pub(super) fn kill(&mut self, index: usize) -> bool {
        // Its guard kills it and waits for its end.
        self.running[index].take().is_some()
    }

    /// SIGSTOP. False: there was none to freeze.
    pub(super) fn freeze(&mut self, index: usize) -> Result<bool> {
        self.signal(index, libc::SIGSTOP)
    }

    /// SIGCONT; to one that is not frozen it is nothing.
    pub(super) fn thaw(&mut self, index: usize) -> Result<bool> {
        self.signal(index, libc::SIGCONT)
    }

    /// Errors: one has ended by itself, which none may.
    pub(super) fn check(&mut self) -> Result<()> {
        for (index, host) in self.running.iter_mut().enumerate() {
            let Some(Guard(child)) = host else { continue };
            if let Some(status) = child.try_wait().context("looking after a host")? {
                bail!("host {index} ended by itself ({status}); its log is {}", log(index).display());
            }
        }
        Ok(())
    }

    fn signal(&mut self, index: usize, number: i32) -> Result<bool> {
        let Some(Guard(child)) = &self.running[index] else { return Ok(false) };
        let pid = libc::pid_t::try_from(child.id()).context("a process id beyond pid_t")?;
        // SAFETY: kill(2) takes two numbers; the child was not waited for yet, so the id is still its own.
        if unsafe { libc::kill(pid, number) } == -1 {
            return Err(std::io::Error::last_os_error()).context("sending a signal to a host");
        }
        Ok(true)
    }
}

fn log(index: usize) -> PathBuf {
    logs().join(format!("host-{index}.log"))
}
