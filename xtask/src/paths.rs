//! Where things are in the house.

use std::env;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

/// The workspace's root.
pub(crate) fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("xtask lies in the workspace's root")
}

/// Where cargo keeps the sources of crates.
pub(crate) fn cargo_home() -> PathBuf {
    let of_home = || env::home_dir().unwrap_or_default().join(".cargo");
    env::var_os("CARGO_HOME").map_or_else(of_home, PathBuf::from)
}

/// Cargo's target folder.
pub(crate) fn target() -> PathBuf {
    env::var_os("CARGO_TARGET_DIR").map_or_else(|| root().join("target"), |set| root().join(set))
}

/// The built handlers, one `.wasm` each.
pub(crate) fn handlers() -> PathBuf {
    target().join("handlers")
}

/// The handler that misbehaves on demand, for tests.
pub(crate) fn hostile_handlers() -> PathBuf {
    target().join("hostile")
}

/// The npm side of the tests.
pub(crate) fn bullmq() -> PathBuf {
    root().join("tests/bullmq")
}

/// The handler written in TypeScript.
pub(crate) fn typescript_example() -> PathBuf {
    root().join("examples/typescript-handler")
}

/// The cargo that runs us.
pub(crate) fn cargo() -> OsString {
    env::var_os("CARGO").unwrap_or_else(|| "cargo".into())
}
