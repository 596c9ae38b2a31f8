//! Whose connection a transaction gets.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use salvage::ports::Jobs as _;
use salvage::postgres::{Pooler, Postgres};
use salvage_tests::services::Database;

/// The server's processes for connections of ours.
async fn connections(db: &Database) -> Result<BTreeSet<i32>> {
    let ours = "SELECT pid FROM pg_stat_activity \
         WHERE datname = current_database() AND application_name = 'salvage'";
    Ok(sqlx::query_scalar(ours).fetch_all(db.pool()).await?.into_iter().collect())
}

/// Asks three things at once until they were under way on three connections: who is answered without any wait leaves its own
/// to the next.
async fn three_at_once(postgres: &Postgres, db: &Database) -> Result<BTreeSet<i32>> {
    let began = Instant::now();
    loop {
        tokio::try_join!(postgres.now(), postgres.now(), postgres.now())?;
        let found = connections(db).await?;
        if found.len() >= 3 {
            return Ok(found);
        }
        ensure!(began.elapsed() < Duration::from_secs(30), "{found:?}");
    }
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
    let three = three_at_once(&postgres, &db).await?;
    tokio::try_join!(postgres.now(), postgres.now(), postgres.now())?;
    let later = connections(&db).await?;
    assert!(later.is_subset(&three), "{three:?}, and later {later:?}");
    Ok(())
}

#[tokio::test]
async fn connections_that_were_lost_while_nobody_used_them_are_replaced() -> Result<()> {
    let db = Database::example().await?;
    let postgres = Postgres::new(db.url(), Pooler::None, "bull")?;
    let lost = three_at_once(&postgres, &db).await?;
    let terminate = "SELECT count(pg_terminate_backend(pid, 10000)) FROM pg_stat_activity \
         WHERE datname = current_database() AND application_name = 'salvage'";
    let ended: i64 = sqlx::query_scalar(terminate).fetch_one(db.pool()).await?;
    assert!(ended >= 3, "{ended}");
    postgres.now().await?;
    let new = connections(&db).await?;
    assert!(!new.is_empty() && new.is_disjoint(&lost), "{lost:?}, and now {new:?}");
    Ok(())
}
