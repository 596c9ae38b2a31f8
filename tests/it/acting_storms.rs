//! Storms: a mass of jobs that would be failed without a trace waits until the operator has looked.

use anyhow::Result;
use salvage::command::accept::{self, Operator};
use salvage_core::alarm::AlarmKind;
use salvage_tests::example::{Deck, Jobs, SlideJob};
use salvage_tests::stores::Stores;
use salvage_tests::system::{System, job, source, story};

use crate::acting::{QUEUES, lose_generation, running};
use crate::acting_stages::{alarms, count, counting, lose_exports};
use crate::commands::salvage;

const OPERATOR: &str = "the operator";

/// So many stale generations whose decks are gone: each would be failed. `f001`, `f002` …
async fn lose_with_decks(system: &System, count: usize) -> Result<()> {
    for number in 1..=count {
        SlideJob::processing(format!("f{number:03}")).stale().of("gone").insert(system.db.pool()).await?;
    }
    Ok(())
}

/// Goal: the whole story of a storm. Its source's requeues are not held up; half an acceptance, or one from before it, is
/// none; accepted, it goes in stages, and it is over once nothing is left of it.
#[tokio::test]
async fn a_mass_of_fails_waits_until_every_queue_of_its_source_was_accepted_since_it_was_seen() -> Result<()>
{
    let system = running().await?;
    accept::queues(&system.host, &system.settings, &[], Operator::sure("somebody, long ago")).await?;
    lose_with_decks(&system, 25).await?;
    for id in ["r1", "r2"] {
        lose_generation(&system, id).await?;
    }
    assert_eq!(story(&system.plan().await?, "f001"), "absent fail storm");

    let report = system.pass().await?;
    let counts = source(&report, "slides/generation");
    assert_eq!(
        (counts.storm, counts.failed, counts.requeued, counts.before_epoch),
        (25, 0, 2, 0),
        "{report:#?}"
    );
    let why =
        job(&report, "f001").outcome.as_ref().and_then(|outcome| outcome.why.clone()).unwrap_or_default();
    assert!(why.contains("`salvage accept slide-generation slide-export`"), "{why}");
    assert_eq!(alarms(&system).await?, [(AlarmKind::Storm, "slides/generation".to_owned())]);

    let before = Stores::of(&system).await?.of_the_application();
    accept::queues(
        &system.host,
        &system.settings,
        &["slide-generation".to_owned()],
        Operator::sure(OPERATOR),
    )
    .await?;
    assert_eq!(
        source(&system.pass().await?, "slides/generation").storm,
        25,
        "one of two queues is not enough"
    );
    assert_eq!(Stores::of(&system).await?.of_the_application(), before);

    accept::queues(
        &system.host,
        &system.settings,
        &["slide-generation".to_owned(), "slide-export".to_owned()],
        Operator::sure(OPERATOR),
    )
    .await?;
    assert_eq!(story(&system.plan().await?, "f001"), "absent fail -");
    let (host, failed) = counting(&system, "SlideJob", "FAILED");
    let report = system.run(&host, salvage::pass::Mode::Act).await?;
    assert_eq!(source(&report, "slides/generation").failed, 25, "{report:#?}");
    assert_eq!(*failed.borrow(), [0, 0, 1, 5, 21], "at each look");
    assert_eq!(alarms(&system).await?, [(AlarmKind::MassLoss, "slides/generation".to_owned())]);
    assert!(system.pass().await?.jobs.is_empty());
    let storms: i64 =
        sqlx::query_scalar("SELECT count(*) FROM salvage.storms").fetch_one(system.db.pool()).await?;
    assert_eq!(storms, 0, "the next one has to be accepted anew");
    Ok(())
}

/// A new host on an old system asks once, whether or not a pass came before the answer.
#[tokio::test]
async fn one_acceptance_does_for_the_epoch_and_for_the_storm() -> Result<()> {
    for passes_before in [0, 1] {
        let system = System::fresh().await?;
        system.used_queues(&QUEUES).await?;
        lose_exports(&system, 25).await?;
        for _ in 0..passes_before {
            let report = system.pass().await?;
            let counts = source(&report, "exports/slide-export");
            assert_eq!((counts.before_epoch, counts.storm), (25, 0), "{report:#?}");
        }
        accept::queues(&system.host, &system.settings, &[], Operator::sure(OPERATOR)).await?;
        let report = system.pass().await?;
        assert_eq!(source(&report, "exports/slide-export").failed, 25, "{report:#?}");
        assert_eq!(count(&system, "SlideExportJob", "FAILED").await?, 25);
    }
    Ok(())
}

/// Only what left no trace is in doubt: a retained failed entry says that the job ran, and how it ended.
#[tokio::test]
async fn a_mass_of_fails_that_left_their_failed_entries_is_no_storm() -> Result<()> {
    let system = running().await?;
    lose_exports(&system, 25).await?;
    for number in 1..=25 {
        let entry = format!("export-e{number:03}");
        let hash = system.key("slide-export", &entry);
        let fields = ["data", "{}", "failedReason", "out of ink", "finishedOn", "1700000000000"];
        system.redis::<()>(&[&["HSET", hash.as_str()], fields.as_slice()].concat()).await?;
        system.redis::<()>(&["ZADD", &system.key("slide-export", "failed"), "1700000000000", &entry]).await?;
    }
    let report = system.pass().await?;
    let counts = source(&report, "exports/slide-export");
    assert_eq!((counts.failed, counts.storm), (25, 0), "{report:#?}");
    Ok(())
}

#[tokio::test]
async fn twenty_fails_are_no_storm_and_twenty_one_are() -> Result<()> {
    let system = running().await?;
    Deck::generating("d1").insert(system.db.pool()).await?;
    lose_with_decks(&system, 21).await?;
    assert_eq!(source(&system.plan().await?, "slides/generation").storm, 21);
    SlideJob::complete(system.db.pool(), "f021").await?;
    let report = system.pass().await?;
    assert_eq!(
        (source(&report, "slides/generation").failed, source(&report, "slides/generation").storm),
        (20, 0)
    );
    Ok(())
}

#[tokio::test]
async fn doctor_and_history_show_a_storm_and_doctor_says_what_to_run() -> Result<()> {
    let system = running().await?;
    lose_exports(&system, 25).await?;
    let once = salvage(&system, &["once"])?.ended_with(0)?;
    assert!(once.stdout.contains("25 waiting for accept (storm)"), "{once:#?}");
    let errors: Vec<&str> = once.stderr.lines().filter(|line| line.contains("ERROR")).collect();
    assert_eq!(errors.len(), 1, "one alarm for a pass and source: {once:#?}");
    let doctor = salvage(&system, &["doctor"])?.ended_with(1)?;
    let told = doctor.stdout.lines().find(|line| line.contains("storm since")).unwrap_or_default();
    assert!(told.starts_with("BAD  source exports/slide-export: storm since "), "{doctor:#?}");
    assert!(told.ends_with("run `salvage accept slide-export slide-generation`"), "{told}");
    let history = salvage(&system, &["history"])?.ended_with(0)?;
    assert!(history.stdout.contains("STORM\n"), "{history:#?}");
    assert!(
        history.stdout.contains(": exports/slide-export: 25 jobs of this source would be marked failed"),
        "{history:#?}"
    );
    salvage(&system, &["accept", "slide-export", "slide-generation"])?.ended_with(0)?;
    let doctor = salvage(&system, &["doctor"])?.ended_with(0)?;
    assert!(doctor.stdout.contains("passes fail them, in stages"), "{doctor:#?}");
    Ok(())
}
