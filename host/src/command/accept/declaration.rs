//! A source's declaration, against its control group.

use salvage_core::candidate::LiveStatus;
use salvage_core::control::Control;
use salvage_core::declaration::declaration as text_of;

use super::Operator;
use crate::cli::Exit;
use crate::command::explain::{known_sources, source_name, there_are};
use crate::command::{CommandError, Done, say};
use crate::ports::{Declaration, Handlers, Jobs, Ledger, Outside};

/// Vouches for a source's declaration: rows of it may be without an entry.
///
/// # Errors
/// If the source is not known, no control group of it failed, or PostgreSQL did not answer.
pub async fn declaration<O: Outside>(outside: &O, source: &str, operator: Operator<'_>) -> Done {
    outside.ledger().check_schema().await?;
    let domains = outside.handlers().domains();
    let known = known_sources(&domains);
    let source = source_name(source, &known)?;
    let domain = domains.iter().find(|domain| domain.manifest.domain == source.domain);
    let declared =
        domain.and_then(|domain| domain.manifest.sources.iter().find(|of| of.name == source.source));
    let Some(declared) = declared else {
        let why = format!("no handler that serves has a source {source}; {}", there_are(&known));
        return Err(CommandError::Unknown(why));
    };
    let declaration = Declaration { source: source.clone(), text: text_of(declared) };
    let remembered = outside.ledger().declarations(std::slice::from_ref(&declaration)).await?;
    let failed = remembered.into_iter().flat_map(|remembered| remembered.failed).collect::<Vec<_>>();
    if failed.is_empty() {
        let why = format!("no control group of {source} has failed, so there is nothing to vouch for");
        return Err(CommandError::Unknown(why));
    }
    for Control { job_type, status, figures } in &failed {
        let status = match status {
            LiveStatus::Queued => &declared.table.queued,
            LiveStatus::Processing => &declared.table.processing,
        };
        say(format_args!("{source}: type {job_type:?}, status {status}: {figures}"))?;
    }
    say(
        "rows without an entry would then count as lost, and be put back or failed once they are old enough",
    )?;
    operator.agrees(&format!("Vouch for the declaration of {source}?"))?;
    let (who, now) = (operator.who, outside.jobs().now().await?);
    outside.ledger().vouch(&declaration, who, now).await?;
    tracing::warn!(%source, who, "declaration vouched for: its control group keeps no orphan in doubt any more");
    say(format_args!("accepted the declaration of {source}, as long as its manifest does not change it"))?;
    Ok(Exit::Done)
}
