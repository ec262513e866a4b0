//! The rows for people: a table for the terminal, and docs/benchmarks-keel.md, a pure function of
//! the JSON, without a date, so that the same figures give the same page.

use std::fmt::{self, Write as _};

use comfy_table::{CellAlignment, Table, presets};

use super::KeelReport;
use super::contestant::explanation;
use super::lab::Clock;
use super::metric::{Kind, Metric};
use super::table::{Reached, Row};
use crate::stats::Verdict;

const HEADER: [&str; 9] = [
    "machine",
    "figure",
    "contestant",
    "median",
    "vs eevdf",
    "verdict",
    "wanted",
    "reached",
    "rounds",
];
/// The columns of numbers.
const NUMBERS: [usize; 3] = [3, 4, 8];

/// The cells of a row, in the order of the header.
fn cells(row: &Row) -> [String; 9] {
    let dash = || "-".to_owned();
    let ratio = row.vs_eevdf.zip(row.vs_eevdf_ci95);
    let verdict = row.verdict.map(|verdict| match verdict {
        Verdict::Better => "better",
        Verdict::Worse => "worse",
        Verdict::Undecided => "undecided",
    });
    let reached = row.reached.map(|reached| match reached {
        Reached::Reached => "reached",
        Reached::Missed => "missed",
        Reached::Undecided => "undecided",
    });
    [
        row.clock.name().to_owned(),
        row.metric.name().to_owned(),
        row.contestant.clone(),
        amount(row.metric.kind(), row.median),
        ratio.map_or_else(dash, |(ratio, [lo, hi])| format!("{ratio:.3} ({lo:.3} - {hi:.3})")),
        verdict.map_or_else(dash, str::to_owned),
        row.wanted.clone().unwrap_or_else(dash),
        reached.map_or_else(dash, str::to_owned),
        row.rounds.to_string(),
    ]
}

/// A figure with its unit.
fn amount(kind: Kind, value: f64) -> String {
    match kind {
        Kind::Time if value < 1e-3 => format!("{:.1} us", value * 1e6),
        Kind::Time => format!("{:.2} ms", value * 1e3),
        Kind::Index => format!("{value:.4}"),
        Kind::Cost => format!("{value:.0}"),
    }
}

/// The table for a terminal, without a line break at its end.
pub fn table(rows: &[Row]) -> String {
    let mut table = Table::new();
    table.load_style(presets::UTF8_HORIZONTAL_ONLY).set_header(HEADER);
    for row in rows {
        table.add_row(cells(row));
    }
    for (index, column) in table.column_iter_mut().enumerate() {
        if NUMBERS.contains(&index) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    table.to_string()
}

/// The page.
pub fn page(report: &KeelReport) -> String {
    let mut text = String::new();
    // Writing to a String cannot fail.
    let _ = write_page(&mut text, report);
    text
}

fn write_page(text: &mut String, report: &KeelReport) -> fmt::Result {
    let machine = &report.machine;
    writeln!(text, "# Benchmarks: the keel\n")?;
    writeln!(text, "Measured and written by `{}`; do not edit.\n", report.command)?;
    writeln!(text, "- Host: {}, {} CPUs, Linux {}", machine.model, machine.cpus, machine.kernel)?;
    for (name, value) in &machine.notes {
        writeln!(text, "- {name}: {value}")?;
    }
    for sentence in report.said.iter().chain(&report.failed) {
        writeln!(text, "- {}", sentence.replace('\n', " "))?;
    }
    writeln!(text, "\n## Wanted of the keel\n")?;
    rows_of(text, report.rows.iter().filter(|row| row.wanted.is_some()))?;
    writeln!(text, "\n## All figures\n")?;
    rows_of(text, report.rows.iter())?;
    write!(text, "\n{READING}")?;
    list(text, "Machines", Clock::ALL.iter().map(|clock| (clock.name(), clock.explanation())))?;
    list(text, "Figures", Metric::ALL.iter().map(|metric| (metric.name(), metric.explanation())))?;
    let mut contestants: Vec<&str> = Vec::new();
    for row in &report.rows {
        if !contestants.contains(&row.contestant.as_str()) {
            contestants.push(&row.contestant);
        }
    }
    list(text, "Contestants", contestants.into_iter().map(|name| (name, explanation(name))))
}

const READING: &str = "\
## How to read it

One kernel is booted on each machine, and there the contestants take turns (A B C A B C ...): \
each round starts a scheduler, measures everything under it, and ends it; rounds are compared one by \
one. On the timed machine a round that other programs of the host disturbed is repeated.

- *median*: over the rounds; costs are in instructions a call.
- *vs eevdf*: how many times as good as the kernel's own scheduler (its time / time, or index / its \
index), the median of the rounds, and its 95 % interval: above 1 is better.
- *verdict*: a paired t test on the logarithms of the ratios, corrected for the number of rows \
(Holm): the chance of even one wrong *better* or *worse* is 5 %.
- *reached*: the whole 95 % interval is as wanted; *missed*: none of it is.
- Latencies on the counted machine: what one CPU asks of another waits until the emulator executes that \
one, up to some ms, under each contestant alike. They compare contestants; they are not what an \
interrupt takes.
- Costs: what measuring takes is taken off; calls during which the emulator executed another CPU are \
left out, because they seem to take as long as that.
";

fn rows_of<'a>(text: &mut String, rows: impl Iterator<Item = &'a Row>) -> fmt::Result {
    writeln!(text, "| {} |", HEADER.join(" | "))?;
    let rule = (0..HEADER.len()).map(|i| if NUMBERS.contains(&i) { "---:" } else { "---" });
    writeln!(text, "| {} |", rule.collect::<Vec<_>>().join(" | "))?;
    for row in rows {
        writeln!(text, "| {} |", cells(row).join(" | "))?;
    }
    Ok(())
}

fn list<'a>(
    text: &mut String,
    title: &str,
    names: impl Iterator<Item = (&'a str, &'a str)>,
) -> fmt::Result {
    writeln!(text, "\n{title}:\n")?;
    for (name, explanation) in names {
        writeln!(text, "- `{name}`: {explanation}")?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report() -> KeelReport {
        serde_json::from_value(serde_json::json!({
            "machine": {"model": "Test", "cpus": 2, "kernel": "6.18", "kernel of the guests": "k"},
            "command": "evenkeel bench keel",
            "said": ["scx_flash takes no part"],
            "rows": [
                {"clock": "counted", "metric": "wake-p99", "contestant": "eevdf",
                 "median": 0.0125, "ci95": [0.012, 0.013], "rounds": 10},
                {"clock": "counted", "metric": "wake-p99", "contestant": "keel",
                 "median": 0.000025, "ci95": [0.00002, 0.00003], "vs_eevdf": 500.0,
                 "vs_eevdf_ci95": [400.0, 600.0], "verdict": "better",
                 "wanted": "ratio >= 0.67", "reached": "reached", "rounds": 10},
            ],
        }))
        .unwrap()
    }

    #[test]
    fn it_names_machine_command_and_what_the_words_mean() {
        let text = page(&report());
        for part in [
            "written by `evenkeel bench keel`",
            "- Host: Test, 2 CPUs, Linux 6.18",
            "- kernel of the guests: k",
            "- scx_flash takes no part",
            "| counted | wake-p99 | eevdf | 12.50 ms | - | - | - | - | 10 |",
            "| counted | wake-p99 | keel | 25.0 us | 500.000 (400.000 - 600.000) | better | ratio >= 0.67 | reached | 10 |",
            "- `keel`: `evenkeel sched`",
        ] {
            assert!(text.contains(part), "{part:?} is missing in\n{text}");
        }
        let wanted = text.split("## All figures").next().unwrap();
        assert!(!wanted.contains("| eevdf |"), "nothing is wanted of the baseline:\n{wanted}");
        let again = serde_json::from_str(&serde_json::to_string(&report()).unwrap()).unwrap();
        assert_eq!(page(&again), text);
    }

    #[test]
    fn the_table_shows_every_row() {
        let table = table(&report().rows);
        for word in ["contestant", "12.50 ms", "25.0 us", "better", "reached"] {
            assert!(table.contains(word), "{word:?} is missing in\n{table}");
        }
    }
}
