//! The lease: one key that says who may run a pass.
//!
//! Renewing and releasing name the owner, never "the current lease": a host that was frozen beyond its time and wakes
//! must not give away another's.

use std::sync::{Arc, LazyLock};
use std::time::Duration;

use redis::Value;
use salvage_core::lease::{LeaseAnswer, Scope};
use salvage_core::sighting::QueueFailure;

use super::connection::Connection;
use super::reply;
use super::script::{self, Call, Script};
use crate::ports::Lease;

static RELEASE: LazyLock<Script> = LazyLock::new(|| Script::new(include_str!("release.lua")));

static RENEW: LazyLock<Script> = LazyLock::new(|| Script::new(include_str!("renew.lua")));

/// How often the key is tried for. A reply that was lost because the connection had died while idle (Redis restarted
/// between two passes) is made good by the second; a Redis that fails twice in a row is not well.
const ATTEMPTS: u32 = 2;

/// The leases of a deployment: of scope `global` under one key, of a domain under that key and its name.
#[derive(Debug, Clone)]
pub struct RedisLease {
    connection: Arc<Connection>,
    key: String,
}

impl RedisLease {
    pub(super) fn new(connection: Arc<Connection>, key: String) -> Self {
        Self { connection, key }
    }

    fn key(&self, scope: &Scope) -> String {
        match scope {
            Scope::Global => self.key.clone(),
            Scope::Domain(domain) => format!("{}:{domain}", self.key),
        }
    }

    /// `None` if the key is there already.
    async fn set_if_free(
        &self,
        key: &str,
        owner: &str,
        ttl: Duration,
    ) -> Result<Option<LeaseAnswer>, QueueFailure> {
        let mut command = redis::pipe();
        command.cmd("SET").arg(key).arg(owner).arg("NX").arg("PX").arg(milliseconds(ttl));
        match self.connection.tell(&command).await?.first() {
            Some(Value::Okay) => Ok(Some(LeaseAnswer::Acquired)),
            Some(Value::Nil) => Ok(None),
            other => Err(reply::unexpected("SET", other.unwrap_or(&Value::Nil))),
        }
    }

    /// Whose lease it is; `None` if nobody's.
    async fn read_back(&self, key: &str, owner: &str) -> Result<Option<LeaseAnswer>, QueueFailure> {
        let mut command = redis::pipe();
        command.cmd("GET").arg(key);
        let reply = self.connection.ask(&command).await?.into_iter().next().unwrap_or_default();
        let holder = reply::text("GET", reply)?;
        Ok(holder.map(|holder| if holder == owner { LeaseAnswer::Acquired } else { LeaseAnswer::Held }))
    }
}

impl Lease for RedisLease {
    async fn acquire(&self, scope: &Scope, owner: &str, ttl: Duration) -> Result<LeaseAnswer, QueueFailure> {
        let key = &self.key(scope);
        let mut last = QueueFailure::Dropped { detail: "the lease expired while it was taken".to_owned() };
        for attempt in 1..=ATTEMPTS {
            match self.set_if_free(key, owner, ttl).await {
                Ok(Some(answer)) => return Ok(answer),
                // Nothing of ours can be there before the first attempt.
                Ok(None) if attempt == 1 => return Ok(LeaseAnswer::Held),
                Ok(None) => {}
                Err(failure) if failure.is_indeterminate() => last = failure,
                Err(failure) => return Err(failure),
            }
            // The reply was lost, or our own earlier SET has arrived late: the key itself tells, on a new connection.
            match self.read_back(key, owner).await {
                Ok(Some(answer)) => return Ok(answer),
                Ok(None) if matches!(last, QueueFailure::Dropped { .. }) => {}
                // The failure that came first says more than the one that followed from it.
                Ok(None) | Err(_) => return Err(last),
            }
        }
        Err(last)
    }

    async fn renew(&self, scope: &Scope, owner: &str, ttl: Duration) -> Result<bool, QueueFailure> {
        let mut call = Call::default();
        call.key(self.key(scope)).arg(owner).arg(milliseconds(ttl));
        reply::flag(script::COMMAND, &RENEW.ask(&self.connection, &call).await?)
    }

    async fn expires_in(&self, scope: &Scope) -> Result<Option<Duration>, QueueFailure> {
        let mut command = redis::pipe();
        command.cmd("PTTL").arg(self.key(scope));
        match self.connection.ask(&command).await?.first() {
            // Negative: it has gone, or never runs out.
            Some(Value::Int(ms)) => Ok(u64::try_from(*ms).ok().map(Duration::from_millis)),
            other => Err(reply::unexpected("PTTL", other.unwrap_or(&Value::Nil))),
        }
    }

    async fn release(&self, scope: &Scope, owner: &str) -> Result<bool, QueueFailure> {
        let mut call = Call::default();
        call.key(self.key(scope)).arg(owner);
        reply::flag(script::COMMAND, &RELEASE.ask(&self.connection, &call).await?)
    }
}

fn milliseconds(ttl: Duration) -> u64 {
    u64::try_from(ttl.as_millis()).unwrap_or(u64::MAX)
}
