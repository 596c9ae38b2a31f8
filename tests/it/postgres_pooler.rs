//! `[database] pooler = "transaction"`: behind a real `PgBouncer` that gives every transaction another server connection.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::str::FromStr;

use anyhow::{Context, Result};
use futures_util::future::join_all;
use salvage::ports::{Handlers, Jobs as _, Ledger, StoreFailure};
use salvage::postgres::{Pooler, Postgres};
use salvage_core::source::{ResolvedSource, SourceName};
use salvage_tests::example::{Deck, Jobs, SlideExportJob, SlideJob, Video, VideoJob};
use salvage_tests::services::{PgBouncer, postgres_url};
use salvage_tests::system::System;
use sqlx::postgres::{PgConnectOptions, PgPoolOptions};

use crate::acting::{delayed, lose_generation, running};
use crate::commands::ran;

/// Server connections, tasks at once, and queries of each task.
const CONNECTIONS: u32 = 3;
const TASKS: usize = 8;
const QUERIES: usize = 200;

fn pgbouncer() -> Result<PgBouncer> {
    let url = postgres_url()?;
    let port =
        url.rsplit_once(':').and_then(|(_, rest)| rest.split('/').next()).context("a URL with a port")?;
    PgBouncer::before(port.parse()?, CONNECTIONS)
}

/// What a task asks for, over and over; each task for something else, in other words. Answers how many answers were not
/// the one it was to get.
async fn wrong_answers(
    postgres: &Postgres,
    sources: &[ResolvedSource],
    task: usize,
) -> Result<usize, StoreFailure> {
    let of =
        |name: &str| sources.iter().find(|source| source.name.to_string() == name).expect("a shipped source");
    let own = format!("task-{task}");
    let mut wrong = 0;
    for round in 0..QUERIES {
        let is_right = match task {
            0 | 1 => {
                let asked = [Cow::from(&own), Cow::from(format!("nobody-{round}"))];
                postgres.are_live(of("slides/generation"), &asked).await? == [true, false]
            }
            2 => postgres.are_live(of("exports/slide-export"), &[Cow::from(&own)]).await? == [true],
            3 => postgres.are_live(of("video-composition/composition"), &[Cow::from(&own)]).await? == [true],
            4 => !postgres.existing(of("slides/generation"), &["task-0".to_owned()]).await?.is_empty(),
            5 => postgres.existing(of("exports/video-export"), &["77".to_owned()]).await?.is_empty(),
            6 => {
                let jobs =
                    vec![
                        (SourceName { domain: "slides".into(), source: "generation".into() }, own.clone());
                        3
                    ];
                postgres.recoveries(&jobs, jiff::Timestamp::UNIX_EPOCH).await? == [0; 3]
            }
            _ => {
                postgres.queue_memories("global", &BTreeSet::from(["slide-export".to_owned()])).await?.len()
                    == 1
            }
        };
        wrong += usize::from(!is_right);
    }
    Ok(wrong)
}

async fn with_a_row_for_each_task() -> Result<System> {
    let system = running().await?;
    let pool = system.db.pool();
    Deck::generating("d1").insert(pool).await?;
    Video::composing("v1").insert(pool).await?;
    for task in ["task-0", "task-1"] {
        SlideJob::queued(task).of("d1").insert(pool).await?;
    }
    SlideExportJob::queued("task-2").of("d1").insert(pool).await?;
    VideoJob::queued("task-3").of("v1").insert(pool).await?;
    Ok(system)
}

/// L7. And that it is the setting that makes it so: without it, the same queries go wrong.
#[tokio::test]
async fn eight_tasks_over_three_connections_get_their_own_answers_and_without_the_setting_they_do_not()
-> Result<()> {
    let system = with_a_row_for_each_task().await?;
    let (sources, _) = system.host.postgres.resolve(&system.host.handlers.domains()).await?;
    let pgbouncer = pgbouncer()?;
    let url = pgbouncer.url(system.db.name());
    let answers = async |postgres: Postgres| {
        join_all((0..TASKS).map(|task| wrong_answers(&postgres, &sources, task))).await
    };
    let right = answers(Postgres::new(&url, Pooler::Transaction, &system.prefix)?).await;
    assert!(right.iter().all(|answer| matches!(answer, Ok(0))), "{right:?}");

    // Without the startup option that PgBouncer refuses at once, which is not what this is about.
    let options = PgConnectOptions::from_str(&url)?.extra_float_digits(None);
    let pool = PgPoolOptions::new().max_connections(u32::try_from(TASKS)?).connect_lazy_with(options);
    let wrong = answers(Postgres::from_pool(pool, Pooler::None, &system.prefix)).await;
    let is_refused =
        |answer: &Result<usize, StoreFailure>| matches!(answer, Err(StoreFailure::Refused { .. }));
    assert!(wrong.iter().any(|answer| is_refused(answer) || *answer.as_ref().unwrap_or(&0) > 0), "{wrong:?}");
    Ok(())
}

/// A whole pass of the real binary, with more acts at once than there are server connections.
#[tokio::test]
async fn a_pass_through_the_pooler_recovers_every_orphan() -> Result<()> {
    /// Too few for a mass loss, which would begin with one act.
    const ORPHANS: usize = 16;
    let system = running().await?;
    for number in 0..ORPHANS {
        lose_generation(&system, &format!("s{number}")).await?;
    }
    let pgbouncer = pgbouncer()?;
    let url = pgbouncer.url(system.db.name());
    let pooled = |arguments: &[&str]| {
        ran(system
            .salvage(arguments)?
            .env("DATABASE_URL", &url)
            .env("SALVAGE_DATABASE__POOLER", "transaction"))
    };
    let report = pooled(&["once", "--json"])?.ended_with(0)?.json()?;
    assert_eq!(report["sources"][2]["requeued"], ORPHANS, "{report:#}");
    assert_eq!(delayed(&system, "slide-generation").await?.len(), ORPHANS);
    let again = pooled(&["once", "--json"])?.ended_with(0)?.json()?;
    assert_eq!(again["jobs"].as_array().map(Vec::len), Some(0), "{again:#}");
    pooled(&["explain", "slides/generation", "s1"])?.ended_with(0)?;
    pooled(&["history"])?.ended_with(0)?;

    let refused = pooled(&["migrate"])?.ended_with(1)?;
    assert!(refused.stderr.contains("SALVAGE_DATABASE__POOLER=none"), "{refused:#?}");
    let doctor = pooled(&["doctor", "--create-indexes"])?.ended_with(0)?;
    assert!(doctor.stdout.contains("schema salvage is current"), "{doctor:#?}");
    sqlx::query("DROP INDEX \"SlideJob_live\"")
        .execute(system.db.pool())
        .await
        .context("the index by its name")?;
    let doctor = pooled(&["doctor", "--create-indexes"])?.ended_with(1)?;
    assert!(doctor.stdout.contains("takes a connection to PostgreSQL itself"), "{doctor:#?}");
    Ok(())
}
