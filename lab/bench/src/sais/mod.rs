//! `evenkeel-lab bench sais`: paper 001's question on this machine. Does it pay to process packets where
//! their data is wanted? In memory, where nothing but caches is in the way, and in parallel reads
//! between two network namespaces.
//!
//! | file | the one thing in it |
//! |---|---|
//! | `memory` | strips from files, combined on the same core or on another |
//! | `network` | a client and a server with a cable between them |
//! | `parallel` | the parallel read |
//! | `contestant` | who directs packets to cores |
//! | `scatter` | one of them: each packet to the next core |
//! | `programs` | nginx and iperf3 in its place |
//! | `packet_cost` | what the program on the device takes for a packet, in instructions |
//! | `arrivals` | on which cores packets are processed |
//! | `traffic` | what happened to packets meanwhile |
//! | `placement` | where the packets of one connection are processed, and whether hints come back |
//! | `table` | what came of it |
//! | `aims` | what was wanted, and whether it was reached |
//! | `page` | the report as a page |
//!
//! Where the network is the bound, CPU time decides: of this process and of those that it starts (both
//! ends of the cable), of the steering threads, and of all interrupts and softirqs on the machine.
//!
//! Before each run over a network everybody has the same time to warm up: `auto` judges once a second.

mod aims;
mod arrivals;
pub(crate) mod contestant;
mod memory;
mod network;
mod packet_cost;
mod page;
pub(crate) mod parallel;
mod placement;
mod programs;
mod scatter;
pub(crate) mod table;
mod traffic;

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::str::FromStr;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use evenkeel_cbinfo::Cbinfo;
use evenkeel_machine::{CpuSet, Machine};
use evenkeel_sais::StripTimes;

pub use parallel::Reader;
pub use table::{Row, SaisReport};

use crate::interleave::{self, Group, Measurement, Plan};
use evenkeel_experiment::MachineInfo;
use evenkeel_experiment::display::Display;
use evenkeel_experiment::interrupt;
use evenkeel_experiment::output::Output;

use aims::Aim;
use arrivals::Arrivals;
use contestant::Contestant;
use memory::Files;
use network::Network;
use packet_cost::PacketCost;
use parallel::Load;
use programs::{Program, Programs};
use traffic::Traffic;

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
/// What a run is expressed for: seconds for so many bytes.
const GIGABYTE: f64 = 1e9;
const KIBIBYTE: usize = 1 << 10;

/// How long a run lasts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Times {
    /// Over a network, before it is measured: enough for `auto` to judge and to begin.
    pub warm_up: Duration,
    /// While it is measured.
    pub measured: Duration,
}

/// What was transferred while it was measured.
#[derive(Debug, Default)]
pub(crate) struct Transferred {
    bytes: u64,
    time: Duration,
    /// Where packets were processed, where the reader is ours to look.
    arrivals: Arrivals,
}

/// To be called when warming up is over, and measuring begins.
type Begin<'a> = dyn FnMut() + 'a;

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

    fn name(self) -> &'static str {
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
        let found = Self::ALL.into_iter().find(|part| part.name() == name);
        found.with_context(|| {
            let names = Self::ALL.map(Self::name).join(", ");
            format!("there is no part {name:?}: give some of {names}")
        })
    }
}

/// What is asked for.
#[derive(Debug, Clone, Default)]
pub struct Options {
    /// evenkeel's own executable, whose `sais` is measured.
    pub executable: PathBuf,
    /// Only P and M of the paper's analysis.
    pub measure_pm: bool,
    /// Which parts; all if none are named.
    pub parts: Vec<Part>,
    /// In the virtual machine: measure what a packet costs.
    pub inside: bool,
    /// Be a client of a parallel read.
    pub reader: Option<Reader>,
    /// The short form, which shows that it works and decides little.
    pub quick: bool,
    /// Measure nothing: show what an earlier `json` holds.
    pub from: Option<PathBuf>,
    /// Where to write the rows as JSON.
    pub json: Option<PathBuf>,
    /// Where to write everything as a page.
    pub markdown: Option<PathBuf>,
    /// The command line, for whoever wants to run it again.
    pub command: String,
}

/// Runs the experiment, prints its table, and writes what was asked for. Returns the exit code: 1 if a
/// contestant failed, 128 + n if signal n ended it.
///
/// # Errors
/// A file cannot be written, or nothing can be measured.
pub fn run(options: &Options) -> Result<i32> {
    if options.inside {
        return packet_cost::play();
    }
    if let Some(reader) = options.reader {
        return parallel::play(reader);
    }
    let prepare = |path: &Option<PathBuf>| path.as_deref().map(Output::prepare).transpose();
    let (json, markdown) = (prepare(&options.json)?, prepare(&options.markdown)?);
    let report = match &options.from {
        Some(path) => {
            let report = load(path)?;
            println!("{}", table::times(&report.strip_times));
            report
        }
        None => {
            let _watch = interrupt::watch();
            match measure(options) {
                _ if interrupt::asked().is_some() => return Ok(interrupt::exit_code()),
                measured => measured?,
            }
        }
    };
    report.show();
    if let Some(output) = json {
        output.write(&serde_json::to_string_pretty(&report)?)?;
    }
    if let Some(output) = markdown {
        output.write(&page::page(&report))?;
    }
    Ok(i32::from(report.rows.iter().any(|row| row.failed.is_some())))
}

fn load(path: &Path) -> Result<SaisReport> {
    let bytes = std::fs::read(path).with_context(|| format!("cannot read {}", path.display()))?;
    serde_json::from_slice(&bytes).with_context(|| {
        format!(
            "{} is not what `evenkeel-lab bench sais --json` writes; measure anew",
            path.display()
        )
    })
}

fn measure(options: &Options) -> Result<SaisReport> {
    let machine = Machine::from_sysfs(Path::new("/"))?;
    let cpus = machine.online();
    let strip_times = StripTimes::measure(&machine, &cpus)?;
    println!("{}", table::times(&strip_times));
    let mut report = SaisReport {
        machine: MachineInfo::read(),
        command: options.command.clone(),
        strip_times,
        rows: Vec::new(),
        aims: Vec::new(),
        packet_costs: Vec::new(),
        said: Vec::new(),
    };
    if !options.measure_pm {
        measure_all(options, &cpus, &mut report)?;
    }
    Ok(report)
}

fn measure_all(options: &Options, cpus: &CpuSet, report: &mut SaisReport) -> Result<()> {
    let is_asked = |part| options.parts.is_empty() || options.parts.contains(&part);
    if is_asked(Part::Packets) && !options.quick {
        match packet_cost::measure() {
            Ok(costs) => report.packet_costs = costs,
            Err(why) => report.said.push(format!("what a packet costs was not counted: {why:#}")),
        }
        interrupt::check()?;
    }
    let programs = if is_asked(Part::Programs) {
        report.said.push(programs::not_tried());
        Programs::find()
            .inspect_err(|why| report.said.push(format!("real programs were left out: {why:#}")))
            .ok()
    } else {
        None
    };
    let count = cpus.iter().count();
    let plan = if options.quick {
        Plan { initial_runs: QUICK_RUNS, max_runs: QUICK_RUNS, max_repeats: 1, ..Plan::default() }
    } else {
        Plan { initial_runs: RUNS, step: MORE_RUNS, budget: BUDGET, ..Plan::default() }
    };
    let experiment = Experiment {
        executable: &options.executable,
        cpus,
        plan,
        times: if options.quick { QUICK_TIMES } else { TIMES },
        applications: if is_asked(Part::Memory) { vec![1, count, 2 * count] } else { Vec::new() },
        reads: if is_asked(Part::Network) { reads(options.quick, count) } else { Vec::new() },
        programs,
    };
    let measured = experiment.measure()?;
    (report.rows, report.aims) = (measured.rows, measured.aims);
    report.aims.extend(report.packet_costs.iter().map(PacketCost::aim));
    if is_asked(Part::Placement) {
        let placement = placement::measure(&options.executable, cpus, experiment.times.measured)?;
        report.aims.extend(aims::of_placement(&placement));
    }
    Ok(())
}

/// One experiment over a network.
pub(crate) struct Read {
    /// None: as fast as it goes.
    pub gbit_per_s: Option<u32>,
    pub load: Load,
    /// The baseline first.
    pub contestants: &'static [Contestant],
}

impl Read {
    pub fn case(&self) -> String {
        let Load { servers, clients, transfer_bytes } = self.load;
        let link = self.gbit_per_s.map_or("unshaped".into(), |rate| format!("{rate} Gb/s"));
        format!("{link}, {servers} servers, {clients} x {} KiB", transfer_bytes / 1024)
    }
}

/// About fifty rows in all: a case in which everybody takes part, and others that differ from it in
/// one thing each.
fn reads(is_quick: bool, cpus: usize) -> Vec<Read> {
    let read = |gbit_per_s, servers, clients, kibibytes, contestants| Read {
        gbit_per_s,
        load: Load { servers, clients, transfer_bytes: kibibytes * KIBIBYTE },
        contestants,
    };
    let (all, few, fewest) = (&Contestant::ALL[..], &Contestant::FEW[..], &Contestant::FEWEST[..]);
    let shaped = &Contestant::SHAPED[..];
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

/// Applications in memory, and where each one's reader and combiner run.
fn pairs(cpus: &[u32], applications: usize, is_together: bool) -> Vec<(u32, u32)> {
    let cpu = |number: usize| cpus[number % cpus.len()];
    let pair = |number| (cpu(number), cpu(number + usize::from(!is_together)));
    (0..applications).map(pair).collect()
}

/// What happened to packets, run by run, by case and contestant.
type Journeys = RefCell<BTreeMap<(String, String), Vec<Traffic>>>;

/// What is measured together.
pub(crate) struct Experiment<'a> {
    pub executable: &'a Path,
    pub cpus: &'a CpuSet,
    pub plan: Plan,
    pub times: Times,
    /// In memory, with so many applications.
    pub applications: Vec<usize>,
    pub reads: Vec<Read>,
    /// Real programs, where they are to take part.
    pub programs: Option<Programs>,
}

/// The case of so many applications in memory.
pub(crate) fn memory_case(applications: usize) -> String {
    format!("in memory, {applications} applications")
}

/// Rows, in the order of the cases, what they say of what is wanted, and the runs themselves.
pub(crate) struct Measured {
    pub rows: Vec<Row>,
    pub aims: Vec<Aim>,
    pub outcomes: Vec<interleave::Outcome>,
}

impl Experiment<'_> {
    /// Measures everything.
    ///
    /// # Errors
    /// CPU time cannot be counted, there is only one CPU, or somebody asked for the end.
    pub fn measure(&self) -> Result<Measured> {
        let accounts = Cbinfo::open(&[]).context("CPU time cannot be counted exactly")?;
        let accounts = RefCell::new(accounts);
        accounts.borrow_mut().follow(std::process::id(), std::process::id())?;
        let (journeys, files) = (Journeys::default(), Files::new()?);
        let cpus: Vec<u32> = self.cpus.iter().collect();
        if cpus.len() < 2 {
            bail!("with a single CPU there is no other one to fetch data from: two are needed");
        }
        let counted = |work: &mut Work<'_>| {
            interrupt::check()?;
            count(&mut accounts.borrow_mut(), cpus.len(), work)
        };
        // A contestant who is in charge of a network, over which something is read.
        let over_network = |case: &str, who: Contestant, rate, read: &Transfer<'_>| {
            let network = Network::new(rate)?;
            let _in_charge = who.begin(self.executable, &network, self.cpus)?;
            let (measured, arrivals) = counted(&mut |begin| read(&network, begin))?;
            let traffic = Traffic::read(&network, self.executable, &arrivals)?;
            let key = (case.to_owned(), who.name());
            journeys.borrow_mut().entry(key).or_default().push(traffic);
            Ok(measured)
        };
        let mut groups = Vec::new();
        for applications in self.applications.iter().copied() {
            let contestant = |name: &'static str, is_together| {
                let (pairs, files) = (pairs(&cpus, applications, is_together), &files);
                let (counted, time) = (&counted, self.times.measured);
                let mut work = move |begin: &mut Begin<'_>| {
                    begin();
                    memory::run(files, &pairs, time)
                };
                interleave::Contestant {
                    name: name.into(),
                    run: Box::new(move || Ok(counted(&mut work)?.0)),
                }
            };
            groups.push(Group {
                case: memory_case(applications),
                program: "strips".into(),
                reference: None,
                contestants: vec![
                    contestant(table::SI_IRQBALANCE, false),
                    contestant(table::SI_SAIS, true),
                ],
            });
        }
        let over_network: &OverNetwork<'_> = &over_network;
        for read in &self.reads {
            let (load, times) = (read.load, self.times);
            let transfer = move |network: &Network, begin: &mut Begin<'_>| {
                parallel::read(network, load, times, begin)
            };
            let (rate, who) = (read.gbit_per_s, read.contestants);
            groups.push(group(read.case(), rate, who, Rc::new(transfer), over_network));
        }
        if let Some(programs) = &self.programs {
            for program in Program::ALL {
                let times = self.times;
                let transfer = move |network: &Network, begin: &mut Begin<'_>| {
                    programs.run(program, network, times, begin)
                };
                let (case, who) = (program.case().into(), &Contestant::PROGRAMS);
                groups.push(group(case, None, who, Rc::new(transfer), over_network));
            }
        }
        let (display, start) = (Display::new(), Instant::now());
        let outcomes =
            interleave::run(&mut groups, &self.plan, &|| start.elapsed(), &mut |progress| {
                display.show(&progress)
            });
        drop(groups);
        display.finish();
        interrupt::check()?;
        let (outcomes, journeys) = (outcomes?, journeys.into_inner());
        let row = |outcome: &interleave::Outcome| {
            let key = (outcome.case.clone(), outcome.contestant.clone());
            Row::new(outcome, journeys.get(&key).and_then(|runs| Traffic::of_runs(runs)))
        };
        let rows: Vec<Row> = outcomes.iter().map(row).collect();
        Ok(Measured { aims: aims::of(&outcomes, &rows, self.plan.looks()), rows, outcomes })
    }
}

/// Does something, and says when it begins to count.
type Work<'a> = dyn FnMut(&mut Begin<'_>) -> Result<Transferred> + 'a;
/// Reads over a network.
type Transfer<'a> = dyn Fn(&Network, &mut Begin<'_>) -> Result<Transferred> + 'a;
/// Puts a contestant in charge of a network of this rate, and reads over it in this case.
type OverNetwork<'a> =
    dyn Fn(&str, Contestant, Option<u32>, &Transfer<'_>) -> Result<Measurement> + 'a;

fn group<'a>(
    case: String,
    rate: Option<u32>,
    contestants: &[Contestant],
    read: Rc<Transfer<'a>>,
    over_network: &'a OverNetwork<'a>,
) -> Group<'a> {
    let contestant = |who: &Contestant| {
        let (who, case, read) = (*who, case.clone(), Rc::clone(&read));
        interleave::Contestant {
            name: who.name(),
            run: Box::new(move || over_network(&case, who, rate, &*read)),
        }
    };
    let contestants = contestants.iter().map(contestant).collect();
    Group { case: case.clone(), program: "transfer".into(), reference: None, contestants }
}

/// Does something, and counts what CPU time it took.
fn count(
    accounts: &mut Cbinfo,
    cpus: usize,
    work: &mut Work<'_>,
) -> Result<(Measurement, Arrivals)> {
    // The steering threads are kernel threads, which nobody starts.
    for thread in procfs::process::all_processes()?.flatten() {
        let name = thread.stat().map(|stat| stat.comm).unwrap_or_default();
        if name.starts_with("cpumap/") {
            accounts.follow(thread.pid as u32, std::process::id())?;
        }
    }
    // Nobody wants the events, but a full buffer would count them as lost.
    accounts.events()?;
    let sums = |accounts: &Cbinfo| {
        let cpus = accounts.cpus();
        let ours = |cpu: &evenkeel_cbinfo::CpuAccount| {
            cpu.followed_ns + cpu.noise.irq_ns + cpu.noise.softirq_ns
        };
        let ours: u64 = cpus.iter().map(ours).sum();
        (ours, cpus.iter().map(|cpu| cpu.foreign_ns).sum::<u64>())
    };
    let mut before = None;
    let mut begin = || before = Some((Instant::now(), sums(accounts)));
    let Transferred { bytes, time, arrivals } = work(&mut begin)?;
    let (start, before) = before.context("nothing was begun")?;
    let (elapsed, after) = (start.elapsed(), sums(accounts));
    if bytes == 0 {
        bail!("nothing was read");
    }
    let gigabytes = bytes as f64 / GIGABYTE;
    let foreign_ns = after.1.saturating_sub(before.1) as f64;
    let measurement = Measurement {
        seconds: time.as_secs_f64() / gigabytes,
        // Closing is in the count, but hardly matters.
        cpu_s: Some(after.0.saturating_sub(before.0) as f64 / 1e9 / gigabytes),
        foreign_pct: 100.0 * foreign_ns / (elapsed.as_nanos() as f64 * cpus as f64),
        ..Measurement::default()
    };
    Ok((measurement, arrivals))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pairs_are_together_or_apart() {
        assert_eq!(pairs(&[0, 2], 3, true), [(0, 0), (2, 2), (0, 0)]);
        assert_eq!(pairs(&[0, 2], 3, false), [(0, 2), (2, 0), (0, 2)]);
    }

    #[test]
    fn rows_are_about_fifty_and_have_names_of_their_own() {
        let reads = reads(false, 2);
        let rows: usize = reads.iter().map(|read| read.contestants.len()).sum();
        assert!((45..=55).contains(&rows), "{rows}");
        let mut cases: Vec<String> = reads.iter().map(Read::case).collect();
        cases.sort();
        cases.dedup();
        assert_eq!(cases.len(), reads.len());
        assert_eq!(reads[0].case(), "unshaped, 8 servers, 1 x 1024 KiB");
    }
}
