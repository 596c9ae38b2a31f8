//! Epochs: whether this Redis may have lost something, and whether it is the application's at all.

use std::time::Duration;

use anyhow::{Context, Result};
use salvage::command::accept::{self, Operator};
use salvage::pass::Mode;
use salvage_core::snapshot::State;
use salvage_tests::example::{Deck, Jobs, SlideJob};
use salvage_tests::rival::Moment;
use salvage_tests::services::{Redis, RedisOptions};
use salvage_tests::stores::{Stores, tables};
use salvage_tests::system::{System, job, source, story};
use serde_json::json;
use tokio::time::{Instant, sleep};

use crate::judging_world::{
    Mark, OTHER, QUEUE, QUEUES, Watched, against, at, entry, epochs, many_stale, running, running_on, sql,
};

/// A generating deck `d1` and stale QUEUED jobs of it.
async fn lost(system: &System, ids: &[&str]) -> Result<()> {
    if Deck::read(system.db.pool(), "d1").await?.is_none() {
        Deck::generating("d1").insert(system.db.pool()).await?;
    }
    for id in ids {
        SlideJob::queued(id).stale().of("d1").insert(system.db.pool()).await?;
    }
    Ok(())
}

/// A18. One job more is where it should be: so these are the right queues, and only the epoch holds the others back.
#[tokio::test]
async fn on_first_contact_three_hundred_orphans_wait_until_the_operator_accepts() -> Result<()> {
    let system = System::fresh().await?;
    system.used_queues(&QUEUES).await?;
    Deck::generating("d1").insert(system.db.pool()).await?;
    many_stale(&system, 300).await?;
    SlideJob::queued("there").stale().of("d1").insert(system.db.pool()).await?;
    entry(&system, OTHER, State::Waiting, "slide-there", "{}").await?;
    let before = Stores::of(&system).await?.of_the_application();
    for _ in 0..2 {
        let report = system.pass().await?;
        let counts = source(&report, "slides/generation");
        assert_eq!((counts.scheduled, counts.absent), (1, 300), "{counts:?}");
        assert_eq!((counts.before_epoch, counts.requeued, counts.failed), (300, 0, 0), "{counts:?}");
        assert!(
            report.jobs.iter().all(|job| job.outcome.as_ref().is_some_and(|it| it.kind == "before-epoch"))
        );
        assert_eq!(Stores::of(&system).await?.of_the_application(), before);
    }
    accept::queues(&system.host, &system.settings, &[], Operator::sure("operator")).await?;
    let mut requeued = 0;
    // In stages, if there are any; each pass does some of it.
    for _ in 0..10 {
        let report = system.pass().await?;
        let counts = source(&report, "slides/generation");
        assert_eq!((counts.before_epoch, counts.unknown), (0, 0), "{counts:?}");
        requeued += counts.requeued;
        if requeued == 300 {
            break;
        }
    }
    assert_eq!(requeued, 300);
    let delayed: u64 = system.redis(&["ZCARD", &system.key(QUEUE, "delayed")]).await?;
    assert_eq!(delayed, 300);
    let who: Vec<String> =
        sqlx::query_scalar("SELECT who FROM salvage.accepted").fetch_all(system.db.pool()).await?;
    assert_eq!(who, vec!["operator"; QUEUES.len()]);
    Ok(())
}

/// J8, first half: Redis restarted without its data, the application's `new Queue()` has brought `meta` back, and new
/// jobs of this very source come in.
#[tokio::test]
async fn a_redis_that_came_back_empty_leads_to_no_act() -> Result<()> {
    let mut redis = Redis::start()?;
    let system = running_on(&redis.url()).await?;
    Deck::generating("d1").insert(system.db.pool()).await?;
    many_stale(&system, 400).await?;
    let before = tables(system.db.pool(), &["public"]).await?;
    redis.restart_empty()?;
    let bullmq = system.bullmq().await?;
    for queue in QUEUES {
        bullmq.call("counts", json!({ "queue": queue })).await?;
        until_key(&redis, &system.key(queue, "meta")).await?;
    }
    bullmq.add(QUEUE, "generate", json!({ "jobId": "s400" }), json!({ "jobId": "slide-s400" })).await?;
    for round in 0..3 {
        let report = system.pass().await?;
        let counts = source(&report, "slides/generation");
        assert_eq!((counts.absent, counts.before_epoch), (399, 399), "round {round}: {counts:?}");
        assert_eq!((counts.requeued, counts.failed, counts.scheduled), (0, 0, 1));
        let why = job(&report, "s1").outcome.as_ref().and_then(|outcome| outcome.why.clone());
        assert!(why.unwrap_or_default().contains("salvage accept"));
    }
    assert_eq!(tables(system.db.pool(), &["public"]).await?, before);
    assert_eq!(redis.command(&["KEYS", &format!("{}:*:delayed", system.prefix)])?, "");
    bullmq.close().await
}

async fn until_key(redis: &Redis, key: &str) -> Result<()> {
    let deadline = Instant::now() + Duration::from_secs(20);
    while redis.command(&["EXISTS", key])? != "1" {
        anyhow::ensure!(Instant::now() < deadline, "{key} is not there within 20 s");
        sleep(Duration::from_millis(5)).await;
    }
    Ok(())
}

/// J18.
///
/// Method: the used queue is known since yesterday; the unused one exists since just now, and real BullMQ made it.
#[tokio::test]
async fn a_queue_that_never_had_a_job_neither_blocks_nor_hides_an_orphan() -> Result<()> {
    let system = System::fresh().await?;
    let bullmq = system.bullmq().await?;
    SlideJob::completed("s0").insert(system.db.pool()).await?;
    bullmq.add(QUEUE, "generate", json!({ "jobId": "s0" }), json!({ "jobId": "slide-s0" })).await?;
    let report = system.pass().await?;
    assert!(report.jobs.is_empty());
    system.age_epochs().await?;

    bullmq.call("counts", json!({ "queue": OTHER })).await?;
    let meta = system.key(OTHER, "meta");
    let deadline = Instant::now() + Duration::from_secs(20);
    while !system.redis::<bool>(&["EXISTS", &meta]).await? {
        anyhow::ensure!(Instant::now() < deadline, "the queue has no meta within 20 s");
        sleep(Duration::from_millis(5)).await;
    }
    assert!(!system.redis::<bool>(&["EXISTS", &system.key(OTHER, "id")]).await?);
    lost(&system, &["s1"]).await?;
    sql(&system, &format!("UPDATE salvage.queues SET epoch_began = now() WHERE queue = '{OTHER}'")).await?;
    let report = system.pass().await?;
    assert_eq!(story(&report, "s1"), "absent requeue applied", "{report:#?}");
    bullmq.close().await
}

/// J25.
///
/// Method: time passes by moving what PostgreSQL remembers: a row that was written an hour after the wipe has grown old.
#[tokio::test]
async fn after_a_wipe_under_a_running_host_old_orphans_wait_and_new_ones_are_recovered() -> Result<()> {
    let redis = Redis::start()?;
    let system = running_on(&redis.url()).await?;
    lost(&system, &["old"]).await?;
    sql(&system, "UPDATE \"SlideJob\" SET \"updatedAt\" = \"updatedAt\" - interval '3 hours'").await?;
    entry(&system, QUEUE, State::Waiting, "slide-old", "{\"jobId\":\"old\"}").await?;
    assert_eq!(story(&system.pass().await?, "old"), "scheduled");
    let run_id = run_id(&redis)?;

    redis.command(&["FLUSHALL"])?;
    system.used_queues(&QUEUES).await?;
    let counter = system.key(QUEUE, "id");
    system.redis::<()>(&["SET", &counter, "5000"]).await?;
    SlideJob::queued("new").stale().of("d1").insert(system.db.pool()).await?;
    entry(&system, QUEUE, State::Waiting, "slide-new", "{\"jobId\":\"new\"}").await?;
    let before = SlideJob::read(system.db.pool(), "old").await?;
    let report = system.pass().await?;
    assert_eq!(self::run_id(&redis)?, run_id, "the server never restarted");
    assert_eq!(story(&report, "old"), "absent requeue before-epoch", "{report:#?}");
    assert_eq!(story(&report, "new"), "scheduled");

    // Three hours later; meanwhile the new job's entry got lost by other means.
    system.redis::<()>(&["DEL", &system.key(QUEUE, "wait"), &system.key(QUEUE, "slide-new")]).await?;
    sql(&system, "UPDATE salvage.queues SET epoch_began = epoch_began - interval '3 hours'").await?;
    let report = system.pass().await?;
    assert_eq!(story(&report, "old"), "absent requeue before-epoch", "{report:#?}");
    assert_eq!(story(&report, "new"), "absent requeue applied");
    assert_eq!(SlideJob::read(system.db.pool(), "old").await?, before);

    accept::queues(
        &system.host,
        &system.settings,
        &[QUEUE.to_owned(), OTHER.to_owned()],
        Operator::sure("operator"),
    )
    .await?;
    assert_eq!(story(&system.pass().await?, "old"), "absent requeue applied");
    Ok(())
}

fn run_id(redis: &Redis) -> Result<String> {
    let info = redis.command(&["INFO", "server"])?;
    let line = info.lines().find_map(|line| line.trim().strip_prefix("run_id:")).context("a run id")?;
    Ok(line.to_owned())
}

/// A wipe between the two looks of one pass is noticed as well: the second look alone proves nothing. It is told as what it
/// is, not as a change of what the job had left behind.
#[tokio::test]
async fn a_wipe_between_the_two_looks_leads_to_no_act() -> Result<()> {
    let redis = Redis::start()?;
    let system = running_on(&redis.url()).await?;
    lost(&system, &["s1"]).await?;
    system.redis::<()>(&["HSET", &system.key(QUEUE, "slide-s1"), "failedReason", "out of ink"]).await?;
    system.redis::<()>(&["ZADD", &system.key(QUEUE, "failed"), "1000", "slide-s1"]).await?;
    let before = SlideJob::read(system.db.pool(), "s1").await?;
    let rival = at(Moment::Settling, || {
        Box::pin(async {
            redis.command(&["FLUSHALL"]).expect("wiping Redis");
            system.used_queues(&QUEUES).await.expect("the application goes on");
        })
    });
    let outside = against(&system.host, rival);
    let report = system.run(&outside, Mode::Act).await?;
    assert_eq!(story(&report, "s1"), "absent requeue before-epoch", "{report:#?}");
    assert_eq!(SlideJob::read(system.db.pool(), "s1").await?, before);
    Ok(())
}

/// J26.
#[tokio::test]
async fn a_restart_with_persistence_goes_on_with_the_epoch() -> Result<()> {
    let mut redis = Redis::start_with(RedisOptions::default().durable())?;
    let system = running_on(&redis.url()).await?;
    lost(&system, &["s1"]).await?;
    let (began, run) = (epochs(&system).await?, run_id(&redis)?);
    redis.restart_with_data()?;
    assert_ne!(run_id(&redis)?, run);
    let report = system.pass().await?;
    assert_eq!(story(&report, "s1"), "absent requeue applied", "{report:#?}");
    assert_eq!(epochs(&system).await?, began);

    // The negative twin: without its data.
    lost(&system, &["s2"]).await?;
    redis.restart_empty()?;
    for queue in QUEUES {
        redis.command(&["SET", &system.key(queue, "id"), "200"])?;
        redis.command(&["HSET", &system.key(queue, "meta"), "version", "bullmq:5.81.5"])?;
    }
    let report = system.pass().await?;
    assert_eq!(story(&report, "s2"), "absent requeue before-epoch", "{report:#?}");
    let after = epochs(&system).await?;
    assert!(QUEUES.iter().all(|&queue| after[queue] > began[queue]), "{after:?}");
    Ok(())
}

/// A host that is restarted between two passes needs nobody: what it knows is in PostgreSQL.
#[tokio::test]
async fn a_restarted_host_goes_on_with_the_epoch() -> Result<()> {
    let system = running().await?;
    let began = epochs(&system).await?;
    lost(&system, &["s1"]).await?;
    // Another process, which has never seen these queues.
    let output = system.salvage(&["once", "--json"])?.output()?;
    let report: serde_json::Value = serde_json::from_slice(&output.stdout)
        .with_context(|| String::from_utf8_lossy(&output.stderr).into_owned())?;
    assert_eq!(report["jobs"][0]["outcome"]["kind"], "applied", "{report:#}");
    assert_eq!(epochs(&system).await?, began);
    lost(&system, &["s2"]).await?;
    assert_eq!(story(&system.pass().await?, "s2"), "absent requeue applied");
    assert_eq!(epochs(&system).await?, began);
    Ok(())
}

/// The nonce goes to PostgreSQL first and then to Redis. Whatever becomes of the second write, and however often, no
/// epoch ends by it; and while it is not certain, no absence is believed.
#[tokio::test]
async fn a_nonce_that_did_not_arrive_or_arrived_untold_ends_no_epoch() -> Result<()> {
    let system = running().await?;
    let began = epochs(&system).await?;
    lost(&system, &["s1"]).await?;
    let before = Stores::of(&system).await?.of_the_application();
    let watched = Watched::new(&system.host);
    for fate in [Mark::NotDone, Mark::NotDone, Mark::Done, Mark::Done, Mark::NotDone] {
        watched.queues.failing_marks.set(Some(fate));
        let report = system.run(&watched, Mode::Act).await?;
        assert_eq!(report.jobs.len(), 1);
        assert_eq!(job(&report, "s1").sighting.kind, "unknown", "{fate:?}: {report:#?}");
        assert_eq!(Stores::of(&system).await?.of_the_application(), before, "{fate:?}");
        assert_eq!(epochs(&system).await?, began, "{fate:?}");
    }
    let report = system.pass().await?;
    assert_eq!(story(&report, "s1"), "absent requeue applied", "{report:#?}");
    assert_eq!(epochs(&system).await?, began);
    Ok(())
}

/// A dump from before the last pass holds the nonce of an earlier one.
#[tokio::test]
async fn a_nonce_of_an_earlier_pass_ends_the_epoch() -> Result<()> {
    let system = running().await?;
    let began = epochs(&system).await?;
    lost(&system, &["s1"]).await?;
    let host_key = system.key(QUEUE, "salvage:host");
    let old: String = system.redis(&["HGET", &host_key, "nonce"]).await?;
    let report = system.pass().await?;
    assert_eq!(story(&report, "s1"), "absent requeue applied", "{report:#?}");
    system.pass().await?;
    lost(&system, &["s2"]).await?;
    system.redis::<()>(&["HSET", &host_key, "nonce", &old]).await?;
    let report = system.pass().await?;
    assert_eq!(story(&report, "s2"), "absent requeue before-epoch", "{report:#?}");
    let after = epochs(&system).await?;
    assert!(after[QUEUE] > began[QUEUE]);
    assert_eq!(after[OTHER], began[OTHER], "the other queue's own nonce was there");
    Ok(())
}

/// J28, and its negative twins: one entry that names an existing row of the source, of whatever status, in whatever way,
/// says that these are its queues.
#[tokio::test]
async fn another_applications_redis_leads_to_no_act_until_one_job_of_the_source_is_seen() -> Result<()> {
    let system = System::fresh().await?;
    for queue in QUEUES {
        system.redis::<()>(&["HSET", &system.key(queue, "meta"), "version", "bullmq:5.81.5"]).await?;
        system.redis::<()>(&["SET", &system.key(queue, "id"), "5000"]).await?;
        for (state, id) in
            [(State::Waiting, "slide-x1"), (State::Delayed, "export-x2"), (State::Active, "4711")]
        {
            entry(&system, queue, state, id, "{\"jobId\":\"x9\"}").await?;
        }
        finished(&system, queue, "completed", "slide-x3", "{\"jobId\":\"x3\"}").await?;
        finished(&system, queue, "failed", "4712", "{\"jobId\":\"x4\"}").await?;
    }
    system.pass().await?;
    system.age_epochs().await?;
    SlideJob::completed("s0").insert(system.db.pool()).await?;
    lost(&system, &["s1"]).await?;
    let before = Stores::of(&system).await?.of_the_application();
    for _ in 0..3 {
        let report = system.pass().await?;
        assert_eq!(story(&report, "s1"), "absent requeue before-epoch", "{report:#?}");
        let why =
            job(&report, "s1").outcome.as_ref().and_then(|outcome| outcome.why.clone()).unwrap_or_default();
        assert!(why.contains("no job of this source was ever seen"), "{why}");
        assert_eq!(Stores::of(&system).await?.of_the_application(), before);
    }

    let by_payload = "{\"jobId\":\"s0\"}";
    for (state, id, data) in [
        (None, "slide-s0", "{}"),
        (None, "4713", by_payload),
        (Some(State::WaitingChildren), "slide-s0", "{\"jobId\":\"another\"}"),
        (Some(State::Prioritized), "4713", by_payload),
    ] {
        match state {
            Some(state) => entry(&system, OTHER, state, id, data).await?,
            None => finished(&system, OTHER, "failed", id, data).await?,
        }
        let report = system.pass().await?;
        assert_eq!(story(&report, "s1"), "absent requeue applied", "{id} in {state:?}: {report:#?}");

        // As before: the entry is gone, so is what it proved, and the job is lost anew.
        let set = state.map_or("failed", State::key);
        system.redis::<()>(&["ZREM", &system.key(OTHER, set), id]).await?;
        system.redis::<()>(&["ZREM", &system.key(QUEUE, "delayed"), "slide-s1"]).await?;
        system.redis::<()>(&["DEL", &system.key(OTHER, id), &system.key(QUEUE, "slide-s1")]).await?;
        sql(&system, "DELETE FROM salvage.corroborations; DELETE FROM salvage.intents; DELETE FROM \"SlideJob\" WHERE id = 's1'").await?;
        lost(&system, &["s1"]).await?;
        let report = system.pass().await?;
        assert_eq!(story(&report, "s1"), "absent requeue before-epoch", "{report:#?}");
    }
    Ok(())
}

async fn finished(system: &System, queue: &str, set: &str, id: &str, data: &str) -> Result<()> {
    system.redis::<()>(&["HSET", &system.key(queue, id), "name", "generate", "data", data]).await?;
    system.redis::<()>(&["ZADD", &system.key(queue, set), "1700000000000", id]).await
}

/// What was seen once in an epoch counts for the whole of it.
#[tokio::test]
async fn a_source_seen_once_stays_corroborated_within_its_epoch() -> Result<()> {
    let system = System::fresh().await?;
    system.used_queues(&QUEUES).await?;
    lost(&system, &["s0"]).await?;
    entry(&system, OTHER, State::Waiting, "slide-s0", "{}").await?;
    system.pass().await?;
    system.age_epochs().await?;
    system.redis::<()>(&["DEL", &system.key(OTHER, "wait"), &system.key(OTHER, "slide-s0")]).await?;
    let report = system.pass().await?;
    assert_eq!(story(&report, "s0"), "absent requeue applied", "{report:#?}");
    Ok(())
}
