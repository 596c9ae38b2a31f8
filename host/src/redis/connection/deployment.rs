//! Finding the one server that holds the queues: given, named by Sentinels, or the owner of a cluster's slot.
//!
//! Nothing of the answer is kept: after any failure of the connection it is asked for again, so a failover or a slot that
//! moved is followed without a restart. Until the new place is known, calls fail; none is answered by the old one in
//! silence, for a master is asked whether it is one (and each snapshot asks again), and a node of a cluster refuses keys
//! that are not its own.
//!
//! All our keys lie in one slot of a cluster, by the hash tag of the prefix: those of all queues, so that one MULTI and
//! one script may name them together, and the lease, so that the queues and the right to work on them are lost or kept
//! together, over one connection.

use redis::aio::MultiplexedConnection;
use redis::{Pipeline, Value};
use salvage_core::sighting::QueueFailure;
use tokio::time::timeout;

use super::node::Node;
use super::settings::{InvalidSettings, RedisSettings, Servers};
use super::tls::Trust;
use super::wire::{Wire, not_connected};
use crate::redis::reply;

/// How often a cluster may send us on. Once is usual; twice if the slot moves meanwhile.
const HOPS_MAX: u32 = 4;

/// How the server is found.
pub(super) enum Deployment {
    /// It is this one.
    Single(Node),
    /// Any of these names it.
    Sentinel {
        sentinels: Vec<Node>,
        name: String,
        /// Stands for the master but for its address.
        master: Node,
    },
    /// Any of these knows who holds the slot of `key`.
    Cluster { seeds: Vec<Node>, key: String },
}

impl Deployment {
    pub(super) fn new(settings: &RedisSettings) -> Result<Self, InvalidSettings> {
        let trust = Trust::load(&settings.tls)?;
        let nodes = |urls: &[String]| {
            let nodes = urls.iter().map(|url| Node::new("nodes", url, &trust));
            let nodes = nodes.collect::<Result<Vec<_>, _>>()?;
            if nodes.is_empty() { Err(InvalidSettings::NoNodes) } else { Ok(nodes) }
        };
        match &settings.servers {
            Servers::Single { url } => Ok(Self::Single(Node::new("url", url, &trust)?)),
            Servers::Sentinel { nodes: urls, master_name, url } => {
                let sentinels = nodes(urls)?;
                let master = match url {
                    Some(url) => Node::new("url", url, &trust)?,
                    None => sentinels[0].without_login(),
                };
                Ok(Self::Sentinel { sentinels, name: master_name.clone(), master })
            }
            Servers::Cluster { nodes: urls } => {
                // Nobody writes this key: it stands for all that have the prefix.
                Ok(Self::Cluster { seeds: nodes(urls)?, key: format!("{}:salvage:slot", settings.prefix) })
            }
        }
    }

    /// Connects to the server that holds the queues now; takes no longer than the limit of a connection.
    pub(super) async fn connect(&self, wire: &Wire) -> Result<MultiplexedConnection, QueueFailure> {
        let nodes = match self {
            Self::Single(node) => std::slice::from_ref(node),
            Self::Sentinel { sentinels: nodes, .. } | Self::Cluster { seeds: nodes, .. } => nodes,
        };
        // One that does not answer at all must leave time for the others.
        let share = wire.timeout() / u32::try_from(nodes.len()).unwrap_or(u32::MAX);
        let mut told = not_connected(wire.timeout());
        for node in nodes {
            match timeout(share, self.connect_by(node, wire)).await {
                Ok(Ok(redis)) => return Ok(redis),
                // What a server said tells more than that another is down.
                Ok(Err(failure)) if matches!(told, QueueFailure::Refused { .. }) => told = failure,
                Ok(Err(_)) | Err(_) => {}
            }
        }
        Err(told)
    }

    async fn connect_by(&self, node: &Node, wire: &Wire) -> Result<MultiplexedConnection, QueueFailure> {
        match self {
            Self::Single(node) => node.connect(wire).await,
            Self::Sentinel { name, master, .. } => by_sentinel(node, name, master, wire).await,
            Self::Cluster { key, .. } => by_cluster(node, key, wire).await,
        }
    }
}

/// Asks a Sentinel for the master, and the master whether it is one: a Sentinel may not know yet.
async fn by_sentinel(
    sentinel: &Node,
    name: &str,
    master: &Node,
    wire: &Wire,
) -> Result<MultiplexedConnection, QueueFailure> {
    let mut command = redis::pipe();
    command.cmd("SENTINEL").arg("get-master-addr-by-name").arg(name);
    let mut asked = sentinel.connect(wire).await?;
    let (host, port) = match one(&mut asked, wire, &command).await? {
        Value::Nil => return Err(QueueFailure::NoMaster { name: name.to_owned() }),
        reply => named_by_sentinel(&reply).ok_or_else(|| reply::unexpected("SENTINEL", &reply))?,
    };
    let mut redis = master.at(&host, port).connect(wire).await?;
    let reply = one(&mut redis, wire, redis::pipe().cmd("ROLE")).await?;
    match role(&reply) {
        Some("master") => Ok(redis),
        Some(role) => Err(QueueFailure::NotMaster { role: role.to_owned() }),
        None => Err(reply::unexpected("ROLE", &reply)),
    }
}

/// Asks a node for a key of ours and goes where it sends us.
///
/// Not CLUSTER SLOTS: any command on the key tells as much, and needs no permission that the host has not anyway.
async fn by_cluster(seed: &Node, key: &str, wire: &Wire) -> Result<MultiplexedConnection, QueueFailure> {
    let mut node = seed.clone();
    for _ in 0..HOPS_MAX {
        let mut redis = node.connect(wire).await?;
        match one(&mut redis, wire, redis::pipe().cmd("EXISTS").arg(key)).await? {
            Value::Int(_) => return Ok(redis),
            Value::ServerError(error) if error.code() == "MOVED" => {
                let (host, port) = error.details().and_then(named_by_cluster).ok_or_else(moved)?;
                // Without a name it is the host that we have asked.
                node = if host.is_empty() { node.at_port(port) } else { node.at(host, port) };
            }
            // It has the slot until it has given all of it away; each command tells whether its keys are still here.
            Value::ServerError(error) if error.code() == "ASK" => return Ok(redis),
            other => return Err(reply::unexpected("EXISTS", &other)),
        }
    }
    Err(moved())
}

fn moved() -> QueueFailure {
    QueueFailure::Cluster { code: "MOVED".to_owned() }
}

async fn one(
    redis: &mut MultiplexedConnection,
    wire: &Wire,
    command: &Pipeline,
) -> Result<Value, QueueFailure> {
    Ok(wire.send_first(redis, command).await?.into_iter().next().unwrap_or_default())
}

/// `[host, port]`.
fn named_by_sentinel(reply: &Value) -> Option<(String, u16)> {
    let Value::Array(parts) = reply else { return None };
    let [Value::BulkString(host), Value::BulkString(port)] = parts.as_slice() else { return None };
    let host = String::from_utf8(host.clone()).ok()?;
    Some((host, std::str::from_utf8(port).ok()?.parse().ok()?))
}

/// `slot host:port`; the host may be empty, and may hold colons.
fn named_by_cluster(details: &str) -> Option<(&str, u16)> {
    let (host, port) = details.split_once(' ')?.1.rsplit_once(':')?;
    Some((host, port.parse().ok()?))
}

fn role(reply: &Value) -> Option<&str> {
    let Value::Array(parts) = reply else { return None };
    let Value::BulkString(role) = parts.first()? else { return None };
    std::str::from_utf8(role).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::redis::reply::testing::parsed;

    #[test]
    fn a_master_is_named_by_host_and_port() {
        let reply = parsed("*2\r\n$9\r\n127.0.0.1\r\n$4\r\n6379\r\n");
        assert_eq!(named_by_sentinel(&reply), Some(("127.0.0.1".to_owned(), 6379)));
        for odd in
            ["*0\r\n", "*1\r\n$1\r\na\r\n", "*2\r\n$1\r\na\r\n$1\r\nb\r\n", "*2\r\n:1\r\n:1\r\n", ":1\r\n"]
        {
            assert_eq!(named_by_sentinel(&parsed(odd)), None, "{odd:?}");
        }
    }

    #[test]
    fn a_slot_is_followed_to_any_form_of_address() {
        assert_eq!(named_by_cluster("3999 127.0.0.1:6381"), Some(("127.0.0.1", 6381)));
        assert_eq!(named_by_cluster("3999 redis-2.local:6381"), Some(("redis-2.local", 6381)));
        assert_eq!(named_by_cluster("3999 ::1:6381"), Some(("::1", 6381)));
        assert_eq!(named_by_cluster("3999 :6381"), Some(("", 6381)));
        for odd in ["", "3999", "3999 host", "3999 host:port"] {
            assert_eq!(named_by_cluster(odd), None, "{odd:?}");
        }
    }

    #[test]
    fn a_role_is_the_first_word() {
        assert_eq!(role(&parsed("*3\r\n$6\r\nmaster\r\n:0\r\n*0\r\n")), Some("master"));
        assert_eq!(role(&parsed("*0\r\n")), None);
        assert_eq!(role(&parsed("-ERR no\r\n")), None);
    }
}
