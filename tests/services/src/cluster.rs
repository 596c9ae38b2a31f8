//! A private Redis cluster: masters, each with a part of the slots, and replicas where a test wants one.

use crate::{Redis, RedisOptions, wait};
use anyhow::{Context, Result};
use std::time::Duration;

/// Slots of a cluster.
const SLOTS: u16 = 16_384;

/// Longest time for all nodes to agree; they gossip every 100 ms.
const AGREED_WITHIN: Duration = Duration::from_secs(30);

/// Nodes that know each other; the masters first. Every slot is served, or none is (`cluster-require-full-coverage`, Redis's default).
pub struct Cluster {
    nodes: Vec<Redis>,
}

impl Cluster {
    /// Starts `count` masters, whose writes survive a kill, and returns once they agree on who has which slots.
    pub fn start(count: u16) -> Result<Self> {
        let nodes = (0..count).map(|_| Redis::start_with(options())).collect::<Result<Vec<_>>>()?;
        for (number, node) in (0..count).zip(&nodes) {
            let share = SLOTS.div_ceil(count);
            let (first, last) = (share * number, (share * (number + 1)).min(SLOTS) - 1);
            node.command(&["CLUSTER", "ADDSLOTSRANGE", &first.to_string(), &last.to_string()])?;
            // Two nodes must not begin with the same epoch: each slot would be disputed.
            node.command(&["CLUSTER", "SET-CONFIG-EPOCH", &(number + 1).to_string()])?;
            if number > 0 {
                meet(node, &nodes[0])?;
            }
        }
        let cluster = Self { nodes };
        cluster.wait_until_whole()?;
        Ok(cluster)
    }

    /// Adds a replica of a master, which takes its place if it dies; returns its index once it holds what the master does.
    pub fn add_replica_of(&mut self, master: usize) -> Result<usize> {
        let replica = Redis::start_with(options())?;
        meet(&replica, &self.nodes[0])?;
        self.nodes.push(replica);
        self.wait_until_whole()?;
        let (replica, master) = (self.nodes.len() - 1, self.id(master)?);
        self.command(replica, &["CLUSTER", "REPLICATE", &master])?;
        wait::until("the replica is in sync", AGREED_WITHIN, || {
            Ok(self.command(replica, &["INFO", "replication"])?.contains("master_link_status:up"))
        })?;
        Ok(replica)
    }

    /// The URL of each node.
    pub fn urls(&self) -> Vec<String> {
        self.nodes.iter().map(Redis::url).collect()
    }

    pub fn node(&mut self, index: usize) -> &mut Redis {
        &mut self.nodes[index]
    }

    /// Runs one command on a node, as [`Redis::command`].
    pub fn command(&self, index: usize, words: &[&str]) -> Result<String> {
        self.nodes[index].command(words)
    }

    /// Returns once every node knows all others, and says that all slots are served.
    pub fn wait_until_whole(&self) -> Result<()> {
        wait::until("the cluster's nodes agree", AGREED_WITHIN, || {
            for node in &self.nodes {
                let info = node.command(&["CLUSTER", "INFO"])?;
                let has = |line: String| info.lines().any(|found| found == line);
                if !has("cluster_state:ok".into())
                    || !has(format!("cluster_known_nodes:{}", self.nodes.len()))
                {
                    return Ok(false);
                }
            }
            Ok(true)
        })
    }

    /// The index of the node that has the key's slot.
    pub fn owner(&self, key: &str) -> Result<usize> {
        // A node says MOVED of what is not its own.
        let has = |node: &Redis| node.command(&["EXISTS", key]).is_ok();
        self.nodes.iter().position(has).with_context(|| format!("no node has the slot of {key}"))
    }

    /// The key's slot.
    pub fn slot(&self, key: &str) -> Result<String> {
        self.nodes[0].command(&["CLUSTER", "KEYSLOT", key])
    }

    /// What nodes call the node.
    pub fn id(&self, index: usize) -> Result<String> {
        self.nodes[index].command(&["CLUSTER", "MYID"])
    }

    /// Begins to move a slot: from now on the keys that are not there yet belong to `to`.
    pub fn begin_move(&self, slot: &str, from: usize, to: usize) -> Result<()> {
        self.nodes[to].command(&["CLUSTER", "SETSLOT", slot, "IMPORTING", &self.id(from)?])?;
        self.nodes[from].command(&["CLUSTER", "SETSLOT", slot, "MIGRATING", &self.id(to)?])?;
        Ok(())
    }

    /// Moves every key of the slot that is there, and ends the move.
    pub fn end_move(&self, slot: &str, from: usize, to: usize) -> Result<()> {
        let keys = self.nodes[from].command(&["CLUSTER", "GETKEYSINSLOT", slot, "100000"])?;
        let port = self.nodes[to].port().to_string();
        for key in keys.lines() {
            self.nodes[from].command(&["MIGRATE", "127.0.0.1", &port, key, "0", "5000"])?;
        }
        let id = self.id(to)?;
        for node in [&self.nodes[to], &self.nodes[from]] {
            node.command(&["CLUSTER", "SETSLOT", slot, "NODE", &id])?;
        }
        Ok(())
    }
}

/// What a node has taken survives a kill: the kernel keeps it. A disk that is asked for more slows all nodes down.
fn options() -> RedisOptions {
    RedisOptions::default().set("--appendonly", &["yes"]).set("--appendfsync", &["no"]).cluster_node()
}

fn meet(node: &Redis, other: &Redis) -> Result<()> {
    let (port, cluster_port) = (other.port().to_string(), other.cluster_port().to_string());
    node.command(&["CLUSTER", "MEET", "127.0.0.1", &port, &cluster_port]).map(drop)
}
