//! The contract of the lease, which Redis and its model both keep.

use std::time::Duration;

use anyhow::Result;
use salvage::ports::Lease;
use salvage_core::lease::{LeaseAnswer, Scope};
use salvage_tests::sim::on_model;

use crate::redis_world::World;

const GLOBAL: &Scope = &Scope::Global;

const TTL: Duration = Duration::from_secs(600);

/// Short enough to be seen to its end.
const SHORT: Duration = Duration::from_millis(60);

async fn keeps_the_contract(lease: &impl Lease) {
    assert_eq!(lease.expires_in(GLOBAL).await, Ok(None), "nobody holds it");
    assert_eq!(lease.acquire(GLOBAL, "a", TTL).await, Ok(LeaseAnswer::Acquired));
    assert_eq!(lease.acquire(GLOBAL, "b", TTL).await, Ok(LeaseAnswer::Held));
    assert_eq!(lease.acquire(GLOBAL, "a", TTL).await, Ok(LeaseAnswer::Held), "even by oneself");
    let left = lease.expires_in(GLOBAL).await.expect("an answer").expect("somebody holds it");
    assert!(left <= TTL && left > TTL - Duration::from_secs(60), "{left:?}");

    assert_eq!(lease.release(GLOBAL, "b").await, Ok(false), "another's lease is never given away");
    assert_eq!(lease.acquire(GLOBAL, "b", TTL).await, Ok(LeaseAnswer::Held));
    assert_eq!(lease.renew(GLOBAL, "b", TTL).await, Ok(false), "nor prolonged");
    assert_eq!(lease.renew(GLOBAL, "a", 2 * TTL).await, Ok(true));
    let left = lease.expires_in(GLOBAL).await.expect("an answer").expect("somebody holds it");
    assert!(left <= 2 * TTL && left > TTL, "{left:?}");
    let slides = Scope::Domain("slides".into());
    assert_eq!(lease.acquire(&slides, "b", TTL).await, Ok(LeaseAnswer::Acquired), "each scope has its own");
    assert_eq!(lease.release(&slides, "b").await, Ok(true));
    assert_eq!(lease.release(GLOBAL, "a").await, Ok(true));
    assert_eq!(lease.release(GLOBAL, "a").await, Ok(false));

    assert_eq!(lease.acquire(GLOBAL, "b", SHORT).await, Ok(LeaseAnswer::Acquired));
    while lease.expires_in(GLOBAL).await.expect("an answer").is_some() {}
    assert_eq!(lease.release(GLOBAL, "b").await, Ok(false), "it has run out");
    assert_eq!(lease.renew(GLOBAL, "b", TTL).await, Ok(false), "what has run out is not taken again");
    assert_eq!(lease.acquire(GLOBAL, "a", TTL).await, Ok(LeaseAnswer::Acquired));
    assert_eq!(lease.release(GLOBAL, "b").await, Ok(false), "who held it before has nothing to give back");
    assert_eq!(lease.acquire(GLOBAL, "c", TTL).await, Ok(LeaseAnswer::Held));
}

#[tokio::test]
async fn redis_keeps_the_contract_of_the_lease() -> Result<()> {
    let world = World::fresh().await?;
    keeps_the_contract(&world.queues.lease(format!("{}:lock", world.prefix))).await;
    Ok(())
}

#[test]
fn the_model_keeps_the_contract_of_the_lease() {
    on_model(async |model| keeps_the_contract(&model.ports).await);
}
