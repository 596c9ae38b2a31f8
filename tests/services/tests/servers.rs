//! The servers do what their names say. Real processes, a few seconds in all.

use anyhow::Result;
use salvage_services::{Ended, MARKER_PASSWORD, Postgres, Redis, RedisOptions, example, postgres, until};
use std::path::Path;
use std::time::Duration;

/// Generous: on a busy machine everything takes longer, and a passing test does not wait for it.
const DEADLINE: Duration = Duration::from_secs(60);

fn example_folder() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../migrations/example"))
}

#[test]
fn redis_comes_back_with_or_without_its_data() -> Result<()> {
    let mut redis = Redis::start()?;
    redis.command(&["SET", "k", "v"])?;
    redis.restart_with_data()?;
    assert_eq!(redis.command(&["GET", "k"])?, "v");
    redis.restart_empty()?;
    assert_eq!(redis.command(&["DBSIZE"])?, "0");
    redis.pause()?;
    redis.resume()?;
    assert_eq!(redis.command(&["PING"])?, "PONG");
    Ok(())
}

#[test]
fn durable_redis_survives_a_kill() -> Result<()> {
    let mut redis = Redis::start_with(RedisOptions::default().durable().password("secret"))?;
    redis.command(&["SET", "k", "v"])?;
    redis.kill()?;
    redis.start_again()?;
    assert_eq!(redis.command(&["GET", "k"])?, "v");
    Ok(())
}

#[test]
fn sentinel_makes_the_replica_master() -> Result<()> {
    let mut master = Redis::start()?;
    let replica = Redis::start_with(RedisOptions::default().replica_of(&master))?;
    let in_sync = || Ok(replica.command(&["INFO", "replication"])?.contains("master_link_status:up"));
    until("the replica is in sync", DEADLINE, in_sync)?;
    let sentinel = Redis::start_with(RedisOptions::default().sentinel_of("main", &master))?;
    let knows_replica = || Ok(sentinel.command(&["SENTINEL", "REPLICAS", "main"])?.contains("127.0.0.1"));
    until("Sentinel knows the replica", DEADLINE, knows_replica)?;

    master.kill()?;
    let promoted = || Ok(replica.command(&["ROLE"])?.starts_with("master"));
    until("the replica is master", DEADLINE, promoted)
}

#[test]
fn dropped_redis_is_gone() -> Result<()> {
    let redis = Redis::start()?;
    let port = redis.port();
    drop(redis);
    assert!(std::net::TcpStream::connect(("127.0.0.1", port)).is_err());
    Ok(())
}

#[test]
fn postgres_keeps_its_data_and_asks_for_the_password() -> Result<()> {
    let mut server = Postgres::start()?;
    let url = server.url("postgres");
    assert!(postgres::psql(&url.replace(MARKER_PASSWORD, "wrong"), &["-c", "SELECT 1"]).is_err());

    let applied = example::migrate(&url, example_folder())?;
    assert_eq!(applied.len(), 9, "{applied:?}");
    assert!(example::migrate(&url, example_folder())?.is_empty(), "a second run applies nothing");

    for how in [Ended::Interrupted, Ended::Quit, Ended::Killed] {
        server.end(how)?;
        assert!(postgres::psql(&url, &["-c", "SELECT 1"]).is_err());
        server.start_again()?;
        assert_eq!(postgres::psql(&url, &["-c", "SELECT count(*) FROM public.example_migrations"])?, "9");
    }
    server.pause()?;
    server.resume()?;
    server.restart()?;
    assert_eq!(postgres::psql(&url, &["-c", "SHOW timezone"])?, "UTC");
    Ok(())
}
