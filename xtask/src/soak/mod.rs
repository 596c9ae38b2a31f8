//! `cargo xtask soak`: real workers, servers and hosts that are killed, frozen and restarted for minutes, and what became
//! of every job.
//!
//! The application enqueues and its workers work all the while. A seeded order of disasters goes over all of them, and takes
//! entries out of their queues: that makes the orphans. When it ends, everybody is brought back, and the hosts have time
//! until nothing changes any more. Then every job must be COMPLETED, FAILED with a true reason, or QUEUED with an entry.
//! What that means exactly is in [`mod@audit`]; what can happen, in [`mod@chaos`].

mod audit;
mod chance;
mod chaos;
mod crew;
mod facts;
mod hosts;
mod queue;
mod traffic;
mod world;

use crate::demo::application::Table;
use crate::demo::driver::Driver;
use crate::demo::host::Host;
use crate::run::step;
use crate::{build, interrupt, setup};
use anyhow::{Result, bail};
use audit::{Counts, Facts, Key, Violation, audit};
use chaos::{Chaos, Done, Event};
use comfy_table::presets::UTF8_FULL_CONDENSED;
use hosts::Hosts;
use salvage_services::until;
use serde_json::json;
use std::collections::BTreeSet;
use std::path::PathBuf;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use traffic::Traffic;
use world::World;

/// Processes of workers.
const CREWS: usize = 2;

/// From one look at the queues to the next.
const LOOK_EVERY: Duration = Duration::from_millis(400);

/// From one line of progress to the next.
const TELL_EVERY: Duration = Duration::from_secs(5);

/// How long the end may take: an entry that failed is looked at only after a minute, and a mass of orphans goes in stages.
const CALM_WITHIN: Duration = Duration::from_secs(300);

/// Shorter soaks leave no `failed` entries, which would make their end as long as they are.
const LEAVES_FAILED_FROM: Duration = Duration::from_secs(60);

/// As many violations are told with their story.
const STORIES_MAX: usize = 20;

#[derive(clap::Args)]
pub(crate) struct Options {
    /// How long things go wrong; may be a fraction
    #[arg(long, default_value_t = 10.0)]
    minutes: f64,
    /// What goes wrong, and when; a new one each time if it is not given
    #[arg(long)]
    seed: Option<u64>,
    /// Processes of `salvage run`
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u64).range(1..=16))]
    hosts: u64,
}

/// A soak to be.
struct Plan {
    lasts: Duration,
    seed: u64,
    hosts: usize,
}

pub(crate) fn run(options: &Options) -> Result<()> {
    let Ok(lasts) = Duration::try_from_secs_f64(options.minutes * 60.0) else {
        bail!("--minutes {}: expected a number above 0, such as 10 or 0.5", options.minutes);
    };
    let by_clock = || SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    let seed = options.seed.unwrap_or_else(by_clock);
    setup::run()?;
    build::handlers()?;
    let binary = build::host(true)?;
    soak(binary, &Plan { lasts, seed, hosts: usize::try_from(options.hosts)? })
}

fn soak(binary: PathBuf, plan: &Plan) -> Result<()> {
    println!("seed {}: `--seed {}` lets the same things go wrong in the same order", plan.seed, plan.seed);
    println!("hosts and application log to {}", hosts::logs().display());
    let (host, world) = step("start private servers, and let Salvage meet the queues", || meet(binary))?;
    let (database, redis_url) = (world.database.clone(), world.redis.url());
    let hosts = Hosts::start(&host, plan.hosts)?;
    let mut chaos = Chaos::start(world, hosts, CREWS, plan.seed)?;
    let mut doubled = BTreeSet::new();
    step(&format!("let things go wrong for {} s", plan.lasts.as_secs()), || {
        let leaves_failed = plan.lasts >= LEAVES_FAILED_FROM;
        let traffic = Traffic::start(&database, &redis_url, plan.seed, leaves_failed)?;
        go_wrong(&mut chaos, &traffic, plan.lasts, &mut doubled)?;
        chaos.end()?;
        traffic.end()
    })?;
    step("wait until nothing changes any more", || calm_down(&mut chaos, &mut doubled))?;
    let facts = facts::read(&chaos.world, &chaos.done.lost, &doubled)?;
    let (counts, violations) = audit(&facts);
    println!("{}\n", table(&counts, &chaos.done, &facts));
    conclude(&host, &violations)
}

/// Queues in use, Salvage's tables, and the operator's word that these are the right queues.
fn meet(binary: PathBuf) -> Result<(Host, World)> {
    let world = World::start()?;
    let redis_url = world.redis.url();
    let mut driver = Driver::open(&redis_url)?;
    for table in Table::ALL {
        let queue = table.shape().queue;
        let id = driver.add(queue, "first", &json!({}), &json!({ "delay": 60_000 }))?;
        driver.call("remove", json!({ "queue": queue, "job": id }))?;
    }
    let host = Host::new(binary, &world.database, &redis_url, hosts::PASS)?;
    for words in [&["migrate"][..], &["once"], &["accept", "--all"]] {
        host.salvage(words)?;
    }
    Ok((host, world))
}

fn go_wrong(
    chaos: &mut Chaos<'_>,
    traffic: &Traffic,
    lasts: Duration,
    doubled: &mut BTreeSet<Key>,
) -> Result<()> {
    let (began, mut told) = (Instant::now(), Instant::now());
    while began.elapsed() < lasts && !traffic.has_ended() {
        if interrupt::came() {
            bail!("interrupted");
        }
        chaos.go_on()?;
        look_for_doubles(&chaos.world, doubled)?;
        if told.elapsed() > TELL_EVERY {
            told = Instant::now();
            let happened: u64 = Event::ALL.map(|event| chaos.done.count(event)).iter().sum();
            println!("{:>4} s: {} jobs, {happened} disasters", began.elapsed().as_secs(), traffic.jobs());
        }
        std::thread::sleep(LOOK_EVERY);
    }
    Ok(())
}

fn look_for_doubles(world: &World, doubled: &mut BTreeSet<Key>) -> Result<()> {
    let twice = facts::counted(&world.entries()?).into_iter().filter(|(_, count)| *count > 1);
    doubled.extend(twice.map(|(key, _)| key));
    Ok(())
}

/// Until no row is left that is live without an entry that waits for its time. What is not right by then is a violation.
fn calm_down(chaos: &mut Chaos<'_>, doubled: &mut BTreeSet<Key>) -> Result<()> {
    let mut told = Instant::now();
    let calm = until("every job is where it belongs", CALM_WITHIN, || {
        if interrupt::came() {
            bail!("interrupted");
        }
        chaos.hosts.check()?;
        look_for_doubles(&chaos.world, doubled)?;
        let facts = facts::read(&chaos.world, &chaos.done.lost, doubled)?;
        let left = facts.rows.iter().filter(|row| !is_at_rest(row, &facts)).count();
        if told.elapsed() > TELL_EVERY {
            told = Instant::now();
            println!("{left} jobs are under way");
        }
        if left > 0 {
            std::thread::sleep(LOOK_EVERY);
        }
        Ok(left == 0)
    });
    match calm {
        Err(error) if !interrupt::came() => {
            println!("{error:#}");
            Ok(())
        }
        calm => calm,
    }
}

/// Whether nothing more will happen to it. A row that still waits for the next minutes is not.
fn is_at_rest(row: &audit::Row, facts: &Facts) -> bool {
    match row.status.as_str() {
        "QUEUED" => facts.for_later.contains(&row.key),
        "PROCESSING" => false,
        _ => true,
    }
}

fn table(counts: &Counts, done: &Done, facts: &Facts) -> comfy_table::Table {
    let mut table = comfy_table::Table::new();
    table.load_style(UTF8_FULL_CONDENSED);
    table.set_header(["what", "how many"]);
    let mut add = |what: &str, count: usize| {
        table.add_row([what, &count.to_string()]);
    };
    for event in Event::ALL {
        add(event.words(), usize::try_from(done.count(event)).unwrap_or(usize::MAX));
    }
    add("jobs", counts.jobs);
    add("COMPLETED", counts.completed);
    add("FAILED with a true reason", counts.failed);
    add("QUEUED with an entry", counts.queued);
    add("runs of jobs", facts.runs.len());
    add("recoveries", counts.recoveries);
    add("jobs with two live entries", counts.doubled);
    add("jobs run twice because of Salvage", counts.run_twice);
    add("terminal rows changed by Salvage", counts.terminal_changed);
    add("parents READY downgraded by Salvage", counts.parents_downgraded);
    table
}

fn conclude(host: &Host, violations: &[Violation]) -> Result<()> {
    for Violation { key, what } in violations.iter().take(STORIES_MAX) {
        println!("{} {} {what}", key.source, key.job);
        // A parent has no story.
        if key.source.contains('/') {
            match host.salvage(&["explain", &key.source, &key.job]) {
                Ok(story) => println!("{story}"),
                Err(error) => println!("{error:#}"),
            }
        }
    }
    if !violations.is_empty() {
        bail!("{} violations, of which the first {STORIES_MAX} are told above", violations.len());
    }
    println!("Every job is COMPLETED, FAILED with a true reason, or QUEUED with an entry.");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The whole soak, for long enough that each part of it happens. `cargo xtask soak` is the same for ten minutes.
    #[test]
    fn a_short_soak_leaves_every_job_where_it_belongs() -> Result<()> {
        let binary = std::env::var_os("SALVAGE_TEST_BIN");
        let binary = binary.expect("SALVAGE_TEST_BIN is not set: run the tests by `cargo xtask test`");
        soak(binary.into(), &Plan { lasts: Duration::from_secs(20), seed: 5, hosts: 2 })
    }
}
