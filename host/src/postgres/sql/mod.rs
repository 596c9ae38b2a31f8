//! The one module that builds SQL text at run time.
//!
//! What is built from: identifiers, always quoted; literals, always escaped; casts of parameters. Values are bound as
//! text and cast in SQL, so the driver need not know an application's types. Columns are qualified by their table's
//! alias everywhere, ORDER BY included: `SELECT id::text … ORDER BY id` would sort by the text, lose the index and skip
//! bigint rows. Live statuses are literals, because a parameter alone defeats the partial index in a generic plan.
//!
//! Nothing here depends on the session's time zone: a `timestamp` is UTC by the application's rule, a `timestamptz` is
//! brought there, and instants arrive as RFC 3339 text with their zone.
//!
//! | file | statements |
//! |---|---|
//! | `rows` | that read job rows |
//! | `inputs` | that read what `decide` is shown |
//! | `act` | that lock and write |
//! | `indexes` | that make the live-row index |

mod act;
mod indexes;
mod inputs;
mod rows;

use salvage_core::act::{LOCK_TIMEOUT, STATEMENT_TIMEOUT};
use salvage_core::source::IdKind;

pub(super) use act::{found_row, live_sibling, lock_job, lock_parent, update_job, update_parent};
pub(super) use indexes::{create_live_row_index, drop_index};
pub(super) use inputs::{job_objects, read_objects};
pub(super) use rows::{census, existing, explain_live_rows, live_rows, not_live_among, young_rows};

use super::session::Mode;

/// SQL built from quoted identifiers, escaped literals and parameters.
pub(super) struct Text(pub(super) String);

/// How long the raising of a fence waits for its row: until PostgreSQL has ended a holder that froze.
const RAISE_LOCK_TIMEOUT_MS: u128 = STATEMENT_TIMEOUT.as_millis() + 500;

/// BEGIN, and the limits within which PostgreSQL itself ends a transaction of ours that hangs. One round trip.
pub(super) fn opening(mode: Mode) -> Text {
    // Planned once a connection, not for the first values of each statement.
    let plan = if mode == Mode::Write { "; SET LOCAL plan_cache_mode = force_generic_plan" } else { "" };
    let begin = match mode {
        // One snapshot, so that what belongs together is seen together.
        Mode::Read => "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY",
        // After waiting for a lock, the newest committed row is what counts.
        Mode::Write | Mode::Raise => "BEGIN ISOLATION LEVEL READ COMMITTED",
    };
    // What the driver asks for when it connects, so that it changes nothing, which PostgreSQL would report twice.
    let dates = "SET LOCAL datestyle = 'ISO, MDY'";
    let statement_ms = STATEMENT_TIMEOUT.as_millis();
    let (lock_ms, statement_ms, idle_ms) = match mode {
        Mode::Read | Mode::Write => (LOCK_TIMEOUT.as_millis(), statement_ms, statement_ms),
        Mode::Raise => (RAISE_LOCK_TIMEOUT_MS, RAISE_LOCK_TIMEOUT_MS + 500, statement_ms),
    };
    Text(format!(
        "{begin}; SET LOCAL lock_timeout = {lock_ms}; SET LOCAL statement_timeout = {statement_ms}; \
         SET LOCAL idle_in_transaction_session_timeout = {idle_ms}; {dates}; SET LOCAL quote_all_identifiers = off{plan}"
    ))
}

/// Generation and pass token of a scope, and a share lock on them. The scope is written out, for this is asked together with
/// [`opening`].
pub(super) fn read_fence(scope: &str) -> Text {
    let scope = literal(scope);
    Text(format!(
        "SELECT f.generation, f.pass_token FROM salvage.fence AS f WHERE f.scope = {scope} FOR SHARE"
    ))
}

/// The rest of the transaction runs with this role's rights.
pub(super) fn take_role(role: &str) -> Text {
    Text(format!("SET LOCAL ROLE {}", identifier(role)))
}

/// It runs with the rights again with which it began.
pub(super) fn leave_role() -> Text {
    Text("SET LOCAL ROLE NONE".to_owned())
}

/// A name as PostgreSQL's catalog has it, quoted.
pub(super) fn identifier(name: &str) -> String {
    format!("\"{}\"", without_nul(name).replace('"', "\"\""))
}

/// `Table` or `schema.table` as the catalog has them, quoted.
pub(super) fn table(name: &str) -> String {
    match name.split_once('.') {
        Some((schema, table)) => format!("{}.{}", identifier(schema), identifier(table)),
        None => identifier(name),
    }
}

/// A column of the table with this alias.
fn column(alias: &str, name: &str) -> String {
    format!("{alias}.{}", identifier(name))
}

/// A string constant, whatever `standard_conforming_strings` says.
fn literal(text: &str) -> String {
    let quoted = without_nul(text).replace('\'', "''");
    if quoted.contains('\\') { format!("E'{}'", quoted.replace('\\', "\\\\")) } else { format!("'{quoted}'") }
}

/// String constants for `IN (…)`; `NULL`, which nothing is in, if there is none.
fn literals<'a>(texts: impl IntoIterator<Item = &'a String>) -> String {
    let texts: Vec<String> = texts.into_iter().map(|text| literal(text)).collect();
    if texts.is_empty() { "NULL".to_owned() } else { texts.join(", ") }
}

/// PostgreSQL's text holds no NUL, so no name or status equals one that does; in a statement it would end the text.
fn without_nul(text: &str) -> String {
    text.replace('\0', "\u{fffd}")
}

/// The SQL type of an id.
fn id_type(kind: IdKind) -> &'static str {
    match kind {
        IdKind::Text => "text",
        IdKind::Uuid => "uuid",
        IdKind::Bigint => "bigint",
    }
}

/// Which kind of id a column of this SQL type holds, if any.
pub(super) fn id_kind(sql_type: &str) -> Option<IdKind> {
    match base(sql_type) {
        "text" | "character varying" => Some(IdKind::Text),
        "uuid" => Some(IdKind::Uuid),
        "bigint" | "integer" => Some(IdKind::Bigint),
        _ => None,
    }
}

/// A type's name without its modifier: `numeric` of `numeric(10,2)`.
pub(super) fn base(sql_type: &str) -> &str {
    sql_type.split_once('(').map_or(sql_type, |(base, _)| base)
}

/// A column's time type.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct TimeType {
    has_zone: bool,
    /// Digits of a second it keeps.
    digits: u8,
}

impl TimeType {
    /// Reads what `format_type` prints, e.g. `timestamp(3) without time zone`; `None` for another type.
    pub(super) fn parse(sql_type: &str) -> Option<Self> {
        let rest = sql_type.strip_prefix("timestamp")?;
        let (digits, rest) = match rest.strip_prefix('(') {
            Some(rest) => {
                let (digits, rest) = rest.split_once(')')?;
                (digits.parse().ok()?, rest)
            }
            None => (6, rest),
        };
        match rest {
            " without time zone" => Some(Self { has_zone: false, digits }),
            " with time zone" => Some(Self { has_zone: true, digits }),
            _ => None,
        }
    }

    /// The value as a `timestamp` that reads UTC.
    fn utc(self, expression: &str) -> String {
        if self.has_zone { format!("({expression} AT TIME ZONE 'UTC')") } else { expression.to_owned() }
    }

    /// A parameter that holds RFC 3339 text, as a value of this type. In a query of its own, or it would be parsed anew for
    /// each row that is compared with it: the conversion depends on the session's settings.
    fn instant(self, parameter: &str) -> String {
        let zone = if self.has_zone { "" } else { " AT TIME ZONE 'UTC'" };
        format!("(SELECT {parameter}::text::timestamptz{zone})")
    }

    /// The database's clock, or one unit of the column's precision after its old value, whichever is later: a write that
    /// is always visible in the column.
    fn later(self, expression: &str) -> String {
        let clock =
            if self.has_zone { "clock_timestamp()" } else { "(clock_timestamp() AT TIME ZONE 'UTC')" };
        let digits = usize::from(self.digits);
        let unit = if digits == 0 { "1".to_owned() } else { format!("0.{}1", "0".repeat(digits - 1)) };
        format!("GREATEST({clock}, {expression} + interval '{unit} second')")
    }
}

/// The type of a time column that [`super::catalog`] has checked.
fn time_type(sql_type: Option<&str>) -> TimeType {
    sql_type.and_then(TimeType::parse).expect("a source is resolved only if its time columns are timestamps")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_constants_cannot_leave_their_quotes() {
        assert_eq!(identifier("a\"b"), "\"a\"\"b\"");
        assert_eq!(table("app.SlideJob"), "\"app\".\"SlideJob\"");
        assert_eq!(literal("it's"), "'it''s'");
        assert_eq!(literal("\\'; DROP"), "E'\\\\''; DROP'");
        assert_eq!(literal("a\0b"), "'a\u{fffd}b'");
        assert_eq!(literals([]), "NULL");
    }

    #[test]
    fn time_types_are_told_apart_and_keep_their_precision() {
        let of = |text: &str| TimeType::parse(text);
        assert_eq!(of("timestamp(3) without time zone"), Some(TimeType { has_zone: false, digits: 3 }));
        assert_eq!(of("timestamp with time zone"), Some(TimeType { has_zone: true, digits: 6 }));
        assert_eq!(of("timestamp(0) with time zone"), Some(TimeType { has_zone: true, digits: 0 }));
        assert_eq!(of("time without time zone"), None);
        assert_eq!(of("date"), None);
    }

    #[test]
    fn the_next_instant_is_one_unit_of_the_column_later() {
        let later = |digits| TimeType { has_zone: true, digits }.later("j.at");
        assert_eq!(later(3), "GREATEST(clock_timestamp(), j.at + interval '0.001 second')");
        assert_eq!(later(6), "GREATEST(clock_timestamp(), j.at + interval '0.000001 second')");
        assert_eq!(later(0), "GREATEST(clock_timestamp(), j.at + interval '1 second')");
    }
}
