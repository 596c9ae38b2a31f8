//! What an entry's hash says of whose job it is.

use serde_json::Value;

use crate::json::{self, Scalar, Step};
use crate::manifest::{JobNames, QueueRule};
use crate::source::ResolvedSource;

/// An entry's hash, as far as it says whose job it is.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Payload {
    /// The job's name, if the hash has one.
    pub name: Option<String>,
    /// When a worker took it, by the worker's clock, milliseconds since 1970.
    pub processed_ms: Option<u64>,
    /// The job's data.
    pub data: Data,
}

impl Payload {
    /// Readable data under a name.
    #[must_use]
    pub fn named(name: &str, data: &str) -> Self {
        Self { name: Some(name.to_owned()), processed_ms: None, data: Data::Text(data.to_owned()) }
    }
}

/// The data of an entry.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Data {
    /// There is no hash, or no data in it.
    #[default]
    Missing,
    /// As it is; odd bytes replaced.
    Text(String),
    /// Longer than what is read of one entry.
    TooLong {
        /// Its length.
        bytes: u64,
    },
}

/// What a payload says to one rule of its queue.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Said {
    /// The row's id under the payload key, in the column's form, or as it is if the column cannot hold it.
    pub(crate) row_id: Option<String>,
    /// The text under the name key.
    name: Option<String>,
    /// What stands where the rule's `ours-when` looks.
    ours: Option<String>,
}

impl Said {
    /// Takes in a leaf.
    pub(crate) fn take(
        &mut self,
        source: &ResolvedSource,
        rule: &QueueRule,
        path: &[Step<'_>],
        leaf: &Scalar<'_>,
    ) {
        let (Scalar::Text(text) | Scalar::Number(text)) = leaf else { return };
        if let [Step::Key(key)] = path
            && *key == rule.payload_key
            && !text.is_empty()
        {
            self.row_id = Some(source.id_kind.normalise(text).unwrap_or_else(|| text.to_string()));
        }
        if rule.name_key.as_ref().is_some_and(|at| is_at(path, at.keys())) {
            self.name = Some(text.to_string());
        }
        if rule.ours_when.as_ref().is_some_and(|ours| is_at(path, ours.path.keys())) {
            self.ours = Some(text.to_string());
        }
    }

    /// The name by which the rule tells its jobs.
    pub(crate) fn name<'n>(&'n self, rule: &QueueRule, payload: &'n Payload) -> Option<&'n str> {
        if rule.name_key.is_some() { self.name.as_deref() } else { payload.name.as_deref() }
    }

    /// Whether the manifest says that such an entry is never the source's, whatever it carries.
    pub(crate) fn is_never_ours(&self, rule: &QueueRule, payload: &Payload) -> bool {
        let name = self.name(rule, payload);
        name.is_some_and(|name| rule.foreign_names.iter().any(|foreign| foreign == name))
    }

    /// Whether the manifest says that such an entry, which carries no row's id, is somebody else's. What lacks the name or
    /// the value that it would be told by may be anybody's.
    pub(crate) fn is_foreign(&self, rule: &QueueRule, payload: &Payload) -> bool {
        let by_name = match (&rule.job_names, self.name(rule, payload)) {
            (JobNames::Only(names), Some(name)) => !names.iter().any(|ours| ours == name),
            (JobNames::Any, _) | (_, None) => false,
        };
        let by_value = match (&rule.ours_when, &self.ours) {
            (Some(ours), Some(value)) => !ours.is_in.contains(value),
            _ => false,
        };
        by_name || by_value
    }
}

fn is_at(path: &[Step<'_>], keys: &[String]) -> bool {
    path.len() == keys.len()
        && path.iter().zip(keys).all(|(step, key)| matches!(step, Step::Key(at) if at == key))
}

/// The row id a payload's text names under a source's key, in the column's form; `None` if it names none.
#[must_use]
pub fn row_named_in(payload: &str, source: &ResolvedSource, rule: &QueueRule) -> Option<String> {
    let mut said = Said::default();
    json::walk(payload, &mut |path, leaf| said.take(source, rule, path, leaf));
    source.id_kind.normalise(&said.row_id?)
}

/// The text by which a value of a payload names a row: a text as it is, a number as JavaScript writes it.
#[must_use]
pub fn id_text(value: &Value) -> Option<String> {
    match value {
        Value::String(text) => Some(text.clone()),
        Value::Number(number) => Some(json::number_text(number)),
        _ => None,
    }
}

/// Paths told of a payload that nobody can attribute.
const KEYS_MAX: usize = 6;

/// The first few paths at which a payload has texts or numbers, such as `send.id`: what a person looks for the id in.
/// Empty for a payload without keys.
pub(crate) fn keys_of(payload: &str) -> Vec<String> {
    let mut keys: Vec<String> = vec![];
    json::walk(payload, &mut |path, leaf| {
        let key = written(path);
        let is_told = matches!(leaf, Scalar::Text(_) | Scalar::Number(_)) && !key.is_empty();
        if is_told && keys.len() < KEYS_MAX && !keys.contains(&key) {
            keys.push(key);
        }
    });
    keys
}

/// A path as people write it: `tracks[].id`.
pub(crate) fn written(path: &[Step<'_>]) -> String {
    let mut text = String::new();
    for step in path {
        match step {
            Step::Element => text.push_str("[]"),
            Step::Key(key) if text.is_empty() => text.push_str(key),
            Step::Key(key) => {
                text.push('.');
                text.push_str(key);
            }
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures;
    use crate::manifest::{PayloadMatch, PayloadPath};
    use crate::source::IdKind;

    fn said(rule: &QueueRule, id_kind: IdKind, payload: &str) -> Said {
        let source = fixtures::source("x", id_kind, &[("q", "{id}")]);
        let mut said = Said::default();
        json::walk(payload, &mut |path, leaf| said.take(&source, rule, path, leaf));
        said
    }

    fn rule() -> QueueRule {
        fixtures::source("x", IdKind::Text, &[("q", "{id}")]).declared.queues.remove(0)
    }

    #[test]
    fn a_row_is_named_by_a_text_or_a_number_under_the_outermost_key() {
        let named = |kind, payload| said(&rule(), kind, payload).row_id;
        assert_eq!(named(IdKind::Bigint, r#"{"jobId":5.0}"#).as_deref(), Some("5"));
        let uuid = "6F9619FF-8B86-D011-B42D-00CF4FC964FF";
        let payload = format!(r#"{{"jobId":"{uuid}"}}"#);
        assert_eq!(named(IdKind::Uuid, &payload), Some(uuid.to_lowercase()));
        for none in
            [r#"{"jobId":""}"#, r#"{"jobId":null}"#, r#"{"jobId":{"a":1}}"#, r#"{"x":{"jobId":"7"}}"#, "[]"]
        {
            assert_eq!(named(IdKind::Text, none), None, "{none}");
        }
        assert_eq!(
            named(IdKind::Bigint, r#"{"jobId":"x"}"#).as_deref(),
            Some("x"),
            "a key that names no row"
        );
    }

    #[test]
    fn a_name_tells_whose_an_entry_is() {
        let mut rule = rule();
        let said = Said::default();
        assert!(said.is_foreign(&rule, &Payload::named("ping", "{}")));
        assert!(!said.is_foreign(&rule, &Payload::named("work", "{}")));
        assert!(!said.is_foreign(&rule, &Payload::default()), "without a name it may be anybody's");
        rule.foreign_names = vec!["tidy".into()];
        assert!(said.is_never_ours(&rule, &Payload::named("tidy", "{}")));
        rule.job_names = JobNames::Any;
        assert!(!said.is_foreign(&rule, &Payload::named("ping", "{}")));
    }

    #[test]
    fn a_name_in_the_payload_stands_for_the_jobs_own() {
        let rule = QueueRule { name_key: PayloadPath::parse("meta.kind"), ..rule() };
        let payload = Payload::named("process", "{}");
        assert!(said(&rule, IdKind::Text, r#"{"meta":{"kind":"ping"}}"#).is_foreign(&rule, &payload));
        assert!(!said(&rule, IdKind::Text, r#"{"meta":{"kind":"work"}}"#).is_foreign(&rule, &payload));
        assert!(!said(&rule, IdKind::Text, "{}").is_foreign(&rule, &payload), "no name at all");
    }

    #[test]
    fn a_value_tells_ours_from_others_of_the_same_name() {
        let path = PayloadPath::parse("kind").expect("a path");
        let ours = PayloadMatch { path, is_in: vec!["3".into(), "slides".into()] };
        let rule = QueueRule { ours_when: Some(ours), ..rule() };
        let payload = Payload::named("work", "{}");
        for (data, is_foreign) in [(r#"{"kind":"video"}"#, true), (r#"{"kind":3}"#, false), ("{}", false)] {
            assert_eq!(said(&rule, IdKind::Text, data).is_foreign(&rule, &payload), is_foreign, "{data}");
        }
    }

    #[test]
    fn the_keys_of_a_payload_are_written_as_paths() {
        let payload = r#"{"send":{"id":1},"tracks":[{"id":2},{"id":3}],"on":true}"#;
        assert_eq!(keys_of(payload), ["send.id", "tracks[].id"]);
        assert!(keys_of("\"ping\"").is_empty());
    }
}
