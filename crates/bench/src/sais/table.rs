//! The report: its rows as JSON and as a table.

use comfy_table::{CellAlignment, Table, presets};
use evenkeel_sais::StripTimes;
use serde::{Deserialize, Serialize};

use super::aims::{self, Aim};
use super::packet_cost::PacketCost;
use super::traffic::Traffic;
use crate::interleave::Outcome;
use crate::report::{MachineInfo, verdict_cell};
use crate::stats::{Verdict, median};

/// Combined on another core than read.
pub const SI_IRQBALANCE: &str = "si-irqbalance";
/// Combined on the same core.
pub const SI_SAIS: &str = "si-sais";

const HEADER: [&str; 13] = [
    "case",
    "contestant",
    "MB/s",
    "vs first",
    "95 %",
    "verdict",
    "CPU-s/GB",
    "at home %",
    "predicted %",
    "resent",
    "disordered",
    "foreign %",
    "runs",
];
/// From here on the columns are numbers.
const FIRST_NUMBER: usize = 2;

/// An experiment's result, as `--json` writes it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SaisReport {
    /// Where it was measured.
    pub machine: MachineInfo,
    /// The command line that measured it.
    pub command: String,
    /// P and M.
    pub strip_times: StripTimes,
    /// What was measured.
    pub rows: Vec<Row>,
    /// What was wanted, and whether it was reached.
    #[serde(default)]
    pub aims: Vec<Aim>,
    /// What the program on the device takes for a packet.
    #[serde(default)]
    pub packet_costs: Vec<PacketCost>,
    /// What could not be measured, and why.
    #[serde(default)]
    pub said: Vec<String>,
}

/// One contestant in one case.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Row {
    /// The case.
    pub case: String,
    /// The contestant; the first of a case is the baseline of the others.
    pub contestant: String,
    /// Goodput in MB/s: the median.
    pub mb_per_s: Option<f64>,
    /// Goodput / that of the baseline, paired by round; none for the baseline itself.
    pub vs_baseline: Option<f64>,
    /// Its 95 % interval.
    pub vs_baseline_ci95: Option<[f64; 2]>,
    /// Of all rows together.
    pub verdict: Option<Verdict>,
    /// CPU time of both ends, in s for a gigabyte: the median.
    pub cpu_s_per_gb: Option<f64>,
    /// What happened to packets: medians of the runs; none in memory.
    #[serde(default)]
    pub traffic: Option<Traffic>,
    /// What others took of the machine meanwhile, in %: the median.
    pub foreign_pct: Option<f64>,
    /// Runs that count.
    pub runs: usize,
    /// Why it was left out, if it was.
    pub failed: Option<String>,
}

impl Row {
    pub(super) fn new(outcome: &Outcome, traffic: Option<Traffic>) -> Self {
        let seconds: Vec<f64> = outcome.runs().map(|run| run.seconds).collect();
        let foreign: Vec<f64> = outcome.runs().map(|run| run.foreign_pct).collect();
        let cpu_s: Vec<f64> = outcome.runs().filter_map(|run| run.cpu_s).collect();
        let ratio = outcome.judged.as_ref().map(|judged| judged.comparison.ratio);
        Self {
            case: outcome.case.clone(),
            contestant: outcome.contestant.clone(),
            mb_per_s: median(&seconds).map(|seconds| 1e3 / seconds),
            vs_baseline: ratio.map(|ratio| ratio.median),
            vs_baseline_ci95: ratio.map(|ratio| ratio.ci95()),
            verdict: outcome.judged.as_ref().map(|judged| judged.verdict),
            cpu_s_per_gb: median(&cpu_s),
            traffic,
            foreign_pct: median(&foreign),
            runs: seconds.len(),
            failed: outcome.failed.clone(),
        }
    }
}

/// What was measured of a strip, in a sentence.
pub(super) fn times(times: &StripTimes) -> String {
    let us = |time: Option<f64>| time.map_or("-".into(), |us| format!("{us:.2} us"));
    format!(
        "A strip of 64 KiB: P = {} (processing), M = {} from a core with a common cache and {} from \
         others; handing it over to another core's thread takes {}.",
        us(Some(times.process_us)),
        us(times.within_us),
        us(times.across_us),
        us(times.hand_over_us)
    )
}

impl SaisReport {
    /// All of it for the terminal.
    pub(super) fn show(&self) {
        if !self.rows.is_empty() {
            println!("{}", self.table());
        }
        if !self.aims.is_empty() {
            println!("{}", aims::table(&self.aims));
        }
        let costs = self.packet_costs.iter().map(PacketCost::sentence);
        for sentence in self.sentences().into_iter().chain(costs).chain(self.said.clone()) {
            println!("{sentence}");
        }
    }

    /// The rows as a table for the terminal.
    pub fn table(&self) -> String {
        let mut table = Table::new();
        table.load_style(presets::UTF8_HORIZONTAL_ONLY).set_header(HEADER);
        let number = |value: Option<f64>, digits: usize| {
            value.map_or_else(|| "-".to_owned(), |value| format!("{value:.digits$}"))
        };
        for row in &self.rows {
            let ci95 = row.vs_baseline_ci95.map(|[low, high]| format!("{low:.3} - {high:.3}"));
            table.add_row([
                row.case.clone(),
                row.contestant.clone(),
                number(row.mb_per_s, 0),
                number(row.vs_baseline, 3),
                ci95.unwrap_or_else(|| "-".into()),
                verdict_cell(row.failed.as_deref(), row.verdict).into(),
                number(row.cpu_s_per_gb, 3),
                number(row.traffic.and_then(|traffic| traffic.home_pct), 2),
                number(row.traffic.map(|traffic| traffic.predicted_pct), 0),
                number(row.traffic.map(|traffic| traffic.retransmitted), 0),
                number(row.traffic.map(|traffic| traffic.out_of_order), 0),
                number(row.foreign_pct, 1),
                row.runs.to_string(),
            ]);
        }
        for (index, column) in table.column_iter_mut().enumerate() {
            if index >= FIRST_NUMBER {
                column.set_cell_alignment(CellAlignment::Right);
            }
        }
        table.to_string()
    }

    /// Who was left out.
    fn sentences(&self) -> Vec<String> {
        let failed = self.rows.iter().filter_map(|row| Some((row, row.failed.as_ref()?)));
        failed
            .map(|(row, why)| format!("{}: {} was left out: {why}", row.case, row.contestant))
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(contestant: &str, vs_baseline: Option<f64>) -> Row {
        Row {
            case: "c".into(),
            contestant: contestant.into(),
            mb_per_s: Some(1000.0),
            vs_baseline,
            vs_baseline_ci95: None,
            verdict: None,
            cpu_s_per_gb: Some(0.5),
            traffic: None,
            foreign_pct: Some(0.0),
            runs: 3,
            failed: None,
        }
    }

    #[test]
    fn who_failed_is_said() {
        let report = SaisReport {
            machine: MachineInfo::default(),
            command: String::new(),
            strip_times: StripTimes::default(),
            aims: Vec::new(),
            packet_costs: Vec::new(),
            said: Vec::new(),
            rows: vec![
                row("none", None),
                row("dedicated:0", Some(0.8)),
                row("runner", Some(0.6)),
                Row { mb_per_s: None, failed: Some("refused".into()), ..row("rps", None) },
            ],
        };
        assert_eq!(report.sentences(), ["c: rps was left out: refused"]);
        let table = report.table();
        assert!(table.contains("runner") && table.contains("0.500"), "{table}");
    }
}
