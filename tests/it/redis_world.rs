//! What the tests of the Redis adapter share: queues under a prefix of their own, and acts on one job in them.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use anyhow::{Context, Result};
use redis::aio::MultiplexedConnection;
use salvage::ports::{Ask, QueueTerms, Queues};
use salvage::redis::{RedisQueues, RedisSettings};
use salvage_core::act::{Act, Change, Place, ScriptAnswer};
use salvage_core::candidate::{Candidate, LiveStatus, RowToken};
use salvage_core::decision::Requeue;
use salvage_core::lease::Fence;
use salvage_core::sighting::QueueFailure;
use salvage_core::snapshot::{QueueReading, Snapshot};
use salvage_tests::services::{fresh_prefix, redis_url};
use salvage_tests::stores;

pub(crate) const TIMEOUT: Duration = Duration::from_secs(5);

/// The queue of most tests.
pub(crate) const QUEUE: &str = "slide-generation";

/// A second queue of the same source.
pub(crate) const OTHER: &str = "slide-export";

/// The adapter under test, and a plain connection beside it to arrange and to look.
pub(crate) struct World {
    pub(crate) queues: RedisQueues,
    pub(crate) prefix: String,
    pub(crate) url: String,
    plain: MultiplexedConnection,
}

impl World {
    /// On the shared server, under a fresh prefix.
    pub(crate) async fn fresh() -> Result<Self> {
        Self::on(&redis_url()?).await
    }

    /// On a server of the test's own.
    pub(crate) async fn on(url: &str) -> Result<Self> {
        let prefix = fresh_prefix();
        let queues = queues(url, &prefix)?;
        let plain = redis::Client::open(url)?.get_multiplexed_async_connection().await?;
        Ok(Self { queues, prefix, url: url.to_owned(), plain })
    }

    pub(crate) fn key(&self, queue: &str, suffix: &str) -> String {
        format!("{}:{queue}:{suffix}", self.prefix)
    }

    /// Runs one command, its words separated by single spaces; `@:` stands for the prefix and its colon.
    pub(crate) async fn command<T: redis::FromRedisValue>(&self, words: &str) -> Result<T> {
        let words: Vec<String> =
            words.split(' ').map(|word| word.replace("@:", &format!("{}:", self.prefix))).collect();
        let mut command = redis::cmd(&words[0]);
        command.arg(&words[1..]);
        command.query_async(&mut self.plain.clone()).await.with_context(|| words.join(" "))
    }

    /// The same for several commands, whose replies do not matter.
    pub(crate) async fn arrange(&self, commands: &[&str]) -> Result<()> {
        for command in commands {
            self.command::<redis::Value>(command).await?;
        }
        Ok(())
    }

    /// Every key under the prefix with its value: equal digests mean that nothing was written. Without the times at which
    /// they expire: a worker that lives renews its locks.
    pub(crate) async fn digest(&self) -> Result<BTreeMap<String, String>> {
        let keys = stores::keys(&self.plain, &self.prefix).await?;
        Ok(keys.into_iter().map(|(key, content)| (key, content.value)).collect())
    }

    pub(crate) async fn snapshot(&self, queues: &[&str]) -> Result<Snapshot, QueueFailure> {
        self.queues.snapshot(&Ask::ids(&named(queues))).await
    }

    pub(crate) async fn reading(&self) -> Result<QueueReading> {
        self.snapshot(&[QUEUE]).await?.queues.remove(QUEUE).context("the queue's reading")
    }

    /// Runs an act under the terms of a healthy pass.
    pub(crate) async fn act(&self, act: &Act) -> Result<ScriptAnswer, QueueFailure> {
        self.queues.act(act, &terms()).await
    }
}

pub(crate) fn named(queues: &[&str]) -> BTreeSet<String> {
    queues.iter().map(|&queue| queue.to_owned()).collect()
}

pub(crate) fn queues(url: &str, prefix: &str) -> Result<RedisQueues> {
    queues_within(url, prefix, TIMEOUT)
}

pub(crate) fn queues_within(url: &str, prefix: &str, timeout: Duration) -> Result<RedisQueues> {
    Ok(RedisQueues::new(&RedisSettings::single(url, prefix, timeout))?)
}

/// Generation 5 of scope `global`, no nonces, far from its deadline.
pub(crate) fn terms() -> QueueTerms {
    QueueTerms {
        fence: fence(5),
        deadline_ms: u64::MAX >> 12,
        nonces: BTreeMap::new(),
        with_meta: BTreeSet::new(),
    }
}

pub(crate) fn fence(generation: u64) -> Fence {
    Fence { scope: "global".into(), generation, pass_token: "token".into() }
}

/// Puts `slide-<id>` back into [`QUEUE`]; it is looked for in [`OTHER`] as well.
pub(crate) fn requeue(id: &str) -> Act {
    requeue_with(id, "{}")
}

pub(crate) fn requeue_with(id: &str, options: &str) -> Act {
    let entry_id = format!("slide-{id}");
    let requeue = Requeue {
        queue: QUEUE.into(),
        name: "generate".into(),
        data: format!(r#"{{"jobId":"{id}"}}"#),
        options: options.into(),
    };
    // Long enough to be seen as delayed, short enough not to be waited for.
    act(id, Change::Requeue { requeue, entry_id, delay: Duration::from_millis(50) })
}

/// Marks the job failed: the script only probes.
pub(crate) fn fail(id: &str) -> Act {
    act(id, Change::Fail { reason: "It cannot be rebuilt.".into() })
}

fn act(id: &str, change: Change) -> Act {
    let place = |queue: &str| Place { queue: queue.into(), entry_id: format!("slide-{id}") };
    let status = "PROCESSING".to_owned();
    Act {
        candidate: Candidate {
            source: 0,
            token: RowToken { id: id.into(), status, updated_at: "x".into(), xmin: "1".into() },
            status: LiveStatus::Processing,
            job_type: "GENERATION".into(),
            updated: jiff::Timestamp::UNIX_EPOCH,
        },
        change,
        parent: None,
        inputs_digest: String::new(),
        places: vec![place(QUEUE), place(OTHER)],
    }
}
