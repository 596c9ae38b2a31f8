//! The fault matrix: whatever Redis says or does instead of answering, it is told by its own reason, nothing is written,
//! and once it is well again the next pass of the same host works.
//!
//! This module is the index, and what the tests share. Where no operator is named, Redis lost nothing and none is needed.
//!
//! (The table is at its place when all are there.)

use std::time::Duration;

use anyhow::{Context, Result};
use salvage::pass::Mode;
use salvage::ports::{Ledger, Lease};
use salvage_core::report::{LeaseState, Report};
use salvage_core::sighting::{Doubt, QueueFailure};
use salvage_core::snapshot::State;
use salvage_core::source::SourceName;
use salvage_tests::example::{Deck, Jobs, SlideJob};
use salvage_tests::rival::{Moment, Rivalled};
use salvage_tests::services::fresh_prefix;
use salvage_tests::system::{System, job, story};

use crate::judging_world::{OTHER, QUEUES, Stores, at, entry, epochs};

/// What a lease is asked for when a test wants to hear why it is refused.
const MINUTE: Duration = Duration::from_secs(60);

/// A system that has run for a day on a Redis of the test's own. Two of its jobs are stale: `lost` is in no queue, `found`
/// waits in the second queue of their source.
pub(crate) struct World {
    pub(crate) system: System,
}

impl World {
    /// The host connects to the server itself.
    pub(crate) async fn on(redis_url: &str) -> Result<Self> {
        Self::through(&format!("url = \"{redis_url}\""), redis_url).await
    }

    /// The host connects as `[redis]` says, and the test to the server at `redis_url`.
    pub(crate) async fn through(lines: &str, redis_url: &str) -> Result<Self> {
        Self::under(&fresh_prefix(), lines, redis_url).await
    }

    /// The same under a given prefix.
    pub(crate) async fn under(prefix: &str, lines: &str, redis_url: &str) -> Result<Self> {
        let world = Self::calm(prefix, lines, redis_url).await?;
        world.lose_and_find().await?;
        Ok(world)
    }

    /// The same before anything is lost.
    pub(crate) async fn calm(prefix: &str, lines: &str, redis_url: &str) -> Result<Self> {
        let system = System::through(lines, prefix, redis_url).await?;
        system.used_queues(&QUEUES).await?;
        system.known_since_yesterday().await?;
        Ok(Self { system })
    }

    /// From now on there are the two jobs.
    pub(crate) async fn lose_and_find(&self) -> Result<()> {
        let db = self.system.db.pool();
        Deck::generating("d1").insert(db).await?;
        for id in ["lost", "found"] {
            SlideJob::processing(id).stale().of("d1").insert(db).await?;
        }
        entry(&self.system, OTHER, State::Waiting, "slide-found", "{\"jobId\":\"found\"}").await
    }

    /// As if the time had run out of a lease that could not be given back.
    pub(crate) async fn free_lease(&self) -> Result<()> {
        self.system.redis(&["DEL", &format!("{}:lock", self.system.prefix)]).await
    }

    /// The next pass of the same host recovers what is lost and finds what is there.
    pub(crate) async fn works_again(&self) -> Result<()> {
        let report = self.system.pass().await?;
        assert_eq!(story(&report, "lost"), "absent requeue applied", "{report:#?}");
        assert_eq!(story(&report, "found"), "scheduled", "{report:#?}");
        Ok(())
    }

    /// The evidence of what was last told of a job.
    pub(crate) async fn evidence(&self, id: &str) -> Result<serde_json::Value> {
        let source = SourceName { domain: "slides".into(), source: "generation".into() };
        let story = self.system.host.postgres.story(&source, id).await?;
        Ok(story.into_iter().max_by_key(|line| line.last_at).context("no story")?.evidence)
    }
}

/// What no fault may change: all that the application keeps in both stores, and the acts that the ledger tells of.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Untouched {
    application: Stores,
    /// What passes intended and did not take back, and what they say they did.
    acts: Vec<String>,
}

impl Untouched {
    pub(crate) async fn of(system: &System) -> Result<Self> {
        let acts = "SELECT 'intent ' || i::text FROM salvage.intents AS i WHERE NOT i.withdrawn UNION ALL \
             SELECT 'act ' || l::text FROM salvage.ledger AS l WHERE l.outcome = 'applied' ORDER BY 1";
        let acts = sqlx::query_scalar(acts).fetch_all(system.db.pool()).await.context("listing acts")?;
        Ok(Self { application: Stores::of_application(system).await?, acts })
    }
}

/// A fault that Redis recovers from with all it had.
pub(crate) struct Fault<B, E> {
    /// Brings it about.
    pub(crate) begin: B,
    /// Heals it.
    pub(crate) end: E,
    /// Why a job that is in no queue cannot be judged meanwhile.
    pub(crate) doubt: Doubt,
    /// Why the lease cannot be taken meanwhile, if it cannot.
    pub(crate) lease: Option<QueueFailure>,
    /// Whether nothing at all can be judged meanwhile, not even what is there: then `once` ends with code 4.
    pub(crate) is_blind: bool,
}

/// Stands in an expected reason for words of the client library that differ from run to run.
pub(crate) const WORDS: &str = "…";

/// Whether a reason is the expected one, word for word.
fn is_reason(told: &str, expected: &str) -> bool {
    match expected.strip_suffix(WORDS) {
        Some(start) => told.starts_with(start),
        None => told == expected,
    }
}

impl<B: AsyncFn() -> Result<()>, E: AsyncFn() -> Result<()>> Fault<B, E> {
    /// Goes through the fault three times: with a plan, with an acting pass, and with one that had begun before. Each says
    /// the reason and writes nothing; afterwards the same host works again, and no epoch has ended.
    pub(crate) async fn check(&self, world: &World) -> Result<()> {
        let system = &world.system;
        let began = epochs(system).await?;
        let (before, whole) = (Untouched::of(system).await?, Stores::whole(system).await?);

        (self.begin)().await.context("beginning")?;
        let plan = system.plan().await?;
        (self.end)().await.context("ending")?;
        self.check_doubt(&plan);
        assert_eq!(Stores::whole(system).await?, whole, "a plan wrote something");

        (self.begin)().await.context("beginning again")?;
        let report = system.pass().await?;
        let refusal = system.host.lease.acquire("somebody", MINUTE).await.err();
        (self.end)().await.context("ending again")?;
        match (refusal, &self.lease) {
            (Some(told), Some(expected)) if is_reason(&told.to_string(), &expected.to_string()) => {}
            (told, expected) => assert_eq!(told, *expected),
        }
        if self.lease.is_some() {
            assert_eq!((report.pass.lease, report.jobs.len()), (LeaseState::Unreachable, 0), "{report:#?}");
        } else {
            self.check_doubt(&report);
        }
        self.check_untouched(world, &before).await?;

        let rival = at(Moment::BeforeFirstLook, || {
            Box::pin(async { (self.begin)().await.expect("beginning under a pass") })
        });
        let report = system.run(&Rivalled::new(&system.host, rival), Mode::Act).await?;
        (self.end)().await.context("ending under a pass")?;
        assert_eq!(report.pass.lease, LeaseState::Acquired);
        self.check_doubt(&report);
        self.check_untouched(world, &before).await?;

        assert_eq!(epochs(system).await?, began);
        world.works_again().await?;
        assert_eq!(epochs(system).await?, began);
        Ok(())
    }

    fn check_doubt(&self, report: &Report) {
        assert_eq!(story(report, "lost"), "unknown none -", "{report:#?}");
        let told = job(report, "lost").sighting.why.clone().unwrap_or_default();
        assert!(is_reason(&told, &self.doubt.to_string()), "expected: {}\ntold:     {told}", self.doubt);
        let found = if self.is_blind { "unknown none -" } else { "scheduled" };
        assert_eq!((story(report, "found").as_str(), report.judged_nothing()), (found, self.is_blind));
    }

    async fn check_untouched(&self, world: &World, before: &Untouched) -> Result<()> {
        world.free_lease().await?;
        assert_eq!(Untouched::of(&world.system).await?, *before);
        Ok(())
    }
}
