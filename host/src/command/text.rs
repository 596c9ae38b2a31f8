//! Text for people: tables without borders, and paragraphs that break where a terminal would cut a word.

use std::io::{self, IsTerminal};

use comfy_table::{CellAlignment, Table, presets};

/// Columns of a paragraph on a terminal. Its own width is not asked for; most have room for this.
const WIDTH: usize = 100;

/// Fewest columns for the text beside a label, however long that is.
const WIDTH_MIN: usize = 40;

/// `label`, and beside it a text that may be long: on a terminal its further lines begin under its first; elsewhere it is
/// one line, so that `grep` finds it whole.
pub(super) fn beside(label: &str, text: &str) -> String {
    if io::stdout().is_terminal() { broken(label, text, WIDTH) } else { format!("{label}{text}") }
}

fn broken(label: &str, text: &str, width: usize) -> String {
    let indent = label.chars().count();
    let room = width.saturating_sub(indent).max(WIDTH_MIN);
    let mut lines = vec![String::new()];
    for word in text.split_whitespace() {
        let line = lines.last_mut().expect("there is always a line");
        if line.is_empty() {
            line.push_str(word);
        } else if line.chars().count() + 1 + word.chars().count() <= room {
            line.push(' ');
            line.push_str(word);
        } else {
            lines.push(word.to_owned());
        }
    }
    format!("{label}{}", lines.join(&format!("\n{:indent$}", "")))
}

/// A table of columns two spaces apart; those in `numbers` are numbers.
pub(super) fn table<const N: usize>(header: [&str; N], numbers: std::ops::Range<usize>) -> Table {
    let mut table = Table::new();
    table.load_style(presets::NOTHING).set_header(header);
    for (index, column) in table.column_iter_mut().enumerate() {
        column.set_padding(if index == 0 { (0, 1) } else { (1, 1) });
        if numbers.contains(&index) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    table
}

/// The table's lines without blanks at their ends.
pub(super) fn drawn(table: &Table) -> String {
    table.lines().map(|line| line.trim_end().to_owned()).collect::<Vec<_>>().join("\n")
}

/// `1 orphan`, `2 orphans`.
pub(super) fn counted(count: u64, noun: &str) -> String {
    if count == 1 { format!("1 {noun}") } else { format!("{count} {noun}s") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_text_breaks_between_words_and_stays_beside_its_label() {
        let text = "one two three four five six seven eight nine ten eleven twelve";
        assert_eq!(
            broken("why  ", text, 50),
            "why  one two three four five six seven eight nine\n     ten eleven twelve"
        );
        assert_eq!(broken("why  ", "short", 50), "why  short");
    }

    #[test]
    fn a_word_longer_than_a_line_stays_whole() {
        let word = "x".repeat(70);
        assert_eq!(broken("", &format!("a {word} b"), 50), format!("a\n{word}\nb"));
    }
}
