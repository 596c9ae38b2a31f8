//! A failover inside a cluster: the promoted replica holds what its master did, and is found without a restart.
//!
//! Nodes that are down, and slots on their way, are in `redis_cluster`.

use std::time::Duration;

use anyhow::Result;
use salvage_core::report::LeaseState;
use salvage_tests::services::{Cluster, fresh_prefix, until};

use crate::faults::{Untouched, World};
use crate::judging_world::epochs;

/// Generous: nodes take seconds to notice a death and to vote.
const DEADLINE: Duration = Duration::from_secs(60);

#[tokio::test]
async fn a_replica_that_the_cluster_promotes_goes_on_with_the_epoch() -> Result<()> {
    let mut cluster = Cluster::start(3)?;
    let prefix = format!("{{{}}}", fresh_prefix());
    let owner = cluster.owner(&prefix)?;
    let replica = cluster.add_replica_of(owner)?;
    let urls = cluster.urls();
    // The owner is not among those whom the host knows by name.
    let named = [(owner + 1) % 3, (owner + 2) % 3];
    let nodes = named.map(|node| &urls[node]);
    let lines = format!("mode = \"cluster\"\nnodes = {nodes:?}");
    let world = World::under(&prefix, &lines, &urls[owner]).await?;
    let began = epochs(&world.system).await?;
    let rows = Untouched::of(&world.system).await?;
    assert_eq!(cluster.command(owner, &["WAIT", "1", "30000"])?, "1");

    cluster.node(owner).kill()?;
    let report = world.system.pass().await?;
    assert_eq!((report.pass.lease, report.jobs.len()), (LeaseState::Unreachable, 0), "{report:#?}");
    // The nodes that the host asks must know it, too: each learns of it by itself.
    let (key, there) =
        (world.system.key("slide-generation", "id"), format!(":{}", cluster.node(replica).port()));
    until("all nodes know the promoted replica", DEADLINE, || {
        let is_whole = |node| {
            let info = cluster.command(node, &["CLUSTER", "INFO"]).unwrap_or_default();
            info.contains("cluster_state:ok")
        };
        let leads_there = |node| {
            let said = cluster.command(node, &["EXISTS", &key]).err().map(|error| format!("{error:#}"));
            said.is_some_and(|said| said.contains("MOVED") && said.ends_with(&there))
        };
        let is_there = cluster.command(replica, &["EXISTS", &key]).is_ok() && is_whole(replica);
        Ok(is_there && named.into_iter().all(|node| is_whole(node) && leads_there(node)))
    })?;
    let mut system = world.system;
    system.redis_url = urls[replica].clone();
    system.reconnect().await?;
    let world = World { system };
    assert_eq!(Untouched::of(&world.system).await?, rows, "neither rows nor keys have changed");
    world.works_again().await?;
    assert_eq!(epochs(&world.system).await?, began);
    let continuity = world.evidence("lost").await?["queues"]["slide-generation"]["continuity"].clone();
    assert_eq!(continuity["verdict"], "continues");
    Ok(())
}
