//! Real BullMQ, driven from Rust: one Node process that runs `tests/bullmq/driver.mjs`.
//!
//! What the ops take and return is said there, where they are defined. Killing the process is how all its workers die
//! at once; processes are cheap, so a test starts one for each fate.

use crate::services::bullmq_folder;
use anyhow::{Context, Result, anyhow, bail};
use serde::Deserialize;
use serde_json::{Value, json};
use std::collections::HashMap;
use std::process::Stdio;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};
use tokio::sync::oneshot;

/// Longest wait for an answer; longer than the deadlines the driver itself keeps (30 s by default).
const ANSWER_WITHIN: Duration = Duration::from_secs(90);

/// BullMQ 5.81.5, the last 5.x.
pub const BULLMQ_5: &str = "bullmq";
/// BullMQ 4.18.3.
pub const BULLMQ_4: &str = "bullmq-4";
/// BullMQ 5.0.0, the first 5.x.
pub const BULLMQ_5_0: &str = "bullmq-5.0";
/// BullMQ 5.40.0, from the middle of 5.x.
pub const BULLMQ_5_40: &str = "bullmq-5.40";
/// BullMQ 6.7.0.
pub const BULLMQ_6: &str = "bullmq-6";
/// All of them.
pub const BULLMQ_ALL: [&str; 5] = [BULLMQ_4, BULLMQ_5_0, BULLMQ_5_40, BULLMQ_5, BULLMQ_6];

type Answers = Arc<Mutex<HashMap<u64, oneshot::Sender<Result<Value>>>>>;

/// A Node process with queues and workers of one BullMQ version, on one Redis, under one prefix. Killed on drop.
pub struct BullMq {
    process: Child,
    commands: tokio::sync::Mutex<ChildStdin>,
    answers: Answers,
    next: AtomicU64,
}

/// One job that a worker began.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Run {
    pub queue: String,
    /// The entry's id.
    pub id: String,
    /// The job's name.
    pub name: String,
    pub data: Value,
    pub attempts_made: u32,
    /// Milliseconds since 1970, the worker's clock.
    pub started_at: i64,
    /// What `readRow` found when the run began; null if it was not asked for or found nothing.
    pub row: Value,
    /// None: still running.
    pub ended_at: Option<i64>,
    /// `completed` or `failed`; None: still running.
    pub outcome: Option<String>,
}

impl BullMq {
    /// Starts a process with BullMQ 5.81.5.
    pub async fn open(redis_url: &str, prefix: &str) -> Result<Self> {
        Self::open_version(BULLMQ_5, redis_url, prefix).await
    }

    /// Starts a process with another version, e.g. [`BULLMQ_4`].
    pub async fn open_version(version: &str, redis_url: &str, prefix: &str) -> Result<Self> {
        Self::start(json!({ "url": redis_url, "prefix": prefix, "bullmq": version })).await
    }

    /// Starts a process with BullMQ 5.81.5 on a cluster, known by one of its nodes.
    pub async fn open_cluster(node_url: &str, prefix: &str) -> Result<Self> {
        Self::start(json!({ "url": node_url, "prefix": prefix, "cluster": true })).await
    }

    async fn start(open: Value) -> Result<Self> {
        let mut process = Command::new("node")
            .arg("driver.mjs")
            .current_dir(bullmq_folder()?)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .context("starting node for the BullMQ driver")?;
        let commands = process.stdin.take().context("the driver has no stdin")?;
        let lines = process.stdout.take().context("the driver has no stdout")?;
        let answers = Answers::default();
        tokio::spawn(deliver(lines, Arc::clone(&answers)));
        let driver =
            Self { process, commands: tokio::sync::Mutex::new(commands), answers, next: AtomicU64::new(1) };
        driver.call("open", open).await?;
        Ok(driver)
    }

    /// Has the driver do one op. Calls may run side by side.
    ///
    /// Errors: the op failed; the process ended (the op may have been done); no answer in 90 s.
    pub async fn call(&self, op: &str, args: Value) -> Result<Value> {
        let Value::Object(mut command) = args else { bail!("{op}: the arguments must be an object") };
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        command.insert("id".into(), id.into());
        command.insert("op".into(), op.into());
        let line = format!("{}\n", Value::Object(command));
        let (sender, answer) = oneshot::channel();
        self.answers.lock().unwrap_or_else(PoisonError::into_inner).insert(id, sender);
        self.commands
            .lock()
            .await
            .write_all(line.as_bytes())
            .await
            .with_context(|| format!("{op}: the driver is gone"))?;
        tokio::time::timeout(ANSWER_WITHIN, answer)
            .await
            .with_context(|| format!("{op}: no answer in {} s", ANSWER_WITHIN.as_secs()))?
            .with_context(|| format!("{op}: the driver ended before it answered"))?
    }

    /// Adds a job; `opts` as BullMQ takes them, e.g. `json!({"jobId": "slide-s1"})`. The entry's id.
    pub async fn add(&self, queue: &str, name: &str, data: Value, opts: Value) -> Result<String> {
        let id =
            self.call("add", json!({ "queue": queue, "name": name, "data": data, "opts": opts })).await?;
        Ok(id.as_str().context("add: the id is no text")?.to_owned())
    }

    /// `waiting`, `active`, …; `unknown` if the entry is nowhere.
    pub async fn state(&self, queue: &str, job: &str) -> Result<String> {
        let state = self.call("state", json!({ "queue": queue, "job": job })).await?;
        Ok(state.as_str().context("state: the answer is no text")?.to_owned())
    }

    /// Starts a worker named like its queue; `how` as `startWorker` takes it, e.g. `json!({"behaviour": "hang"})`.
    pub async fn start_worker(&self, queue: &str, how: Value) -> Result<()> {
        self.call("startWorker", with_queue(how, queue)?).await.map(drop)
    }

    /// What this process's workers ran so far and `filter` lets through, oldest first.
    pub async fn runs(&self, filter: Value) -> Result<Vec<Run>> {
        let runs = self.call("runs", filter).await?;
        serde_json::from_value(runs).context("runs: an answer of another shape")
    }

    /// The same, once there are `count`; `deadlineMs` in `filter` changes the 30 s after which it is an error.
    pub async fn wait_runs(&self, count: usize, mut filter: Value) -> Result<Vec<Run>> {
        filter["count"] = count.into();
        let runs = self.call("waitRuns", filter).await?;
        serde_json::from_value(runs).context("waitRuns: an answer of another shape")
    }

    /// Kills the process (SIGKILL): its workers die in the middle of their jobs, their locks run out by themselves.
    pub async fn kill(mut self) -> Result<()> {
        self.process.kill().await.context("killing the BullMQ driver")
    }

    /// Ends the workers after their current jobs, then the process.
    pub async fn close(mut self) -> Result<()> {
        self.call("close", json!({})).await?;
        self.commands.get_mut().shutdown().await.context("closing the driver's stdin")?;
        drop(self.commands);
        self.process.wait().await.context("waiting for the BullMQ driver to end").map(drop)
    }
}

fn with_queue(mut args: Value, queue: &str) -> Result<Value> {
    args.as_object_mut().context("the arguments must be an object")?.insert("queue".into(), queue.into());
    Ok(args)
}

/// Hands each answer to the call that waits for it. When the process ends, those still waiting get an error, because
/// their senders are dropped.
async fn deliver(stdout: ChildStdout, answers: Answers) {
    let mut lines = BufReader::new(stdout).lines();
    while let Ok(Some(line)) = lines.next_line().await {
        let (id, answer) = match parse(&line) {
            Ok(answer) => answer,
            // A broken driver: everybody shall hear of it rather than wait.
            Err(_) => break,
        };
        if let Some(waiting) = answers.lock().unwrap_or_else(PoisonError::into_inner).remove(&id) {
            // The caller may have given up waiting.
            drop(waiting.send(answer));
        }
    }
    answers.lock().unwrap_or_else(PoisonError::into_inner).clear();
}

fn parse(line: &str) -> Result<(u64, Result<Value>)> {
    #[derive(Deserialize)]
    struct Answer {
        id: u64,
        result: Option<Value>,
        error: Option<String>,
    }
    let Answer { id, result, error } = serde_json::from_str(line).context("an answer that is no JSON")?;
    Ok((id, error.map_or_else(|| Ok(result.unwrap_or(Value::Null)), |error| Err(anyhow!(error)))))
}
