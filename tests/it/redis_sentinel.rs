//! Sentinel: the master is found, and found again after a failover.

use std::time::Duration;

use anyhow::Result;
use salvage::ports::{Ask, Lease, Queues};
use salvage::redis::{RedisQueues, RedisSettings, Servers};
use salvage_core::lease::Scope;
use salvage_core::report::LeaseState;
use salvage_core::sighting::QueueFailure;
use salvage_tests::example::{Deck, Jobs, SlideJob};
use salvage_tests::services::{MARKER_PASSWORD, Redis, RedisOptions, fresh_prefix, until};
use salvage_tests::system::{System, story};

use crate::redis_world::TIMEOUT;

/// Generous: failing over takes a few seconds, and more on a busy machine.
const DEADLINE: Duration = Duration::from_secs(60);

fn watched(nodes: Vec<String>, master_name: &str, url: Option<String>) -> RedisSettings {
    let servers = Servers::Sentinel { nodes, master_name: master_name.to_owned(), url };
    RedisSettings { servers, ..RedisSettings::single("redis://unused", "bull", TIMEOUT) }
}

/// Asks once; whether it was answered.
async fn asked(settings: &RedisSettings) -> Result<(), QueueFailure> {
    let queues = RedisQueues::new(settings).expect("sound settings");
    queues.snapshot(&Ask::guards(&[].into())).await.map(drop)
}

#[tokio::test]
async fn a_failover_costs_no_epoch_and_no_restart() -> Result<()> {
    let mut master = Redis::start()?;
    let replica = Redis::start_with(RedisOptions::default().replica_of(&master))?;
    let in_sync = || Ok(replica.command(&["INFO", "replication"])?.contains("master_link_status:up"));
    until("the replica is in sync", DEADLINE, in_sync)?;
    let sentinel = Redis::start_with(RedisOptions::default().sentinel_of("main", &master))?;
    let knows_replica = || Ok(sentinel.command(&["SENTINEL", "REPLICAS", "main"])?.contains("127.0.0.1"));
    until("Sentinel knows the replica", DEADLINE, knows_replica)?;

    // The first of the Sentinels is down from the beginning.
    let lines = format!(
        "mode = \"sentinel\"\nmaster_name = \"main\"\nnodes = [\"redis://127.0.0.1:1\", \"{}\"]",
        sentinel.url()
    );
    let system = System::through(&lines, &fresh_prefix(), &master.url()).await?;
    system.used_queues(&["slide-generation", "slide-export"]).await?;
    system.known_since_yesterday().await?;
    Deck::generating("d1").insert(system.db.pool()).await?;
    SlideJob::processing("s1").stale().of("d1").insert(system.db.pool()).await?;
    let report = system.pass().await?;
    assert_eq!(story(&report, "s1"), "absent requeue applied", "{report:#?}");

    assert_eq!(master.command(&["WAIT", "1", "10000"])?, "1");
    master.kill()?;
    SlideJob::processing("s2").stale().of("d1").insert(system.db.pool()).await?;
    let report = system.pass().await?;
    assert_eq!(report.pass.lease, LeaseState::Unreachable, "{report:#?}");
    let failure =
        system.host.lease.acquire(&Scope::Global, "a", DEADLINE).await.expect_err("the master is dead");
    assert!(matches!(failure, QueueFailure::Refused { .. }), "{failure:?}");

    let port = replica.port().to_string();
    let switched =
        || Ok(sentinel.command(&["SENTINEL", "GET-MASTER-ADDR-BY-NAME", "main"])?.ends_with(&port));
    until("Sentinel names the former replica", DEADLINE, switched)?;
    let report = system.pass().await?;
    assert_eq!(story(&report, "s1"), "scheduled", "{report:#?}");
    // A row older than this Redis process: only an epoch that went on lets it be acted on.
    assert_eq!(story(&report, "s2"), "absent requeue applied", "{report:#?}");
    let delayed = replica.command(&["ZRANGE", &system.key("slide-generation", "delayed"), "0", "-1"])?;
    assert_eq!(delayed, "slide-s1\nslide-s2");
    Ok(())
}

#[tokio::test]
async fn a_replica_that_is_taken_for_the_master_is_not_asked() -> Result<()> {
    let master = Redis::start()?;
    let replica = Redis::start_with(RedisOptions::default().replica_of(&master))?;
    let misled = Redis::start_with(RedisOptions::default().sentinel_of("main", &replica))?;
    let failure = asked(&watched(vec![misled.url()], "main", None)).await.expect_err("it is a replica");
    assert_eq!(failure, QueueFailure::NotMaster { role: "slave".into() });

    // One that knows better is listened to.
    let sentinel = Redis::start_with(RedisOptions::default().sentinel_of("main", &master))?;
    asked(&watched(vec![misled.url(), sentinel.url()], "main", None)).await?;
    Ok(())
}

#[tokio::test]
async fn sentinels_and_master_have_passwords_of_their_own() -> Result<()> {
    let master = Redis::start_with(RedisOptions::default().password(MARKER_PASSWORD))?;
    let sentinel = RedisOptions::default().password("sentinels-own").sentinel_of("main", &master);
    let sentinel = Redis::start_with(sentinel)?;
    let login = Some(format!("redis://:{MARKER_PASSWORD}@main"));
    let nodes = vec![sentinel.url()];
    asked(&watched(nodes.clone(), "main", login.clone())).await?;

    let unknown = asked(&watched(nodes.clone(), "mian", login.clone())).await;
    assert_eq!(unknown, Err(QueueFailure::NoMaster { name: "mian".into() }));
    let without = format!("redis://127.0.0.1:{}", sentinel.port());
    for (nodes, login) in [(vec![without], login), (nodes, None)] {
        let refused = asked(&watched(nodes, "main", login)).await;
        assert_eq!(refused, Err(QueueFailure::Credentials { code: "NOAUTH".into() }));
    }
    Ok(())
}
