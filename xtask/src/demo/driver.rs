//! Real BullMQ, driven by blocking calls: one Node process that runs `tests/bullmq/driver.mjs`, where each op is
//! described. The tests have an asynchronous client of their own; this one is small and knows no runtime.

use crate::{interrupt, paths};
use anyhow::{Context, Result, anyhow, bail};
use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

/// Longest wait for an answer; longer than the 30 s after which `waitRuns` gives up by itself.
const ANSWER_WITHIN: Duration = Duration::from_secs(60);

/// How often a wait looks for an interrupt.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// A Node process with queues and workers of BullMQ 5.81.5. Killed on drop.
pub(crate) struct Driver {
    process: Child,
    commands: ChildStdin,
    answers: Receiver<String>,
    last_id: u64,
}

/// One job that a worker began.
#[derive(Clone)]
pub(crate) struct Run {
    pub(crate) queue: String,
    /// The row's id: `data.jobId`.
    pub(crate) job: String,
    pub(crate) data: Value,
}

impl Driver {
    /// Starts a process and connects it.
    pub(crate) fn open(redis_url: &str) -> Result<Self> {
        Self::open_complaining(redis_url, Stdio::inherit())
    }

    /// The same; what its BullMQ complains about on its own goes to `stderr`.
    pub(crate) fn open_complaining(redis_url: &str, stderr: Stdio) -> Result<Self> {
        let mut process = Command::new("node")
            .arg("driver.mjs")
            .current_dir(paths::bullmq())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(stderr)
            .spawn()
            .context("starting node for tests/bullmq/driver.mjs")?;
        let commands = process.stdin.take().context("the driver has no stdin")?;
        let stdout = process.stdout.take().context("the driver has no stdout")?;
        let mut driver = Self { process, commands, answers: read_lines(stdout), last_id: 0 };
        driver.call("open", json!({ "url": redis_url }))?;
        Ok(driver)
    }

    /// Has the driver do one op and waits for its end.
    ///
    /// Errors: the op failed; the process ended; no answer in 60 s; an interrupt came.
    pub(crate) fn call(&mut self, op: &str, args: Value) -> Result<Value> {
        let Value::Object(mut command) = args else { bail!("{op}: the arguments must be an object") };
        self.last_id += 1;
        command.insert("id".into(), self.last_id.into());
        command.insert("op".into(), op.into());
        writeln!(self.commands, "{}", Value::Object(command))
            .with_context(|| format!("{op}: the driver is gone"))?;
        loop {
            let mut answer = self.next_answer(op)?;
            // An answer with a lower number is to a call that was given up.
            if answer["id"] == self.last_id {
                return match answer["error"].as_str() {
                    Some(error) => Err(anyhow!("the BullMQ driver failed: {error}")),
                    None => Ok(answer["result"].take()),
                };
            }
        }
    }

    /// Adds an entry; `options` as BullMQ takes them. The entry's id.
    pub(crate) fn add(&mut self, queue: &str, name: &str, data: &Value, options: &Value) -> Result<String> {
        let id = self.call("add", json!({ "queue": queue, "name": name, "data": data, "opts": options }))?;
        Ok(id.as_str().context("add: the id is no text")?.to_owned())
    }

    /// `waiting`, `active`, …; `unknown` if the entry is in no state.
    pub(crate) fn state(&mut self, queue: &str, entry: &str) -> Result<String> {
        let state = self.call("state", json!({ "queue": queue, "job": entry }))?;
        Ok(state.as_str().context("state: the answer is no text")?.to_owned())
    }

    /// Everything that this process's workers began so far, oldest first.
    pub(crate) fn runs(&mut self) -> Result<Vec<Run>> {
        let runs = self.call("runs", json!({}))?;
        runs.as_array().context("runs: the answer is no list")?.iter().map(parse_run).collect()
    }

    /// Kills the process (SIGKILL): its workers die in the middle of their jobs, their locks run out by themselves.
    pub(crate) fn kill(mut self) -> Result<()> {
        self.process.kill().context("killing the BullMQ driver")
    }

    fn next_answer(&self, op: &str) -> Result<Value> {
        let asked = Instant::now();
        loop {
            match self.answers.recv_timeout(LOOK_EVERY) {
                Ok(line) => {
                    return serde_json::from_str(&line)
                        .with_context(|| format!("{op}: an answer that is no JSON"));
                }
                Err(RecvTimeoutError::Disconnected) => bail!("{op}: the driver ended before it answered"),
                Err(RecvTimeoutError::Timeout) if interrupt::came() => bail!("interrupted"),
                Err(RecvTimeoutError::Timeout) if asked.elapsed() > ANSWER_WITHIN => {
                    bail!("{op}: no answer in {} s", ANSWER_WITHIN.as_secs())
                }
                Err(RecvTimeoutError::Timeout) => {}
            }
        }
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        // It may have ended before, and a destructor has nobody to tell.
        drop(self.process.kill());
        drop(self.process.wait());
    }
}

fn parse_run(run: &Value) -> Result<Run> {
    Ok(Run {
        queue: run["queue"].as_str().context("a run without its queue")?.to_owned(),
        job: run["data"]["jobId"].as_str().context("a run without its row's id")?.to_owned(),
        data: run["data"].clone(),
    })
}

/// Reads on a thread of its own, so that a call can give up waiting. The thread ends with the process.
fn read_lines(stdout: ChildStdout) -> Receiver<String> {
    let (sender, lines) = channel();
    std::thread::spawn(move || {
        for line in BufReader::new(stdout).lines().map_while(Result::ok) {
            if sender.send(line).is_err() {
                break;
            }
        }
    });
    lines
}
