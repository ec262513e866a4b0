//! The little that `evenkeel irq run` reads in each round: how long interrupts kept each CPU, and how
//! long the kernel threads of threaded NAPI ran. As long as that is too little for any move, nothing
//! else is read: no line, no affinity, no process.

use std::collections::BTreeMap;
use std::time::Instant;

use evenkeel_machine::CpuSet;

use crate::counters::{Counters, CountersError};
use crate::threads::Threads;
use crate::totals::PerCpu;

/// What was counted until a moment.
#[derive(Debug, Clone)]
pub(crate) struct Gauge {
    at: Instant,
    /// Handlers and softirqs.
    cpus_ns: PerCpu,
    threads_ns: u64,
}

/// What interrupts took in an interval: never less than what a snapshot of it shows,
/// unless a thread has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Burden {
    pub interval_ns: u64,
    /// Of the CPU that lost most.
    pub largest_ns: u64,
    /// Of all CPUs together.
    pub total_ns: u64,
}

impl Gauge {
    /// Reads it: one map, the list of kernel threads, and the run time of each NAPI thread.
    ///
    /// # Errors
    /// The kernel refuses to show a map.
    pub fn read(counters: Option<&Counters>, threads: &mut Threads) -> Result<Self, CountersError> {
        let cpus_ns = counters.map(Counters::busy_ns).transpose()?.unwrap_or_default();
        threads.refresh();
        let runs_ns = threads.iter().filter_map(|thread| thread.run_ns());
        Ok(Self { at: Instant::now(), cpus_ns, threads_ns: runs_ns.sum() })
    }

    /// What was counted after `before` was read.
    pub fn since(&self, before: &Self) -> Burden {
        let cpus_ns = self.cpus_ns.since(&before.cpus_ns);
        // A thread may have run on any CPU. A thread that has ended takes its time out of the sum: if
        // that makes the sum smaller, nothing is added.
        let threads_ns = self.threads_ns.saturating_sub(before.threads_ns);
        let largest_ns = cpus_ns.iter().map(|(_, ns)| ns).max().unwrap_or(0);
        Burden {
            interval_ns: self.at.saturating_duration_since(before.at).as_nanos() as u64,
            largest_ns: largest_ns + threads_ns,
            total_ns: cpus_ns.sum() + threads_ns,
        }
    }

    /// What handlers and softirqs took of each of these CPUs after `before` was read, in percent.
    pub fn taken_pct(&self, before: &Self, cpus: &CpuSet) -> BTreeMap<u32, f64> {
        let interval_ns = self.at.saturating_duration_since(before.at).as_nanos().max(1) as f64;
        let taken_ns = self.cpus_ns.since(&before.cpus_ns);
        cpus.iter().map(|cpu| (cpu, taken_ns.get(cpu) as f64 * 100.0 / interval_ns)).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_threads_time_may_be_any_cpus() {
        let at = Instant::now();
        let gauge = |ms, cpus_ns: [u64; 2], threads_ns| Gauge {
            at: at + Duration::from_millis(ms),
            cpus_ns: cpus_ns.into_iter().collect(),
            threads_ns,
        };
        let burden = gauge(3, [70, 20], 9).since(&gauge(1, [30, 10], 5));
        let wanted = Burden { interval_ns: 2_000_000, largest_ns: 44, total_ns: 54 };
        assert_eq!(burden, wanted);
        let taken_pct = gauge(3, [70, 20], 9).taken_pct(&gauge(1, [20, 20], 5), &CpuSet::first(2));
        assert_eq!(taken_pct, [(0, 50.0 / 2e4), (1, 0.0)].into());
        // A thread has ended.
        assert_eq!(gauge(3, [0, 0], 1).since(&gauge(1, [0, 0], 5)).total_ns, 0);
    }
}
