//! A job's options as BullMQ stores them in the entry's hash, and what of them the host adds.
//!
//! BullMQ shortens a few names and fills a few in before it stores (`Job` of bullmq 4.18.3, 5.0.0, 5.81.5 and 6.7.0
//! alike): `keepLogs` is stored as `kl`, a numeric `backoff` as a fixed one, and `attempts` is always there.

use std::time::Duration;

use serde_json::{Map, Value, json};

/// What is written of a job besides name and data.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Options {
    /// One JSON object, for the hash's `opts`.
    pub(super) json: String,
    /// Milliseconds.
    pub(super) delay_ms: u64,
    /// 0: none.
    pub(super) priority: u64,
}

/// Turns a handler's options, which core has checked, into the stored form; `None` if they are no JSON object.
pub(super) fn stored(options: &str, entry_id: &str, delay: Duration) -> Option<Options> {
    let given: Map<String, Value> = serde_json::from_str(options).ok()?;
    let delay_ms = u64::try_from(delay.as_millis()).ok()?;
    let priority = given.get("priority").and_then(Value::as_u64).unwrap_or(0);
    let mut stored = Map::new();
    stored.insert("attempts".to_owned(), json!(0));
    for (key, value) in given {
        match key.as_str() {
            "keepLogs" => stored.insert("kl".to_owned(), value),
            "backoff" if value.is_number() => stored.insert(key, json!({ "type": "fixed", "delay": value })),
            _ => stored.insert(key, value),
        };
    }
    stored.insert("jobId".to_owned(), json!(entry_id));
    stored.insert("delay".to_owned(), json!(delay_ms));
    Some(Options { json: Value::Object(stored).to_string(), delay_ms, priority })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(options: &str, expected: Value, priority: u64) {
        let stored = stored(options, "slide-7", Duration::from_secs(5)).expect("an object");
        let found: Value = serde_json::from_str(&stored.json).expect("JSON");
        assert_eq!((found, stored.delay_ms, stored.priority), (expected, 5_000, priority));
    }

    #[test]
    fn options_are_stored_as_bullmq_stores_them() {
        check("{}", json!({ "attempts": 0, "jobId": "slide-7", "delay": 5000 }), 0);
        check(
            r#"{"attempts":3,"backoff":250,"priority":9,"keepLogs":10,"removeOnComplete":{"age":60}}"#,
            json!({
                "attempts": 3,
                "backoff": { "type": "fixed", "delay": 250 },
                "priority": 9,
                "kl": 10,
                "removeOnComplete": { "age": 60 },
                "jobId": "slide-7",
                "delay": 5000,
            }),
            9,
        );
        let exponential = json!({ "type": "exponential", "delay": 100 });
        check(
            &json!({ "backoff": exponential }).to_string(),
            json!({ "attempts": 0, "backoff": exponential, "jobId": "slide-7", "delay": 5000 }),
            0,
        );
    }

    #[test]
    fn what_is_no_object_is_not_stored() {
        for odd in ["", "[]", "1", "null"] {
            assert_eq!(stored(odd, "slide-7", Duration::ZERO), None, "{odd:?}");
        }
    }
}
