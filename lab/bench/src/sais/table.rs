//! The report: its rows as JSON and as a table.

use evenkeel_sais::StripTimes;
use serde::{Deserialize, Serialize};

use super::aims::{self, Aim};
use super::packet_cost::PacketCost;
use super::traffic::Traffic;
use crate::interleave::Outcome;
use crate::stats::{Verdict, median};
use evenkeel_experiment::MachineInfo;
use evenkeel_experiment::cells::Cells;

/// Combined on another core than read.
pub const SI_IRQBALANCE: &str = "si-irqbalance";
/// Combined on the same core.
pub const SI_SAIS: &str = "si-sais";

const HEADER: [&str; 15] = [
    "case",
    "contestant",
    "MB/s",
    "vs first",
    "95 %",
    "verdict",
    "CPU-s/GB",
    "at home %",
    "by core %",
    "steers %",
    "predicted %",
    "resent",
    "disordered",
    "foreign %",
    "runs",
];
/// These columns are numbers.
const NUMBERS: &[usize] = &[2, 3, 4, 6, 7, 8, 9, 10, 11, 12, 13, 14];
/// With more cores than that, their shares are to be found in the JSON only.
const MAX_CORES: usize = 8;

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
    /// What happened to packets, in all runs; none in memory.
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

/// What a row's verdict is called; "-" where there is nothing to compare with.
fn verdict_cell(failed: Option<&str>, verdict: Option<Verdict>) -> &'static str {
    match (failed, verdict) {
        (Some(_), _) => "failed",
        (None, Some(Verdict::Better)) => "better",
        (None, Some(Verdict::Worse)) => "worse",
        (None, Some(Verdict::Undecided)) => "undecided",
        (None, None) => "-",
    }
}

impl Row {
    fn cells(&self) -> Vec<String> {
        let number = |value: Option<f64>, digits: usize| {
            value.map_or_else(|| "-".to_owned(), |value| format!("{value:.digits$}"))
        };
        let ci95 = self.vs_baseline_ci95.map(|[low, high]| format!("{low:.3} - {high:.3}"));
        let traffic = self.traffic.as_ref();
        let figure =
            |figure: fn(&Traffic) -> Option<f64>, digits| number(traffic.and_then(figure), digits);
        vec![
            self.case.clone(),
            self.contestant.clone(),
            number(self.mb_per_s, 0),
            number(self.vs_baseline, 3),
            ci95.unwrap_or_else(|| "-".into()),
            verdict_cell(self.failed.as_deref(), self.verdict).into(),
            number(self.cpu_s_per_gb, 3),
            // Where another program reads, only who steers knows.
            figure(|all| all.home_pct.or(all.steered_home_pct), 2),
            traffic.and_then(by_core).unwrap_or_else(|| "-".into()),
            figure(|all| all.steering_pct, 0),
            figure(|all| Some(all.predicted_pct), 0),
            figure(|all| Some(all.retransmitted), 0),
            figure(|all| Some(all.out_of_order), 0),
            number(self.foreign_pct, 1),
            self.runs.to_string(),
        ]
    }
}

/// The shares of the cores, the first one's first.
fn by_core(traffic: &Traffic) -> Option<String> {
    let shares = traffic.by_core_pct.values().map(|share| format!("{share:.0}"));
    let is_short = (1..=MAX_CORES).contains(&traffic.by_core_pct.len());
    is_short.then(|| shares.collect::<Vec<_>>().join(" / "))
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
            println!("{}", self.table().terminal());
        }
        if !self.aims.is_empty() {
            println!("{}", aims::table(&self.aims).terminal());
        }
        for sentence in self.remarks() {
            println!("{sentence}");
        }
    }

    /// What others took of the machine in the row where that is the most.
    pub(super) fn worst_foreign_pct(&self) -> Option<f64> {
        self.rows.iter().filter_map(|row| row.foreign_pct).reduce(f64::max)
    }

    /// What is said beside the tables.
    pub(super) fn remarks(&self) -> Vec<String> {
        self.sentences().into_iter().chain(self.said.clone()).collect()
    }

    /// The rows.
    pub(super) fn table(&self) -> Cells {
        Cells {
            header: HEADER.map(str::to_owned).to_vec(),
            numbers: NUMBERS.to_vec(),
            rows: self.rows.iter().map(Row::cells).collect(),
        }
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
        let table = report.table().terminal();
        assert!(table.contains("runner") && table.contains("0.500"), "{table}");
    }

    #[test]
    fn where_packets_were_processed_is_said_of_each_row() {
        let traffic = Traffic {
            home_pct: Some(97.5),
            steered_home_pct: Some(12.0),
            by_core_pct: [(0, 2.5), (1, 97.5)].into(),
            ..Traffic::default()
        };
        let seen = Row { traffic: Some(traffic.clone()), ..row("runner", None) };
        assert_eq!(seen.cells()[7..10], ["97.50", "2 / 98", "-"]);
        // Nobody looked but who steered.
        let steered = Traffic { home_pct: None, by_core_pct: [].into(), ..traffic.clone() };
        let steered = Row { traffic: Some(steered), ..row("runner", None) };
        assert_eq!(steered.cells()[7..9], ["12.00", "-"]);
        let many = (0..64).map(|core| (core, 100.0 / 64.0)).collect();
        assert_eq!(by_core(&Traffic { by_core_pct: many, ..traffic }), None);
        assert_eq!(HEADER.len(), seen.cells().len());
    }
}
