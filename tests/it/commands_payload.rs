//! `--payload`: what would be put back, or was, for who asks; never otherwise, and never where columns are redacted.

use anyhow::Result;
use insta::assert_snapshot;
use salvage_tests::example::{Deck, Jobs, SlideJob};
use salvage_tests::stores::Stores;
use salvage_tests::system::System;
use serde_json::json;
use std::io::Write;

use crate::commands::{Ran, ran, running, salvage};

/// A running system with one orphan that can be put back and one that cannot.
async fn two_orphans() -> Result<System> {
    let system = running().await?;
    Deck::generating("d1").insert(system.db.pool()).await?;
    SlideJob::processing("s1").stale().of("d1").insert(system.db.pool()).await?;
    SlideJob::queued("s2").stale().of("no-deck").insert(system.db.pool()).await?;
    Ok(system)
}

/// Adds to the settings of the binary.
fn set(system: &System, lines: &str) -> Result<()> {
    let mut config = std::fs::OpenOptions::new().append(true).open(system.config_file())?;
    Ok(config.write_all(lines.as_bytes())?)
}

/// No payload, in whatever was printed: the deck's title is in it and nowhere else.
fn check_none(ran: &Ran) {
    for text in [&ran.stdout, &ran.stderr] {
        assert!(!text.contains("Deck d1"), "{ran:#?}");
    }
}

/// Runs with the loudest log, which never holds a payload.
fn loud(system: &System, arguments: &[&str]) -> Result<Ran> {
    let ran = ran(system.salvage(arguments)?.env("RUST_LOG", "trace"))?.ended_with(0)?;
    assert!(!ran.stderr.contains("Deck d1"), "{arguments:?}: a payload is in the log");
    Ok(ran)
}

#[tokio::test]
async fn plan_shows_a_payload_only_if_it_is_asked_for() -> Result<()> {
    let system = two_orphans().await?;
    let before = Stores::of(&system).await?;
    check_none(&salvage(&system, &["plan"])?);
    check_none(&salvage(&system, &["plan", "--json"])?);
    let text = loud(&system, &["plan", "--payload"])?;
    let lines: Vec<&str> = text.stdout.lines().skip_while(|line| !line.starts_with("ID ")).take(5).collect();
    assert_snapshot!(lines.join("\n"), @r#"
    ID  TYPE        STATUS      AGE  WHAT
    s1  GENERATION  PROCESSING  2 h  in no queue: to be put back
        payload for queue slide-generation, job name generate, options {"attempts":3,"backoff":{"delay":5000,"type":"exponential"}}
        {"deckId":"d1","jobId":"s1","title":"Deck d1","type":"GENERATION"}
    s2  GENERATION  QUEUED      2 h  in no queue: to be marked failed: The slide deck of this job no longer exists, so its slides cannot be generated.
    "#);
    let report = loud(&system, &["plan", "--payload", "--json"])?.json()?;
    let jobs = report["jobs"].as_array().expect("an array");
    let payload = |id: &str| jobs.iter().find(|job| job["id"] == id).map(|job| job["payload"].clone());
    let shown = payload("s1").expect("the job");
    assert_eq!((&shown["queue"], &shown["name"]), (&json!("slide-generation"), &json!("generate")));
    assert_eq!(shown["data"]["title"], "Deck d1");
    assert_eq!((&shown["data"]["jobId"], &shown["why"]), (&json!("s1"), &json!(null)));
    assert_eq!(payload("s2"), Some(json!(null)), "it is to be failed");
    assert_eq!(Stores::of(&system).await?, before);
    salvage(&system, &["once", "--payload"])?.ended_with(2)?;
    Ok(())
}

#[tokio::test]
async fn a_handler_that_redacts_has_no_payload_shown_whoever_asks() -> Result<()> {
    let system = two_orphans().await?;
    set(&system, "[handler.slides]\nredact = ['\"SlideDeck\".title']\n")?;
    let why = "not shown: [handler.slides] redact leaves columns out, and a payload may repeat them";
    let plan = salvage(&system, &["plan", "--payload"])?.ended_with(0)?;
    check_none(&plan);
    assert!(plan.stdout.contains(&format!("    payload {why}\n")), "{plan:#?}");
    let plan = salvage(&system, &["plan", "--payload", "--json"])?.ended_with(0)?;
    check_none(&plan);
    assert_eq!(plan.json()?["jobs"][0]["payload"]["why"], why);
    for orphan in [true, false] {
        let explain = salvage(&system, &["explain", "generation", "s1", "--payload"])?.ended_with(0)?;
        check_none(&explain);
        assert!(explain.stdout.contains(why), "{explain:#?}");
        let explain =
            salvage(&system, &["explain", "generation", "s1", "--payload", "--json"])?.ended_with(0)?;
        check_none(&explain);
        assert_eq!(explain.json()?["payloads"], json!([]));
        if orphan {
            salvage(&system, &["once"])?.ended_with(0)?;
        }
    }
    Ok(())
}

#[tokio::test]
async fn explain_shows_the_payload_that_would_be_put_back_and_then_the_one_that_was() -> Result<()> {
    let system = two_orphans().await?;
    let explain = |id: &str| loud(&system, &["explain", "generation", id, "--payload"]);
    let would = explain("s1")?;
    assert!(
        would.stdout.contains("\npayload that would be put back into queue slide-generation now\n"),
        "{would:#?}"
    );
    assert!(would.stdout.contains("\"title\":\"Deck d1\""), "{would:#?}");
    check_none(&salvage(&system, &["explain", "generation", "s1"])?);

    set(&system, "[handler.slides]\ncapture_inputs = true\n")?;
    salvage(&system, &["once"])?.ended_with(0)?;
    let was = explain("s1")?;
    for heading in [
        "\npayload for queue slide-generation, as its handler answered at ",
        "\npayload that entry slide-s1 of queue slide-generation holds now\n",
    ] {
        assert!(was.stdout.contains(heading), "{was:#?}");
    }
    assert_eq!(was.stdout.matches("\"title\":\"Deck d1\"").count(), 2, "{was:#?}");
    let json = loud(&system, &["explain", "generation", "s1", "--payload", "--json"])?.json()?;
    assert_eq!(
        (&json["payloads"][0]["from"], &json["payloads"][1]["from"]),
        (&json!("captured"), &json!("queue"))
    );
    assert_eq!(json["payloads"][1]["data"]["jobId"], "s1");
    assert_eq!(json["story"][0]["decision"], "requeue");

    let none = explain("s2")?;
    assert!(none.stdout.contains("\nno payload is shown: nothing would be put back now, "), "{none:#?}");
    Ok(())
}
