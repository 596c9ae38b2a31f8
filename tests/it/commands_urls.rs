//! URLs as applications have them, with parameters of their own drivers.

use anyhow::Result;
use salvage_tests::services::{MARKER_PASSWORD, PgBouncer, Redis, postgres_url};
use salvage_tests::system::System;

use crate::acting::{delayed, lose_generation, running, sql, with_lost_generation};
use crate::commands::{QUEUES, Ran, Running, ran};

/// The loudest, where libraries tell most.
fn with(system: &System, variable: (&str, &str), arguments: &[&str]) -> Result<Ran> {
    let ran = ran(system.salvage(arguments)?.env(variable.0, variable.1).env("RUST_LOG", "trace"))?;
    for text in [&ran.stdout, &ran.stderr] {
        assert!(!text.contains(MARKER_PASSWORD), "{text}");
    }
    Ok(ran)
}

/// F18.
#[tokio::test]
async fn the_value_of_no_parameter_is_shown_whatever_becomes_of_it() -> Result<()> {
    let system = System::fresh().await?;
    for (parameter, code) in [
        ("sslpassword", 3),
        ("sslidentity", 3),
        ("sslmode", 3),
        ("service", 3),
        ("connection_limit", 0),
        ("pool_timeout", 0),
        ("some_drivers_own", 0),
        ("sslrootcrt", 3),
    ] {
        let url = format!("{}?{parameter}={MARKER_PASSWORD}", system.db.url());
        let ran = with(&system, ("DATABASE_URL", &url), &["history"])?.ended_with(code)?;
        assert!(ran.stderr.contains(parameter), "{parameter}: {ran:#?}");
    }
    for (parameter, code) in [("keyPrefix", 3), ("family", 4), ("some_clients_own", 4), ("db", 3)] {
        let url = format!("{}?{parameter}={MARKER_PASSWORD}", system.redis_url);
        let ran = with(&system, ("REDIS_URL", &url), &["once"])?;
        assert!(ran.stderr.contains(parameter), "{parameter}: {ran:#?}");
        assert_eq!(ran.code == Some(3), code == 3, "{parameter}: {ran:#?}");
    }
    Ok(())
}

/// The application's tables and types in a schema that is not on the search path.
async fn in_schema_app(system: &System) -> Result<()> {
    sql(
        system,
        "CREATE SCHEMA app; DO $$ DECLARE name text; BEGIN \
         FOR name IN SELECT relname FROM pg_class WHERE relnamespace = 'public'::regnamespace AND relkind = 'r' LOOP \
           EXECUTE format('ALTER TABLE public.%I SET SCHEMA app', name); END LOOP; \
         FOR name IN SELECT typname FROM pg_type WHERE typnamespace = 'public'::regnamespace AND typtype = 'e' LOOP \
           EXECUTE format('ALTER TYPE public.%I SET SCHEMA app', name); END LOOP; END $$",
    )
    .await
}

#[tokio::test]
async fn a_schema_in_the_url_is_where_the_tables_are() -> Result<()> {
    let system = with_lost_generation().await?;
    lose_generation(&system, "s2").await?;
    in_schema_app(&system).await?;
    let server = postgres_url()?;
    let port = server.rsplit_once(':').and_then(|(_, rest)| rest.split('/').next()).unwrap_or_default();
    let pgbouncer = PgBouncer::before(port.parse()?, 3)?;
    let direct = format!("{}?schema=app", system.db.url());
    let pooled = format!("{}?pgbouncer=true&schema=app&connection_limit=1", pgbouncer.url(system.db.name()));
    for (url, id) in [(direct, "s1"), (pooled, "s2")] {
        let change = format!("UPDATE app.\"SlideJob\" SET status = 'COMPLETED' WHERE id <> '{id}'");
        sql(&system, &change).await?;
        let report = with(&system, ("DATABASE_URL", &url), &["once", "--json"])?.ended_with(0)?.json()?;
        assert_eq!(report["sources"][2]["requeued"], 1, "{report:#}");
        assert!(delayed(&system, "slide-generation").await?.contains(&format!("slide-{id}")));
        sql(&system, "UPDATE app.\"SlideJob\" SET status = 'PROCESSING' WHERE id = 's2'").await?;
    }
    let nowhere = format!("{}?schema=nowhere", system.db.url());
    let ran = with(&system, ("DATABASE_URL", &nowhere), &["once", "--json"])?;
    assert_eq!(ran.json()?["sources"].as_array().map(Vec::len), Some(0), "{ran:#?}");
    Ok(())
}

#[tokio::test]
async fn the_name_in_the_url_is_the_one_that_the_server_shows() -> Result<()> {
    let system = running().await?;
    let mut command = system.salvage(&["run"])?;
    command.env("DATABASE_URL", format!("{}?application_name=mender", system.db.url()));
    let mut process = Running::start(&mut command)?;
    process.says("pass done", 1).await?;
    let query = "SELECT DISTINCT application_name FROM pg_stat_activity WHERE datname = current_database() \
                 AND pid <> pg_backend_pid() AND application_name <> ''";
    let names: Vec<String> = sqlx::query_scalar(query).fetch_all(system.db.pool()).await?;
    assert!(names.contains(&"mender".to_owned()), "{names:?}");
    process.terminate()?;
    assert_eq!(process.ended().await?.0, Some(0));
    Ok(())
}

/// A client that ignores `db` works on another database than the application, and finds every job lost.
#[tokio::test]
async fn the_database_in_a_parameter_is_the_one_that_is_looked_at() -> Result<()> {
    let redis = Redis::start()?;
    let system = System::on(&redis.url()).await?;
    let url = format!("{}?db=3&family=4", redis.url());
    for queue in QUEUES {
        redis.command(&["HSET", &system.key(queue, "meta"), "opts.maxLenEvents", "10000"])?;
    }
    let unused = with(&system, ("REDIS_URL", &url), &["doctor"])?;
    assert!(unused.stdout.contains("neither `id` nor `meta` exists"), "{unused:#?}");
    for queue in QUEUES {
        redis.command(&["MOVE", &system.key(queue, "meta"), "3"])?;
    }
    let used = with(&system, ("REDIS_URL", &url), &["doctor"])?;
    assert!(!used.stdout.contains("neither `id` nor `meta` exists"), "{used:#?}");
    Ok(())
}
