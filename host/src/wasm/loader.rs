//! Looks at the folder again and again, and loads what is new in it, beside whatever serves.
//!
//! A file is known by what the system says of it (device, inode, size, times); behind a link, by what the link leads to, so
//! that a mounted volume that is swapped by a link is seen. Now and then everything is read again, for file systems that
//! say too little. Only other content is another build.
//!
//! **Half a file is not a bad one.** A file that changed is left alone until it has stood still from one look to the next;
//! one that is only the beginning of a component, for longer. Until then the old build serves and nothing is logged. The
//! same holds for a file that is gone, since many tools remove before they write.

use std::collections::BTreeMap;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use super::engine::Runtime;
use super::load::{self, Attempt, Build, LoadFault};
use super::registry::Registry;
use super::settle::{Candidate, settle};
use super::state::{Event, LoadState};
use super::terms::Terms;

/// Most handlers of a folder.
pub const FILES_MAX: usize = 100;

/// How long a file stands still before it is loaded: longer than two writes of one copy are apart.
pub const STILL: Duration = Duration::from_millis(300);

/// The same for one that is cut off.
const STILL_CUT_OFF: Duration = Duration::from_secs(10);

/// After so many looks every file is read, whatever the system says of it.
pub const LOOKS_PER_READING: u32 = 30;

/// The handlers' folder, as it was at the last look.
pub struct Loader {
    runtime: Runtime,
    terms: Terms,
    files: BTreeMap<String, Known>,
    folder: Option<Arc<LoadFault>>,
    looks: u32,
    /// Of the last settling: the build that is to serve, by file.
    proposed: Vec<(String, Arc<Build>)>,
}

/// One file.
struct Known {
    path: PathBuf,
    /// Of the content that `newest` was made of.
    identity: Identity,
    /// What it is now, if that is something else, and since when; without an identity it is gone.
    changed: Option<(Option<Identity>, Duration)>,
    newest: Attempt,
    /// Why the newest build may not serve though it is sound: see [`Loader::refuse`].
    unfit: Option<Arc<LoadFault>>,
    /// The build that serves, or did.
    serves: Option<Arc<Build>>,
}

impl Known {
    fn new(path: PathBuf, identity: Identity, newest: Attempt) -> Self {
        Self { path, identity, changed: None, newest, unfit: None, serves: None }
    }

    /// The newest content as it is to be judged.
    fn judged(&self) -> Attempt {
        let Attempt { digest, state, build } = self.newest.clone();
        match &self.unfit {
            Some(fault) => {
                Attempt { digest, state: state.after(Event::Failed(Arc::clone(fault))), build: None }
            }
            None => Attempt { digest, state, build },
        }
    }
}

/// What the system says of a file's content; all zero if it says nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct Identity {
    place: (u64, u64),
    bytes: u64,
    modified: (i64, i64),
    changed: (i64, i64),
}

impl Identity {
    fn of(path: &Path) -> Self {
        let Ok(found) = std::fs::metadata(path) else { return Self::default() };
        Self {
            place: (found.dev(), found.ino()),
            bytes: found.len(),
            modified: (found.mtime(), found.mtime_nsec()),
            changed: (found.ctime(), found.ctime_nsec()),
        }
    }
}

/// What a look found.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Look {
    /// Something is other than at the last look: settle anew.
    pub is_changed: bool,
    /// Something may be so soon: look again after [`STILL`].
    pub is_waiting: bool,
}

impl Loader {
    /// Reads and tries every file of the folder once, in file-name order. What is wrong with one is its own.
    pub async fn start(runtime: &Runtime, terms: Terms) -> Self {
        let files = BTreeMap::new();
        let mut loader =
            Self { runtime: runtime.clone(), terms, files, folder: None, looks: 0, proposed: vec![] };
        let found = loader.list().unwrap_or_default();
        for (index, path) in found.into_iter().enumerate() {
            let identity = Identity::of(&path);
            let newest = loader.attempt(index, &path).await;
            loader.files.insert(name_of(&path), Known::new(path, identity, newest));
        }
        loader
    }

    /// Looks again and loads what changed and stands still; `now` is any clock that only goes forward.
    pub async fn look(&mut self, now: Duration) -> Look {
        let had_folder = self.folder.is_none();
        let found = self.list();
        let is_folder_changed = had_folder != self.folder.is_none();
        // A folder that cannot be read, for a moment or longer, says nothing of its files.
        let Some(found) = found else { return Look { is_changed: is_folder_changed, is_waiting: false } };
        self.looks = (self.looks + 1) % LOOKS_PER_READING;
        let mut look = Look { is_changed: is_folder_changed, is_waiting: false };
        if self.looks == 0 {
            // What did not fit may fit by now.
            let unfit = self.files.values_mut().filter_map(|known| known.unfit.take());
            look.is_changed |= unfit.count() > 0;
        }
        for name in self.gone(&found, now) {
            self.files.remove(&name);
            look.is_changed = true;
        }
        for (index, path) in found.into_iter().enumerate() {
            look.is_changed |= self.look_at(index, path, now).await;
        }
        look.is_waiting = self.files.values().any(|known| known.changed.is_some());
        look
    }

    /// The files that are gone and stay gone; notes those that may be.
    fn gone(&mut self, found: &[PathBuf], now: Duration) -> Vec<String> {
        let mut gone = Vec::new();
        for (name, known) in &mut self.files {
            if found.contains(&known.path) {
                continue;
            }
            match known.changed {
                Some((None, since)) if now.saturating_sub(since) >= STILL => gone.push(name.clone()),
                Some((None, _)) => {}
                _ => known.changed = Some((None, now)),
            }
        }
        gone
    }

    /// Whether it became something else.
    async fn look_at(&mut self, index: usize, path: PathBuf, now: Duration) -> bool {
        let (name, identity) = (name_of(&path), Identity::of(&path));
        let is_reading = self.looks == 0;
        let nothing = Attempt { digest: None, state: LoadState::START, build: None };
        let unknown = || Known::new(path.clone(), Identity::default(), nothing);
        let known = self.files.entry(name.clone()).or_insert_with(unknown);
        let is_new = matches!(known.newest.state, LoadState::Loading(_)) && known.newest.build.is_none();
        if identity == known.identity && !is_new && !is_reading {
            known.changed = None;
            return false;
        }
        let still = match known.changed {
            Some((Some(seen), since)) if seen == identity => now.saturating_sub(since),
            _ if identity == known.identity && !is_new => STILL,
            _ => {
                known.changed = Some((Some(identity), now));
                return false;
            }
        };
        if still < STILL {
            return false;
        }
        let digest = known.newest.digest.clone();
        let attempt = self.attempt_unless(index, &path, digest.as_deref()).await;
        let known = self.files.get_mut(&name).expect("it was looked at above");
        let fault = attempt.as_ref().and_then(|newest| newest.fault().map(|fault| &**fault));
        if matches!(fault, Some(LoadFault::Truncated { .. })) && still < STILL_CUT_OFF {
            known.changed.get_or_insert((Some(identity), now));
            return false;
        }
        (known.identity, known.changed) = (identity, None);
        let Some(newest) = attempt else { return false };
        (known.newest, known.unfit) = (newest, None);
        true
    }

    /// `None`: it still is what it was.
    async fn attempt_unless(&self, index: usize, path: &Path, digest: Option<&str>) -> Option<Attempt> {
        if index < FILES_MAX {
            load::file_unless(&self.runtime, path, &self.terms.trial(), digest).await
        } else {
            Some(Attempt::failed(LoadFault::TooMany { limit: FILES_MAX }))
        }
    }

    async fn attempt(&self, index: usize, path: &Path) -> Attempt {
        if index < FILES_MAX {
            load::file(&self.runtime, path, &self.terms.trial()).await
        } else {
            Attempt::failed(LoadFault::TooMany { limit: FILES_MAX })
        }
    }

    /// The folder's files; `None`, and the fault noted, if it cannot be read.
    fn list(&mut self) -> Option<Vec<PathBuf>> {
        match files(&self.terms.folder) {
            Ok(files) => {
                self.folder = None;
                Some(files)
            }
            Err(source) => {
                let folder = self.terms.folder.clone();
                self.folder = Some(Arc::new(LoadFault::Folder { folder, source }));
                None
            }
        }
    }

    /// The handlers that may serve. A new build that may not leaves its place to the one that did.
    pub fn settle(&mut self) -> Registry {
        let candidate =
            |(name, known): (&'_ String, &'_ Known)| (name.clone(), known.judged(), known.serves.clone());
        let files: Vec<_> = self.files.iter().map(candidate).collect();
        let candidates: Vec<Candidate<'_>> = files
            .iter()
            .map(|(file, newest, serves)| Candidate { file, newest, serves: serves.as_ref() })
            .filter(|candidate| candidate.newest.digest.is_some() || candidate.newest.fault().is_some())
            .collect();
        let (registry, builds) = settle(&self.terms, self.folder.clone(), &candidates);
        let proposed = candidates.iter().zip(builds);
        self.proposed =
            proposed.filter_map(|(candidate, build)| Some((candidate.file.to_owned(), build?))).collect();
        registry
    }

    /// What [`Self::settle`] proposed serves from now on: it is what later builds are measured against.
    pub fn confirm(&mut self) {
        for (file, build) in std::mem::take(&mut self.proposed) {
            if let Some(known) = self.files.get_mut(&file) {
                known.serves = Some(build);
            }
        }
    }

    /// Other settings. What only they kept from being tried is tried again.
    pub async fn change(&mut self, terms: Terms) {
        let is_elsewhere = self.terms.folder != terms.folder;
        let is_other_trial = self.terms.trial() != terms.trial();
        self.terms = terms;
        if is_elsewhere {
            let runtime = self.runtime.clone();
            let terms = std::mem::replace(&mut self.terms, Terms::of(PathBuf::new()));
            *self = Self::start(&runtime, terms).await;
        } else if is_other_trial {
            let failed = self.files.values().enumerate().filter(|(_, known)| known.newest.build.is_none());
            let failed: Vec<_> = failed.map(|(index, known)| (index, known.path.clone())).collect();
            for (index, path) in failed {
                let newest = self.attempt(index, &path).await;
                if let Some(known) = self.files.get_mut(&name_of(&path)) {
                    known.newest = newest;
                }
            }
        }
    }

    /// Refuses the newest build of a domain because of the database, which may change: it is offered again from time to
    /// time.
    pub fn refuse(&mut self, domain: &str, faults: Vec<String>) {
        let is_its = |known: &&mut Known| {
            known.newest.build.as_ref().is_some_and(|build| build.manifest.domain == domain)
        };
        if let Some(known) = self.files.values_mut().find(is_its) {
            known.unfit = Some(Arc::new(LoadFault::Catalog { faults }));
        }
    }
}

impl Loader {
    /// How many files there are.
    pub(super) fn count(&self) -> usize {
        self.files.len()
    }

    /// Forgets those that hold the newest build of a domain under another name than this one, and names them.
    pub(super) fn make_way(&mut self, domain: &str, name: &str) -> Vec<String> {
        let is_in_the_way = |(file, known): &(&String, &Known)| {
            *file != name && known.newest.build.as_ref().is_some_and(|build| build.manifest.domain == domain)
        };
        let files: Vec<String> =
            self.files.iter().filter(is_in_the_way).map(|(file, _)| file.clone()).collect();
        self.files.retain(|file, _| !files.contains(file));
        files
    }

    /// Takes in what was made of a file elsewhere, under its name and in place of one that has it.
    pub(super) fn place(&mut self, path: &Path, newest: Attempt) {
        let serves = self.files.remove(&name_of(path)).and_then(|known| known.serves);
        let placed = Known { serves, ..Known::new(path.to_owned(), Identity::default(), newest) };
        self.files.insert(name_of(path), placed);
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

pub(super) fn name_of(path: &Path) -> String {
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}
