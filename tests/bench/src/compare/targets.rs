//! What is aimed at, from `targets.toml`, and whether it was reached.

use super::figures::Results;
use super::world::root;
use anyhow::{Context, Result};
use serde::Deserialize;
use std::fs;

/// The file's content.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Targets {
    /// By how much of it a checked target may be missed.
    pub(super) tolerance: f64,
    target: Vec<Target>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Target {
    name: String,
    size: String,
    figure: String,
    /// Divide by this.
    over: Option<String>,
    at_least: Option<f64>,
    at_most: Option<f64>,
    checked: bool,
    #[expect(dead_code, reason = "for whoever reads the file")]
    source: String,
}

/// A target and what was reached.
#[derive(Debug, PartialEq)]
pub(super) struct Verdict {
    pub(super) name: String,
    pub(super) size: String,
    /// `≥ 80`, `≤ 1.5`.
    pub(super) aim: String,
    /// None: not measured in this run.
    pub(super) reached: Option<f64>,
    pub(super) is_met: bool,
    /// Checked, and missed by more than the tolerance.
    pub(super) fails: bool,
}

impl Targets {
    pub(super) fn read() -> Result<Self> {
        let file = root().join("tests/bench/targets.toml");
        let text = fs::read_to_string(&file).with_context(|| format!("reading {}", file.display()))?;
        toml::from_str(&text).with_context(|| format!("reading {}", file.display()))
    }

    pub(super) fn verdicts(&self, results: &Results) -> Vec<Verdict> {
        self.target.iter().map(|target| target.verdict(results, self.tolerance)).collect()
    }
}

impl Target {
    fn verdict(&self, results: &Results, tolerance: f64) -> Verdict {
        let reached = self.reached(results);
        let within = |slack: f64| {
            reached.is_none_or(|reached| {
                self.at_least.is_none_or(|least| reached >= least * (1.0 - slack))
                    && self.at_most.is_none_or(|most| reached <= most * (1.0 + slack))
            })
        };
        let aim = match (self.at_least, self.at_most) {
            (Some(least), _) => format!("≥ {least}"),
            (None, Some(most)) => format!("≤ {most}"),
            (None, None) => String::new(),
        };
        Verdict {
            name: self.name.clone(),
            size: self.size.clone(),
            aim,
            reached,
            is_met: within(0.0),
            fails: self.checked && !within(tolerance),
        }
    }

    fn reached(&self, results: &Results) -> Option<f64> {
        let figures = results.of(&self.size)?;
        let value = figures.get(&self.figure)?;
        match &self.over {
            Some(over) => Some(value / figures.get(over)?),
            None => Some(value),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::figures::Figures;
    use super::*;

    fn check(reached: f64, is_met: bool, fails: bool) {
        let target = |checked| Target {
            name: "x".into(),
            size: "1k/1k".into(),
            figure: "a".into(),
            over: Some("b".into()),
            at_least: None,
            at_most: Some(1.5),
            checked,
            source: String::new(),
        };
        let mut figures = Figures::default();
        figures.set("a", reached * 2.0);
        figures.set("b", 2.0);
        let results = Results(vec![("1k/1k".to_owned(), figures)]);
        let verdict = target(true).verdict(&results, 0.2);
        assert_eq!((verdict.reached, verdict.is_met, verdict.fails), (Some(reached), is_met, fails));
        assert!(!target(false).verdict(&results, 0.2).fails, "only what is checked fails");
        assert!(!target(true).verdict(&Results::default(), 0.2).fails, "what was not measured fails nothing");
    }

    #[test]
    fn a_target_fails_only_beyond_its_tolerance() {
        check(1.4, true, false);
        check(1.7, false, false);
        check(1.9, false, true);
    }

    #[test]
    fn every_target_of_the_file_has_one_direction() {
        for target in Targets::read().expect("the file").target {
            assert!(target.at_least.is_some() != target.at_most.is_some(), "{target:?}");
        }
    }
}
