//! `once` and `plan`: the shape of the report, what goes where, and that neither does more than it says.

use anyhow::Result;
use salvage_tests::example::{Deck, Jobs, SlideJob, VideoJob};
use salvage_tests::stores::Stores;
use salvage_tests::system::System;
use serde_json::{Value, json};

use crate::commands::{ran, running, salvage};

const PASS: [&str; 9] = [
    "duration_ms",
    "generation",
    "id",
    "lease",
    "queues_in_doubt",
    "redis_commands",
    "scan_ran",
    "started_at",
    "why",
];

const SOURCE: [&str; 21] = [
    "absent",
    "before_epoch",
    "candidates",
    "clock_skew",
    "domain",
    "failed",
    "gone",
    "held",
    "indeterminate",
    "live",
    "parked",
    "refused",
    "requeued",
    "scheduled",
    "source",
    "stalled",
    "storm",
    "superseded",
    "trapped",
    "undeclared",
    "unknown",
];

const JOB: [&str; 9] =
    ["decision", "domain", "id", "outcome", "sighting", "source", "status", "type", "updated_at"];

/// A running system with one candidate of each kind: s0 scheduled, s1 to requeue, s2 to fail, v1 unknown.
async fn varied() -> Result<System> {
    let system = running().await?;
    let db = system.db.pool();
    Deck::generating("d1").insert(db).await?;
    for id in ["s0", "s1"] {
        SlideJob::processing(id).stale().of("d1").insert(db).await?;
    }
    SlideJob::queued("s2").stale().of("no-deck").insert(db).await?;
    VideoJob::queued("v1").stale().insert(db).await?;
    system.redis::<()>(&["ZADD", &system.key("slide-generation", "delayed"), "0", "slide-s0"]).await?;
    // Listed, and nothing more is known of it: it might be v1 under another id.
    system.redis::<()>(&["LPUSH", &system.key("video-export", "wait"), "ghost"]).await?;
    Ok(system)
}

fn keys_of(value: &Value) -> Vec<&str> {
    value.as_object().expect("an object").keys().map(String::as_str).collect()
}

fn job<'v>(report: &'v Value, id: &str) -> &'v Value {
    let jobs = report["jobs"].as_array().expect("an array");
    jobs.iter().find(|job| job["id"] == id).unwrap_or_else(|| panic!("no job {id} in {report:#}"))
}

/// Every key at every level; words in kebab case; counters that add up.
fn check_shape(report: &Value) {
    assert_eq!(keys_of(report), ["jobs", "pass", "queues", "sources"]);
    assert_eq!(keys_of(&report["pass"]), PASS);
    for source in report["sources"].as_array().expect("an array") {
        assert_eq!(keys_of(source), SOURCE);
        let count = |key: &str| source[key].as_u64().expect("a count");
        assert_eq!(count("candidates"), count("scheduled") + count("absent") + count("unknown"));
    }
    for job in report["jobs"].as_array().expect("an array") {
        assert_eq!(keys_of(job), JOB);
        assert_eq!(keys_of(&job["sighting"]), ["kind", "queue", "residue", "state", "why"]);
        assert_eq!(keys_of(&job["decision"]), ["kind", "reason"]);
        if !job["outcome"].is_null() {
            assert_eq!(keys_of(&job["outcome"]), ["kind", "why"]);
        }
        for kind in [&job["sighting"]["kind"], &job["decision"]["kind"], &report["pass"]["lease"]] {
            let word = kind.as_str().expect("a word");
            assert!(word.chars().all(|c| c.is_ascii_lowercase() || c == '-'), "{word}");
        }
    }
}

#[tokio::test]
async fn once_json_has_every_key_at_every_level_and_null_where_it_does_not_apply() -> Result<()> {
    let system = varied().await?;
    let ran = salvage(&system, &["once", "--json"])?.ended_with(0)?;
    let report = ran.json()?;
    check_shape(&report);
    assert_eq!(report["pass"]["lease"], "acquired");
    assert_eq!(report["pass"]["scan_ran"], true);
    assert!(report["pass"]["generation"].as_u64() > Some(0));
    assert_eq!(report["sources"].as_array().map(Vec::len), Some(5));
    let slides = &report["sources"][2];
    assert_eq!((&slides["domain"], &slides["source"]), (&json!("slides"), &json!("generation")));
    for (key, count) in [("live", 3), ("scheduled", 1), ("absent", 2), ("requeued", 1), ("failed", 1)] {
        assert_eq!(slides[key], count, "{key} in {slides:#}");
    }
    assert_eq!(report["jobs"].as_array().map(Vec::len), Some(3), "s0 is scheduled, so it is left out");
    let none = json!({"kind": "absent", "queue": null, "residue": "none", "state": null, "why": null});
    assert_eq!(job(&report, "s1")["sighting"], none);
    assert_eq!(job(&report, "s1")["decision"], json!({"kind": "requeue", "reason": null}));
    assert_eq!(job(&report, "s1")["outcome"], json!({"kind": "applied", "why": null}));
    assert_eq!(job(&report, "s2")["decision"]["kind"], "fail");
    let unknown = job(&report, "v1");
    assert_eq!(
        (&unknown["sighting"]["kind"], &unknown["decision"]["kind"]),
        (&json!("unknown"), &json!("none"))
    );
    assert!(unknown["sighting"]["why"].as_str().is_some_and(|why| why.contains("\"ghost\"")), "{unknown:#}");
    assert_eq!(unknown["outcome"], Value::Null);
    Ok(())
}

#[tokio::test]
async fn a_skipped_pass_has_every_key_too() -> Result<()> {
    let system = System::fresh().await?;
    system.redis::<()>(&["SET", &format!("{}:lock", system.prefix), "another", "EX", "600"]).await?;
    let report = salvage(&system, &["once", "--json"])?.ended_with(6)?.json()?;
    check_shape(&report);
    assert_eq!(report["pass"]["lease"], "held");
    for key in ["id", "generation", "started_at"] {
        assert_eq!(report["pass"][key], Value::Null, "{key}");
    }
    assert_eq!((&report["sources"], &report["jobs"]), (&json!([]), &json!([])));
    let holder: String = system.redis(&["GET", &format!("{}:lock", system.prefix)]).await?;
    assert_eq!(holder, "another");
    Ok(())
}

#[tokio::test]
async fn a_second_pass_changes_nothing_of_the_application() -> Result<()> {
    let system = varied().await?;
    salvage(&system, &["once"])?.ended_with(0)?;
    let after_first = Stores::of(&system).await?.of_the_application();
    let report = salvage(&system, &["once", "--json"])?.json()?;
    let after_second = Stores::of(&system).await?.of_the_application();
    assert_eq!(after_first, after_second);
    let acted = report["sources"].as_array().into_iter().flatten();
    assert!(acted.into_iter().all(|source| source["requeued"] == 0 && source["failed"] == 0), "{report:#}");
    Ok(())
}

#[tokio::test]
async fn a_dry_run_writes_nothing_in_either_store_and_says_what_a_pass_would_do() -> Result<()> {
    let system = varied().await?;
    let before = Stores::of(&system).await?;
    for arguments in [&["plan"][..], &["once", "--dry-run"], &["plan", "--json"], &["doctor"]] {
        salvage(&system, arguments)?;
        assert_eq!(Stores::of(&system).await?, before, "{arguments:?} wrote");
    }
    let report = salvage(&system, &["once", "--dry-run", "--json"])?.ended_with(0)?.json()?;
    check_shape(&report);
    assert_eq!(report["pass"]["lease"], "not-taken");
    assert_eq!(report["pass"]["generation"], Value::Null);
    assert_eq!(
        (&job(&report, "s1")["decision"]["kind"], &job(&report, "s1")["outcome"]),
        (&json!("requeue"), &Value::Null)
    );
    Ok(())
}

#[tokio::test]
async fn a_dry_run_goes_on_beside_a_pass() -> Result<()> {
    let system = varied().await?;
    system.redis::<()>(&["SET", &format!("{}:lock", system.prefix), "another", "EX", "600"]).await?;
    let report = salvage(&system, &["plan", "--json"])?.ended_with(0)?.json()?;
    assert_eq!(report["pass"]["lease"], "not-taken");
    Ok(())
}

#[tokio::test]
async fn a_log_in_json_is_one_object_a_line_and_one_line_an_act() -> Result<()> {
    let system = varied().await?;
    let ran = ran(system.salvage(&["once", "--json"])?.env("SALVAGE_LOG__FORMAT", "json"))?.ended_with(0)?;
    let generation = ran.json()?["pass"]["generation"].clone();
    let lines: Vec<Value> =
        ran.stderr.lines().map(|line| serde_json::from_str(line).expect("a JSON object")).collect();
    assert!(lines.iter().all(Value::is_object));
    let mut acts: Vec<&Value> = lines.iter().filter(|line| line["message"] == "act").collect();
    acts.sort_by_key(|line| line["candidate.id"].to_string());
    let told: Vec<Value> = acts
        .iter()
        .map(|line| json!([line["source"], line["candidate.id"], line["decision"], line["outcome"]]))
        .collect();
    assert_eq!(
        told,
        [
            json!(["slides/generation", "s1", "requeue", "applied"]),
            json!(["slides/generation", "s2", "fail", "applied"])
        ]
    );
    assert!(acts.iter().all(|line| line["generation"] == generation), "{acts:#?}");
    Ok(())
}

#[tokio::test]
async fn results_go_to_stdout_and_logs_to_stderr() -> Result<()> {
    let system = varied().await?;
    let ran = salvage(&system, &["once"])?.ended_with(0)?;
    assert!(ran.stdout.contains("\ns1  GENERATION  PROCESSING  2 h  in no queue: put back\n"), "{ran:#?}");
    assert!(!ran.stdout.contains(" INFO "), "{ran:#?}");
    assert!(ran.stderr.contains(" INFO salvage::pass::acting: act "), "{ran:#?}");
    Ok(())
}
