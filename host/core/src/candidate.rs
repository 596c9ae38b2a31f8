//! Rows that may need recovery, and what we hold of them between reading and writing.

use std::time::Duration;

use jiff::Timestamp;
use serde::Serialize;

use crate::manifest::JobType;
use crate::source::ResolvedSource;

/// The two statuses a candidate may have. Their names in the table are the manifest's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
pub enum LiveStatus {
    /// Waits for a worker.
    Queued,
    /// A worker has taken it.
    Processing,
}

/// What we read of a row; every write repeats the whole of it.
///
/// `updated_at` and `xmin` are PostgreSQL's own text, so that no rounding lies between reading and comparing. `xmin` sees
/// writes that change neither status nor `updated_at`.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize)]
pub struct RowToken {
    /// Primary key, as text.
    pub id: String,
    /// Status, as text.
    pub status: String,
    /// UTC, as `timestamp` prints it: `2026-01-31 09:00:00.123456`.
    pub updated_at: String,
    /// Transaction id of the row's last writer, as text.
    pub xmin: String,
}

/// A live row as the candidate query returns it: any value may be odd.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LiveRow {
    /// Primary key, as text.
    pub id: String,
    /// Status, as text.
    pub status: String,
    /// Type; `None` if NULL.
    pub job_type: Option<String>,
    /// UTC text; `None` if NULL or not finite.
    pub updated_at: Option<String>,
    /// The same instant; `None` if NULL or not finite.
    pub updated: Option<Timestamp>,
    /// As in [`RowToken`].
    pub xmin: String,
}

/// A row that may need recovery.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Candidate {
    /// Index of its source in the pass's list.
    pub source: usize,
    /// What every write must repeat.
    pub token: RowToken,
    /// Which live status `token.status` is.
    pub status: LiveStatus,
    /// One of the source's declared types.
    pub job_type: String,
    /// When the row was last written, by its own column.
    pub updated: Timestamp,
}

/// What a live row turns out to be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Sorted {
    /// Old enough: look it up.
    Candidate(Candidate),
    /// Not old enough yet.
    Fresh,
    /// A type no source declares.
    Undeclared,
    /// This row cannot be judged; the sentence says why.
    Odd(LiveRow, String),
}

/// Sorts one live row by the thresholds of its type and status.
///
/// `now` is the database's clock, read once per pass; `default_stale_after` is the operator's.
#[must_use]
pub fn sort(
    row: LiveRow,
    source: usize,
    of: &ResolvedSource,
    now: Timestamp,
    default_stale_after: Duration,
) -> Sorted {
    match of_any_age(row, source, of) {
        Sorted::Candidate(candidate)
            if of.declared.job_type(&candidate.job_type).is_some_and(|job_type| {
                candidate.updated >= cutoff(job_type, candidate.status, now, default_stale_after)
            }) =>
        {
            Sorted::Fresh
        }
        sorted => sorted,
    }
}

/// Sorts one live row as if it were old enough.
#[must_use]
pub fn of_any_age(row: LiveRow, source: usize, of: &ResolvedSource) -> Sorted {
    let table = &of.declared.table;
    let status = match &row.status {
        status if *status == table.queued => LiveStatus::Queued,
        status if *status == table.processing => LiveStatus::Processing,
        other => {
            let why = format!("its status is {other:?}, which the manifest does not name");
            return Sorted::Odd(row, why);
        }
    };
    let job_type = match (&table.job_type, &row.job_type) {
        (None, _) => of.declared.job_types.first(),
        (Some(_), Some(name)) => of.declared.job_type(name),
        (Some(_), None) => None,
    };
    let Some(job_type) = job_type else { return Sorted::Undeclared };
    let (Some(updated_at), Some(updated)) = (row.updated_at.clone(), row.updated) else {
        return Sorted::Odd(row, format!("its {} is NULL or not a finite time", table.updated_at));
    };
    if of.id_kind.canonical(&row.id).as_deref() != Some(&row.id) {
        let why = "its id is empty or of another form, so no entry could be matched with it";
        return Sorted::Odd(row, why.to_owned());
    }
    let token = RowToken { id: row.id, status: row.status, updated_at, xmin: row.xmin };
    Sorted::Candidate(Candidate { source, token, status, job_type: job_type.name.clone(), updated })
}

/// Rows written at or after this instant are fresh.
#[must_use]
pub fn cutoff(
    job_type: &JobType,
    status: LiveStatus,
    now: Timestamp,
    default_stale_after: Duration,
) -> Timestamp {
    let declared = match status {
        LiveStatus::Queued => job_type.stale_after_queued,
        LiveStatus::Processing => job_type.stale_after_processing,
    };
    now.checked_sub(declared.unwrap_or(default_stale_after)).unwrap_or(Timestamp::MIN)
}

/// The latest cutoff of a source: no row written after it can be a candidate, so the query need not return it.
#[must_use]
pub fn latest_cutoff(source: &ResolvedSource, now: Timestamp, default_stale_after: Duration) -> Timestamp {
    let statuses = [LiveStatus::Queued, LiveStatus::Processing];
    let types = source.declared.job_types.iter();
    types
        .flat_map(|job_type| statuses.map(|status| cutoff(job_type, status, now, default_stale_after)))
        .max()
        .unwrap_or(Timestamp::MIN)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures;
    use crate::source::IdKind;

    const HOUR: Duration = Duration::from_secs(3600);

    fn now() -> Timestamp {
        Timestamp::from_second(1_000_000).expect("a time in range")
    }

    fn row(status: &str, job_type: Option<&str>, age_s: i64) -> LiveRow {
        LiveRow {
            id: "7".into(),
            status: status.into(),
            job_type: job_type.map(Into::into),
            updated_at: Some("2026-01-31 09:00:00".into()),
            updated: Timestamp::from_second(1_000_000 - age_s).ok(),
            xmin: "1".into(),
        }
    }

    fn source() -> ResolvedSource {
        let mut source = fixtures::source("jobs", IdKind::Text, &[("q", "{id}")]);
        source.declared.job_types[0].stale_after_queued = Some(HOUR * 3);
        source
    }

    fn check(row: &LiveRow, expected: &str) {
        let found = match sort(row.clone(), 0, &source(), now(), HOUR) {
            Sorted::Candidate(candidate) => format!("candidate {:?}", candidate.status),
            Sorted::Fresh => "fresh".into(),
            Sorted::Undeclared => "undeclared".into(),
            Sorted::Odd(..) => "odd".into(),
        };
        assert_eq!(found, expected, "{row:?}");
    }

    #[test]
    fn each_type_and_status_has_its_own_threshold() {
        check(&row("PROCESSING", Some("T"), 3_600), "fresh");
        check(&row("PROCESSING", Some("T"), 3_601), "candidate Processing");
        check(&row("QUEUED", Some("T"), 3_601), "fresh");
        check(&row("QUEUED", Some("T"), 3 * 3_600 + 1), "candidate Queued");
        assert_eq!(latest_cutoff(&source(), now(), HOUR), Timestamp::from_second(996_400).expect("in range"));
    }

    #[test]
    fn what_nobody_declares_is_not_a_candidate() {
        check(&row("PROCESSING", Some("NEW"), 9_999), "undeclared");
        check(&row("PROCESSING", None, 9_999), "undeclared");
    }

    #[test]
    fn an_odd_row_is_told_apart() {
        check(&row("RESUMED", Some("T"), 9_999), "odd");
        check(&LiveRow { id: String::new(), ..row("PROCESSING", Some("T"), 9_999) }, "odd");
        check(&LiveRow { updated_at: None, updated: None, ..row("PROCESSING", Some("T"), 0) }, "odd");
    }
}
