//! What was measured, by name.

use crate::meter::{Meter, Seen, median};
use anyhow::Result;
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};

/// Before a kind of command in the name of how many Redis ran of it.
const RUN: &str = "run_";

/// Figures of one run, or the medians of several. Names end in their unit, if they have one.
#[derive(Clone, Debug, Default, Serialize)]
#[serde(transparent)]
pub(super) struct Figures(BTreeMap<String, f64>);

impl Figures {
    pub(super) fn set(&mut self, name: impl Into<String>, value: f64) {
        self.0.insert(name.into(), value);
    }

    pub(super) fn get(&self, name: &str) -> Option<f64> {
        self.0.get(name).copied()
    }

    /// How many commands of each kind Redis ran for a contender, most first.
    pub(super) fn kinds(&self, of: &str) -> Vec<(&str, f64)> {
        let prefix = format!("{of}.{RUN}");
        let mut kinds: Vec<(&str, f64)> =
            self.0.iter().filter_map(|(name, calls)| Some((name.strip_prefix(&prefix)?, *calls))).collect();
        kinds.sort_by(|(_, a), (_, b)| b.total_cmp(a));
        kinds
    }

    /// What the run cost Redis, or what another client of it waited.
    pub(super) fn seen(&mut self, seen: &Seen) {
        match seen {
            Seen::Usage(usage, kinds) => {
                self.set("redis_cpu_ms", usage.cpu_ms);
                self.set("commands_run", usage.commands);
                self.set("round_trips", usage.reads);
                self.set("mb_to_redis", usage.bytes_in / 1e6);
                self.set("mb_from_redis", usage.bytes_out / 1e6);
                for (kind, calls) in &kinds.0 {
                    self.set(format!("{RUN}{kind}"), *calls);
                }
            }
            Seen::Stall(waits) => {
                self.set("stall_ms", waits.longest_ms());
                self.set("stall_p99_ms", waits.p99_ms());
            }
        }
    }

    /// Adds the medians of some runs, under a contender's name, and how many runs there were.
    pub(super) fn add_medians(&mut self, of: &str, runs: &Runs) -> Result<()> {
        let names: BTreeSet<&String> = runs.measured.iter().flat_map(|run| run.0.keys()).collect();
        for name in names {
            let value = median(runs.measured.iter().filter_map(|run| run.get(name)))?;
            self.set(format!("{of}.{name}"), value);
        }
        for name in ["stall_ms", "stall_p99_ms"] {
            if !runs.stalled.is_empty() {
                self.set(
                    format!("{of}.{name}"),
                    median(runs.stalled.iter().filter_map(|run| run.get(name)))?,
                );
            }
        }
        self.set(format!("{of}.runs"), runs.measured.len() as f64);
        Ok(())
    }
}

/// Runs of one contender.
#[derive(Debug, Default)]
pub(super) struct Runs {
    /// Of which everything but stalls is taken.
    pub(super) measured: Vec<Figures>,
    /// Beside the prober, of which only stalls are taken.
    pub(super) stalled: Vec<Figures>,
}

impl Runs {
    /// Adds one run of each kind.
    pub(super) fn add(&mut self, usage: Meter, mut run: impl FnMut(Meter) -> Result<Figures>) -> Result<()> {
        self.measured.push(run(usage)?);
        self.stalled.push(run(Meter::Stall)?);
        Ok(())
    }

    /// Whether the first run took longer than this.
    pub(super) fn is_slow(&self, figure: &str, limit_ms: f64) -> bool {
        self.measured.first().and_then(|run| run.get(figure)).is_some_and(|took_ms| took_ms > limit_ms)
    }
}

/// Everything measured: by size, and what belongs to none under `rest`.
#[derive(Debug, Default, Serialize)]
#[serde(transparent)]
pub(super) struct Results(pub(super) Vec<(String, Figures)>);

impl Results {
    pub(super) fn of(&self, size: &str) -> Option<&Figures> {
        self.0.iter().find(|(name, _)| name == size).map(|(_, figures)| figures)
    }
}
