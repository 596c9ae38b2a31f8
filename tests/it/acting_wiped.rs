//! A wiped Redis, with real BullMQ on the other side: nothing is done until the operator accepts, and then everything.

use std::cell::RefCell;

use anyhow::{Context, Result};
use salvage::pass::Mode;
use salvage_core::report::Report;
use salvage_tests::bullmq::BullMq;
use salvage_tests::example::{Deck, Jobs, SlideExportJob, SlideJob, Video, VideoJob};
use salvage_tests::rival::{Moment, Rival, Rivalled};
use salvage_tests::services::Redis;
use salvage_tests::stores::Stores;
use salvage_tests::system::{System, source};
use serde_json::{Value, json};

use crate::acting::QUEUES;
use crate::commands::salvage;

const GENERATIONS: usize = 300;
const COMPOSITIONS: usize = 60;
const EXPORTS: usize = 40;
const ALL: usize = GENERATIONS + COMPOSITIONS + EXPORTS;

/// Four hundred jobs that have waited for their workers for long: each has its row, and its entry by the application's
/// own BullMQ.
async fn backlog(system: &System, application: &BullMq) -> Result<()> {
    let pool = system.db.pool();
    let mut entries: [(&str, Vec<Value>); 3] =
        ["slide-generation", "video-composition", "slide-export"].map(|queue| (queue, vec![]));
    let entry = |rule: &str, id: &str| json!({ "name": "by-the-application", "data": { "jobId": id }, "opts": { "jobId": format!("{rule}-{id}") } });
    for number in 0..GENERATIONS {
        let (id, deck) = (format!("g{number}"), format!("deck-of-g{number}"));
        Deck::generating(&deck).insert(pool).await?;
        SlideJob::queued(&id).stale().of(&deck).insert(pool).await?;
        entries[0].1.push(entry("slide", &id));
    }
    for number in 0..COMPOSITIONS {
        let (id, video) = (format!("c{number}"), format!("video-of-c{number}"));
        Video::composing(&video).tracks(2).insert(pool).await?;
        VideoJob::queued(&id).stale().of(&video).insert(pool).await?;
        entries[1].1.push(entry("video", &id));
    }
    for number in 0..EXPORTS {
        let (id, deck) = (format!("e{number}"), format!("deck-of-e{number}"));
        Deck::ready(&deck).exporting().insert(pool).await?;
        SlideExportJob::queued(&id).stale().of(&deck).insert(pool).await?;
        entries[2].1.push(entry("export", &id));
    }
    for (queue, jobs) in entries {
        application.call("addMany", json!({ "queue": queue, "jobs": jobs })).await?;
    }
    Ok(())
}

fn total(report: &Report, count: fn(&salvage_core::report::SourceCounts) -> u64) -> u64 {
    report.sources.iter().map(count).sum()
}

/// Every row is right: QUEUED with an entry that a worker will take, or FAILED with a reason.
async fn check_all_right(system: &System, bullmq: &BullMq) -> Result<()> {
    for (table, queue, rule, expected) in [
        ("SlideJob", "slide-generation", "slide", GENERATIONS),
        ("VideoJob", "video-composition", "video", COMPOSITIONS),
    ] {
        let query = format!("SELECT id FROM \"{table}\" WHERE status = 'QUEUED' AND error IS NULL");
        let ids: Vec<String> =
            sqlx::query_scalar(sqlx::AssertSqlSafe(query)).fetch_all(system.db.pool()).await?;
        assert_eq!(ids.len(), expected, "{table}");
        let jobs: Vec<String> = ids.iter().map(|id| format!("{rule}-{id}")).collect();
        let states = bullmq.call("states", json!({ "queue": queue, "jobs": jobs })).await?;
        let states = states.as_array().context("no array of states")?;
        assert!(states.iter().all(|state| state == "delayed"), "{states:?}");
    }
    let failed = "SELECT count(*) FROM \"SlideExportJob\" AS j JOIN \"SlideDeck\" AS d ON d.id = j.\"deckId\" \
         WHERE j.status = 'FAILED' AND j.error <> '' AND d.\"exportStatus\" = 'FAILED' AND d.status = 'READY'";
    let failed: i64 = sqlx::query_scalar(failed).fetch_one(system.db.pool()).await?;
    assert_eq!(usize::try_from(failed)?, EXPORTS);
    Ok(())
}

/// J8.
#[tokio::test]
async fn after_a_wipe_four_hundred_live_rows_wait_for_accept_and_then_all_are_recovered_in_stages()
-> Result<()> {
    let server = Redis::start()?;
    let mut system = System::on(&server.url()).await?;
    let application = system.bullmq().await?;
    for queue in QUEUES {
        application.call("counts", json!({ "queue": queue })).await?;
    }
    backlog(&system, &application).await?;
    system.known_since_yesterday().await?;
    assert_eq!(total(&system.pass().await?, |source| source.scheduled), ALL as u64);
    application.close().await?;

    server.command(&["FLUSHALL"])?;
    let workers = system.bullmq().await?;
    for queue in QUEUES {
        // Opening a queue writes its `meta`.
        workers.call("counts", json!({ "queue": queue })).await?;
    }
    let before = Stores::of(&system).await?.of_the_application().tables;
    for _ in 0..2 {
        let report = system.pass().await?;
        assert_eq!(total(&report, |source| source.before_epoch), ALL as u64, "{:#?}", report.sources);
        assert_eq!(total(&report, |source| source.requeued + source.failed + source.storm), 0);
    }
    assert_eq!(Stores::of(&system).await?.of_the_application().tables, before);
    let doctor = salvage(&system, &["doctor"])?.ended_with(1)?;
    for line in [
        "BAD  source exports/slide-export: 40 orphans waited at ",
        "BAD  source slides/generation: 300 orphans waited at ",
        "BAD  source video-composition/composition: 60 orphans waited at ",
        "run `salvage accept slide-generation slide-export`\n",
    ] {
        assert!(doctor.stdout.contains(line), "{doctor:#?} lacks {line}");
    }

    salvage(&system, &["accept", "--all"])?.ended_with(0)?;
    salvage(&system, &["doctor"])?.ended_with(0)?;
    // So that the entries are still delayed when they are looked at.
    system.settings.start_delay = std::time::Duration::from_secs(600)..=std::time::Duration::from_secs(610);
    let recovered = RefCell::new(vec![]);
    let query =
        "SELECT count(*) FROM \"SlideJob\" WHERE \"updatedAt\" > (now() AT TIME ZONE 'UTC') - interval '1 h'";
    let rival: Rival<'_> = Box::new(|moment| {
        let (system, recovered) = (&system, &recovered);
        Box::pin(async move {
            if let Moment::AfterLook(_) = moment {
                let count: i64 =
                    sqlx::query_scalar(query).fetch_one(system.db.pool()).await.expect("PostgreSQL answers");
                recovered.borrow_mut().push(count);
            }
        })
    });
    let report = system.run(&Rivalled::new(&system.host, rival), Mode::Act).await?;
    assert_eq!(*recovered.borrow(), [0, 0, 1, 5, 21, 85], "generations at each look");
    assert_eq!(source(&report, "exports/slide-export").failed, EXPORTS as u64, "{:#?}", report.sources);
    assert!(system.pass().await?.jobs.is_empty());
    check_all_right(&system, &workers).await?;
    workers.close().await
}
