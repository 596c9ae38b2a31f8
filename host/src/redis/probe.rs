//! Looks for jobs by their ids, without reading any other.
//!
//! It can only say that a job is there. Who is not found may be there under another id, so it takes all ids to call
//! anybody absent: then this answers nothing.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use redis::{Pipeline, Value};
use salvage_core::act::Place;
use salvage_core::snapshot::{Spot, State};

use super::keys::Keys;

/// The entries to look for.
pub(super) struct Probe<'a> {
    jobs: &'a [Vec<Place>],
    by_queue: BTreeMap<&'a str, BTreeSet<&'a str>>,
}

impl<'a> Probe<'a> {
    pub(super) fn new(jobs: &'a [Vec<Place>]) -> Self {
        let mut by_queue: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
        for Place { queue, entry_id } in jobs.iter().flatten() {
            by_queue.entry(queue).or_default().insert(entry_id);
        }
        Self { jobs, by_queue }
    }

    /// Adds the commands whose replies [`Self::found`] takes.
    pub(super) fn ask(&self, commands: &mut Pipeline, prefix: &str) {
        for (queue, entry_ids) in &self.by_queue {
            let keys = Keys::new(prefix, queue);
            for state in State::ALL {
                if state.is_list() {
                    for entry_id in entry_ids {
                        commands.cmd("LPOS").arg(keys.state(state)).arg(*entry_id);
                    }
                } else {
                    let ids: Vec<&str> = entry_ids.iter().copied().collect();
                    commands.cmd("ZMSCORE").arg(keys.state(state)).arg(ids);
                }
            }
        }
    }

    /// Where each job stands, or `None` if any was not found. A reply of another form finds nothing.
    pub(super) fn found(&self, replies: &mut impl Iterator<Item = Value>) -> Option<Vec<Spot>> {
        let mut states: HashMap<(&str, &str), State> = HashMap::new();
        for (queue, entry_ids) in &self.by_queue {
            for state in State::ALL {
                let found: Vec<bool> = if state.is_list() {
                    entry_ids.iter().map(|_| matches!(replies.next(), Some(Value::Int(_)))).collect()
                } else {
                    scores(replies.next())
                };
                for (entry_id, _) in entry_ids.iter().zip(found).filter(|(_, is_found)| *is_found) {
                    states.entry((queue, entry_id)).or_insert(state);
                }
            }
        }
        let spot = |Place { queue, entry_id }: &Place| {
            let state = *states.get(&(queue.as_str(), entry_id.as_str()))?;
            Some(Spot { queue: queue.clone(), state })
        };
        self.jobs.iter().map(|places| places.iter().find_map(spot)).collect()
    }
}

fn scores(reply: Option<Value>) -> Vec<bool> {
    match reply {
        Some(Value::Array(scores)) => {
            scores.iter().map(|score| matches!(score, Value::BulkString(_))).collect()
        }
        _ => vec![],
    }
}

#[cfg(test)]
mod tests {
    use super::super::reply::testing::parsed;
    use super::*;

    /// One job that may be in `a` or `b`, and its replies: one per state of each queue.
    fn found(changes: &[(usize, &str)]) -> Option<Vec<Spot>> {
        let place = |queue: &str| Place { queue: queue.into(), entry_id: "slide-7".into() };
        let jobs = [vec![place("a"), place("b")]];
        let probe = Probe::new(&jobs);
        let mut commands = redis::pipe();
        probe.ask(&mut commands, "bull");
        let none = |state: State| if state.is_list() { "$-1\r\n" } else { "*1\r\n$-1\r\n" };
        let mut wire: Vec<&str> = State::ALL.into_iter().chain(State::ALL).map(none).collect();
        assert_eq!(commands.len(), wire.len());
        for &(position, reply) in changes {
            wire[position] = reply;
        }
        probe.found(&mut wire.into_iter().map(parsed))
    }

    #[test]
    fn a_job_is_found_in_any_state_of_any_of_its_queues() {
        let spot = |queue: &str, state| Some(vec![Spot { queue: queue.into(), state }]);
        assert_eq!(found(&[(0, ":3\r\n")]), spot("a", State::Waiting));
        assert_eq!(found(&[(8, "*1\r\n$2\r\n17\r\n")]), spot("b", State::Delayed));
        assert_eq!(found(&[(11, ":0\r\n")]), spot("b", State::Active));
    }

    #[test]
    fn nothing_else_counts_as_found() {
        assert_eq!(found(&[]), None);
        for odd in ["-WRONGTYPE kind\r\n", "*0\r\n", "*1\r\n:1\r\n", "$-1\r\n", "$1\r\nx\r\n"] {
            for position in 0..12 {
                assert_eq!(found(&[(position, odd)]), None, "{position} {odd:?}");
            }
        }
    }
}
