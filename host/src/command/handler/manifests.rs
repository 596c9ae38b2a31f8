//! What two manifests declare otherwise, each field by its path.

use std::time::Duration;

use salvage_core::decision::shorten;
use salvage_core::manifest::HandlerManifest;
use salvage_core::settings::human;
use serde::Serialize;
use serde_json::{Map, Value};

/// One field that is not the same.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(super) struct Altered {
    /// Such as `sources.generation.queues.slide-generation.job_id`: what has a name is found by it, not by its place.
    path: String,
    /// `None`: it was not declared.
    old: Option<Value>,
    /// `None`: it is not declared any more.
    new: Option<Value>,
}

/// Every field in which the manifests differ, in their order.
pub(super) fn altered(old: &HandlerManifest, new: &HandlerManifest) -> Vec<Altered> {
    let value =
        |manifest| serde_json::to_value(manifest).expect("a manifest is text, numbers and lists of them");
    let mut altered = Vec::new();
    compare("", &value(old), &value(new), &mut altered);
    altered
}

impl Altered {
    /// For people, in a line.
    pub(super) fn line(&self) -> String {
        let shown = |value: &Option<Value>| value.as_ref().map_or("nothing".to_owned(), shown);
        format!("{}: {} → {}", shorten(&self.path), shown(&self.old), shown(&self.new))
    }
}

fn compare(path: &str, old: &Value, new: &Value, altered: &mut Vec<Altered>) {
    let below = |key: &str| if path.is_empty() { key.to_owned() } else { format!("{path}.{key}") };
    let mut push = |old: Option<&Value>, new: Option<&Value>| {
        altered.push(Altered { path: path.to_owned(), old: old.cloned(), new: new.cloned() });
    };
    match (old, new) {
        (old, new) if old == new => {}
        (Value::Object(olds), Value::Object(news)) if duration(old).is_none() && duration(new).is_none() => {
            for key in keys(olds.keys(), news.keys()) {
                compare_or_miss(&below(key), olds.get(key), news.get(key), altered);
            }
        }
        (Value::Array(olds), Value::Array(news)) => match (by_name(olds), by_name(news)) {
            (Some(olds), Some(news)) => {
                let (old_names, new_names) = (names(&olds), names(&news));
                for name in keys(old_names.iter().copied(), new_names.iter().copied()) {
                    compare_or_miss(&below(name), find(&olds, name), find(&news, name), altered);
                }
                let kept = |of: &[&str], other: &[&str]| -> Vec<String> {
                    of.iter().filter(|name| other.contains(name)).map(|&name| name.to_owned()).collect()
                };
                let (old_order, new_order) = (kept(&old_names, &new_names), kept(&new_names, &old_names));
                if old_order != new_order {
                    let (old, new) = (Some(old_order.into()), Some(new_order.into()));
                    altered.push(Altered { path: format!("{path} (their order)"), old, new });
                }
            }
            _ => push(Some(old), Some(new)),
        },
        (old, new) => push(Some(old), Some(new)),
    }
}

fn compare_or_miss(path: &str, old: Option<&Value>, new: Option<&Value>, altered: &mut Vec<Altered>) {
    match (old, new) {
        (Some(old), Some(new)) => compare(path, old, new, altered),
        (old, new) => {
            altered.push(Altered { path: path.to_owned(), old: old.cloned(), new: new.cloned() });
        }
    }
}

/// Each once: those of the old in their order, then those that only the new has.
fn keys<'a, K: PartialEq + ?Sized + 'a>(
    old: impl Iterator<Item = &'a K>,
    new: impl Iterator<Item = &'a K>,
) -> Vec<&'a K> {
    let mut keys: Vec<&K> = old.collect();
    for key in new {
        if !keys.contains(&key) {
            keys.push(key);
        }
    }
    keys
}

/// The items with their names, if all have one; an empty list has.
fn by_name(items: &[Value]) -> Option<Vec<(&str, &Value)>> {
    items.iter().map(|item| Some((item.get("name")?.as_str()?, item))).collect()
}

fn names<'a>(items: &[(&'a str, &Value)]) -> Vec<&'a str> {
    items.iter().map(|(name, _)| *name).collect()
}

fn find<'a>(items: &[(&str, &'a Value)], name: &str) -> Option<&'a Value> {
    items.iter().find(|(other, _)| *other == name).map(|(_, item)| *item)
}

fn shown(value: &Value) -> String {
    match duration(value) {
        Some(duration) => human(duration),
        None if value.is_null() => "nothing".to_owned(),
        None => shorten(&value.to_string()),
    }
}

/// A duration has the form that the standard library's has in JSON.
fn duration(value: &Value) -> Option<Duration> {
    let fields: &Map<String, Value> = value.as_object()?;
    let (secs, nanos) = (fields.get("secs")?.as_u64()?, fields.get("nanos")?.as_u64()?);
    Some(Duration::new(secs, u32::try_from(nanos).ok()?))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn check(old: &Value, new: &Value, expected: &[&str]) {
        let mut altered = Vec::new();
        compare("", old, new, &mut altered);
        assert_eq!(altered.iter().map(Altered::line).collect::<Vec<_>>(), expected);
    }

    #[test]
    fn what_has_a_name_is_found_by_it() {
        let old = json!({ "sources": [
            { "name": "a", "queues": [{ "name": "q", "job_id": "x-{id}" }, { "name": "r", "job_id": "{id}" }] },
            { "name": "b", "reads": [] },
        ] });
        let new = json!({ "sources": [
            { "name": "c" },
            { "name": "a", "queues": [{ "name": "r", "job_id": "{id}" }, { "name": "q", "job_id": "y-{id}" }] },
        ] });
        check(
            &old,
            &new,
            &[
                r#"sources.a.queues.q.job_id: "x-{id}" → "y-{id}""#,
                r#"sources.a.queues (their order): ["q","r"] → ["r","q"]"#,
                r#"sources.b: {"name":"b","reads":[]} → nothing"#,
                r#"sources.c: nothing → {"name":"c"}"#,
            ],
        );
        check(&old, &old, &[]);
    }

    #[test]
    fn lists_of_texts_and_durations_are_shown_as_a_whole() {
        check(
            &json!({ "from": ["A", "B"], "age": null, "max": { "secs": 60, "nanos": 0 } }),
            &json!({ "from": ["A"], "age": { "secs": 0, "nanos": 1_000_000 }, "max": { "secs": 90, "nanos": 0 } }),
            &["age: nothing → 1 ms", r#"from: ["A","B"] → ["A"]"#, "max: 1 min → 90 s"],
        );
        check(
            &json!({ "items": [] }),
            &json!({ "items": [{ "name": "a" }] }),
            &[r#"items.a: nothing → {"name":"a"}"#],
        );
    }
}
