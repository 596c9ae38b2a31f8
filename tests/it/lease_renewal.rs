//! A lease is renewed while its pass runs; one that is lost ends its pass before the next write.

use std::cell::Cell;
use std::future::pending;
use std::rc::Rc;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use salvage::pass::Mode;
use salvage::ports::{Queues, StoreFailure};
use salvage_core::lease::LeaseLoss;
use salvage_core::report::Report;
use salvage_tests::rival::{Moment, Rivalled, once_at};
use salvage_tests::services::{Redis, fresh_prefix};
use salvage_tests::stores::Stores;
use salvage_tests::system::{System, story};

use crate::acting::{lose_generation, running_on, with_lost_generation};
use crate::commands::Running;
use crate::lease_passes::lease_key;

/// Longest wait for what is going to happen.
const PATIENCE: Duration = Duration::from_secs(30);

/// Of 600 s: beyond the renewal at a third, within the trust of the first request, and beyond that.
const RENEWAL_DUE: Duration = Duration::from_secs(250);
const FIRST_TRUST_OVER: Duration = Duration::from_secs(700);

fn hand() -> (Rc<Cell<Duration>>, Rc<Cell<Duration>>) {
    let hand = Rc::new(Cell::new(Duration::ZERO));
    (Rc::clone(&hand), hand)
}

fn loss(ended: Result<Report>) -> LeaseLoss {
    match ended.expect_err("the lease is lost").downcast() {
        Ok(StoreFailure::LeaseLost(loss)) => loss,
        other => panic!("{other:?}"),
    }
}

async fn until(what: &str, mut holds: impl AsyncFnMut() -> Result<bool>) -> Result<()> {
    let began = Instant::now();
    while !holds().await? {
        ensure!(began.elapsed() < PATIENCE, "it never came true: {what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    Ok(())
}

#[tokio::test]
async fn a_pass_that_lives_longer_than_its_lease_renews_it_and_acts() -> Result<()> {
    let system = with_lost_generation().await?;
    let (ahead, hand) = hand();
    let long = async || {
        let key = lease_key(&system);
        let is_renewed = async || Ok(system.redis::<i64>(&["PTTL", &key]).await? > 500_000);
        for elapsed in [RENEWAL_DUE, 2 * RENEWAL_DUE, 3 * RENEWAL_DUE] {
            ensure!(system.redis::<bool>(&["PEXPIRE", &key, "350000"]).await?, "there is no lease");
            ahead.set(elapsed);
            until("the lease has its whole time again", is_renewed).await?;
        }
        Ok(())
    };
    let host = Rivalled::new(&system.host, once_at(Moment::Settling, long)).with_clock_hand(hand);
    assert_eq!(story(&system.run(&host, Mode::Act).await?, "s1"), "absent requeue applied");
    assert!(!system.redis::<bool>(&["EXISTS", &lease_key(&system)]).await?, "it is given back");
    Ok(())
}

#[tokio::test]
async fn a_lease_that_is_anothers_when_it_is_renewed_ends_the_pass() -> Result<()> {
    for found in [&["SET", "theirs"][..], &["DEL"][..]] {
        let system = with_lost_generation().await?;
        let before = Stores::of(&system).await?.of_the_application();
        let (ahead, hand) = hand();
        let taken = async || {
            let key = lease_key(&system);
            system.redis::<()>(&[&[found[0], key.as_str()], &found[1..]].concat()).await?;
            ahead.set(RENEWAL_DUE);
            // The wait for the queues to settle is over as soon as the lease is lost.
            pending().await
        };
        let host = Rivalled::new(&system.host, once_at(Moment::Settling, taken)).with_clock_hand(hand);
        assert_eq!(loss(system.run(&host, Mode::Act).await), LeaseLoss::NotOurs);
        assert_eq!(Stores::of(&system).await?.of_the_application(), before);
        let holder: Option<String> = system.redis(&["GET", &lease_key(&system)]).await?;
        assert_eq!(holder.as_deref(), found.get(1).copied(), "another's lease is left alone");
    }
    Ok(())
}

#[tokio::test]
async fn a_renewal_without_an_answer_ends_the_pass_when_trust_runs_out() -> Result<()> {
    let server = std::cell::RefCell::new(Redis::start()?);
    let url = server.borrow().url();
    let lines = format!("url = \"{url}\"\ntimeout = \"500ms\"");
    let system = running_on(System::through(&lines, &fresh_prefix(), &url).await?).await?;
    lose_generation(&system, "s1").await?;
    let before = Stores::of(&system).await?.of_the_application();
    let (ahead, hand) = hand();
    let silent = async || {
        server.borrow_mut().pause()?;
        let sent = system.host.queues.commands_sent();
        ahead.set(RENEWAL_DUE);
        until("a renewal is sent", async || Ok(system.host.queues.commands_sent() > sent)).await?;
        ahead.set(FIRST_TRUST_OVER);
        pending().await
    };
    let host = Rivalled::new(&system.host, once_at(Moment::Settling, silent)).with_clock_hand(hand);
    let loss = loss(system.run(&host, Mode::Act).await);
    assert!(matches!(loss, LeaseLoss::NotConfirmed(_)), "{loss:?}");
    server.borrow_mut().resume()?;
    assert_eq!(Stores::of(&system).await?.of_the_application(), before);
    Ok(())
}

/// A machine that was suspended, as its processes see it: time has jumped. What is compared is everything, Salvage's own
/// tables and keys included.
#[tokio::test]
async fn a_host_that_stood_still_until_its_lease_ran_out_writes_nothing_more() -> Result<()> {
    for moment in [Moment::BeforeFirstLook, Moment::AfterLook(1), Moment::Settling, Moment::AfterLook(2)] {
        let system = with_lost_generation().await?;
        let stores = std::cell::RefCell::new(None);
        let (ahead, hand) = hand();
        let suspended = async || {
            stores.replace(Some(Stores::of(&system).await?));
            ahead.set(FIRST_TRUST_OVER);
            Ok(())
        };
        let host = Rivalled::new(&system.host, once_at(moment, suspended)).with_clock_hand(hand);
        assert_eq!(loss(system.run(&host, Mode::Act).await), LeaseLoss::StoodStill, "{moment:?}");
        let mut before = stores.take().expect("the moment came");
        before.keys.remove(&lease_key(&system));
        assert_eq!(Stores::of(&system).await?, before, "{moment:?}");
        assert_eq!(story(&system.pass().await?, "s1"), "absent requeue applied");
    }
    Ok(())
}

/// The same in the middle of the acts: those that are under way end, no other begins.
#[tokio::test]
async fn a_host_that_stood_still_in_the_middle_of_its_acts_begins_no_other() -> Result<()> {
    let system = with_lost_generation().await?;
    for id in ["s2", "s3"] {
        lose_generation(&system, id).await?;
    }
    let (ahead, hand) = hand();
    let suspended = async || {
        ahead.set(FIRST_TRUST_OVER);
        Ok(())
    };
    let host = Rivalled::new(&system.host, once_at(Moment::BeforeHold, suspended)).with_clock_hand(hand);
    assert_eq!(loss(system.run(&host, Mode::Act).await), LeaseLoss::StoodStill);
    assert_eq!(crate::acting::delayed(&system, "slide-generation").await?, ["slide-s1"]);
    let counted = "SELECT count(*) FROM salvage.intents WHERE NOT withdrawn";
    let counted: i64 = sqlx::query_scalar(counted).fetch_one(system.db.pool()).await?;
    assert_eq!(counted, 1, "what was not begun does not count as a recovery");
    let report = system.pass().await?;
    assert_eq!(salvage_tests::system::source(&report, "slides/generation").requeued, 2, "{report:#?}");
    Ok(())
}

/// The real process, really frozen: the interval is five minutes, far beyond the deadline of this wait.
#[tokio::test]
async fn a_process_that_was_frozen_starts_its_pass_over_at_once() -> Result<()> {
    let system = with_lost_generation().await?;
    let settings = [("SALVAGE_LEASE__TTL", "3s"), ("SALVAGE_PASS__SETTLE", "2s")];
    let mut command = system.salvage(&["run"])?;
    let mut process = Running::start(command.envs(settings))?;
    process.says("looking again before anything is written", 1).await?;
    process.freeze()?;
    let key = lease_key(&system);
    until("the lease has run out", async || Ok(!system.redis::<bool>(&["EXISTS", &key]).await?)).await?;
    process.wake()?;
    process.says("the lease was lost: this host stood still", 1).await?;
    process.says("pass done", 1).await?;
    assert_eq!(crate::acting::delayed(&system, "slide-generation").await?, ["slide-s1"]);
    process.terminate()?;
    assert_eq!(process.ended().await?.0, Some(0), "{}", process.stderr());
    Ok(())
}
