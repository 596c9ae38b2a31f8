//! Rows whose change PostgreSQL rejected.

use super::Operator;
use crate::cli::Exit;
use crate::command::explain::{known_sources, source_name, there_are};
use crate::command::text::counted;
use crate::command::{CommandError, Done, say};
use crate::ports::{Handlers, Ledger, Outside};

/// Lets the next pass try a parked job of a source again, or all of them.
///
/// # Errors
/// If the source is not known, PostgreSQL did not answer, or nothing of it is parked.
pub async fn parked<O: Outside>(
    outside: &O,
    source: &str,
    job_id: Option<&str>,
    operator: Operator<'_>,
) -> Done {
    outside.ledger().check_schema().await?;
    let known = known_sources(&outside.handlers().domains());
    let source = source_name(source, &known)?;
    if !known.contains(&source) {
        let why = format!("no handler that serves has a source {source}; {}", there_are(&known));
        return Err(CommandError::Unknown(why));
    }
    let who = operator.who;
    let released = outside.ledger().release_parked(&source, job_id, who).await?;
    if released == 0 {
        let what = job_id.map_or_else(|| format!("no job of {source}"), |id| format!("job {id} of {source}"));
        let is_not = if job_id.is_some() { "is not parked" } else { "is parked" };
        return Err(CommandError::Unknown(format!("{what} {is_not}; `salvage plan` lists what is")));
    }
    tracing::warn!(%source, candidate.id = job_id, who, jobs = released, "parked jobs released");
    say(format_args!("released {} of {source}: the next pass tries again", counted(released, "parked job")))?;
    Ok(Exit::Done)
}
