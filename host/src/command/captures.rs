//! `salvage captures purge`: removes what passes kept of their questions.

use super::text::counted;
use super::{Done, say};
use crate::cli::Exit;
use crate::config::{Handler, Handlers};
use crate::ports::Ledger;
use crate::postgres::Postgres;

/// Removes the questions to one handler, or all, and says how many there were, and who goes on keeping some.
///
/// # Errors
/// If PostgreSQL refused, in which case some may be gone, or standard output is closed.
pub async fn purge(postgres: &Postgres, settings: &Handlers, handler: Option<&str>) -> Done {
    postgres.check_schema().await?;
    let removed = postgres.purge_captures(handler).await?;
    let of = handler.map(|name| format!(" to {name}")).unwrap_or_default();
    say(format_args!("removed {}{of}", counted(removed, "captured question")))?;
    for who in keeping(settings, handler) {
        say(format_args!("by the settings here, passes go on keeping questions to {who}"))?;
    }
    Ok(Exit::Done)
}

/// To whom questions are kept, of one handler or all.
fn keeping(settings: &Handlers, handler: Option<&str>) -> Vec<String> {
    let by_default = settings.capture_inputs;
    let keeps = |own: &Handler| own.capture.policy(by_default).is_kept;
    if let Some(name) = handler {
        let is_kept = settings.named.get(name).map_or(by_default, keeps);
        return is_kept.then(|| name.to_owned()).into_iter().collect();
    }
    let named = settings.named.iter().filter(|(_, own)| keeps(own)).map(|(name, _)| name.clone());
    let others =
        by_default.then(|| "every handler without a word of its own ([ledger] capture_inputs)".to_owned());
    named.chain(others).collect()
}
