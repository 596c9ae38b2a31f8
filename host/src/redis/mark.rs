//! Our mark in each queue: the nonce that proves what Redis still holds, and the generation that fences late writers.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use salvage_core::lease::Fence;
use salvage_core::sighting::QueueFailure;

use super::connection::Connection;
use super::keys::Keys;
use super::script::{Answer, Call, Script};
use crate::ports::Mark;

static MARK: LazyLock<Script> = LazyLock::new(|| Script::new(include_str!("mark.lua")));

/// Writes a nonce into each queue in place of the one that was found there, under the fence.
pub(super) async fn write(
    connection: &Connection,
    prefix: &str,
    marks: &BTreeMap<String, Mark>,
    fence: &Fence,
) -> Result<(), QueueFailure> {
    if marks.is_empty() {
        return Ok(());
    }
    let mut call = Call::default();
    call.arg(&fence.scope).arg(fence.generation);
    for (queue, Mark { found, nonce }) in marks {
        call.key(Keys::new(prefix, queue).host()).arg(nonce).arg(found.as_deref().unwrap_or_default());
    }
    let queues: Vec<&String> = marks.keys().collect();
    // Written twice, it is the same mark.
    let answer = Answer::parse(MARK.ask(connection, &call).await?)?;
    match answer.word() {
        "clear" => Ok(()),
        "fenced" => {
            let queue = (*answer.of(&queues)?).clone();
            Err(QueueFailure::Fenced { queue, generation: answer.number()? })
        }
        "changed" => Err(QueueFailure::Changed { queue: (*answer.of(&queues)?).clone() }),
        "wrong-type" => {
            let key = Keys::new(prefix, answer.of(&queues)?).host();
            Err(QueueFailure::WrongType { detail: format!("key {key} is not the host's") })
        }
        _ => Err(answer.unexpected()),
    }
}
