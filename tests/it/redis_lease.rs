//! The lease: one holder, also when replies are lost.

use std::time::Duration;

use anyhow::Result;
use salvage::ports::Lease;
use salvage::redis::RedisLease;
use salvage_core::lease::{LeaseAnswer, Scope};
use salvage_core::sighting::QueueFailure;
use salvage_tests::services::Redis;

use crate::redis_connection::{Fate, Proxy};
use crate::redis_world::{World, queues};

const TTL: Duration = Duration::from_secs(600);

impl World {
    fn lease(&self) -> RedisLease {
        self.queues.lease(format!("{}:lock", self.prefix))
    }
}

#[tokio::test]
async fn one_of_two_hosts_holds_the_lease() -> Result<()> {
    let world = World::fresh().await?;
    let (ours, theirs) = (world.lease(), world.lease());
    let (one, other) =
        tokio::join!(ours.acquire(&Scope::Global, "a", TTL), theirs.acquire(&Scope::Global, "b", TTL));
    let mut answers = [one?, other?];
    answers.sort_by_key(|answer| *answer == LeaseAnswer::Held);
    assert_eq!(answers, [LeaseAnswer::Acquired, LeaseAnswer::Held]);
    let ttl_ms: u64 = world.command("PTTL @:lock").await?;
    assert!((590_000..=600_000).contains(&ttl_ms), "{ttl_ms}");
    Ok(())
}

#[tokio::test]
async fn only_the_owner_releases_or_renews() -> Result<()> {
    let world = World::fresh().await?;
    let lease = world.lease();
    assert_eq!(lease.acquire(&Scope::Global, "a", Duration::from_secs(60)).await?, LeaseAnswer::Acquired);
    assert!(!lease.renew(&Scope::Global, "b", TTL).await?);
    assert!(!lease.release(&Scope::Global, "b").await?);
    assert!(lease.renew(&Scope::Global, "a", TTL).await?);
    let ttl_ms: u64 = world.command("PTTL @:lock").await?;
    assert!(ttl_ms > 60_000, "{ttl_ms}");
    assert!(lease.release(&Scope::Global, "a").await?);
    assert!(!lease.release(&Scope::Global, "a").await?);
    assert!(!lease.renew(&Scope::Global, "a", TTL).await?, "an expired lease is not taken again");
    assert_eq!(world.command::<u64>("EXISTS @:lock").await?, 0);
    Ok(())
}

/// L2.
#[tokio::test]
async fn a_lost_reply_is_read_back() -> Result<()> {
    let world = World::fresh().await?;
    let proxy = Proxy::before(&world.url, [Fate::ReplyLost]).await?;
    let lease = queues(&proxy.url(), &world.prefix)?.lease(format!("{}:lock", world.prefix));
    assert_eq!(lease.acquire(&Scope::Global, "a", TTL).await?, LeaseAnswer::Acquired);
    assert_eq!(world.command::<String>("GET @:lock").await?, "a");
    Ok(())
}

#[tokio::test]
async fn a_request_that_was_lost_is_made_again() -> Result<()> {
    let world = World::fresh().await?;
    let proxy = Proxy::before(&world.url, [Fate::RequestLost]).await?;
    let lease = queues(&proxy.url(), &world.prefix)?.lease(format!("{}:lock", world.prefix));
    assert_eq!(lease.acquire(&Scope::Global, "a", TTL).await?, LeaseAnswer::Acquired);
    Ok(())
}

#[tokio::test]
async fn a_lost_reply_never_takes_another_hosts_lease() -> Result<()> {
    for fate in [Fate::ReplyLost, Fate::RequestLost] {
        let world = World::fresh().await?;
        world.arrange(&["SET @:lock b"]).await?;
        let proxy = Proxy::before(&world.url, [fate]).await?;
        let lease = queues(&proxy.url(), &world.prefix)?.lease(format!("{}:lock", world.prefix));
        assert_eq!(lease.acquire(&Scope::Global, "a", TTL).await?, LeaseAnswer::Held, "{fate:?}");
        assert_eq!(world.command::<String>("GET @:lock").await?, "b");
    }
    Ok(())
}

#[tokio::test]
async fn a_redis_that_is_down_is_asked_again_without_a_restart_of_the_host() -> Result<()> {
    let mut server = Redis::start()?;
    server.kill()?;
    let lease = queues(&server.url(), "bull")?.lease("lock");
    let failure = lease.acquire(&Scope::Global, "a", TTL).await.expect_err("nobody listens");
    assert!(matches!(failure, QueueFailure::Refused { .. }), "{failure:?}");
    server.start_again()?;
    assert_eq!(lease.acquire(&Scope::Global, "a", TTL).await?, LeaseAnswer::Acquired);
    // It restarts while nothing is asked of it: the old connection is dead, and the next pass does not suffer.
    server.restart_empty()?;
    assert_eq!(lease.acquire(&Scope::Global, "a", TTL).await?, LeaseAnswer::Acquired);
    server.restart_with_data()?;
    assert!(lease.release(&Scope::Global, "a").await?);
    Ok(())
}
