//! What each way of taking a snapshot costs: the host, Redis, and above all the other clients of Redis.
//!
//! `cargo xtask bench snapshot` runs it. A private Redis is filled with ids under BullMQ's own keys; entries have no hashes,
//! for none of the ways reads one. Each look runs in a process of its own, so that its peak memory is its own, while another
//! client sends a PING a millisecond after each PONG; the longest wait for a PONG is what a look costs that client.
//!
//! Prints two tables in Markdown: what the ways cost, and what the single commands cost that they are made of, by Redis's
//! own measure. `docs/snapshots.md` holds both and says what follows from them.

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use salvage::ports::{Ask, Queues};
use salvage::redis::{RedisQueues, RedisSettings, SnapshotLimits};
use salvage_core::candidate::{Candidate, LiveStatus, RowToken};
use salvage_core::lookup::Lookup;
use salvage_core::manifest::{IdTemplate, QueueRule, Source, TableMapping};
use salvage_core::snapshot::{IdsPage, Snapshot, State};
use salvage_core::source::{ColumnTypes, IdKind, ResolvedSource, SourceName, Standing};
use salvage_services::Redis;

use crate::meter::{Prober, Usage, median};
use crate::runtime;

const QUEUE: &str = "slide-generation";

/// Runs of each way; the table shows the median of each figure.
const RUNS: usize = 5;

/// Candidates of each look. In all ways but [`Way::AllThere`] the last of them is in no queue, so every id is looked at.
const CANDIDATES: usize = 1_000;

/// As in a pass.
const IDS_PER_PAGE: usize = 10_000;

/// Ids in one command while a queue is filled.
const FILL_BATCH: usize = 1_000;

/// Where the ids are.
#[derive(Debug, Clone, Copy)]
enum Layout {
    Waiting,
    Delayed,
    Mixed,
}

impl Layout {
    const ALL: [Self; 3] = [Self::Waiting, Self::Delayed, Self::Mixed];

    const fn name(self) -> &'static str {
        match self {
            Self::Waiting => "all in `wait`",
            Self::Delayed => "all in `delayed`",
            Self::Mixed => "½ `wait`, ⅓ `delayed`, ⅙ `prioritized`",
        }
    }

    const fn state(self, number: usize) -> State {
        match self {
            Self::Waiting => State::Waiting,
            Self::Delayed => State::Delayed,
            Self::Mixed => match number % 6 {
                0..=2 => State::Waiting,
                3..=4 => State::Delayed,
                _ => State::Prioritized,
            },
        }
    }
}

/// How a look is made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    /// No look: what the other client waits for anyway.
    None,
    /// No candidates.
    Guards,
    Ranges,
    Copies,
    /// As the host chooses, and one is missing.
    Chosen,
    /// As the host chooses, and all candidates are found by their ids.
    AllThere,
}

impl Way {
    const ALL: [Self; 6] =
        [Self::None, Self::Guards, Self::Ranges, Self::Copies, Self::Chosen, Self::AllThere];

    const fn name(self) -> &'static str {
        match self {
            Self::None => "no look at all",
            Self::Guards => "guards only",
            Self::Ranges => "MULTI of ranges",
            Self::Copies => "MULTI of copies",
            Self::Chosen => "**as chosen**, one is missing",
            Self::AllThere => "**as chosen**, all are there",
        }
    }

    const fn limits(self) -> SnapshotLimits {
        match self {
            Self::Ranges => SnapshotLimits::all_ranges(),
            Self::Copies => SnapshotLimits::all_copies(),
            Self::None | Self::Guards | Self::Chosen | Self::AllThere => SnapshotLimits::measured(),
        }
    }
}

#[derive(clap::Args)]
pub(crate) struct Options {
    /// How many ids the queue holds
    #[arg(default_values_t = [100_000, 1_000_000])]
    sizes: Vec<usize>,
}

#[derive(clap::Args)]
pub(crate) struct LookOptions {
    way: String,
    url: String,
    size: usize,
}

pub(crate) fn look(options: &LookOptions) -> Result<()> {
    let way = Way::ALL.into_iter().find(|of| of.name() == options.way).context("no such way")?;
    runtime()?.block_on(look_once(way, &options.url, options.size))
}

// ── the driver ─────────────────────────────────────────────────────────────────────────────────────────────────────────

/// What one run showed.
#[derive(Debug, Clone, Copy, Default)]
struct Run {
    stall_max_ms: f64,
    stall_p99_ms: f64,
    took_ms: f64,
    redis_cpu_ms: f64,
    bytes: f64,
    peak_rss_mb: f64,
}

pub(crate) fn run(options: &Options) -> Result<()> {
    let mut costs = vec![];
    println!(
        "| ids | where | way | longest stall | p99 | × ranges | time | Redis CPU | bytes | host, peak RSS |"
    );
    println!("|---|---|---|---|---|---|---|---|---|---|");
    for &size in &options.sizes {
        for layout in Layout::ALL {
            let redis = Redis::start()?;
            runtime()?.block_on(fill(&redis.url(), layout, size))?;
            // Once without counting: the server's memory grows to what it needs, as it has in one that runs for long.
            for way in Way::ALL {
                one(&redis, way, size)?;
            }
            // Alternating, so that what else the machine does falls on all ways.
            let mut runs: Vec<Vec<Run>> = vec![vec![]; Way::ALL.len()];
            for _ in 0..RUNS {
                for (way, runs) in Way::ALL.into_iter().zip(&mut runs) {
                    runs.push(one(&redis, way, size)?);
                }
            }
            let medians: Vec<Run> = runs.iter().map(|runs| medians(runs)).collect::<Result<_>>()?;
            let ranges = medians[Way::ALL.iter().position(|way| *way == Way::Ranges).context("ranges")?];
            for (way, run) in Way::ALL.into_iter().zip(medians) {
                print(size, layout, way, &run, &ranges);
            }
            for command in commands(layout) {
                costs.push((size, command, runtime()?.block_on(cost(&redis, command))?));
            }
        }
    }
    println!("\n| ids | command | Redis is busy for | per id |\n|---|---|---|---|");
    for (size, command, took) in costs {
        let (ms, per_id_us) = (took.as_secs_f64() * 1e3, took.as_secs_f64() * 1e6 / size as f64);
        println!("| {size} | `{command}` | {ms:.2} ms | {per_id_us:.4} µs |");
    }
    Ok(())
}

/// Commands on the one long state of a layout; `@` stands for the queue.
const fn commands(layout: Layout) -> &'static [&'static str] {
    match layout {
        Layout::Waiting => &["LRANGE @wait 0 -1", "LPOS @wait absent", "COPY @wait @copy", "DEL @copy"],
        Layout::Delayed => &[
            "ZRANGE @delayed 0 -1",
            "ZMSCORE @delayed absent",
            "COPY @delayed @copy",
            "DEL @copy",
            "SORT @delayed BY nosort STORE @copy",
            "DEL @copy",
        ],
        Layout::Mixed => &[],
    }
}

/// How long Redis was busy with a command, the median of some runs. What it made is removed before it makes it again, as
/// is what `DEL` removes made before.
async fn cost(redis: &Redis, command: &str) -> Result<Duration> {
    let mut client = connect(&redis.url()).await?;
    let words: Vec<String> =
        command.split(' ').map(|word| word.replace('@', &format!("bull:{QUEUE}:"))).collect();
    let copy = format!("bull:{QUEUE}:copy");
    let is_made_by = words.last() == Some(&copy) && words[0] != "DEL";
    let runs = if words[0] == "DEL" { 1 } else { RUNS };
    let mut costs = vec![];
    for _ in 0..runs {
        if is_made_by {
            redis::cmd("UNLINK").arg(&copy).query_async::<()>(&mut client).await?;
        }
        redis.command(&["CONFIG", "RESETSTAT"])?;
        redis::cmd(&words[0]).arg(&words[1..]).query_async::<redis::Value>(&mut client).await?;
        let stats = redis.command(&["INFO", "commandstats"])?;
        let name = format!("cmdstat_{}:", words[0].to_lowercase());
        let line =
            stats.lines().find_map(|line| line.strip_prefix(&name)).context("the command's statistics")?;
        let us = line.split(',').find_map(|part| part.strip_prefix("usec=")).context("its time")?;
        costs.push(Duration::from_micros(us.parse()?));
    }
    costs.sort_unstable();
    Ok(costs[costs.len() / 2])
}

fn print(size: usize, layout: Layout, way: Way, run: &Run, ranges: &Run) {
    let Run { stall_max_ms, stall_p99_ms, took_ms, redis_cpu_ms, bytes, peak_rss_mb } = run;
    let ratio = stall_max_ms / ranges.stall_max_ms;
    println!(
        "| {size} | {} | {} | {stall_max_ms:.1} ms | {stall_p99_ms:.1} ms | {ratio:.2} | {took_ms:.0} ms | \
         {redis_cpu_ms:.0} ms | {:.1} MB | {peak_rss_mb:.0} MB |",
        layout.name(),
        way.name(),
        bytes / 1e6,
    );
}

fn medians(runs: &[Run]) -> Result<Run> {
    let median = |of: fn(&Run) -> f64| median(runs.iter().map(of));
    Ok(Run {
        stall_max_ms: median(|run| run.stall_max_ms)?,
        stall_p99_ms: median(|run| run.stall_p99_ms)?,
        took_ms: median(|run| run.took_ms)?,
        redis_cpu_ms: median(|run| run.redis_cpu_ms)?,
        bytes: median(|run| run.bytes)?,
        peak_rss_mb: median(|run| run.peak_rss_mb)?,
    })
}

/// One look by a child, beside the client that waits for its PONGs.
fn one(redis: &Redis, way: Way, size: usize) -> Result<Run> {
    let mut child = Command::new(std::env::current_exe()?)
        .args(["look", way.name(), &redis.url(), &size.to_string()])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()?;
    let mut told = BufReader::new(child.stdout.take().context("the child's stdout")?);
    let mut line = String::new();
    told.read_line(&mut line)?;
    ensure!(line == "ready\n", "the look's process said {line:?}");
    let before = Usage::of(redis)?;
    let prober = Prober::start(redis)?;
    child.stdin.take().context("the child's stdin")?.write_all(b"go\n")?;
    line.clear();
    told.read_line(&mut line)?;
    let waits = prober.stop()?;
    let after = Usage::of(redis)?;
    ensure!(child.wait()?.success(), "the look failed");
    let (took_ms, peak_rss_mb) = line.trim().split_once(' ').context("the look's figures")?;
    Ok(Run {
        stall_max_ms: waits.longest_ms(),
        stall_p99_ms: waits.p99_ms(),
        took_ms: took_ms.parse()?,
        redis_cpu_ms: after.cpu_ms - before.cpu_ms,
        bytes: after.bytes_out - before.bytes_out - waits.bytes(),
        peak_rss_mb: peak_rss_mb.parse()?,
    })
}

/// A connection that waits as long as it takes.
async fn connect(url: &str) -> Result<redis::aio::MultiplexedConnection> {
    let patient = redis::AsyncConnectionConfig::new().set_response_timeout(None);
    Ok(redis::Client::open(url)?.get_multiplexed_async_connection_with_config(&patient).await?)
}

async fn fill(url: &str, layout: Layout, size: usize) -> Result<()> {
    let mut redis = connect(url).await?;
    let key = |suffix: &str| format!("bull:{QUEUE}:{suffix}");
    redis::cmd("SET").arg(key("id")).arg(size).query_async::<()>(&mut redis).await?;
    redis::cmd("HSET").arg(key("meta")).arg("version").arg("bullmq").query_async::<()>(&mut redis).await?;
    let numbers: Vec<usize> = (0..size).collect();
    for batch in numbers.chunks(FILL_BATCH) {
        let mut commands = redis::pipe();
        for state in State::ALL {
            let own: Vec<usize> = batch.iter().copied().filter(|n| layout.state(*n) == state).collect();
            if own.is_empty() {
                continue;
            }
            let command = commands.cmd(if state.is_list() { "LPUSH" } else { "ZADD" }).arg(key(state.key()));
            for number in own {
                if !state.is_list() {
                    // As BullMQ scores a delayed entry: its due time, spread so that neighbours lie apart in memory.
                    command.arg((1_700_000_000_000 + scattered(number, size)) << 12);
                }
                command.arg(entry_id(number));
            }
            command.ignore();
        }
        commands.query_async::<()>(&mut redis).await?;
    }
    Ok(())
}

const fn scattered(number: usize, size: usize) -> u64 {
    (number * 7_919 % size) as u64
}

fn row_id(number: usize) -> String {
    format!("c{number:024}")
}

fn entry_id(number: usize) -> String {
    format!("slide-{}", row_id(number))
}

// ── the look ───────────────────────────────────────────────────────────────────────────────────────────────────────────

async fn look_once(way: Way, url: &str, size: usize) -> Result<()> {
    let settings = RedisSettings::single(url, "bull", Duration::from_secs(30));
    let queues = RedisQueues::new(&settings)?.with_limits(way.limits());
    let names = BTreeSet::from([QUEUE.to_owned()]);
    let sources = [source()];
    let candidates = candidates(way, size);
    queues.snapshot(&Ask::guards(&BTreeSet::new())).await?;
    println!("ready");
    std::io::stdin().lock().read_line(&mut String::new())?;
    let began = Instant::now();
    match way {
        // As long as a short look takes.
        Way::None => tokio::time::sleep(Duration::from_millis(200)).await,
        Way::Guards => drop(queues.snapshot(&Ask::guards(&names)).await?),
        Way::Ranges | Way::Copies => {
            let mut lookup = Lookup::new(&sources, &candidates, 0);
            read_ids(&queues, &Ask { copies: Some("bench"), ..Ask::ids(&names) }, &mut lookup).await?;
            ensure!(lookup.unresolved() == 1, "{} candidates were not found", lookup.unresolved());
        }
        Way::Chosen | Way::AllThere => {
            let mut lookup = Lookup::new(&sources, &candidates, 0);
            look_up(&queues, &names, &mut lookup).await?;
            let expected = usize::from(way == Way::Chosen);
            ensure!(lookup.unresolved() == expected, "{} candidates were not found", lookup.unresolved());
        }
    }
    queues.remove_copies().await;
    println!("{} {}", began.elapsed().as_secs_f64() * 1e3, peak_rss_mb()?);
    Ok(())
}

/// As a pass does it: without long sorted sets first, then by id in these, and everything only if anybody is left.
async fn look_up(queues: &RedisQueues, names: &BTreeSet<String>, lookup: &mut Lookup<'_>) -> Result<()> {
    let ask = Ask { is_whole: false, copies: Some("first"), ..Ask::ids(names) };
    let snapshot = read_ids(queues, &ask, lookup).await?;
    for state in snapshot.queues[QUEUE].missing() {
        let (positions, ids): (Vec<_>, Vec<_>) = lookup.unresolved_in(QUEUE).into_iter().unzip();
        let are_there = queues.are_in_set(QUEUE, state, &ids).await?;
        for (position, _) in positions.into_iter().zip(are_there).filter(|(_, is_there)| *is_there) {
            lookup.found(position, QUEUE, state);
        }
    }
    if lookup.is_needed() && !snapshot.queues[QUEUE].has_every_state() {
        read_ids(queues, &Ask { copies: Some("second"), ..Ask::ids(names) }, lookup).await?;
    }
    Ok(())
}

async fn read_ids(queues: &RedisQueues, ask: &Ask<'_>, lookup: &mut Lookup<'_>) -> Result<Snapshot> {
    let snapshot = queues.snapshot(ask).await?;
    let reading = &snapshot.queues[QUEUE];
    ensure!(reading.flaws.is_empty(), "{:?}", reading.flaws);
    for state in State::ALL {
        for ids in reading.ids.get(&state).into_iter().flat_map(|ids| ids.chunks(IDS_PER_PAGE)) {
            lookup.see(QUEUE, state, &IdsPage { ids: ids.into(), flaw: None });
        }
        if let Some(copy) = reading.copies.get(&state) {
            for from in (0..copy.length).step_by(IDS_PER_PAGE) {
                lookup.see(QUEUE, state, &queues.page(copy, from, IDS_PER_PAGE).await?);
            }
        }
    }
    Ok(snapshot)
}

fn candidates(way: Way, size: usize) -> Vec<Candidate> {
    let number = |index: usize| index * (size / CANDIDATES);
    // The last one is one too many.
    let first = usize::from(way != Way::AllThere);
    (first..first + CANDIDATES).map(|index| candidate(number(index))).collect()
}

fn candidate(number: usize) -> Candidate {
    Candidate {
        source: 0,
        token: RowToken {
            id: row_id(number),
            status: "QUEUED".into(),
            updated_at: "2026-01-31 09:00:00".into(),
            xmin: "7".into(),
        },
        status: LiveStatus::Queued,
        job_type: "GENERATION".into(),
        updated: jiff::Timestamp::UNIX_EPOCH,
    }
}

fn source() -> ResolvedSource {
    let rule = QueueRule::new(QUEUE, IdTemplate::parse("slide-{id}").expect("a rule with one {id}"), "jobId");
    let table = TableMapping {
        table: "SlideJob".into(),
        id: "id".into(),
        status: "status".into(),
        updated_at: "updatedAt".into(),
        job_type: None,
        progress: None,
        error: None,
        extra_columns: vec![],
        queued: "QUEUED".into(),
        processing: "PROCESSING".into(),
        failed: "FAILED".into(),
    };
    ResolvedSource {
        name: SourceName { domain: "slides".into(), source: "generation".into() },
        declared: Source {
            name: "generation".into(),
            table,
            job_types: vec![],
            queues: vec![rule],
            reads: vec![],
        },
        id_kind: IdKind::Text,
        types: ColumnTypes::default(),
        standing: Standing::Active,
        component_digest: String::new(),
        database_role: None,
    }
}

fn peak_rss_mb() -> Result<f64> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).context("no VmHWM")?;
    let kb: f64 = line.trim().trim_end_matches(" kB").parse()?;
    Ok(kb / 1_024.0)
}
