//! Our mark in each queue: the nonce that proves what Redis still holds, and the generation that fences late writers.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use salvage_core::lease::Fence;
use salvage_core::sighting::QueueFailure;

use super::connection::Connection;
use super::keys::Keys;
use super::script::{Answer, Call, Script};

static MARK: LazyLock<Script> = LazyLock::new(|| Script::new(include_str!("mark.lua")));

/// Writes a nonce into each queue, under the fence.
pub(super) async fn write(
    connection: &Connection,
    prefix: &str,
    nonces: &BTreeMap<String, String>,
    fence: &Fence,
) -> Result<(), QueueFailure> {
    if nonces.is_empty() {
        return Ok(());
    }
    let mut call = Call::default();
    call.arg(&fence.scope).arg(fence.generation);
    for (queue, nonce) in nonces {
        call.key(Keys::new(prefix, queue).host()).arg(nonce);
    }
    let queues: Vec<&String> = nonces.keys().collect();
    // Written twice, it is the same mark.
    let answer = Answer::parse(MARK.ask(connection, &call).await?)?;
    match answer.word() {
        "clear" => Ok(()),
        "fenced" => {
            let queue = (*answer.of(&queues)?).clone();
            Err(QueueFailure::Fenced { queue, generation: answer.number()? })
        }
        "wrong-type" => {
            let key = Keys::new(prefix, answer.of(&queues)?).host();
            Err(QueueFailure::WrongType { detail: format!("key {key} is not the host's") })
        }
        _ => Err(answer.unexpected()),
    }
}
