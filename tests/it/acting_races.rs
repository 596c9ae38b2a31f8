//! What others do in the middle of a pass: their write stands, and ours is not made.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use anyhow::Result;
use salvage::pass::Mode;
use salvage_core::act::LOOK_AGE_MAX;
use salvage_core::report::Report;
use salvage_tests::example::{Deck, Jobs, SlideJob, Video, VideoJob};
use salvage_tests::rival::{Moment, Rival, Rivalled, once_at};
use salvage_tests::services::Redis;
use salvage_tests::stores::Stores;
use salvage_tests::system::{System, job, source, story};

use crate::acting::{delayed, lose_generation, running, running_on, sql, status, with_lost_generation};

/// Every moment between reading the row and locking it.
const BEFORE_THE_WRITE: [Moment; 5] = [
    Moment::BeforeFirstLook,
    Moment::AfterLook(1),
    Moment::Settling,
    Moment::AfterLook(2),
    Moment::BeforeHold,
];

/// One pass over an orphan on which somebody acts at a moment, and over another, with which nobody interferes. Returns
/// the first one's id.
async fn interrupted(
    system: &System,
    moment: Moment,
    act: impl AsyncFnOnce(&str) -> Result<()>,
) -> Result<(String, Report)> {
    let id = format!("{moment:?}").replace(['(', ')'], "-");
    let other = format!("other-{id}");
    lose_generation(system, &id).await?;
    lose_generation(system, &other).await?;
    let rival = once_at(moment, async || act(&id).await);
    let report = system.run(&Rivalled::new(&system.host, rival), Mode::Act).await?;
    assert_eq!(story(&report, &other), "absent requeue applied", "{moment:?} {report:#?}");
    Ok((id, report))
}

/// What was superseded has no entry; the other has.
async fn check_superseded(system: &System, moment: Moment, id: &str, report: &Report) -> Result<()> {
    let outcome = job(report, id).outcome.clone().expect("an outcome");
    assert_eq!(outcome.kind, "superseded", "{moment:?} {report:#?}");
    // The row's own token told, before anything that was read with it.
    let why = outcome.why.unwrap_or_default();
    assert!(why.starts_with("the row "), "{moment:?} {why}");
    let entries = delayed(system, "slide-generation").await?;
    assert!(!entries.contains(&format!("slide-{id}")), "{moment:?} {entries:?}");
    assert!(entries.contains(&format!("slide-other-{id}")), "{moment:?} {entries:?}");
    Ok(())
}

/// A1.
#[tokio::test]
async fn a_row_that_a_worker_completes_before_our_write_keeps_all_of_it() -> Result<()> {
    let system = running().await?;
    for moment in BEFORE_THE_WRITE {
        let complete = async |id: &str| {
            SlideJob::complete(system.db.pool(), id).await?;
            sql(&system, &format!("UPDATE \"SlideDeck\" SET status = 'READY' WHERE id = 'deck-of-{id}'"))
                .await
        };
        let (id, report) = interrupted(&system, moment, complete).await?;
        check_superseded(&system, moment, &id, &report).await?;
        let row = SlideJob::read(system.db.pool(), &id).await?.expect("the row");
        assert_eq!((row.status.as_str(), row.progress, row.error), ("COMPLETED", 100, None), "{moment:?}");
        let deck = Deck::read(system.db.pool(), &format!("deck-of-{id}")).await?.expect("the deck");
        assert_eq!((deck.status.as_str(), deck.error), ("READY", None), "{moment:?}");
    }
    Ok(())
}

/// A2.
#[tokio::test]
async fn progress_that_leaves_status_and_time_as_they_were_is_seen() -> Result<()> {
    let system = running().await?;
    for moment in BEFORE_THE_WRITE {
        let progress = async |id: &str| SlideJob::write_progress(system.db.pool(), id, 41).await.map(drop);
        let (id, report) = interrupted(&system, moment, progress).await?;
        check_superseded(&system, moment, &id, &report).await?;
        let row = SlideJob::read(system.db.pool(), &id).await?.expect("the row");
        assert_eq!((row.status.as_str(), row.progress), ("PROCESSING", 41), "{moment:?}");
        // So that the next moment's pass does not meet it again.
        SlideJob::complete(system.db.pool(), &id).await?;
    }
    Ok(())
}

/// A job that was on its way all the time is added, run and retained between the looks, and its row is written last.
#[tokio::test]
async fn a_job_that_ran_between_the_looks_is_left_to_its_worker() -> Result<()> {
    for finished in ["completed", "failed"] {
        let system = running().await?;
        let run = async |id: &str| {
            let entry = format!("slide-{id}");
            let hash = system.key("slide-generation", &entry);
            let (now_s, _): (u64, u64) = system.redis(&["TIME"]).await?;
            let finished_ms = (now_s * 1_000).to_string();
            system.redis::<()>(&["HSET", &hash, "data", "{}", "finishedOn", &finished_ms]).await?;
            let set = system.key("slide-generation", finished);
            system.redis::<()>(&["ZADD", &set, &finished_ms, &entry]).await
        };
        let (id, report) = interrupted(&system, Moment::Settling, run).await?;
        let outcome = job(&report, &id).outcome.clone().expect("an outcome");
        let why = outcome.why.as_deref().unwrap_or_default();
        assert!(
            outcome.kind == "superseded" && why.contains(&format!("none then, {finished} (at ")),
            "{why}"
        );
        assert!(!delayed(&system, "slide-generation").await?.contains(&format!("slide-{id}")));
        assert_eq!(status::<SlideJob>(&system, &id).await?, "PROCESSING");
    }
    Ok(())
}

/// A10, between decision and act.
#[tokio::test]
async fn a_video_that_is_cancelled_or_deleted_after_the_decision_is_not_composed() -> Result<()> {
    let changes = [
        ("UPDATE \"Video\" SET status = 'CANCELLED' WHERE id = 'ID'", "cancelled"),
        ("DELETE FROM \"Video\" WHERE id = 'ID'", "deleted"),
    ];
    let system = running().await?;
    let pool = system.db.pool();
    for (change, word) in changes {
        for moment in [Moment::Settling, Moment::BeforeHold] {
            let id = format!("{word}-{moment:?}");
            Video::composing(&id).tracks(2).insert(pool).await?;
            VideoJob::processing(&id).stale().of(&id).insert(pool).await?;
            let change = change.replace("ID", &id);
            let rival = once_at(moment, async || sql(&system, &change).await);
            let report = system.run(&Rivalled::new(&system.host, rival), Mode::Act).await?;
            assert_eq!(story(&report, &id), "absent requeue superseded", "{report:#?}");
            assert_eq!(status::<VideoJob>(&system, &id).await?, "PROCESSING");

            let report = system.pass().await?;
            assert_eq!(story(&report, &id), "absent fail applied", "{report:#?}");
            let row = VideoJob::read(pool, &id).await?.expect("the row");
            assert_eq!(row.status, "FAILED");
            assert!(row.error.as_deref().is_some_and(|reason| reason.contains(word)), "{row:?}");
            assert!(delayed(&system, "video-composition").await?.is_empty(), "{change} at {moment:?}");
        }
    }
    Ok(())
}

/// A22.
#[tokio::test]
async fn a_row_that_an_event_writes_between_the_looks_is_left_alone() -> Result<()> {
    let system = running().await?;
    let write = async |id: &str| SlideJob::complete(system.db.pool(), id).await.map(drop);
    let (id, report) = interrupted(&system, Moment::Settling, write).await?;
    check_superseded(&system, Moment::Settling, &id, &report).await?;
    let row = SlideJob::read(system.db.pool(), &id).await?.expect("the row");
    assert_eq!((row.status.as_str(), row.error), ("COMPLETED", None));
    assert!(system.pass().await?.jobs.is_empty());
    Ok(())
}

/// Invariant 6: the queue is written last. Whoever looks while the row is not yet locked finds no entry; once there is
/// one, the row is locked for us.
#[tokio::test]
async fn nothing_is_enqueued_before_the_row_is_ours() -> Result<()> {
    let system = with_lost_generation().await?;
    let skipped = "SELECT id FROM \"SlideJob\" FOR UPDATE SKIP LOCKED";
    let rival: Rival<'_> = Box::new(|moment| {
        let system = &system;
        Box::pin(async move {
            let entries = delayed(system, "slide-generation").await.expect("Redis answers");
            let free = sqlx::query(skipped).fetch_all(system.db.pool()).await.expect("the rows").len();
            match moment {
                Moment::BeforeQueue => assert_eq!((entries.len(), free), (0, 0), "{moment:?}"),
                Moment::BeforeCommit => assert_eq!((entries.len(), free), (1, 0), "{moment:?}"),
                _ => assert_eq!((entries.len(), free), (0, 1), "{moment:?}"),
            }
        })
    });
    let report = system.run(&Rivalled::new(&system.host, rival), Mode::Act).await?;
    assert_eq!(story(&report, "s1"), "absent requeue applied", "{report:#?}");
    Ok(())
}

/// A5's other half: the commit is what gets lost.
#[tokio::test]
async fn a_commit_that_fails_leaves_one_entry_which_the_next_pass_finds() -> Result<()> {
    let system = with_lost_generation().await?;
    let before = SlideJob::read(system.db.pool(), "s1").await?;
    let terminate = "SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity \
                     WHERE datname = current_database() AND state = 'idle in transaction'";
    let rival = once_at(Moment::BeforeCommit, async || sql(&system, terminate).await);
    let report = system.run(&Rivalled::new(&system.host, rival), Mode::Act).await?;
    assert_eq!(story(&report, "s1"), "absent requeue indeterminate", "{report:#?}");
    assert_eq!(SlideJob::read(system.db.pool(), "s1").await?, before);
    let counts = source(&report, "slides/generation");
    assert_eq!((counts.requeued, counts.indeterminate), (0, 1));

    let next = system.pass().await?;
    assert_eq!(story(&next, "s1"), "scheduled", "{next:#?}");
    assert_eq!(delayed(&system, "slide-generation").await?, ["slide-s1"]);
    assert_eq!(SlideJob::read(system.db.pool(), "s1").await?, before);
    Ok(())
}

#[tokio::test]
async fn a_request_that_never_reached_the_queue_is_made_by_the_next_pass() -> Result<()> {
    let system = with_lost_generation().await?;
    let before = Stores::of(&system).await?.of_the_application();
    let lossy = Rivalled::alone(&system.host).losing_act_requests();
    let report = system.run(&lossy, Mode::Act).await?;
    assert_eq!(story(&report, "s1"), "absent requeue indeterminate", "{report:#?}");
    assert_eq!(Stores::of(&system).await?.of_the_application(), before);
    assert_eq!(story(&system.pass().await?, "s1"), "absent requeue applied");
    Ok(())
}

/// A wipe after the second look, which the fence does not see: only the nonce tells.
#[tokio::test]
async fn a_queue_that_is_wiped_after_the_second_look_is_not_written_into() -> Result<()> {
    let system = with_lost_generation().await?;
    let before = SlideJob::read(system.db.pool(), "s1").await?;
    let wipe = async || {
        let keys: Vec<String> = system.redis(&["KEYS", &system.key("slide-generation", "*")]).await?;
        for key in keys.iter().filter(|key| !key.ends_with(":meta")) {
            system.redis::<()>(&["DEL", key]).await?;
        }
        Ok(())
    };
    let rival = once_at(Moment::BeforeQueue, wipe);
    let report = system.run(&Rivalled::new(&system.host, rival), Mode::Act).await?;
    assert_eq!(story(&report, "s1"), "absent requeue refused", "{report:#?}");
    let why = job(&report, "s1").outcome.as_ref().and_then(|outcome| outcome.why.clone());
    assert!(why.as_deref().is_some_and(|why| why.starts_with("epoch")), "{why:?}");
    assert!(delayed(&system, "slide-generation").await?.is_empty());
    // And what is old enough to have been lost with it waits from now on.
    assert_eq!(story(&system.pass().await?, "s1"), "absent requeue before-epoch");
    assert_eq!(SlideJob::read(system.db.pool(), "s1").await?, before);
    Ok(())
}

/// An error is never an absence. Goal: a look that fails leads to no act, though all is well again when the act's turn
/// comes. Method: Redis is down for just that look, and keeps what it had.
#[tokio::test]
async fn a_look_that_fails_leads_to_no_act() -> Result<()> {
    for (down, up) in
        [(Moment::BeforeFirstLook, Moment::AfterLook(1)), (Moment::Settling, Moment::AfterLook(2))]
    {
        let server = std::cell::RefCell::new(Redis::start()?);
        let url = server.borrow().url();
        let system = running_on(System::on(&url).await?).await?;
        lose_generation(&system, "s1").await?;
        let before = SlideJob::read(system.db.pool(), "s1").await?;
        let rival: Rival<'_> = Box::new(|moment| {
            if moment == down {
                server.borrow_mut().stop_saving().expect("it saves and stops");
            } else if moment == up {
                server.borrow_mut().start_again().expect("it starts with what it saved");
            }
            Box::pin(async {})
        });
        let report = system.run(&Rivalled::new(&system.host, rival), Mode::Act).await?;
        assert_eq!(job(&report, "s1").sighting.kind, "unknown", "{down:?} {report:#?}");
        assert_eq!(job(&report, "s1").outcome, None, "{down:?} {report:#?}");
        assert_eq!(SlideJob::read(system.db.pool(), "s1").await?, before, "{down:?}");
        assert!(report.judged_nothing(), "{down:?}");
        assert_eq!(story(&system.pass().await?, "s1"), "absent requeue applied", "nothing else was amiss");
    }
    Ok(())
}

/// What came since the look under an older id, the script cannot know: so an act that would begin long after it rests on
/// a fresh one. Goal: of three orphans, the first is put back, the second comes back by itself while the look grows old,
/// and the third is found still lost by the fresh look.
#[tokio::test]
async fn an_act_never_rests_on_an_old_look() -> Result<()> {
    let system = running().await?;
    for id in ["a", "b", "c"] {
        lose_generation(&system, id).await?;
    }
    let hand = Rc::new(Cell::new(Duration::ZERO));
    let ages = Rc::clone(&hand);
    let rival = once_at(Moment::BeforeHold, async || {
        ages.set(LOOK_AGE_MAX);
        let hash = system.key("slide-generation", "older-b");
        system.redis::<()>(&["HSET", &hash, "data", "{\"jobId\":\"b\"}"]).await?;
        system.redis::<()>(&["LPUSH", &system.key("slide-generation", "wait"), "older-b"]).await
    });
    let report = system.run(&Rivalled::new(&system.host, rival).with_clock_hand(hand), Mode::Act).await?;
    let stories = ["a", "b", "c"].map(|id| story(&report, id));
    assert_eq!(stories, ["absent requeue applied", "scheduled", "absent requeue applied"], "{report:#?}");
    let mut entries = delayed(&system, "slide-generation").await?;
    entries.sort();
    assert_eq!(entries, ["slide-a", "slide-c"]);
    assert_eq!(status::<SlideJob>(&system, "b").await?, "PROCESSING");
    Ok(())
}
