//! `salvage handler replay`: the questions that passes asked, to another build. `[ledger] capture_inputs` keeps them.

use std::path::Path;

use salvage_handler_sdk::cases::Case;
use serde_json::{Value, json};

use super::diff::{Comparison, answer};
use crate::command::{CommandError, Done};
use crate::config::OfflineConfig;
use crate::ports::{Captured, Ledger};
use crate::postgres::Postgres;
use crate::wasm::Runtime;

/// Asks a component the newest questions that its domain was asked, and compares with what was decided then.
///
/// # Errors
/// If the file is no sound handler, there is no database, or nothing was captured.
pub async fn replay(
    config: &OfflineConfig,
    database: Option<&Postgres>,
    file: &Path,
    limit: u32,
    json: bool,
) -> Done {
    let build = super::rehearsal(config, &Runtime::start()?, file).await?;
    let domain = &build.checked().manifest.domain;
    let mut comparison = Comparison::default();
    for captured in captures(database, domain, limit).await? {
        let new = answer(&build, &case(&captured)?).await.value();
        let (old, new) = if captured.is_redacted {
            (value(&captured)?, json!({ "kind": new["kind"] }))
        } else {
            (value(&captured)?, new)
        };
        comparison.add(name(&captured), &old, &new);
    }
    comparison.tell(json)
}

/// The newest questions of a domain; at least one.
///
/// # Errors
/// If there is none, or none can be read.
pub(super) async fn captures(
    database: Option<&Postgres>,
    domain: &str,
    limit: u32,
) -> Result<Vec<Captured>, CommandError> {
    let Some(database) = database else {
        let why = "captured questions are in the database, and [database] url is not set";
        return Err(CommandError::Unknown(why.to_owned()));
    };
    database.check_schema().await?;
    let captures = database.captures(domain, limit).await?;
    if captures.is_empty() {
        return Err(CommandError::Unknown(format!(
            "no question to {domain} was captured; passes keep them under `[ledger] capture_inputs = true`, or \
             `capture_inputs = true` in [handler.{domain}]"
        )));
    }
    Ok(captures)
}

pub(super) fn name(captured: &Captured) -> String {
    format!("{} {}", captured.source, captured.job_id)
}

pub(super) fn case(captured: &Captured) -> Result<Case, CommandError> {
    let odd = |fault| CommandError::Unknown(format!("the captured question of {}: {fault}", name(captured)));
    Case::parse(&captured.question).map_err(odd)
}

fn value(captured: &Captured) -> Result<Value, CommandError> {
    serde_json::from_str(&captured.decision).map_err(|fault| {
        CommandError::Unknown(format!("the captured decision of {}: {fault}", name(captured)))
    })
}
