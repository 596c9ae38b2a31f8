//! The scan: entries that follow no current rule, matched by their payload, in queues that hold all kinds of things.

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::rc::Rc;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use salvage::command::accept::{self, Operator};
use salvage::pass::Mode;
use salvage::ports::{Answer, Handlers, Ledger, LoadedDomain, Question};
use salvage_core::decision::Decision;
use salvage_core::manifest::{HandlerManifest, IdTemplate, JobType, QueueRule, Source, TableMapping};
use salvage_core::sighting::Residue;
use salvage_core::snapshot::State;
use salvage_core::source::{SourceName, Standing};
use salvage_tests::example::{
    Deck, Jobs, NarrationJob, SlideExportJob, SlideJob, VideoExportJob, VideoJob, uuid,
};
use salvage_tests::rival::{Moment, Rival, Rivalled, once_at};
use salvage_tests::services::Redis;
use salvage_tests::stores::Stores;
use salvage_tests::system::{System, job, source, story};
use serde_json::json;
use tokio::time::{Instant, sleep};

use crate::judging_world::{
    Call, OTHER, Overheard, QUEUE, QUEUES, Watched, against, entry, listed, many_stale, running, running_on,
};

/// A generating deck `d1` and a stale QUEUED job `s1` of it.
async fn one_job(system: &System) -> Result<()> {
    Deck::generating("d1").insert(system.db.pool()).await?;
    SlideJob::queued("s1").stale().of("d1").insert(system.db.pool()).await
}

/// What the ledger holds as evidence of a job's last story.
async fn evidence(system: &System, id: &str) -> Result<serde_json::Value> {
    let name = SourceName { domain: "slides".into(), source: "generation".into() };
    let mut story = system.host.postgres.story(&name, id).await?;
    Ok(story.pop().context("a story of the job")?.evidence)
}

/// J2.
#[tokio::test]
async fn an_entry_under_an_old_id_is_found_by_its_payload() -> Result<()> {
    let system = running().await?;
    one_job(&system).await?;
    let bullmq = system.bullmq().await?;
    let id = bullmq.add(QUEUE, "generate", json!({ "jobId": "s1" }), json!({ "priority": 3 })).await?;
    assert_eq!(bullmq.state(QUEUE, &id).await?, "prioritized");
    let before = Stores::of(&system).await?.of_the_application();
    let report = system.pass().await?;
    assert_eq!(source(&report, "slides/generation").scheduled, 1, "{report:#?}");
    assert!(report.pass.scan_ran && report.jobs.is_empty());
    assert_eq!(Stores::of(&system).await?.of_the_application(), before);
    bullmq.close().await
}

/// However slowly payloads are read: what PostgreSQL is asked meanwhile is asked to the end. A transaction that stands half
/// done until then would be ended for idling, and the pass with it.
#[tokio::test]
async fn what_is_asked_while_payloads_are_read_comes_to_its_end() -> Result<()> {
    let system = running().await?;
    let pool = system.db.pool();
    SlideJob::queued("s1").stale().insert(pool).await?;
    SlideExportJob::queued("e1").stale().insert(pool).await?;
    VideoJob::queued("v1").stale().insert(pool).await?;
    VideoExportJob::queued("1").stale().insert(pool).await?;
    NarrationJob::queued(uuid(1)).stale().insert(pool).await?;
    // Of each queue there is one question, about the row of one entry.
    let other = uuid(2);
    for (queue, id) in QUEUES.into_iter().zip(["slide-x", "export-x", "video-x", "export-2", &other]) {
        entry(&system, queue, State::Waiting, id, "{}").await?;
    }
    let answered = Rc::new(Cell::new(0));
    let began = Instant::now();
    let slowly = async || {
        while answered.get() < 4 {
            ensure!(began.elapsed() < Duration::from_secs(30), "{} of 4 questions answered", answered.get());
            sleep(Duration::from_millis(1)).await;
        }
        Ok(())
    };
    let rival = once_at(Moment::BeforePayloads(1), slowly);
    let host = Rivalled::new(&system.host, rival).with_answers_counted(Rc::clone(&answered));
    let report = system.run(&host, Mode::DryRun).await?;
    assert_eq!((answered.get(), report.jobs.len()), (5, 5), "{report:#?}");
    Ok(())
}

/// J3.
#[tokio::test]
async fn an_entry_without_payload_leaves_its_queue_unknown_until_it_is_accepted() -> Result<()> {
    let system = running().await?;
    one_job(&system).await?;
    let bullmq = system.bullmq().await?;
    let id = bullmq.add(QUEUE, "generate", json!({ "jobId": "other" }), json!({ "priority": 3 })).await?;
    system.redis::<()>(&["DEL", &system.key(QUEUE, &id)]).await?;
    let before = Stores::of(&system).await?.of_the_application();
    let report = system.pass().await?;
    assert_eq!(story(&report, "s1"), "unknown none -", "{report:#?}");
    let why = job(&report, "s1").sighting.why.clone().unwrap_or_default();
    for part in [format!("entry {id:?}"), QUEUE.to_owned(), format!("salvage accept --entry {QUEUE} {id}")] {
        assert!(why.contains(&part), "{part} in {why}");
    }
    assert_eq!(Stores::of(&system).await?.of_the_application(), before);

    accept::entry(&system.host, QUEUE, &id, Operator::sure("operator")).await?;
    let report = system.pass().await?;
    assert_eq!(story(&report, "s1"), "absent requeue applied", "{report:#?}");
    bullmq.close().await
}

/// J3, for a payload that is no JSON; and the next such entry is named in its turn.
#[tokio::test]
async fn an_entry_whose_payload_is_no_json_is_as_unreadable_and_each_is_accepted_alone() -> Result<()> {
    let system = running().await?;
    one_job(&system).await?;
    entry(&system, QUEUE, State::Waiting, "41", "not json").await?;
    entry(&system, OTHER, State::Active, "42", "{\"jobId\":").await?;
    for (queue, id) in [(OTHER, "42"), (QUEUE, "41")] {
        let report = system.pass().await?;
        assert_eq!(story(&report, "s1"), "unknown none -", "{report:#?}");
        accept::entry(&system.host, queue, id, Operator::sure("operator")).await?;
    }
    let report = system.pass().await?;
    assert_eq!(story(&report, "s1"), "absent requeue applied", "{report:#?}");
    Ok(())
}

/// J12.
///
/// The handler is told, in its component as well: of a job that cannot be rebuilt, its reason speaks of the queue.
#[tokio::test]
async fn a_completed_entry_is_residue_of_which_the_handler_is_told() -> Result<()> {
    let system = running().await?;
    one_job(&system).await?;
    SlideJob::processing("s2").stale().of("no deck").insert(system.db.pool()).await?;
    let bullmq = system.bullmq().await?;
    for id in ["s1", "s2"] {
        let opts = json!({ "jobId": format!("slide-{id}") });
        bullmq.add(QUEUE, "generate", json!({ "jobId": id }), opts).await?;
    }
    bullmq.start_worker(QUEUE, json!({})).await?;
    bullmq.wait_runs(2, json!({ "ended": true })).await?;
    until_state(&bullmq, "slide-s2", "completed").await?;
    until_state(&bullmq, "slide-s1", "completed").await?;
    bullmq.call("stopWorker", json!({ "worker": QUEUE })).await?;

    let report = system.pass().await?;
    assert_eq!(story(&report, "s1"), "absent hold -", "it finished just now: {report:#?}");
    assert_eq!(job(&report, "s1").sighting.residue, Some("completed"));

    let long_ago = 1_700_000_000_000_u64;
    let completed = system.key(QUEUE, "completed");
    for id in ["slide-s1", "slide-s2"] {
        system.redis::<()>(&["ZADD", &completed, &long_ago.to_string(), id]).await?;
    }
    let handlers = Overheard { inner: &system.host.handlers, told: RefCell::default() };
    let report = system.run(&Watched::with(&system.host, &handlers), Mode::Act).await?;
    let told = handlers.told.into_inner();
    let residue = Residue::Completed { finished_ms: long_ago };
    assert_eq!(told, [("s1".to_owned(), residue.clone()), ("s2".to_owned(), residue)]);
    assert_eq!(story(&report, "s1"), "absent requeue applied", "{report:#?}");
    assert_eq!(story(&report, "s2"), "absent fail applied");
    let error = SlideJob::read(system.db.pool(), "s2").await?.and_then(|row| row.error).unwrap_or_default();
    assert!(error.contains("the queue shows the job as completed"), "{error}");
    let name = SourceName { domain: "slides".into(), source: "generation".into() };
    let ledger = system.host.postgres.story(&name, "s1").await?;
    assert!(ledger.iter().all(|line| line.sighting_why.as_deref() == Some("completed")), "{ledger:#?}");
    bullmq.close().await
}

async fn until_state(bullmq: &salvage_tests::bullmq::BullMq, id: &str, state: &str) -> Result<()> {
    let deadline = Instant::now() + Duration::from_secs(20);
    while bullmq.state(QUEUE, id).await? != state {
        ensure!(Instant::now() < deadline, "{id} is not {state} within 20 s");
        sleep(Duration::from_millis(5)).await;
    }
    Ok(())
}

/// J19.
#[tokio::test]
async fn schedulers_flows_and_pings_are_foreign_and_hold_no_orphan_back() -> Result<()> {
    let system = running().await?;
    one_job(&system).await?;
    let bullmq = system.bullmq().await?;
    let template = json!({ "name": "tick", "data": {} });
    let scheduler = json!({ "queue": QUEUE, "scheduler": "nightly", "repeat": { "every": 3_600_000 }, "template": template });
    let tick = bullmq.call("upsertScheduler", scheduler).await?;
    let child = json!({ "name": "part", "queueName": OTHER, "data": { "page": 1 } });
    let flow = json!({ "name": "whole", "queueName": QUEUE, "data": { "pages": 1 }, "children": [child] });
    let parent = bullmq.call("addFlow", json!({ "flow": flow })).await?;
    bullmq.add(QUEUE, "ping", json!("ping"), json!({})).await?;
    let tick = tick.as_str().context("the id of the scheduler's entry")?;
    assert!(tick.starts_with("repeat:"), "{tick}");
    assert_eq!(bullmq.state(QUEUE, parent["id"].as_str().unwrap_or_default()).await?, "waiting-children");

    let before = bullmq.call("counts", json!({ "queue": QUEUE })).await?;
    let report = system.pass().await?;
    assert_eq!(story(&report, "s1"), "absent requeue applied", "{report:#?}");
    let scan = evidence(&system, "s1").await?["scan"].clone();
    assert_eq!(scan, json!({ "read": 4, "departed": 0, "foreign": 4, "unattributed": 0, "unreadable": 0 }));
    let after = bullmq.call("counts", json!({ "queue": QUEUE })).await?;
    assert_eq!(after["waiting-children"], before["waiting-children"]);
    assert_eq!(after["waiting"], before["waiting"]);
    bullmq.close().await
}

/// J20.
///
/// Method: while real workers run through jobs of 40 ms that are removed on completion, each scan waits until what its
/// snapshot saw as active is gone. So ids without a hash are in every scan, and more jobs come all the time.
#[tokio::test]
async fn entries_that_vanish_between_snapshot_and_payload_hold_no_orphan_back() -> Result<()> {
    let system = running().await?;
    Deck::generating("d1").insert(system.db.pool()).await?;
    many_stale(&system, 20).await?;
    let bullmq = system.bullmq().await?;
    bullmq.start_worker(QUEUE, json!({ "delayMs": 40, "concurrency": 60, "record": false })).await?;
    let job =
        json!({ "name": "generate", "data": { "jobId": "long gone" }, "opts": { "removeOnComplete": true } });
    let batch = json!({ "queue": QUEUE, "jobs": vec![job; 60] });
    let (active, waiting) = (system.key(QUEUE, "active"), system.key(QUEUE, "wait"));
    let rival: Rival<'_> = Box::new(|moment| {
        let (system, active) = (&system, &active);
        Box::pin(async move {
            match moment {
                // Else there might be nothing to vanish.
                Moment::BeforeFirstLook => busy(system, active).await.expect("the worker takes jobs"),
                Moment::AfterLook(_) => gone(system, active).await.expect("the worker ends what it took"),
                _ => {}
            }
        })
    });
    let (host, enough) = (against(&system.host, rival), Cell::new(false));
    let churn = async {
        while !enough.get() {
            let left: u64 = system.redis(&["LLEN", &waiting]).await?;
            if left < 60 {
                bullmq.call("addMany", batch.clone()).await?;
            }
            sleep(Duration::from_millis(5)).await;
        }
        Result::<()>::Ok(())
    };
    let pass = async {
        let report = system.run(&host, Mode::Act).await;
        enough.set(true);
        report
    };
    let (report, churned) = tokio::join!(pass, churn);
    churned?;
    let report = report?;
    let counts = source(&report, "slides/generation");
    assert_eq!((counts.absent, counts.unknown, counts.requeued), (20, 0, 20), "{report:#?}");
    let scan = evidence(&system, "s1").await?["scan"].clone();
    assert!(scan["departed"].as_u64() > Some(0), "{scan}");
    assert_eq!(scan["unreadable"], 0, "{scan}");
    bullmq.kill().await
}

/// What is gone from a Redis that was wiped, or whose place a replica has taken, has not departed.
#[tokio::test]
async fn no_entry_departs_by_the_word_of_a_wiped_redis_or_a_replica() -> Result<()> {
    for (command, told) in [
        (&["FLUSHALL"][..], "neither `id` nor `meta` exists"),
        (&["REPLICAOF", "127.0.0.1", "1"][..], "not master"),
    ] {
        let redis = Redis::start()?;
        let system = running_on(&redis.url()).await?;
        one_job(&system).await?;
        listed(&system, QUEUE, State::Waiting, "42").await?;
        let spoil = &redis;
        let rival: Rival<'_> = Box::new(move |moment| {
            Box::pin(async move {
                if moment == Moment::AfterLook(1) {
                    spoil.command(command).expect("a command");
                }
            })
        });
        let report = system.run(&against(&system.host, rival), Mode::DryRun).await?;
        let sighting = &job(&report, "s1").sighting;
        assert!(sighting.why.as_deref().unwrap_or_default().contains(told), "{command:?}: {report:#?}");
        assert_eq!(story(&report, "s1"), "unknown none -", "{command:?}");
    }
    Ok(())
}

/// Waits until entries are active.
async fn busy(system: &System, active: &str) -> Result<()> {
    let deadline = Instant::now() + Duration::from_secs(20);
    while system.redis::<u64>(&["LLEN", active]).await? < 20 {
        ensure!(Instant::now() < deadline, "the worker takes no jobs within 20 s");
        sleep(Duration::from_millis(2)).await;
    }
    Ok(())
}

/// Waits until none of what is active now has its hash any more.
async fn gone(system: &System, active: &str) -> Result<()> {
    let ids: Vec<String> = system.redis(&["LRANGE", active, "0", "-1"]).await?;
    let deadline = Instant::now() + Duration::from_secs(20);
    for id in ids {
        while system.redis::<bool>(&["EXISTS", &system.key(QUEUE, &id)]).await? {
            ensure!(Instant::now() < deadline, "entry {id} is there after 20 s");
            sleep(Duration::from_millis(2)).await;
        }
    }
    Ok(())
}

/// J22.
#[tokio::test]
async fn an_old_id_that_looks_like_the_current_rule_does_not_hide_its_payload() -> Result<()> {
    let system = running().await?;
    one_job(&system).await?;
    // Named after the deck. A finished job of that id is no live row: its entry is looked into as well.
    SlideJob::completed("d2").insert(system.db.pool()).await?;
    SlideJob::queued("s2").stale().of("d1").insert(system.db.pool()).await?;
    entry(&system, QUEUE, State::Waiting, "slide-d1", "{\"jobId\":\"s1\"}").await?;
    entry(&system, OTHER, State::Delayed, "slide-d2", "{\"jobId\":\"s2\"}").await?;
    let report = system.pass().await?;
    assert_eq!(source(&report, "slides/generation").scheduled, 2, "{report:#?}");
    assert!(report.pass.scan_ran);
    Ok(())
}

/// J23.
#[tokio::test]
async fn numbers_and_uuids_in_capitals_name_their_rows() -> Result<()> {
    let system = running().await?;
    let pool = system.db.pool();
    for id in [5, 6, 7] {
        VideoExportJob::queued(id).stale().insert(pool).await?;
    }
    let uuid_in_capitals = "6F9619FF-8B86-D011-B42D-00CF4FC964FF";
    let other_in_capitals = "7F9619FF-8B86-D011-B42D-00CF4FC964FF";
    for id in [uuid_in_capitals, other_in_capitals] {
        NarrationJob::queued(id.to_lowercase()).stale().insert(pool).await?;
    }
    entry(&system, "video-export", State::Waiting, "old-1", "{\"jobId\":5}").await?;
    entry(&system, "video-export", State::Waiting, "old-2", "{\"jobId\":\"6\"}").await?;
    entry(&system, "narration", State::Waiting, "old-3", &format!("{{\"jobId\":\"{uuid_in_capitals}\"}}"))
        .await?;
    listed(&system, "narration", State::Waiting, other_in_capitals).await?;
    let report = system.plan().await?;
    assert_eq!(source(&report, "video-composition/narration").scheduled, 2, "{report:#?}");
    let exports = source(&report, "exports/video-export");
    assert_eq!((exports.scheduled, exports.absent), (2, 1), "nobody has 7: {report:#?}");
    Ok(())
}

/// Two domains over two tables of the example, whose jobs share one queue under their bare ids.
struct Bare;

impl Handlers for Bare {
    fn domains(&self) -> Vec<LoadedDomain> {
        [("slides", "SlideJob", "type", "GENERATION"), ("exports", "VideoExportJob", "format", "MP4")]
            .into_iter()
            .map(|(domain, table, kind, job_type)| LoadedDomain {
                manifest: bare(domain, table, kind, job_type),
                standing: Standing::Active,
                digest: "none".to_owned(),
                database_role: None,
                capture: salvage_core::capture::CapturePolicy::default(),
            })
            .collect()
    }

    async fn decide(&self, _: &Question<'_>) -> Answer {
        Answer { decision: Ok(Decision::Fail("It cannot be rebuilt.".to_owned())), usage: None }
    }
}

fn bare(domain: &str, table: &str, kind: &str, job_type: &str) -> HandlerManifest {
    let table = TableMapping {
        table: table.to_owned(),
        id: "id".to_owned(),
        status: "status".to_owned(),
        updated_at: "updatedAt".to_owned(),
        job_type: Some(kind.to_owned()),
        progress: None,
        error: None,
        extra_columns: vec![],
        queued: "QUEUED".to_owned(),
        processing: "PROCESSING".to_owned(),
        failed: "FAILED".to_owned(),
    };
    let job_type = JobType {
        name: job_type.to_owned(),
        stale_after_queued: None,
        stale_after_processing: None,
        restart_safe: true,
        on_fail: None,
        on_requeue: None,
    };
    let rule = IdTemplate::parse("{id}").expect("a rule with one {id}");
    let queue = QueueRule::new(QUEUE, rule, "jobId");
    let name = "bare".to_owned();
    let source = Source { name, table, job_types: vec![job_type], queues: vec![queue], reads: vec![] };
    HandlerManifest { domain: domain.to_owned(), description: String::new(), sources: vec![source] }
}

/// J24. By id, and by payload.
#[tokio::test]
async fn an_entry_that_fits_two_sources_is_present_for_both() -> Result<()> {
    let system = running().await?;
    for id in ["5", "6", "7"] {
        SlideJob::queued(id).stale().insert(system.db.pool()).await?;
        VideoExportJob::queued(id).stale().insert(system.db.pool()).await?;
    }
    entry(&system, QUEUE, State::Waiting, "5", "{\"jobId\":\"5\"}").await?;
    entry(&system, QUEUE, State::Waiting, "old", "{\"jobId\":6}").await?;
    let watched = Watched::with(&system.host, &Bare);
    let report = system.run(&watched, Mode::DryRun).await?;
    for name in ["slides/bare", "exports/bare"] {
        let counts = source(&report, name);
        assert_eq!((counts.candidates, counts.scheduled, counts.absent), (3, 2, 1), "{name}: {report:#?}");
    }
    assert_eq!(story(&report, "7"), "absent fail -", "{report:#?}");
    // BullMQ counts out ids such as `5` itself, so whose it is, its payload says.
    assert_eq!(watched.payload_reads(), [(QUEUE.to_owned(), vec!["old".to_owned(), "5".to_owned()])]);
    Ok(())
}

/// Goal: queue and candidates longer than two pages of 200; all entries under old ids, so every payload is needed; one
/// job is lost, so the scan goes to its end. `active` is read last, because a job that moves meanwhile moves there.
#[tokio::test]
async fn payloads_are_read_in_pages_of_two_hundred_and_active_last() -> Result<()> {
    const ACTIVE: i32 = 5;
    const LISTED: i32 = 450;
    let system = running().await?;
    assert_eq!(system.settings.page_size, 200);
    Deck::generating("d1").insert(system.db.pool()).await?;
    many_stale(&system, LISTED + ACTIVE + 1).await?;
    let mut adding = redis::pipe();
    for number in 1..=LISTED + ACTIVE {
        let id = format!("old-{number}");
        let state = if number > LISTED { State::Active } else { State::Waiting };
        adding
            .cmd("HSET")
            .arg(system.key(QUEUE, &id))
            .arg("data")
            .arg(format!("{{\"jobId\":\"s{number}\"}}"));
        // Of a living worker: else the entries would be read once more, to say whose they are.
        adding.cmd("SET").arg(system.key(QUEUE, &format!("{id}:lock"))).arg("token").arg("PX").arg(60_000);
        adding.cmd("LPUSH").arg(system.key(QUEUE, state.key())).arg(id);
    }
    let client = redis::Client::open(system.redis_url.as_str())?;
    adding.exec_async(&mut client.get_multiplexed_async_connection().await?).await?;

    let watched = Watched::new(&system.host);
    let report = system.run(&watched, Mode::DryRun).await?;
    let counts = source(&report, "slides/generation");
    assert_eq!((counts.candidates, counts.scheduled, counts.absent, counts.unknown), (456, 455, 1, 0));
    assert_eq!(story(&report, "s456"), "absent requeue -", "{:#?}", report.jobs);

    let reads = watched.payload_reads();
    let sizes: Vec<usize> = reads.iter().map(|(_, ids)| ids.len()).collect();
    assert_eq!(sizes, [200, 200, 50, 5]);
    let last: BTreeSet<&str> = reads[3].1.iter().map(String::as_str).collect();
    assert_eq!(last, BTreeSet::from(["old-451", "old-452", "old-453", "old-454", "old-455"]));
    let all: BTreeSet<&String> = reads.iter().flat_map(|(_, ids)| ids).collect();
    assert_eq!(all.len(), 455, "each is read once");
    Ok(())
}

/// What is found needs no further page; what names a live row by its id needs no payload at all.
#[tokio::test]
async fn a_scan_reads_no_more_than_it_needs() -> Result<()> {
    let mut system = running().await?;
    system.settings.page_size = 2;
    one_job(&system).await?;
    // Fresh, so no candidate, but live.
    SlideJob::queued("s2").insert(system.db.pool()).await?;
    SlideExportJob::queued("e1").insert(system.db.pool()).await?;
    NarrationJob::queued(uuid(1)).stale().insert(system.db.pool()).await?;
    listed(&system, QUEUE, State::Waiting, "slide-s2").await?;
    listed(&system, QUEUE, State::Waiting, "export-e1").await?;
    listed(&system, "narration", State::Active, &uuid(1)).await?;
    for id in ["o1", "o2", "o3", "o4", "o5"] {
        entry(&system, QUEUE, State::Delayed, id, "{\"jobId\":\"s1\"}").await?;
    }
    let watched = Watched::new(&system.host);
    let report = system.run(&watched, Mode::DryRun).await?;
    assert!(report.jobs.is_empty() && report.pass.scan_ran, "{report:#?}");
    assert_eq!(watched.payload_reads(), [(QUEUE.to_owned(), vec!["o1".to_owned(), "o2".to_owned()])]);
    let calls = watched.queues.calls.borrow();
    assert!(!calls.iter().any(|call| matches!(call, Call::Residues(_))), "{calls:?}");
    Ok(())
}
