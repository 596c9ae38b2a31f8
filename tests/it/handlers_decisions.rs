//! Decisions that the host does not take as they are: refused, cleaned or cut before anything is written.

use anyhow::Result;
use salvage_core::decision::{Decision, Requeue};
use salvage_tests::answering::Answering;
use salvage_tests::example::{Jobs, SlideJob, VideoExportJob};
use salvage_tests::services::redis_url;
use salvage_tests::system::{System, job, source, story};
use serde_json::json;

use crate::acting::{delayed, running, running_on};
use crate::commands::salvage;
use crate::handlers_passes::hostile_slides;
use crate::wasm_fixtures::{Folder, declaring};

/// A running system whose slides are in the hands of the hostile handler, with stale orphans of these ids.
async fn with_orphans(ids: &[&str]) -> Result<(System, Folder)> {
    let mut slides = hostile_slides();
    slides["sources"][0]["table"]["error"] = json!("error");
    let folder = Folder::of(&[("slides.wasm", declaring(&slides))]);
    let lines = "grants = \"declared\"\n[handlers.limits]\nrun_time = \"10s\"";
    let system = running_on(System::with(&redis_url()?, &folder.path(), lines).await?).await?;
    for id in ids {
        SlideJob::processing(*id).stale().insert(system.db.pool()).await?;
    }
    Ok((system, folder))
}

fn found<'r>(report: &'r serde_json::Value, id: &str) -> &'r serde_json::Value {
    let mut jobs = report["jobs"].as_array().into_iter().flatten();
    jobs.find(|job| job["id"] == id).unwrap_or_else(|| panic!("no job {id} in {report:#}"))
}

/// F20.
#[tokio::test]
async fn a_decision_without_a_reason_is_refused() -> Result<()> {
    let (system, _folder) = with_orphans(&["mute", "answer:0"]).await?;
    let report = salvage(&system, &["once", "--json"])?.json()?;
    for (id, kind) in [("mute", "fail"), ("answer:0", "hold")] {
        let job = found(&report, id);
        assert_eq!(job["decision"]["kind"], kind, "{job:#}");
        assert_eq!(job["outcome"]["kind"], "refused", "{job:#}");
        let why = format!("the {kind} has no reason; write a sentence that says why");
        assert_eq!(job["outcome"]["why"], why, "{job:#}");
        assert_eq!(SlideJob::read(system.db.pool(), id).await?.expect("the row").status, "PROCESSING");
    }
    Ok(())
}

/// F20.
#[tokio::test]
async fn a_reason_is_cleaned_and_cut_wherever_it_is_written() -> Result<()> {
    let (system, _folder) = with_orphans(&["ugly:500000"]).await?;
    let report = salvage(&system, &["once", "--json"])?.ended_with(0)?.json()?;
    let expected = format!("[31mbad news {}…", "x".repeat(1_000 - "[31mbad news ".len()));
    assert_eq!(found(&report, "ugly:500000")["decision"]["reason"], expected, "{report:#}");
    let row = SlideJob::read(system.db.pool(), "ugly:500000").await?.expect("the row");
    assert_eq!((row.status.as_str(), row.error), ("FAILED", Some(expected.clone())));
    let recorded: String =
        sqlx::query_scalar("SELECT decision_reason FROM salvage.ledger WHERE job_id = 'ugly:500000'")
            .fetch_one(system.db.pool())
            .await?;
    assert_eq!(recorded, expected);
    Ok(())
}

/// F19.
#[tokio::test]
async fn options_that_a_worker_would_fail_on_are_refused_by_their_fields() -> Result<()> {
    let (system, _folder) = with_orphans(&["odd-options"]).await?;
    let report = salvage(&system, &["once", "--json"])?.json()?;
    let job = found(&report, "odd-options");
    assert_eq!((&job["decision"]["kind"], &job["outcome"]["kind"]), (&json!("requeue"), &json!("refused")));
    let why = job["outcome"]["why"].as_str().unwrap_or_default();
    for field in ["removeOnComplete.age", "removeOnComplete.count", "backoff.type", "backoff.delay"] {
        assert!(why.contains(&format!("option \"{field}\"")), "{field}: {why}");
    }
    assert!(why.contains("expected \"fixed\" or \"exponential\", found a text"), "{why}");
    assert_eq!(delayed(&system, "slide-generation").await?, [""; 0]);
    assert_eq!(SlideJob::read(system.db.pool(), "odd-options").await?.expect("the row").status, "PROCESSING");
    Ok(())
}

/// F24. The same as `salvage handler test` and the SDK's cases take.
#[tokio::test]
async fn a_payload_may_carry_the_id_as_the_number_that_it_is_unless_javascript_would_round_it() -> Result<()>
{
    let system = running().await?;
    let large = 9_007_199_254_740_993_i64;
    for id in [7, large] {
        VideoExportJob::queued(id.to_string()).stale().insert(system.db.pool()).await?;
    }
    let answering = Answering::new(&system.host, |question| {
        Ok(Decision::Requeue(Requeue {
            queue: "video-export".into(),
            name: "export".into(),
            data: format!("{{\"jobId\":{}}}", question.candidate.token.id),
            options: "{}".into(),
        }))
    });
    let report = system.run(&answering, salvage::pass::Mode::Act).await?;
    assert_eq!(story(&report, "7"), "absent requeue applied", "{report:#?}");
    assert_eq!(story(&report, &large.to_string()), "absent requeue refused");
    let why = job(&report, &large.to_string()).outcome.as_ref().and_then(|outcome| outcome.why.clone());
    assert!(why.is_some_and(|why| why.contains("a number that JavaScript rounds; write it as text")));
    assert_eq!(source(&report, "exports/video-export").requeued, 1);
    Ok(())
}
