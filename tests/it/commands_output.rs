//! What `once`, `plan`, `explain` and `history` print for people: a line a job, and nothing that acts on a terminal.

use anyhow::Result;
use insta::assert_snapshot;
use salvage_tests::example::{Deck, Jobs, SlideExportJob, SlideJob, VideoJob};
use salvage_tests::services::redis_url;
use salvage_tests::system::System;
use serde_json::{Value, json};

use crate::commands::{Ran, running, salvage};
use crate::handlers_passes::hostile_slides;
use crate::wasm_fixtures::{Folder, declaring};

/// An id that clears the screen, fills the clipboard, rings, forges a line and turns the order of letters; the hostile
/// handler holds it for a reason that repeats it.
const HOSTILE: &str = "a\u{1b}[2J\u{1b}]52;c;cm0=\u{7}\r\nb SCHEDULED\u{202e}\u{2066}c\u{200b}\u{9b}1m";

/// As it is shown.
const SHOWN: &str = r"a\u{1b}[2J\u{1b}]52;c;cm0=\u{7}\r\nb SCHEDULED\u{202e}\u{2066}c\u{200b}\u{9b}1m";

/// The reason of the handler as it is taken in: what acts on a terminal is taken out before it is kept anywhere.
const REASON: &str = "job a[2J]52;c;cm0= b SCHEDULEDc\u{200b}1m";

/// A system whose slides are in the hands of the hostile handler, with one orphan.
async fn hostile() -> Result<(System, Folder)> {
    let folder = Folder::of(&[("slides.wasm", declaring(&hostile_slides()))]);
    let lines = "grants = \"declared\"\n[handlers.limits]\nrun_time = \"10s\"";
    let system = System::with(&redis_url()?, &folder.path(), lines).await?;
    system.used_queues(&["slide-generation"]).await?;
    system.known_since_yesterday().await?;
    SlideJob::processing(HOSTILE).stale().insert(system.db.pool()).await?;
    Ok((system, folder))
}

/// No character of what was printed acts on a terminal, and no line was forged.
fn check_harmless(ran: &Ran) {
    let acts = |c: char| c != '\n' && (c.is_control() || "\u{202e}\u{2066}\u{200b}".contains(c));
    assert!(!ran.stdout.contains(acts), "{ran:#?}");
    assert!(!ran.stdout.lines().any(|line| line.starts_with("b SCHEDULED")), "{ran:#?}");
}

/// F20.
#[tokio::test]
async fn nothing_that_is_shown_acts_on_a_terminal_or_forges_a_line() -> Result<()> {
    let (system, _folder) = hostile().await?;
    for arguments in [&["plan"][..], &["plan", "--payload"], &["once"], &["explain", "generation", HOSTILE]] {
        let ran = salvage(&system, arguments)?.ended_with(0)?;
        check_harmless(&ran);
        let reason = REASON.replace('\u{200b}', r"\u{200b}");
        assert!(ran.stdout.contains(&format!(": {reason}\n")), "{ran:#?}");
        assert_eq!(ran.stdout.lines().filter(|line| line.contains(SHOWN)).count(), 1, "{ran:#?}");
    }
    let unknown = salvage(&system, &["explain", &format!("slides/{HOSTILE}"), "1"])?.ended_with(1)?;
    assert!(!unknown.stderr.contains(['\u{1b}', '\u{202e}', '\u{9b}']), "{unknown:#?}");
    Ok(())
}

/// F20: the JSON is for programs, and its data as they are; a terminal may be what it is printed on all the same.
#[tokio::test]
async fn json_holds_the_very_text_by_jsons_own_escapes() -> Result<()> {
    let (system, _folder) = hostile().await?;
    for arguments in
        [&["plan", "--json"][..], &["once", "--json"], &["explain", "generation", HOSTILE, "--json"]]
    {
        let ran = salvage(&system, arguments)?.ended_with(0)?;
        check_harmless(&ran);
        let told = ran.json()?;
        let reason = match arguments[0] {
            "explain" => &told[0]["decision_reason"],
            _ => {
                assert_eq!(told["jobs"][0]["id"], HOSTILE);
                &told["jobs"][0]["decision"]["reason"]
            }
        };
        assert_eq!(reason, &json!(REASON));
    }
    Ok(())
}

/// F20.
#[tokio::test]
async fn a_long_text_is_cut_with_an_ellipsis_and_json_has_the_whole() -> Result<()> {
    let (system, _folder) = hostile().await?;
    let long = "ä".repeat(900);
    SlideJob::processing(&long).stale().insert(system.db.pool()).await?;
    SlideJob::processing("error:500000").stale().insert(system.db.pool()).await?;
    let plan = salvage(&system, &["plan"])?.ended_with(0)?;
    let shown = format!("{}…", "ä".repeat(100));
    assert!(plan.stdout.lines().any(|line| line.starts_with(&format!("{shown}  GENERATION  "))), "{plan:#?}");
    assert!(plan.stdout.lines().all(|line| line.chars().count() < 1_500), "{plan:#?}");
    assert!(
        plan.stdout.contains(&format!("no decision: handler error: {}…\n", "x".repeat(985))),
        "{plan:#?}"
    );
    let report = salvage(&system, &["plan", "--json"])?.ended_with(0)?.json()?;
    assert!(report["jobs"].as_array().into_iter().flatten().any(|job| job["id"] == long));
    Ok(())
}

/// Orphans in two sources, some of which share a reason, and the same number of candidates that are scheduled.
async fn lost(count: usize) -> Result<System> {
    let system = running().await?;
    let db = system.db.pool();
    Deck::generating("d1").insert(db).await?;
    for index in 0..count {
        SlideJob::processing(format!("r{index:03}")).stale().of("d1").insert(db).await?;
        VideoJob::queued(format!("v{index:03}")).stale().insert(db).await?;
    }
    SlideJob::queued("f1").stale().of("no-deck").insert(db).await?;
    // Listed, and nothing more is known of it: it might be any of the videos under another id.
    system.redis::<()>(&["LPUSH", &system.key("video-export", "wait"), "ghost"]).await?;
    Ok(system)
}

/// The lines of a plan without what differs from run to run.
fn table(ran: &Ran) -> String {
    let (heading, rest) = ran.stdout.split_once('\n').expect("several lines");
    assert!(heading.starts_with("dry run, nothing was written: took "), "{heading}");
    rest.to_owned()
}

#[tokio::test]
async fn a_plan_has_a_line_a_job_and_tells_a_shared_reason_once() -> Result<()> {
    let system = lost(3).await?;
    assert_snapshot!(table(&salvage(&system, &["plan"])?.ended_with(0)?), @r#"

    SOURCE                         LIVE  CANDIDATES  SCHEDULED  ABSENT  UNKNOWN  WHAT CAME OF IT
    exports/slide-export              0           0          0       0        0  -
    exports/video-export              0           0          0       0        0  -
    slides/generation                 4           4          0       4        0  3 to be put back, 1 to be marked failed
    video-composition/composition     3           3          0       0        3  -
    video-composition/narration       0           0          0       0        0  -

    slides/generation
    ID    TYPE        STATUS      AGE  WHAT
    f1    GENERATION  QUEUED      2 h  in no queue: to be marked failed: The slide deck of this job no longer exists, so its slides cannot be generated.
    r000  GENERATION  PROCESSING  2 h  in no queue: to be put back
    r001  GENERATION  PROCESSING  2 h  in no queue: to be put back
    r002  GENERATION  PROCESSING  2 h  in no queue: to be put back

    video-composition/composition
    ID    TYPE         STATUS  AGE  WHAT
    v000  COMPOSITION  QUEUED  2 h  not judged [1]
    v001  COMPOSITION  QUEUED  2 h  not judged [1]
    v002  COMPOSITION  QUEUED  2 h  not judged [1]

    [1] 3 jobs (v000, v001, v002): entry "ghost" of queue "video-export" is unreadable (it is listed but its payload is gone): it might be this job; `salvage accept --entry video-export ghost` marks it as harmless

    in all 7 jobs: 1 to be marked failed, 3 to be put back, 3 not judged
    `salvage once` would look again, then put back 3 and mark 1 failed
    "#);
    Ok(())
}

#[tokio::test]
async fn a_plan_of_two_hundred_orphans_has_a_line_with_the_id_for_each_and_little_else() -> Result<()> {
    const COUNT: usize = 100;
    let system = lost(COUNT).await?;
    let plan = salvage(&system, &["plan"])?.ended_with(0)?;
    for index in 0..COUNT {
        for id in [format!("r{index:03}"), format!("v{index:03}")] {
            let begins = format!("{id}  ");
            assert_eq!(
                plan.stdout.lines().filter(|line| line.starts_with(&begins)).count(),
                1,
                "{id}: {plan:#?}"
            );
        }
    }
    assert!(plan.stdout.lines().count() < 2 * COUNT + 25, "{plan:#?}");
    assert!(plan.stdout.len() < 200 * 80, "{} bytes", plan.stdout.len());
    Ok(())
}

#[tokio::test]
async fn source_and_limit_restrict_what_is_printed_and_not_what_is_done() -> Result<()> {
    let system = lost(2).await?;
    let bare = salvage(&system, &["plan", "--source", "generation"])?.ended_with(0)?;
    assert!(bare.stdout.contains("\nslides/generation\n") && !bare.stdout.contains("video"), "{bare:#?}");
    let expected = "\nonly slides/generation is shown; the pass was about all sources\n";
    assert!(bare.stdout.ends_with(expected), "{bare:#?}");
    let full =
        salvage(&system, &["plan", "--source", "slides/generation", "--json"])?.ended_with(0)?.json()?;
    let sources = |report: &Value| report["sources"].as_array().map(Vec::len);
    let ids = |report: &Value| -> Vec<String> {
        let jobs = report["jobs"].as_array().into_iter().flatten();
        jobs.filter_map(|job| Some(job["id"].as_str()?.to_owned())).collect()
    };
    assert_eq!((sources(&full), ids(&full)), (Some(1), vec!["f1".into(), "r000".into(), "r001".into()]));

    let two = salvage(&system, &["plan", "--limit", "2"])?.ended_with(0)?;
    assert!(two.stdout.contains("\n… and 3 more jobs; --limit says how many are shown\n"), "{two:#?}");
    let two = salvage(&system, &["plan", "--limit", "2", "--json"])?.ended_with(0)?.json()?;
    assert_eq!((sources(&two), ids(&two).len()), (Some(5), 2), "{two:#}");

    for unknown in ["generations", "slides/generations", "slide/generation"] {
        let ran = salvage(&system, &["plan", "--source", unknown])?.ended_with(1)?;
        assert!(ran.stderr.contains("there are exports/slide-export, "), "{ran:#?}");
    }
    salvage(&system, &["plan", "--limit", "0"])?.ended_with(2)?;

    let once = salvage(&system, &["once", "--source", "composition", "--limit", "1"])?.ended_with(0)?;
    assert!(!once.stdout.contains("r000"), "{once:#?}");
    let row = SlideJob::read(system.db.pool(), "r000").await?.expect("the row");
    assert_eq!(row.status, "QUEUED", "a pass is about all sources, whatever is shown of it");
    Ok(())
}

#[tokio::test]
async fn what_waits_or_is_refused_is_told_in_words() -> Result<()> {
    let system = System::fresh().await?;
    system.used_queues(&crate::commands::QUEUES).await?;
    Deck::generating("d1").insert(system.db.pool()).await?;
    SlideJob::processing("s1").stale().of("d1").insert(system.db.pool()).await?;
    let plan = salvage(&system, &["plan"])?.ended_with(0)?;
    let line = plan.stdout.lines().find(|line| line.starts_with("s1 ")).unwrap_or_default();
    assert!(line.contains("in no queue: waits for accept: "), "{line}");
    assert!(line.ends_with("; then to be put back"), "{line}");
    assert!(plan.stdout.contains("\nin all 1 job: 1 waiting for accept\n"), "{plan:#?}");
    salvage(&system, &["accept", "--all"])?.ended_with(0)?;
    let check = "ALTER TABLE \"SlideExportJob\" ADD CHECK (status <> 'FAILED')";
    sqlx::query(check).execute(system.db.pool()).await?;
    Deck::ready("d2").exporting().insert(system.db.pool()).await?;
    SlideExportJob::processing("e1").stale().of("d2").insert(system.db.pool()).await?;
    let once = salvage(&system, &["once"])?.ended_with(0)?;
    let line =
        |id: &str| once.stdout.lines().find(|line| line.starts_with(id)).unwrap_or_default().to_owned();
    assert!(line("s1 ").ends_with("in no queue: put back"), "{once:#?}");
    assert!(line("e1 ").contains("in no queue: parked: "), "{once:#?}");
    assert!(line("e1 ").contains("; was to be marked failed: "), "{once:#?}");
    assert!(once.stdout.contains("in all 2 jobs: 1 parked, 1 put back\n"), "{once:#?}");
    Ok(())
}
