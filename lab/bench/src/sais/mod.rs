//! `evenkeel-lab bench sais`: paper 001's question on this machine. Does it pay to process packets where
//! their data is wanted? In memory, where nothing but caches is in the way, and in parallel reads
//! between two network namespaces.
//!
//! | file | the one thing in it |
//! |---|---|
//! | `experiment` | figures, aims, contestants |
//! | `runner` | one run |
//! | `memory` | strips from files, combined on the same core or on another |
//! | `network` | a client and a server with a cable between them |
//! | `parallel` | the parallel read |
//! | `contestant` | what steers packets to CPUs |
//! | `scatter` | one of them: each packet to the next core |
//! | `programs` | nginx and iperf3 in its place |
//! | `packet_cost` | what the program on the device takes for a packet, in instructions |
//! | `arrivals` | on which cores packets are processed |
//! | `traffic` | what happened to packets meanwhile |
//! | `placement` | where the packets of one connection are processed, and whether hints come back |
//!
//! Where the network is the bound, CPU time decides: of this process and of those that it starts (both
//! ends of the cable), of the steering threads, and of all interrupts and softirqs on the machine.
//!
//! Before each run over a network all contestants have the same time to warm up: `auto` judges once a
//! second.

pub(crate) mod arrivals;
pub mod contestant;
pub mod experiment;
mod memory;
pub(crate) mod network;
mod packet_cost;
pub mod parallel;
mod placement;
mod programs;
pub mod runner;
mod scatter;
pub(crate) mod traffic;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

use anyhow::Result;
use evenkeel_experiment::{Options, Plan, Record, Report, Section, interrupt, named};
use evenkeel_machine::{CpuSet, Machine};
use evenkeel_sais::StripTimes;
use evenkeel_stats::estimate;

pub use parallel::Reader;

use contestant::Method;
use packet_cost::PacketCost;
use parallel::Load;
use programs::{Program, Programs};
use runner::{Begin, Place, Setting, Times, Transferred, Work};

/// Runs of each contestant to begin with, and of the quick form.
const RUNS: usize = 7;
const QUICK_RUNS: usize = 3;
/// Undecided rows get so many more at a time.
const MORE_RUNS: usize = 4;
/// From here on nothing is added.
const BUDGET: Duration = Duration::from_secs(30 * 60);
/// How long each run lasts.
const TIMES: Times =
    Times { warm_up: Duration::from_millis(1500), measured: Duration::from_millis(1000) };
const QUICK_TIMES: Times =
    Times { warm_up: Duration::from_millis(100), measured: Duration::from_millis(300) };
const KIBIBYTE: usize = 1 << 10;

/// What can be measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part {
    /// Strips in memory.
    Memory,
    /// Parallel reads between two namespaces.
    Network,
    /// Where the packets of one connection are processed, in which order, and whether hints come back.
    Placement,
    /// Programs of the distribution between them.
    Programs,
    /// What a packet costs, in a virtual machine.
    Packets,
}

impl Part {
    /// All, in the order in which they are measured.
    pub const ALL: [Self; 5] =
        [Self::Memory, Self::Network, Self::Placement, Self::Programs, Self::Packets];

    /// The name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Memory => "memory",
            Self::Network => "network",
            Self::Placement => "placement",
            Self::Programs => "programs",
            Self::Packets => "packets",
        }
    }
}

impl FromStr for Part {
    type Err = anyhow::Error;

    fn from_str(name: &str) -> Result<Self> {
        named("part", name, &Self::ALL, Self::name)
    }
}

/// What is asked for.
#[derive(Debug, Clone, Default)]
pub struct Asked {
    /// The product's executable: its `sais` is measured.
    pub executable: PathBuf,
    /// Only P and M of the paper's analysis.
    pub measure_pm: bool,
    /// Which parts; all if none are named.
    pub parts: Vec<Part>,
    /// In the virtual machine: measure what a packet costs.
    pub inside: bool,
    /// Be a client of a parallel read.
    pub reader: Option<Reader>,
    /// What any experiment can be asked for.
    pub options: Options,
}

/// Runs the experiment. Returns the exit code.
///
/// # Errors
/// A file cannot be written, or nothing can be measured.
pub fn run(asked: &Asked) -> Result<i32> {
    if asked.inside {
        return packet_cost::play();
    }
    if let Some(reader) = asked.reader {
        return parallel::play(reader);
    }
    let experiment = experiment::experiment(experiment::aims());
    experiment.run(&asked.options, || measure(asked))
}

fn measure(asked: &Asked) -> Result<Report> {
    let Asked { executable, options, .. } = asked;
    let is_asked =
        |part| !asked.measure_pm && (asked.parts.is_empty() || asked.parts.contains(&part));
    let machine = Machine::from_sysfs(Path::new("/"))?;
    let cpus = machine.online();
    let strip_times = StripTimes::measure(&machine, &cpus)?.with_process(&cpus)?;
    let mut said = vec![strip_sentence(&strip_times)];
    let mut costs: Vec<PacketCost> = Vec::new();
    if is_asked(Part::Packets) && !options.quick {
        match packet_cost::measure() {
            Ok(counted) => costs = counted,
            Err(why) => said.push(format!("what a packet costs was not counted: {why:#}")),
        }
        interrupt::check()?;
    }
    let mut programs = None;
    if is_asked(Part::Programs) {
        said.push(programs::not_tried());
        match Programs::find() {
            Ok(found) => programs = Some(found),
            Err(why) => said.push(format!("real programs were left out: {why:#}")),
        }
    }

    let plan = plan(options.quick);
    let times = if options.quick { QUICK_TIMES } else { TIMES };
    let place = Place { executable, cpus: &cpus, times, programs: programs.as_ref() };
    let mut settings = Vec::new();
    let count = cpus.len();
    if is_asked(Part::Memory) {
        settings.extend(with_again([1, count, 2 * count].map(Setting::memory)));
    }
    if is_asked(Part::Network) {
        settings.extend(with_again(reads(options.quick, count)));
    }
    if programs.is_some() {
        settings.extend(with_again(Program::ALL.map(|program| Setting {
            work: Work::Program(program),
            methods: &Method::PROGRAMS,
            has_second_baseline: false,
        })));
    }
    let experiment = experiment::experiment(experiment::aims());
    // Without settings nothing is measured, and nothing is needed for it.
    let records = match settings.is_empty() {
        true => Vec::new(),
        false => runner::measure(&experiment, &settings, &plan, place)?,
    };
    let mut report = Report::new(&experiment, &records, &plan, &options.command);
    report.said = said;
    let mut sentences = Vec::new();
    if let Some((aim, sentence)) = experiment::disorder(&report.rows) {
        report.aims.push(aim);
        sentences.push(sentence);
    }
    sentences.extend(experiment::fast_path(&report));
    report.aims.extend(costs.iter().map(PacketCost::aim));
    sentences.extend(costs.iter().map(PacketCost::sentence));
    if is_asked(Part::Placement) {
        let placement = placement::measure(executable, &cpus, times.measured)?;
        report.aims.extend(placement.aims());
        sentences.push(placement.sentence());
    }
    if !sentences.is_empty() {
        report.sections.push(Section::new("Packets", sentences));
    }
    report.details.insert("strip_times".into(), serde_json::to_value(strip_times)?);
    report.details.insert("packet_costs".into(), serde_json::to_value(&costs)?);
    if count > traffic::SHOWN_CPUS {
        report.details.insert("by_cpu_pct".into(), serde_json::to_value(by_cpu(&records, &cpus))?);
    }
    Ok(report)
}

fn plan(is_quick: bool) -> Plan {
    if is_quick {
        Plan { max_repeats: 1, ..Plan::fixed(QUICK_RUNS) }
    } else {
        Plan { initial_runs: RUNS, step: MORE_RUNS, budget: BUDGET, ..Plan::default() }
    }
}

/// The same, with an A/A row in the first of them.
pub fn with_again(settings: impl IntoIterator<Item = Setting>) -> Vec<Setting> {
    let mut settings: Vec<Setting> = settings.into_iter().collect();
    if let Some(first) = settings.first_mut() {
        first.has_second_baseline = true;
    }
    settings
}

/// What was measured of a strip.
fn strip_sentence(times: &StripTimes) -> String {
    let us = |time: Option<f64>| time.map_or("-".into(), |us| format!("{us:.2} us"));
    format!(
        "A strip of 64 KiB: P = {} (its softirqs), M = {} from a core with a common cache and {} from \
         others; handing it over to a thread on such cores takes {} and {}.",
        us(times.process_us),
        us(times.within_us),
        us(times.across_us),
        us(times.hand_over_within_us),
        us(times.hand_over_across_us)
    )
}

/// Which share of the strips' last packets each CPU processed, in %, by case and contestant: the median
/// of the runs that looked.
fn by_cpu(
    records: &[Record],
    cpus: &CpuSet,
) -> BTreeMap<String, BTreeMap<String, BTreeMap<u32, f64>>> {
    let shares = |line: &evenkeel_experiment::Line| -> BTreeMap<u32, f64> {
        let share = |cpu| {
            let values: Vec<f64> = line.values(&traffic::cpu_figure(cpu)).flatten().collect();
            Some((cpu, estimate(&values)?.median))
        };
        cpus.iter().filter_map(share).collect()
    };
    let lines = |record: &Record| {
        record.lines.iter().map(|line| (line.contestant.clone(), shares(line))).collect()
    };
    records.iter().map(|record| (record.case.clone(), lines(record))).collect()
}

/// About fifty rows in all: a case in which all contestants take part, and others that differ from it
/// in one thing each.
fn reads(is_quick: bool, cpus: usize) -> Vec<Setting> {
    let read = |gbit_per_s, servers, clients, kibibytes, methods| {
        let load = Load { servers, clients, transfer_bytes: kibibytes * KIBIBYTE };
        Setting::read(gbit_per_s, load, methods)
    };
    let (all, few, fewest) = (&Method::ALL[..], &Method::FEW[..], &Method::FEWEST[..]);
    let shaped = &Method::SHAPED[..];
    if is_quick {
        return vec![read(None, 4, 1, 1024, all)];
    }
    vec![
        read(None, 8, 1, 1024, all),
        read(None, 1, 1, 1024, fewest),
        read(None, 16, 1, 1024, fewest),
        read(None, 32, 1, 1024, fewest),
        read(None, 48, 1, 1024, few),
        read(None, 8, 1, 128, fewest),
        read(None, 8, 1, 2048, fewest),
        read(None, 8, 2 * cpus, 1024, few),
        read(Some(3), 8, 1, 1024, shaped),
        read(Some(1), 8, 1, 1024, shaped),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_about_fifty_and_have_names_of_their_own() {
        let reads = reads(false, 2);
        let rows: usize = reads.iter().map(|read| read.methods.len()).sum();
        assert!((45..=55).contains(&rows), "{rows}");
        let mut cases: Vec<String> = reads.iter().map(Setting::name).collect();
        cases.sort();
        cases.dedup();
        assert_eq!(cases.len(), reads.len());
        assert_eq!(reads[0].name(), "unshaped, 8 servers, 1 x 1024 KiB");
    }

    #[test]
    fn the_page_shows_all_that_a_report_has() {
        let report: Report = serde_json::from_value(serde_json::json!({
            "experiment": "sais",
            "commit": "abc",
            "machine": {"model": "Test", "cpus": 2, "kernel": "6.18"},
            "command": "evenkeel-lab bench sais --json F",
            "said": [strip_sentence(&StripTimes {
                process_us: Some(5.0), within_us: Some(3.0), hand_over_within_us: Some(8.0),
                ..StripTimes::default()
            })],
            "failed": [{"case": "c", "contestant": "rps", "why": "refused"}],
            "rows": [
                {"case": "c", "contestant": "auto", "metric": "goodput", "median": 1000.0,
                 "ci95": [1.0, 2.0], "against": "none", "ratio": 1.5, "ratio_ci95": [1.25, 1.75],
                 "verdict": "better", "foreign_pct": 1.5, "runs": 7},
                {"case": "c", "contestant": "auto", "metric": "cpu-per-gb", "median": 0.5,
                 "ci95": [0.5, 0.5], "foreign_pct": 1.5, "runs": 7},
                {"case": "c", "contestant": "auto", "metric": "at-home", "median": 97.5,
                 "ci95": [97.5, 97.5], "foreign_pct": 1.5, "runs": 7},
                {"case": "c", "contestant": "auto", "metric": "steers", "median": 1.0,
                 "ci95": [0.0, 1.0], "total": 5.0, "foreign_pct": 1.5, "runs": 7},
                {"case": "c", "contestant": "auto", "metric": "cpu-1", "median": 97.5,
                 "ci95": [97.5, 97.5], "foreign_pct": 1.5, "runs": 7},
            ],
            "aims": [],
        }))
        .unwrap();
        let page = experiment::experiment(experiment::aims()).page(&report);
        for part in [
            "by `evenkeel-lab bench sais --json F`",
            "most disturbed row: 1.5 %",
            "- A strip of 64 KiB: P = 5.00 us (its softirqs), M = 3.00 us",
            "- rps failed, c: refused",
            "| vs none | verdict | cpu-per-gb | at-home | steers | cpu-1 | foreign | runs |",
            "| 1000 MB/s | 1.500 (1.250 - 1.750) | better | 500.00 ms | 97.50 % | 5 | 97.50 % |",
            "| 97.50 % | 1.5 % | 7 |",
            "- `auto`: `sais attach` with this policy",
        ] {
            assert!(page.contains(part), "{part}: {page}");
        }
    }
}
