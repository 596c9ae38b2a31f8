//! A server process that does not outlive us.
//!
//! Dropping the guard ends it. If we are killed before that, the kernel does (`PR_SET_PDEATHSIG`, Linux). The kernel's
//! "parent" is the *thread* that forked, and a test's thread ends with its test while a shared server must live on; so
//! one thread, which lives as long as the process, does all the forking.

use anyhow::{Context, Result, bail};
use std::io;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitStatus};
use std::sync::OnceLock;
use std::sync::mpsc::{Sender, channel};
use std::time::{Duration, Instant};

/// How long a process may take to end after it was asked to, before it is killed.
const END_WITHIN: Duration = Duration::from_secs(20);

/// How a process is asked to end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// SIGKILL: nothing is written, nothing is told to clients.
    Killed,
    /// SIGINT: PostgreSQL's fast shutdown.
    Interrupted,
    /// SIGQUIT: PostgreSQL's immediate shutdown, a crash that takes its children along.
    Quit,
}

impl Ended {
    fn signal(self) -> i32 {
        match self {
            Self::Killed => libc::SIGKILL,
            Self::Interrupted => libc::SIGINT,
            Self::Quit => libc::SIGQUIT,
        }
    }
}

/// A running child process, ended on drop.
pub(crate) struct Process {
    name: &'static str,
    child: Child,
    on_drop: Ended,
}

impl Process {
    /// Starts `command`. `on_drop` is also what the kernel does to it if this process dies first.
    pub(crate) fn spawn(name: &'static str, mut command: Command, on_drop: Ended) -> Result<Self> {
        // A group of its own: ctrl-c on the terminal reaches us, and we end it in order.
        command.process_group(0);
        end_with_parent(&mut command, on_drop.signal());
        let program = command.get_program().to_owned();
        let child = fork(command).with_context(|| format!("starting {name} ({})", program.display()))?;
        Ok(Self { name, child, on_drop })
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Whether it has ended by itself, and how.
    pub(crate) fn ended(&mut self) -> Result<Option<ExitStatus>> {
        self.child.try_wait().with_context(|| format!("asking whether {} still runs", self.name))
    }

    /// Sends the signal and waits for the end. Not an error if it had ended before.
    pub(crate) fn end(&mut self, how: Ended) -> Result<()> {
        if self.ended()?.is_none() {
            self.signal(how.signal())?;
        }
        self.wait()
    }

    /// Sends a signal. Errors: it has ended; its id may be another's by now, so nothing was sent.
    pub(crate) fn signal(&mut self, number: i32) -> Result<()> {
        if let Some(status) = self.ended()? {
            bail!("{} has ended ({status})", self.name);
        }
        signal(self.pid(), number)
    }

    /// Waits for the end. Errors: it took longer than 20 s; it was killed then.
    pub(crate) fn wait(&mut self) -> Result<()> {
        let started = Instant::now();
        while self.ended()?.is_none() {
            if started.elapsed() > END_WITHIN {
                self.child.kill().with_context(|| format!("killing {}", self.name))?;
                self.child.wait().with_context(|| format!("waiting for {} to end", self.name))?;
                bail!("{} did not end within {} s and was killed", self.name, END_WITHIN.as_secs());
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        Ok(())
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // Only a failure to signal or to wait comes here, and a destructor has nobody to tell.
        if self.end(self.on_drop).is_err() {
            drop(self.child.kill());
        }
    }
}

/// Sends a signal to one process, by its id.
pub(crate) fn signal(pid: u32, signal: i32) -> Result<()> {
    let pid_t = libc::pid_t::try_from(pid).context("a process id beyond pid_t")?;
    // SAFETY: kill(2) takes two numbers and touches no memory of ours.
    if unsafe { libc::kill(pid_t, signal) } == -1 {
        return Err(io::Error::last_os_error())
            .with_context(|| format!("sending signal {signal} to process {pid}"));
    }
    Ok(())
}

#[cfg(target_os = "linux")]
fn end_with_parent(command: &mut Command, signal: i32) {
    let parent = std::process::id();
    let set = move || {
        // SAFETY: both calls are async-signal-safe and take numbers only. Set after the child has changed its user
        // (std does that first), because changing it would clear the setting.
        unsafe {
            if libc::prctl(libc::PR_SET_PDEATHSIG, signal) == -1 {
                return Err(io::Error::last_os_error());
            }
            // The parent may have died before the line above: then nobody would send the signal any more.
            if libc::getppid().cast_unsigned() != parent {
                libc::_exit(1);
            }
        }
        Ok(())
    };
    // SAFETY: the closure allocates nothing and takes no lock, as code between fork and exec must not.
    unsafe { command.pre_exec(set) };
}

#[cfg(not(target_os = "linux"))]
fn end_with_parent(_command: &mut Command, _signal: i32) {}

/// Forks on the one thread that lives as long as the process.
fn fork(command: Command) -> Result<Child> {
    type Order = (Command, Sender<io::Result<Child>>);
    static FORKER: OnceLock<Sender<Order>> = OnceLock::new();
    let forker = FORKER.get_or_init(|| {
        let (orders, inbox) = channel::<Order>();
        std::thread::spawn(move || {
            for (mut command, answer) in inbox {
                // The one who ordered waits for the answer, so sending fails only if that thread panicked.
                drop(answer.send(command.spawn()));
            }
        });
        orders
    });
    let (answer, child) = channel();
    forker.send((command, answer)).context("the thread that starts servers is gone")?;
    Ok(child.recv().context("the thread that starts servers is gone")??)
}
