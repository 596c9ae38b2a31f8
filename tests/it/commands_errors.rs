//! Bad input and bad weather: one clear error, the right exit code, and nothing written.

use std::process::Stdio;

use anyhow::Result;
use insta::assert_snapshot;
use salvage_tests::example::{Jobs, SlideJob};
use salvage_tests::services::{Database, copied_handlers};
use salvage_tests::stores::Stores;
use salvage_tests::system::System;

use crate::commands::{Ran, ran, salvage};

/// What was said, without what differs from run to run.
fn said(system: &System, ran: &Ran) -> String {
    assert!(!ran.stderr.contains("stack backtrace") && !ran.stderr.contains("panicked"), "{ran:#?}");
    let folder = system.config_file().parent().map(|folder| folder.display().to_string()).unwrap_or_default();
    ran.stderr.replace(&folder, "[folder]")
}

/// Runs with one variable set.
fn with(system: &System, variable: (&str, &str), arguments: &[&str]) -> Result<Ran> {
    ran(system.salvage(arguments)?.env(variable.0, variable.1))
}

#[tokio::test]
async fn a_database_that_cannot_be_used_is_said_once_with_exit_code_1() -> Result<()> {
    let system = System::fresh().await?;
    let before = Stores::of(&system).await?;
    let nowhere = with(&system, ("DATABASE_URL", "postgres://app:hunter2@127.0.0.1:1/app"), &["once"])?;
    assert_snapshot!(said(&system, &nowhere.ended_with(1)?), @"error: no connection to PostgreSQL: 127.0.0.1:1: Connection refused (os error 111); check [database] url and that the server is up");

    let wrong = system.db.url().replace("salvage:", "salvage:hunter2");
    let wrong = with(&system, ("DATABASE_URL", &wrong), &["once"])?.ended_with(1)?;
    assert_snapshot!(said(&system, &wrong), @r#"error: PostgreSQL refused the connection: password authentication failed for user "salvage"; check user, password and database in [database] url"#);

    let other = system.db.url().replace(system.db.name(), "no_such_database");
    let other = with(&system, ("DATABASE_URL", &other), &["once"])?.ended_with(1)?;
    assert_snapshot!(said(&system, &other), @r#"error: PostgreSQL refused the connection: database "no_such_database" does not exist; check user, password and database in [database] url"#);

    let odd = with(&system, ("DATABASE_URL", "postgres://app:hunter2@db/app?sslmode=foo"), &["once"])?;
    assert_snapshot!(said(&system, &odd.ended_with(3)?), @r"
      x [database] url: parameter `sslmode` has an unknown value
      help: it can be disable, allow, prefer, require, verify-ca, verify-full
    ");
    assert_eq!(Stores::of(&system).await?, before);
    Ok(())
}

#[tokio::test]
async fn a_missing_schema_says_what_to_run_and_every_command_says_the_same() -> Result<()> {
    let system = System::fresh().await?;
    let db = Database::example().await?;
    let database = ("DATABASE_URL", db.url());
    for arguments in
        [&["once"][..], &["plan"], &["history"], &["explain", "generation", "s1"], &["accept", "--all"]]
    {
        let ran = with(&system, database, arguments)?.ended_with(1)?;
        assert_eq!(
            ran.stderr, "error: schema `salvage` is missing: run `salvage migrate`\n",
            "{arguments:?}"
        );
        assert_eq!(ran.stdout, "", "{arguments:?}");
    }
    Ok(())
}

#[tokio::test]
async fn settings_that_cannot_be_used_end_with_3() -> Result<()> {
    let system = System::fresh().await?;
    let missing = salvage(&system, &["--config", "none.toml", "once"])?.ended_with(3)?;
    assert_snapshot!(said(&system, &missing), @r"
      x no configuration file at none.toml
      help: check the path given with --config, or leave it out to use ./salvage.toml or the environment
    ");

    let file = system.config_file().with_file_name("bad.toml");
    std::fs::write(&file, "[pass]\ninterval = \"5m\nstale_after = \"1h\"\n")?;
    let malformed = salvage(&system, &["--config", "bad.toml", "once"])?.ended_with(3)?;
    assert_snapshot!(said(&system, &malformed), @r#"
      x not valid TOML: invalid basic string, expected `"`
       ,-[bad.toml:2:15]
     1 | [pass]
     2 | interval = "5m
       :               ^
     3 | stale_after = "1h"
       `----
    "#);

    let urls = "[database]\nurl = \"postgres://u:hunter2@h/d\"\n[redis]\nurl = \"redis://h\"\n";
    std::fs::write(&file, format!("{urls}[pass]\nintervall = \"5m\"\n"))?;
    let unknown = salvage(&system, &["--config", "bad.toml", "once"])?.ended_with(3)?;
    assert_snapshot!(said(&system, &unknown), @r#"
      x [pass] intervall: unknown setting
       ,-[bad.toml:6:1]
     5 | [pass]
     6 | intervall = "5m"
       : ^^^^^^^^^
       `----
      help: did you mean "interval"?
    "#);

    std::fs::write(&file, "")?;
    let none = salvage(&system, &["--config", "bad.toml", "once"])?.ended_with(3)?;
    assert_snapshot!(said(&system, &none), @r#"
      x [database] url: missing
      help: set url = "postgres://USER:PASSWORD@HOST/DATABASE" in that section of salvage.toml, or the environment
            variable DATABASE_URL
      x [redis] url: missing
      help: set url = "redis://HOST:6379" in that section of salvage.toml, or the environment variable REDIS_URL
    "#);

    let redis = with(&system, ("REDIS_URL", "redis://:hunter2@127.0.0.1:1/zzz"), &["once"])?.ended_with(3)?;
    assert_snapshot!(said(&system, &redis), @"error: [redis] url cannot be used: Invalid database number; expected redis://[user:password@]host[:port][/database]");
    Ok(())
}

#[tokio::test]
async fn a_command_line_that_makes_no_sense_ends_with_2() -> Result<()> {
    let system = System::fresh().await?;
    for arguments in [
        &[][..],
        &["twice"],
        &["once", "--fast"],
        &["explain", "generation"],
        &["accept"],
        &["accept", "--all", "slide-export"],
        &["accept", "--entry", "slide-export"],
        &["history", "--limit", "0"],
    ] {
        let ran = salvage(&system, arguments)?.ended_with(2)?;
        assert!(ran.stdout.is_empty() && ran.stderr.contains("--help"), "{arguments:?}: {ran:#?}");
    }
    Ok(())
}

#[tokio::test]
async fn nothing_to_do_ends_with_0_and_nothing_to_judge_with_4() -> Result<()> {
    let system = System::fresh().await?;
    let idle = salvage(&system, &["once"])?.ended_with(0)?;
    assert!(idle.stdout.ends_with("\nno orphan: no live row is old enough to be looked up\n"), "{idle:#?}");

    SlideJob::processing("s1").stale().insert(system.db.pool()).await?;
    let unknown = salvage(&system, &["once"])?.ended_with(4)?;
    let expected = "nothing could be judged, so nothing was done; `salvage doctor` looks for the cause\n";
    assert!(unknown.stdout.ends_with(expected), "{unknown:#?}");
    assert!(unknown.stdout.contains("neither `id` nor `meta` exists under prefix"), "{unknown:#?}");

    let before = Stores::of(&system).await?;
    let down = with(&system, ("REDIS_URL", "redis://:hunter2@127.0.0.1:1"), &["once"])?.ended_with(4)?;
    assert_snapshot!(down.stdout, @"skipped, for the lease could not be taken: no connection to Redis: Connection refused (os error 111); check its address in [redis] and that the server is up");
    let (_, line) = down.stderr.split_once(' ').expect("a time first");
    assert_snapshot!(line.trim_start(), @"WARN salvage::pass: pass skipped: the lease could not be taken scope=global failure=no connection to Redis: Connection refused (os error 111); check its address in [redis] and that the server is up");
    let plan = with(&system, ("REDIS_URL", "redis://127.0.0.1:1"), &["plan"])?.ended_with(4)?;
    assert!(plan.stdout.contains("the queues could not be read: no connection to Redis"), "{plan:#?}");

    system.redis::<()>(&["SET", &format!("{}:lock", system.prefix), "another", "EX", "600"]).await?;
    let held = salvage(&system, &["once"])?.ended_with(6)?;
    assert!(held.stdout.starts_with("skipped: another host holds the lease"), "{held:#?}");
    system.redis::<()>(&["DEL", &format!("{}:lock", system.prefix)]).await?;
    assert_eq!(Stores::of(&system).await?, before);
    Ok(())
}

#[tokio::test]
async fn what_is_not_there_is_named_with_what_is() -> Result<()> {
    let system = System::fresh().await?;
    let before = Stores::of(&system).await?;
    let queue = salvage(&system, &["accept", "slide-generation", "slides"])?.ended_with(1)?;
    assert_snapshot!(said(&system, &queue), @r#"error: no handler that serves declares queue "slides"; there are narration, slide-export, slide-generation, video-composition, video-export"#);
    let entry = salvage(&system, &["accept", "--entry", "slides", "5"])?.ended_with(1)?;
    assert_eq!(entry.stderr, queue.stderr);
    let source = salvage(&system, &["explain", "generations", "s1"])?.ended_with(1)?;
    assert_snapshot!(said(&system, &source), @r#"error: no handler that serves has a source "generations"; there are exports/slide-export, exports/video-export, slides/generation, video-composition/composition, video-composition/narration"#);
    let full = salvage(&system, &["explain", "slide/generation", "s1"])?.ended_with(1)?;
    assert_snapshot!(said(&system, &full), @"error: no handler that serves has a source slide/generation, and nothing is recorded of it; there are exports/slide-export, exports/video-export, slides/generation, video-composition/composition, video-composition/narration");
    assert_eq!(Stores::of(&system).await?, before);
    Ok(())
}

#[tokio::test]
async fn a_file_that_is_no_handler_is_named_with_what_to_do() -> Result<()> {
    let system = System::fresh().await?;
    let file = system.config_file().with_file_name("broken.wasm");
    std::fs::write(&file, "not a component")?;
    let text = salvage(&system, &["handler", "check", "broken.wasm"])?.ended_with(1)?;
    assert_snapshot!(said(&system, &text), @"error: broken.wasm cannot serve: not a WebAssembly component: the file does not begin like one; build the handler for wasm32-wasip2");
    let none = salvage(&system, &["handler", "check", "none.wasm"])?.ended_with(1)?;
    assert_snapshot!(said(&system, &none), @"error: none.wasm cannot serve: the file cannot be read: No such file or directory (os error 2)");

    let handlers = copied_handlers()?;
    std::fs::copy(&file, handlers.path().join("broken.wasm"))?;
    let folder = handlers.path().display().to_string();
    let list = with(&system, ("SALVAGE_HANDLERS__DIR", &folder), &["handler", "list"])?.ended_with(0)?;
    let broken: Vec<&str> = list.stdout.lines().take(2).collect();
    assert!(broken[0].starts_with("no domain: refused (broken.wasm, sha256 "), "{list:#?}");
    assert_eq!(
        broken[1].trim_start(),
        "not a WebAssembly component: the file does not begin like one; build the handler for wasm32-wasip2"
    );
    Ok(())
}

#[tokio::test]
async fn a_folder_without_handlers_never_looks_like_a_system_without_orphans() -> Result<()> {
    let system = System::fresh().await?;
    let nowhere = ("SALVAGE_HANDLERS__DIR", "no-such-folder");
    let once = with(&system, nowhere, &["once"])?.ended_with(3)?;
    let fault = "the handlers' folder no-such-folder cannot be read (No such file or directory (os error 2)); \
                 check [handlers] dir";
    assert_eq!(once.stdout, format!("nothing was judged: {fault}\n"));
    assert!(once.stderr.contains(&format!("no handler serves: {fault}")), "{once:#?}");
    let list = with(&system, nowhere, &["handler", "list"])?.ended_with(1)?;
    assert_eq!(list.stderr, format!("error: {fault}\n"));
    let accept = with(&system, nowhere, &["accept", "--all"])?.ended_with(1)?;
    assert_snapshot!(said(&system, &accept), @"error: no handler is granted anything, so there is no queue to accept; see `salvage handler list`");
    std::fs::create_dir(system.config_file().with_file_name("empty"))?;
    let empty = with(&system, ("SALVAGE_HANDLERS__DIR", "empty"), &["handler", "list"])?.ended_with(0)?;
    assert_eq!(empty.stdout, "no handler: the folder of [handlers] dir holds no .wasm file; put one there\n");
    Ok(())
}

#[tokio::test]
async fn a_reader_that_has_heard_enough_is_no_error_to_complain_of() -> Result<()> {
    let system = System::fresh().await?;
    let mut command = system.salvage(&["history"])?;
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
    // As `head` does, but surely before anything was written.
    drop(child.stdout.take());
    let output = child.wait_with_output()?;
    assert_eq!((output.status.code(), output.stderr), (Some(0), vec![]));
    Ok(())
}
