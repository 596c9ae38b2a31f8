//! File and environment as one tree of values, each with its place.
//!
//! The environment is laid over the file before anything is read, so that a setting is judged once, wherever it came
//! from, and its fault names the place that won.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::ops::Range;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::redact;

/// A table's entries by key.
pub(super) type Table = BTreeMap<String, Node>;

/// A value and where it was found.
#[derive(Debug, Clone)]
pub(super) struct Node {
    pub(super) key: Place,
    pub(super) value: Place,
    pub(super) data: Data,
}

/// What was found.
#[derive(Debug, Clone)]
pub(super) enum Data {
    /// A string; of the environment, everything that is not an array.
    Text(String),
    /// An integer as it was written, without underscores and sign `+`.
    Integer(String),
    Flag(bool),
    List(Vec<Node>),
    Table(Table),
    /// A kind no setting has.
    Other(&'static str),
}

/// Where something was found.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Place {
    /// Byte offsets in the file: start, end.
    File(usize, usize),
    /// An environment variable.
    Variable(String),
    /// Nowhere: it is missing.
    Nowhere,
}

impl Place {
    pub(super) fn is_variable(&self) -> bool {
        matches!(self, Self::Variable(_))
    }
}

impl From<Range<usize>> for Place {
    fn from(span: Range<usize>) -> Self {
        Self::File(span.start, span.end)
    }
}

/// A fault before its place is turned into a line and a column.
#[derive(Debug)]
pub(super) struct Draft {
    pub(super) place: Place,
    pub(super) message: String,
    pub(super) help: Option<String>,
}

/// Reads a file's text. The second value is the text with its secrets starred out.
///
/// Of several syntax errors only the first is told: the others are mostly its consequence.
pub(super) fn parse(text: &str) -> (Result<Table, Draft>, String) {
    let (table, faults) = DeTable::parse_recoverable(text);
    let table = from_table(table.get_ref());
    let mut secrets = Vec::new();
    table.iter().for_each(|(key, node)| collect_secrets(key, node, &mut secrets));
    let redacted = redact::redacted(text, &secrets);
    let Some(first) = faults.first() else { return (Ok(table), redacted) };
    let place = first.span().map_or(Place::Nowhere, Place::from);
    let message = format!("not valid TOML: {}", first.message());
    (Err(Draft { place, message, help: None }), redacted)
}

fn from_table(table: &DeTable<'_>) -> Table {
    table
        .iter()
        .map(|(key, value)| (key.get_ref().to_string(), from_value(key.span().into(), value)))
        .collect()
}

fn from_value(key: Place, value: &Spanned<DeValue<'_>>) -> Node {
    let data = match value.get_ref() {
        DeValue::String(text) => Data::Text(text.to_string()),
        DeValue::Integer(integer) if integer.radix() == 10 => Data::Integer(integer.as_str().to_owned()),
        DeValue::Integer(_) => Data::Other("an integer that is not decimal"),
        DeValue::Float(_) => Data::Other("a fraction"),
        DeValue::Boolean(flag) => Data::Flag(*flag),
        DeValue::Datetime(_) => Data::Other("a date"),
        DeValue::Array(items) => {
            Data::List(items.iter().map(|item| from_value(item.span().into(), item)).collect())
        }
        DeValue::Table(table) => Data::Table(from_table(table)),
    };
    Node { key, value: value.span().into(), data }
}

fn collect_secrets(key: &str, node: &Node, secrets: &mut Vec<Range<usize>>) {
    let is_secret = matches!(&node.data, Data::Text(text) if redact::is_secret(text));
    match (&node.value, &node.data) {
        (Place::File(start, end), _) if is_secret || redact::is_secret_name(key) => {
            secrets.push(*start..*end);
        }
        (_, Data::List(items)) => items.iter().for_each(|item| collect_secrets(key, item, secrets)),
        (_, Data::Table(table)) => {
            table.iter().for_each(|(key, node)| collect_secrets(key, node, secrets));
        }
        _ => {}
    }
}

/// What the names of our variables begin with. Only those that also contain [`SEPARATOR`] are settings.
pub(super) const PREFIX: &str = "SALVAGE_";
/// Stands between section and key: `SALVAGE_PASS__STALE_AFTER`.
pub(super) const SEPARATOR: &str = "__";
/// The names of the trade, and the setting each stands for. Weaker than ours, stronger than the file.
const URL_VARIABLES: [(&str, &str); 2] = [("DATABASE_URL", "database"), ("REDIS_URL", "redis")];

/// Lays the environment over the table. An empty variable counts as not set.
pub(super) fn overlay(
    table: &mut Table,
    environment: impl IntoIterator<Item = (OsString, OsString)>,
    drafts: &mut Vec<Draft>,
) {
    let named = |(name, value): (OsString, OsString)| Some((name.into_string().ok()?, value));
    let environment: BTreeMap<String, OsString> =
        environment.into_iter().filter_map(named).filter(|(_, value)| !value.is_empty()).collect();
    let urls = URL_VARIABLES.map(|(name, section)| (name, vec![section.to_owned(), "url".to_owned()]));
    let ours = environment.keys().filter_map(|name| Some((name.as_str(), path_of(name)?)));
    for (name, path) in urls.into_iter().chain(ours) {
        let Some(value) = environment.get(name) else { continue };
        let place = Place::Variable(name.to_owned());
        match value.to_str().ok_or("its value is not UTF-8".to_owned()).and_then(from_variable) {
            Ok(data) => insert(table, &path, Node { key: place.clone(), value: place, data }),
            Err(message) => drafts.push(Draft { place, message, help: None }),
        }
    }
}

/// The setting a variable stands for; `None` for a variable that is not ours.
///
/// A handler's name is in lower case with `-` for `_`: `SALVAGE_HANDLER__VIDEO_COMPOSITION__STALE_AFTER`. Names of
/// handlers have no other letters, so nothing is lost. A job type's name is taken as it is.
fn path_of(name: &str) -> Option<Vec<String>> {
    let parts: Vec<&str> = name.strip_prefix(PREFIX)?.split(SEPARATOR).collect();
    let lower: Vec<String> = parts.iter().map(|part| part.to_ascii_lowercase()).collect();
    let part = |index: usize| match index {
        1 if lower[0] == "handler" => lower[1].replace('_', "-"),
        3 if lower[0] == "handler" && lower[2] == "types" => parts[3].to_owned(),
        _ => lower[index].clone(),
    };
    (parts.len() > 1).then(|| (0..parts.len()).map(part).collect())
}

/// A list is written as in TOML: `['a', 'b']`. Everything else is taken as it is.
fn from_variable(value: &str) -> Result<Data, String> {
    if !value.trim_start().starts_with('[') {
        return Ok(Data::Text(value.to_owned()));
    }
    let parsed =
        DeValue::parse(value.trim()).map_err(|fault| format!("not a TOML array: {}", fault.message()))?;
    Ok(from_value(Place::Nowhere, &parsed).data)
}

/// Where a parent is there and not a table, the value is dropped: the parent's own fault will be told.
fn insert(table: &mut Table, path: &[String], node: Node) {
    match path {
        [] => {}
        [key] => {
            table.insert(key.clone(), node);
        }
        [section, rest @ ..] => {
            let place = node.key.clone();
            let parent = table.entry(section.clone()).or_insert_with(|| Node {
                key: place.clone(),
                value: place,
                data: Data::Table(Table::new()),
            });
            if let Data::Table(below) = &mut parent.data {
                insert(below, rest, node);
            }
        }
    }
}

/// The variable that sets `key` of the section `path`.
pub(super) fn variable_name(path: &[String], key: &str) -> String {
    let is_type = |index: usize| index == 3 && path[0] == "handler" && path[2] == "types";
    let part = |(index, part): (usize, &String)| {
        if is_type(index) { part.clone() } else { part.to_ascii_uppercase().replace('-', "_") }
    };
    let mut parts: Vec<String> = path.iter().enumerate().map(part).collect();
    parts.push(key.to_ascii_uppercase());
    format!("{PREFIX}{}", parts.join(SEPARATOR))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check_path(name: &str, expected: Option<&[&str]>) {
        let path = path_of(name);
        assert_eq!(
            path.as_deref().map(|parts| parts.join(" ")),
            expected.map(|parts| parts.join(" ")),
            "{name}"
        );
        if let Some((key, section)) = path.as_deref().and_then(<[String]>::split_last) {
            assert_eq!(variable_name(section, key), name);
        }
    }

    #[test]
    fn a_variable_of_ours_has_two_underscores() {
        check_path("SALVAGE_PASS__STALE_AFTER", Some(&["pass", "stale_after"]));
        check_path("SALVAGE_HANDLERS__LIMITS__RUN_TIME", Some(&["handlers", "limits", "run_time"]));
        check_path(
            "SALVAGE_HANDLER__VIDEO_COMPOSITION__GRANTS__TABLES",
            Some(&["handler", "video-composition", "grants", "tables"]),
        );
        check_path(
            "SALVAGE_HANDLER__SLIDES__TYPES__narration_V2__STALE_AFTER",
            Some(&["handler", "slides", "types", "narration_V2", "stale_after"]),
        );
        check_path("SALVAGE_TEST_DATABASE_URL", None);
        check_path("SALVAGE_LOG", None);
        check_path("PATH__X", None);
    }
}
