//! An author's desk: a folder of their own and the binary, without any server.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result};
use salvage_tests::services::{handlers_folder, salvage_binary};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::commands::{Ran, ran};
use crate::wasm_fixtures::hostile;

/// Where the house is.
pub(crate) fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// A folder of one test.
pub(crate) struct Desk(TempDir);

impl Desk {
    pub(crate) fn empty() -> Result<Self> {
        Ok(Self(tempfile::tempdir()?))
    }

    /// With a built component of these under its own name.
    pub(crate) fn with(handlers: &[&str]) -> Result<Self> {
        let desk = Self::empty()?;
        for name in handlers {
            let file = format!("{name}.wasm");
            fs::copy(handlers_folder()?.join(&file), desk.path(&file)).with_context(|| file.clone())?;
        }
        Ok(desk)
    }

    /// With the handler that misbehaves on demand, `hostile.wasm`.
    pub(crate) fn with_hostile() -> Result<Self> {
        let desk = Self::empty()?;
        fs::write(desk.path("hostile.wasm"), hostile())?;
        Ok(desk)
    }

    pub(crate) fn path(&self, path: &str) -> PathBuf {
        self.0.path().join(path)
    }

    pub(crate) fn read(&self, path: &str) -> Result<String> {
        fs::read_to_string(self.path(path)).with_context(|| path.to_owned())
    }

    pub(crate) fn write(&self, path: &str, text: &str) -> Result<()> {
        let path = self.path(path);
        fs::create_dir_all(path.parent().context("a path in a folder")?)?;
        fs::write(path, text).context("writing a file of the desk")
    }

    /// A case of the hostile handler that asks for a behaviour.
    pub(crate) fn case(&self, file: &str, behaviour: &str, expected: &Value) -> Result<()> {
        let case = json!({
            "about": format!("the handler does {behaviour}"),
            "job": { "source": "jobs", "id": behaviour, "type": "ANY", "status": "QUEUED" },
            "expected": expected,
        });
        self.write(&format!("cases/{file}"), &format!("{case:#}\n"))
    }

    /// The binary, here, with time enough for a busy machine.
    pub(crate) fn command(&self, arguments: &[&str]) -> Result<Command> {
        let mut command = Command::new(salvage_binary()?);
        command.args(arguments).current_dir(self.0.path()).env("SALVAGE_HANDLERS__LIMITS__RUN_TIME", "10s");
        command.env_remove("DATABASE_URL").env_remove("REDIS_URL").env_remove("RUST_LOG");
        Ok(command)
    }

    pub(crate) fn salvage(&self, arguments: &[&str]) -> Result<Ran> {
        ran(&mut self.command(arguments)?)
    }
}
