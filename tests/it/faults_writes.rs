//! A Redis that takes no writes: what it says of its queues counts, if it says anything, and nothing is put back.

use std::time::Duration;

use anyhow::{Context, Result};
use salvage::pass::Mode;
use salvage::ports::Lease;
use salvage_core::report::LeaseState;
use salvage_core::sighting::{Doubt, QueueFailure};
use salvage_tests::rival::{Moment, Rivalled, once_at};
use salvage_tests::services::{Redis, until};
use salvage_tests::stores::Stores;
use salvage_tests::system::{job, story};

use crate::faults::{Untouched, World};
use crate::judging_world::epochs;

/// Longest wait for a server to be as it should be.
const DEADLINE: Duration = Duration::from_secs(30);

/// Goes through a time without writes: with a plan, with a pass, and with passes that had begun before it, one of which had
/// come as far as the queue itself. `is_readable`: whether what is read counts.
async fn check(
    world: &World,
    code: &str,
    is_readable: bool,
    begin: impl AsyncFn() -> Result<()>,
    end: impl AsyncFn() -> Result<()>,
) -> Result<()> {
    let system = &world.system;
    let refusal = QueueFailure::WritesRefused { code: code.to_owned() };
    let began = epochs(system).await?;
    let (before, whole) = (Untouched::of(system).await?, Stores::of(system).await?);

    begin().await.context("beginning")?;
    let plan = system.plan().await?;
    let report = system.pass().await?;
    let lease = system.host.lease.acquire(&salvage_core::lease::Scope::Global, "somebody", DEADLINE).await;
    end().await.context("ending")?;
    let told = (story(&plan, "lost"), story(&plan, "found"));
    if is_readable {
        assert_eq!(told, ("absent requeue -".into(), "scheduled".into()));
    } else {
        assert_eq!(told, ("unknown none -".into(), "unknown none -".into()));
        assert_eq!(job(&plan, "lost").sighting.why, Some(Doubt::Redis(refusal.clone()).to_string()));
    }
    assert_eq!((report.pass.lease, lease), (LeaseState::Unreachable, Err(refusal.clone())));
    assert_eq!(Stores::of(system).await?, whole, "without a lease nothing is written at all");

    // The nonce cannot be written, so no absence would be proven for long.
    let rival = once_at(Moment::BeforeFirstLook, &begin);
    let report = system.run(&Rivalled::new(&system.host, rival), Mode::Act).await?;
    end().await.context("ending")?;
    assert_eq!(job(&report, "lost").sighting.why, Some(Doubt::Redis(refusal.clone()).to_string()));
    world.free_lease().await?;
    assert_eq!(Untouched::of(system).await?, before);

    let rival = once_at(Moment::BeforeQueue, &begin);
    let report = system.run(&Rivalled::new(&system.host, rival), Mode::Act).await?;
    end().await.context("ending")?;
    assert_eq!(story(&report, "lost"), "absent requeue refused", "{report:#?}");
    let why = job(&report, "lost").outcome.as_ref().and_then(|outcome| outcome.why.clone());
    assert_eq!(why, Some(refusal.to_string()));
    world.free_lease().await?;
    assert_eq!(Untouched::of(system).await?, before);

    world.works_again().await?;
    assert_eq!(epochs(system).await?, began);
    Ok(())
}

/// It does not even let commands wait for EXEC then, so there is no snapshot.
#[tokio::test]
async fn a_redis_that_has_reached_its_memory_limit_is_neither_read_nor_written() -> Result<()> {
    let server = Redis::start()?;
    let world = World::on(&server.url()).await?;
    let limit = |bytes: &str| server.command(&["CONFIG", "SET", "maxmemory", bytes]).map(drop);
    check(&world, "OOM", false, async || limit("1"), async || limit("0")).await
}

#[tokio::test]
async fn a_redis_with_too_few_replicas_is_read_and_not_written() -> Result<()> {
    let server = Redis::start()?;
    let world = World::on(&server.url()).await?;
    let want =
        |replicas: &str| server.command(&["CONFIG", "SET", "min-replicas-to-write", replicas]).map(drop);
    check(&world, "NOREPLICAS", true, async || want("1"), async || want("0")).await
}

/// A folder stands where the dump should go, so that it cannot be saved whoever runs Redis.
#[tokio::test]
async fn a_redis_that_cannot_save_is_read_and_not_written() -> Result<()> {
    let server = Redis::start()?;
    let world = World::on(&server.url()).await?;
    server.command(&["CONFIG", "SET", "save", "3600 1"])?;
    let folder = server.command(&["CONFIG", "GET", "dir"])?;
    let dump = format!("{}/dump.rdb", folder.lines().last().context("a folder")?);
    let saved = |status: &str| {
        server.command(&["BGSAVE"])?;
        until("Redis has saved, or has not", DEADLINE, || {
            let info = server.command(&["INFO", "persistence"])?;
            let is = |line: &str| info.lines().any(|found| found == line);
            Ok(is("rdb_bgsave_in_progress:0") && is(&format!("rdb_last_bgsave_status:{status}")))
        })
    };
    let begin = async || {
        std::fs::create_dir(&dump)?;
        saved("err")
    };
    let end = async || {
        std::fs::remove_dir(&dump)?;
        saved("ok")?;
        std::fs::remove_file(&dump).context("removing the dump")
    };
    check(&world, "MISCONF", true, begin, end).await
}
