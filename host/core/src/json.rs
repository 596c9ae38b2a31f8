//! A walk over the texts and numbers of a JSON document, without building it.
//!
//! A payload comes from JavaScript. `JSON.parse` takes half a surrogate pair, a number beyond any range and any depth of
//! nesting; so does this, in keys and values alike. Otherwise one such payload would leave its whole queue in doubt.

use std::borrow::Cow;
use std::fmt;

use serde::Deserializer;
use serde::de::{IgnoredAny, Visitor};
use serde_json::Number;

/// Levels of nesting of which the keys are told; what lies deeper is told without.
const PATH_MAX: usize = 32;

/// How often JSON is looked for in a text of JSON.
const NESTED_MAX: u32 = 4;

/// A leaf of the document that is no object or list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Scalar<'p> {
    /// A text; half a surrogate pair is replaced.
    Text(Cow<'p, str>),
    /// A number as JavaScript writes it: `5.0` is `5`.
    Number(Cow<'p, str>),
    /// `null`, `true` or `false`.
    Word,
}

/// Where a leaf is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Step<'p> {
    /// Under this key of an object.
    Key(Cow<'p, str>),
    /// In a list.
    Element,
}

impl Step<'_> {
    fn borrowed(&self) -> Step<'_> {
        match self {
            Self::Key(key) => Step::Key(Cow::Borrowed(key)),
            Self::Element => Step::Element,
        }
    }
}

/// Shows `see` every leaf with its path, in document order. The JSON within a text follows that text, under its path.
/// Returns false, having shown nothing, if `document` is not JSON.
pub(crate) fn walk(document: &str, see: &mut dyn FnMut(&[Step<'_>], &Scalar<'_>)) -> bool {
    let is_json = is_json(document);
    if is_json {
        Walk { rest: document, path: vec![], depth: vec![], is_key: false, nested: 0 }.through(see);
    }
    is_json
}

fn is_json(document: &str) -> bool {
    serde_json::from_str::<IgnoredAny>(document).is_ok()
}

/// A walk under way. What it walks over is valid, so every token is where it may be.
struct Walk<'p> {
    rest: &'p str,
    path: Vec<Step<'p>>,
    /// Of each open object or list, whether it is an object.
    depth: Vec<bool>,
    /// Whether the next text is a key.
    is_key: bool,
    nested: u32,
}

impl<'p> Walk<'p> {
    fn through(mut self, see: &mut dyn FnMut(&[Step<'_>], &Scalar<'_>)) {
        while let Some(first) = self.rest.bytes().next() {
            match first {
                b'{' => self.open(true),
                b'[' => self.open(false),
                b'}' | b']' => self.close(),
                b',' => self.is_key = self.depth.last() == Some(&true),
                b':' => self.is_key = false,
                b'"' => {
                    let text = self.text();
                    match self.is_key {
                        true => self.at_key(text),
                        false => self.saw_text(text, see),
                    }
                    continue;
                }
                b' ' | b'\t' | b'\n' | b'\r' => {}
                _ => {
                    let word = self.word();
                    see(&self.path, &scalar(word));
                    continue;
                }
            }
            self.rest = &self.rest[1..];
        }
    }

    fn open(&mut self, is_object: bool) {
        if self.depth.len() < PATH_MAX {
            self.path.push(if is_object { Step::Key(Cow::Borrowed("")) } else { Step::Element });
        }
        self.depth.push(is_object);
        self.is_key = is_object;
    }

    fn close(&mut self) {
        self.depth.pop();
        if self.depth.len() < PATH_MAX {
            self.path.pop();
        }
    }

    fn at_key(&mut self, key: Cow<'p, str>) {
        if self.depth.len() <= PATH_MAX
            && let Some(step) = self.path.last_mut()
        {
            *step = Step::Key(key);
        }
    }

    fn saw_text(&self, text: Cow<'p, str>, see: &mut dyn FnMut(&[Step<'_>], &Scalar<'_>)) {
        let looks_nested = text.trim_start().starts_with(['{', '[', '"']);
        let text = Scalar::Text(text);
        see(&self.path, &text);
        let Scalar::Text(text) = &text else { return };
        if looks_nested && self.nested < NESTED_MAX && is_json(text) {
            let path: Vec<Step<'_>> = self.path.iter().map(Step::borrowed).collect();
            // Its own levels are counted from its own beginning, and told as far as there is room.
            let nested = self.nested + 1;
            Walk { rest: text, depth: vec![], is_key: false, path: vec![], nested }.under(&path, see);
        }
    }

    /// As [`Self::through`], with `base` before each path.
    fn under(self, base: &[Step<'_>], see: &mut dyn FnMut(&[Step<'_>], &Scalar<'_>)) {
        self.through(&mut |path, scalar| {
            let whole: Vec<Step<'_>> = base.iter().chain(path).map(Step::borrowed).collect();
            see(&whole, scalar);
        });
    }

    /// The text that begins here.
    fn text(&mut self) -> Cow<'p, str> {
        let bytes = self.rest.as_bytes();
        let (mut at, mut is_plain) = (1, true);
        while bytes[at] != b'"' {
            is_plain &= bytes[at] != b'\\';
            at += if bytes[at] == b'\\' { 2 } else { 1 };
        }
        let (quoted, rest) = self.rest.split_at(at + 1);
        self.rest = rest;
        if is_plain { Cow::Borrowed(&quoted[1..at]) } else { Cow::Owned(unescaped(quoted)) }
    }

    /// The number, `true`, `false` or `null` that begins here.
    fn word(&mut self) -> &'p str {
        let ends = |c: char| matches!(c, ',' | '}' | ']' | ' ' | '\t' | '\n' | '\r');
        let (word, rest) = self.rest.split_at(self.rest.find(ends).unwrap_or(self.rest.len()));
        self.rest = rest;
        word
    }
}

fn scalar(word: &str) -> Scalar<'_> {
    match word {
        "null" | "true" | "false" => Scalar::Word,
        number if number.bytes().all(|byte| byte.is_ascii_digit()) => Scalar::Number(Cow::Borrowed(number)),
        number => Scalar::Number(
            serde_json::from_str(number).map_or(Cow::Borrowed(number), |read| Cow::Owned(number_text(&read))),
        ),
    }
}

/// A number as JavaScript writes it.
pub(crate) fn number_text(number: &Number) -> String {
    /// Below it every whole number has a float of its own.
    const EXACT_MAX: f64 = 9_007_199_254_740_992.0;
    match number.as_f64() {
        Some(float) if number.is_f64() && float.fract() == 0.0 && float.abs() < EXACT_MAX => {
            format!("{float:.0}")
        }
        _ => number.to_string(),
    }
}

/// A quoted text that holds escapes. Read as bytes, in which half a surrogate pair is no error.
fn unescaped(quoted: &str) -> String {
    struct Bytes;
    impl Visitor<'_> for Bytes {
        type Value = String;
        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a text")
        }
        fn visit_bytes<E>(self, bytes: &[u8]) -> Result<String, E> {
            Ok(String::from_utf8_lossy(bytes).into_owned())
        }
    }
    serde_json::Deserializer::from_str(quoted).deserialize_bytes(Bytes).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `path=leaf` of every leaf; a number is written `#5`.
    fn leaves(document: &str) -> Vec<String> {
        let mut found = vec![];
        let is_json = walk(document, &mut |path, scalar| {
            let steps = path.iter().map(|step| match step {
                Step::Key(key) => key.to_string(),
                Step::Element => "[]".to_owned(),
            });
            let leaf = match scalar {
                Scalar::Text(text) => text.to_string(),
                Scalar::Number(number) => format!("#{number}"),
                Scalar::Word => "word".to_owned(),
            };
            found.push(format!("{}={leaf}", steps.collect::<Vec<_>>().join(".")));
        });
        assert!(is_json, "{document}");
        found
    }

    #[test]
    fn every_leaf_is_shown_with_its_path() {
        let document = r#" {"a": "x", "b": {"c": [1, {"d": null}], "e": -2.0e0} , "f":[]} "#;
        assert_eq!(leaves(document), ["a=x", "b.c.[]=#1", "b.c.[].d=word", "b.e=#-2"]);
        assert_eq!(leaves("\"x\""), ["=x"]);
        assert_eq!(leaves("7"), ["=#7"]);
    }

    #[test]
    fn a_text_of_json_is_walked_after_itself() {
        let inner = r#"{"jobId":"7"}"#;
        let document = format!(r#"{{"body":{}}}"#, serde_json::json!(inner));
        assert_eq!(leaves(&document), [format!("body={inner}"), "body.jobId=7".to_owned()]);
        let whole = serde_json::json!(inner).to_string();
        assert_eq!(leaves(&whole), [format!("={inner}"), "jobId=7".to_owned()]);
    }

    #[test]
    fn what_javascript_reads_is_read() {
        assert_eq!(
            leaves(r#"{"cut \ud83d":"\ud83d","n":1e999}"#),
            ["cut \u{fffd}\u{fffd}\u{fffd}=\u{fffd}\u{fffd}\u{fffd}", "n=#1e999"]
        );
        assert_eq!(leaves(r#"{"q\"uote":"a\\"}"#), ["q\"uote=a\\"]);
        assert_eq!(
            leaves("{\"big\":123456789012345678901234567890}"),
            ["big=#123456789012345678901234567890"]
        );
    }

    #[test]
    fn any_depth_is_walked() {
        let deep = format!("{}7{}", "[".repeat(100_000), "]".repeat(100_000));
        let found = leaves(&format!(r#"{{"deep":{deep},"jobId":"7"}}"#));
        assert_eq!(found.len(), 2);
        assert!(found[0].ends_with("=#7") && found[1] == "jobId=7", "{found:?}");
    }

    #[test]
    fn what_is_no_json_is_not_walked() {
        for document in ["", "{", "undefined", r#"{"jobId":"7"} x"#, "{'a':1}"] {
            assert!(!walk(document, &mut |_, _| panic!("shown")), "{document}");
        }
    }
}
