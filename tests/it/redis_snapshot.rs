//! What the snapshot says, of real queues and of odd ones.

use std::collections::BTreeSet;

use anyhow::Result;
use salvage::ports::{Ask, Mark, Queues};
use salvage_core::payload::Payload;
use salvage_core::sighting::QueueFailure;
use salvage_core::snapshot::{Flaw, Stalled, State};
use salvage_tests::bullmq::{BULLMQ_5, BULLMQ_6, BullMq};
use salvage_tests::services::{MARKER_PASSWORD, Redis, RedisOptions};
use serde_json::json;

use crate::redis_world::{OTHER, QUEUE, World, fence, named, queues};

#[tokio::test]
async fn all_states_of_all_queues_are_read() -> Result<()> {
    let world = World::fresh().await?;
    world
        .arrange(&[
            "RPUSH @:slide-generation:wait w1 0:0 w2 0:1700000000000",
            "RPUSH @:slide-generation:paused p1",
            "RPUSH @:slide-generation:active a1",
            "ZADD @:slide-generation:delayed 1 d1",
            "ZADD @:slide-generation:prioritized 1 r1",
            "ZADD @:slide-generation:waiting-children 1 c1",
            "ZADD @:slide-generation:completed 10 done",
            "ZADD @:slide-generation:failed 20 broken",
            "SET @:slide-generation:id 12",
            "HSET @:slide-generation:meta paused 1",
            "HSET @:slide-generation:salvage:host nonce n1",
            "HSET @:slide-export:meta version bullmq:5",
        ])
        .await?;
    let snapshot = world.snapshot(&[QUEUE, OTHER]).await?;
    assert_eq!(snapshot.server_fault(), None);
    let reading = &snapshot.queues[QUEUE];
    let ids = |state| reading.ids[&state].iter().map(String::as_str).collect::<Vec<_>>();
    assert_eq!(ids(State::Waiting), ["w1", "w2"]);
    for (state, id) in [
        (State::Paused, "p1"),
        (State::Active, "a1"),
        (State::Delayed, "d1"),
        (State::Prioritized, "r1"),
        (State::WaitingChildren, "c1"),
    ] {
        assert_eq!(ids(state), [id], "{state}");
    }
    assert_eq!((reading.id_counter, reading.has_meta, reading.is_paused), (Some(12), true, true));
    assert_eq!(reading.nonce.as_deref(), Some("n1"));
    assert_eq!(reading.retained, ["broken", "done"]);
    assert_eq!(reading.flaws, []);
    let other = &snapshot.queues[OTHER];
    assert_eq!((other.id_counter, other.has_meta, other.is_paused), (None, true, false));
    assert_eq!((other.entries().count(), other.flaws.len()), (0, 0));
    Ok(())
}

#[tokio::test]
async fn a_wrong_prefix_leaves_no_trace_and_names_it() -> Result<()> {
    let world = World::fresh().await?;
    let reading = world.reading().await?;
    assert_eq!(reading.flaws, [Flaw::NoTrace { prefix: world.prefix.clone() }]);
    Ok(())
}

#[tokio::test]
async fn one_key_of_a_wrong_type_spoils_its_own_queue_only() -> Result<()> {
    let world = World::fresh().await?;
    world
        .arrange(&[
            "SET @:slide-generation:id 1",
            "SET @:slide-generation:prioritized oops",
            "RPUSH @:slide-generation:wait w1",
            "SET @:slide-export:id 1",
        ])
        .await?;
    let snapshot = world.snapshot(&[QUEUE, OTHER]).await?;
    let key = world.key(QUEUE, "prioritized");
    assert_eq!(snapshot.queues[QUEUE].flaws, [Flaw::WrongType { key, expected: "sorted set" }]);
    assert_eq!(snapshot.queues[QUEUE].ids[&State::Waiting], ["w1"]);
    assert_eq!(snapshot.queues[OTHER].flaws, []);
    Ok(())
}

#[tokio::test]
async fn pro_groups_are_seen() -> Result<()> {
    let world = World::fresh().await?;
    world.arrange(&["SET @:slide-generation:id 1", "ZADD @:slide-generation:groups 1 g1"]).await?;
    assert_eq!(world.reading().await?.flaws, [Flaw::ProGroups]);
    Ok(())
}

#[tokio::test]
async fn a_paused_queue_shows_its_jobs_wherever_its_version_keeps_them() -> Result<()> {
    for (version, state) in [(BULLMQ_5, State::Paused), (BULLMQ_6, State::Waiting)] {
        let world = World::fresh().await?;
        let bullmq = BullMq::open_version(version, &world.url, &world.prefix).await?;
        bullmq.add(QUEUE, "generate", json!({}), json!({ "jobId": "slide-1" })).await?;
        bullmq.call("pause", json!({ "queue": QUEUE })).await?;
        let reading = world.reading().await?;
        assert!(reading.is_paused, "{version}");
        assert_eq!(reading.ids[&state], ["slide-1"], "{version}");
        bullmq.close().await?;
    }
    Ok(())
}

#[tokio::test]
async fn jobs_that_retry_for_ever_are_never_missing() -> Result<()> {
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
    for round in 0..40 {
        let reading = world.reading().await?;
        let present: BTreeSet<&str> = reading.entries().map(|(_, id)| id).collect();
        assert_eq!(present.len(), JOBS, "round {round}");
    }
    bullmq.kill().await
}

#[tokio::test]
async fn payloads_come_in_the_order_they_were_asked_for() -> Result<()> {
    let world = World::fresh().await?;
    world
        .arrange(&[
            "HSET @:slide-generation:a data {\"jobId\":1}",
            "HSET @:slide-generation:b name nothing-more",
            "SET @:slide-generation:c no-hash",
        ])
        .await?;
    let ids = ["b", "a", "gone", "c"].map(str::to_owned);
    let payloads = world.queues.payloads(QUEUE, &ids).await?;
    let nameless = Payload { name: None, ..Payload::named("", "{\"jobId\":1}") };
    let dataless = Payload { name: Some("nothing-more".to_owned()), ..Payload::default() };
    assert_eq!(payloads, [dataless, nameless, Payload::default(), Payload::default()]);
    assert_eq!(world.queues.payloads(QUEUE, &[]).await?, []);
    Ok(())
}

#[tokio::test]
async fn stalled_entries_are_active_still_and_without_a_lock() -> Result<()> {
    let world = World::fresh().await?;
    world
        .arrange(&[
            "RPUSH @:slide-generation:active c b a",
            "HSET @:slide-generation:a processedOn 1700000000000",
            "SET @:slide-generation:b:lock token",
        ])
        .await?;
    // The last two ended after the snapshot that named them; one was run again elsewhere.
    world.arrange(&["SET @:slide-generation:gone:lock token"]).await?;
    let active = ["a", "b", "c", "gone", "ended"].map(str::to_owned);
    let stalled = |entry_id: &str, taken_ms| Stalled { entry_id: entry_id.into(), taken_ms };
    let expected = [stalled("a", Some(1_700_000_000_000)), stalled("c", None)];
    assert_eq!(world.queues.stalled(QUEUE, &active).await?, expected);
    Ok(())
}

#[tokio::test]
async fn a_mark_is_read_back_and_an_older_pass_cannot_overwrite_it() -> Result<()> {
    let world = World::fresh().await?;
    let marks = |found: Option<&str>, text: &str| {
        let mark = Mark { found: found.map(str::to_owned), nonce: text.to_owned() };
        [(QUEUE.to_owned(), mark.clone()), (OTHER.to_owned(), mark)].into()
    };
    world.queues.mark(&marks(None, "first"), &fence(5)).await?;
    world.queues.mark(&marks(Some("first"), "second"), &fence(6)).await?;
    // As if the reply had been lost.
    world.queues.mark(&marks(Some("first"), "second"), &fence(6)).await?;
    let before = world.digest().await?;
    let late = world.queues.mark(&marks(Some("second"), "late"), &fence(5)).await;
    let failure = late.expect_err("a newer pass was here");
    assert_eq!(failure, QueueFailure::Fenced { queue: OTHER.into(), generation: 6 });
    assert_eq!(world.digest().await?, before);
    assert_eq!(world.reading().await?.nonce.as_deref(), Some("second"));

    for found in [None, Some("first")] {
        let changed = world.queues.mark(&marks(found, "third"), &fence(7)).await;
        assert_eq!(changed, Err(QueueFailure::Changed { queue: OTHER.into() }), "{found:?}");
        assert_eq!(world.digest().await?, before);
    }

    world.arrange(&["DEL @:slide-export:salvage:host", "SET @:slide-export:salvage:host spoilt"]).await?;
    let third = world.queues.mark(&marks(Some("second"), "third"), &fence(7)).await;
    let failure = third.expect_err("one key is no hash");
    assert!(matches!(&failure, QueueFailure::WrongType { .. }), "{failure:?}");
    assert_eq!(world.reading().await?.nonce.as_deref(), Some("second"), "all or none");
    Ok(())
}

#[tokio::test]
async fn a_replica_says_that_it_is_none_of_ours() -> Result<()> {
    let master = Redis::start()?;
    let replica = Redis::start_with(RedisOptions::default().replica_of(&master))?;
    let world = World::on(&replica.url()).await?;
    let snapshot = world.snapshot(&[QUEUE]).await?;
    assert_eq!(snapshot.server_fault(), Some(QueueFailure::NotMaster { role: "slave".into() }));
    Ok(())
}

#[tokio::test]
async fn credentials_are_told_apart_from_a_dead_server() -> Result<()> {
    let server = Redis::start_with(RedisOptions::default().password(MARKER_PASSWORD))?;
    let without = format!("redis://127.0.0.1:{}", server.port());
    let wrong = format!("redis://:{MARKER_PASSWORD}-not@127.0.0.1:{}", server.port());
    for (url, code) in [(without, "NOAUTH"), (wrong, "WRONGPASS")] {
        let failure = queues(&url, "bull")?.snapshot(&Ask::ids(&BTreeSet::new())).await.expect_err(code);
        assert_eq!(failure, QueueFailure::Credentials { code: code.into() });
        assert!(!failure.to_string().contains(MARKER_PASSWORD), "{failure}");
    }
    queues(&server.url(), "bull")?.snapshot(&Ask::ids(&BTreeSet::new())).await?;
    Ok(())
}

#[tokio::test]
async fn a_command_that_may_not_be_run_spoils_the_whole_snapshot() -> Result<()> {
    let server = Redis::start()?;
    let world = World::on(&server.url()).await?;
    world.arrange(&["SET @:slide-generation:id 1"]).await?;
    let url = server.url().replace("redis://", "redis://salvage:secret@");
    for forbidden in ["info", "time", "lrange", "zrange"] {
        world.arrange(&[&format!("ACL SETUSER salvage reset on >secret ~* +@all -{forbidden}")]).await?;
        let queues = queues(&url, &world.prefix)?;
        let failure = queues.snapshot(&Ask::ids(&named(&[QUEUE]))).await.expect_err(forbidden);
        assert!(matches!(&failure, QueueFailure::Forbidden { .. }), "{failure:?}");
    }
    Ok(())
}

#[tokio::test]
async fn a_busy_redis_gives_no_answer() -> Result<()> {
    let server = Redis::start_with(RedisOptions::default().set("--busy-reply-threshold", &["20"]))?;
    let world = World::on(&server.url()).await?;
    let mut blocked = redis::Client::open(server.url())?.get_multiplexed_async_connection().await?;
    let script = tokio::spawn(async move {
        let mut endless = redis::cmd("EVAL");
        endless.arg("while true do end").arg(0);
        endless.query_async::<redis::Value>(&mut blocked).await
    });
    // Until the script runs, snapshots succeed; one that is asked for meanwhile waits for the 20 ms to pass.
    let failure = loop {
        match world.snapshot(&[QUEUE]).await {
            Ok(_) => tokio::task::yield_now().await,
            Err(failure) => break failure,
        }
    };
    server.command(&["SCRIPT", "KILL"])?;
    assert_eq!(failure, QueueFailure::Busy);
    // Its reply does not matter: the client may have given up by itself.
    drop(script.await);
    Ok(())
}

#[tokio::test]
async fn commands_are_counted_one_by_one() -> Result<()> {
    let world = World::fresh().await?;
    let none = world.queues.commands_sent();
    assert_eq!(none, 0);
    world.snapshot(&[QUEUE]).await?;
    let one = world.queues.commands_sent();
    world.snapshot(&[QUEUE, OTHER]).await?;
    let (lengths, per_queue) = (6, 19);
    let once = ["INFO", "MULTI", "TIME", "INFO", "EXEC"].len() as u64;
    assert_eq!(one, once + lengths + per_queue);
    assert_eq!(world.queues.commands_sent() - one, once + 2 * (lengths + per_queue));
    Ok(())
}
