//! What a running host tells others on its machine of its handlers: a small file in the cache's folder, for
//! `salvage handler list`.
//!
//! The host holds a lock on the file as long as it lives, which the system takes away however it ends. So whoever finds
//! the file unlocked knows that nobody stands behind it. A second host on the same folder tells nothing.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{self, Seek, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::cache::hex;
use super::live::Live;
use super::registry::Registry;
use super::state::{LoadReport, LoadState};

/// What a running host tells.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Running {
    /// The host's process.
    pub pid: u32,
    /// One for each file, in file-name order.
    pub files: Vec<Told>,
}

/// One file, as a running host has it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Told {
    /// Its name in the folder.
    pub file: String,
    /// The domain it declares.
    pub domain: Option<String>,
    /// SHA-256 of its content.
    pub digest: Option<String>,
    /// The state in one word.
    pub state: String,
    /// SHA-256 of the older build that serves in its place.
    pub serves_on: Option<String>,
    /// Why it is not active.
    pub why: Option<String>,
    /// It serves from the next pass on, and not yet.
    pub is_next: bool,
}

impl Told {
    fn new(report: LoadReport, now: &Registry) -> Self {
        let (state, why) = (report.state.word().to_owned(), report.why());
        let is_to_serve = !matches!(report.state, LoadState::Refused { .. });
        let LoadReport { file, digest, domain, serves_on, .. } = report;
        let is_next = is_to_serve && digest.as_ref().is_some_and(|digest| !now.serves(digest));
        Self { file, domain, digest, state, serves_on, why, is_next }
    }
}

/// The file of a running host.
pub struct Status {
    path: PathBuf,
    file: File,
    told: String,
}

impl Status {
    /// Takes the file; `None` if another host has it.
    ///
    /// # Errors
    /// If it cannot be made.
    pub fn open(cache_dir: &Path, handlers: &Path) -> io::Result<Option<Self>> {
        std::fs::create_dir_all(cache_dir)?;
        let mut options = OpenOptions::new();
        let options = options.create(true).truncate(false).write(true).mode(0o644);
        let path = path(cache_dir, handlers);
        let file = options.custom_flags(libc::O_NOFOLLOW).open(&path)?;
        match file.try_lock() {
            Ok(()) => Ok(Some(Self { path, file, told: String::new() })),
            Err(TryLockError::WouldBlock) => Ok(None),
            Err(TryLockError::Error(error)) => Err(error),
        }
    }

    /// Whether it is the file of this folder.
    #[must_use]
    pub fn is_of(&self, cache_dir: &Path, handlers: &Path) -> bool {
        self.path == path(cache_dir, handlers)
    }

    /// Tells how things stand, if that is not what was told last.
    ///
    /// # Errors
    /// If it cannot be written; what is there then may be half a text.
    pub fn tell(&mut self, live: &Live) -> io::Result<()> {
        let now = live.now();
        let files = live.newest().reports().into_iter().map(|report| Told::new(report, &now)).collect();
        let text = serde_json::to_string(&Running { pid: std::process::id(), files })?;
        if text != self.told {
            self.file.set_len(0)?;
            self.file.rewind()?;
            self.file.write_all(text.as_bytes())?;
            self.told = text;
        }
        Ok(())
    }
}

/// What a host that runs now on this folder tells; `None` if there is none, or it tells nothing.
#[must_use]
pub fn running(cache_dir: &Path, handlers: &Path) -> Option<Running> {
    let path = path(cache_dir, handlers);
    let file = File::open(&path).ok()?;
    if !matches!(file.try_lock_shared(), Err(TryLockError::WouldBlock)) {
        return None;
    }
    // It may be writing; that takes no longer than this.
    (0..10).find_map(|_| {
        let text = std::fs::read_to_string(&path).ok()?;
        let told = serde_json::from_str(&text).ok();
        if told.is_none() {
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
        told
    })
}

/// One for each handlers' folder, by whatever name it is called.
fn path(cache_dir: &Path, handlers: &Path) -> PathBuf {
    let folder = std::fs::canonicalize(handlers).unwrap_or_else(|_| handlers.to_owned());
    let digest = Sha256::digest(folder.as_os_str().as_encoded_bytes());
    cache_dir.join(format!("running-{}.json", hex(&digest[..8])))
}
