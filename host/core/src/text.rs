//! Text from elsewhere, made fit for a terminal or a log: ids, reasons, names of queues, errors of handlers and servers.
//!
//! A terminal obeys what it is sent: an escape sequence clears the screen or fills the clipboard, a newline forges a line, a
//! bidirectional override turns the order of letters, a zero-width character makes two ids look alike. So characters that
//! act, or that cannot be seen, are written as escapes, `\n` or `\u{1b}`; all others stay as they are, whatever their script.

use std::borrow::Cow;

/// Most characters of an id, a name or a type on a line.
pub const NAME_CHARS_MAX: usize = 100;

/// Most characters of a reason or an error.
pub const REASON_CHARS_MAX: usize = 1_000;

/// What stands for the rest.
const ELLIPSIS: char = '…';

/// A text on one line, with at most `chars_max` characters and an ellipsis for the rest; an escape is whole or not there.
#[must_use]
pub fn shown(text: &str, chars_max: usize) -> Cow<'_, str> {
    if !text.contains(is_hidden) && text.chars().nth(chars_max).is_none() {
        return Cow::Borrowed(text);
    }
    let (mut out, mut room) = (String::new(), chars_max);
    for c in text.chars() {
        let width = if is_hidden(c) { c.escape_default().len() } else { 1 };
        if width > room {
            out.push(ELLIPSIS);
            break;
        }
        room -= width;
        if is_hidden(c) { out.extend(c.escape_default()) } else { out.push(c) }
    }
    Cow::Owned(out)
}

/// An id, a name or a type, with at most [`NAME_CHARS_MAX`] characters.
#[must_use]
pub fn name(text: &str) -> Cow<'_, str> {
    shown(text, NAME_CHARS_MAX)
}

/// A reason or an error, with at most [`REASON_CHARS_MAX`] characters.
#[must_use]
pub fn reason(text: &str) -> Cow<'_, str> {
    shown(text, REASON_CHARS_MAX)
}

/// Lines that were laid out already: whole, and with their newlines. The last guard before a terminal, for what was put
/// into them without the functions above.
#[must_use]
pub fn lines(text: &str) -> Cow<'_, str> {
    let acts = |c: char| c != '\n' && is_hidden(c);
    if !text.contains(acts) {
        return Cow::Borrowed(text);
    }
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        if acts(c) { out.extend(c.escape_default()) } else { out.push(c) }
    }
    Cow::Owned(out)
}

/// A JSON document with the same characters as JSON's own escapes: the same data. Serialisers leave all but the first 32
/// characters as they are, among them a C1 control that some terminals take for the begin of an escape sequence.
#[must_use]
pub fn json(document: &str) -> Cow<'_, str> {
    // Raw, they can only be inside of strings; a newline is between the values.
    let acts = |c: char| c != '\n' && is_hidden(c);
    if !document.contains(acts) {
        return Cow::Borrowed(document);
    }
    let mut out = String::with_capacity(document.len());
    for c in document.chars() {
        if acts(c) {
            for unit in c.encode_utf16(&mut [0; 2]) {
                out.push_str(&format!("\\u{unit:04x}"));
            }
        } else {
            out.push(c);
        }
    }
    Cow::Owned(out)
}

/// Whether a character acts on a terminal or cannot be seen: controls, line and paragraph separators, annotation marks, and
/// what Unicode 16 calls `Default_Ignorable_Code_Point` (bidirectional controls, zero-width and filler characters, tags,
/// variation selectors).
const fn is_hidden(c: char) -> bool {
    matches!(c,
        '\0'..='\x1f' | '\x7f'..='\u{9f}'
        | '\u{ad}' | '\u{34f}' | '\u{61c}' | '\u{115f}'..='\u{1160}' | '\u{17b4}'..='\u{17b5}'
        | '\u{180b}'..='\u{180f}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}'
        | '\u{3164}' | '\u{fe00}'..='\u{fe0f}' | '\u{feff}' | '\u{ffa0}' | '\u{fff0}'..='\u{fffb}'
        | '\u{1bca0}'..='\u{1bca3}' | '\u{1d173}'..='\u{1d17a}' | '\u{e0000}'..='\u{e0fff}')
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn what_acts_on_a_terminal_is_written_as_an_escape() {
        for (text, expected) in [
            ("plain, Grüße, 仕事, שלום, 🎉", "plain, Grüße, 仕事, שלום, 🎉"),
            ("red \u{1b}[31m", r"red \u{1b}[31m"),
            ("\u{1b}]52;c;cm0gLXJm\u{7}", r"\u{1b}]52;c;cm0gLXJm\u{7}"),
            ("one\nWARN forged\r\t", r"one\nWARN forged\r\t"),
            ("\u{9b}31m", r"\u{9b}31m"),
            ("abc\u{202e}fed\u{2066}x\u{2069}", r"abc\u{202e}fed\u{2066}x\u{2069}"),
            ("a\u{200b}b\u{feff}\u{ad}", r"a\u{200b}b\u{feff}\u{ad}"),
            ("tag\u{e0041}", r"tag\u{e0041}"),
            ("\0\u{7f}\u{2028}", r"\u{0}\u{7f}\u{2028}"),
        ] {
            assert_eq!(reason(text), expected);
        }
    }

    #[test]
    fn a_long_text_is_cut_at_a_character_and_never_in_an_escape() {
        assert_eq!(shown("äöüß", 4), "äöüß");
        assert_eq!(shown("äöüß", 3), "äöü…");
        assert_eq!(shown("a\u{1b}b", 6), "a…");
        assert_eq!(shown("a\u{1b}b", 7), r"a\u{1b}…");
        assert_eq!(shown("a\u{1b}b", 8), r"a\u{1b}b");
        assert_eq!(shown("", 0), "");
        assert_eq!(reason(&"x".repeat(500_000)).chars().count(), REASON_CHARS_MAX + 1);
    }

    #[test]
    fn laid_out_lines_keep_their_newlines_and_nothing_else_that_acts() {
        assert_eq!(lines("a\n  b"), "a\n  b");
        assert_eq!(lines("a\n\u{1b}[2J\rb"), "a\n\\u{1b}[2J\\rb");
    }

    proptest! {
        #[test]
        fn nothing_that_is_shown_acts_and_nothing_is_longer_than_asked(text in ".*", chars_max in 0_usize..40) {
            let shown = shown(&text, chars_max);
            prop_assert!(!shown.contains(is_hidden));
            prop_assert!(shown.chars().count() <= chars_max + 1);
        }

        #[test]
        fn json_stays_the_same_data(text in any::<String>()) {
            let value = serde_json::json!({ &text: [&text] });
            let document = serde_json::to_string_pretty(&value).unwrap();
            let safe = json(&document);
            prop_assert!(!safe.contains(|c| c != '\n' && is_hidden(c)));
            prop_assert_eq!(serde_json::from_str::<serde_json::Value>(&safe).unwrap(), value);
        }
    }
}
