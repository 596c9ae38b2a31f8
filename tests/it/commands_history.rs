//! `history --jobs`: what was put back or marked failed, by time.

use anyhow::Result;
use salvage_tests::example::{Deck, Jobs, SlideExportJob, SlideJob};
use salvage_tests::system::System;
use serde_json::Value;

use crate::commands::{ran, running, salvage};

/// A system of which two passes recovered something: `s1` was put back, then `s2` marked failed and `e1` parked.
async fn recovered() -> Result<System> {
    let system = running().await?;
    let db = system.db.pool();
    Deck::generating("d1").insert(db).await?;
    SlideJob::processing("s1").stale().of("d1").insert(db).await?;
    salvage(&system, &["once"])?.ended_with(0)?;
    SlideJob::queued("s2").stale().of("no-deck").insert(db).await?;
    sqlx::query("ALTER TABLE \"SlideExportJob\" ADD CHECK (status <> 'FAILED')").execute(db).await?;
    Deck::ready("d2").exporting().insert(db).await?;
    SlideExportJob::processing("e1").stale().of("d2").insert(db).await?;
    salvage(&system, &["once"])?.ended_with(0)?;
    Ok(system)
}

fn ids(listed: &Value) -> Vec<&str> {
    let acts = listed.as_array().into_iter().flatten();
    acts.filter_map(|act| act["id"].as_str()).collect()
}

#[tokio::test]
async fn history_lists_recovered_jobs_newest_first() -> Result<()> {
    let system = recovered().await?;
    let text = salvage(&system, &["history", "--jobs"])?.ended_with(0)?;
    insta::with_settings!({ filters => vec![(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", "[the time]          ")]}, {
        insta::assert_snapshot!(text.stdout, @r"
        TIME                  SOURCE             ID  TYPE        WAS         BECAME
        [the time]            slides/generation  s2  GENERATION  QUEUED      marked failed: The slide deck of this job no longer exists, so its slides cannot be generated.
        [the time]            slides/generation  s1  GENERATION  PROCESSING  put back
        ");
    });
    let listed = salvage(&system, &["history", "--jobs", "--json"])?.ended_with(0)?.json()?;
    assert_eq!(ids(&listed), ["s2", "s1"], "a parked job was not recovered");
    let keys: Vec<&String> = listed[0].as_object().expect("an object").keys().collect();
    assert_eq!(
        keys,
        [
            "at",
            "decision",
            "domain",
            "generation",
            "id",
            "outcome",
            "reason",
            "source",
            "status",
            "type",
            "why"
        ]
    );
    assert_eq!((&listed[0]["decision"], &listed[1]["decision"]), (&"fail".into(), &"requeue".into()));
    Ok(())
}

#[tokio::test]
async fn history_of_jobs_is_restricted_by_source_time_and_number() -> Result<()> {
    let system = recovered().await?;
    let listed = |arguments: &[&str]| -> Result<Value> {
        let arguments: Vec<&str> = ["history", "--jobs", "--json"].iter().chain(arguments).copied().collect();
        salvage(&system, &arguments)?.ended_with(0)?.json()
    };
    assert_eq!(ids(&listed(&["--limit", "1"])?), ["s2"]);
    assert_eq!(ids(&listed(&["--source", "generation"])?), ["s2", "s1"]);
    assert_eq!(ids(&listed(&["--source", "slides/generation"])?), ["s2", "s1"]);
    assert!(ids(&listed(&["--source", "narration"])?).is_empty(), "known from the passes alone");
    assert_eq!(ids(&listed(&["--since", "24h"])?), ["s2", "s1"]);
    let age = "UPDATE salvage.ledger SET last_at = now() - interval '25 hours' WHERE job_id = 's1'";
    sqlx::query(age).execute(system.db.pool()).await?;
    assert_eq!(ids(&listed(&["--since", "24h"])?), ["s2"]);
    assert_eq!(ids(&listed(&["--since", "26h"])?), ["s2", "s1"]);
    let none = salvage(&system, &["history", "--jobs", "--since", "1ms"])?.ended_with(0)?;
    assert!(none.stdout.starts_with("no job was put back or marked failed in that time"), "{none:#?}");
    let unknown = salvage(&system, &["history", "--jobs", "--source", "generations"])?.ended_with(1)?;
    let expected = "error: nothing is recorded of a source \"generations\"; there are exports/slide-export, ";
    assert!(unknown.stderr.starts_with(expected), "{unknown:#?}");
    for arguments in [&["--source", "generation"][..], &["--since", "24h"], &["--jobs", "--since", "24"]] {
        let arguments: Vec<&str> = ["history"].iter().chain(arguments).copied().collect();
        salvage(&system, &arguments)?.ended_with(2)?;
    }
    // It needs no handler, whatever became of those that recovered them.
    let without = ran(system
        .salvage(&["history", "--jobs", "--json"])?
        .env("SALVAGE_HANDLERS__DIR", "no-such-folder"))?;
    assert_eq!(ids(&without.ended_with(0)?.json()?), ["s2", "s1"]);
    Ok(())
}
