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
use evenkeel_experiment::executable;

/// The version of [`Report`] as a document.
pub const FORMAT: u32 = 1;

/// Rounds of `true`, and how many go before them, to warm up.
const SHORT_ROUNDS: usize = 60;
const COLD_ROUNDS: usize = 3;
/// Rounds of the program of 1.2 s.
const LONG_ROUNDS: usize = 15;
/// Its work for each CPU, in units of somewhat less than 1 ms, and its barriers.
const WORK: usize = 1650;
const PHASES: usize = 600;

/// What `evenkeel run` adds to a program.
#[derive(Debug, Serialize, JsonSchema)]
pub struct Report {
    /// Whether the executable is an optimised one.
    is_optimised: bool,
    /// Each program in each way.
    rows: Vec<Row>,
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
}

impl Interval {
    fn of(values: &[f64]) -> Result<Self> {
        let Estimate { median, lo, hi, .. } = estimate(values).context("nothing was measured")?;
        Ok(Self { median, low: lo, high: hi })
    }

    fn words(self) -> String {
        format!("{:.2} ({:.2} to {:.2})", self.median, self.low, self.high)
    }
}

/// The ways, the baseline first.
const WAYS: [&str; 3] = ["alone", "evenkeel run", "alone again (A/A)"];

/// Measures, prints, and writes what was asked for. Returns the exit code.
///
/// # Errors
/// A program cannot be started, or fails.
pub fn run(files: &Files) -> Result<i32> {
    let files = files.prepare()?;
    let report = measure()?;
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
    let note = "evenkeel is a build for development here: an installed one takes less.";
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
        sentences: (!report.is_optimised).then(|| note.to_owned()).into_iter().collect(),
        wanted: &[],
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

fn measure() -> Result<Report> {
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
    let mut rows = rows(&product, cpus, "true", &short, SHORT_ROUNDS)?;
    rows.extend(self::rows(&product, cpus, "1.2 s, a barrier every 2 ms", &long, LONG_ROUNDS)?);
    Ok(Report { is_optimised: !cfg!(debug_assertions), rows })
}

fn rows(
    product: &Path,
    cpus: usize,
    program: &'static str,
    words: &[String],
    rounds: usize,
) -> Result<Vec<Row>> {
    let mut times_ms: [Vec<f64>; 3] = Default::default();
    let display = Display::new();
    let all = (COLD_ROUNDS + rounds) * WAYS.len();
    for round in 0..COLD_ROUNDS + rounds {
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
            if round >= COLD_ROUNDS {
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
        let added_pct = added_ms.map(|Interval { median, low, high }| Interval {
            median: pct(median),
            low: pct(low),
            high: pct(high),
        });
        Ok(Row { program, way, time_ms: Interval::of(times_ms)?, added_ms, added_pct })
    };
    WAYS.into_iter().zip(&times_ms).map(row).collect()
}
