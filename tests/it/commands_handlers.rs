//! `salvage run` while its handlers and their settings change.

use std::io::Write;
use std::path::Path;

use anyhow::Result;
use insta::assert_snapshot;
use salvage_tests::example::{Jobs, SlideJob};
use salvage_tests::system::System;
use serde_json::json;
use tempfile::TempDir;

use crate::acting::{lose_generation, running};
use crate::commands::{Ran, Running, ran, salvage, until_true};
use crate::handlers_passes::hostile_slides;
use crate::wasm_fixtures::{declaring, rebuilt, shipped};

/// A host that looks at its rows every second, on handlers of the test's own.
struct Host {
    system: System,
    folder: TempDir,
    process: Running,
}

/// The environment of the host and of whoever asks about it.
fn settings(folder: &Path) -> Vec<(&'static str, String)> {
    vec![("SALVAGE_PASS__INTERVAL", "1s".to_owned()), ("SALVAGE_HANDLERS__DIR", folder.display().to_string())]
}

impl Host {
    async fn start(files: &[(&str, Vec<u8>)], more: &[(&'static str, String)]) -> Result<Self> {
        let (system, folder) = (running().await?, TempDir::new()?);
        for (name, bytes) in files {
            std::fs::write(folder.path().join(name), bytes)?;
        }
        let mut command = system.salvage(&["run"])?;
        command.envs(settings(folder.path())).envs(more.iter().cloned());
        let process = Running::start(&mut command)?;
        Ok(Self { system, folder, process })
    }

    fn place(&self, bytes: &[u8]) -> Result<()> {
        Ok(std::fs::write(self.folder.path().join("slides.wasm"), bytes)?)
    }

    fn list(&self, arguments: &[&str]) -> Result<Ran> {
        let mut command = self.system.salvage(&[&["handler", "list"], arguments].concat())?;
        ran(command.envs(settings(self.folder.path())))
    }

    /// Loses a generation, and sees it put back by a pass of this host.
    async fn recovers(&self, id: &'static str, is_queued: &'static str) -> Result<()> {
        lose_generation(&self.system, id).await?;
        until_true(self.system.db.pool(), is_queued).await
    }

    /// Which build decided on each job, oldest first.
    async fn deciders(&self) -> Result<Vec<String>> {
        let query = "SELECT job_id || ' ' || component_digest FROM salvage.ledger WHERE outcome = 'applied' ORDER BY 1";
        Ok(sqlx::query_scalar(query).fetch_all(self.system.db.pool()).await?)
    }

    async fn ends_well(mut self) -> Result<()> {
        self.process.terminate()?;
        assert_eq!(self.process.ended().await?.0, Some(0), "{}", self.process.stderr());
        Ok(())
    }
}

fn digest(bytes: &[u8]) -> String {
    use sha2::{Digest, Sha256};
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

const S1: &str = "SELECT status = 'QUEUED' FROM \"SlideJob\" WHERE id = 's1'";
const S2: &str = "SELECT status = 'QUEUED' FROM \"SlideJob\" WHERE id = 's2'";
const S3: &str = "SELECT status = 'QUEUED' FROM \"SlideJob\" WHERE id = 's3'";

/// Goal: a team ships a domain by placing a file. Method: a host without handlers; a half-copied, a whole, a bad and a
/// better build, each seen by what becomes of a lost job.
#[tokio::test]
async fn a_domain_dropped_in_is_judged_in_the_next_pass_and_a_bad_build_changes_nothing() -> Result<()> {
    let mut host = Host::start(&[], &[]).await?;
    host.process.says("no handler serves: the folder of [handlers] dir holds no .wasm file", 1).await?;
    host.process.says("pass done", 1).await?;
    let bullmq = host.system.bullmq().await?;
    bullmq.start_worker("slide-generation", json!({})).await?;

    let first = shipped("slides");
    host.place(&first[..first.len() / 2])?;
    let passes = host.process.said("pass done");
    host.process.says("pass done", passes + 1).await?;
    host.place(&first)?;
    host.process.says("handler is loaded and serves from the next pass on", 1).await?;
    host.recovers("s1", S1).await?;

    host.place(b"<html>not found</html>")?;
    host.process.says("new build of the handler is refused, the old one serves on", 1).await?;
    host.recovers("s2", S2).await?;
    let list = host.list(&[])?.ended_with(0)?;
    insta::with_settings!({ filters => vec![(r"sha256 [0-9a-f]{12}", "sha256 [12 digits]"), (r"process \d+", "process [pid]")] }, {
        assert_snapshot!(list.stdout, @r"
        no domain: refused (slides.wasm, sha256 [12 digits]…)
            not a WebAssembly component: the file does not begin like one; build the handler for wasm32-wasip2

        in the host that runs (process [pid]):
          slides: refused (slides.wasm, sha256 [12 digits]…; sha256 [12 digits]… serves on)
        ");
    });
    let mut wrong = hostile_slides();
    wrong["sources"][0]["table"]["extra_columns"] = json!(["nosuch"]);
    host.place(&declaring(&wrong))?;
    host.process.says("its manifest does not fit the database: source slides/generation: ", 1).await?;

    let second = rebuilt(first.clone(), b'x');
    host.place(&second)?;
    host.process.says("handler is loaded and serves from the next pass on", 2).await?;
    host.recovers("s3", S3).await?;
    let (first, second) = (digest(&first), digest(&second));
    assert_eq!(
        host.deciders().await?,
        [format!("s1 {first}"), format!("s2 {first}"), format!("s3 {second}")]
    );
    let runs = bullmq.wait_runs(3, json!({ "queue": "slide-generation", "ended": true })).await?;
    assert!(runs.iter().all(|run| run.outcome.as_deref() == Some("completed")), "{runs:?}");
    bullmq.close().await?;
    assert_eq!(host.process.said(" ERROR "), 3, "one line each: {}", host.process.stderr());

    let list = host.list(&["--json"])?.ended_with(0)?.json()?;
    let running = &list[0]["running"]["handler"];
    assert_eq!((&running["state"], &running["digest"]), (&json!("active"), &json!(second)), "{list:#}");
    std::fs::remove_file(host.folder.path().join("slides.wasm"))?;
    host.process.says("handler's file is gone; it does not serve from the next pass on", 1).await?;
    let file = host.folder.path().join("slides.wasm");
    let (system, folder) = (System::salvage, settings(host.folder.path()));
    std::fs::write(file, shipped("slides"))?;
    let mut list = system(&host.system, &["handler", "list"])?;
    host.process.terminate()?;
    host.process.ended().await?;
    let list = ran(list.envs(folder))?.ended_with(0)?;
    assert!(!list.stdout.contains("in the host that runs"), "{list:#?}");
    Ok(())
}

/// Grants are read again with the settings' file; what is wrong there changes nothing.
#[tokio::test]
async fn grants_that_are_added_are_in_force_from_the_next_pass_on() -> Result<()> {
    let listed = ("SALVAGE_HANDLERS__GRANTS", "listed".to_owned());
    let mut host = Host::start(&[("slides.wasm", shipped("slides"))], &[listed]).await?;
    host.process.says("handler is only observed", 1).await?;
    lose_generation(&host.system, "s1").await?;
    let file = host.system.config_file();
    let before = std::fs::read_to_string(&file)?;
    let mut config = std::fs::OpenOptions::new().append(true).open(&file)?;

    writeln!(config, "[handler.slides.grant]\ntables = []")?;
    host.process.says("the settings that were in force stay, the new ones are wrong", 1).await?;
    host.process.hang_up()?;
    host.process.says("the settings that were in force stay, the new ones are wrong", 2).await?;
    assert_eq!(SlideJob::read(host.system.db.pool(), "s1").await?.expect("the row").status, "PROCESSING");

    let grants = "[handler.slides.grants]\ntables = ['\"SlideJob\"']\nqueues = ['slide-export', 'slide-generation']\n\
        read = ['\"SlideDeck\"(id, status, title)']\nparents = ['\"SlideDeck\".status']\n";
    std::fs::write(&file, format!("{before}{grants}"))?;
    host.process.says("the settings of handlers changed; they are in force from the next pass on", 1).await?;
    host.process.says("handler is loaded and serves from the next pass on", 1).await?;
    until_true(host.system.db.pool(), S1).await?;
    std::fs::write(&file, format!("{}{grants}", before.replace("settle = \"1ms\"", "settle = \"2ms\"")))?;
    host.process.says("take effect at the next start", 1).await?;
    host.ends_well().await
}

/// Quarantine is a running host's own; it is told to whoever asks on its machine.
#[tokio::test]
async fn a_handler_that_only_traps_is_quarantined_and_list_and_doctor_say_so() -> Result<()> {
    let mut host = Host::start(&[("slides.wasm", declaring(&hostile_slides()))], &[]).await?;
    for id in ["trap:1", "trap:2", "trap:3", "trap:4"] {
        SlideJob::processing(id).stale().insert(host.system.db.pool()).await?;
    }
    host.process.says("handler is quarantined: its last 10 calls, in 3 passes, all failed", 1).await?;
    // Told with the host's next look.
    let mut list = host.list(&[])?.ended_with(0)?;
    while !list.stdout.contains("slides: quarantined (slides.wasm") {
        let passes = host.process.said("pass done");
        host.process.says("pass done", passes + 1).await?;
        list = host.list(&[])?.ended_with(0)?;
    }
    assert!(list.stdout.contains("its jobs wait until a new build of it is there"), "{list:#?}");
    let doctor = host.system.salvage(&["doctor"]).map(|mut doctor| {
        doctor.envs(settings(host.folder.path()));
        doctor
    })?;
    let doctor = ran(&mut { doctor })?.ended_with(1)?;
    assert!(
        doctor.stdout.contains("handler slides: quarantined in the host that runs (process "),
        "{doctor:#?}"
    );
    host.place(&shipped("slides"))?;
    host.process.says("handler is loaded and serves from the next pass on", 1).await?;
    host.recovers("s1", S1).await?;
    host.ends_well().await
}

/// The titles of decks in the questions that were kept of these jobs.
async fn kept_titles(host: &Host) -> Result<Vec<String>> {
    let query = "SELECT job_id || ' ' || (question->'inputs'->'deck'->'rows'->0->>'title') FROM salvage.captures \
                 ORDER BY job_id";
    Ok(sqlx::query_scalar(query).fetch_all(host.system.db.pool()).await?)
}

/// F21: what is to be kept and what is not is each handler's setting, and changes with its section.
#[tokio::test]
async fn what_is_captured_and_redacted_changes_from_the_next_pass_on() -> Result<()> {
    let mut host = Host::start(&[("slides.wasm", shipped("slides"))], &[]).await?;
    host.process.says("pass done", 1).await?;
    let file = host.system.config_file();
    let before = std::fs::read_to_string(&file)?;
    sqlx::raw_sql("ALTER TABLE \"SlideDeck\" ALTER title SET DEFAULT 'private'")
        .execute(host.system.db.pool())
        .await?;
    let forced = "the settings of handlers changed; they are in force from the next pass on";
    for (index, (lines, id, is_queued, kept)) in [
        ("[handler.slides]\ncapture_inputs = true\n", "s1", S1, &["s1 Deck"][..]),
        (
            "[handler.slides]\ncapture_inputs = true\nredact = ['\"SlideDeck\".title']\n",
            "s2",
            S2,
            &["s1 Deck", "s2 redacted"],
        ),
        ("[handler.slides]\nredact = ['\"SlideDeck\".title']\n", "s3", S3, &["s1 Deck", "s2 redacted"]),
    ]
    .into_iter()
    .enumerate()
    {
        std::fs::write(&file, format!("{before}{lines}"))?;
        host.process.says(forced, index + 1).await?;
        // What a pass under way began with, it ends with.
        let passes = host.process.said("pass done");
        host.process.says("pass done", passes + 1).await?;
        host.recovers(id, is_queued).await?;
        let titles: Vec<String> = kept_titles(&host).await?;
        let titles: Vec<String> = titles.iter().map(|title| shortened(title)).collect();
        assert_eq!(titles, kept, "{lines}");
    }
    assert_eq!(host.process.said("take effect at the next start"), 0, "{}", host.process.stderr());
    let purged = salvage(&host.system, &["captures", "purge", "--handler", "exports"])?.ended_with(0)?;
    assert_eq!(purged.stdout, "removed 0 captured questions to exports\n");
    let purged = salvage(&host.system, &["captures", "purge", "--handler", "slides"])?.ended_with(0)?;
    assert_eq!(purged.stdout, "removed 2 captured questions to slides\n");
    assert_eq!(kept_titles(&host).await?, [""; 0]);
    host.ends_well().await
}

/// The first word after the id: the example's titles are of several.
fn shortened(title: &str) -> String {
    title.split(' ').take(2).collect::<Vec<_>>().join(" ")
}

/// F27, and what of a change is not in force.
#[tokio::test]
async fn list_sees_the_running_host_after_every_change_of_settings() -> Result<()> {
    let mut host = Host::start(&[("slides.wasm", shipped("slides"))], &[]).await?;
    host.process.says("pass done", 1).await?;
    let file = host.system.config_file();
    let before = std::fs::read_to_string(&file)?;
    for change in 1..=4 {
        std::fs::write(&file, format!("{before}[handler.slides]\nstale_after = \"{change}h\"\n"))?;
        let forced = "the settings of handlers changed; they are in force from the next pass on";
        host.process.says(forced, change).await?;
        let passes = host.process.said("pass done");
        host.process.says("pass done", passes + 1).await?;
        let list = host.list(&[])?.ended_with(0)?;
        assert!(list.stdout.contains("in the host that runs (process "), "after {change} changes: {list:#?}");
    }
    let forced = host.process.said("they are in force");
    std::fs::write(&file, before.replace("[handlers]\n", "[handlers]\ncache_dir = \"elsewhere\"\n"))?;
    host.process
        .says("settings that changed and take effect at the next start: [handlers] cache_dir", 1)
        .await?;
    // The thresholds of before are back.
    host.process.says("they are in force", forced + 1).await?;
    host.ends_well().await
}
