//! Servers that speak Redis's protocol and are not quite Redis: they tell less of themselves, or something else.

use std::sync::Arc;

use anyhow::Result;
use salvage_tests::door::{Door, Spoil};
use salvage_tests::example::{Jobs, SlideJob};
use salvage_tests::services::redis_url;
use salvage_tests::system::{System, job, story};

use crate::acting::{lose_generation, running_on};
use crate::commands::ran;

/// INFO as another server would answer: each text becomes one of the same length.
fn telling(changes: &'static [(&'static str, &'static str)]) -> Spoil {
    assert!(changes.iter().all(|(from, to)| from.len() == to.len()), "the reply's length is told before it");
    Spoil::Changed(Arc::new(move |reply| {
        changes.iter().fold(reply.to_owned(), |reply, (from, to)| reply.replace(from, to))
    }))
}

/// A system with one orphan, and a door before its Redis.
async fn behind_a_door() -> Result<(System, Door)> {
    let port = redis_url()?.rsplit_once(':').and_then(|(_, port)| port.parse().ok()).expect("a port");
    let door = Door::to(port).await?;
    let system = running_on(System::on(&door.url()).await?).await?;
    lose_generation(&system, "s1").await?;
    Ok((system, door))
}

/// F32.
#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_tells_less_of_itself_is_judged_by_what_it_tells() -> Result<()> {
    let (system, door) = behind_a_door().await?;
    let less = telling(&[
        ("\nrun_id:", "\nxun_id:"),
        ("\nmaster_replid:", "\nxaster_replid:"),
        ("\nloading:", "\nxoading:"),
    ]);
    door.spoil(Some(less));
    let report = system.pass().await?;
    assert_eq!(story(&report, "s1"), "absent requeue applied", "{report:#?}");
    // Its run is not told, and the nonce of this pass goes on proving that nothing was lost.
    lose_generation(&system, "s2").await?;
    let report = system.pass().await?;
    assert_eq!(story(&report, "s2"), "absent requeue applied", "{report:#?}");
    let doctor = ran(&mut system.salvage(&["doctor"])?)?;
    assert!(doctor.stdout.contains("run untold, replication untold"), "{doctor:#?}");
    Ok(())
}

/// F32.
#[tokio::test(flavor = "multi_thread")]
async fn of_a_policy_that_is_not_told_evictions_are_still_seen() -> Result<()> {
    let (system, door) = behind_a_door().await?;
    door.spoil(Some(telling(&[("\nmaxmemory_policy:", "\nxaxmemory_policy:")])));
    assert_eq!(story(&system.plan().await?, "s1"), "absent requeue -");
    let doctor = ran(&mut system.salvage(&["doctor"])?)?;
    assert!(doctor.stdout.contains("note Redis: it does not tell its maxmemory-policy"), "{doctor:#?}");
    assert!(!doctor.stdout.contains("set noeviction"), "{doctor:#?}");
    door.spoil(Some(telling(&[
        ("\nmaxmemory_policy:", "\nxaxmemory_policy:"),
        ("\nevicted_keys:0", "\nevicted_keys:7"),
    ])));
    assert_eq!(story(&system.plan().await?, "s1"), "absent requeue before-epoch");
    Ok(())
}

/// F32.
#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_proves_no_absence_is_named_by_what_it_lacks() -> Result<()> {
    let (system, door) = behind_a_door().await?;
    // As KeyDB with several masters; another line makes room for the longer word.
    let active_replica = Spoil::Changed(Arc::new(|reply| {
        let reply = reply.replace("redis_git_sha1:00000000", "redis_git_sha1:");
        reply.replace("role:master", "role:active-replica")
    }));
    for (spoil, reason) in [
        (
            active_replica,
            "the node's role is \"active-replica\", not master: a job that was added at another of the active replicas",
        ),
        (
            telling(&[("\nrole:", "\nxole:")]),
            "INFO of this server does not tell role: it may be a replica that lags behind",
        ),
        (
            telling(&[
                ("\nevicted_keys:", "\nxvicted_keys:"),
                ("\nmaxmemory_policy:", "\nxaxmemory_policy:"),
            ]),
            "INFO of this server does not tell evicted_keys, nor a maxmemory_policy under which no job is evicted",
        ),
    ] {
        door.spoil(Some(spoil));
        let report = system.pass().await?;
        assert_eq!(story(&report, "s1"), "unknown none -", "{report:#?}");
        let why = job(&report, "s1").sighting.why.clone().unwrap_or_default();
        assert!(why.contains(reason), "{why}");
        assert!(!why.contains("point [redis] url at the master"), "{why}");
        assert_eq!(SlideJob::read(system.db.pool(), "s1").await?.expect("the row").status, "PROCESSING");
    }
    Ok(())
}
