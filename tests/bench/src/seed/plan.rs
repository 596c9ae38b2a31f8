//! Which jobs there are, what their rows say, and where their entries are.

use super::Mix;
use anyhow::{Context, Result, bail};
use serde::Serialize;
use std::fmt;
use std::str::FromStr;

/// How many entries all queues hold together, and how many candidates there are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Size {
    pub(crate) ids: usize,
    pub(crate) candidates: usize,
}

impl FromStr for Size {
    type Err = anyhow::Error;

    /// `100k/10k`, `1M/100k`, `5000/500`.
    fn from_str(text: &str) -> Result<Self> {
        let (ids, candidates) = text.split_once('/').context("expected IDS/CANDIDATES, such as 100k/10k")?;
        let (ids, candidates) = (count(ids)?, count(candidates)?);
        if candidates > ids {
            bail!("{text}: more candidates than ids");
        }
        Ok(Self { ids, candidates })
    }
}

fn count(text: &str) -> Result<usize> {
    let (digits, unit) = match text.as_bytes().last() {
        Some(b'k') => (&text[..text.len() - 1], 1_000),
        Some(b'M') => (&text[..text.len() - 1], 1_000_000),
        _ => (text, 1),
    };
    let number: usize = digits.parse().with_context(|| format!("{text:?} is no number such as 10k or 1M"))?;
    Ok(number * unit)
}

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let short = |number: usize| match number {
            0 => "0".to_owned(),
            n if n % 1_000_000 == 0 => format!("{}M", n / 1_000_000),
            n if n % 1_000 == 0 => format!("{}k", n / 1_000),
            n => n.to_string(),
        };
        write!(f, "{}/{}", short(self.ids), short(self.candidates))
    }
}

/// A job table and its queue.
#[derive(Debug)]
pub(crate) struct Table {
    /// As SQL writes it.
    pub(crate) name: &'static str,
    pub(crate) id: IdKind,
    /// The column of the parent's id.
    pub(crate) parent: &'static str,
    /// The column of the job type, and the type.
    pub(crate) kind: &'static str,
    pub(crate) kind_value: &'static str,
    pub(crate) created_at: &'static str,
    pub(crate) updated_at: &'static str,
    /// Of decks or of videos.
    pub(crate) is_of_deck: bool,
    pub(crate) queue: &'static str,
    /// An entry's id is this and the row's id.
    pub(crate) entry_prefix: &'static str,
    pub(crate) job_name: &'static str,
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum IdKind {
    Text,
    Uuid,
    Bigint,
}

const SLIDE_JOB: Table = Table {
    name: "\"SlideJob\"",
    id: IdKind::Text,
    parent: "\"deckId\"",
    kind: "type",
    kind_value: "GENERATION",
    created_at: "\"createdAt\"",
    updated_at: "\"updatedAt\"",
    is_of_deck: true,
    queue: "slide-generation",
    entry_prefix: "slide-",
    job_name: "generate",
};

/// So many of the tables come first whose lost jobs are put back; those of the others, exports, are failed.
const PUT_BACK: usize = 3;

/// As in `migrations/example`.
pub(crate) const TABLES: [Table; 5] = [
    SLIDE_JOB,
    Table {
        name: "\"VideoJob\"",
        parent: "\"videoId\"",
        kind_value: "COMPOSITION",
        is_of_deck: false,
        queue: "video-composition",
        entry_prefix: "video-",
        job_name: "compose",
        ..SLIDE_JOB
    },
    Table {
        name: "narration_jobs",
        id: IdKind::Uuid,
        parent: "video_id",
        kind: "kind",
        kind_value: "narration",
        created_at: "created_at",
        updated_at: "updated_at",
        is_of_deck: false,
        queue: "narration",
        entry_prefix: "",
        job_name: "narrate",
    },
    Table {
        name: "\"SlideExportJob\"",
        kind: "format",
        kind_value: "PDF",
        queue: "slide-export",
        entry_prefix: "export-",
        job_name: "export",
        ..SLIDE_JOB
    },
    Table {
        name: "\"VideoExportJob\"",
        id: IdKind::Bigint,
        parent: "\"videoId\"",
        kind: "format",
        kind_value: "MP4",
        is_of_deck: false,
        queue: "video-export",
        entry_prefix: "export-",
        job_name: "export",
        ..SLIDE_JOB
    },
];

/// What became of a job's entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    /// Listed under the current id rule.
    Current,
    /// Listed under an id that BullMQ counted out.
    OldId,
    Completed,
    Failed,
    Absent,
}

impl Fate {
    /// Whether the entry is in one of the scheduled states.
    pub(super) const fn is_listed(self) -> bool {
        matches!(self, Self::Current | Self::OldId)
    }
}

/// The fate of a candidate. The tables take turns, and each has its share of every fate.
pub(super) const fn fate(number: usize, mix: Mix) -> Fate {
    match mix {
        Mix::AllScheduled => Fate::Current,
        Mix::HalfAbsent => {
            let is_put_back = number % TABLES.len() < PUT_BACK;
            if is_put_back && (number / TABLES.len()).is_multiple_of(2) {
                Fate::Absent
            } else {
                Fate::Current
            }
        }
        Mix::Usual => match number / TABLES.len() % 20 {
            0..=13 => Fate::Current,
            14..=15 => Fate::OldId,
            16 => Fate::Completed,
            17 => Fate::Failed,
            _ => Fate::Absent,
        },
    }
}

/// One row and its entry.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Job {
    /// Unique among all jobs.
    pub(crate) number: usize,
    pub(crate) fate: Fate,
    /// Touched two hours ago, not five minutes ago.
    pub(crate) is_candidate: bool,
}

impl Job {
    pub(super) const fn candidate(number: usize, mix: Mix) -> Self {
        Self { number, fate: fate(number, mix), is_candidate: true }
    }

    pub(super) const fn fresh(number: usize) -> Self {
        Self { number, fate: Fate::Current, is_candidate: false }
    }

    pub(crate) const fn table(self) -> &'static Table {
        &TABLES[self.number % TABLES.len()]
    }

    /// Scattered, as ids made by a random generator are; numbers go up one by one.
    pub(crate) fn row_id(self) -> String {
        let [high, low] = [0, 1].map(|salt| scattered(self.number as u64 * 2 + salt));
        match self.table().id {
            IdKind::Text => format!("c{high:016x}{:08x}", low >> 32),
            IdKind::Uuid => format!(
                "{:08x}-{:04x}-4{:03x}-8{:03x}-{:012x}",
                high >> 32,
                high >> 16 & 0xffff,
                high & 0xfff,
                low >> 48 & 0xfff,
                low & 0xffff_ffff_ffff
            ),
            IdKind::Bigint => (1_000_000 + self.number).to_string(),
        }
    }

    pub(crate) fn entry_id(self) -> String {
        match self.fate {
            Fate::OldId => (self.number + 1).to_string(),
            _ => format!("{}{}", self.table().entry_prefix, self.row_id()),
        }
    }

    pub(crate) fn parent_id(self) -> String {
        format!("parent-{}", self.number)
    }

    pub(crate) const fn status(self) -> &'static str {
        // Not in step with the tables or the fates.
        if self.number.is_multiple_of(3) { "QUEUED" } else { "PROCESSING" }
    }

    /// The key of the state that lists the entry.
    pub(crate) const fn state(self) -> &'static str {
        match self.fate {
            Fate::Completed => "completed",
            Fate::Failed => "failed",
            _ => match self.number * 7_919 % 100 {
                0..70 => "wait",
                70..85 => "delayed",
                85..95 => "prioritized",
                95..99 => "waiting-children",
                _ => "active",
            },
        }
    }
}

/// Steele and others' `SplitMix64`: neighbours become far apart, and no two the same.
const fn scattered(number: u64) -> u64 {
    let a = number.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let b = (a ^ a >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let c = (b ^ b >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    c ^ c >> 31
}

#[cfg(test)]
mod tests {
    use super::super::Seed;
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn sizes_are_read_as_they_are_printed() {
        for text in ["10k/1k", "1M/100k", "5500/500", "2k/0"] {
            assert_eq!(text.parse::<Size>().expect(text).to_string(), text);
        }
        for text in ["10k", "1k/10k", "x/1", "10m/1k"] {
            assert!(text.parse::<Size>().is_err(), "{text}");
        }
    }

    #[test]
    fn a_seed_has_its_sizes_and_its_mix_in_every_table() {
        let size = Size { ids: 5_000, candidates: 1_000 };
        let jobs: Vec<Job> = Seed::usual(size).jobs().collect();
        assert_eq!(jobs.iter().filter(|job| job.fate.is_listed()).count(), 5_000);
        for table in &TABLES {
            let count = |fate| {
                let own = jobs.iter().filter(|job| job.table().name == table.name && job.is_candidate);
                own.filter(|job| job.fate == fate).count()
            };
            let counts = [Fate::Current, Fate::OldId, Fate::Completed, Fate::Failed, Fate::Absent].map(count);
            assert_eq!(counts, [140, 20, 10, 10, 20], "{}", table.name);
        }
    }

    #[test]
    fn half_of_what_is_put_back_is_gone_and_no_more() {
        for (at, table) in TABLES.iter().enumerate() {
            let candidates = (0..5_000).map(|number| Job::candidate(number, Mix::HalfAbsent));
            let own = candidates.filter(|job| job.table().name == table.name);
            let absent = own.filter(|job| job.fate == Fate::Absent).count();
            assert_eq!(absent, if at < PUT_BACK { 500 } else { 0 }, "{}", table.name);
        }
    }

    #[test]
    fn no_two_jobs_share_an_id() {
        let jobs = Seed::usual(Size { ids: 20_000, candidates: 2_000 }).jobs();
        let ids: Vec<(&str, String)> = jobs.map(|job| (job.table().name, job.row_id())).collect();
        assert_eq!(ids.iter().collect::<BTreeSet<_>>().len(), ids.len());
    }
}
