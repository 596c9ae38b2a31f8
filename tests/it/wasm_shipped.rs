//! The handlers that come with Salvage, as components.

use std::collections::BTreeMap;

use salvage::ports::Handlers;
use salvage_core::decision::{Decision, Requeue};
use salvage_core::grants::{GrantsMode, needed};
use serde_json::{Value, json};

use crate::wasm_fixtures::*;

fn folder() -> Folder {
    let file = |name: &str| shipped(name);
    Folder::of(&[
        ("exports.wasm", file("exports")),
        ("slides.wasm", file("slides")),
        ("video-composition.wasm", file("video-composition")),
    ])
}

#[tokio::test]
async fn the_shipped_handlers_serve_under_the_grants_they_need() {
    let trusted = folder().trusted().await;
    let grants: BTreeMap<_, _> = trusted
        .domains()
        .into_iter()
        .map(|loaded| (loaded.manifest.domain.clone(), needed(&loaded.manifest)))
        .collect();
    let registry = folder().load(GrantsMode::Listed, &grants).await;
    assert_eq!(
        lines(&registry),
        ["exports.wasm active", "slides.wasm active", "video-composition.wasm active"]
    );
}

#[tokio::test]
async fn a_lost_generation_is_rebuilt_from_its_deck() {
    let registry = folder().trusted().await;
    let orphan = Orphan::new(&registry, "slides", "j1")
        .columns(&json!({ "id": "j1", "deckId": "d1", "type": "GENERATION", "status": "QUEUED" }))
        .read("deck", &[json!({ "id": "d1", "title": "Whales", "status": "GENERATING" })]);
    let Ok(Decision::Requeue(Requeue { queue, name, data, .. })) = orphan.ask(&registry).await.decision
    else {
        panic!("expected a requeue")
    };
    assert_eq!((&*queue, &*name), ("slide-generation", "generate"));
    let data: Value = serde_json::from_str(&data).expect("a payload");
    assert_eq!(
        (&data["jobId"], &data["deckId"], &data["title"]),
        (&json!("j1"), &json!("d1"), &json!("Whales"))
    );
}
