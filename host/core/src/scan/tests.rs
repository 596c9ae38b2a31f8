//! The scan against small worlds.

use std::borrow::Cow;

use super::*;
use crate::fixtures::{candidate, queue, seen, snapshot, source};
use crate::naming::{Named, NamedRows};
use crate::snapshot::{IdsPage, QueueReading, State};
use crate::source::{IdKind, ResolvedSource};

/// A small world: sources, candidates, queues, and what each payload holds.
struct World {
    sources: Vec<ResolvedSource>,
    candidates: Vec<Candidate>,
    snapshot: Snapshot,
    /// (queue, entry id, payload); an entry without one has lost its hash.
    payloads: Vec<(&'static str, &'static str, Payload)>,
    /// Listed without a hash at the second look.
    still_listed: Vec<&'static str>,
    accepted: Accepted,
    /// Rows of the source that are live, beside the candidates.
    live: Vec<&'static str>,
    /// Rows of any source that are there and not live.
    ended: Vec<&'static str>,
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
            accepted: Accepted::default(),
            live: vec![],
            ended: vec![],
        }
    }

    /// An entry named like the source's jobs.
    fn payload(self, queue: &'static str, id: &'static str, data: &str) -> Self {
        self.named(queue, id, "work", data)
    }

    fn named(mut self, queue: &'static str, id: &'static str, name: &str, data: &str) -> Self {
        self.payloads.push((queue, id, Payload::named(name, data)));
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

    fn exist(&self, scan: &mut Scan<'_>) {
        for (source, row_ids) in scan.unproven() {
            let is_there =
                |id: &String| [&self.live, &self.ended].iter().any(|rows| rows.contains(&id.as_str()));
            scan.proven(source, &row_ids.into_iter().filter(is_there).collect());
        }
    }

    fn judged(&self) -> Verdict {
        let lookup = seen(&self.sources, &self.candidates, &self.snapshot);
        let mut scan = Scan::new(lookup, &self.accepted);
        let naming = scan.naming();
        for queue in scan.queues() {
            let Some(reading) = self.snapshot.queues.get(&queue) else { continue };
            for entry in self.unclear(&naming, &queue, reading) {
                let payload = self.payloads.iter().find(|(of, id, _)| *of == queue && *id == entry.id);
                let gone = Payload::default();
                if scan.read(&entry, payload.map_or(&gone, |(.., payload)| payload)) {
                    scan.looked_again(&entry, self.still_listed.contains(&entry.id.as_str()));
                }
            }
        }
        self.exist(&mut scan);
        scan.finish(&self.snapshot)
    }

    fn check(&self, expected: &str) {
        let verdict = self.judged();
        let found: Vec<String> = verdict.sightings.iter().map(word).collect();
        assert_eq!(found.join(", "), expected);
    }
}

fn counts(world: &World) -> ScanCounts {
    world.judged().counts.expect("a scan")
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
    World::new(vec![("a", empty()), ("b", queue(&[(State::Active, "slide-7")]))]).check("scheduled b active");
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
    assert!(found.starts_with("unknown: ") && found.contains("not every state of queue \"a\""), "{found}");
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
    assert_eq!(counts(&world).read, 0);
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
    world.accepted.entries.insert(("a".into(), "42".into()));
    world.check("absent");
}

#[test]
fn a_departed_entry_says_nothing() {
    let world = World::new(vec![("a", queue(&[(State::Waiting, "42")])), ("b", empty())]);
    world.check("absent");
    let counts = ScanCounts { read: 1, departed: 1, ..ScanCounts::default() };
    assert_eq!(world.judged().counts, Some(counts));
}

#[test]
fn schedulers_and_pings_are_foreign_and_broken_json_is_not() {
    let entries = queue(&[(State::Delayed, "repeat:x:1"), (State::Waiting, "ping")]);
    let world = World::new(vec![("a", entries), ("b", empty())])
        .payload("a", "repeat:x:1", r#"{"every":5}"#)
        .named("a", "ping", "ping", "null");
    world.check("absent");
    assert_eq!(counts(&world).foreign, 2);
    let broken =
        World::new(vec![("a", queue(&[(State::Waiting, "x")])), ("b", empty())]).payload("a", "x", "{");
    assert!(broken.judged().sightings.iter().all(|sighting| word(sighting).contains("not JSON")));
}

#[test]
fn a_flawed_queue_proves_no_absence_but_what_it_lists_is_there() {
    let flawed = |entries: &[(State, &str)]| QueueReading { flaws: vec![Flaw::ProGroups], ..queue(entries) };
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
        let mut lookup = Lookup::new(&sources, &candidates, 0);
        lookup.see("a", State::Waiting, &if is_early { page.clone() } else { IdsPage::default() });
        let accepted = Accepted::default();
        let mut scan = Scan::new(lookup, &accepted);
        if !is_early {
            scan.flaw("a", &lost);
        }
        let verdict = scan.finish(&world);
        let expected = if is_early { "scheduled a waiting" } else { "unknown: queue \"a\" cannot be judged" };
        assert!(word(&verdict.sightings[0]).contains("vanished while it was read"));
        assert!(word(&verdict.sightings[1]).starts_with(expected), "{:?}", verdict.sightings[1]);
        assert_eq!(word(&verdict.sightings[2]), "absent");
    }
}

#[test]
fn a_lack_of_trace_that_is_accepted_hides_no_other_flaw() {
    let world = World::new(vec![("a", empty()), ("b", empty())]);
    let accepted = Accepted { queues: BTreeSet::from(["a".to_owned()]), ..Accepted::default() };
    let mut scan = Scan::new(seen(&world.sources, &world.candidates, &world.snapshot), &accepted);
    scan.flaw("a", &Flaw::NoTrace { prefix: "bull".into() });
    scan.flaw("a", &Flaw::ProGroups);
    let verdict = scan.finish(&world.snapshot);
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
    /// Its payload holds the row's id where the rule does not look.
    Wrapped,
    /// Its payload does not hold the row's id.
    Opaque,
}

/// What else may be in a queue.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Noise {
    OfAnotherRow,
    Foreign,
    WithoutHash,
    Unattributed,
}

fn forms() -> impl Strategy<Value = Form> {
    use Form::{CurrentId, OldId, OldIdWithoutHash, Opaque, Wrapped};
    proptest::sample::select(vec![CurrentId, OldId, OldIdWithoutHash, Wrapped, Opaque])
}

fn noises() -> impl Strategy<Value = Noise> {
    use Noise::{Foreign, OfAnotherRow, Unattributed, WithoutHash};
    proptest::sample::select(vec![OfAnotherRow, OfAnotherRow, Foreign, Foreign, WithoutHash, Unattributed])
}

fn states() -> impl Strategy<Value = State> {
    proptest::sample::select(State::ALL.to_vec())
}

proptest! {
    /// Whatever else the queues hold, and whatever is wrong with them, a job that is there is never absent; and one
    /// that is not there is absent exactly if every queue could be read and every entry attributed.
    #[test]
    fn presence_never_turns_into_absence(
        place in proptest::option::of((0_usize..2, states(), forms())),
        noise in proptest::collection::vec((0_usize..2, states(), noises()), 0..6),
        flawed in proptest::collection::vec(any::<bool>(), 2),
    ) {
        let names = ["a", "b"];
        let mut queues = [empty(), empty()];
        let mut world = World::new(vec![]);
        world.candidates[0].updated = Timestamp::UNIX_EPOCH;
        for (index, (queue, state, kind)) in noise.iter().enumerate() {
            let id: &'static str = ["n0", "n1", "n2", "n3", "n4", "n5"][index];
            queues[*queue].ids.entry(*state).or_default().push(id.into());
            let (name, data) = match kind {
                Noise::OfAnotherRow => ("work", r#"{"jobId":"other"}"#),
                Noise::Foreign => ("ping", r#"{"page":7}"#),
                Noise::Unattributed => ("work", r#"{"to":"somebody"}"#),
                Noise::WithoutHash => {
                    world.still_listed.push(id);
                    continue;
                }
            };
            // A worker took it after the row was last written.
            let processed_ms = Some(u64::MAX / 2);
            world.payloads.push((names[*queue], id, Payload { processed_ms, ..Payload::named(name, data) }));
        }
        if let Some((queue, state, form)) = place {
            let id = if form == Form::CurrentId { "slide-7" } else { "42" };
            queues[queue].ids.entry(state).or_default().push(id.into());
            let data = match form {
                Form::OldId => r#"{"jobId":"7"}"#,
                Form::Wrapped => r#"{"body":{"id":7}}"#,
                Form::Opaque => "{}",
                Form::CurrentId | Form::OldIdWithoutHash => "",
            };
            match form {
                Form::CurrentId => {}
                Form::OldIdWithoutHash => world.still_listed.push("42"),
                Form::OldId | Form::Wrapped | Form::Opaque => world = world.payload(names[queue], "42", data),
            }
        }
        let [mut a, mut b] = queues;
        for (reading, is_flawed) in [&mut a, &mut b].into_iter().zip(&flawed) {
            reading.flaws = if *is_flawed { vec![Flaw::ProGroups] } else { vec![] };
        }
        world.snapshot = snapshot(vec![("a", a), ("b", b)]);
        let sighting = world.judged().sightings.remove(0);
        let is_attributed = !noise.iter().any(|(.., kind)| *kind == Noise::Unattributed);
        let is_clean = !flawed.contains(&true) && world.still_listed.is_empty() && is_attributed;
        let expected = match place {
            Some((_, _, Form::CurrentId | Form::OldId)) => "scheduled",
            Some(_) => "unknown",
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

/// One waiting entry `42` of queue `a` under this name and payload.
fn one_entry(name: &str, data: &str) -> World {
    World::new(vec![("a", queue(&[(State::Waiting, "42")])), ("b", empty())]).named("a", "42", name, data)
}

#[test]
fn an_entry_that_may_be_the_sources_and_carries_no_id_leaves_its_queue_in_doubt() {
    let world = one_entry("work", r#"{"send":{"id":"x9"},"campaignId":3}"#);
    let verdict = world.judged();
    let found = word(&verdict.sightings[0]);
    for part in ["unknown", "\"42\"", "\"a\"", "job \"work\"", "`send.id`, `campaignId`", "payload-key"] {
        assert!(found.contains(part), "{part:?} is not in {found}");
    }
    let counts = verdict.counts.expect("a scan");
    assert_eq!((counts.unattributed, counts.foreign), (1, 0));
    assert_eq!(verdict.attribution["a"], Attribution { unattributed: 1, ..Attribution::default() });
}

#[test]
fn an_entry_without_a_name_may_be_anybodys() {
    let mut world = one_entry("work", "{}");
    world.payloads[0].2.name = None;
    assert!(word(&world.judged().sightings[0]).contains("cannot be attributed"));
}

#[test]
fn an_empty_id_is_no_id_and_one_that_names_no_row_is_nobodys() {
    for data in [r#"{"jobId":""}"#, r#"{"jobId":null}"#] {
        assert!(
            word(&one_entry("work", data).judged().sightings[0]).contains("cannot be attributed"),
            "{data}"
        );
    }
    one_entry("work", r#"{"jobId":"gone"}"#).check("absent");
}

#[test]
fn a_wrapped_payload_that_holds_the_candidates_id_is_named_with_its_place() {
    for (data, place) in [
        (r#"{"payload":{"jobId":"7x"}}"#, "in its payload at `payload.jobId`"),
        (r#"[{"jobId":"7x"}]"#, "in its payload at `[].jobId`"),
        (r#"{"body":"{\"id\":\"7x\"}"}"#, "in its payload at `body.id`"),
        (r#""7x""#, "as its payload"),
    ] {
        let mut world = one_entry("work", data);
        world.candidates = vec![candidate(0, "7x")];
        let found = word(&world.judged().sightings[0]);
        assert!(found.starts_with("unknown") && found.contains(place), "{data}: {found}");
    }
}

#[test]
fn the_id_of_a_candidate_counts_in_foreign_entries_too_unless_it_is_all_digits() {
    let with_id = |id: &str, name: &str, data: &str| {
        let mut world = one_entry(name, data);
        world.candidates = vec![candidate(0, id)];
        word(&world.judged().sightings[0])
    };
    assert!(with_id("7x", "ping", r#"{"of":"7x"}"#).contains("at `of`"));
    assert!(with_id("7x", "7x", "{}").contains("as its job name"));
    assert_eq!(with_id("7", "ping", r#"{"page":7}"#), "absent");
    let weak = one_entry("ping", r#"{"page":7}"#).judged().weak;
    assert_eq!(
        weak.into_keys().collect::<Vec<_>>(),
        [0],
        "told apart, for where nothing confirms that it is foreign"
    );
    assert!(with_id("7", "work", r#"{"page":7}"#).contains("at `page`"));
}

#[test]
fn the_id_of_a_candidate_counts_as_a_part_of_an_entrys_id() {
    let mut world = World::new(vec![("a", queue(&[(State::Delayed, "mail:7x:late")])), ("b", empty())]);
    world.candidates = vec![candidate(0, "7x")];
    world = world.named("a", "mail:7x:late", "ping", "{}");
    assert!(word(&world.judged().sightings[0]).contains("holds this row's id in its id"));
}

#[test]
fn the_id_of_a_candidate_does_not_count_in_another_rows_entry() {
    let mut world = one_entry("work", r#"{"jobId":"8","after":"7x"}"#);
    world.candidates = vec![candidate(0, "7x")];
    world.ended = vec!["8"];
    world.check("absent");
    world.ended = vec![];
    assert!(word(&world.judged().sightings[0]).contains("at `after`"), "row 8 does not exist");
}

#[test]
fn a_foreign_name_of_the_manifest_wins_over_key_and_value_and_the_operators_word_over_neither() {
    let mut world = one_entry("tidy", r#"{"jobId":"7x"}"#);
    world.candidates = vec![candidate(0, "7x")];
    world.accepted.foreign.insert(("a".into(), "tidy".into()));
    world.check("scheduled a waiting");
    assert_eq!(world.judged().contradicted, BTreeSet::from([("a".into(), "tidy".into())]));
    world.payloads[0].2 = Payload::named("tidy", r#"{"of":"7x"}"#);
    assert!(word(&world.judged().sightings[0]).contains("at `of`"));
    world.sources[0].declared.queues[0].foreign_names = vec!["tidy".into()];
    world.check("absent");
    world.payloads[0].2 = Payload::named("tidy", r#"{"jobId":"7x"}"#);
    world.check("absent");
}

#[test]
fn under_any_name_nothing_is_foreign_until_the_operator_says_so() {
    let mut world = one_entry("ping", "{}");
    world.sources[0].declared.queues[0].job_names = crate::manifest::JobNames::Any;
    assert!(word(&world.judged().sightings[0]).contains("cannot be attributed"));
    world.accepted.foreign.insert(("b".into(), "ping".into()));
    assert!(word(&world.judged().sightings[0]).contains("cannot be attributed"), "of another queue");
    world.accepted.foreign.insert(("a".into(), "ping".into()));
    world.check("absent");
}

#[test]
fn one_unattributed_entry_can_be_accepted_but_not_against_its_value() {
    let mut world = one_entry("work", r#"{"of":"7x"}"#);
    world.accepted.entries.insert(("a".into(), "42".into()));
    world.check("absent");
    world.candidates = vec![candidate(0, "7x")];
    assert!(word(&world.judged().sightings[0]).contains("at `of`"));
}

#[test]
fn a_scheduler_iteration_is_foreign_until_it_starts() {
    let of_state = |state| {
        let entries = queue(&[(state, "repeat:nightly:1")]);
        let world = World::new(vec![("a", entries), ("b", empty())]).payload("a", "repeat:nightly:1", "{}");
        word(&world.judged().sightings[0])
    };
    assert_eq!(of_state(State::Delayed), "absent");
    assert!(of_state(State::Active).contains("cannot be attributed"));
}

#[test]
fn a_foreign_entry_that_a_worker_is_at_holds_back_rows_written_since() {
    let hour_ms: u64 = 3_600_000;
    let at = |status, processed_ms: Option<u64>| {
        let mut world = World::new(vec![("a", queue(&[(State::Active, "42")])), ("b", empty())]);
        let payload = Payload { processed_ms, ..Payload::named("ping", "{}") };
        world.payloads.push(("a", "42", payload));
        world.candidates[0].status = status;
        world.candidates[0].updated = Timestamp::from_millisecond(10 * 3_600_000).expect("a time");
        word(&world.judged().sightings[0])
    };
    assert!(at(LiveStatus::Processing, Some(9 * hour_ms)).contains("a worker has been at entry"));
    assert!(at(LiveStatus::Processing, None).contains("a worker has been at entry"));
    assert_eq!(at(LiveStatus::Processing, Some(11 * hour_ms)), "absent");
    assert_eq!(at(LiveStatus::Queued, Some(9 * hour_ms)), "absent");
}

#[test]
fn what_is_foreign_to_one_source_may_be_anothers() {
    let mut world = one_entry("export", "{}");
    world.sources = vec![
        source("slides", IdKind::Text, &[("a", "slide-{id}"), ("b", "slide-{id}")]),
        source("exports", IdKind::Text, &[("a", "export-{id}"), ("b", "export-{id}")]),
    ];
    for rule in &mut world.sources[1].declared.queues {
        rule.job_names = crate::manifest::JobNames::Only(vec!["export".into()]);
    }
    world.candidates = vec![candidate(0, "7"), candidate(1, "7")];
    let verdict = world.judged();
    assert_eq!(word(&verdict.sightings[0]), "absent");
    assert!(word(&verdict.sightings[1]).contains("cannot be attributed"));
    assert_eq!(verdict.attribution["a"].unattributed, 1);
}

#[test]
fn a_payload_that_is_too_long_leaves_its_queue_in_doubt() {
    let mut world = one_entry("work", "{}");
    world.payloads[0].2.data = Data::TooLong { bytes: 1 << 40 };
    assert!(word(&world.judged().sightings[0]).contains("too long to be read"));
}

#[test]
fn riders_are_looked_up_and_keep_no_look_up_going() {
    let world = World::new(vec![("a", queue(&[(State::Waiting, "slide-7")])), ("b", empty())]);
    let candidates = [candidate(0, "7"), candidate(0, "8")];
    let mut lookup = Lookup::new(&world.sources, &candidates, 1);
    lookup.see("a", State::Waiting, &IdsPage { ids: vec!["slide-7".to_owned()].into(), flaw: None });
    assert!(!lookup.is_needed());
    let accepted = Accepted::default();
    let verdict = Scan::new(lookup, &accepted).finish(&world.snapshot);
    assert_eq!(verdict.sightings.iter().map(word).collect::<Vec<_>>(), ["scheduled a waiting", "absent"]);
}
