//! L3: a holder that is frozen in the middle of its writes, for longer than its lease lasts.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use salvage::pass::Mode;
use salvage::ports::StoreFailure;
use salvage_core::report::Report;
use salvage_tests::example::{Jobs, SlideJob};
use salvage_tests::rival::{Moment, Rival, Rivalled};
use salvage_tests::stores::Stores;
use salvage_tests::system::{System, source};
use sqlx::Connection;
use tokio::sync::OnceCell;

use crate::acting::{delayed, lose_generation, running, sql};
use crate::commands::{Running, ran, until_true};
use crate::lease_passes::lease_key;

/// PostgreSQL ends a frozen transaction after 5 s; the rest is for a slow machine.
const WAIT_MAX: Duration = Duration::from_secs(8);

/// Orphans, more than there are acts at a time and too few for a mass loss, which would begin with one. And how many of them
/// the second host does.
const ORPHANS: usize = 20;
const ACTS_OF_THE_SECOND: usize = 5;

/// Goal: real processes, one of them frozen (SIGSTOP) beyond its lease while its acts hold rows. Whoever wants these rows
/// waits no longer than the timeouts; a second host works; when the first wakes it writes nothing more.
///
/// Method: a trigger that waits for a lock of ours stops every act between its row and its queue. The first host is frozen
/// there and the lock given back, so that its transactions sit idle with their rows locked. The second host may do only
/// some of the work, so that the first would find plenty left to do when it wakes.
#[tokio::test]
async fn a_host_frozen_in_the_middle_of_its_writes_writes_nothing_when_it_wakes() -> Result<()> {
    let system = running().await?;
    let db = system.db.pool();
    for number in 0..ORPHANS {
        lose_generation(&system, &format!("s{number:02}")).await?;
    }
    // Not pg_advisory_xact_lock itself: the act's lock_timeout would end the wait.
    let gate = "CREATE FUNCTION gate() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN \
         WHILE NOT pg_try_advisory_xact_lock_shared(4712) LOOP PERFORM pg_sleep(0.01); END LOOP; RETURN NEW; END $$; \
         CREATE TRIGGER gate BEFORE UPDATE ON \"SlideJob\" FOR EACH ROW EXECUTE FUNCTION gate()";
    sql(&system, gate).await?;
    let mut keeper = sqlx::PgConnection::connect(system.db.url()).await?;
    sqlx::query("SELECT pg_advisory_lock(4712)").execute(&mut keeper).await?;

    let short = [("SALVAGE_LEASE__TTL", "2s"), ("SALVAGE_PASS__SETTLE", "1ms")];
    let mut first = Running::start(system.salvage(&["once", "--json"])?.envs(short))?;
    let at_work = "SELECT count(*) = 8 FROM pg_stat_activity WHERE datname = current_database() \
                   AND application_name = 'salvage' AND wait_event = 'PgSleep'";
    until_true(db, at_work).await?;
    first.freeze()?;
    sqlx::query("SELECT pg_advisory_unlock(4712)").execute(&mut keeper).await?;
    until_true(
        db,
        "SELECT count(*) = 8 FROM pg_stat_activity WHERE datname = current_database() \
         AND application_name = 'salvage' AND state LIKE 'idle in transaction%'",
    )
    .await?;

    // A worker that writes the rows that the frozen host has locked.
    let began = Instant::now();
    let worker = "UPDATE \"SlideJob\" SET progress = progress + 1 WHERE id < 's08'";
    sqlx::query(worker).execute(&mut keeper).await?;
    ensure!(began.elapsed() < WAIT_MAX, "a worker waited {:?} for a frozen host", began.elapsed());

    let key = lease_key(&system);
    let began = Instant::now();
    while system.redis::<bool>(&["EXISTS", &key]).await? {
        ensure!(began.elapsed() < WAIT_MAX, "the lease of a frozen host does not run out");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let acts_max = ACTS_OF_THE_SECOND.to_string();
    let second = ran(system.salvage(&["once", "--json"])?.env("SALVAGE_PASS__ACTS_MAX", &acts_max))?;
    let report = second.ended_with(0)?.json()?;
    assert_eq!(report["sources"][2]["requeued"], ACTS_OF_THE_SECOND, "{report:#}");

    let before = Stores::of(&system).await?.of_the_application();
    first.wake()?;
    let (code, _) = first.ended().await?;
    assert_eq!(code, Some(1), "{}", first.stderr());
    assert!(first.stderr().contains("the lease was lost"), "{}", first.stderr());
    assert_eq!(Stores::of(&system).await?.of_the_application(), before, "a late write");
    assert_eq!(delayed(&system, "slide-generation").await?.len(), ACTS_OF_THE_SECOND);
    Ok(())
}

/// The pass of a host for which time stood still before its first write, while another host passed, and did some of the
/// work. Its lease and its clock tell it nothing: only the fence is left.
async fn late(system: &System, is_fenced: bool) -> Result<(Result<Report>, usize, usize)> {
    let another = system.another_host().await?;
    let passed = OnceCell::new();
    let pass = async || {
        system.redis::<()>(&["DEL", &lease_key(system)]).await.expect("the lease runs out");
        let settings = salvage_core::settings::PassSettings { acts_max: 1, ..system.settings.clone() };
        let (_switch, stop) = salvage::stop::stop();
        let report =
            salvage::pass::run(&another, &settings, Mode::Act, &stop).await.expect("the other passes");
        assert_eq!(source(&report, "slides/generation").requeued, 1, "{report:#?}");
    };
    let rival: Rival<'_> = Box::new(|moment| {
        let (passed, pass) = (&passed, &pass);
        Box::pin(async move {
            if moment == Moment::BeforeHold {
                passed.get_or_init(pass).await;
            }
        })
    });
    let host = Rivalled::new(&system.host, rival);
    let host = if is_fenced { host } else { host.unfenced(system.db.pool()) };
    let ended = system.run(&host, Mode::Act).await;
    let mut rows = 0;
    for number in 0..6 {
        let row = SlideJob::read(system.db.pool(), &format!("s{number}")).await?.expect("the row");
        rows += usize::from(row.status == "QUEUED");
    }
    // Without what the other one did.
    Ok((ended, rows - 1, delayed(system, "slide-generation").await?.len() - 1))
}

/// That it is the fence which keeps a late host from writing, in both stores: without it, it does.
#[tokio::test]
async fn without_the_fence_a_late_host_writes_into_both_stores_and_with_it_into_neither() -> Result<()> {
    for is_fenced in [true, false] {
        let system = running().await?;
        for number in 0..6 {
            lose_generation(&system, &format!("s{number}")).await?;
        }
        let (ended, late_rows, late_entries) = late(&system, is_fenced).await?;
        if is_fenced {
            let failure = ended.expect_err("superseded");
            assert!(matches!(failure.downcast_ref(), Some(StoreFailure::Fenced { .. })), "{failure:#}");
            assert_eq!((late_rows, late_entries), (0, 0));
        } else {
            assert!(
                late_rows >= 1 && late_entries >= 1,
                "{late_rows} rows, {late_entries} entries: {ended:?}"
            );
        }
    }
    Ok(())
}
