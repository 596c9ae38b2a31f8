//! A server that takes no writes any more, and codes that only look like it.

use anyhow::Result;
use salvage::pass::Mode;
use salvage::ports::StoreFailure;
use salvage_tests::example::{Jobs, SlideJob};
use salvage_tests::rival::{Moment, Rivalled, once_at};
use salvage_tests::stores::Stores;
use salvage_tests::system::{job, source, story};
use sqlx::AssertSqlSafe;

use crate::acting::{delayed, lose_generation, running, sql};

/// What a failover looks like to who keeps their connection: the server they are on takes no writes any more.
async fn set_read_only(system: &salvage_tests::system::System, is_read_only: bool) -> Result<()> {
    let (db, mode) = (system.db.name(), if is_read_only { "on" } else { "off" });
    let mut connection = system.db.pool().acquire().await?;
    // Whoever set it must be able to take it back.
    sqlx::raw_sql("SET default_transaction_read_only = off").execute(&mut *connection).await?;
    let statement = format!("ALTER DATABASE {db} SET default_transaction_read_only = {mode}");
    sqlx::raw_sql(AssertSqlSafe(statement)).execute(&mut *connection).await?;
    if is_read_only {
        // As after a failover, connections are made anew.
        let others = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity \
             WHERE datname = current_database() AND application_name = 'salvage' AND pid <> pg_backend_pid()";
        sqlx::raw_sql(others).execute(&mut *connection).await?;
    }
    Ok(())
}

/// L6.
#[tokio::test]
async fn a_failover_to_a_read_only_standby_ends_the_pass_and_the_next_works_without_a_restart() -> Result<()>
{
    for moment in [Moment::BeforeFirstLook, Moment::Settling, Moment::BeforeHold] {
        let system = running().await?;
        lose_generation(&system, "s1").await?;
        let before = Stores::of(&system).await?.of_the_application();
        let rival = once_at(moment, async || set_read_only(&system, true).await);
        let failure =
            system.run(&Rivalled::new(&system.host, rival), Mode::Act).await.expect_err("no writes");
        assert!(
            matches!(failure.downcast_ref(), Some(StoreFailure::ReadOnly { .. })),
            "{moment:?}: {failure:#}"
        );
        assert_eq!(Stores::of(&system).await?.of_the_application(), before, "{moment:?}");
        let failure = system.pass().await.expect_err("still no writes");
        assert!(
            matches!(failure.downcast_ref(), Some(StoreFailure::ReadOnly { .. })),
            "{moment:?}: {failure:#}"
        );

        // The setting is one of new connections: that the old ones are not kept is part of what is tested.
        set_read_only(&system, false).await?;
        let report = system.pass().await?;
        assert_eq!(source(&report, "slides/generation").requeued, 1, "{moment:?}: {report:#?}");
    }
    Ok(())
}

/// A trigger may raise any code. What it raises for one row keeps no other from being written.
#[tokio::test]
async fn a_trigger_that_raises_a_servers_code_parks_its_row_and_stops_no_other() -> Result<()> {
    for (code, expected) in [
        ("53100", "parked"),
        ("58030", "parked"),
        ("XX000", "parked"),
        ("25006", "parked"),
        ("57P01", "refused"),
    ] {
        let system = running().await?;
        let ids: Vec<String> = (0..12).map(|number| format!("s{number}")).collect();
        for id in &ids {
            lose_generation(&system, id).await?;
        }
        let trigger = format!(
            "CREATE FUNCTION f() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN \
             IF NEW.id = 's0' THEN RAISE EXCEPTION 'out of order' USING ERRCODE = '{code}'; END IF; RETURN NEW; END $$; \
             CREATE TRIGGER t BEFORE UPDATE ON \"SlideJob\" FOR EACH ROW EXECUTE FUNCTION f()"
        );
        sql(&system, &trigger).await?;
        let before = SlideJob::read(system.db.pool(), "s0").await?;
        let report = system.pass().await?;
        assert_eq!(story(&report, "s0"), format!("absent requeue {expected}"), "{code}: {report:#?}");
        let why = job(&report, "s0").outcome.as_ref().and_then(|outcome| outcome.why.clone());
        assert!(why.as_deref().is_some_and(|why| why.contains("out of order")), "{code}: {why:?}");
        assert_eq!(SlideJob::read(system.db.pool(), "s0").await?, before, "{code}");
        assert_eq!(source(&report, "slides/generation").requeued, 11, "{code}: {report:#?}");
        assert_eq!(delayed(&system, "slide-generation").await?.len(), 11, "{code}");
    }
    Ok(())
}
