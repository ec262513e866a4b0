//! Where the CPUs' time goes: read before and after a run, from cbinfo where that is possible, or
//! from /proc/stat.
//!
//! cbinfo follows this very process, so everything that a benchmark starts (the program, its
//! balancer, the hog, helper threads) counts as followed, and "foreign" is exactly the ordinary
//! work of all other processes. Without cbinfo it is inferred: busy time less our and our children's.

use std::collections::BTreeMap;

use anyhow::{Context, Result};
use evenkeel_cbinfo::Cbinfo;
use evenkeel_machine::CpuSet;
use evenkeel_trial::foreign::cpu_ns;
use nix::sys::resource::UsageWho;
use nix::time::ClockId;
use procfs::{CurrentSI, KernelStats};

/// Where one CPU's time went, in ns since any fixed moment.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct CpuTimes {
    /// Hardware interrupt handlers.
    pub irq_ns: u64,
    /// Softirqs.
    pub softirq_ns: u64,
    /// Real-time tasks; /proc/stat cannot tell them from others and says 0.
    pub rt_ns: u64,
    /// What the hypervisor gave to others.
    pub steal_ns: u64,
}

impl CpuTimes {
    /// All of it.
    pub fn taken_ns(&self) -> u64 {
        self.irq_ns + self.softirq_ns + self.rt_ns + self.steal_ns
    }

    fn since(&self, earlier: &Self) -> Self {
        Self {
            irq_ns: self.irq_ns.saturating_sub(earlier.irq_ns),
            softirq_ns: self.softirq_ns.saturating_sub(earlier.softirq_ns),
            rt_ns: self.rt_ns.saturating_sub(earlier.rt_ns),
            steal_ns: self.steal_ns.saturating_sub(earlier.steal_ns),
        }
    }
}

/// All figures at one moment. Only differences mean something.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Reading {
    /// CLOCK_MONOTONIC, in ns.
    pub at_ns: u64,
    /// By CPU number, online ones.
    pub cpus: BTreeMap<u32, CpuTimes>,
    /// Ordinary (fair-class) CPU time of all processes that do not descend from this one, in ns.
    pub foreign_ns: i128,
}

/// What happened between two readings.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Window {
    /// Its length, in ns.
    pub elapsed_ns: u64,
    /// By CPU number.
    pub cpus: BTreeMap<u32, CpuTimes>,
    /// The share of all CPUs' time that others' ordinary tasks took, in %.
    pub foreign_pct: f64,
}

impl Reading {
    /// The time since an earlier reading.
    pub fn since(&self, earlier: &Self) -> Window {
        let elapsed_ns = self.at_ns.saturating_sub(earlier.at_ns);
        let cpus: BTreeMap<u32, CpuTimes> = self
            .cpus
            .iter()
            .filter_map(|(cpu, now)| Some((*cpu, now.since(earlier.cpus.get(cpu)?))))
            .collect();
        let all_ns = elapsed_ns as f64 * cpus.len() as f64;
        let foreign_ns = (self.foreign_ns - earlier.foreign_ns).max(0) as f64;
        let foreign_pct = if all_ns > 0.0 { 100.0 * foreign_ns / all_ns } else { 0.0 };
        Window { elapsed_ns, cpus, foreign_pct }
    }
}

impl Window {
    /// The share (0..=1) of a CPU's time that `part` of its figures makes.
    pub fn share(&self, cpu: u32, part: impl Fn(&CpuTimes) -> u64) -> f64 {
        let taken_ns = self.cpus.get(&cpu).map_or(0, part);
        if self.elapsed_ns == 0 { 0.0 } else { taken_ns as f64 / self.elapsed_ns as f64 }
    }
}

/// The source of the figures.
pub enum Accounts {
    /// Exact, by BPF.
    Exact(Box<Cbinfo>),
    /// Ticks of /proc/stat.
    Approximate {
        /// Why not exact.
        why: String,
    },
}

impl Accounts {
    /// cbinfo, following this process; /proc/stat where that is not possible.
    pub fn open() -> Self {
        let exact = || -> Result<Cbinfo> {
            let mut cbinfo = Cbinfo::open(&[])?;
            cbinfo.follow(std::process::id(), std::process::id())?;
            Ok(cbinfo)
        };
        match exact() {
            Ok(cbinfo) => Self::Exact(Box::new(cbinfo)),
            Err(error) => Self::Approximate { why: format!("{error:#}") },
        }
    }

    /// Why the figures are not exact; `None` if they are.
    pub fn why_not_exact(&self) -> Option<&str> {
        match self {
            Self::Exact(_) => None,
            Self::Approximate { why } => Some(why),
        }
    }

    /// cbinfo, if that is the source.
    pub fn cbinfo(&mut self) -> Option<&mut Cbinfo> {
        match self {
            Self::Exact(cbinfo) => Some(cbinfo),
            Self::Approximate { .. } => None,
        }
    }

    /// The figures of the CPUs `online` now. `alive` are children of ours that still run: only
    /// those that have ended count among the children's time.
    ///
    /// # Errors
    /// /proc/stat cannot be read.
    pub fn read(&mut self, online: &CpuSet, alive: &[u32]) -> Result<Reading> {
        match self {
            Self::Exact(cbinfo) => {
                // The events are not wanted, but a full buffer would count them as lost.
                cbinfo.events().context("cannot read cbinfo")?;
                Ok(exact(cbinfo, online))
            }
            Self::Approximate { .. } => approximate(online, alive),
        }
    }
}

fn exact(cbinfo: &Cbinfo, online: &CpuSet) -> Reading {
    let mut reading = Reading { at_ns: monotonic_ns(), ..Reading::default() };
    for account in cbinfo.cpus().iter().filter(|account| online.contains(account.cpu)) {
        let noise = account.noise;
        reading.foreign_ns += i128::from(account.foreign_ns);
        reading.cpus.insert(
            account.cpu,
            CpuTimes {
                irq_ns: noise.irq_ns,
                softirq_ns: noise.softirq_ns,
                rt_ns: noise.rt_ns,
                steal_ns: noise.steal_ns,
            },
        );
    }
    reading
}

/// The same from /proc/stat, for users without the right to load BPF.
///
/// # Errors
/// /proc/stat cannot be read.
pub fn approximate(online: &CpuSet, alive: &[u32]) -> Result<Reading> {
    let stats = KernelStats::current().context("cannot read /proc/stat")?;
    let tick_ns = 1_000_000_000 / procfs::ticks_per_second().max(1);
    let mut reading = Reading { at_ns: monotonic_ns(), ..Reading::default() };
    // The file has online CPUs only, without their numbers once it is read.
    for (cpu, time) in online.iter().zip(&stats.cpu_time) {
        let ns = |ticks: Option<u64>| ticks.unwrap_or(0) * tick_ns;
        reading.foreign_ns += i128::from((time.user + time.nice + time.system) * tick_ns);
        let times = CpuTimes {
            irq_ns: ns(time.irq),
            softirq_ns: ns(time.softirq),
            rt_ns: 0,
            steal_ns: ns(time.steal),
        };
        reading.cpus.insert(cpu, times);
    }
    let ours = [UsageWho::RUSAGE_SELF, UsageWho::RUSAGE_CHILDREN];
    let ours_ns: u64 = ours.into_iter().map(cpu_ns).sum();
    let alive_ns: u64 = alive.iter().map(|pid| run_ns(*pid)).sum();
    reading.foreign_ns -= i128::from(ours_ns + alive_ns);
    Ok(reading)
}

/// CPU time of children that have ended, in ns.
pub fn children_cpu_ns() -> u64 {
    cpu_ns(UsageWho::RUSAGE_CHILDREN)
}

/// CPU time of a living single-threaded process, in ns; 0 if it cannot be read.
fn run_ns(pid: u32) -> u64 {
    let text = std::fs::read_to_string(format!("/proc/{pid}/schedstat")).unwrap_or_default();
    text.split_whitespace().next().and_then(|ns| ns.parse().ok()).unwrap_or(0)
}

/// CLOCK_MONOTONIC, in ns.
pub fn monotonic_ns() -> u64 {
    nix::time::clock_gettime(ClockId::CLOCK_MONOTONIC)
        .map_or(0, |t| t.tv_sec() as u64 * 1_000_000_000 + t.tv_nsec() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reading(at_ns: u64, softirq_ns: u64, foreign_ns: i128) -> Reading {
        let times = CpuTimes { softirq_ns, steal_ns: 10, ..CpuTimes::default() };
        let cpus = [(0, times), (1, CpuTimes::default())].into();
        Reading { at_ns, cpus, foreign_ns }
    }

    #[test]
    fn a_window_is_the_difference_of_two_readings() {
        let window = reading(2_000, 500, 300).since(&reading(1_000, 100, 200));
        assert_eq!(window.elapsed_ns, 1_000);
        assert_eq!(window.share(0, CpuTimes::taken_ns), 0.4);
        assert_eq!(window.share(1, CpuTimes::taken_ns), 0.0);
        assert_eq!(window.share(7, CpuTimes::taken_ns), 0.0);
        // 100 of 2 x 1000.
        assert_eq!(window.foreign_pct, 5.0);
    }

    #[test]
    fn windows_without_length_and_clocks_that_go_back_are_harmless() {
        let earlier = reading(1_000, 500, 300);
        assert_eq!(earlier.since(&earlier).share(0, CpuTimes::taken_ns), 0.0);
        let back = reading(900, 100, 100).since(&earlier);
        assert_eq!((back.elapsed_ns, back.foreign_pct), (0, 0.0));
    }

    #[test]
    fn this_machine_can_be_read_by_anybody() {
        let online: CpuSet = "0".parse().unwrap();
        let first = approximate(&online, &[]).unwrap();
        let window = approximate(&online, &[std::process::id()]).unwrap().since(&first);
        assert_eq!(window.cpus.len(), 1);
        assert!(window.foreign_pct.is_finite());
    }
}
