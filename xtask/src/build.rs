//! `cargo xtask build`: the host and the handlers.

use crate::{paths, run, setup};
use anyhow::{Context, Result, bail};
use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The folder in `handlers/` that is no handler but what handlers share.
const SHARED: &str = "sdk";

#[derive(clap::Args)]
pub(crate) struct Options {
    /// Build the handlers only
    #[arg(long)]
    handlers: bool,
    /// Build the host for debugging: `target/debug/salvage`
    #[arg(long)]
    dev: bool,
}

pub(crate) fn run(options: &Options) -> Result<()> {
    setup::wasm_target()?;
    handlers()?;
    if !options.handlers {
        host(options.dev)?;
    }
    Ok(())
}

/// Builds the host and returns its path.
pub(crate) fn host(dev: bool) -> Result<PathBuf> {
    let (profile, folder) = if dev { ("dev", "debug") } else { ("release", "release") };
    run::step(&format!("build the host ({profile})"), || {
        let mut cargo = Command::new(paths::cargo());
        // Of the whole workspace, so that its features are resolved as for the tests, and nothing is compiled twice.
        cargo.args(["build", "--workspace", "--bin", "salvage", "--profile", profile]);
        run::command(cargo.current_dir(paths::root()))?;
        let binary = paths::target().join(folder).join("salvage");
        println!("{}", binary.display());
        Ok(binary)
    })
}

/// What is measured, and what measures.
pub(crate) struct Release {
    pub(crate) salvage: PathBuf,
    pub(crate) bench: PathBuf,
}

/// Builds both for release.
pub(crate) fn release() -> Result<Release> {
    run::step("build the host and the benches (release)", || {
        let mut cargo = Command::new(paths::cargo());
        cargo.args(["build", "--workspace", "--bin", "salvage", "--bin", "salvage-bench", "--release"]);
        run::command(cargo.current_dir(paths::root()))?;
        let folder = paths::target().join("release");
        Ok(Release { salvage: folder.join("salvage"), bench: folder.join("salvage-bench") })
    })
}

/// Builds every handler to `target/handlers/NAME.wasm`.
pub(crate) fn handlers() -> Result<()> {
    run::step("build the handlers", || {
        let handlers =
            handler_names()?.into_iter().map(|name| Component { package: format!("handler-{name}"), name });
        components(&handlers.collect::<Vec<_>>(), &paths::handlers())
    })
}

/// Builds the handler that misbehaves on demand, for tests, to `target/hostile/hostile_handlers.wasm`.
pub(crate) fn hostile_handlers() -> Result<()> {
    run::step("build the hostile handlers", || {
        let hostile =
            Component { package: "hostile-handlers".to_owned(), name: "hostile_handlers".to_owned() };
        components(&[hostile], &paths::hostile_handlers())
    })
}

/// A package that becomes a component, and the name of its file.
struct Component {
    package: String,
    name: String,
}

/// Builds components into `folder`.
///
/// In a target folder of its own: the outer cargo may hold the lock of the other, and neither throws the other's work
/// away. Each file appears by rename, so a running host never sees half of one.
fn components(components: &[Component], folder: &Path) -> Result<()> {
    let target = paths::target().join("handlers-build");
    let mut cargo = Command::new(paths::cargo());
    cargo
        .args(["build", "--target", setup::WASM_TARGET, "--profile", "handler", "--target-dir"])
        .arg(&target);
    for component in components {
        cargo.args(["--package", &component.package]);
    }
    // In place of flags meant for the host's machine, such as `-C target-cpu=native`, which are none for the guest's.
    cargo.env_remove("RUSTFLAGS").env("CARGO_ENCODED_RUSTFLAGS", without_paths()?).current_dir(paths::root());
    run::command(&mut cargo)?;
    let built = target.join(setup::WASM_TARGET).join("handler");
    fs::create_dir_all(folder).with_context(|| format!("making {}", folder.display()))?;
    for Component { package, name } in components {
        let file = folder.join(format!("{name}.wasm"));
        place(&built.join(format!("{}.wasm", package.replace('-', "_"))), &file)?;
        println!("{}", file.display());
    }
    Ok(())
}

/// Flags by which no path of this machine gets into a component: its panics name files of crates, and a digest that is
/// pinned should be the same wherever it is built.
fn without_paths() -> Result<String> {
    let mut folders = vec![(paths::root().to_owned(), "salvage")];
    let sources = paths::cargo_home().join("registry/src");
    // There is none where crates are vendored.
    if sources.is_dir() {
        for registry in fs::read_dir(&sources).with_context(|| format!("listing {}", sources.display()))? {
            let registry = registry.with_context(|| format!("listing {}", sources.display()))?;
            folders.push((registry.path(), "crates"));
        }
    }
    let flags = folders.iter().map(|(path, name)| format!("--remap-path-prefix={}={name}", path.display()));
    Ok(flags.collect::<Vec<_>>().join("\x1f"))
}

/// Names of the folders in `handlers/`, in name order.
fn handler_names() -> Result<Vec<String>> {
    let folder = paths::root().join("handlers");
    let mut names = Vec::new();
    for entry in fs::read_dir(&folder).with_context(|| format!("listing {}", folder.display()))? {
        let path = entry.with_context(|| format!("listing {}", folder.display()))?.path();
        match path.file_name().and_then(OsStr::to_str) {
            Some(name) if name != SHARED && path.join("Cargo.toml").is_file() => names.push(name.to_owned()),
            _ => {}
        }
    }
    if names.is_empty() {
        bail!("{} holds no handler", folder.display());
    }
    names.sort();
    Ok(names)
}

/// Copies under a temporary name, then renames. A file that is the same already is left alone, and with it the hosts
/// that watch it.
fn place(built: &Path, file: &Path) -> Result<()> {
    let bytes = fs::read(built).with_context(|| format!("reading {}", built.display()))?;
    if fs::read(file).is_ok_and(|there| there == bytes) {
        return Ok(());
    }
    // Not ending in `.wasm`, so that nobody takes it for a handler.
    let unfinished = file.with_extension("wasm.unfinished");
    fs::write(&unfinished, bytes).with_context(|| format!("writing {}", unfinished.display()))?;
    fs::rename(&unfinished, file).with_context(|| format!("renaming to {}", file.display()))
}
