//! Reading job rows: which are live, and which ids name one.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::time::Duration;

use jiff::Timestamp;
use jiff::civil::DateTime;
use jiff::tz::TimeZone;
use salvage_core::candidate::LiveRow;
use salvage_core::source::ResolvedSource;

use super::session::{Mode, Statement};
use super::{Postgres, sql};
use crate::ports::{Census, Group, StoreFailure};

/// How far ahead the application's clock may be before its rows are reported as skewed.
const CLOCK_DRIFT: Duration = Duration::from_secs(60);

pub(super) async fn now(postgres: &Postgres) -> Result<Timestamp, StoreFailure> {
    let attempted = "read its clock";
    let mut session = postgres.open(Mode::Read, attempted).await?;
    let statement = "SELECT round(extract(epoch FROM clock_timestamp()) * 1000000)::bigint";
    let (micros,): (i64,) = session.one(Statement::fixed(statement)).await?;
    session.commit().await?;
    instant(micros).ok_or_else(|| StoreFailure::Unexpected {
        attempted: attempted.to_owned(),
        detail: format!("{micros} µs since 1970 is not a time"),
    })
}

pub(super) async fn census(
    postgres: &Postgres,
    source: &ResolvedSource,
    declared: &BTreeSet<String>,
    now: Timestamp,
) -> Result<Census, StoreFailure> {
    let mut session =
        postgres.open_for(source, Mode::Read, format!("count the live rows of {}", source.name)).await?;
    let declared: Vec<&str> = declared.iter().map(String::as_str).collect();
    let ahead = now.checked_add(CLOCK_DRIFT).unwrap_or(Timestamp::MAX);
    let statement = Statement::built(sql::census(source)).bind(declared).bind(rfc3339(ahead));
    let (live, undeclared, clock_skew): (i64, i64, i64) = session.one(statement).await?;
    session.commit().await?;
    Ok(Census {
        live: live.unsigned_abs(),
        undeclared: undeclared.unsigned_abs(),
        clock_skew: clock_skew.unsigned_abs(),
    })
}

/// A row as it comes: id, status, updatedAt, xmin, type.
type Row = (String, String, Option<String>, String, Option<String>);

pub(super) async fn live_rows(
    postgres: &Postgres,
    source: &ResolvedSource,
    before: Timestamp,
    after: Option<&str>,
    limit: u32,
) -> Result<Vec<LiveRow>, StoreFailure> {
    let mut session =
        postgres.open_for(source, Mode::Read, format!("list the candidates of {}", source.name)).await?;
    let mut statement =
        Statement::built(sql::live_rows(source, after.is_none(), limit)).bind(rfc3339(before));
    if let Some(after) = after {
        statement = statement.bind(after);
    }
    let rows: Vec<Row> = session.all(statement).await?;
    session.commit().await?;
    Ok(rows.into_iter().map(live_row).collect())
}

pub(super) async fn young_rows(
    postgres: &Postgres,
    source: &ResolvedSource,
    groups: &[Group],
    limit: u32,
) -> Result<Vec<LiveRow>, StoreFailure> {
    let attempted = format!("read young rows of {}", source.name);
    let mut session = postgres.open_for(source, Mode::Read, attempted).await?;
    let mut statement = Statement::built(sql::young_rows(source, groups, limit));
    for Group { from, before, .. } in groups {
        statement = statement.bind(rfc3339(*from)).bind(rfc3339(*before));
    }
    let rows: Vec<Row> = session.all(statement).await?;
    session.commit().await?;
    Ok(rows.into_iter().map(live_row).collect())
}

impl Postgres {
    /// How PostgreSQL finds a page of candidates of `limit` rows: the lines of EXPLAIN, for `doctor`. The plan is the
    /// generic one, which serves every cutoff and is what a long-lived connection ends up with.
    ///
    /// # Errors
    /// If the table could not be read.
    pub async fn candidates_plan(
        &self,
        source: &ResolvedSource,
        limit: u32,
    ) -> Result<Vec<String>, StoreFailure> {
        let attempted = format!("explain how the candidates of {} are found", source.name);
        let mut session = self.open(Mode::Read, attempted).await?;
        let [generic, prepare, explain, deallocate] = sql::explain_live_rows(source, limit);
        session.control(generic).await?;
        session.control(prepare).await?;
        let lines: Vec<(String,)> = session.all(Statement::built(explain)).await?;
        session.control(deallocate).await?;
        session.commit().await?;
        Ok(lines.into_iter().map(|(line,)| line).collect())
    }
}

/// A time beyond the years 1 to 9999 is as odd as an infinite one: it becomes `None`.
fn live_row((id, status, updated_at, xmin, job_type): Row) -> LiveRow {
    let updated = updated_at.as_deref().and_then(utc);
    LiveRow { id, status, job_type, updated_at: updated_at.filter(|_| updated.is_some()), updated, xmin }
}

/// The instant of a `timestamp` that reads UTC, as PostgreSQL writes it.
fn utc(text: &str) -> Option<Timestamp> {
    TimeZone::UTC.to_timestamp(text.parse::<DateTime>().ok()?).ok()
}

/// Nearly all ids that are asked about are live rows, so PostgreSQL names the others, by their places.
pub(super) async fn are_live(
    postgres: &Postgres,
    source: &ResolvedSource,
    row_ids: &[Cow<'_, str>],
) -> Result<Vec<bool>, StoreFailure> {
    let attempted = format!("look for live rows of {} by id", source.name);
    let mut session = postgres.open_for(source, Mode::Read, attempted.clone()).await?;
    // NULL is no row's id.
    let ids: Vec<Option<&str>> = row_ids.iter().map(|id| Some(&**id).filter(|id| fits(source, id))).collect();
    let (others,): (Vec<i64>,) = session.one(Statement::built(sql::not_live_among(source)).bind(ids)).await?;
    session.commit().await?;
    let mut are_live = vec![true; row_ids.len()];
    for place in others {
        let at = usize::try_from(place - 1).ok().and_then(|at| are_live.get_mut(at));
        *at.ok_or_else(|| StoreFailure::Unexpected {
            attempted: attempted.clone(),
            detail: format!("a place {place} among {} ids", row_ids.len()),
        })? = false;
    }
    Ok(are_live)
}

pub(super) async fn existing(
    postgres: &Postgres,
    source: &ResolvedSource,
    row_ids: &[String],
) -> Result<BTreeSet<String>, StoreFailure> {
    let mut session =
        postgres.open_for(source, Mode::Read, format!("look for rows of {} by id", source.name)).await?;
    let ids: Vec<&String> = row_ids.iter().filter(|id| fits(source, id)).collect();
    let found: Vec<(String,)> = session.all(Statement::built(sql::existing(source)).bind(ids)).await?;
    session.commit().await?;
    Ok(found.into_iter().map(|(id,)| id).collect())
}

/// Whether a column of this kind can hold it; what it cannot hold names no row, and would be an error.
fn fits(source: &ResolvedSource, row_id: &str) -> bool {
    !row_id.contains('\0') && source.id_kind.canonical(row_id).is_some()
}

/// Text that PostgreSQL reads as a `timestamptz`, whatever its settings; it has no years before 1.
pub(super) fn rfc3339(instant: Timestamp) -> String {
    if instant.as_second() < YEAR_1 { "-infinity".to_owned() } else { instant.to_string() }
}

/// Seconds from 1970 back to 0001-01-01.
const YEAR_1: i64 = -62_135_596_800;

pub(super) fn instant(micros: i64) -> Option<Timestamp> {
    Timestamp::from_microsecond(micros).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn instants_are_text_with_their_zone() {
        let at = instant(1_769_850_000_123_456).expect("a time in range");
        assert_eq!(rfc3339(at), "2026-01-31T09:00:00.123456Z");
        assert_eq!(rfc3339(Timestamp::MIN), "-infinity");
        assert_eq!(instant(i64::MAX), None);
    }

    #[test]
    fn a_time_of_postgresql_is_read_as_it_writes_it_and_an_odd_one_is_none() {
        let at = |text| utc(text).map(Timestamp::as_microsecond);
        assert_eq!(at("2026-01-31 09:00:00.123456"), Some(1_769_850_000_123_456));
        assert_eq!(at("2026-01-31 09:00:00"), Some(1_769_850_000_000_000));
        assert_eq!(at("1969-12-31 23:59:59.9"), Some(-100_000));
        for odd in ["0044-03-15 12:00:00 BC", "294276-12-31 23:59:59", "infinity", ""] {
            assert_eq!(at(odd), None, "{odd}");
        }
    }
}
