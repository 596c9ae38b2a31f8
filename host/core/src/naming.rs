//! Whose an entry is, as far as its id tells: what stays the same while a look-up or a scan is under way.

use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap};
use std::rc::Rc;

use crate::candidate::Candidate;
use crate::manifest::QueueRule;
use crate::snapshot::State;
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
struct CandidateIndex<'a>(Vec<HashMap<&'a str, usize>>);

impl<'a> CandidateIndex<'a> {
    /// Indexes `candidates`; their ids are unique within a source.
    fn new(sources: usize, candidates: &'a [Candidate]) -> Self {
        let mut by_source = vec![HashMap::new(); sources];
        for (position, candidate) in candidates.iter().enumerate() {
            by_source[candidate.source].insert(candidate.token.id.as_str(), position);
        }
        Self(by_source)
    }

    /// The candidate with that row id, in the column's form.
    fn get(&self, source: usize, row_id: &str) -> Option<usize> {
        self.0[source].get(row_id).copied()
    }
}

/// One entry to read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// Its queue.
    pub queue: Rc<str>,
    /// Where the snapshot saw it.
    pub state: State,
    /// Its id.
    pub id: String,
}

/// What the ids of entries tell, before it is known which of the rows they name are live.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Named<'i> {
    /// Of each entry, in their order: whether its payload need not be read, because it is a candidate's.
    pub is_clear: Vec<bool>,
    /// Per source, the rows named beside candidates. If one of its rows is live, an entry is clear, too.
    pub rows: BTreeMap<usize, NamedRows<'i>>,
}

/// Rows of one source that entries name.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct NamedRows<'i> {
    /// Their ids, in the column's form.
    pub ids: Vec<Cow<'i, str>>,
    /// Of each, the position of the entry that names it.
    pub entries: Vec<usize>,
}

/// The sources, their rules, and the candidates.
#[derive(Debug)]
pub struct Naming<'a> {
    pub(crate) sources: &'a [ResolvedSource],
    pub(crate) candidates: &'a [Candidate],
    pub(crate) rules: RulesByQueue<'a>,
    index: CandidateIndex<'a>,
}

impl<'a> Naming<'a> {
    pub(crate) fn new(sources: &'a [ResolvedSource], candidates: &'a [Candidate]) -> Self {
        let (rules, index) = (rules_by_queue(sources), CandidateIndex::new(sources.len(), candidates));
        Self { sources, candidates, rules, index }
    }

    /// The position of the candidate with that row id, in the column's form.
    pub(crate) fn candidate(&self, source: usize, row_id: &str) -> Option<usize> {
        self.index.get(source, row_id)
    }

    /// What the ids of a queue's entries name by a current rule. An entry needs no payload if it names a live row. Of a
    /// candidate that need not be asked: it was read as one.
    #[must_use]
    pub fn named_by_rule<'i>(
        &self,
        queue: &str,
        entry_ids: impl IntoIterator<Item = &'i String>,
    ) -> Named<'i> {
        let mut named = Named::default();
        for (entry, entry_id) in entry_ids.into_iter().enumerate() {
            let mut is_clear = false;
            for (source, row_id) in self.rows_by_rule(queue, entry_id) {
                if self.candidate(source, &row_id).is_some() {
                    is_clear = true;
                } else {
                    let rows = named.rows.entry(source).or_default();
                    rows.ids.push(row_id);
                    rows.entries.push(entry);
                }
            }
            named.is_clear.push(is_clear);
        }
        named
    }

    /// The rows that an entry's id names beyond doubt. An id of digits alone names none: BullMQ counts such ids out itself
    /// to jobs without an id of their own, so under the rule `{id}` it may be any job's.
    fn rows_by_rule<'i>(
        &self,
        queue: &str,
        entry_id: &'i str,
    ) -> impl Iterator<Item = (usize, Cow<'i, str>)> {
        let rules = self.rules.get(queue).filter(|_| !is_counted(entry_id)).into_iter().flatten();
        rules.filter_map(move |&(source, rule)| {
            let text = rule.job_id.extract(entry_id)?;
            Some((source, self.sources[source].id_kind.canonical(text)?))
        })
    }
}

/// Whether BullMQ may have counted this id out itself.
#[must_use]
pub fn is_counted(entry_id: &str) -> bool {
    entry_id.bytes().all(|byte| byte.is_ascii_digit())
}
