//! The scan: entries under other ids, matched by what their payload says.
//!
//! Only for what the direct look-up left unresolved, and only in the queues where an unresolved candidate may be. The
//! pass feeds a [`Scan`] the payload of each entry it asks for; what is left at the end is absent, or in doubt.
//!
//! | the entry | is | and means |
//! |---|---|---|
//! | hash gone, id in no state any more | departed | nothing: busy queues have such ids in every scan |
//! | hash gone, id still listed | unreadable | it might be anybody's: doubt |
//! | payload not JSON, or too long | unreadable | the same |
//! | carries a row's id under the source's key | attributed | that row's job; another's, if no such row exists |
//! | carries none, and its name is not one of the source's | foreign | readable, and not this job |
//! | carries none, and may be the source's by its name | unattributed | it might be any job of the source: doubt |
//!
//! *Foreign* is believed of a manifest's word only against two further signs. A candidate whose own id stands in an entry
//! that nobody else owns is in doubt ([`crate::mention`]); and an active entry that is foreign keeps PROCESSING rows in
//! doubt that were written since a worker took it, for that worker may have inserted the row itself.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::rc::Rc;

use jiff::Timestamp;
use serde::Serialize;

use crate::candidate::{Candidate, LiveStatus};
use crate::epoch::SKEW_MARGIN;
use crate::json::{self, Scalar};
use crate::lookup::{Lookup, SAMPLE_MAX, Sample};
use crate::manifest::QueueRule;
use crate::mention::{Mention, Mentions, Place, is_common};
use crate::naming::{Entry, Naming};
use crate::payload::{Data, Payload, Said, keys_of, written};
use crate::sighting::{Doubt, EntryFault, QueueFailure, Residue, Sighting};
use crate::snapshot::{Flaw, Snapshot, State};

#[cfg(test)]
mod tests;

/// What the operator said of entries and queues.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Accepted {
    /// Queues without any trace of `BullMQ` that count as they are.
    pub queues: BTreeSet<String>,
    /// Entries that count as harmless, whatever they hold: (queue, entry id).
    pub entries: BTreeSet<(String, String)>,
    /// Names of entries that count as somebody else's: (queue, job name).
    pub foreign: BTreeSet<(String, String)>,
}

/// What a scan saw, for the report and the ledger.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct ScanCounts {
    /// Entries whose payload was asked for.
    pub read: usize,
    /// Vanished between the snapshot and the read.
    pub departed: usize,
    /// Readable, and somebody else's by their names.
    pub foreign: usize,
    /// Readable, without a row's id, and perhaps a source's.
    pub unattributed: usize,
    /// Not readable and not accepted.
    pub unreadable: usize,
}

/// Whose the entries of one queue are.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Attribution {
    /// Their ids name live rows.
    pub by_id: usize,
    /// Their payloads carry a row's id.
    pub by_payload: usize,
    /// Of those, where each was looked for, the ids are of no row.
    pub nobody: usize,
    /// Somebody else's, by their names.
    pub foreign: usize,
    /// Perhaps a source's, and nobody can say which row's.
    pub unattributed: usize,
}

impl Attribution {
    /// How many entries it speaks of.
    #[must_use]
    pub const fn entries(&self) -> usize {
        self.by_id + self.by_payload + self.nobody + self.foreign + self.unattributed
    }
}

impl fmt::Display for Attribution {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { by_id, by_payload, nobody, foreign, unattributed } = self;
        write!(f, "{by_id} attributed by id, {by_payload} by payload, ")?;
        if *nobody > 0 {
            write!(f, "{nobody} with the id of no row, ")?;
        }
        write!(f, "{foreign} foreign by name, {unattributed} unattributed")
    }
}

/// The entries of one queue that are not readable and not accepted.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Unreadable {
    /// How many were met.
    pub count: usize,
    /// The first of them: enough to name one.
    pub entry: String,
    /// What is wrong with that one.
    pub fault: EntryFault,
}

/// Entries of one queue that may be a source's and carry no row's id.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Unattributed {
    /// How many were met.
    pub count: usize,
    /// The first of them: enough to name one.
    pub entry: String,
    /// Its job name, if it has one.
    pub name: Option<String>,
    /// Some paths at which its payload has values.
    pub keys: Vec<String>,
}

/// A foreign entry that a worker is at.
#[derive(Debug, Clone, PartialEq, Eq)]
struct ForeignActive {
    entry: String,
    name: Option<String>,
    /// When the worker took it; 0 if it did not say.
    processed_ms: u64,
}

/// A row that an entry's payload names, and what follows from whether it exists.
#[derive(Debug)]
struct Named {
    source: usize,
    row_id: String,
    /// If it does not: the candidates whose ids stand in the entry.
    mentions: Vec<(usize, Mention)>,
    /// If it does: the operator's word that such an entry is somebody else's is contradicted.
    word: Option<(String, String)>,
    queue: String,
}

/// A scan under way.
#[derive(Debug)]
pub struct Scan<'a> {
    lookup: Lookup<'a>,
    payloads_max: usize,
    accepted: &'a Accepted,
    mentions: Mentions<'a>,
    unreadable: BTreeMap<String, Unreadable>,
    /// By queue and source.
    unattributed: BTreeMap<(String, usize), Unattributed>,
    foreign_active: BTreeMap<(String, usize), ForeignActive>,
    /// Not known to exist yet.
    unproven: Vec<Named>,
    named: Vec<BTreeMap<String, String>>,
    /// Candidates whose ids of digits alone stand in entries that are foreign by their names.
    weak: BTreeMap<usize, Mention>,
    /// Names under which the operator's word was contradicted: a row was attributed.
    contradicted: BTreeSet<(String, String)>,
    counts: ScanCounts,
    attribution: BTreeMap<String, Attribution>,
}

impl<'a> Scan<'a> {
    /// Begins with what the direct look-up found.
    #[must_use]
    pub fn new(lookup: Lookup<'a>, accepted: &'a Accepted) -> Self {
        Self {
            named: vec![BTreeMap::new(); lookup.naming.sources.len()],
            mentions: Mentions::of(lookup.unresolved_candidates()),
            lookup,
            payloads_max: usize::MAX,
            accepted,
            unreadable: BTreeMap::new(),
            unattributed: BTreeMap::new(),
            foreign_active: BTreeMap::new(),
            unproven: vec![],
            weak: BTreeMap::new(),
            contradicted: BTreeSet::new(),
            counts: ScanCounts::default(),
            attribution: BTreeMap::new(),
        }
    }

    /// Ends the scan after so many payloads, whoever is unresolved: nobody may be called absent then.
    #[must_use]
    pub fn with_payloads_max(self, payloads_max: usize) -> Self {
        Self { payloads_max, ..self }
    }

    /// Whether any candidate is still unresolved.
    #[must_use]
    pub const fn is_needed(&self) -> bool {
        self.lookup.is_needed() && self.counts.read < self.payloads_max
    }

    /// The queues in which an unresolved candidate may be, in name order.
    #[must_use]
    pub fn queues(&self) -> BTreeSet<String> {
        self.lookup.queues()
    }

    /// Takes note of a flaw that shows only now: nothing may be called absent from this queue any more.
    pub fn flaw(&mut self, queue: &str, flaw: &Flaw) {
        self.lookup.flaw(queue, flaw);
    }

    /// Whose the entries are by their ids, to find out which payloads must be read.
    #[must_use]
    pub fn naming(&self) -> Rc<Naming<'a>> {
        Rc::clone(&self.lookup.naming)
    }

    /// Takes in that so many entries of a queue need no payload: their ids name live rows.
    pub fn clear(&mut self, queue: &str, entries: usize) {
        self.attribution_of(queue).by_id += entries;
    }

    fn attribution_of(&mut self, queue: &str) -> &mut Attribution {
        self.attribution.entry(queue.to_owned()).or_default()
    }

    /// Takes in one payload. Returns whether the entry must be looked for again, because its payload was gone.
    #[must_use]
    pub fn read(&mut self, entry: &Entry, payload: &Payload) -> bool {
        self.counts.read += 1;
        match &payload.data {
            Data::Missing => return true,
            Data::TooLong { .. } => self.doubt(entry, EntryFault::TooLong),
            Data::Text(text) => self.matched(entry, payload, text),
        }
        false
    }

    /// Takes in the second, atomic look at an entry whose payload was gone.
    pub fn looked_again(&mut self, entry: &Entry, is_listed: bool) {
        if is_listed {
            self.doubt(entry, EntryFault::NoPayload);
        } else {
            self.counts.departed += 1;
        }
    }

    /// Rows that payloads name beside other candidates' ids, by source: whether they exist decides whose those entries are.
    #[must_use]
    pub fn unproven(&self) -> BTreeMap<usize, Vec<String>> {
        let mut rows: BTreeMap<usize, BTreeSet<&str>> = BTreeMap::new();
        for named in &self.unproven {
            rows.entry(named.source).or_default().insert(&named.row_id);
        }
        let owned = |ids: BTreeSet<&str>| ids.into_iter().map(str::to_owned).collect();
        rows.into_iter().map(|(source, ids)| (source, owned(ids))).collect()
    }

    /// Takes in which of the unproven rows of a source exist. An entry whose row does not is nobody's, and may be the job
    /// of a candidate whose id it holds.
    pub fn proven(&mut self, source: usize, existing: &BTreeSet<String>) {
        let of_source;
        (of_source, self.unproven) =
            std::mem::take(&mut self.unproven).into_iter().partition(|named: &Named| named.source == source);
        for Named { row_id, mentions, word, queue, .. } in of_source {
            if existing.contains(&row_id) {
                self.contradicted.extend(word);
            } else {
                let attribution = self.attribution_of(&queue);
                attribution.by_payload = attribution.by_payload.saturating_sub(1);
                attribution.nobody += 1;
                mentions.into_iter().for_each(|(position, mention)| self.mentions.take(position, mention));
            }
        }
    }

    fn matched(&mut self, entry: &Entry, payload: &Payload, text: &str) {
        let naming = Rc::clone(&self.lookup.naming);
        let rules = naming.rules.get(&*entry.queue).map_or(&[][..], Vec::as_slice);
        let mut said = vec![Said::default(); rules.len()];
        let mut mentioned: Vec<(usize, Place)> = vec![];
        let is_json = json::walk(text, &mut |path, leaf| {
            for ((source, rule), said) in rules.iter().zip(&mut said) {
                said.take(&naming.sources[*source], rule, path, leaf);
            }
            if let Scalar::Text(value) | Scalar::Number(value) = leaf {
                let place = |position| (position, Place::Payload(written(path)));
                mentioned.extend(self.mentions.named_by(value).map(place));
            }
        });
        if !is_json {
            return self.doubt(entry, EntryFault::NotJson);
        }
        let by_name = payload.name.as_deref().into_iter().flat_map(|name| self.mentions.named_by(name));
        mentioned.extend(by_name.map(|position| (position, Place::Name)));
        let by_id = self.mentions.in_entry_id(&entry.id).into_iter();
        mentioned.extend(by_id.map(|position| (position, Place::EntryId)));
        let read = Read { entry, payload, text, mentioned };
        let mut whose = Whose::Foreign;
        for ((source, rule), said) in rules.iter().zip(&said) {
            whose = whose.min(self.attribute(*source, rule, said, &read));
        }
        self.count(&entry.queue, whose);
    }

    fn count(&mut self, queue: &str, whose: Whose) {
        let attribution = self.attribution_of(queue);
        match whose {
            Whose::Row => attribution.by_payload += 1,
            Whose::Unattributed => attribution.unattributed += 1,
            Whose::Foreign => attribution.foreign += 1,
        }
        self.counts.unattributed += usize::from(whose == Whose::Unattributed);
        self.counts.foreign += usize::from(whose == Whose::Foreign);
    }

    /// Whose an entry is, as far as one source of its queue can tell; takes in what follows for its candidates.
    fn attribute(&mut self, source: usize, rule: &QueueRule, said: &Said, read: &Read<'_>) -> Whose {
        let Read { entry, payload, .. } = read;
        if said.is_never_ours(rule, payload) {
            self.note_active(source, read);
            return Whose::Foreign;
        }
        if let Some(row_id) = &said.row_id {
            self.names_row(source, row_id, read);
            return Whose::Row;
        }
        let word = payload.name.clone().map(|name| (entry.queue.to_string(), name));
        let is_foreign = said.is_foreign(rule, payload)
            || word.is_some_and(|word| self.accepted.foreign.contains(&word))
            || is_waiting_iteration(entry);
        self.take_mentions(source, is_foreign, read);
        if is_foreign {
            self.note_active(source, read);
            return Whose::Foreign;
        }
        if !self.is_accepted(entry) {
            let first = || Unattributed {
                count: 0,
                entry: entry.id.clone(),
                name: payload.name.clone(),
                keys: keys_of(read.text),
            };
            self.unattributed.entry((entry.queue.to_string(), source)).or_insert_with(first).count += 1;
        }
        Whose::Unattributed
    }

    /// The payload names a row of the source under its key.
    fn names_row(&mut self, source: usize, row_id: &str, read: &Read<'_>) {
        let Read { entry, payload, .. } = read;
        let word = payload.name.clone().map(|name| (entry.queue.to_string(), name));
        let word = word.filter(|word| self.accepted.foreign.contains(word));
        if self.named[source].len() < SAMPLE_MAX {
            self.named[source].insert(row_id.to_owned(), entry.queue.to_string());
        }
        if let Some(position) = self.lookup.naming.candidate(source, row_id) {
            self.lookup.found_by_payload(position, &entry.queue, entry.state);
            self.contradicted.extend(word);
            return;
        }
        let mentions = self.mentions_for(source, read);
        if !mentions.is_empty() || word.is_some() || self.lookup.is_of_everything() {
            let (row_id, queue) = (row_id.to_owned(), entry.queue.to_string());
            self.unproven.push(Named { source, row_id, mentions, word, queue });
        }
    }

    /// In what is foreign, ids of digits alone count for little.
    fn take_mentions(&mut self, source: usize, is_foreign: bool, read: &Read<'_>) {
        let candidates = self.lookup.naming.candidates;
        for (position, mention) in self.mentions_for(source, read) {
            if is_foreign && is_common(&candidates[position].token.id) {
                self.weak.entry(position).or_insert(mention);
            } else {
                self.mentions.take(position, mention);
            }
        }
    }

    /// The mentions of a source's candidates.
    fn mentions_for(&self, source: usize, read: &Read<'_>) -> Vec<(usize, Mention)> {
        let candidates = self.lookup.naming.candidates;
        let own = read.mentioned.iter().filter(|(position, _)| candidates[*position].source == source);
        own.map(|(position, place)| (*position, read.mention(place))).collect()
    }

    /// Remembers of the foreign entries that workers are at the one that was taken first.
    fn note_active(&mut self, source: usize, read: &Read<'_>) {
        let Read { entry, payload, .. } = read;
        if entry.state != State::Active {
            return;
        }
        let processed_ms = payload.processed_ms.unwrap_or(0);
        let key = (entry.queue.to_string(), source);
        if self.foreign_active.get(&key).is_none_or(|known| processed_ms < known.processed_ms) {
            let (entry, name) = (entry.id.clone(), payload.name.clone());
            self.foreign_active.insert(key, ForeignActive { entry, name, processed_ms });
        }
    }

    fn is_accepted(&self, entry: &Entry) -> bool {
        self.accepted.entries.contains(&(entry.queue.to_string(), entry.id.clone()))
    }

    fn doubt(&mut self, entry: &Entry, fault: EntryFault) {
        if self.is_accepted(entry) {
            return;
        }
        self.counts.unreadable += 1;
        let first = || Unreadable { count: 0, entry: entry.id.clone(), fault };
        self.unreadable.entry(entry.queue.to_string()).or_insert_with(first).count += 1;
    }

    /// The verdict: a candidate that was not seen is absent if every queue of its source proves it, and unknown otherwise.
    #[must_use]
    pub fn finish(mut self, snapshot: &Snapshot) -> Verdict {
        let seen = std::mem::take(&mut self.lookup.sightings);
        let unseen =
            |position: usize, candidate: &Candidate| match self.doubt_of(position, candidate, snapshot) {
                Some(why) => Sighting::Unknown { why },
                None => Sighting::Absent { residue: Residue::None },
            };
        let sightings = seen.into_iter().zip(self.lookup.naming.candidates).enumerate();
        let judged = sightings
            .map(|(position, (seen, candidate))| seen.unwrap_or_else(|| unseen(position, candidate)))
            .collect();
        self.verdict(judged)
    }

    /// The verdict when payloads could no longer be read: a candidate that was not seen is unknown.
    #[must_use]
    pub fn abandon(mut self, failure: &QueueFailure) -> Verdict {
        let seen = std::mem::take(&mut self.lookup.sightings);
        let unknown = || Sighting::Unknown { why: Doubt::Redis(failure.clone()) };
        self.verdict(seen.into_iter().map(|seen| seen.unwrap_or_else(unknown)).collect())
    }

    fn verdict(mut self, sightings: Vec<Sighting>) -> Verdict {
        Verdict {
            sightings,
            by_payload: self.lookup.take_found_by_payload(),
            counts: Some(self.counts),
            by_rule: self.lookup.take_sample(),
            named: self.named,
            unreadable: self.unreadable,
            attribution: self.attribution,
            weak: self.weak,
            contradicted: self.contradicted,
        }
    }

    fn doubt_of(&self, position: usize, candidate: &Candidate, snapshot: &Snapshot) -> Option<Doubt> {
        if let Some(failure) = snapshot.server_fault() {
            return Some(Doubt::Redis(failure));
        }
        let queues = &self.lookup.naming.sources[candidate.source].declared.queues;
        let of_queues = queues.iter().find_map(|rule| self.doubt_of_queue(&rule.name, snapshot));
        of_queues
            .or_else(|| self.mentions.get(position).cloned().map(Doubt::Mentioned))
            .or_else(|| queues.iter().find_map(|rule| self.doubt_of_entries(&rule.name, candidate)))
    }

    /// What keeps a queue from proving anybody's absence.
    fn doubt_of_queue(&self, queue: &str, snapshot: &Snapshot) -> Option<Doubt> {
        let unread = |found| QueueFailure::UnexpectedReply { command: "MULTI", found };
        let Some(reading) = snapshot.queues.get(queue) else {
            return Some(Doubt::Redis(unread(format!("nothing of queue {queue:?}"))));
        };
        let excused = |flaw: &&Flaw| flaw.is_lack_of_trace() && self.accepted.queues.contains(queue);
        let late = self.lookup.late_flaws(queue);
        if let Some(flaw) = reading.flaws.iter().chain(late).find(|flaw| !excused(flaw)) {
            return Some(Doubt::Queue { queue: queue.to_owned(), flaw: flaw.clone() });
        }
        if !reading.has_every_state() {
            return Some(Doubt::Redis(unread(format!("not every state of queue {queue:?}"))));
        }
        let Unreadable { entry, fault, .. } = self.unreadable.get(queue)?;
        Some(Doubt::Entry { queue: queue.to_owned(), entry_id: entry.clone(), fault: *fault })
    }

    /// What the queue holds that may be this candidate's job, for all that can be told.
    fn doubt_of_entries(&self, queue: &str, candidate: &Candidate) -> Option<Doubt> {
        let key = (queue.to_owned(), candidate.source);
        if let Some(unattributed) = self.unattributed.get(&key) {
            return Some(Doubt::Unattributed { queue: queue.to_owned(), entry: unattributed.clone() });
        }
        let active = self.foreign_active.get(&key)?;
        let is_begun = candidate.status == LiveStatus::Processing;
        (is_begun && is_written_since(candidate.updated, active.processed_ms)).then(|| Doubt::ForeignActive {
            queue: queue.to_owned(),
            entry_id: active.entry.clone(),
            name: active.name.clone(),
        })
    }
}

/// Whose an entry is. What a source can say with most right counts for its queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Whose {
    /// A row's, by its payload.
    Row,
    /// Perhaps a source's.
    Unattributed,
    /// Somebody else's.
    Foreign,
}

/// An entry that was read, and the candidates whose ids stand in it.
struct Read<'r> {
    entry: &'r Entry,
    payload: &'r Payload,
    text: &'r str,
    mentioned: Vec<(usize, Place)>,
}

impl Read<'_> {
    fn mention(&self, place: &Place) -> Mention {
        Mention {
            queue: self.entry.queue.to_string(),
            entry_id: self.entry.id.clone(),
            name: self.payload.name.clone(),
            place: place.clone(),
        }
    }
}

/// Whether it is a job scheduler's next run, which has not begun: nothing has inserted a row for it yet.
fn is_waiting_iteration(entry: &Entry) -> bool {
    entry.state != State::Active && entry.id.starts_with("repeat:")
}

/// Whether a row was written after that moment of a worker's clock, or so shortly before that clocks may differ.
fn is_written_since(updated: Timestamp, processed_ms: u64) -> bool {
    let margin_ms = i64::try_from(SKEW_MARGIN.as_millis()).unwrap_or(i64::MAX);
    let processed_ms = i64::try_from(processed_ms).unwrap_or(i64::MAX);
    updated.as_millisecond().saturating_add(margin_ms) >= processed_ms
}

/// How a look at the queues ended.
#[derive(Debug, Default)]
pub struct Verdict {
    /// One per candidate, in their order.
    pub sightings: Vec<Sighting>,
    /// The candidates, by position, that were found by a payload.
    pub by_payload: BTreeSet<usize>,
    /// What the scan saw; `None` if no payload was needed.
    pub counts: Option<ScanCounts>,
    /// Per source, row ids that entries named by a current rule.
    pub by_rule: Vec<Sample>,
    /// Per source, row ids that payloads named, with their queue; at most [`SAMPLE_MAX`].
    pub named: Vec<BTreeMap<String, String>>,
    /// Per queue, what could not be read.
    pub unreadable: BTreeMap<String, Unreadable>,
    /// Per queue, whose its entries are, as far as they were read.
    pub attribution: BTreeMap<String, Attribution>,
    /// Candidates, by position, whose ids of digits alone stand in foreign entries: no absence where nothing confirms that
    /// those entries are foreign.
    pub weak: BTreeMap<usize, Mention>,
    /// Names that the operator called somebody else's, and under which a row was attributed: (queue, name).
    pub contradicted: BTreeSet<(String, String)>,
}

impl Verdict {
    /// Every candidate unknown for one reason: Redis gave no snapshot at all.
    #[must_use]
    pub fn unknown(candidates: &[Candidate], sources: usize, failure: &QueueFailure) -> Self {
        let unknown = |_| Sighting::Unknown { why: Doubt::Redis(failure.clone()) };
        Self {
            sightings: candidates.iter().map(unknown).collect(),
            by_rule: vec![Sample::new(); sources],
            named: vec![BTreeMap::new(); sources],
            ..Self::default()
        }
    }
}
