//! What depends on no size: payloads that are never read, a pass with nothing to do, a host between two passes.

use super::contenders::dry_run;
use super::figures::{Figures, Runs};
use super::world::{LOGGED, SEEDED, World};
use super::{RUNS, contenders};
use crate::meter::{Meter, median};
use crate::seed::{Mix, Seed, Size};
use anyhow::{Context, Result, bail, ensure};
use salvage_services::until;
use std::fs::{self, File};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

const SIZE: Size = Size { ids: 10_000, candidates: 1_000 };
const NOTHING: Size = Size { ids: 1_000, candidates: 0 };

/// Characters of the payloads: one is a hundred times the other.
const PAYLOADS: [usize; 2] = [100, 10_000];

/// How long a host is watched that has nothing to do.
const WATCHED: Duration = Duration::from_secs(10);

/// How long its first pass may take.
const FIRST_PASS_WITHIN: Duration = Duration::from_secs(60);

pub(super) fn measured() -> Result<Figures> {
    let mut figures = Figures::default();
    payloads(&mut figures)?;
    nothing_to_do(&mut figures)?;
    recovery(&mut figures)?;
    Ok(figures)
}

/// All candidates are in their queues, under small and under large payloads.
fn payloads(figures: &mut Figures) -> Result<()> {
    eprintln!("payloads: seeding");
    let world = |payload_chars| World::seeded(Seed { size: SIZE, mix: Mix::AllScheduled, payload_chars });
    let worlds = [world(PAYLOADS[0])?, world(PAYLOADS[1])?];
    let usage = Meter::of_usage(&worlds[0].redis)?;
    let mut runs = [vec![], vec![]];
    for run in 0..=RUNS {
        for (world, runs) in worlds.iter().zip(&mut runs) {
            let figures = dry_run(world, usage)?;
            ensure!(figures.get("scan_ran") == Some(0.0), "payloads were read though all ids were found");
            // The first one only warms up.
            if run > 0 {
                runs.push(figures.get("lookup_ms").context("no lookup_ms")?);
            }
        }
    }
    for (name, runs) in ["small", "large"].into_iter().zip(runs) {
        figures.set(format!("scheduled.{name}_payload_ms"), median(runs)?);
    }
    Ok(())
}

/// One pass without candidates, and then none.
fn nothing_to_do(figures: &mut Figures) -> Result<()> {
    eprintln!("idling: seeding");
    let world = World::seeded(Seed::usual(NOTHING))?;
    let mut walls = vec![];
    for _ in 0..RUNS {
        walls.push(world.salvage(SEEDED, &["once"])?.cost.wall_ms);
    }
    figures.set("idle.once_ms", median(walls)?);
    let host = IdleHost::start(&world)?;
    let before = host.cpu_ms()?;
    std::thread::sleep(WATCHED);
    figures.set("idle.cpu_ms_per_s", (host.cpu_ms()? - before) / WATCHED.as_secs_f64());
    figures.set("idle.rss_mb", host.rss_mb()?);
    Ok(())
}

/// How quickly orphans are put back when there is little else: short queues, and as many gone as is no mass loss yet.
fn recovery(figures: &mut Figures) -> Result<()> {
    eprintln!("recovery: seeding");
    let size = Size { ids: 5_000, candidates: 5_000 };
    let mut world = World::seeded(Seed { mix: Mix::HalfAbsent, ..Seed::usual(size) })?;
    let usage = Meter::of_usage(&world.redis)?;
    let mut runs = Runs::default();
    for _ in 0..RUNS {
        runs.measured.push(contenders::acting(&mut world, usage)?);
    }
    figures.add_medians("recovery", &runs)
}

/// `salvage run` between its first pass and its second.
struct IdleHost(Child);

impl IdleHost {
    fn start(world: &World) -> Result<Self> {
        let log = world.folder().join("run.log");
        let mut command = Command::new(world.binary());
        command.arg("run").current_dir(world.folder()).stdin(Stdio::null()).stdout(Stdio::null());
        command.env("DATABASE_URL", world.database_url(SEEDED)).env("RUST_LOG", LOGGED);
        command.stderr(File::create(&log).context("making the host's log")?);
        let mut host = Self(command.spawn().context("starting `salvage run`")?);
        until("the first pass of `salvage run` ends", FIRST_PASS_WITHIN, || {
            if let Some(status) = host.0.try_wait()? {
                bail!("it ended ({status})");
            }
            Ok(fs::read_to_string(&log)?.contains("pass done"))
        })?;
        Ok(host)
    }

    /// User and system.
    fn cpu_ms(&self) -> Result<f64> {
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.0.id()))?;
        // `pid (name) state …`: counted from the last bracket, user and system time are the 12th and 13th.
        let fields = stat.rsplit_once(')').context("an odd /proc/PID/stat")?.1.split_whitespace();
        let ticks: f64 = fields.skip(11).take(2).map(|field| field.parse::<f64>().unwrap_or(0.0)).sum();
        // SAFETY: sysconf(3) takes a number and touches no memory of ours.
        let per_second = unsafe { libc::sysconf(libc::_SC_CLK_TCK) } as f64;
        Ok(ticks / per_second * 1e3)
    }

    fn rss_mb(&self) -> Result<f64> {
        let status = fs::read_to_string(format!("/proc/{}/status", self.0.id()))?;
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).context("no VmRSS")?;
        let kb: f64 = line.trim().trim_end_matches(" kB").parse()?;
        Ok(kb / 1_024.0)
    }
}

impl Drop for IdleHost {
    fn drop(&mut self) {
        // It has nothing to finish, and a destructor has nobody to tell.
        drop(self.0.kill());
        drop(self.0.wait());
    }
}
