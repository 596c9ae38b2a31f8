//! Reading the few keys of a payload that say whose job it is, as leniently as the worker that would run it.
//!
//! A payload comes from JavaScript. `JSON.parse` takes half a surrogate pair, a number beyond any range and any depth of
//! nesting; so does this, wherever they are but in the key that is asked for. Otherwise one such payload would leave its
//! whole queue in doubt.

use std::fmt;

use serde::Deserializer;
use serde::de::{DeserializeSeed, IgnoredAny, MapAccess, Visitor};
use serde_json::{Map, Value};

/// The wanted keys of a payload and their values; empty for JSON that is no object. `None` if it is not JSON, or if the
/// value of a wanted key cannot be read.
#[must_use]
pub fn wanted_keys(payload: &str, wanted: &[&str]) -> Option<Map<String, Value>> {
    serde_json::from_str::<IgnoredAny>(payload).ok()?;
    if !payload.trim_start().starts_with('{') {
        return Some(Map::new());
    }
    Wanted(wanted).deserialize(&mut serde_json::Deserializer::from_str(payload)).ok()
}

struct Wanted<'w>(&'w [&'w str]);

impl<'de> DeserializeSeed<'de> for Wanted<'_> {
    type Value = Map<String, Value>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for Wanted<'_> {
    type Value = Map<String, Value>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut found = Map::new();
        while let Some(key) = map.next_key::<String>()? {
            if self.0.contains(&key.as_str()) {
                found.insert(key, map.next_value()?);
            } else {
                map.next_value::<IgnoredAny>()?;
            }
        }
        Ok(found)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(payload: &str, expected: Option<Value>) {
        let found = wanted_keys(payload, &["jobId"]);
        assert_eq!(found.map(Value::Object), expected, "{payload}");
    }

    #[test]
    fn what_javascript_reads_is_read() {
        let seven = Some(serde_json::json!({ "jobId": "7" }));
        check(r#"{"jobId":"7","title":"cut \ud83d"}"#, seven.clone());
        check(r#"{"n":1e999,"jobId":"7"}"#, seven.clone());
        let deep = "[".repeat(500) + &"]".repeat(500);
        check(&format!(r#"{{"deep":{deep},"jobId":"7"}}"#), seven);
    }

    #[test]
    fn json_without_the_key_is_empty_and_the_rest_is_nothing() {
        for payload in ["{}", "null", "[1]", "3", r#"{"other":1}"#] {
            check(payload, Some(Value::Object(Map::new())));
        }
        for payload in ["", "{", "undefined", r#"{"jobId":"7"} x"#, r#"{"jobId":"\ud83d"}"#] {
            check(payload, None);
        }
    }
}
