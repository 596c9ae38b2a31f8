//! The direct look-up: which candidates does the snapshot hold under the current job-id rule?
//!
//! It runs over the snapshot's ids once, not over the candidates: each id is taken apart by every rule of its queue and
//! brought into the column's form, so a UUID in capitals finds its row. An id that fits the rules of two sources counts
//! as present for both.

use std::collections::{BTreeMap, HashMap};

use crate::candidate::Candidate;
use crate::manifest::QueueRule;
use crate::sighting::Sighting;
use crate::snapshot::Snapshot;
use crate::source::ResolvedSource;

/// The rules under which a queue's entries may belong to sources: (index of the source, its rule).
pub type RulesByQueue<'a> = BTreeMap<&'a str, Vec<(usize, &'a QueueRule)>>;

/// All queues of `sources`, each with the rules that apply to it; a queue that two domains share is there once.
#[must_use]
pub fn rules_by_queue(sources: &[ResolvedSource]) -> RulesByQueue<'_> {
    let mut rules = RulesByQueue::new();
    for (index, source) in sources.iter().enumerate() {
        for rule in &source.declared.queues {
            rules.entry(rule.name.as_str()).or_default().push((index, rule));
        }
    }
    rules
}

/// Finds a candidate's position by its source and its row id.
#[derive(Debug)]
pub struct CandidateIndex<'a>(Vec<HashMap<&'a str, usize>>);

impl<'a> CandidateIndex<'a> {
    /// Indexes `candidates`; their ids are unique within a source.
    #[must_use]
    pub fn new(sources: usize, candidates: &'a [Candidate]) -> Self {
        let mut by_source = vec![HashMap::new(); sources];
        for (position, candidate) in candidates.iter().enumerate() {
            by_source[candidate.source].insert(candidate.token.id.as_str(), position);
        }
        Self(by_source)
    }

    /// The candidate with that row id, in the column's form.
    #[must_use]
    pub fn get(&self, source: usize, row_id: &str) -> Option<usize> {
        self.0[source].get(row_id).copied()
    }
}

/// The sighting of each candidate that the snapshot holds under a current rule; `None` where it is unresolved.
#[must_use]
pub fn direct(
    sources: &[ResolvedSource],
    candidates: &[Candidate],
    snapshot: &Snapshot,
) -> Vec<Option<Sighting>> {
    let index = CandidateIndex::new(sources.len(), candidates);
    let mut sightings = vec![None; candidates.len()];
    for (queue, rules) in rules_by_queue(sources) {
        let Some(reading) = snapshot.queues.get(queue) else { continue };
        for (state, entry_id) in reading.entries() {
            for &(source, rule) in &rules {
                let row_id =
                    rule.job_id.extract(entry_id).and_then(|text| sources[source].id_kind.normalise(text));
                if let Some(position) = row_id.and_then(|id| index.get(source, &id)) {
                    sightings[position]
                        .get_or_insert_with(|| Sighting::Scheduled { queue: queue.to_owned(), state });
                }
            }
        }
    }
    sightings
}
