//! The rows for people: tables for the terminal, and a page that is a pure function of the JSON,
//! without a date, so that the same figures give the same page.

use std::fmt::{self, Write as _};

use super::{AimRow, Clock, Experiment, Reached, Report, Row};
use crate::cells::Cells;
use crate::stats::Verdict;

fn dash() -> String {
    "-".to_owned()
}

fn interval(median: f64, [lo, hi]: [f64; 2]) -> String {
    let digits = if median.abs() < 100.0 { 3 } else { 0 };
    format!("{median:.digits$} ({lo:.digits$} - {hi:.digits$})")
}

fn figures(experiment: &Experiment, report: &Report) -> Cells {
    let baseline = experiment.contestants.first().map_or("", |baseline| &baseline.name);
    let header = ["machine", "figure", "contestant", "median", "", "verdict", "rounds"];
    let mut header = header.map(str::to_owned).to_vec();
    header[4] = format!("vs {baseline}");
    let rows = report.rows.iter().map(|row| figure(experiment, row)).collect();
    Cells { header, numbers: &[3, 4, 6], rows }
}

fn figure(experiment: &Experiment, row: &Row) -> Vec<String> {
    let ratio = row.ratio.zip(row.ratio_ci95);
    let verdict = row.verdict.map(|verdict| match verdict {
        Verdict::Better => "better",
        Verdict::Worse => "worse",
        Verdict::Undecided => "undecided",
    });
    let amount = |metric: &super::Metric| metric.kind.amount(row.median);
    vec![
        row.clock.name().to_owned(),
        row.metric.clone(),
        row.contestant.clone(),
        experiment.metric(&row.metric).map_or_else(|| row.median.to_string(), amount),
        ratio.map_or_else(dash, |(ratio, ci95)| interval(ratio, ci95)),
        verdict.map_or_else(dash, str::to_owned),
        row.rounds.to_string(),
    ]
}

fn aims(report: &Report) -> Cells {
    let header = ["machine", "figure", "contestant", "wanted", "found", "reached"];
    let cells = |aim: &AimRow| {
        let found = aim.found.zip(aim.ci95);
        vec![
            aim.clock.name().to_owned(),
            aim.metric.clone(),
            aim.contestant.clone(),
            aim.wanted.clone(),
            found.map_or_else(dash, |(found, ci95)| interval(found, ci95)),
            match aim.reached {
                Reached::Reached => "reached",
                Reached::Missed => "missed",
                Reached::Undecided => "undecided",
            }
            .to_owned(),
        ]
    };
    Cells {
        header: header.map(str::to_owned).to_vec(),
        numbers: &[4],
        rows: report.aims.iter().map(cells).collect(),
    }
}

/// The tables for a terminal, without a line break at their end.
pub fn tables(experiment: &Experiment, report: &Report) -> String {
    let figures = figures(experiment, report).terminal();
    if report.aims.is_empty() {
        return figures;
    }
    format!("{figures}\n\n{}", aims(report).terminal())
}

/// The page.
pub fn page(experiment: &Experiment, report: &Report) -> String {
    let mut text = String::new();
    // Writing to a String cannot fail.
    let _ = write_page(&mut text, experiment, report);
    text
}

fn write_page(text: &mut String, experiment: &Experiment, report: &Report) -> fmt::Result {
    let machine = &report.machine;
    writeln!(text, "# {}\n", experiment.title)?;
    writeln!(text, "Measured and written by `{}`; do not edit.\n", report.command)?;
    writeln!(text, "- Host: {}, {} CPUs, Linux {}", machine.model, machine.cpus, machine.kernel)?;
    for (name, value) in &machine.notes {
        writeln!(text, "- {name}: {value}")?;
    }
    for sentence in report.said.iter().chain(&report.failed) {
        writeln!(text, "- {}", sentence.replace('\n', " "))?;
    }
    if !report.aims.is_empty() {
        writeln!(text, "\n## Wanted\n")?;
        aims(report).markdown(text)?;
    }
    writeln!(text, "\n## All figures\n")?;
    figures(experiment, report).markdown(text)?;
    let baseline = experiment.contestants.first();
    let baseline = baseline.map_or("", |baseline| baseline.explanation);
    write!(text, "\n{READING_BEGINS}{baseline}{READING}{}", experiment.reading)?;
    let is_used = |clock: &&Clock| report.rows.iter().any(|row| row.clock == **clock);
    let clocks = Clock::ALL.iter().filter(is_used);
    list(text, "Machines", clocks.map(|clock| (clock.name(), clock.explanation())))?;
    let is_used = |metric: &&super::Metric| report.rows.iter().any(|row| row.metric == metric.name);
    let metrics = experiment.metrics.iter().filter(is_used);
    list(text, "Figures", metrics.map(|metric| (metric.name, metric.explanation)))?;
    let is_used =
        |one: &&super::Contestant| report.rows.iter().any(|row| row.contestant == one.name);
    let contestants = experiment.contestants.iter().filter(is_used);
    list(text, "Contestants", contestants.map(|one| (one.name.as_str(), one.explanation)))
}

const READING_BEGINS: &str = "\
## How to read it

One kernel is booted on each machine, and there the contestants take turns (A B C A B C ...): \
each round starts a scheduler, measures everything under it, and ends it; rounds are compared one by \
one. On the timed machine a round that other programs of the host disturbed is repeated.

- *median*: over the rounds.
- *vs*: how many times as good as ";

const READING: &str = " (its time / time, or index / its index), the median of the rounds, and its 95 % \
interval: above 1 is better.
- *verdict*: a paired t test on the logarithms of the ratios, corrected for the number of rows \
(Holm): the chance of even one wrong *better* or *worse* is 5 %.
- *found*: what is compared with what is wanted, and its 95 % interval. *reached*: the whole interval is \
as wanted; *missed*: none of it is.
";

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
    use super::super::{Contestant, Kind, Metric};
    use super::*;

    fn experiment() -> Experiment {
        const METRICS: [Metric; 1] =
            [Metric { name: "wake", kind: Kind::Time, explanation: "until it runs" }];
        let ours = Contestant::keel("keel", "", "ours");
        Experiment::sample(vec![Contestant::eevdf(), ours], &METRICS)
    }

    fn report() -> Report {
        serde_json::from_value(serde_json::json!({
            "experiment": "test",
            "machine": {"model": "Test", "cpus": 2, "kernel": "6.18", "kernel of the guests": "k"},
            "command": "evenkeel-lab bench test",
            "said": ["scx_flash takes no part"],
            "aims": [
                {"clock": "counted", "metric": "wake", "contestant": "keel",
                 "wanted": ">= 0.67 times eevdf", "found": 500.0, "ci95": [400.0, 600.0],
                 "reached": "reached"},
            ],
            "rows": [
                {"clock": "counted", "metric": "wake", "contestant": "eevdf",
                 "median": 0.0125, "ci95": [0.012, 0.013], "rounds": 10},
                {"clock": "counted", "metric": "wake", "contestant": "keel",
                 "median": 0.000025, "ci95": [0.00002, 0.00003], "ratio": 500.0,
                 "ratio_ci95": [400.0, 600.0], "verdict": "better", "rounds": 10},
            ],
        }))
        .unwrap()
    }

    #[test]
    fn it_names_machine_command_and_what_the_words_mean() {
        let text = page(&experiment(), &report());
        for part in [
            "# Benchmarks: a test",
            "written by `evenkeel-lab bench test`",
            "- Host: Test, 2 CPUs, Linux 6.18",
            "- kernel of the guests: k",
            "- scx_flash takes no part",
            "| counted | wake | keel | >= 0.67 times eevdf | 500 (400 - 600) | reached |",
            "| counted | wake | eevdf | 12.50 ms | - | - | 10 |",
            "| counted | wake | keel | 25.0 us | 500 (400 - 600) | better | 10 |",
            "as good as the kernel's own scheduler (its time",
            "- More of it.",
            "- `keel`: ours",
            "- `wake`: until it runs",
        ] {
            assert!(text.contains(part), "{part:?} is missing in\n{text}");
        }
        assert!(!text.contains("- `timed`"), "a machine that was not used:\n{text}");
        let again = serde_json::from_str(&serde_json::to_string(&report()).unwrap()).unwrap();
        assert_eq!(page(&experiment(), &again), text);
    }

    #[test]
    fn the_terminal_shows_every_row() {
        let tables = tables(&experiment(), &report());
        for word in ["contestant", "12.50 ms", "25.0 us", "better", "reached", "vs eevdf"] {
            assert!(tables.contains(word), "{word:?} is missing in\n{tables}");
        }
    }
}
