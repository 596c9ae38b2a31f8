//! What real BullMQ of every supported version makes of a job that the host put back.

use std::collections::BTreeMap;

use anyhow::Result;
use salvage::ports::Queues;
use salvage_core::act::{Place, QueueRefusal, ScriptAnswer};
use salvage_core::sighting::Residue;
use salvage_core::snapshot::State;
use salvage_tests::bullmq::{BULLMQ_4, BULLMQ_5, BULLMQ_5_0, BULLMQ_5_40, BULLMQ_6, BULLMQ_ALL, BullMq};
use serde_json::{Value, json};

use crate::redis_world::{OTHER, QUEUE, World, fail, requeue, requeue_with};

impl World {
    async fn bullmq(&self, version: &str) -> Result<BullMq> {
        BullMq::open_version(version, &self.url, &self.prefix).await
    }

    async fn residue(&self, id: &str) -> Result<Residue> {
        let place = |queue: &str| Place { queue: queue.into(), entry_id: format!("slide-{id}") };
        Ok(self.queues.residues(&[vec![place(QUEUE), place(OTHER)]]).await?.remove(0))
    }
}

/// What `attemptsMade` is in a job's first run: BullMQ 4 counts a run when it begins, later versions when it has ended.
fn first_attempt(version: &str) -> u32 {
    u32::from(version == BULLMQ_4)
}

async fn add(bullmq: &BullMq, id: &str) -> Result<()> {
    let (data, opts) = (json!({ "jobId": id }), json!({ "jobId": format!("slide-{id}") }));
    bullmq.add(QUEUE, "generate", data, opts).await.map(drop)
}

/// Lets a worker end the job, so that its entry is retained.
async fn finish(bullmq: &BullMq, id: &str, behaviour: &str) -> Result<()> {
    add(bullmq, id).await?;
    let worker = json!({ "worker": behaviour, "behaviour": behaviour, "message": "out of ink" });
    bullmq.start_worker(QUEUE, worker).await?;
    bullmq.wait_runs(1, json!({ "jobId": id, "ended": true })).await?;
    // Waits for the worker's last job to be finished in Redis, too.
    bullmq.call("stopWorker", json!({ "worker": behaviour })).await.map(drop)
}

/// A job's name says what it left behind; beside it the residue's word, and what is done to make it so.
const RESIDUES: [(&str, &str, &[&str]); 11] = [
    ("none", "none", &[]),
    ("completed", "completed", &[]),
    ("failed", "failed", &[]),
    ("hash-only", "hash-only", &[]),
    // Some fields are deleted, as by a script that died or by hand.
    ("only-data", "hash-only", &["HDEL @:Q:slide-only-data name opts timestamp delay priority"]),
    ("no-data", "hash-only", &["HDEL @:Q:slide-no-data data"]),
    ("no-opts", "hash-only", &["HDEL @:Q:slide-no-opts opts name"]),
    ("broken", "hash-only", &["HSET @:Q:slide-broken data {\"jobId opts oops atm 99 stc 7 defa x"]),
    ("completed-partly", "completed", &["HDEL @:Q:slide-completed-partly name data returnvalue"]),
    ("failed-partly", "failed", &["HDEL @:Q:slide-failed-partly data opts timestamp"]),
    ("failed-without-hash", "failed", &["DEL @:Q:slide-failed-without-hash"]),
];

/// Leaves every residue in the queue.
async fn leave_residues(world: &World, bullmq: &BullMq) -> Result<()> {
    for (job, word, commands) in RESIDUES {
        match word {
            "completed" => finish(bullmq, job, "complete").await?,
            "failed" => finish(bullmq, job, "fail").await?,
            "hash-only" => {
                add(bullmq, job).await?;
                world.arrange(&[&format!("LREM @:slide-generation:wait 0 slide-{job}")]).await?;
            }
            _ => {}
        }
        for command in commands {
            world.arrange(&[&command.replace("@:Q:", "@:slide-generation:")]).await?;
        }
        let residue = world.residue(job).await?;
        assert_eq!(residue.word(), word, "{job}");
        if let Residue::Failed { reason, .. } = residue {
            let is_kept = job != "failed-without-hash";
            assert_eq!(reason.as_deref(), is_kept.then_some("out of ink"), "{job}");
        }
    }
    Ok(())
}

/// How often each job ran. Its first attempts are recorded, and every run completed.
async fn completed_runs(bullmq: &BullMq, version: &str) -> Result<BTreeMap<String, u32>> {
    let mut runs = BTreeMap::new();
    for run in bullmq.runs(json!({})).await? {
        assert_eq!((run.name.as_str(), run.attempts_made), ("generate", first_attempt(version)), "{version}");
        assert_eq!(run.outcome.as_deref(), Some("completed"), "{version}");
        *runs.entry(run.data["jobId"].as_str().unwrap_or_default().to_owned()).or_insert(0) += 1;
    }
    Ok(runs)
}

fn each_once<'j>(jobs: impl IntoIterator<Item = &'j str>) -> BTreeMap<String, u32> {
    jobs.into_iter().map(|job| (job.to_owned(), 1)).collect()
}

#[tokio::test]
async fn a_requeue_over_any_residue_runs_once() -> Result<()> {
    for version in BULLMQ_ALL {
        let world = World::fresh().await?;
        let before = world.bullmq(version).await?;
        leave_residues(&world, &before).await?;
        for (job, ..) in RESIDUES {
            // The negative twin: BullMQ's own add is silent and does nothing where there is a hash.
            if !["none", "failed-without-hash"].contains(&job) {
                add(&before, job).await?;
                let ids = world.reading().await?.ids;
                assert!(!ids.values().flatten().any(|id| *id == format!("slide-{job}")), "{version} {job}");
            }
            assert_eq!(world.act(&requeue(job)).await?, ScriptAnswer::Clear, "{version} {job}");
            assert_eq!(before.state(QUEUE, &format!("slide-{job}")).await?, "delayed", "{version} {job}");
            assert_eq!(world.residue(job).await?.finished_ms(), None, "{version} {job}");
        }
        before.close().await?;

        let after = world.bullmq(version).await?;
        after.start_worker(QUEUE, json!({})).await?;
        after.wait_runs(RESIDUES.len(), json!({ "ended": true })).await?;
        // One worker, one job at a time, oldest first: whatever would run again has run before this one.
        add(&after, "last").await?;
        after.wait_runs(1, json!({ "jobId": "last", "ended": true })).await?;
        let expected = each_once(RESIDUES.map(|(job, ..)| job).into_iter().chain(["last"]));
        assert_eq!(completed_runs(&after, version).await?, expected, "{version}");
        after.close().await?;
    }
    Ok(())
}

#[tokio::test]
async fn attempts_and_backoff_of_a_requeue_are_kept() -> Result<()> {
    for version in BULLMQ_ALL {
        let world = World::fresh().await?;
        let bullmq = world.bullmq(version).await?;
        let options = r#"{"attempts":3,"backoff":20,"removeOnFail":false}"#;
        assert_eq!(world.act(&requeue_with("1", options)).await?, ScriptAnswer::Clear);
        bullmq.start_worker(QUEUE, json!({ "behaviour": "fail" })).await?;
        let runs = bullmq.wait_runs(3, json!({ "ended": true })).await?;
        let attempts: Vec<u32> = runs.iter().map(|run| run.attempts_made).collect();
        let first = first_attempt(version);
        assert_eq!(attempts, [first, first + 1, first + 2], "{version}");
        bullmq.call("stopWorker", json!({ "worker": QUEUE })).await?;
        assert_eq!(bullmq.state(QUEUE, "slide-1").await?, "failed", "{version}");
        assert_eq!(bullmq.runs(json!({})).await?.len(), 3, "{version}");
        bullmq.close().await?;
    }
    Ok(())
}

#[tokio::test]
async fn a_requeue_stores_what_bullmq_would_have_stored() -> Result<()> {
    for version in BULLMQ_ALL {
        let world = World::fresh().await?;
        let bullmq = world.bullmq(version).await?;
        let options =
            json!({ "attempts": 3, "backoff": 250, "priority": 9, "keepLogs": 10, "removeOnComplete": true });
        assert_eq!(world.act(&requeue_with("1", &options.to_string())).await?, ScriptAnswer::Clear);
        let mut theirs = options.clone();
        theirs["jobId"] = "slide-2".into();
        theirs["delay"] = 50.into();
        bullmq.add(QUEUE, "generate", json!({ "jobId": "2" }), theirs).await?;

        let ours = stored(&world, "slide-1").await?;
        let theirs = stored(&world, "slide-2").await?;
        assert_eq!(ours, theirs, "{version}");
        let ours: f64 = world.command("ZSCORE @:slide-generation:delayed slide-1").await?;
        let theirs: f64 = world.command("ZSCORE @:slide-generation:delayed slide-2").await?;
        // Both are due within moments of each other, and in the order in which they were added.
        assert!(ours < theirs && theirs - ours < 4096.0 * 5_000.0, "{version}: {ours} and {theirs}");
        bullmq.close().await?;
    }
    Ok(())
}

/// An entry's hash, without what differs by nature.
async fn stored(world: &World, entry_id: &str) -> Result<BTreeMap<String, Value>> {
    let fields: BTreeMap<String, String> =
        world.command(&format!("HGETALL @:slide-generation:{entry_id}")).await?;
    let mut stored = BTreeMap::new();
    for (field, text) in fields {
        let mut value = serde_json::from_str(&text).unwrap_or(Value::String(text));
        match field.as_str() {
            "timestamp" => value = Value::Bool(value.as_i64().is_some_and(|ms| ms > 1_700_000_000_000)),
            "data" | "opts" => value["jobId"] = Value::Null,
            _ => {}
        }
        stored.insert(field, value);
    }
    Ok(stored)
}

#[tokio::test]
async fn a_sleeping_worker_is_woken_in_time() -> Result<()> {
    // From BullMQ 5 on an idle worker sleeps until the marker wakes it; a stale or missing one would cost 5 s or more.
    for version in [BULLMQ_5_0, BULLMQ_5_40, BULLMQ_5, BULLMQ_6] {
        let world = World::fresh().await?;
        let bullmq = world.bullmq(version).await?;
        bullmq.start_worker(QUEUE, json!({})).await?;
        // A job in half a minute: the worker sleeps towards that one.
        let later = json!({ "jobId": "later", "delay": 30_000 });
        bullmq.add(QUEUE, "generate", json!({ "jobId": "later" }), later).await?;
        assert_eq!(world.act(&requeue("1")).await?, ScriptAnswer::Clear);
        let runs = bullmq.wait_runs(1, json!({ "ended": true, "deadlineMs": 4_000 })).await?;
        assert_eq!(runs[0].id, "slide-1", "{version}");
        bullmq.close().await?;
    }
    Ok(())
}

#[tokio::test]
async fn a_priority_puts_a_requeue_among_the_prioritized() -> Result<()> {
    let world = World::fresh().await?;
    let bullmq = world.bullmq(BULLMQ_5).await?;
    assert_eq!(world.act(&requeue_with("1", r#"{"priority":9}"#)).await?, ScriptAnswer::Clear);
    bullmq.call("promote", json!({ "queue": QUEUE, "job": "slide-1" })).await?;
    assert_eq!(world.reading().await?.ids[&State::Prioritized], ["slide-1"]);
    bullmq.close().await
}

/// Brings one job into each of the six states, named after it: the paused one in [`OTHER`], the others in [`QUEUE`],
/// whose worker holds the active one.
async fn fill_states(world: &World, bullmq: &BullMq, version: &str) -> Result<()> {
    add(bullmq, "active").await?;
    bullmq.start_worker(QUEUE, json!({ "behaviour": "hold" })).await?;
    bullmq.wait_runs(1, json!({ "jobId": "active" })).await?;
    add(bullmq, "wait").await?;
    for (id, opts) in [
        ("delayed", json!({ "jobId": "slide-delayed", "delay": 60_000 })),
        ("prioritized", json!({ "jobId": "slide-prioritized", "priority": 3 })),
    ] {
        bullmq.add(QUEUE, "generate", json!({ "jobId": id }), opts).await?;
    }
    let child = json!({ "name": "generate", "queueName": "children", "data": { "jobId": "child" } });
    let (data, opts) = (json!({ "jobId": "waiting-children" }), json!({ "jobId": "slide-waiting-children" }));
    let parent =
        json!({ "name": "generate", "queueName": QUEUE, "data": data, "opts": opts, "children": [child] });
    bullmq.call("addFlow", json!({ "flow": parent })).await?;
    let opts = json!({ "jobId": "slide-paused" });
    bullmq.add(OTHER, "generate", json!({ "jobId": "paused" }), opts).await?;
    bullmq.call("pause", json!({ "queue": OTHER })).await?;
    if version == BULLMQ_6 {
        // It leaves the jobs of a paused queue in `wait`; what an older version paused is still there.
        world.arrange(&["RENAME @:slide-export:wait @:slide-export:paused"]).await?;
    }
    Ok(())
}

/// Lets all of them run, and what they wait for.
async fn let_run(bullmq: &BullMq) -> Result<()> {
    bullmq.call("promote", json!({ "queue": QUEUE, "job": "slide-delayed" })).await?;
    bullmq.call("resume", json!({ "queue": OTHER })).await?;
    bullmq.start_worker(OTHER, json!({})).await?;
    bullmq.start_worker("children", json!({})).await?;
    bullmq.call("release", json!({ "worker": QUEUE })).await.map(drop)
}

#[tokio::test]
async fn a_job_in_any_state_is_left_alone_and_runs_once() -> Result<()> {
    for version in BULLMQ_ALL {
        let world = World::fresh().await?;
        let bullmq = world.bullmq(version).await?;
        fill_states(&world, &bullmq, version).await?;
        for state in State::ALL {
            let queue = if state == State::Paused { OTHER } else { QUEUE };
            let expected = ScriptAnswer::Present { queue: queue.into(), state: state.key().into() };
            let before = world.digest().await?;
            for act in [requeue(state.key()), fail(state.key())] {
                assert_eq!(world.act(&act).await?, expected, "{version} {state}");
            }
            let mut after = world.digest().await?;
            // The worker renews its lock meanwhile.
            after.retain(|key, _| before.contains_key(key));
            assert_eq!(after, before, "{version} {state}");
        }
        let_run(&bullmq).await?;
        let jobs = State::ALL.map(State::key).into_iter().chain(["child"]);
        let expected = each_once(jobs);
        bullmq.wait_runs(expected.len(), json!({ "ended": true })).await?;
        for queue in [QUEUE, OTHER, "children"] {
            bullmq.call("stopWorker", json!({ "worker": queue })).await?;
        }
        let left = world.snapshot(&[QUEUE, OTHER]).await?;
        assert_eq!(left.ids_total(), 0, "{version}: nothing is left to run again");
        assert_eq!(completed_runs(&bullmq, version).await?, expected, "{version}");
        bullmq.close().await?;
    }
    Ok(())
}

#[tokio::test]
async fn a_paused_queue_refuses_and_loses_nothing_over_its_resume() -> Result<()> {
    for version in BULLMQ_ALL {
        let world = World::fresh().await?;
        let bullmq = world.bullmq(version).await?;
        let held = ["w1", "w2", "w3", "w4", "w5"];
        for job in held {
            add(&bullmq, job).await?;
        }
        let later = json!({ "jobId": "slide-later", "delay": 10 });
        bullmq.add(QUEUE, "generate", json!({ "jobId": "later" }), later).await?;
        bullmq.call("pause", json!({ "queue": QUEUE })).await?;
        assert!(world.reading().await?.is_paused, "{version}");
        // One with nothing, and one that an add would silently pass over.
        let orphans = ["1", "2"];
        world.arrange(&["HSET @:slide-generation:slide-2 data {} opts {}"]).await?;
        let before = world.digest().await?;
        let paused = ScriptAnswer::Refused(QueueRefusal::Paused { queue: QUEUE.into() });
        for orphan in orphans {
            assert_eq!(world.act(&requeue(orphan)).await?, paused, "{version}");
        }
        assert_eq!(world.digest().await?, before, "{version}");

        bullmq.call("resume", json!({ "queue": QUEUE })).await?;
        for orphan in orphans {
            assert_eq!(world.act(&requeue(orphan)).await?, ScriptAnswer::Clear, "{version}");
        }
        bullmq.start_worker(QUEUE, json!({})).await?;
        let expected = each_once(held.into_iter().chain(orphans).chain(["later"]));
        bullmq.wait_runs(expected.len(), json!({ "ended": true })).await?;
        bullmq.call("stopWorker", json!({ "worker": QUEUE })).await?;
        assert_eq!(world.reading().await?.entries().count(), 0, "{version}: nothing is left to run again");
        assert_eq!(completed_runs(&bullmq, version).await?, expected, "{version}");
        bullmq.close().await?;
    }
    Ok(())
}

#[tokio::test]
async fn a_finished_part_of_a_flow_is_not_replaced() -> Result<()> {
    let world = World::fresh().await?;
    let bullmq = world.bullmq(BULLMQ_5).await?;
    let child = json!({ "name": "generate", "queueName": QUEUE, "opts": { "jobId": "slide-child" } });
    let parent = json!({ "name": "generate", "queueName": QUEUE, "opts": { "jobId": "slide-parent" }, "children": [child] });
    bullmq.call("addFlow", json!({ "flow": parent })).await?;
    bullmq.start_worker(QUEUE, json!({})).await?;
    bullmq.wait_runs(2, json!({ "ended": true })).await?;
    bullmq.call("stopWorker", json!({ "worker": QUEUE })).await?;
    for job in ["child", "parent"] {
        assert_eq!(world.residue(job).await?.word(), "completed");
        let before = world.digest().await?;
        let flow = QueueRefusal::Flow { queue: QUEUE.into(), entry_id: format!("slide-{job}") };
        assert_eq!(world.act(&requeue(job)).await?, ScriptAnswer::Refused(flow));
        assert_eq!(world.digest().await?, before);
    }
    bullmq.close().await
}
