//! The tables that are printed.

use super::figures::Figures;
use super::targets::Verdict;
use crate::seed::Size;
use comfy_table::presets::ASCII_MARKDOWN;
use comfy_table::{CellAlignment, Table};

/// What is compared, in the order of its columns: the figure, its heading, digits after the point.
const COLUMNS: [(&str, &str, usize); 11] = [
    ("lookup_ms", "look-up, ms", 1),
    ("pass_ms", "pass, ms", 0),
    ("process_ms", "process, ms", 0),
    ("commands_sent", "commands", 0),
    ("commands_run", "run by Redis", 0),
    ("round_trips", "round trips", 0),
    ("redis_cpu_ms", "Redis CPU, ms", 1),
    ("mb_from_redis", "MB read", 2),
    ("peak_rss_mb", "peak RSS, MB", 1),
    ("stall_ms", "longest stall, ms", 1),
    ("runs", "runs", 0),
];

const ROWS: [(&str, &str); 4] = [
    ("salvage", "Salvage, dry run"),
    ("acting", "Salvage, acting"),
    ("reference", "Node reference"),
    ("floor", "floor"),
];

/// Ratios that say the same on any machine: heading, dividend, divisor.
const RATIOS: [(&str, &str, &str); 5] = [
    ("times faster", "reference.lookup_ms", "salvage.lookup_ms"),
    ("times the floor", "salvage.lookup_ms", "floor.lookup_ms"),
    ("fewer commands", "reference.commands_sent", "salvage.commands_sent"),
    ("fewer round trips", "reference.round_trips", "salvage.round_trips"),
    ("less Redis CPU", "reference.redis_cpu_ms", "salvage.redis_cpu_ms"),
];

pub(super) fn heading(size: Size) -> String {
    format!("{} ids in five queues, {} candidates", size.ids, size.candidates)
}

pub(super) fn contenders(figures: &Figures) -> String {
    let mut table = markdown();
    table.set_header(std::iter::once("").chain(COLUMNS.map(|(_, heading, _)| heading)));
    for (of, name) in ROWS {
        let cell = |(figure, _, digits): (&str, &str, usize)| {
            figures.get(&format!("{of}.{figure}")).map_or("–".to_owned(), |value| number(value, digits))
        };
        table.add_row(std::iter::once(name.to_owned()).chain(COLUMNS.map(cell)));
    }
    right_aligned(&mut table);
    let ratios = RATIOS.iter().filter_map(|(name, dividend, divisor)| {
        Some(format!("{name}: {:.1}", figures.get(dividend)? / figures.get(divisor)?))
    });
    let ratios: Vec<String> = ratios.collect();
    let acts =
        [("acts", 0), ("acts_per_s", 0), ("requeued", 0), ("failed", 0), ("before_epoch", 0), ("storm", 0)];
    let acts = acts.iter().filter_map(|(name, digits)| {
        Some(format!("{name}: {}", number(figures.get(&format!("acting.{name}"))?, *digits)))
    });
    let acts: Vec<String> = acts.collect();
    let commands = ROWS.map(|(of, name)| format!("run by Redis for {name}: {}", kinds(figures, of)));
    let lines = [ratios.join(", "), acts.join(", "), steps(figures), commands.join("\n")];
    format!("{table}\n{}", lines.join("\n"))
}

/// How many commands of each kind, most first.
fn kinds(figures: &Figures, of: &str) -> String {
    let kinds = figures.kinds(of).into_iter().map(|(kind, calls)| format!("{kind} {}", number(calls, 0)));
    kinds.collect::<Vec<_>>().join(", ")
}

/// How long each step of a pass took.
fn steps(figures: &Figures) -> String {
    let of = |contender: &str| {
        let steps =
            ["candidates", "look", "memory", "judge", "stalled", "corroborate", "decide", "act", "record"];
        let steps = steps.iter().filter_map(|step| {
            let ms = figures.get(&format!("{contender}.step_{step}_ms"))?;
            Some(format!("{step} {ms:.1}"))
        });
        steps.collect::<Vec<_>>().join(", ")
    };
    let floor = ["select", "snapshot", "payloads"]
        .iter()
        .filter_map(|step| Some(format!("{step} {:.1}", figures.get(&format!("floor.{step}_ms"))?)));
    let floor: Vec<String> = floor.collect();
    format!(
        "steps of the dry run, ms: {}\nsteps of the acting pass, ms: {}\nsteps of the floor, ms: {}",
        of("salvage"),
        of("acting"),
        floor.join(", ")
    )
}

pub(super) fn rest(figures: &Figures) -> String {
    let rows = [
        (
            "look-up of 1,000 scheduled candidates, payloads of 100 characters, ms",
            "scheduled.small_payload_ms",
            1,
        ),
        ("the same, payloads of 10,000 characters, ms", "scheduled.large_payload_ms", 1),
        ("`salvage once` with nothing to do, from start to exit, ms", "idle.once_ms", 0),
        ("idle `salvage run`, resident MB", "idle.rss_mb", 1),
        ("idle `salvage run`, processor ms per second", "idle.cpu_ms_per_s", 2),
        ("1,500 orphans in short queues: acts", "recovery.acts", 0),
        ("the same: acts per second", "recovery.acts_per_s", 0),
        ("the same: whole pass, ms", "recovery.pass_ms", 0),
        ("the same: Redis CPU, ms", "recovery.redis_cpu_ms", 1),
    ];
    let mut table = markdown();
    table.set_header(["what", "median"]);
    for (name, figure, digits) in rows {
        if let Some(value) = figures.get(figure) {
            table.add_row([name.to_owned(), number(value, digits)]);
        }
    }
    right_aligned(&mut table);
    table.to_string()
}

pub(super) fn verdicts(verdicts: &[Verdict]) -> String {
    let mut table = markdown();
    table.set_header(["target", "size", "aim", "reached", ""]);
    for Verdict { name, size, aim, reached, is_met, fails } in verdicts {
        let word = match (reached, is_met, fails) {
            (None, ..) => "not measured",
            (_, true, _) => "met",
            (_, false, true) => "MISSED",
            (_, false, false) => "missed",
        };
        let reached = reached.map_or("–".to_owned(), |value| number(value, 2));
        table.add_row([name.clone(), size.clone(), aim.clone(), reached, word.to_owned()]);
    }
    table.to_string()
}

/// Tables are printed as Markdown: they go into `docs/performance.md` as they are.
fn markdown() -> Table {
    let mut table = Table::new();
    table.load_style(ASCII_MARKDOWN);
    table
}

fn right_aligned(table: &mut Table) {
    for column in table.column_iter_mut().skip(1) {
        column.set_cell_alignment(CellAlignment::Right);
    }
}

fn number(value: f64, digits: usize) -> String {
    format!("{value:.digits$}")
}
