//! Asks the handlers what shall become of each orphan, and rules on their answers.

use std::collections::BTreeMap;

use jiff::Timestamp;
use salvage_core::capture::Redaction;
use salvage_core::decision::{self, Circumstances, DecisionKind, Ruling};
use salvage_core::outcome::Outcome;
use salvage_core::sighting::Sighting;
use salvage_core::source::{ResolvedSource, SourceName, Standing};

use super::capturing::Keeping;
use super::gather::Gathered;
use super::known::Known;
use super::{Case, Decided, Pass};
use crate::ports::{
    Answer, HandlerFault, Handlers, JobInputs, Jobs, Ledger, Outside, Question, StoreFailure,
};

/// After so many timeouts of one domain in one pass it is not asked again: each costs its whole time limit, and the
/// lease runs.
const TIMEOUTS_MAX: u32 = 10;

/// What the questions about one source's orphans have in common.
struct Asking<'a> {
    source: &'a ResolvedSource,
    /// The database's clock when the rows were listed.
    now: Timestamp,
    /// Redis's clock at the snapshot.
    redis_now_ms: u64,
    /// What is taken out of questions that are kept.
    capture: Option<&'a Redaction>,
}

impl<O: Outside> Pass<'_, O> {
    /// Decides every orphan, source by source, a page of inputs at a time.
    pub(crate) async fn decide(
        &self,
        gathered: &Gathered,
        known: &Known,
        cases: &mut [Case],
    ) -> Result<(), StoreFailure> {
        let Ok(look) = &known.look else { return Ok(()) };
        let mut timeouts: BTreeMap<String, u32> = BTreeMap::new();
        for (index, source) in gathered.own().iter().enumerate() {
            let mut orphans: Vec<&mut Case> =
                cases.iter_mut().filter(|case| case.is_absent() && case.candidate.source == index).collect();
            if !may_be_asked(source) {
                for case in orphans {
                    case.decision =
                        undecided("not asked: what its handler reads is not granted; `salvage handler list` prints the grants".to_owned(), false);
                }
                continue;
            }
            let timeouts = timeouts.entry(source.name.domain.clone()).or_default();
            let asking = Asking {
                source,
                now: gathered.now,
                redis_now_ms: self.now_of_redis(look),
                capture: gathered.captures.get(&source.name.domain),
            };
            for page in orphans.chunks_mut(self.settings.page_size as usize) {
                match self.decide_page(&asking, page, timeouts).await {
                    Err(failure) if failure.is_local() => {
                        tracing::error!(source = %source.name, %failure, "inputs could not be read; these orphans wait");
                        for case in page {
                            case.decision = undecided(format!("inputs could not be read: {failure}"), true);
                        }
                    }
                    other => other?,
                }
            }
        }
        Ok(())
    }

    async fn decide_page(
        &self,
        asking: &Asking<'_>,
        page: &mut [&mut Case],
        timeouts: &mut u32,
    ) -> Result<(), StoreFailure> {
        let &Asking { source, now, redis_now_ms, capture } = asking;
        let jobs: Vec<(SourceName, String)> =
            page.iter().map(|case| (source.name.clone(), case.candidate.token.id.clone())).collect();
        let since = now.checked_sub(self.settings.recoveries_window).unwrap_or(Timestamp::MIN);
        let recoveries = self.outside.ledger().recoveries(&jobs, since).await?;
        let tokens: Vec<_> = page.iter().map(|case| &case.candidate.token).collect();
        let inputs = self.outside.jobs().inputs(source, &tokens).await?;
        let mut keeping = self.keeping(capture);
        for ((case, inputs), recoveries) in page.iter_mut().zip(inputs).zip(recoveries) {
            let Some(inputs) = inputs else {
                case.decision = undecided("the row changed before its inputs were read".to_owned(), false);
                case.outcome = Some(Outcome::Superseded("the row changed since it was listed".to_owned()));
                continue;
            };
            if *timeouts >= TIMEOUTS_MAX {
                let why = format!("not asked: the handler timed out {TIMEOUTS_MAX} times in this pass");
                case.decision = undecided(why, true);
                continue;
            }
            let fault = self.decide_one(source, redis_now_ms, case, &inputs, recoveries, &mut keeping).await;
            *timeouts += u32::from(matches!(fault, Some(HandlerFault::Timeout { .. })));
        }
        self.keep(keeping).await;
        Ok(())
    }

    async fn decide_one(
        &self,
        source: &ResolvedSource,
        redis_now_ms: u64,
        case: &mut Case,
        inputs: &JobInputs,
        recoveries: u32,
        keeping: &mut Keeping,
    ) -> Option<HandlerFault> {
        let Sighting::Absent { residue } = &case.sighting else { return None };
        let question = Question { candidate: &case.candidate, source, inputs, residue, recoveries };
        let answer = self.outside.handlers().decide(&question).await;
        keeping.add(&question, &answer);
        let Answer { decision, usage } = answer;
        let circumstances = Circumstances {
            candidate: &case.candidate,
            source: &source.declared,
            residue,
            redis_now_ms,
            recoveries,
            truncated_input: inputs
                .reads
                .iter()
                .find(|input| input.truncated)
                .map(|input| input.name.as_str()),
        };
        let ruling = decision.map(|decision| decision::rule(decision, &circumstances, self.settings));
        case.usage = usage;
        case.inputs_digest = Some(inputs.digest.clone());
        match ruling {
            Ok(ruling) => {
                note(case, ruling);
                None
            }
            Err(fault) => {
                let (domain, id) = (&source.name.domain, &case.candidate.token.id);
                tracing::error!(source = %source.name, candidate.id = id, %fault, "handler {domain} gave no decision");
                case.decision = undecided(fault.to_string(), true);
                Some(fault)
            }
        }
    }
}

/// An observed handler sees the mapped columns of its job tables and nothing else: one that wants more is not asked.
fn may_be_asked(source: &ResolvedSource) -> bool {
    let wants_more = !source.declared.reads.is_empty() || !source.declared.table.extra_columns.is_empty();
    source.standing == Standing::Active || !wants_more
}

/// Writes a ruling into its case.
fn note(case: &mut Case, ruling: Ruling) {
    let (kind, reason) = match &ruling {
        Ruling::Requeue(_) => (DecisionKind::Requeue, None),
        Ruling::Fail { reason } => (DecisionKind::Fail, Some(reason.clone())),
        Ruling::Hold { reason } => (DecisionKind::Hold, Some(reason.clone())),
        Ruling::Refused { kind, why } => {
            case.outcome = Some(Outcome::Refused(why.clone()));
            (*kind, None)
        }
    };
    case.decision = Decided { kind, reason, is_fault: false };
    case.ruling = Some(ruling);
}

const fn undecided(why: String, is_fault: bool) -> Decided {
    Decided { kind: DecisionKind::None, reason: Some(why), is_fault }
}
