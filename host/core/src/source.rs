//! A source as the pass uses it: what the handler declared, joined with what the catalog and the grants say.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use serde::{Deserialize, Serialize};

use crate::manifest::{ParentChange, Source};

/// `domain/source`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct SourceName {
    /// The handler's domain.
    pub domain: String,
    /// The source within it.
    pub source: String,
}

impl fmt::Display for SourceName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.domain, self.source)
    }
}

/// What the operator lets the host do for a handler.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Standing {
    /// Granted: its orphans are acted on.
    Active,
    /// Loaded without a grants entry: judged and planned, never acted on.
    Observed,
}

/// A declared source whose tables and columns exist.
#[derive(Debug, Clone)]
pub struct ResolvedSource {
    /// Its full name.
    pub name: SourceName,
    /// What the handler declared.
    pub declared: Source,
    /// Type of the id column.
    pub id_kind: IdKind,
    /// Types of every column the manifest names.
    pub types: ColumnTypes,
    /// Whether its orphans may be acted on.
    pub standing: Standing,
    /// SHA-256 of the component, hex.
    pub component_digest: String,
    /// The role under which PostgreSQL runs what is read and written for it.
    pub database_role: Option<String>,
}

/// SQL types by table and column, as `format_type` prints them, e.g. `timestamp(3) without time zone`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ColumnTypes {
    types: BTreeMap<(String, String), String>,
    not_null: BTreeSet<(String, String)>,
}

impl ColumnTypes {
    /// Remembers a column's type.
    pub fn insert(&mut self, table: &str, column: &str, sql_type: &str) {
        self.types.insert((table.to_owned(), column.to_owned()), sql_type.to_owned());
    }

    /// Remembers that a column is NOT NULL.
    pub fn insert_not_null(&mut self, table: &str, column: &str) {
        self.not_null.insert((table.to_owned(), column.to_owned()));
    }

    /// Whether a column is NOT NULL.
    #[must_use]
    pub fn is_not_null(&self, table: &str, column: &str) -> bool {
        self.not_null.contains(&(table.to_owned(), column.to_owned()))
    }

    /// The type of a column, if the catalog has it.
    #[must_use]
    pub fn get(&self, table: &str, column: &str) -> Option<&str> {
        self.types.get(&(table.to_owned(), column.to_owned())).map(String::as_str)
    }
}

/// The types an id column may have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum IdKind {
    /// `text` or `varchar`.
    Text,
    /// `uuid`.
    Uuid,
    /// `bigint` or `integer`.
    Bigint,
}

impl IdKind {
    /// The text PostgreSQL prints for this id, if `text` can be an id of this kind.
    ///
    /// As lenient as PostgreSQL's own input, on purpose: a UUID in capitals or braces and a padded number name the same
    /// row, and to find an entry is the safe answer.
    #[must_use]
    pub fn normalise(self, text: &str) -> Option<String> {
        self.canonical(text).map(Cow::into_owned)
    }

    /// The same, without a copy of what is in that form already: a look-up asks it of every id of a queue.
    #[must_use]
    pub fn canonical(self, text: &str) -> Option<Cow<'_, str>> {
        match self {
            Self::Text => (!text.is_empty()).then_some(Cow::Borrowed(text)),
            Self::Uuid if is_plain_uuid(text) => Some(Cow::Borrowed(text)),
            Self::Uuid => {
                let digits: String = text.chars().filter(|c| !matches!(c, '{' | '}' | '-' | ' ')).collect();
                uuid::Uuid::try_parse(&digits).ok().map(|id| Cow::Owned(id.hyphenated().to_string()))
            }
            Self::Bigint if is_plain_bigint(text) => Some(Cow::Borrowed(text)),
            Self::Bigint => text.trim().parse::<i64>().ok().map(|id| Cow::Owned(id.to_string())),
        }
    }
}

/// Whether it is as PostgreSQL prints it, as nearly every id is: to find that out costs a tenth of making it so.
fn is_plain_uuid(text: &str) -> bool {
    let is_right = |(at, byte): (usize, u8)| match at {
        8 | 13 | 18 | 23 => byte == b'-',
        _ => matches!(byte, b'0'..=b'9' | b'a'..=b'f'),
    };
    text.len() == 36 && text.bytes().enumerate().all(is_right)
}

/// The same, of a number that is certainly none too large.
fn is_plain_bigint(text: &str) -> bool {
    text.len() <= 18
        && matches!(text.as_bytes(), [b'1'..=b'9', rest @ ..] if rest.iter().all(u8::is_ascii_digit))
}

/// Another source's live rows that map to the same parent column: while one exists, the parent is left alone.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sibling {
    /// Job table of the sibling's source.
    pub table: String,
    /// Its id column.
    pub id: String,
    /// Its column that holds the parent's key.
    pub job_column: String,
    /// Its status column.
    pub status_column: String,
    /// The two live statuses.
    pub live: [String; 2],
    /// Type column and the types that map to this parent column; `None`: all rows do.
    pub types: Option<(String, Vec<String>)>,
}

/// Every kind of job row, over all sources, that maps to the parent column `change` would write.
#[must_use]
pub fn siblings(sources: &[ResolvedSource], change: &ParentChange) -> Vec<Sibling> {
    sources.iter().flat_map(|source| siblings_in(&source.declared, change)).collect()
}

fn siblings_in(source: &Source, change: &ParentChange) -> Vec<Sibling> {
    let mut by_column: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    for job_type in &source.job_types {
        for own in job_type.on_fail.iter().chain(&job_type.on_requeue) {
            let types = (own.table == change.table && own.status_column == change.status_column)
                .then(|| by_column.entry(&own.job_column).or_default());
            if let Some(types) = types.filter(|types| !types.contains(&job_type.name)) {
                types.push(job_type.name.clone());
            }
        }
    }
    by_column
        .into_iter()
        .map(|(job_column, types)| Sibling {
            table: source.table.table.clone(),
            id: source.table.id.clone(),
            job_column: job_column.to_owned(),
            status_column: source.table.status.clone(),
            live: [source.table.queued.clone(), source.table.processing.clone()],
            types: source.table.job_type.clone().map(|column| (column, types)),
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures;

    #[test]
    fn siblings_are_the_live_rows_of_every_source_that_map_to_the_same_parent_column() {
        let change = |status_column: &str| ParentChange {
            table: "Deck".into(),
            key: "id".into(),
            job_column: "deckId".into(),
            status_column: status_column.into(),
            from: vec!["BUSY".into()],
            to: "FAILED".into(),
            error: None,
            updated_at: None,
        };
        let with = |name: &str, changes: [Option<&str>; 2]| {
            let mut source = fixtures::source(name, IdKind::Text, &[("q", "{id}")]);
            source.declared.job_types = ["X", "Y"].map(|name| fixtures::job_type(name, true)).to_vec();
            for (job_type, column) in source.declared.job_types.iter_mut().zip(changes) {
                job_type.on_fail = column.map(change);
            }
            source
        };
        let sources = [
            with("Pdf", [Some("exportStatus"), Some("exportStatus")]),
            with("Gif", [Some("exportStatus"), None]),
            with("Job", [Some("status"), None]),
        ];
        let found = siblings(&sources, &change("exportStatus"));
        let found: Vec<_> =
            found.iter().map(|sibling| (sibling.table.as_str(), sibling.types.clone())).collect();
        let types =
            |names: &[&str]| Some(("type".to_owned(), names.iter().map(|name| (*name).to_owned()).collect()));
        assert_eq!(found, [("Pdf", types(&["X", "Y"])), ("Gif", types(&["X"]))]);
    }

    #[test]
    fn ids_normalise_to_the_text_of_their_column() {
        let upper = "6F9619FF-8B86-D011-B42D-00CF4FC964FF";
        assert_eq!(IdKind::Uuid.normalise(upper), Some(upper.to_lowercase()));
        let braced = "{6F9619FF8B86D011B42D00CF4FC964FF}";
        assert_eq!(IdKind::Uuid.normalise(braced), Some(upper.to_lowercase()));
        assert_eq!(IdKind::Uuid.normalise("5"), None);
        for (kind, plain) in [(IdKind::Uuid, &*upper.to_lowercase()), (IdKind::Bigint, "120")] {
            assert!(matches!(kind.canonical(plain), Some(Cow::Borrowed(same)) if same == plain), "{plain}");
        }
        assert_eq!(IdKind::Bigint.normalise(" 5 "), Some("5".to_owned()));
        assert_eq!(IdKind::Bigint.normalise("05"), Some("5".to_owned()));
        assert_eq!(IdKind::Bigint.normalise("five"), None);
        assert_eq!(IdKind::Text.normalise("A"), Some("A".to_owned()));
        assert_eq!(IdKind::Text.normalise(""), None);
    }
}
