//! Compiled components are kept, and nothing depends on it: whatever is wrong with an entry or its folder is a miss.

use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;

use insta::assert_snapshot;
use salvage::wasm::{Registry, Runtime, Terms};
use salvage_core::grants::GrantsMode;
use salvage_tests::services::{handlers_folder, salvage_binary};
use sha2::{Digest, Sha256};
use tempfile::TempDir;

use crate::commands::ran;
use crate::wasm_fixtures::*;

/// A folder for the compiled forms of the shipped handlers.
struct Caches(TempDir);

impl Caches {
    fn new() -> Self {
        Self(TempDir::new().expect("a temporary folder"))
    }

    /// With the entries of the shipped handlers.
    fn filled() -> Self {
        let caches = Self::new();
        assert_eq!(said(caches.0.path()), "", "there is nothing to complain about");
        assert_eq!(caches.entries().len(), 3);
        caches
    }

    fn compiled(&self) -> PathBuf {
        self.0.path().join("compiled")
    }

    /// In name order.
    fn entries(&self) -> Vec<PathBuf> {
        let entries = std::fs::read_dir(self.compiled()).expect("a folder of entries");
        let mut entries: Vec<PathBuf> = entries.map(|entry| entry.expect("an entry").path()).collect();
        entries.sort();
        entries
    }

    /// A file that was written anew is another file.
    fn identities(&self) -> Vec<u64> {
        self.entries().iter().map(|path| path.metadata().expect("an entry").ino()).collect()
    }

    /// What a process logs that loads the handlers, with this folder's path shortened.
    fn said(&self) -> String {
        said(self.0.path()).replace(&self.0.path().display().to_string(), "CACHE")
    }
}

/// What a process logs that loads the shipped handlers, without its time; they all serve, whatever is wrong.
fn said(cache_dir: &Path) -> String {
    let mut command = Command::new(salvage_binary().expect("the binary"));
    let list = command
        .args(["handler", "list"])
        .current_dir("/")
        .env("SALVAGE_HANDLERS__DIR", handlers_folder().expect("the handlers"))
        .env("SALVAGE_HANDLERS__CACHE_DIR", cache_dir)
        .env("SALVAGE_HANDLERS__GRANTS", "declared")
        .env_remove("RUST_LOG");
    let ran = ran(list).and_then(|ran| ran.ended_with(0)).expect("a list");
    assert_eq!(ran.stdout.matches(": active (").count(), 3, "{ran:#?}");
    let lines = ran.stderr.lines().map(|line| line.split_once(' ').expect("a time before each line").1);
    lines.map(|line| format!("{}\n", line.trim())).collect()
}

#[test]
fn a_second_start_reads_what_the_first_compiled() {
    let caches = Caches::filled();
    let before = caches.identities();
    assert_eq!(caches.said(), "");
    assert_eq!(caches.identities(), before, "what is found is not written again");
}

/// H7. Each kind of damage; what is left after it is a good entry.
#[test]
fn a_damaged_entry_is_said_once_and_written_anew() {
    let caches = Caches::filled();
    let entries = caches.entries();
    let good: Vec<Vec<u8>> = entries.iter().map(|path| std::fs::read(path).expect("an entry")).collect();
    let mut flipped = good[0].clone();
    let middle = flipped.len() / 2;
    flipped[middle] ^= 1;
    let of_another = good[1].clone();
    let cut = good[0][..middle].to_vec();
    for bad in [b"garbage".to_vec(), Vec::new(), cut, flipped, of_another] {
        std::fs::write(&entries[0], &bad).expect("damage");
        let said = caches.said();
        assert_eq!(said.lines().count(), 1, "{said}");
        assert!(said.contains("a handler is compiled anew: its cached entry CACHE/compiled/"), "{said}");
        assert!(said.trim_end().ends_with(".aot is damaged"), "{said}");
        assert_eq!(std::fs::read(&entries[0]).expect("an entry").len(), good[0].len());
        assert_eq!(caches.said(), "", "mended");
    }
}

/// With a checksum that is right, only the engine can tell.
#[test]
fn an_entry_that_the_engine_refuses_is_a_miss() {
    let caches = Caches::filled();
    let path = caches.entries().swap_remove(0);
    let name = path.file_stem().expect("a name").to_string_lossy().into_owned();
    let (digest, engine) = name.split_once('-').expect("digest and engine");
    let code = b"not what an engine has made";
    let checksum = Sha256::digest([digest.as_bytes(), engine.as_bytes(), code].concat());
    std::fs::write(&path, [&checksum[..], code].concat()).expect("damage");
    let said = caches.said();
    assert!(said.contains(" is of no use to this engine ("), "{said}");
    assert_eq!(said.lines().count(), 1, "{said}");
    assert_eq!(caches.said(), "", "mended");
}

/// H7. Were it mapped, the process would end with a signal.
#[tokio::test]
async fn an_entry_that_is_overwritten_while_its_code_runs_harms_nobody() {
    let caches = Caches::new();
    let folder = Folder::of(&[("hostile.wasm", hostile())]);
    let load = || async {
        let runtime = Runtime::start_with(Some(caches.0.path())).expect("an engine");
        let terms = Terms { mode: GrantsMode::Declared, ..folder.terms() }.within(patient());
        Registry::load(&runtime, terms).await
    };
    load().await;
    let found = load().await;
    let path = caches.entries().swap_remove(0);
    let length = std::fs::metadata(&path).expect("an entry").len();
    std::fs::write(&path, vec![0xcc; usize::try_from(length).expect("a size")])
        .expect("overwritten in place");
    assert!(ask(&found, "1").await.is_ok());
    std::fs::write(&path, b"").expect("cut in place");
    assert!(ask(&found, "work:100000").await.is_ok());
}

#[test]
fn a_folder_that_cannot_be_written_is_said_once_for_all_handlers() {
    assert_snapshot!(said(Path::new("/proc/salvage")), @"WARN salvage::wasm::cache: handlers are compiled anew at each start: of [handlers] cache_dir, /proc/salvage/compiled cannot be written (No such file or directory (os error 2))");
    assert_snapshot!(said(Path::new("/dev/null/salvage")), @"WARN salvage::wasm::cache: handlers are compiled anew at each start: of [handlers] cache_dir, /dev/null/salvage/compiled cannot be read (Not a directory (os error 20))");
}

#[test]
fn code_that_others_could_have_written_is_not_run() {
    let caches = Caches::filled();
    let before = caches.identities();
    let allow = |path: &Path, mode| {
        std::fs::set_permissions(path, PermissionsExt::from_mode(mode)).expect("permissions");
    };
    allow(&caches.compiled(), 0o777);
    assert_snapshot!(caches.said(), @"WARN salvage::wasm::cache: handlers are compiled anew at each start: of [handlers] cache_dir, CACHE/compiled can be written by others (mode 777), and native code is run only if they cannot: `chmod go-w` it");
    allow(&caches.compiled(), 0o755);
    allow(&caches.entries()[0], 0o666);
    let said = caches.said();
    assert!(said.contains(".aot can be written by others (mode 666), and"), "{said}");
    assert_eq!(said.lines().count(), 1, "{said}");
    let after = caches.identities();
    assert_ne!(after[0], before[0], "its place is taken by one of ours");
    assert_eq!(after[1..], before[1..]);
    assert_eq!(caches.said(), "");
}

#[test]
fn an_entry_behind_a_link_is_not_followed() {
    let caches = Caches::filled();
    let path = caches.entries().swap_remove(0);
    let elsewhere = caches.0.path().join("elsewhere");
    std::fs::rename(&path, &elsewhere).expect("moved");
    std::os::unix::fs::symlink(&elsewhere, &path).expect("a link");
    let said = caches.said();
    assert!(said.contains("(Too many levels of symbolic links (os error 40))"), "{said}");
    assert!(path.symlink_metadata().expect("an entry").is_file(), "its place is taken by a file");
}
