//! What something costs Redis, and what another client of Redis waits meanwhile.

use anyhow::{Context, Result, anyhow};
use salvage_services::Redis;
use serde::Serialize;
use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

const PING: &[u8] = b"PING\r\n";
const PONG: &[u8] = b"+PONG\r\n";

/// Between a PONG and the next PING.
const PING_EVERY: Duration = Duration::from_millis(1);

/// Counters of a Redis server, or the difference of two readings.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub(crate) struct Usage {
    /// The main thread's, user and system.
    pub(crate) cpu_ms: f64,
    /// Commands run, those in scripts and transactions included.
    pub(crate) commands: f64,
    /// Times that Redis read from a client: one for each request, or for each 16 KB of a large one.
    pub(crate) reads: f64,
    pub(crate) bytes_in: f64,
    pub(crate) bytes_out: f64,
}

impl Usage {
    pub(crate) fn of(redis: &Redis) -> Result<Self> {
        let info = redis.command(&["INFO", "everything"])?;
        let number = |name: &str| -> Result<f64> {
            let line = info.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
            Ok(line.with_context(|| format!("INFO says no {name}"))?.trim().parse()?)
        };
        let cpu_s = number("used_cpu_user_main_thread")? + number("used_cpu_sys_main_thread")?;
        Ok(Self {
            cpu_ms: cpu_s * 1e3,
            commands: number("total_commands_processed")?,
            reads: number("total_reads_processed")?,
            bytes_in: number("total_net_input_bytes")?,
            bytes_out: number("total_net_output_bytes")?,
        })
    }

    fn minus(self, other: Self) -> Self {
        Self {
            cpu_ms: self.cpu_ms - other.cpu_ms,
            commands: self.commands - other.commands,
            reads: self.reads - other.reads,
            bytes_in: self.bytes_in - other.bytes_in,
            bytes_out: self.bytes_out - other.bytes_out,
        }
    }

    fn at_least_zero(self) -> Self {
        Self {
            cpu_ms: self.cpu_ms.max(0.0),
            commands: self.commands.max(0.0),
            reads: self.reads.max(0.0),
            bytes_in: self.bytes_in.max(0.0),
            bytes_out: self.bytes_out.max(0.0),
        }
    }
}

/// Commands run by their kind, as Redis names them; those of scripts and transactions included, ours left out.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Kinds(pub(crate) BTreeMap<String, f64>);

impl Kinds {
    fn of(redis: &Redis) -> Result<Self> {
        Ok(Self::told(&redis.command(&["INFO", "commandstats"])?))
    }

    /// From lines such as `cmdstat_hget:calls=21,usec=54,…`.
    fn told(info: &str) -> Self {
        let kinds = info.lines().filter_map(|line| {
            let (kind, rest) = line.strip_prefix("cmdstat_")?.split_once(":calls=")?;
            Some((kind.to_owned(), rest.split(',').next()?.parse().ok()?))
        });
        Self(kinds.filter(|(kind, _)| kind != "info").collect())
    }

    fn minus(mut self, other: &Self) -> Self {
        for (kind, calls) in &mut self.0 {
            *calls -= other.0.get(kind).unwrap_or(&0.0);
        }
        self.0.retain(|_, calls| *calls > 0.0);
        self
    }
}

/// Another client, which asks for next to nothing, a millisecond after each answer.
pub(crate) struct Prober {
    done: Arc<AtomicBool>,
    thread: JoinHandle<Result<Vec<Duration>>>,
}

impl Prober {
    pub(crate) fn start(redis: &Redis) -> Result<Self> {
        let mut stream = TcpStream::connect(("127.0.0.1", redis.port())).context("connecting the prober")?;
        stream.set_nodelay(true).context("setting up the prober")?;
        let mut wait = move || -> Result<Duration> {
            let asked = Instant::now();
            stream.write_all(PING).context("sending PING")?;
            stream.read_exact(&mut [0; PONG.len()]).context("waiting for PONG")?;
            Ok(asked.elapsed())
        };
        wait()?;
        let done = Arc::new(AtomicBool::new(false));
        let is_done = Arc::clone(&done);
        let thread = thread::spawn(move || {
            let mut waits = vec![];
            while !is_done.load(Ordering::Relaxed) {
                waits.push(wait()?);
                thread::sleep(PING_EVERY);
            }
            waits.push(wait()?);
            Ok(waits)
        });
        Ok(Self { done, thread })
    }

    pub(crate) fn stop(self) -> Result<Waits> {
        self.done.store(true, Ordering::Relaxed);
        let mut waits = self.thread.join().map_err(|_| anyhow!("the prober panicked"))??;
        waits.sort_unstable();
        Ok(Waits(waits))
    }
}

/// What the prober waited, shortest first; never empty.
pub(crate) struct Waits(Vec<Duration>);

impl Waits {
    pub(crate) fn longest_ms(&self) -> f64 {
        millis(self.0[self.0.len() - 1])
    }

    pub(crate) fn p99_ms(&self) -> f64 {
        millis(self.0[(self.0.len() - 1) * 99 / 100])
    }

    /// Of all PONGs together.
    pub(crate) fn bytes(&self) -> f64 {
        (self.0.len() * PONG.len()) as f64
    }
}

/// How a run is looked at: what it costs, or what others wait meanwhile. Not both at once, because the prober costs Redis
/// as much as a small look does.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Meter {
    /// Of the server's counters; what reading them once adds to them.
    Usage(Usage),
    /// Of another client's waits.
    Stall,
}

/// What one run showed.
pub(crate) enum Seen {
    Usage(Usage, Kinds),
    Stall(Waits),
}

impl Meter {
    /// For a server's counters.
    pub(crate) fn of_usage(redis: &Redis) -> Result<Self> {
        // The first one also pays for whatever the first INFO pays for.
        Usage::of(redis)?;
        let before = Usage::of(redis)?;
        Ok(Self::Usage(Usage::of(redis)?.minus(before)))
    }

    pub(crate) fn measure<T>(self, redis: &Redis, work: impl FnOnce() -> Result<T>) -> Result<(Seen, T)> {
        match self {
            Self::Usage(own) => {
                let kinds = Kinds::of(redis)?;
                let before = Usage::of(redis)?;
                let done = work()?;
                let used = Usage::of(redis)?.minus(before).minus(own).at_least_zero();
                Ok((Seen::Usage(used, Kinds::of(redis)?.minus(&kinds)), done))
            }
            Self::Stall => {
                let prober = Prober::start(redis)?;
                let done = work();
                let waits = prober.stop()?;
                Ok((Seen::Stall(waits), done?))
            }
        }
    }
}

pub(crate) fn millis(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1e3
}

/// The middle one; of an even number the upper of the two. Errors: there is none.
pub(crate) fn median(values: impl IntoIterator<Item = f64>) -> Result<f64> {
    let mut values: Vec<f64> = values.into_iter().collect();
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().context("no value to take the median of")
}

#[cfg(test)]
mod tests {
    use super::{Kinds, Usage, median};

    #[test]
    fn the_median_is_the_middle_whatever_the_order() {
        assert_eq!(median([3.0, 1.0, 2.0]).ok(), Some(2.0));
        assert_eq!(median([4.0, 1.0]).ok(), Some(4.0));
        assert!(median([]).is_err());
    }

    #[test]
    fn kinds_are_counted_from_one_reading_to_the_next() {
        let before = Kinds::told("cmdstat_hget:calls=2,usec=9\r\ncmdstat_info:calls=1,usec=1\r\n");
        let after = Kinds::told(
            "# Commandstats\r\ncmdstat_hget:calls=5,usec=9\r\ncmdstat_config|get:calls=1,usec=1\r\ncmdstat_info:calls=3,usec=1",
        );
        let more = after.clone().minus(&before);
        assert_eq!(more.0, [("config|get".to_owned(), 1.0), ("hget".to_owned(), 3.0)].into());
        assert_eq!(after.clone().minus(&after), Kinds::default());
    }

    #[test]
    fn what_measuring_costs_is_taken_off_and_never_leaves_less_than_nothing() {
        let of = |cpu_ms| Usage { cpu_ms, ..Usage::default() };
        assert_eq!(of(10.0).minus(of(2.0)).minus(of(1.0)).at_least_zero().cpu_ms, 7.0);
        assert_eq!(of(1.0).minus(of(3.0)).at_least_zero().cpu_ms, 0.0);
    }
}
