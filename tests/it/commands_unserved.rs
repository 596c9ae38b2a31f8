//! Where no handler serves, a pass would look at nothing: that never looks like a system without orphans.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use anyhow::Result;
use salvage_tests::services::{copied_handlers, handlers_folder};
use salvage_tests::stores::Stores;
use salvage_tests::system::System;

use crate::commands::{Ran, Running, ran, running, salvage};

/// Runs with another folder of handlers.
fn with_folder(system: &System, folder: &str, arguments: &[&str]) -> Result<Ran> {
    ran(system.salvage(arguments)?.env("SALVAGE_HANDLERS__DIR", folder))
}

/// Each of the commands that make one pass: this exit code, and this on stdout, as text and as JSON.
async fn check(system: &System, folder: &str, code: i32, why: &[&str]) -> Result<()> {
    let before = Stores::of(system).await?;
    for command in ["plan", "once"] {
        let text = with_folder(system, folder, &[command])?.ended_with(code)?;
        assert!(text.stdout.starts_with("nothing was judged: "), "{text:#?}");
        assert!(!text.stdout.contains("no orphan"), "{text:#?}");
        let report = with_folder(system, folder, &[command, "--json"])?.ended_with(code)?.json()?;
        assert_eq!(report["pass"]["lease"], "not-taken");
        assert_eq!(report["sources"], serde_json::json!([]));
        let told = report["pass"]["why"].as_str().unwrap_or_default();
        for why in why {
            assert!(text.stdout.contains(why), "{why} is not in {text:#?}");
            assert!(told.contains(why), "{why} is not in {told}");
        }
    }
    assert_eq!(Stores::of(system).await?, before, "nothing served, and something was written");
    Ok(())
}

#[tokio::test]
async fn a_handlers_folder_that_cannot_be_read_ends_a_pass_with_3() -> Result<()> {
    let system = running().await?;
    let missing = "the handlers' folder no-such-folder cannot be read (No such file or directory (os error 2)); \
                   check [handlers] dir";
    check(&system, "no-such-folder", 3, &[missing]).await?;
    fs::write(system.config_file().with_file_name("a-file"), "")?;
    check(&system, "a-file", 3, &["the handlers' folder a-file cannot be read (Not a directory"]).await?;
    // Who may read everything, as root may, is not kept out by permissions.
    let closed = system.config_file().with_file_name("closed");
    fs::create_dir(&closed)?;
    fs::set_permissions(&closed, fs::Permissions::from_mode(0o000))?;
    if fs::read_dir(&closed).is_err() {
        check(&system, "closed", 3, &["the handlers' folder closed cannot be read (Permission denied"])
            .await?;
    }
    Ok(())
}

#[tokio::test]
async fn a_folder_of_which_nothing_serves_ends_a_pass_with_1_and_says_why_of_each_file() -> Result<()> {
    let system = running().await?;
    let folder = system.config_file().with_file_name("handlers");
    fs::create_dir(&folder)?;
    check(&system, "handlers", 1, &["the folder of [handlers] dir holds no .wasm file; put one there"])
        .await?;
    fs::write(folder.join("broken.wasm"), "not a component")?;
    fs::write(folder.join("core.wasm"), b"\0asm\x01\0\0\0")?;
    let why = [
        "no handler serves: every file in the folder of [handlers] dir was refused",
        "broken.wasm: not a WebAssembly component: the file does not begin like one",
        "core.wasm: a core WebAssembly module, not a component",
    ];
    check(&system, "handlers", 1, &why).await
}

#[tokio::test]
async fn a_file_that_is_refused_beside_others_that_serve_is_said_on_stdout() -> Result<()> {
    let system = running().await?;
    let handlers = copied_handlers()?;
    fs::write(handlers.path().join("broken.wasm"), "not a component")?;
    let folder = handlers.path().display().to_string();
    for command in ["plan", "once"] {
        let ran = with_folder(&system, &folder, &[command])?.ended_with(0)?;
        let expected =
            "\nbroken.wasm does not serve, and its jobs are not looked at: not a WebAssembly component: ";
        assert!(ran.stdout.contains(expected), "{ran:#?}");
    }
    let whole = salvage(&system, &["plan"])?.ended_with(0)?;
    assert!(!whole.stdout.contains("does not serve"), "{whole:#?}");
    Ok(())
}

#[tokio::test]
async fn run_waits_for_a_folder_that_is_not_there_yet() -> Result<()> {
    let system = running().await?;
    let folder = system.config_file().with_file_name("later");
    let mut command = system.salvage(&["run"])?;
    command.env("SALVAGE_HANDLERS__DIR", "later").env("SALVAGE_PASS__INTERVAL", "1s");
    let mut process = Running::start(&mut command)?;
    process.says("no handler serves: the handlers' folder later cannot be read", 1).await?;
    fs::create_dir(&folder)?;
    fs::copy(handlers_folder()?.join("slides.wasm"), folder.join("slides.wasm"))?;
    process.says("handler is loaded and serves from the next pass on", 1).await?;
    process.terminate()?;
    assert_eq!(process.ended().await?.0, Some(0));
    Ok(())
}
