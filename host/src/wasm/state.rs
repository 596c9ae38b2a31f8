//! Where a handler's file is on its way to serve, and what became of it.
//!
//! ```text
//!  found ──▶ checked ──▶ compiled ──▶ tried ──▶ active ───▶ quarantined
//!    │          │           │           ├─────▶ observed ─▶ quarantined
//!    └──────────┴───────────┴───────────┴─────▶ refused
//! ```
//!
//! *Checked* is whole and of the right form, *compiled* also has the contract's types and known imports, *tried* made an
//! instance and described itself. Grants come last, though they look like a cheap first step: what they are compared with
//! is the manifest, and only a trial run tells it.
//!
//! A new build of a file that serves walks the same way beside the old one, which serves on until the new one is active or
//! observed.

use std::sync::Arc;

use super::load::LoadFault;

/// How far a file came.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Step {
    /// It is there.
    Found,
    /// It is a whole component.
    Checked,
    /// The engine compiled it, and it keeps the contract.
    Compiled,
    /// It described itself soundly.
    Tried,
}

impl Step {
    /// The step in one word.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Found => "found",
            Self::Checked => "checked",
            Self::Compiled => "compiled",
            Self::Tried => "tried",
        }
    }
}

/// Where a file is.
#[derive(Debug, Clone)]
pub enum LoadState {
    /// On its way, so far.
    Loading(Step),
    /// Its orphans are acted on.
    Active,
    /// Nothing is granted to it: judged and planned, never acted on.
    Observed {
        /// The grants it would need, as lines to paste.
        missing: Vec<String>,
    },
    /// It does not serve.
    Refused {
        /// The last step it passed.
        reached: Step,
        /// Why it came no further.
        fault: Arc<LoadFault>,
    },
    /// It serves, only fails, and is hardly asked any more. Nothing leads out of it here: the state is drawn anew from how
    /// the build fares whenever somebody asks.
    Quarantined {
        /// Reason and ways out.
        why: String,
    },
}

/// What can happen to a file.
#[derive(Debug, Clone)]
pub(super) enum Event {
    /// It passed a step.
    Passed(Step),
    /// It did not pass the next one.
    Failed(Arc<LoadFault>),
    /// The operator's grants cover it, or manifests are trusted.
    Granted,
    /// There are no grants for it.
    Ungranted { missing: Vec<String> },
    /// Its calls only fail.
    Quarantined { why: String },
}

impl LoadState {
    /// Where every file begins.
    pub(super) const START: Self = Self::Loading(Step::Found);

    /// The one place where a file goes from one state to another. What cannot happen leaves it where it is.
    #[must_use]
    pub(super) fn after(self, event: Event) -> Self {
        match (self, event) {
            (Self::Loading(from), Event::Passed(step)) if step > from => Self::Loading(step),
            (Self::Loading(reached), Event::Failed(fault)) => Self::Refused { reached, fault },
            (Self::Loading(Step::Tried), Event::Granted) => Self::Active,
            (Self::Loading(Step::Tried), Event::Ungranted { missing }) => Self::Observed { missing },
            (Self::Active | Self::Observed { .. }, Event::Quarantined { why }) => Self::Quarantined { why },
            (state, _) => state,
        }
    }

    /// The state in one word.
    #[must_use]
    pub const fn word(&self) -> &'static str {
        match self {
            Self::Loading(step) => step.word(),
            Self::Active => "active",
            Self::Observed { .. } => "observed",
            Self::Refused { .. } => "refused",
            Self::Quarantined { .. } => "quarantined",
        }
    }
}

/// What became of one file.
#[derive(Debug, Clone)]
pub struct LoadReport {
    /// Its name in the folder.
    pub file: String,
    /// SHA-256 of its content, hex; `None` if it could not be read.
    pub digest: Option<String>,
    /// The domain it declares; `None` if it did not come to that.
    pub domain: Option<String>,
    /// Where it is.
    pub state: LoadState,
    /// SHA-256 of the older build that serves in its place.
    pub serves_on: Option<String>,
}

impl LoadReport {
    /// Why it is not active, and what to do; `None` if it is.
    #[must_use]
    pub fn why(&self) -> Option<String> {
        match &self.state {
            LoadState::Active | LoadState::Loading(_) => None,
            LoadState::Observed { missing } => Some(format!(
                "nothing is granted to it, so its jobs are judged and never acted on; to let it act, add:\n\
                 [handler.{}.grants]\n{}",
                self.domain.as_deref().unwrap_or_default(),
                missing.join("\n")
            )),
            LoadState::Refused { fault, .. } => Some(fault.to_string()),
            LoadState::Quarantined { why, .. } => Some(why.clone()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fault() -> Event {
        Event::Failed(Arc::new(LoadFault::NotWasm))
    }

    fn walk(events: &[Event]) -> &'static str {
        events.iter().cloned().fold(LoadState::START, LoadState::after).word()
    }

    #[test]
    fn a_file_serves_only_after_every_step() {
        use Step::{Checked, Compiled, Tried};
        let passed = [Event::Passed(Checked), Event::Passed(Compiled), Event::Passed(Tried)];
        let then = |event: Event| walk(&[&passed[..], &[event]].concat());
        assert_eq!(then(Event::Granted), "active");
        assert_eq!(then(Event::Ungranted { missing: vec![] }), "observed");
        assert_eq!(then(fault()), "refused");
        for steps in 0..passed.len() {
            let early = [&passed[..steps], &[Event::Granted]].concat();
            assert_ne!(walk(&early), "active", "granted after {steps} steps");
            assert_eq!(walk(&[&early[..steps], &[fault(), Event::Granted]].concat()), "refused");
        }
    }

    #[test]
    fn only_what_serves_is_quarantined() {
        let bad = || Event::Quarantined { why: "traps".to_owned() };
        assert_eq!(LoadState::START.after(bad()).word(), "found");
        assert_eq!(LoadState::Observed { missing: vec![] }.after(bad()).word(), "quarantined");
        assert_eq!(LoadState::Active.after(bad()).word(), "quarantined");
    }
}
