//! Running a command as a step: its name and how long it took are printed, an interrupt ends it.

use crate::interrupt;
use anyhow::{Context, Result, bail};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

/// How often a running command is looked at.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// Does one step and prints its name before and its duration after.
pub(crate) fn step<T>(name: &str, work: impl FnOnce() -> Result<T>) -> Result<T> {
    println!("── {name}");
    let started = Instant::now();
    let result = work();
    let seconds = started.elapsed().as_secs_f64();
    match &result {
        Ok(_) => println!("── {name}: done in {seconds:.1} s\n"),
        Err(_) => println!("── {name}: failed after {seconds:.1} s\n"),
    }
    result.with_context(|| format!("step `{name}` failed"))
}

/// Runs a command to its end. Errors: it could not be started, or it failed.
pub(crate) fn command(command: &mut Command) -> Result<()> {
    let mut child = command.spawn().with_context(|| format!("starting {}", shown(command)))?;
    let status = wait(&mut child)?;
    check(command, status)
}

/// The same, and copies what it prints (both streams, each in its own file) into `folder`.
pub(crate) fn command_recorded(command: &mut Command, folder: &Path, name: &str) -> Result<()> {
    let mut child = command
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .with_context(|| format!("starting {}", shown(command)))?;
    let (stdout, stderr) =
        (child.stdout.take().context("no stdout")?, child.stderr.take().context("no stderr")?);
    let status = std::thread::scope(|scope| -> Result<ExitStatus> {
        let out = scope.spawn(|| copy(stdout, io::stdout(), &folder.join(format!("{name}.stdout"))));
        let err = scope.spawn(|| copy(stderr, io::stderr(), &folder.join(format!("{name}.stderr"))));
        let status = wait(&mut child)?;
        for copier in [out, err] {
            copier.join().map_err(|_| anyhow::anyhow!("copying the output panicked"))??;
        }
        Ok(status)
    })?;
    check(command, status)
}

/// Waits for the end; on an interrupt asks the command to end first.
fn wait(child: &mut Child) -> Result<ExitStatus> {
    let mut asked = false;
    loop {
        if let Some(status) = child.try_wait().context("waiting for a command")? {
            if interrupt::came() {
                bail!("interrupted");
            }
            return Ok(status);
        }
        if interrupt::came() && !asked {
            asked = true;
            let pid = libc::pid_t::try_from(child.id()).context("a process id beyond pid_t")?;
            // SAFETY: kill(2) takes two numbers; the child was not waited for yet, so the id is still its own.
            unsafe { libc::kill(pid, libc::SIGTERM) };
        }
        std::thread::sleep(LOOK_EVERY);
    }
}

/// Copies line by line, so that two streams on one terminal do not cut each other's lines.
fn copy(from: impl Read, mut terminal: impl Write, file: &Path) -> Result<()> {
    let mut record = std::fs::File::create(file).with_context(|| format!("making {}", file.display()))?;
    let mut from = BufReader::new(from);
    let mut line = Vec::new();
    while from.read_until(b'\n', &mut line).context("reading a command's output")? > 0 {
        record.write_all(&line).with_context(|| format!("writing {}", file.display()))?;
        terminal.write_all(&line).and_then(|()| terminal.flush()).context("writing to the terminal")?;
        line.clear();
    }
    Ok(())
}

fn check(command: &Command, status: ExitStatus) -> Result<()> {
    if !status.success() {
        bail!("`{}` failed ({status})", shown(command));
    }
    Ok(())
}

/// Program and arguments, as a person would type them. Our commands carry secrets in the environment only.
fn shown(command: &Command) -> String {
    let program = Path::new(command.get_program()).file_name().unwrap_or(command.get_program());
    let words = std::iter::once(program).chain(command.get_args());
    words.map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(" ")
}
