//! What befalls the process and not its stores: a log that nobody takes, a signal at a bad moment, a stop in a call.

use std::fs::{File, OpenOptions};
use std::io::Read;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use salvage_tests::example::{Jobs, SlideJob};
use salvage_tests::services::{redis_url, until};
use salvage_tests::system::System;

use crate::acting::{lose_generation, running_on, with_lost_generation};
use crate::commands::{Running, until_true};
use crate::handlers_passes::hostile_slides;
use crate::wasm_fixtures::{Folder, declaring, rebuilt, shipped};

const S1: &str = "SELECT status = 'QUEUED' FROM \"SlideJob\" WHERE id = 's1'";
const S2: &str = "SELECT status = 'QUEUED' FROM \"SlideJob\" WHERE id = 's2'";

/// Longest wait for something that is going to happen.
const DEADLINE: Duration = Duration::from_secs(60);

/// A process that is killed if its test fails.
struct Guarded(Child);

impl Guarded {
    fn start(command: &mut Command) -> Result<Self> {
        Ok(Self(command.stdin(Stdio::null()).spawn().context("starting the binary")?))
    }

    /// Asks for the end, and says how it ended.
    fn terminated(mut self) -> Result<Option<i32>> {
        let pid = libc::pid_t::try_from(self.0.id())?;
        // SAFETY: kill(2) takes two numbers; the child was not waited for yet, so the id is still its own.
        ensure!(unsafe { libc::kill(pid, libc::SIGTERM) } == 0, "SIGTERM was not sent");
        until("the process ends", DEADLINE, || Ok(self.0.try_wait()?.is_some()))?;
        Ok(self.0.wait()?.code())
    }
}

impl Drop for Guarded {
    fn drop(&mut self) {
        drop(self.0.kill());
        drop(self.0.wait());
    }
}

/// F36.
#[tokio::test]
async fn a_log_on_a_full_disk_stops_no_pass() -> Result<()> {
    let system = with_lost_generation().await?;
    let full = || OpenOptions::new().write(true).open("/dev/full").context("/dev/full");
    let mut command = system.salvage(&["run"])?;
    command.env("SALVAGE_PASS__INTERVAL", "1s").env("RUST_LOG", "debug").stderr(full()?).stdout(full()?);
    let process = Guarded::start(&mut command)?;
    until_true(system.db.pool(), S1).await?;
    lose_generation(&system, "s2").await?;
    until_true(system.db.pool(), S2).await?;
    assert_eq!(process.terminated()?, Some(0));

    lose_generation(&system, "s3").await?;
    let mut once = system.salvage(&["once", "--json"])?;
    let output = once.env("RUST_LOG", "debug").stderr(full()?).stdin(Stdio::null()).output()?;
    assert_eq!(output.status.code(), Some(0));
    let report: serde_json::Value = serde_json::from_slice(&output.stdout)?;
    assert_eq!(report["sources"][2]["requeued"], 1, "{report:#}");
    // Nobody hears why, and the code still says it.
    let broken = system.salvage(&["--config", "none.toml", "once"])?.stderr(full()?).status()?;
    assert_eq!(broken.code(), Some(3));
    Ok(())
}

/// A pipe with a name, whose reader can go and come back.
fn pipe(path: &Path) -> Result<()> {
    ensure!(Command::new("mkfifo").arg(path).status()?.success(), "no pipe");
    Ok(())
}

/// Opens one end without waiting for the other.
fn reader(path: &Path) -> Result<File> {
    Ok(OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(path)?)
}

/// F36.
#[tokio::test]
async fn lines_that_nobody_read_are_counted_and_told_to_the_next_reader() -> Result<()> {
    let system = with_lost_generation().await?;
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("log");
    pipe(&path)?;
    let first = reader(&path)?;
    let mut command = system.salvage(&["run"])?;
    command.env("SALVAGE_PASS__INTERVAL", "1s").stdout(Stdio::null());
    command.stderr(OpenOptions::new().write(true).open(&path)?);
    let process = Guarded::start(&mut command)?;
    // The test's own end for writing is closed with the command.
    drop(command);
    until_true(system.db.pool(), S1).await?;
    drop(first);
    lose_generation(&system, "s2").await?;
    until_true(system.db.pool(), S2).await?;

    let mut second = reader(&path)?;
    let (mut text, began) = (String::new(), Instant::now());
    while !text.contains("lines of this log were lost before this one: Broken pipe") {
        ensure!(began.elapsed() < DEADLINE, "it never told: {text}");
        let mut bytes = [0; 4096];
        match second.read(&mut bytes) {
            Ok(length) => text.push_str(std::str::from_utf8(&bytes[..length])?),
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(error.into()),
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let told = text.lines().find(|line| line.contains("were lost")).context("the notice")?;
    let lost: u64 = told
        .split_once("salvage::telemetry::lines: ")
        .and_then(|(_, rest)| rest.split_once(' '))
        .context("the number")?
        .0
        .parse()?;
    assert!(lost > 0 && told.contains(" WARN "), "{told}");
    assert_eq!(process.terminated()?, Some(0));
    Ok(())
}

/// Another sound component of this number: compiled for itself, though it does the same.
fn numbered(number: u8) -> (String, Vec<u8>) {
    (format!("{number:02}.wasm"), rebuilt(shipped("video-composition"), number))
}

/// F40. Without a cache each file is compiled, one after the other.
#[tokio::test]
async fn sigterm_while_handlers_are_compiled_ends_it_at_once() -> Result<()> {
    let (system, folder) = (System::fresh().await?, Folder::of(&[]));
    for number in 0..40 {
        let (name, bytes) = numbered(number);
        std::fs::write(folder.path().join(name), bytes)?;
    }
    for command in [&["run"][..], &["once"]] {
        let cache = tempfile::tempdir()?;
        let mut command = system.salvage(command)?;
        command.env("SALVAGE_HANDLERS__DIR", folder.path()).env("SALVAGE_HANDLERS__CACHE_DIR", cache.path());
        let mut process = Running::start(command.env("RUST_LOG", "salvage=debug"))?;
        process.says("a handler is being compiled", 2).await?;
        process.terminate()?;
        let (code, took) = process.ended().await?;
        assert_eq!(code, Some(0), "{}", process.stderr());
        assert!(took < Duration::from_secs(1), "it took {took:?}");
        let compiled = process.said("a handler is being compiled");
        assert!(compiled < 40, "all {compiled} were compiled");
    }
    Ok(())
}

/// F26. Goal: a process that stood still takes nothing off a handler's time. Method: a call of which is known that it has
/// begun, within a limit that is shorter by far than the stop.
#[tokio::test]
async fn a_stop_of_the_host_in_a_call_costs_no_decision() -> Result<()> {
    const STOP: Duration = Duration::from_secs(5);
    let folder = Folder::of(&[("slides.wasm", declaring(&hostile_slides()))]);
    let lines = "grants = \"declared\"\n[handlers.limits]\nrun_time = \"400ms\"";
    let system = running_on(System::with(&redis_url()?, &folder.path(), lines).await?).await?;
    SlideJob::processing("begin:100000000").stale().insert(system.db.pool()).await?;
    let mut process = Running::start(&mut system.salvage(&["once", "--json"])?)?;
    process.says("begins to work", 1).await?;
    process.freeze()?;
    tokio::time::sleep(STOP).await;
    process.wake()?;
    assert_eq!(process.ended().await?.0, Some(0), "{}", process.stderr());
    assert!(!process.stderr().contains("timeout"), "{}", process.stderr());
    let query = "SELECT decision, decide_us FROM salvage.ledger";
    let (decision, ran_us): (String, i64) = sqlx::query_as(query).fetch_one(system.db.pool()).await?;
    assert_eq!(decision, "hold");
    assert!(ran_us < 400_000, "the stop was counted: {ran_us} us");
    Ok(())
}
