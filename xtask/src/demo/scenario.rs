//! The situations that the demo makes, and how each must end. Data only: how a situation is made is in `acts`.

use super::application::Table;

/// One job: what happens to it, and what must be seen of it at each of the three looks.
pub(super) struct Situation {
    pub(super) table: Table,
    /// The row's id.
    pub(super) id: &'static str,
    /// Job type or format.
    pub(super) kind: &'static str,
    /// What happened, told to a newcomer.
    pub(super) story: &'static str,
    pub(super) fate: Fate,
    /// Two hours later.
    pub(super) before: State,
    pub(super) verdict: Verdict,
    /// After the pass that acted.
    pub(super) recovered: State,
    /// After the workers were started again and had nothing left to do.
    pub(super) end: State,
    /// How often a worker begins the job before the pass.
    pub(super) runs_before: usize,
    /// And after it.
    pub(super) runs_after: usize,
}

/// What happens to a job after it was enqueued.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fate {
    /// A worker completes it.
    Finishes,
    /// A worker has it and lives.
    Runs,
    /// A worker fails it, and nobody tells the row.
    Fails,
    /// The worker that has it is killed; its entry stays `active`.
    WorkerDies,
    /// The worker that has it is killed, and Redis loses the entry.
    WorkerDiesEntryLost,
    /// The same, and the tracks of its video are deleted.
    WorkerDiesTracksDeleted,
    /// No worker is free for it.
    Waits,
    /// The same, but its entry has an id of BullMQ's own choice.
    WaitsUnderOldId,
    /// No worker is free for it, and Redis loses the entry.
    WaitsEntryLost,
    /// Wanted in twelve hours.
    Delayed,
}

/// What Salvage must do with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// Not even written to; why, told to a newcomer.
    LeftAlone(&'static str),
    /// Enqueued again with the payload it had; why, told to a newcomer.
    PutBack(&'static str),
    /// With a reason, which is Salvage's own.
    MarkedFailed,
}

/// What is seen of a job at one look.
#[derive(Debug)]
pub(super) struct State {
    /// The row's status.
    pub(super) row: &'static str,
    /// What its deck or video shows.
    pub(super) parent: &'static str,
    /// Where its entry is in the queue.
    pub(super) entry: &'static str,
}

const fn state(row: &'static str, parent: &'static str, entry: &'static str) -> State {
    State { row, parent, entry }
}

/// A narration's id is a uuid, so it has no telling name.
const NARRATION: &str = "7c9e6679-7425-40de-944b-e07fc1f90ae7";

impl Fate {
    /// Whether Redis loses the entry.
    pub(super) const fn loses_entry(self) -> bool {
        matches!(self, Self::WorkerDiesEntryLost | Self::WorkerDiesTracksDeleted | Self::WaitsEntryLost)
    }
}

/// All of them; at least one of each of the five tables.
pub(super) const SITUATIONS: [Situation; 15] = [
    Situation {
        table: Table::Slide,
        id: "slides-running",
        kind: "GENERATION",
        story: "a living worker is busy with it",
        fate: Fate::Runs,
        before: state("PROCESSING", "GENERATING", "active (alive)"),
        verdict: Verdict::LeftAlone("its entry is active"),
        recovered: state("PROCESSING", "GENERATING", "active (alive)"),
        end: state("COMPLETED", "READY", "completed"),
        runs_before: 1,
        runs_after: 0,
    },
    Situation {
        table: Table::Slide,
        id: "slides-old-id",
        kind: "GENERATION",
        story: "waits, under an old kind of id",
        fate: Fate::WaitsUnderOldId,
        before: state("QUEUED", "GENERATING", "waiting"),
        verdict: Verdict::LeftAlone("an entry's payload names it"),
        recovered: state("QUEUED", "GENERATING", "waiting"),
        end: state("COMPLETED", "READY", "completed"),
        runs_before: 0,
        runs_after: 1,
    },
    Situation {
        table: Table::Slide,
        id: "slides-tomorrow",
        kind: "GENERATION",
        story: "wanted in twelve hours",
        fate: Fate::Delayed,
        before: state("QUEUED", "GENERATING", "delayed"),
        verdict: Verdict::LeftAlone("its entry is delayed"),
        recovered: state("QUEUED", "GENERATING", "delayed"),
        end: state("QUEUED", "GENERATING", "delayed"),
        runs_before: 0,
        runs_after: 0,
    },
    Situation {
        table: Table::Slide,
        id: "slides-finished",
        kind: "GENERATION",
        story: "nothing is wrong with it",
        fate: Fate::Finishes,
        before: state("COMPLETED", "READY", "completed"),
        verdict: Verdict::LeftAlone("its row has ended"),
        recovered: state("COMPLETED", "READY", "completed"),
        end: state("COMPLETED", "READY", "completed"),
        runs_before: 1,
        runs_after: 0,
    },
    Situation {
        table: Table::Slide,
        id: "slides-failed",
        kind: "GENERATION",
        story: "failed in the queue, row not told",
        fate: Fate::Fails,
        before: state("PROCESSING", "GENERATING", "failed"),
        verdict: Verdict::PutBack("its deck is there and not finished"),
        recovered: state("QUEUED", "GENERATING", "delayed"),
        end: state("COMPLETED", "READY", "completed"),
        runs_before: 1,
        runs_after: 1,
    },
    Situation {
        table: Table::Slide,
        id: "outline-waiting",
        kind: "OUTLINE",
        story: "waited; its entry was lost",
        fate: Fate::WaitsEntryLost,
        before: state("QUEUED", "GENERATING", "none"),
        verdict: Verdict::PutBack("it had not begun"),
        recovered: state("QUEUED", "GENERATING", "delayed"),
        end: state("COMPLETED", "READY", "completed"),
        runs_before: 0,
        runs_after: 1,
    },
    Situation {
        table: Table::Slide,
        id: "outline-begun",
        kind: "OUTLINE",
        story: "worker killed; its entry was lost",
        fate: Fate::WorkerDiesEntryLost,
        before: state("PROCESSING", "GENERATING", "none"),
        verdict: Verdict::MarkedFailed,
        recovered: state("FAILED", "FAILED", "none"),
        end: state("FAILED", "FAILED", "none"),
        runs_before: 1,
        runs_after: 0,
    },
    Situation {
        table: Table::Video,
        id: "compose-lost",
        kind: "COMPOSITION",
        story: "worker killed; its entry was lost",
        fate: Fate::WorkerDiesEntryLost,
        before: state("PROCESSING", "COMPOSING", "none"),
        verdict: Verdict::PutBack("rebuilt from the video and its tracks"),
        recovered: state("QUEUED", "COMPOSING", "delayed"),
        end: state("COMPLETED", "READY", "completed"),
        runs_before: 1,
        runs_after: 1,
    },
    Situation {
        table: Table::Video,
        id: "compose-empty",
        kind: "COMPOSITION",
        story: "the same; the tracks are deleted",
        fate: Fate::WorkerDiesTracksDeleted,
        before: state("PROCESSING", "COMPOSING", "none"),
        verdict: Verdict::MarkedFailed,
        recovered: state("FAILED", "FAILED", "none"),
        end: state("FAILED", "FAILED", "none"),
        runs_before: 1,
        runs_after: 0,
    },
    Situation {
        table: Table::Video,
        id: "compose-stalled",
        kind: "COMPOSITION",
        story: "worker killed; the entry is there",
        fate: Fate::WorkerDies,
        before: state("PROCESSING", "COMPOSING", "active (dead)"),
        verdict: Verdict::LeftAlone("its entry is active; BullMQ will see to it"),
        recovered: state("PROCESSING", "COMPOSING", "active (dead)"),
        end: state("COMPLETED", "READY", "completed"),
        runs_before: 1,
        runs_after: 1,
    },
    Situation {
        table: Table::Video,
        id: "preview-lost",
        kind: "PREVIEW",
        story: "waited; its entry was lost",
        fate: Fate::WaitsEntryLost,
        before: state("QUEUED", "READY", "none"),
        verdict: Verdict::MarkedFailed,
        recovered: state("FAILED", "READY", "none"),
        end: state("FAILED", "READY", "none"),
        runs_before: 0,
        runs_after: 0,
    },
    Situation {
        table: Table::Narration,
        id: NARRATION,
        kind: "narration",
        story: "worker killed; its entry was lost",
        fate: Fate::WorkerDiesEntryLost,
        before: state("PROCESSING", "READY, narration NARRATING", "none"),
        verdict: Verdict::MarkedFailed,
        recovered: state("FAILED", "READY, narration FAILED", "none"),
        end: state("FAILED", "READY, narration FAILED", "none"),
        runs_before: 1,
        runs_after: 0,
    },
    Situation {
        table: Table::SlideExport,
        id: "pdf-lost",
        kind: "PDF",
        story: "worker killed; its entry was lost",
        fate: Fate::WorkerDiesEntryLost,
        before: state("PROCESSING", "READY, export EXPORTING", "none"),
        verdict: Verdict::MarkedFailed,
        recovered: state("FAILED", "READY, export FAILED", "none"),
        end: state("FAILED", "READY, export FAILED", "none"),
        runs_before: 1,
        runs_after: 0,
    },
    Situation {
        table: Table::VideoExport,
        id: "41",
        kind: "MP4",
        story: "waited; its entry was lost",
        fate: Fate::WaitsEntryLost,
        before: state("QUEUED", "READY, export EXPORTING", "none"),
        verdict: Verdict::MarkedFailed,
        recovered: state("FAILED", "READY, export FAILED", "none"),
        end: state("FAILED", "READY, export FAILED", "none"),
        runs_before: 0,
        runs_after: 0,
    },
    Situation {
        table: Table::VideoExport,
        id: "42",
        kind: "GIF",
        story: "waits for a worker",
        fate: Fate::Waits,
        before: state("QUEUED", "READY, export EXPORTING", "waiting"),
        verdict: Verdict::LeftAlone("its entry is waiting"),
        recovered: state("QUEUED", "READY, export EXPORTING", "waiting"),
        end: state("COMPLETED", "READY, export READY", "completed"),
        runs_before: 0,
        runs_after: 1,
    },
];

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn every_table_has_a_situation_and_no_id_is_there_twice() {
        let tables: BTreeSet<Table> = SITUATIONS.iter().map(|situation| situation.table).collect();
        assert_eq!(tables, BTreeSet::from(Table::ALL));
        let keys: BTreeSet<_> = SITUATIONS.iter().map(Situation::key).collect();
        assert_eq!(keys.len(), SITUATIONS.len());
    }

    #[test]
    fn what_is_left_alone_is_expected_unchanged() {
        for Situation { id, verdict, before, recovered, .. } in &SITUATIONS {
            if matches!(verdict, Verdict::LeftAlone(_)) {
                assert_eq!(format!("{before:?}"), format!("{recovered:?}"), "{id}");
            }
        }
    }
}
