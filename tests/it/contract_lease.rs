//! The contract of the lease, which Redis and its model both keep.

use std::time::Duration;

use anyhow::Result;
use salvage::ports::Lease;
use salvage_core::lease::LeaseAnswer;
use salvage_tests::sim::on_model;

use crate::redis_world::World;

const TTL: Duration = Duration::from_secs(600);

/// Short enough to be seen to its end.
const SHORT: Duration = Duration::from_millis(60);

async fn keeps_the_contract(lease: &impl Lease) {
    assert_eq!(lease.expires_in().await, Ok(None), "nobody holds it");
    assert_eq!(lease.acquire("a", TTL).await, Ok(LeaseAnswer::Acquired));
    assert_eq!(lease.acquire("b", TTL).await, Ok(LeaseAnswer::Held));
    assert_eq!(lease.acquire("a", TTL).await, Ok(LeaseAnswer::Held), "even by oneself");
    let left = lease.expires_in().await.expect("an answer").expect("somebody holds it");
    assert!(left <= TTL && left > TTL - Duration::from_secs(60), "{left:?}");

    assert_eq!(lease.release("b").await, Ok(false), "another's lease is never given away");
    assert_eq!(lease.acquire("b", TTL).await, Ok(LeaseAnswer::Held));
    assert_eq!(lease.release("a").await, Ok(true));
    assert_eq!(lease.release("a").await, Ok(false));

    assert_eq!(lease.acquire("b", SHORT).await, Ok(LeaseAnswer::Acquired));
    while lease.expires_in().await.expect("an answer").is_some() {}
    assert_eq!(lease.release("b").await, Ok(false), "it has run out");
    assert_eq!(lease.acquire("a", TTL).await, Ok(LeaseAnswer::Acquired));
    assert_eq!(lease.release("b").await, Ok(false), "who held it before has nothing to give back");
    assert_eq!(lease.acquire("c", TTL).await, Ok(LeaseAnswer::Held));
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
