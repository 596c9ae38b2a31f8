//! Acts with real BullMQ on the other side: what its workers make of what was put back, and what its users do meanwhile.

use std::time::Duration;

use anyhow::Result;
use salvage::pass::Mode;
use salvage_tests::bullmq::{BullMq, Run};
use salvage_tests::example::{Deck, Jobs, SlideExportJob, SlideJob};
use salvage_tests::rival::{Moment, Rivalled, once_at};
use salvage_tests::stores::Stores;
use salvage_tests::system::{System, job, story};
use serde_json::{Value, json};

use crate::acting::{delayed, lose_generation, running, status, with_lost_generation};

const QUEUE: &str = "slide-generation";

/// Adds an entry for a row, as the application does.
async fn add(bullmq: &BullMq, queue: &str, entry_id: &str, row_id: &str, opts: Value) -> Result<()> {
    let mut opts = opts;
    opts["jobId"] = entry_id.into();
    bullmq.add(queue, "by-the-application", json!({ "jobId": row_id }), opts).await.map(drop)
}

/// Lets a worker fail a job of that entry id, long enough ago that nobody is about to write its row.
async fn leave_failed(system: &System, queue: &str, entry_id: &str, row_id: &str) -> Result<()> {
    let bullmq = system.bullmq().await?;
    add(&bullmq, queue, entry_id, row_id, json!({})).await?;
    bullmq.start_worker(queue, json!({ "behaviour": "fail", "message": "out of ink" })).await?;
    bullmq.wait_runs(1, json!({ "job": entry_id, "ended": true })).await?;
    // Ends its worker after its job is finished in Redis, too.
    bullmq.close().await?;
    let long_ago = "1700000000000";
    system.redis::<()>(&["HSET", &system.key(queue, entry_id), "finishedOn", long_ago]).await?;
    system.redis::<()>(&["ZADD", &system.key(queue, "failed"), "XX", long_ago, entry_id]).await
}

/// What a worker runs of that row, over all queues of the source, until it has run what was added last.
async fn runs_of(system: &System, row_id: &str) -> Result<Vec<Run>> {
    let bullmq = system.bullmq().await?;
    for queue in [QUEUE, "slide-export"] {
        bullmq.start_worker(queue, json!({})).await?;
    }
    bullmq.wait_runs(1, json!({ "jobId": row_id, "ended": true })).await?;
    // One worker a queue, one job at a time, oldest first: whatever would run twice has run before this one.
    for queue in [QUEUE, "slide-export"] {
        add(&bullmq, queue, "last", "last", json!({})).await?;
        bullmq.wait_runs(1, json!({ "queue": queue, "job": "last", "ended": true })).await?;
    }
    let runs = bullmq.runs(json!({ "jobId": row_id })).await?;
    bullmq.close().await?;
    Ok(runs)
}

/// A3.
#[tokio::test]
async fn a_requeue_over_a_retained_failed_entry_is_run_once_where_add_does_nothing() -> Result<()> {
    let system = with_lost_generation().await?;
    leave_failed(&system, QUEUE, "slide-s1", "s1").await?;
    let bullmq = system.bullmq().await?;
    add(&bullmq, QUEUE, "slide-s1", "s1", json!({})).await?;
    assert_eq!(bullmq.state(QUEUE, "slide-s1").await?, "failed", "add() is silent and does nothing");

    let report = system.pass().await?;
    assert_eq!(story(&report, "s1"), "absent requeue applied", "{report:#?}");
    assert_eq!(job(&report, "s1").sighting.residue, Some("failed"));
    assert_eq!(bullmq.state(QUEUE, "slide-s1").await?, "delayed");
    bullmq.close().await?;
    let runs = runs_of(&system, "s1").await?;
    assert_eq!(runs.len(), 1, "{runs:#?}");
    assert_eq!((runs[0].name.as_str(), runs[0].data["deckId"].as_str()), ("generate", Some("deck-of-s1")));
    assert_eq!(runs[0].attempts_made, 0, "it begins anew");
    Ok(())
}

/// A4.
#[tokio::test]
async fn a_requeue_over_a_hash_that_is_in_no_list_is_run_once_where_add_does_nothing() -> Result<()> {
    let system = with_lost_generation().await?;
    let bullmq = system.bullmq().await?;
    add(&bullmq, QUEUE, "slide-s1", "s1", json!({})).await?;
    system.redis::<()>(&["LREM", &system.key(QUEUE, "wait"), "0", "slide-s1"]).await?;
    add(&bullmq, QUEUE, "slide-s1", "s1", json!({})).await?;
    assert_eq!(bullmq.call("counts", json!({ "queue": QUEUE })).await?["waiting"], 0, "add() does nothing");
    bullmq.close().await?;

    let report = system.pass().await?;
    assert_eq!(story(&report, "s1"), "absent requeue applied", "{report:#?}");
    assert_eq!(job(&report, "s1").sighting.residue, Some("hash-only"));
    let runs = runs_of(&system, "s1").await?;
    assert_eq!((runs.len(), runs[0].name.as_str()), (1, "generate"), "{runs:#?}");
    Ok(())
}

/// A5.
#[tokio::test]
async fn an_enqueue_whose_reply_is_lost_is_rolled_back_found_by_the_next_pass_and_run_once() -> Result<()> {
    let system = with_lost_generation().await?;
    let before = SlideJob::read(system.db.pool(), "s1").await?;
    let report = system.run(&Rivalled::alone(&system.host).losing_act_replies(), Mode::Act).await?;
    assert_eq!(story(&report, "s1"), "absent requeue indeterminate", "{report:#?}");
    assert_eq!(SlideJob::read(system.db.pool(), "s1").await?, before);

    let next = system.pass().await?;
    assert_eq!(story(&next, "s1"), "scheduled", "{next:#?}");
    assert_eq!(SlideJob::read(system.db.pool(), "s1").await?, before);
    assert_eq!(runs_of(&system, "s1").await?.len(), 1);
    Ok(())
}

/// A7. Goal: a worker that takes the job as soon as it may finds its row QUEUED, and "as soon as" is told by Redis's
/// clock. Method: a worker waits in the queue all along; the host's clock is an hour ahead.
#[tokio::test]
async fn a_worker_that_takes_the_job_at_once_reads_queued_whatever_the_hosts_clock_says() -> Result<()> {
    let mut system = with_lost_generation().await?;
    let wait = Duration::from_secs(2);
    system.settings.start_delay = wait..=wait;
    let system = system;
    let worker = system.bullmq().await?;
    let read_row = "SELECT status::text FROM \"SlideJob\" WHERE id = $1";
    worker.start_worker(QUEUE, json!({ "database": system.db.url(), "readRow": read_row })).await?;
    let check_due = async || {
        let score: f64 = system.redis(&["ZSCORE", &system.key(QUEUE, "delayed"), "slide-s1"]).await?;
        let (seconds, micros): (f64, f64) = system.redis(&["TIME"]).await?;
        let left_ms = (score / 4096.0).floor() - (seconds * 1000.0 + micros / 1000.0).floor();
        assert!((0.0..=2_000.0).contains(&left_ms), "due in {left_ms} ms by Redis's clock");
        Ok(())
    };
    let host = Rivalled::new(&system.host, once_at(Moment::BeforeCommit, check_due));
    let report = system.run(&host.ahead_by(Duration::from_secs(3_600)), Mode::Act).await?;
    assert_eq!(story(&report, "s1"), "absent requeue applied", "{report:#?}");
    let runs = worker.wait_runs(1, json!({ "job": "slide-s1", "ended": true })).await?;
    assert_eq!((runs.len(), &runs[0].row), (1, &json!({ "status": "QUEUED" })));
    worker.close().await
}

/// A14.
#[tokio::test]
async fn a_paused_queue_is_refused_and_after_resume_nothing_is_lost() -> Result<()> {
    let system = with_lost_generation().await?;
    let bullmq = system.bullmq().await?;
    for id in ["w1", "w2", "w3"] {
        add(&bullmq, QUEUE, id, id, json!({})).await?;
    }
    bullmq.call("pause", json!({ "queue": QUEUE })).await?;
    let before = Stores::of(&system).await?.of_the_application();
    let report = system.pass().await?;
    assert_eq!(story(&report, "s1"), "absent requeue refused", "{report:#?}");
    let why = job(&report, "s1").outcome.as_ref().and_then(|outcome| outcome.why.clone());
    assert!(why.as_deref().is_some_and(|why| why.starts_with("paused")), "{why:?}");
    assert_eq!(Stores::of(&system).await?.of_the_application(), before);

    bullmq.call("resume", json!({ "queue": QUEUE })).await?;
    assert_eq!(story(&system.pass().await?, "s1"), "absent requeue applied");
    bullmq.start_worker(QUEUE, json!({})).await?;
    let runs = bullmq.wait_runs(4, json!({ "ended": true })).await?;
    let mut ids: Vec<&str> = runs.iter().map(|run| run.id.as_str()).collect();
    ids.sort_unstable();
    assert_eq!(ids, ["slide-s1", "w1", "w2", "w3"]);
    bullmq.close().await
}

/// A21: under the current rule, and under an older one, of which the script knows nothing.
#[tokio::test]
async fn an_entry_that_the_application_takes_out_and_puts_back_is_left_alone() -> Result<()> {
    for entry_id in ["slide-s1", "an-older-rule-s1"] {
        let system = with_lost_generation().await?;
        let bullmq = system.bullmq().await?;
        add(&bullmq, QUEUE, entry_id, "s1", json!({})).await?;
        bullmq.call("remove", json!({ "queue": QUEUE, "job": entry_id })).await?;
        let before = SlideJob::read(system.db.pool(), "s1").await?;
        let put_back = async || add(&bullmq, QUEUE, entry_id, "s1", json!({ "delay": 3_600_000 })).await;
        let rival = once_at(Moment::Settling, put_back);
        let report = system.run(&Rivalled::new(&system.host, rival), Mode::Act).await?;
        assert_eq!(story(&report, "s1"), "scheduled", "{entry_id} {report:#?}");
        assert_eq!(SlideJob::read(system.db.pool(), "s1").await?, before, "{entry_id}");
        assert_eq!(delayed(&system, QUEUE).await?, [entry_id], "nothing of ours is beside it");
        let entry = bullmq.call("job", json!({ "queue": QUEUE, "job": entry_id })).await?;
        assert_eq!((&entry["name"], &entry["delay"]), (&json!("by-the-application"), &json!(3_600_000)));
        bullmq.close().await?;
    }
    Ok(())
}

/// A21, so late that only the queue's own check is left.
#[tokio::test]
async fn an_entry_that_comes_back_after_the_second_look_is_not_overwritten() -> Result<()> {
    for moment in [Moment::AfterLook(2), Moment::BeforeHold, Moment::BeforeQueue] {
        let system = with_lost_generation().await?;
        let bullmq = system.bullmq().await?;
        let before = SlideJob::read(system.db.pool(), "s1").await?;
        let rival = once_at(moment, async || add(&bullmq, QUEUE, "slide-s1", "s1", json!({})).await);
        let report = system.run(&Rivalled::new(&system.host, rival), Mode::Act).await?;
        assert_eq!(story(&report, "s1"), "absent requeue superseded", "{moment:?} {report:#?}");
        assert_eq!(SlideJob::read(system.db.pool(), "s1").await?, before, "{moment:?}");
        assert_eq!(bullmq.state(QUEUE, "slide-s1").await?, "waiting", "{moment:?}");
        let entry = bullmq.call("job", json!({ "queue": QUEUE, "job": "slide-s1" })).await?;
        assert_eq!(entry["name"], "by-the-application", "{moment:?}");
        bullmq.close().await?;
    }
    Ok(())
}

/// A23.
#[tokio::test]
async fn a_job_that_an_admin_retries_after_our_look_is_not_failed() -> Result<()> {
    const EXPORTS: &str = "slide-export";
    for moment in [Moment::Settling, Moment::AfterLook(2), Moment::BeforeQueue] {
        let system = running().await?;
        Deck::ready("d1").exporting().insert(system.db.pool()).await?;
        SlideExportJob::processing("e1").stale().of("d1").insert(system.db.pool()).await?;
        leave_failed(&system, EXPORTS, "export-e1", "e1").await?;
        assert_eq!(story(&system.plan().await?, "e1"), "absent fail -", "it would be failed");
        let admin = system.bullmq().await?;
        let retry =
            async || admin.call("retry", json!({ "queue": EXPORTS, "job": "export-e1" })).await.map(drop);
        let report = system.run(&Rivalled::new(&system.host, once_at(moment, retry)), Mode::Act).await?;
        let told = story(&report, "e1");
        assert!(["scheduled", "absent fail superseded"].contains(&told.as_str()), "{moment:?} {report:#?}");
        assert_eq!(status::<SlideExportJob>(&system, "e1").await?, "PROCESSING", "{moment:?}");
        assert_eq!(Deck::read(system.db.pool(), "d1").await?.expect("the deck").export_status, "EXPORTING");
        assert_eq!(admin.state(EXPORTS, "export-e1").await?, "waiting", "{moment:?}");
        admin.close().await?;
    }
    Ok(())
}

/// Goal: A7 for many at once. Method: a worker empties the queue while the passes fill it.
#[tokio::test]
async fn a_worker_beside_the_pass_runs_each_recovered_job_once_and_finds_it_queued() -> Result<()> {
    let mut system = running().await?;
    let ids: Vec<String> = (0..20).map(|number| format!("s{number}")).collect();
    for id in &ids {
        lose_generation(&system, id).await?;
    }
    let wait = Duration::from_secs(2);
    system.settings.start_delay = wait..=wait;
    let worker = system.bullmq().await?;
    let read_row = "SELECT status::text FROM \"SlideJob\" WHERE id = $1";
    let how = json!({ "database": system.db.url(), "readRow": read_row, "concurrency": 4 });
    worker.start_worker(QUEUE, how).await?;
    let mut applied = 0;
    // In growing stages or at once: no pass makes a job run twice.
    while applied < ids.len() {
        let report = system.pass().await?;
        let now = report.sources.iter().map(|source| source.requeued).sum::<u64>();
        assert!(now > 0, "{report:#?}");
        applied += usize::try_from(now)?;
    }
    let runs = worker.wait_runs(ids.len(), json!({ "ended": true })).await?;
    let mut seen: Vec<&str> = runs.iter().filter_map(|run| run.data["jobId"].as_str()).collect();
    seen.sort_unstable();
    seen.dedup();
    assert_eq!((runs.len(), seen.len()), (ids.len(), ids.len()));
    assert!(runs.iter().all(|run| run.row == json!({ "status": "QUEUED" })), "{runs:#?}");
    worker.close().await
}
