//! A cluster: the slot's owner is found, and no answer of a cluster in trouble is taken for an absence.

use std::time::Duration;

use anyhow::Result;
use salvage::ports::{Ask, Lease, Queues};
use salvage::redis::{RedisQueues, RedisSettings, Servers, SnapshotLimits};
use salvage_core::lease::{LeaseAnswer, Scope};
use salvage_core::report::LeaseState;
use salvage_core::sighting::QueueFailure;
use salvage_tests::bullmq::BullMq;
use salvage_tests::example::{Deck, Jobs, SlideJob};
use salvage_tests::services::{Cluster, fresh_prefix, until};
use salvage_tests::system::{System, story};
use serde_json::json;

use crate::redis_world::{QUEUE, TIMEOUT};

/// Generous: nodes take seconds to notice a death, and a return.
const DEADLINE: Duration = Duration::from_secs(60);

/// A cluster, a host on it that knows only its first node, and which node has the host's slot.
struct World {
    cluster: Cluster,
    system: System,
    owner: usize,
}

impl World {
    async fn fresh() -> Result<Self> {
        let cluster = Cluster::start(3)?;
        let prefix = format!("{{{}}}", fresh_prefix());
        let owner = cluster.owner(&prefix)?;
        let urls = cluster.urls();
        let lines = format!("mode = \"cluster\"\nnodes = [\"{}\", \"{}\"]", urls[0], urls[1]);
        let system = System::through(&lines, &prefix, &urls[owner]).await?;
        system.used_queues(&["slide-generation", "slide-export"]).await?;
        system.known_since_yesterday().await?;
        Deck::generating("d1").insert(system.db.pool()).await?;
        Ok(Self { cluster, system, owner })
    }

    async fn orphan(&self, id: &str) -> Result<()> {
        SlideJob::processing(id).stale().of("d1").insert(self.system.db.pool()).await?;
        Ok(())
    }

    /// A pass that could not take the lease, and left the row as it was.
    async fn pass_in_vain(&self, id: &str) -> Result<QueueFailure> {
        let report = self.system.pass().await?;
        assert_eq!(report.pass.lease, LeaseState::Unreachable, "{report:#?}");
        let row = SlideJob::read(self.system.db.pool(), id).await?.expect("the row");
        assert_eq!(row.status, "PROCESSING");
        Ok(self
            .system
            .host
            .lease
            .acquire(&Scope::Global, "a", DEADLINE)
            .await
            .expect_err("the slot is not served"))
    }

    /// What a snapshot says while the cluster is in trouble.
    async fn look_in_vain(&self) -> QueueFailure {
        let queues = [QUEUE.to_owned()].into();
        self.system.host.queues.snapshot(&Ask::ids(&queues)).await.expect_err("the slot is not served")
    }

    async fn recovers(&self, id: &str) -> Result<()> {
        let report = self.system.pass().await?;
        assert_eq!(story(&report, id), "absent requeue applied", "{report:#?}");
        Ok(())
    }
}

fn cluster_error(code: &str) -> QueueFailure {
    QueueFailure::Cluster { code: code.into() }
}

#[tokio::test]
async fn a_real_worker_runs_what_was_put_back_wherever_the_slot_lies() -> Result<()> {
    let world = World::fresh().await?;
    let bullmq = BullMq::open_cluster(&world.cluster.urls()[0], &world.system.prefix).await?;
    let there = json!({ "jobId": "slide-s0" });
    bullmq.add(QUEUE, "generate", json!({ "jobId": "s0" }), there).await?;
    for id in ["s0", "s1"] {
        world.orphan(id).await?;
    }
    let report = world.system.pass().await?;
    assert_eq!(story(&report, "s0"), "scheduled", "{report:#?}");
    assert_eq!(story(&report, "s1"), "absent requeue applied", "{report:#?}");
    bullmq.start_worker(QUEUE, json!({})).await?;
    for id in ["s0", "s1"] {
        let runs = bullmq.wait_runs(1, json!({ "jobId": id, "ended": true })).await?;
        assert_eq!(runs.len(), 1, "{runs:?}");
    }
    bullmq.close().await
}

#[tokio::test]
async fn long_states_are_copied_within_the_slot() -> Result<()> {
    let mut world = World::fresh().await?;
    let queues = world.system.host.queues.clone().with_limits(SnapshotLimits::all_copies());
    world.system.host.queues = queues;
    world.orphan("s1").await?;
    world.orphan("s2").await?;
    let key = |state| world.system.key(QUEUE, state);
    world.system.redis::<()>(&["RPUSH", &key("wait"), "slide-s1"]).await?;
    world.system.redis::<()>(&["ZADD", &key("delayed"), "1", "slide-s0"]).await?;
    world.system.redis::<()>(&["HSET", &key("slide-s0"), "data", r#"{"jobId":"s0"}"#]).await?;
    let report = world.system.pass().await?;
    assert_eq!(story(&report, "s1"), "scheduled", "{report:#?}");
    assert_eq!(story(&report, "s2"), "absent requeue applied", "{report:#?}");
    let owner = world.cluster.node(world.owner);
    let stats = owner.command(&["INFO", "commandstats"])?;
    for command in ["copy", "sort", "unlink"] {
        let is_served =
            |line: &&str| line.starts_with(&format!("cmdstat_{command}:")) && !line.contains(":calls=0,");
        assert!(stats.lines().any(|line| is_served(&line)), "{command}: {stats}");
    }
    assert_eq!(owner.command(&["KEYS", "*:salvage:copy:*"])?, "");
    Ok(())
}

#[tokio::test]
async fn the_lease_lies_with_the_queues_whatever_its_name() -> Result<()> {
    let mut cluster = Cluster::start(3)?;
    // Whichever slot `lock:job-recovery` has, at least one of these prefixes lies on another node.
    for prefix in ["{a}", "{b}", "app:{c}"] {
        let servers = Servers::Cluster { nodes: cluster.urls()[..1].to_vec() };
        let settings = RedisSettings { servers, ..RedisSettings::single("redis://unused", prefix, TIMEOUT) };
        let lease = RedisQueues::new(&settings)?.lease("lock:job-recovery");
        assert_eq!(lease.acquire(&Scope::Global, "me", DEADLINE).await?, LeaseAnswer::Acquired);
        assert!(lease.renew(&Scope::Global, "me", DEADLINE).await?);
        let tag = prefix.trim_start_matches("app:");
        let owner = cluster.owner(prefix)?;
        let holder = cluster.node(owner).command(&["GET", &format!("{tag}:lock:job-recovery")])?;
        assert_eq!(holder, "me");
        assert!(lease.release(&Scope::Global, "me").await?);
    }
    Ok(())
}

#[tokio::test]
async fn a_node_of_a_cluster_is_no_single_server() -> Result<()> {
    let cluster = Cluster::start(3)?;
    let other = (cluster.owner("{bull}")? + 1) % 3;
    let queues = crate::redis_world::queues(&cluster.urls()[other], "{bull}")?;
    let asked = [QUEUE.to_owned()].into();
    let failure = queues.snapshot(&Ask::ids(&asked)).await.expect_err("it is another node's slot");
    assert_eq!(failure, cluster_error("MOVED"));
    Ok(())
}

#[tokio::test]
async fn a_node_that_goes_down_leaves_everything_unknown_until_it_is_back() -> Result<()> {
    let mut world = World::fresh().await?;
    let other = (world.owner + 1) % 3;
    world.orphan("s1").await?;

    // Another node's death: ours is there, and says that the cluster is not.
    world.cluster.node(other).kill()?;
    let owner = world.owner;
    let is_down = |world: &mut World, node: usize| {
        let node = world.cluster.node(node);
        until("the node sees the other's death", DEADLINE, || {
            Ok(node.command(&["CLUSTER", "INFO"])?.contains("cluster_state:fail"))
        })
    };
    is_down(&mut world, owner)?;
    assert_eq!(world.pass_in_vain("s1").await?, cluster_error("CLUSTERDOWN"));
    assert_eq!(world.look_in_vain().await, cluster_error("CLUSTERDOWN"));
    world.cluster.node(other).start_again()?;
    world.cluster.wait_until_whole()?;
    world.recovers("s1").await?;

    // Its own death: first nobody listens, then the others know.
    world.orphan("s2").await?;
    world.cluster.node(owner).kill()?;
    world.pass_in_vain("s2").await?;
    is_down(&mut world, other)?;
    assert_eq!(world.pass_in_vain("s2").await?, cluster_error("CLUSTERDOWN"));
    world.cluster.node(owner).start_again()?;
    world.cluster.wait_until_whole()?;
    world.recovers("s2").await
}

#[tokio::test]
async fn a_slot_on_its_way_is_unknown_and_followed_when_it_has_arrived() -> Result<()> {
    let mut world = World::fresh().await?;
    world.orphan("s1").await?;
    let (from, to) = (world.owner, (world.owner + 1) % 3);
    let slot = world.cluster.slot(&world.system.prefix)?;
    world.cluster.begin_move(&slot, from, to)?;
    assert_eq!(world.look_in_vain().await, cluster_error("ASK"));
    assert_eq!(world.pass_in_vain("s1").await?, cluster_error("ASK"));
    world.cluster.end_move(&slot, from, to)?;

    // The connection still leads to the old owner.
    world.recovers("s1").await?;
    let delayed = world.system.key(QUEUE, "delayed");
    let entries = world.cluster.node(to).command(&["ZRANGE", &delayed, "0", "-1"])?;
    assert_eq!(entries, "slide-s1");
    Ok(())
}
