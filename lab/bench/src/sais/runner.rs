//! One run: a contestant begins in a network of its own, something is transferred, and CPU time and
//! packets are counted meanwhile.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use evenkeel_cbinfo::Cbinfo;
use evenkeel_experiment::display::Display;
use evenkeel_experiment::{Case, Experiment, Plan, Record, Runner, Sample, Turn, interrupt};
use evenkeel_machine::CpuSet;

use super::arrivals::Arrivals;
use super::contestant::Method;
use super::experiment::{CPU_TIME, GOODPUT};
use super::memory::{self, Files};
use super::network::Network;
use super::parallel::{self, Load};
use super::programs::{Program, Programs};
use super::traffic;

pub(crate) const MEGABYTE: f64 = 1e6;
const GIGABYTE: f64 = 1e9;
/// The names of the steering threads begin so.
const STEERING: &str = "cpumap/";

/// How long a run lasts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Times {
    /// Over a network, before it is measured: enough for `auto` to judge and to begin.
    pub warm_up: Duration,
    /// While it is measured.
    pub measured: Duration,
}

/// What was transferred while it was measured.
#[derive(Debug, Default)]
pub(crate) struct Transferred {
    pub bytes: u64,
    pub time: Duration,
    /// Where packets were processed, where the reader is ours to look.
    pub arrivals: Arrivals,
}

/// To be called when warming up is over, and measuring begins.
pub(crate) type Begin<'a> = dyn FnMut() + 'a;

/// What is transferred.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Work {
    /// Strips in memory, by so many applications.
    Memory(usize),
    /// A parallel read over a link of this rate in Gb/s; `None`: as fast as it goes.
    Read(Option<u32>, Load),
    /// A real program.
    Program(Program),
}

/// A case: what is transferred, by which contestants.
#[derive(Debug, Clone)]
pub struct Setting {
    /// What is transferred.
    pub work: Work,
    /// The baseline first.
    pub methods: &'static [Method],
    /// The baseline takes one more turn in each round.
    pub has_second_baseline: bool,
}

impl Setting {
    /// Applications in memory.
    pub fn memory(applications: usize) -> Self {
        let work = Work::Memory(applications);
        Self { work, methods: &Method::IN_MEMORY, has_second_baseline: false }
    }

    /// A parallel read.
    pub fn read(gbit_per_s: Option<u32>, load: Load, methods: &'static [Method]) -> Self {
        Self { work: Work::Read(gbit_per_s, load), methods, has_second_baseline: false }
    }

    /// The name in the report.
    pub fn name(&self) -> String {
        match self.work {
            Work::Memory(applications) => format!("in memory, {applications} applications"),
            Work::Read(gbit_per_s, Load { servers, clients, transfer_bytes }) => {
                let link = gbit_per_s.map_or("unshaped".into(), |rate| format!("{rate} Gb/s"));
                format!("{link}, {servers} servers, {clients} x {} KiB", transfer_bytes / 1024)
            }
            Work::Program(program) => program.case().to_owned(),
        }
    }

    fn case(&self) -> Case {
        Case {
            name: self.name(),
            contestants: self.methods.iter().map(|method| method.name().to_owned()).collect(),
            has_second_baseline: self.has_second_baseline,
            ..Case::default()
        }
    }
}

/// Has all contestants take turns in all settings.
///
/// # Errors
/// CPU time cannot be counted, there is only one CPU, or a signal asked for the end.
pub fn measure(
    experiment: &Experiment<Method>,
    settings: &[Setting],
    plan: &Plan,
    place: Place<'_>,
) -> Result<Vec<Record>> {
    let mut accounts = Cbinfo::open(&[]).context("CPU time cannot be counted exactly")?;
    accounts.follow(std::process::id(), std::process::id())?;
    if place.cpus.len() < 2 {
        bail!("with a single CPU there is no other one to fetch data from: two are needed");
    }
    let cases: Vec<Case> = settings.iter().map(Setting::case).collect();
    let mut runner = Transfers { place, settings, accounts, files: Files::new()? };
    let display = Display::new();
    let records = evenkeel_experiment::measure(experiment, &cases, plan, &mut runner, &display);
    display.finish();
    interrupt::check()?;
    records
}

/// With what runs are made.
#[derive(Clone, Copy)]
pub struct Place<'a> {
    /// The product's executable.
    pub executable: &'a Path,
    /// The CPUs that take part.
    pub cpus: &'a CpuSet,
    /// How long a run lasts.
    pub times: Times,
    /// Real programs, where they take part.
    pub programs: Option<&'a Programs>,
}

struct Transfers<'a> {
    place: Place<'a>,
    settings: &'a [Setting],
    accounts: Cbinfo,
    files: Files,
}

impl Runner<Method> for Transfers<'_> {
    fn run(&mut self, turn: &Turn<'_, Method>) -> Result<Sample> {
        interrupt::check()?;
        let setting = self.settings.iter().find(|setting| setting.name() == turn.case.name);
        let work = setting.with_context(|| format!("no case {:?}", turn.case.name))?.work;
        let method = turn.contestant.context("these cases have no reference")?.how;
        let Place { executable, cpus, times, programs } = self.place;
        let (accounts, count) = (&mut self.accounts, cpus.len());
        if let Work::Memory(applications) = work {
            let pairs = pairs(cpus, applications, method == Method::Together);
            return Ok(counted(accounts, STEERING, count, &mut |begin| {
                begin();
                memory::run(&self.files, &pairs, times.measured)
            })?
            .0);
        }
        let network = Network::new(if let Work::Read(rate, _) = work { rate } else { None })?;
        let _in_charge = method.begin(executable, &network, cpus)?;
        let (mut sample, arrivals) = counted(accounts, STEERING, count, &mut |begin| match work {
            Work::Read(_, load) => parallel::read(&network, load, times, begin),
            Work::Program(program) => {
                let programs = programs.context("the real programs were not found")?;
                programs.run(program, &network, times, begin)
            }
            Work::Memory(_) => bail!("memory is no network"),
        })?;
        traffic::add_figures(&mut sample, &network, executable, cpus, &arrivals)?;
        Ok(sample)
    }
}

/// The CPUs of reader and combiner for each application in memory.
fn pairs(cpus: &CpuSet, applications: usize, is_together: bool) -> Vec<(u32, u32)> {
    let cpus: Vec<u32> = cpus.iter().collect();
    let cpu = |number: usize| cpus[number % cpus.len()];
    let pair = |number| (cpu(number), cpu(number + usize::from(!is_together)));
    (0..applications).map(pair).collect()
}

/// Has kernel threads with names that begin so count as ours: no followed process starts them.
///
/// # Errors
/// The kernel cannot list its tasks.
pub(crate) fn follow_threads(accounts: &mut Cbinfo, prefix: &str) -> Result<()> {
    for thread in procfs::process::all_processes()?.flatten() {
        let name = thread.stat().map(|stat| stat.comm).unwrap_or_default();
        if name.starts_with(prefix) {
            accounts.follow(thread.pid as u32, std::process::id())?;
        }
    }
    Ok(())
}

/// Does something, and counts the CPU time that it took, together with that of kernel threads with names
/// that begin with `threads`. `work` is told what to call when it begins to count.
///
/// # Errors
/// Those of the work, CPU time cannot be counted, or nothing was transferred.
pub(crate) fn counted(
    accounts: &mut Cbinfo,
    threads: &str,
    cpus: usize,
    work: &mut dyn FnMut(&mut Begin<'_>) -> Result<Transferred>,
) -> Result<(Sample, Arrivals)> {
    follow_threads(accounts, threads)?;
    // The events are of no use here, but a full buffer would count them as lost.
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
    let bytes = bytes as f64;
    // Closing is in the count, but hardly matters.
    let cpu_s = after.0.saturating_sub(before.0) as f64 / 1e9;
    let foreign_ns = after.1.saturating_sub(before.1) as f64;
    let figures =
        [(GOODPUT, bytes / MEGABYTE / time.as_secs_f64()), (CPU_TIME, cpu_s / (bytes / GIGABYTE))];
    let foreign_pct = 100.0 * foreign_ns / (elapsed.as_nanos() as f64 * cpus as f64);
    Ok((Sample { foreign_pct, ..Sample::new(figures) }, arrivals))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pairs_are_together_or_apart() {
        let cpus: CpuSet = [0, 2].into_iter().collect();
        assert_eq!(pairs(&cpus, 3, true), [(0, 0), (2, 2), (0, 0)]);
        assert_eq!(pairs(&cpus, 3, false), [(0, 2), (2, 0), (0, 2)]);
    }
}
