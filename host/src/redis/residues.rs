//! What an absent job left behind in its queues.
//!
//! Asked for a page of jobs at once, in as few commands as there are: first the finished sets, one command each, whoever
//! is looked for; then whether anything at all is left of those that are in none, which as a rule is not so. Of those that
//! failed, the beginnings of their reasons.

use std::collections::BTreeMap;

use redis::{Pipeline, Value};
use salvage_core::act::Place;
use salvage_core::decision::shorten_to;
use salvage_core::sighting::{QueueFailure, Residue};

use super::connection::Connection;
use super::copies::is_refusal;
use super::fields::{self, Field};
use super::keys::Keys;
use super::reply;

/// Longest failed reason kept, in characters; longer ones are cut.
const REASON_CHARS_MAX: usize = 300;

/// Bytes that hold at least one character more.
const REASON_BYTES: usize = 4 * (REASON_CHARS_MAX + 1);

/// Reads what each job left, over all its places, in two to four round trips.
pub(super) async fn read(
    connection: &Connection,
    prefix: &str,
    jobs: &[Vec<Place>],
) -> Result<Vec<Residue>, QueueFailure> {
    let mut left = Left::nothing_at(jobs.iter().flatten());
    // What is asked depends on the replies before.
    for step in [Step::Finished, Step::Rest, Step::EachOfRest] {
        let commands = left.ask(step, prefix);
        if commands.is_empty() {
            continue;
        }
        match left.take(step, connection.ask(&commands).await?) {
            // A Redis before 6.2 does not know ZMSCORE, and the user may not be allowed it.
            Err(failure) if step == Step::Finished && is_refusal(&failure) => {
                let commands = left.ask(Step::EachFinished, prefix);
                left.take(Step::EachFinished, connection.ask(&commands).await?)?;
            }
            taken => taken?,
        }
    }
    let (failed, keys) = left.failed(prefix);
    let reasons = fields::read(connection, &keys, "failedReason", REASON_BYTES).await?;
    for (at, reason) in failed.into_iter().zip(reasons) {
        left.places[at].reason = reason_of(reason);
    }
    let mut residues = left.places.iter().map(AtPlace::residue);
    let of_job = |places: &Vec<Place>| residues.by_ref().take(places.len()).fold(Residue::None, weightier);
    Ok(jobs.iter().map(of_job).collect())
}

/// What is asked at a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Step {
    /// Whether and when entries finished.
    Finished,
    /// The same with a command for each entry and set, where that was refused.
    EachFinished,
    /// How many hashes there are of all the entries that did not finish.
    Rest,
    /// If there are any: of which.
    EachOfRest,
}

/// What is left at some places.
struct Left<'a> {
    places: Vec<AtPlace<'a>>,
    /// Positions in `places`.
    by_queue: BTreeMap<&'a str, Vec<usize>>,
    /// Hashes of entries that did not finish.
    hashes: u64,
}

/// What is left at one place.
struct AtPlace<'a> {
    place: &'a Place,
    completed_ms: Option<u64>,
    failed_ms: Option<u64>,
    reason: Option<String>,
    has_bare_hash: bool,
}

impl AtPlace<'_> {
    fn key(&self, prefix: &str) -> String {
        Keys::new(prefix, &self.place.queue).entry(&self.place.entry_id)
    }

    const fn is_finished(&self) -> bool {
        self.completed_ms.is_some() || self.failed_ms.is_some()
    }

    fn residue(&self) -> Residue {
        let completed = self.completed_ms.map(|finished_ms| Residue::Completed { finished_ms });
        let failed =
            self.failed_ms.map(|finished_ms| Residue::Failed { finished_ms, reason: self.reason.clone() });
        let bare = if self.has_bare_hash { Residue::HashOnly } else { Residue::None };
        [completed, failed].into_iter().flatten().fold(bare, weightier)
    }
}

impl<'a> Left<'a> {
    fn nothing_at(places: impl Iterator<Item = &'a Place>) -> Self {
        let mut left = Self { places: vec![], by_queue: BTreeMap::new(), hashes: 0 };
        for place in places {
            left.by_queue.entry(&place.queue).or_default().push(left.places.len());
            let (completed_ms, failed_ms, reason) = (None, None, None);
            left.places.push(AtPlace { place, completed_ms, failed_ms, reason, has_bare_hash: false });
        }
        left
    }

    /// The commands whose replies [`Self::take`] takes; none if there is nothing to ask.
    fn ask(&self, step: Step, prefix: &str) -> Pipeline {
        let mut commands = redis::pipe();
        match step {
            Step::Finished => {
                for (queue, positions) in &self.by_queue {
                    let ids: Vec<&str> =
                        positions.iter().map(|at| self.places[*at].place.entry_id.as_str()).collect();
                    for set in ["completed", "failed"] {
                        commands.cmd("ZMSCORE").arg(Keys::new(prefix, queue).own(set)).arg(&ids);
                    }
                }
            }
            Step::EachFinished => {
                for (queue, positions) in &self.by_queue {
                    for at in positions {
                        for set in ["completed", "failed"] {
                            let key = Keys::new(prefix, queue).own(set);
                            commands.cmd("ZSCORE").arg(key).arg(&self.places[*at].place.entry_id);
                        }
                    }
                }
            }
            Step::Rest => {
                let rest: Vec<String> = self.unfinished().map(|at| self.places[at].key(prefix)).collect();
                if !rest.is_empty() {
                    commands.cmd("EXISTS").arg(rest);
                }
            }
            Step::EachOfRest if self.hashes > 0 => {
                for at in self.unfinished() {
                    commands.cmd("EXISTS").arg(self.places[at].key(prefix));
                }
            }
            Step::EachOfRest => {}
        }
        commands
    }

    fn take(&mut self, step: Step, replies: Vec<Value>) -> Result<(), QueueFailure> {
        let mut replies = replies.into_iter();
        let mut next = || replies.next().unwrap_or_default();
        match step {
            Step::Finished => {
                for positions in self.by_queue.values() {
                    let completed = scores(next(), positions.len())?;
                    let failed = scores(next(), positions.len())?;
                    for ((at, completed_ms), failed_ms) in positions.iter().zip(completed).zip(failed) {
                        self.places[*at].completed_ms = completed_ms;
                        self.places[*at].failed_ms = failed_ms;
                    }
                }
            }
            Step::EachFinished => {
                for at in self.by_queue.values().flatten() {
                    self.places[*at].completed_ms = finished("ZSCORE", next())?;
                    self.places[*at].failed_ms = finished("ZSCORE", next())?;
                }
            }
            Step::Rest => {
                if self.unfinished().next().is_some() {
                    self.hashes = reply::count("EXISTS", &next())?;
                }
            }
            Step::EachOfRest => {
                for at in self.unfinished().collect::<Vec<_>>() {
                    self.places[at].has_bare_hash = reply::flag("EXISTS", &next())?;
                }
            }
        }
        Ok(())
    }

    /// Positions and hashes of the entries that failed.
    fn failed(&self, prefix: &str) -> (Vec<usize>, Vec<String>) {
        let failed = self.places.iter().enumerate().filter(|(_, at)| at.failed_ms.is_some());
        failed.map(|(position, at)| (position, at.key(prefix))).unzip()
    }

    fn unfinished(&self) -> impl Iterator<Item = usize> {
        (0..self.places.len()).filter(|at| !self.places[*at].is_finished())
    }
}

/// A finished entry says more than a bare hash, and the one that finished last more than an earlier one.
fn weightier(a: Residue, b: Residue) -> Residue {
    let weight = |residue: &Residue| (residue.finished_ms(), *residue != Residue::None);
    if weight(&b) > weight(&a) { b } else { a }
}

/// The scores of as many members, milliseconds since 1970.
fn scores(reply: Value, members: usize) -> Result<Vec<Option<u64>>, QueueFailure> {
    match reply {
        Value::Array(scores) if scores.len() == members => {
            scores.into_iter().map(|score| finished("ZMSCORE", score)).collect()
        }
        other => Err(reply::unexpected("ZMSCORE", &other)),
    }
}

fn finished(command: &'static str, score: Value) -> Result<Option<u64>, QueueFailure> {
    let Some(score) = reply::text(command, score)? else { return Ok(None) };
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

/// A key of another type has no reason; that it stands in the way is seen when it is acted on.
fn reason_of(field: Field) -> Option<String> {
    match field {
        Field::None => None,
        Field::Text(reason) => Some(shorten_to(&reason, REASON_CHARS_MAX)),
        Field::TooLong { bytes } => Some(format!("(its reason was not read: it has {bytes} bytes)")),
    }
}

#[cfg(test)]
mod tests {
    use super::reply::testing::parsed;
    use super::*;

    /// The residues of jobs that may be in `a` or `b` each, after these replies, step by step; and the commands asked.
    fn read(jobs: usize, replies: [&[&str]; 3]) -> Result<(Vec<Residue>, usize), QueueFailure> {
        let entry = |queue: &str, job| Place { queue: queue.into(), entry_id: format!("job-{job}") };
        let places: Vec<Place> = (0..jobs).flat_map(|job| [entry("a", job), entry("b", job)]).collect();
        let mut left = Left::nothing_at(places.iter());
        let mut asked = 0;
        for (step, replies) in [Step::Finished, Step::Rest, Step::EachOfRest].into_iter().zip(replies) {
            let commands = left.ask(step, "bull").len();
            assert_eq!(commands, replies.len(), "{step:?}");
            asked += commands;
            if commands > 0 {
                left.take(step, replies.iter().map(|reply| parsed(reply)).collect())?;
            }
        }
        let residues: Vec<Residue> = left.places.iter().map(AtPlace::residue).collect();
        Ok((residues.chunks(2).map(|of| of.iter().cloned().fold(Residue::None, weightier)).collect(), asked))
    }

    const NIL: &str = "$-1\r\n";
    const NONE: &str = "*1\r\n$-1\r\n";
    const SCORE: &str = "*1\r\n$13\r\n1700000000000\r\n";
    const FINISHED_MS: u64 = 1_700_000_000_000;

    #[test]
    fn each_kind_is_told_apart() {
        let one = |finished: [&str; 4], rest: &[&str], each: &[&str]| {
            read(1, [&finished, rest, each]).map(|(residues, _)| residues)
        };
        assert_eq!(one([NONE; 4], &[":0\r\n"], &[]), Ok(vec![Residue::None]));
        assert_eq!(one([NONE; 4], &[":1\r\n"], &[":0\r\n", ":1\r\n"]), Ok(vec![Residue::HashOnly]));
        let completed = Residue::Completed { finished_ms: FINISHED_MS };
        assert_eq!(one([SCORE, NONE, NONE, NONE], &[":0\r\n"], &[]), Ok(vec![completed]));
        let failed = Residue::Failed { finished_ms: FINISHED_MS, reason: None };
        assert_eq!(one([NONE, NONE, NONE, SCORE], &[":0\r\n"], &[]), Ok(vec![failed.clone()]));
        assert_eq!(one([NONE, SCORE, NONE, SCORE], &[], &[]), Ok(vec![failed]));
    }

    #[test]
    fn of_several_jobs_each_has_its_own() {
        let second = "*2\r\n$-1\r\n$13\r\n1700000000000\r\n";
        let none = "*2\r\n$-1\r\n$-1\r\n";
        let each = [":0\r\n", ":1\r\n", ":0\r\n"];
        let (residues, _) =
            read(2, [&[none, none, second, none], &[":1\r\n"], &each]).expect("well-formed replies");
        assert_eq!(residues, [Residue::HashOnly, Residue::Completed { finished_ms: FINISHED_MS }]);
    }

    #[test]
    fn a_page_of_jobs_that_left_nothing_takes_one_command_a_set_and_one_more() {
        let none = format!("*200\r\n{}", NIL.repeat(200));
        let (residues, commands) =
            read(200, [&[&none, &none, &none, &none], &[":0\r\n"], &[]]).expect("well-formed replies");
        assert_eq!((residues, commands), (vec![Residue::None; 200], 5));
    }

    #[test]
    fn scores_asked_for_one_by_one_mean_the_same() {
        let places = ["a", "b"].map(|queue| Place { queue: queue.into(), entry_id: "job".into() });
        let mut left = Left::nothing_at(places.iter());
        let score = "$13\r\n1700000000000\r\n";
        let replies = [NIL, score, score, NIL];
        assert_eq!(left.ask(Step::EachFinished, "bull").len(), replies.len());
        left.take(Step::EachFinished, replies.map(parsed).to_vec()).expect("well-formed replies");
        let finished = left.places.iter().map(|at| (at.completed_ms, at.failed_ms));
        assert!(finished.eq([(None, Some(FINISHED_MS)), (Some(FINISHED_MS), None)]));
        for position in 0..4 {
            let mut odd = replies;
            odd[position] = "-NOPERM no\r\n";
            assert!(left.take(Step::EachFinished, odd.map(parsed).to_vec()).is_err(), "{position}");
        }
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
    fn a_long_reason_is_cut_and_a_longer_one_is_not_read() {
        // The last character was cut in the middle.
        let cut = String::from_utf8_lossy(&"ü".repeat(700).as_bytes()[..REASON_BYTES - 1]).into_owned();
        let reason = reason_of(Field::Text(cut)).expect("a reason");
        assert_eq!(reason, format!("{}…", "ü".repeat(REASON_CHARS_MAX)));
        assert_eq!(reason_of(Field::None), None);
        let reason = reason_of(Field::TooLong { bytes: 50_000_000 }).expect("a reason");
        assert!(reason.contains("50000000 bytes"), "{reason}");
    }

    #[test]
    fn an_error_is_not_a_clean_queue() {
        let wrong_type = "-WRONGTYPE kind\r\n";
        for odd in [wrong_type, NIL, "*0\r\n", "*1\r\n$3\r\nabc\r\n", "*1\r\n:1\r\n"] {
            for position in 0..4 {
                let mut finished = [NONE; 4];
                finished[position] = odd;
                assert!(read(1, [&finished, &[], &[]]).is_err(), "{position} {odd:?}");
            }
        }
        for odd in ["-NOPERM no\r\n", NIL, "$1\r\n0\r\n", ":-1\r\n"] {
            assert!(reply::count("EXISTS", &parsed(odd)).is_err(), "{odd:?}");
        }
    }
}
