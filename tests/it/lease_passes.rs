//! Two hosts over the same stores: one works, and one that is late writes nothing.

use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use salvage::command::accept::{self, Operator};
use salvage::pass::Mode;
use salvage::ports::{Ledger, StoreFailure};
use salvage_core::report::{LeaseState, Report};
use salvage_tests::example::{Jobs, SlideJob};
use salvage_tests::rival::{Moment, Rivalled, once_at};
use salvage_tests::services::Redis;
use salvage_tests::stores::Stores;
use salvage_tests::system::{System, job, story};
use tokio::sync::Notify;

use crate::acting::{QUEUES, delayed, lose_generation, running, running_on, with_lost_generation};

/// Longest wait for the other host.
const PATIENCE: Duration = Duration::from_secs(30);

pub(crate) fn lease_key(system: &System) -> String {
    format!("{}:lock", system.prefix)
}

async fn lease_holder(system: &System) -> Result<Option<String>> {
    system.redis(&["GET", &lease_key(system)]).await
}

/// The pass ended because a newer one began.
fn check_superseded(ended: Result<Report>) {
    let failure = ended.expect_err("superseded");
    assert!(matches!(failure.downcast_ref(), Some(StoreFailure::Fenced { .. })), "{failure:#}");
}

/// L1.
#[tokio::test]
async fn of_two_hosts_that_start_together_one_runs_and_the_other_skips_and_both_live() -> Result<()> {
    let system = with_lost_generation().await?;
    let another = system.another_host().await?;
    let skipped = Notify::new();
    // Whoever runs waits until the other has skipped: two that run would wait for each other in vain.
    let start = async |host| {
        let wait = async || tokio::time::timeout(PATIENCE, skipped.notified()).await.context("both run");
        let rival: salvage_tests::rival::Rival<'_> = Box::new(move |moment| {
            Box::pin(async move {
                if moment == Moment::BeforeFirstLook {
                    wait().await.expect("the other one skips");
                }
            })
        });
        let report = system.run(&Rivalled::new(host, rival), Mode::Act).await?;
        if report.pass.lease == LeaseState::Held {
            skipped.notify_one();
        }
        anyhow::Ok(report)
    };
    let (one, other) = tokio::join!(start(&system.host), start(&another));
    let mut reports = [one?, other?];
    reports.sort_by_key(|report| report.pass.lease == LeaseState::Held);
    let [ran, skipped] = reports;
    assert_eq!((ran.pass.lease, skipped.pass.lease), (LeaseState::Acquired, LeaseState::Held));
    assert_eq!(story(&ran, "s1"), "absent requeue applied", "{ran:#?}");
    assert_eq!((skipped.pass.id, skipped.sources.len(), skipped.jobs.len()), (None, 0, 0));
    for host in [&system.host, &another] {
        assert_eq!(system.run(host, Mode::Act).await?.pass.lease, LeaseState::Acquired);
    }
    assert_eq!(delayed(&system, "slide-generation").await?, ["slide-s1"]);
    Ok(())
}

#[tokio::test]
async fn a_pass_skips_while_the_lease_is_held_and_leaves_both_stores_as_they_are() -> Result<()> {
    let system = with_lost_generation().await?;
    system.redis::<()>(&["SET", &lease_key(&system), "theirs", "EX", "600"]).await?;
    let before = Stores::of(&system).await?;
    let report = system.pass().await?;
    assert_eq!(report.pass.lease, LeaseState::Held);
    assert_eq!(Stores::of(&system).await?, before);
    // L4's end: the key is gone, and the next attempt succeeds.
    system.redis::<()>(&["DEL", &lease_key(&system)]).await?;
    assert_eq!(story(&system.pass().await?, "s1"), "absent requeue applied");
    assert_eq!(lease_holder(&system).await?, None, "a pass gives the lease back");
    Ok(())
}

#[tokio::test]
async fn a_pass_that_fails_gives_the_lease_back() -> Result<()> {
    let system = with_lost_generation().await?;
    let newer = async || {
        system.host.postgres.raise_fence("global", "newer").await?;
        Ok(())
    };
    let rival = once_at(Moment::Settling, newer);
    check_superseded(system.run(&Rivalled::new(&system.host, rival), Mode::Act).await);
    assert_eq!(lease_holder(&system).await?, None);
    Ok(())
}

/// L3 without the freeze. The lease ran out; another host passed, and holds it again when the first wakes.
#[tokio::test]
async fn a_host_whose_lease_ran_out_writes_nothing_in_either_store_once_another_has_passed() -> Result<()> {
    for moment in [Moment::AfterLook(1), Moment::Settling, Moment::BeforeHold] {
        let system = with_lost_generation().await?;
        let another = system.another_host().await?;
        let after = std::cell::RefCell::new(None);
        let pass = async || {
            system.redis::<()>(&["DEL", &lease_key(&system)]).await?;
            let report = system.run(&another, Mode::Act).await?;
            assert_eq!(story(&report, "s1"), "absent requeue applied", "{moment:?} {report:#?}");
            // What only the first would still find to do.
            lose_generation(&system, "s2").await?;
            system.redis::<()>(&["SET", &lease_key(&system), "theirs", "EX", "600"]).await?;
            after.replace(Some(Stores::of(&system).await?));
            Ok(())
        };
        let rival = once_at(moment, pass);
        match system.run(&Rivalled::new(&system.host, rival), Mode::Act).await {
            // It found by itself that there is nothing left to do.
            Ok(report) if moment == Moment::Settling => assert!(report.jobs.is_empty(), "{report:#?}"),
            ended => check_superseded(ended),
        }
        let expected = after.take().expect("the other passed");
        let found = Stores::of(&system).await?;
        assert_eq!(found.keys, expected.keys, "{moment:?}");
        assert_eq!(found.of_the_application(), expected.of_the_application(), "{moment:?}");
        assert_eq!(lease_holder(&system).await?.as_deref(), Some("theirs"), "compare-and-delete");
    }
    Ok(())
}

/// L3, in the middle of the write: PostgreSQL ends the holder, so the other host waits no longer than the timeouts.
#[tokio::test]
async fn a_host_that_sleeps_with_its_row_locked_blocks_nobody_for_long_and_writes_nothing_more() -> Result<()>
{
    let system = with_lost_generation().await?;
    let another = system.another_host().await?;
    let after = std::cell::RefCell::new(None);
    let pass = async || {
        system.redis::<()>(&["DEL", &lease_key(&system)]).await?;
        let began = Instant::now();
        let report = system.run(&another, Mode::Act).await?;
        assert!(began.elapsed() < Duration::from_secs(8), "it waited {:?}", began.elapsed());
        assert_eq!(story(&report, "s1"), "absent requeue applied", "{report:#?}");
        after.replace(Some(Stores::of(&system).await?));
        Ok(())
    };
    let rival = once_at(Moment::BeforeQueue, pass);
    // Whether it ends as superseded or with a report that says refused, nothing was written.
    if let Ok(report) = system.run(&Rivalled::new(&system.host, rival), Mode::Act).await {
        let outcome = job(&report, "s1").outcome.as_ref().map(|outcome| outcome.kind);
        assert_eq!(outcome, Some("refused"), "{report:#?}");
    }
    let expected = after.take().expect("the other passed");
    let found = Stores::of(&system).await?;
    assert_eq!(found.keys, expected.keys);
    assert_eq!(found.of_the_application(), expected.of_the_application());
    Ok(())
}

/// The fence in PostgreSQL, alone: in Redis nothing tells that a newer pass began.
#[tokio::test]
async fn a_newer_generation_in_postgresql_alone_ends_the_pass() -> Result<()> {
    let system = with_lost_generation().await?;
    let before = Stores::of(&system).await?.of_the_application();
    let newer = async || {
        system.host.postgres.raise_fence("global", "newer").await?;
        Ok(())
    };
    let rival = once_at(Moment::BeforeHold, newer);
    check_superseded(system.run(&Rivalled::new(&system.host, rival), Mode::Act).await);
    assert_eq!(Stores::of(&system).await?.of_the_application(), before);
    // Nothing was enqueued, so nothing counts as a recovery.
    let counted = "SELECT count(*) FROM salvage.intents WHERE NOT withdrawn";
    let counted: i64 = sqlx::query_scalar(counted).fetch_one(system.db.pool()).await?;
    assert_eq!(counted, 0);
    Ok(())
}

/// The fence in Redis, alone: PostgreSQL and the nonce are as the pass left them.
#[tokio::test]
async fn a_greater_generation_in_the_queue_alone_refuses_the_write() -> Result<()> {
    let system = with_lost_generation().await?;
    let before = SlideJob::read(system.db.pool(), "s1").await?;
    let host_key = system.key("slide-generation", "salvage:host");
    let raise = async || system.redis::<()>(&["HSET", &host_key, "generation:global", "999"]).await;
    let rival = once_at(Moment::BeforeQueue, raise);
    let report = system.run(&Rivalled::new(&system.host, rival), Mode::Act).await?;
    assert_eq!(story(&report, "s1"), "absent requeue refused", "{report:#?}");
    let why = job(&report, "s1").outcome.as_ref().and_then(|outcome| outcome.why.clone());
    assert!(why.as_deref().is_some_and(|why| why.starts_with("fenced")), "{why:?}");
    assert_eq!(SlideJob::read(system.db.pool(), "s1").await?, before);
    assert!(delayed(&system, "slide-generation").await?.is_empty());
    Ok(())
}

#[tokio::test]
async fn accepting_beside_a_pass_ends_it_and_what_was_accepted_stands() -> Result<()> {
    for moment in [Moment::BeforeFirstLook, Moment::AfterLook(1), Moment::Settling, Moment::BeforeHold] {
        let system = with_lost_generation().await?;
        let another = system.another_host().await?;
        let before = Stores::of(&system).await?.of_the_application();
        let accepting = async || {
            accept::queues(&another, &system.settings, &[], Operator::sure("the operator")).await?;
            Ok(())
        };
        let rival = once_at(moment, accepting);
        check_superseded(system.run(&Rivalled::new(&system.host, rival), Mode::Act).await);
        assert_eq!(Stores::of(&system).await?.of_the_application(), before, "{moment:?}");
        let accepted = "SELECT count(*) FROM salvage.queues WHERE accepted_at IS NOT NULL";
        let accepted: i64 = sqlx::query_scalar(accepted).fetch_one(system.db.pool()).await?;
        assert_eq!(usize::try_from(accepted)?, QUEUES.len(), "{moment:?}");
        assert_eq!(story(&system.pass().await?, "s1"), "absent requeue applied", "{moment:?}");
    }
    Ok(())
}

/// L5.
#[tokio::test]
async fn a_redis_that_is_down_at_the_start_costs_that_pass_and_no_restart() -> Result<()> {
    let mut server = Redis::start()?;
    let url = server.url();
    let known = running_on(System::on(&url).await?).await?;
    lose_generation(&known, "s1").await?;
    let host = known.another_host().await?;
    server.stop_saving()?;
    let report = known.run(&host, Mode::Act).await?;
    assert_eq!(report.pass.lease, LeaseState::Unreachable);
    assert_eq!((report.pass.id, report.jobs.len()), (None, 0));
    assert_eq!(SlideJob::read(known.db.pool(), "s1").await?.expect("the row").status, "PROCESSING");
    server.start_again()?;
    let report = known.run(&host, Mode::Act).await?;
    assert_eq!(story(&report, "s1"), "absent requeue applied", "{report:#?}");
    Ok(())
}

#[tokio::test]
async fn a_schema_that_is_missing_is_said_and_the_lease_is_given_back() -> Result<()> {
    let system = running().await?;
    crate::acting::sql(&system, "DROP SCHEMA salvage CASCADE").await?;
    let failure = system.pass().await.expect_err("no schema");
    assert!(failure.to_string().contains("salvage migrate"), "{failure:#}");
    assert_eq!(lease_holder(&system).await?, None);
    Ok(())
}
