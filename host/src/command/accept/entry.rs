//! One entry that nobody can read or attribute.

use super::Operator;
use super::queues::chosen;
use crate::cli::Exit;
use crate::command::{Done, say};
use crate::ports::{Handlers, Jobs, Ledger, Outside};

/// Accepts one unreadable or unattributed entry as harmless.
///
/// # Errors
/// If the queue is not declared by a loaded handler, or PostgreSQL did not answer.
pub async fn entry<O: Outside>(outside: &O, queue: &str, entry_id: &str, operator: Operator<'_>) -> Done {
    outside.ledger().check_schema().await?;
    chosen(&[queue.to_owned()], &outside.handlers().domains())?;
    operator.agrees(&format!("Accept entry {entry_id:?} of queue {queue:?} as nobody's job?"))?;
    let (who, now) = (operator.who, outside.jobs().now().await?);
    outside.ledger().accept_entry(queue, entry_id, who, now).await?;
    tracing::warn!(queue, entry.id = entry_id, who, "entry accepted: it counts as nobody's job");
    say(format_args!("accepted entry {entry_id:?} of {queue}: it counts as nobody's job"))?;
    Ok(Exit::Done)
}
