//! `salvage migrate`: brings schema `salvage` to this version.

use super::{Done, say};
use crate::cli::Exit;
use crate::postgres::Postgres;

/// Applies what is missing, and says what it was.
///
/// # Errors
/// If PostgreSQL refused; what was applied before stays.
pub async fn migrate(postgres: &Postgres) -> Done {
    let applied = postgres.migrate().await?;
    if applied.is_empty() {
        say("schema salvage is current")?;
    }
    for name in applied {
        say(format_args!("applied {name}"))?;
    }
    say("`salvage doctor` says what else a pass needs")?;
    Ok(Exit::Done)
}
