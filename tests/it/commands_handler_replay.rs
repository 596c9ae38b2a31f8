//! What passes asked, kept where the operator said so, and asked again of another build.

use std::fs;
use std::io::Write;

use anyhow::{Context, Result};
use salvage_tests::example::{Deck, Jobs, SlideJob, Video, VideoJob};
use salvage_tests::services::handlers_folder;
use salvage_tests::stores::tables;
use salvage_tests::system::System;
use serde_json::{Value, json};

use crate::commands::{running, salvage};

/// A system that has run for a day, with these lines at the end of its settings.
async fn keeping(lines: &str) -> Result<System> {
    let system = running().await?;
    let mut config = fs::OpenOptions::new().append(true).open(system.config_file())?;
    config.write_all(lines.as_bytes())?;
    for name in ["slides", "video-composition"] {
        let file = format!("{name}.wasm");
        fs::copy(handlers_folder()?.join(&file), system.config_file().with_file_name(&file))?;
    }
    Ok(system)
}

/// Two lost generations: one that is put back, one whose deck is gone.
async fn two_orphans(system: &System) -> Result<()> {
    let db = system.db.pool();
    Deck::generating("d1").insert(db).await?;
    SlideJob::queued("s1").stale().of("d1").insert(db).await?;
    SlideJob::queued("s2").stale().of("no-deck").insert(db).await
}

/// `slides.wasm` with another word in its reasons, as `new.wasm`.
fn rebuilt(system: &System) -> Result<()> {
    let (old, new) = (b"no longer exists", b"has disappeared!");
    let mut file = fs::read(system.config_file().with_file_name("slides.wasm"))?;
    let places: Vec<usize> =
        file.windows(old.len()).enumerate().filter(|(_, window)| window == old).map(|(at, _)| at).collect();
    assert!(!places.is_empty(), "the words");
    for at in places {
        file[at..at + old.len()].copy_from_slice(new);
    }
    Ok(fs::write(system.config_file().with_file_name("new.wasm"), file)?)
}

async fn captures(system: &System) -> Result<Vec<(Value, Value)>> {
    let select = "SELECT question::jsonb, decision::jsonb FROM salvage.captures ORDER BY source, job_id";
    Ok(sqlx::query_as(select).fetch_all(system.db.pool()).await?)
}

#[tokio::test]
async fn a_build_is_asked_what_passes_asked() -> Result<()> {
    let system = keeping("[ledger]\ncapture_inputs = true\n").await?;
    two_orphans(&system).await?;
    salvage(&system, &["once"])?.ended_with(0)?;

    let same = salvage(&system, &["handler", "replay", "slides.wasm"])?.ended_with(0)?;
    assert_eq!(same.stdout, "2 decisions: 2 the same, 0 changed\n");

    rebuilt(&system)?;
    let changed = salvage(&system, &["handler", "replay", "new.wasm"])?.ended_with(5)?;
    assert!(
        changed.stdout.starts_with("slides/generation s2: fail → fail\n  - old, + new:\n"),
        "{changed:#?}"
    );
    let summary = "\n2 decisions: 1 the same, 1 changed\n  1 fail → fail (with other words or contents)\n";
    assert!(changed.stdout.ends_with(summary), "{changed:#?}");

    let diff = ["handler", "diff", "slides.wasm", "new.wasm", "--captured", "--json"];
    let diff = salvage(&system, &diff)?.ended_with(5)?.json()?;
    assert_eq!((&diff["same"], &diff["changed"]), (&json!(1), &json!(1)));
    let newest = salvage(&system, &["handler", "replay", "slides.wasm", "--limit", "1"])?.ended_with(0)?;
    assert_eq!(newest.stdout, "1 decision: 1 the same, 0 changed\n");
    Ok(())
}

#[tokio::test]
async fn a_question_is_kept_once_and_not_in_a_dry_run() -> Result<()> {
    let system = keeping("[handler.slides]\ncapture_inputs = true\n").await?;
    sqlx::raw_sql("ALTER TYPE \"DeckStatus\" ADD VALUE 'ARCHIVED'").execute(system.db.pool()).await?;
    Deck::draft("d1").insert(system.db.pool()).await?;
    sqlx::query("UPDATE \"SlideDeck\" SET status = 'ARCHIVED'").execute(system.db.pool()).await?;
    SlideJob::queued("s1").stale().of("d1").insert(system.db.pool()).await?;
    salvage(&system, &["plan"])?.ended_with(0)?;
    assert_eq!(captures(&system).await?, [], "a dry run writes nothing");
    for _ in 0..2 {
        salvage(&system, &["once"])?.ended_with(0)?;
    }
    let kept = captures(&system).await?;
    assert_eq!(kept.len(), 1, "{kept:#?}");
    assert_eq!(kept[0].1["kind"], "hold");
    assert_eq!(kept[0].0["inputs"]["deck"]["rows"][0]["status"], "ARCHIVED");
    Ok(())
}

#[tokio::test]
async fn nothing_is_kept_unless_the_operator_says_so() -> Result<()> {
    let system = keeping("[handler.video-composition]\ncapture_inputs = true\n").await?;
    two_orphans(&system).await?;
    salvage(&system, &["once"])?.ended_with(0)?;
    assert_eq!(captures(&system).await?, []);
    let replay = salvage(&system, &["handler", "replay", "slides.wasm"])?.ended_with(1)?;
    assert_eq!(
        replay.stderr,
        "error: no question to slides was captured; passes keep them under `[ledger] capture_inputs = true`, or \
         `capture_inputs = true` in [handler.slides]\n"
    );
    Ok(())
}

#[tokio::test]
async fn a_redacted_column_is_in_no_capture_and_replay_compares_kinds() -> Result<()> {
    let lines = "[handler.video-composition]\ncapture_inputs = true\n\
                 redact = ['\"Video\".title', '\"VideoTrack\".\"sourceUrl\"']\n";
    let system = keeping(lines).await?;
    Video::composing("v1").tracks(2).insert(system.db.pool()).await?;
    VideoJob::processing("j1").stale().of("v1").insert(system.db.pool()).await?;
    salvage(&system, &["once"])?.ended_with(0)?;

    let kept = captures(&system).await?;
    assert_eq!(kept.len(), 1, "{kept:#?}");
    assert_eq!(kept[0].1, json!({ "kind": "requeue" }));
    let all = tables(system.db.pool(), &["salvage"]).await?.into_values().collect::<Vec<_>>().join("\n");
    assert!(!all.contains("Video v1") && !all.contains("media://"), "{all}");
    assert!(kept[0].0.to_string().contains("redacted"), "{kept:#?}");

    let same = salvage(&system, &["handler", "replay", "video-composition.wasm"])?.ended_with(0)?;
    assert_eq!(same.stdout, "1 decision: 1 the same, 0 changed\n");
    Ok(())
}

#[tokio::test]
async fn a_slip_in_redact_keeps_the_handler_from_serving() -> Result<()> {
    let system = keeping("[handler.slides]\nredact = ['\"SlideDeck\".titel']\n").await?;
    let list = salvage(&system, &["handler", "list", "--json"])?.ended_with(0)?.json()?;
    let slides = list.as_array().context("a list")?.iter().find(|file| file["domain"] == "slides");
    let why = slides.context("slides")?["why"].as_str().context("why")?.to_owned();
    assert!(why.contains("redact names \"SlideDeck\".titel, which the handler is never shown"), "{why}");
    Ok(())
}

#[tokio::test]
async fn what_was_kept_is_purged_of_one_handler_or_of_all_in_any_number() -> Result<()> {
    let system =
        keeping("[ledger]\ncapture_inputs = true\n[handler.slides]\ncapture_inputs = false\n").await?;
    let insert = "INSERT INTO salvage.captures (domain, source, job_id, component_digest, digest, question, decision, \
        is_redacted) SELECT CASE WHEN n <= 2500 THEN 'slides' ELSE 'exports' END, 's', n::text, 'c', 'd', '{}', '{}', \
        false FROM generate_series(1, 2510) AS n";
    sqlx::raw_sql(insert).execute(system.db.pool()).await?;
    let purged = salvage(&system, &["captures", "purge", "--handler", "slides"])?.ended_with(0)?;
    assert_eq!(purged.stdout, "removed 2500 captured questions to slides\n");
    assert_eq!(captures(&system).await?.len(), 10);
    let purged = salvage(&system, &["captures", "purge"])?.ended_with(0)?;
    assert_eq!(
        purged.stdout,
        "removed 10 captured questions\nby the settings here, passes go on keeping questions to every handler \
         without a word of its own ([ledger] capture_inputs)\n"
    );
    assert_eq!(captures(&system).await?, []);
    Ok(())
}

#[tokio::test]
async fn captures_go_with_the_ledger_after_thirty_days() -> Result<()> {
    let system = keeping("").await?;
    let insert = "INSERT INTO salvage.captures (domain, source, job_id, component_digest, digest, question, decision, \
        is_redacted, at) SELECT 'd', 's', 'j', 'c', n::text, '{}', '{}', false, now() - n * interval '1 day' \
        FROM unnest(ARRAY[29, 31]) AS n";
    sqlx::query(insert).execute(system.db.pool()).await?;
    salvage(&system, &["once"])?.ended_with(0)?;
    let left: Vec<String> =
        sqlx::query_scalar("SELECT digest FROM salvage.captures").fetch_all(system.db.pool()).await?;
    assert_eq!(left, ["29"]);
    Ok(())
}
