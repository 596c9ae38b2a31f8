//! `salvage doctor`: what it finds, and the indexes it makes when asked.

use anyhow::Result;
use insta::assert_snapshot;
use salvage_tests::services::{Database, Redis, RedisOptions};
use salvage_tests::stores::tables;
use salvage_tests::system::System;
use sqlx::PgPool;

use crate::commands::{Ran, ran, running, salvage};

/// Lines about sources only.
fn about_sources(ran: &Ran) -> String {
    let lines = ran.stdout.lines().skip_while(|line| !line.contains("source ") && !line.contains("INDEX"));
    let lines = lines.take_while(|line| !line.contains("Redis"));
    lines.map(|line| format!("{line}\n")).collect()
}

/// The names of a table's valid indexes of live rows.
async fn live_indexes(db: &PgPool, table: &str) -> Result<Vec<String>> {
    let query = "SELECT i.relname::text FROM pg_index AS x JOIN pg_class AS i ON i.oid = x.indexrelid \
         WHERE x.indrelid = $1::regclass AND x.indpred IS NOT NULL AND x.indisvalid ORDER BY 1";
    Ok(sqlx::query_scalar(query).bind(table).fetch_all(db).await?)
}

#[tokio::test]
async fn a_healthy_system_is_well_and_doctor_says_by_what() -> Result<()> {
    let system = running().await?;
    let ran = salvage(&system, &["doctor"])?.ended_with(0)?;
    insta::with_settings!({ filters => vec![
        (r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", "[time]"),
        (r"(sha256|run|replication) [0-9a-f]{12}", "$1 [12 digits]"),
    ]}, {
        assert_snapshot!(ran.stdout, @r#"
        ok   PostgreSQL: connected; schema salvage is current
        ok   handler exports: active (exports.wasm, sha256 [12 digits]…)
        ok   handler slides: active (slides.wasm, sha256 [12 digits]…)
        ok   handler video-composition: active (video-composition.wasm, sha256 [12 digits]…)
        ok   source exports/slide-export: candidates are found by index "SlideExportJob_live"
        ok   source exports/video-export: candidates are found by index "VideoExportJob_live"
        ok   source slides/generation: candidates are found by index "SlideJob_live"
        ok   source video-composition/composition: candidates are found by index "VideoJob_live"
        ok   source video-composition/narration: candidates are found by index narration_jobs_live
        ok   Redis: connected; master, run [12 digits], replication [12 digits], 0 keys evicted under noeviction
        ok   queue narration: 0 jobs scheduled, counter 100; epoch since [time]
        ok   queue slide-export: 0 jobs scheduled, counter 100; epoch since [time]
        ok   queue slide-generation: 0 jobs scheduled, counter 100; epoch since [time]
        ok   queue video-composition: 0 jobs scheduled, counter 100; epoch since [time]
        ok   queue video-export: 0 jobs scheduled, counter 100; epoch since [time]
        ok   entries of narration: 0 attributed by id, 0 by payload, 0 foreign by name, 0 unattributed
        ok   entries of slide-export: 0 attributed by id, 0 by payload, 0 foreign by name, 0 unattributed
        ok   entries of slide-generation: 0 attributed by id, 0 by payload, 0 foreign by name, 0 unattributed
        ok   entries of video-composition: 0 attributed by id, 0 by payload, 0 foreign by name, 0 unattributed
        ok   entries of video-export: 0 attributed by id, 0 by payload, 0 foreign by name, 0 unattributed

        all is well: 20 checks
        "#);
    });
    let findings = salvage(&system, &["doctor", "--json"])?.ended_with(0)?.json()?;
    assert_eq!(findings.as_array().map(Vec::len), Some(20));
    Ok(())
}

#[tokio::test]
async fn a_missing_schema_and_a_redis_that_is_down_are_findings_told_once() -> Result<()> {
    let system = running().await?;
    let db = Database::example().await?;
    let missing = ran(system.salvage(&["doctor"])?.env("DATABASE_URL", db.url()))?.ended_with(1)?;
    assert_eq!(missing.stdout.matches("run `salvage migrate`").count(), 1, "{missing:#?}");
    assert!(
        missing.stdout.starts_with("BAD  PostgreSQL: schema `salvage` is missing: run `salvage migrate`\n")
    );
    assert!(missing.stdout.ends_with("\nnot well: 1 of 15 checks bad\n"), "{missing:#?}");

    let no_redis =
        ran(system.salvage(&["doctor"])?.env("REDIS_URL", "redis://127.0.0.1:1"))?.ended_with(1)?;
    let down = "BAD  Redis: no connection to Redis: Connection refused (os error 111); check its address in [redis] and that \
                the server is up\n";
    assert!(no_redis.stdout.contains(down), "{no_redis:#?}");
    assert!(no_redis.stdout.ends_with("\nnot well: 1 of 10 checks bad\n"), "{no_redis:#?}");

    let nowhere = ("DATABASE_URL", "postgres://app:hunter2@127.0.0.1:1/app");
    let no_database = ran(system.salvage(&["doctor"])?.env(nowhere.0, nowhere.1))?.ended_with(1)?;
    assert_eq!(no_database.stdout.matches("no connection to PostgreSQL").count(), 1, "{no_database:#?}");
    assert!(!no_database.stdout.contains("hunter2"));
    Ok(())
}

#[tokio::test]
async fn a_wiped_queue_a_new_queue_and_an_evicting_redis_are_named_with_what_to_do() -> Result<()> {
    let redis = Redis::start_with(
        RedisOptions::default().set("--maxmemory-policy", &["allkeys-lru"]).set("--maxmemory", &["100mb"]),
    )?;
    let system = System::on(&redis.url()).await?;
    system.used_queues(&["slide-generation", "slide-export"]).await?;
    system.known_since_yesterday().await?;
    system.redis::<()>(&["DEL", &system.key("slide-generation", "salvage:host")]).await?;
    system.used_queues(&["video-export"]).await?;
    let ran = salvage(&system, &["doctor"])?.ended_with(1)?;
    for expected in [
        "BAD  Redis: maxmemory-policy is allkeys-lru: jobs may be evicted; set noeviction, as BullMQ asks for (where CONFIG is forbidden, in the settings of the service)\n",
        "BAD  queue slide-generation: 0 jobs scheduled, counter 100; the host's own key is gone: Redis was wiped, or \
         lost what it had; older orphans will wait: if what it holds now is the truth, run `salvage accept \
         slide-generation`\n",
        "queues that exist: \"slide-generation\", ",
        "if it is new, run `salvage accept --new narration`\n",
    ] {
        assert!(ran.stdout.contains(expected), "{ran:#?} lacks {expected}");
    }
    Ok(())
}

#[tokio::test]
async fn a_missing_index_is_told_with_its_statement_and_made_when_asked() -> Result<()> {
    let system = running().await?;
    let db = system.db.pool();
    sqlx::query("DROP INDEX \"SlideJob_live\"").execute(db).await?;
    let before = tables(db, &["salvage"]).await?;
    let missing = salvage(&system, &["doctor"])?.ended_with(1)?;
    assert!(about_sources(&missing).contains(
        "BAD  source slides/generation: no index of live rows, candidates are found by index \"SlideJob_pkey\"; \
         `salvage doctor --create-indexes` runs, while the application goes on:\n\
         CREATE INDEX CONCURRENTLY \"SlideJob_salvage_live\" ON \"public\".\"SlideJob\" (\"id\") \
         WHERE \"status\" IN ('QUEUED', 'PROCESSING');\n"
    ), "{missing:#?}");
    assert!(live_indexes(db, "\"SlideJob\"").await?.is_empty(), "looking makes nothing");

    let made = salvage(&system, &["doctor", "--create-indexes"])?.ended_with(0)?;
    let first = made.stdout.lines().next().unwrap_or_default();
    assert!(first.starts_with("CREATE INDEX CONCURRENTLY \"SlideJob_salvage_live\""), "{made:#?}");
    assert_eq!(live_indexes(db, "\"SlideJob\"").await?, ["SlideJob_salvage_live"]);
    assert!(made.stdout.contains("found by index \"SlideJob_salvage_live\""), "{made:#?}");
    let again = salvage(&system, &["doctor", "--create-indexes"])?.ended_with(0)?;
    assert!(!again.stdout.contains("INDEX CONCURRENTLY"), "{again:#?}");
    assert_eq!(tables(db, &["salvage"]).await?, before, "nothing else was written");
    Ok(())
}

#[tokio::test]
async fn an_invalid_leftover_is_dropped_and_built_again() -> Result<()> {
    let system = running().await?;
    let db = system.db.pool();
    sqlx::query("UPDATE pg_index SET indisvalid = false WHERE indexrelid = '\"SlideJob_live\"'::regclass")
        .execute(db)
        .await?;
    let made =
        ran(system.salvage(&["doctor", "--create-indexes", "--json"])?.env("RUST_LOG", "salvage=info"))?;
    let made = made.ended_with(0)?;
    assert_eq!(made.json()?.as_array().map(Vec::len), Some(20), "statements are not in the JSON");
    let drop = made.stderr.find("DROP INDEX CONCURRENTLY \"public\".\"SlideJob_live\";");
    let create = made.stderr.find("CREATE INDEX CONCURRENTLY \"SlideJob_salvage_live\"");
    assert!(drop.is_some() && drop < create, "{made:#?}");
    assert_eq!(live_indexes(db, "\"SlideJob\"").await?, ["SlideJob_salvage_live"]);
    Ok(())
}

#[tokio::test]
async fn each_partition_of_a_job_table_gets_its_index() -> Result<()> {
    let system = running().await?;
    let db = system.db.pool();
    // Names so long that the index's own would be cut to the same.
    let long = "slide_jobs_partitioned_by_the_time_of_their_making_year";
    let partitions = format!(
        "ALTER TABLE \"SlideJob\" RENAME TO old; \
         CREATE TABLE \"SlideJob\" (LIKE old INCLUDING DEFAULTS) PARTITION BY RANGE (\"createdAt\"); \
         CREATE TABLE {long}_2025 PARTITION OF \"SlideJob\" FOR VALUES FROM (MINVALUE) TO ('2026-01-01'); \
         CREATE TABLE {long}_2026 PARTITION OF \"SlideJob\" FOR VALUES FROM ('2026-01-01') TO (MAXVALUE)"
    );
    sqlx::raw_sql(sqlx::AssertSqlSafe(partitions)).execute(db).await?;
    let made = salvage(&system, &["doctor", "--create-indexes"])?.ended_with(0)?;
    assert_eq!(made.stdout.matches("CREATE INDEX CONCURRENTLY").count(), 2, "{made:#?}");
    for year in ["2025", "2026"] {
        assert_eq!(live_indexes(db, &format!("{long}_{year}")).await?.len(), 1, "{made:#?}");
    }
    let again = salvage(&system, &["doctor", "--create-indexes"])?.ended_with(0)?;
    assert!(!again.stdout.contains("CREATE INDEX"), "{again:#?}");
    Ok(())
}

#[tokio::test]
async fn an_index_that_cannot_be_made_is_a_finding_and_keeps_no_other_from_being_made() -> Result<()> {
    let system = running().await?;
    let db = system.db.pool();
    let lost = "DROP INDEX \"SlideExportJob_live\"; DROP INDEX \"SlideJob_live\"; \
         CREATE TABLE public.\"SlideExportJob_salvage_live\" ()";
    sqlx::raw_sql(lost).execute(db).await?;
    let made = salvage(&system, &["doctor", "--create-indexes"])?.ended_with(1)?;
    assert!(made.stdout.contains("relation \"SlideExportJob_salvage_live\" already exists"), "{made:#?}");
    assert_eq!(live_indexes(db, "\"SlideJob\"").await?, ["SlideJob_salvage_live"]);
    Ok(())
}
