//! The report of an experiment: its rows as JSON, as a table for the terminal, and as Markdown. One
//! definition of a row, three ways to show it.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use comfy_table::{CellAlignment, Table, presets};
use serde::{Deserialize, Serialize};

use crate::interleave::{Measurement, Outcome};
use crate::stats::{Verdict, estimate, median};

/// An experiment's result, as `--json` writes it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// Where it was measured.
    pub machine: MachineInfo,
    /// What was measured.
    pub rows: Vec<Row>,
}

/// The machine, as far as it matters to the figures.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct MachineInfo {
    /// The processor's name.
    pub model: String,
    /// CPUs online.
    pub cpus: u32,
    /// The kernel's release.
    pub kernel: String,
    /// Whatever else the reader should know (`"irq_time_accounting": "no"`).
    #[serde(flatten)]
    pub notes: BTreeMap<String, String>,
}

impl MachineInfo {
    /// This machine. What cannot be read is "unknown", or 0.
    pub fn read() -> Self {
        let text = |path| std::fs::read_to_string(path).unwrap_or_default();
        let cpuinfo = text("/proc/cpuinfo");
        let model = cpuinfo
            .lines()
            .find_map(|line| line.strip_prefix("model name")?.split_once(':'))
            .map_or_else(|| "unknown".to_owned(), |(_, name)| name.trim().to_owned());
        let online = text("/sys/devices/system/cpu/online");
        let kernel = text("/proc/sys/kernel/osrelease");
        Self {
            model,
            cpus: online
                .trim()
                .parse::<evenkeel_machine::CpuSet>()
                .map_or(0, |cpus| cpus.len() as u32),
            kernel: if kernel.is_empty() { "unknown".into() } else { kernel.trim().into() },
            notes: BTreeMap::new(),
        }
    }

    /// As items of a list at the head of a page.
    pub fn markdown(&self) -> String {
        let first = format!("Machine: {}, {} CPUs, Linux {}", self.model, self.cpus, self.kernel);
        let notes = self.notes.iter().map(|(name, value)| format!("{name}: {value}"));
        std::iter::once(first).chain(notes).map(|item| format!("- {item}\n")).collect()
    }
}

/// One contestant in one case with one program.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Row {
    /// The case: the noise.
    pub case: String,
    /// The program.
    pub program: String,
    /// The contestant.
    pub contestant: String,
    /// The median time, in s; absent if no run succeeded.
    pub median_s: Option<f64>,
    /// Its 95 % interval, in s (with fewer than 6 runs the range: about 94 % at 5).
    pub ci95: Option<[f64; 2]>,
    /// Time of the default / time, paired: above 1 is faster. 1 for the default itself.
    pub vs_default: Option<f64>,
    /// Its 95 % interval.
    pub vs_default_ci95: Option<[f64; 2]>,
    /// Time of the contestant [`PINNED`] / time, paired; absent where that did not take part.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vs_pinned: Option<f64>,
    /// Its 95 % interval.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vs_pinned_ci95: Option<[f64; 2]>,
    /// Rate / rate at the average capability of the CPUs ([`crate::interleave::efficiency`]), the
    /// median; absent where it was not measured.
    pub efficiency: Option<f64>,
    /// Its 95 % interval.
    pub efficiency_ci95: Option<[f64; 2]>,
    /// avg(C): what was left of the average CPU for the program, 0..=1, the median of the runs.
    #[serde(default)]
    pub average: Option<f64>,
    /// avg(C) / min(C), the median of the runs: what balancing can be worth over a program that is
    /// as fast as its worst CPU.
    #[serde(default)]
    pub bound: Option<f64>,
    /// The time of the program undisturbed, the median of this row's rounds, in s.
    #[serde(default)]
    pub reference_s: Option<f64>,
    /// Against the default, corrected for the number of rows; absent for the default itself.
    pub verdict: Option<Verdict>,
    /// Foreign load, the median of the runs, in % of the machine's CPU time.
    pub foreign_pct: f64,
    /// Moves, the median of the runs.
    pub moves: f64,
    /// Runs that count.
    pub runs: usize,
    /// Runs that were repeated because of foreign load.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub repeated: usize,
    /// Why the contestant was left out, if it was.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failed: Option<String>,
}

fn is_zero(number: &usize) -> bool {
    *number == 0
}

impl Row {
    /// The row of an outcome; `baseline` for the contestant that the others are compared with.
    pub fn new(outcome: &Outcome, baseline: bool) -> Self {
        let seconds: Vec<f64> = outcome.runs().map(|run| run.seconds).collect();
        let foreign: Vec<f64> = outcome.runs().map(|run| run.foreign_pct).collect();
        let moves: Vec<f64> = outcome.runs().map(|run| run.moves as f64).collect();
        let efficiency: Vec<f64> = outcome.runs().filter_map(|run| run.efficiency).collect();
        let (time, efficiency) = (estimate(&seconds), estimate(&efficiency));
        let average: Vec<f64> = outcome.runs().filter_map(|run| run.average).collect();
        let bound = |run: &Measurement| Some(run.average? / run.worst.filter(|c| *c > 0.0)?);
        let bound: Vec<f64> = outcome.runs().filter_map(bound).collect();
        let reference: Vec<f64> = outcome.runs().filter_map(|run| run.reference_s).collect();
        let ratio = outcome.judged.map(|judged| judged.comparison.ratio);
        let one = (baseline && time.is_some()).then_some(1.0);
        Self {
            case: outcome.case.clone(),
            program: outcome.program.clone(),
            contestant: outcome.contestant.clone(),
            median_s: time.map(|time| time.median),
            ci95: time.map(|time| time.ci95()),
            vs_default: one.or(ratio.map(|ratio| ratio.median)),
            vs_default_ci95: one.map(|one| [one, one]).or(ratio.map(|ratio| ratio.ci95())),
            vs_pinned: None,
            vs_pinned_ci95: None,
            efficiency: efficiency.map(|efficiency| efficiency.median),
            efficiency_ci95: efficiency.map(|efficiency| efficiency.ci95()),
            average: median(&average),
            bound: median(&bound),
            reference_s: median(&reference),
            verdict: outcome.judged.map(|judged| judged.verdict),
            foreign_pct: median(&foreign).unwrap_or(0.0),
            moves: median(&moves).unwrap_or(0.0),
            runs: seconds.len(),
            repeated: outcome.repeated,
            failed: outcome.failed.clone(),
        }
    }
}

/// The rows of an experiment. The first contestant of each case and program is the baseline.
pub fn rows(outcomes: &[Outcome]) -> Vec<Row> {
    let mut last = None;
    outcomes
        .iter()
        .map(|outcome| {
            let group = (&outcome.case, &outcome.program);
            let baseline = last.replace(group) != Some(group);
            let mut row = Row::new(outcome, baseline);
            let is_pinned = |other: &&Outcome| {
                (&other.case, &other.program) == group && other.contestant == PINNED
            };
            let pinned = outcomes.iter().find(is_pinned).filter(|_| row.contestant != PINNED);
            let compared = pinned.and_then(|pinned| outcome.compared_with(pinned));
            let ratio = compared.map(|compared| compared.ratio);
            row.vs_pinned = ratio.map(|ratio| ratio.median);
            row.vs_pinned_ci95 = ratio.map(|ratio| ratio.ci95());
            row
        })
        .collect()
}

/// What a user can do without us: each thread bound to a CPU of its own.
pub const PINNED: &str = "pinned";

const HEADER: [&str; 10] = [
    "case",
    "program",
    "contestant",
    "median s",
    "vs default",
    "bound",
    "efficiency",
    "verdict",
    "moves",
    "runs",
];
/// From here on the columns are numbers.
const FIRST_NUMBER: usize = 3;

/// What a row's verdict is called; "-" where there is nothing to compare with.
pub(crate) fn verdict_cell(failed: Option<&str>, verdict: Option<Verdict>) -> &'static str {
    match (failed, verdict) {
        (Some(_), _) => "failed",
        (None, Some(Verdict::Better)) => "better",
        (None, Some(Verdict::Worse)) => "worse",
        (None, Some(Verdict::Undecided)) => "undecided",
        (None, None) => "-",
    }
}

/// The cells of a row, in the order of the header.
fn cells(row: &Row) -> [String; 10] {
    let number = |value: Option<f64>| value.map_or_else(|| "-".into(), |v| format!("{v:.3}"));
    let ranged = |value: Option<f64>, range: Option<[f64; 2]>| match (value, range) {
        (Some(value), Some([lo, hi])) if lo < hi => format!("{value:.3} ({lo:.3} - {hi:.3})"),
        _ => number(value),
    };
    [
        row.case.clone(),
        row.program.clone(),
        row.contestant.clone(),
        number(row.median_s),
        ranged(row.vs_default, row.vs_default_ci95),
        number(row.bound),
        ranged(row.efficiency, row.efficiency_ci95),
        verdict_cell(row.failed.as_deref(), row.verdict).into(),
        format!("{}", row.moves),
        row.runs.to_string(),
    ]
}

impl Report {
    /// The table for a terminal, without a line break at its end.
    pub fn table(&self) -> String {
        let mut table = Table::new();
        table.load_style(presets::UTF8_HORIZONTAL_ONLY).set_header(HEADER);
        for row in &self.rows {
            table.add_row(cells(row));
        }
        for (index, column) in table.column_iter_mut().enumerate() {
            if index >= FIRST_NUMBER {
                column.set_cell_alignment(CellAlignment::Right);
            }
        }
        table.to_string()
    }

    /// One line for each row of `contestant` that can be compared with pinning.
    pub fn against_pinning(&self, contestant: &str) -> Vec<String> {
        let rows = self.rows.iter().filter(|row| row.contestant == contestant);
        rows.filter_map(|row| {
            let (ratio, [lo, hi]) = (row.vs_pinned?, row.vs_pinned_ci95?);
            Some(format!(
                "{contestant} against pinned, {}, {}: {ratio:.3} ({lo:.3} - {hi:.3})",
                row.case, row.program
            ))
        })
        .collect()
    }

    /// The rows as a Markdown table, and a list of what was left out.
    pub fn markdown(&self) -> String {
        let mut text = String::new();
        // Writing to a String cannot fail.
        let _ = self.write_markdown(&mut text);
        text
    }

    fn write_markdown(&self, text: &mut String) -> std::fmt::Result {
        writeln!(text, "| {} |", HEADER.join(" | "))?;
        let rule = (0..HEADER.len()).map(|i| if i < FIRST_NUMBER { "---" } else { "---:" });
        writeln!(text, "| {} |", rule.collect::<Vec<_>>().join(" | "))?;
        for row in &self.rows {
            let cells = cells(row).map(|cell| cell.replace('|', "\\|"));
            writeln!(text, "| {} |", cells.join(" | "))?;
        }
        let mut heading = Some("\nLeft out:\n");
        for row in &self.rows {
            if let Some(why) = &row.failed {
                if let Some(heading) = heading.take() {
                    writeln!(text, "{heading}")?;
                }
                let why = why.replace('\n', " ");
                writeln!(text, "- {}, {}, {}: {why}", row.case, row.program, row.contestant)?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::interleave::Measurement;
    use crate::stats::{compare, judge};

    fn outcome(contestant: &str, times: &[f64], against: Option<&[f64]>) -> Outcome {
        let run = |&seconds: &f64| {
            let efficiency = Some(2.4 / seconds);
            Some(Measurement {
                seconds,
                foreign_pct: 1.0,
                moves: 7,
                average: Some(0.8),
                worst: Some(0.6),
                efficiency,
                reference_s: Some(1.92),
                ..Measurement::default()
            })
        };
        Outcome {
            case: "softirq".into(),
            program: "static_loop".into(),
            contestant: contestant.into(),
            rounds: times.iter().map(run).chain([None]).collect(),
            judged: against.map(|d| judge(&[compare(d, times).unwrap()], 1)[0]),
            repeated: 0,
            failed: None,
        }
    }

    fn report() -> Report {
        let default = [3.18, 3.20, 3.16, 3.22, 3.19, 3.18];
        let lag = [2.50, 2.51, 2.52, 2.49, 2.50, 2.50];
        let mut failed = outcome("fast|only", &[], None);
        failed.failed = Some("no CPU\nis left".into());
        let outcomes =
            [outcome("default", &default, None), outcome("lag", &lag, Some(&default)), failed];
        let mut machine = MachineInfo { model: "Test".into(), cpus: 2, ..Default::default() };
        machine.notes.insert("irq_time_accounting".into(), "no".into());
        Report { machine, rows: rows(&outcomes) }
    }

    #[test]
    fn json_has_the_agreed_fields_and_comes_back() {
        let report = report();
        let json = serde_json::to_value(&report).unwrap();
        let row = json["rows"][1].as_object().unwrap();
        let keys: Vec<&str> = row.keys().map(String::as_str).collect();
        for key in [
            "case",
            "program",
            "contestant",
            "median_s",
            "ci95",
            "vs_default",
            "vs_default_ci95",
            "efficiency",
            "efficiency_ci95",
            "verdict",
            "foreign_pct",
            "moves",
            "runs",
        ] {
            assert!(keys.contains(&key), "{key} is missing in {keys:?}");
        }
        // Beyond those agreed on.
        for key in ["average", "bound", "reference_s"] {
            assert!(keys.contains(&key), "{key} is missing in {keys:?}");
        }
        assert_eq!(keys.len(), 13 + 3);
        assert!((row["bound"].as_f64().unwrap() - 0.8 / 0.6).abs() < 1e-12);
        assert_eq!(row["verdict"], "better");
        assert_eq!(row["runs"], 6);
        assert_eq!(row["median_s"], 2.5);
        assert_eq!(row["ci95"].as_array().unwrap().len(), 2);
        assert_eq!(json["machine"]["irq_time_accounting"], "no");
        assert_eq!(json["rows"][0]["vs_default"], 1.0);
        assert!(json["rows"][0]["verdict"].is_null());
        assert!(json["rows"][2]["median_s"].is_null());
        assert_eq!(serde_json::from_value::<Report>(json).unwrap(), report);
    }

    #[test]
    fn who_is_pinned_is_compared_round_by_round() {
        let pinned = outcome(PINNED, &[4.0, 4.0, 6.0], None);
        let mut lag = outcome("lag", &[2.0, 9.0, 3.0], None);
        // A round in which it did not take part.
        lag.rounds[1] = None;
        let rows = rows(&[outcome("default", &[3.0; 3], None), pinned, lag]);
        let ratios: Vec<Option<f64>> = rows.iter().map(|row| row.vs_pinned).collect();
        assert_eq!(ratios[1], None);
        assert!((ratios[2].unwrap() - 2.0).abs() < 1e-12, "{ratios:?}");
        let report = Report { machine: MachineInfo::default(), rows };
        let lines = report.against_pinning("lag");
        assert_eq!(lines, ["lag against pinned, softirq, static_loop: 2.000 (2.000 - 2.000)"]);
    }

    #[test]
    fn the_table_shows_every_row() {
        let table = report().table();
        for word in ["contestant", "softirq", "lag", "better", "1.27", "failed"] {
            assert!(table.contains(word), "{word:?} is missing in\n{table}");
        }
    }

    #[test]
    fn markdown_is_a_table_and_says_what_is_missing() {
        let text = report().markdown();
        let table: Vec<&str> = text.lines().filter(|line| line.starts_with('|')).collect();
        assert_eq!(table.len(), 2 + 3);
        assert!(table[4].contains("fast\\|only"));
        assert!(text.contains("no CPU is left"), "{text}");
    }

    #[test]
    fn each_group_has_its_own_baseline() {
        let mut other = outcome("default", &[1.0], None);
        other.case = "fifo".into();
        let rows = rows(&[outcome("default", &[1.0], None), outcome("lag", &[1.0], None), other]);
        let ones: Vec<bool> = rows.iter().map(|row| row.vs_default == Some(1.0)).collect();
        assert_eq!(ones, [true, false, true]);
    }

    #[test]
    fn this_machine_is_described() {
        let machine = MachineInfo::read();
        assert!(machine.cpus >= 1);
        assert!(!machine.kernel.is_empty() && !machine.model.is_empty());
    }
}
