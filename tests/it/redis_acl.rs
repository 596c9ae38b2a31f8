//! The permissions in docs/redis.md: enough for a whole pass, and each of them needed.

use anyhow::{Context, Result};
use salvage::ports::Lease;
use salvage::redis::SnapshotLimits;
use salvage_core::lease::{LeaseAnswer, Scope};
use salvage_core::report::{LeaseState, Report};
use salvage_core::sighting::QueueFailure;
use salvage_tests::example::{Deck, Jobs, SlideJob};
use salvage_tests::services::{Redis, fresh_prefix};
use salvage_tests::system::{System, story};

use crate::redis_world::QUEUE;

const DOCUMENT: &str = include_str!("../../docs/redis.md");

/// What a pass in which nothing unusual happens does without: events are a courtesy, short passes renew no lease, and short
/// queues need no copies.
const UNMISSED: [&str; 6] = ["+xadd", "+pexpire", "+copy", "+sort", "+unlink", "+zmscore"];

/// The document's pattern for the lease.
const LEASE: &str = "~lock:job-recovery";

/// The words of the document's `ACL SETUSER`, for a test's prefix. (The test's lease lies under it.)
fn documented(prefix: &str) -> Result<Vec<String>> {
    let line = DOCUMENT.lines().find(|line| line.starts_with("ACL SETUSER salvage ")).context("the line")?;
    let line = line.replace("~bull:", &format!("~{prefix}:"));
    let line = line.replace(">PASSWORD", ">secret");
    Ok(line.split(' ').map(str::to_owned).collect())
}

struct World {
    server: Redis,
    system: System,
    permissions: Vec<String>,
}

impl World {
    /// A system that has run for a day, as a user with the documented permissions.
    async fn fresh() -> Result<Self> {
        let server = Redis::start()?;
        let prefix = fresh_prefix();
        let permissions = documented(&prefix)?;
        let url = server.url().replace("redis://", "redis://salvage:secret@");
        let system = System::through(&format!("url = \"{url}\""), &prefix, &server.url()).await?;
        let world = Self { server, system, permissions };
        world.permit(&world.permissions)?;
        world.system.used_queues(&["slide-generation", "slide-export"]).await?;
        world.system.known_since_yesterday().await?;
        Deck::generating("d1").insert(world.system.db.pool()).await?;
        Ok(world)
    }

    fn permit(&self, words: &[String]) -> Result<()> {
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        self.server.command(&words).map(drop)
    }

    async fn orphan(&self, id: &str) -> Result<()> {
        SlideJob::processing(id).stale().of("d1").insert(self.system.db.pool()).await?;
        Ok(())
    }

    fn is_enqueued(&self, id: &str) -> Result<bool> {
        let delayed = self.system.key(QUEUE, "delayed");
        Ok(!self.server.command(&["ZSCORE", &delayed, &format!("slide-{id}")])?.is_empty())
    }

    /// The sentence of whatever was forbidden in a pass.
    async fn told(&self, report: &Report) -> String {
        if report.pass.lease == LeaseState::Unreachable {
            let failure =
                self.system.host.lease.acquire(&Scope::Global, "a", std::time::Duration::from_secs(1)).await;
            return failure.expect_err("the lease cannot be taken").to_string();
        }
        format!("{:?}", report.jobs)
    }
}

#[tokio::test]
async fn a_whole_pass_needs_no_more_than_the_document_says() -> Result<()> {
    let mut world = World::fresh().await?;
    world.orphan("s1").await?;
    // Residue to remove, an entry under another id to read, and an active one to look at.
    let key = |suffix: &str| world.system.key(QUEUE, suffix);
    for command in [
        ["HSET", &key("slide-s1"), "data", "{}"],
        ["ZADD", &key("failed"), "1", "slide-s1"],
        ["HSET", &key("42"), "data", "{\"jobId\":\"other\"}"],
    ] {
        world.server.command(&command)?;
    }
    for list in ["wait", "active"] {
        world.server.command(&["RPUSH", &key(list), "42"])?;
    }
    let report = world.system.pass().await?;
    assert_eq!(story(&report, "s1"), "absent requeue applied", "{report:#?}");
    assert!(report.pass.scan_ran && world.is_enqueued("s1")?);
    // Once more as with long queues.
    world.system.host.queues = world.system.host.queues.clone().with_limits(SnapshotLimits::all_copies());
    world.orphan("s2").await?;
    let report = world.system.pass().await?;
    assert_eq!(story(&report, "s2"), "absent requeue applied", "{report:#?}");
    let stats = world.server.command(&["INFO", "commandstats"])?;
    for command in ["copy", "sort", "unlink", "zmscore"] {
        assert!(stats.contains(&format!("cmdstat_{command}:")), "{command}: {stats}");
    }
    let lease = &world.system.host.lease;
    lease.acquire(&Scope::Global, "a", std::time::Duration::from_secs(60)).await?;
    assert!(lease.renew(&Scope::Global, "a", std::time::Duration::from_secs(60)).await?);
    assert!(lease.release(&Scope::Global, "a").await?);
    let log = world.server.command(&["ACL", "LOG"])?;
    assert_eq!(log, "", "something was denied on the way");
    Ok(())
}

#[tokio::test]
async fn a_permission_that_is_missing_is_told_and_nothing_is_written() -> Result<()> {
    let world = World::fresh().await?;
    let is_right = |word: &&String| word.starts_with(['+', '~']) && *word != LEASE;
    let rights: Vec<String> = world.permissions.iter().filter(is_right).cloned().collect();
    let commands = rights.iter().filter(|right| right.starts_with('+')).count();
    assert!(DOCUMENT.contains(&format!("and {commands} commands")), "{commands}");
    for (number, right) in rights.iter().enumerate() {
        let id = format!("s{number}");
        world.orphan(&id).await?;
        let mut without = world.permissions.clone();
        without.retain(|word| word != right);
        world.permit(&without)?;
        // Scripts that are known already would need no EVAL.
        world.server.command(&["SCRIPT", "FLUSH"])?;
        let report = world.system.pass().await?;
        let row = SlideJob::read(world.system.db.pool(), &id).await?.context("the row")?;
        if UNMISSED.contains(&right.as_str()) {
            assert_eq!((row.status.as_str(), world.is_enqueued(&id)?), ("QUEUED", true), "{right}");
        } else {
            let told = world.told(&report).await;
            assert!(told.contains("may not do this"), "{right}: {told}");
            assert_eq!((row.status.as_str(), world.is_enqueued(&id)?), ("PROCESSING", false), "{right}");
        }
        sqlx::query("DELETE FROM \"SlideJob\"").execute(world.system.db.pool()).await?;
        // Whoever may not run scripts cannot give the lease back.
        world.server.command(&["DEL", &format!("{}:lock", world.system.prefix)])?;
    }
    world.permit(&world.permissions)?;
    world.orphan("healed").await?;
    let report = world.system.pass().await?;
    assert_eq!(story(&report, "healed"), "absent requeue applied", "{report:#?}");
    Ok(())
}

#[tokio::test]
async fn the_lease_needs_a_pattern_of_its_own() -> Result<()> {
    let world = World::fresh().await?;
    let lease = world.system.host.queues.lease("lock:job-recovery");
    let minute = std::time::Duration::from_secs(60);
    assert_eq!(lease.acquire(&Scope::Global, "a", minute).await?, LeaseAnswer::Acquired);
    assert!(lease.release(&Scope::Global, "a").await?);
    let mut without = world.permissions.clone();
    without.retain(|word| word != LEASE);
    assert_ne!(without, world.permissions);
    world.permit(&without)?;
    let failure = lease.acquire(&Scope::Global, "a", minute).await.expect_err("no key of ours");
    assert!(matches!(failure, QueueFailure::Forbidden { .. }), "{failure:?}");
    Ok(())
}

#[tokio::test]
async fn a_script_that_may_not_go_on_is_a_missing_permission_too() -> Result<()> {
    let world = World::fresh().await?;
    world.permit(&[&world.permissions[..], &["-type".to_owned()]].concat())?;
    let failure =
        world.system.host.lease.release(&Scope::Global, "a").await.expect_err("a script's first command");
    assert!(matches!(failure, QueueFailure::Forbidden { .. }), "{failure:?}");
    Ok(())
}
