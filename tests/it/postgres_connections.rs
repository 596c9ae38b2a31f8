//! Whose connection a transaction gets.

use std::collections::BTreeSet;

use anyhow::Result;
use salvage::ports::Jobs as _;
use salvage::postgres::{Pooler, Postgres};
use salvage_tests::services::Database;

/// The server's processes for connections of ours.
async fn connections(db: &Database) -> Result<BTreeSet<i32>> {
    let ours = "SELECT pid FROM pg_stat_activity \
         WHERE datname = current_database() AND application_name = 'salvage'";
    Ok(sqlx::query_scalar(ours).fetch_all(db.pool()).await?.into_iter().collect())
}

/// Nothing is asked of a connection between two transactions, and none is made for the second.
#[tokio::test]
async fn transactions_one_after_the_other_share_a_connection() -> Result<()> {
    let db = Database::example().await?;
    let postgres = Postgres::new(db.url(), Pooler::None, "bull")?;
    postgres.now().await?;
    let first = connections(&db).await?;
    for _ in 0..5 {
        postgres.now().await?;
    }
    let later = connections(&db).await?;
    assert!(later.is_subset(&first), "{first:?}, and later {later:?}");
    tokio::try_join!(postgres.now(), postgres.now(), postgres.now())?;
    let three = connections(&db).await?;
    assert!(three.len() >= 3, "{three:?}");
    tokio::try_join!(postgres.now(), postgres.now(), postgres.now())?;
    let later = connections(&db).await?;
    assert!(later.is_subset(&three), "{three:?}, and later {later:?}");
    Ok(())
}

#[tokio::test]
async fn connections_that_were_lost_while_nobody_used_them_are_replaced() -> Result<()> {
    let db = Database::example().await?;
    let postgres = Postgres::new(db.url(), Pooler::None, "bull")?;
    tokio::try_join!(postgres.now(), postgres.now(), postgres.now())?;
    let lost = connections(&db).await?;
    let terminate = "SELECT count(pg_terminate_backend(pid, 10000)) FROM pg_stat_activity \
         WHERE datname = current_database() AND application_name = 'salvage'";
    let ended: i64 = sqlx::query_scalar(terminate).fetch_one(db.pool()).await?;
    assert!(ended >= 3, "{ended}");
    postgres.now().await?;
    let new = connections(&db).await?;
    assert!(!new.is_empty() && new.is_disjoint(&lost), "{lost:?}, and now {new:?}");
    Ok(())
}
