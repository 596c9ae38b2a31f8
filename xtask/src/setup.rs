//! `cargo xtask setup`: installs what is missing, and only that. Quick when nothing is.

use crate::{install, paths, run};
use anyhow::{Context, Result};
use salvage_services::tools;
use std::fs;
use std::path::Path;
use std::process::Command;

/// The target of handlers.
pub(crate) const WASM_TARGET: &str = "wasm32-wasip2";

pub(crate) fn run() -> Result<()> {
    run::step("set up", || {
        redis()?;
        postgres()?;
        pgbouncer()?;
        openssl()?;
        wasm_target()?;
        npm_packages()
    })
}

fn redis() -> Result<()> {
    if tools::redis_server().is_err() {
        install::packages("redis-server", &["redis-server"])?;
    }
    println!("redis-server    {}", tools::redis_server()?.display());
    Ok(())
}

fn postgres() -> Result<()> {
    if tools::postgres_bin().is_err() {
        install::packages("PostgreSQL", &["postgresql"])?;
    }
    println!("postgresql      {}", tools::postgres_bin()?.display());
    Ok(())
}

fn pgbouncer() -> Result<()> {
    if tools::pgbouncer().is_err() {
        install::packages("PgBouncer", &["pgbouncer"])?;
    }
    println!("pgbouncer       {}", tools::pgbouncer()?.display());
    Ok(())
}

/// Makes the certificates of the servers that tests reach over TLS.
fn openssl() -> Result<()> {
    if tools::on_path("openssl").is_none() {
        install::packages("openssl", &["openssl"])?;
    }
    println!("openssl         found");
    Ok(())
}

/// Adds the handlers' target to the toolchain if it is not there.
pub(crate) fn wasm_target() -> Result<()> {
    let sysroot = Command::new("rustc")
        .args(["--print", "sysroot"])
        .output()
        .context("asking rustc for its sysroot")?;
    let sysroot = String::from_utf8(sysroot.stdout).context("rustc's sysroot is not UTF-8")?;
    let target = Path::new(sysroot.trim()).join("lib/rustlib").join(WASM_TARGET).join("lib");
    if !target.is_dir() {
        run::command(Command::new("rustup").args(["target", "add", WASM_TARGET])).with_context(|| {
            format!(
                "adding the target {WASM_TARGET}; without rustup, install this toolchain's rust-std for it"
            )
        })?;
    }
    println!("wasm target     {WASM_TARGET}");
    Ok(())
}

/// `npm ci`, unless the installed packages are those of the lock file.
fn npm_packages() -> Result<()> {
    if tools::on_path("node").is_none() || tools::on_path("npm").is_none() {
        install::packages("Node.js", &["nodejs", "npm"])?;
    }
    let folder = paths::bullmq();
    let lock_file = folder.join("package-lock.json");
    let lock = fs::read(&lock_file).with_context(|| format!("reading {}", lock_file.display()))?;
    // The stamp lies among what it describes, so removing `node_modules` removes it, too.
    let stamp = folder.join("node_modules/.installed-lock");
    if fs::read(&stamp).is_ok_and(|installed| installed == lock) {
        println!("npm packages    as locked");
        return Ok(());
    }
    run::command(Command::new("npm").args(["ci", "--no-audit", "--no-fund"]).current_dir(&folder))
        .context("installing tests/bullmq's packages")?;
    fs::write(&stamp, lock).with_context(|| format!("writing {}", stamp.display()))
}
