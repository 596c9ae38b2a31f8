//! The evidence of a decision, whole: what each guard saw, beside what was remembered.

use anyhow::Result;
use insta::assert_snapshot;
use salvage::pass::Mode;
use salvage_core::snapshot::State;
use salvage_tests::rival::{Moment, Rivalled, once_at};
use salvage_tests::services::{Redis, redis_url};
use salvage_tests::system::story;

use crate::faults::World;
use crate::faults_losses::{evict, evicting};
use crate::judging_world::{QUEUE, QUEUES, entry, listed};

/// The evidence of what was last told of `lost`, a line for each part and each queue. Nonces are named in the order in which
/// they are met: what matters is where the same one stands.
async fn evidence(world: &World) -> Result<String> {
    let evidence = world.evidence("lost").await?;
    let mut lines = vec![];
    for (part, value) in evidence.as_object().into_iter().flatten() {
        match value.as_object().filter(|_| part == "queues") {
            Some(queues) => lines.extend(queues.iter().map(|(name, queue)| format!("queue {name} {queue}"))),
            None => lines.push(format!("{part} {value}")),
        }
    }
    let text = lines.join("\n").replace(&world.system.prefix, "[prefix]");
    let is_nonce = |word: &&str| word.len() == 8 && word.bytes().all(|byte| byte.is_ascii_hexdigit());
    let mut nonces: Vec<&str> = vec![];
    for word in text.split('"').filter(is_nonce) {
        if !nonces.contains(&word) {
            nonces.push(word);
        }
    }
    let named = nonces.iter().enumerate().map(|(number, nonce)| (*nonce, format!("nonce {number}")));
    Ok(named.fold(text.clone(), |text, (nonce, name)| text.replace(nonce, &name)))
}

/// Compares the evidence with what is expected, but for times, random digits and counts that differ from run to run.
macro_rules! assert_evidence {
    ($world:expr, @$expected:literal) => {
        let text = evidence($world).await?;
        insta::with_settings!({ filters => vec![
            (r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z", "[time]"),
            (r"(?m)^snapshot_ms \d+", "snapshot_ms [ms]"),
            (r"(?m)^generation \d+", "generation [number]"),
            (r#""(run_id|replid)":"[0-9a-f]{12}""#, r#""$1":"[12 digits]""#),
            (r#""(evicted_keys|keys)":[1-9]\d*"#, r#""$1":[number]"#),
            (r#""used":\d+"#, r#""used":[number]"#),
        ]}, {
            assert_snapshot!(text, @$expected);
        });
    };
}

#[tokio::test]
async fn a_healthy_act_rests_on_every_guard() -> Result<()> {
    let world = World::on(&redis_url()?).await?;
    world.works_again().await?;
    assert_evidence!(&world, @r#"
    cutoff_base "[time]"
    generation [number]
    prefix "[prefix]"
    queue slide-export {"accepted":false,"continuity":{"verdict":"continues"},"epoch_began":"[time]","remembered":{"evicted_keys":0,"id":100,"nonces":["nonce 0"],"replid":"[12 digits]","run_id":"[12 digits]"},"seen":{"flaws":[],"id":100,"ids":1,"meta":true,"nonce":"nonce 0","unreadable":null}}
    queue slide-generation {"accepted":false,"continuity":{"verdict":"continues"},"epoch_began":"[time]","remembered":{"evicted_keys":0,"id":100,"nonces":["nonce 1"],"replid":"[12 digits]","run_id":"[12 digits]"},"seen":{"flaws":[],"id":100,"ids":0,"meta":true,"nonce":"nonce 1","unreadable":null}}
    scan {"departed":0,"foreign":0,"read":0,"unattributed":0,"unreadable":0}
    second_look true
    server {"evicted_keys":0,"loading":false,"maxmemory_policy":"noeviction","replid":"[12 digits]","role":"master","run_id":"[12 digits]"}
    snapshot_ms [ms]
    usage {"log":{"limit":65536,"used":[number]},"memory":{"limit":67108864,"used":[number]},"output":{"limit":1048576,"used":[number]},"run-time-us":{"limit":100000,"used":[number]}}
    "#);
    Ok(())
}

#[tokio::test]
async fn after_a_wipe_the_nonce_that_is_missing_is_named() -> Result<()> {
    let server = Redis::start()?;
    let world = World::on(&server.url()).await?;
    server.command(&["FLUSHALL"])?;
    world.system.used_queues(&QUEUES).await?;
    let report = world.system.pass().await?;
    assert_eq!(story(&report, "lost"), "absent requeue before-epoch", "{report:#?}");
    assert_evidence!(&world, @r#"
    cutoff_base "[time]"
    generation [number]
    prefix "[prefix]"
    queue slide-export {"accepted":false,"continuity":{"kind":"nonce-missing","verdict":"broken"},"epoch_began":"[time]","remembered":{"evicted_keys":0,"id":100,"nonces":["nonce 0"],"replid":"[12 digits]","run_id":"[12 digits]"},"seen":{"flaws":[],"id":100,"ids":0,"meta":true,"nonce":null,"unreadable":null}}
    queue slide-generation {"accepted":false,"continuity":{"kind":"nonce-missing","verdict":"broken"},"epoch_began":"[time]","remembered":{"evicted_keys":0,"id":100,"nonces":["nonce 1"],"replid":"[12 digits]","run_id":"[12 digits]"},"seen":{"flaws":[],"id":100,"ids":0,"meta":true,"nonce":null,"unreadable":null}}
    scan {"departed":0,"foreign":0,"read":0,"unattributed":0,"unreadable":0}
    second_look false
    server {"evicted_keys":0,"loading":false,"maxmemory_policy":"noeviction","replid":"[12 digits]","role":"master","run_id":"[12 digits]"}
    snapshot_ms [ms]
    usage {"log":{"limit":65536,"used":[number]},"memory":{"limit":67108864,"used":[number]},"output":{"limit":1048576,"used":[number]},"run-time-us":{"limit":100000,"used":[number]}}
    "#);
    Ok(())
}

/// The role changes when the lease was taken already.
#[tokio::test]
async fn of_a_replica_its_role_is_told_and_no_verdict_on_any_epoch() -> Result<()> {
    let server = Redis::start()?;
    let world = World::on(&server.url()).await?;
    let rival =
        once_at(Moment::BeforeFirstLook, async || server.command(&["REPLICAOF", "127.0.0.1", "1"]).map(drop));
    let report = world.system.run(&Rivalled::new(&world.system.host, rival), Mode::Act).await?;
    assert_eq!(story(&report, "lost"), "unknown none -", "{report:#?}");
    assert_evidence!(&world, @r#"
    cutoff_base "[time]"
    generation [number]
    prefix "[prefix]"
    queue slide-export {"accepted":false,"continuity":null,"epoch_began":"[time]","remembered":{"evicted_keys":0,"id":100,"nonces":["nonce 0"],"replid":"[12 digits]","run_id":"[12 digits]"},"seen":{"flaws":[],"id":100,"ids":1,"meta":true,"nonce":"nonce 0","unreadable":null}}
    queue slide-generation {"accepted":false,"continuity":null,"epoch_began":"[time]","remembered":{"evicted_keys":0,"id":100,"nonces":["nonce 1"],"replid":"[12 digits]","run_id":"[12 digits]"},"seen":{"flaws":[],"id":100,"ids":0,"meta":true,"nonce":"nonce 1","unreadable":null}}
    scan null
    second_look false
    server {"evicted_keys":0,"loading":false,"maxmemory_policy":"noeviction","replid":"[12 digits]","role":"slave","run_id":"[12 digits]"}
    snapshot_ms [ms]
    usage null
    "#);
    Ok(())
}

#[tokio::test]
async fn evictions_are_counted_beside_what_was_remembered() -> Result<()> {
    let server = Redis::start_with(evicting())?;
    let world = World::on(&server.url()).await?;
    evict(&server, &world)?;
    let report = world.system.pass().await?;
    assert_eq!(story(&report, "lost"), "absent requeue before-epoch", "{report:#?}");
    assert_evidence!(&world, @r#"
    cutoff_base "[time]"
    generation [number]
    prefix "[prefix]"
    queue slide-export {"accepted":false,"continuity":{"keys":[number],"kind":"evicted","verdict":"broken"},"epoch_began":"[time]","remembered":{"evicted_keys":0,"id":100,"nonces":["nonce 0"],"replid":"[12 digits]","run_id":"[12 digits]"},"seen":{"flaws":[],"id":100,"ids":1,"meta":true,"nonce":"nonce 0","unreadable":null}}
    queue slide-generation {"accepted":false,"continuity":{"keys":[number],"kind":"evicted","verdict":"broken"},"epoch_began":"[time]","remembered":{"evicted_keys":0,"id":100,"nonces":["nonce 1"],"replid":"[12 digits]","run_id":"[12 digits]"},"seen":{"flaws":[],"id":100,"ids":0,"meta":true,"nonce":"nonce 1","unreadable":null}}
    scan {"departed":0,"foreign":0,"read":0,"unattributed":0,"unreadable":0}
    second_look false
    server {"evicted_keys":[number],"loading":false,"maxmemory_policy":"allkeys-lfu","replid":"[12 digits]","role":"master","run_id":"[12 digits]"}
    snapshot_ms [ms]
    usage {"log":{"limit":65536,"used":[number]},"memory":{"limit":67108864,"used":[number]},"output":{"limit":1048576,"used":[number]},"run-time-us":{"limit":100000,"used":[number]}}
    "#);
    Ok(())
}

#[tokio::test]
async fn of_unreadable_entries_one_is_named_and_all_are_counted() -> Result<()> {
    let world = World::on(&redis_url()?).await?;
    listed(&world.system, QUEUE, State::Waiting, "ghost").await?;
    entry(&world.system, QUEUE, State::Waiting, "scribble", "no JSON").await?;
    let report = world.system.pass().await?;
    assert_eq!(story(&report, "lost"), "unknown none -", "{report:#?}");
    assert_evidence!(&world, @r#"
    cutoff_base "[time]"
    generation [number]
    prefix "[prefix]"
    queue slide-export {"accepted":false,"continuity":{"verdict":"continues"},"epoch_began":"[time]","remembered":{"evicted_keys":0,"id":100,"nonces":["nonce 0"],"replid":"[12 digits]","run_id":"[12 digits]"},"seen":{"flaws":[],"id":100,"ids":1,"meta":true,"nonce":"nonce 0","unreadable":null}}
    queue slide-generation {"accepted":false,"continuity":{"verdict":"continues"},"epoch_began":"[time]","remembered":{"evicted_keys":0,"id":100,"nonces":["nonce 1"],"replid":"[12 digits]","run_id":"[12 digits]"},"seen":{"flaws":[],"id":100,"ids":2,"meta":true,"nonce":"nonce 1","unreadable":{"count":2,"entry":"scribble","fault":"not-json"}}}
    scan {"departed":0,"foreign":0,"read":3,"unattributed":0,"unreadable":2}
    second_look false
    server {"evicted_keys":0,"loading":false,"maxmemory_policy":"noeviction","replid":"[12 digits]","role":"master","run_id":"[12 digits]"}
    snapshot_ms [ms]
    usage null
    "#);
    Ok(())
}
