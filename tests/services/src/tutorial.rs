//! Follows a page of `docs/` as a reader would, in an empty folder: what it tells to type is typed, what it tells to write is
//! written, and what it shows must be what comes.
//!
//! | block | what is done |
//! |---|---|
//! | ` ```sh ` | its lines are run by bash, in the folder where the last block ended; any that fails fails the page |
//! | ` ```sh exit=5 ` | the same, but the last line must end with that code |
//! | ` ```text ` | each line must be in what the last `sh` block printed, in this order; `…` stands for anything |
//! | ` ```LANGUAGE file=PATH ` | the block becomes that file |
//!
//! Any other block is only looked at.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

/// What a page tells to do.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Step {
    Run { script: String, exit: i32 },
    Shows(Vec<String>),
    Write { path: PathBuf, text: String },
}

/// A page, followed to its end.
#[derive(Debug, Clone, Copy)]
pub struct Followed {
    /// Lines typed.
    pub commands: usize,
    /// Files written.
    pub files: usize,
    /// How long the commands took.
    pub took: Duration,
}

/// Follows `page` in `folder`, with the folder of `salvage` first on the PATH and these variables set.
///
/// # Errors
/// If a command ends otherwise than the page says, or prints something else; with all that it printed.
pub fn follow(page: &Path, folder: &Path, salvage: &Path, variables: &[(&str, &Path)]) -> Result<Followed> {
    let text = fs::read_to_string(page).with_context(|| format!("reading {}", page.display()))?;
    let steps = steps(&text).with_context(|| format!("in {}", page.display()))?;
    ensure!(
        steps.iter().any(|step| matches!(step, Step::Run { .. })),
        "{} tells to run nothing",
        page.display()
    );
    let mut reader = Reader { at: folder.to_owned(), said: String::new(), salvage, variables };
    let mut followed = Followed { commands: 0, files: 0, took: Duration::ZERO };
    for step in &steps {
        match step {
            Step::Run { script, exit } => {
                let began = Instant::now();
                reader.run(script, *exit)?;
                followed.took += began.elapsed();
                followed.commands += commands(script);
            }
            Step::Shows(lines) => reader.check_shown(lines)?,
            Step::Write { path, text } => {
                let path = reader.at.join(path);
                fs::write(&path, text).with_context(|| format!("writing {}", path.display()))?;
                followed.files += 1;
            }
        }
    }
    Ok(followed)
}

fn commands(script: &str) -> usize {
    let joined = script.replace("\\\n", " ");
    joined.lines().filter(|line| !line.trim().is_empty() && !line.trim().starts_with('#')).count()
}

/// The fenced blocks that have a meaning, in order.
fn steps(text: &str) -> Result<Vec<Step>> {
    let mut steps = Vec::new();
    let mut lines = text.lines();
    while let Some(line) = lines.next() {
        let Some(info) = line.strip_prefix("```") else { continue };
        let body: Vec<&str> = lines.by_ref().take_while(|line| *line != "```").collect();
        let (language, option) = info.split_once(' ').unwrap_or((info, ""));
        let text = format!("{}\n", body.join("\n"));
        match (language, option.split_once('=')) {
            (_, Some(("file", path))) => steps.push(Step::Write { path: path.into(), text }),
            ("sh", Some(("exit", code))) => {
                steps.push(Step::Run { script: text, exit: code.parse().context("an exit code")? });
            }
            ("sh", None) if option.is_empty() => steps.push(Step::Run { script: text, exit: 0 }),
            ("text", None) => steps.push(Step::Shows(body.iter().map(|line| (*line).to_owned()).collect())),
            _ if option.is_empty() => {}
            _ => bail!("a block says `{info}`, which means nothing"),
        }
    }
    Ok(steps)
}

struct Reader<'a> {
    /// Where the last block ended.
    at: PathBuf,
    /// What it printed.
    said: String,
    salvage: &'a Path,
    variables: &'a [(&'a str, &'a Path)],
}

impl Reader<'_> {
    fn run(&mut self, script: &str, exit: i32) -> Result<()> {
        // Both streams in one pipe, as on a terminal; the folder where the block ends comes last.
        let script = format!("exec 2>&1\ntrap 'printf \"\\n%s\" \"$PWD\"' EXIT\n{script}");
        let mut command = Command::new("bash");
        command.args(["-euo", "pipefail", "-c", &script]).current_dir(&self.at).stdin(Stdio::null());
        // What cargo and the tests were told is not meant for whoever follows a page.
        for (name, _) in env::vars_os() {
            let text = name.to_string_lossy();
            let is_ours = text.starts_with("CARGO") && text != "CARGO_HOME" || text.starts_with("SALVAGE_");
            if is_ours
                || ["RUSTFLAGS", "RUST_LOG", "DATABASE_URL", "REDIS_URL", "npm_config_loglevel"]
                    .contains(&&*text)
            {
                command.env_remove(&name);
            }
        }
        let first = self.salvage.parent().context("a binary in a folder")?.to_owned();
        let others = env::var_os("PATH").unwrap_or_default();
        let path = env::join_paths(std::iter::once(first).chain(env::split_paths(&others)))?;
        command.env("PATH", path).envs(self.variables.iter().copied());
        let output = command.output().context("starting bash")?;
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        ensure!(
            output.status.code() == Some(exit),
            "expected exit code {exit}, found {}:\n{script}\n{said}",
            output.status
        );
        let (said, at) = said.rsplit_once('\n').context("bash told no folder")?;
        (self.said, self.at) = (said.to_owned(), PathBuf::from(at));
        Ok(())
    }

    fn check_shown(&self, expected: &[String]) -> Result<()> {
        let mut said = self.said.lines();
        for line in expected.iter().filter(|line| !line.trim().is_empty()) {
            let is_there = said.any(|said| fits(line.trim(), said.trim()));
            ensure!(is_there, "the page shows `{line}`, which did not come (in this place):\n{}", self.said);
        }
        Ok(())
    }
}

/// Whether `said` is `line`, where `…` stands for anything.
fn fits(line: &str, said: &str) -> bool {
    let mut pieces = line.split('…');
    let first = pieces.next().unwrap_or_default();
    let Some(mut rest) = said.strip_prefix(first) else { return false };
    let mut ends_open = false;
    for piece in pieces {
        let Some(at) = rest.rfind(piece) else { return false };
        rest = &rest[at + piece.len()..];
        ends_open = piece.is_empty();
    }
    ends_open || rest.is_empty()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_become_steps() {
        let page = "# A\n```sh\na \\\n  b\nc\n```\n```rust\nx\n```\n```rust file=src/a.rs\ny\n```\n```sh exit=5\nd\n```\n```text\nz\n```\n";
        let steps = steps(page).expect("a page");
        let run = |script: &str, exit| Step::Run { script: script.to_owned(), exit };
        assert_eq!(
            steps,
            [
                run("a \\\n  b\nc\n", 0),
                Step::Write { path: "src/a.rs".into(), text: "y\n".to_owned() },
                run("d\n", 5),
                Step::Shows(vec!["z".to_owned()]),
            ]
        );
        assert_eq!(commands("a \\\n  b\n# why\nc\n"), 2);
    }

    #[test]
    fn an_option_that_means_nothing_is_a_fault() {
        assert!(steps("```sh exot=5\nd\n```\n").is_err());
    }

    #[test]
    fn dots_stand_for_anything() {
        assert!(fits("ok … fuel", "ok  build.json 12 fuel"));
        assert!(fits("made …", "made letters"));
        assert!(!fits("ok … fuel", "FAIL build.json 12 fuel"));
        assert!(!fits("ok", "ok 1"));
    }

    fn follow_text(text: &str) -> Result<Followed> {
        let folder = tempfile::tempdir()?;
        let page = folder.path().join("page.md");
        fs::write(&page, text)?;
        follow(&page, folder.path(), Path::new("/bin/salvage"), &[])
    }

    #[test]
    fn a_page_is_followed_from_folder_to_folder() {
        let followed = follow_text(
            "```sh\nmkdir a\ncd a\n```\n```txt file=b\nhello\n```\n```sh\ncat b\n```\n```text\nhello\n```\n```sh exit=3\nexit 3\n```\n",
        )
        .expect("a page that holds");
        assert_eq!((followed.commands, followed.files), (4, 1));
    }

    #[test]
    fn what_does_not_hold_fails_the_page() {
        assert!(follow_text("```sh\nfalse\ntrue\n```\n").is_err(), "a command that fails");
        assert!(follow_text("```sh exit=3\ntrue\n```\n").is_err(), "a command that should have failed");
        assert!(follow_text("```sh\necho a\n```\n```text\nb\n```\n").is_err(), "what was not printed");
        assert!(follow_text("nothing to do\n").is_err(), "a page without commands");
    }
}
