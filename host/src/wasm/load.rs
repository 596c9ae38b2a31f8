//! From a file to a handler that may serve: form, contract, imports, a trial instance, its manifest.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use salvage_core::grants::NotGranted;
use salvage_core::manifest::HandlerManifest;
use sha2::{Digest, Sha256};

use super::cache::hex;
use super::check::{self, Misfit};
use super::contract::DOMAIN;
use super::convert;
use super::engine::Runtime;
use super::fault::{first_line, root_line};
use super::handler::Handler;
use super::health::Health;
use super::limits::Limits;
use super::state::{Event, LoadState, Step};
use crate::ports::HandlerFault;

/// Largest component. One made of Python has 18 MB; compiling grows with the size.
pub const FILE_BYTES_MAX: u64 = 64 * 1024 * 1024;

/// Why a file does not serve. Its text is for whoever wrote or placed the file: what is wrong, and what to do.
#[derive(Debug, thiserror::Error)]
pub enum LoadFault {
    /// The folder could not be listed.
    #[error("the handlers' folder {} cannot be read ({source}); check [handlers] dir", folder.display())]
    Folder {
        /// As it was configured.
        folder: PathBuf,
        /// The system's words.
        source: io::Error,
    },
    /// The folder holds too many files.
    #[error("the folder holds more than {limit} handlers; this one is beyond")]
    TooMany {
        /// Most files.
        limit: usize,
    },
    /// The file could not be read.
    #[error("the file cannot be read: {0}")]
    Read(#[source] io::Error),
    /// The file is larger than a component may be.
    #[error("the file has {bytes} bytes, a handler may have {limit}")]
    TooLarge {
        /// Its size.
        bytes: u64,
        /// [`FILE_BYTES_MAX`].
        limit: u64,
    },
    /// Not WebAssembly at all.
    #[error(
        "not a WebAssembly component: the file does not begin like one; build the handler for wasm32-wasip2"
    )]
    NotWasm,
    /// A core module.
    #[error(
        "a core WebAssembly module, not a component; build the handler for wasm32-wasip2, \
         or make a component of it with `wasm-tools component new`"
    )]
    CoreModule,
    /// The beginning of a component.
    #[error("the file is cut off after {bytes} bytes: only the beginning of a component; copy it again")]
    Truncated {
        /// Its size.
        bytes: usize,
    },
    /// A component that the engine cannot compile.
    #[error("not a valid component: {0}; build or copy it again")]
    Malformed(String),
    /// A component of another world.
    #[error(
        "it does not export `{DOMAIN}` but {}; build it against the world `handler` of wit/v0.1",
        list(found, "nothing")
    )]
    WrongWorld {
        /// What it exports.
        found: Vec<String>,
    },
    /// A component of another version of the contract.
    #[error(
        "it is built against contract {found}, and this host speaks 0.1; run a host that speaks {found}, \
         or build it against the world `handler` of wit/v0.1"
    )]
    OtherContract {
        /// The version in the name of the interface it exports.
        found: String,
    },
    /// The right interface with other types.
    #[error("{0}; build it against wit/v0.1 as it was released")]
    Contract(Misfit),
    /// It imports what the host does not have.
    #[error(
        "it imports {}, which the host does not offer; a handler may import `salvage:handler/host-log` and WASI 0.2 \
         without http",
        list(names, "nothing")
    )]
    Imports {
        /// The imports.
        names: Vec<String>,
    },
    /// It imports what the host has, in another form.
    #[error("its imports do not fit: {0}")]
    Link(String),
    /// No instance could be made.
    #[error("it cannot be instantiated: {0}")]
    Start(#[source] HandlerFault),
    /// `describe` did not answer.
    #[error("`describe` failed: {0}")]
    Describe(#[source] HandlerFault),
    /// The manifest breaks rules.
    #[error("its manifest of domain {domain:?} is not sound: {}", faults.join("; "))]
    Manifest {
        /// As declared.
        domain: String,
        /// Each a sentence.
        faults: Vec<String>,
    },
    /// The operator's settings for it make no sense.
    #[error("the settings of {domain:?} do not fit its manifest: {why}")]
    Settings {
        /// The domain.
        domain: String,
        /// What does not fit.
        why: String,
    },
    /// Another file serves this domain.
    #[error("domain {domain:?} is served by {first} already; remove one of the two files")]
    DomainTaken {
        /// The domain of both.
        domain: String,
        /// The other file.
        first: String,
    },
    /// Another source owns a job type.
    #[error(
        "{what} of table {table:?} is owned by {owner} ({first}) already, and has one owner; \
         take it out of one of the two manifests"
    )]
    Owned {
        /// The job table.
        table: String,
        /// `job type "NAME"`, or `every job type`.
        what: String,
        /// `domain/source` of the owner.
        owner: String,
        /// The owner's file.
        first: String,
    },
    /// Two of its own sources claim the same rows.
    #[error(
        "{what} of table {table:?} is declared by two sources of one manifest, {} and {}, and has one owner; \
         leave it to one of them",
        sources[0], sources[1]
    )]
    OwnedTwice {
        /// The job table.
        table: String,
        /// `job type "NAME"`, or `every job type`.
        what: String,
        /// `domain/source` of each.
        sources: [String; 2],
    },
    /// Its grants do not cover its manifest.
    #[error(transparent)]
    NotGranted(#[from] NotGranted),
    /// The operator wants another build.
    #[error(
        "[handler.{domain}] sha256 is {pinned}, and this file's is {found}; place the build that is meant, or change the pin"
    )]
    Pinned {
        /// The domain.
        domain: String,
        /// As configured, hex.
        pinned: String,
        /// The file's, hex.
        found: String,
    },
    /// The database lacks what it declares; told only of a new build, in whose place the old one can serve.
    #[error("its manifest does not fit the database: {}", faults.join("; "))]
    Catalog {
        /// Each a sentence.
        faults: Vec<String>,
    },
}

fn list(names: &[String], none: &str) -> String {
    if names.is_empty() {
        return none.to_owned();
    }
    names.iter().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ")
}

/// One build of a handler that kept the contract, and what it declares. Grants and owners are still to be judged.
pub(super) struct Build {
    /// SHA-256 of the file, hex.
    pub(super) digest: String,
    pub(super) handler: Handler,
    pub(super) manifest: HandlerManifest,
    pub(super) imports: Vec<String>,
    /// Begins anew with each build.
    pub(super) health: Health,
}

impl Build {
    /// What its author is told of it.
    pub(super) fn checked(&self) -> Checked {
        Checked {
            manifest: self.manifest.clone(),
            digest: self.digest.clone(),
            imports: self.imports.clone(),
        }
    }
}

/// What a file came to, as far as it came.
#[derive(Clone)]
pub(super) struct Attempt {
    /// SHA-256 of the file, hex; `None` if it could not be read.
    pub(super) digest: Option<String>,
    /// [`Step::Tried`] and a build, or the last step passed and why it was the last.
    pub(super) state: LoadState,
    pub(super) build: Option<Arc<Build>>,
}

impl Attempt {
    /// Of a file that was not even read.
    pub(super) fn failed(fault: LoadFault) -> Self {
        let state = LoadState::START.after(Event::Failed(Arc::new(fault)));
        Self { digest: None, state, build: None }
    }

    /// The build, or why there is none.
    pub(super) fn built(&self) -> Result<&Build, Arc<LoadFault>> {
        match (&self.build, self.fault()) {
            (Some(build), _) => Ok(build),
            (None, Some(fault)) => Err(Arc::clone(fault)),
            (None, None) => unreachable!("a file that was tried has a build or a fault"),
        }
    }

    /// Why there is no build.
    pub(super) fn fault(&self) -> Option<&Arc<LoadFault>> {
        match &self.state {
            LoadState::Refused { fault, .. } => Some(fault),
            _ => None,
        }
    }
}

/// Loads one file.
pub(super) async fn file(runtime: &Runtime, path: &Path, limits: &Limits) -> Attempt {
    match content(path).await {
        Ok(content) => of(runtime, path, content, limits).await,
        Err(fault) => Attempt::failed(fault),
    }
}

/// The same, unless its content is still that of this digest: then `None`, and nothing is compiled.
pub(super) async fn file_unless(
    runtime: &Runtime,
    path: &Path,
    limits: &Limits,
    known: Option<&str>,
) -> Option<Attempt> {
    match content(path).await {
        Ok(content) if Some(content.digest.as_str()) == known => None,
        Ok(content) => Some(of(runtime, path, content, limits).await),
        Err(fault) => Some(Attempt::failed(fault)),
    }
}

/// What a file holds.
struct Content {
    bytes: Arc<Vec<u8>>,
    /// SHA-256, hex.
    digest: String,
}

async fn of(runtime: &Runtime, path: &Path, content: Content, limits: &Limits) -> Attempt {
    let Content { bytes, digest } = content;
    let name = path.file_stem().unwrap_or_default().to_string_lossy();
    let mut state = LoadState::START;
    let mut passed = |step| state = state.clone().after(Event::Passed(step));
    let built = build(runtime, &name, &digest, bytes, limits, &mut passed).await;
    let (event, build) = match built {
        Ok(build) => (Event::Passed(Step::Tried), Some(Arc::new(build))),
        Err(fault) => (Event::Failed(Arc::new(fault)), None),
    };
    Attempt { digest: Some(digest), state: state.after(event), build }
}

async fn content(path: &Path) -> Result<Content, LoadFault> {
    let path = path.to_owned();
    blocking(move || {
        let file = std::fs::metadata(&path).map_err(LoadFault::Read)?;
        if !file.is_file() {
            // A pipe would be waited for, for ever.
            return Err(LoadFault::Read(std::io::Error::other("it is no regular file")));
        }
        let bytes = file.len();
        if bytes > FILE_BYTES_MAX {
            return Err(LoadFault::TooLarge { bytes, limit: FILE_BYTES_MAX });
        }
        let bytes = Arc::new(std::fs::read(&path).map_err(LoadFault::Read)?);
        let digest = hex(&Sha256::digest(&*bytes));
        Ok(Content { bytes, digest })
    })
    .await
}

/// Walks the steps, and says of each but the last that it was passed.
async fn build(
    runtime: &Runtime,
    name: &str,
    digest: &str,
    bytes: Arc<Vec<u8>>,
    limits: &Limits,
    passed: &mut impl FnMut(Step),
) -> Result<Build, LoadFault> {
    check::form(&bytes)?;
    passed(Step::Checked);
    let (compiler, key) = (runtime.clone(), digest.to_owned());
    let compiled = blocking(move || compiler.compile(&key, &bytes)).await;
    let component = compiled.map_err(|error| LoadFault::Malformed(root_line(&error)))?;
    runtime.contract().check(&component, runtime.engine())?;
    let imports = check::imports(&component, runtime.engine());
    let names = check::not_offered(&imports);
    if !names.is_empty() {
        return Err(LoadFault::Imports { names });
    }
    let link = |error: wasmtime::Error| LoadFault::Link(first_line(&error));
    let pre = runtime.linker().instantiate_pre(&component).map_err(link)?;
    let handler = Handler::new(runtime, name, pre, *limits).map_err(link)?;
    passed(Step::Compiled);
    handler.try_instance().await.map_err(LoadFault::Start)?;
    let described = handler.describe().await.map_err(LoadFault::Describe)?;
    let domain = described.domain.clone();
    let manifest = convert::manifest(described).map_err(|faults| LoadFault::Manifest { domain, faults })?;
    let handler = handler.renamed(&manifest.domain);
    Ok(Build { digest: digest.to_owned(), handler, manifest, imports, health: Health::default() })
}

/// Compiling takes up to seconds; the runtime's threads have a pass to run.
async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    match tokio::task::spawn_blocking(work).await {
        Ok(done) => done,
        Err(error) => std::panic::resume_unwind(error.into_panic()),
    }
}

/// A handler file that keeps the contract.
#[derive(Debug, Clone)]
pub struct Checked {
    /// What it declares; sound on its own.
    pub manifest: HandlerManifest,
    /// SHA-256 of the file, hex.
    pub digest: String,
    /// What it imports, in its order.
    pub imports: Vec<String>,
}
