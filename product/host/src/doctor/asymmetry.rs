//! How unequal the CPUs are now, and the bound of what a parallel program can gain from balancing.

use std::path::PathBuf;
use std::rc::Rc;
use std::time::Duration;

use evenkeel_capability::LagParameters;
use evenkeel_cbinfo::RunTimeExcludes;
use evenkeel_journal::affinity;
use evenkeel_machine::{CpuSet, Machine};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::check::count;
use crate::observe::{Accounting, AccountingChoice, Observer};
use crate::reading::{Freedom, Reading};
use crate::summary::{CpuSummary, Totals};

/// Time between the first reading of every CPU and the beginning of the watch.
const SETTLE: Duration = Duration::from_millis(10);
/// CPUs that differ from the worst CPU by at most this share (of the fastest) count as equally bad.
const ALIKE: f64 = 0.03;
/// A loss above this is named, in percent.
const NAMED_PCT: f64 = 2.0;
/// A CPU counts as slow from this much below the fastest, in percent; measured speeds differ by less
/// than that by chance.
const SLOWER_PCT: f64 = 5.0;
/// Below this share, a ratio to the capability of a CPU has no meaning.
const NOTHING_LEFT: f64 = 0.01;
/// From this many runnable tasks on average, a CPU counts as shared.
const COMPETITION: f64 = 0.3;

/// The CPUs over the time that they were watched.
#[derive(Debug, Clone)]
pub struct Watched {
    /// The source of the figures.
    pub accounting: Accounting,
    /// Why the source is not cbinfo.
    pub why_not_exact: Option<String>,
    /// The CPUs, ascending.
    pub cpus: Vec<CpuSummary>,
    /// Average number of runnable fair-class tasks on each of `cpus`; empty if not known.
    pub runnable: Vec<f64>,
}

/// One CPU now. Percentages are of the time watched, 0..=100.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct CpuNow {
    /// Its number.
    pub cpu: u32,
    /// Relative speed, 1..=1024: the fastest CPU of the machine has 1024.
    pub speed: u32,
    /// Taken by interrupt handlers.
    pub irq_pct: f64,
    /// Taken by softirqs.
    pub softirq_pct: f64,
    /// Taken by real-time and deadline tasks; `null`: /proc does not tell.
    pub rt_pct: Option<f64>,
    /// Taken by the hypervisor for other guests.
    pub steal_pct: f64,
    /// Idle.
    pub idle_pct: f64,
    /// Average number of runnable fair-class tasks; `null`: /proc does not tell.
    pub runnable: Option<f64>,
    /// Capability, 0..=1024: 1024 is the fastest CPU without disturbance.
    pub capability: u32,
}

/// How unequal the CPUs are now.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Asymmetry {
    /// The source of the figures.
    pub accounting: Accounting,
    /// How long the CPUs were watched, in nanoseconds.
    pub watched_ns: u64,
    /// The CPUs over which a program that is started here can be balanced, ascending.
    pub cpus: Vec<CpuNow>,
    /// Capability of the worst CPU, 0..=1024: the pace of a program with one thread per CPU.
    pub min_capability: u32,
    /// Average capability, 0..=1024: the pace that balancing can reach.
    pub avg_capability: u32,
    /// Average by worst, >= 1: how many times faster such a program could run at most; `null` when
    /// nothing is left of the worst CPU.
    pub bound: Option<f64>,
    /// Whether the CPUs differ by more than the `lag` policy tolerates with this accounting.
    pub is_worth_balancing: bool,
    /// The result in one sentence.
    pub verdict: String,
    /// What limits that result.
    pub remarks: Vec<String>,
}

/// The number of a program without tasks: only the CPUs are watched.
const NO_PROGRAM: u32 = 0;

/// Watches CPUs, interval by interval.
pub struct CpuWatch {
    machine: Machine,
    usable: CpuSet,
    observer: Observer,
    last: Rc<Reading>,
}

impl CpuWatch {
    /// Begins to watch the CPUs in `usable`: exactly where BPF may be loaded or one of the daemons at
    /// these sockets has exact figures, else by /proc.
    ///
    /// # Errors
    /// Not even /proc can be read; the reason.
    pub fn start(machine: &Machine, usable: &CpuSet, daemons: &[PathBuf]) -> Result<Self, String> {
        let observer = Observer::with_daemons(machine, AccountingChoice::Auto, daemons)
            .map_err(|why| why.to_string())?;
        if observer.accounting() == Accounting::Cbinfo {
            visit(usable);
        }
        let last = Rc::clone(observer.last());
        Ok(Self { machine: machine.clone(), usable: usable.clone(), observer, last })
    }

    /// The CPUs since the last call, or since the start; `None` when no time has passed.
    ///
    /// # Errors
    /// The source cannot be read; the reason.
    pub fn look(&mut self) -> Result<Option<Watched>, String> {
        let now = self.observer.read().cloned().map_err(|why| why.to_string())?;
        let first = std::mem::replace(&mut self.last, now);
        Ok(Watched::between(self, &first))
    }
}

impl Watched {
    /// Watches the CPUs in `usable` for this long. `daemons` are the sockets of those that may have
    /// exact figures where this process has none.
    ///
    /// # Errors
    /// Not even /proc can be read; the reason.
    pub fn new(
        machine: &Machine,
        usable: &CpuSet,
        watch: Duration,
        daemons: &[PathBuf],
    ) -> Result<Self, String> {
        let mut cpus = CpuWatch::start(machine, usable, daemons)?;
        std::thread::sleep(SETTLE);
        cpus.look()?;
        std::thread::sleep(watch);
        cpus.look()?.ok_or_else(|| "the clock stands still".to_owned())
    }

    /// From the reading `first` to the last one.
    fn between(watch: &CpuWatch, first: &Rc<Reading>) -> Option<Self> {
        let CpuWatch { machine, usable, observer, last } = watch;
        let snapshot =
            observer.snapshot(first, &[NO_PROGRAM], usable, |_, _| Freedom::default())?;
        let mut totals = Totals::new(machine, first);
        totals.add(&snapshot, last);
        let cpus: Vec<CpuSummary> =
            totals.cpus().into_iter().filter(|cpu| usable.contains(cpu.cpu)).collect();
        let accounting = observer.accounting();
        let runnable = match accounting {
            Accounting::Cbinfo | Accounting::Daemon => {
                cpus.iter().map(|cpu| runnable(cpu, first, last)).collect()
            }
            Accounting::Procfs | Accounting::None => Vec::new(),
        };
        let why_not_exact = observer.why_not_exact().map(str::to_owned);
        Some(Self { accounting, why_not_exact, cpus, runnable })
    }

    /// The exact accounting that was used, or why none was.
    pub fn exact(&self) -> Result<Accounting, String> {
        match self.accounting {
            Accounting::Cbinfo | Accounting::Daemon => Ok(self.accounting),
            Accounting::Procfs | Accounting::None => {
                Err(self.why_not_exact.clone().unwrap_or_default())
            }
        }
    }
}

/// Runs for a moment on each CPU. Accounting learns what is runnable on a CPU, and its steal counter,
/// at the first context switch there, and a lone busy task may never make one.
fn visit(cpus: &CpuSet) {
    // On a thread of its own, so that the caller's mask is not changed. The scope waits for its end.
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let tid = nix::unistd::gettid().as_raw();
            for cpu in cpus.iter() {
                if let Err(why) = affinity::set(tid, &std::iter::once(cpu).collect()) {
                    tracing::debug!("cannot run on CPU {cpu}: {why}");
                }
            }
        });
    });
}

/// Whether the `lag` policy would act on these capabilities (0..=1).
fn is_above_tolerance(best: f64, worst: f64, is_exact: bool) -> bool {
    let exact = LagParameters::default();
    let tolerance_ppm =
        if is_exact { exact.tolerance_ppm } else { exact.for_ticks().tolerance_ppm };
    (best - worst) * 1e6 > best * tolerance_ppm as f64
}

fn runnable(cpu: &CpuSummary, first: &Reading, last: &Reading) -> f64 {
    let at = |reading: &Reading| reading.cpus.get(&cpu.cpu).map_or(0, |cpu| cpu.fair_runnable_ns);
    at(last).saturating_sub(at(first)) as f64 / cpu.elapsed_ns.max(1) as f64
}

/// Judges the watched CPUs. `excludes` is what the kernel leaves out of run times.
pub fn judge(watched: Watched, excludes: Option<RunTimeExcludes>) -> Asymmetry {
    let is_exact = watched.accounting.is_exact();
    let cpus: Vec<CpuNow> = watched
        .cpus
        .iter()
        .enumerate()
        .map(|(index, cpu)| cpu_now(cpu, is_exact, watched.runnable.get(index).copied()))
        .collect();
    let given: Vec<f64> = watched.cpus.iter().map(CpuSummary::capability).collect();
    let min = given.iter().copied().reduce(f64::min).unwrap_or(0.0);
    let average = given.iter().sum::<f64>() / given.len().max(1) as f64;
    let bound = (min >= NOTHING_LEFT).then(|| average / min);
    let best = given.iter().copied().fold(0.0, f64::max);
    let is_worth_balancing = is_above_tolerance(best, min, is_exact);
    let worst: Vec<&CpuNow> = cpus
        .iter()
        .zip(&given)
        .filter(|(_, given)| **given <= min + ALIKE)
        .map(|(cpu, _)| cpu)
        .collect();
    let verdict = match bound {
        _ if !is_worth_balancing => symmetric(average, is_exact, &competed_for(&cpus)),
        Some(bound) => {
            format!("{}: the average CPU gives {bound:.2}x as much as the slowest.", causes(&worst))
        }
        None => format!(
            "{}: next to nothing is left there, and the average CPU gives many times as much.",
            causes(&worst)
        ),
    };
    Asymmetry {
        accounting: watched.accounting,
        watched_ns: watched.cpus.first().map_or(0, |cpu| cpu.elapsed_ns),
        min_capability: scaled(min),
        avg_capability: scaled(average),
        bound: bound.map(|bound| rounded(bound, 1000.0)),
        is_worth_balancing,
        verdict,
        remarks: remarks(&watched, &cpus, excludes, is_worth_balancing),
        cpus,
    }
}

fn cpu_now(cpu: &CpuSummary, is_exact: bool, runnable: Option<f64>) -> CpuNow {
    let pct = |ns: u64| rounded(ns as f64 * 100.0 / cpu.elapsed_ns.max(1) as f64, 10.0).min(100.0);
    CpuNow {
        cpu: cpu.cpu,
        speed: cpu.speed,
        irq_pct: pct(cpu.irq_ns),
        softirq_pct: pct(cpu.softirq_ns),
        rt_pct: is_exact.then(|| pct(cpu.rt_ns)),
        steal_pct: pct(cpu.steal_ns),
        idle_pct: pct(cpu.idle_ns),
        runnable: runnable.map(|tasks| rounded(tasks, 100.0)),
        capability: scaled(cpu.capability()),
    }
}

fn rounded(value: f64, parts: f64) -> f64 {
    (value * parts).round() / parts
}

fn scaled(share: f64) -> u32 {
    (share * f64::from(evenkeel_machine::CAPABILITY_SCALE)).round() as u32
}

/// The CPUs on which clearly more tasks of other programs run than on the emptiest one.
fn competed_for(cpus: &[CpuNow]) -> CpuSet {
    let least = cpus.iter().filter_map(|cpu| cpu.runnable).reduce(f64::min).unwrap_or(0.0);
    let has_more = |cpu: &&CpuNow| cpu.runnable.is_some_and(|tasks| tasks - least >= COMPETITION);
    cpus.iter().filter(has_more).map(|cpu| cpu.cpu).collect()
}

fn symmetric(average: f64, is_exact: bool, competed_for: &CpuSet) -> String {
    let level = match average {
        // CPUs may be equally bad: no asymmetry, but the user should know.
        ..0.9 => format!(" (each CPU gives about {:.0} %)", average * 100.0),
        _ => String::new(),
    };
    if !competed_for.is_empty() {
        let noun = if competed_for.len() == 1 { "CPU" } else { "CPUs" };
        return format!(
            "The CPUs are equal{level} but for other programs on {noun} {competed_for}: evenkeel run \
             may gain there, and evenkeel compare -- CMD measures it."
        );
    }
    if is_exact {
        return format!("The CPUs are equal{level}: balancing has nothing to gain.");
    }
    format!("The CPUs are equal as far as /proc can show{level}: exact accounting may see more.")
}

/// Why the worst CPUs are the worst: "CPU 0 loses 40 % to softirqs".
fn causes(worst: &[&CpuNow]) -> String {
    let cpus: CpuSet = worst.iter().map(|cpu| cpu.cpu).collect();
    let number = worst.len().max(1) as f64;
    let mean = |of: fn(&CpuNow) -> f64| worst.iter().map(|cpu| of(cpu)).sum::<f64>() / number;
    let mut losses_by_cause = [
        (mean(|cpu| cpu.irq_pct), "interrupts"),
        (mean(|cpu| cpu.softirq_pct), "softirqs"),
        (mean(|cpu| cpu.rt_pct.unwrap_or(0.0)), "real-time tasks"),
        (mean(|cpu| cpu.steal_pct), "the hypervisor"),
    ];
    losses_by_cause.sort_by(|a, b| b.0.total_cmp(&a.0));
    let losses: Vec<String> = losses_by_cause
        .iter()
        .filter(|(pct, _)| *pct >= NAMED_PCT)
        .map(|(pct, cause)| format!("{pct:.0} % to {cause}"))
        .collect();
    let speed = mean(|cpu| f64::from(cpu.speed)) / f64::from(evenkeel_machine::CAPABILITY_SCALE);
    let one = worst.len() == 1;
    let mut parts = Vec::new();
    if !losses.is_empty() {
        parts.push(format!("{} {}", if one { "loses" } else { "lose" }, losses.join(", ")));
    }
    if speed * 100.0 <= 100.0 - SLOWER_PCT {
        let verb = if one { "is" } else { "are" };
        parts.push(format!("{verb} {speed:.2}x as fast as the fastest"));
    }
    if parts.is_empty() {
        parts.push(format!("{} a little less than the others", if one { "gives" } else { "give" }));
    }
    format!("CPU{} {cpus} {}", if one { "" } else { "s" }, parts.join(" and "))
}

fn remarks(
    watched: &Watched,
    cpus: &[CpuNow],
    excludes: Option<RunTimeExcludes>,
    is_worth: bool,
) -> Vec<String> {
    let mut remarks = Vec::new();
    let kernel_sees_irq = excludes.is_some_and(|excludes| excludes.irq);
    if watched.accounting == Accounting::Procfs {
        let trust = if kernel_sees_irq {
            "Figures are from /proc, which does not show real-time tasks"
        } else {
            "Figures are from /proc and not to be trusted: it counts in ticks, may show lost time as \
             all or nothing, and does not show real-time tasks"
        };
        remarks.push(format!("{trust}."));
    }
    let softirq = cpus.iter().any(|cpu| cpu.softirq_pct + cpu.irq_pct >= NAMED_PCT);
    if is_worth && softirq && kernel_sees_irq {
        remarks.push(
            "This kernel sees softirq theft by itself: the gain over it is smaller.".to_owned(),
        );
    }
    let crowded: CpuSet = cpus
        .iter()
        .filter(|cpu| cpu.runnable.is_some_and(|tasks| tasks >= COMPETITION))
        .map(|cpu| cpu.cpu)
        .collect();
    if !crowded.is_empty() {
        let tasks: f64 = cpus.iter().filter_map(|cpu| cpu.runnable).sum();
        remarks.push(format!(
            "Other programs run on {} ({crowded}), {tasks:.1} tasks on average; the figure above leaves \
             them out.",
            count(crowded.len(), "CPU")
        ));
    }
    remarks
}
