//! Salvage's own tables: made once, shared by all hosts, without a payload and without growing for ever.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use anyhow::Result;
use jiff::{SignedDuration, Timestamp};
use salvage::ports::{Jobs as _, Ledger as _, StoreFailure};
use salvage::postgres::{Pooler, Postgres};
use salvage_core::epoch::QueueMemory;
use salvage_core::ledger::{Entry, Evidence, Intent};
use salvage_core::report::SourceCounts;
use salvage_core::source::SourceName;
use salvage_tests::services::{Database, MARKER_PASSWORD, Postgres as Server, Template};

fn name(source: &str) -> SourceName {
    SourceName { domain: "slides".into(), source: source.into() }
}

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(second).expect("a time in range")
}

async fn migrated() -> Result<(Database, Postgres)> {
    let db = Database::example().await?;
    let postgres = Postgres::new(db.url(), Pooler::None, "bull")?;
    postgres.migrate().await?;
    Ok((db, postgres))
}

/// How many files make schema `salvage`.
fn files() -> Result<usize> {
    let folder = salvage_tests::services::example_migrations().join("../host");
    let files = std::fs::read_dir(folder)?.filter_map(Result::ok).map(|entry| entry.path());
    Ok(files.filter(|path| path.extension().is_some_and(|extension| extension == "sql")).count())
}

#[tokio::test]
async fn a_missing_schema_says_to_migrate_and_migrating_twice_changes_nothing() -> Result<()> {
    let db = Database::example().await?;
    let postgres = Postgres::new(db.url(), Pooler::None, "bull")?;
    for failure in [postgres.check_schema().await, postgres.raise_fence("global", "t").await.map(drop)] {
        let failure = failure.expect_err("there is no schema yet");
        assert!(failure.to_string().contains("run `salvage migrate`"), "{failure}");
    }
    assert_eq!(postgres.migrate().await?.len(), files()?);
    postgres.check_schema().await?;
    assert!(postgres.migrate().await?.is_empty());
    sqlx::query("DELETE FROM salvage.migrations WHERE version = 3").execute(db.pool()).await?;
    let failure = postgres.check_schema().await.expect_err("a file is not applied");
    assert!(matches!(&failure, StoreFailure::Schema { found } if found.contains("0003")), "{failure}");
    Ok(())
}

#[tokio::test]
async fn hosts_that_migrate_at_once_do_it_once() -> Result<()> {
    let db = Database::example().await?;
    let hosts: Vec<Postgres> =
        (0..3).map(|_| Postgres::new(db.url(), Pooler::None, "bull")).collect::<Result<_, _>>()?;
    let (one, two, three) = tokio::try_join!(hosts[0].migrate(), hosts[1].migrate(), hosts[2].migrate())?;
    assert_eq!(one.len() + two.len() + three.len(), files()?);
    Ok(())
}

#[tokio::test]
async fn a_database_of_a_newer_host_serves_an_older_one() -> Result<()> {
    let (db, postgres) = migrated().await?;
    let newer = "INSERT INTO salvage.migrations (version, description, success, checksum, execution_time) \
        VALUES (9000, 'of the next version', true, '', 0)";
    sqlx::query(newer).execute(db.pool()).await?;
    postgres.check_schema().await?;
    assert!(postgres.migrate().await?.is_empty());
    Ok(())
}

#[tokio::test]
async fn the_files_load_with_psql_in_name_order() -> Result<()> {
    let db = Database::example().await?;
    let folder = salvage_tests::services::example_migrations().join("../host");
    let mut files: Vec<_> =
        std::fs::read_dir(folder)?.map(|entry| Ok(entry?.path())).collect::<Result<_>>()?;
    files.sort();
    for file in files {
        let file = file.to_str().expect("a path in UTF-8").to_owned();
        let url = db.url().to_owned();
        let load = move || salvage_services::postgres::psql(&url, &["--file", &file]);
        tokio::task::spawn_blocking(load).await??;
    }
    Postgres::new(db.url(), Pooler::None, "bull")?.raise_fence("global", "t").await?;
    Ok(())
}

#[tokio::test]
async fn a_fence_grows_by_one_per_scope() -> Result<()> {
    let (_db, postgres) = migrated().await?;
    assert_eq!(postgres.raise_fence("exports", "a").await?.generation, 1);
    assert_eq!(postgres.raise_fence("exports", "b").await?.generation, 2);
    assert_eq!(postgres.raise_fence("slides", "a").await?.generation, 1);
    Ok(())
}

fn memory(nonce: &str, epoch: i64) -> QueueMemory {
    QueueMemory {
        nonce: None,
        nonce_next: Some(nonce.into()),
        id_counter: Some(6),
        ever_had_jobs: true,
        run_id: "run".into(),
        replid: "repl".into(),
        evicted_keys: 0,
        epoch_began: at(epoch),
        accepted_at: None,
        lost_at: None,
    }
}

fn one(queue: &str, memory: QueueMemory) -> BTreeMap<String, QueueMemory> {
    BTreeMap::from([(queue.to_owned(), memory)])
}

#[tokio::test]
async fn memories_read_back_as_written_and_only_under_their_prefix() -> Result<()> {
    let (db, postgres) = migrated().await?;
    let fence = postgres.raise_fence("global", "t").await?;
    let mut memories = one("a", memory("n1", 1_000));
    let odd =
        QueueMemory { id_counter: None, accepted_at: Some(at(5)), evicted_keys: 7, ..memory("n2", 2_000) };
    memories.insert("b".into(), odd);
    postgres.remember_queues(&memories, &fence).await?;
    assert_eq!(postgres.all_queue_memories("global").await?, memories);
    let asked = BTreeSet::from(["b".to_owned(), "never-seen".to_owned()]);
    assert_eq!(postgres.queue_memories("global", &asked).await?, one("b", memories["b"].clone()));
    let stranger = Postgres::new(db.url(), Pooler::None, "other")?;
    assert!(stranger.all_queue_memories("global").await?.is_empty());
    Ok(())
}

#[tokio::test]
async fn a_fenced_host_remembers_and_intends_nothing() -> Result<()> {
    let (_db, postgres) = migrated().await?;
    let old = postgres.raise_fence("global", "old").await?;
    postgres.raise_fence("global", "new").await?;
    let remembered = postgres.remember_queues(&one("a", memory("n", 1)), &old).await;
    assert!(matches!(remembered, Err(StoreFailure::Fenced { ours: 1 })));
    let intent = Intent { source: name("generation"), job_id: "1".into(), is_requeue: true };
    let intended = postgres.intend("p", &old, std::slice::from_ref(&intent)).await;
    assert!(matches!(intended, Err(StoreFailure::Fenced { ours: 1 })));
    assert!(postgres.all_queue_memories("global").await?.is_empty());
    let jobs = [(intent.source, intent.job_id)];
    assert_eq!(postgres.recoveries(&jobs, Timestamp::UNIX_EPOCH).await?, [0]);
    Ok(())
}

#[tokio::test]
async fn corroboration_counts_only_within_the_queues_epoch() -> Result<()> {
    let (_db, postgres) = migrated().await?;
    let fence = postgres.raise_fence("global", "t").await?;
    let seen = [(name("generation"), "a".to_owned()), (name("other"), "unknown-queue".to_owned())];
    postgres.corroborate(&seen, at(1_500)).await?;
    assert!(postgres.corroborated("global").await?.is_empty(), "of a queue without an epoch");
    postgres.remember_queues(&one("a", memory("n", 1_500)), &fence).await?;
    assert_eq!(postgres.corroborated("global").await?, BTreeSet::from([name("generation")]));
    postgres.remember_queues(&one("a", memory("n", 1_501)), &fence).await?;
    assert!(postgres.corroborated("global").await?.is_empty());
    postgres.corroborate(&seen, at(1_600)).await?;
    postgres.corroborate(&seen, at(1_400)).await?;
    assert_eq!(postgres.corroborated("global").await?, BTreeSet::from([name("generation")]));
    Ok(())
}

#[tokio::test]
async fn accepted_queues_and_entries_are_kept_with_who_and_when() -> Result<()> {
    let (db, postgres) = migrated().await?;
    postgres.accepted_by("a", "somebody", at(1)).await?;
    postgres.accept_entry("a", "odd\\ 'entry'", "somebody", at(2)).await?;
    postgres.accept_entry("a", "odd\\ 'entry'", "somebody else", at(3)).await?;
    let expected = BTreeSet::from([("a".to_owned(), "odd\\ 'entry'".to_owned())]);
    assert_eq!(postgres.accepted_entries().await?, expected);
    let who: Vec<String> = sqlx::query_scalar(
        "SELECT who FROM salvage.accepted UNION ALL SELECT who FROM salvage.accepted_entries",
    )
    .fetch_all(db.pool())
    .await?;
    assert_eq!(who, ["somebody", "somebody else"]);
    Ok(())
}

#[tokio::test]
async fn recoveries_count_requeues_within_the_window_that_were_not_withdrawn() -> Result<()> {
    let (db, postgres) = migrated().await?;
    let fence = postgres.raise_fence("global", "t").await?;
    let intent =
        |job: &str, is_requeue| Intent { source: name("generation"), job_id: job.into(), is_requeue };
    for pass in ["p1", "p2", "p3"] {
        postgres.intend(pass, &fence, &[intent("a", true), intent("b", true), intent("c", false)]).await?;
    }
    postgres.withdraw("p2", &[intent("a", true)]).await?;
    let old =
        "UPDATE salvage.intents SET at = at - interval '80 hours' WHERE pass_id = 'p1' AND job_id = 'b'";
    sqlx::query(old).execute(db.pool()).await?;
    let jobs = ["c", "a", "never", "b", "a"].map(|job| (name("generation"), job.to_owned()));
    let since = postgres.now().await? - SignedDuration::from_hours(72);
    assert_eq!(postgres.recoveries(&jobs, since).await?, [0, 2, 0, 2, 2]);
    assert_eq!(postgres.recoveries(&[], since).await?, [0_u32; 0]);
    let elsewhere = [(name("other-source"), "a".to_owned())];
    assert_eq!(postgres.recoveries(&elsewhere, since).await?, [0]);
    Ok(())
}

fn entry(job: &str, generation: u64, outcome: Option<&str>) -> Entry {
    Entry {
        source: name("generation"),
        job_id: job.into(),
        job_type: "OUTLINE".into(),
        row: serde_json::json!({"status": "QUEUED", "updatedAt": "2026-01-31 09:00:00", "xmin": "7"}),
        evidence: Evidence { generation, snapshot_ms: generation * 1_000, ..Evidence::default() },
        sighting: "absent".into(),
        sighting_why: Some("none".into()),
        inputs_digest: None,
        component_digest: Some("digest".into()),
        decision: "requeue".into(),
        decision_reason: None,
        outcome: outcome.map(str::to_owned),
        outcome_why: outcome.map(|_| format!("in pass {generation} with a \0")),
        decide_us: None,
    }
}

#[tokio::test]
async fn a_story_that_does_not_change_is_one_row_with_a_count() -> Result<()> {
    let (db, postgres) = migrated().await?;
    let fence = postgres.raise_fence("global", "t").await?;
    for generation in 1..=3 {
        let twice = entry("a", generation, Some("before-epoch"));
        postgres.record(&[twice.clone(), entry("b", generation, None), twice], &fence).await?;
    }
    postgres.record(&[entry("a", 4, Some("refused"))], &fence).await?;
    postgres.record(&[], &fence).await?;
    let story = postgres.story(&name("generation"), "a").await?;
    let told: Vec<_> =
        story.iter().map(|line| (line.outcome.as_deref(), line.times, line.generation)).collect();
    assert_eq!(told, [(Some("before-epoch"), 3, 3), (Some("refused"), 1, 4)]);
    assert_eq!(story[0].evidence["snapshot_ms"], 3_000);
    assert_eq!(story[0].outcome_why.as_deref(), Some("in pass 3 with a \u{fffd}"));
    assert_eq!(story[0].row["xmin"], "7");
    assert!(story[0].last_at > story[0].first_at);
    let rows: i64 = sqlx::query_scalar("SELECT count(*) FROM salvage.ledger").fetch_one(db.pool()).await?;
    assert_eq!(rows, 3);
    Ok(())
}

#[tokio::test]
async fn a_superseded_pass_tells_no_story() -> Result<()> {
    let (_db, postgres) = migrated().await?;
    let ours = postgres.raise_fence("global", "ours").await?;
    postgres.raise_fence("global", "newer").await?;
    let failure = postgres.record(&[entry("a", 1, None)], &ours).await.expect_err("superseded");
    assert!(matches!(failure, StoreFailure::Fenced { .. }), "{failure:?}");
    assert!(postgres.story(&name("generation"), "a").await?.is_empty());
    Ok(())
}

#[tokio::test]
async fn history_is_newest_first_and_a_pass_that_died_has_no_end() -> Result<()> {
    let (_db, postgres) = migrated().await?;
    let fence = postgres.raise_fence("global", "t").await?;
    let now = postgres.now().await?;
    postgres.pass_began("died", &fence, now - SignedDuration::from_secs(300)).await?;
    postgres.pass_began("ended", &fence, now).await?;
    let counts = SourceCounts { live: 5, requeued: 2, ..SourceCounts::of(&name("generation")) };
    postgres.pass_ended("ended", Duration::from_millis(1_234), &[counts]).await?;
    let history = postgres.history(10).await?;
    assert_eq!(history.iter().map(|pass| pass.id.as_str()).collect::<Vec<_>>(), ["ended", "died"]);
    assert_eq!((history[0].duration_ms, history[0].started_at), (Some(1_234), now));
    assert_eq!(history[0].sources[0]["requeued"], 2);
    assert_eq!((history[1].duration_ms, history[1].generation), (None, 1));
    assert_eq!(postgres.history(1).await?.len(), 1);
    Ok(())
}

#[tokio::test]
async fn what_is_older_than_thirty_days_is_pruned_and_nothing_younger() -> Result<()> {
    let (db, postgres) = migrated().await?;
    let fence = postgres.raise_fence("global", "t").await?;
    let now = postgres.now().await?;
    postgres.record(&[entry("old", 1, None), entry("young", 1, None)], &fence).await?;
    let intent = |job: &str| Intent { source: name("generation"), job_id: job.into(), is_requeue: true };
    postgres.intend("p", &fence, &[intent("old"), intent("young")]).await?;
    postgres.pass_began("old", &fence, now - SignedDuration::from_hours(31 * 24)).await?;
    postgres.pass_began("young", &fence, now - SignedDuration::from_hours(29 * 24)).await?;
    sqlx::raw_sql(
        "UPDATE salvage.ledger SET last_at = last_at - interval '31 days' WHERE job_id = 'old'; \
         UPDATE salvage.intents SET at = at - interval '31 days' WHERE job_id = 'old'",
    )
    .execute(db.pool())
    .await?;
    postgres.pass_ended("young", Duration::ZERO, &[]).await?;
    let left: Vec<String> = sqlx::query_scalar(
        "SELECT job_id FROM salvage.ledger UNION ALL SELECT job_id FROM salvage.intents UNION ALL SELECT id FROM salvage.passes",
    )
    .fetch_all(db.pool())
    .await?;
    assert_eq!(left, ["young", "young", "young"]);
    Ok(())
}

#[tokio::test]
async fn a_refused_client_is_denied_at_once_and_no_message_holds_the_password() -> Result<()> {
    let db = Database::example().await?;
    let wrong = format!("{MARKER_PASSWORD}-wrong");
    let urls = [
        (db.url().replace(MARKER_PASSWORD, &wrong), "password authentication failed"),
        (format!("{}_missing", db.url()), "does not exist"),
    ];
    for (url, because) in urls {
        let began = Instant::now();
        let failure = Postgres::new(&url, Pooler::None, "bull")?.now().await.expect_err("refused");
        assert!(matches!(&failure, StoreFailure::Denied(_)), "{failure:?}");
        let told = format!("{failure} {failure:?}");
        assert!(told.contains(because) && !told.contains(MARKER_PASSWORD), "{told}");
        assert!(began.elapsed() < Duration::from_secs(2), "it took {:?}", began.elapsed());
    }
    let failure =
        Postgres::new("postgres://u:hunter2@host:port/db", Pooler::None, "bull").expect_err("no URL");
    assert!(!format!("{failure} {failure:?}").contains("hunter2"), "{failure:?}");
    Ok(())
}

#[tokio::test]
async fn a_server_that_is_not_there_is_unreachable_at_once_and_named() -> Result<()> {
    let postgres = Postgres::new("postgres://u:hunter2@127.0.0.1:1/db", Pooler::None, "bull")?;
    let began = Instant::now();
    for _ in 0..2 {
        let failure = postgres.now().await.expect_err("nothing listens there");
        let told = failure.to_string();
        assert!(matches!(failure, StoreFailure::Unreachable(_)), "{failure:?}");
        assert!(
            told.contains("127.0.0.1:1") && told.contains("refused") && !told.contains("hunter2"),
            "{told}"
        );
    }
    assert!(began.elapsed() < Duration::from_secs(2), "it took {:?}", began.elapsed());
    Ok(())
}

#[tokio::test]
async fn a_restarted_server_serves_the_next_call_and_a_frozen_one_is_not_waited_for() -> Result<()> {
    let mut server = Server::start()?;
    let db = Database::on(&server.url("postgres"), Template::Example).await?;
    let postgres = Postgres::new(db.url(), Pooler::None, "bull")?;
    postgres.now().await?;
    server.restart()?;
    postgres.now().await?;

    server.pause()?;
    let began = Instant::now();
    let failure = postgres.now().await.expect_err("it is frozen");
    assert!(matches!(failure, StoreFailure::Unreachable(_)), "{failure:?}");
    assert!(began.elapsed() < Duration::from_secs(12), "it took {:?}", began.elapsed());
    server.resume()?;
    postgres.now().await?;
    Ok(())
}

#[tokio::test]
async fn the_mode_for_poolers_reads_and_writes_the_same() -> Result<()> {
    let (db, _) = migrated().await?;
    let postgres = Postgres::new(db.url(), Pooler::Transaction, "bull")?;
    let fence = postgres.raise_fence("global", "t").await?;
    postgres.remember_queues(&one("a", memory("n", 1)), &fence).await?;
    assert_eq!(postgres.all_queue_memories("global").await?, one("a", memory("n", 1)));
    let named: i64 =
        sqlx::query_scalar("SELECT count(*) FROM pg_stat_activity WHERE application_name = 'salvage'")
            .fetch_one(db.pool())
            .await?;
    assert!(named > 0);
    Ok(())
}
