//! A dry run that could read nothing says why, on stdout and by its exit code, whether or not there is a candidate.

use std::time::Duration;

use anyhow::Result;
use salvage_tests::example::{Deck, Jobs, SlideJob};
use salvage_tests::services::{Redis, RedisOptions, fresh_prefix, until};
use salvage_tests::stores::Stores;
use salvage_tests::system::System;

use crate::commands::{QUEUES, Ran, ran, running, salvage};
use crate::faults_servers::blocking;

/// Longest wait for a server to be as it should be.
const DEADLINE: Duration = Duration::from_secs(30);

/// Runs `plan`, and `plan --json`, against another Redis: exit code 4, the reason on stdout, in both.
fn check(system: &System, redis_url: &str, why: &str) -> Result<()> {
    let plan = |arguments: &[&str]| -> Result<Ran> {
        ran(system.salvage(arguments)?.env("REDIS_URL", redis_url).env("SALVAGE_REDIS__TIMEOUT", "2s"))?
            .ended_with(4)
    };
    let text = plan(&["plan"])?;
    assert!(text.stdout.contains(&format!("the queues could not be read: {why}")), "{text:#?}");
    assert!(!text.stdout.contains("no orphan"), "{text:#?}");
    let report = plan(&["plan", "--json"])?.json()?;
    let told = report["pass"]["why"].as_str().unwrap_or_default();
    assert!(told.starts_with(why), "{report:#}");
    assert_eq!(report["pass"]["queues_in_doubt"].as_array().map(Vec::len), Some(QUEUES.len()), "{report:#}");
    Ok(())
}

/// Goal: however Redis keeps its queues from being read, a plan never looks like one that found nothing. Method: each way,
/// with no live row at all and with one that is old enough.
#[tokio::test]
async fn a_plan_that_could_not_read_the_queues_says_why_and_ends_with_4() -> Result<()> {
    let mut server = Redis::start_with(RedisOptions::default().password("right"))?;
    let system = running().await?;
    let (port, right) = (server.port(), server.url());
    server.command(&["ACL", "SETUSER", "reader", "reset", "on", ">secret", "~*", "+ping"])?;
    let url = |user: &str| format!("redis://{user}127.0.0.1:{port}");
    for candidates in 0..2 {
        if candidates == 1 {
            SlideJob::processing("s1").stale().insert(system.db.pool()).await?;
        }
        check(&system, &url(":wrong@"), "Redis refused the credentials (WRONGPASS)")?;
        check(&system, &url(""), "Redis refused the credentials (NOAUTH)")?;
        check(&system, &url("reader:secret@"), "the Redis user may not do this")?;
        check(&system, &(right.clone() + "/99"), "Redis answered ERR")?;
        check(&system, "redis://127.0.0.1:1", "no connection to Redis")?;
        server.pause()?;
        check(&system, &right, "no connection to Redis: not connected within 2000 ms")?;
        server.resume()?;
    }
    Ok(())
}

#[tokio::test]
async fn a_plan_against_a_replica_says_so() -> Result<()> {
    let master = Redis::start()?;
    let replica = Redis::start_with(RedisOptions::default().replica_of(&master))?;
    let system = running().await?;
    check(&system, &replica.url(), "the node's role is \"slave\", not master")
}

/// Redis reads its data back in slowly, a key at a time, and answers nothing else meanwhile; then a script keeps it busy.
#[tokio::test]
async fn a_plan_against_a_redis_that_loads_or_is_busy_says_so() -> Result<()> {
    let options =
        RedisOptions::default().set("--enable-debug-command", &["yes"]).set("--rdbcompression", &["no"]);
    let options = options.set("--busy-reply-threshold", &["10"]);
    let server = Redis::start_with(options.set("--loading-process-events-interval-bytes", &["1024"]))?;
    let system = running().await?;
    let fill = "for i = 1, 2000 do redis.call('SET', 'filler:' .. i, string.rep('x', 2000)) end";
    server.command(&["EVAL", fill, "0"])?;
    server.command(&["CONFIG", "SET", "key-load-delay", "20000"])?;
    let reload = blocking(&server, &["DEBUG", "RELOAD"]);
    until("Redis loads", DEADLINE, || Ok(server.command(&["INFO", "persistence"])?.contains("\nloading:1")))?;
    check(&system, &server.url(), "Redis is still loading its data")?;
    server.command(&["CONFIG", "SET", "key-load-delay", "0"])?;
    reload.join().expect("the thread that has Redis load");

    let script = blocking(&server, &["EVAL", "while true do end", "0"]);
    until("Redis is busy", DEADLINE, || {
        Ok(server.command(&["PING"]).is_err_and(|error| format!("{error:#}").contains("BUSY")))
    })?;
    check(&system, &server.url(), "Redis is busy")?;
    server.command(&["SCRIPT", "KILL"])?;
    script.join().expect("the thread that keeps Redis busy");
    Ok(())
}

/// In a pass that acts, too: the lease is one key, and may be had where the queues are not.
#[tokio::test]
async fn a_pass_that_has_the_lease_and_no_queue_says_why_and_ends_with_4() -> Result<()> {
    let server = Redis::start()?;
    let prefix = fresh_prefix();
    let url = server.url().replace("redis://", "redis://keeper:secret@");
    let system = System::through(&format!("url = \"{url}\""), &prefix, &server.url()).await?;
    let lease = format!("~{prefix}:lock");
    server.command(&["ACL", "SETUSER", "keeper", "reset", "on", ">secret", &lease, "+@all"])?;
    let once = salvage(&system, &["once"])?.ended_with(4)?;
    assert!(
        once.stdout.contains("the queues could not be read: the Redis user may not do this"),
        "{once:#?}"
    );
    assert!(!once.stdout.contains("no orphan"), "{once:#?}");
    let report = salvage(&system, &["once", "--json"])?.ended_with(4)?.json()?;
    assert_eq!(report["pass"]["lease"], "acquired");
    assert!(report["pass"]["why"].is_string(), "{report:#}");
    Ok(())
}

#[tokio::test]
async fn a_pass_without_its_lease_says_on_stdout_why() -> Result<()> {
    let system = running().await?;
    let down = |arguments: &[&str]| -> Result<Ran> {
        ran(system.salvage(arguments)?.env("REDIS_URL", "redis://127.0.0.1:1"))?.ended_with(4)
    };
    let expected = "skipped, for the lease could not be taken: no connection to Redis: Connection refused";
    let once = down(&["once"])?;
    assert!(once.stdout.starts_with(expected), "{once:#?}");
    let report = down(&["once", "--json"])?.json()?;
    assert_eq!(report["pass"]["lease"], "unreachable");
    assert!(report["pass"]["why"].as_str().is_some_and(|why| why.starts_with("no connection")), "{report:#}");
    Ok(())
}

/// A wrong database number, prefix or host: Redis is well, and nothing of BullMQ is in it. Where nothing has to be judged
/// that may be an application that never enqueued anything, so it is said and is no failure.
#[tokio::test]
async fn a_plan_where_nothing_of_bullmq_is_found_says_so() -> Result<()> {
    let system = running().await?;
    let before = Stores::of(&system).await?;
    let elsewhere = |code: i32| -> Result<Ran> {
        ran(system.salvage(&["plan"])?.env("REDIS_URL", format!("{}/7", system.redis_url)))?.ended_with(code)
    };
    let expected = "queues narration, slide-export, slide-generation, video-composition, video-export cannot be judged: \
                    neither `id` nor `meta` exists under prefix";
    let idle = elsewhere(0)?;
    assert!(idle.stdout.contains(expected), "{idle:#?}");
    assert!(idle.stdout.ends_with("\nno orphan: no live row is old enough to be looked up\n"), "{idle:#?}");
    assert_eq!(Stores::of(&system).await?, before);

    Deck::generating("d1").insert(system.db.pool()).await?;
    SlideJob::processing("s1").stale().of("d1").insert(system.db.pool()).await?;
    let unknown = elsewhere(4)?;
    assert!(unknown.stdout.contains(expected), "{unknown:#?}");
    let here = salvage(&system, &["plan"])?.ended_with(0)?;
    assert!(!here.stdout.contains("cannot be judged"), "{here:#?}");
    Ok(())
}
