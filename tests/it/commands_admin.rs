//! What an operator asks for: migrate, accept, explain, handlers and their grants.

use std::io::Write;

use anyhow::{Context, Result};
use insta::assert_snapshot;
use salvage_tests::example::{Deck, Jobs, SlideExportJob, SlideJob};
use salvage_tests::services::{Database, handlers_folder, redis_url};
use salvage_tests::stores::tables;
use salvage_tests::system::System;

use crate::commands::{QUEUES, Ran, ran, salvage};

/// Runs as a known operator.
fn as_operator(system: &System, arguments: &[&str]) -> Result<Ran> {
    ran(system.salvage(arguments)?.env("USER", "operator"))
}

#[tokio::test]
async fn migrate_says_what_it_applied_and_a_second_time_does_nothing() -> Result<()> {
    let system = System::fresh().await?;
    let db = Database::example().await?;
    let migrate = || ran(system.salvage(&["migrate"])?.env("DATABASE_URL", db.url()));
    let first = migrate()?.ended_with(0)?;
    assert_snapshot!(first.stdout, @r"
    applied 0001 fence and passes
    applied 0002 queues
    applied 0003 intents and ledger
    applied 0004 domain queues
    applied 0005 storms and parked
    applied 0006 captures
    applied 0008 declarations
    `salvage doctor` says what else a pass needs
    ");
    let before = tables(db.pool(), &["salvage"]).await?;
    let second = migrate()?.ended_with(0)?;
    assert_eq!(second.stdout, "schema salvage is current\n`salvage doctor` says what else a pass needs\n");
    assert_eq!(tables(db.pool(), &["salvage"]).await?, before);
    let handlers_are_not_needed = ran(system
        .salvage(&["migrate"])?
        .env("DATABASE_URL", db.url())
        .env("SALVAGE_HANDLERS__DIR", "no-such-folder"))?;
    handlers_are_not_needed.ended_with(0)?;
    Ok(())
}

/// Each accepted queue, and whether it is accepted by a known operator at a recent time and in its memory.
async fn accepted(system: &System) -> Result<Vec<String>> {
    let query = "SELECT a.queue FROM salvage.accepted AS a JOIN salvage.queues AS q \
         ON q.prefix = a.prefix AND q.queue = a.queue AND q.accepted_at = a.at \
         WHERE a.who LIKE 'operator@%' AND a.at > now() - interval '10 min' AND a.prefix = $1 ORDER BY 1";
    Ok(sqlx::query_scalar(query).bind(&system.prefix).fetch_all(system.db.pool()).await?)
}

#[tokio::test]
async fn an_orphan_from_before_the_first_contact_is_recovered_once_its_queues_are_accepted() -> Result<()> {
    let system = System::fresh().await?;
    system.used_queues(&QUEUES).await?;
    Deck::generating("d1").insert(system.db.pool()).await?;
    SlideJob::processing("s1").stale().of("d1").insert(system.db.pool()).await?;
    let outcome = |report: serde_json::Value| report["jobs"][0]["outcome"]["kind"].clone();
    let first = salvage(&system, &["once", "--json"])?.ended_with(0)?.json()?;
    assert_eq!(outcome(first), "before-epoch");

    let ran = as_operator(&system, &["accept", "slide-generation", "slide-export"])?.ended_with(0)?;
    assert_snapshot!(ran.stdout, @r"
    slide-export: 0 scheduled jobs, counter 100
    slide-generation: 0 scheduled jobs, counter 100
    slide-export: 0 attributed by id, 0 by payload, 0 foreign by name, 0 unattributed
    slide-generation: 0 attributed by id, 0 by payload, 0 foreign by name, 0 unattributed
    accepted slide-export: what it holds now counts as the truth
    accepted slide-generation: what it holds now counts as the truth
    the next pass recovers what waited for this; `salvage plan` shows it
    ");
    assert_eq!(accepted(&system).await?, ["slide-export", "slide-generation"]);
    let nonce: Option<String> =
        system.redis(&["HGET", &system.key("slide-export", "salvage:host"), "nonce"]).await?;
    let remembered: Vec<Option<String>> =
        sqlx::query_scalar("SELECT nonce FROM salvage.queues WHERE queue = 'slide-export'")
            .fetch_all(system.db.pool())
            .await?;
    assert!(nonce.is_some() && remembered == [nonce], "{remembered:?}");
    let second = salvage(&system, &["once", "--json"])?.ended_with(0)?.json()?;
    assert_eq!(outcome(second), "applied");
    Ok(())
}

#[tokio::test]
async fn accept_all_is_every_queue_of_every_handler() -> Result<()> {
    let system = System::fresh().await?;
    let (unused, used) = QUEUES.split_first().expect("five queues");
    system.used_queues(used).await?;
    // One that was never seen is left out, and named.
    let ran = as_operator(&system, &["accept", "--all"])?.ended_with(1)?;
    assert!(ran.stdout.starts_with(&format!("{unused}: never seen under this prefix")), "{ran:#?}");
    assert_eq!(accepted(&system).await?, used);
    system.used_queues(&[unused]).await?;
    as_operator(&system, &["accept", "--all"])?.ended_with(0)?;
    assert_eq!(accepted(&system).await?, QUEUES);
    Ok(())
}

#[tokio::test]
async fn an_accepted_entry_blocks_no_orphan_any_more() -> Result<()> {
    let system = crate::commands::running().await?;
    Deck::generating("d1").insert(system.db.pool()).await?;
    SlideJob::processing("s1").stale().of("d1").insert(system.db.pool()).await?;
    system.redis::<()>(&["LPUSH", &system.key("slide-export", "wait"), "ghost"]).await?;
    let first = salvage(&system, &["once", "--json"])?.ended_with(4)?.json()?;
    assert_eq!(first["jobs"][0]["sighting"]["kind"], "unknown");
    let ran = as_operator(&system, &["accept", "--entry", "slide-export", "ghost"])?.ended_with(0)?;
    assert_eq!(ran.stdout, "accepted entry \"ghost\" of slide-export: it counts as nobody's job\n");
    let query = "SELECT queue || ' ' || entry_id FROM salvage.accepted_entries \
         WHERE who LIKE 'operator@%' AND at > now() - interval '10 min'";
    let entries: Vec<String> = sqlx::query_scalar(query).fetch_all(system.db.pool()).await?;
    assert_eq!(entries, ["slide-export ghost"]);
    let second = salvage(&system, &["once", "--json"])?.ended_with(0)?.json()?;
    assert_eq!(second["jobs"][0]["outcome"]["kind"], "applied");
    Ok(())
}

#[tokio::test]
async fn explain_tells_a_story_by_full_and_by_bare_name() -> Result<()> {
    let system = crate::commands::running().await?;
    let nothing = salvage(&system, &["explain", "generation", "s1"])?.ended_with(0)?;
    assert!(nothing.stdout.starts_with("slides/generation s1: nothing is recorded: "), "{nothing:#?}");
    SlideJob::queued("s1").stale().of("no-deck").insert(system.db.pool()).await?;
    salvage(&system, &["once"])?.ended_with(0)?;
    let full = salvage(&system, &["explain", "slides/generation", "s1"])?.ended_with(0)?;
    let bare = salvage(&system, &["explain", "generation", "s1"])?.ended_with(0)?;
    assert_eq!(full.stdout, bare.stdout);
    insta::with_settings!({ filters => vec![
        (r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", "[time]"),
        (r"updated at \S+ \S+,", "updated at [time],"),
        (r"xmin \d+", "xmin [xmin]"),
        (r"(sha256|run|replication) [0-9a-f]{12}", "$1 [12 digits]"),
        (r#"prefix "\w+""#, r#"prefix "[prefix]""#),
        (r"used \d+\.\d of 100 ms, \d\.\d of", "used [some] of 100 ms, [some] of"),
    ]}, {
        assert_snapshot!(full.stdout, @r#"
        slides/generation s1, [time], generation 2
          row       QUEUED, updated at [time], xmin [xmin]
          sighting  absent
          decision  fail: The slide deck of this job no longer exists, so its slides cannot be generated.
          outcome   applied
          handler   sha256 [12 digits]
          evidence  queues read at [time] under prefix "[prefix]", and a second look agreed
          evidence  Redis: master, run [12 digits], replication [12 digits], 0 keys evicted under noeviction
          evidence  queue slide-export: 0 scheduled ids, counter 100; epoch since [time] (nonce kept)
          evidence  queue slide-generation: 0 scheduled ids, counter 100; epoch since [time] (nonce kept)
          evidence  payloads: 0 read, 0 foreign, 0 departed, 0 unreadable
          evidence  the handler's call used [some] of 100 ms, [some] of 64 MiB of memory, 0.1 of 1024 KiB of output, 0.0 of 64 KiB of log
        "#);
    });
    let story = salvage(&system, &["explain", "generation", "s1", "--json"])?.ended_with(0)?.json()?;
    assert_eq!(
        (&story[0]["decision"], &story[0]["outcome"]),
        (&"fail".into(), &"applied".into()),
        "{story:#}"
    );
    Ok(())
}

#[tokio::test]
async fn history_before_the_first_pass_says_how_to_run_one() -> Result<()> {
    let system = System::fresh().await?;
    let ran = salvage(&system, &["history"])?.ended_with(0)?;
    assert_eq!(ran.stdout, "no pass yet: `salvage once` runs one\n");
    assert_eq!(salvage(&system, &["history", "--json"])?.json()?, serde_json::json!([]));
    Ok(())
}

#[tokio::test]
async fn the_grants_that_check_prints_make_each_shipped_handler_active_once_pasted() -> Result<()> {
    let system = System::with(&redis_url()?, &handlers_folder()?, "grants = \"listed\"").await?;
    let states = || -> Result<Vec<String>> {
        let list = salvage(&system, &["handler", "list", "--json"])?.ended_with(0)?.json()?;
        let states = list.as_array().context("no array")?.iter();
        Ok(states.map(|handler| format!("{} {}", handler["domain"], handler["state"])).collect())
    };
    let all =
        |state: &str| ["exports", "slides", "video-composition"].map(|name| format!("{name:?} {state:?}"));
    assert_eq!(states()?, all("observed"));

    let mut config = std::fs::OpenOptions::new().append(true).open(system.config_file())?;
    for name in ["slides", "video-composition", "exports"] {
        let file = handlers_folder()?.join(format!("{name}.wasm")).display().to_string();
        let check = salvage(&system, &["handler", "check", &file])?.ended_with(0)?;
        let block = check.stdout.find("\n[handler.").context("no block of grants")?;
        config.write_all(&check.stdout.as_bytes()[block..])?;
    }
    assert_eq!(states()?, all("active"));
    Ok(())
}

#[tokio::test]
async fn the_grants_that_list_prints_can_be_pasted_as_they_stand() -> Result<()> {
    let system = System::with(&redis_url()?, &handlers_folder()?, "grants = \"listed\"").await?;
    let list = salvage(&system, &["handler", "list"])?.ended_with(0)?;
    let block: String = list
        .stdout
        .lines()
        .skip_while(|line| !line.starts_with("[handler.slides.grants]"))
        .take_while(|line| line.starts_with("[handler.slides") || line.contains(" = ["))
        .map(|line| format!("{line}\n"))
        .collect();
    let mut config = std::fs::OpenOptions::new().append(true).open(system.config_file())?;
    config.write_all(block.as_bytes())?;
    let list = salvage(&system, &["handler", "list"])?.ended_with(0)?;
    assert!(list.stdout.contains("\nslides: active (slides.wasm, sha256 "), "{list:#?}");
    Ok(())
}

#[tokio::test]
async fn an_observed_handler_is_planned_and_never_acts() -> Result<()> {
    let system = System::with(&redis_url()?, &handlers_folder()?, "grants = \"listed\"").await?;
    system.used_queues(&QUEUES).await?;
    system.known_since_yesterday().await?;
    SlideJob::queued("s1").stale().of("no-deck").insert(system.db.pool()).await?;
    SlideExportJob::queued("e1").stale().insert(system.db.pool()).await?;
    let before = tables(system.db.pool(), &["public"]).await?;
    let ran = salvage(&system, &["once"])?.ended_with(0)?;
    for why in [
        "no decision: not asked: what its handler reads is not granted; `salvage handler list` prints the grants\n",
        "refused: observed only: there is no [handler.exports.grants]; `salvage handler check` prints one; was to be ",
    ] {
        assert!(ran.stdout.contains(why), "{ran:#?} lacks {why}");
    }
    assert!(!ran.stderr.contains("first contact"), "an unmarked queue is met by every pass: {ran:#?}");
    assert_eq!(tables(system.db.pool(), &["public"]).await?, before);
    Ok(())
}

#[tokio::test]
async fn handler_check_tells_a_newcomer_what_it_declares() -> Result<()> {
    let system = System::fresh().await?;
    std::fs::copy(
        handlers_folder()?.join("slides.wasm"),
        system.config_file().with_file_name("slides.wasm"),
    )?;
    let ran = salvage(&system, &["handler", "check", "slides.wasm"])?.ended_with(0)?;
    insta::with_settings!({ filters => vec![(r"[0-9a-f]{64}", "[digest]")]}, {
        assert_snapshot!(ran.stdout, @r#"
        slides.wasm is a sound handler of domain "slides"
          about   Generation of slide decks and their outlines.
          sha256  [digest]
          limits  run time 100 ms, memory 64 MiB, output 1 MiB, log 64 KiB
          imports salvage:handler/types@0.1.0: words of the contract
                  wasi:cli/stderr@0.2.6: the last bytes are kept, for the message of a trap
                  wasi:cli/stdout@0.2.6: counted and dropped
                  wasi:cli/stdin@0.2.6: empty
                  wasi:cli/environment@0.2.6: no variables, no arguments
                  wasi:cli/exit@0.2.6, wasi:cli/terminal-input@0.2.6, wasi:cli/terminal-output@0.2.6, wasi:cli/terminal-stdin@0.2.6, wasi:cli/terminal-stdout@0.2.6, wasi:cli/terminal-stderr@0.2.6: nothing: there is no process and no terminal
                  wasi:io/poll@0.2.6, wasi:io/error@0.2.6, wasi:io/streams@0.2.6: streams and errors of the others

        slides/generation
          table   "SlideJob"
          columns id, status, "updatedAt", type, progress, error
          status  QUEUED or PROCESSING; failed is FAILED
          types   GENERATION, OUTLINE (not restart-safe)
          queues  slide-generation (slide-{id}), slide-export (slide-{id})
          reads   deck = "SlideDeck"(id, title, status) where id is the job's "deckId", at most 1
          parent  GENERATION fails: "SlideDeck".status from GENERATING to FAILED
          parent  OUTLINE fails: "SlideDeck".status from GENERATING to FAILED

        Held against the database:
        ok   slides/generation: tables, columns and statuses are as declared

        Put into the folder of [handlers] dir, it acts: it may do all that it declares, which is

        [handler.slides.grants]
        tables = ['"SlideJob"']
        queues = ['slide-export', 'slide-generation']
        read = ['"SlideDeck"(id, status, title)']
        parents = ['"SlideDeck".status']
        "#);
    });
    let json = salvage(&system, &["handler", "check", "slides.wasm", "--json"])?.ended_with(0)?.json()?;
    assert_eq!(json["manifest"]["domain"], "slides");
    Ok(())
}
