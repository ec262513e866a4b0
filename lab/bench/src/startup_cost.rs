//! What `evenkeel run` adds to a program on equal CPUs: to `true`, which ends at once, and to a program
//! of about 1.2 s with a thread on each CPU and barriers. The program alone, under `run`, and alone once
//! more (A/A) take turns, and each is compared with the first one of its round.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result};
use schemars::JsonSchema;
use serde::Serialize;

use crate::cost_page::{Files, Shown};
use crate::programs::{Installed, Program};
use crate::stats::{Estimate, estimate, median};
use evenkeel_experiment::Document;
use evenkeel_experiment::cells::Cells;
use evenkeel_experiment::chart::{self, Chart};
use evenkeel_experiment::command::{run as run_command, set_threads};
use evenkeel_experiment::display::Display;
use evenkeel_experiment::{AimRow, Reached, Wanted, executable};

/// The version of [`Report`] as a document.
pub const FORMAT: u32 = 1;

/// How many rounds of each program.
#[derive(Debug, Clone, Copy)]
struct Rounds {
    /// Of `true`.
    short: usize,
    /// Of the program of 1.2 s.
    long: usize,
    /// How many go before them, to warm up.
    cold: usize,
}
const ROUNDS: Rounds = Rounds { short: 60, long: 15, cold: 3 };
/// Too few for an interval: the short form decides nothing.
const QUICK_ROUNDS: Rounds = Rounds { short: 5, long: 2, cold: 1 };
/// What is wanted: that so much is added to `true`, in ms, ...
const MOST_OF_SHORT_MS: f64 = 8.0;
/// ... and to the program of 1.2 s, in %.
const MOST_OF_LONG_PCT: f64 = 1.0;
/// The programs, as tables name them.
const SHORT: &str = "true";
const LONG: &str = "1.2 s, a barrier every 2 ms";
/// Its work for each CPU, in units of somewhat less than 1 ms, and its barriers.
const WORK: usize = 1650;
const PHASES: usize = 600;

/// What `evenkeel run` adds to a program.
#[derive(Debug, Serialize, JsonSchema)]
pub struct Report {
    /// Whether `evenkeel-lab` is optimised; evenkeel is taken for a build of the same kind.
    is_optimised: bool,
    /// Each program in each way.
    rows: Vec<Row>,
    /// What was wanted of the figures, and what came out.
    wanted: Vec<AimRow>,
}

/// A program, run in one way.
#[derive(Debug, Serialize, JsonSchema)]
struct Row {
    /// The program.
    program: &'static str,
    /// Alone, or with what.
    way: &'static str,
    /// The time.
    time_ms: Interval,
    /// What is added to the program alone; null: nothing can be.
    added_ms: Option<Interval>,
    /// What is added, as a share of the time alone, in per cent.
    added_pct: Option<Interval>,
}

/// A median with its 95 % interval.
#[derive(Debug, Clone, Copy, Serialize, JsonSchema)]
struct Interval {
    /// The median.
    median: f64,
    /// The interval's lower end.
    low: f64,
    /// Its upper end.
    high: f64,
    /// Less than 95 % where there are too few values.
    #[serde(skip)]
    coverage: f64,
}

impl From<Interval> for Estimate {
    fn from(interval: Interval) -> Self {
        let Interval { median, low, high, coverage } = interval;
        Self { median, lo: low, hi: high, coverage }
    }
}

impl Interval {
    fn of(values: &[f64]) -> Result<Self> {
        let estimate = estimate(values).context("nothing was measured")?;
        let Estimate { median, lo, hi, coverage } = estimate;
        Ok(Self { median, low: lo, high: hi, coverage })
    }

    fn words(self) -> String {
        format!("{:.2} ({:.2} to {:.2})", self.median, self.low, self.high)
    }
}

/// The ways, the baseline first.
const WAYS: [&str; 3] = ["alone", RUN, "alone again (A/A)"];
const RUN: &str = "evenkeel run";

/// Measures, prints, and writes what was asked for; the short form measures little, and decides nothing.
/// Returns the exit code.
///
/// # Errors
/// A program cannot be started, or fails.
pub fn run(files: &Files, is_quick: bool) -> Result<i32> {
    let files = files.prepare()?;
    let report = measure(if is_quick { QUICK_ROUNDS } else { ROUNDS })?;
    let dash = |value: Option<Interval>| value.map_or_else(|| "-".to_owned(), Interval::words);
    let cells = |row: &Row| {
        vec![
            row.program.to_owned(),
            row.way.to_owned(),
            row.time_ms.words(),
            dash(row.added_ms),
            dash(row.added_pct),
        ]
    };
    let header = ["program", "way", "time in ms", "added in ms", "added in %"];
    let table = Cells {
        header: header.map(str::to_owned).into(),
        numbers: vec![2, 3, 4],
        rows: report.rows.iter().map(cells).collect(),
    };
    // The product does not say how it was built, and it may be another one than was built with this.
    let note = if report.is_optimised {
        "evenkeel is taken for an optimised build, because evenkeel-lab is one."
    } else {
        "evenkeel is taken for a build for development, because evenkeel-lab is one: an installed one \
         takes less, so no goal counts as missed."
    };
    let added = |row: &Row| {
        let added = row.added_ms?;
        Some(chart::Interval {
            name: format!("{}: {}", row.program, row.way),
            at: added.median,
            ends: [added.low, added.high],
            verdict: None,
            label: format!("{} ms", added.words()),
        })
    };
    let mark = |ms: f64| format!("{ms:.1}");
    let shown = Shown {
        title: "Benchmarks: what evenkeel run adds to a program",
        table: Some(table),
        sentences: vec![note.to_owned()],
        wanted: &report.wanted,
        charts: vec![Chart {
            name: "What is added to the time of the program alone, in ms",
            base: Some((0.0, "alone")),
            mark: &mark,
            intervals: report.rows.iter().filter_map(added).collect(),
        }],
    };
    files.write(&Document::new(FORMAT, &report), &shown)?;
    Ok(0)
}

/// What was wanted of `evenkeel run` in these rows. A build for development takes more than the one that
/// users have, so it can reach a goal and not miss it.
fn wanted(rows: &[Row], is_optimised: bool) -> Vec<AimRow> {
    let of = |program: &str| rows.iter().find(|row| row.program == program && row.way == RUN);
    let aim = |program: &str, metric: &str, found: Option<Interval>, most: f64| {
        let found = found.map(Estimate::from);
        let mut row = AimRow::estimated(program, metric, RUN, found, Wanted::AtMost(most));
        if !is_optimised && row.reached == Some(Reached::Missed) {
            row.reached = Some(Reached::Undecided);
        }
        row
    };
    let (short, long) = (of(SHORT), of(LONG));
    vec![
        aim(SHORT, "added in ms", short.and_then(|row| row.added_ms), MOST_OF_SHORT_MS),
        aim(LONG, "added in %", long.and_then(|row| row.added_pct), MOST_OF_LONG_PCT),
    ]
}

fn measure(rounds: Rounds) -> Result<Report> {
    let product = executable::product()?;
    let programs = Installed::new()?;
    let cpus = std::thread::available_parallelism().context("cannot count the CPUs")?.get();
    let short = vec!["true".to_owned()];
    let long = vec![
        programs.path(Program::StaticLoop).display().to_string(),
        "--work".to_owned(),
        (WORK * cpus).to_string(),
        "--phases".to_owned(),
        PHASES.to_string(),
    ];
    let mut rows = rows(&product, cpus, SHORT, &short, (rounds.cold, rounds.short))?;
    rows.extend(self::rows(&product, cpus, LONG, &long, (rounds.cold, rounds.long))?);
    let is_optimised = !cfg!(debug_assertions);
    let wanted = wanted(&rows, is_optimised);
    Ok(Report { is_optimised, rows, wanted })
}

/// So many rounds after so many to warm up.
fn rows(
    product: &Path,
    cpus: usize,
    program: &'static str,
    words: &[String],
    (cold, rounds): (usize, usize),
) -> Result<Vec<Row>> {
    let mut times_ms: [Vec<f64>; 3] = Default::default();
    let display = Display::new();
    let all = (cold + rounds) * WAYS.len();
    for round in 0..cold + rounds {
        for turn in 0..WAYS.len() {
            // Each round begins with another way.
            let way = (round + turn) % WAYS.len();
            let done = round * WAYS.len() + turn;
            display.step(done as u64, all as u64, &format!("{program}: {}", WAYS[way]));
            let mut command = if way == 1 {
                let mut command = Command::new(product);
                command.args(["run", "--quiet", "--"]).args(words);
                command
            } else {
                let mut command = Command::new(&words[0]);
                command.args(&words[1..]);
                command
            };
            set_threads(&mut command, cpus);
            let ended = run_command(&mut command)?;
            if round >= cold {
                times_ms[way].push(ended.seconds * 1e3);
            }
        }
    }
    display.finish();
    let [alone, ..] = &times_ms;
    let typical_ms = median(alone).context("nothing was measured")?;
    let row = |(way, times_ms): (&'static str, &Vec<f64>)| -> Result<Row> {
        let added: Vec<f64> =
            times_ms.iter().zip(alone).map(|(with, alone)| with - alone).collect();
        let is_other = way != WAYS[0];
        let added_ms = is_other.then(|| Interval::of(&added)).transpose()?;
        let pct = |ms: f64| 100.0 * ms / typical_ms;
        let added_pct = added_ms.map(|added| Interval {
            median: pct(added.median),
            low: pct(added.low),
            high: pct(added.high),
            ..added
        });
        Ok(Row { program, way, time_ms: Interval::of(times_ms)?, added_ms, added_pct })
    };
    WAYS.into_iter().zip(&times_ms).map(row).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is found where `run` adds about so much.
    fn judged(added_ms: f64, added_pct: f64, coverage: f64, is_optimised: bool) -> Vec<AimRow> {
        let interval =
            |median: f64| Interval { median, low: 0.9 * median, high: 1.1 * median, coverage };
        let row = |program, way, added: Option<(f64, f64)>| Row {
            program,
            way,
            time_ms: interval(100.0),
            added_ms: added.map(|(ms, _)| interval(ms)),
            added_pct: added.map(|(_, pct)| interval(pct)),
        };
        let added = Some((added_ms, added_pct));
        let rows: Vec<Row> = [SHORT, LONG]
            .into_iter()
            .flat_map(|program| [row(program, WAYS[0], None), row(program, RUN, added)])
            .collect();
        wanted(&rows, is_optimised)
    }

    fn reached(rows: &[AimRow]) -> Vec<Reached> {
        rows.iter().filter_map(|row| row.reached).collect()
    }

    #[test]
    fn what_is_added_is_judged_in_ms_and_in_percent() {
        let rows = judged(3.0, 0.5, 0.95, true);
        assert_eq!(reached(&rows), [Reached::Reached; 2]);
        assert_eq!((rows[0].found, rows[1].found), (Some(3.0), Some(0.5)));
        assert_eq!(reached(&judged(20.0, 2.0, 0.95, true)), [Reached::Missed; 2]);
        assert_eq!(reached(&judged(8.0, 1.0, 0.95, true)), [Reached::Undecided; 2]);
    }

    #[test]
    fn a_build_for_development_and_the_short_form_miss_no_goal() {
        assert_eq!(reached(&judged(20.0, 2.0, 0.95, false)), [Reached::Undecided; 2]);
        assert_eq!(reached(&judged(3.0, 0.5, 0.95, false)), [Reached::Reached; 2]);
        let Rounds { short, long, .. } = QUICK_ROUNDS;
        for rounds in [short, long] {
            let coverage = Interval::of(&vec![3.0; rounds]).unwrap().coverage;
            assert_eq!(reached(&judged(3.0, 0.5, coverage, true)), [Reached::Undecided; 2]);
        }
    }
}
