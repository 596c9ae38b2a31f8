//! What we believe of the house itself: which way things point, who may ask for the time, and that what must be documented
//! is.

use std::fs;
use std::path::{Path, PathBuf};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

fn entries(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).expect("a readable folder");
    entries.map(|entry| entry.expect("a readable entry").path()).collect()
}

/// Every file below `folder` with one of these endings, with its text; never empty.
fn texts(folder: &str, endings: &[&str]) -> Vec<(PathBuf, String)> {
    let mut found = Vec::new();
    let mut open = vec![root().join(folder)];
    while let Some(path) = open.pop() {
        if path.ends_with("target") || path.ends_with("node_modules") {
            continue;
        }
        if path.is_dir() {
            open.extend(entries(&path));
        } else if endings.iter().any(|ending| path.to_string_lossy().ends_with(ending)) {
            let text = fs::read_to_string(&path).expect("a readable text file");
            found.push((path, text));
        }
    }
    assert!(!found.is_empty(), "no file to check in {folder}");
    found
}

/// Fails if a file of `folder` contains one of `words` outside of a comment.
fn check_absent(folder: &str, words: &[&str], except: &[&str], why: &str) {
    for (path, text) in texts(folder, &[".rs"]) {
        if except.iter().any(|name| path.ends_with(name)) {
            continue;
        }
        for (number, line) in text.lines().enumerate() {
            let code = line.split("//").next().unwrap_or_default();
            if let Some(word) = words.iter().find(|word| code.contains(**word)) {
                panic!("{}:{}: `{word}`: {why}", path.display(), number + 1);
            }
        }
    }
}

#[test]
fn the_core_knows_no_driver_no_clock_and_no_randomness() {
    let words = [
        "tokio",
        "sqlx",
        "redis::",
        "wasmtime",
        "tracing::",
        "SystemTime",
        "Instant",
        "rand::",
        "Timestamp::now",
    ];
    check_absent("host/core/src", &words, &[], "the core is pure");
    let manifest = fs::read_to_string(root().join("host/core/Cargo.toml")).unwrap();
    for driver in ["tokio", "sqlx", "redis", "wasmtime", "tracing", "rand"] {
        assert!(!manifest.contains(driver), "host/core/Cargo.toml depends on {driver}");
    }
}

#[test]
fn the_adapters_never_see_each_other() {
    for (folder, others) in [
        ("host/src/postgres", ["crate::redis", "crate::wasm", "crate::pass", "crate::command"]),
        ("host/src/redis", ["crate::postgres", "crate::wasm", "crate::pass", "crate::command"]),
        ("host/src/wasm", ["crate::postgres", "crate::redis", "crate::pass", "crate::command"]),
        ("host/src/pass", ["crate::postgres", "crate::redis", "crate::wasm", "crate::command"]),
    ] {
        check_absent(folder, &others, &[], "only the pass holds several ports, and it knows no adapter");
    }
}

#[test]
fn ports_show_no_driver_and_no_adapter() {
    let text = fs::read_to_string(root().join("host/src/ports.rs")).unwrap();
    for word in ["sqlx", "::redis", "wasmtime", "crate::postgres", "crate::redis", "crate::wasm"] {
        assert!(!text.contains(word), "host/src/ports.rs names {word}");
    }
}

#[test]
fn sql_and_redis_commands_stay_in_their_rooms() {
    for folder in ["host/src/pass", "host/src/command", "host/src/wasm", "host/src/config"] {
        check_absent(
            folder,
            &["SELECT ", "UPDATE ", "INSERT ", "sqlx::", "::redis::cmd"],
            &[],
            "SQL is postgres/'s",
        );
    }
}

#[test]
fn one_place_asks_for_the_time() {
    let words = ["SystemTime::now", "Instant::now", "clock_gettime", "Timestamp::now", "rand::random"];
    check_absent("host/src", &words, &["src/clock.rs"], "ask the `Clock` port");
}

#[test]
fn every_item_of_the_contract_is_documented() {
    for (path, text) in texts("wit", &[".wit"]) {
        let lines: Vec<&str> = text.lines().map(str::trim).collect();
        for (index, line) in lines.iter().enumerate() {
            let opens = ["record ", "variant ", "enum ", "interface ", "world ", "package "];
            let is_item = opens.iter().any(|word| line.starts_with(word)) || line.contains(": func(");
            let is_documented = index > 0 && lines[index - 1].starts_with("///");
            assert!(!is_item || is_documented, "{}:{}: `{line}` has no `///`", path.display(), index + 1);
        }
    }
}

#[test]
fn every_handler_has_a_manifest_a_judgement_and_a_case() {
    let handlers: Vec<PathBuf> = entries(&root().join("handlers"))
        .into_iter()
        .filter(|path| path.is_dir() && !path.ends_with("sdk"))
        .collect();
    assert!(handlers.len() >= 3, "found only {handlers:?}");
    for handler in handlers {
        for part in ["src/manifest.rs", "src/decide.rs", "cases"] {
            assert!(handler.join(part).exists(), "{} has no {part}", handler.display());
        }
        let cases = fs::read_dir(handler.join("cases")).unwrap().count();
        assert!(cases > 0, "{} has no case", handler.display());
    }
}

#[test]
fn every_member_uses_the_workspace_lints() {
    for (path, text) in texts(".", &["Cargo.toml"]) {
        if text.contains("[package]") {
            assert!(text.contains("[lints]\nworkspace = true"), "{} has lints of its own", path.display());
        }
    }
}
