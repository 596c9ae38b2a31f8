//! `cargo xtask test`: everything CI runs.

use crate::{build, leaks, paths, run, setup};
use anyhow::{Context, Result};
use salvage_services::{Postgres, Redis, tools};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

#[derive(clap::Args)]
pub(crate) struct Options {
    /// Run only tests whose name contains one of these
    filters: Vec<String>,
    /// Leave out format, lints and dependency checks
    #[arg(long)]
    no_lints: bool,
}

pub(crate) fn run(options: &Options) -> Result<()> {
    setup::run()?;
    if !options.no_lints {
        lints()?;
    }
    build::handlers()?;
    build::hostile_handlers()?;
    let host = build::host(true)?;
    let output = empty_output_folder()?;
    let servers = run::step("start the shared servers", Servers::start)?;
    let runner = Runner::choose();
    let tested = run::step("test", || {
        let mut command = runner.command(&options.filters);
        servers.announce(&mut command)?;
        command
            .env("SALVAGE_TEST_BIN", &host)
            .env("SALVAGE_TEST_HANDLERS", paths::handlers())
            .env("SALVAGE_TEST_HOSTILE", paths::hostile_handlers())
            .env("SALVAGE_TEST_BULLMQ", paths::bullmq())
            .env("XDG_CACHE_HOME", paths::target().join("test-cache"))
            .env("SALVAGE_TEST_OUTPUT", &output);
        run::command_recorded(&mut command, &output, "runner")
    });
    drop(servers);
    // Also after failed tests: what they printed is where a leak is most likely.
    let clean = run::step("look for leaked secrets and payloads", || {
        leaks::none_in(&[&output, &runner.report_folder()])
    });
    let summary = runner.summary(&output);
    println!("{summary}");
    tested.and(clean)
}

fn lints() -> Result<()> {
    let cargo =
        |args: &[&str]| run::command(Command::new(paths::cargo()).args(args).current_dir(paths::root()));
    run::step("check the format", || cargo(&["fmt", "--all", "--check"]))?;
    run::step("lint", || cargo(&["clippy", "--workspace", "--all-targets", "--", "--deny", "warnings"]))?;
    run::step("check the documentation", || {
        let mut cargo = Command::new(paths::cargo());
        cargo.args(["doc", "--workspace", "--no-deps", "--document-private-items"]);
        run::command(cargo.env("RUSTDOCFLAGS", "--deny warnings").current_dir(paths::root()))
    })?;
    if has_subcommand("deny") {
        // Advisories need the network and change from day to day: a person's job, not this check's.
        run::step("check dependencies", || cargo(&["deny", "check", "bans", "licenses", "sources"]))?;
    } else {
        println!("cargo-deny is not installed: licences and sources of dependencies stay unchecked\n");
    }
    Ok(())
}

/// Servers that tests share, each with a database and key prefix of its own. Tests that stop or wipe start their own.
struct Servers {
    postgres: Postgres,
    redis: Redis,
}

impl Servers {
    fn start() -> Result<Self> {
        Ok(Self { postgres: Postgres::start()?, redis: Redis::start()? })
    }

    fn announce(&self, command: &mut Command) -> Result<()> {
        command
            .env("SALVAGE_TEST_POSTGRES_URL", self.postgres.url("postgres"))
            .env("SALVAGE_TEST_REDIS_URL", self.redis.url())
            .env(tools::POSTGRES_BIN, tools::postgres_bin()?)
            .env(tools::PGBOUNCER, tools::pgbouncer()?)
            .env(tools::REDIS_SERVER, tools::redis_server()?);
        Ok(())
    }
}

/// Who runs the tests.
#[derive(Clone, Copy)]
enum Runner {
    Nextest,
    Cargo,
}

impl Runner {
    fn choose() -> Self {
        if has_subcommand("nextest") { Self::Nextest } else { Self::Cargo }
    }

    fn command(self, filters: &[String]) -> Command {
        let mut command = Command::new(paths::cargo());
        command.current_dir(paths::root());
        match self {
            // `--no-tests pass`: a filter may fit nothing in most packages.
            Self::Nextest => {
                command.args(["nextest", "run", "--workspace", "--no-fail-fast", "--no-tests", "pass"])
            }
            // The same targets as nextest runs: everything but documentation.
            Self::Cargo => {
                command.args(["test", "--workspace", "--lib", "--bins", "--tests", "--no-fail-fast"])
            }
        };
        match self {
            Self::Nextest => command.args(filters),
            // Shows the output of tests that passed, too, so that it is searched for leaks.
            Self::Cargo => command.args(["--", "--show-output"]).args(filters),
        };
        command
    }

    /// Where the runner itself writes what tests printed, those that passed included (see `.config/nextest.toml`).
    fn report_folder(self) -> PathBuf {
        match self {
            Self::Nextest => paths::target().join("nextest"),
            // It prints everything.
            Self::Cargo => PathBuf::new(),
        }
    }

    /// What passed and failed, in one line.
    fn summary(self, output: &Path) -> String {
        let printed = |file: &str| fs::read_to_string(output.join(file)).unwrap_or_default();
        match self {
            Self::Nextest => {
                let text = printed("runner.stderr");
                text.lines()
                    .rfind(|line| line.contains("Summary ["))
                    .unwrap_or("no tests were run")
                    .trim()
                    .to_owned()
            }
            Self::Cargo => sum_of_results(&printed("runner.stdout")),
        }
    }
}

/// Adds up the result lines that `cargo test` prints, one for each test binary.
fn sum_of_results(text: &str) -> String {
    let results: Vec<&str> = text.lines().filter(|line| line.starts_with("test result:")).collect();
    let sum = |word: &str| -> u32 {
        let counts = results.iter().flat_map(|line| line.split([';', '.']));
        counts.filter_map(|part| part.trim().strip_suffix(word)?.trim().parse::<u32>().ok()).sum()
    };
    let [passed, failed, ignored] = ["passed", "failed", "ignored"].map(sum);
    format!("{} tests run: {passed} passed, {failed} failed, {ignored} ignored", passed + failed)
}

fn has_subcommand(name: &str) -> bool {
    let mut asked = Command::new(paths::cargo());
    asked.args([name, "--version"]).stdout(Stdio::null()).stderr(Stdio::null());
    asked.status().is_ok_and(|status| status.success())
}

/// Where tests write what the processes they start print. Empty at first, so that yesterday's leak is not today's.
fn empty_output_folder() -> Result<PathBuf> {
    let folder = paths::target().join("test-output");
    for stale in [&folder, &paths::target().join("nextest")] {
        if stale.exists() {
            fs::remove_dir_all(stale).with_context(|| format!("removing {}", stale.display()))?;
        }
    }
    fs::create_dir_all(&folder).with_context(|| format!("making {}", folder.display()))?;
    // Absolute, because tests run in their package's folder.
    fs::canonicalize(&folder).with_context(|| format!("resolving {}", folder.display()))
}

#[cfg(test)]
mod tests {
    use super::sum_of_results;

    #[test]
    fn results_of_several_binaries_add_up() {
        let text = "test result: ok. 6 passed; 0 failed; 0 ignored; 0 measured; 1 filtered out; finished in 3.05s\n\
                    test a ... ok\n\
                    test result: FAILED. 4 passed; 2 failed; 0 ignored; 0 measured; 4 filtered out; finished in 0.00s\n";
        assert_eq!(sum_of_results(text), "12 tests run: 10 passed, 2 failed, 0 ignored");
    }
}
