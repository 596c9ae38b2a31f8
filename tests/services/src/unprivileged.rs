//! The user PostgreSQL and `PgBouncer` run as. They refuse to run as root, so under root they run as somebody else.

use anyhow::{Context, Result};
use std::ffi::CStr;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Users to run as, best first. `nobody` is everywhere; `postgres` came with the package.
const CANDIDATES: [&CStr; 2] = [c"postgres", c"nobody"];

/// Who a server process runs as.
#[derive(Clone, Copy)]
pub(crate) enum User {
    /// Whoever we are.
    Same,
    Other {
        uid: u32,
        gid: u32,
    },
}

impl User {
    /// Ourselves, unless we are root.
    pub(crate) fn for_server(name: &str) -> Result<Self> {
        // SAFETY: geteuid(2) always succeeds and touches no memory.
        if unsafe { libc::geteuid() } != 0 {
            return Ok(Self::Same);
        }
        CANDIDATES.into_iter().find_map(look_up).with_context(|| {
            format!(
                "{name} refuses to run as root, and there is neither a user `postgres` nor `nobody` to run it as: \
                 create one, or run as another user"
            )
        })
    }

    pub(crate) fn run(self, command: &mut Command) {
        if let Self::Other { uid, gid } = self {
            command.uid(uid).gid(gid);
        }
    }

    /// Copies a file so that this user, and nobody else, can read it.
    pub(crate) fn give_private_copy(self, from: &Path, to: &Path) -> Result<()> {
        std::fs::copy(from, to).with_context(|| format!("copying {}", from.display()))?;
        std::fs::set_permissions(to, std::fs::Permissions::from_mode(0o600))
            .with_context(|| format!("hiding {} from others", to.display()))?;
        if let Self::Other { uid, gid } = self {
            std::os::unix::fs::chown(to, Some(uid), Some(gid))
                .with_context(|| format!("giving {} to user {uid}", to.display()))?;
        }
        Ok(())
    }

    /// A new temporary folder that belongs to this user.
    pub(crate) fn temporary_folder(self, prefix: &str) -> Result<tempfile::TempDir> {
        let parent = match self {
            Self::Same => std::env::temp_dir(),
            Self::Other { .. } => reachable_by_all(std::env::temp_dir()),
        };
        let folder = tempfile::Builder::new()
            .prefix(prefix)
            .tempdir_in(&parent)
            .with_context(|| format!("making a temporary folder in {}", parent.display()))?;
        if let Self::Other { uid, gid } = self {
            std::os::unix::fs::chown(folder.path(), Some(uid), Some(gid))
                .with_context(|| format!("giving {} to user {uid}", folder.path().display()))?;
        }
        Ok(folder)
    }
}

fn look_up(name: &CStr) -> Option<User> {
    // SAFETY: the name ends with a NUL, and the result is read at once, before anybody could call getpwnam(3) again:
    // this runs before the first server is up, and nothing else in the workspace calls it.
    let (uid, gid) = unsafe {
        let entry = libc::getpwnam(name.as_ptr()).as_ref()?;
        (entry.pw_uid, entry.pw_gid)
    };
    Some(User::Other { uid, gid })
}

/// `folder` if other users can enter it, else `/tmp`: root's TMPDIR may be in root's home.
fn reachable_by_all(folder: PathBuf) -> PathBuf {
    let enterable = |path: &Path| path.metadata().is_ok_and(|data| data.permissions().mode() & 0o001 != 0);
    if folder.ancestors().all(enterable) { folder } else { PathBuf::from("/tmp") }
}
