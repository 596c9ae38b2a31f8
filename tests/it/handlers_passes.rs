//! What a handler can do to a pass: cost it one orphan, and nothing else.

use std::path::Path;

use anyhow::Result;
use salvage::pass::Mode;
use salvage::ports::{HandlerFault, Handlers, Jobs as _, Question};
use salvage_core::decision::{Decision, Requeue};
use salvage_core::source::Standing;
use salvage_tests::answering::Answering;
use salvage_tests::example::{Deck, Jobs, SlideExportJob, SlideJob, Video, VideoJob};
use salvage_tests::rival::{Moment, Rivalled, once_at};
use salvage_tests::services::{handlers_folder, redis_url};
use salvage_tests::stores::Stores;
use salvage_tests::system::{System, job, source, story};
use serde_json::{Value, json};

use crate::acting::{delayed, lose_generation, running, running_on, with_lost_generation};
use crate::wasm_fixtures::{Folder, declaring, lines, manifest, queue_rule, shipped};

/// `slides/generation` as the hostile handler declares it: it behaves by the row's id.
pub(crate) fn hostile_slides() -> Value {
    let mut declared = manifest("slides", "SlideJob", "GENERATION");
    declared["sources"][0]["name"] = json!("generation");
    declared["sources"][0]["queues"] = json!([queue_rule("slide-generation", "slide-{id}", &["generate"])]);
    declared
}

/// A running system whose slides are in the hands of the hostile handler, and its exports in those of the shipped one.
async fn with_hostile_slides(lines: &str) -> Result<System> {
    let folder =
        Folder::of(&[("exports.wasm", shipped("exports")), ("slides.wasm", declaring(&hostile_slides()))]);
    let lines = format!("grants = \"declared\"\n{lines}");
    running_on(System::with(&redis_url()?, &folder.path(), &lines).await?).await
}

/// What a sound handler would answer.
fn requeue(id: &str) -> Requeue {
    Requeue {
        queue: "slide-generation".to_owned(),
        name: "generate".to_owned(),
        data: json!({ "jobId": id }).to_string(),
        options: "{}".to_owned(),
    }
}

/// H3.
#[tokio::test]
async fn a_trap_on_one_of_ten_jobs_costs_that_one_its_decision_and_is_counted() -> Result<()> {
    let system = with_hostile_slides("[handlers.limits]\nrun_time = \"10s\"").await?;
    let pool = system.db.pool();
    for id in 1..=10 {
        SlideJob::processing(id).stale().insert(pool).await?;
    }
    Deck::ready("d1").exporting().insert(pool).await?;
    SlideExportJob::processing("e1").stale().of("d1").insert(pool).await?;
    let report = system.pass().await?;
    let counts = source(&report, "slides/generation");
    assert_eq!((counts.absent, counts.held, counts.trapped), (10, 9, 1), "{report:#?}");
    assert_eq!((counts.requeued, counts.failed, counts.refused), (0, 0, 0));
    assert_eq!(story(&report, "3"), "absent none -", "a trap is no decision, and not a hold either");
    let why = job(&report, "3").decision.reason.clone().unwrap_or_default();
    assert!(why.contains("cannot judge job 3") && why.contains("guest.rs"), "{why}");
    assert_eq!(story(&report, "4"), "absent hold -");
    assert_eq!(SlideJob::read(pool, 3).await?.expect("the row").status, "PROCESSING");
    assert_eq!(story(&report, "e1"), "absent fail applied", "the other handler is not harmed");
    Ok(())
}

/// H1.
#[tokio::test]
async fn an_endless_loop_is_ended_and_the_pass_goes_on() -> Result<()> {
    let system = with_hostile_slides("").await?;
    let pool = system.db.pool();
    for id in ["grow-forever", "loop", "trap"] {
        SlideJob::processing(id).stale().insert(pool).await?;
    }
    Deck::ready("d1").exporting().insert(pool).await?;
    SlideExportJob::processing("e1").stale().of("d1").insert(pool).await?;
    let report = system.pass().await?;
    let counts = source(&report, "slides/generation");
    assert_eq!((counts.absent, counts.trapped, counts.held), (3, 3, 0), "{report:#?}");
    let why = job(&report, "loop").decision.reason.clone().unwrap_or_default();
    assert_eq!(why, "timeout: ran longer than 100 ms");
    assert_eq!(story(&report, "e1"), "absent fail applied", "{report:#?}");
    Ok(())
}

/// A domain that times out again and again would hold the lease for as long as all its orphans take.
#[tokio::test]
async fn a_domain_that_times_out_ten_times_is_not_asked_again_in_the_pass() -> Result<()> {
    let system = running().await?;
    for id in 10..25 {
        lose_generation(&system, &format!("s{id}")).await?;
    }
    let asked = std::cell::Cell::new(0);
    let host = Answering::new(&system.host, |_| {
        asked.set(asked.get() + 1);
        Err(HandlerFault::Timeout { limit_ms: 100 })
    });
    let report = system.run(&host, Mode::Act).await?;
    assert_eq!(asked.get(), 10);
    assert_eq!(source(&report, "slides/generation").trapped, 15, "{report:#?}");
    Ok(())
}

/// H8.
#[tokio::test]
async fn a_manifest_that_names_what_the_database_lacks_costs_that_source_and_no_other() -> Result<()> {
    let mut wrong = hostile_slides();
    let missing = [("table", "Slides"), ("status", "state"), ("queued", "WAITING")];
    for (key, name) in missing {
        wrong["sources"][0]["table"] = hostile_slides()["sources"][0]["table"].clone();
        wrong["sources"][0]["table"][key] = json!(name);
        let folder = Folder::of(&[("exports.wasm", shipped("exports")), ("slides.wasm", declaring(&wrong))]);
        let system = System::with(&redis_url()?, &folder.path(), "grants = \"declared\"").await?;
        let system = running_on(system).await?;
        lose_generation(&system, "s1").await?;
        Deck::ready("d1").exporting().insert(system.db.pool()).await?;
        SlideExportJob::processing("e1").stale().of("d1").insert(system.db.pool()).await?;

        let (_, misfits) = system.host.postgres.resolve(&system.host.handlers.domains()).await?;
        assert_eq!(misfits.len(), 1);
        assert_eq!(misfits[0].source.to_string(), "slides/generation");
        assert!(misfits[0].faults.iter().any(|fault| fault.contains(name)), "{:?}", misfits[0].faults);
        let report = system.pass().await?;
        assert!(report.sources.iter().all(|counts| counts.domain == "exports"), "{report:#?}");
        assert_eq!(story(&report, "e1"), "absent fail applied", "{report:#?}");
        assert_eq!(SlideJob::read(system.db.pool(), "s1").await?.expect("the row").status, "PROCESSING");
    }
    Ok(())
}

/// H9, without a grants entry.
#[tokio::test]
async fn a_handler_without_grants_is_observed_and_never_acts() -> Result<()> {
    let system = System::with(&redis_url()?, &handlers_folder()?, "").await?;
    let system = running_on(system).await?;
    lose_generation(&system, "s1").await?;
    Deck::ready("d1").exporting().insert(system.db.pool()).await?;
    SlideExportJob::processing("e1").stale().of("d1").insert(system.db.pool()).await?;
    let before = Stores::of(&system).await?;
    let report = system.pass().await?;
    assert_eq!(story(&report, "e1"), "absent fail refused", "{report:#?}");
    let why = job(&report, "e1").outcome.as_ref().and_then(|outcome| outcome.why.clone());
    assert!(why.as_deref().is_some_and(|why| why.contains("[handler.exports.grants]")), "{why:?}");
    assert_eq!(source(&report, "exports/slide-export").refused, 1);
    // It reads decks, which nobody granted, so it is not even asked.
    assert_eq!(story(&report, "s1"), "absent none -", "{report:#?}");
    let after = Stores::of(&system).await?;
    assert_eq!(after.keys, before.keys, "nothing is written into a queue of which nothing is granted");
    assert_eq!(after.of_the_application(), before.of_the_application());
    Ok(())
}

/// H9, with an entry that does not cover the manifest.
#[tokio::test]
async fn a_handler_whose_grants_fall_short_is_refused_with_the_missing_lines_and_the_others_run() -> Result<()>
{
    let grants = "[handler.slides.grants]\ntables = ['\"SlideJob\"']\nqueues = [\"slide-generation\"]\n\
        [handler.exports.grants]\ntables = ['\"SlideExportJob\"', '\"VideoExportJob\"']\n\
        queues = [\"slide-export\", \"slide-generation\", \"video-export\", \"video-composition\"]\n\
        parents = ['\"SlideDeck\".\"exportStatus\"', '\"Video\".\"exportStatus\"']";
    let system = System::with(&redis_url()?, &handlers_folder()?, grants).await?;
    let system = running_on(system).await?;
    let reports = lines(&system.host.handlers.now());
    assert_eq!(reports[0], "exports.wasm active");
    assert!(reports[1].starts_with("slides.wasm refused: "), "{reports:#?}");
    for missing in ["queues = ['slide-export']", "'\"SlideDeck\"(", "'\"SlideDeck\".status'"] {
        assert!(reports[1].contains(missing), "{missing} in {}", reports[1]);
    }
    lose_generation(&system, "s1").await?;
    Deck::ready("d1").exporting().insert(system.db.pool()).await?;
    SlideExportJob::processing("e1").stale().of("d1").insert(system.db.pool()).await?;
    let report = system.pass().await?;
    assert_eq!(story(&report, "e1"), "absent fail applied", "{report:#?}");
    assert!(report.jobs.iter().all(|job| job.domain != "slides"), "{report:#?}");
    Ok(())
}

/// H10 and H14: what may not be asked for is refused by name, and nothing of it is done.
#[tokio::test]
async fn a_decision_that_asks_for_more_than_it_may_is_refused_and_names_what() -> Result<()> {
    let with = |change: fn(&mut Requeue)| {
        let mut asked = requeue("s1");
        change(&mut asked);
        asked
    };
    let cases = [
        (with(|asked| asked.queue = "video-export".to_owned()), "\"video-export\" is not declared"),
        (with(|asked| asked.options = r#"{"attempts":3,"delay":5}"#.to_owned()), "\"delay\""),
        (with(|asked| asked.options = r#"{"parent":{"id":"1","queue":"q"}}"#.to_owned()), "\"parent\""),
        (with(|asked| asked.options = r#"{"jobId":"another"}"#.to_owned()), "\"jobId\""),
        (with(|asked| asked.options = r#"{"attempts":-1}"#.to_owned()), "\"attempts\""),
        (with(|asked| asked.options = "[]".to_owned()), "options"),
        (with(|asked| asked.data = r#"{"deckId":"d1"}"#.to_owned()), "\"jobId\""),
        (with(|asked| asked.data = r#"{"jobId":"s2"}"#.to_owned()), "\"jobId\""),
        (with(|asked| asked.data = "\"s1\"".to_owned()), "data"),
        (with(|asked| asked.name = String::new()), "name"),
    ];
    let system = with_lost_generation().await?;
    let before = Stores::of(&system).await?.of_the_application();
    for (asked, named) in cases {
        let host = Answering::new(&system.host, |_| Ok(Decision::Requeue(asked.clone())));
        let report = system.run(&host, Mode::Act).await?;
        assert_eq!(story(&report, "s1"), "absent requeue refused", "{asked:?} {report:#?}");
        let why = job(&report, "s1").outcome.as_ref().and_then(|outcome| outcome.why.clone());
        assert!(why.as_deref().is_some_and(|why| why.contains(named)), "{asked:?}: {why:?}");
        assert_eq!(source(&report, "slides/generation").refused, 1);
        assert_eq!(Stores::of(&system).await?.of_the_application(), before, "{asked:?}");
    }
    let host = Answering::new(&system.host, |_| Ok(Decision::Requeue(requeue("s1"))));
    assert_eq!(story(&system.run(&host, Mode::Act).await?, "s1"), "absent requeue applied", "the twin");
    Ok(())
}

/// A24: whatever the handler says.
#[tokio::test]
async fn a_requeue_made_on_a_truncated_input_is_refused() -> Result<()> {
    let system = running().await?;
    let pool = system.db.pool();
    for (id, tracks) in [("whole", 3), ("cut-off", 4)] {
        Video::composing(id).tracks(tracks).insert(pool).await?;
        VideoJob::processing(id).stale().of(id).insert(pool).await?;
    }
    let decide = |question: &Question<'_>| {
        let queue = "video-composition".to_owned();
        Ok(Decision::Requeue(Requeue { queue, ..requeue(&question.candidate.token.id) }))
    };
    let host = Answering::new(&system.host, decide).declaring(|domains| {
        let reads = domains.iter_mut().flat_map(|domain| &mut domain.manifest.sources);
        for read in reads.flat_map(|source| &mut source.reads).filter(|read| read.name == "tracks") {
            read.limit = 3;
        }
    });
    let report = system.run(&host, Mode::Act).await?;
    assert_eq!(story(&report, "whole"), "absent requeue applied", "{report:#?}");
    assert_eq!(story(&report, "cut-off"), "absent requeue refused", "{report:#?}");
    let why = job(&report, "cut-off").outcome.as_ref().and_then(|outcome| outcome.why.clone());
    assert!(why.as_deref().is_some_and(|why| why.contains("\"tracks\"")), "{why:?}");
    assert_eq!(delayed(&system, "video-composition").await?, ["video-whole"]);
    assert_eq!(VideoJob::read(pool, "cut-off").await?.expect("the row").status, "PROCESSING");
    Ok(())
}

/// H13 at the pass: only one of two claimants of a table and type is asked.
#[tokio::test]
async fn of_two_files_that_claim_the_same_jobs_only_the_first_decides() -> Result<()> {
    let mut rival = hostile_slides();
    rival["domain"] = json!("usurper");
    let folder = Folder::of(&[("a.wasm", shipped("slides")), ("b.wasm", declaring(&rival))]);
    let system = running_with(&folder.path()).await?;
    assert!(system.host.handlers.domains().iter().all(|domain| domain.standing == Standing::Active));
    lose_generation(&system, "s1").await?;
    let report = system.pass().await?;
    assert_eq!(
        (report.jobs.len(), story(&report, "s1").as_str()),
        (1, "absent requeue applied"),
        "{report:#?}"
    );
    Ok(())
}

async fn running_with(folder: &Path) -> Result<System> {
    running_on(System::with(&redis_url()?, folder, "grants = \"declared\"").await?).await
}

/// H6 at the pass. What is loaded while a pass is under way is asked by the next one, not by this one.
#[tokio::test]
async fn a_pass_asks_the_same_build_from_beginning_to_end() -> Result<()> {
    let system = with_lost_generation().await?;
    let folder = Folder::of(&[("slides.wasm", declaring(&hostile_slides()))]);
    let offer = async || {
        system.host.handlers.offer(folder.trusted().await);
        Ok(())
    };
    let report =
        system.run(&Rivalled::new(&system.host, once_at(Moment::AfterLook(1), offer)), Mode::Act).await?;
    assert_eq!(story(&report, "s1"), "absent requeue applied", "the shipped handler rebuilds it");
    lose_generation(&system, "s2").await?;
    system.host.handlers.between_passes().await;
    let report = system.pass().await?;
    assert_eq!(story(&report, "s2"), "absent hold -", "the hostile one holds whatever it does not know");
    Ok(())
}
