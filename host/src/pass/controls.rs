//! The control group: young rows that are looked up with the candidates, to see whether the declaration finds what is
//! there; and what follows for orphans if it does not.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use salvage_core::alarm::AlarmKind;
use salvage_core::candidate::{self, Candidate, LiveRow, LiveStatus, Sorted};
use salvage_core::control::{self, Control, Figures};
use salvage_core::declaration::{Declared, declaration};
use salvage_core::epoch::{QueueMemory, settled_since};
use salvage_core::scan::Verdict;
use salvage_core::sighting::{Doubt, Sighting};
use salvage_core::source::ResolvedSource;

use super::gather::Gathered;
use super::known::Known;
use super::{Case, Pass};
use crate::ports::{Confirmation, Declaration, Group, Jobs, Ledger, Outside, StoreFailure};

/// A source's declaration, by which its confirmations are remembered.
pub(crate) fn declaration_of(source: &ResolvedSource) -> Declaration {
    Declaration { source: source.name.clone(), text: declaration(&source.declared) }
}

/// The young rows of a pass.
#[derive(Debug, Default)]
pub(crate) struct ControlRows {
    pub(crate) rows: Vec<Candidate>,
    /// Groups that PostgreSQL refused to have read, with their source.
    pub(crate) unread: Vec<(usize, Group)>,
}

/// What this pass and earlier ones say of the declarations of the pass's sources, in their order.
pub(crate) struct Controls {
    pub(crate) declared: Vec<Declared>,
    /// This pass's groups.
    pub(crate) groups: Vec<Vec<Control>>,
    /// The sources of which a row was attributed in this pass.
    pub(crate) confirmed: BTreeSet<usize>,
}

impl Controls {
    /// Whether anything confirms the declaration of a candidate's source.
    pub(crate) fn is_believed(&self, source: &ResolvedSource, candidate: &Candidate) -> bool {
        let Candidate { source: index, job_type, status, .. } = candidate;
        let (Some(declared), Some(groups)) = (self.declared.get(*index), self.groups.get(*index)) else {
            return false;
        };
        self.confirmed.contains(index) || declared.is_believed(&source.declared, groups, job_type, *status)
    }

    /// Where the system itself confirms nothing, an id of digits alone counts also in an entry that is foreign by its name:
    /// the operator who accepted the queues did not vouch for names.
    pub(crate) fn doubt_weak(
        &self,
        sources: &[ResolvedSource],
        candidates: &[Candidate],
        judged: &mut Verdict,
    ) {
        for (position, mention) in std::mem::take(&mut judged.weak) {
            let (candidate, sighting) = (&candidates[position], &mut judged.sightings[position]);
            let index = candidate.source;
            let no_word = Declared { accepted_queues: BTreeSet::new(), ..self.declared[index].clone() };
            let groups = &self.groups[index];
            let is_confirmed = self.confirmed.contains(&index)
                || no_word.is_believed(
                    &sources[index].declared,
                    groups,
                    &candidate.job_type,
                    candidate.status,
                );
            if !is_confirmed && matches!(sighting, Sighting::Absent { .. }) {
                *sighting = Sighting::Unknown { why: Doubt::Mentioned(mention) };
            }
        }
    }
}

impl<O: Outside> Pass<'_, O> {
    /// Reads the control rows of these sources.
    pub(crate) async fn control_rows(
        &self,
        gathered: &Gathered,
        sources: &BTreeSet<usize>,
        memories: &BTreeMap<String, QueueMemory>,
    ) -> Result<ControlRows, StoreFailure> {
        let mut of_pass = ControlRows::default();
        for &index in sources {
            let source = &gathered.sources[index];
            let groups = self.groups(source, gathered.now, memories);
            if groups.is_empty() {
                continue;
            }
            let count = u32::try_from(groups.len()).unwrap_or(u32::MAX);
            let limit = (control::ROWS_MAX / count).max(control::ROWS_MIN);
            match self.outside.jobs().young_rows(source, &groups, limit).await {
                Ok(young) => {
                    let rows = young.into_iter().filter_map(|row| control_row(row, index, source));
                    of_pass.rows.extend(rows);
                }
                Err(failure) if failure.is_local() => {
                    tracing::warn!(source = %source.name, %failure, "the control group of this source could not be read");
                    of_pass.unread.extend(groups.into_iter().map(|group| (index, group)));
                }
                Err(failure) => return Err(failure),
            }
        }
        Ok(of_pass)
    }

    /// Rows that are no candidates, that had time to get their entries, and that were written since Redis last lost any.
    fn groups(
        &self,
        source: &ResolvedSource,
        now: Timestamp,
        memories: &BTreeMap<String, QueueMemory>,
    ) -> Vec<Group> {
        let Ok(before) = now.checked_sub(control::AGE_MIN) else { return vec![] };
        let since = settled_since_loss(source, memories);
        let statuses = [LiveStatus::Queued, LiveStatus::Processing];
        let groups = source.declared.job_types.iter().flat_map(|job_type| {
            statuses.map(|status| Group {
                job_type: job_type.name.clone(),
                status,
                from: candidate::cutoff(job_type, status, now, self.settings.stale_after).max(since),
                before,
            })
        });
        groups.filter(|group| group.from < group.before).collect()
    }

    /// Remembers what was found for and against the declarations, and marks the orphans whose group failed. An alarm goes
    /// with each such group.
    pub(crate) async fn control(
        &self,
        gathered: &Gathered,
        known: &Known,
        controls: &Controls,
        cases: &mut [Case],
    ) -> Result<(), StoreFailure> {
        for (index, source) in gathered.own().iter().enumerate() {
            let name = source.name.to_string();
            let mut alarms = BTreeMap::new();
            for case in cases.iter_mut().filter(|case| case.candidate.source == index && case.is_absent()) {
                let Candidate { job_type, status, .. } = &case.candidate;
                let failed = controls.declared[index].doubt(&controls.groups[index], job_type, *status);
                if let Some(control) = failed {
                    let why = Doubt::Control { source: name.clone(), control: control.clone() };
                    if control.figures.passed() == Some(false) {
                        alarms.entry((job_type.clone(), *status)).or_insert_with(|| why.to_string());
                    }
                    case.sighting = Sighting::Unknown { why };
                }
            }
            for why in alarms.into_values() {
                self.alarm(&source.name, AlarmKind::Control, why).await?;
            }
        }
        self.remember_controls(gathered, known, controls).await
    }

    async fn remember_controls(
        &self,
        gathered: &Gathered,
        known: &Known,
        controls: &Controls,
    ) -> Result<(), StoreFailure> {
        let (Some(licence), Some(looked_at)) = (&self.licence, known.looked_at) else { return Ok(()) };
        let confirmations: Vec<Confirmation> = gathered
            .own()
            .iter()
            .enumerate()
            .map(|(index, source)| Confirmation {
                declaration: declaration_of(source),
                is_confirmed: controls.confirmed.contains(&index) && !controls.declared[index].is_confirmed,
                controls: news(&controls.groups[index], &controls.declared[index]),
            })
            .filter(|of| of.is_confirmed || !of.controls.is_empty())
            .collect();
        if confirmations.is_empty() {
            return Ok(());
        }
        self.check_lease()?;
        self.outside.ledger().confirm(&confirmations, looked_at, &licence.fence).await
    }
}

/// Since when the rows of a source say something of its declaration.
pub(crate) fn settled_since_loss(
    source: &ResolvedSource,
    memories: &BTreeMap<String, QueueMemory>,
) -> Timestamp {
    settled_since(source.declared.queues.iter().filter_map(|rule| memories.get(&rule.name)))
}

/// The groups that failed, and those that passed after they had failed.
fn news(groups: &[Control], declared: &Declared) -> Vec<Control> {
    let is_news = |group: &&Control| match group.figures.passed() {
        Some(false) => true,
        Some(true) => declared.failed.iter().any(|failed| failed.is_of(&group.job_type, group.status)),
        None => false,
    };
    groups.iter().filter(is_news).cloned().collect()
}

fn control_row(row: LiveRow, index: usize, source: &ResolvedSource) -> Option<Candidate> {
    match candidate::of_any_age(row, index, source) {
        Sorted::Candidate(candidate) => Some(candidate),
        Sorted::Fresh | Sorted::Undeclared | Sorted::Odd(..) => None,
    }
}

/// The groups of each source, from its control rows: what was seen of each, and whether by a payload.
pub(crate) fn groups<'r>(
    sources: usize,
    rows: impl Iterator<Item = (&'r Candidate, &'r Sighting, bool)>,
    unread: Vec<(usize, Group)>,
) -> Vec<Vec<Control>> {
    let mut groups = vec![vec![]; sources];
    for (source, Group { job_type, status, .. }) in unread {
        groups[source].push(Control {
            job_type,
            status,
            figures: Figures { unread: 1, ..Figures::default() },
        });
    }
    for (row, sighting, is_by_payload) in rows {
        control::tally(&mut groups[row.source], &row.job_type, row.status, sighting, is_by_payload);
    }
    groups
}
