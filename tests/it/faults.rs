//! The fault matrix: whatever Redis says or does instead of answering, it is told by its own reason, nothing is written,
//! and once it is well again the next pass of the same host works.
//!
//! This module is the index, and what the tests share. "Accept" marks what Redis lost something by, or may have: then jobs
//! from before wait for the operator. Everywhere else nobody is needed.
//!
//! | fault | how it is made | test |
//! |---|---|---|
//! | no reply in time | SIGSTOP | `faults_servers::a_frozen_redis_is_a_timeout_and_nothing_else`; at each moment of a pass `judging_failures::a_redis_that_freezes_in_mid_pass_…` |
//! | no connection | SIGKILL | `judging_failures::a_closed_port_…`, `…::a_redis_that_dies_in_mid_pass_…` |
//! | connection breaks half-way | a door that breaks it | `faults_servers::a_connection_that_breaks_half_way_…` |
//! | LOADING | DEBUG RELOAD, slowed down | `faults_servers::a_redis_that_loads_its_data_is_waited_for` |
//! | BUSY | an endless script | `faults_servers::a_redis_that_runs_a_script_without_end_is_busy` |
//! | role slave, READONLY | REPLICAOF | `faults_servers::a_master_that_was_made_a_replica_…` |
//! | unsynchronised, empty replica | the address leads to one | `faults_servers::a_replica_without_data_is_no_empty_queue` |
//! | MASTERDOWN | REPLICAOF, `replica-serve-stale-data no` | `faults_servers::a_replica_that_lost_its_master_…` |
//! | NOAUTH, WRONGPASS | `requirepass`, ACL SETUSER | `faults_servers::a_redis_that_asks_for_a_password_…`, `…::a_redis_that_knows_us_by_another_password_…` |
//! | NOPERM | ACL SETUSER | `faults_servers::a_command_that_is_forbidden_…`; each permission in its turn `redis_acl::a_permission_that_is_missing_…` |
//! | CLUSTERDOWN | nodes of a cluster killed | `redis_cluster::a_node_that_goes_down_…` |
//! | ASK | SETSLOT … MIGRATING | `redis_cluster::a_slot_on_its_way_…` |
//! | MOVED | the address leads to another node | `faults_replies::queues_on_another_node_are_not_empty` |
//! | CROSSSLOT | the address leads to a cluster | `faults_replies::queues_in_several_slots_…` |
//! | TRYAGAIN | said by a door | `faults_replies::a_slot_that_is_half_moved_…` |
//! | WRONGTYPE | SET, LPUSH | the six states `judging_failures::one_key_of_a_wrong_type_…`; all other keys `faults_replies::a_key_that_is_not_what_it_should_be_…` |
//! | `id` that is no number, Pro groups | SET | the same |
//! | unexpected replies | said by a door | `faults_replies::a_transaction_that_answers_…` (two), `…::a_node_that_does_not_say_…` (two), `…::nil_in_place_of_a_list_…` |
//! | entry without a payload | its hash is gone | `judging_scan`; `faults_evidence::of_unreadable_entries_…` |
//! | OOM, MISCONF, NOREPLICAS | `maxmemory`, a dump that cannot be saved, `min-replicas-to-write` | `faults_writes` |
//! | run id changed: restart with persistence | SHUTDOWN SAVE | `judging_epochs::a_restart_with_persistence_goes_on_with_the_epoch` |
//! | replication id changed: failover | Sentinel; a cluster's own | `redis_sentinel::a_failover_costs_no_epoch_and_no_restart`; `faults_cluster` |
//! | FLUSHDB of another database | FLUSHDB | `faults_losses::a_flush_of_another_database_costs_nothing` |
//! | wrong database | SWAPDB | `faults_losses::a_wrong_database_cannot_be_judged_and_costs_nothing` |
//! | wrong prefix | the settings; mending them takes a restart | `judging_direct::a_mistyped_prefix_…` |
//! | restart without persistence (accept) | SIGKILL | `faults_losses::a_restart_without_persistence_…`, `judging_epochs::a_redis_that_came_back_empty_…` |
//! | FLUSHALL (accept) | FLUSHALL | `judging_epochs::after_a_wipe_under_a_running_host_…`, `…::a_wipe_between_the_two_looks_…`; accepted before `faults_losses::a_wiped_queue_that_had_been_accepted_…` |
//! | stale old master (accept) | the address leads to a detached replica | `faults_losses::a_stale_old_master_…` |
//! | restored dump (accept) | SAVE, and later SIGKILL | `faults_losses::a_restored_dump_…` |
//! | `id` lowered (accept) | SET | `faults_losses::a_counter_that_fell_…` |
//! | obliterate (accept) | real BullMQ | `faults_losses::an_obliterated_queue_…` |
//! | eviction under `allkeys-…` (accept) | `maxmemory` | `faults_losses::evicted_keys_are_a_loss` |
//! | another application's Redis | its keys | `judging_epochs::another_applications_redis_…` |

use std::time::Duration;

use anyhow::{Context, Result};
use salvage::pass::Mode;
use salvage::ports::{Lease, Ledger};
use salvage_core::report::{LeaseState, Report};
use salvage_core::sighting::{Doubt, QueueFailure};
use salvage_core::snapshot::State;
use salvage_core::source::SourceName;
use salvage_tests::example::{Deck, Jobs, SlideJob};
use salvage_tests::rival::{Moment, Rivalled};
use salvage_tests::services::fresh_prefix;
use salvage_tests::stores::Stores;
use salvage_tests::system::{System, job, story};

use crate::judging_world::{OTHER, QUEUES, at, entry, epochs};

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
        Ok(Self { application: Stores::of(system).await?.of_the_application(), acts })
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
        let (before, whole) = (Untouched::of(system).await?, Stores::of(system).await?);

        (self.begin)().await.context("beginning")?;
        let plan = system.plan().await?;
        (self.end)().await.context("ending")?;
        self.check_doubt(&plan);
        assert_eq!(Stores::of(system).await?, whole, "a plan wrote something");

        (self.begin)().await.context("beginning again")?;
        let report = system.pass().await?;
        let refusal =
            system.host.lease.acquire(&salvage_core::lease::Scope::Global, "somebody", MINUTE).await.err();
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
