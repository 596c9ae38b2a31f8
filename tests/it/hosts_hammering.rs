//! Several hosts, processes of their own, at the same orphans: each is acted on once.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use salvage_tests::system::System;

use crate::acting::{QUEUES, running, sql};
use crate::commands::Running;

/// As many as a mass loss that goes in stages and in several passes, and no more than a host built for debugging does within a
/// minute on a busy machine. [`ORPHANS_VARIABLE`] asks for another number, such as 5000.
const ORPHANS: usize = 1_000;

/// How many orphans instead.
const ORPHANS_VARIABLE: &str = "SALVAGE_TEST_ORPHANS";

/// A pass acts on one of so many orphans, so that the hosts take turns.
const PASSES: usize = 7;

/// Longer than such a pass, so that in between the others come.
const INTERVAL: &str = "3s";

/// Far longer than it takes on a slow machine.
const WITHIN: Duration = Duration::from_secs(240);

/// How often the rows are counted.
const LOOK_EVERY: Duration = Duration::from_millis(200);

/// Orphans of one source, all of which go back to their queue: a mass of failures would wait for an operator.
async fn with_orphans(orphans: usize) -> Result<System> {
    let system = running().await?;
    sql(
        &system,
        &format!(
            "INSERT INTO \"SlideDeck\" (id, title, status, \"updatedAt\") \
             SELECT 'd' || n, 'Title', 'GENERATING', now() FROM generate_series(1, {orphans}) n; \
             INSERT INTO \"SlideJob\" (id, \"deckId\", type, status, \"updatedAt\") \
             SELECT 's' || n, 'd' || n, 'GENERATION', 'PROCESSING', (now() AT TIME ZONE 'UTC') - interval '2 h' \
             FROM generate_series(1, {orphans}) n; ANALYZE"
        ),
    )
    .await?;
    Ok(system)
}

async fn count(system: &System, query: &'static str) -> Result<usize> {
    Ok(usize::try_from(sqlx::query_scalar::<_, i64>(query).fetch_one(system.db.pool()).await?)?)
}

/// Lets so many hosts work until nothing is left to do.
#[expect(clippy::print_stdout, reason = "a figure for whoever runs the test")]
async fn hammer(hosts: usize) -> Result<()> {
    let orphans = match std::env::var(ORPHANS_VARIABLE) {
        Ok(set) => set.parse().context(ORPHANS_VARIABLE)?,
        Err(_) => ORPHANS,
    };
    let system = with_orphans(orphans).await?;
    let began = Instant::now();
    let acts_max = orphans / PASSES;
    let mut hosts_running = Vec::new();
    for _ in 0..hosts {
        let mut command = system.salvage(&["run"])?;
        command.env("SALVAGE_PASS__INTERVAL", INTERVAL).env("SALVAGE_PASS__ACTS_MAX", acts_max.to_string());
        hosts_running.push(Running::start(&mut command)?);
    }
    let left = "SELECT count(*) FROM \"SlideJob\" WHERE status <> 'QUEUED'";
    while count(&system, left).await? > 0 {
        ensure!(
            began.elapsed() < WITHIN,
            "{} are left:\n{}",
            count(&system, left).await?,
            hosts_running[0].stderr()
        );
        tokio::time::sleep(LOOK_EVERY).await;
    }
    let took = began.elapsed();
    // Each looks once more at what is done, which changes nothing.
    let mut worked = 0;
    for host in &mut hosts_running {
        let passes = host.said("pass done");
        host.says("pass done", passes + 1).await?;
        worked += usize::from(host.said("outcome=\"applied\"") > 0);
        host.terminate()?;
        ensure!(host.ended().await?.0 == Some(0), "it did not end well:\n{}", host.stderr());
    }
    println!("{hosts} hosts, {worked} of which acted, put {orphans} orphans back in {took:?}");
    check_each_once(&system, orphans).await
}

async fn check_each_once(system: &System, orphans: usize) -> Result<()> {
    let applied = "SELECT count(*) FROM salvage.ledger WHERE decision = 'requeue' AND outcome = 'applied'";
    ensure!(count(system, applied).await? == orphans, "applied {} times", count(system, applied).await?);
    let twice = "SELECT count(*) FROM (SELECT job_id FROM salvage.ledger WHERE outcome = 'applied' \
         GROUP BY job_id HAVING sum(times) <> 1) AS odd";
    ensure!(count(system, twice).await? == 0, "{} jobs were acted on twice", count(system, twice).await?);
    let intents = "SELECT count(*) FROM (SELECT job_id FROM salvage.intents WHERE NOT withdrawn \
         GROUP BY job_id HAVING count(*) <> 1) AS odd";
    ensure!(count(system, intents).await? == 0, "{} jobs are counted twice", count(system, intents).await?);
    let mut entries = 0;
    for queue in QUEUES {
        for list in ["wait", "active", "paused"] {
            entries += system.redis::<usize>(&["LLEN", &system.key(queue, list)]).await?;
        }
        for set in ["delayed", "prioritized", "waiting-children"] {
            entries += system.redis::<usize>(&["ZCARD", &system.key(queue, set)]).await?;
        }
    }
    ensure!(entries == orphans, "{entries} entries");
    Ok(())
}

#[tokio::test]
async fn two_hosts_at_the_same_orphans_act_on_each_once() -> Result<()> {
    hammer(2).await
}

#[tokio::test]
async fn four_hosts_at_the_same_orphans_act_on_each_once() -> Result<()> {
    hammer(4).await
}
