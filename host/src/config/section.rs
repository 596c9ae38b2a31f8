//! Reads settings out of a tree, one section at a time, and notes what is wrong instead of stopping at it.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::time::Duration;

use super::redact::is_secret;
use super::tree::{Data, Draft, Node, Place, Table, variable_name};
use super::units::{self, UnitFault};

/// How alike two names must be for one to be offered in place of the other (Jaro-Winkler, 0 to 1).
const LIKENESS_MIN: f64 = 0.8;

/// Most characters of a wrong value that are quoted.
const QUOTED_MAX: usize = 60;

/// What is wrong with a value; the place and the setting's name are added by the section.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Complaint {
    pub(super) message: String,
    pub(super) help: Option<String>,
}

impl Complaint {
    pub(super) fn new(message: impl Into<String>) -> Self {
        Self { message: message.into(), help: None }
    }

    pub(super) fn with_help(self, help: impl Into<String>) -> Self {
        Self { help: Some(help.into()), ..self }
    }
}

/// One section while it is read. Whatever was not asked for when it is closed is unknown.
pub(super) struct Section<'a> {
    path: Vec<String>,
    place: Place,
    table: Table,
    known: Vec<&'static str>,
    drafts: &'a mut Vec<Draft>,
}

impl<'a> Section<'a> {
    pub(super) fn root(table: Table, drafts: &'a mut Vec<Draft>) -> Self {
        Self { path: Vec::new(), place: Place::Nowhere, table, known: Vec::new(), drafts }
    }

    /// The section `key`; empty if it is absent or no table.
    pub(super) fn section(&mut self, key: &'static str) -> Section<'_> {
        self.known.push(key);
        let node = self.table.remove(key);
        self.below(key, node)
    }

    /// Where it begins.
    pub(super) fn place(&self) -> Place {
        self.place.clone()
    }

    /// Whether `key` is there and not read yet.
    pub(super) fn has(&self, key: &str) -> bool {
        self.table.contains_key(key)
    }

    /// Every section below this one, whatever its name.
    pub(super) fn each<T>(mut self, mut read: impl FnMut(&str, Section<'_>) -> T) -> BTreeMap<String, T> {
        let table = std::mem::take(&mut self.table);
        let entry = |(name, node): (String, Node)| {
            let value = read(&name, self.below(&name, Some(node)));
            (name, value)
        };
        table.into_iter().map(entry).collect()
    }

    fn below(&mut self, key: &str, node: Option<Node>) -> Section<'_> {
        let mut path = self.path.clone();
        path.push(key.to_owned());
        let place = node.as_ref().map_or(Place::Nowhere, |node| node.key.clone());
        let table = match node.map(|node| node.data) {
            None => Table::new(),
            Some(Data::Table(table)) => table,
            Some(data) => {
                let message = format!("{}: expected a section, found {}", heading(&path), describe(&data));
                self.drafts.push(Draft { place: place.clone(), message, help: None });
                Table::new()
            }
        };
        Section { path, place, table, known: Vec::new(), drafts: &mut *self.drafts }
    }

    /// The setting `key`; `None` if it is absent or wrong.
    pub(super) fn get<T>(
        &mut self,
        key: &'static str,
        read: impl FnOnce(&Node) -> Result<T, Complaint>,
    ) -> Option<T> {
        self.known.push(key);
        let node = self.table.remove(key)?;
        match read(&node) {
            Ok(value) => Some(value),
            Err(Complaint { message, help }) => {
                let message = format!("{} {key}: {message}", heading(&self.path));
                self.drafts.push(Draft { place: node.value, message, help });
                None
            }
        }
    }

    /// The setting `key`, or its default.
    pub(super) fn or<T>(
        &mut self,
        key: &'static str,
        default: T,
        read: impl FnOnce(&Node) -> Result<T, Complaint>,
    ) -> T {
        self.get(key, read).unwrap_or(default)
    }

    /// Notes a fault of the section as a whole.
    pub(super) fn complain(&mut self, place: Place, complaint: Complaint) {
        let message = format!("{} {}", heading(&self.path), complaint.message).trim_start().to_owned();
        self.drafts.push(Draft { place, message, help: complaint.help });
    }

    /// Notes every key that was not asked for.
    pub(super) fn close(mut self) {
        for (key, node) in std::mem::take(&mut self.table) {
            let what = if matches!(node.data, Data::Table(_)) { "section" } else { "setting" };
            let mut path = self.path.clone();
            let message = if what == "section" {
                path.push(key.clone());
                format!("{}: unknown section", heading(&path))
            } else {
                format!("{} {}: unknown setting", heading(&path), shown_key(&key)).trim_start().to_owned()
            };
            let help = self.nearest(&key, node.key.is_variable());
            self.drafts.push(Draft { place: node.key, message, help: Some(help) });
        }
    }

    fn nearest(&self, key: &str, is_variable: bool) -> String {
        let alike = |known: &&str| strsim::jaro_winkler(&key.to_ascii_lowercase(), known);
        let nearest = self.known.iter().copied().max_by(|a, b| alike(a).total_cmp(&alike(b)));
        match nearest.filter(|known| alike(known) >= LIKENESS_MIN) {
            // A variable stands for a setting, never for a section as a whole.
            Some(known) if is_variable && !self.path.is_empty() => {
                format!("did you mean {}?", variable_name(&self.path, known))
            }
            Some(known) => format!("did you mean {known:?}?"),
            None => format!("known here: {}", self.known.join(", ")),
        }
    }
}

/// `[handler.slides.types.PREVIEW]`; empty for the root.
fn heading(path: &[String]) -> String {
    if path.is_empty() {
        return String::new();
    }
    let parts: Vec<String> = path.iter().map(|part| shown_key(part)).collect();
    format!("[{}]", parts.join("."))
}

/// A key as TOML writes it. One that might be a misplaced secret is not shown.
fn shown_key(key: &str) -> String {
    let is_bare = !key.is_empty() && key.chars().all(|c| c.is_ascii_alphanumeric() || c == '-' || c == '_');
    if is_bare { key.to_owned() } else { quoted(key) }
}

/// A value between quotes, shortened; one that might be a secret is not shown.
pub(super) fn quoted(value: &str) -> String {
    if is_secret(value) {
        return "\"***\"".to_owned();
    }
    if value.chars().count() <= QUOTED_MAX {
        return format!("{value:?}");
    }
    let start: String = value.chars().take(QUOTED_MAX).collect();
    format!("{:?}", format!("{start}…"))
}

fn describe(data: &Data) -> String {
    match data {
        Data::Text(text) => format!("the string {}", quoted(text)),
        Data::Integer(digits) => format!("the integer {digits}"),
        Data::List(_) => "an array".to_owned(),
        Data::Table(_) => "a section".to_owned(),
        Data::Flag(_) => "a boolean".to_owned(),
        Data::Other(kind) => (*kind).to_owned(),
    }
}

/// A text that is not empty.
pub(super) fn text(node: &Node) -> Result<String, Complaint> {
    match &node.data {
        Data::Text(text) if text.trim().is_empty() => Err(Complaint::new("must not be empty")),
        Data::Text(text) => Ok(text.clone()),
        other => Err(Complaint::new(format!("expected a string, found {}", describe(other)))),
    }
}

/// `true` or `false`; of the environment, as a text.
pub(super) fn flag(node: &Node) -> Result<bool, Complaint> {
    match &node.data {
        Data::Flag(flag) => Ok(*flag),
        Data::Text(text) if text.trim() == "true" => Ok(true),
        Data::Text(text) if text.trim() == "false" => Ok(false),
        other => Err(Complaint::new(format!("expected true or false, found {}", describe(other)))),
    }
}

/// A list of texts, none of them empty.
pub(super) fn texts(node: &Node) -> Result<Vec<String>, Complaint> {
    let Data::List(items) = &node.data else {
        let complaint =
            Complaint::new(format!("expected an array of strings, found {}", describe(&node.data)));
        return Err(complaint.with_help("write it as ['a', 'b']"));
    };
    items.iter().map(text).collect()
}

/// A whole number from 1 to `max`.
pub(super) fn count(node: &Node, max: u32) -> Result<u32, Complaint> {
    let digits = match &node.data {
        Data::Integer(digits) => digits,
        Data::Text(text) if node.value.is_variable() => text,
        other => return Err(Complaint::new(format!("expected an integer, found {}", describe(other)))),
    };
    let wrong =
        || Complaint::new(format!("expected an integer from 1 to {max}, found {}", quoted_number(digits)));
    digits.trim().parse().ok().filter(|count| (1..=max).contains(count)).ok_or_else(wrong)
}

fn quoted_number(digits: &str) -> String {
    if digits.trim().parse::<i128>().is_ok() { digits.trim().to_owned() } else { quoted(digits) }
}

/// A duration.
pub(super) fn duration(node: &Node) -> Result<Duration, Complaint> {
    quantity(node, "duration", "5m", units::duration)
}

/// A duration of at least `least`.
pub(super) fn duration_from(node: &Node, least: Duration, why: &str) -> Result<Duration, Complaint> {
    let found = duration(node)?;
    if found >= least {
        return Ok(found);
    }
    Err(Complaint::new(format!("must be at least {} ({why})", salvage_core::settings::human(least))))
}

/// A range of durations.
pub(super) fn duration_range(node: &Node) -> Result<RangeInclusive<Duration>, Complaint> {
    quantity(node, "range of durations", "5s..15s", units::duration_range)
}

/// A size in bytes.
pub(super) fn size(node: &Node) -> Result<u64, Complaint> {
    quantity(node, "size", "64MiB", units::size)
}

fn quantity<T>(
    node: &Node,
    what: &str,
    example: &str,
    parse: impl FnOnce(&str) -> Result<T, UnitFault>,
) -> Result<T, Complaint> {
    let units = if example == "5m" { " (ms, s, m, h)" } else { "" };
    let help = format!("write it with its unit{units}, e.g. {example:?}");
    let Data::Text(text) = &node.data else {
        let complaint = Complaint::new(format!("expected a {what}, found {}", describe(&node.data)));
        return Err(complaint.with_help(help));
    };
    parse(text).map_err(|fault| {
        let complaint = Complaint::new(format!("{} {fault}", quoted(text)));
        match fault {
            UnitFault::NoUnit | UnitFault::Unreadable(_) => complaint.with_help(help),
            UnitFault::NotPositive | UnitFault::TooLong | UnitFault::Backwards => complaint,
        }
    })
}

/// One of a few words. A word of `later` is understood, and refused: to go on without what it asks for would be wrong.
pub(super) fn word<T: Copy>(node: &Node, words: &[(&str, T)], later: &[&str]) -> Result<T, Complaint> {
    let found = text(node)?;
    if let Some((_, value)) = words.iter().find(|(word, _)| *word == found) {
        return Ok(*value);
    }
    let names: Vec<String> = words.iter().map(|(word, _)| format!("{word:?}")).collect();
    let names = names.join(" or ");
    if later.contains(&found.as_str()) {
        return Err(not_yet(&format!("{found:?}")).with_help(format!("use {names}")));
    }
    Err(Complaint::new(format!("expected {names}, found {}", quoted(&found))))
}

/// What a later version will have.
pub(super) fn not_yet(what: &str) -> Complaint {
    Complaint::new(format!("{what} is not supported in this version"))
}
