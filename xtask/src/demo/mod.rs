//! `cargo xtask demo`: real BullMQ queues and workers, real servers, and what Salvage makes of fifteen jobs.
//!
//! It reads like a story, and is a test as well: what must be seen of each job is written down in [`scenario`] and
//! compared with what is there, at each of three looks.

pub(crate) mod application;
mod compare;
pub(crate) mod driver;
pub(crate) mod host;
mod look;
mod scenario;
mod stage;
mod table;

use crate::run::step;
use crate::{build, setup};
use anyhow::{Result, bail};
use compare::Differences;
use driver::Run;
use host::{Host, Report};
use look::{Found, look};
use scenario::{SITUATIONS, Verdict};
use stage::{Servers, Stage};

/// Shorter than the defaults, since somebody is watching.
const PASS: &str = "[pass]\nsettle = \"2s\"\nstart_delay = \"5s..6s\"\n";

pub(crate) fn run() -> Result<()> {
    setup::run()?;
    build::handlers()?;
    // For debugging, because somebody waits for the demo: the release build takes twice as long.
    let binary = build::host(true)?;
    let servers = step("start a private PostgreSQL and a private Redis", Servers::start)?;
    let host = Host::new(binary, &servers.database, &servers.redis.url(), PASS)?;
    let mut differences = Differences::default();
    let mut stage = step("let the application work, then kill workers and lose entries", || {
        let stage = Stage::set(&servers)?;
        stage.skip_time()?;
        Ok(stage)
    })?;
    let before = show_before(&mut stage, &mut differences)?;
    step("meet Salvage", || meet(&host, &mut stage, &before, &mut differences))?;
    let runs_before = step("recover", || recover(&host, &mut stage, &before, &mut differences))?;
    step("start the workers again", || {
        stage.start_workers_again()?;
        stage.wait_until_idle()
    })?;
    show_end(&mut stage, &runs_before, &mut differences)?;
    step("look once more", || {
        let report = host.once()?;
        differences.check_last_pass(&report);
        println!("{} jobs are in no queue.", report.len());
        Ok(())
    })?;
    conclude(&differences)
}

fn show_before(stage: &mut Stage<'_>, differences: &mut Differences) -> Result<Vec<Found>> {
    let found = look(stage)?;
    differences.check_states("before the recovery", &found, |situation| &situation.before);
    println!("{}", table::before(&stage.entries, &found));
    println!(
        "(alive), (dead): whether a worker still renews the entry's lock. To whoever waits for them, all but one look"
    );
    println!("the same: not finished.\n");
    Ok(found)
}

/// The first pass on queues that Salvage has never seen.
fn meet(host: &Host, stage: &mut Stage<'_>, before: &[Found], differences: &mut Differences) -> Result<()> {
    host.salvage(&["migrate"])?;
    let report = host.once()?;
    differences.check_first_pass(&report, before, &look(stage)?);
    println!(
        "{} jobs are in no queue. None was touched: this may be the wrong Redis, or an old copy of the right one. A new\n\
         host asks once, and you answer: what this Redis holds is the truth.",
        report.len()
    );
    host.salvage(&["accept", "--all"]).map(drop)
}

fn recover(
    host: &Host,
    stage: &mut Stage<'_>,
    before: &[Found],
    differences: &mut Differences,
) -> Result<Vec<Run>> {
    let runs = stage.runs()?;
    let report = host.once()?;
    let found = look(stage)?;
    differences.check_recovery(&report, before, &found);
    differences.check_states("after the recovery", &found, |situation| &situation.recovered);
    println!("{}", table::recovery(&report, before, &found));
    println!("{}", summary(&report));
    Ok(runs)
}

fn show_end(stage: &mut Stage<'_>, runs_before: &[Run], differences: &mut Differences) -> Result<()> {
    let found = look(stage)?;
    let runs = stage.runs()?;
    differences.check_states("at the end", &found, |situation| &situation.end);
    differences.check_runs(runs_before, &runs);
    println!("{}\n", table::end(&found, runs_before, &runs));
    Ok(())
}

fn summary(report: &Report) -> String {
    let count = |decision| report.values().filter(|told| told.decision == decision).count();
    let (put_back, failed) = (count("requeue"), count("fail"));
    let left_alone = SITUATIONS.len() - report.len();
    format!("{put_back} put back, {failed} marked failed with a reason, {left_alone} left alone.")
}

fn conclude(differences: &Differences) -> Result<()> {
    if !differences.list().is_empty() {
        bail!("the demo did not end as it should:\n{}", differences.list().join("\n"));
    }
    let put_back =
        SITUATIONS.iter().filter(|situation| matches!(situation.verdict, Verdict::PutBack(_))).count();
    println!(
        "All {} jobs ended as they should; each of the {put_back} that were put back ran once.",
        SITUATIONS.len()
    );
    println!(
        "Next: README.md says how to run Salvage beside your own workers, handlers/README.md how to teach it a domain."
    );
    Ok(())
}
