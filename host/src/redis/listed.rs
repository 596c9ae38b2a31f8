//! Whether given entries are in a scheduled state.

use std::collections::HashSet;

use redis::{Pipeline, Value};
use salvage_core::sighting::QueueFailure;
use salvage_core::snapshot::{Flaw, IdsCopy, State};

use super::connection::Connection;
use super::copies::{self, Copies};
use super::keys::Keys;
use super::reply;
use super::snapshot::ask_length;
use super::strategy::{Search, SnapshotLimits};

/// Ids of a copy read at a time.
const IDS_PER_PAGE: usize = 10_000;

/// Looks for entries of one queue.
#[derive(Debug, Clone, Copy)]
pub(super) struct Searcher<'a> {
    pub(super) connection: &'a Connection,
    pub(super) keys: &'a Keys,
    pub(super) copies: &'a Copies,
    pub(super) limits: &'a SnapshotLimits,
}

impl Searcher<'_> {
    /// Whether each entry is in any of the six states, all at one instant. `token` names the copies that may be made.
    pub(super) async fn are_listed(
        &self,
        entry_ids: &[String],
        token: Option<&str>,
    ) -> Result<Vec<bool>, QueueFailure> {
        if entry_ids.is_empty() {
            return Ok(vec![]);
        }
        match (self.limits.search(entry_ids.len(), self.ids_in_lists().await?), token) {
            (Search::Walk, _) => self.walk(entry_ids).await,
            (Search::Copy, Some(token)) => {
                let answered = self.compare_copies(entry_ids, token).await;
                // At once: a scan may come here many times.
                self.copies.remove_of(self.connection, token).await;
                match answered {
                    Err(failure) if copies::is_refusal(&failure) => self.compare(entry_ids).await,
                    answered => answered,
                }
            }
            (Search::Range | Search::Copy, _) => self.compare(entry_ids).await,
        }
    }

    async fn ids_in_lists(&self) -> Result<usize, QueueFailure> {
        let mut commands = redis::pipe();
        for state in lists() {
            ask_length(&mut commands, self.keys, state);
        }
        let replies = self.connection.ask(&commands).await?;
        replies.iter().try_fold(0, |sum, reply| Ok(sum + length(reply)?))
    }

    /// Has Redis look for each id.
    async fn walk(&self, entry_ids: &[String]) -> Result<Vec<bool>, QueueFailure> {
        let mut commands = redis::pipe();
        for entry_id in entry_ids {
            for state in State::ALL {
                commands
                    .cmd(if state.is_list() { "LPOS" } else { "ZSCORE" })
                    .arg(self.keys.state(state))
                    .arg(entry_id);
            }
        }
        let replies = self.connection.ask_at_one_instant(&commands).await?;
        replies.chunks(State::ALL.len()).map(any_found).collect()
    }

    /// Reads the lists, and looks for the ids in them.
    async fn compare(&self, entry_ids: &[String]) -> Result<Vec<bool>, QueueFailure> {
        let mut commands = redis::pipe();
        for state in lists() {
            commands.cmd("LRANGE").arg(self.keys.state(state)).arg(0).arg(-1);
        }
        self.ask_scores(&mut commands, entry_ids);
        let mut replies = self.connection.ask_at_one_instant(&commands).await?.into_iter();
        let mut sought = Sought::new(entry_ids);
        for _ in lists() {
            let reply = replies.next().unwrap_or_default();
            let Value::Array(ids) = reply else { return Err(reply::unexpected("LRANGE", &reply)) };
            for id in ids {
                let Value::BulkString(id) = id else { return Err(reply::unexpected("LRANGE", &id)) };
                sought.see(&id);
            }
        }
        sought.take_scores(replies)?;
        Ok(sought.answer())
    }

    /// Copies the lists, and looks for the ids in the copies. There is room for them: the snapshot whose ids these are
    /// asked for twice of what it took.
    async fn compare_copies(&self, entry_ids: &[String], token: &str) -> Result<Vec<bool>, QueueFailure> {
        let mut commands = redis::pipe();
        for state in lists() {
            ask_length(&mut commands, self.keys, state);
            self.copies.make(&mut commands, self.keys, state, token);
        }
        self.ask_scores(&mut commands, entry_ids);
        let mut replies = self.connection.ask_at_one_instant(&commands).await?.into_iter();
        let mut lengths = vec![];
        for state in lists() {
            let length = length(&replies.next().unwrap_or_default())?;
            let copied = replies.next().unwrap_or_default();
            let expires = replies.next().unwrap_or_default();
            if length > 0 && !copies::is_made(state, length, &copied, &expires) {
                return Err(reply::unexpected("COPY", &copied));
            }
            lengths.push((state, length));
        }
        let mut sought = Sought::new(entry_ids);
        sought.take_scores(replies)?;
        for (state, length) in lengths {
            let copy = IdsCopy { key: self.keys.copy(state, token), length };
            for from in (0..length).step_by(IDS_PER_PAGE) {
                let page = self.copies.page(self.connection, &copy, from, IDS_PER_PAGE).await?;
                // An id that is not UTF-8 is none of ours; a copy that is lost is no answer.
                if let Some(lost) = page.flaw.filter(|flaw| matches!(flaw, Flaw::CopyLost { .. })) {
                    return Err(QueueFailure::UnexpectedReply { command: "LRANGE", found: lost.to_string() });
                }
                page.ids.iter().for_each(|id| sought.see(id.as_bytes()));
            }
        }
        Ok(sought.answer())
    }

    fn ask_scores(&self, commands: &mut Pipeline, entry_ids: &[String]) {
        for state in sorted_sets() {
            commands.cmd("ZMSCORE").arg(self.keys.state(state)).arg(entry_ids);
        }
    }
}

/// The ids that are looked for, and those that were found.
struct Sought<'a> {
    entry_ids: &'a [String],
    all: HashSet<&'a [u8]>,
    found: HashSet<&'a [u8]>,
}

impl<'a> Sought<'a> {
    fn new(entry_ids: &'a [String]) -> Self {
        Self { entry_ids, all: entry_ids.iter().map(String::as_bytes).collect(), found: HashSet::new() }
    }

    fn see(&mut self, id: &[u8]) {
        if let Some(own) = self.all.get(id).copied() {
            self.found.insert(own);
        }
    }

    /// Takes the replies to ZMSCORE, one per sorted set.
    fn take_scores(&mut self, replies: impl Iterator<Item = Value>) -> Result<(), QueueFailure> {
        for reply in replies {
            let scores = match &reply {
                Value::Array(scores) if scores.len() == self.entry_ids.len() => scores,
                other => return Err(reply::unexpected("ZMSCORE", other)),
            };
            for (entry_id, score) in self.entry_ids.iter().zip(scores) {
                if reply::is_found("ZMSCORE", score)? {
                    self.found.insert(entry_id.as_bytes());
                }
            }
        }
        Ok(())
    }

    fn answer(&self) -> Vec<bool> {
        self.entry_ids.iter().map(|id| self.found.contains(id.as_bytes())).collect()
    }
}

fn lists() -> impl Iterator<Item = State> {
    State::ALL.into_iter().filter(|state| state.is_list())
}

fn sorted_sets() -> impl Iterator<Item = State> {
    State::ALL.into_iter().filter(|state| !state.is_list())
}

fn length(reply: &Value) -> Result<usize, QueueFailure> {
    match reply {
        Value::Int(length) => Ok(usize::try_from(*length).unwrap_or(0)),
        other => Err(reply::unexpected("LLEN", other)),
    }
}

/// All of them are looked at: an error is never outvoted by a find, nor passed over as an absence.
fn any_found(replies: &[Value]) -> Result<bool, QueueFailure> {
    replies.iter().try_fold(false, |found, reply| Ok(found | reply::is_found("LPOS or ZSCORE", reply)?))
}

#[cfg(test)]
mod tests {
    use super::reply::testing::parsed;
    use super::*;

    #[test]
    fn scores_are_matched_with_their_ids_and_anything_else_is_no_answer() {
        let ids = ["a", "b"].map(str::to_owned);
        let answer = |wire: &str| {
            let mut sought = Sought::new(&ids);
            sought.see(b"other");
            sought.take_scores([parsed(wire)].into_iter()).map(|()| sought.answer())
        };
        assert_eq!(answer("*2\r\n$-1\r\n$1\r\n5\r\n"), Ok(vec![false, true]));
        for odd in ["*0\r\n", "*1\r\n$-1\r\n", "$-1\r\n", "-WRONGTYPE kind\r\n", "*2\r\n$-1\r\n*0\r\n"] {
            assert!(answer(odd).is_err(), "{odd:?}");
        }
    }

    #[test]
    fn one_error_spoils_the_answer_wherever_it_stands() {
        let found =
            |replies: &[&str]| any_found(&replies.iter().map(|wire| parsed(wire)).collect::<Vec<_>>());
        assert_eq!(found(&["$-1\r\n", "$-1\r\n"]), Ok(false));
        assert_eq!(found(&["$-1\r\n", ":0\r\n"]), Ok(true));
        assert_eq!(found(&["$1\r\n5\r\n", "$-1\r\n"]), Ok(true));
        assert!(found(&["$1\r\n5\r\n", "-WRONGTYPE kind\r\n"]).is_err());
        assert!(found(&["$-1\r\n", "*0\r\n"]).is_err());
    }
}
