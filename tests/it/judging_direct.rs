//! The direct look-up: rows against the ids of one snapshot.

use std::collections::BTreeSet;
use std::time::Duration;

use anyhow::{Context, Result};
use salvage::pass::Mode;
use salvage_core::snapshot::State;
use salvage_tests::bullmq::{BULLMQ_5, BULLMQ_6, BullMq};
use salvage_tests::example::{
    Deck, Jobs, NarrationJob, SlideExportJob, SlideJob, Video, VideoExportJob, VideoJob, uuid,
};
use salvage_tests::rival::Moment;
use salvage_tests::services::Redis;
use salvage_tests::stores::Stores;
use salvage_tests::system::{System, job, source, story};
use serde_json::json;

use crate::judging_world::{
    Call, OTHER, QUEUE, QUEUES, Watched, against, at, entry, listed, many_stale, running, running_on, sql,
};

/// How often Redis ran a command since CONFIG RESETSTAT.
fn calls(redis: &Redis, command: &str) -> Result<u64> {
    let stats = redis.command(&["INFO", "commandstats"])?;
    let start = format!("cmdstat_{command}:calls=");
    let line = stats.lines().find_map(|line| line.trim().strip_prefix(&start)?.split(',').next());
    line.map_or(Ok(0), |count| count.parse().with_context(|| format!("calls of {command}")))
}

/// J1.
///
/// Slides and exports share both of their queues: each queue is read once all the same.
#[tokio::test]
async fn jobs_found_by_id_cost_one_snapshot_of_each_queue_and_no_payload() -> Result<()> {
    let redis = Redis::start()?;
    let system = running_on(&redis.url()).await?;
    let pool = system.db.pool();
    SlideJob::processing("s1").stale().insert(pool).await?;
    SlideJob::queued("s2").stale().insert(pool).await?;
    SlideExportJob::queued("e1").stale().insert(pool).await?;
    VideoExportJob::queued(7).stale().insert(pool).await?;
    entry(&system, OTHER, State::Active, "slide-s1", "{}").await?;
    // Its worker lives; otherwise it would be looked at again, and its age be read.
    system.redis::<()>(&["SET", &system.key(OTHER, "slide-s1:lock"), "token", "PX", "30000"]).await?;
    entry(&system, QUEUE, State::Waiting, "slide-s2", "{}").await?;
    entry(&system, QUEUE, State::Delayed, "export-e1", "{}").await?;
    entry(&system, "video-composition", State::Prioritized, "export-7", "{}").await?;

    redis.command(&["CONFIG", "RESETSTAT"])?;
    let report = system.plan().await?;
    let queues = u64::try_from(QUEUES.len())?;
    // No candidate may be in `narration`: of its ids, only active ones are read, to see which are stalled.
    let wanted = queues - 1;
    for (command, expected) in
        [("multi", 1), ("lrange", 3 * wanted + 1), ("zrange", 3 * wanted), ("get", queues), ("hget", queues)]
    {
        assert_eq!(calls(&redis, command)?, expected, "{command}: `hget` is the nonce's alone");
    }
    assert!(!report.pass.scan_ran);

    let report = system.pass().await?;
    assert!(!report.pass.scan_ran);
    assert!(report.jobs.is_empty(), "{report:#?}");
    for (name, scheduled) in
        [("slides/generation", 2), ("exports/slide-export", 1), ("exports/video-export", 1)]
    {
        let counts = source(&report, name);
        assert_eq!(
            (counts.candidates, counts.scheduled, counts.absent, counts.unknown),
            (scheduled, scheduled, 0, 0)
        );
    }
    assert_eq!(source(&report, "slides/generation").stalled, 0);
    Ok(())
}

/// J5, J6.
#[tokio::test]
async fn an_unreadable_queue_hides_only_what_is_not_found_in_the_other() -> Result<()> {
    let system = running().await?;
    Deck::generating("d1").insert(system.db.pool()).await?;
    for id in ["s1", "s2"] {
        SlideJob::queued(id).stale().of("d1").insert(system.db.pool()).await?;
    }
    entry(&system, OTHER, State::Waiting, "slide-s1", "{}").await?;
    let broken = system.key(QUEUE, "delayed");
    system.redis::<()>(&["SET", &broken, "something else"]).await?;
    let before = Stores::of(&system).await?.of_the_application();
    let report = system.pass().await?;
    assert_eq!(story(&report, "s1"), "scheduled", "{report:#?}");
    assert_eq!(story(&report, "s2"), "unknown none -");
    let why = job(&report, "s2").sighting.why.as_deref().unwrap_or_default();
    assert!(why.contains(&broken) && why.contains(QUEUE), "{why}");
    assert_eq!(Stores::of(&system).await?.of_the_application(), before);
    assert!(!report.judged_nothing());
    Ok(())
}

/// J9.
///
/// Nothing was ever written under this prefix, so nothing is: not even a nonce.
#[tokio::test]
async fn a_mistyped_prefix_is_named_and_leads_to_no_act() -> Result<()> {
    let system = System::fresh().await?;
    Deck::generating("d1").insert(system.db.pool()).await?;
    SlideJob::queued("s1").stale().of("d1").insert(system.db.pool()).await?;
    for _ in 0..2 {
        let before = Stores::of(&system).await?.of_the_application();
        let report = system.pass().await?;
        assert_eq!(story(&report, "s1"), "unknown none -", "{report:#?}");
        let why = job(&report, "s1").sighting.why.clone().unwrap_or_default();
        assert!(why.contains(QUEUE) && why.contains(&system.prefix), "{why}");
        assert!(report.judged_nothing());
        assert_eq!(Stores::of(&system).await?.of_the_application(), before);
        system.age_epochs().await?;
    }
    let keys: Vec<String> = system.redis(&["KEYS", &format!("{}:*", system.prefix)]).await?;
    assert!(keys.is_empty(), "{keys:?}");
    Ok(())
}

/// J10.
///
/// Before 6.x a paused queue's jobs are in `paused`, from then on they stay in `wait`.
#[tokio::test]
async fn jobs_of_a_paused_queue_are_scheduled() -> Result<()> {
    let system = running().await?;
    many_stale(&system, 10).await?;
    for (version, queue, state, first) in
        [(BULLMQ_5, QUEUE, State::Paused, 1), (BULLMQ_6, OTHER, State::Waiting, 6)]
    {
        let bullmq = BullMq::open_version(version, &system.redis_url, &system.prefix).await?;
        for number in first..first + 5 {
            let opts = json!({ "jobId": format!("slide-s{number}") });
            bullmq.add(queue, "generate", json!({ "jobId": format!("s{number}") }), opts).await?;
        }
        bullmq.call("pause", json!({ "queue": queue })).await?;
        let held: u64 = system.redis(&["LLEN", &system.key(queue, state.key())]).await?;
        assert_eq!(held, 5, "{version} keeps them in {state}");
        bullmq.close().await?;
    }
    let report = system.pass().await?;
    assert_eq!(source(&report, "slides/generation").scheduled, 10, "{report:#?}");
    assert!(report.jobs.is_empty());
    Ok(())
}

/// J11.
#[tokio::test]
async fn an_entry_that_is_due_in_twelve_hours_is_scheduled() -> Result<()> {
    let system = running().await?;
    SlideJob::queued("s1").updated_ago(6 * 3_600).insert(system.db.pool()).await?;
    let bullmq = system.bullmq().await?;
    let opts = json!({ "jobId": "slide-s1", "delay": 12 * 3_600_000 });
    bullmq.add(QUEUE, "generate", json!({ "jobId": "s1" }), opts).await?;
    assert_eq!(bullmq.state(QUEUE, "slide-s1").await?, "delayed");
    let report = system.pass().await?;
    assert_eq!(source(&report, "slides/generation").scheduled, 1, "{report:#?}");
    assert!(report.jobs.is_empty());
    bullmq.close().await
}

/// J13.
#[tokio::test]
async fn rows_of_a_type_that_nobody_declares_are_counted_and_never_touched() -> Result<()> {
    let system = running().await?;
    Deck::generating("d1").insert(system.db.pool()).await?;
    SlideJob::processing("new").kind("VOICE_OVER").stale().of("d1").insert(system.db.pool()).await?;
    SlideJob::processing("s1").stale().of("d1").insert(system.db.pool()).await?;
    let before = SlideJob::read(system.db.pool(), "new").await?;
    let report = system.pass().await?;
    let counts = source(&report, "slides/generation");
    assert_eq!(
        (counts.live, counts.undeclared, counts.candidates, counts.requeued),
        (2, 1, 1, 1),
        "{report:#?}"
    );
    assert_eq!(SlideJob::read(system.db.pool(), "new").await?, before);
    Ok(())
}

/// J15.
#[tokio::test]
async fn a_row_from_the_future_is_counted_as_clock_skew_and_left_alone() -> Result<()> {
    let system = running().await?;
    SlideJob::processing("s1").updated_ago(-50 * 60).insert(system.db.pool()).await?;
    let before = Stores::of(&system).await?.of_the_application();
    let report = system.pass().await?;
    let counts = source(&report, "slides/generation");
    assert_eq!((counts.live, counts.clock_skew, counts.candidates), (1, 1, 0), "{report:#?}");
    assert_eq!(Stores::of(&system).await?.of_the_application(), before);
    Ok(())
}

/// J16.
///
/// Two kinds of rows that come to nothing fill the first pages: rows without a usable time, and rows whose queue shows
/// nothing readable.
#[tokio::test]
async fn pages_of_rows_that_nobody_can_judge_do_not_hide_an_orphan_behind_them() -> Result<()> {
    let mut system = running().await?;
    system.settings.page_size = 5;
    Deck::generating("d1").insert(system.db.pool()).await?;
    for number in 10..20 {
        SlideJob::queued(format!("a{number}")).of("d1").insert(system.db.pool()).await?;
    }
    sql(&system, "UPDATE \"SlideJob\" SET \"updatedAt\" = 'infinity'").await?;
    SlideJob::queued("z").stale().of("d1").insert(system.db.pool()).await?;
    let report = system.pass().await?;
    assert_eq!(story(&report, "z"), "absent requeue applied", "{report:#?}");
    let counts = source(&report, "slides/generation");
    assert_eq!((counts.candidates, counts.unknown, counts.absent, counts.requeued), (11, 10, 1, 1));
    for number in 10..20 {
        assert_eq!(story(&report, &format!("a{number}")), "unknown none -");
    }
    Ok(())
}

/// Also over pages: ten rows and ten entries in pages of three, in sources with each kind of id.
#[tokio::test]
async fn each_candidate_is_seen_once_over_many_pages_of_every_kind_of_id() -> Result<()> {
    let mut system = running().await?;
    system.settings.page_size = 3;
    let pool = system.db.pool();
    for number in 1..=10_u32 {
        // Numbers of one and two digits: by their text, 10 sorts before 2.
        VideoExportJob::queued(number).stale().insert(pool).await?;
        VideoJob::queued(number).kind("PREVIEW").stale().insert(pool).await?;
        NarrationJob::queued(uuid(number)).stale().insert(pool).await?;
        entry(&system, "video-export", State::Waiting, &format!("export-{number}"), "{}").await?;
        entry(&system, "video-export", State::Delayed, &format!("video-{number}"), "{}").await?;
        entry(&system, "narration", State::Prioritized, &uuid(number).to_uppercase(), "{}").await?;
    }
    let report = system.plan().await?;
    for name in ["exports/video-export", "video-composition/composition", "video-composition/narration"] {
        let counts = source(&report, name);
        assert_eq!((counts.live, counts.candidates, counts.scheduled), (10, 10, 10), "{name}: {report:#?}");
    }
    assert!(!report.pass.scan_ran);
    Ok(())
}

/// The second invariant: a job that is enqueued once its row was read is found, because queues are read later. A row
/// that comes at the same moment waits for the next pass, so the rows were indeed read before.
#[tokio::test]
async fn a_job_enqueued_after_its_row_was_read_is_scheduled() -> Result<()> {
    let system = running().await?;
    Deck::generating("d1").insert(system.db.pool()).await?;
    SlideJob::queued("s1").stale().of("d1").insert(system.db.pool()).await?;
    let rival = at(Moment::BeforeFirstLook, || {
        Box::pin(async {
            entry(&system, OTHER, State::Waiting, "slide-s1", "{}")
                .await
                .expect("the application adds the job");
            SlideJob::queued("late").stale().of("d1").insert(system.db.pool()).await.expect("a late row");
        })
    });
    let before = SlideJob::read(system.db.pool(), "s1").await?;
    let report = system.run(&against(&system.host, rival), Mode::Act).await?;
    let counts = source(&report, "slides/generation");
    assert_eq!((counts.candidates, counts.scheduled), (1, 1), "the late row is none: {report:#?}");
    assert!(report.jobs.is_empty());
    assert_eq!(SlideJob::read(system.db.pool(), "s1").await?, before);
    Ok(())
}

/// An orphan costs a second look; the first is one snapshot of all queues, the second of all where an orphan may be.
#[tokio::test]
async fn every_look_is_one_snapshot() -> Result<()> {
    let system = running().await?;
    Deck::generating("d1").insert(system.db.pool()).await?;
    Video::composing("v1").tracks(1).insert(system.db.pool()).await?;
    SlideJob::queued("s1").stale().of("d1").insert(system.db.pool()).await?;
    VideoJob::queued("v1").stale().of("v1").insert(system.db.pool()).await?;
    let watched = Watched::new(&system.host);
    let report = system.run(&watched, Mode::Act).await?;
    assert_eq!(story(&report, "s1"), "absent requeue applied", "{report:#?}");
    assert_eq!(story(&report, "v1"), "absent requeue applied", "{report:#?}");
    let all = BTreeSet::from(QUEUES.map(str::to_owned));
    let calls = watched.queues.calls.borrow();
    let snapshots: Vec<&Call> = calls.iter().filter(|call| matches!(call, Call::Snapshot(_))).collect();
    let mut of_orphans = all.clone();
    assert!(of_orphans.remove("narration"));
    assert_eq!(snapshots, [&Call::Snapshot(all), &Call::Snapshot(of_orphans)]);
    Ok(())
}

/// A row that is younger than the threshold is nobody's business yet, whatever the queues say.
#[tokio::test]
async fn a_row_younger_than_its_threshold_is_no_candidate() -> Result<()> {
    let mut system = running().await?;
    system.settings.stale_after = Duration::from_secs(3 * 3_600);
    SlideJob::queued("s1").stale().insert(system.db.pool()).await?;
    let report = system.pass().await?;
    let counts = source(&report, "slides/generation");
    assert_eq!((counts.live, counts.candidates), (1, 0), "{report:#?}");
    Ok(())
}

/// An id in a list without a hash is scheduled: a worker will take it.
#[tokio::test]
async fn an_id_under_the_current_rule_needs_no_hash_to_be_scheduled() -> Result<()> {
    let system = running().await?;
    SlideJob::queued("s1").stale().insert(system.db.pool()).await?;
    listed(&system, QUEUE, State::Waiting, "slide-s1").await?;
    let report = system.pass().await?;
    assert_eq!(source(&report, "slides/generation").scheduled, 1, "{report:#?}");
    Ok(())
}
