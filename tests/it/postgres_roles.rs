//! `database_role`: PostgreSQL itself keeps a handler within what it was granted.

use anyhow::Result;
use salvage_core::report::Report;
use salvage_tests::example::{Deck, Jobs, SlideExportJob, SlideJob};
use salvage_tests::services::{fresh_prefix, handlers_folder, redis_url};
use salvage_tests::system::{System, job, story};

use crate::acting::{delayed, lose_generation, running_on, sql};

/// What the slides' handler is granted, as PostgreSQL says it.
const GRANTS: &str = "GRANT SELECT, UPDATE ON \"SlideJob\" TO @; \
    GRANT SELECT (id, status, title), UPDATE (status, error, \"updatedAt\") ON \"SlideDeck\" TO @";

/// A running system whose slides work under a role of their own.
async fn under_a_role() -> Result<(System, String)> {
    let role = format!("slides {}", fresh_prefix());
    let lines = format!("grants = \"declared\"\n[handler.slides]\ndatabase_role = '{role}'");
    let system = System::with(&redis_url()?, &handlers_folder()?, &lines).await?;
    let quoted = format!("\"{role}\"");
    sql(&system, &format!("CREATE ROLE {quoted}; {}", GRANTS.replace('@', &quoted))).await?;
    Ok((running_on(system).await?, quoted))
}

fn why(report: &Report, id: &str) -> String {
    let job = job(report, id);
    let outcome = job.outcome.as_ref().and_then(|outcome| outcome.why.clone());
    outcome.or_else(|| job.decision.reason.clone()).unwrap_or_default()
}

/// What each job of these rights comes to; afterwards the role may do everything again.
async fn without(system: &System, role: &str, right: &str, id: &str) -> Result<Report> {
    lose_generation(system, id).await?;
    sql(system, &format!("REVOKE {right} FROM {role}")).await?;
    let report = system.pass().await?;
    sql(system, &GRANTS.replace('@', role)).await?;
    Ok(report)
}

#[tokio::test]
async fn a_role_with_the_handlers_grants_is_enough() -> Result<()> {
    let (system, _) = under_a_role().await?;
    lose_generation(&system, "s1").await?;
    SlideJob::processing("s2").stale().of("no-deck").insert(system.db.pool()).await?;
    // A live job of a table that the role knows nothing of maps to no parent of ours, and is looked at all the same.
    Deck::ready("d3").exporting().insert(system.db.pool()).await?;
    SlideExportJob::processing("e1").stale().of("d3").insert(system.db.pool()).await?;
    let report = system.pass().await?;
    assert_eq!(story(&report, "s1"), "absent requeue applied", "{report:#?}");
    assert_eq!(story(&report, "s2"), "absent fail applied", "{report:#?}");
    assert_eq!(story(&report, "e1"), "absent fail applied", "without a role of its own: {report:#?}");
    Ok(())
}

#[tokio::test]
async fn a_column_that_the_role_may_not_read_is_not_read() -> Result<()> {
    let (system, role) = under_a_role().await?;
    let report = without(&system, &role, "SELECT (title) ON \"SlideDeck\"", "s1").await?;
    assert_eq!(story(&report, "s1"), "absent none -", "{report:#?}");
    assert!(why(&report, "s1").contains("permission denied for table SlideDeck"), "{}", why(&report, "s1"));
    assert_eq!(story(&system.pass().await?, "s1"), "absent requeue applied", "granted again");
    Ok(())
}

#[tokio::test]
async fn a_row_that_the_role_may_not_write_is_not_written_and_nothing_is_enqueued() -> Result<()> {
    let (system, role) = under_a_role().await?;
    let report = without(&system, &role, "UPDATE ON \"SlideJob\"", "s1").await?;
    assert_eq!(story(&report, "s1"), "absent requeue parked", "{report:#?}");
    assert!(why(&report, "s1").contains("permission denied for table SlideJob"), "{}", why(&report, "s1"));
    assert_eq!(SlideJob::read(system.db.pool(), "s1").await?.expect("the row").status, "PROCESSING");
    assert!(delayed(&system, "slide-generation").await?.is_empty());
    Ok(())
}

#[tokio::test]
async fn a_role_that_is_not_there_costs_its_sources_and_no_others() -> Result<()> {
    let (system, role) = under_a_role().await?;
    lose_generation(&system, "s1").await?;
    Deck::ready("d3").exporting().insert(system.db.pool()).await?;
    SlideExportJob::processing("e1").stale().of("d3").insert(system.db.pool()).await?;
    sql(&system, &format!("DROP OWNED BY {role}; DROP ROLE {role}")).await?;
    let report = system.pass().await?;
    assert!(report.jobs.iter().all(|job| job.domain != "slides"), "{report:#?}");
    assert_eq!(story(&report, "e1"), "absent fail applied", "{report:#?}");
    assert_eq!(SlideJob::read(system.db.pool(), "s1").await?.expect("the row").status, "PROCESSING");
    Ok(())
}
