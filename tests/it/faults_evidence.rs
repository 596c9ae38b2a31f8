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

/// The evidence of what was last told of `lost`. Times, random digits and counters of other tests' servers do not matter;
/// where one nonce stands more than once, it does.
async fn evidence(world: &World) -> Result<String> {
    let evidence = world.evidence("lost").await?;
    let mut text = serde_json::to_string_pretty(&evidence)?.replace(&world.system.prefix, "[prefix]");
    // Named in the order in which they are met.
    let is_nonce = |word: &str| word.len() == 8 && word.bytes().all(|byte| byte.is_ascii_hexdigit());
    let mut names: Vec<String> = vec![];
    for word in text.clone().split('"').filter(|word| is_nonce(word)) {
        if !names.iter().any(|name| name == word) {
            names.push(word.to_owned());
        }
    }
    for (number, nonce) in names.iter().enumerate() {
        text = text.replace(nonce.as_str(), &format!("nonce {number}"));
    }
    Ok(text)
}

macro_rules! assert_evidence {
    ($world:expr, @$expected:literal) => {
        let text = evidence($world).await?;
        insta::with_settings!({ filters => vec![
            (r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z", "[time]"),
            (r#""snapshot_ms": \d+"#, r#""snapshot_ms": "[ms]""#),
            (r#""(run_id|replid)": "[0-9a-f]{12}""#, r#""$1": "[12 digits]""#),
            (r#""(generation|evicted_keys|keys)": [1-9]\d*"#, r#""$1": "[number]""#),
        ]}, {
            assert_snapshot!(text, @$expected);
        });
    };
}

#[tokio::test]
async fn a_healthy_act_rests_on_every_guard() -> Result<()> {
    let world = World::on(&redis_url()?).await?;
    world.works_again().await?;
    assert_evidence!(&world, @"");
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
    assert_evidence!(&world, @"");
    Ok(())
}

/// The role changes when the lease was taken already.
#[tokio::test]
async fn of_a_replica_its_role_is_told_and_no_verdict_on_any_epoch() -> Result<()> {
    let server = Redis::start()?;
    let world = World::on(&server.url()).await?;
    let rival = once_at(Moment::BeforeFirstLook, async || {
        server.command(&["REPLICAOF", "127.0.0.1", "1"]).map(drop)
    });
    let report = world.system.run(&Rivalled::new(&world.system.host, rival), Mode::Act).await?;
    assert_eq!(story(&report, "lost"), "unknown none -", "{report:#?}");
    assert_evidence!(&world, @"");
    Ok(())
}

#[tokio::test]
async fn evictions_are_counted_beside_what_was_remembered() -> Result<()> {
    let server = Redis::start_with(evicting())?;
    let world = World::on(&server.url()).await?;
    evict(&server, &world)?;
    let report = world.system.pass().await?;
    assert_eq!(story(&report, "lost"), "absent requeue before-epoch", "{report:#?}");
    assert_evidence!(&world, @"");
    Ok(())
}

#[tokio::test]
async fn of_unreadable_entries_one_is_named_and_all_are_counted() -> Result<()> {
    let world = World::on(&redis_url()?).await?;
    listed(&world.system, QUEUE, State::Waiting, "ghost").await?;
    entry(&world.system, QUEUE, State::Waiting, "scribble", "no JSON").await?;
    let report = world.system.pass().await?;
    assert_eq!(story(&report, "lost"), "unknown none -", "{report:#?}");
    assert_evidence!(&world, @"");
    Ok(())
}
