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
    async fn decide_counted(&self, question: &Question<'_>) -> Counted;
}

impl Actor for Rehearsal {
    async fn decide(&self, question: &Question<'_>) -> Answer {
        Self::decide(self, question).await
    }

    async fn decide_counted(&self, question: &Question<'_>) -> Counted {
        Self::decide_counted(self, question).await
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
            second[index] = Some(actor.decide_counted(&scene.question()).await);
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
    Verdict { decided: Some(decided), fuel: counted.fuel, took: answer.took, failure }
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
