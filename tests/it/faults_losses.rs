//! A Redis that lost something, or that is not the one it was: jobs from before wait until the operator accepts what is
//! there. And what only looks like a loss, and costs nothing.

use std::time::Duration;

use anyhow::{Context, Result};
use salvage::command::accept::{self, Operator};
use salvage_core::sighting::Doubt;
use salvage_core::snapshot::Flaw;
use salvage_tests::door::Door;
use salvage_tests::services::{Redis, RedisOptions, fresh_prefix, redis_url, until};
use salvage_tests::system::{System, job, story};
use serde_json::{Value, json};

use crate::faults::{Fault, Untouched, World};
use crate::judging_world::{QUEUE, QUEUES, epochs};

/// Longest wait for a server to be as it should be.
const DEADLINE: Duration = Duration::from_secs(30);

/// What is lost waits, however often the queues are looked at; the first story tells what broke the epoch of its queue.
async fn waits(world: &World, broken: Value) -> Result<()> {
    let system = &world.system;
    let before = Untouched::of(system).await?;
    for is_first in [true, false] {
        let report = system.pass().await?;
        assert_eq!(story(&report, "lost"), "absent requeue before-epoch", "{report:#?}");
        let why = job(&report, "lost").outcome.as_ref().and_then(|outcome| outcome.why.clone());
        let why = why.unwrap_or_default();
        assert!(why.starts_with("the row is older than what is known of slide-generation"), "{why}");
        let expected = if is_first { &broken } else { &json!({ "verdict": "continues" }) };
        assert_eq!(world.evidence("lost").await?["queues"][QUEUE]["continuity"], *expected);
        assert_eq!(Untouched::of(system).await?, before);
    }
    Ok(())
}

/// It cannot even be judged: neither `id` nor `meta` is there.
async fn cannot_be_judged(world: &World) -> Result<()> {
    let system = &world.system;
    let before = Untouched::of(system).await?;
    let expected = no_trace(system).to_string();
    for report in [system.plan().await?, system.pass().await?, system.pass().await?] {
        assert_eq!(story(&report, "lost"), "unknown none -", "{report:#?}");
        assert_eq!(job(&report, "lost").sighting.why.as_ref(), Some(&expected));
    }
    assert_eq!(Untouched::of(system).await?, before);
    Ok(())
}

fn no_trace(system: &System) -> Doubt {
    Doubt::Queue { queue: QUEUE.into(), flaw: Flaw::NoTrace { prefix: system.prefix.clone() } }
}

/// Until then nothing was done; now it is recovered.
async fn recovered_once_accepted(world: &World) -> Result<()> {
    accept::queues(&world.system.host, &world.system.settings, &[], Operator::sure("operator")).await?;
    let report = world.system.pass().await?;
    assert_eq!(story(&report, "lost"), "absent requeue applied", "{report:#?}");
    Ok(())
}

fn broken(kind: &str) -> Value {
    json!({ "verdict": "broken", "kind": kind })
}

fn id_fell(from: u64, to: u64) -> Value {
    json!({ "verdict": "broken", "kind": "id-fell", "from": from, "to": to })
}

#[tokio::test]
async fn a_restart_without_persistence_is_noticed_before_and_after_the_queues_are_used_again() -> Result<()> {
    let mut server = Redis::start()?;
    let mut world = World::on(&server.url()).await?;
    server.restart_empty()?;
    world.system.reconnect().await?;
    cannot_be_judged(&world).await?;
    world.system.used_queues(&QUEUES).await?;
    waits(&world, broken("nonce-missing")).await?;
    recovered_once_accepted(&world).await
}

/// What the operator accepted once does not stand in for what was lost since.
#[tokio::test]
async fn a_wiped_queue_that_had_been_accepted_is_accepted_no_more() -> Result<()> {
    let server = Redis::start()?;
    let world = World::on(&server.url()).await?;
    accept::queues(&world.system.host, &world.system.settings, &[], Operator::sure("operator")).await?;
    server.command(&["FLUSHALL"])?;
    cannot_be_judged(&world).await?;
    world.system.used_queues(&QUEUES).await?;
    waits(&world, broken("nonce-missing")).await?;
    recovered_once_accepted(&world).await
}

#[tokio::test]
async fn a_flush_of_another_database_costs_nothing() -> Result<()> {
    let server = Redis::start()?;
    let world = World::on(&server.url()).await?;
    let began = epochs(&world.system).await?;
    let client = redis::Client::open(format!("{}/1", server.url()))?;
    let mut other = client.get_connection()?;
    redis::cmd("SET").arg("theirs").arg(1).exec(&mut other)?;
    redis::cmd("FLUSHDB").exec(&mut other)?;
    world.works_again().await?;
    assert_eq!(epochs(&world.system).await?, began);
    Ok(())
}

/// The host's database is another one for a while, and an empty one. Nothing was lost, so nobody is needed afterwards, not
/// even if what the right one holds had been accepted.
#[tokio::test]
async fn a_wrong_database_cannot_be_judged_and_costs_nothing() -> Result<()> {
    for is_accepted in [false, true] {
        let server = Redis::start()?;
        let world = World::on(&server.url()).await?;
        if is_accepted {
            accept::queues(&world.system.host, &world.system.settings, &[], Operator::sure("operator"))
                .await?;
        }
        let fault = Fault {
            begin: async || server.command(&["SWAPDB", "0", "1"]).map(drop),
            end: async || server.command(&["SWAPDB", "0", "1"]).map(drop),
            doubt: no_trace(&world.system),
            lease: None,
            is_blind: true,
        };
        fault.check(&world).await?;
    }
    Ok(())
}

/// The host's address leads to a former replica that has missed the last passes, and then back.
#[tokio::test]
async fn a_stale_old_master_is_recognised_by_its_nonce() -> Result<()> {
    let server = Redis::start()?;
    let stale = Redis::start_with(RedisOptions::default().replica_of(&server))?;
    let door = Door::to(server.port()).await?;
    let lines = format!("url = \"{}\"", door.url());
    let world = World::calm(&fresh_prefix(), &lines, &server.url()).await?;
    until("the replica is in sync", DEADLINE, || {
        Ok(stale.command(&["INFO", "replication"])?.contains("master_link_status:up"))
    })?;
    assert_eq!(server.command(&["WAIT", "1", "30000"])?, "1");
    stale.command(&["REPLICAOF", "NO", "ONE"])?;
    miss_two_passes(&world).await?;
    world.lose_and_find().await?;

    door.lead_to(stale.port());
    waits(&world, broken("nonce-foreign")).await?;
    assert_eq!(stale.command(&["KEYS", "*:delayed"])?, "");
    // The right one is back, and by now it is the one with an unknown nonce.
    door.lead_to(server.port());
    waits(&world, broken("nonce-foreign")).await?;
    recovered_once_accepted(&world).await
}

/// Two, because the last two nonces count.
async fn miss_two_passes(world: &World) -> Result<()> {
    for _ in 0..2 {
        world.system.pass().await?;
    }
    Ok(())
}

#[tokio::test]
async fn a_restored_dump_is_recognised_by_its_nonce() -> Result<()> {
    let mut server = Redis::start()?;
    let lines = format!("url = \"{}\"", server.url());
    let mut world = World::calm(&fresh_prefix(), &lines, &server.url()).await?;
    server.command(&["SAVE"])?;
    miss_two_passes(&world).await?;
    server.kill()?;
    server.start_again()?;
    world.system.reconnect().await?;
    world.lose_and_find().await?;
    waits(&world, broken("nonce-foreign")).await?;
    recovered_once_accepted(&world).await
}

#[tokio::test]
async fn a_counter_that_fell_is_a_loss_though_the_nonce_is_there() -> Result<()> {
    let world = World::on(&redis_url()?).await?;
    world.system.redis::<()>(&["SET", &world.system.key(QUEUE, "id"), "50"]).await?;
    waits(&world, id_fell(100, 50)).await?;
    recovered_once_accepted(&world).await
}

/// BullMQ's own way to empty a queue leaves keys that are not its own, and so our nonce; but not its counter.
#[tokio::test]
async fn an_obliterated_queue_is_recognised_by_its_counter() -> Result<()> {
    let world = World::on(&redis_url()?).await?;
    let bullmq = world.system.bullmq().await?;
    bullmq.call("obliterate", json!({ "queue": QUEUE })).await?;
    assert!(world.system.redis::<bool>(&["EXISTS", &world.system.key(QUEUE, "salvage:host")]).await?);
    cannot_be_judged(&world).await?;
    bullmq.add(QUEUE, "generate", json!({ "jobId": "new" }), json!({ "jobId": "slide-new" })).await?;
    waits(&world, id_fell(100, 1)).await?;
    recovered_once_accepted(&world).await?;
    bullmq.close().await
}

/// A server that throws away whatever was used least: every use counts, and each eviction looks at many keys.
pub(crate) fn evicting() -> RedisOptions {
    let options = RedisOptions::default().set("--maxmemory-policy", &["allkeys-lfu"]);
    options.set("--lfu-log-factor", &["0"]).set("--maxmemory-samples", &["64"])
}

/// Makes it short of memory, until it has thrown some keys away; returns how many. None of them are the queues'.
pub(crate) fn evict(server: &Redis, world: &World) -> Result<u64> {
    let fill = "for i = 1, 2000 do redis.call('SET', 'filler:' .. i, string.rep('x', 1000)) end \
         for _, key in ipairs(redis.call('KEYS', ARGV[1])) do for _ = 1, 50 do redis.call('TOUCH', key) end end";
    server.command(&["EVAL", fill, "0", &format!("{}:*", world.system.prefix)])?;
    let used: u64 = number(server, "memory", "used_memory")?;
    server.command(&["CONFIG", "SET", "maxmemory", &(used - 200_000).to_string()])?;
    until("keys are evicted", DEADLINE, || Ok(number(server, "stats", "evicted_keys")? > 0))?;
    server.command(&["CONFIG", "SET", "maxmemory", "0"])?;
    number(server, "stats", "evicted_keys")
}

/// Here nothing of a queue was, but that cannot be known.
#[tokio::test]
async fn evicted_keys_are_a_loss() -> Result<()> {
    let server = Redis::start_with(evicting())?;
    let world = World::on(&server.url()).await?;
    let keys = evict(&server, &world)?;
    waits(&world, json!({ "verdict": "broken", "kind": "evicted", "keys": keys })).await?;
    recovered_once_accepted(&world).await
}

fn number(server: &Redis, section: &str, name: &str) -> Result<u64> {
    let info = server.command(&["INFO", section])?;
    let line = info.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    Ok(line.with_context(|| format!("no {name}"))?.parse()?)
}
