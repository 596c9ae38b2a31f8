//! The handlers that serve, and what became of each file.

use std::sync::Arc;
use std::time::Duration;

use super::engine::Runtime;
use super::handler::Handler;
use super::health::Health;
use super::load::LoadFault;
use super::loader::Loader;
use super::state::{Event, LoadReport, LoadState};
use super::terms::Terms;
use crate::ports::{Answer, HandlerFault, Handlers, LoadedDomain, Question};

/// The handlers of a folder as they were when it was looked at. Never changes: a newer one takes its place between passes,
/// so a pass that holds one asks the same builds from beginning to end.
#[derive(Default)]
pub struct Registry {
    pub(super) serving: Vec<Serving>,
    pub(super) reports: Vec<LoadReport>,
    pub(super) folder: Option<Arc<LoadFault>>,
}

/// One build at work.
pub(super) struct Serving {
    pub(super) domain: LoadedDomain,
    pub(super) handler: Handler,
    pub(super) health: Health,
}

impl Registry {
    /// Loads every `*.wasm` of a folder, once. Never fails as a whole: what is wrong with a file is in its report, and the
    /// others serve.
    pub async fn load(runtime: &Runtime, terms: Terms) -> Self {
        Loader::start(runtime, terms).await.settle()
    }

    /// No handler at all, for commands that ask none.
    #[must_use]
    pub fn empty() -> Self {
        Self::default()
    }

    /// Whether this build serves.
    pub(super) fn serves(&self, digest: &str) -> bool {
        self.serving.iter().any(|serving| serving.domain.digest == digest)
    }

    /// Whether a file of that domain was found, whether it serves or not.
    #[must_use]
    pub fn knows(&self, domain: &str) -> bool {
        self.reports.iter().any(|report| report.domain.as_deref() == Some(domain))
    }

    /// One report for each file, in file-name order, as things stand now.
    #[must_use]
    pub fn reports(&self) -> Vec<LoadReport> {
        let as_it_stands = |report: &LoadReport| {
            let serves = |serving: &&Serving| report.digest.as_ref() == Some(&serving.domain.digest);
            let quarantine = self.serving.iter().find(serves).and_then(|serving| serving.health.quarantine());
            match quarantine {
                Some(why) => LoadReport {
                    state: report.state.clone().after(Event::Quarantined { why }),
                    ..report.clone()
                },
                None => report.clone(),
            }
        };
        self.reports.iter().map(as_it_stands).collect()
    }

    /// Why the folder itself could not be read.
    #[must_use]
    pub fn folder_fault(&self) -> Option<&LoadFault> {
        self.folder.as_deref()
    }

    /// Logs which handlers do not act, one line each, so that a pass without them does not look like one without orphans.
    pub fn log_reports(&self) {
        self.log_folder();
        self.reports.iter().for_each(log);
    }

    fn log_folder(&self) {
        if let Some(fault) = &self.folder {
            tracing::error!("no handler serves: {fault}");
        } else if self.reports.is_empty() {
            tracing::error!("no handler serves: the folder of [handlers] dir holds no .wasm file");
        }
    }

    /// The same, of what differs from `before`; files that are gone, too.
    pub(super) fn log_changes(&self, before: &Self) {
        if self.folder.is_some() != before.folder.is_some() || self.reports.is_empty() {
            self.log_folder();
        }
        for report in &self.reports {
            let told = before.reports.iter().find(|old| old.file == report.file);
            let key = |report: &LoadReport| (report.digest.clone(), report.state.word(), report.why());
            if told.is_none_or(|told| key(told) != key(report)) {
                if matches!(report.state, LoadState::Active) {
                    let (file, domain, sha256) =
                        (&report.file, report.domain.as_deref(), report.digest.as_deref());
                    tracing::info!(
                        file,
                        domain,
                        sha256,
                        "handler is loaded and serves from the next pass on"
                    );
                }
                log(report);
            }
        }
        for gone in &before.reports {
            if !self.reports.iter().any(|report| report.file == gone.file) {
                let (file, domain) = (&gone.file, gone.domain.as_deref());
                tracing::warn!(
                    file,
                    domain,
                    "handler's file is gone; it does not serve from the next pass on"
                );
            }
        }
    }

    /// A pass begins.
    pub(super) fn pass_begins(&self) {
        self.serving.iter().for_each(|serving| serving.health.pass_begins());
    }
}

/// One line for a file that does not act, or whose old build does.
fn log(report: &LoadReport) {
    let (file, domain) = (&report.file, report.domain.as_deref());
    match &report.state {
        LoadState::Active | LoadState::Loading(_) | LoadState::Quarantined { .. } => {}
        LoadState::Observed { .. } => tracing::warn!(
            file,
            domain,
            "handler is only observed, nothing is granted to it: `salvage handler list` prints the grants to add"
        ),
        LoadState::Refused { fault, .. } => {
            let why = fault.to_string().lines().collect::<Vec<_>>().join(" ");
            match report.serves_on.as_deref() {
                Some(sha256) => tracing::error!(
                    file,
                    domain,
                    sha256,
                    "new build of the handler is refused, the old one serves on: {why}"
                ),
                None => tracing::error!(file, domain, "handler does not serve: {why}"),
            }
        }
    }
}

impl Handlers for Registry {
    fn domains(&self) -> Vec<LoadedDomain> {
        self.serving.iter().map(|serving| serving.domain.clone()).collect()
    }

    async fn decide(&self, question: &Question<'_>) -> Answer {
        let (domain, id) = (&question.source.name.domain, &question.candidate.token.id);
        let not_asked = |fault| Answer { decision: Err(fault), took: Duration::ZERO };
        let Some(serving) = self.serving.iter().find(|serving| serving.domain.manifest.domain == *domain)
        else {
            return not_asked(HandlerFault::NotLoaded(domain.clone()));
        };
        if let Err(fault) = serving.health.may_ask(id) {
            return not_asked(fault);
        }
        let answer = serving.handler.decide(question).await;
        serving.health.ended(domain, id, &answer.decision);
        answer
    }
}
