//! Jobs that move while they are looked for.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use anyhow::Result;
use salvage::pass::Mode;
use salvage_core::snapshot::State;
use salvage_tests::example::{Deck, Jobs, SlideJob};
use salvage_tests::rival::Moment;
use salvage_tests::system::{System, source, story};
use tokio::time::{Instant, sleep};

use crate::judging_world::{OTHER, QUEUE, against, at, entry, many_stale, running};

/// Moves an entry as an application does: adds it to the one queue, then removes it from the other.
async fn moves(system: &System, id: &str, from: &str, to: &str) -> Result<()> {
    let data: String = system.redis(&["HGET", &system.key(from, id), "data"]).await?;
    entry(system, to, State::Waiting, id, &data).await?;
    system.redis::<()>(&["LREM", &system.key(from, "wait"), "0", id]).await?;
    system.redis::<()>(&["DEL", &system.key(from, id)]).await
}

/// J21, at each moment of a pass that has an orphan to act on, in both directions.
#[tokio::test]
async fn a_job_that_moves_to_another_queue_at_any_moment_is_scheduled() -> Result<()> {
    let moments = [
        Moment::BeforeFirstLook,
        Moment::AfterLook(1),
        Moment::Settling,
        Moment::AfterLook(2),
        Moment::BeforeHold,
        Moment::BeforeQueue,
        Moment::BeforeCommit,
    ];
    let system = running().await?;
    Deck::generating("d1").insert(system.db.pool()).await?;
    SlideJob::queued("s1").stale().of("d1").insert(system.db.pool()).await?;
    let before = SlideJob::read(system.db.pool(), "s1").await?;
    entry(&system, QUEUE, State::Waiting, "slide-s1", "{\"jobId\":\"s1\"}").await?;
    for (round, moment) in moments.into_iter().enumerate() {
        for (turn, (from, to)) in [(QUEUE, OTHER), (OTHER, QUEUE)].into_iter().enumerate() {
            let lost = format!("lost-{round}-{turn}");
            SlideJob::queued(&lost).stale().of("d1").insert(system.db.pool()).await?;
            let rival = at(moment, || {
                Box::pin(async {
                    moves(&system, "slide-s1", from, to).await.expect("the application moves the job");
                })
            });
            let report = system.run(&against(&system.host, rival), Mode::Act).await?;
            assert_eq!(story(&report, "s1"), "scheduled", "{moment:?}, {from} to {to}: {report:#?}");
            assert_eq!(story(&report, &lost), "absent requeue applied", "the pass came to every moment");
            let held: Option<u64> = system.redis(&["LPOS", &system.key(to, "wait"), "slide-s1"]).await?;
            assert!(held.is_some(), "{moment:?}: the rival was asked");
        }
    }
    assert_eq!(SlideJob::read(system.db.pool(), "s1").await?, before);
    Ok(())
}

/// J21, for an entry under an old id, which only its payload tells: what moved after the first snapshot is in the
/// second.
#[tokio::test]
async fn an_entry_under_an_old_id_that_moves_during_a_look_is_left_alone() -> Result<()> {
    let moments = [Moment::BeforeFirstLook, Moment::AfterLook(1), Moment::Settling, Moment::AfterLook(2)];
    let system = running().await?;
    Deck::generating("d1").insert(system.db.pool()).await?;
    SlideJob::queued("s1").stale().of("d1").insert(system.db.pool()).await?;
    let before = SlideJob::read(system.db.pool(), "s1").await?;
    entry(&system, QUEUE, State::Waiting, "42", "{\"jobId\":\"s1\"}").await?;
    for (round, moment) in moments.into_iter().enumerate() {
        for (turn, (from, to)) in [(QUEUE, OTHER), (OTHER, QUEUE)].into_iter().enumerate() {
            let lost = format!("lost-{round}-{turn}");
            SlideJob::queued(&lost).stale().of("d1").insert(system.db.pool()).await?;
            let rival = at(moment, || {
                Box::pin(async {
                    moves(&system, "42", from, to).await.expect("the application moves the job");
                })
            });
            let report = system.run(&against(&system.host, rival), Mode::Act).await?;
            assert_eq!(story(&report, "s1"), "scheduled", "{moment:?}, {from} to {to}: {report:#?}");
            assert_eq!(story(&report, &lost), "absent requeue applied", "{moment:?}");
        }
    }
    assert_eq!(SlideJob::read(system.db.pool(), "s1").await?, before);
    Ok(())
}

/// J21, without a chosen moment: fifty jobs go to and fro as fast as Redis takes it, so between any two commands of a
/// look that is not one instant some job would be in neither queue.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn jobs_that_go_to_and_fro_between_queues_are_never_absent() -> Result<()> {
    const JOBS: i32 = 50;
    const LOOKS: u32 = 40;
    let system = running().await?;
    many_stale(&system, JOBS).await?;
    for number in 1..=JOBS {
        entry(&system, QUEUE, State::Waiting, &format!("slide-s{number}"), "{}").await?;
    }
    let (ends, rounds) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    let mover = tokio::spawn(to_and_fro(
        system.redis_url.clone(),
        [system.key(QUEUE, "wait"), system.key(OTHER, "wait")],
        JOBS,
        Arc::clone(&ends),
        Arc::clone(&rounds),
    ));
    for look in 0..LOOKS {
        // So that every look meets other places.
        let seen = rounds.load(Ordering::Relaxed);
        let report = system.plan().await?;
        let counts = source(&report, "slides/generation");
        let found = (counts.scheduled, counts.absent, counts.unknown);
        assert_eq!(found, (u64::try_from(JOBS)?, 0, 0), "look {look}: {:#?}", report.jobs);
        let deadline = Instant::now() + Duration::from_secs(20);
        while rounds.load(Ordering::Relaxed) == seen {
            assert!(Instant::now() < deadline, "the mover stands still");
            sleep(Duration::from_millis(1)).await;
        }
    }
    ends.store(true, Ordering::Relaxed);
    mover.await?
}

async fn to_and_fro(
    url: String,
    lists: [String; 2],
    jobs: i32,
    ends: Arc<AtomicBool>,
    rounds: Arc<AtomicU64>,
) -> Result<()> {
    let mut redis = redis::Client::open(url)?.get_multiplexed_async_connection().await?;
    while !ends.load(Ordering::Relaxed) {
        for [from, to] in [[&lists[0], &lists[1]], [&lists[1], &lists[0]]] {
            for number in 1..=jobs {
                let id = format!("slide-s{number}");
                redis::cmd("LPUSH").arg(to).arg(&id).exec_async(&mut redis).await?;
                redis::cmd("LREM").arg(from).arg(0).arg(&id).exec_async(&mut redis).await?;
            }
            rounds.fetch_add(1, Ordering::Relaxed);
        }
    }
    Ok(())
}
