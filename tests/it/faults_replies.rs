//! Faults of single replies: a key that is not what it should be, a form that cannot be, a node that sends us elsewhere.

use anyhow::Result;
use salvage_core::sighting::{Doubt, QueueFailure};
use salvage_core::snapshot::Flaw;
use salvage_tests::door::{Door, Spoil};
use salvage_tests::services::{Cluster, Redis, fresh_prefix, redis_url};
use salvage_tests::system::{job, story};

use crate::faults::{Fault, Untouched, World};
use crate::judging_world::{QUEUE, epochs};

fn of_queue(flaw: Flaw) -> Doubt {
    Doubt::Queue { queue: QUEUE.into(), flaw }
}

/// WRONGTYPE on every key of a queue that is no state, and a counter that is no number. The six states are in
/// `judging_failures`.
#[tokio::test]
async fn a_key_that_is_not_what_it_should_be_spoils_its_queue_until_it_is_mended() -> Result<()> {
    let world = World::on(&redis_url()?).await?;
    let system = &world.system;
    let began = epochs(system).await?;
    let before = Untouched::of(system).await?;
    for (suffix, spoil, kind) in [
        ("id", "LPUSH", "string"),
        ("meta", "SET", "hash"),
        ("salvage:host", "SET", "hash"),
        ("completed", "SET", "sorted set"),
        ("failed", "SET", "sorted set"),
        // Only whether there are any is asked, whatever they are.
        ("groups", "SET", ""),
        ("id", "SET", ""),
    ] {
        let (key, aside) = (system.key(QUEUE, suffix), format!("{}:aside", system.prefix));
        let flaw = match (suffix, kind) {
            ("groups", _) => Flaw::ProGroups,
            ("id", "") => Flaw::BadReply { key: key.clone(), found: "a string that is no number".to_owned() },
            (_, expected) => Flaw::WrongType { key: key.clone(), expected },
        };
        let is_there: bool = system.redis(&["EXISTS", &key]).await?;
        if is_there {
            system.redis::<()>(&["RENAME", &key, &aside]).await?;
        }
        system.redis::<()>(&[spoil, &key, "x"]).await?;
        for report in [system.plan().await?, system.pass().await?] {
            assert_eq!(story(&report, "lost"), "unknown none -", "{key}: {report:#?}");
            assert_eq!(story(&report, "found"), "scheduled", "{key}: the other queue can be read");
            assert_eq!(job(&report, "lost").sighting.why, Some(of_queue(flaw.clone()).to_string()));
        }
        system.redis::<()>(&["DEL", &key]).await?;
        if is_there {
            system.redis::<()>(&["RENAME", &aside, &key]).await?;
        }
        assert_eq!(Untouched::of(system).await?, before, "{key}");
        assert_eq!(epochs(system).await?, began, "{key}");
    }
    world.works_again().await
}

/// Says something that no Redis says, in place of what it said.
async fn check_spoilt(spoil: Spoil, doubt: Doubt) -> Result<()> {
    let server = Redis::start()?;
    let door = Door::to(server.port()).await?;
    let world = World::through(&format!("url = \"{}\"", door.url()), &server.url()).await?;
    let fault = Fault {
        begin: async || {
            door.spoil(Some(spoil.clone()));
            Ok(())
        },
        end: async || {
            door.spoil(None);
            Ok(())
        },
        doubt,
        lease: None,
        is_blind: true,
    };
    fault.check(&world).await
}

fn unexpected(command: &'static str, found: &str) -> Doubt {
    Doubt::Redis(QueueFailure::UnexpectedReply { command, found: found.to_owned() })
}

#[tokio::test]
async fn a_transaction_that_answers_nil_is_no_snapshot() -> Result<()> {
    check_spoilt(Spoil::executing("*-1\r\n"), unexpected("EXEC", "nil")).await
}

#[tokio::test]
async fn a_transaction_that_answers_too_little_is_no_snapshot() -> Result<()> {
    check_spoilt(Spoil::executing("*1\r\n:0\r\n"), unexpected("EXEC", "an array of 1")).await
}

#[tokio::test]
async fn a_node_that_does_not_say_its_role_proves_nothing() -> Result<()> {
    let doubt = Doubt::Redis(QueueFailure::Untold {
        what: "role",
        why: "it may be a replica that lags behind, and a job that it does not have yet is not lost",
    });
    check_spoilt(Spoil::replacing("\r\nrole:", "\r\nrule:"), doubt).await
}

#[tokio::test]
async fn a_node_that_does_not_say_how_many_keys_it_evicted_proves_nothing() -> Result<()> {
    let spoil = Spoil::replacing("evicted_keys:0", "evicted_keys:?");
    check_spoilt(spoil, unexpected("INFO", "no number in \"evicted_keys\"")).await
}

/// The client library would make an empty list of it.
#[tokio::test]
async fn nil_in_place_of_a_list_is_not_an_empty_list() -> Result<()> {
    let server = Redis::start()?;
    let door = Door::to(server.port()).await?;
    let world = World::through(&format!("url = \"{}\"", door.url()), &server.url()).await?;
    let fault = Fault {
        begin: async || {
            door.spoil(Some(Spoil::replacing("*0\r\n", "*-1\r\n")));
            Ok(())
        },
        end: async || {
            door.spoil(None);
            Ok(())
        },
        doubt: of_queue(Flaw::BadReply { key: world.system.key(QUEUE, "wait"), found: "nil".into() }),
        lease: None,
        // What waits in the other queue comes as a list of one.
        is_blind: false,
    };
    fault.check(&world).await
}

/// A real node says so only to whoever has followed an ASK (Redis 7.0), which the host does not, or of a half-moved slot
/// (7.2 and later): so here it is put into its mouth.
#[tokio::test]
async fn a_slot_that_is_half_moved_is_no_empty_queue() -> Result<()> {
    let said = "-TRYAGAIN Multiple keys request during rehashing of slot\r\n";
    let code = "TRYAGAIN".to_owned();
    check_spoilt(Spoil::executing(said), Doubt::Redis(QueueFailure::Cluster { code })).await
}

/// Redis became a cluster behind the host's back: its name leads to a node that has all slots. The lease is a single key.
#[tokio::test]
async fn queues_in_several_slots_are_not_read_piece_by_piece() -> Result<()> {
    let (server, mut cluster) = (Redis::start()?, Cluster::start(1)?);
    let door = Door::to(server.port()).await?;
    let world = World::through(&format!("url = \"{}\"", door.url()), &server.url()).await?;
    let node = cluster.node(0).port();
    let fault = Fault {
        begin: async || {
            door.lead_to(node);
            Ok(())
        },
        end: async || {
            door.lead_to(server.port());
            // In the wrong place, the pass left its lease and gave it back; the test's own is still there.
            let left = cluster.command(0, &["KEYS", "*"])?;
            anyhow::ensure!(left.lines().all(|key| key.ends_with(":lock")), "written there: {left}");
            Ok(())
        },
        doubt: Doubt::Redis(QueueFailure::Cluster { code: "CROSSSLOT".into() }),
        lease: None,
        is_blind: true,
    };
    fault.check(&world).await
}

/// The same with queues in one slot, which another node has; the host does not know that it is a cluster's.
#[tokio::test]
async fn queues_on_another_node_are_not_empty() -> Result<()> {
    let (server, mut cluster) = (Redis::start()?, Cluster::start(2)?);
    let door = Door::to(server.port()).await?;
    let prefix = format!("{{{}}}", fresh_prefix());
    let world = World::under(&prefix, &format!("url = \"{}\"", door.url()), &server.url()).await?;
    let other = 1 - cluster.owner(&prefix)?;
    let node = cluster.node(other).port();
    let moved = QueueFailure::Cluster { code: "MOVED".into() };
    let fault = Fault {
        begin: async || {
            door.lead_to(node);
            Ok(())
        },
        end: async || {
            door.lead_to(server.port());
            Ok(())
        },
        doubt: Doubt::Redis(moved.clone()),
        // In `{prefix}:lock`, as all keys of a test; and so in the slot, too.
        lease: Some(moved),
        is_blind: true,
    };
    fault.check(&world).await
}
