//! `[lease] scope = "domain"`: each domain has a lease, a fence and nonces of its own, so several hosts share the work.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::Result;
use futures_util::future::try_join_all;
use salvage::command::accept::Operator;
use salvage::pass::Mode;
use salvage::ports::{Ask, Ledger, Mark, Queues, StoreFailure};
use salvage_core::lease::{Fence, ScopeKind};
use salvage_core::report::{LeaseState, Report};
use salvage_core::source::Standing;
use salvage_tests::answering::Answering;
use salvage_tests::example::{Deck, Jobs, SlideExportJob, SlideJob, Video, VideoJob};
use salvage_tests::rival::{Moment, Rivalled, once_at};
use salvage_tests::system::{System, story};

use crate::acting::{QUEUES, delayed, lose_generation, running_on, sql};
use crate::commands::{Running, ran};
use crate::lease_passes::lease_key;

/// The shipped domains, and the queues that two of them share.
const DOMAINS: [&str; 3] = ["exports", "slides", "video-composition"];
const SHARED: [&str; 2] = ["slide-export", "slide-generation"];

async fn fresh() -> Result<System> {
    let mut system = System::fresh().await?;
    system.settings.lease_scope = ScopeKind::Domain;
    Ok(system)
}

async fn running() -> Result<System> {
    running_on(fresh().await?).await
}

/// An orphan of each domain; the export cannot be rebuilt.
async fn lose_one_each(system: &System, number: usize) -> Result<()> {
    let pool = system.db.pool();
    lose_generation(system, &format!("s{number}")).await?;
    let deck = format!("deck-of-e{number}");
    Deck::ready(&deck).exporting().insert(pool).await?;
    SlideExportJob::processing(format!("e{number}")).stale().of(&deck).insert(pool).await?;
    let video = format!("video-of-v{number}");
    Video::composing(&video).tracks(2).insert(pool).await?;
    VideoJob::processing(format!("v{number}")).stale().of(&video).insert(pool).await
}

fn check_all_acted_on(report: &Report, number: usize) {
    let stories = [("s", "requeue"), ("e", "fail"), ("v", "requeue")];
    for (letter, decision) in stories {
        let id = format!("{letter}{number}");
        assert_eq!(story(report, &id), format!("absent {decision} applied"), "{report:#?}");
    }
}

/// When each domain's epoch of each queue began.
async fn epochs(system: &System) -> Result<BTreeMap<(String, String), String>> {
    let select = "SELECT domain, queue, epoch_began::text FROM salvage.domain_queues";
    let rows: Vec<(String, String, String)> = sqlx::query_as(select).fetch_all(system.db.pool()).await?;
    Ok(rows.into_iter().map(|(domain, queue, began)| ((domain, queue), began)).collect())
}

#[tokio::test]
async fn domains_that_share_queues_end_no_epoch_of_each_other_over_many_passes() -> Result<()> {
    let system = running().await?;
    let another = system.another_host().await?;
    let before = epochs(&system).await?;
    for queue in SHARED {
        let sharing = before.keys().filter(|(_, name)| name == queue);
        assert_eq!(sharing.map(|(domain, _)| domain.as_str()).collect::<Vec<_>>(), ["exports", "slides"]);
    }
    for number in 0..3 {
        lose_one_each(&system, number).await?;
        let host = if number == 1 { &another } else { &system.host };
        let report = system.run(host, Mode::Act).await?;
        check_all_acted_on(&report, number);
        assert_eq!((report.pass.lease, report.pass.generation), (LeaseState::Acquired, None));
        assert_eq!(report.sources.len(), 5, "each source once: {report:#?}");
        assert_eq!(epochs(&system).await?, before);
    }
    let nonces: Vec<String> = system.redis(&["HKEYS", &system.key("slide-export", "salvage:host")]).await?;
    let nonces: BTreeSet<&str> =
        nonces.iter().map(String::as_str).filter(|it| it.starts_with("nonce")).collect();
    assert_eq!(nonces, BTreeSet::from(["nonce:exports", "nonce:slides"]));
    let untouched: i64 =
        sqlx::query_scalar("SELECT count(*) FROM salvage.queues").fetch_one(system.db.pool()).await?;
    assert_eq!(untouched, 0, "what a lease over all domains remembers is not theirs");
    Ok(())
}

/// In a wiped queue each domain notices by itself.
#[tokio::test]
async fn a_wipe_is_noticed_by_every_domain_that_shares_the_queue() -> Result<()> {
    let system = running().await?;
    lose_one_each(&system, 0).await?;
    system.redis::<()>(&["DEL", &system.key("slide-generation", "salvage:host")]).await?;
    let report = system.pass().await?;
    for (id, expected) in
        [("s0", "requeue before-epoch"), ("e0", "fail before-epoch"), ("v0", "requeue applied")]
    {
        assert_eq!(story(&report, id), format!("absent {expected}"), "{report:#?}");
    }
    salvage::command::accept::queues(
        &system.host,
        &system.settings,
        &["slide-generation".into()],
        Operator::sure("me"),
    )
    .await?;
    let report = system.pass().await?;
    for (id, expected) in [("s0", "requeue applied"), ("e0", "fail applied")] {
        assert_eq!(story(&report, id), format!("absent {expected}"), "{report:#?}");
    }
    Ok(())
}

/// Goal: hosts that work at the same time act on each orphan once, between them. Method: all start at once, again and again
/// until nothing is left; then what was intended, applied and enqueued is counted.
#[tokio::test]
async fn two_and_four_hosts_at_once_act_on_each_orphan_once() -> Result<()> {
    /// Of each domain; too few for a mass loss, which goes in stages.
    const EACH: usize = 15;
    for hosts in [2, 4] {
        let system = running().await?;
        for number in 0..EACH {
            lose_one_each(&system, number).await?;
        }
        let mut others = Vec::new();
        for _ in 0..hosts {
            others.push(system.another_host().await?);
        }
        let live = "SELECT (SELECT count(*) FROM \"SlideJob\" WHERE status = 'PROCESSING') + \
                    (SELECT count(*) FROM \"SlideExportJob\" WHERE status = 'PROCESSING') + \
                    (SELECT count(*) FROM \"VideoJob\" WHERE status = 'PROCESSING')";
        let mut most_at_once = 0;
        for _ in 0..10 {
            let reports = try_join_all(others.iter().map(|host| system.run(host, Mode::Act))).await?;
            let working = reports.iter().filter(|report| report.pass.lease == LeaseState::Acquired).count();
            most_at_once = most_at_once.max(working);
            if sqlx::query_scalar::<_, i64>(live).fetch_one(system.db.pool()).await? == 0 {
                break;
            }
        }
        assert!(most_at_once >= 2, "the hosts did not share the work");
        for counted in [
            "SELECT count(*), count(DISTINCT (domain, source, job_id)) FROM salvage.intents WHERE NOT withdrawn",
            "SELECT sum(times)::bigint, count(*) FROM salvage.ledger WHERE outcome = 'applied'",
        ] {
            let counts: (i64, i64) = sqlx::query_as(counted).fetch_one(system.db.pool()).await?;
            let expected = i64::try_from(3 * EACH)?;
            assert_eq!(counts, (expected, expected), "{hosts} hosts: {counted}");
        }
        for queue in ["slide-generation", "video-composition"] {
            assert_eq!(delayed(&system, queue).await?.len(), EACH, "{hosts} hosts: {queue}");
        }
    }
    Ok(())
}

/// A real process, killed while it holds the lease of one domain.
#[tokio::test]
async fn a_host_that_dies_leaves_only_the_lease_of_its_domain() -> Result<()> {
    let system = running().await?;
    let mut command = system.salvage(&["run"])?;
    let settings = [("SALVAGE_LEASE__SCOPE", "domain"), ("SALVAGE_PASS__SETTLE", "60s")];
    lose_generation(&system, "s1").await?;
    let mut process = Running::start(command.envs(settings))?;
    process.says("looking again before anything is written", 1).await?;
    process.kill()?;
    process.ended().await?;
    let key = lease_key(&system);
    let held: Vec<&str> = {
        let mut held = Vec::new();
        for domain in DOMAINS {
            if system.redis::<bool>(&["EXISTS", &format!("{key}:{domain}")]).await? {
                held.push(domain);
            }
        }
        held
    };
    assert_eq!(held, ["slides"]);
    assert!(!system.redis::<bool>(&["EXISTS", &key]).await?, "no lease over all domains");

    let report = system.pass().await?;
    assert_eq!(report.pass.lease, LeaseState::Acquired);
    let mut domains: Vec<&str> = report.sources.iter().map(|source| source.domain.as_str()).collect();
    domains.dedup();
    assert_eq!(domains, ["exports", "video-composition"]);
    system.redis::<()>(&["DEL", &format!("{key}:slides")]).await?;
    assert_eq!(story(&system.pass().await?, "s1"), "absent requeue applied");
    Ok(())
}

#[tokio::test]
async fn a_newer_pass_of_another_domain_fences_nobody_off_and_one_of_the_same_does() -> Result<()> {
    for (domain, is_fenced) in [("exports", false), ("slides", true)] {
        let system = running().await?;
        lose_generation(&system, "s1").await?;
        let newer = async || {
            system.host.postgres.raise_fence(domain, "newer").await?;
            Ok(())
        };
        let host = Rivalled::new(&system.host, once_at(Moment::BeforeHold, newer));
        match system.run(&host, Mode::Act).await {
            Ok(report) => assert_eq!(story(&report, "s1"), "absent requeue applied", "{report:#?}"),
            Err(failure) => {
                assert!(is_fenced, "{domain}: {failure:#}");
                assert!(matches!(failure.downcast_ref(), Some(StoreFailure::Fenced { .. })), "{failure:#}");
            }
        }
        assert_eq!(delayed(&system, "slide-generation").await?.is_empty(), is_fenced, "{domain}");
    }
    Ok(())
}

/// The parent that an export would fail is, for this test, the one that a generation of another domain is still working on.
#[tokio::test]
async fn a_parent_that_another_domain_is_working_on_is_left_alone() -> Result<()> {
    let system = running().await?;
    let pool = system.db.pool();
    Deck::generating("d1").insert(pool).await?;
    SlideJob::processing("live").of("d1").insert(pool).await?;
    SlideExportJob::processing("e1").stale().of("d1").insert(pool).await?;
    let fails = |_: &salvage::ports::Question<'_>| {
        Ok(salvage_core::decision::Decision::Fail("cannot be rebuilt".into()))
    };
    let host = Answering::new(&system.host, fails).declaring(|domains| {
        for domain in domains.iter_mut() {
            assert_eq!(domain.standing, Standing::Active);
            let generating = domain.manifest.domain == "exports";
            let sources = domain.manifest.sources.iter_mut().filter(|_| generating);
            for job_type in sources.flat_map(|source| &mut source.job_types) {
                if let Some(parent) = job_type.on_fail.as_mut().filter(|parent| parent.table.contains("Deck"))
                {
                    parent.status_column = "status".into();
                    parent.from = vec!["GENERATING".into()];
                }
            }
        }
    });
    let report = system.run(&host, Mode::Act).await?;
    assert_eq!(story(&report, "e1"), "absent fail applied", "{report:#?}");
    assert_eq!(Deck::read(pool, "d1").await?.expect("the deck").status, "GENERATING");
    SlideJob::complete(pool, "live").await?;
    SlideExportJob::processing("e2").stale().of("d1").insert(pool).await?;
    let report = system.run(&host, Mode::Act).await?;
    assert_eq!(story(&report, "e2"), "absent fail applied", "{report:#?}");
    assert_eq!(
        Deck::read(pool, "d1").await?.expect("the deck").status,
        "FAILED",
        "nobody works on it any more"
    );
    Ok(())
}

#[tokio::test]
async fn hosts_of_the_other_kind_are_refused_until_they_rest_and_then_fenced_off() -> Result<()> {
    for (first, then, fence) in
        [(ScopeKind::Global, ScopeKind::Domain, "global"), (ScopeKind::Domain, ScopeKind::Global, "slides")]
    {
        let mut system = System::fresh().await?;
        system.settings.lease_scope = first;
        let mut system = running_on(system).await?;
        let late: Fence = system.host.postgres.raise_fence(fence, "late").await?;
        lose_generation(&system, "s1").await?;
        system.settings.lease_scope = then;
        let failure = system.pass().await.expect_err("the other kind is at work");
        let told = format!("{failure:#}");
        assert!(matches!(failure.downcast_ref(), Some(StoreFailure::OtherScope { .. })), "{told}");
        assert!(told.contains(&format!("scope = \"{}\"", then.word())) && told.contains(fence), "{told}");
        assert!(system.host.postgres.check_scope(then).await.is_err(), "doctor tells it as well");
        system.host.postgres.intend("late", &late, &[]).await?;

        sql(&system, "UPDATE salvage.fence SET raised_at = raised_at - interval '1 hour'").await?;
        system.pass().await?;
        let ended = system.host.postgres.intend("late", &late, &[]).await;
        assert!(matches!(ended, Err(StoreFailure::Fenced { .. })), "{ended:?}");
        system.settings.lease_scope = first;
        assert!(system.pass().await.is_err(), "the old kind is refused now");
    }
    Ok(())
}

#[tokio::test]
async fn each_scope_reads_and_writes_its_own_nonce() -> Result<()> {
    let system = fresh().await?;
    let queues = BTreeSet::from(["q".to_owned()]);
    for scope in ["global", "slides", "exports"] {
        let fence = Fence { scope: scope.into(), generation: 1, pass_token: "t".into() };
        let mark = Mark { found: None, nonce: format!("of {scope}") };
        system.host.queues.mark(&BTreeMap::from([("q".to_owned(), mark)]), &fence).await?;
    }
    for scope in ["global", "slides", "exports"] {
        let snapshot = system.host.queues.snapshot(&Ask::guards(&queues).of_scope(scope)).await?;
        assert_eq!(snapshot.queues["q"].nonce.as_deref(), Some(format!("of {scope}").as_str()));
    }
    let field: String = system.redis(&["HGET", &system.key("q", "salvage:host"), "nonce"]).await?;
    assert_eq!(field, "of global", "as hosts before there were scopes know it");
    Ok(())
}

/// The command line, from first contact on.
#[tokio::test]
async fn the_commands_make_sense_with_a_lease_per_domain() -> Result<()> {
    let system = fresh().await?;
    system.used_queues(&QUEUES).await?;
    lose_one_each(&system, 1).await?;
    let salvage = |arguments: &[&str]| ran(system.salvage(arguments)?.env("SALVAGE_LEASE__SCOPE", "domain"));

    let first = salvage(&["once", "--json"])?.ended_with(0)?.json()?;
    assert_eq!(
        (&first["pass"]["lease"], &first["pass"]["generation"]),
        (&"acquired".into(), &serde_json::Value::Null)
    );
    let before_epoch = |report: &serde_json::Value| -> u64 {
        let sources = report["sources"].as_array().into_iter().flatten();
        sources.filter_map(|source| source["before_epoch"].as_u64()).sum()
    };
    assert_eq!(before_epoch(&first), 3, "{first:#}");
    let doctor = salvage(&["doctor"])?;
    for line in ["queue slide-export (exports)", "queue slide-export (slides)", "lease: scope domain"] {
        assert!(doctor.stdout.contains(line), "{line}: {doctor:#?}");
    }
    salvage(&["accept", "--all"])?.ended_with(0)?;
    let accepted: i64 =
        sqlx::query_scalar("SELECT count(*) FROM salvage.accepted").fetch_one(system.db.pool()).await?;
    assert_eq!(usize::try_from(accepted)?, QUEUES.len(), "each queue is recorded once");

    let plan = salvage(&["plan"])?.ended_with(0)?;
    for domain in DOMAINS {
        assert!(plan.stdout.contains(&format!("domain {domain}\n")), "{plan:#?}");
    }
    let second = salvage(&["once", "--json"])?.ended_with(0)?.json()?;
    assert_eq!(before_epoch(&second), 0, "{second:#}");
    let outcomes: Vec<&str> = second["jobs"]
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(|job| job["outcome"]["kind"].as_str())
        .collect();
    assert_eq!(outcomes, ["applied"; 3], "{second:#}");
    let history = salvage(&["history"])?.ended_with(0)?;
    assert!(DOMAINS.iter().all(|domain| history.stdout.contains(domain)), "{history:#?}");

    for domain in DOMAINS {
        system.redis::<()>(&["SET", &format!("{}:{domain}", lease_key(&system)), "theirs"]).await?;
    }
    salvage(&["once"])?.ended_with(6)?;
    Ok(())
}
