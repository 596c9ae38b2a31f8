//! From builds to handlers that serve: pins, grants, the operator's settings, and one owner for each job type.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use salvage_core::grants::{needed, standing};
use salvage_core::manifest::{HandlerManifest, Source};
use salvage_core::source::Standing;

use super::load::{Attempt, Build, LoadFault};
use super::registry::{Registry, Serving};
use super::state::{Event, LoadReport};
use super::terms::{Own, Terms};
use crate::ports::LoadedDomain;

/// A file: its newest content, and the build of it that served so far.
pub(super) struct Candidate<'a> {
    pub(super) file: &'a str,
    pub(super) newest: &'a Attempt,
    pub(super) serves: Option<&'a Arc<Build>>,
}

/// Judges all files together. Returns with the registry which build of each file serves, in their order.
pub(super) fn settle(
    terms: &Terms,
    folder: Option<Arc<LoadFault>>,
    files: &[Candidate<'_>],
) -> (Registry, Vec<Option<Arc<Build>>>) {
    let mut owners = Owners::default();
    let mut settled: Vec<Settled> = files.iter().map(|file| Settled::judge(terms, file)).collect();
    let mut order: Vec<usize> = (0..files.len()).collect();
    order.sort_by_key(|&index| rank(&files[index], &settled[index]));
    for index in order {
        settled[index].admit(terms, &files[index], &mut owners);
    }
    let (mut registry, mut builds) = (Registry { folder, ..Registry::empty() }, Vec::new());
    for Settled { report, serves } in settled {
        let (serving, build) = serves.unzip();
        registry.serving.extend(serving);
        registry.reports.push(report);
        builds.push(build);
    }
    (registry, builds)
}

/// Who claims first. A file that somebody dropped in and nobody granted anything must not put a handler out of work that
/// an operator trusts; and whoever serves already must not be put out by a newcomer. Among equals, the file's name.
fn rank<'a>(file: &Candidate<'a>, settled: &Settled) -> (bool, u8, &'a str) {
    let standing = settled.serves.as_ref().map(|(serving, _)| serving.domain.standing);
    let age = match (file.serves, &file.newest.build) {
        (Some(serves), Some(newest)) if serves.digest == newest.digest => 0,
        (Some(_), _) => 1,
        (None, _) => 2,
    };
    (standing != Some(Standing::Active), age, file.file)
}

/// A file with its report so far.
struct Settled {
    report: LoadReport,
    serves: Option<(Serving, Arc<Build>)>,
}

impl Settled {
    /// The newest build if it may serve, or the one that served so far.
    fn judge(terms: &Terms, file: &Candidate<'_>) -> Self {
        let newest = file.newest;
        let domain = newest.build.as_ref().map(|build| build.manifest.domain.clone());
        let domain = domain.or_else(|| match newest.fault().map(|fault| &**fault) {
            Some(LoadFault::Manifest { domain, .. }) => Some(domain.clone()),
            _ => None,
        });
        let mut settled = Self {
            report: LoadReport {
                file: file.file.to_owned(),
                digest: newest.digest.clone(),
                domain,
                state: newest.state.clone(),
                serves_on: None,
            },
            serves: None,
        };
        match newest.build.as_ref().map(|build| serving(terms, build)) {
            Some(Ok((serving, event))) => {
                settled.report.state = settled.report.state.after(event);
                settled.serves = newest.build.clone().map(|build| (serving, build));
            }
            Some(Err(fault)) => settled.refuse(terms, file, fault),
            None => settled.fall_back(terms, file),
        }
        settled
    }

    /// The newest build does not serve, for this reason.
    fn refuse(&mut self, terms: &Terms, file: &Candidate<'_>, fault: LoadFault) {
        self.report.state = file.newest.state.clone().after(Event::Failed(Arc::new(fault)));
        self.fall_back(terms, file);
    }

    /// Leaves the place to the build that served so far, if there is another and it still may.
    fn fall_back(&mut self, terms: &Terms, file: &Candidate<'_>) {
        let old = file.serves.filter(|old| Some(&old.digest) != file.newest.digest.as_ref());
        self.serves = old.and_then(|old| Some((serving(terms, old).ok()?.0, Arc::clone(old))));
        self.report.serves_on = self.serves.as_ref().map(|(_, build)| build.digest.clone());
        if let Some((_, build)) = &self.serves {
            self.report.domain.get_or_insert_with(|| build.manifest.domain.clone());
        }
    }

    /// Claims what the build declares; if another owns it, the older build's claims, or none.
    fn admit(&mut self, terms: &Terms, file: &Candidate<'_>, owners: &mut Owners) {
        let is_newest = self.report.serves_on.is_none();
        let Some((serving, _)) = &self.serves else { return };
        let Err(fault) = owners.admit(file.file, &serving.domain.manifest) else { return };
        if is_newest {
            self.refuse(terms, file, fault);
            let old = self.serves.as_ref().map(|(serving, _)| &serving.domain.manifest);
            if old.is_none_or(|old| owners.admit(file.file, old).is_ok()) {
                return;
            }
        }
        (self.serves, self.report.serves_on) = (None, None);
    }
}

/// A build at work under the operator's terms, and what that makes of its file's state.
fn serving(terms: &Terms, build: &Build) -> Result<(Serving, Event), LoadFault> {
    let manifest = build.manifest.clone();
    let domain = manifest.domain.clone();
    let Own { grants, pin, role, limits, capture } = terms.own(&domain);
    if let Some(pinned) = pin.as_ref().filter(|pinned| **pinned != build.digest) {
        return Err(LoadFault::Pinned { domain, pinned: pinned.clone(), found: build.digest.clone() });
    }
    let standing = standing(terms.mode, grants.as_ref(), &manifest)?;
    let event = match standing {
        Standing::Active => Event::Granted,
        Standing::Observed => Event::Ungranted { missing: needed(&manifest).lines() },
    };
    let manifest = (terms.adjust)(manifest).map_err(|why| LoadFault::Settings { domain, why })?;
    let domain = LoadedDomain {
        manifest,
        standing,
        digest: build.digest.clone(),
        database_role: role.clone(),
        capture: capture.clone(),
    };
    Ok((Serving { domain, handler: build.handler.within(*limits), health: build.health.clone() }, event))
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
        let (table, owner) = (table.to_owned(), self.owner.clone());
        if self.file == later.file {
            return Some(LoadFault::OwnedTwice { table, what, sources: [owner, later.owner.clone()] });
        }
        Some(LoadFault::Owned { table, what, owner, first: self.file.clone() })
    }
}
