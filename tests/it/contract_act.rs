//! The contract of an act's part in the queues, and of marks and snapshots around it, which Redis and its model both keep.

use std::collections::BTreeMap;

use anyhow::Result;
use salvage::ports::{Ask, Mark, QueueTerms, Queues};
use salvage_core::act::{Act, QueueRefusal, ScriptAnswer};
use salvage_core::payload::Data;
use salvage_core::sighting::{QueueFailure, Residue};
use salvage_core::snapshot::{QueueReading, State};
use salvage_tests::sim::{Model, on_model};

use crate::redis_world::{OTHER, QUEUE, World, fail, fence, named, requeue, terms};

/// The entry of every act here.
const ENTRY: &str = "slide-1";

/// What is found when the act comes.
#[derive(Debug, Clone, Copy)]
enum Found {
    Listed(&'static str, State),
    Hash(&'static str),
    Finished(&'static str, bool),
    Locked(&'static str),
    OfFlow(&'static str),
    OfScheduler(&'static str),
    Paused(&'static str),
    NoMeta(&'static str),
    Marked(&'static str, u64, &'static str),
}

/// Queues that can be arranged.
trait Arranged {
    type Queues: Queues;

    fn queues(&self) -> &Self::Queues;
    async fn arrange(&self, found: Found) -> Result<()>;
}

impl Arranged for Model {
    type Queues = salvage_tests::sim::SimHost;

    fn queues(&self) -> &Self::Queues {
        &self.ports
    }

    async fn arrange(&self, found: Found) -> Result<()> {
        match found {
            Found::Listed(queue, state) => self.list(queue, state, ENTRY),
            Found::Hash(queue) => self.leave_hash(queue, ENTRY, false, false),
            Found::Finished(queue, is_failed) => self.leave_finished(queue, ENTRY, is_failed),
            Found::Locked(queue) => self.lock_entry(queue, ENTRY),
            Found::OfFlow(queue) => self.leave_hash(queue, ENTRY, true, false),
            Found::OfScheduler(queue) => self.leave_hash(queue, ENTRY, false, true),
            Found::Paused(queue) => self.pause(queue),
            Found::NoMeta(queue) => self.drop_meta(queue),
            Found::Marked(queue, generation, nonce) => self.mark(queue, Some(generation), Some(nonce)),
        }
        Ok(())
    }
}

impl Arranged for World {
    type Queues = salvage::redis::RedisQueues;

    fn queues(&self) -> &Self::Queues {
        &self.queues
    }

    async fn arrange(&self, found: Found) -> Result<()> {
        let command = match found {
            Found::Listed(queue, state) if state.is_list() => {
                format!("LPUSH @:{queue}:{} {ENTRY}", state.key())
            }
            Found::Listed(queue, state) => format!("ZADD @:{queue}:{} 1 {ENTRY}", state.key()),
            Found::Hash(queue) => format!("HSET @:{queue}:{ENTRY} data {{}}"),
            Found::Finished(queue, is_failed) => {
                self.command::<()>(&format!("HSET @:{queue}:{ENTRY} data {{}}")).await?;
                let state = if is_failed { "failed" } else { "completed" };
                format!("ZADD @:{queue}:{state} 1700000000000 {ENTRY}")
            }
            Found::Locked(queue) => format!("SET @:{queue}:{ENTRY}:lock token"),
            Found::OfFlow(queue) => format!("HSET @:{queue}:{ENTRY} parentKey bull:parents:9"),
            Found::OfScheduler(queue) => format!("HSET @:{queue}:{ENTRY} rjk daily"),
            Found::Paused(queue) => format!("HSET @:{queue}:meta paused 1"),
            Found::NoMeta(queue) => format!("DEL @:{queue}:meta"),
            Found::Marked(queue, generation, nonce) => {
                format!("HSET @:{queue}:salvage:host generation:global {generation} nonce {nonce}")
            }
        };
        self.command::<redis::Value>(&command).await?;
        Ok(())
    }
}

/// Two queues in use with nothing in them.
async fn used_world() -> Result<World> {
    let world = World::fresh().await?;
    for queue in [QUEUE, OTHER] {
        world.command::<()>(&format!("HSET @:{queue}:meta opts.maxLenEvents 10000")).await?;
        world.command::<()>(&format!("SET @:{queue}:id 7")).await?;
    }
    Ok(world)
}

/// Terms of a pass of generation 5 that marked both queues with `ours` and saw a `meta` in each.
fn of_a_pass() -> QueueTerms {
    let nonces = [QUEUE, OTHER].map(|queue| (queue.to_owned(), "ours".to_owned()));
    QueueTerms { nonces: nonces.into(), with_meta: named(&[QUEUE, OTHER]), ..terms() }
}

/// Both queues as that pass left them.
const MARKED: [Found; 2] = [Found::Marked(QUEUE, 5, "ours"), Found::Marked(OTHER, 5, "ours")];

/// Everything a snapshot tells of both queues.
async fn readings(queues: &impl Queues) -> BTreeMap<String, QueueReading> {
    queues.snapshot(&Ask::ids(&named(&[QUEUE, OTHER]))).await.expect("a snapshot").queues
}

/// What of a reading an act may change.
fn summary(readings: &BTreeMap<String, QueueReading>) -> String {
    let of = |(name, reading): (&String, &QueueReading)| {
        let QueueReading { ids, id_counter, has_meta, is_paused, nonce, retained, .. } = reading;
        format!("{name}: {ids:?} {id_counter:?} {has_meta} {is_paused} {nonce:?} {retained:?}")
    };
    readings.iter().map(of).collect::<Vec<_>>().join("\n")
}

async fn check(
    bench: &impl Arranged,
    found: &[Found],
    act: &Act,
    terms: &QueueTerms,
    expected: &ScriptAnswer,
) {
    for one in MARKED.iter().chain(found) {
        bench.arrange(*one).await.expect("arranged");
    }
    let before = readings(bench.queues()).await;
    let answer = bench.queues().act(act, terms).await.expect("an answer");
    assert_eq!(answer, *expected, "{found:?}");
    let after = readings(bench.queues()).await;
    let is_requeue = matches!(act.change, salvage_core::act::Change::Requeue { .. });
    if answer != ScriptAnswer::Clear || !is_requeue {
        assert_eq!(summary(&after), summary(&before), "{found:?}: a refusal and a probe change nothing");
        return;
    }
    let entries: Vec<_> = after.values().flat_map(QueueReading::entries).collect();
    assert_eq!(entries, [(State::Delayed, ENTRY)], "{found:?}");
    assert_eq!(after[QUEUE].id_counter, Some(8), "every add counts up");
    assert_eq!(after[QUEUE].retained, Vec::<String>::new(), "what was left over is replaced");
    let payload = bench.queues().payloads(QUEUE, &[ENTRY.to_owned()]).await.expect("payloads");
    assert_eq!(payload[0].data, Data::Text(r#"{"jobId":"1"}"#.to_owned()));
    let residues = bench.queues().residues(std::slice::from_ref(&act.places)).await.expect("residues");
    assert_eq!(residues, [Residue::HashOnly], "the entry's own hash");
    let again = bench.queues().act(act, terms).await.expect("an answer");
    let present = ScriptAnswer::Present { queue: QUEUE.into(), state: "delayed".into() };
    assert_eq!(again, present, "{found:?}: twice is once");
}

type Case = (Vec<Found>, Act, QueueTerms, ScriptAnswer);

/// Every residue and every refusal, for both kinds of act.
fn cases() -> Vec<Case> {
    let refused = ScriptAnswer::Refused;
    let both = |found: Vec<Found>, terms: QueueTerms, answer: ScriptAnswer| {
        [requeue("1"), fail("1")].map(|act| (found.clone(), act, terms.clone(), answer.clone()))
    };
    let one = |found: Found, act: Act, answer: ScriptAnswer| (vec![found], act, of_a_pass(), answer);
    let mut cases: Vec<Case> = both(vec![], of_a_pass(), ScriptAnswer::Clear).into();
    for found in [Found::Hash(QUEUE), Found::Finished(QUEUE, true), Found::Finished(QUEUE, false)] {
        cases.extend(both(vec![found], of_a_pass(), ScriptAnswer::Clear));
    }
    for queue in [QUEUE, OTHER] {
        for state in State::ALL {
            let present = ScriptAnswer::Present { queue: queue.into(), state: state.key().into() };
            cases.extend(both(vec![Found::Listed(queue, state)], of_a_pass(), present));
        }
        let entry_id = || ENTRY.to_owned();
        let name = || queue.to_owned();
        let locked = QueueRefusal::Locked { queue: name(), entry_id: entry_id() };
        cases.extend(both(vec![Found::Locked(queue)], of_a_pass(), refused(locked)));
        let flow = QueueRefusal::Flow { queue: name(), entry_id: entry_id() };
        cases.push(one(Found::OfFlow(queue), requeue("1"), refused(flow)));
        cases.push(one(Found::OfFlow(queue), fail("1"), ScriptAnswer::Clear));
        let scheduler = QueueRefusal::Scheduler { queue: name(), entry_id: entry_id() };
        cases.push(one(Found::OfScheduler(queue), requeue("1"), refused(scheduler)));
        let missing = QueueRefusal::MetaMissing { queue: name() };
        cases.extend(both(vec![Found::NoMeta(queue)], of_a_pass(), refused(missing)));
        let fenced = QueueRefusal::Fenced { queue: name(), generation: 6 };
        cases.extend(both(vec![Found::Marked(queue, 6, "theirs")], of_a_pass(), refused(fenced)));
        let epoch = QueueRefusal::Epoch { queue: name() };
        cases.extend(both(vec![Found::Marked(queue, 5, "theirs")], of_a_pass(), refused(epoch)));
    }
    let paused = QueueRefusal::Paused { queue: QUEUE.into() };
    cases.push(one(Found::Paused(QUEUE), requeue("1"), refused(paused)));
    cases.push(one(Found::Paused(QUEUE), fail("1"), ScriptAnswer::Clear));
    let late = QueueTerms { deadline_ms: 1_700_000_000_000, ..of_a_pass() };
    cases.extend(both(vec![], late, refused(QueueRefusal::Late)));
    cases
}

#[tokio::test]
async fn redis_keeps_the_contract_of_acts() -> Result<()> {
    for (found, act, terms, expected) in cases() {
        check(&used_world().await?, &found, &act, &terms, &expected).await;
    }
    Ok(())
}

#[test]
fn the_model_keeps_the_contract_of_acts() {
    for (found, act, terms, expected) in cases() {
        on_model(async |model| check(model, &found, &act, &terms, &expected).await);
    }
}

/// A mark replaces what the look found, under the fence, in all queues or in none.
async fn marks_keep_the_contract(queues: &impl Queues) {
    let marks = |found: Option<&str>, nonce: &str| {
        let mark = Mark { found: found.map(str::to_owned), nonce: nonce.to_owned() };
        BTreeMap::from([(QUEUE.to_owned(), mark.clone()), (OTHER.to_owned(), mark)])
    };
    assert_eq!(queues.mark(&marks(None, "first"), &fence(5)).await, Ok(()));
    assert_eq!(queues.mark(&marks(None, "first"), &fence(5)).await, Ok(()), "twice is once");
    let changed = || Err(QueueFailure::Changed { queue: OTHER.into() });
    assert_eq!(queues.mark(&marks(None, "second"), &fence(5)).await, changed());
    assert_eq!(queues.mark(&marks(Some("other"), "second"), &fence(5)).await, changed());
    assert_eq!(queues.mark(&marks(Some("first"), "second"), &fence(6)).await, Ok(()));
    let fenced = Err(QueueFailure::Fenced { queue: OTHER.into(), generation: 6 });
    assert_eq!(queues.mark(&marks(Some("second"), "third"), &fence(5)).await, fenced);
    let nonces: Vec<_> = readings(queues).await.into_values().map(|reading| reading.nonce).collect();
    assert_eq!(nonces, [Some("second".to_owned()), Some("second".to_owned())]);
}

#[tokio::test]
async fn redis_keeps_the_contract_of_marks() -> Result<()> {
    marks_keep_the_contract(&used_world().await?.queues).await;
    Ok(())
}

#[test]
fn the_model_keeps_the_contract_of_marks() {
    on_model(async |model| marks_keep_the_contract(&model.ports).await);
}

/// A snapshot tells every state of every queue, and what is missing of a queue.
async fn snapshots_keep_the_contract(bench: &impl Arranged) {
    let found =
        [Found::Listed(QUEUE, State::Active), Found::Listed(OTHER, State::Delayed), Found::Paused(OTHER)];
    for one in found.into_iter().chain([Found::Finished(QUEUE, true), Found::NoMeta(QUEUE)]) {
        bench.arrange(one).await.expect("arranged");
    }
    let readings = readings(bench.queues()).await;
    let (queue, other) = (&readings[QUEUE], &readings[OTHER]);
    assert!(queue.has_every_state() && other.has_every_state());
    assert_eq!(queue.entries().collect::<Vec<_>>(), [(State::Active, ENTRY)]);
    assert_eq!(other.entries().collect::<Vec<_>>(), [(State::Delayed, ENTRY)]);
    assert_eq!(queue.retained, [ENTRY]);
    assert_eq!((queue.has_meta, other.has_meta), (false, true));
    assert_eq!((queue.is_paused, other.is_paused), (false, true));
    assert_eq!((queue.id_counter, other.id_counter), (Some(7), Some(7)));
    assert!(queue.flaws.is_empty() && other.flaws.is_empty(), "`id` alone is trace enough");
    let snapshot = bench.queues().snapshot(&Ask::ids(&named(&["nobodys"]))).await.expect("a snapshot");
    assert_eq!(snapshot.server_fault(), None);
    let flaws = &snapshot.queues["nobodys"].flaws;
    assert!(flaws.len() == 1 && flaws[0].is_lack_of_trace(), "{flaws:?}");
    let ids = [ENTRY.to_owned(), "other".to_owned()];
    let in_set = |queue, state| bench.queues().are_in_set(queue, state, &ids);
    assert_eq!(in_set(OTHER, State::Delayed).await, Ok(vec![true, false]));
    assert_eq!(in_set(OTHER, State::Prioritized).await, Ok(vec![false, false]));
    let stalled = bench.queues().stalled(QUEUE, &[ENTRY.to_owned()]).await.expect("an answer");
    assert_eq!(stalled.len(), 1, "active without a lock");
}

#[tokio::test]
async fn redis_keeps_the_contract_of_snapshots() -> Result<()> {
    snapshots_keep_the_contract(&used_world().await?).await;
    Ok(())
}

#[test]
fn the_model_keeps_the_contract_of_snapshots() {
    on_model(async |model| snapshots_keep_the_contract(model).await);
}
