//! The example application's sources as the host knows them, without a handler: declared by hand, resolved by the
//! adapter. And the small pieces an act is made of.

use std::time::Duration;

use anyhow::{Context, Result};
use jiff::Timestamp;
use salvage::ports::{Hold, Jobs as _, Ledger as _, LoadedDomain};
use salvage::postgres::{Held, Pooler, Postgres};
use salvage_core::act::{Act, Change, act};
use salvage_core::candidate::{Candidate, LiveRow, LiveStatus, RowToken};
use salvage_core::decision::{Requeue, Ruling};
use salvage_core::lease::Fence;
use salvage_core::ledger::{Entry, Evidence};
use salvage_core::manifest::{
    HandlerManifest, IdTemplate, JobType, ParentChange, QueueRule, Read, Source, TableMapping,
};
use salvage_core::outcome::Outcome;
use salvage_core::source::{ResolvedSource, Standing};
use salvage_tests::services::Database;

/// A database with both sets of tables, the adapter on it, and the five sources.
pub(crate) struct Bench {
    pub(crate) db: Database,
    pub(crate) postgres: Postgres,
    pub(crate) sources: Vec<ResolvedSource>,
}

impl Bench {
    pub(crate) async fn new() -> Result<Self> {
        Self::with(|_| {}).await
    }

    /// After the manifests were changed.
    pub(crate) async fn with(change: impl FnOnce(&mut Vec<LoadedDomain>)) -> Result<Self> {
        Self::on(Database::example().await?, change).await
    }

    pub(crate) async fn on(db: Database, change: impl FnOnce(&mut Vec<LoadedDomain>)) -> Result<Self> {
        let postgres = Postgres::new(db.url(), Pooler::None, "bull")?;
        postgres.migrate().await?;
        let mut domains = domains();
        change(&mut domains);
        let (sources, misfits) = postgres.resolve(&domains).await?;
        assert!(misfits.is_empty(), "{misfits:#?}");
        Ok(Self { db, postgres, sources })
    }

    pub(crate) fn source(&self, name: &str) -> &ResolvedSource {
        &self.sources[self.position(name)]
    }

    fn position(&self, name: &str) -> usize {
        let is_it = |source: &ResolvedSource| source.name.source == name;
        self.sources.iter().position(is_it).expect("one of the five sources")
    }

    pub(crate) async fn fence(&self) -> Result<Fence> {
        Ok(self.postgres.raise_fence("global", "token").await?)
    }

    /// The one live row with this id, as the candidate query lists it.
    pub(crate) async fn candidate(&self, source: &str, id: &str) -> Result<Candidate> {
        let rows = self.postgres.live_rows(self.source(source), Timestamp::MAX, None, 1_000).await?;
        let row = rows.into_iter().find(|row| row.id == id).with_context(|| format!("no live row {id}"))?;
        Ok(candidate(self.position(source), row))
    }

    /// The act for a row as it is now.
    pub(crate) async fn act(&self, source: &str, id: &str, ruling: Ruling) -> Result<Act> {
        let candidate = self.candidate(source, id).await?;
        let inputs = self.postgres.inputs(self.source(source), &[&candidate.token]).await?;
        let inputs = inputs.into_iter().flatten().next().context("the row moved on")?;
        act(&self.sources, &candidate, &ruling, &inputs.digest, Duration::ZERO).context("no act")
    }

    /// Steps 1 to 7, the newest fence assumed.
    pub(crate) async fn hold(&self, act: &Act, fence: &Fence) -> Result<Hold<Held>> {
        let source = &self.sources[act.candidate.source];
        Ok(self.postgres.hold(source, act, fence, &entry(source, act)).await?)
    }
}

/// Why a hold was not given.
pub(crate) fn refusal(hold: Hold<Held>) -> Outcome {
    match hold {
        Hold::Held(_) => panic!("the row was held"),
        Hold::Not(outcome) => outcome,
    }
}

pub(crate) fn held(hold: Hold<Held>) -> Held {
    match hold {
        Hold::Held(held) => held,
        Hold::Not(outcome) => panic!("the row was not held: {outcome:?}"),
    }
}

fn candidate(source: usize, row: LiveRow) -> Candidate {
    let status = if row.status == "QUEUED" { LiveStatus::Queued } else { LiveStatus::Processing };
    let token = RowToken {
        id: row.id,
        status: row.status,
        updated_at: row.updated_at.expect("a finite time"),
        xmin: row.xmin,
    };
    let job_type = row.job_type.expect("a type");
    Candidate { source, token, status, job_type, updated: row.updated.expect("a finite time") }
}

pub(crate) fn fail() -> Ruling {
    Ruling::Fail { reason: "The job was lost.".into() }
}

pub(crate) fn requeue(queue: &str) -> Ruling {
    let (data, options) = ("{}".into(), "{}".into());
    Ruling::Requeue(Requeue { queue: queue.into(), name: "run".into(), data, options })
}

pub(crate) fn entry(source: &ResolvedSource, act: &Act) -> Entry {
    let token = &act.candidate.token;
    Entry {
        source: source.name.clone(),
        job_id: token.id.clone(),
        job_type: act.candidate.job_type.clone(),
        row: serde_json::json!({
            "status": token.status, "updatedAt": token.updated_at, "xmin": token.xmin,
        }),
        evidence: Evidence { generation: 1, ..Evidence::default() },
        sighting: "absent".into(),
        sighting_why: Some("none".into()),
        inputs_digest: Some(act.inputs_digest.clone()),
        component_digest: None,
        decision: if matches!(act.change, Change::Fail { .. }) { "fail" } else { "requeue" }.into(),
        decision_reason: None,
        outcome: None,
        outcome_why: None,
        decide_us: Some(10),
    }
}

/// The three domains of the example application.
pub(crate) fn domains() -> Vec<LoadedDomain> {
    let domain = |name: &str, sources| LoadedDomain {
        manifest: HandlerManifest { domain: name.into(), description: String::new(), sources },
        standing: Standing::Active,
        digest: "digest".into(),
        database_role: None,
        capture: salvage_core::capture::CapturePolicy::default(),
    };
    vec![
        domain("slides", vec![generation()]),
        domain("video-composition", vec![composition(), narration()]),
        domain("exports", vec![export("slide-export"), export("video-export")]),
    ]
}

fn generation() -> Source {
    let parent = parent("SlideDeck", "deckId", "status", "GENERATING");
    Source {
        name: "generation".into(),
        table: prisma("SlideJob", "type", &["deckId", "createdAt"]),
        job_types: ["GENERATION", "OUTLINE"].map(|name| job_type(name, Some(&parent))).to_vec(),
        queues: vec![queue("slide-generation", "slide-{id}"), queue("slide-export", "slide-{id}")],
        reads: vec![Read {
            name: "deck".into(),
            table: "SlideDeck".into(),
            columns: vec!["id".into(), "title".into()],
            match_column: "id".into(),
            job_column: "deckId".into(),
            order_by: vec!["id".into()],
            limit: 1,
        }],
    }
}

fn composition() -> Source {
    let parent = parent("Video", "videoId", "status", "COMPOSING");
    let read = |name: &str, table: &str, columns: &[&str], matched: &str, order: &str, limit| Read {
        name: name.into(),
        table: table.into(),
        columns: columns.iter().map(|column| (*column).into()).collect(),
        match_column: matched.into(),
        job_column: "videoId".into(),
        order_by: vec![order.into()],
        limit,
    };
    Source {
        name: "composition".into(),
        table: prisma("VideoJob", "type", &["videoId"]),
        job_types: vec![job_type("COMPOSITION", Some(&parent)), job_type("PREVIEW", None)],
        queues: vec![queue("video-composition", "video-{id}"), queue("video-export", "video-{id}")],
        reads: vec![
            read("video", "Video", &["id", "title", "status"], "id", "id", 1),
            read("tracks", "VideoTrack", &["kind", "position", "startMs"], "videoId", "position", 3),
        ],
    }
}

fn narration() -> Source {
    let parent = parent("Video", "video_id", "narration_status", "NARRATING");
    let mut table = prisma("narration_jobs", "kind", &["video_id", "created_at"]);
    table.updated_at = "updated_at".into();
    Source {
        name: "narration".into(),
        table,
        job_types: vec![job_type("narration", Some(&parent))],
        queues: vec![queue("narration", "{id}")],
        reads: vec![],
    }
}

fn export(name: &str) -> Source {
    let is_slide = name == "slide-export";
    let (table, parent_table, key) = if is_slide {
        ("SlideExportJob", "SlideDeck", "deckId")
    } else {
        ("VideoExportJob", "Video", "videoId")
    };
    let parent = parent(parent_table, key, "exportStatus", "EXPORTING");
    let types = if is_slide { ["PDF", "PPTX"] } else { ["MP4", "GIF"] };
    Source {
        name: name.into(),
        table: prisma(table, "format", &[key]),
        job_types: types.map(|name| job_type(name, Some(&parent))).to_vec(),
        queues: vec![queue(name, "export-{id}")],
        reads: vec![],
    }
}

fn prisma(table: &str, job_type: &str, extra: &[&str]) -> TableMapping {
    TableMapping {
        table: table.into(),
        id: "id".into(),
        status: "status".into(),
        updated_at: "updatedAt".into(),
        job_type: Some(job_type.into()),
        progress: Some("progress".into()),
        error: Some("error".into()),
        extra_columns: extra.iter().map(|column| (*column).into()).collect(),
        queued: "QUEUED".into(),
        processing: "PROCESSING".into(),
        failed: "FAILED".into(),
    }
}

fn job_type(name: &str, on_fail: Option<&ParentChange>) -> JobType {
    JobType {
        name: name.into(),
        stale_after_queued: None,
        stale_after_processing: None,
        restart_safe: true,
        on_fail: on_fail.cloned(),
        on_requeue: None,
    }
}

fn parent(table: &str, job_column: &str, status_column: &str, from: &str) -> ParentChange {
    ParentChange {
        table: table.into(),
        key: "id".into(),
        job_column: job_column.into(),
        status_column: status_column.into(),
        from: vec![from.into()],
        to: "FAILED".into(),
        error: Some("error".into()),
        updated_at: Some("updatedAt".into()),
    }
}

fn queue(name: &str, rule: &str) -> QueueRule {
    QueueRule::new(name, IdTemplate::parse(rule).expect("a rule with one {id}"), "jobId")
}
