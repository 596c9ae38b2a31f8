//! What an absent job left behind in its queues.

use redis::Value;
use salvage_core::act::Place;
use salvage_core::decision::shorten_to;
use salvage_core::sighting::{QueueFailure, Residue};

use super::connection::Connection;
use super::keys::Keys;
use super::reply;

/// Longest failed reason kept, in characters; longer ones are cut.
const REASON_CHARS_MAX: usize = 300;

/// Commands per place.
const PER_PLACE: usize = 4;

/// Reads what each job left, over all its places, in one pipeline.
pub(super) async fn read(
    connection: &Connection,
    prefix: &str,
    jobs: &[Vec<Place>],
) -> Result<Vec<Residue>, QueueFailure> {
    let mut commands = redis::pipe();
    for Place { queue, entry_id } in jobs.iter().flatten() {
        let keys = Keys::new(prefix, queue);
        commands.cmd("ZSCORE").arg(keys.own("completed")).arg(entry_id);
        commands.cmd("ZSCORE").arg(keys.own("failed")).arg(entry_id);
        commands.cmd("HGET").arg(keys.entry(entry_id)).arg("failedReason");
        commands.cmd("EXISTS").arg(keys.entry(entry_id));
    }
    let mut replies = connection.ask(&commands).await?.into_iter();
    let mut residues = vec![];
    for places in jobs {
        let mut residue = Residue::None;
        for _ in places {
            let found: Vec<Value> = replies.by_ref().take(PER_PLACE).collect();
            residue = weightier(residue, at_place(found)?);
        }
        residues.push(residue);
    }
    Ok(residues)
}

fn at_place(replies: Vec<Value>) -> Result<Residue, QueueFailure> {
    let [completed, failed, reason, exists] = <[Value; PER_PLACE]>::try_from(replies)
        .map_err(|replies| reply::unexpected("a pipeline", &Value::Array(replies)))?;
    let completed = finished("ZSCORE", completed)?.map(|finished_ms| Residue::Completed { finished_ms });
    let failed = match finished("ZSCORE", failed)? {
        Some(finished_ms) => Some(Residue::Failed { finished_ms, reason: reason_of(reason)? }),
        None => None,
    };
    let hash = if reply::flag("EXISTS", &exists)? { Residue::HashOnly } else { Residue::None };
    Ok([completed, failed].into_iter().flatten().fold(hash, weightier))
}

/// A finished entry says more than a bare hash, and the one that finished last more than an earlier one.
fn weightier(a: Residue, b: Residue) -> Residue {
    let weight = |residue: &Residue| (residue.finished_ms(), *residue != Residue::None);
    if weight(&b) > weight(&a) { b } else { a }
}

/// A score, milliseconds since 1970.
fn finished(command: &'static str, value: Value) -> Result<Option<u64>, QueueFailure> {
    let Some(score) = reply::text(command, value)? else { return Ok(None) };
    match score.parse::<f64>() {
        // Scores of BullMQ are whole and positive; of anything else the nearest such number will do.
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "`as` saturates, which is meant"
        )]
        Ok(score) => Ok(Some(score as u64)),
        Err(_) => {
            Err(QueueFailure::UnexpectedReply { command, found: "a score that is no number".to_owned() })
        }
    }
}

fn reason_of(value: Value) -> Result<Option<String>, QueueFailure> {
    // A key of another type has no reason; that it stands in the way is seen when it is acted on.
    if reply::is_wrong_type(&value) {
        return Ok(None);
    }
    Ok(reply::text("HGET", value)?.map(|reason| shorten_to(&reason, REASON_CHARS_MAX)))
}

#[cfg(test)]
mod tests {
    use super::reply::testing::parsed;
    use super::*;

    fn at(replies: [&str; PER_PLACE]) -> Result<Residue, QueueFailure> {
        at_place(replies.map(parsed).to_vec())
    }

    const NIL: &str = "$-1\r\n";
    const SCORE: &str = "$13\r\n1700000000000\r\n";
    const FINISHED_MS: u64 = 1_700_000_000_000;

    #[test]
    fn each_kind_is_told_apart() {
        assert_eq!(at([NIL, NIL, NIL, ":0\r\n"]), Ok(Residue::None));
        assert_eq!(at([NIL, NIL, NIL, ":1\r\n"]), Ok(Residue::HashOnly));
        assert_eq!(at([SCORE, NIL, NIL, ":1\r\n"]), Ok(Residue::Completed { finished_ms: FINISHED_MS }));
        let failed = Residue::Failed { finished_ms: FINISHED_MS, reason: Some("out of ink".into()) };
        assert_eq!(at([NIL, SCORE, "$10\r\nout of ink\r\n", ":1\r\n"]), Ok(failed));
    }

    #[test]
    fn the_last_finish_over_all_places_wins() {
        let completed = |finished_ms| Residue::Completed { finished_ms };
        assert_eq!(weightier(completed(5), completed(7)), completed(7));
        assert_eq!(weightier(completed(7), completed(5)), completed(7));
        assert_eq!(weightier(Residue::HashOnly, completed(5)), completed(5));
        assert_eq!(weightier(Residue::HashOnly, Residue::None), Residue::HashOnly);
        assert_eq!(weightier(Residue::None, Residue::HashOnly), Residue::HashOnly);
    }

    #[test]
    fn a_long_reason_is_cut() {
        let long = format!("${}\r\n{}\r\n", 400, "x".repeat(400));
        let Ok(Residue::Failed { reason: Some(reason), .. }) = at([NIL, SCORE, &long, ":1\r\n"]) else {
            panic!("a failed entry with its reason was expected")
        };
        assert_eq!(reason.chars().count(), REASON_CHARS_MAX + 1);
    }

    #[test]
    fn an_error_is_not_a_clean_queue() {
        assert!(at(["-WRONGTYPE kind\r\n", NIL, NIL, ":0\r\n"]).is_err());
        assert!(at([NIL, NIL, NIL, "-NOPERM no\r\n"]).is_err());
        assert!(at([NIL, NIL, NIL, NIL]).is_err());
        assert!(at([NIL, "$3\r\nabc\r\n", NIL, ":1\r\n"]).is_err());
    }
}
