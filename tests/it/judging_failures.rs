//! The first rule: a failed look-up is not an absence. Whatever Redis does instead of answering, nothing is written.

use std::cell::RefCell;
use std::time::{Duration, Instant};

use anyhow::Result;
use salvage::pass::Mode;
use salvage::redis::{RedisQueues, RedisSettings, Servers, TlsFiles};
use salvage_core::report::LeaseState;
use salvage_core::snapshot::State;
use salvage_tests::example::{Deck, Jobs, SlideJob};
use salvage_tests::rival::{Moment, Rival};
use salvage_tests::services::{Redis, RedisOptions, until};
use salvage_tests::stores::{Stores, tables};
use salvage_tests::system::{System, job, source, story};

use crate::judging_world::{OTHER, QUEUE, Watched, against, entry, epochs, running, running_on};

/// Two stale jobs of one deck: `lost` is in no queue, `found` is in the second one.
async fn lost_and_found(system: &System) -> Result<()> {
    Deck::generating("d1").insert(system.db.pool()).await?;
    for id in ["lost", "found"] {
        SlideJob::processing(id).stale().of("d1").insert(system.db.pool()).await?;
    }
    entry(system, OTHER, State::Waiting, "slide-found", "{\"jobId\":\"found\"}").await
}

/// The host's own connection, with a limit that a test can wait for.
fn hurry(system: &mut System) -> Result<()> {
    let settings = RedisSettings {
        servers: Servers::Single { url: system.redis_url.clone() },
        prefix: system.prefix.clone(),
        timeout: Duration::from_millis(200),
        tls: TlsFiles::default(),
    };
    system.host.queues = RedisQueues::new(&settings)?;
    system.host.lease = system.host.queues.lease(format!("{}:lock", system.prefix));
    Ok(())
}

/// J4: WRONGTYPE on one of the six keys, each in its turn.
#[tokio::test]
async fn one_key_of_a_wrong_type_makes_what_is_not_found_elsewhere_unknown() -> Result<()> {
    let system = running().await?;
    lost_and_found(&system).await?;
    for state in State::ALL {
        let key = system.key(QUEUE, state.key());
        system.redis::<()>(&["SET", &key, "something else"]).await?;
        let whole = Stores::of(&system).await?;
        let before = Stores::of(&system).await?.of_the_application();
        for report in [system.plan().await?, {
            assert_eq!(Stores::of(&system).await?, whole);
            system.pass().await?
        }] {
            assert_eq!(story(&report, "lost"), "unknown none -", "{state}: {report:#?}");
            assert_eq!(story(&report, "found"), "scheduled", "{state}");
            let why = job(&report, "lost").sighting.why.clone().unwrap_or_default();
            assert!(why.contains(&key) && why.contains("WRONGTYPE"), "{why}");
            assert!(!report.judged_nothing());
        }
        assert_eq!(Stores::of(&system).await?.of_the_application(), before, "{state}");
        system.redis::<()>(&["DEL", &key]).await?;
    }
    let report = system.pass().await?;
    assert_eq!(
        story(&report, "lost"),
        "absent requeue applied",
        "mended, and nothing was held against it: {report:#?}"
    );
    Ok(())
}

/// J4: refused. An acting pass does not even begin.
#[tokio::test]
async fn a_closed_port_makes_everything_unknown_and_writes_nothing() -> Result<()> {
    let mut redis = Redis::start()?;
    let system = running_on(&redis.url()).await?;
    lost_and_found(&system).await?;
    let before = tables(system.db.pool(), &["public", "salvage"]).await?;
    redis.kill()?;
    let report = system.plan().await?;
    for id in ["lost", "found"] {
        assert_eq!(story(&report, id), "unknown none -", "{report:#?}");
    }
    assert!(report.judged_nothing());
    assert_eq!((report.pass.lease, report.pass.scan_ran), (LeaseState::NotTaken, false));
    let report = system.pass().await?;
    assert_eq!((report.pass.lease, report.jobs.len()), (LeaseState::Unreachable, 0));
    assert_eq!(tables(system.db.pool(), &["public", "salvage"]).await?, before);
    Ok(())
}

/// J4: refused in the middle of a pass. What Redis held comes back with it, so the next pass acts.
#[tokio::test]
async fn a_redis_that_dies_in_mid_pass_changes_no_row() -> Result<()> {
    let redis = RefCell::new(Redis::start_with(RedisOptions::default().durable())?);
    let url = redis.borrow().url();
    let system = running_on(&url).await?;
    lost_and_found(&system).await?;
    // A payload to be read, in the queue where `lost` may be.
    entry(&system, QUEUE, State::Waiting, "old", "{\"jobId\":\"somebody\"}").await?;
    let (before, began) = (tables(system.db.pool(), &["public"]).await?, epochs(&system).await?);
    let moments = [Moment::BeforeFirstLook, Moment::AfterLook(1), Moment::Settling, Moment::AfterLook(2)];
    // Once more without the payload: then what the job left behind is the first to be asked for, and is not told.
    for (round, moment) in moments.into_iter().chain([Moment::AfterLook(2)]).enumerate() {
        if round == moments.len() {
            redis.borrow().command(&["DEL", &system.key(QUEUE, "wait")])?;
        }
        let rival: Rival<'_> = Box::new(|at| {
            if at == moment {
                redis.borrow_mut().kill().expect("killing Redis");
            }
            Box::pin(async {})
        });
        let report = system.run(&against(&system.host, rival), Mode::Act).await?;
        assert_eq!(job(&report, "lost").sighting.kind, "unknown", "{moment:?}: {report:#?}");
        let counts = source(&report, "slides/generation");
        assert_eq!((counts.requeued, counts.failed, counts.absent), (0, 0, 0), "{moment:?}: {report:#?}");
        assert_eq!(tables(system.db.pool(), &["public"]).await?, before, "{moment:?}");
        redis.borrow_mut().start_again()?;
        // Nobody could release it.
        redis.borrow().command(&["DEL", &format!("{}:lock", system.prefix)])?;
    }
    let report = system.pass().await?;
    assert_eq!(story(&report, "lost"), "absent requeue applied", "{report:#?}");
    assert_eq!(epochs(&system).await?, began);
    Ok(())
}

/// J4: frozen. The pass waits no longer than its limits; when Redis wakes, what was sent meanwhile has done no harm, and
/// no epoch has ended.
#[tokio::test]
async fn a_redis_that_freezes_in_mid_pass_changes_no_row_and_ends_no_epoch() -> Result<()> {
    let redis = RefCell::new(Redis::start()?);
    let url = redis.borrow().url();
    let mut system = running_on(&url).await?;
    lost_and_found(&system).await?;
    hurry(&mut system)?;
    entry(&system, QUEUE, State::Waiting, "old", "{\"jobId\":\"somebody\"}").await?;
    let (before, began) = (Stores::of(&system).await?.of_the_application(), epochs(&system).await?);
    for moment in [Moment::BeforeFirstLook, Moment::AfterLook(1), Moment::Settling, Moment::AfterLook(2)] {
        let rival: Rival<'_> = Box::new(|at| {
            if at == moment {
                redis.borrow_mut().pause().expect("freezing Redis");
            }
            Box::pin(async {})
        });
        let started = Instant::now();
        let report = system.run(&against(&system.host, rival), Mode::Act).await?;
        assert!(started.elapsed() < Duration::from_secs(10), "{moment:?}");
        redis.borrow_mut().resume()?;
        assert_eq!(job(&report, "lost").sighting.kind, "unknown", "{moment:?}: {report:#?}");
        assert_eq!(Stores::of(&system).await?.of_the_application(), before, "{moment:?}");
        // Its release was sent, or could not be.
        system.redis::<()>(&["DEL", &format!("{}:lock", system.prefix)]).await?;
    }
    let report = system.pass().await?;
    assert_eq!(story(&report, "lost"), "absent requeue applied", "{report:#?}");
    assert_eq!(epochs(&system).await?, began);
    Ok(())
}

/// J4: only the payloads cannot be read, in either look; the job is there, under an old id.
#[tokio::test]
async fn a_scan_that_breaks_off_makes_what_it_had_not_found_unknown() -> Result<()> {
    let system = running().await?;
    lost_and_found(&system).await?;
    entry(&system, QUEUE, State::Waiting, "old", "{\"jobId\":\"lost\"}").await?;
    let before = Stores::of(&system).await?.of_the_application();
    let watched = Watched::new(&system.host);
    watched.queues.failing_payloads.set(true);
    let report = system.run(&watched, Mode::Act).await?;
    assert_eq!(story(&report, "lost"), "unknown none -", "{report:#?}");
    assert_eq!(story(&report, "found"), "scheduled", "it was found without");
    assert_eq!(Stores::of(&system).await?.of_the_application(), before);

    watched.queues.failing_payloads.set(false);
    let report = system.run(&watched, Mode::Act).await?;
    assert_eq!(story(&report, "lost"), "scheduled", "{report:#?}");
    Ok(())
}

/// J4: NOPERM on any command of the look, BUSY, and a read-only replica.
#[tokio::test]
async fn a_redis_that_refuses_makes_everything_unknown() -> Result<()> {
    let redis = Redis::start_with(RedisOptions::default().set("--busy-reply-threshold", &["10"]))?;
    let system = running_on(&redis.url()).await?;
    lost_and_found(&system).await?;
    let before = tables(system.db.pool(), &["public", "salvage"]).await?;
    for command in ["multi", "exec", "time", "info", "lrange", "zrange", "get", "exists", "hexists", "hget"] {
        redis.command(&["ACL", "SETUSER", "default", &format!("-{command}")])?;
        let report = system.plan().await?;
        redis.command(&["ACL", "SETUSER", "default", "+@all"])?;
        assert_eq!(story(&report, "lost"), "unknown none -", "{command}: {report:#?}");
        assert!(report.judged_nothing(), "{command}: {report:#?}");
    }

    let port = redis.port();
    let looping = std::thread::spawn(move || {
        // Ends with an error when it is killed.
        let spin = ["EVAL", "while true do end", "0"];
        drop(spin_on(port, &spin));
    });
    until("Redis is busy", Duration::from_secs(10), || {
        Ok(redis.command(&["PING"]).is_err_and(|error| format!("{error:#}").contains("BUSY")))
    })?;
    let report = system.plan().await?;
    redis.command(&["SCRIPT", "KILL"])?;
    assert!(report.judged_nothing(), "busy: {report:#?}");
    looping.join().expect("the thread that keeps Redis busy");

    redis.command(&["REPLICAOF", "127.0.0.1", "1"])?;
    let report = system.plan().await?;
    assert_eq!(story(&report, "lost"), "unknown none -", "replica: {report:#?}");
    let why = job(&report, "lost").sighting.why.clone().unwrap_or_default();
    assert!(why.contains("slave"), "{why}");
    let report = system.pass().await?;
    assert_eq!(report.pass.lease, LeaseState::Unreachable, "READONLY is no lease");
    assert_eq!(tables(system.db.pool(), &["public", "salvage"]).await?, before);
    Ok(())
}

fn spin_on(port: u16, words: &[&str]) -> Result<()> {
    let mut connection = redis::Client::open(format!("redis://127.0.0.1:{port}"))?.get_connection()?;
    redis::cmd(words[0]).arg(&words[1..]).exec(&mut connection)?;
    Ok(())
}
