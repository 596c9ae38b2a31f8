//! No password and no payload, wherever one may look: output of every command at the loudest level, and our own tables.

use anyhow::Result;
use salvage_tests::example::{Deck, Jobs, NarrationJob, SlideExportJob, SlideJob, Video, VideoJob, uuid};
use salvage_tests::services::{MARKER_PASSWORD, MARKER_PAYLOAD};
use salvage_tests::stores::tables;
use salvage_tests::system::System;

use crate::commands::{Running, ran, running};

/// The loudest that the libraries can be; of all of them a password or a payload passes through.
const LOUD: &str = "trace";

/// Goal: whatever Salvage touches that holds a payload holds the marker, and it touches as much as it can: titles that
/// go into requeued data, payloads that a scan reads, some of them broken, rows that PostgreSQL rejects with the row in
/// its message.
async fn marked() -> Result<System> {
    let system = running().await?;
    let db = system.db.pool();
    Deck::generating("d1").insert(db).await?;
    Video::composing("v1").tracks(2).insert(db).await?;
    sqlx::query("UPDATE \"SlideDeck\" SET title = $1").bind(MARKER_PAYLOAD).execute(db).await?;
    sqlx::query("UPDATE \"Video\" SET title = $1").bind(MARKER_PAYLOAD).execute(db).await?;
    sqlx::query("UPDATE \"VideoTrack\" SET \"sourceUrl\" = $1").bind(MARKER_PAYLOAD).execute(db).await?;
    SlideJob::processing("s1").stale().of("d1").insert(db).await?;
    SlideJob::processing("s2").stale().of("d1").error(MARKER_PAYLOAD).insert(db).await?;
    VideoJob::queued("j1").stale().of("v1").insert(db).await?;
    NarrationJob::queued(uuid(1)).stale().of("v1").insert(db).await?;
    SlideExportJob::queued("e1").stale().of("d1").error(MARKER_PAYLOAD).insert(db).await?;
    let check = "ALTER TABLE \"SlideExportJob\" ADD CHECK (status <> 'FAILED')";
    sqlx::query(check).execute(db).await?;
    let whole = format!("{{\"jobId\":\"s2\",\"text\":\"{MARKER_PAYLOAD}\"}}");
    let foreign = format!("{{\"text\":\"{MARKER_PAYLOAD}\"}}");
    let broken = format!("{{\"text\":\"{MARKER_PAYLOAD}");
    for (queue, id, data) in [
        ("slide-generation", "7", whole.as_str()),
        ("slide-generation", "8", foreign.as_str()),
        ("narration", "9", broken.as_str()),
        ("narration", "10", MARKER_PAYLOAD),
    ] {
        system.redis::<()>(&["HSET", &system.key(queue, id), "name", "n", "data", data]).await?;
        system.redis::<()>(&["LPUSH", &system.key(queue, "wait"), id]).await?;
    }
    // What an act meets and takes away: a retained entry under the id that will be used again.
    let key = system.key("video-composition", "video-j1");
    system
        .redis::<()>(&["HSET", &key, "data", &whole, "returnvalue", MARKER_PAYLOAD, "finishedOn", "1"])
        .await?;
    system.redis::<()>(&["ZADD", &system.key("video-composition", "completed"), "1", "video-j1"]).await?;
    Ok(system)
}

fn check(text: &str, where_: &str) {
    for marker in [MARKER_PASSWORD, MARKER_PAYLOAD] {
        if let Some(line) = text.lines().find(|line| line.contains(marker)) {
            panic!("{where_} holds {marker}: {line}");
        }
    }
}

#[tokio::test]
async fn no_password_and_no_payload_is_printed_or_recorded() -> Result<()> {
    let system = marked().await?;
    for arguments in [
        &["plan"][..],
        &["once", "--json"],
        &["once"],
        &["doctor"],
        &["history", "--json"],
        &["history", "--jobs"],
        &["history", "--jobs", "--json"],
        &["explain", "slides/generation", "s1"],
        &["explain", "slides/generation", "s1", "--json"],
        &["explain", "exports/slide-export", "e1"],
        &["accept", "--all"],
        &["accept", "--entry", "narration", "9"],
        &["handler", "list", "--json"],
        &["migrate"],
    ] {
        let ran = ran(system.salvage(arguments)?.env("RUST_LOG", LOUD))?;
        check(&ran.stdout, &format!("stdout of {arguments:?}"));
        check(&ran.stderr, &format!("stderr of {arguments:?}"));
        if arguments[0] == "once" && arguments.len() == 2 {
            let report = ran.json()?;
            let outcome = |id: &str| {
                let jobs = report["jobs"].as_array().expect("an array").iter();
                let job = jobs.clone().find(|job| job["id"] == id);
                job.map_or("scheduled".to_owned(), |job| {
                    format!("{} {}", job["sighting"]["kind"], job["outcome"]["kind"])
                })
            };
            // Otherwise this test would look where nothing can be.
            assert_eq!(outcome("s1"), "\"absent\" \"applied\"", "{report:#}");
            assert_eq!(outcome("s2"), "scheduled", "{report:#}");
            assert_eq!(outcome("e1"), "\"absent\" \"parked\"", "{report:#}");
            assert_eq!(outcome(&uuid(1)), "\"unknown\" null", "{report:#}");
        }
    }
    check(
        &tables(system.db.pool(), &["salvage"]).await?.into_values().collect::<Vec<_>>().join("\n"),
        "schema salvage",
    );
    Ok(())
}

#[tokio::test]
async fn a_run_with_wrong_passwords_prints_none() -> Result<()> {
    let system = System::fresh().await?;
    let url = system.db.url().replace("salvage:", "nobody:");
    let mut command = system.salvage(&["run"])?;
    command.env("DATABASE_URL", url).env("RUST_LOG", LOUD).env("SALVAGE_PASS__INTERVAL", "1s");
    command.env("REDIS_URL", system.redis_url.replace("redis://", &format!("redis://:{MARKER_PASSWORD}@")));
    let mut process = Running::start(&mut command)?;
    process.says("passes_skipped=2", 1).await?;
    process.terminate()?;
    assert_eq!(process.ended().await?.0, Some(0));
    check(&process.stderr(), "stderr of run");
    Ok(())
}
