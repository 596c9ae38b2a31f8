//! Payloads of any size, in a Redis of little memory: a look takes a small part of what is left, and judges all the same.

use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use redis::aio::MultiplexedConnection;
use salvage::ports::Queues;
use salvage_core::act::Place;
use salvage_core::payload::{Data, Payload};
use salvage_core::sighting::Residue;
use salvage_tests::foreign::{Foreign, Handler, jobs_table, queue_rule};
use salvage_tests::services::{Redis, output_file};
use salvage_tests::system::{connected, job, story};
use serde_json::{Value, json};

use crate::commands::ran;
use crate::redis_world;

/// The application's only queue. Its entries have ids that BullMQ counted out, so payloads must be read.
const QUEUE: &str = "jobs";

const MB: usize = 1_000_000;

/// An application whose payloads are as long as a test says.
struct World {
    server: Redis,
    system: Foreign,
}

impl World {
    async fn fresh() -> Result<Self> {
        let server = Redis::start()?;
        let handler = Handler::of(&[queue_rule(QUEUE, "job-{id}", &["work"])]);
        let system = Foreign::on(&server.url(), &jobs_table("text"), &handler).await?;
        system.used_queues(&[QUEUE]).await?;
        Ok(Self { server, system })
    }

    /// Entries `1` to `count` wait; entry `n` is the job of row `rn`, and its payload has so many bytes.
    async fn waiting(&self, count: usize, bytes: usize) -> Result<()> {
        for n in 1..=count {
            self.entry(&n.to_string(), &payload(&format!("r{n}"), bytes)).await?;
        }
        Ok(())
    }

    async fn entry(&self, id: &str, data: &str) -> Result<()> {
        let mut entry = redis::pipe();
        entry.hset_multiple(self.system.key(QUEUE, id), &[("name", "work"), ("data", data)]);
        entry.lpush(self.system.key(QUEUE, "wait"), id);
        Ok(entry.query_async(&mut self.system.connection()).await?)
    }

    /// Stale rows: candidates of the next pass.
    async fn stale(&self, ids: &[&str]) -> Result<()> {
        self.system.rows(ids.iter().map(|&id| id.to_owned()), "PROCESSING", 180).await
    }

    /// So many bytes below its limit from now on.
    async fn limit(&self, policy: &str, left: usize) -> Result<()> {
        let memory = self.server.command(&["INFO", "memory"])?;
        let used =
            memory.lines().find_map(|line| line.strip_prefix("used_memory:")).context("used_memory")?;
        let limit = used.trim().parse::<usize>()? + left;
        self.server.command(&[
            "CONFIG",
            "SET",
            "maxmemory-policy",
            policy,
            "maxmemory",
            &limit.to_string(),
        ])?;
        Ok(())
    }

    fn evicted(&self) -> Result<String> {
        let stats = self.server.command(&["INFO", "stats"])?;
        let evicted = stats.lines().find_map(|line| line.strip_prefix("evicted_keys:"));
        Ok(evicted.context("evicted_keys")?.trim().to_owned())
    }

    /// One pass of the real binary: its report, and the most memory that it had, in MB.
    async fn once(&self) -> Result<(Value, usize)> {
        let mut command = self.system.salvage(&["once", "--json"])?;
        // The report is short enough for the pipe.
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(output_file("bytes-stderr")?);
        let mut child = command.spawn().context("starting the binary")?;
        let (status_file, mut peak) = (format!("/proc/{}/status", child.id()), 0);
        while child.try_wait()?.is_none() {
            let status = std::fs::read_to_string(&status_file).unwrap_or_default();
            let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
            let kib = line.and_then(|line| line.trim().strip_suffix(" kB")?.parse::<usize>().ok());
            peak = peak.max(kib.unwrap_or(0) * 1_024 / MB);
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        let stdout = String::from_utf8(child.wait_with_output()?.stdout)?;
        let report = serde_json::from_str(&stdout).with_context(|| format!("no report: {stdout}"))?;
        Ok((report, peak))
    }
}

/// A payload of about so many bytes.
fn payload(row: &str, bytes: usize) -> String {
    json!({ "jobId": row, "blob": "x".repeat(bytes) }).to_string()
}

/// An application that writes all the time, and counts how often it is refused.
struct Writer {
    stop: Arc<AtomicBool>,
    task: tokio::task::JoinHandle<Result<(usize, usize)>>,
}

impl Writer {
    /// Writes the same few keys over and over, so that it needs no more memory than at first.
    fn start(mut redis: MultiplexedConnection) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let told = Arc::clone(&stop);
        let task = tokio::spawn(async move {
            let (mut written, mut refused) = (0, 0);
            while !told.load(Ordering::Relaxed) {
                let key = format!("application:{}", written % 100);
                let reply =
                    redis::cmd("SET").arg(key).arg("v".repeat(1_000)).query_async::<()>(&mut redis).await;
                match reply {
                    Ok(()) => written += 1,
                    Err(error) if error.code() == Some("OOM") => refused += 1,
                    Err(error) => return Err(error.into()),
                }
                tokio::task::yield_now().await;
            }
            Ok((written, refused))
        });
        Self { stop, task }
    }

    /// How many writes were taken, and how many refused.
    async fn stop(self) -> Result<(usize, usize)> {
        self.stop.store(true, Ordering::Relaxed);
        self.task.await?
    }
}

/// The counts of the one source: candidates, scheduled, absent.
fn counts(report: &Value) -> [u64; 3] {
    ["candidates", "scheduled", "absent"].map(|key| report["sources"][0][key].as_u64().unwrap_or(u64::MAX))
}

async fn check_near_its_limit(policy: &str) -> Result<()> {
    let world = World::fresh().await?;
    world.waiting(200, 2 * MB).await?;
    world.stale(&["r7", "r200", "lost"]).await?;
    let before = Writer::start(world.system.connection());
    ensure!(before.stop().await?.1 == 0);
    world.limit(policy, 60 * MB).await?;
    let writer = Writer::start(world.system.connection());
    let (report, peak) = world.once().await?;
    let (written, refused) = writer.stop().await?;
    assert_eq!((refused, world.evicted()?.as_str()), (0, "0"), "after {written} writes");
    assert!(written > 100, "{written} writes say little");
    assert_eq!(counts(&report), [3, 2, 1], "{report:#}");
    assert!(peak <= 100, "the host had {peak} MB");
    Ok(())
}

#[tokio::test]
async fn a_look_at_large_payloads_leaves_redis_the_memory_to_take_writes() -> Result<()> {
    check_near_its_limit("noeviction").await
}

#[tokio::test]
async fn a_look_at_large_payloads_evicts_nothing() -> Result<()> {
    check_near_its_limit("allkeys-lru").await
}

#[tokio::test]
async fn payloads_that_would_not_come_in_time_together_are_judged() -> Result<()> {
    let world = World::fresh().await?;
    let settings = std::fs::read_to_string(world.system.config_file())?;
    let settings = settings.replace("[redis]\n", "[redis]\ntimeout = \"2s\"\n");
    std::fs::write(world.system.config_file(), settings)?;
    world.waiting(12, 20 * MB).await?;
    world.stale(&["r1", "r12", "lost"]).await?;
    let (report, _) = world.once().await?;
    assert_eq!(counts(&report), [3, 2, 1], "{report:#}");
    Ok(())
}

#[tokio::test]
async fn half_a_surrogate_pair_in_a_key_hides_nobody() -> Result<()> {
    let world = World::fresh().await?;
    for (id, data) in [
        ("1", r#"{"\ud83d":"x","jobId":"r1"}"#),
        ("2", r#"{"jobId":"r2","deep":{"cut \udc00":["\ud83d"]}}"#),
        ("3", r#"{"\ud83d":"x","jobId":"of nobody"}"#),
    ] {
        world.entry(id, data).await?;
    }
    world.stale(&["r1", "r2", "lost"]).await?;
    let report = world.system.pass().await?;
    let sighting = |id| story(&report, id).split(' ').next().unwrap_or_default().to_owned();
    assert_eq!(["r1", "r2", "lost"].map(sighting), ["scheduled", "scheduled", "absent"], "{report:#?}");
    Ok(())
}

#[tokio::test]
async fn an_entry_that_is_too_long_to_be_read_keeps_its_queue_in_doubt_until_it_is_accepted() -> Result<()> {
    let world = World::fresh().await?;
    world.entry("1", &payload("r1", 70 * MB)).await?;
    world.entry("2", &payload("r2", 10)).await?;
    world.stale(&["r2", "lost"]).await?;
    let report = world.system.pass().await?;
    assert_eq!(story(&report, "r2"), "scheduled");
    let lost = job(&report, "lost");
    assert_eq!(lost.sighting.kind, "unknown", "{report:#?}");
    assert!(lost.sighting.why.as_ref().is_some_and(|why| why.contains("entry \"1\"")), "{report:#?}");
    ran(&mut world.system.salvage(&["accept", "--entry", QUEUE, "1"])?)?.ended_with(0)?;
    let report = world.system.pass().await?;
    assert_eq!(job(&report, "lost").sighting.kind, "absent", "{report:#?}");
    Ok(())
}

/// The adapter alone, on a server of its own.
struct Adapter {
    server: Redis,
    world: redis_world::World,
    /// Waits for as long as a large write takes.
    patient: MultiplexedConnection,
}

impl Adapter {
    async fn fresh() -> Result<Self> {
        let server = Redis::start()?;
        let world = redis_world::World::on(&server.url()).await?;
        let patient = connected(&server.url()).await?;
        Ok(Self { server, world, patient })
    }

    async fn set(&self, id: &str, field: &str, value: &str) -> Result<()> {
        let key = self.world.key(QUEUE, id);
        let mut redis = self.patient.clone();
        Ok(redis::cmd("HSET").arg(key).arg(field).arg(value).query_async(&mut redis).await?)
    }

    async fn read(&self, ids: &[&str]) -> Result<Vec<Payload>> {
        let ids: Vec<String> = ids.iter().map(|&id| id.to_owned()).collect();
        Ok(self.world.queues.payloads(QUEUE, &ids).await?)
    }

    /// Bytes that the server has sent to all its clients.
    fn sent(&self) -> Result<usize> {
        let stats = self.server.command(&["INFO", "stats"])?;
        let sent = stats.lines().find_map(|line| line.strip_prefix("total_net_output_bytes:"));
        Ok(sent.context("total_net_output_bytes")?.trim().parse()?)
    }

    fn leave(&self, bytes: usize) -> Result<()> {
        let memory = self.server.command(&["INFO", "memory"])?;
        let used =
            memory.lines().find_map(|line| line.strip_prefix("used_memory:")).context("used_memory")?;
        let limit = used.trim().parse::<usize>()? + bytes;
        self.server.command(&["CONFIG", "SET", "maxmemory", &limit.to_string()]).map(drop)
    }
}

fn text(of: &Payload) -> Option<&str> {
    match &of.data {
        Data::Text(text) => Some(text),
        Data::Missing | Data::TooLong { .. } => None,
    }
}

fn lengths(payloads: &[Payload]) -> Vec<Option<usize>> {
    payloads.iter().map(|payload| text(payload).map(str::len)).collect()
}

#[tokio::test]
async fn a_page_holds_the_first_payloads_that_fit_and_at_least_one() -> Result<()> {
    let adapter = Adapter::fresh().await?;
    for (id, kb) in [("a", 1), ("b", 400), ("c", 400), ("d", 400), ("e", 2_000), ("f", 1)] {
        adapter.set(id, "data", &"x".repeat(kb * 1_000)).await?;
    }
    let page = adapter.read(&["a", "none", "b", "c", "d", "e", "f"]).await?;
    assert_eq!(lengths(&page), [Some(1_000), None, Some(400_000), Some(400_000)]);
    assert_eq!(lengths(&adapter.read(&["d", "e", "f"]).await?), [Some(400_000)]);
    assert_eq!(lengths(&adapter.read(&["e", "f"]).await?), [Some(2_000_000)], "alone");
    // With so little memory left, even a page is smaller, and the long one is not read.
    adapter.leave(4 * MB)?;
    assert_eq!(lengths(&adapter.read(&["b", "c", "d"]).await?), [Some(400_000)]);
    let long = adapter.read(&["e", "f"]).await?;
    assert_eq!(
        long.iter().map(|payload| &payload.data).collect::<Vec<_>>(),
        [&Data::TooLong { bytes: 2_000_000 }]
    );
    Ok(())
}

#[tokio::test]
async fn a_payload_beyond_one_reply_is_read_in_parts_and_beyond_all_bounds_told_by_its_length() -> Result<()>
{
    let adapter = Adapter::fresh().await?;
    let long = format!("{}end", "0123456789".repeat(5 * MB));
    adapter.set("long", "name", "work").await?;
    adapter.set("long", "data", &long).await?;
    let read = adapter.read(&["long", "other"]).await?;
    assert_eq!(read.len(), 1);
    assert_eq!(read[0].name.as_deref(), Some("work"));
    assert!(text(&read[0]) == Some(&long), "{:?}", lengths(&read));
    adapter.set("longer", "data", &"x".repeat(70 * MB)).await?;
    let sent = adapter.sent()?;
    let read = adapter.read(&["longer"]).await?;
    assert_eq!(read[0].data, Data::TooLong { bytes: 70_000_000 });
    assert!(adapter.sent()? - sent < 100_000, "nothing of it was sent");
    Ok(())
}

/// Another client writes one of two payloads of the same length, again and again, while they are read in parts.
#[tokio::test]
async fn parts_of_two_payloads_are_never_taken_for_one() -> Result<()> {
    let adapter = Adapter::fresh().await?;
    let (key, length) = (adapter.world.key(QUEUE, "a"), 30 * MB);
    let mut other = connected(&adapter.server.url()).await?;
    adapter.set("a", "data", &"a".repeat(length)).await?;
    let done = Arc::new(AtomicBool::new(false));
    let told = Arc::clone(&done);
    let writer = tokio::spawn(async move {
        let payloads = ["b", "a"].map(|letter| letter.repeat(length));
        for payload in payloads.iter().cycle() {
            if told.load(Ordering::Relaxed) {
                break;
            }
            redis::cmd("HSET").arg(&key).arg("data").arg(payload).query_async::<()>(&mut other).await?;
        }
        anyhow::Ok(())
    });
    let (mut whole, mut gone) = (0, 0);
    while gone == 0 {
        let read = adapter.read(&["a"]).await?;
        match text(&read[0]) {
            Some(text) => {
                let first = text.chars().next().context("a letter")?;
                assert!(text.len() == length && text.chars().all(|letter| letter == first), "mixed");
                whole += 1;
            }
            None => gone += 1,
        }
        ensure!(whole < 100, "it never changed between two parts");
    }
    done.store(true, Ordering::Relaxed);
    writer.await?
}

#[tokio::test]
async fn a_long_reason_is_told_by_its_beginning_or_its_length() -> Result<()> {
    let adapter = Adapter::fresh().await?;
    let long = "ü".repeat(25 * MB);
    for (id, reason) in [("slide-1", "out of ink"), ("slide-2", &long[..10_000]), ("slide-3", &long[..])] {
        adapter.set(id, "failedReason", reason).await?;
        adapter.world.arrange(&[&format!("ZADD @:{QUEUE}:failed 1700000000000 {id}")]).await?;
    }
    let place = |id: &str| vec![Place { queue: QUEUE.into(), entry_id: id.into() }];
    let sent = adapter.sent()?;
    let residues = adapter.world.queues.residues(&["slide-1", "slide-2", "slide-3"].map(place)).await?;
    assert!(adapter.sent()? - sent < 10_000);
    let reasons: Vec<_> = residues
        .into_iter()
        .map(|residue| match residue {
            Residue::Failed { reason, .. } => reason.unwrap_or_default(),
            other => other.word().to_owned(),
        })
        .collect();
    assert_eq!(reasons[0], "out of ink");
    assert_eq!(reasons[1], format!("{}…", "ü".repeat(300)));
    assert!(reasons[2].contains("50000000 bytes"), "{}", reasons[2]);
    Ok(())
}

#[tokio::test]
async fn whatever_stands_where_a_time_should_is_not_sent() -> Result<()> {
    let adapter = Adapter::fresh().await?;
    adapter.set("a", "processedOn", "1700000000000").await?;
    adapter.set("b", "processedOn", &"9".repeat(50 * MB)).await?;
    adapter.world.arrange(&[&format!("RPUSH @:{QUEUE}:active a b")]).await?;
    let sent = adapter.sent()?;
    let stalled = adapter.world.queues.stalled(QUEUE, &["a".to_owned(), "b".to_owned()]).await?;
    assert!(adapter.sent()? - sent < 10_000);
    let taken: Vec<_> = stalled.iter().map(|entry| entry.taken_ms).collect();
    assert_eq!(taken, [Some(1_700_000_000_000), None]);
    // Nor as a payload's time or name.
    adapter.set("b", "name", &"n".repeat(50 * MB)).await?;
    adapter.set("b", "data", "{}").await?;
    let sent = adapter.sent()?;
    let read = adapter.read(&["a", "b"]).await?;
    assert!(adapter.sent()? - sent < 100_000);
    assert_eq!((text(&read[1]), read[1].processed_ms), (Some("{}"), None));
    Ok(())
}
