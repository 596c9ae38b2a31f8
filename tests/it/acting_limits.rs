//! How much one pass does: its limit of acts, the depth of the queues, the cap of recoveries.

use std::collections::BTreeMap;

use anyhow::Result;
use salvage_tests::example::{Jobs, SlideJob};
use salvage_tests::stores::Stores;
use salvage_tests::system::{job, source, story};

use crate::acting::{delayed, lose_generation, running, sql, with_lost_generation};
use crate::acting_stages::{GENERATION, lose_generations};

#[tokio::test]
async fn one_pass_acts_on_no_more_than_its_limit_and_the_next_goes_on() -> Result<()> {
    let mut system = running().await?;
    lose_generations(&system, 5).await?;
    system.settings.acts_max = 2;
    for expected in [2, 2, 1, 0] {
        assert_eq!(source(&system.pass().await?, "slides/generation").requeued, expected);
    }
    Ok(())
}

/// The limit holds over all stages of a pass together.
#[tokio::test]
async fn the_stages_of_one_pass_stay_within_its_limit() -> Result<()> {
    let mut system = running().await?;
    lose_generations(&system, 30).await?;
    system.settings.acts_max = 11;
    assert_eq!(source(&system.pass().await?, "slides/generation").requeued, 11);
    assert_eq!(delayed(&system, GENERATION).await?.len(), 11);
    Ok(())
}

#[tokio::test]
async fn a_queue_that_is_deep_already_gets_no_more_than_it_has_room_for() -> Result<()> {
    let mut system = running().await?;
    for number in 0..3 {
        let hash = system.key(GENERATION, &format!("other-{number}"));
        system.redis::<()>(&["HSET", &hash, "data", "{\"jobId\":\"of-nobody\"}"]).await?;
        system.redis::<()>(&["LPUSH", &system.key(GENERATION, "wait"), &format!("other-{number}")]).await?;
    }
    lose_generations(&system, 4).await?;
    SlideJob::queued("fails").stale().of("no-deck").insert(system.db.pool()).await?;
    system.settings.queue_depth_max = Some(5);
    let before = Stores::of(&system).await?;
    let plan = system.plan().await?;
    assert_eq!(
        ["s001", "s002", "s003", "s004"].map(|id| story(&plan, id)),
        ["absent requeue -", "absent requeue -", "absent requeue refused", "absent requeue refused"]
    );
    assert_eq!(Stores::of(&system).await?, before);

    let row = SlideJob::read(system.db.pool(), "s003").await?;
    let report = system.pass().await?;
    let counts = source(&report, "slides/generation");
    assert_eq!((counts.requeued, counts.refused, counts.failed), (2, 2, 1), "{report:#?}");
    let why =
        job(&report, "s003").outcome.as_ref().and_then(|outcome| outcome.why.clone()).unwrap_or_default();
    for part in ["deep: 5 jobs wait", "\"slide-generation\"", "queue_depth_max is 5"] {
        assert!(why.contains(part), "{why}");
    }
    assert_eq!(SlideJob::read(system.db.pool(), "s003").await?, row);
    assert_eq!(source(&system.pass().await?, "slides/generation").refused, 2, "as deep as before");

    system.redis::<()>(&["DEL", &system.key(GENERATION, "wait")]).await?;
    assert_eq!(source(&system.pass().await?, "slides/generation").requeued, 2, "its workers caught up");
    Ok(())
}

/// What enqueued nothing is no recovery: A11's cap is not used up by attempts.
#[tokio::test]
async fn attempts_that_enqueued_nothing_do_not_count_as_recoveries() -> Result<()> {
    let system = with_lost_generation().await?;
    let meta = system.key(GENERATION, "meta");
    system.redis::<()>(&["HSET", &meta, "paused", "1"]).await?;
    for _ in 0..4 {
        assert_eq!(story(&system.pass().await?, "s1"), "absent requeue refused");
    }
    let mut worker = system.db.pool().begin().await?;
    sqlx::query("SELECT 1 FROM \"SlideJob\" FOR UPDATE").execute(&mut *worker).await?;
    for _ in 0..4 {
        assert_eq!(story(&system.pass().await?, "s1"), "absent requeue superseded");
    }
    worker.rollback().await?;
    system.redis::<()>(&["HDEL", &meta, "paused"]).await?;
    assert_eq!(story(&system.pass().await?, "s1"), "absent requeue applied");
    let query = "SELECT i.withdrawn, count(*) FROM salvage.intents AS i GROUP BY 1";
    let intents: Vec<(bool, i64)> = sqlx::query_as(query).fetch_all(system.db.pool()).await?;
    assert_eq!(BTreeMap::from_iter(intents), BTreeMap::from([(false, 1), (true, 8)]));
    Ok(())
}

/// The window of the cap rolls: what is older does not count.
#[tokio::test]
async fn recoveries_older_than_the_window_do_not_count() -> Result<()> {
    let system = with_lost_generation().await?;
    let insert = "INSERT INTO salvage.intents (pass_id, generation, domain, source, job_id, is_requeue, at) \
         SELECT 'p', 1, 'slides', 'generation', 's1', true, now() - interval '72 h' - interval '1 min' * n \
         FROM generate_series(1, 3) AS n";
    sql(&system, insert).await?;
    assert_eq!(story(&system.plan().await?, "s1"), "absent requeue -");
    sql(&system, "UPDATE salvage.intents SET at = at + interval '1 h'").await?;
    assert_eq!(story(&system.pass().await?, "s1"), "absent fail applied");
    Ok(())
}

/// Thresholds of one job type, for each status its own.
#[tokio::test]
async fn a_type_may_grow_old_sooner_while_it_waits_than_while_it_runs() -> Result<()> {
    use salvage_tests::answering::Answering;

    let system = running().await?;
    let minutes = |count: u64| std::time::Duration::from_secs(60 * count);
    let host = Answering::new(&system.host, |_| Ok(salvage_core::decision::Decision::Hold("seen".into())))
        .declaring(|domains| {
            let sources = domains.iter_mut().flat_map(|domain| &mut domain.manifest.sources);
            for job_type in sources.flat_map(|source| &mut source.job_types) {
                if job_type.name == "GENERATION" {
                    (job_type.stale_after_queued, job_type.stale_after_processing) =
                        (Some(minutes(10)), Some(minutes(180)));
                }
            }
        });
    let pool = system.db.pool();
    lose_generation(&system, "processing-2h").await?;
    SlideJob::queued("queued-20m").updated_ago(20 * 60).of("d").insert(pool).await?;
    SlideJob::queued("queued-5m").updated_ago(5 * 60).of("d").insert(pool).await?;
    SlideJob::processing("processing-4h").updated_ago(240 * 60).of("d").insert(pool).await?;
    SlideJob::queued("outline-20m").kind("OUTLINE").updated_ago(20 * 60).of("d").insert(pool).await?;
    let report = system.run(&host, salvage::pass::Mode::DryRun).await?;
    let mut found: Vec<&str> = report.jobs.iter().map(|job| job.id.as_str()).collect();
    found.sort_unstable();
    assert_eq!(found, ["processing-4h", "queued-20m"], "{report:#?}");
    Ok(())
}
