//! Active entries whose worker died: scheduled, counted, named with their age, and left alone.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use salvage_tests::bullmq::{BULLMQ_4, BULLMQ_5, BULLMQ_5_0, BULLMQ_5_40, BULLMQ_6};
use salvage_tests::example::{Jobs, NarrationJob, SlideExportJob, SlideJob, VideoExportJob, VideoJob, uuid};
use salvage_tests::services::until;
use salvage_tests::stores::Stores;
use salvage_tests::system::System;
use serde_json::{Value, json};

/// How long a dead worker's locks last.
const LOCK_MS: u64 = 500;

/// One queue per version, each with one row's entry: (version, queue, entry id, row id, source).
fn doomed() -> [(&'static str, &'static str, String, String, &'static str); 5] {
    let narration = uuid(1);
    [
        (BULLMQ_4, "slide-generation", "slide-s1".into(), "s1".into(), "slides/generation"),
        (BULLMQ_5_0, "slide-export", "export-e1".into(), "e1".into(), "exports/slide-export"),
        (BULLMQ_5_40, "video-composition", "video-v1".into(), "v1".into(), "video-composition/composition"),
        (BULLMQ_5, "video-export", "export-1".into(), "1".into(), "exports/video-export"),
        (BULLMQ_6, "narration", narration.clone(), narration, "video-composition/narration"),
    ]
}

/// Without the locks: a worker that lives renews its own.
async fn of_the_application(system: &System) -> Result<Stores> {
    let mut stores = Stores::of(system).await?.of_the_application();
    stores.keys.retain(|key, _| !key.ends_with(":lock"));
    Ok(stores)
}

/// Each in a process that dies with its job active, and until the locks have run out.
async fn let_workers_die(system: &System) -> Result<()> {
    for (version, queue, entry, row, _) in doomed() {
        let bullmq = system.bullmq_of(version).await?;
        let mut jobs = vec![(entry.clone(), json!({ "jobId": row }))];
        if queue == "slide-generation" {
            // One under an older id, and one of no row at all.
            jobs.push(("legacy-7".into(), json!({ "jobId": "s2" })));
            jobs.push(("ping".into(), json!({})));
        }
        for (entry, data) in &jobs {
            bullmq.add(queue, "work", data.clone(), json!({ "jobId": entry })).await?;
        }
        let worker = json!({ "behaviour": "hang", "concurrency": 3, "lockDurationMs": LOCK_MS });
        bullmq.start_worker(queue, worker).await?;
        bullmq.wait_runs(jobs.len(), json!({})).await?;
        bullmq.kill().await?;
        for (entry, _) in jobs {
            let lock = system.key(queue, &format!("{entry}:lock"));
            let mut redis = redis::Client::open(system.redis_url.as_str())?.get_connection()?;
            until(&format!("{lock} runs out"), Duration::from_secs(30), || {
                Ok(!redis::cmd("EXISTS").arg(&lock).query::<bool>(&mut redis)?)
            })?;
        }
    }
    Ok(())
}

#[tokio::test]
async fn entries_of_dead_workers_are_scheduled_counted_named_and_left_alone() -> Result<()> {
    let system = System::fresh().await?;
    let began = Instant::now();
    let_workers_die(&system).await?;
    // A worker that lives keeps its lock.
    let living = system.bullmq_of(BULLMQ_6).await?;
    living.add("narration", "work", json!({ "jobId": uuid(2) }), json!({ "jobId": uuid(2) })).await?;
    let hang = json!({ "behaviour": "hang", "stalledIntervalMs": 600_000 });
    living.start_worker("narration", hang).await?;
    living.wait_runs(1, json!({})).await?;
    let pool = system.db.pool();
    SlideJob::processing("s1").stale().insert(pool).await?;
    SlideJob::processing("s2").stale().insert(pool).await?;
    SlideExportJob::processing("e1").stale().insert(pool).await?;
    VideoJob::processing("v1").stale().insert(pool).await?;
    VideoExportJob::processing("1").stale().insert(pool).await?;
    NarrationJob::processing(uuid(1)).stale().insert(pool).await?;
    NarrationJob::processing(uuid(2)).stale().insert(pool).await?;
    let before = of_the_application(&system).await?;

    let output = system.salvage(&["once", "--json"])?.env("SALVAGE_LOG__FORMAT", "json").output()?;
    let age_max_ms = u64::try_from(began.elapsed().as_millis())?;
    let log = String::from_utf8(output.stderr)?;
    assert!(output.status.success(), "{log}");
    let report: Value = serde_json::from_slice(&output.stdout).context("the report")?;
    assert_eq!(report["jobs"], json!([]), "all of them are scheduled: {report:#}");
    for (version, _, _, _, name) in doomed() {
        let sources = report["sources"].as_array().context("sources")?;
        let is_it =
            |counts: &&Value| name == format!("{}/{}", counts["domain"], counts["source"]).replace('"', "");
        let counts = sources.iter().find(is_it).with_context(|| format!("{name} in {report:#}"))?;
        let stalled = if name == "slides/generation" { 2 } else { 1 };
        let scheduled = if name == "video-composition/narration" { 2 } else { stalled };
        assert_eq!(
            (&counts["stalled"], &counts["scheduled"]),
            (&json!(stalled), &json!(scheduled)),
            "{version}"
        );
    }

    let mut named = BTreeMap::new();
    for line in log.lines() {
        let line: Value = serde_json::from_str(line).with_context(|| line.to_owned())?;
        if let Some(age_ms) = line["age_ms"].as_u64() {
            assert_eq!(line["level"], "WARN", "{line}");
            assert!((LOCK_MS / 2..=age_max_ms).contains(&age_ms), "{line}: of at most {age_max_ms} ms");
            let name = |field: &str| line[field].as_str().unwrap_or_default().to_owned();
            *named.entry((name("queue"), name("entry.id"))).or_insert(0) += 1;
        }
    }
    let entries = doomed().map(|(_, queue, entry, ..)| (queue.to_owned(), entry));
    let others = ["legacy-7", "ping"].map(|entry| ("slide-generation".to_owned(), entry.to_owned()));
    let expected: BTreeMap<_, _> = entries.into_iter().chain(others).map(|entry| (entry, 1)).collect();
    assert_eq!(named, expected, "{log}");

    assert_eq!(of_the_application(&system).await?, before);
    living.kill().await
}
