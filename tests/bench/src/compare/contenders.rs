//! One run of each contender.

use super::figures::Figures;
use super::world::{COPY, SEEDED, World, root, variable};
use crate::launch::{self, Ended};
use crate::meter::Meter;
use crate::seed::Size;
use anyhow::{Context, Result, ensure};
use serde_json::Value;
use std::ffi::OsString;

/// The steps of a pass up to where it knows of every candidate whether its job is scheduled.
const LOOK_UP: [&str; 4] = ["candidates", "look", "memory", "judge"];

/// A pass that writes nothing, on what was seeded.
pub(super) fn dry_run(world: &World, meter: Meter) -> Result<Figures> {
    let work = || world.salvage(SEEDED, &["once", "--dry-run", "--json"]);
    let (seen, ended) = meter.measure(&world.redis, work)?;
    let mut figures = pass(&ended)?;
    figures.seen(&seen);
    Ok(figures)
}

/// A pass that acts, on a fresh copy.
pub(super) fn acting(world: &mut World, meter: Meter) -> Result<Figures> {
    world.restore()?;
    let work = || world.salvage(COPY, &["once", "--json"]);
    let (seen, ended) = meter.measure(&world.redis, work)?;
    let mut figures = pass(&ended)?;
    figures.seen(&seen);
    acts(&ended, &mut figures)?;
    Ok(figures)
}

/// The Node program.
pub(super) fn reference(world: &World, meter: Meter) -> Result<Figures> {
    let command = [OsString::from("node"), root().join("tests/bench/reference.mjs").into_os_string()];
    let modules = variable("SALVAGE_TEST_BULLMQ")?.to_string_lossy().into_owned();
    let (port, url) = (world.redis.port().to_string(), world.database_url(SEEDED));
    let environment = [("REDIS_PORT", &*port), ("DATABASE_URL", &*url), ("NODE_MODULES", &*modules)];
    let work = || launch::measured(world.folder(), &command, &environment);
    let (seen, ended) = meter.measure(&world.redis, work)?;
    let mut figures = costs(&ended);
    figures.seen(&seen);
    let told = numbers(&ended, &mut figures)?;
    figures.set("lookup_ms", told["total_ms"].as_f64().context("no total_ms")?);
    Ok(figures)
}

/// The least that the same reads can cost.
pub(super) fn floor(world: &World, meter: Meter, size: Size) -> Result<Figures> {
    let this = std::env::current_exe().context("finding this program")?;
    let words = ["floor", "--size", &size.to_string()].map(OsString::from);
    let command: Vec<OsString> = std::iter::once(this.into_os_string()).chain(words).collect();
    let (redis, database) = (world.redis.url(), world.database_url(SEEDED));
    let environment = [("REDIS_URL", &*redis), ("DATABASE_URL", &*database)];
    let work = || launch::measured(world.folder(), &command, &environment);
    let (seen, ended) = meter.measure(&world.redis, work)?;
    let mut figures = costs(&ended);
    figures.seen(&seen);
    numbers(&ended, &mut figures)?;
    Ok(figures)
}

fn costs(ended: &Ended) -> Figures {
    let mut figures = Figures::default();
    figures.set("process_ms", ended.cost.wall_ms);
    figures.set("process_cpu_ms", ended.cost.cpu_ms);
    figures.set("peak_rss_mb", ended.cost.peak_rss_mb);
    figures
}

/// The numbers of the one JSON object that a contender prints.
fn numbers(ended: &Ended, figures: &mut Figures) -> Result<Value> {
    let told: Value = serde_json::from_str(&ended.stdout).context("reading what a contender printed")?;
    for (name, value) in told.as_object().context("a contender printed no object")? {
        if let Some(number) = value.as_f64() {
            figures.set(name, number);
        }
    }
    Ok(told)
}

/// What a pass reported and logged.
fn pass(ended: &Ended) -> Result<Figures> {
    let mut figures = costs(ended);
    let report: Value = serde_json::from_str(&ended.stdout).context("reading the pass's report")?;
    let of_pass = |name: &str| report["pass"][name].as_f64().with_context(|| format!("no pass.{name}"));
    figures.set("pass_ms", of_pass("duration_ms")?);
    figures.set("commands_sent", of_pass("redis_commands")?);
    let scan_ran = report["pass"]["scan_ran"].as_bool().context("no pass.scan_ran")?;
    figures.set("scan_ran", f64::from(u8::from(scan_ran)));
    let sources = report["sources"].as_array().context("no sources")?;
    for count in
        ["candidates", "scheduled", "absent", "unknown", "requeued", "failed", "before_epoch", "storm"]
    {
        figures.set(count, sources.iter().filter_map(|source| source[count].as_f64()).sum());
    }
    let steps = log(ended).filter(|line| line["message"] == "step");
    let mut lookup_ms = 0.0;
    for line in steps {
        let (step, us) = (line["step"].as_str().context("a step without a name")?, &line["duration_us"]);
        let ms = us.as_f64().context("a step without its duration")? / 1e3;
        lookup_ms += if LOOK_UP.contains(&step) { ms } else { 0.0 };
        figures.set(format!("step_{step}_ms"), ms);
    }
    ensure!(lookup_ms > 0.0, "the pass logged no steps");
    figures.set("lookup_ms", lookup_ms);
    Ok(figures)
}

/// How many acts were applied, and how many in a second of the stages that made them: the looks between these are none.
fn acts(ended: &Ended, figures: &mut Figures) -> Result<()> {
    let applied = log(ended).filter(|line| line["message"] == "act" && line["outcome"] == "applied").count();
    figures.set("acts", applied as f64);
    let stages = log(ended).filter(|line| line["message"] == "stage");
    let took_us: Vec<f64> = stages
        .map(|line| line["duration_us"].as_f64())
        .collect::<Option<_>>()
        .context("a stage without its duration")?;
    figures.set("stages", took_us.len() as f64);
    if applied > 0 {
        ensure!(!took_us.is_empty(), "the pass logged no stage");
        figures.set("acts_per_s", applied as f64 * 1e6 / took_us.iter().sum::<f64>());
    }
    Ok(())
}

fn log(ended: &Ended) -> impl Iterator<Item = Value> {
    ended.stderr.lines().filter_map(|line| serde_json::from_str(line).ok())
}
