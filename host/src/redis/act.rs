//! The act's part in the queues: runs `requeue.lua`, the only thing in the host that puts a job back in a queue.

use std::sync::LazyLock;

use redis::Value;
use salvage_core::act::{Act, Change, Place, QueueRefusal, ScriptAnswer};
use salvage_core::naming::is_counted;
use salvage_core::sighting::QueueFailure;

use super::connection::Connection;
use super::keys::Keys;
use super::options::{self, Options};
use super::script::{Answer, Call, Script};
use crate::ports::QueueTerms;

static REQUEUE: LazyLock<Script> = LazyLock::new(|| Script::new(include_str!("requeue.lua")));

/// BullMQ's own keys of a queue (4.x to 6.x, Pro's groups included): an entry of that name would overwrite one.
const RESERVED: [&str; 21] = [
    "active",
    "completed",
    "delay",
    "delayed",
    "events",
    "failed",
    "groups",
    "id",
    "limiter",
    "marker",
    "meta",
    "metrics",
    "paused",
    "pc",
    "priority",
    "prioritized",
    "repeat",
    "stalled",
    "stalled-check",
    "wait",
    "waiting-children",
];

/// What further keys of a queue begin with.
const RESERVED_STARTS: [&str; 7] = ["0:", "de:", "dn:", "groups:", "metrics:", "repeat:", "salvage:"];

/// What further keys of an entry end with.
const RESERVED_ENDS: [&str; 6] =
    [":dependencies", ":failed", ":lock", ":logs", ":processed", ":unsuccessful"];

/// Enqueues the job, or only probes that it is in no state of any of its places.
pub(super) async fn run(
    connection: &Connection,
    prefix: &str,
    act: &Act,
    terms: &QueueTerms,
) -> Result<ScriptAnswer, QueueFailure> {
    let call = match call(prefix, act, terms) {
        Ok(call) => call,
        Err(refusal) => return Ok(ScriptAnswer::Refused(refusal)),
    };
    let reply = REQUEUE.tell(connection, &call).await?;
    answer(reply, &act.places)
}

fn call(prefix: &str, act: &Act, terms: &QueueTerms) -> Result<Call, QueueRefusal> {
    let mut call = Call::default();
    let mode = match act.change {
        Change::Requeue { .. } => "enqueue",
        Change::Fail { .. } => "probe",
    };
    call.arg(mode).arg(&terms.fence.scope).arg(terms.fence.generation).arg(terms.deadline_ms);
    for Place { queue, entry_id } in &act.places {
        let keys = Keys::new(prefix, queue);
        let nonce = terms.nonces.get(queue).map_or("", String::as_str);
        let meta = if terms.with_meta.contains(queue) { "1" } else { "" };
        call.key(keys.host()).arg(keys.start()).arg(entry_id).arg(nonce).arg(meta);
    }
    if let Change::Requeue { requeue, entry_id, delay } = &act.change {
        let unfit =
            |why| QueueRefusal::Unfit { queue: requeue.queue.clone(), entry_id: entry_id.clone(), why };
        if is_reserved(entry_id) {
            return Err(unfit("the id is the name of one of BullMQ's own keys"));
        }
        if is_counted(entry_id) {
            return Err(unfit(
                "BullMQ counts such ids out itself and would overwrite it; give the rule a letter",
            ));
        }
        let is_target = |place: &Place| place.queue == requeue.queue && place.entry_id == *entry_id;
        let target = act.places.iter().position(is_target);
        let target = target.ok_or_else(|| unfit("it is none of the places where the job is looked for"))?;
        let stored = options::stored(&requeue.options, entry_id, *delay);
        let Options { json, delay_ms, priority } =
            stored.ok_or_else(|| unfit("its options are no JSON object"))?;
        call.arg(target + 1).arg(&requeue.name).arg(&requeue.data).arg(json).arg(delay_ms).arg(priority);
    }
    Ok(call)
}

/// Whether an entry of this id would share a key with something else, or be taken for a marker.
fn is_reserved(entry_id: &str) -> bool {
    ["", "0"].contains(&entry_id)
        || RESERVED.contains(&entry_id)
        || RESERVED_STARTS.iter().any(|start| entry_id.starts_with(start))
        || RESERVED_ENDS.iter().any(|end| entry_id.ends_with(end))
}

fn answer(reply: Value, places: &[Place]) -> Result<ScriptAnswer, QueueFailure> {
    let answer = Answer::parse(reply)?;
    let refusal = match answer.word() {
        "clear" => return Ok(ScriptAnswer::Clear),
        "late" => return Ok(ScriptAnswer::Refused(QueueRefusal::Late)),
        word => {
            let Place { queue, entry_id } = answer.of(places)?.clone();
            match word {
                "present" => return Ok(ScriptAnswer::Present { queue, state: answer.text()? }),
                "fenced" => QueueRefusal::Fenced { queue, generation: answer.number()? },
                "epoch" => QueueRefusal::Epoch { queue },
                "meta-missing" => QueueRefusal::MetaMissing { queue },
                "paused" => QueueRefusal::Paused { queue },
                "locked" => QueueRefusal::Locked { queue, entry_id },
                "flow" => QueueRefusal::Flow { queue, entry_id },
                "scheduler" => QueueRefusal::Scheduler { queue, entry_id },
                "wrong-type" => QueueRefusal::WrongType { queue, key: answer.text()? },
                _ => return Err(answer.unexpected()),
            }
        }
    };
    Ok(ScriptAnswer::Refused(refusal))
}

#[cfg(test)]
mod tests {
    use super::super::reply::testing::parsed;
    use super::*;

    fn answered(wire: &str) -> Result<ScriptAnswer, QueueFailure> {
        let place = |queue: &str| Place { queue: queue.to_owned(), entry_id: "slide-7".to_owned() };
        answer(parsed(wire), &[place("a"), place("b")])
    }

    #[test]
    fn each_answer_names_its_place() {
        assert_eq!(answered("*1\r\n$5\r\nclear\r\n"), Ok(ScriptAnswer::Clear));
        assert_eq!(answered("*1\r\n$4\r\nlate\r\n"), Ok(ScriptAnswer::Refused(QueueRefusal::Late)));
        let present = ScriptAnswer::Present { queue: "b".into(), state: "wait".into() };
        assert_eq!(answered("*3\r\n$7\r\npresent\r\n:2\r\n$4\r\nwait\r\n"), Ok(present));
        let fenced = QueueRefusal::Fenced { queue: "a".into(), generation: 12 };
        let wire = "*3\r\n$6\r\nfenced\r\n:1\r\n$2\r\n12\r\n";
        assert_eq!(answered(wire), Ok(ScriptAnswer::Refused(fenced)));
        let locked = QueueRefusal::Locked { queue: "b".into(), entry_id: "slide-7".into() };
        assert_eq!(answered("*2\r\n$6\r\nlocked\r\n:2\r\n"), Ok(ScriptAnswer::Refused(locked)));
    }

    #[test]
    fn an_answer_that_cannot_be_leaves_open_what_was_done() {
        for odd in [
            "$-1\r\n",
            "*0\r\n",
            ":1\r\n",
            "*1\r\n$5\r\nhello\r\n",
            "*2\r\n$5\r\nepoch\r\n:3\r\n",
            "*2\r\n$5\r\nepoch\r\n:0\r\n",
            "*2\r\n$7\r\npresent\r\n:1\r\n",
        ] {
            let failure = answered(odd).expect_err(odd);
            assert!(failure.is_indeterminate(), "{failure:?}");
        }
    }

    #[test]
    fn an_id_that_would_share_a_key_is_reserved() {
        for id in
            ["", "0", "0:1", "meta", "wait", "id", "repeat:x:1", "salvage:host", "7:lock", "7:logs", "de:x"]
        {
            assert!(is_reserved(id), "{id:?}");
        }
        for id in ["7", "slide-7", "slide:7", "a:b:c", "metadata", "00000000-0000-4000-8000-000000000001"] {
            assert!(!is_reserved(id), "{id:?}");
        }
    }
}
