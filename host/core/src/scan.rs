//! The scan: entries under other ids, matched by what their payload says.
//!
//! Only for what the direct look-up left unresolved, and only in the queues where an unresolved candidate may be. The
//! pass feeds a [`Scan`] the payload of each entry it asks for; what is left at the end is absent, or in doubt.
//!
//! | the entry | is | and means |
//! |---|---|---|
//! | hash gone, id in no state any more | departed | nothing: busy queues have such ids in every scan |
//! | hash gone, id still listed | unreadable | it might be anybody's: doubt |
//! | payload not JSON | unreadable | the same |
//! | JSON without the source's key | foreign | readable, and not this job |

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use serde::Serialize;
use serde_json::{Map, Number, Value};

use crate::candidate::Candidate;
use crate::lookup::{Lookup, SAMPLE_MAX, Sample};
use crate::manifest::QueueRule;
use crate::naming::{Entry, Naming};
use crate::payload::wanted_keys;
use crate::sighting::{Doubt, EntryFault, QueueFailure, Residue, Sighting};
use crate::snapshot::{Flaw, Snapshot};
use crate::source::ResolvedSource;

/// What a scan saw, for the report and the ledger.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct ScanCounts {
    /// Entries whose payload was asked for.
    pub read: usize,
    /// Vanished between the snapshot and the read.
    pub departed: usize,
    /// Readable, but nobody's.
    pub foreign: usize,
    /// Not readable and not accepted.
    pub unreadable: usize,
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

/// A scan under way.
#[derive(Debug)]
pub struct Scan<'a> {
    lookup: Lookup<'a>,
    accepted: &'a BTreeSet<(String, String)>,
    unreadable: BTreeMap<String, Unreadable>,
    named: Vec<BTreeMap<String, String>>,
    counts: ScanCounts,
}

impl<'a> Scan<'a> {
    /// Begins with what the direct look-up found. `accepted` are entries the operator marked as harmless.
    #[must_use]
    pub fn new(lookup: Lookup<'a>, accepted: &'a BTreeSet<(String, String)>) -> Self {
        Self {
            named: vec![BTreeMap::new(); lookup.naming.sources.len()],
            lookup,
            accepted,
            unreadable: BTreeMap::new(),
            counts: ScanCounts::default(),
        }
    }

    /// Whether any candidate is still unresolved.
    #[must_use]
    pub const fn is_needed(&self) -> bool {
        self.lookup.is_needed()
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

    /// Takes in one payload. Returns whether the entry must be looked for again, because its payload was gone.
    #[must_use]
    pub fn read(&mut self, entry: &Entry, payload: Option<&str>) -> bool {
        self.counts.read += 1;
        let Some(payload) = payload else { return true };
        let rules = self.lookup.naming.rules.get(&*entry.queue).into_iter().flatten();
        let wanted: Vec<&str> = rules.map(|(_, rule)| rule.payload_key.as_str()).collect();
        match wanted_keys(payload, &wanted) {
            Some(payload) => self.matched(entry, &payload),
            None => self.doubt(entry, EntryFault::NotJson),
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

    fn matched(&mut self, entry: &Entry, payload: &Map<String, Value>) {
        let rules = self.lookup.naming.rules.get(&*entry.queue).cloned().unwrap_or_default();
        let mut is_foreign = true;
        for (source, rule) in rules {
            let Some(row_id) = named_row(payload, &self.lookup.naming.sources[source], rule) else {
                continue;
            };
            is_foreign = false;
            if let Some(position) = self.lookup.naming.candidate(source, &row_id) {
                self.lookup.found(position, &entry.queue, entry.state);
            }
            if self.named[source].len() < SAMPLE_MAX {
                self.named[source].insert(row_id, entry.queue.to_string());
            }
        }
        if is_foreign {
            self.counts.foreign += 1;
        }
    }

    fn doubt(&mut self, entry: &Entry, fault: EntryFault) {
        if self.accepted.contains(&(entry.queue.to_string(), entry.id.clone())) {
            return;
        }
        self.counts.unreadable += 1;
        let first = || Unreadable { count: 0, entry: entry.id.clone(), fault };
        self.unreadable.entry(entry.queue.to_string()).or_insert_with(first).count += 1;
    }

    /// The verdict: who was not seen is absent if every queue of its source proves it, and unknown otherwise.
    ///
    /// `vouched` are queues without any trace of `BullMQ` that the operator accepted as they are.
    #[must_use]
    pub fn finish(mut self, snapshot: &Snapshot, vouched: &BTreeSet<String>) -> Verdict {
        let seen = std::mem::take(&mut self.lookup.sightings);
        let unseen = |candidate: &Candidate| match self.doubt_of(candidate, snapshot, vouched) {
            Some(why) => Sighting::Unknown { why },
            None => Sighting::Absent { residue: Residue::None },
        };
        let sightings = seen.into_iter().zip(self.lookup.naming.candidates);
        let sightings =
            sightings.map(|(seen, candidate)| seen.unwrap_or_else(|| unseen(candidate))).collect();
        self.verdict(sightings)
    }

    /// The verdict when payloads could no longer be read: who was not seen is unknown.
    #[must_use]
    pub fn abandon(mut self, failure: &QueueFailure) -> Verdict {
        let seen = std::mem::take(&mut self.lookup.sightings);
        let unknown = || Sighting::Unknown { why: Doubt::Redis(failure.clone()) };
        self.verdict(seen.into_iter().map(|seen| seen.unwrap_or_else(unknown)).collect())
    }

    fn verdict(mut self, sightings: Vec<Sighting>) -> Verdict {
        Verdict {
            sightings,
            counts: self.counts,
            by_rule: self.lookup.take_sample(),
            named: self.named,
            unreadable: self.unreadable,
        }
    }

    fn doubt_of(
        &self,
        candidate: &Candidate,
        snapshot: &Snapshot,
        vouched: &BTreeSet<String>,
    ) -> Option<Doubt> {
        if let Some(failure) = snapshot.server_fault() {
            return Some(Doubt::Redis(failure));
        }
        self.lookup.naming.sources[candidate.source].declared.queues.iter().find_map(|rule| {
            let queue = rule.name.clone();
            let unread = |found| QueueFailure::UnexpectedReply { command: "MULTI", found };
            let Some(reading) = snapshot.queues.get(&queue) else {
                return Some(Doubt::Redis(unread(format!("nothing of queue {queue:?}"))));
            };
            let excused = |flaw: &&Flaw| flaw.is_lack_of_trace() && vouched.contains(&queue);
            let late = self.lookup.late_flaws(&queue);
            if let Some(flaw) = reading.flaws.iter().chain(late).find(|flaw| !excused(flaw)) {
                return Some(Doubt::Queue { queue, flaw: flaw.clone() });
            }
            if !reading.has_every_state() {
                return Some(Doubt::Redis(unread(format!("not every state of queue {queue:?}"))));
            }
            let Unreadable { entry, fault, .. } = self.unreadable.get(&queue)?;
            Some(Doubt::Entry { queue, entry_id: entry.clone(), fault: *fault })
        })
    }
}

/// The row id a payload names under a source's key, in the column's form. A JSON number names the row of its text, as
/// JavaScript would write it: `5.0` is `5`.
fn named_row(payload: &Map<String, Value>, source: &ResolvedSource, rule: &QueueRule) -> Option<String> {
    let text = match payload.get(&rule.payload_key)? {
        Value::String(text) => text.clone(),
        Value::Number(number) => number_text(number),
        _ => return None,
    };
    source.id_kind.normalise(&text)
}

/// The same, from a payload's text.
#[must_use]
pub fn row_named_in(payload: &str, source: &ResolvedSource, rule: &QueueRule) -> Option<String> {
    named_row(&wanted_keys(payload, &[&rule.payload_key])?, source, rule)
}

fn number_text(number: &Number) -> String {
    /// Below it every whole number has a float of its own.
    const EXACT_MAX: f64 = 9_007_199_254_740_992.0;
    match number.as_f64() {
        Some(float) if number.is_f64() && float.fract() == 0.0 && float.abs() < EXACT_MAX => {
            format!("{float:.0}")
        }
        _ => number.to_string(),
    }
}

/// How a look at the queues ended.
#[derive(Debug)]
pub struct Verdict {
    /// One per candidate, in their order.
    pub sightings: Vec<Sighting>,
    /// What the scan saw.
    pub counts: ScanCounts,
    /// Per source, row ids that entries named by a current rule.
    pub by_rule: Vec<Sample>,
    /// Per source, row ids that payloads named, with the queue that holds the entry; at most [`SAMPLE_MAX`].
    pub named: Vec<BTreeMap<String, String>>,
    /// Per queue, what could not be read; no entry for a queue that was read whole.
    pub unreadable: BTreeMap<String, Unreadable>,
}

/// Every candidate unknown for one reason: Redis gave no snapshot at all.
#[must_use]
pub fn all_unknown(candidates: &[Candidate], failure: &QueueFailure) -> Vec<Sighting> {
    candidates.iter().map(|_| Sighting::Unknown { why: Doubt::Redis(failure.clone()) }).collect()
}

#[cfg(test)]
mod tests {
    use std::borrow::Cow;

    use super::*;
    use crate::fixtures::{candidate, queue, seen, snapshot, source};
    use crate::naming::{Named, NamedRows};
    use crate::snapshot::{IdsPage, QueueReading, State};
    use crate::source::IdKind;

    /// A small world: sources, candidates, queues, and what each payload holds.
    struct World {
        sources: Vec<ResolvedSource>,
        candidates: Vec<Candidate>,
        snapshot: Snapshot,
        /// (queue, entry id, payload); an entry without one has lost its hash.
        payloads: Vec<(&'static str, &'static str, &'static str)>,
        /// Listed without a hash at the second look.
        still_listed: Vec<&'static str>,
        accepted: BTreeSet<(String, String)>,
        /// Rows of the source that are live, beside the candidates.
        live: Vec<&'static str>,
    }

    impl World {
        fn new(queues: Vec<(&str, QueueReading)>) -> Self {
            let rules = [("a", "slide-{id}"), ("b", "slide-{id}")];
            Self {
                sources: vec![source("slides", IdKind::Text, &rules)],
                candidates: vec![candidate(0, "7")],
                snapshot: snapshot(queues),
                payloads: vec![],
                still_listed: vec![],
                accepted: BTreeSet::new(),
                live: vec![],
            }
        }

        fn payload(mut self, queue: &'static str, id: &'static str, data: &'static str) -> Self {
            self.payloads.push((queue, id, data));
            self
        }

        /// The entries whose payload must be read.
        fn unclear(&self, naming: &Naming<'_>, queue: &str, reading: &QueueReading) -> Vec<Entry> {
            let Named { mut is_clear, rows } = naming.named_by_rule(queue, reading.ids.values().flatten());
            for NamedRows { ids, entries } in rows.into_values() {
                let live = ids.iter().zip(entries).filter(|(id, _)| self.live.contains(&id.as_ref()));
                live.for_each(|(_, entry)| is_clear[entry] = true);
            }
            let entries = reading.entries().zip(is_clear).filter(|(_, is_clear)| !is_clear);
            entries.map(|((state, id), _)| Entry { queue: queue.into(), state, id: id.to_owned() }).collect()
        }

        fn judged(&self) -> Verdict {
            let lookup = seen(&self.sources, &self.candidates, &self.snapshot);
            let mut scan = Scan::new(lookup, &self.accepted);
            let naming = scan.naming();
            for queue in scan.queues() {
                let Some(reading) = self.snapshot.queues.get(&queue) else { continue };
                for entry in self.unclear(&naming, &queue, reading) {
                    let payload = self.payloads.iter().find(|(of, id, _)| *of == queue && *id == entry.id);
                    if scan.read(&entry, payload.map(|(.., data)| *data)) {
                        scan.looked_again(&entry, self.still_listed.contains(&entry.id.as_str()));
                    }
                }
            }
            scan.finish(&self.snapshot, &BTreeSet::new())
        }

        fn check(&self, expected: &str) {
            let verdict = self.judged();
            let found: Vec<String> = verdict.sightings.iter().map(word).collect();
            assert_eq!(found.join(", "), expected);
        }
    }

    fn word(sighting: &Sighting) -> String {
        match sighting {
            Sighting::Scheduled { queue, state } => format!("scheduled {queue} {state}"),
            Sighting::Absent { .. } => "absent".into(),
            Sighting::Unknown { why } => format!("unknown: {why}"),
        }
    }

    fn empty() -> QueueReading {
        queue(&[])
    }

    #[test]
    fn a_job_in_its_second_queue_is_scheduled() {
        World::new(vec![("a", empty()), ("b", queue(&[(State::Active, "slide-7")]))])
            .check("scheduled b active");
    }

    #[test]
    fn a_job_in_no_queue_is_absent() {
        World::new(vec![("a", empty()), ("b", empty())]).check("absent");
    }

    #[test]
    fn a_snapshot_that_let_go_of_its_ids_proves_no_absence() {
        let mut world = World::new(vec![("a", empty()), ("b", empty())]);
        world.snapshot.forget_ids();
        let found = word(&world.judged().sightings[0]);
        assert!(
            found.starts_with("unknown: ") && found.contains("not every state of queue \"a\""),
            "{found}"
        );
    }

    #[test]
    fn an_entry_under_an_old_id_is_found_by_its_payload() {
        World::new(vec![("a", queue(&[(State::Prioritized, "42")])), ("b", empty())])
            .payload("a", "42", r#"{"jobId":"7"}"#)
            .check("scheduled a prioritized");
    }

    #[test]
    fn an_id_that_only_looks_like_the_rule_does_not_hide_its_payload() {
        World::new(vec![("a", queue(&[(State::Waiting, "slide-deck9")])), ("b", empty())])
            .payload("a", "slide-deck9", r#"{"jobId":"7"}"#)
            .check("scheduled a waiting");
    }

    #[test]
    fn the_entry_of_a_live_row_needs_no_payload() {
        let mut world = World::new(vec![("a", queue(&[(State::Waiting, "slide-8")])), ("b", empty())]);
        world.live = vec!["8"];
        world.check("absent");
        assert_eq!(world.judged().counts.read, 0);
    }

    #[test]
    fn of_the_entry_of_a_candidate_nothing_is_asked() {
        let queues = vec![("a", queue(&[(State::Waiting, "slide-8"), (State::Waiting, "slide-9")]))];
        let mut world = World::new(queues);
        world.candidates.push(candidate(0, "8"));
        let lookup = seen(&world.sources, &world.candidates, &world.snapshot);
        let naming = Scan::new(lookup, &world.accepted).naming();
        let ids = ["slide-8", "slide-9", "42"].map(str::to_owned);
        let asked = NamedRows { ids: vec![Cow::from("9")], entries: vec![1] };
        let expected = Named { is_clear: vec![true, false, false], rows: BTreeMap::from([(0, asked)]) };
        assert_eq!(naming.named_by_rule("a", &ids), expected);
    }

    #[test]
    fn an_entry_without_payload_leaves_its_queue_in_doubt_until_it_is_accepted() {
        let mut world = World::new(vec![("a", queue(&[(State::Waiting, "42")])), ("b", empty())]);
        world.still_listed = vec!["42"];
        world.check(
            "unknown: entry \"42\" of queue \"a\" is unreadable (it is listed but its payload is gone): it might be \
             this job; `salvage accept --entry a 42` marks it as harmless",
        );
        world.accepted.insert(("a".into(), "42".into()));
        world.check("absent");
    }

    #[test]
    fn a_departed_entry_says_nothing() {
        let world = World::new(vec![("a", queue(&[(State::Waiting, "42")])), ("b", empty())]);
        world.check("absent");
        let counts = ScanCounts { read: 1, departed: 1, ..ScanCounts::default() };
        assert_eq!(world.judged().counts, counts);
    }

    #[test]
    fn schedulers_and_pings_are_foreign_and_broken_json_is_not() {
        let entries = queue(&[(State::Delayed, "repeat:x:1"), (State::Waiting, "ping")]);
        let world = World::new(vec![("a", entries), ("b", empty())])
            .payload("a", "repeat:x:1", r#"{"every":5}"#)
            .payload("a", "ping", "null");
        world.check("absent");
        assert_eq!(world.judged().counts.foreign, 2);
        let broken =
            World::new(vec![("a", queue(&[(State::Waiting, "x")])), ("b", empty())]).payload("a", "x", "{");
        assert!(broken.judged().sightings.iter().all(|sighting| word(sighting).contains("not JSON")));
    }

    #[test]
    fn a_flawed_queue_proves_no_absence_but_what_it_lists_is_there() {
        let flawed =
            |entries: &[(State, &str)]| QueueReading { flaws: vec![Flaw::ProGroups], ..queue(entries) };
        World::new(vec![("a", flawed(&[])), ("b", queue(&[(State::Delayed, "slide-7")]))])
            .check("scheduled b delayed");
        World::new(vec![("a", flawed(&[(State::Delayed, "slide-7")])), ("b", empty())])
            .check("scheduled a delayed");
        World::new(vec![("a", flawed(&[])), ("b", empty())]).check(
            "unknown: queue \"a\" cannot be judged: it holds BullMQ Pro groups, which this version cannot read",
        );
    }

    #[test]
    fn a_queue_that_was_not_read_proves_no_absence() {
        let world = World::new(vec![("a", empty())]);
        assert!(world.judged().sightings.iter().all(|sighting| matches!(sighting, Sighting::Unknown { .. })));
    }

    #[test]
    fn a_state_that_was_not_read_proves_no_absence() {
        for state in State::ALL {
            let mut world = World::new(vec![("a", empty()), ("b", empty())]);
            world.snapshot.queues.get_mut("b").expect("queue b").ids.remove(&state);
            assert!(matches!(world.judged().sightings[0], Sighting::Unknown { .. }), "{state}");
        }
    }

    /// A copy may be lost at the first reading of its ids or at the second.
    #[test]
    fn a_copy_that_was_lost_on_the_way_leaves_its_queue_in_doubt() {
        let sources = [
            source("x", IdKind::Text, &[("a", "slide-{id}")]),
            source("y", IdKind::Text, &[("b", "slide-{id}")]),
        ];
        let candidates = [candidate(0, "7"), candidate(0, "8"), candidate(1, "9")];
        let world = snapshot(vec![("a", empty()), ("b", empty())]);
        let lost = Flaw::CopyLost { key: "bull:a:salvage:copy:1:wait".into() };
        let page = IdsPage { ids: vec!["slide-8".into()].into(), flaw: Some(lost.clone()) };
        for is_early in [true, false] {
            let mut lookup = Lookup::new(&sources, &candidates);
            lookup.see("a", State::Waiting, &if is_early { page.clone() } else { IdsPage::default() });
            let accepted = BTreeSet::new();
            let mut scan = Scan::new(lookup, &accepted);
            if !is_early {
                scan.flaw("a", &lost);
            }
            let verdict = scan.finish(&world, &BTreeSet::new());
            let expected =
                if is_early { "scheduled a waiting" } else { "unknown: queue \"a\" cannot be judged" };
            assert!(word(&verdict.sightings[0]).contains("vanished while it was read"));
            assert!(word(&verdict.sightings[1]).starts_with(expected), "{:?}", verdict.sightings[1]);
            assert_eq!(word(&verdict.sightings[2]), "absent");
        }
    }

    #[test]
    fn a_lack_of_trace_that_is_accepted_hides_no_other_flaw() {
        let world = World::new(vec![("a", empty()), ("b", empty())]);
        let (accepted, vouched) = (BTreeSet::new(), BTreeSet::from(["a".to_owned()]));
        let mut scan = Scan::new(seen(&world.sources, &world.candidates, &world.snapshot), &accepted);
        scan.flaw("a", &Flaw::NoTrace { prefix: "bull".into() });
        scan.flaw("a", &Flaw::ProGroups);
        let verdict = scan.finish(&world.snapshot, &vouched);
        assert!(word(&verdict.sightings[0]).contains("Pro groups"), "{:?}", verdict.sightings);
    }

    #[test]
    fn a_replica_proves_no_absence() {
        let mut world = World::new(vec![("a", empty()), ("b", empty())]);
        world.snapshot.server.role = "slave".into();
        assert!(world.judged().sightings.iter().all(|sighting| matches!(sighting, Sighting::Unknown { .. })));
    }

    #[test]
    fn two_sources_under_the_raw_rule_share_an_entry() {
        let mut world = World::new(vec![("a", queue(&[(State::Waiting, "5")])), ("b", empty())]);
        world.sources =
            vec![source("x", IdKind::Text, &[("a", "{id}")]), source("y", IdKind::Bigint, &[("a", "{id}")])];
        world.candidates = vec![candidate(0, "5"), candidate(1, "5")];
        world.check("scheduled a waiting, scheduled a waiting");
    }

    #[test]
    fn an_id_that_bullmq_may_have_counted_out_does_not_hide_its_payload() {
        let mut world = World::new(vec![("a", queue(&[(State::Waiting, "1")])), ("b", empty())]).payload(
            "a",
            "1",
            r#"{"jobId":11}"#,
        );
        world.sources = vec![source("x", IdKind::Bigint, &[("a", "{id}")])];
        world.candidates = vec![candidate(0, "11")];
        world.live = vec!["1"];
        world.check("scheduled a waiting");
    }

    use proptest::prelude::*;

    /// How a job may stand in a queue.
    #[derive(Debug, Clone, Copy, PartialEq)]
    enum Form {
        CurrentId,
        OldId,
        OldIdWithoutHash,
    }

    fn forms() -> impl Strategy<Value = Form> {
        prop_oneof![Just(Form::CurrentId), Just(Form::OldId), Just(Form::OldIdWithoutHash)]
    }

    fn states() -> impl Strategy<Value = State> {
        proptest::sample::select(State::ALL.to_vec())
    }

    proptest! {
        /// Whatever else the queues hold, and whatever is wrong with them, a job that is there is never absent; and one
        /// that is not there is absent exactly if every queue could be read.
        #[test]
        fn presence_never_turns_into_absence(
            place in proptest::option::of((0_usize..2, states(), forms())),
            noise in proptest::collection::vec((0_usize..2, states(), any::<bool>()), 0..6),
            flawed in proptest::collection::vec(any::<bool>(), 2),
        ) {
            let names = ["a", "b"];
            let mut queues = [empty(), empty()];
            let mut world = World::new(vec![]);
            for (index, (queue, state, is_readable)) in noise.iter().enumerate() {
                let id: &'static str = ["n0", "n1", "n2", "n3", "n4", "n5"][index];
                queues[*queue].ids.entry(*state).or_default().push(id.into());
                if *is_readable {
                    world = world.payload(names[*queue], id, r#"{"jobId":"other"}"#);
                } else {
                    world.still_listed.push(id);
                }
            }
            if let Some((queue, state, form)) = place {
                let id = if form == Form::CurrentId { "slide-7" } else { "42" };
                queues[queue].ids.entry(state).or_default().push(id.into());
                match form {
                    Form::OldId => world = world.payload(names[queue], "42", r#"{"jobId":"7"}"#),
                    Form::OldIdWithoutHash => world.still_listed.push("42"),
                    Form::CurrentId => {}
                }
            }
            let [mut a, mut b] = queues;
            for (reading, is_flawed) in [&mut a, &mut b].into_iter().zip(&flawed) {
                reading.flaws = if *is_flawed { vec![Flaw::ProGroups] } else { vec![] };
            }
            world.snapshot = snapshot(vec![("a", a), ("b", b)]);
            let sighting = world.judged().sightings.remove(0);
            let is_clean = !flawed.contains(&true) && world.still_listed.is_empty();
            let expected = match place {
                Some((_, _, Form::OldIdWithoutHash)) => "unknown",
                Some(_) => "scheduled",
                None if is_clean => "absent",
                None => "unknown",
            };
            prop_assert!(word(&sighting).starts_with(expected), "expected {}, found {}", expected, word(&sighting));
        }
    }

    #[test]
    fn a_number_and_capitals_name_the_same_row() {
        let uuid = "6f9619ff-8b86-d011-b42d-00cf4fc964ff";
        let mut world =
            World::new(vec![("a", queue(&[(State::Waiting, "x"), (State::Active, "y")])), ("b", empty())])
                .payload("a", "x", r#"{"jobId":5.0}"#)
                .payload("a", "y", r#"{"jobId":"6F9619FF-8B86-D011-B42D-00CF4FC964FF"}"#);
        let rules = [("a", "job-{id}")];
        world.sources = vec![source("x", IdKind::Bigint, &rules), source("y", IdKind::Uuid, &rules)];
        world.candidates = vec![candidate(0, "5"), candidate(1, uuid)];
        world.check("scheduled a waiting, scheduled a active");
    }
}
