//! What other programs take of the machine during a run. By /proc/stat, less what this process and those
//! that it has waited for took: the runs.

use std::time::{Duration, Instant};

use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::TimeValLike;
use procfs::{CurrentSI, KernelStats};

/// The counters at one moment. Only differences mean something.
pub struct Reading {
    at: Instant,
    cpus: usize,
    /// CPU time of tasks that are not ours, in s.
    others_s: f64,
}

impl Reading {
    /// The counters now; `None`: /proc cannot be read.
    pub fn now() -> Option<Self> {
        let stat = KernelStats::current().ok()?;
        let ticks = stat.total.user + stat.total.nice + stat.total.system;
        let all_s = ticks as f64 / procfs::ticks_per_second() as f64;
        Some(Self { at: Instant::now(), cpus: stat.cpu_time.len(), others_s: all_s - own_s() })
    }

    /// The share of all CPUs' time that others took from this moment on, in %.
    pub fn pct_until(&self, later: &Self) -> f64 {
        let passed = later.at.saturating_duration_since(self.at);
        share_pct(later.others_s - self.others_s, passed, self.cpus)
    }
}

/// The share of all CPUs' time in %. Ticks are rough: over a short time others may seem to have given
/// some back.
fn share_pct(others_s: f64, passed: Duration, cpus: usize) -> f64 {
    let all_s = passed.as_secs_f64() * cpus as f64;
    if all_s > 0.0 { (100.0 * others_s / all_s).clamp(0.0, 100.0) } else { 0.0 }
}

/// CPU time of this process, or of its children that have ended, in ns; 0 if it cannot be read.
pub fn cpu_ns(processes: UsageWho) -> u64 {
    getrusage(processes).map_or(0, |usage| {
        let ns = usage.user_time().num_nanoseconds() + usage.system_time().num_nanoseconds();
        ns.max(0) as u64
    })
}

fn own_s() -> f64 {
    let ns = cpu_ns(UsageWho::RUSAGE_SELF) + cpu_ns(UsageWho::RUSAGE_CHILDREN);
    ns as f64 / 1e9
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_share_is_of_all_cpus_and_never_negative() {
        let second = Duration::from_secs(1);
        assert_eq!(share_pct(0.5, second, 2), 25.0);
        assert_eq!(share_pct(-0.01, second, 2), 0.0);
        assert_eq!(share_pct(0.1, Duration::ZERO, 2), 0.0);
    }

    #[test]
    fn work_of_our_own_is_none_of_others() {
        let cpus = KernelStats::current().unwrap().cpu_time.len() as f64;
        let before = (Reading::now().unwrap(), Instant::now(), own_s());
        while before.1.elapsed() < Duration::from_millis(300) {
            std::hint::spin_loop();
        }
        let after = Reading::now().unwrap();
        let all_s = before.1.elapsed().as_secs_f64() * cpus;
        let own_pct = 100.0 * (own_s() - before.2) / all_s;
        // Others may take all the rest, and a tick of each CPU be counted late.
        let tick_pct = 100.0 * cpus / procfs::ticks_per_second() as f64 / all_s;
        let others = before.0.pct_until(&after);
        assert!(others <= 100.0 - own_pct + 2.0 * tick_pct, "{others} beside {own_pct}");
    }
}
