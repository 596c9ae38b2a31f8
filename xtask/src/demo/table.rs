//! The tables that the demo prints.

use super::driver::Run;
use super::host::Report;
use super::look::Found;
use super::scenario::{SITUATIONS, Situation, Verdict};
use comfy_table::presets::{UTF8_FULL, UTF8_FULL_CONDENSED};
use comfy_table::{ContentArrangement, Table};

/// Fits a laptop's terminal and a text file alike; the same everywhere, so that two runs can be compared.
const WIDTH: u16 = 118;

/// Longer ids are cut; only uuids are.
const ID_CHARS_MAX: usize = 4;

/// What happened to each job, and what is seen of it.
pub(super) fn before(entries: &[String], found: &[Found]) -> Table {
    let mut table = condensed(&["job", "what happened", "row", "deck or video", "entry in the queue"]);
    for ((situation, entry), found) in SITUATIONS.iter().zip(entries).zip(found) {
        let mut place = found.entry.clone();
        if *entry != situation.entry_by_rule() {
            place = format!("{place}, as {entry:?}");
        }
        table.add_row([
            name(situation),
            situation.story.into(),
            found.row.clone(),
            found.parent.clone(),
            place,
        ]);
    }
    table
}

/// What the pass did.
pub(super) fn recovery(report: &Report, before: &[Found], after: &[Found]) -> Table {
    let mut table = with_header(&["job", "Salvage", "row", "deck or video", "entry in the queue"]);
    table.load_style(UTF8_FULL);
    for (situation, (before, after)) in SITUATIONS.iter().zip(before.iter().zip(after)) {
        table.add_row([
            name(situation),
            deed(report, situation),
            change(&before.row, &after.row),
            change(&before.parent, &after.parent),
            change(&before.entry, &after.entry),
        ]);
    }
    table
}

/// How everything ended.
pub(super) fn end(found: &[Found], runs_before: &[Run], runs: &[Run]) -> Table {
    let header = ["job", "row", "deck or video", "entry in the queue", "runs before recovery", "runs after"];
    let mut table = condensed(&header);
    for (situation, found) in SITUATIONS.iter().zip(found) {
        let count = |runs: &[Run]| runs.iter().filter(|run| situation.is_of(run)).count();
        let (earlier, all) = (count(runs_before), count(runs));
        table.add_row([
            name(situation),
            found.row.clone(),
            found.parent.clone(),
            found.entry.clone(),
            earlier.to_string(),
            (all - earlier).to_string(),
        ]);
    }
    table
}

/// For rows of one line each.
fn condensed(header: &[&str]) -> Table {
    let mut table = with_header(header);
    table.load_style(UTF8_FULL_CONDENSED);
    table
}

fn with_header(header: &[&str]) -> Table {
    let mut table = Table::new();
    table.set_content_arrangement(ContentArrangement::Dynamic).set_width(WIDTH).set_header(header);
    table
}

/// The row's id; with the job's type where the id tells nothing.
fn name(situation: &Situation) -> String {
    let Situation { id, kind, .. } = *situation;
    match id.chars().next() {
        Some('0'..='9') if id.len() > ID_CHARS_MAX => format!("{kind} {}…", &id[..ID_CHARS_MAX]),
        Some('0'..='9') => format!("{kind} {id}"),
        _ => id.to_owned(),
    }
}

/// What the report says was done, not what should have been.
fn deed(report: &Report, situation: &Situation) -> String {
    let why = match situation.verdict {
        Verdict::LeftAlone(why) | Verdict::PutBack(why) => why,
        Verdict::MarkedFailed => "",
    };
    let Some(told) = report.get(&situation.key()) else { return format!("left alone: {why}") };
    let reason = told.reason.as_deref().unwrap_or_default();
    match (told.decision.as_str(), told.outcome.as_str()) {
        ("requeue", "applied") => format!("put back: {why}"),
        ("fail", "applied") => format!("marked failed: {reason}"),
        (decision, outcome) => format!("{decision}, {outcome}"),
    }
}

/// On two lines, which keeps the column narrow; of two states that begin alike, the second only where it differs.
fn change(before: &str, after: &str) -> String {
    if before == after {
        return after.to_owned();
    }
    match (before.rsplit_once(' '), after.rsplit_once(' ')) {
        (Some((same, _)), Some((start, differs))) if same == start => format!("{before}\n→ {differs}"),
        _ => format!("{before}\n→ {after}"),
    }
}

#[cfg(test)]
mod tests {
    use super::change;

    #[test]
    fn a_change_is_shown_where_it_is() {
        assert_eq!(change("READY", "READY"), "READY");
        assert_eq!(change("QUEUED", "FAILED"), "QUEUED\n→ FAILED");
        assert_eq!(
            change("READY, export EXPORTING", "READY, export FAILED"),
            "READY, export EXPORTING\n→ FAILED"
        );
        assert_eq!(change("active (alive)", "completed"), "active (alive)\n→ completed");
    }
}
