//! When the requeue script refuses, and that it then writes nothing.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::Result;
use salvage::ports::{QueueTerms, Queues};
use salvage_core::act::{Act, Change, QueueRefusal, ScriptAnswer};
use salvage_core::sighting::QueueFailure;
use salvage_tests::services::Redis;

use crate::redis_world::{OTHER, QUEUE, World, fail, fence, requeue, terms};

/// A queue as BullMQ makes it, with nothing in it.
const EMPTY: [&str; 2] =
    ["HSET @:slide-generation:meta opts.maxLenEvents 10000", "SET @:slide-generation:id 7"];

/// Arranges, acts, and demands this refusal with nothing written.
async fn check_refused(
    arranged: &[&str],
    act: &Act,
    terms: &QueueTerms,
    expected: QueueRefusal,
) -> Result<()> {
    let world = World::fresh().await?;
    world.arrange(&EMPTY).await?;
    world.arrange(arranged).await?;
    let before = world.digest().await?;
    let expected = match expected {
        QueueRefusal::WrongType { queue, key } => {
            QueueRefusal::WrongType { queue, key: world.key(QUEUE, &key) }
        }
        expected => expected,
    };
    assert_eq!(world.queues.act(act, terms).await?, ScriptAnswer::Refused(expected), "{arranged:?}");
    assert_eq!(world.digest().await?, before, "{arranged:?}");
    Ok(())
}

#[tokio::test]
async fn a_job_in_any_state_of_any_place_is_left_alone() -> Result<()> {
    let states = [("wait", "RPUSH @:Q:wait"), ("paused", "RPUSH @:Q:paused"), ("active", "RPUSH @:Q:active")]
        .into_iter()
        .chain([
            ("delayed", "ZADD @:Q:delayed 1"),
            ("prioritized", "ZADD @:Q:prioritized 1"),
            ("waiting-children", "ZADD @:Q:waiting-children 1"),
        ]);
    for (state, command) in states {
        for queue in [QUEUE, OTHER] {
            let world = World::fresh().await?;
            world.arrange(&EMPTY).await?;
            let command = command.replace(":Q:", &format!(":{queue}:"));
            world.arrange(&[&format!("{command} slide-0"), &format!("{command} slide-1")]).await?;
            let before = world.digest().await?;
            for act in [requeue("1"), fail("1")] {
                let expected = ScriptAnswer::Present { queue: queue.into(), state: state.into() };
                assert_eq!(world.act(&act).await?, expected, "{state} of {queue}");
                assert_eq!(world.digest().await?, before, "{state} of {queue}");
            }
        }
    }
    Ok(())
}

/// More entries than the script walks at either end of a list.
const MANY: usize = 2_500;

/// Lists `slide-1` with this many others on its left and on its right, arranges, and acts.
async fn check_listed(list: &str, around: [usize; 2], arranged: &[&str], is_present: bool) -> Result<()> {
    for queue in [QUEUE, OTHER] {
        let world = World::fresh().await?;
        world.arrange(&EMPTY).await?;
        for (others, last) in around.into_iter().zip([Some("slide-1"), None]) {
            let ids = (0..others).map(|n| format!("other-{n}")).chain(last.map(str::to_owned));
            let ids: Vec<String> = ids.collect();
            if !ids.is_empty() {
                world.arrange(&[&format!("RPUSH @:{queue}:{list} {}", ids.join(" "))]).await?;
            }
        }
        for command in arranged {
            world.arrange(&[&command.replace(":Q:", &format!(":{queue}:"))]).await?;
        }
        let present = ScriptAnswer::Present { queue: queue.into(), state: list.into() };
        let expected = if is_present { present } else { ScriptAnswer::Clear };
        for act in [fail("1"), requeue("1")] {
            assert_eq!(world.act(&act).await?, expected, "{list} of {queue}: {around:?}, {arranged:?}");
        }
    }
    Ok(())
}

#[tokio::test]
async fn an_entry_near_either_end_of_a_long_list_is_found_whatever_else_there_is() -> Result<()> {
    let finished = ["HSET @:Q:slide-1 finishedOn 1", "ZADD @:Q:completed 1 slide-1"];
    for list in ["wait", "paused"] {
        for around in [[0, MANY], [MANY, 0], [999, MANY], [MANY, 999]] {
            check_listed(list, around, &[], true).await?;
            check_listed(list, around, &finished, true).await?;
        }
        check_listed(list, [MANY, MANY], &[], false).await?;
    }
    Ok(())
}

#[tokio::test]
async fn an_entry_deep_in_a_long_list_is_found_by_its_hash() -> Result<()> {
    let added: &[&str] = &["HSET @:Q:slide-1 data {}"];
    let added_beside_an_old_entry = &["HSET @:Q:slide-1 data {}", "ZADD @:Q:failed 1 slide-1"];
    let retried = &["HSET @:Q:slide-1 finishedOn 1"];
    for list in ["wait", "paused"] {
        for arranged in [added, added_beside_an_old_entry, retried] {
            check_listed(list, [MANY, MANY], arranged, true).await?;
        }
        let finished = ["HSET @:Q:slide-1 finishedOn 1", "ZADD @:Q:failed 1 slide-1"];
        check_listed(list, [MANY, MANY], &finished, false).await?;
    }
    Ok(())
}

#[tokio::test]
async fn an_active_entry_is_found_however_many_there_are() -> Result<()> {
    check_listed("active", [MANY, MANY], &[], true).await
}

#[tokio::test]
async fn a_paused_queue_refuses_what_would_be_put_into_it() -> Result<()> {
    let pause = "HSET @:slide-generation:meta paused 1";
    let paused = QueueRefusal::Paused { queue: QUEUE.into() };
    check_refused(&[pause], &requeue("1"), &terms(), paused).await?;

    let world = World::fresh().await?;
    world.arrange(&EMPTY).await?;
    world.arrange(&[pause, "HSET @:slide-export:meta paused 1"]).await?;
    assert_eq!(world.act(&fail("1")).await?, ScriptAnswer::Clear, "nothing is put anywhere by a fail");
    world.arrange(&["HDEL @:slide-generation:meta paused"]).await?;
    assert_eq!(world.act(&requeue("1")).await?, ScriptAnswer::Clear, "another queue's pause does not matter");
    Ok(())
}

#[tokio::test]
async fn a_locked_job_is_left_to_its_worker() -> Result<()> {
    let locked = |queue: &str| QueueRefusal::Locked { queue: queue.into(), entry_id: "slide-1".into() };
    let here = ["SET @:slide-generation:slide-1:lock token PX 30000"];
    check_refused(&here, &requeue("1"), &terms(), locked(QUEUE)).await?;
    check_refused(&here, &fail("1"), &terms(), locked(QUEUE)).await?;
    let there = ["SET @:slide-export:slide-1:lock token PX 30000"];
    check_refused(&there, &requeue("1"), &terms(), locked(OTHER)).await
}

#[tokio::test]
async fn what_belongs_to_a_flow_or_a_scheduler_is_not_replaced() -> Result<()> {
    let flow = || QueueRefusal::Flow { queue: QUEUE.into(), entry_id: "slide-1".into() };
    for bond in [
        "HSET @:slide-generation:slide-1 parentKey bull:parents:9",
        "HSET @:slide-generation:slide-1 parent {}",
        "SADD @:slide-generation:slide-1:dependencies bull:children:9",
        "HSET @:slide-generation:slide-1:processed bull:children:9 1",
        "HSET @:slide-generation:slide-1:failed bull:children:9 1",
        "ZADD @:slide-generation:slide-1:unsuccessful 1 bull:children:9",
    ] {
        check_refused(&[bond], &requeue("1"), &terms(), flow()).await?;
    }
    let scheduler = QueueRefusal::Scheduler { queue: QUEUE.into(), entry_id: "slide-1".into() };
    check_refused(&["HSET @:slide-generation:slide-1 rjk daily"], &requeue("1"), &terms(), scheduler).await
}

#[tokio::test]
async fn a_fail_is_not_kept_from_a_job_of_a_flow() -> Result<()> {
    let world = World::fresh().await?;
    world.arrange(&EMPTY).await?;
    world.arrange(&["HSET @:slide-generation:slide-1 parentKey bull:parents:9"]).await?;
    assert_eq!(world.act(&fail("1")).await?, ScriptAnswer::Clear);
    Ok(())
}

#[tokio::test]
async fn a_late_act_does_nothing() -> Result<()> {
    let late = QueueTerms { deadline_ms: 1_700_000_000_000, ..terms() };
    check_refused(&[], &requeue("1"), &late, QueueRefusal::Late).await?;
    check_refused(&[], &fail("1"), &late, QueueRefusal::Late).await
}

#[tokio::test]
async fn a_newer_pass_in_any_place_fences_off_an_older_one() -> Result<()> {
    for queue in [QUEUE, OTHER] {
        let newer = format!("HSET @:{queue}:salvage:host generation:global 6");
        let fenced = || QueueRefusal::Fenced { queue: queue.into(), generation: 6 };
        check_refused(&[&newer], &requeue("1"), &terms(), fenced()).await?;
        check_refused(&[&newer], &fail("1"), &terms(), fenced()).await?;
    }
    Ok(())
}

#[tokio::test]
async fn an_act_raises_the_generation_of_its_own_scope_in_every_place() -> Result<()> {
    for act in [requeue("1"), fail("1")] {
        let world = World::fresh().await?;
        world.arrange(&EMPTY).await?;
        world.arrange(&["HSET @:slide-generation:salvage:host generation:slides 99 nonce n"]).await?;
        assert_eq!(world.act(&act).await?, ScriptAnswer::Clear);
        for queue in [QUEUE, OTHER] {
            let raised: u64 =
                world.command(&format!("HGET @:{queue}:salvage:host generation:global")).await?;
            assert_eq!(raised, 5, "{queue}");
        }
        let others: (u64, String) =
            world.command("HMGET @:slide-generation:salvage:host generation:slides nonce").await?;
        assert_eq!(others, (99, "n".into()));
        let older = QueueTerms { fence: fence(4), ..terms() };
        let fenced = QueueRefusal::Fenced { queue: QUEUE.into(), generation: 5 };
        assert_eq!(world.queues.act(&requeue("2"), &older).await?, ScriptAnswer::Refused(fenced));
    }
    Ok(())
}

#[tokio::test]
async fn a_lost_nonce_stops_the_act() -> Result<()> {
    let nonces = BTreeMap::from([(QUEUE.to_owned(), "ours".to_owned())]);
    let marked = QueueTerms { nonces, ..terms() };
    let epoch = || QueueRefusal::Epoch { queue: QUEUE.into() };
    check_refused(&[], &requeue("1"), &marked, epoch()).await?;
    let foreign = "HSET @:slide-generation:salvage:host nonce theirs";
    check_refused(&[foreign], &requeue("1"), &marked, epoch()).await?;
    check_refused(&[foreign], &fail("1"), &marked, epoch()).await?;

    let world = World::fresh().await?;
    world.arrange(&EMPTY).await?;
    world.arrange(&["HSET @:slide-generation:salvage:host nonce ours"]).await?;
    assert_eq!(world.queues.act(&requeue("1"), &marked).await?, ScriptAnswer::Clear);
    Ok(())
}

#[tokio::test]
async fn a_lost_meta_stops_the_act() -> Result<()> {
    let with_meta = QueueTerms { with_meta: BTreeSet::from([QUEUE.to_owned()]), ..terms() };
    let missing = QueueRefusal::MetaMissing { queue: QUEUE.into() };
    check_refused(&["DEL @:slide-generation:meta"], &requeue("1"), &with_meta, missing).await?;

    // A queue of workers of BullMQ 4 alone never has one.
    let world = World::fresh().await?;
    world.arrange(&["SET @:slide-generation:id 7"]).await?;
    assert_eq!(world.act(&requeue("1")).await?, ScriptAnswer::Clear);
    Ok(())
}

#[tokio::test]
async fn a_key_of_a_wrong_type_is_named_before_anything_is_written() -> Result<()> {
    for key in [
        "wait",
        "paused",
        "active",
        "delayed",
        "prioritized",
        "waiting-children",
        "completed",
        "failed",
        "marker",
        "events",
        "salvage:host",
        "slide-1",
    ] {
        let spoil = format!("SET @:slide-generation:{key} spoilt");
        let wrong = QueueRefusal::WrongType { queue: QUEUE.into(), key: key.into() };
        check_refused(&[&spoil], &requeue("1"), &terms(), wrong).await?;
    }
    for id in ["abc", "-1", "1.5", "12345678901234567890"] {
        let spoil = format!("SET @:slide-generation:id {id}");
        let wrong = QueueRefusal::WrongType { queue: QUEUE.into(), key: "id".into() };
        check_refused(&[&spoil], &requeue("1"), &terms(), wrong).await?;
    }
    let spoil = ["DEL @:slide-generation:meta", "SET @:slide-generation:meta spoilt"];
    let wrong = QueueRefusal::WrongType { queue: QUEUE.into(), key: "meta".into() };
    check_refused(&spoil, &fail("1"), &terms(), wrong).await
}

/// A requeue under `id` is refused before Redis is asked.
async fn check_unfit(id: &str, why: &'static str) -> Result<()> {
    let mut act = requeue("1");
    act.places[0].entry_id = id.into();
    if let Change::Requeue { entry_id, .. } = &mut act.change {
        *entry_id = id.into();
    }
    check_refused(&[], &act, &terms(), QueueRefusal::Unfit { queue: QUEUE.into(), entry_id: id.into(), why })
        .await
}

#[tokio::test]
async fn an_id_named_like_a_key_of_bullmq_never_replaces_it() -> Result<()> {
    check_unfit("meta", "the id is the name of one of BullMQ's own keys").await
}

#[tokio::test]
async fn an_id_that_bullmqs_counter_would_reach_is_not_enqueued_under() -> Result<()> {
    check_unfit("11", "BullMQ counts such ids out itself and would overwrite it; give the rule a letter")
        .await
}

#[tokio::test]
async fn a_deduplication_key_goes_only_with_its_own_job() -> Result<()> {
    for (owner, left) in [("slide-1", 0), ("slide-2", 1)] {
        let world = World::fresh().await?;
        world.arrange(&EMPTY).await?;
        let owned = format!("SET @:slide-generation:de:once {owner}");
        world.arrange(&["HSET @:slide-generation:slide-1 deid once data {}", &owned]).await?;
        assert_eq!(world.act(&requeue("1")).await?, ScriptAnswer::Clear);
        let exists: u64 = world.command("EXISTS @:slide-generation:de:once").await?;
        assert_eq!(exists, left, "{owner}");
    }
    Ok(())
}

#[tokio::test]
async fn a_full_redis_enqueues_nothing_and_says_so() -> Result<()> {
    let server = Redis::start()?;
    let world = World::on(&server.url()).await?;
    world.arrange(&EMPTY).await?;
    world
        .arrange(&["HSET @:slide-generation:slide-1 data {}", "ZADD @:slide-generation:failed 1 slide-1"])
        .await?;
    let before = world.digest().await?;
    world.arrange(&["CONFIG SET maxmemory 1"]).await?;
    let failure = world.act(&requeue("1")).await.expect_err("there is no memory left");
    assert_eq!(failure, QueueFailure::WritesRefused { code: "OOM".into() });
    assert!(!failure.is_indeterminate());
    assert_eq!(world.digest().await?, before);
    world.arrange(&["CONFIG SET maxmemory 0"]).await?;
    assert_eq!(world.act(&requeue("1")).await?, ScriptAnswer::Clear);
    Ok(())
}

#[tokio::test]
async fn an_error_reply_proves_that_nothing_was_enqueued() -> Result<()> {
    // Goal: a script is not taken back when it fails half-way. A user who may not run one of its commands makes it fail
    // at each of them in turn; whenever it reports an error, the job must be in no state, and otherwise in one.
    let server = Redis::start()?;
    for forbidden in [
        "hset", "zrem", "del", "incr", "zadd", "xadd", "hmget", "exists", "llen", "lpos", "zscore", "get",
        "type", "time",
    ] {
        let world = World::on(&server.url()).await?;
        world.arrange(&EMPTY).await?;
        // Something of each kind that is asked for and removed.
        world
            .arrange(&["RPUSH @:slide-generation:wait other", "ZADD @:slide-generation:failed 1 slide-1"])
            .await?;
        world.arrange(&[&format!("ACL SETUSER salvage reset on >secret ~* +@all -{forbidden}")]).await?;
        let url = server.url().replace("redis://", "redis://salvage:secret@");
        let answered = crate::redis_world::queues(&url, &world.prefix)?.act(&requeue("1"), &terms()).await;
        let delayed: Option<f64> = world.command("ZSCORE @:slide-generation:delayed slide-1").await?;
        match answered {
            Ok(answer) => assert_eq!((answer, delayed.is_some()), (ScriptAnswer::Clear, true), "{forbidden}"),
            Err(failure) => {
                assert!(!failure.is_indeterminate(), "{forbidden}: {failure:?}");
                assert_eq!(delayed, None, "{forbidden}: {failure:?}");
            }
        }
        assert_eq!(delayed.is_some(), forbidden == "xadd", "{forbidden}");
    }
    Ok(())
}
