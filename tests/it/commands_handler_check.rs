//! `salvage handler check`, with and without a database.

use anyhow::Result;
use insta::assert_snapshot;
use salvage_tests::services::Database;
use serde_json::json;

use crate::commands::ran;
use crate::commands_handler_desk::Desk;
use crate::wasm_fixtures::{declaring, manifest, shipped};

/// Runs with this database.
fn against(desk: &Desk, db: &str, arguments: &[&str]) -> Result<crate::commands::Ran> {
    ran(desk.command(arguments)?.env("DATABASE_URL", db))
}

#[tokio::test]
async fn a_manifest_that_fits_the_database_is_well() -> Result<()> {
    let (desk, db) = (Desk::with(&["slides", "exports", "video-composition"])?, Database::example().await?);
    for (name, sources) in [
        ("slides", &["slides/generation"][..]),
        ("exports", &["exports/slide-export", "exports/video-export"]),
        ("video-composition", &["video-composition/composition", "video-composition/narration"]),
    ] {
        let ran = against(&desk, db.url(), &["handler", "check", &format!("{name}.wasm")])?.ended_with(0)?;
        for source in sources {
            let line = format!("\nok   {source}: tables, columns and statuses are as declared\n");
            assert!(ran.stdout.contains(&line), "{ran:#?}");
        }
        assert!(!ran.stdout.contains("no index of live rows"), "the example has them: {ran:#?}");
    }
    Ok(())
}

#[tokio::test]
async fn what_the_database_lacks_is_named_and_ends_with_1() -> Result<()> {
    let (desk, db) = (Desk::with(&["slides"])?, Database::example().await?);
    sqlx::raw_sql(
        "DROP INDEX \"SlideJob_live\"; ALTER TABLE \"SlideDeck\" RENAME COLUMN title TO name; \
         ALTER TYPE \"JobStatus\" RENAME VALUE 'FAILED' TO 'LOST'",
    )
    .execute(db.pool())
    .await?;
    let ran = against(&desk, db.url(), &["handler", "check", "slides.wasm"])?.ended_with(1)?;
    let held = ran.stdout.split("Held against the database:\n").nth(1).unwrap_or(&ran.stdout);
    assert_snapshot!(held, @r#"
    BAD  slides/generation: enum "JobStatus" of "SlideJob".status has no status FAILED, it has QUEUED, PROCESSING, COMPLETED, LOST, CANCELLED
    BAD  slides/generation: table "SlideDeck" has no column title (read "deck")

    To let it act, put it into the folder of [handlers] dir and add to salvage.toml:

    [handler.slides.grants]
    tables = ['"SlideJob"']
    queues = ['slide-export', 'slide-generation']
    read = ['"SlideDeck"(id, status, title)']
    parents = ['"SlideDeck".status']
    "#);
    let json =
        against(&desk, db.url(), &["handler", "check", "slides.wasm", "--json"])?.ended_with(1)?.json()?;
    assert_eq!(json["database"]["fault"], json!(null));
    assert_eq!(json["database"]["sources"][0]["source"], "slides/generation");
    Ok(())
}

#[tokio::test]
async fn a_missing_index_is_a_note() -> Result<()> {
    let (desk, db) = (Desk::with(&["slides"])?, Database::example().await?);
    sqlx::raw_sql("DROP INDEX \"SlideJob_live\"").execute(db.pool()).await?;
    let ran = against(&desk, db.url(), &["handler", "check", "slides.wasm"])?.ended_with(0)?;
    let note = ran.stdout.lines().skip_while(|line| !line.starts_with("note")).take(2).collect::<Vec<_>>();
    assert_snapshot!(note.join("\n"), @r#"
    note slides/generation: no index of live rows; `salvage doctor --create-indexes` runs, while the application goes on:
    CREATE INDEX CONCURRENTLY "SlideJob_salvage_live" ON "public"."SlideJob" ("id") WHERE "status" IN ('QUEUED', 'PROCESSING');
    "#);
    Ok(())
}

#[test]
fn a_database_that_does_not_answer_is_no_database_that_fits() -> Result<()> {
    let desk = Desk::with(&["exports"])?;
    let nowhere = "postgres://app:hunter2@127.0.0.1:1/app";
    let ran = against(&desk, nowhere, &["handler", "check", "exports.wasm"])?.ended_with(1)?;
    assert!(
        ran.stdout.contains("\nBAD  not held against the database: no connection to PostgreSQL: 127.0.0.1:1"),
        "{ran:#?}"
    );
    assert!(ran.stdout.contains("\n[handler.exports.grants]\n"), "{ran:#?}");
    assert!(!ran.stdout.contains("hunter2") && !ran.stderr.contains("hunter2"), "{ran:#?}");
    let odd = "postgres://app:hunter2@db/app?sslmode=foo";
    against(&desk, odd, &["handler", "check", "exports.wasm"])?.ended_with(3)?;
    Ok(())
}

#[test]
fn limits_of_its_own_and_what_it_imports_are_told() -> Result<()> {
    let desk = Desk::with(&["exports"])?;
    desk.write("salvage.toml", "[handler.exports.limits]\nmemory = \"32MiB\"\noutput = \"1000B\"\n")?;
    let ran = desk.salvage(&["handler", "check", "exports.wasm"])?.ended_with(0)?;
    assert!(
        ran.stdout.contains("\n  limits  run time 10 s, memory 32 MiB, output 1000 bytes, log 64 KiB\n"),
        "{ran:#?}"
    );
    let desk = Desk::with_hostile()?;
    let ran = desk.salvage(&["handler", "check", "hostile.wasm"])?.ended_with(0)?;
    let imports: Vec<&str> = ran
        .stdout
        .lines()
        .skip_while(|line| !line.starts_with("  imports"))
        .take_while(|line| !line.is_empty())
        .collect();
    let denied = |what: &str| imports.iter().any(|line| line.contains(what) && line.contains(": denied: "));
    for what in ["wasi:clocks/wall-clock", "wasi:filesystem/types", "wasi:random/", "wasi:sockets/tcp"] {
        assert!(denied(what), "{what}: {imports:#?}");
    }
    let json = desk.salvage(&["handler", "check", "hostile.wasm", "--json"])?.ended_with(0)?.json()?;
    let named: usize = imports.iter().map(|line| line.matches("@0.").count()).sum();
    assert_eq!(json["imports"].as_array().map(Vec::len), Some(named), "every import is told");
    Ok(())
}

/// Goal: what loading refuses, check refuses, for the same reason. Method: both are asked about the same file and settings.
#[test]
fn check_refuses_what_loading_refuses() -> Result<()> {
    let desk = Desk::with(&["slides"])?;
    std::fs::create_dir(desk.path("handlers"))?;
    let mut twice = manifest("twice", "Job", "A");
    let first = twice["sources"][0].clone();
    twice["sources"].as_array_mut().expect("sources").push(first);
    twice["sources"][1]["name"] = json!("again");
    std::fs::write(desk.path("twice.wasm"), declaring(&twice))?;
    let mut all = twice.clone();
    all["sources"][1]["table"]["job_type"] = json!(null);
    std::fs::write(desk.path("all.wasm"), declaring(&all))?;
    for (file, settings, why) in [
        (
            "twice.wasm",
            "",
            "job type \"A\" of table \"Job\" is declared by two sources of one manifest, twice/jobs and twice/again",
        ),
        ("all.wasm", "", "every job type of table \"Job\" is declared by two sources of one manifest"),
        ("slides.wasm", "[handler.slides]\nsha256 = \"PIN\"\n", "[handler.slides] sha256 is "),
        (
            "slides.wasm",
            "[handler.slides.grants]\ntables = ['\"SlideJob\"']\n",
            "the grants of \"slides\" do not cover its manifest; add under [handler.slides.grants]:",
        ),
        (
            "slides.wasm",
            "[handler.slides.types.PDF]\nstale_after = \"1h\"\n",
            "the manifest declares no such job type",
        ),
        (
            "slides.wasm",
            "[handler.slides]\nredact = ['\"SlideDeck\".titel']\n",
            "redact names \"SlideDeck\".titel",
        ),
    ] {
        desk.write("salvage.toml", &settings.replace("PIN", &"0".repeat(64)))?;
        std::fs::copy(desk.path(file), desk.path(&format!("handlers/{file}")))?;
        let list = desk.salvage(&["handler", "list"])?.ended_with(0)?;
        std::fs::remove_file(desk.path(&format!("handlers/{file}")))?;
        assert!(
            list.stdout.contains(": refused (") && list.stdout.contains(why),
            "{file} {settings}: {list:#?}"
        );
        let check = desk.salvage(&["handler", "check", file])?.ended_with(1)?;
        let line = "BAD  put into the folder of [handlers] dir, it would be refused: ";
        assert!(check.stdout.contains(line) && check.stdout.contains(why), "{file} {settings}: {check:#?}");
        let json = desk.salvage(&["handler", "check", file, "--json"])?.ended_with(1)?.json()?;
        assert_eq!(json["state"], "refused");
        assert!(json["why"].as_str().is_some_and(|found| found.contains(why)), "{json:#}");
    }
    Ok(())
}

#[test]
fn a_checked_file_is_judged_beside_those_in_the_folder() -> Result<()> {
    let desk = Desk::empty()?;
    desk.write("salvage.toml", "[handlers]\ngrants = \"declared\"\n")?;
    std::fs::create_dir(desk.path("handlers"))?;
    std::fs::write(desk.path("handlers/slides.wasm"), shipped("slides"))?;
    let mut rival = manifest("rival", "SlideJob", "OUTLINE");
    std::fs::write(desk.path("rival.wasm"), declaring(&rival))?;
    let check = desk.salvage(&["handler", "check", "rival.wasm"])?.ended_with(1)?;
    let why =
        "job type \"OUTLINE\" of table \"SlideJob\" is owned by slides/generation (slides.wasm) already";
    assert!(check.stdout.contains(why), "{check:#?}");

    // The next build of what is there takes its place, under its name or another.
    std::fs::write(desk.path("slides.wasm"), shipped("slides"))?;
    let check = desk.salvage(&["handler", "check", "slides.wasm"])?.ended_with(0)?;
    assert!(!check.stdout.contains("note "), "{check:#?}");
    assert!(check.stdout.contains("\nPut into the folder of [handlers] dir, it acts: "), "{check:#?}");
    rival["domain"] = json!("slides");
    std::fs::write(desk.path("next.wasm"), declaring(&rival))?;
    let check = desk.salvage(&["handler", "check", "next.wasm"])?.ended_with(0)?;
    let note =
        "note slides.wasm in the folder serves the same domain: put this file in its place, not beside it\n";
    assert!(check.stdout.contains(note), "{check:#?}");
    Ok(())
}
