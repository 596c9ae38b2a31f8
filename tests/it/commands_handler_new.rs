//! `salvage handler new`: what it writes, and that it writes over nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use insta::assert_snapshot;

use crate::commands_handler_desk::{Desk, root};

/// Every file below a folder: its path there, and its content.
fn files(folder: &Path) -> Result<BTreeMap<String, String>> {
    let (mut found, mut open) = (BTreeMap::new(), vec![folder.to_owned()]);
    while let Some(path) = open.pop() {
        if path.is_dir() {
            for entry in fs::read_dir(&path)? {
                open.push(entry?.path());
            }
        } else {
            let name = path.strip_prefix(folder)?.display().to_string();
            found.insert(name, fs::read_to_string(&path)?);
        }
    }
    Ok(found)
}

#[test]
fn a_new_folder_says_what_to_do_next() -> Result<()> {
    let desk = Desk::empty()?;
    let rust = desk.salvage(&["handler", "new", "video-exports"])?.ended_with(0)?;
    assert_snapshot!(rust.stdout, @r#"
    made video-exports: a handler of domain "video-exports" with two cases; README.md tells more. Next:

      cd video-exports
      cargo test
      cargo build --target wasm32-wasip2 --profile handler
      salvage handler test target/wasm32-wasip2/handler/handler_video_exports.wasm
    "#);
    let typescript = desk.salvage(&["handler", "new", "letters", "--lang", "typescript"])?.ended_with(0)?;
    assert_snapshot!(typescript.stdout, @r#"
    made letters: a handler of domain "letters" with two cases; README.md tells more. Next:

      cd letters
      npm ci
      npm run build
      salvage handler test build/letters.wasm
    "#);
    for folder in ["video-exports", "letters"] {
        let made = files(&desk.path(folder))?;
        let own = made.iter().filter(|(path, _)| !path.starts_with("vendor") && !path.starts_with("wit"));
        for (path, text) in own {
            assert!(
                !text.contains("{{name}}") && !text.contains("{{snake}}"),
                "{folder}/{path} is not filled in"
            );
        }
    }
    Ok(())
}

#[test]
fn a_rust_folder_holds_the_whole_sdk_and_the_contract_as_they_are() -> Result<()> {
    let desk = Desk::empty()?;
    desk.salvage(&["handler", "new", "letters"])?.ended_with(0)?;
    let vendored = files(&desk.path("letters/vendor/salvage-handler-sdk/src"))?;
    assert_eq!(vendored, files(&root().join("handlers/sdk/src"))?);
    assert_eq!(files(&desk.path("letters/wit/v0.1"))?, files(&root().join("wit/v0.1"))?);
    Ok(())
}

/// The lines of a manifest that name a dependency, without what says where its version is.
fn dependencies(manifest: &str) -> BTreeSet<String> {
    let lines = manifest.lines().skip_while(|line| *line != "[dependencies]");
    lines.filter_map(|line| Some(line.split_once([' ', '.'])?.0.to_owned())).collect()
}

#[test]
fn the_sdk_in_a_new_folder_has_the_dependencies_of_the_workspaces() -> Result<()> {
    let desk = Desk::empty()?;
    desk.salvage(&["handler", "new", "letters"])?.ended_with(0)?;
    let vendored = desk.read("letters/vendor/salvage-handler-sdk/Cargo.toml")?;
    let own = fs::read_to_string(root().join("handlers/sdk/Cargo.toml"))?;
    assert_eq!(dependencies(&vendored), dependencies(&own));

    let workspace = fs::read_to_string(root().join("Cargo.toml"))?;
    for name in dependencies(&own).iter().filter(|name| !name.starts_with(['#', '['])) {
        let line =
            |text: &str| text.lines().find(|line| line.starts_with(&format!("{name} = "))).map(str::to_owned);
        let expected = line(&workspace).with_context(|| format!("{name} in the workspace's manifest"))?;
        assert_eq!(line(&vendored), Some(expected));
    }
    Ok(())
}

#[test]
fn the_typescript_example_is_what_new_writes_but_for_its_handler() -> Result<()> {
    let desk = Desk::empty()?;
    desk.salvage(&["handler", "new", "exports", "--lang", "typescript"])?.ended_with(0)?;
    let example = root().join("examples/typescript-handler");
    for (path, text) in files(&desk.path("exports"))? {
        if !["README.md", "src/handler.ts"].contains(&&*path) && !path.starts_with("cases/") {
            assert_eq!(fs::read_to_string(example.join(&path)).context(path.clone())?, text, "{path}");
        }
    }
    Ok(())
}

#[test]
fn nothing_is_written_over_what_is_there() -> Result<()> {
    let desk = Desk::empty()?;
    desk.write("letters/notes.txt", "mine")?;
    let before = files(&desk.path("letters"))?;
    let refused = desk.salvage(&["handler", "new", "letters"])?.ended_with(1)?;
    assert_eq!(refused.stderr, "error: the folder letters cannot be made: File exists (os error 17)\n");
    assert_eq!(files(&desk.path("letters"))?, before);
    Ok(())
}

#[test]
fn a_name_that_could_not_be_a_domain_is_refused() -> Result<()> {
    let desk = Desk::empty()?;
    for name in
        ["Letters", "letters_of_mine", "-letters", "letters-", "a--b", "7up", "", "../letters", "a/b", "é"]
    {
        let refused = desk.salvage(&["handler", "new", "--", name])?.ended_with(2)?;
        assert!(refused.stderr.contains("for '<NAME>': "), "{name}: {refused:#?}");
    }
    let long = "a".repeat(51);
    desk.salvage(&["handler", "new", &long])?.ended_with(2)?;
    assert_eq!(fs::read_dir(desk.path(""))?.count(), 0);
    Ok(())
}
