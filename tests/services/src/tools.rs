//! Where the programs are.

use anyhow::{Context, Result};
use std::env;
use std::ffi::OsStr;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

/// The redis-server to start instead of the one on the PATH.
pub const REDIS_SERVER: &str = "SALVAGE_TEST_REDIS_SERVER";

/// The folder of PostgreSQL's programs to use instead of searching for one.
pub const POSTGRES_BIN: &str = "SALVAGE_TEST_POSTGRES_BIN";

/// The `pgbouncer` to start instead of the one found.
pub const PGBOUNCER: &str = "SALVAGE_TEST_PGBOUNCER";

/// The first program of this name on the PATH.
pub fn on_path(name: &str) -> Option<PathBuf> {
    path_folders().map(|folder| folder.join(name)).find(|file| executable(file))
}

/// `redis-server`: from `SALVAGE_TEST_REDIS_SERVER`, else from the PATH.
pub fn redis_server() -> Result<PathBuf> {
    if let Some(set) = env::var_os(REDIS_SERVER) {
        return Ok(set.into());
    }
    on_path("redis-server")
        .context("redis-server is not on the PATH: run `cargo xtask setup`, or install redis-server")
}

/// `pgbouncer`: from `SALVAGE_TEST_PGBOUNCER`, else from the PATH, else where distributions put it, which is not on the
/// PATH of everybody.
pub fn pgbouncer() -> Result<PathBuf> {
    if let Some(set) = env::var_os(PGBOUNCER) {
        return Ok(set.into());
    }
    let packaged = || Some(PathBuf::from("/usr/sbin/pgbouncer")).filter(|file| executable(file));
    on_path("pgbouncer")
        .or_else(packaged)
        .context("pgbouncer is not on the PATH: run `cargo xtask setup`, or install pgbouncer")
}

/// The folder that holds `initdb`, `postgres`, `psql` and `pg_isready`: from `SALVAGE_TEST_POSTGRES_BIN`, else from the
/// PATH, else the newest version where distributions put them.
pub fn postgres_bin() -> Result<PathBuf> {
    if let Some(set) = env::var_os(POSTGRES_BIN) {
        return Ok(set.into());
    }
    path_folders()
        .chain(distribution_folders())
        .find(|folder| {
            ["initdb", "postgres", "psql", "pg_isready"].iter().all(|name| executable(&folder.join(name)))
        })
        .context(
            "PostgreSQL's server programs were not found: run `cargo xtask setup`, or install postgresql",
        )
}

fn path_folders() -> impl Iterator<Item = PathBuf> {
    env::split_paths(&env::var_os("PATH").unwrap_or_default()).collect::<Vec<_>>().into_iter()
}

/// Debian keeps the programs of each version in a folder of its own and only wrappers on the PATH. Newest first.
fn distribution_folders() -> Vec<PathBuf> {
    let mut versions: Vec<(u32, PathBuf)> = std::fs::read_dir("/usr/lib/postgresql")
        .into_iter()
        .flatten()
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter_map(|folder| {
            Some((folder.file_name().and_then(OsStr::to_str)?.parse().ok()?, folder.join("bin")))
        })
        .collect();
    versions.sort_unstable_by_key(|&(version, _)| std::cmp::Reverse(version));
    versions.into_iter().map(|(_, folder)| folder).collect()
}

fn executable(file: &Path) -> bool {
    file.metadata().is_ok_and(|data| data.is_file() && data.permissions().mode() & 0o111 != 0)
}
