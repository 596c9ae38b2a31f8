//! Writes a decision into a case file's text, and leaves every other byte of it to its author.

use std::ops::Range;

use serde::de::IgnoredAny;

/// The text with `decided` (JSON over several lines) as its `expected`; `None` if the text is no JSON object.
pub(super) fn with_expected(text: &str, decided: &str) -> Option<String> {
    let decided = decided.replace('\n', "\n  ");
    if let Some(value) = value_of(text, "expected") {
        return Some(format!("{}{decided}{}", &text[..value.start], &text[value.end..]));
    }
    let before = text.trim_end().strip_suffix('}')?.trim_end();
    let comma = if before.ends_with('{') { "" } else { "," };
    Some(format!("{before}{comma}\n  \"expected\": {decided}\n}}\n"))
}

/// Where the value of a key of the outermost object stands.
fn value_of(text: &str, key: &str) -> Option<Range<usize>> {
    let quoted = format!("\"{key}\"");
    let (mut depth, mut at) = (0_usize, 0);
    while let Some(byte) = text.as_bytes().get(at) {
        match byte {
            b'{' | b'[' => depth += 1,
            b'}' | b']' => depth = depth.checked_sub(1)?,
            b'"' => {
                let end = at + length(&text[at..])?;
                let after = text[end..].trim_start();
                if depth == 1 && text[at..end] == quoted && after.starts_with(':') {
                    let value = after[1..].trim_start();
                    let start = text.len() - value.len();
                    return Some(start..start + length(value)?);
                }
                at = end;
                continue;
            }
            _ => {}
        }
        at += 1;
    }
    None
}

/// Bytes of the JSON value that `text` begins with.
fn length(text: &str) -> Option<usize> {
    let mut values = serde_json::Deserializer::from_str(text).into_iter::<IgnoredAny>();
    values.next()?.ok()?;
    Some(values.byte_offset())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(text: &str, expected: &str) {
        assert_eq!(with_expected(text, "{\n  \"kind\": \"hold\"\n}").as_deref(), Some(expected));
    }

    #[test]
    fn only_the_expectation_changes() {
        check(
            r#"{ "about": "the \"expected\": one", "job": { "expected": 1 }, "expected": { "kind": "fail" }, "x":  2 }"#,
            "{ \"about\": \"the \\\"expected\\\": one\", \"job\": { \"expected\": 1 }, \"expected\": {\n    \"kind\": \"hold\"\n  }, \"x\":  2 }",
        );
    }

    #[test]
    fn a_missing_expectation_is_added_at_the_end() {
        check(
            "{\n  \"about\": \"a\"\n}\n",
            "{\n  \"about\": \"a\",\n  \"expected\": {\n    \"kind\": \"hold\"\n  }\n}\n",
        );
    }

    #[test]
    fn what_is_no_object_stays() {
        assert_eq!(with_expected("[1]", "{}"), None);
    }
}
