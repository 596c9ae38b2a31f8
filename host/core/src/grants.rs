//! What the operator allows a handler, and whether that covers what its manifest declares.

use std::collections::{BTreeMap, BTreeSet};

use crate::manifest::{HandlerManifest, ParentChange, Source};
use crate::source::Standing;

/// `[handlers] grants`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum GrantsMode {
    /// Each handler may do what its grants entry lists.
    #[default]
    Listed,
    /// Manifests are trusted.
    Declared,
}

/// `[handler.NAME.grants]`, in SQL's notation for names.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Grants {
    /// Job tables, e.g. `"SlideJob"`.
    pub tables: Vec<String>,
    /// Queues, e.g. `slide-generation`.
    pub queues: Vec<String>,
    /// Readable columns, e.g. `"SlideDeck"(id, status)`.
    pub read: Vec<String>,
    /// Columns of parents that may be written, e.g. `"SlideDeck".status`.
    pub parents: Vec<String>,
}

/// A grants entry that does not cover its manifest.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the grants of {domain:?} do not cover its manifest; add under [handler.{domain}.grants]:\n{}", missing.join("\n"))]
pub struct NotGranted {
    /// The handler.
    pub domain: String,
    /// Lines ready to paste, one per kind.
    pub missing: Vec<String>,
}

/// What a handler may do under its grants.
///
/// # Errors
/// If an entry exists and does not cover the manifest.
pub fn standing(
    mode: GrantsMode,
    grants: Option<&Grants>,
    manifest: &HandlerManifest,
) -> Result<Standing, NotGranted> {
    let grants = match (mode, grants) {
        (GrantsMode::Declared, _) => return Ok(Standing::Active),
        (GrantsMode::Listed, None) => return Ok(Standing::Observed),
        (GrantsMode::Listed, Some(grants)) => grants,
    };
    let needed = needed(manifest);
    let readable = Readable::new(&grants.read);
    let lists = |list: &[String], name: &String| list.iter().any(|granted| plain(granted) == plain(name));
    let missing_of = |needed: &[String], granted: &[String]| -> Vec<String> {
        needed.iter().filter(|name| !lists(granted, name)).cloned().collect()
    };
    let missing = Grants {
        tables: missing_of(&needed.tables, &grants.tables),
        queues: needed.queues.iter().filter(|queue| !grants.queues.contains(queue)).cloned().collect(),
        read: needed.read.iter().filter(|read| !readable.covers(read)).cloned().collect(),
        parents: missing_of(&needed.parents, &grants.parents),
    };
    let missing = missing.lines();
    if missing.is_empty() {
        Ok(Standing::Active)
    } else {
        Err(NotGranted { domain: manifest.domain.clone(), missing })
    }
}

/// The grants that cover a manifest and nothing more.
#[must_use]
pub fn needed(manifest: &HandlerManifest) -> Grants {
    let mut tables = BTreeSet::new();
    let mut queues = BTreeSet::new();
    let mut read: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    let mut parents = BTreeSet::new();
    for source in &manifest.sources {
        tables.insert(quote_table(&source.table.table));
        queues.extend(source.queues.iter().map(|queue| queue.name.clone()));
        for wanted in &source.reads {
            let columns = read.entry(quote_table(&wanted.table)).or_default();
            let names = wanted.columns.iter().chain(&wanted.order_by).chain([&wanted.match_column]);
            columns.extend(names.map(|name| quote(name)));
        }
        for change in parent_changes(source) {
            let table = quote_table(&change.table);
            parents.extend(change.written().map(|column| format!("{table}.{}", quote(column))));
        }
    }
    let columns = |(table, columns): (String, BTreeSet<String>)| {
        format!("{table}({})", columns.into_iter().collect::<Vec<_>>().join(", "))
    };
    Grants {
        tables: tables.into_iter().collect(),
        queues: queues.into_iter().collect(),
        read: read.into_iter().map(columns).collect(),
        parents: parents.into_iter().collect(),
    }
}

fn parent_changes(source: &Source) -> impl Iterator<Item = &ParentChange> {
    source.job_types.iter().flat_map(|job_type| job_type.on_fail.iter().chain(&job_type.on_requeue))
}

impl Grants {
    /// The entry as TOML lines; a kind without anything is left out.
    #[must_use]
    pub fn lines(&self) -> Vec<String> {
        let kinds = [
            ("tables", &self.tables),
            ("queues", &self.queues),
            ("read", &self.read),
            ("parents", &self.parents),
        ];
        let line = |(key, names): (&str, &Vec<String>)| {
            let names: Vec<String> = names.iter().map(|name| format!("'{name}'")).collect();
            format!("{key} = [{}]", names.join(", "))
        };
        kinds.into_iter().filter(|(_, names)| !names.is_empty()).map(line).collect()
    }
}

/// Granted columns by table, all in plain form.
struct Readable(BTreeMap<String, BTreeSet<String>>);

impl Readable {
    fn new(entries: &[String]) -> Self {
        let mut by_table: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
        for (table, columns) in entries.iter().filter_map(|entry| table_and_columns(entry)) {
            by_table.entry(table).or_default().extend(columns);
        }
        Self(by_table)
    }

    fn covers(&self, wanted: &str) -> bool {
        table_and_columns(wanted).is_some_and(|(table, columns)| {
            self.0.get(&table).is_some_and(|granted| columns.iter().all(|column| granted.contains(column)))
        })
    }
}

fn table_and_columns(entry: &str) -> Option<(String, Vec<String>)> {
    let (table, columns) = entry.trim().strip_suffix(')')?.split_once('(')?;
    Some((plain(table), columns.split(',').map(plain).collect()))
}

/// A name in SQL's notation brought to the catalog's: quotes taken away, unquoted letters folded to lower case.
fn plain(name: &str) -> String {
    let mut out = String::new();
    let mut is_quoted = false;
    for c in name.trim().chars() {
        match c {
            '"' => is_quoted = !is_quoted,
            c if is_quoted => out.push(c),
            c => out.extend(c.to_lowercase()),
        }
    }
    out
}

/// A table's catalog name, `Table` or `schema.table`, in SQL's notation.
#[must_use]
pub fn quote_table(table: &str) -> String {
    table.split('.').map(quote).collect::<Vec<_>>().join(".")
}

/// A name in SQL's notation, with quotes only where it needs them.
#[must_use]
pub fn quote(name: &str) -> String {
    let is_plain = name.starts_with(|c: char| c.is_ascii_lowercase() || c == '_')
        && name.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_');
    if is_plain { name.to_owned() } else { format!("\"{}\"", name.replace('"', "\"\"")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_compare_as_the_catalog_has_them() {
        assert_eq!(plain("\"SlideJob\""), "SlideJob");
        assert_eq!(plain("SlideJob"), "slidejob");
        assert_eq!(plain(" public.\"SlideDeck\".status "), "public.SlideDeck.status");
        assert_eq!(quote_table("public.SlideJob"), "public.\"SlideJob\"");
    }

    #[test]
    fn every_column_that_a_parent_change_writes_is_to_be_granted() {
        let mut source =
            crate::fixtures::source("generation", crate::source::IdKind::Text, &[("q", "{id}")]).declared;
        source.job_types[0].on_fail = Some(ParentChange {
            table: "SlideDeck".into(),
            key: "id".into(),
            job_column: "deckId".into(),
            status_column: "status".into(),
            from: vec!["GENERATING".into()],
            to: "FAILED".into(),
            error: Some("error".into()),
            updated_at: Some("updatedAt".into()),
        });
        let manifest =
            HandlerManifest { domain: "slides".into(), description: String::new(), sources: vec![source] };
        let all = needed(&manifest);
        assert_eq!(
            all.parents,
            ["\"SlideDeck\".\"updatedAt\"", "\"SlideDeck\".error", "\"SlideDeck\".status"]
        );
        let standing = |parents: &[String]| {
            let grants = Grants { parents: parents.to_vec(), ..all.clone() };
            standing(GrantsMode::Listed, Some(&grants), &manifest).map_err(|refused| refused.missing)
        };
        assert_eq!(standing(&all.parents), Ok(Standing::Active));
        assert_eq!(
            standing(&all.parents[2..]),
            Err(vec!["parents = ['\"SlideDeck\".\"updatedAt\"', '\"SlideDeck\".error']".to_owned()])
        );
    }

    #[test]
    fn a_read_is_covered_by_more_columns_and_not_by_fewer() {
        let readable = Readable::new(&["\"SlideDeck\"(id, status)".into(), "\"SlideDeck\"(title)".into()]);
        assert!(readable.covers("\"SlideDeck\"(id, title)"));
        assert!(!readable.covers("\"SlideDeck\"(id, secret)"));
        assert!(!readable.covers("users(id)"));
    }
}
