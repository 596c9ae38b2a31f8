//! Faults of the whole server: it does not answer, or will not.

use std::cell::RefCell;
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Context, Result};
use salvage_core::sighting::{Doubt, QueueFailure};
use salvage_tests::door::{Door, Spoil};
use salvage_tests::services::{Redis, RedisOptions, until};

use crate::faults::{Fault, WORDS, World};

/// Longest wait for a server to be as it should be.
const DEADLINE: Duration = Duration::from_secs(30);

fn redis(failure: QueueFailure) -> Doubt {
    Doubt::Redis(failure)
}

/// A command that blocks its connection until the server is done with it, or is told to leave it.
pub(crate) fn blocking(server: &Redis, words: &'static [&'static str]) -> JoinHandle<()> {
    let url = server.url();
    std::thread::spawn(move || {
        let client = redis::Client::open(url).expect("a sound URL");
        let mut connection = client.get_connection().expect("a server that answers");
        // It ends with an error if it is killed.
        drop(redis::cmd(words[0]).arg(&words[1..]).exec(&mut connection));
    })
}

#[tokio::test]
async fn a_frozen_redis_is_a_timeout_and_nothing_else() -> Result<()> {
    let server = RefCell::new(Redis::start()?);
    let url = server.borrow().url();
    let world = World::through(&format!("url = \"{url}\"\ntimeout = \"700ms\""), &url).await?;
    let timeout = QueueFailure::Timeout { timeout_ms: 700 };
    let fault = Fault {
        begin: async || server.borrow_mut().pause(),
        end: async || {
            server.borrow_mut().resume()?;
            // Whoever connects now is answered after those who connected to the frozen server.
            server.borrow().command(&["PING"]).map(drop)
        },
        doubt: redis(timeout.clone()),
        lease: Some(timeout),
        is_blind: true,
    };
    fault.check(&world).await
}

#[tokio::test]
async fn a_connection_that_breaks_half_way_through_every_reply_tells_nothing() -> Result<()> {
    let server = Redis::start()?;
    let door = Door::to(server.port()).await?;
    let world = World::through(&format!("url = \"{}\"", door.url()), &server.url()).await?;
    let dropped = QueueFailure::Dropped { detail: WORDS.to_owned() };
    let fault = Fault {
        begin: async || {
            door.spoil(Some(Spoil::Half));
            Ok(())
        },
        end: async || {
            door.spoil(None);
            Ok(())
        },
        doubt: redis(dropped.clone()),
        lease: Some(dropped),
        is_blind: true,
    };
    fault.check(&world).await
}

/// Redis reads its data back in slowly, a key at a time, and answers nothing else meanwhile.
#[tokio::test]
async fn a_redis_that_loads_its_data_is_waited_for() -> Result<()> {
    let options = RedisOptions::default().set("--enable-debug-command", &["yes"]);
    // It looks up from its work after this many bytes.
    let options = options.set("--loading-process-events-interval-bytes", &["1024"]);
    let server = Redis::start_with(options.set("--rdbcompression", &["no"]))?;
    let world = World::on(&server.url()).await?;
    let fill = "for i = 1, 2000 do redis.call('SET', 'filler:' .. i, string.rep('x', 2000)) end";
    server.command(&["EVAL", fill, "0"])?;
    let loads = |yes| {
        let line = format!("loading:{}", u8::from(yes));
        until("Redis loads or has loaded", DEADLINE, || {
            Ok(server.command(&["INFO", "persistence"])?.lines().any(|found| found == line))
        })
    };
    let loading = RefCell::new(None);
    let fault = Fault {
        begin: async || {
            server.command(&["CONFIG", "SET", "key-load-delay", "20000"])?;
            *loading.borrow_mut() = Some(blocking(&server, &["DEBUG", "RELOAD"]));
            loads(true)
        },
        end: async || {
            server.command(&["CONFIG", "SET", "key-load-delay", "0"])?;
            loading.take().context("nobody loads")?.join().expect("the thread that has Redis load");
            loads(false)
        },
        doubt: redis(QueueFailure::Loading),
        lease: Some(QueueFailure::Loading),
        is_blind: true,
    };
    fault.check(&world).await
}

#[tokio::test]
async fn a_redis_that_runs_a_script_without_end_is_busy() -> Result<()> {
    let server = Redis::start_with(RedisOptions::default().set("--busy-reply-threshold", &["10"]))?;
    let world = World::on(&server.url()).await?;
    let script = RefCell::new(None);
    let fault = Fault {
        begin: async || {
            *script.borrow_mut() = Some(blocking(&server, &["EVAL", "while true do end", "0"]));
            until("Redis is busy", DEADLINE, || {
                Ok(server.command(&["PING"]).is_err_and(|error| format!("{error:#}").contains("BUSY")))
            })
        },
        end: async || {
            server.command(&["SCRIPT", "KILL"])?;
            script.take().context("no script runs")?.join().expect("the thread that keeps Redis busy");
            Ok(())
        },
        doubt: redis(QueueFailure::Busy),
        lease: Some(QueueFailure::Busy),
        is_blind: true,
    };
    fault.check(&world).await
}

fn follow_nobody(server: &Redis) -> Result<()> {
    server.command(&["REPLICAOF", "127.0.0.1", "1"]).map(drop)
}

fn lead(server: &Redis) -> Result<()> {
    server.command(&["REPLICAOF", "NO", "ONE"]).map(drop)
}

/// It still holds all it had, and may go on to.
#[tokio::test]
async fn a_master_that_was_made_a_replica_proves_nothing() -> Result<()> {
    let server = Redis::start()?;
    let world = World::on(&server.url()).await?;
    let fault = Fault {
        begin: async || follow_nobody(&server),
        end: async || lead(&server),
        doubt: redis(QueueFailure::NotMaster { role: "slave".into() }),
        lease: Some(QueueFailure::ReadOnly),
        is_blind: false,
    };
    fault.check(&world).await
}

/// The host's address leads to a replica that its master has not sent anything yet: empty, and without an error.
#[tokio::test]
async fn a_replica_without_data_is_no_empty_queue() -> Result<()> {
    let (server, replica) = (Redis::start()?, Redis::start()?);
    follow_nobody(&replica)?;
    let door = Door::to(server.port()).await?;
    let world = World::through(&format!("url = \"{}\"", door.url()), &server.url()).await?;
    let fault = Fault {
        begin: async || {
            door.lead_to(replica.port());
            Ok(())
        },
        end: async || {
            door.lead_to(server.port());
            Ok(())
        },
        doubt: redis(QueueFailure::NotMaster { role: "slave".into() }),
        lease: Some(QueueFailure::ReadOnly),
        is_blind: true,
    };
    fault.check(&world).await
}

#[tokio::test]
async fn a_replica_that_lost_its_master_and_says_so_proves_nothing() -> Result<()> {
    let server = Redis::start_with(RedisOptions::default().set("--replica-serve-stale-data", &["no"]))?;
    let world = World::on(&server.url()).await?;
    let fault = Fault {
        begin: async || follow_nobody(&server),
        end: async || lead(&server),
        doubt: redis(QueueFailure::MasterDown),
        lease: Some(QueueFailure::ReadOnly),
        is_blind: true,
    };
    fault.check(&world).await
}

/// Whoever is connected already stays logged in; the host must not be.
async fn cut_off(world: &World) -> Result<()> {
    world.system.redis(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]).await
}

#[tokio::test]
async fn a_redis_that_asks_for_a_password_we_do_not_know_is_not_empty() -> Result<()> {
    let server = Redis::start()?;
    let world = World::on(&server.url()).await?;
    let set = async |password: &str| world.system.redis(&["CONFIG", "SET", "requirepass", password]).await;
    let refused = QueueFailure::Credentials { code: "NOAUTH".into() };
    let fault = Fault {
        begin: async || {
            let (): () = set("another").await?;
            cut_off(&world).await
        },
        end: async || set("").await,
        doubt: redis(refused.clone()),
        lease: Some(refused),
        is_blind: true,
    };
    fault.check(&world).await
}

#[tokio::test]
async fn a_redis_that_knows_us_by_another_password_is_not_empty() -> Result<()> {
    let server = Redis::start()?;
    let set = |password: &str| {
        let words = ["ACL", "SETUSER", "salvage", "reset", "on", password, "~*", "&*", "+@all"];
        server.command(&words).map(drop)
    };
    set(">secret")?;
    let url = server.url().replace("redis://", "redis://salvage:secret@");
    let world = World::through(&format!("url = \"{url}\""), &server.url()).await?;
    let refused = QueueFailure::Credentials { code: "WRONGPASS".into() };
    let fault = Fault {
        begin: async || {
            set(">another")?;
            cut_off(&world).await
        },
        end: async || set(">secret"),
        doubt: redis(refused.clone()),
        lease: Some(refused),
        is_blind: true,
    };
    fault.check(&world).await
}

/// The lease is not refused: what is forbidden is only needed for the snapshot.
#[tokio::test]
async fn a_command_that_is_forbidden_is_not_an_empty_answer() -> Result<()> {
    let server = Redis::start()?;
    let world = World::on(&server.url()).await?;
    let detail = "this user has no permissions to run the 'zrange' command".to_owned();
    let permit = |right: &str| server.command(&["ACL", "SETUSER", "default", right]).map(drop);
    let fault = Fault {
        begin: async || permit("-zrange"),
        end: async || permit("+@all"),
        doubt: redis(QueueFailure::Forbidden { detail }),
        lease: None,
        is_blind: true,
    };
    fault.check(&world).await
}
