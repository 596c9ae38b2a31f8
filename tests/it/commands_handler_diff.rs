//! `salvage handler diff`: the same questions to two builds.

use anyhow::Result;
use insta::assert_snapshot;
use serde_json::json;

use crate::commands_handler_desk::{Desk, root};
use crate::wasm_fixtures::{declaring, hostile, manifest};

#[test]
fn the_same_build_changes_nothing() -> Result<()> {
    let desk = Desk::with(&["slides"])?;
    let cases = root().join("handlers/slides/cases").display().to_string();
    let same = desk.salvage(&["handler", "diff", "slides.wasm", "slides.wasm", &cases])?.ended_with(0)?;
    assert_eq!(same.stdout, "17 decisions: 17 the same, 0 changed\n");
    Ok(())
}

/// The hostile handler, with another word in its reasons.
fn rebuilt() -> Vec<u8> {
    let mut file = hostile();
    let places: Vec<usize> =
        file.windows(4).enumerate().filter(|(_, window)| window == b"job ").map(|(at, _)| at).collect();
    assert!(!places.is_empty(), "the word");
    for at in places {
        file[at..at + 4].copy_from_slice(b"JOB ");
    }
    file
}

#[test]
fn what_changed_is_told_by_kind_and_line_by_line_and_ends_with_5() -> Result<()> {
    let desk = Desk::with_hostile()?;
    std::fs::write(desk.path("new.wasm"), rebuilt())?;
    let expected = json!({ "kind": "hold", "reason": "" });
    for (file, behaviour) in [("a.json", "1"), ("b.json", "answer:3")] {
        desk.case(file, behaviour, &expected)?;
    }
    let ran = desk.salvage(&["handler", "diff", "hostile.wasm", "new.wasm"])?.ended_with(5)?;
    assert_snapshot!(ran.stdout, @r#"
    a.json: hold → hold
      - old, + new:
          {
            "kind": "hold",
        -   "reason": "job 1"
        +   "reason": "JOB 1"
          }

    2 decisions: 1 the same, 1 changed
      1 hold → hold (with other words or contents)
    "#);
    let json =
        desk.salvage(&["handler", "diff", "hostile.wasm", "new.wasm", "--json"])?.ended_with(5)?.json()?;
    assert_eq!((&json["same"], &json["changed"]), (&json!(1), &json!(1)));
    assert_eq!(json["by_kind"], json!([{ "old": "hold", "new": "hold", "count": 1 }]));
    Ok(())
}

#[test]
fn a_source_that_is_gone_is_a_change() -> Result<()> {
    let desk = Desk::with(&["slides", "exports"])?;
    let cases = root().join("handlers/exports/cases").display().to_string();
    let ran =
        desk.salvage(&["handler", "diff", "exports.wasm", "slides.wasm", &cases, "--json"])?.ended_with(5)?;
    assert_eq!(ran.json()?["by_kind"], json!([{ "old": "fail", "new": "none", "count": 8 }]));
    Ok(())
}

/// F22.
#[test]
fn what_the_manifest_declares_otherwise_comes_first_and_ends_with_5() -> Result<()> {
    let desk = Desk::empty()?;
    let old = manifest("hostile", "HostileJob", "ANY");
    let mut new = old.clone();
    new["sources"][0]["queues"][0]["job_id"] = json!("job-{id}");
    new["sources"][0]["table"]["failed"] = json!("LOST");
    new["sources"][0]["table"]["extra_columns"] = json!(["owner"]);
    new["sources"][0]["job_types"][0]["restart_safe"] = json!(false);
    new["sources"][0]["job_types"][0]["stale_after_queued_ms"] = json!(90_000);
    std::fs::write(desk.path("old.wasm"), declaring(&old))?;
    std::fs::write(desk.path("new.wasm"), declaring(&new))?;
    let without_cases = desk.salvage(&["handler", "diff", "old.wasm", "new.wasm"])?.ended_with(1)?;
    assert!(without_cases.stdout.starts_with("the manifest declares otherwise"), "{without_cases:#?}");
    for (file, behaviour) in [("a.json", "1"), ("b.json", "answer:3")] {
        desk.case(file, behaviour, &json!({ "kind": "hold", "reason": "" }))?;
    }
    let same = desk.salvage(&["handler", "diff", "old.wasm", "old.wasm"])?.ended_with(0)?;
    assert_eq!(same.stdout, "2 decisions: 2 the same, 0 changed\n");
    new["sources"][0]["table"]["extra_columns"] = json!([]);
    std::fs::write(desk.path("new.wasm"), declaring(&new))?;
    let ran = desk.salvage(&["handler", "diff", "old.wasm", "new.wasm"])?.ended_with(5)?;
    assert_snapshot!(ran.stdout, @r#"
    the manifest declares otherwise (old → new):
      sources.jobs.job_types.ANY.restart_safe: true → false
      sources.jobs.job_types.ANY.stale_after_queued: nothing → 90 s
      sources.jobs.queues.hostile-queue.job_id: "{id}" → "job-{id}"
      sources.jobs.table.failed: "FAILED" → "LOST"

    2 decisions: 2 the same, 0 changed
    "#);
    let json = desk.salvage(&["handler", "diff", "old.wasm", "new.wasm", "--json"])?.ended_with(5)?.json()?;
    assert_eq!(json["manifest"].as_array().map(Vec::len), Some(4), "{json:#}");
    assert_eq!(
        json["manifest"][3],
        json!({ "path": "sources.jobs.table.failed", "old": "FAILED", "new": "LOST" })
    );
    Ok(())
}
