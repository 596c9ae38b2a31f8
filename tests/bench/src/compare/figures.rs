//! What was measured, by name.

use crate::meter::{Measured, median};
use anyhow::Result;
use serde::Serialize;
use std::collections::BTreeMap;

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

    /// What the run cost Redis.
    pub(super) fn measured(&mut self, measured: &Measured) {
        let Measured { usage, stall_ms, stall_p99_ms } = measured;
        self.set("redis_cpu_ms", usage.cpu_ms);
        self.set("commands_run", usage.commands);
        self.set("round_trips", usage.reads);
        self.set("mb_to_redis", usage.bytes_in / 1e6);
        self.set("mb_from_redis", usage.bytes_out / 1e6);
        self.set("stall_ms", *stall_ms);
        self.set("stall_p99_ms", *stall_p99_ms);
    }

    /// Adds the medians of some runs, under a contender's name, and how many runs there were.
    pub(super) fn add_medians(&mut self, of: &str, runs: &[Self]) -> Result<()> {
        let Some(first) = runs.first() else { return Ok(()) };
        for name in first.0.keys() {
            let value = median(runs.iter().filter_map(|run| run.get(name)))?;
            self.set(format!("{of}.{name}"), value);
        }
        self.set(format!("{of}.runs"), runs.len() as f64);
        Ok(())
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
