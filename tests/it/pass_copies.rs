//! Whole passes that read long queues through copies.

use std::time::Duration;

use anyhow::Result;
use futures_util::FutureExt;
use salvage::pass::Mode;
use salvage::redis::{RedisQueues, RedisSettings, SnapshotLimits};
use salvage_core::report::Report;
use salvage_tests::example::{Deck, Jobs, SlideJob};
use salvage_tests::rival::{Moment, Rival, Rivalled};
use salvage_tests::services::Redis;
use salvage_tests::system::{System, story};

const QUEUES: [&str; 5] =
    ["slide-generation", "slide-export", "video-composition", "video-export", "narration"];

/// A system that has run since yesterday, and copies all ids it reads.
async fn copying(redis: Option<&Redis>) -> Result<System> {
    let mut system = match redis {
        Some(redis) => System::on(&redis.url()).await?,
        None => System::fresh().await?,
    };
    system.used_queues(&QUEUES).await?;
    system.known_since_yesterday().await?;
    system.host.queues = system.host.queues.clone().with_limits(SnapshotLimits::all_copies());
    Ok(system)
}

async fn stale(system: &System, id: &str) -> Result<()> {
    Deck::generating(&format!("deck-{id}")).insert(system.db.pool()).await?;
    SlideJob::processing(id).stale().of(&format!("deck-{id}")).insert(system.db.pool()).await
}

async fn push(system: &System, state: &str, id: &str) -> Result<()> {
    system.redis(&["RPUSH", &system.key("slide-generation", state), id]).await
}

async fn copies(system: &System) -> Result<Vec<String>> {
    system.redis(&["KEYS", &format!("{}:*:salvage:copy:*", system.prefix)]).await
}

fn why(report: &Report, id: &str) -> String {
    let job = report.jobs.iter().find(|job| job.id == id);
    job.and_then(|job| job.sighting.why.clone()).unwrap_or_default()
}

#[tokio::test]
async fn an_orphan_is_recovered_and_no_copy_is_left() -> Result<()> {
    let system = copying(None).await?;
    for id in ["there", "lost"] {
        stale(&system, id).await?;
    }
    push(&system, "wait", "slide-there").await?;
    let report = system.pass().await?;
    assert_eq!(story(&report, "lost"), "absent requeue applied", "{report:#?}");
    assert_eq!(story(&report, "there"), "scheduled");
    assert_eq!(copies(&system).await?, Vec::<String>::new());
    Ok(())
}

/// The ids pass by twice: for the direct look-up, and for the scan. A copy may be lost before either.
#[tokio::test]
async fn a_copy_lost_in_mid_read_makes_unknown_and_never_absent() -> Result<()> {
    for page in [1, 2] {
        let system = copying(None).await?;
        for id in ["there", "lost"] {
            stale(&system, id).await?;
        }
        // Under an older id, so that only the scan finds it.
        push(&system, "wait", "42").await?;
        let entry = system.key("slide-generation", "42");
        system.redis::<()>(&["HSET", &entry, "data", r#"{"jobId":"there"}"#]).await?;
        let system_ref = &system;
        let rival: Rival<'_> = Box::new(move |moment| {
            async move {
                if moment == Moment::BeforePage(page) {
                    for copy in copies(system_ref).await.expect("the copies") {
                        system_ref.redis::<()>(&["DEL", &copy]).await.expect("a copy to delete");
                    }
                }
            }
            .boxed_local()
        });
        let report = system.run(&Rivalled::new(&system.host, rival), Mode::Act).await?;
        for id in ["there", "lost"] {
            assert_eq!(story(&report, id), "unknown none -", "page {page}: {report:#?}");
            assert!(why(&report, id).contains("vanished while it was read"), "{}", why(&report, id));
        }
        let healed = system.pass().await?;
        assert_eq!(story(&healed, "there"), "scheduled");
        assert_eq!(story(&healed, "lost"), "absent requeue applied", "{healed:#?}");
        assert_eq!(copies(&system).await?, Vec::<String>::new());
    }
    Ok(())
}

/// An entry without a payload is looked for again: where that look cannot be read to its end, it has not departed.
#[tokio::test]
async fn a_copy_lost_while_entries_are_looked_for_again_makes_unknown() -> Result<()> {
    let system = copying(None).await?;
    stale(&system, "lost").await?;
    push(&system, "wait", "42").await?;
    let system_ref = &system;
    let rival: Rival<'_> = Box::new(move |moment| {
        async move {
            // The first page is looked up, the second scanned.
            if moment == Moment::BeforePage(3) {
                for copy in copies(system_ref).await.expect("the copies") {
                    system_ref.redis::<()>(&["DEL", &copy]).await.expect("a copy to delete");
                }
            }
        }
        .boxed_local()
    });
    let report = system.run(&Rivalled::new(&system.host, rival), Mode::Act).await?;
    assert_eq!(story(&report, "lost"), "unknown none -", "{report:#?}");
    assert!(why(&report, "lost").contains("vanished while it was read"), "{}", why(&report, "lost"));
    let healed = system.pass().await?;
    assert!(why(&healed, "lost").contains("its payload is gone"), "{healed:#?}");
    Ok(())
}

#[tokio::test]
async fn a_pass_that_ends_early_leaves_no_copy() -> Result<()> {
    for (moment, statement) in [
        (Moment::AfterLook(1), "ALTER SCHEMA salvage RENAME TO lost"),
        (Moment::BeforePage(2), "ALTER TABLE \"SlideJob\" RENAME TO lost"),
    ] {
        let system = copying(None).await?;
        stale(&system, "lost").await?;
        push(&system, "wait", "slide-other").await?;
        let system_ref = &system;
        let rival: Rival<'_> = Box::new(move |now| {
            async move {
                if now == moment {
                    assert_ne!(copies(system_ref).await.expect("the copies"), Vec::<String>::new());
                    sqlx::query(statement).execute(system_ref.db.pool()).await.expect("a rename");
                }
            }
            .boxed_local()
        });
        let ended = system.run(&Rivalled::new(&system.host, rival), Mode::Act).await;
        assert!(ended.is_err(), "{moment:?}: {ended:#?}");
        assert_eq!(copies(&system).await?, Vec::<String>::new(), "{moment:?}");
    }
    Ok(())
}

#[tokio::test]
async fn a_flush_in_mid_read_leads_to_no_act() -> Result<()> {
    for page in [1, 2] {
        let redis = Redis::start()?;
        let system = copying(Some(&redis)).await?;
        stale(&system, "there").await?;
        push(&system, "wait", "42").await?;
        let entry = system.key("slide-generation", "42");
        system.redis::<()>(&["HSET", &entry, "data", r#"{"jobId":"there"}"#]).await?;
        let system_ref = &system;
        let rival: Rival<'_> = Box::new(move |moment| {
            async move {
                if moment == Moment::BeforePage(page) {
                    system_ref.redis::<()>(&["FLUSHALL"]).await.expect("a flush");
                }
            }
            .boxed_local()
        });
        let report = system.run(&Rivalled::new(&system.host, rival), Mode::Act).await?;
        assert_eq!(story(&report, "there"), "unknown none -", "page {page}: {report:#?}");
        let row = SlideJob::read(system.db.pool(), "there").await?.expect("the row");
        assert_eq!(row.status, "PROCESSING");
    }
    Ok(())
}

#[tokio::test]
async fn jobs_that_move_between_the_copy_and_its_pages_are_never_absent() -> Result<()> {
    let system = copying(None).await?;
    stale(&system, "m1").await?;
    stale(&system, "m2").await?;
    push(&system, "wait", "slide-m1").await?;
    push(&system, "wait", "slide-m2").await?;
    push(&system, "active", "ping").await?;
    let system_ref = &system;
    let rival: Rival<'_> = Box::new(move |moment| {
        async move {
            if let Moment::BeforePage(_) = moment {
                // Round and round: whichever state is read next, the job has just left it.
                let key = |state| system_ref.key("slide-generation", state);
                for (from, to) in [("active", "paused"), ("wait", "active"), ("paused", "wait")] {
                    system_ref
                        .redis::<Option<String>>(&["RPOPLPUSH", &key(from), &key(to)])
                        .await
                        .expect("a move");
                }
            }
        }
        .boxed_local()
    });
    let report = system.run(&Rivalled::new(&system.host, rival), Mode::Act).await?;
    assert_eq!((story(&report, "m1"), story(&report, "m2")), ("scheduled".into(), "scheduled".into()));
    assert!(!report.pass.scan_ran, "both were found by their ids");
    Ok(())
}

#[tokio::test]
async fn every_way_of_reading_judges_alike() -> Result<()> {
    let mut system = System::fresh().await?;
    system.used_queues(&QUEUES).await?;
    let states = ["wait", "paused", "active"];
    for id in states.into_iter().chain(["delayed", "old", "none", "broken"]) {
        stale(&system, id).await?;
    }
    for state in states {
        push(&system, state, &format!("slide-{state}")).await?;
    }
    system.redis::<()>(&["ZADD", &system.key("slide-export", "delayed"), "5", "slide-delayed"]).await?;
    push(&system, "wait", "old-rule").await?;
    let entry = system.key("slide-generation", "old-rule");
    system.redis::<()>(&["HSET", &entry, "data", r#"{"jobId":"old"}"#]).await?;
    let told = |report: &Report| {
        let jobs =
            report.jobs.iter().map(|job| (job.id.clone(), job.sighting.kind, job.sighting.why.clone()));
        (jobs.collect::<Vec<_>>(), report.pass.scan_ran)
    };
    // Nothing is acted on: the host has just met these queues.
    for is_readable in [true, false] {
        if !is_readable {
            push(&system, "wait", "broken-entry").await?;
        }
        let mut reports = vec![];
        for limits in [SnapshotLimits::all_ranges(), SnapshotLimits::all_copies(), SnapshotLimits::measured()]
        {
            system.host.queues = system.host.queues.clone().with_limits(limits);
            reports.push(told(&system.pass().await?));
        }
        let kind = if is_readable { "absent" } else { "unknown" };
        let (jobs, _) = &reports[0];
        assert_eq!(jobs.iter().map(|(id, ..)| id.as_str()).collect::<Vec<_>>(), ["broken", "none"]);
        assert!(jobs.iter().all(|(_, found, _)| *found == kind), "{jobs:?}");
        assert!(reports.iter().all(|report| *report == reports[0]), "{reports:#?}");
    }
    Ok(())
}

#[tokio::test]
async fn a_dry_run_copies_nothing() -> Result<()> {
    let redis = Redis::start()?;
    let system = copying(Some(&redis)).await?;
    stale(&system, "lost").await?;
    push(&system, "wait", "slide-other").await?;
    let entry = system.key("slide-generation", "slide-other");
    system.redis::<()>(&["HSET", &entry, "data", r#"{"jobId":"other"}"#]).await?;
    redis.command(&["CONFIG", "RESETSTAT"])?;
    let report = system.plan().await?;
    assert_eq!(story(&report, "lost"), "absent requeue -", "{report:#?}");
    let stats = redis.command(&["INFO", "commandstats"])?;
    assert!(!stats.contains("cmdstat_copy") && !stats.contains("cmdstat_sort"), "{stats}");
    Ok(())
}

#[tokio::test]
async fn a_pass_without_candidates_reads_no_ids() -> Result<()> {
    let redis = Redis::start()?;
    let system = System::on(&redis.url()).await?;
    system.used_queues(&QUEUES).await?;
    push(&system, "wait", "slide-1").await?;
    push(&system, "active", "slide-2").await?;
    // The first pass of all looks once more, at what it has marked.
    system.pass().await?;
    redis.command(&["CONFIG", "RESETSTAT"])?;
    let report = system.pass().await?;
    assert_eq!(report.sources.iter().map(|source| source.stalled).sum::<u64>(), 1, "{report:#?}");
    let stats = redis.command(&["INFO", "commandstats"])?;
    assert!(!stats.contains("cmdstat_zrange:"), "{stats}");
    // One for the active entries of each queue, and one to look again at the one without a lock.
    assert!(stats.contains(&format!("cmdstat_lrange:calls={},", QUEUES.len() + 1)), "{stats}");
    Ok(())
}

/// Long sorted sets are what costs Redis most.
#[tokio::test]
async fn long_sorted_sets_are_read_only_if_somebody_is_not_found_without() -> Result<()> {
    let redis = Redis::start()?;
    let system = copying(Some(&redis)).await?;
    for id in ["listed", "set"] {
        stale(&system, id).await?;
    }
    push(&system, "wait", "slide-listed").await?;
    system.redis::<()>(&["ZADD", &system.key("slide-export", "delayed"), "5", "slide-set"]).await?;
    redis.command(&["CONFIG", "RESETSTAT"])?;
    let is_read = || anyhow::Ok(redis.command(&["INFO", "commandstats"])?.contains("cmdstat_sort:"));
    let report = system.pass().await?;
    assert_eq!((story(&report, "listed"), story(&report, "set")), ("scheduled".into(), "scheduled".into()));
    assert!(!report.pass.scan_ran && !is_read()?);

    stale(&system, "lost").await?;
    let report = system.pass().await?;
    assert_eq!((story(&report, "listed"), story(&report, "set")), ("scheduled".into(), "scheduled".into()));
    assert_eq!(story(&report, "lost"), "absent requeue applied", "{report:#?}");
    assert!(is_read()?);
    assert_eq!(copies(&system).await?, Vec::<String>::new());
    Ok(())
}

/// By the time it is asked for in the set, it is in a list; that was read before.
#[tokio::test]
async fn a_job_that_leaves_a_set_before_it_is_asked_for_there_is_found_all_the_same() -> Result<()> {
    let system = copying(None).await?;
    for id in ["moved", "lost"] {
        stale(&system, id).await?;
    }
    let delayed = system.key("slide-export", "delayed");
    for (entry_id, id) in [("slide-moved", "moved"), ("slide-x", "x")] {
        system.redis::<()>(&["ZADD", &delayed, "5", entry_id]).await?;
        let entry = system.key("slide-export", entry_id);
        system.redis::<()>(&["HSET", &entry, "data", &format!("{{\"jobId\":\"{id}\"}}")]).await?;
    }
    let (system_ref, delayed) = (&system, &delayed);
    let rival: Rival<'_> = Box::new(move |moment| {
        async move {
            if moment == Moment::AfterLook(1) {
                system_ref.redis::<()>(&["ZREM", delayed, "slide-moved"]).await.expect("a removal");
                let active = system_ref.key("slide-export", "active");
                system_ref.redis::<()>(&["LPUSH", &active, "slide-moved"]).await.expect("an entry");
            }
        }
        .boxed_local()
    });
    let report = system.run(&Rivalled::new(&system.host, rival), Mode::Act).await?;
    assert_eq!(story(&report, "moved"), "scheduled", "{report:#?}");
    assert_eq!(story(&report, "lost"), "absent requeue applied");
    Ok(())
}

/// Nobody can be asked for by id: then all ids are read.
#[tokio::test]
async fn without_the_permission_to_ask_by_id_all_is_read_and_the_judgement_is_the_same() -> Result<()> {
    let redis = Redis::start()?;
    let mut system = copying(Some(&redis)).await?;
    redis.command(&["ACL", "SETUSER", "salvage", "reset", "on", ">secret", "~*", "+@all", "-zmscore"])?;
    let url = redis.url().replace("redis://", "redis://salvage:secret@");
    let settings = RedisSettings::single(&url, &system.prefix, Duration::from_secs(5));
    system.host.queues = RedisQueues::new(&settings)?.with_limits(SnapshotLimits::all_copies());
    for id in ["set", "lost"] {
        stale(&system, id).await?;
    }
    system.redis::<()>(&["ZADD", &system.key("slide-export", "delayed"), "5", "slide-set"]).await?;
    let report = system.pass().await?;
    assert_eq!(story(&report, "set"), "scheduled", "{report:#?}");
    assert_eq!(story(&report, "lost"), "absent requeue applied");
    Ok(())
}
