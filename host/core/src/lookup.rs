//! The direct look-up: which candidates does the snapshot hold under the current job-id rule?
//!
//! It runs over the snapshot's ids once, not over the candidates: each id is taken apart by every rule of its queue and
//! brought into the column's form, so a UUID in capitals finds its row. An id that fits the rules of two sources counts
//! as present for both.
//!
//! The ids pass by a page at a time and are not kept: what this takes grows with the candidates, not with the queues.

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use crate::candidate::Candidate;
use crate::naming::{Naming, is_counted};
use crate::sighting::Sighting;
use crate::snapshot::{Flaw, IdsPage, State};
use crate::source::ResolvedSource;

/// Row ids kept per source and queue as a sample of whose jobs a queue holds (see `epoch`, corroboration).
pub const SAMPLE_MAX: usize = 50;

/// Row ids by queue.
pub type Sample = BTreeMap<String, BTreeSet<String>>;

/// A direct look-up under way: it is fed the snapshot's ids, a page at a time, and keeps only what concerns candidates.
#[derive(Debug)]
pub struct Lookup<'a> {
    pub(crate) naming: Rc<Naming<'a>>,
    /// One per candidate; `None` where it is unresolved.
    pub(crate) sightings: Vec<Option<Sighting>>,
    /// The candidates from here on only ride along: they are looked up, and nothing is read for their sake.
    riders_from: usize,
    /// Of those that do not.
    unresolved: usize,
    /// Whether every id is looked at, whoever is found.
    is_of_everything: bool,
    found_by_payload: BTreeSet<usize>,
    /// Flaws of queues that showed only when their ids were read.
    flaws: BTreeMap<String, Vec<Flaw>>,
    /// Per source.
    by_rule: Vec<Sample>,
}

impl<'a> Lookup<'a> {
    /// Begins with every candidate unresolved. The last `riders` of them are looked up with the others, and keep no
    /// look-up going.
    #[must_use]
    pub fn new(sources: &'a [ResolvedSource], candidates: &'a [Candidate], riders: usize) -> Self {
        let riders_from = candidates.len().saturating_sub(riders);
        Self {
            naming: Rc::new(Naming::new(sources, candidates)),
            sightings: vec![None; candidates.len()],
            riders_from,
            unresolved: riders_from,
            is_of_everything: false,
            found_by_payload: BTreeSet::new(),
            flaws: BTreeMap::new(),
            by_rule: vec![Sample::new(); sources.len()],
        }
    }

    /// Takes in a page of a queue's ids. What lists a candidate counts, whatever flaw the page has.
    pub fn see(&mut self, queue: &str, state: State, page: &IdsPage<'_>) {
        page.flaw.iter().for_each(|flaw| self.flaw(queue, flaw));
        let naming = Rc::clone(&self.naming);
        let Some(rules) = naming.rules.get(queue) else { return };
        for &(source, rule) in rules {
            let mut sample = self.by_rule[source].remove(queue).unwrap_or_default();
            for entry_id in page.ids.iter() {
                let text = rule.job_id.extract(entry_id);
                let Some(row_id) = text.and_then(|text| naming.sources[source].id_kind.canonical(text))
                else {
                    continue;
                };
                if let Some(position) = naming.candidate(source, &row_id)
                    // An id that BullMQ counts out itself may be any job's: it proves no rule right.
                    && (position < self.riders_from || !is_counted(entry_id))
                {
                    self.found(position, queue, state);
                }
                if sample.len() < SAMPLE_MAX && !is_counted(entry_id) {
                    sample.insert(row_id.into_owned());
                }
            }
            if !sample.is_empty() {
                self.by_rule[source].insert(queue.to_owned(), sample);
            }
        }
    }

    /// A look-up that goes on to the end of every queue.
    #[must_use]
    pub fn of_everything(self) -> Self {
        Self { is_of_everything: true, ..self }
    }

    /// Whether any candidate is still unresolved.
    #[must_use]
    pub const fn is_needed(&self) -> bool {
        self.unresolved > 0 || self.is_of_everything
    }

    /// How many candidates are still unresolved.
    #[must_use]
    pub const fn unresolved(&self) -> usize {
        self.unresolved
    }

    /// The queues in which an unresolved candidate may be, in name order.
    #[must_use]
    pub fn queues(&self) -> BTreeSet<String> {
        if self.is_of_everything {
            return self.naming.rules.keys().map(|queue| (*queue).to_owned()).collect();
        }
        let unresolved =
            self.unresolved_candidates().take_while(|(position, _)| *position < self.riders_from);
        let sources: BTreeSet<usize> = unresolved.map(|(_, candidate)| candidate.source).collect();
        let rules = sources.into_iter().flat_map(|source| &self.naming.sources[source].declared.queues);
        rules.map(|rule| rule.name.clone()).collect()
    }

    /// The unresolved candidates that may be in a queue, by position, with the id that each would have there.
    #[must_use]
    pub fn unresolved_in(&self, queue: &str) -> Vec<(usize, String)> {
        let entry = |(position, candidate): (usize, &Candidate)| {
            let rule = self.naming.sources[candidate.source]
                .declared
                .queues
                .iter()
                .find(|rule| rule.name == queue)?;
            Some((position, rule.job_id.render(&candidate.token.id)))
        };
        self.unresolved_candidates().filter_map(entry).collect()
    }

    /// The unresolved candidates by position, riders included.
    pub(crate) fn unresolved_candidates(&self) -> impl Iterator<Item = (usize, &'a Candidate)> {
        let all = self.sightings.iter().zip(self.naming.candidates).enumerate();
        all.filter(|(_, (sighting, _))| sighting.is_none())
            .map(|(position, (_, candidate))| (position, candidate))
    }

    /// Row ids that entries name by a current rule, per source: at most [`SAMPLE_MAX`] of each queue.
    #[must_use]
    pub fn take_sample(&mut self) -> Vec<Sample> {
        std::mem::replace(&mut self.by_rule, vec![Sample::new(); self.naming.sources.len()])
    }

    pub(crate) const fn is_of_everything(&self) -> bool {
        self.is_of_everything
    }

    /// Takes in that a candidate, by its position, is in a queue. Where it was found first is what counts.
    pub fn found(&mut self, position: usize, queue: &str, state: State) {
        let sighting = &mut self.sightings[position];
        if sighting.is_none() {
            *sighting = Some(Sighting::Scheduled { queue: queue.to_owned(), state });
            self.unresolved -= usize::from(position < self.riders_from);
        }
    }

    /// As [`Self::found`], by an entry's payload.
    pub(crate) fn found_by_payload(&mut self, position: usize, queue: &str, state: State) {
        if self.sightings[position].is_none() {
            self.found_by_payload.insert(position);
        }
        self.found(position, queue, state);
    }

    pub(crate) fn take_found_by_payload(&mut self) -> BTreeSet<usize> {
        std::mem::take(&mut self.found_by_payload)
    }

    /// Takes note of a flaw that shows only now: nothing may be called absent from this queue any more.
    pub(crate) fn flaw(&mut self, queue: &str, flaw: &Flaw) {
        let flaws = self.flaws.entry(queue.to_owned()).or_default();
        if !flaws.contains(flaw) {
            flaws.push(flaw.clone());
        }
    }

    /// The flaws of a queue that showed only when its ids were read.
    pub(crate) fn late_flaws(&self, queue: &str) -> &[Flaw] {
        self.flaws.get(queue).map_or(&[], Vec::as_slice)
    }
}
