//! What the host demands of a decision, as far as the decision and its job alone tell.
//!
//! One text for both sides: the host's core compiles this very file, so that a case that passes here is not refused in a
//! pass, nor the other way round. It needs nothing but `serde_json`. Each function returns one sentence per fault; none
//! quotes a payload or the value of an option.

use serde_json::{Map, Value};

/// The options that may be set; everything else (delay, parent, repetition, the entry's id) is the host's business.
pub(crate) const OPTION_KEYS: [&str; 7] =
    ["attempts", "backoff", "priority", "removeOnComplete", "removeOnFail", "stackTraceLimit", "keepLogs"];

/// Most attempts, kept log lines and the like: what fits 32 bits is a number to every BullMQ and to its scripts.
pub(crate) const COUNT_MAX: u64 = u32::MAX as u64;

/// The least urgent priority that every BullMQ from 4 to 6 takes.
pub(crate) const PRIORITY_MAX: u64 = 2_097_151;

/// The greatest integer that JavaScript reads as it was written.
const SAFE_INTEGER_MAX: u64 = (1 << 53) - 1;

/// A text for a row, a report or a log: on one line, without what could change how its surroundings are shown.
///
/// Control characters go, and so do the invisible ones that reorder text or hide some; line ends and tabs become a space.
/// Letters, marks, emoji and spaces stay as they are.
#[must_use]
pub(crate) fn clean(text: &str) -> String {
    let mut clean = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            // NEL and the separators of lines and paragraphs end a line for whoever shows the text.
            '\t' | '\n' | '\r' | '\u{85}' | '\u{2028}' | '\u{2029}' => {
                if !clean.is_empty() && !clean.ends_with(' ') {
                    clean.push(' ');
                }
            }
            c if c.is_control() || is_invisible(c) => {}
            c => clean.push(c),
        }
    }
    clean.truncate(clean.trim_end().len());
    clean.drain(..clean.len() - clean.trim_start().len());
    clean
}

/// Overrides, embeddings and isolates of writing direction; the byte order mark; interlinear notes; tags. Marks that words
/// of real languages and emoji are spelt with (joiners, the two direction marks) are none.
const fn is_invisible(c: char) -> bool {
    matches!(c,
        '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' | '\u{feff}' | '\u{fff9}'..='\u{fffb}'
        | '\u{e0000}'..='\u{e007f}')
}

/// What is wrong with the reason of a fail or a hold.
#[must_use]
pub(crate) fn reason_fault(kind: &str, reason: &str) -> Option<String> {
    let is_empty = !clean(reason).chars().any(|c| !c.is_whitespace());
    is_empty.then(|| format!("the {kind} has no reason; write a sentence that says why"))
}

/// What is wrong with a payload that has to carry the job's id under `key`: as text, or as a number that reads the same.
#[must_use]
pub(crate) fn payload_fault(data: &Value, key: &str, id: &str) -> Option<String> {
    let Value::Object(data) = data else {
        return Some("data is not a JSON object".to_owned());
    };
    match data.get(key) {
        None => Some(format!("data has no key {key:?}, which must carry the job's id")),
        Some(Value::String(text)) if text == id => None,
        Some(Value::Number(number)) if number.to_string() == id => {
            let is_safe = number.as_i64().is_some_and(|number| number.unsigned_abs() <= SAFE_INTEGER_MAX);
            (!is_safe).then(|| {
                format!("data key {key:?} carries the job's id as a number that JavaScript rounds; write it as text")
            })
        }
        Some(_) => Some(format!("data key {key:?} does not carry the job's id {id:?}")),
    }
}

/// What is wrong with BullMQ's options, to the last field: each is used by a worker or in a script of BullMQ 4 to 6 that
/// fails at a value of another form, often only once the job is done, and then it is lost again.
#[must_use]
pub(crate) fn option_faults(options: &Map<String, Value>) -> Vec<String> {
    let mut faults = Vec::new();
    for (key, value) in options {
        match key.as_str() {
            "attempts" | "stackTraceLimit" | "keepLogs" => whole(key, value, 0, COUNT_MAX, &mut faults),
            "priority" => whole(key, value, 0, PRIORITY_MAX, &mut faults),
            "backoff" => backoff(key, value, &mut faults),
            "removeOnComplete" | "removeOnFail" => retention(key, value, &mut faults),
            _ => {
                faults.push(format!("option {key:?} is not allowed; allowed are {}", OPTION_KEYS.join(", ")));
            }
        }
    }
    faults
}

/// `backoff`: milliseconds, or `{type, delay, jitter}`. A worker that does not know the type throws in place of moving the
/// job on, and whether it knows one of its own only it can tell.
fn backoff(key: &str, value: &Value, faults: &mut Vec<String>) {
    const EXPECTED: &str =
        "milliseconds, or {\"type\": \"fixed\" or \"exponential\", \"delay\": milliseconds}";
    let Value::Object(fields) = value else {
        if !is_whole(value, 0, COUNT_MAX) {
            faults.push(odd(key, EXPECTED, value));
        }
        return;
    };
    for (field, value) in fields {
        let field = format!("{key}.{field}");
        match field.as_str() {
            "backoff.type" if matches!(value.as_str(), Some("fixed" | "exponential")) => {}
            "backoff.type" => faults.push(odd(&field, "\"fixed\" or \"exponential\"", value)),
            "backoff.delay" => whole(&field, value, 0, COUNT_MAX, faults),
            "backoff.jitter" if value.as_f64().is_some_and(|share| (0.0..=1.0).contains(&share)) => {}
            "backoff.jitter" => faults.push(odd(&field, "a number from 0 to 1", value)),
            _ => faults.push(format!("option {field:?} is not allowed; allowed are type, delay, jitter")),
        }
    }
    for missing in ["type", "delay"].into_iter().filter(|field| !fields.contains_key(*field)) {
        faults.push(format!("option \"{key}.{missing}\" is missing; expected {EXPECTED}"));
    }
}

/// `removeOnComplete` and `removeOnFail`: whether the entry goes, how many stay, or `{count, age, limit}`. The script
/// compares and multiplies these numbers after the worker is done.
fn retention(key: &str, value: &Value, faults: &mut Vec<String>) {
    match value {
        Value::Bool(_) => {}
        Value::Object(fields) => {
            for (name, value) in fields {
                let field = format!("{key}.{name}");
                match name.as_str() {
                    "count" => count(&field, value, faults),
                    "age" => whole(&field, value, 0, COUNT_MAX, faults),
                    "limit" => whole(&field, value, 1, COUNT_MAX, faults),
                    _ => {
                        faults.push(format!("option {field:?} is not allowed; allowed are count, age, limit"))
                    }
                }
            }
        }
        value if is_kept_count(value) => {}
        value => faults.push(odd(key, "true, false, a number of entries, or {count, age, limit}", value)),
    }
}

/// A number of entries, or -1 for all of them.
fn is_kept_count(value: &Value) -> bool {
    value.as_i64() == Some(-1) || is_whole(value, 0, COUNT_MAX)
}

fn count(field: &str, value: &Value, faults: &mut Vec<String>) {
    if !is_kept_count(value) {
        faults.push(odd(field, &format!("a whole number from 0 to {COUNT_MAX}, or -1 for all"), value));
    }
}

fn whole(field: &str, value: &Value, least: u64, most: u64, faults: &mut Vec<String>) {
    if !is_whole(value, least, most) {
        faults.push(odd(field, &format!("a whole number from {least} to {most}"), value));
    }
}

fn is_whole(value: &Value, least: u64, most: u64) -> bool {
    value.as_u64().is_some_and(|number| (least..=most).contains(&number))
}

/// Says of what kind the value is; the value itself may be anything.
fn odd(field: &str, expected: &str, found: &Value) -> String {
    let found = match found {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "another number",
        Value::String(_) => "a text",
        Value::Array(_) => "an array",
        Value::Object(_) => "an object",
    };
    format!("option {field:?}: expected {expected}, found {found}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    /// `named`: what each fault begins with, `option "…`.
    fn check_options(options: Value, named: &[&str]) {
        let Value::Object(object) = &options else { panic!("options are an object") };
        let faults = option_faults(object);
        let is_named = faults.len() == named.len()
            && faults.iter().zip(named).all(|(fault, name)| fault.starts_with(&format!("option \"{name}\"")));
        assert!(is_named, "{options}: {faults:#?}");
    }

    #[test]
    fn options_that_every_bullmq_takes_are_sound() {
        check_options(json!({}), &[]);
        for priority in [0, 1, 2_097_151] {
            check_options(json!({ "priority": priority }), &[]);
        }
        for backoff in [
            json!(0),
            json!(250),
            json!({ "type": "fixed", "delay": 0 }),
            json!({ "type": "exponential", "delay": 1000, "jitter": 0.5 }),
            json!({ "type": "fixed", "delay": 5, "jitter": 1 }),
        ] {
            check_options(json!({ "attempts": 3, "backoff": backoff }), &[]);
        }
        for kept in [
            json!(true),
            json!(false),
            json!(-1),
            json!(0),
            json!(1000),
            json!({}),
            json!({ "age": 3600 }),
            json!({ "count": -1, "age": 0 }),
            json!({ "count": 10, "age": 3600, "limit": 100 }),
        ] {
            check_options(json!({ "removeOnComplete": kept, "removeOnFail": kept }), &[]);
        }
        check_options(json!({ "stackTraceLimit": 0, "keepLogs": 0 }), &[]);
    }

    #[test]
    fn a_field_of_another_form_is_named_with_what_it_may_be() {
        check_options(
            json!({ "removeOnComplete": { "age": -1, "count": "x" } }),
            &["removeOnComplete.age", "removeOnComplete.count"],
        );
        for odd in [json!("3"), json!(null), json!(-1), json!(1.5), json!(true), json!([]), json!({})] {
            for key in ["attempts", "stackTraceLimit", "keepLogs", "priority"] {
                check_options(json!({ key: odd }), &[key]);
            }
        }
        check_options(json!({ "priority": 2_097_152 }), &["priority"]);
        check_options(json!({ "attempts": 4_294_967_296_u64 }), &["attempts"]);
        for odd in [json!(null), json!(-2), json!(0.5), json!("100"), json!([1]), json!(4_294_967_296_u64)] {
            check_options(json!({ "removeOnFail": odd }), &["removeOnFail"]);
            check_options(json!({ "removeOnFail": { "count": odd } }), &["removeOnFail.count"]);
            check_options(json!({ "removeOnFail": { "age": odd } }), &["removeOnFail.age"]);
        }
        check_options(
            json!({ "removeOnFail": { "limit": 0, "keep": 1 } }),
            &["removeOnFail.keep", "removeOnFail.limit"],
        );
        for odd in [json!(null), json!(-1), json!(1.5), json!("fixed"), json!(true), json!([1])] {
            check_options(json!({ "backoff": odd }), &["backoff"]);
        }
        check_options(json!({ "backoff": {} }), &["backoff.type", "backoff.delay"]);
        check_options(
            json!({ "backoff": { "type": "spring", "delay": null, "jitter": 2, "x": 1 } }),
            &["backoff.delay", "backoff.jitter", "backoff.type", "backoff.x"],
        );
        for key in ["delay", "parent", "jobId", "repeat", "lifo"] {
            check_options(json!({ key: 1 }), &[key]);
        }
    }

    #[test]
    fn a_fault_does_not_show_the_value() {
        let options = json!({ "removeOnComplete": "hunter2", "backoff": { "type": "hunter2", "delay": 1 } });
        let faults = option_faults(options.as_object().expect("an object"));
        assert_eq!(faults.len(), 2);
        assert!(!faults.join(" ").contains("hunter2"), "{faults:?}");
    }

    fn check_payload(data: Value, id: &str, fault: Option<&str>) {
        let found = payload_fault(&data, "jobId", id);
        assert_eq!(found.is_some(), fault.is_some(), "{data}: {found:?}");
        let found = found.unwrap_or_default();
        assert!(found.contains(fault.unwrap_or_default()), "{data}: {found}");
    }

    #[test]
    fn a_payload_carries_its_jobs_id_as_text_or_as_the_same_number() {
        check_payload(json!({ "jobId": "7" }), "7", None);
        check_payload(json!({ "jobId": 7 }), "7", None);
        check_payload(json!({ "jobId": -7 }), "-7", None);
        check_payload(json!({ "jobId": 9_007_199_254_740_991_u64 }), "9007199254740991", None);
        check_payload(json!({ "jobId": 9_007_199_254_740_993_u64 }), "9007199254740993", Some("as text"));
        check_payload(json!({ "jobId": "9007199254740993" }), "9007199254740993", None);
        check_payload(json!({ "jobId": 7.0 }), "7", Some("does not carry"));
        check_payload(json!({ "jobId": "8" }), "7", Some("does not carry"));
        check_payload(json!({ "jobId": null }), "7", Some("does not carry"));
        check_payload(json!({ "id": "7" }), "7", Some("no key \"jobId\""));
        check_payload(json!(["7"]), "7", Some("not a JSON object"));
    }

    #[test]
    fn a_text_is_clean_when_it_cannot_change_what_stands_around_it() {
        assert_eq!(clean("a\0b\u{1b}[31mc\u{7}\u{9b}d\u{7f}"), "ab[31mcd");
        assert_eq!(clean(" two\r\n\tlines \n"), "two lines");
        assert_eq!(clean("in\u{2028}one"), "in one");
        assert_eq!(clean("abc\u{202e}fed\u{2066}x\u{feff}\u{e0041}"), "abcfedx");
        for kept in ["Zażółć 日本語 שלום 👩‍👩‍👧 e\u{301}", "two  spaces", "נ\u{200f}!"]
        {
            assert_eq!(clean(kept), kept);
        }
    }

    #[test]
    fn a_reason_says_something() {
        for empty in ["", " ", "\t\n", "\0\u{1b}\u{202e}", "\u{a0}\u{3000}"] {
            assert!(
                reason_fault("fail", empty).is_some_and(|fault| fault.contains("the fail has no reason"))
            );
        }
        assert_eq!(reason_fault("hold", "."), None);
    }
}
