//! `cargo xtask typescript`: what needs jco, and so 340 MB of npm packages.
//!
//! The default tests load and run the component that lies in `tests/data`, built from `examples/typescript-handler`. This step
//! builds it anew and asks both the same questions; builds of one source are not the same to the byte, so they are compared by
//! what they decide. It also follows the TypeScript tutorial.

use crate::{build, paths, run, setup};
use anyhow::{Context, Result, bail};
use salvage_services::tutorial;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// What the committed component was built from and is, in the form of `sha256sum`; checked by every run of the tests.
const SUMS: &str = "tests/data/exports-typescript.sha256";

/// The committed component.
const COMPONENT: &str = "tests/data/exports-typescript.wasm";

#[derive(clap::Args)]
pub(crate) struct Options {
    /// Put the new build into `tests/data`
    #[arg(long)]
    accept: bool,
}

pub(crate) fn run(options: &Options) -> Result<()> {
    let example = paths::typescript_example();
    run::step("install jco, as locked", || setup::npm_packages(&example))?;
    let host = build::host(true)?;
    run::step("build the TypeScript handler", || {
        run::command(Command::new("npm").args(["run", "build"]).current_dir(&example))
    })?;
    let built = example.join("build/exports.wasm");
    let cases = paths::root().join("handlers/exports/cases");
    if options.accept {
        fs::copy(&built, paths::root().join(COMPONENT)).context("putting the build into tests/data")?;
        write_sums()?;
    }
    run::step("run its cases, and compare it with the one in tests/data", || {
        run::command(Command::new(&host).args(["handler", "test"]).args([&built, &cases]))?;
        let committed = paths::root().join(COMPONENT);
        run::command(Command::new(&host).args(["handler", "diff"]).args([&committed, &built, &cases]))?;
        check_sums()
    })?;
    run::step("follow docs/tutorial-typescript.md", || follow_tutorial(&host))
}

/// Says what the default tests left to this step.
pub(crate) fn left_to_this_step() -> &'static str {
    "left to `cargo xtask typescript`, which needs jco (340 MB): building the TypeScript handler, and its tutorial"
}

fn follow_tutorial(host: &Path) -> Result<()> {
    let folder = tempfile::tempdir().context("making a folder for the tutorial")?;
    let page = paths::root().join("docs/tutorial-typescript.md");
    let followed = tutorial::follow(&page, folder.path(), host, &[])?;
    println!(
        "{} commands and {} files in {:.0} s",
        followed.commands,
        followed.files,
        followed.took.as_secs_f64()
    );
    Ok(())
}

fn write_sums() -> Result<()> {
    let example = paths::typescript_example();
    let relative =
        |path: PathBuf| path.strip_prefix(paths::root()).map(Path::to_owned).context("outside the house");
    let mut files = vec![PathBuf::from(COMPONENT)];
    for name in
        ["package.json", "package-lock.json", "src/handler.ts", "src/salvage.ts", "wit/v0.1/handler.wit"]
    {
        files.push(relative(example.join(name))?);
    }
    let output = Command::new("sha256sum").args(files).current_dir(paths::root()).output();
    let output = output.context("starting sha256sum")?;
    if !output.status.success() {
        bail!("sha256sum failed: {}", String::from_utf8_lossy(&output.stderr));
    }
    fs::write(paths::root().join(SUMS), output.stdout).context("writing the sums")
}

fn check_sums() -> Result<()> {
    let mut check = Command::new("sha256sum");
    run::command(check.args(["--check", "--quiet", SUMS]).current_dir(paths::root()))
        .context("the component in tests/data is not of this source; run `cargo xtask typescript --accept`")
}
