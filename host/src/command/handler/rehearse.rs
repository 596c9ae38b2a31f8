//! Puts every case to a handler twice, and compares.
//!
//! The first time in the order of the files, as in a pass; the second time shuffled, with fuel counted and in another world
//! (see [`crate::wasm::Rehearsal`]). A decision that is not the same both times is named: a handler must be a pure function.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::time::Duration;

use salvage_core::manifest::HandlerManifest;
use salvage_core::settings::PassSettings;
use salvage_handler_sdk::cases::difference;
use serde::Serialize;

use super::cases::{CaseFile, Decided, Scene};
use crate::ports::{Answer, HandlerFault, Question};
use crate::wasm::{Counted, Rehearsal};

/// Who is asked: a component, or what stands for it in a test.
pub(super) trait Actor {
    /// As in a pass.
    async fn decide(&self, question: &Question<'_>) -> Answer;
    /// Again, elsewhere.
    async fn decide_elsewhere(&self, question: &Question<'_>) -> Counted;
}

/// One component, compiled for both.
pub(super) struct Pair {
    pub(super) as_in_a_pass: Rehearsal,
    /// In the runtime that counts fuel.
    pub(super) elsewhere: Rehearsal,
}

impl Actor for Pair {
    async fn decide(&self, question: &Question<'_>) -> Answer {
        self.as_in_a_pass.decide(question).await.answer
    }

    async fn decide_elsewhere(&self, question: &Question<'_>) -> Counted {
        self.elsewhere.decide(question).await
    }
}

/// What a case came to.
#[derive(Debug)]
pub(super) struct Verdict {
    /// `None` if the case could not be put.
    pub(super) decided: Option<Decided>,
    pub(super) fuel: u64,
    pub(super) took: Duration,
    /// `None` if all is as expected.
    pub(super) failure: Option<Failure>,
}

/// Why a case failed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(tag = "kind", content = "detail", rename_all = "kebab-case")]
pub(super) enum Failure {
    /// The file holds no case, or one that no host could send.
    NotACase(String),
    /// The host would refuse what was decided.
    Refused(String),
    /// The second answer was another.
    NotDeterministic(String),
    /// Nothing is expected yet.
    NothingExpected(String),
    /// Something else was decided than expected.
    Differs(String),
}

impl Failure {
    /// Whether it goes away if what was decided is expected from now on.
    pub(super) const fn is_acceptable(&self) -> bool {
        matches!(self, Self::NothingExpected(_) | Self::Differs(_))
    }

    /// For people: what is wrong, and below it the lines that show it.
    pub(super) fn text(&self) -> String {
        match self {
            Self::NotACase(why) => why.clone(),
            Self::Refused(why) => format!("  the host would refuse this decision: {why}"),
            Self::NotDeterministic(difference) => format!(
                "  not deterministic: asked again, in another order and with another clock and other random numbers, it \
                 decided otherwise\n  - first, + then:\n{difference}"
            ),
            Self::NothingExpected(decided) => {
                format!("  nothing is expected yet; `--accept` writes down what was decided:\n{decided}")
            }
            Self::Differs(difference) => format!("  - expected, + decided:\n{difference}"),
        }
    }
}

/// Asks all, twice; one verdict for each file, in their order. `seed` makes the second order.
pub(super) async fn rehearse(
    actor: &impl Actor,
    manifest: &HandlerManifest,
    files: &[CaseFile],
    settings: &PassSettings,
    seed: &str,
) -> Vec<Verdict> {
    let mut first = Vec::new();
    for file in files {
        let scene = scene(file, manifest);
        let answer = match &scene {
            Ok(scene) => Some(actor.decide(&scene.question()).await),
            Err(_) => None,
        };
        first.push((scene, answer));
    }
    let mut second: Vec<Option<Counted>> = files.iter().map(|_| None).collect();
    for index in shuffled(files.len(), seed) {
        if let Ok(scene) = &first[index].0 {
            second[index] = Some(actor.decide_elsewhere(&scene.question()).await);
        }
    }
    let all = files.iter().zip(first).zip(second);
    all.map(|((file, (scene, answer)), counted)| match (scene, answer, counted) {
        (Ok(scene), Some(answer), Some(counted)) => judge(file, &scene, &answer, &counted, settings),
        (scene, ..) => Verdict {
            decided: None,
            fuel: 0,
            took: Duration::ZERO,
            failure: scene.err().map(Failure::NotACase),
        },
    })
    .collect()
}

fn scene(file: &CaseFile, manifest: &HandlerManifest) -> Result<Scene, String> {
    let case = file.case.as_ref().map_err(|fault| format!("  {fault}"))?;
    let lines =
        |faults: Vec<String>| faults.iter().map(|fault| format!("  {fault}")).collect::<Vec<_>>().join("\n");
    Scene::new(case, manifest, "").map_err(lines)
}

fn judge(
    file: &CaseFile,
    scene: &Scene,
    answer: &Answer,
    counted: &Counted,
    settings: &PassSettings,
) -> Verdict {
    let (decided, again) = (Decided::of(answer), Decided::of(&counted.answer));
    let expected = file.case.as_ref().ok().and_then(|case| case.expected.as_ref());
    let failure = if let Some(difference) =
        difference(&decided.value(), &again.value()).filter(|_| !is_about_time(answer, &counted.answer))
    {
        Some(Failure::NotDeterministic(difference))
    } else if let Some(why) = scene.refusal(answer, settings) {
        Some(Failure::Refused(why))
    } else if let Some(expected) = expected {
        difference(expected, &decided.value()).map(Failure::Differs)
    } else {
        Some(Failure::NothingExpected(decided.text()))
    };
    Verdict {
        decided: Some(decided),
        fuel: counted.fuel,
        took: answer.usage.map_or(Duration::ZERO, |usage| usage.took()),
        failure,
    }
}

/// One of two calls that ran into the time limit says nothing about the decision.
const fn is_about_time(a: &Answer, b: &Answer) -> bool {
    matches!(a.decision, Err(HandlerFault::Timeout { .. }))
        || matches!(b.decision, Err(HandlerFault::Timeout { .. }))
}

/// The numbers below `count`, in an order of `seed`'s.
fn shuffled(count: usize, seed: &str) -> Vec<usize> {
    let mut order: Vec<usize> = (0..count).collect();
    order.sort_by_key(|index| {
        let mut hasher = DefaultHasher::new();
        (seed, index).hash(&mut hasher);
        hasher.finish()
    });
    order
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use salvage_core::decision::Decision;
    use salvage_core::manifest::{IdTemplate, JobType, QueueRule, Source, TableMapping};
    use salvage_handler_sdk::cases::Case;
    use serde_json::json;

    use super::*;

    /// Decides as it is told, and remembers whom it was asked about.
    struct Puppet {
        first: fn(&str) -> Result<Decision, HandlerFault>,
        then: fn(&str) -> Result<Decision, HandlerFault>,
        asked: RefCell<Vec<String>>,
    }

    impl Puppet {
        fn answer(&self, how: fn(&str) -> Result<Decision, HandlerFault>, question: &Question<'_>) -> Answer {
            let id = &question.candidate.token.id;
            self.asked.borrow_mut().push(id.clone());
            Answer { decision: how(id), usage: None }
        }
    }

    impl Actor for Puppet {
        async fn decide(&self, question: &Question<'_>) -> Answer {
            self.answer(self.first, question)
        }

        async fn decide_elsewhere(&self, question: &Question<'_>) -> Counted {
            Counted { answer: self.answer(self.then, question), fuel: 1 }
        }
    }

    fn manifest() -> HandlerManifest {
        let name = |text: &str| text.to_owned();
        let table = TableMapping {
            table: name("jobs"),
            id: name("id"),
            status: name("status"),
            updated_at: name("at"),
            job_type: None,
            progress: None,
            error: None,
            extra_columns: vec![],
            queued: name("Q"),
            processing: name("P"),
            failed: name("F"),
        };
        let job_type = JobType {
            name: name("T"),
            stale_after_queued: None,
            stale_after_processing: None,
            restart_safe: true,
            on_fail: None,
            on_requeue: None,
        };
        let job_id = IdTemplate::parse("x-{id}").expect("a rule");
        let queue = QueueRule::new("q", job_id, "jobId");
        let source =
            Source { name: name("s"), table, job_types: vec![job_type], queues: vec![queue], reads: vec![] };
        HandlerManifest { domain: name("d"), description: String::new(), sources: vec![source] }
    }

    /// Cases `0`, `1`, … that expect a hold for their own id.
    fn files(count: usize) -> Vec<CaseFile> {
        let file = |index: usize| {
            let id = index.to_string();
            let case = json!({
                "about": "a case",
                "job": { "source": "s", "id": id, "type": "T", "status": "Q" },
                "expected": { "kind": "hold", "reason": id },
            });
            let text = case.to_string();
            CaseFile { path: format!("{id}.json").into(), case: Case::parse(&text), text }
        };
        (0..count).map(file).collect()
    }

    fn hold(id: &str) -> Result<Decision, HandlerFault> {
        Ok(Decision::Hold(id.to_owned()))
    }

    async fn failures(puppet: &Puppet, count: usize) -> Vec<Option<Failure>> {
        let settings = PassSettings::default();
        let verdicts = rehearse(puppet, &manifest(), &files(count), &settings, "seed").await;
        verdicts.into_iter().map(|verdict| verdict.failure).collect()
    }

    #[tokio::test]
    async fn each_case_is_put_twice_the_second_time_in_another_order() {
        let puppet = Puppet { first: hold, then: hold, asked: RefCell::default() };
        assert_eq!(failures(&puppet, 20).await, vec![None; 20]);
        let asked = puppet.asked.into_inner();
        let in_order: Vec<String> = (0..20).map(|index| index.to_string()).collect();
        let (first, mut then) = (asked[..20].to_vec(), asked[20..].to_vec());
        assert_eq!(first, in_order);
        assert_ne!(then, in_order, "not shuffled");
        then.sort_by_key(|id| id.parse::<u32>().ok());
        assert_eq!(then, in_order);
    }

    #[tokio::test]
    async fn the_case_that_is_decided_otherwise_is_the_one_that_is_named() {
        let otherwise = |id: &str| if id == "1" { hold("another") } else { hold(id) };
        let puppet = Puppet { first: hold, then: otherwise, asked: RefCell::default() };
        let failures = failures(&puppet, 3).await;
        assert!(matches!(&failures[..], [None, Some(Failure::NotDeterministic(_)), None]), "{failures:?}");
    }

    #[tokio::test]
    async fn a_call_that_ran_out_of_time_is_not_called_undetermined() {
        let timeout = |_: &str| Err(HandlerFault::Timeout { limit_ms: 100 });
        let puppet = Puppet { first: timeout, then: hold, asked: RefCell::default() };
        assert!(matches!(&failures(&puppet, 1).await[..], [Some(Failure::Differs(_))]));
        let puppet = Puppet { first: hold, then: timeout, asked: RefCell::default() };
        assert_eq!(failures(&puppet, 1).await, [None]);
    }
}
