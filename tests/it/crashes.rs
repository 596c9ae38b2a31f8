//! A6. A host that is killed (SIGKILL) over each message it sends to either store, before the store hears of it and after it has
//! done it: the next pass heals what is left. Promise 10 of the design, on real processes and servers.

use std::collections::BTreeMap;

use anyhow::{Context, Result, ensure};
use salvage_tests::example::{Deck, Jobs, SlideJob};
use salvage_tests::services::{handlers_folder, redis_url};
use salvage_tests::system::System;
use salvage_tests::toll::{Kill, Toll};
use serde_json::json;

use crate::acting::running_on;
use crate::commands::{Running, until_true};

/// Both queues of the source.
const QUEUES: [&str; 2] = ["slide-generation", "slide-export"];

/// Far more messages than a pass over three orphans takes.
const MESSAGES_MAX: usize = 400;

/// As few mean that the messages are not seen one by one.
const MESSAGES_MIN: usize = 30;

/// Long before any `updatedAt`: nobody is about to write these rows.
const LONG_AGO: &str = "1700000000000";

/// A running system with the handler of one domain only: each process loads it anew.
async fn with_slides() -> Result<(System, tempfile::TempDir)> {
    let folder = tempfile::tempdir()?;
    std::fs::copy(handlers_folder()?.join("slides.wasm"), folder.path().join("slides.wasm"))?;
    let cache = folder.path().join("cache");
    let lines = format!("grants = \"declared\"\ncache_dir = \"{}\"", cache.display());
    let system = System::with(&redis_url()?, folder.path(), &lines).await?;
    Ok((running_on(system).await?, folder))
}

/// Ids of the orphans that a host is killed over.
struct Orphans {
    /// Goes back to its queue.
    lost: String,
    /// Goes back, over the `failed` entry that it left.
    failed: String,
    /// Cannot be begun again, and is failed together with its deck.
    begun: String,
}

impl Orphans {
    async fn make(system: &System, number: usize) -> Result<Self> {
        let [lost, failed, begun] = ["lost", "failed", "begun"].map(|name| format!("{name}-{number}"));
        for (id, kind) in [(&lost, "GENERATION"), (&failed, "GENERATION"), (&begun, "OUTLINE")] {
            let deck = format!("deck-of-{id}");
            Deck::generating(&deck).insert(system.db.pool()).await?;
            SlideJob::processing(id).kind(kind).stale().of(&deck).insert(system.db.pool()).await?;
        }
        let entry = format!("slide-{failed}");
        let data = json!({ "jobId": failed }).to_string();
        let hash = system.key(QUEUES[0], &entry);
        let fields = ["name", "generate", "data", &data, "opts", "{}", "timestamp", LONG_AGO];
        let ended = ["finishedOn", LONG_AGO, "processedOn", LONG_AGO, "failedReason", "out of ink"];
        system.redis::<()>(&[&["HSET", hash.as_str()][..], &fields, &ended].concat()).await?;
        system.redis::<()>(&["ZADD", &system.key(QUEUES[0], "failed"), LONG_AGO, &entry]).await?;
        Ok(Self { lost, failed, begun })
    }

    /// Nothing is lost and nothing is double.
    ///
    /// A host that dies between the queue's write and the commit leaves the row as it was: its entry is there, and whoever
    /// takes it tells the row.
    async fn check_healed(&self, system: &System) -> Result<()> {
        for id in [&self.lost, &self.failed] {
            let row = SlideJob::read(system.db.pool(), id).await?.context("the row")?;
            ensure!(["QUEUED", "PROCESSING"].contains(&row.status.as_str()), "{id} is {row:?}");
            let entries = entries(system, id).await?;
            ensure!(entries == ["slide-generation delayed"], "{id} is {row:?} with the entries {entries:?}");
        }
        let row = SlideJob::read(system.db.pool(), &self.begun).await?.context("the row")?;
        ensure!(row.status == "FAILED" && row.error.is_some(), "{} is {row:?}", self.begun);
        let deck =
            Deck::read(system.db.pool(), &format!("deck-of-{}", self.begun)).await?.context("a deck")?;
        ensure!(deck.status == "FAILED" && deck.error == row.error, "{row:?} of {deck:?}");
        let entries = entries(system, &self.begun).await?;
        ensure!(entries.is_empty(), "{} has the entries {entries:?}", self.begun);
        Ok(())
    }
}

/// Where the entries of a row's job are: the live ones, and those that ended.
async fn entries(system: &System, id: &str) -> Result<Vec<String>> {
    let entry = format!("slide-{id}");
    let mut found = Vec::new();
    for queue in QUEUES {
        for list in ["wait", "active", "paused"] {
            let ids: Vec<String> = system.redis(&["LRANGE", &system.key(queue, list), "0", "-1"]).await?;
            found.extend(ids.iter().filter(|id| **id == entry).map(|_| format!("{queue} {list}")));
        }
        for set in ["delayed", "prioritized", "waiting-children", "failed", "completed"] {
            let score: Option<f64> = system.redis(&["ZSCORE", &system.key(queue, set), &entry]).await?;
            found.extend(score.map(|_| format!("{queue} {set}")));
        }
    }
    Ok(found)
}

/// Runs `once` through a toll; returns whether it was killed, and its messages.
async fn die_over(system: &System, kill: Kill, message: usize) -> Result<(bool, usize)> {
    let redis_port = port_of(&system.redis_url)?;
    let postgres_port = port_of(system.db.url())?;
    let toll = Toll::before(redis_port, postgres_port, kill, message).await?;
    let through = |url: &str, from: u16, to: u16| url.replace(&format!(":{from}"), &format!(":{to}"));
    let mut command = system.salvage(&["once"])?;
    command.env("DATABASE_URL", through(system.db.url(), postgres_port, toll.postgres_port));
    command.env("REDIS_URL", through(&system.redis_url, redis_port, toll.redis_port));
    let mut process = Running::start(&mut command)?;
    toll.watch_over(process.pid());
    let (code, _) = process.ended().await?;
    let was_killed = toll.has_killed();
    ensure!(code == (!was_killed).then_some(0), "it ended with {code:?}:\n{}", process.stderr());
    Ok((was_killed, toll.messages()))
}

/// `scheme://…:PORT`, with or without a path.
fn port_of(url: &str) -> Result<u16> {
    let (_, end) = url.rsplit_once(':').context("a port")?;
    end.split('/').next().context("a port")?.parse().context("a port")
}

/// Kills hosts over their message number `first` and every `step`-th after it, until a pass comes through.
#[expect(clippy::print_stdout, reason = "a figure for whoever runs the test")]
async fn check(kill: Kill, first: usize, step: usize) -> Result<()> {
    let (system, _folder) = with_slides().await?;
    let mut put_back = Vec::new();
    let mut message = first;
    loop {
        let orphans = Orphans::make(&system, message).await?;
        let (was_killed, messages) = die_over(&system, kill, message).await?;
        // As if the dead host's lease had run out, and its sessions were seen to be gone.
        system.redis::<()>(&["DEL", &format!("{}:lock", system.prefix)]).await?;
        until_true(
            system.db.pool(),
            "SELECT count(*) = 0 FROM pg_stat_activity WHERE datname = current_database() \
             AND application_name = 'salvage' AND state <> 'idle'",
        )
        .await?;
        let report = system.pass().await?;
        let healed = orphans.check_healed(&system).await;
        healed.with_context(|| format!("killed {kill:?} message {message}; the next pass: {report:#?}"))?;
        put_back.extend([orphans.lost, orphans.failed]);
        // A message that is never answered kills nobody, and others follow it.
        if !was_killed && messages < message {
            break;
        }
        ensure!(message < MESSAGES_MAX, "a pass does not end: {messages} messages");
        message += step;
    }
    println!("killed {kill:?} every {step} of about {message} messages; {} jobs put back", put_back.len());
    ensure!(message > MESSAGES_MIN, "only {message} messages");
    check_run_once(&system, &put_back).await
}

/// A worker that takes everything runs each job once.
async fn check_run_once(system: &System, put_back: &[String]) -> Result<()> {
    let worker = system.bullmq().await?;
    worker.start_worker(QUEUES[0], json!({ "concurrency": 20 })).await?;
    let runs = worker.wait_runs(put_back.len(), json!({ "ended": true, "deadlineMs": 60_000 })).await?;
    let mut times: BTreeMap<&str, usize> = BTreeMap::new();
    for run in &runs {
        *times.entry(run.data["jobId"].as_str().context("a job's id")?).or_default() += 1;
    }
    let odd: Vec<_> = put_back.iter().filter(|id| times.get(id.as_str()) != Some(&1)).collect();
    ensure!(odd.is_empty() && runs.len() == put_back.len(), "not run once: {odd:?} of {} runs", runs.len());
    worker.close().await
}

/// What is left is the same as after the message before, unless others are in flight; so not every one.
#[tokio::test]
async fn a_host_killed_before_a_message_reaches_its_store_leaves_nothing_that_a_pass_does_not_heal()
-> Result<()> {
    check(Kill::Before, 1, 4).await
}

#[tokio::test]
async fn a_host_killed_after_an_odd_message_was_carried_out_leaves_nothing_that_a_pass_does_not_heal()
-> Result<()> {
    check(Kill::After, 1, 2).await
}

/// The other half: two tests run side by side.
#[tokio::test]
async fn a_host_killed_after_an_even_message_was_carried_out_leaves_nothing_that_a_pass_does_not_heal()
-> Result<()> {
    check(Kill::After, 2, 2).await
}
