//! Which cores are the least loaded: by the exact accounting, because what a core does in softirqs
//! is the very load that matters here, and the kernel's ticks do not see it.

use evenkeel_cbinfo::Cbinfo;
use evenkeel_machine::CpuSet;

/// Why the load is not known.
#[derive(Debug, thiserror::Error)]
#[error("the least loaded core cannot be told: {0}")]
pub struct LoadError(#[from] evenkeel_cbinfo::Error);

/// The load of each core since it was looked at last.
pub(crate) struct Load {
    accounting: Cbinfo,
    idle_ns: Vec<u64>,
}

impl Load {
    pub(crate) fn watch() -> Result<Self, LoadError> {
        let mut load = Self { accounting: Cbinfo::open(&[])?, idle_ns: Vec::new() };
        load.idle_since();
        Ok(load)
    }

    /// These cores, the one that was idle for the longest time first.
    pub(crate) fn ranking(&mut self, cores: &CpuSet) -> Vec<u32> {
        rank(cores, &self.idle_since())
    }

    /// What each core was idle since the last call, in nanoseconds.
    fn idle_since(&mut self) -> Vec<u64> {
        let now: Vec<u64> = self.accounting.cpus().iter().map(|cpu| cpu.idle_ns).collect();
        let since = now.iter().enumerate().map(|(cpu, idle_ns)| {
            idle_ns.saturating_sub(self.idle_ns.get(cpu).copied().unwrap_or(0))
        });
        let since = since.collect();
        self.idle_ns = now;
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
