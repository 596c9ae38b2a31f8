//! Installing system packages by apt, which needs root.

use crate::run;
use anyhow::{Context, Result, bail};
use salvage_services::tools;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};

/// Installs a package for what is missing.
///
/// Errors: we are not root, or there is no apt; the message says what to install by hand.
pub(crate) fn packages(what_for: &str, packages: &[&str]) -> Result<()> {
    let wanted = packages.join(" ");
    // SAFETY: geteuid(2) always succeeds and touches no memory.
    if unsafe { libc::geteuid() } != 0 {
        bail!(
            "{what_for} is missing, and only root can install it: run `sudo apt-get install {wanted}`, then try again"
        );
    }
    if tools::on_path("apt-get").is_none() {
        bail!(
            "{what_for} is missing, and there is no apt-get here: install {wanted} the way this system does"
        );
    }
    update_once()?;
    println!("installing {wanted}");
    run::command(apt_get().args(["install", "--yes", "--no-install-recommends"]).args(packages))
        .with_context(|| format!("installing {wanted}"))
}

/// One refresh of the package lists serves all installs of this run.
fn update_once() -> Result<()> {
    static DONE: AtomicBool = AtomicBool::new(false);
    if !DONE.swap(true, Ordering::Relaxed) {
        run::command(apt_get().arg("update")).context("refreshing apt's package lists")?;
    }
    Ok(())
}

fn apt_get() -> Command {
    let mut command = Command::new("apt-get");
    command.arg("--quiet").env("DEBIAN_FRONTEND", "noninteractive");
    command
}
