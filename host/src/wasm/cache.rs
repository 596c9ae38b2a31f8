//! Compiled components, kept from one process to the next: compiling takes from a tenth of a second to several seconds,
//! reading what was compiled a millisecond.
//!
//! Nothing depends on it. An entry that is not there, or not as it was written, is a miss: the component is compiled, and
//! the entry written anew. A folder that cannot be used is logged once and compiled without.
//!
//! **An entry is native code**, and whoever writes one runs code as this process. So entries are read only from a folder,
//! and only from files, that belong to the process's user or to root and that nobody else can write. That folder is one
//! of our own, below the configured one: a mounted volume is often writable for everybody, and whoever replaces our folder
//! there can only do so by one that is not ours.
//!
//! **An entry is read as a whole before it is used**, not mapped: a file that is cut or overwritten while its code runs
//! would take the process with it. It begins with a checksum over its key and the rest, since the engine checks the
//! version of what it is given and trusts the code in it.

use std::fs::{DirBuilder, File, Metadata, OpenOptions};
use std::hash::{Hash, Hasher};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use sha2::{Digest, Sha256};
use wasmtime::Engine;
use wasmtime::component::Component;

use super::engine::compiled;
use super::fault::root_line;

/// Our own folder in the configured one.
const FOLDER: &str = "compiled";

/// Most entries kept: those of a full folder of handlers, for two versions of the host.
const ENTRIES_MAX: usize = 2 * super::FILES_MAX;

/// Largest entry: about ten times the largest component.
const ENTRY_BYTES_MAX: u64 = 640 * 1024 * 1024;

/// Bytes of an entry's checksum, SHA-256.
const CHECKSUM_BYTES: usize = 32;

/// A folder of compiled components for one engine.
pub(super) struct Cache {
    folder: PathBuf,
    /// Stands for the engine's version, its settings and the machine: code of another is of no use.
    engine: String,
    /// Whether the folder's fault has been told.
    told: AtomicBool,
}

/// Why an entry cannot be used, other than that there is none; or why none can be kept.
#[derive(Debug, thiserror::Error)]
#[error("{} {why}", path.display())]
struct Miss {
    /// The entry, or the folder if all entries suffer from it.
    path: PathBuf,
    why: Why,
}

#[derive(Debug, thiserror::Error)]
enum Why {
    /// Somebody else could have written it.
    #[error(
        "belongs to user {owner}, and native code is run only if it is of this process's user, {ours}, or root's"
    )]
    Foreign { owner: u32, ours: u32 },
    /// Somebody else can write it.
    #[error(
        "can be written by others (mode {mode:o}), and native code is run only if they cannot: `chmod go-w` it"
    )]
    Writable { mode: u32 },
    /// It is a link, a pipe or the like.
    #[error("is not {expected}")]
    Kind { expected: &'static str },
    #[error("cannot be read ({0})")]
    Read(io::Error),
    #[error("cannot be written ({0})")]
    Write(io::Error),
    /// It is not what was written under this name.
    #[error("is damaged")]
    Damaged,
    /// The engine's words.
    #[error("is of no use to this engine ({0})")]
    Unusable(String),
}

impl Cache {
    /// Entries for `engine`, in a folder below `root`; touches nothing yet.
    pub(super) fn new(root: &Path, engine: &Engine) -> Self {
        let mut hasher = Fingerprint(Sha256::new());
        engine.precompile_compatibility_hash().hash(&mut hasher);
        let engine = hex(&hasher.0.finalize()[..16]);
        Self { folder: root.join(FOLDER), engine, told: AtomicBool::new(false) }
    }

    /// The component whose file has these bytes and this digest: from its entry, or compiled, and then kept. Blocks.
    ///
    /// # Errors
    /// If it does not compile.
    pub(super) fn component(
        &self,
        engine: &Engine,
        digest: &str,
        bytes: &[u8],
    ) -> wasmtime::Result<Component> {
        let kept = self.read(engine, digest);
        match kept {
            Ok(Some(component)) => return Ok(component),
            Ok(None) => {}
            Err(miss) => self.tell(&miss),
        }
        let component = compiled(engine, digest, bytes)?;
        match component.serialize() {
            Ok(code) => {
                if let Err(miss) = self.write(digest, &code) {
                    self.tell(&miss);
                }
            }
            Err(error) => tracing::warn!(%error, "a compiled handler cannot be kept"),
        }
        Ok(component)
    }

    /// What is wrong with the folder is told once; what is wrong with an entry is mended when it is told.
    fn tell(&self, miss: &Miss) {
        if miss.path != self.folder {
            tracing::warn!("a handler is compiled anew: its cached entry {miss}");
        } else if !self.told.swap(true, Ordering::Relaxed) {
            tracing::warn!("handlers are compiled anew at each start: of [handlers] cache_dir, {miss}");
        }
    }

    fn path(&self, digest: &str) -> PathBuf {
        self.folder.join(format!("{digest}-{}.aot", self.engine))
    }

    fn checksum(&self, digest: &str, code: &[u8]) -> [u8; CHECKSUM_BYTES] {
        let key = [digest.as_bytes(), self.engine.as_bytes()];
        let mut checksum = Sha256::new();
        key.iter().for_each(|part| checksum.update(part));
        checksum.update(code);
        checksum.finalize().into()
    }

    /// `None`: there is no entry.
    fn read(&self, engine: &Engine, digest: &str) -> Result<Option<Component>, Miss> {
        let of_folder = |why| Miss { path: self.folder.clone(), why };
        let folder =
            present(std::fs::symlink_metadata(&self.folder)).map_err(Why::Read).map_err(of_folder)?;
        let Some(folder) = folder else { return Ok(None) };
        ours_alone(&folder, folder.is_dir(), "a folder").map_err(of_folder)?;
        let path = self.path(digest);
        self.entry(engine, digest, &path).map_err(|why| Miss { path, why })
    }

    fn entry(&self, engine: &Engine, digest: &str, path: &Path) -> Result<Option<Component>, Why> {
        // Not through a link, and not waiting for whoever writes a pipe.
        let flags = libc::O_NOFOLLOW | libc::O_NONBLOCK;
        let opened = OpenOptions::new().read(true).custom_flags(flags).open(path);
        let Some(file) = present(opened).map_err(Why::Read)? else { return Ok(None) };
        let metadata = file.metadata().map_err(Why::Read)?;
        ours_alone(&metadata, metadata.is_file(), "a file")?;
        let mut entry = Vec::new();
        file.take(ENTRY_BYTES_MAX).read_to_end(&mut entry).map_err(Why::Read)?;
        let (checksum, code) = entry.split_first_chunk::<CHECKSUM_BYTES>().ok_or(Why::Damaged)?;
        if *checksum != self.checksum(digest, code) {
            return Err(Why::Damaged);
        }
        let component = native(engine, code).map_err(|error| Why::Unusable(root_line(&error)))?;
        Ok(Some(component))
    }

    fn write(&self, digest: &str, code: &[u8]) -> Result<(), Miss> {
        let of_folder = |why| Miss { path: self.folder.clone(), why };
        let folder = self.own_folder().map_err(Why::Write).map_err(of_folder)?;
        ours_alone(&folder, folder.is_dir(), "a folder").map_err(of_folder)?;
        let written = self.place(digest, code).and_then(|()| self.prune());
        written.map_err(Why::Write).map_err(of_folder)
    }

    fn own_folder(&self) -> io::Result<Metadata> {
        DirBuilder::new().recursive(true).mode(0o755).create(&self.folder)?;
        std::fs::symlink_metadata(&self.folder)
    }

    /// Under another name first: readers see all of an entry or none of it.
    fn place(&self, digest: &str, code: &[u8]) -> io::Result<()> {
        let path = self.path(digest);
        let unfinished = path.with_extension(format!("{}.unfinished", std::process::id()));
        let written = write_file(&unfinished, &self.checksum(digest, code), code)
            .and_then(|()| std::fs::rename(&unfinished, &path));
        if written.is_err() {
            // Whatever there is of it is of no use; if it cannot be removed, it is pruned some day.
            drop(std::fs::remove_file(&unfinished));
        }
        written
    }

    /// Removes the oldest files beyond [`ENTRIES_MAX`].
    fn prune(&self) -> io::Result<()> {
        let mut files = Vec::new();
        for entry in std::fs::read_dir(&self.folder)? {
            let entry = entry?;
            // Another process may prune, too.
            if let Some(metadata) = present(entry.metadata())? {
                files.push((metadata.modified()?, entry.path()));
            }
        }
        files.sort();
        for (_, path) in &files[..files.len().saturating_sub(ENTRIES_MAX)] {
            present(std::fs::remove_file(path))?;
        }
        Ok(())
    }
}

fn write_file(path: &Path, checksum: &[u8], code: &[u8]) -> io::Result<()> {
    // A leftover of a process that had our number is no reason to give up.
    present(std::fs::remove_file(path))?;
    let mut file: File = OpenOptions::new().write(true).create_new(true).mode(0o644).open(path)?;
    file.write_all(checksum)?;
    file.write_all(code)
}

/// `None` if there is no such file.
fn present<T>(result: io::Result<T>) -> io::Result<Option<T>> {
    match result {
        Ok(value) => Ok(Some(value)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// Whether it is what is expected, and nobody but this process's user and root could have written it.
fn ours_alone(found: &Metadata, is_kind: bool, expected: &'static str) -> Result<(), Why> {
    if !is_kind {
        return Err(Why::Kind { expected });
    }
    // SAFETY: geteuid(2) takes nothing, changes nothing and never fails.
    let ours = unsafe { libc::geteuid() };
    writers(found.uid(), found.mode(), ours)
}

/// The same of a file's owner and mode, for a process of user `ours`.
const fn writers(owner: u32, mode: u32, ours: u32) -> Result<(), Why> {
    if owner != ours && owner != 0 {
        return Err(Why::Foreign { owner, ours });
    }
    if mode & 0o022 != 0 {
        return Err(Why::Writable { mode: mode & 0o7777 });
    }
    Ok(())
}

/// Makes machine code of bytes.
fn native(engine: &Engine, code: &[u8]) -> wasmtime::Result<Component> {
    // SAFETY: the engine asks that the bytes are what an engine of its kind has serialized, unchanged. They come from a
    // file that only this process's user (or root) can write, whose checksum, which covers key and code, is that of what
    // `Cache::write` was given; and they are a copy that nobody changes any more.
    unsafe { Component::deserialize(engine, code) }
}

/// Feeds what is hashed into SHA-256: the standard library's own hasher may differ from one release to the next.
struct Fingerprint(Sha256);

impl Hasher for Fingerprint {
    fn write(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    /// Not asked for.
    fn finish(&self) -> u64 {
        0
    }
}

/// Bytes as hexadecimal text.
pub(super) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_file_that_nobody_else_can_write_is_run() {
        assert!(writers(1000, 0o100_644, 1000).is_ok());
        assert!(writers(0, 0o040_755, 1000).is_ok(), "root may write everything as it is");
        assert!(matches!(writers(1001, 0o100_600, 1000), Err(Why::Foreign { owner: 1001, ours: 1000 })));
        assert!(matches!(writers(1000, 0o100_600, 0), Err(Why::Foreign { .. })));
        for mode in [0o100_664, 0o100_646, 0o041_777] {
            assert!(matches!(writers(1000, mode, 1000), Err(Why::Writable { .. })), "{mode:o}");
        }
    }

    #[test]
    fn the_oldest_entries_make_room() {
        let root = tempfile::tempdir().unwrap();
        let cache = Cache::new(root.path(), &Engine::default());
        for index in 0..=ENTRIES_MAX {
            cache.write(&format!("{index:03}"), b"code").unwrap();
            let age = std::time::Duration::from_secs(1_000 - index as u64);
            let then = std::time::UNIX_EPOCH + std::time::Duration::from_secs(1_000_000_000) - age;
            File::options()
                .write(true)
                .open(cache.path(&format!("{index:03}")))
                .unwrap()
                .set_modified(then)
                .unwrap();
        }
        cache.write("new", b"code").unwrap();
        assert_eq!(std::fs::read_dir(&cache.folder).unwrap().count(), ENTRIES_MAX);
        assert!(!cache.path("000").exists() && !cache.path("001").exists() && cache.path("002").exists());
        assert!(cache.path("new").exists());
    }
}
