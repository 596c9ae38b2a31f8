//! The ways of taking a snapshot: each finds the same, and what one leaves in Redis goes away.

use std::collections::BTreeSet;

use anyhow::{Context, Result};
use proptest::strategy::{Strategy, ValueTree};
use proptest::test_runner::TestRunner;
use salvage::ports::{Ask, Queues};
use salvage::redis::{RedisQueues, SnapshotLimits};
use salvage_core::sighting::QueueFailure;
use salvage_core::snapshot::{Flaw, IdsCopy, Snapshot, State};
use salvage_tests::bullmq::BullMq;
use salvage_tests::services::Redis;
use serde_json::json;

use crate::redis_connection::{Fate, Proxy};
use crate::redis_world::{OTHER, QUEUE, World, named, queues};

/// Ids on a page, so that a handful of them takes several.
const PAGE: usize = 3;

/// More ids than are read without a copy.
const MANY: usize = 25_000;

fn limits() -> [SnapshotLimits; 3] {
    [SnapshotLimits::all_ranges(), SnapshotLimits::all_copies(), SnapshotLimits::measured()]
}

async fn snapshot(queues: &RedisQueues, names: &[&str]) -> Result<Snapshot, QueueFailure> {
    queues.snapshot(&Ask { copies: Some("t"), ..Ask::ids(&named(names)) }).await
}

/// Every id of a snapshot, wherever it lies.
async fn ids(queues: &RedisQueues, snapshot: &Snapshot) -> Result<BTreeSet<(String, State, String)>> {
    let mut found = BTreeSet::new();
    for (queue, reading) in &snapshot.queues {
        assert!(reading.has_every_state(), "{queue}");
        assert_eq!(reading.flaws, []);
        found.extend(reading.entries().map(|(state, id)| (queue.clone(), state, id.to_owned())));
        for (state, copy) in &reading.copies {
            for from in (0..copy.length).step_by(PAGE) {
                let page = queues.page(copy, from, PAGE).await?;
                assert_eq!(page.flaw, None);
                found.extend(page.ids.iter().map(|id| (queue.clone(), *state, id.clone())));
            }
        }
    }
    Ok(found)
}

impl World {
    fn copying(&self) -> RedisQueues {
        self.queues.clone().with_limits(SnapshotLimits::all_copies())
    }

    async fn copies(&self) -> Result<Vec<String>> {
        self.command("KEYS @:*:salvage:copy:*").await
    }

    /// `count` ids `slide-<number>` in a list.
    async fn fill(&self, key: &str, count: usize) -> Result<()> {
        let script =
            "for i = 1, tonumber(ARGV[1]) do redis.call('RPUSH', KEYS[1], 'slide-' .. i) end".to_owned();
        let mut eval = redis::cmd("EVAL");
        eval.arg(script).arg(1).arg(self.key(QUEUE, key)).arg(count);
        let mut plain = redis::Client::open(self.url.as_str())?.get_multiplexed_async_connection().await?;
        Ok(eval.query_async(&mut plain).await?)
    }
}

#[tokio::test]
async fn every_way_finds_the_same_ids_in_any_queue() -> Result<()> {
    let mut runner = TestRunner::deterministic();
    let queue = proptest::sample::select(vec![QUEUE, OTHER]);
    let state = proptest::sample::select(State::ALL.to_vec());
    let entries = proptest::collection::vec((queue, state, 0_u8..60), 0..80);
    for _ in 0..12 {
        let world = World::fresh().await?;
        let entries = entries.new_tree(&mut runner).expect("entries").current();
        let mut expected = BTreeSet::new();
        let mut commands =
            vec!["SET @:slide-generation:id 1".to_owned(), "SET @:slide-export:id 1".to_owned()];
        for (queue, state, number) in entries {
            // Some of them are markers, which are no entries.
            let id = if number % 10 == 0 { format!("0:{number}") } else { format!("slide-{number}") };
            let command = if state.is_list() { "RPUSH @" } else { "ZADD @" };
            let score = if state.is_list() { String::new() } else { format!("{number} ") };
            commands.push(format!("{command}:{queue}:{} {score}{id}", state.key()));
            if number % 10 != 0 {
                expected.insert((queue.to_owned(), state, id));
            }
        }
        world.arrange(&commands.iter().map(String::as_str).collect::<Vec<_>>()).await?;
        for limits in limits() {
            let queues = world.queues.clone().with_limits(limits);
            let snapshot = snapshot(&queues, &[QUEUE, OTHER]).await?;
            assert_eq!(ids(&queues, &snapshot).await?, expected, "{limits:?}");
            queues.remove_copies().await;
        }
    }
    Ok(())
}

#[tokio::test]
async fn copies_expire_by_themselves_and_are_removed_before() -> Result<()> {
    let world = World::fresh().await?;
    let queues = world.copying();
    world
        .arrange(&[
            "SET @:slide-generation:id 1",
            "RPUSH @:slide-generation:wait w1 w2",
            // Too long for a listpack, which SORT would turn into a skiplist, as every longer set is.
            &format!("ZADD @:slide-generation:delayed 1 {}", "d".repeat(65)),
            "RPUSH @:slide-export:active a1",
        ])
        .await?;
    let before = world.digest().await?;
    let snapshot = snapshot(&queues, &[QUEUE, OTHER]).await?;
    let mut copies = world.copies().await?;
    copies.sort();
    let key = |queue, state| world.key(queue, &format!("salvage:copy:t:{state}"));
    assert_eq!(copies, [key(OTHER, "active"), key(QUEUE, "delayed"), key(QUEUE, "wait")]);
    for copy in &copies {
        let left_ms: i64 = world.command(&format!("PTTL {copy}")).await?;
        assert!((290_000..=300_000).contains(&left_ms), "{copy} lives for {left_ms} ms more");
        assert_eq!(world.command::<String>(&format!("TYPE {copy}")).await?, "list");
    }

    // Every page gives all of them the whole time again: some wait while others are read.
    for copy in &copies {
        world.arrange(&[&format!("PEXPIRE {copy} 9000")]).await?;
    }
    queues.page(&snapshot.queues[QUEUE].copies[&State::Delayed], 0, 1).await?;
    for copy in &copies {
        let left_ms: i64 = world.command(&format!("PTTL {copy}")).await?;
        assert!(left_ms > 290_000, "{copy} lives for {left_ms} ms more");
    }

    queues.remove_copies().await;
    assert_eq!(world.digest().await?, before);
    let sent = queues.commands_sent();
    queues.remove_copies().await;
    assert_eq!(queues.commands_sent(), sent, "there is nothing left to remove");
    Ok(())
}

#[tokio::test]
async fn a_copy_holds_what_was_there_whatever_the_jobs_do_meanwhile() -> Result<()> {
    let world = World::fresh().await?;
    let queues = world.copying();
    world
        .arrange(&[
            "SET @:slide-generation:id 1",
            "RPUSH @:slide-generation:wait w1 w2 w3 w4",
            "ZADD @:slide-generation:delayed 1 d1 2 d2 3 d3 4 d4",
        ])
        .await?;
    let snapshot = snapshot(&queues, &[QUEUE]).await?;
    world
        .arrange(&[
            "RPOPLPUSH @:slide-generation:wait @:slide-generation:active",
            "DEL @:slide-generation:wait",
            "ZREM @:slide-generation:delayed d1",
            "RPUSH @:slide-generation:wait d1",
        ])
        .await?;
    let found: Vec<String> = ids(&queues, &snapshot).await?.into_iter().map(|(.., id)| id).collect();
    assert_eq!(found, ["w1", "w2", "w3", "w4", "d1", "d2", "d3", "d4"]);
    queues.remove_copies().await;
    Ok(())
}

#[tokio::test]
async fn a_copy_that_is_gone_or_short_is_a_flaw_of_its_page() -> Result<()> {
    for spoil in ["DEL", "RPOP", "SET"] {
        let world = World::fresh().await?;
        let queues = world.copying();
        world.arrange(&["SET @:slide-generation:id 1", "RPUSH @:slide-generation:wait a b c d"]).await?;
        let snapshot = snapshot(&queues, &[QUEUE]).await?;
        let copy: &IdsCopy = &snapshot.queues[QUEUE].copies[&State::Waiting];
        let value = if spoil == "SET" { " x" } else { "" };
        world.arrange(&[&format!("{spoil} {}{value}", copy.key)]).await?;
        let last = queues.page(copy, 3, PAGE).await?;
        let lost = Flaw::CopyLost { key: copy.key.clone() };
        assert_eq!((last.ids.len(), last.flaw), (0, Some(lost)), "{spoil}");
        queues.remove_copies().await;
    }
    Ok(())
}

/// The first transaction might come late, and its copies take the place of those that are being read.
#[tokio::test]
async fn copies_whose_reply_is_lost_are_not_made_again() -> Result<()> {
    let server = Redis::start()?;
    let world = World::on(&server.url()).await?;
    world.arrange(&["SET @:slide-generation:id 1", "RPUSH @:slide-generation:wait w1"]).await?;
    let proxy = Proxy::before(&world.url, [Fate::SecondReplyLost]).await?;
    let queues = queues(&proxy.url(), &world.prefix)?.with_limits(SnapshotLimits::all_copies());
    let failure = snapshot(&queues, &[QUEUE]).await.expect_err("no reply");
    assert!(matches!(failure, QueueFailure::Dropped { .. }), "{failure:?}");
    let stats = server.command(&["INFO", "commandstats"])?;
    assert!(stats.contains("cmdstat_copy:calls=1,"), "{stats}");
    queues.remove_copies().await;
    assert_eq!(world.copies().await?, Vec::<String>::new());
    Ok(())
}

#[tokio::test]
async fn who_may_not_write_copies_nothing() -> Result<()> {
    let world = World::fresh().await?;
    world.arrange(&["SET @:slide-generation:id 1", "RPUSH @:slide-generation:wait w1"]).await?;
    let before = world.digest().await?;
    let snapshot = world.copying().snapshot(&Ask::ids(&named(&[QUEUE]))).await?;
    assert_eq!(snapshot.queues[QUEUE].ids[&State::Waiting], ["w1"]);
    assert_eq!(world.digest().await?, before);
    Ok(())
}

#[tokio::test]
async fn where_redis_refuses_to_copy_all_is_read_in_one_reply() -> Result<()> {
    let server = Redis::start()?;
    let world = World::on(&server.url()).await?;
    world.arrange(&["SET @:slide-generation:id 1", "RPUSH @:slide-generation:wait w1 w2"]).await?;
    world.arrange(&["ACL SETUSER salvage reset on >secret ~* +@all -copy"]).await?;
    let url = server.url().replace("redis://", "redis://salvage:secret@");
    let queues = queues(&url, &world.prefix)?.with_limits(SnapshotLimits::all_copies());
    let snapshot = snapshot(&queues, &[QUEUE]).await?;
    assert_eq!(snapshot.queues[QUEUE].ids[&State::Waiting], ["w1", "w2"]);
    assert_eq!(snapshot.queues[QUEUE].flaws, []);
    queues.remove_copies().await;
    assert_eq!(world.copies().await?, Vec::<String>::new());
    Ok(())
}

#[tokio::test]
async fn near_its_memory_limit_redis_is_spared_and_the_reason_told() -> Result<()> {
    let server = Redis::start()?;
    let world = World::on(&server.url()).await?;
    world.arrange(&["SET @:slide-generation:id 1"]).await?;
    world.fill("wait", MANY).await?;
    let used: u64 = {
        let info = server.command(&["INFO", "memory"])?;
        let line = info.lines().find_map(|line| line.strip_prefix("used_memory:"));
        line.context("used_memory")?.trim().parse()?
    };
    let before = world.digest().await?;
    world.arrange(&[&format!("CONFIG SET maxmemory {}", used + 3_000_000)]).await?;
    let failure = snapshot(&world.queues, &[QUEUE]).await.expect_err("too little room");
    assert!(matches!(failure, QueueFailure::NoRoom { ids: MANY, .. }), "{failure:?}");
    world.arrange(&["CONFIG SET maxmemory 1gb"]).await?;
    let reading = snapshot(&world.queues, &[QUEUE]).await?.queues.remove(QUEUE).context("the reading")?;
    assert_eq!(reading.copies[&State::Waiting].length, MANY);
    world.queues.remove_copies().await;
    assert_eq!(world.digest().await?, before);
    Ok(())
}

#[tokio::test]
async fn long_sorted_sets_are_left_out_where_no_absence_is_to_be_proven() -> Result<()> {
    let world = World::fresh().await?;
    let queues = world.copying();
    world
        .arrange(&[
            "SET @:slide-generation:id 1",
            "RPUSH @:slide-generation:active slide-1",
            "ZADD @:slide-generation:delayed 5 slide-2 6 slide-3",
        ])
        .await?;
    let names = named(&[QUEUE]);
    let snapshot = queues.snapshot(&Ask { is_whole: false, ..Ask::ids(&names) }).await?;
    let reading = &snapshot.queues[QUEUE];
    assert_eq!(reading.missing().collect::<Vec<_>>(), [State::Delayed]);
    assert_eq!((reading.ids_total(), reading.flaws.len()), (3, 0));
    assert!(queues.snapshot(&Ask::ids(&names)).await?.queues[QUEUE].has_every_state());

    // More than one command asks for at once.
    let ids: Vec<String> = (0..2_500).map(|number| format!("slide-{}", number % 5)).collect();
    let expected: Vec<bool> = (0..2_500).map(|number| matches!(number % 5, 2 | 3)).collect();
    assert_eq!(queues.are_in_set(QUEUE, State::Delayed, &ids).await?, expected);
    assert_eq!(queues.are_in_set(QUEUE, State::Prioritized, &ids[..2]).await?, [false, false]);
    world.arrange(&["SET @:slide-generation:prioritized spoilt"]).await?;
    let failure = queues.are_in_set(QUEUE, State::Prioritized, &ids).await.expect_err("no set");
    assert!(matches!(failure, QueueFailure::WrongType { .. }), "{failure:?}");
    Ok(())
}

#[tokio::test]
async fn where_nobody_is_looked_for_no_ids_are_read_but_active_ones() -> Result<()> {
    let world = World::fresh().await?;
    world
        .arrange(&[
            "SET @:slide-generation:id 7",
            "RPUSH @:slide-generation:wait w1 w2",
            "RPUSH @:slide-generation:active a1",
            "SET @:slide-export:id 1",
            "SET @:slide-export:delayed spoilt",
        ])
        .await?;
    let snapshot = world.queues.snapshot(&Ask::guards(&named(&[QUEUE, OTHER]))).await?;
    let reading = &snapshot.queues[QUEUE];
    assert_eq!(reading.entries().collect::<Vec<_>>(), [(State::Active, "a1")]);
    assert_eq!((reading.ids_total(), reading.id_counter), (3, Some(7)));
    assert!(!reading.has_every_state(), "so nobody can be called absent by it");
    assert_eq!(snapshot.queues[OTHER].flaws.len(), 1, "a wrong type shows all the same");
    Ok(())
}

#[tokio::test]
async fn jobs_that_retry_for_ever_are_in_every_copy() -> Result<()> {
    const JOBS: usize = 300;
    let world = World::fresh().await?;
    let bullmq = BullMq::open(&world.url, &world.prefix).await?;
    let job = |number: usize| {
        let opts = json!({ "jobId": format!("slide-{number}"), "attempts": 1_000_000, "backoff": 40 });
        json!({ "name": "generate", "data": { "jobId": number.to_string() }, "opts": opts })
    };
    let jobs: Vec<_> = (0..JOBS).map(job).collect();
    bullmq.call("addMany", json!({ "queue": QUEUE, "jobs": jobs })).await?;
    let worker = json!({ "behaviour": "fail", "delayMs": 5, "concurrency": 60 });
    bullmq.start_worker(QUEUE, worker).await?;
    bullmq.wait_runs(JOBS, json!({})).await?;
    let queues = world.copying();
    for round in 0..40 {
        let snapshot = snapshot(&queues, &[QUEUE]).await?;
        let present = ids(&queues, &snapshot).await?;
        assert_eq!(present.len(), JOBS, "round {round}");
        queues.remove_copies().await;
    }
    bullmq.kill().await
}
