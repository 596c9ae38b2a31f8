//! Every handler of a folder: which serve, which do not, and why.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};

use salvage_core::grants::{Grants, GrantsMode, needed, standing};
use salvage_core::manifest::{HandlerManifest, Source};
use salvage_core::source::Standing;

use super::engine::Runtime;
use super::handler::Handler;
use super::limits::Limits;
use super::load::{self, LoadFault, Sound};
use crate::ports::{Answer, HandlerFault, Handlers, LoadedDomain, Question};

/// Most handlers of a folder.
pub const FILES_MAX: usize = 100;

/// The handlers of a folder as they were when it was loaded. Never changes: a newer one takes its place between passes,
/// so a pass that holds one asks the same components from beginning to end.
pub struct Registry {
    serving: Vec<Serving>,
    reports: Vec<LoadReport>,
    folder: Option<LoadFault>,
}

struct Serving {
    domain: LoadedDomain,
    handler: Handler,
}

/// What became of one file.
#[derive(Debug)]
pub struct LoadReport {
    /// Its name in the folder.
    pub file: String,
    /// SHA-256 of its content, hex; `None` if it could not be read.
    pub digest: Option<String>,
    /// The domain it declares; `None` if it did not come to that.
    pub domain: Option<String>,
    /// Whether it serves.
    pub state: LoadState,
}

/// Whether a file serves.
#[derive(Debug)]
pub enum LoadState {
    /// Its orphans are acted on.
    Active,
    /// Nothing is granted to it: judged and planned, never acted on.
    Observed {
        /// The grants it would need, as lines to paste.
        missing: Vec<String>,
    },
    /// It does not serve.
    Refused(LoadFault),
}

impl LoadState {
    /// The state in one word.
    #[must_use]
    pub const fn word(&self) -> &'static str {
        match self {
            Self::Active => "active",
            Self::Observed { .. } => "observed",
            Self::Refused(_) => "refused",
        }
    }
}

impl LoadReport {
    /// Why it is not active, and what to do; `None` if it is.
    #[must_use]
    pub fn why(&self) -> Option<String> {
        match &self.state {
            LoadState::Active => None,
            LoadState::Observed { missing } => Some(format!(
                "nothing is granted to it, so its jobs are judged and never acted on; to let it act, add:\n\
                 [handler.{}.grants]\n{}",
                self.domain.as_deref().unwrap_or_default(),
                missing.join("\n")
            )),
            LoadState::Refused(fault) => Some(fault.to_string()),
        }
    }
}

impl Registry {
    /// Loads every `*.wasm` of a folder, in file-name order. Never fails as a whole: what is wrong with a file is in its
    /// report, and the others serve.
    pub async fn load(
        runtime: &Runtime,
        folder: &Path,
        limits: &Limits,
        mode: GrantsMode,
        grants: &BTreeMap<String, Grants>,
    ) -> Self {
        let (files, folder) = match files(folder) {
            Ok(files) => (files, None),
            Err(source) => (Vec::new(), Some(LoadFault::Folder { folder: folder.to_owned(), source })),
        };
        let mut judged = Vec::new();
        for (index, path) in files.into_iter().enumerate() {
            judged.push(if index < FILES_MAX {
                Judged::new(runtime, &path, limits, mode, grants).await
            } else {
                Judged::refused(&path, LoadFault::TooMany { limit: FILES_MAX })
            });
        }
        let judged = settle_owners(judged);
        let (mut serving, mut reports) = (Vec::new(), Vec::new());
        for Judged { report, serves } in judged {
            serving.extend(serves);
            reports.push(report);
        }
        Self { serving, reports, folder }
    }

    /// No handler at all, for commands that ask none.
    #[must_use]
    pub const fn empty() -> Self {
        Self { serving: vec![], reports: vec![], folder: None }
    }

    /// Gives each serving handler the manifest and the limits that the operator's settings make of its own; one for which
    /// they make no sense does not serve.
    #[must_use]
    pub fn adjusted(
        mut self,
        adjust: impl Fn(HandlerManifest) -> Result<(HandlerManifest, Limits), String>,
    ) -> Self {
        let mut kept = Vec::new();
        for mut serving in self.serving {
            let domain = serving.domain.manifest.domain.clone();
            match adjust(serving.domain.manifest) {
                Ok((manifest, limits)) => {
                    serving.domain.manifest = manifest;
                    serving.handler.limit(limits);
                    kept.push(serving);
                }
                Err(why) => {
                    let serves = |report: &&mut LoadReport| {
                        report.domain.as_ref() == Some(&domain)
                            && !matches!(report.state, LoadState::Refused(_))
                    };
                    if let Some(report) = self.reports.iter_mut().find(serves) {
                        report.state =
                            LoadState::Refused(LoadFault::Settings { domain: domain.clone(), why });
                    }
                }
            }
        }
        self.serving = kept;
        self
    }

    /// Whether a file of that domain was found, whether it serves or not.
    #[must_use]
    pub fn knows(&self, domain: &str) -> bool {
        self.reports.iter().any(|report| report.domain.as_deref() == Some(domain))
    }

    /// One report for each file, in file-name order.
    #[must_use]
    pub fn reports(&self) -> &[LoadReport] {
        &self.reports
    }

    /// Logs which handlers do not act, one line each, so that a pass without them does not look like one without orphans.
    pub fn log_reports(&self) {
        if let Some(fault) = &self.folder {
            tracing::error!("no handler serves: {fault}");
        } else if self.reports.is_empty() {
            tracing::error!("no handler serves: the folder of [handlers] dir holds no .wasm file");
        }
        for report in &self.reports {
            let (file, domain) = (&report.file, report.domain.as_deref());
            match &report.state {
                LoadState::Active => {}
                LoadState::Observed { .. } => tracing::warn!(
                    file,
                    domain,
                    "handler is only observed, nothing is granted to it: `salvage handler list` prints the grants to add"
                ),
                LoadState::Refused(fault) => {
                    let why = fault.to_string().lines().collect::<Vec<_>>().join(" ");
                    tracing::error!(file, domain, "handler does not serve: {why}");
                }
            }
        }
    }

    /// Why the folder itself could not be read; there are no handlers then.
    #[must_use]
    pub const fn folder_fault(&self) -> Option<&LoadFault> {
        self.folder.as_ref()
    }
}

impl Handlers for Registry {
    fn domains(&self) -> Vec<LoadedDomain> {
        self.serving.iter().map(|serving| serving.domain.clone()).collect()
    }

    async fn decide(&self, question: &Question<'_>) -> Answer {
        let domain = &question.source.name.domain;
        match self.serving.iter().find(|serving| serving.domain.manifest.domain == *domain) {
            Some(serving) => serving.handler.decide(question).await,
            None => Answer {
                decision: Err(HandlerFault::NotLoaded(domain.clone())),
                took: std::time::Duration::ZERO,
            },
        }
    }
}

/// The folder's handler files by name. Names that begin with a dot are somebody's half-written copies.
fn files(folder: &Path) -> io::Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for entry in std::fs::read_dir(folder)? {
        let path = entry?.path();
        let is_hidden = name_of(&path).starts_with('.');
        if !is_hidden && path.extension().is_some_and(|extension| extension == "wasm") {
            files.push(path);
        }
    }
    files.sort();
    Ok(files)
}

fn name_of(path: &Path) -> String {
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

/// A file with its report so far.
struct Judged {
    report: LoadReport,
    serves: Option<Serving>,
}

impl Judged {
    async fn new(
        runtime: &Runtime,
        path: &Path,
        limits: &Limits,
        mode: GrantsMode,
        grants: &BTreeMap<String, Grants>,
    ) -> Self {
        let load::Attempt { digest, sound } = load::file(runtime, path, limits).await;
        let Sound { handler, manifest, .. } = match sound {
            Ok(sound) => sound,
            Err(fault) => {
                let mut refused = Self::refused(path, fault);
                refused.report.digest = digest;
                return refused;
            }
        };
        let domain = manifest.domain.clone();
        let (state, serves) = match standing(mode, grants.get(&domain), &manifest) {
            Err(not_granted) => (LoadState::Refused(not_granted.into()), None),
            Ok(standing) => {
                let state = match standing {
                    Standing::Active => LoadState::Active,
                    Standing::Observed => LoadState::Observed { missing: needed(&manifest).lines() },
                };
                let digest = digest.clone().unwrap_or_default();
                (state, Some(Serving { domain: LoadedDomain { manifest, standing, digest }, handler }))
            }
        };
        Self { report: LoadReport { file: name_of(path), digest, domain: Some(domain), state }, serves }
    }

    fn refused(path: &Path, fault: LoadFault) -> Self {
        let domain = match &fault {
            LoadFault::Manifest { domain, .. } => Some(domain.clone()),
            _ => None,
        };
        let state = LoadState::Refused(fault);
        Self { report: LoadReport { file: name_of(path), digest: None, domain, state }, serves: None }
    }
}

/// Leaves each domain, and each job type of a table, one owner: the first in file-name order.
///
/// Of those that are granted first, though: a file that somebody dropped in and nobody granted anything must not put a
/// handler out of work that an operator trusts.
fn settle_owners(mut judged: Vec<Judged>) -> Vec<Judged> {
    let mut owners = Owners::default();
    for standing in [Standing::Active, Standing::Observed] {
        for Judged { report, serves } in &mut judged {
            let Some(serving) = serves.as_ref().filter(|serving| serving.domain.standing == standing) else {
                continue;
            };
            if let Err(fault) = owners.admit(&report.file, &serving.domain.manifest) {
                report.state = LoadState::Refused(fault);
                *serves = None;
            }
        }
    }
    judged
}

/// What is owned already.
#[derive(Default)]
struct Owners {
    /// File by domain.
    domains: BTreeMap<String, String>,
    /// By table.
    claims: BTreeMap<String, Vec<Claim>>,
}

/// The job types of one table that one source owns.
struct Claim {
    owner: String,
    file: String,
    /// `None`: the table has no type column, so every row is the source's.
    types: Option<BTreeSet<String>>,
}

impl Owners {
    /// Takes a handler in with all that it declares, or not at all.
    fn admit(&mut self, file: &str, manifest: &HandlerManifest) -> Result<(), LoadFault> {
        if let Some(first) = self.domains.get(&manifest.domain) {
            return Err(LoadFault::DomainTaken { domain: manifest.domain.clone(), first: first.clone() });
        }
        let mut own: Vec<(String, Claim)> = Vec::new();
        for source in &manifest.sources {
            let table = plain_table(source);
            let claim = Claim::new(file, &manifest.domain, source);
            let of_others = self.claims.get(&table).into_iter().flatten();
            let of_own = own.iter().filter(|(other, _)| *other == table).map(|(_, claim)| claim);
            if let Some(fault) = of_others.chain(of_own).find_map(|other| other.forbids(&claim, &table)) {
                return Err(fault);
            }
            own.push((table, claim));
        }
        self.domains.insert(manifest.domain.clone(), file.to_owned());
        for (table, claim) in own {
            self.claims.entry(table).or_default().push(claim);
        }
        Ok(())
    }
}

/// `public` is where an unqualified name usually is; two names of one table must not have two owners.
fn plain_table(source: &Source) -> String {
    let table = &source.table.table;
    table.strip_prefix("public.").unwrap_or(table).to_owned()
}

impl Claim {
    fn new(file: &str, domain: &str, source: &Source) -> Self {
        let types = source.job_types.iter().map(|job_type| job_type.name.clone()).collect();
        Self {
            owner: format!("{domain}/{}", source.name),
            file: file.to_owned(),
            types: source.table.job_type.as_ref().map(|_| types),
        }
    }

    fn forbids(&self, later: &Self, table: &str) -> Option<LoadFault> {
        let what = match (&self.types, &later.types) {
            (Some(own), Some(wanted)) => format!("job type {:?}", own.intersection(wanted).next()?),
            _ => "every job type".to_owned(),
        };
        Some(LoadFault::Owned {
            table: table.to_owned(),
            what,
            owner: self.owner.clone(),
            first: self.file.clone(),
        })
    }
}
