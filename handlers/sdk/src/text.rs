//! Foreign text made fit for one line of a message.

/// The text on one line and at most `chars_max` characters long, with `…` as the last one if something was cut.
///
/// Each run of white space and control characters becomes one space; that also removes NUL, which PostgreSQL's text
/// cannot hold.
pub fn one_line(text: &str, chars_max: usize) -> String {
    let mut words = text.split(|c: char| c.is_whitespace() || c.is_control()).filter(|word| !word.is_empty());
    let mut line = String::new();
    // A message may be huge: stop gathering as soon as enough is there to cut.
    while let Some(word) = words.next()
        && line.len() <= chars_max * char::MAX_LEN_UTF8
    {
        if !line.is_empty() {
            line.push(' ');
        }
        line.push_str(word);
    }
    match line.char_indices().nth(chars_max) {
        None => line,
        Some(_) => line.chars().take(chars_max.saturating_sub(1)).chain(['…']).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn white_space_and_control_characters_become_one_space() {
        assert_eq!(one_line("  a\r\n\tb\0c  ", 10), "a b c");
        assert_eq!(one_line("", 10), "");
    }

    #[test]
    fn cutting_counts_characters_and_not_bytes() {
        assert_eq!(one_line("äöüß", 4), "äöüß");
        assert_eq!(one_line("äöüßa", 4), "äöü…");
        assert_eq!(one_line(&"a b ".repeat(100_000), 5), "a b …");
    }
}
