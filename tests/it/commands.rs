//! Running the real binary: what it prints, how it ends, and what it leaves in both stores.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use salvage_tests::services::output_file;
use salvage_tests::system::System;
use sqlx::PgPool;

/// Longest wait for something that is going to happen; far beyond what it takes on a slow machine.
const DEADLINE: Duration = Duration::from_secs(60);

/// How often a condition is looked at.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// Every queue of the shipped handlers.
pub(crate) const QUEUES: [&str; 5] =
    ["narration", "slide-export", "slide-generation", "video-composition", "video-export"];

/// A command that has ended.
#[derive(Debug)]
pub(crate) struct Ran {
    pub(crate) code: Option<i32>,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl Ran {
    /// Stdout as the one JSON document it must be.
    pub(crate) fn json(&self) -> Result<serde_json::Value> {
        serde_json::from_str(&self.stdout).with_context(|| format!("no JSON document: {self:#?}"))
    }

    /// Fails unless it ended with this code.
    pub(crate) fn ended_with(self, code: i32) -> Result<Self> {
        ensure!(self.code == Some(code), "expected exit code {code}: {self:#?}");
        Ok(self)
    }
}

/// Runs a command to its end. What it prints is also kept for the search for leaks.
pub(crate) fn ran(command: &mut Command) -> Result<Ran> {
    let output = command.stdin(Stdio::null()).output().context("starting the binary")?;
    let mut kept = output_file("command")?;
    kept.write_all(&output.stdout).and_then(|()| kept.write_all(&output.stderr)).context("keeping output")?;
    Ok(Ran {
        code: output.status.code(),
        stdout: String::from_utf8(output.stdout).context("stdout is not UTF-8")?,
        stderr: String::from_utf8(output.stderr).context("stderr is not UTF-8")?,
    })
}

/// The same, with the settings of this system.
pub(crate) fn salvage(system: &System, arguments: &[&str]) -> Result<Ran> {
    ran(&mut system.salvage(arguments)?)
}

/// A command that goes on, killed with its guard.
pub(crate) struct Running {
    child: Child,
    stderr: Arc<Mutex<String>>,
}

impl Running {
    pub(crate) fn start(command: &mut Command) -> Result<Self> {
        command.stdin(Stdio::null()).stdout(output_file("run-stdout")?).stderr(Stdio::piped());
        let mut child = command.spawn().context("starting the binary")?;
        let lines = BufReader::new(child.stderr.take().context("no stderr")?).lines();
        let (stderr, mut kept) = (Arc::<Mutex<String>>::default(), output_file("run-stderr")?);
        let said = Arc::clone(&stderr);
        std::thread::spawn(move || {
            for line in lines.map_while(Result::ok) {
                // A test whose record cannot be written still has its own copy.
                drop(writeln!(kept, "{line}"));
                said.lock().unwrap_or_else(PoisonError::into_inner).push_str(&format!("{line}\n"));
            }
        });
        Ok(Self { child, stderr })
    }

    /// Its process id, its own for as long as nobody waited for it.
    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// What it has said so far.
    pub(crate) fn stderr(&self) -> String {
        self.stderr.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// How often it has said this.
    pub(crate) fn said(&self, text: &str) -> usize {
        self.stderr().matches(text).count()
    }

    /// Waits until it has said this so often.
    pub(crate) async fn says(&mut self, text: &str, times: usize) -> Result<()> {
        let started = Instant::now();
        while self.said(text) < times {
            if let Some(status) = self.child.try_wait().context("asking whether it still runs")? {
                bail!("it ended ({status}) before it said {text:?}:\n{}", self.stderr());
            }
            ensure!(started.elapsed() < DEADLINE, "it never said {text:?}:\n{}", self.stderr());
            tokio::time::sleep(LOOK_EVERY).await;
        }
        Ok(())
    }

    /// Sends SIGTERM.
    pub(crate) fn terminate(&self) -> Result<()> {
        self.signal(libc::SIGTERM)
    }

    /// Freezes it (SIGSTOP), as a suspended machine would.
    pub(crate) fn freeze(&self) -> Result<()> {
        self.signal(libc::SIGSTOP)
    }

    /// Wakes it.
    pub(crate) fn wake(&self) -> Result<()> {
        self.signal(libc::SIGCONT)
    }

    /// Kills it, as a crash would.
    pub(crate) fn kill(&self) -> Result<()> {
        self.signal(libc::SIGKILL)
    }

    /// Sends SIGHUP.
    pub(crate) fn hang_up(&self) -> Result<()> {
        self.signal(libc::SIGHUP)
    }

    /// Sends a signal to a process that was not waited for yet.
    pub(crate) fn signal(&self, number: i32) -> Result<()> {
        let pid = libc::pid_t::try_from(self.child.id()).context("a process id beyond pid_t")?;
        // SAFETY: kill(2) takes two numbers; the child was not waited for yet, so the id is still its own.
        ensure!(unsafe { libc::kill(pid, number) } == 0, "signal {number} was not sent");
        Ok(())
    }

    /// Waits for the end; how it ended and how long that took.
    pub(crate) async fn ended(&mut self) -> Result<(Option<i32>, Duration)> {
        let started = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait().context("waiting for the end")? {
                return Ok((status.code(), started.elapsed()));
            }
            ensure!(started.elapsed() < DEADLINE, "it does not end:\n{}", self.stderr());
            tokio::time::sleep(LOOK_EVERY).await;
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // It has usually ended; a destructor has nobody to tell.
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

/// Waits until a query says true.
pub(crate) async fn until_true(db: &PgPool, query: &'static str) -> Result<()> {
    let started = Instant::now();
    while !sqlx::query_scalar::<_, bool>(query).fetch_one(db).await.context(query)? {
        ensure!(started.elapsed() < DEADLINE, "it never came true: {query}");
        tokio::time::sleep(LOOK_EVERY).await;
    }
    Ok(())
}

/// A system that has run for a day, with all its queues in use and empty.
pub(crate) async fn running() -> Result<System> {
    let system = System::fresh().await?;
    system.used_queues(&QUEUES).await?;
    system.known_since_yesterday().await?;
    Ok(system)
}
