//! Parked rows: what PostgreSQL rejects is tried again ever more rarely, until somebody mends it.

use std::cell::Cell;

use anyhow::Result;
use salvage::pass::Mode;
use salvage_core::report::Report;
use salvage_tests::example::{Jobs, SlideJob};
use salvage_tests::rival::{Moment, Rival, Rivalled};
use salvage_tests::system::{System, job, story};

use crate::acting::{lose_generation, running, sql, with_lost_generation};
use crate::commands::salvage;

const REJECT: &str = "ALTER TABLE \"SlideJob\" ADD CONSTRAINT keeps_it CHECK (status <> 'QUEUED') NOT VALID";

/// A running system whose one orphan, `s1`, was rejected by the pass before.
async fn parked() -> Result<System> {
    let system = with_lost_generation().await?;
    sql(&system, REJECT).await?;
    assert_eq!(attempts(&system).await?, 1);
    Ok(system)
}

/// A pass that leaves `s1` parked, and how many transactions it opened for it.
async fn attempts(system: &System) -> Result<u32> {
    let (attempts, report) = passed(system).await?;
    assert_eq!(story(&report, "s1"), "absent requeue parked", "{report:#?}");
    Ok(attempts)
}

async fn passed(system: &System) -> Result<(u32, Report)> {
    let holds = Cell::new(0);
    let rival: Rival<'_> = Box::new(|moment| {
        holds.set(holds.get() + u32::from(moment == Moment::BeforeHold));
        Box::pin(async {})
    });
    let report = system.run(&Rivalled::new(&system.host, rival), Mode::Act).await?;
    Ok((holds.get(), report))
}

/// What is left of the wait, in minutes, and how often it was tried.
async fn wait(system: &System) -> Result<(i64, i64)> {
    let query = "SELECT round(extract(epoch FROM k.until - clock_timestamp()) / 60)::bigint, k.times FROM salvage.parked AS k";
    Ok(sqlx::query_as(query).fetch_one(system.db.pool()).await?)
}

/// A13's "later passes don't retry it in a loop".
#[tokio::test]
async fn a_rejected_row_is_tried_again_only_when_its_time_has_come_and_then_waits_twice_as_long() -> Result<()>
{
    let system = parked().await?;
    assert_eq!(wait(&system).await?, (15, 1));
    for expected in [(30, 2), (60, 3), (120, 4)] {
        assert_eq!(attempts(&system).await?, 0, "not yet");
        sql(&system, "UPDATE salvage.parked SET until = now() - interval '1 s'").await?;
        assert_eq!(attempts(&system).await?, 1);
        assert_eq!(wait(&system).await?, expected);
    }
    Ok(())
}

#[tokio::test]
async fn another_host_and_a_plan_know_what_is_parked_and_say_the_way_out() -> Result<()> {
    let system = parked().await?;
    let another = system.another_host().await?;
    for report in [system.run(&another, Mode::Act).await?, system.plan().await?] {
        assert_eq!(story(&report, "s1"), "absent requeue parked", "{report:#?}");
        let why =
            job(&report, "s1").outcome.as_ref().and_then(|outcome| outcome.why.clone()).unwrap_or_default();
        assert!(why.contains("keeps_it"), "{why}");
        assert!(why.contains("tried once, again after 20"), "{why}");
        assert!(why.ends_with("`salvage accept --parked slides/generation s1`"), "{why}");
    }
    Ok(())
}

#[tokio::test]
async fn a_row_that_somebody_mends_is_tried_at_once() -> Result<()> {
    let system = parked().await?;
    SlideJob::write_progress(system.db.pool(), "s1", 41).await?;
    assert_eq!(attempts(&system).await?, 1, "its token is another");
    assert_eq!(wait(&system).await?, (15, 1), "and its story begins anew");
    sql(&system, "ALTER TABLE \"SlideJob\" DROP CONSTRAINT keeps_it").await?;
    assert_eq!(attempts(&system).await?, 0);
    SlideJob::write_progress(system.db.pool(), "s1", 42).await?;
    assert_eq!(story(&system.pass().await?, "s1"), "absent requeue applied");
    Ok(())
}

#[tokio::test]
async fn what_the_operator_releases_is_tried_by_the_next_pass_and_doctor_tells_of_the_rest() -> Result<()> {
    let system = parked().await?;
    lose_generation(&system, "s2").await?;
    salvage(&system, &["once"])?.ended_with(0)?;
    let doctor = salvage(&system, &["doctor"])?.ended_with(1)?;
    assert!(doctor.stdout.contains("BAD  source slides/generation: 2 jobs parked"), "{doctor:#?}");
    assert!(doctor.stdout.contains("keeps_it"), "{doctor:#?}");
    sql(&system, "ALTER TABLE \"SlideJob\" DROP CONSTRAINT keeps_it").await?;

    let ran = salvage(&system, &["accept", "--parked", "generation", "s1"])?.ended_with(0)?;
    assert_eq!(ran.stdout, "released 1 parked job of slides/generation: the next pass tries again\n");
    let report = system.pass().await?;
    assert_eq!(
        (story(&report, "s1"), story(&report, "s2")),
        ("absent requeue applied".into(), "absent requeue parked".into())
    );
    let released: Vec<String> = sqlx::query_scalar(
        "SELECT job_id FROM salvage.parked WHERE released_by IS NOT NULL AND released_at IS NOT NULL",
    )
    .fetch_all(system.db.pool())
    .await?;
    assert_eq!(released, ["s1"]);

    salvage(&system, &["accept", "--parked", "slides/generation"])?.ended_with(0)?;
    assert_eq!(story(&system.pass().await?, "s2"), "absent requeue applied");
    let nothing = salvage(&system, &["accept", "--parked", "slides/generation", "s1"])?.ended_with(1)?;
    assert!(nothing.stderr.contains("job s1 of slides/generation is not parked"), "{nothing:#?}");
    let unknown = salvage(&system, &["accept", "--parked", "slides/generations"])?.ended_with(1)?;
    assert!(unknown.stderr.contains("there are "), "{unknown:#?}");
    Ok(())
}

/// Where the error column cannot be NULL, a requeue empties it: or every requeue would be parked.
#[tokio::test]
async fn an_error_column_that_cannot_be_null_is_emptied() -> Result<()> {
    let system = running().await?;
    lose_generation(&system, "s1").await?;
    sql(
        &system,
        "UPDATE \"SlideJob\" SET error = 'before'; ALTER TABLE \"SlideJob\" ALTER error SET NOT NULL",
    )
    .await?;
    let report = system.pass().await?;
    assert_eq!(story(&report, "s1"), "absent requeue applied", "{report:#?}");
    let row = SlideJob::read(system.db.pool(), "s1").await?.expect("the row");
    assert_eq!((row.status.as_str(), row.error.as_deref()), ("QUEUED", Some("")));
    Ok(())
}
