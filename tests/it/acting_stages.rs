//! Mass loss: many orphans at once are acted on in growing stages, each seen before the next begins.

use std::cell::RefCell;
use std::rc::Rc;

use anyhow::Result;
use salvage::command::accept::{self, Operator};
use salvage::pass::Mode;
use salvage::ports::Ledger;
use salvage_core::alarm::AlarmKind;
use salvage_core::settings::PassSettings;
use salvage_tests::example::{Deck, Jobs, SlideExportJob, SlideJob};
use salvage_tests::rival::{Moment, Rival, Rivalled, once_at};
use salvage_tests::system::{System, job, source, story};

use crate::acting::{QUEUES, delayed, lose_generation, running, sql};

pub(crate) const GENERATION: &str = "slide-generation";

/// So many stale generations that are in no queue, each of a deck of its own: `s001`, `s002` …
pub(crate) async fn lose_generations(system: &System, count: usize) -> Result<()> {
    for number in 1..=count {
        lose_generation(system, &format!("s{number:03}")).await?;
    }
    Ok(())
}

/// So many stale exports that are in no queue, each of a deck of its own; none can be rebuilt.
pub(crate) async fn lose_exports(system: &System, count: usize) -> Result<()> {
    for number in 1..=count {
        let (id, deck) = (format!("e{number:03}"), format!("deck-of-e{number:03}"));
        Deck::ready(&deck).exporting().insert(system.db.pool()).await?;
        SlideExportJob::processing(&id).stale().of(&deck).insert(system.db.pool()).await?;
    }
    Ok(())
}

/// What the last pass was alarmed at: kind and source of each.
pub(crate) async fn alarms(system: &System) -> Result<Vec<(AlarmKind, String)>> {
    let last = system.host.postgres.history(1).await?.remove(0);
    Ok(last.alarms.into_iter().map(|alarm| (alarm.kind, alarm.source.to_string())).collect())
}

/// How many rows of a table have a status.
pub(crate) async fn count(system: &System, table: &str, status: &str) -> Result<usize> {
    let query = format!("SELECT count(*) FROM \"{table}\" WHERE status::text = '{status}'");
    let count: i64 = sqlx::query_scalar(sqlx::AssertSqlSafe(query)).fetch_one(system.db.pool()).await?;
    Ok(usize::try_from(count)?)
}

/// A host that counts, at each look, how many jobs of the table have the status by then.
pub(crate) fn counting<'t>(
    system: &'t System,
    table: &'static str,
    status: &'static str,
) -> (Rivalled<'t>, Rc<RefCell<Vec<usize>>>) {
    let counts = Rc::new(RefCell::new(vec![]));
    let into = Rc::clone(&counts);
    let rival: Rival<'_> = Box::new(move |moment| {
        let into = Rc::clone(&into);
        Box::pin(async move {
            if let Moment::AfterLook(_) = moment {
                let count = count(system, table, status).await.expect("PostgreSQL answers");
                into.borrow_mut().push(count);
            }
        })
    });
    (Rivalled::new(&system.host, rival), counts)
}

/// A15.
#[tokio::test]
async fn three_hundred_orphans_are_recovered_in_growing_stages_and_start_spread_over_time() -> Result<()> {
    let mut system = running().await?;
    lose_generations(&system, 300).await?;
    system.settings.start_delay = PassSettings::default().start_delay;
    let (host, queued) = counting(&system, "SlideJob", "QUEUED");
    let report = system.run(&host, Mode::Act).await?;
    assert_eq!(source(&report, "slides/generation").requeued, 300, "{:#?}", report.sources);
    assert_eq!(*queued.borrow(), [0, 0, 1, 5, 21, 85], "at each look");
    assert_eq!(alarms(&system).await?, [(AlarmKind::MassLoss, "slides/generation".to_owned())]);
    assert_eq!(delayed(&system, GENERATION).await?.len(), 300);
    assert!(system.pass().await?.jobs.is_empty());

    let due: Vec<(String, f64)> =
        system.redis(&["ZRANGE", &system.key(GENERATION, "delayed"), "0", "-1", "WITHSCORES"]).await?;
    let mut due_ms: Vec<f64> = due.into_iter().map(|(_, score)| (score / 4096.0).floor()).collect();
    due_ms.sort_by(f64::total_cmp);
    // Evenly over ten seconds there are thirty in each; that eighty fall into one is out of all likelihood.
    let busiest =
        due_ms.iter().map(|ms| due_ms.iter().filter(|other| (*ms..*ms + 1_000.0).contains(*other)).count());
    assert!(busiest.max().is_some_and(|most| most < 80), "{due_ms:?}");
    Ok(())
}

#[tokio::test]
async fn few_orphans_or_less_than_half_are_acted_on_at_once_and_without_an_alarm() -> Result<()> {
    let system = running().await?;
    lose_generations(&system, 25).await?;
    for number in 0..30 {
        let id = format!("present-{number}");
        SlideJob::queued(&id).stale().of("d1").insert(system.db.pool()).await?;
        system.redis::<()>(&["LPUSH", &system.key(GENERATION, "wait"), &format!("slide-{id}")]).await?;
    }
    lose_exports(&system, 20).await?;
    let (host, queued) = counting(&system, "SlideJob", "QUEUED");
    let report = system.run(&host, Mode::Act).await?;
    assert_eq!(source(&report, "slides/generation").requeued, 25);
    assert_eq!(source(&report, "exports/slide-export").failed, 20);
    assert_eq!(*queued.borrow(), [30, 30], "there was no third look");
    assert_eq!(alarms(&system).await?, []);
    Ok(())
}

/// Whoever takes away what we put back shall have one job to take.
#[tokio::test]
async fn a_stage_that_is_not_to_be_seen_is_the_last_of_its_source_in_this_pass() -> Result<()> {
    let system = running().await?;
    lose_generations(&system, 25).await?;
    lose_exports(&system, 1).await?;
    let rival: Rival<'_> = Box::new(|moment| {
        let system = &system;
        Box::pin(async move {
            if moment == Moment::BeforeCommit {
                let (hash, set) = (system.key(GENERATION, "slide-s001"), system.key(GENERATION, "delayed"));
                system.redis::<()>(&["DEL", &hash, &set]).await.expect("Redis answers");
            }
        })
    });
    let report = system.run(&Rivalled::new(&system.host, rival), Mode::Act).await?;
    assert_eq!(story(&report, "s001"), "absent requeue applied", "{report:#?}");
    assert_eq!(source(&report, "slides/generation").requeued, 1);
    assert_eq!(story(&report, "s002"), "absent requeue -");
    assert_eq!(story(&report, "e001"), "absent fail applied", "another source goes on");
    let expected =
        [AlarmKind::MassLoss, AlarmKind::Unseen].map(|kind| (kind, "slides/generation".to_owned()));
    assert_eq!(alarms(&system).await?, expected);
    assert_eq!(count(&system, "SlideJob", "PROCESSING").await?, 24);
    Ok(())
}

/// A worker may be quicker than our look: then no queue holds the job, and its row says why.
#[tokio::test]
async fn a_stage_whose_job_a_worker_has_finished_already_is_seen_in_its_row() -> Result<()> {
    let system = running().await?;
    lose_generations(&system, 25).await?;
    let taken = RefCell::new(false);
    let rival: Rival<'_> = Box::new(|moment| {
        let (system, taken) = (&system, &taken);
        Box::pin(async move {
            let (hash, set) = (system.key(GENERATION, "slide-s001"), system.key(GENERATION, "delayed"));
            match moment {
                Moment::BeforeCommit if !taken.replace(true) => {
                    system.redis::<()>(&["DEL", &hash, &set]).await.expect("Redis answers");
                }
                Moment::AfterLook(3) => {
                    SlideJob::complete(system.db.pool(), "s001").await.expect("PostgreSQL answers");
                }
                _ => {}
            }
        })
    });
    let report = system.run(&Rivalled::new(&system.host, rival), Mode::Act).await?;
    assert_eq!(source(&report, "slides/generation").requeued, 25, "{report:#?}");
    Ok(())
}

#[tokio::test]
async fn a_stage_of_fails_whose_rows_come_back_to_life_is_the_last() -> Result<()> {
    let system = System::fresh().await?;
    system.used_queues(&QUEUES).await?;
    lose_exports(&system, 25).await?;
    accept::queues(&system.host, &system.settings, &[], Operator::sure("the operator")).await?;
    let revive = async || {
        sql(&system, "UPDATE \"SlideExportJob\" SET status = 'PROCESSING' WHERE status = 'FAILED'").await
    };
    let rival = once_at(Moment::AfterLook(3), revive);
    let report = system.run(&Rivalled::new(&system.host, rival), Mode::Act).await?;
    assert_eq!(source(&report, "exports/slide-export").failed, 1, "{report:#?}");
    let expected =
        [AlarmKind::MassLoss, AlarmKind::Unseen].map(|kind| (kind, "exports/slide-export".to_owned()));
    assert_eq!(alarms(&system).await?, expected);
    Ok(())
}

/// What may have been done has to be seen as well: it is there, or it was not done.
#[tokio::test]
async fn a_stage_whose_replies_are_lost_is_seen_if_it_was_done_and_the_last_if_it_was_not() -> Result<()> {
    let system = running().await?;
    lose_generations(&system, 25).await?;
    let report = system.run(&Rivalled::alone(&system.host).losing_act_requests(), Mode::Act).await?;
    assert_eq!(source(&report, "slides/generation").indeterminate, 1, "{report:#?}");
    assert!(delayed(&system, GENERATION).await?.is_empty());
    let report = system.run(&Rivalled::alone(&system.host).losing_act_replies(), Mode::Act).await?;
    assert_eq!(source(&report, "slides/generation").indeterminate, 25, "{report:#?}");
    assert_eq!(delayed(&system, GENERATION).await?.len(), 25);
    assert!(system.pass().await?.jobs.is_empty());
    Ok(())
}

/// A14, many times over: what is refused proves nothing, and must not block what comes after it.
#[tokio::test]
async fn orphans_that_are_refused_for_ever_keep_no_others_from_being_recovered() -> Result<()> {
    let system = running().await?;
    lose_generations(&system, 25).await?;
    for id in ["s001", "s002", "s003"] {
        let hash = system.key(GENERATION, &format!("slide-{id}"));
        system.redis::<()>(&["HSET", &hash, "parentKey", "bull:flows:7"]).await?;
    }
    let report = system.pass().await?;
    let why = job(&report, "s001").outcome.as_ref().and_then(|outcome| outcome.why.clone());
    assert!(why.is_some_and(|why| why.starts_with("flow")), "{report:#?}");
    let counts = source(&report, "slides/generation");
    assert_eq!((counts.refused, counts.requeued), (3, 22));
    Ok(())
}

/// A wipe between two stages.
#[tokio::test]
async fn redis_that_is_wiped_between_two_stages_ends_them() -> Result<()> {
    let system = running().await?;
    lose_generations(&system, 25).await?;
    let wiped = RefCell::new(0);
    let rival: Rival<'_> = Box::new(|moment| {
        let (system, wiped) = (&system, &wiped);
        Box::pin(async move {
            // After the first act of the second stage.
            if moment == Moment::BeforeCommit && wiped.replace_with(|acts| *acts + 1) == 1 {
                let keys: Vec<String> =
                    system.redis(&["KEYS", &system.key("*", "*")]).await.expect("Redis answers");
                for key in keys.iter().filter(|key| !key.ends_with(":meta")) {
                    system.redis::<()>(&["DEL", key]).await.expect("Redis answers");
                }
            }
        })
    });
    let report = system.run(&Rivalled::new(&system.host, rival), Mode::Act).await?;
    let counts = source(&report, "slides/generation");
    assert!(counts.requeued < 6, "{counts:#?}");
    assert_eq!(counts.before_epoch, 20, "all that no act was begun for: {counts:#?}");
    Ok(())
}
