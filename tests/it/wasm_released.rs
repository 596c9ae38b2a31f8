//! Handlers built against each released contract, as they were built then, on the host as it is now.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use salvage::wasm::{Registry, Terms};
use salvage_core::decision::{Decision, Requeue};
use salvage_core::grants::GrantsMode;
use serde_json::json;
use sha2::{Digest, Sha256};

use crate::wasm_fixtures::*;

fn released() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("handlers-released")
}

/// The folders below `folder`, by name.
fn versions(folder: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(folder).expect("a readable folder").map(|entry| entry.expect("an entry"));
    let mut names: Vec<String> = entries
        .filter(|entry| entry.path().is_dir())
        .map(|entry| entry.file_name().into_string().expect("a plain name"))
        .collect();
    names.sort();
    names
}

async fn of_version(version: &str) -> Registry {
    let terms = Terms { mode: GrantsMode::Declared, ..Terms::of(released().join(version)) }.within(patient());
    Registry::load(&runtime(), terms).await
}

#[test]
fn every_version_of_the_contract_has_handlers_here_and_each_file_is_the_one_that_was_released() {
    let wit = released().join("../../wit");
    assert_eq!(versions(&released()), versions(&wit), "released handlers, and versions of the contract");
    let readme = std::fs::read_to_string(released().join("README.md")).expect("the list of digests");
    let listed: BTreeMap<&str, &str> = readme
        .lines()
        .filter_map(|line| line.split_once("  "))
        .filter(|(digest, _)| digest.len() == 64)
        .map(|(digest, file)| (file, digest))
        .collect();
    let mut files = 0;
    for version in versions(&released()) {
        for entry in std::fs::read_dir(released().join(&version)).expect("a readable folder") {
            let path = entry.expect("an entry").path();
            let name = format!("{version}/{}", path.file_name().expect("a name").to_string_lossy());
            let digest = Sha256::digest(std::fs::read(&path).expect("a file"));
            let digest: String = digest.iter().map(|byte| format!("{byte:02x}")).collect();
            assert_eq!(listed.get(&*name), Some(&&*digest), "{name}: it is never built again");
            files += 1;
        }
    }
    assert_eq!(files, listed.len(), "every listed file is there");
}

#[tokio::test]
async fn every_released_handler_still_loads() {
    for version in versions(&released()) {
        let registry = of_version(&version).await;
        assert!(!registry.reports().is_empty(), "{version} has no handler");
        for line in lines(&registry) {
            assert!(line.ends_with(".wasm active"), "{version}: {line}");
        }
    }
}

#[tokio::test]
async fn handlers_of_contract_0_1_judge_as_they_did() {
    let registry = of_version("v0.1").await;
    let orphan = Orphan::new(&registry, "slides", "j1")
        .columns(&json!({ "id": "j1", "deckId": "d1", "type": "GENERATION", "status": "QUEUED" }))
        .read("deck", &[json!({ "id": "d1", "title": "Whales", "status": "GENERATING" })]);
    let expected = Requeue {
        queue: "slide-generation".to_owned(),
        name: "generate".to_owned(),
        data: json!({ "deckId": "d1", "jobId": "j1", "title": "Whales", "type": "GENERATION" }).to_string(),
        options: json!({ "attempts": 3, "backoff": { "delay": 5000, "type": "exponential" } }).to_string(),
    };
    assert_eq!(orphan.ask(&registry).await.decision, Ok(Decision::Requeue(expected)));
    let lost = Orphan::new(&registry, "slides", "j1").columns(&json!({ "id": "j1" })).read("deck", &[]);
    let Ok(Decision::Fail(_)) = lost.ask(&registry).await.decision else { panic!("expected a fail") };
    let export = Orphan::new(&registry, "exports", "7").columns(&json!({ "id": "7", "status": "QUEUED" }));
    let Ok(Decision::Fail(_)) = export.ask(&registry).await.decision else { panic!("expected a fail") };
}
