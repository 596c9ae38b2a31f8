//! Text for people: tables without borders, and paragraphs that break where a terminal would cut a word.

use std::io::{self, IsTerminal};
use std::time::Duration;

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

/// Rows of cells, and beside each a text that may be long, under a head; one string a row, the head first.
pub(super) fn rows<const N: usize>(head: ([&str; N], &str), rows: &[([String; N], String)]) -> Vec<String> {
    let head = (head.0.map(str::to_owned), head.1.to_owned());
    let all: Vec<&([String; N], String)> = std::iter::once(&head).chain(rows).collect();
    let width = |column: usize| all.iter().map(|(cells, _)| cells[column].chars().count()).max().unwrap_or(0);
    let widths: [usize; N] = std::array::from_fn(width);
    let label = |cells: &[String; N]| -> String {
        cells.iter().zip(widths).map(|(cell, width)| format!("{cell:width$}  ")).collect()
    };
    all.into_iter().map(|(cells, text)| beside(&label(cells), text)).collect()
}

/// The table's lines without blanks at their ends.
pub(super) fn drawn(table: &Table) -> String {
    table.lines().map(|line| line.trim_end().to_owned()).collect::<Vec<_>>().join("\n")
}

/// A duration as far as it matters to a reader: `45 ms`, `6.7 s`, `12 min`, `26 h`, `3 d`.
pub(super) fn rough(duration: Duration) -> String {
    let (seconds, minutes) = (duration.as_secs(), duration.as_secs() / 60);
    match seconds {
        0 => format!("{} ms", duration.as_millis()),
        1..10 => format!("{:.1} s", duration.as_secs_f64()),
        10..120 => format!("{seconds} s"),
        120..7_200 => format!("{minutes} min"),
        7_200..172_800 => format!("{} h", minutes / 60),
        _ => format!("{} d", minutes / 60 / 24),
    }
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
    fn a_duration_is_told_as_far_as_it_matters() {
        for (ms, expected) in [
            (45, "45 ms"),
            (6_666, "6.7 s"),
            (59_999, "59 s"),
            (66_817, "66 s"),
            (119_999, "119 s"),
            (120_000, "2 min"),
            (7_199_000, "119 min"),
            (7_200_000, "2 h"),
            (172_799_000, "47 h"),
            (1_000_000_000, "11 d"),
        ] {
            assert_eq!(rough(Duration::from_millis(ms)), expected);
        }
    }

    #[test]
    fn a_word_longer_than_a_line_stays_whole() {
        let word = "x".repeat(70);
        assert_eq!(broken("", &format!("a {word} b"), 50), format!("a\n{word}\nb"));
    }
}
