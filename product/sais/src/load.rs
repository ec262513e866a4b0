//! Which cores are the least loaded: by the exact accounting, because what a core does in softirqs
//! is the very load that matters here, and the kernel's ticks do not see it.

use std::time::Instant;

use evenkeel_cbinfo::{Cbinfo, CpuAccount};
use evenkeel_machine::CpuSet;

/// Why the load is not known.
#[derive(Debug, thiserror::Error)]
#[error("the least loaded core cannot be told: {0}")]
pub struct LoadError(#[from] evenkeel_cbinfo::Error);

/// The load of each core since it was looked at last.
pub(crate) struct Load {
    /// None in tests, where nothing is known.
    accounting: Option<Cbinfo>,
    before_ns: Vec<u64>,
    looked: Instant,
}

impl Load {
    pub(crate) fn watch() -> Result<Self, LoadError> {
        let accounting = Some(Cbinfo::open(&[])?);
        Ok(Self { accounting, before_ns: Vec::new(), looked: Instant::now() })
    }

    #[cfg(test)]
    pub(crate) fn unknown() -> Self {
        Self { accounting: None, before_ns: Vec::new(), looked: Instant::now() }
    }

    /// These cores, the one that was idle for the longest time first.
    pub(crate) fn ranking(&mut self, cores: &CpuSet) -> Vec<u32> {
        rank(cores, &self.since(|cpu| cpu.idle_ns))
    }

    /// The share of the time since the last call, 0 to 1, that interrupts, real-time tasks and the
    /// hypervisor took from each core: what no ordinary task gets, however high its priority.
    pub(crate) fn taken_shares(&mut self) -> Vec<(u32, f64)> {
        let elapsed_ns = self.looked.elapsed().as_nanos().max(1) as f64;
        let share = |taken_ns: u64| (taken_ns as f64 / elapsed_ns).min(1.0);
        (0..).zip(self.since(|cpu| cpu.noise.total_ns()).into_iter().map(share)).collect()
    }

    /// What this figure of each core grew by since the last call, in nanoseconds.
    fn since(&mut self, figure: impl Fn(&CpuAccount) -> u64) -> Vec<u64> {
        self.looked = Instant::now();
        let cpus = self.accounting.as_ref().map(Cbinfo::cpus).unwrap_or_default();
        let now: Vec<u64> = cpus.iter().map(figure).collect();
        let since = now.iter().enumerate().map(|(cpu, now_ns)| {
            now_ns.saturating_sub(self.before_ns.get(cpu).copied().unwrap_or(0))
        });
        let since = since.collect();
        self.before_ns = now;
        since
    }
}

fn rank(cores: &CpuSet, idle_ns: &[u64]) -> Vec<u32> {
    let mut ranking: Vec<u32> = cores.iter().collect();
    let idle_ns = |core: &u32| idle_ns.get(*core as usize).copied().unwrap_or(0);
    ranking.sort_by_key(|core| std::cmp::Reverse(idle_ns(core)));
    ranking
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_idlest_comes_first_and_equals_stay_in_order() {
        let cores: CpuSet = "0-3,9".parse().unwrap();
        assert_eq!(rank(&cores, &[5, 70, 5, 100]), [3, 1, 0, 2, 9]);
    }
}
