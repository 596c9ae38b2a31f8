//! The contract of an act's transaction and of the fence, which PostgreSQL and its model both keep.

use std::time::Duration;

use anyhow::{Context, Result};
use jiff::Timestamp;
use salvage::ports::{HeldJob, Hold, Jobs, Ledger, StoreFailure};
use salvage::postgres::Postgres;
use salvage_core::act::{Act, act};
use salvage_core::candidate::{Candidate, LiveStatus, RowToken};
use salvage_core::decision::Ruling;
use salvage_core::lease::Fence;
use salvage_core::outcome::Outcome;
use salvage_core::source::ResolvedSource;
use salvage_tests::example::{Deck, Jobs as _, SlideJob};
use salvage_tests::sim::{Model, SimHost, on_model};
use sqlx::{AssertSqlSafe, PgConnection};

use crate::postgres_fixtures::{Bench, entry, fail, requeue};

/// The job of every act here, of a deck that is GENERATING.
const ID: &str = "s1";

/// What somebody does between looking and writing.
#[derive(Debug, Clone, Copy)]
enum Meanwhile {
    Nothing,
    Completes,
    WritesProgress,
    Deletes,
    LocksRow,
    LocksDeck,
    FinishesDeck,
    AddsSibling,
}

/// A database with one stale generation of one deck.
trait Stale {
    type Port: Jobs + Ledger;

    fn port(&self) -> &Self::Port;
    async fn happens(&self, what: Meanwhile) -> Result<()>;
    /// Status and progress of the row; `None` if it is gone.
    async fn row(&self) -> Result<Option<(String, u32)>>;
    async fn deck(&self) -> Result<String>;
    async fn sources(&self) -> Result<Vec<ResolvedSource>>;
}

impl Stale for Model {
    type Port = SimHost;

    fn port(&self) -> &SimHost {
        &self.ports
    }

    async fn happens(&self, what: Meanwhile) -> Result<()> {
        match what {
            Meanwhile::Nothing => {}
            Meanwhile::Completes => self.write_row(ID, Some("COMPLETED")),
            Meanwhile::WritesProgress => self.write_row(ID, None),
            Meanwhile::Deletes => self.delete_row(ID),
            Meanwhile::LocksRow => self.lock_row(ID),
            Meanwhile::LocksDeck => self.lock_deck(),
            Meanwhile::FinishesDeck => self.write_deck("READY"),
            Meanwhile::AddsSibling => self.insert_generation("s2"),
        }
        Ok(())
    }

    async fn row(&self) -> Result<Option<(String, u32)>> {
        Ok(self.row(ID))
    }

    async fn deck(&self) -> Result<String> {
        Ok(self.deck())
    }

    async fn sources(&self) -> Result<Vec<ResolvedSource>> {
        Ok(self.ports.resolve(&[]).await?.0)
    }
}

/// The real one, and a rival's connection whose transaction stays open.
struct Real {
    bench: Bench,
    rival: tokio::sync::Mutex<PgConnection>,
}

impl Real {
    async fn new() -> Result<Self> {
        use sqlx::Connection;
        let bench = Bench::new().await?;
        Deck::generating("d1").insert(bench.db.pool()).await?;
        SlideJob::processing(ID).of("d1").stale().insert(bench.db.pool()).await?;
        let rival = PgConnection::connect(bench.db.url()).await?;
        Ok(Self { bench, rival: rival.into() })
    }

    async fn sql(&self, statement: &str) -> Result<()> {
        let mut rival = self.rival.lock().await;
        sqlx::raw_sql(AssertSqlSafe(statement.to_owned())).execute(&mut *rival).await?;
        Ok(())
    }
}

impl Stale for Real {
    type Port = Postgres;

    fn port(&self) -> &Postgres {
        &self.bench.postgres
    }

    async fn happens(&self, what: Meanwhile) -> Result<()> {
        match what {
            Meanwhile::Nothing => Ok(()),
            Meanwhile::Completes => {
                self.sql("UPDATE \"SlideJob\" SET status = 'COMPLETED', progress = 41").await
            }
            Meanwhile::WritesProgress => self.sql("UPDATE \"SlideJob\" SET progress = progress + 1").await,
            Meanwhile::Deletes => self.sql("DELETE FROM \"SlideJob\"").await,
            Meanwhile::LocksRow => self.sql("BEGIN; SELECT 1 FROM \"SlideJob\" FOR UPDATE").await,
            Meanwhile::LocksDeck => self.sql("BEGIN; SELECT 1 FROM \"SlideDeck\" FOR UPDATE").await,
            Meanwhile::FinishesDeck => self.sql("UPDATE \"SlideDeck\" SET status = 'READY'").await,
            Meanwhile::AddsSibling => SlideJob::processing("s2").of("d1").insert(self.bench.db.pool()).await,
        }
    }

    async fn row(&self) -> Result<Option<(String, u32)>> {
        let row = SlideJob::read(self.bench.db.pool(), ID).await?;
        Ok(row.map(|row| (row.status, row.progress.unsigned_abs())))
    }

    async fn deck(&self) -> Result<String> {
        Ok(Deck::read(self.bench.db.pool(), "d1").await?.context("the deck")?.status)
    }

    async fn sources(&self) -> Result<Vec<ResolvedSource>> {
        Ok(self.bench.sources.clone())
    }
}

/// The act for the row as it is now.
async fn act_for(port: &impl Jobs, sources: &[ResolvedSource], ruling: &Ruling) -> Result<Act> {
    let rows = port.live_rows(&sources[0], Timestamp::MAX, None, 10).await?;
    let row = rows.into_iter().find(|row| row.id == ID).context("the live row")?;
    let candidate = Candidate {
        source: 0,
        token: RowToken {
            id: row.id,
            status: row.status,
            updated_at: row.updated_at.context("a finite time")?,
            xmin: row.xmin,
        },
        status: LiveStatus::Processing,
        job_type: row.job_type.context("a type")?,
        updated: row.updated.context("a finite time")?,
    };
    let inputs = port.inputs(&sources[0], &[&candidate.token]).await?;
    let digest = inputs.into_iter().flatten().next().context("the row moved on")?.digest;
    act(sources, &candidate, ruling, &digest, Duration::ZERO).context("no act")
}

async fn hold<P: Jobs>(port: &P, source: &ResolvedSource, act: &Act, fence: &Fence) -> Hold<P::Held> {
    port.hold(source, act, fence, &entry(source, act)).await.expect("an answer")
}

/// What becomes of a fail, committed if it was held: word of the outcome, row, deck.
async fn failed(
    bench: &impl Stale,
    meanwhile: Meanwhile,
) -> Result<(&'static str, Option<(String, u32)>, String)> {
    let sources = bench.sources().await?;
    let act = act_for(bench.port(), &sources, &fail()).await?;
    let fence = bench.port().raise_fence("global", "token").await?;
    bench.happens(meanwhile).await?;
    let word = match hold(bench.port(), &sources[0], &act, &fence).await {
        Hold::Held(held) => {
            held.commit().await?;
            "applied"
        }
        Hold::Not(outcome) => outcome.word(),
    };
    Ok((word, bench.row().await?, bench.deck().await?))
}

async fn check(bench: &impl Stale, meanwhile: Meanwhile) -> Result<()> {
    let found = failed(bench, meanwhile).await?;
    let row = |status: &str, progress: u32| Some((status.to_owned(), progress));
    let expected = match meanwhile {
        Meanwhile::Nothing => ("applied", row("FAILED", 40), "FAILED"),
        Meanwhile::Completes => ("superseded", row("COMPLETED", 41), "GENERATING"),
        Meanwhile::WritesProgress => ("superseded", row("PROCESSING", 41), "GENERATING"),
        Meanwhile::Deletes => ("gone", None, "GENERATING"),
        Meanwhile::LocksRow | Meanwhile::LocksDeck => ("superseded", row("PROCESSING", 40), "GENERATING"),
        // The parent is left alone, and the job is failed all the same.
        Meanwhile::FinishesDeck => ("applied", row("FAILED", 40), "READY"),
        Meanwhile::AddsSibling => ("applied", row("FAILED", 40), "GENERATING"),
    };
    assert_eq!((found.0, found.1, found.2.as_str()), expected, "{meanwhile:?}");
    Ok(())
}

const ALL: [Meanwhile; 8] = [
    Meanwhile::Nothing,
    Meanwhile::Completes,
    Meanwhile::WritesProgress,
    Meanwhile::Deletes,
    Meanwhile::LocksRow,
    Meanwhile::LocksDeck,
    Meanwhile::FinishesDeck,
    Meanwhile::AddsSibling,
];

#[tokio::test]
async fn postgres_writes_a_row_as_it_was_judged_or_not_at_all() -> Result<()> {
    for meanwhile in ALL {
        check(&Real::new().await?, meanwhile).await?;
    }
    Ok(())
}

#[test]
fn the_model_writes_a_row_as_it_was_judged_or_not_at_all() -> Result<()> {
    ALL.into_iter().try_for_each(|meanwhile| on_stale_model(async |model| check(model, meanwhile).await))
}

fn on_stale_model(test: impl AsyncFnOnce(&Model) -> Result<()>) -> Result<()> {
    on_model(async |model| {
        model.insert_generation(ID);
        test(model).await
    })
}

/// What is held is nobody else's, is seen by nobody before COMMIT, and leaves nothing behind when it is taken back; what
/// is put back is QUEUED from its beginning.
async fn holds_keep_the_contract(bench: &impl Stale) -> Result<()> {
    let (port, sources) = (bench.port(), bench.sources().await?);
    let act = act_for(port, &sources, &requeue("slide-generation")).await?;
    let fence = port.raise_fence("global", "token").await?;
    let before = bench.row().await?;
    let Hold::Held(held) = hold(port, &sources[0], &act, &fence).await else { panic!("the row is free") };
    assert_eq!(bench.row().await?, before);
    let Hold::Not(Outcome::Superseded(_)) = hold(port, &sources[0], &act, &fence).await else {
        panic!("the row is held")
    };
    held.roll_back().await;
    assert_eq!(bench.row().await?, before);
    let Hold::Held(held) = hold(port, &sources[0], &act, &fence).await else { panic!("it was let go") };
    held.commit().await?;
    assert_eq!(bench.row().await?, Some(("QUEUED".to_owned(), 0)));
    assert!(matches!(hold(port, &sources[0], &act, &fence).await, Hold::Not(Outcome::Superseded(_))));
    Ok(())
}

#[tokio::test]
async fn postgres_keeps_the_contract_of_holds() -> Result<()> {
    holds_keep_the_contract(&Real::new().await?).await
}

#[test]
fn the_model_keeps_the_contract_of_holds() -> Result<()> {
    on_stale_model(async |model| holds_keep_the_contract(model).await)
}

/// Under a fence that was raised nothing is written, and it is not raised while a writer holds a row under it.
async fn fences_keep_the_contract(bench: &impl Stale) -> Result<()> {
    let (port, sources) = (bench.port(), bench.sources().await?);
    let act = act_for(port, &sources, &fail()).await?;
    let stale = port.raise_fence("slides", "stale").await?;
    let other = port.raise_fence("exports", "other").await?;
    let fresh = port.raise_fence("slides", "fresh").await?;
    assert_eq!((stale.generation, other.generation, fresh.generation), (1, 1, 2));

    let is_fenced = |failure: Option<StoreFailure>| matches!(failure, Some(StoreFailure::Fenced { ours: 1 }));
    let before = bench.row().await?;
    assert!(is_fenced(port.hold(&sources[0], &act, &stale, &entry(&sources[0], &act)).await.err()));
    assert!(is_fenced(port.remember_queues(&[].into(), &stale).await.err()));
    assert!(is_fenced(port.intend("pass", &stale, &[]).await.err()));
    assert!(is_fenced(port.record(&[entry(&sources[0], &act)], &stale).await.err()));
    assert_eq!(bench.row().await?, before);

    let Hold::Held(held) = hold(port, &sources[0], &act, &fresh).await else { panic!("the row is free") };
    let raised = std::cell::Cell::new(false);
    let raise = async {
        let newest = port.raise_fence("slides", "newest").await;
        raised.set(true);
        newest
    };
    let commit = async {
        // The writer's own round trips; whoever raises the fence has had the time to do so.
        for _ in 0..3 {
            port.now().await.expect("an answer");
        }
        assert!(!raised.get(), "the fence was raised under a writer");
        held.commit().await
    };
    let (newest, committed) = futures_util::future::join(raise, commit).await;
    committed?;
    assert_eq!(newest?.generation, 3);
    assert_eq!(bench.row().await?.map(|(status, _)| status).as_deref(), Some("FAILED"));
    Ok(())
}

#[tokio::test]
async fn postgres_keeps_the_contract_of_fences() -> Result<()> {
    fences_keep_the_contract(&Real::new().await?).await
}

#[test]
fn the_model_keeps_the_contract_of_fences() -> Result<()> {
    on_stale_model(async |model| fences_keep_the_contract(model).await)
}
