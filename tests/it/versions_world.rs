//! What the tests of whole passes over BullMQ's versions share: the application's jobs and its worker.

use std::collections::BTreeMap;

use anyhow::Result;
use salvage_tests::bullmq::{BullMq, Run};
use salvage_tests::example::{Deck, JobRow, Jobs, SlideJob};
use salvage_tests::system::System;
use serde_json::{Value, json};

/// The queue in which everything happens.
pub(crate) const QUEUE: &str = "slide-generation";
/// A second queue of the same source.
pub(crate) const OTHER: &str = "slide-export";

/// The application's worker: it reads its row when it begins and writes it when it has ended.
pub(crate) fn worker(system: &System) -> Value {
    json!({
        "database": system.db.url(),
        "readRow": "SELECT status::text FROM \"SlideJob\" WHERE id = $1",
        "onEnd": "UPDATE \"SlideJob\" SET status = 'COMPLETED', progress = 100, \
                  \"updatedAt\" = clock_timestamp() AT TIME ZONE 'UTC' WHERE id = $1",
    })
}

/// Adds the entry of a row by the current rule; `with` are further options.
pub(crate) async fn add(bullmq: &BullMq, row: &str, with: Value) -> Result<()> {
    let mut opts = json!({ "jobId": format!("slide-{row}") });
    for (key, value) in with.as_object().into_iter().flatten() {
        opts[key] = value.clone();
    }
    bullmq.add(QUEUE, "generate", json!({ "jobId": row }), opts).await.map(drop)
}

/// Stale rows of one deck that can be generated again.
pub(crate) async fn insert(system: &System, rows: impl IntoIterator<Item = String>) -> Result<()> {
    for row in rows {
        SlideJob::processing(&row).stale().of("d1").insert(system.db.pool()).await?;
    }
    Ok(())
}

/// A row as it is now.
pub(crate) async fn row(system: &System, id: &str) -> Result<JobRow> {
    Ok(SlideJob::read(system.db.pool(), id).await?.expect("the row"))
}

/// A system that has run for a day, whose slide queues are in use.
pub(crate) async fn running() -> Result<System> {
    let system = System::fresh().await?;
    system.used_queues(&[QUEUE, OTHER]).await?;
    Deck::generating("d1").insert(system.db.pool()).await?;
    system.known_since_yesterday().await?;
    Ok(system)
}

/// How often each job ran, by its row.
pub(crate) fn count(runs: &[Run]) -> BTreeMap<String, u32> {
    let mut counts = BTreeMap::new();
    for run in runs {
        *counts.entry(run.data["jobId"].as_str().unwrap_or_default().to_owned()).or_insert(0) += 1;
    }
    counts
}

/// What [`count`] tells of rows that ran once each.
pub(crate) fn each_once(rows: &[String]) -> BTreeMap<String, u32> {
    rows.iter().map(|row| (row.clone(), 1)).collect()
}

/// Ids `kind0`, `kind1`, …
pub(crate) fn named(kind: &str, count: usize) -> Vec<String> {
    (0..count).map(|number| format!("{kind}{number}")).collect()
}
