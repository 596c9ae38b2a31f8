//! The application never pays (A20): whatever the host does in the middle of its transaction, a transaction of the
//! application's that wants the same rows is never the one that dies, and never waits longer than our timeouts.
//!
//! The host is a process of its own, acting on rows that the application's connections lock all the while, some the job
//! first and then its parent, some the parent first. No two of them share a row, so whatever they wait for is ours.

use std::cell::Cell;
use std::rc::Rc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use futures_util::future::try_join_all;
use salvage::command::accept::{self, Operator};
use salvage_core::act::STATEMENT_TIMEOUT;
use salvage_tests::example::{Deck, Jobs, SlideJob};
use salvage_tests::system::System;
use sqlx::{Connection, PgConnection};

use crate::acting::{QUEUES, sql};
use crate::commands::Running;

/// Orphans; each is failed together with its parent.
const ORPHANS: usize = 60;

/// Connections of the application; each locks its share of the rows in turn, so that many of our acts meet one.
const CLIENTS: usize = 10;

/// What a busy machine may add to a limit.
const SLACK: Duration = Duration::from_millis(2_500);

/// How often the host is frozen until it is caught in the middle of a transaction.
const ATTEMPTS: usize = 200;

/// Sessions of the host that hold a job and its parent, and wait for the host. What it writes into tables of its own says
/// nothing of that.
const CAUGHT: &str = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() \
     AND application_name = 'salvage' AND state = 'idle in transaction' \
     AND (query LIKE 'UPDATE \"%' OR query LIKE 'SET CONSTRAINTS%')";

/// A system in which there is much to fail, and nothing to wait for.
async fn with_orphans() -> Result<System> {
    let system = System::fresh().await?;
    system.used_queues(&QUEUES).await?;
    for number in 0..ORPHANS {
        let deck = format!("d{number}");
        Deck::generating(&deck).insert(system.db.pool()).await?;
        let job = SlideJob::processing(format!("s{number}")).kind("OUTLINE").stale().of(&deck);
        job.insert(system.db.pool()).await?;
    }
    // PostgreSQL looks for deadlocks so late that only our giving way ends one in time, whoever its victim would be.
    let patient = format!("ALTER DATABASE {} SET deadlock_timeout = '60s'", system.db.name());
    sql(&system, &patient).await?;
    accept::queues(&system.host, &system.settings, &[], Operator::sure("the operator")).await?;
    Ok(system)
}

/// Locks the rows of one client in turn until told to stop, in one of both orders; returns the longest wait for a lock.
async fn client(url: &str, number: usize, is_over: Rc<Cell<bool>>) -> Result<Duration> {
    let mut connection = PgConnection::connect(url).await?;
    let job = "SELECT 1 FROM \"SlideJob\" WHERE id = 's' || $1 FOR UPDATE";
    let parent = "SELECT 1 FROM \"SlideDeck\" WHERE id = 'd' || $1 FOR UPDATE";
    let order = if number.is_multiple_of(2) { [job, parent] } else { [parent, job] };
    let mut longest = Duration::ZERO;
    while !is_over.get() {
        for row in (number..ORPHANS).step_by(CLIENTS) {
            let mut transaction = connection.begin().await?;
            for lock in order {
                let began = Instant::now();
                let locked = sqlx::query(lock).bind(row.to_string()).execute(&mut *transaction).await;
                locked.with_context(|| format!("the application's transaction died at {lock}"))?;
                longest = longest.max(began.elapsed());
                // What it does with the first row, while the second may be taken.
                sqlx::query("SELECT pg_sleep(0.005)").execute(&mut *transaction).await?;
            }
            transaction.commit().await?;
        }
    }
    connection.close().await?;
    Ok(longest)
}

/// Runs the application beside what the host does; returns the application's longest wait.
async fn beside(system: &System, host: impl AsyncFnOnce() -> Result<()>) -> Result<Duration> {
    let is_over = Rc::new(Cell::new(false));
    let clients =
        try_join_all((0..CLIENTS).map(|number| client(system.db.url(), number, Rc::clone(&is_over))));
    let act = async {
        let acted = host().await;
        is_over.set(true);
        acted
    };
    let (waits, ()) = tokio::try_join!(clients, act)?;
    Ok(waits.into_iter().max().unwrap_or_default())
}

async fn caught(system: &System) -> Result<i64> {
    Ok(sqlx::query_scalar(CAUGHT).fetch_one(system.db.pool()).await?)
}

/// Starts the host, and freezes it while it holds rows.
async fn frozen(system: &System) -> Result<Running> {
    let mut host = Running::start(&mut system.salvage(&["once"])?)?;
    for _ in 0..ATTEMPTS {
        host.says("looking again", 1).await?;
        host.signal(libc::SIGSTOP)?;
        // What it had sent may still be on its way: only what stays so is held by the freeze.
        tokio::time::sleep(Duration::from_millis(20)).await;
        if caught(system).await? > 0 {
            tokio::time::sleep(Duration::from_millis(700)).await;
            if caught(system).await? > 0 {
                return Ok(host);
            }
        }
        host.signal(libc::SIGCONT)?;
        tokio::time::sleep(Duration::from_millis(3)).await;
    }
    anyhow::bail!("it was never caught while it held rows:\n{}", host.stderr())
}

async fn until_rows_are_free(system: &System) -> Result<()> {
    let began = Instant::now();
    while caught(system).await? > 0 {
        ensure!(began.elapsed() < 2 * STATEMENT_TIMEOUT, "the rows are still held");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    Ok(())
}

/// A row is as it was, or failed together with its parent.
async fn check_whole(system: &System) -> Result<i64> {
    let odd = "SELECT count(*) FROM \"SlideJob\" AS j JOIN \"SlideDeck\" AS d ON d.id = j.\"deckId\" \
         WHERE (j.status, d.status) NOT IN (('PROCESSING', 'GENERATING'), ('FAILED', 'FAILED'))";
    let odd: i64 = sqlx::query_scalar(odd).fetch_one(system.db.pool()).await?;
    ensure!(odd == 0, "{odd} rows are written by half");
    let failed = "SELECT count(*) FROM \"SlideJob\" WHERE status = 'FAILED'";
    Ok(sqlx::query_scalar(failed).fetch_one(system.db.pool()).await?)
}

#[tokio::test]
async fn the_application_waits_for_no_longer_than_an_act_and_never_dies_while_the_host_acts() -> Result<()> {
    let system = with_orphans().await?;
    let waited = beside(&system, async || {
        // What the application held was left to a later pass.
        for _ in 0..3 {
            let mut host = Running::start(&mut system.salvage(&["once"])?)?;
            assert_eq!(host.ended().await?.0, Some(0), "{}", host.stderr());
        }
        Ok(())
    })
    .await?;
    println!("the application's longest wait beside a host that acts: {waited:?}");
    assert!(waited < Duration::from_secs(1) + SLACK, "{waited:?}");
    assert!(check_whole(&system).await? > 0, "the host got nothing done");
    Ok(())
}

#[tokio::test]
async fn the_application_waits_no_longer_than_the_timeout_for_a_host_that_freezes() -> Result<()> {
    let system = with_orphans().await?;
    let waited = beside(&system, async || {
        let mut host = frozen(&system).await?;
        until_rows_are_free(&system).await?;
        host.signal(libc::SIGCONT)?;
        host.ended().await?;
        Ok(())
    })
    .await?;
    println!("the application's longest wait for a host that froze: {waited:?}");
    assert!(waited > Duration::from_secs(1), "it met none of the rows: {waited:?}");
    assert!(waited < STATEMENT_TIMEOUT + SLACK, "{waited:?}");
    check_whole(&system).await?;
    Ok(())
}

#[tokio::test]
async fn the_application_goes_on_at_once_when_the_host_is_killed_in_the_middle() -> Result<()> {
    let system = with_orphans().await?;
    let waited = beside(&system, async || {
        let mut host = frozen(&system).await?;
        host.signal(libc::SIGKILL)?;
        host.ended().await?;
        until_rows_are_free(&system).await
    })
    .await?;
    println!("the application's longest wait for a host that was killed: {waited:?}");
    assert!(waited < SLACK, "{waited:?}");
    check_whole(&system).await?;
    // As if its lease had run out: the next pass heals what it left.
    system.redis::<()>(&["DEL", &format!("{}:lock", system.prefix)]).await?;
    system.pass().await?;
    assert_eq!(check_whole(&system).await?, i64::try_from(ORPHANS)?);
    Ok(())
}
