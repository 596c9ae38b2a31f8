//! Salvage, the Node reference and the floor, in turns on the same seeded servers.
//!
//! In turns, so that whatever else the machine does falls on all of them: what can be compared between machines is their
//! ratios. Each runs in a process of its own, beside a client of Redis that only waits for answers.

mod contenders;
mod figures;
mod floor;
mod rest;
mod table;
mod targets;
mod world;

use crate::meter::Meter;
use crate::seed::{Seed, Size};
use anyhow::{Context, Result, bail};
use figures::{Figures, Results, Runs};
use std::fs;
use std::path::PathBuf;
use targets::Targets;
use world::World;

pub(crate) use floor::{Options as FloorOptions, run as floor};

/// Runs of each contender.
const RUNS: usize = 5;

/// A reference that takes longer is run once: it only says how far away it is.
const REFERENCE_SLOW_MS: f64 = 60_000.0;

/// An acting pass that takes longer is run once.
const ACTING_SLOW_MS: f64 = 15_000.0;

#[derive(clap::Args)]
pub(crate) struct Options {
    /// Ids in all queues together, and candidates, of each comparison
    #[arg(long, value_delimiter = ',', default_value = "10k/1k,100k/1k,100k/10k,1M/100k")]
    sizes: Vec<Size>,
    /// Leave out what depends on no size: payloads, nothing to do, idling
    #[arg(long)]
    no_rest: bool,
    /// Only that
    #[arg(long, conflicts_with_all = ["sizes", "no_rest"])]
    only_rest: bool,
    /// Print the figures as JSON, too
    #[arg(long)]
    json: bool,
    /// Fail if a ratio that is aimed at was missed
    #[arg(long)]
    check: bool,
    /// Where to leave the figures as JSON
    #[arg(long)]
    out: Option<PathBuf>,
}

pub(crate) fn run(options: &Options) -> Result<()> {
    let targets = Targets::read()?;
    let mut results = Results::default();
    for size in options.sizes.iter().filter(|_| !options.only_rest) {
        let figures = compared(*size).with_context(|| format!("comparing at {size}"))?;
        println!("\n{}\n{}", table::heading(*size), table::contenders(&figures));
        results.0.push((size.to_string(), figures));
    }
    if !options.no_rest {
        let figures = rest::measured().context("measuring what depends on no size")?;
        println!("\n{}", table::rest(&figures));
        results.0.push(("rest".to_owned(), figures));
    }
    let verdicts = targets.verdicts(&results);
    println!("\n{}", table::verdicts(&verdicts));
    let json = serde_json::to_string_pretty(&results)?;
    if let Some(file) = &options.out {
        fs::write(file, &json).with_context(|| format!("writing {}", file.display()))?;
    }
    if options.json {
        println!("\n{json}");
    }
    let missed: Vec<&str> =
        verdicts.iter().filter(|verdict| verdict.fails).map(|verdict| &*verdict.name).collect();
    if options.check && !missed.is_empty() {
        bail!("missed by more than {:.0} %: {}", targets.tolerance * 100.0, missed.join("; "));
    }
    Ok(())
}

fn compared(size: Size) -> Result<Figures> {
    eprintln!("{size}: seeding");
    let mut world = World::seeded(Seed::usual(size))?;
    let usage = Meter::of_usage(&world.redis)?;
    // Once without counting: caches fill, and the servers' memory grows to what they need.
    contenders::dry_run(&world, usage)?;
    contenders::floor(&world, usage, size)?;
    let (mut salvage, mut reference, mut floor) = (Runs::default(), Runs::default(), Runs::default());
    for run in 1..=RUNS {
        eprintln!("{size}: run {run} of {RUNS}");
        salvage.add(usage, |meter| contenders::dry_run(&world, meter))?;
        floor.add(usage, |meter| contenders::floor(&world, meter, size))?;
        if !reference.is_slow("lookup_ms", REFERENCE_SLOW_MS) {
            reference.measured.push(contenders::reference(&world, usage)?);
        }
    }
    if !reference.is_slow("lookup_ms", REFERENCE_SLOW_MS) {
        reference.stalled.push(contenders::reference(&world, Meter::Stall)?);
    }
    let mut acting = Runs::default();
    while acting.measured.len() < RUNS && !acting.is_slow("pass_ms", ACTING_SLOW_MS) {
        eprintln!("{size}: acting, run {} of {RUNS}", acting.measured.len() + 1);
        acting.add(usage, |meter| contenders::acting(&mut world, meter))?;
    }
    let mut figures = Figures::default();
    for (of, runs) in
        [("salvage", &salvage), ("reference", &reference), ("floor", &floor), ("acting", &acting)]
    {
        figures.add_medians(of, runs)?;
    }
    Ok(figures)
}
