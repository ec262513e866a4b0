//! What CPUs lose to interrupts, softirqs, real-time tasks and the hypervisor, for the metrics: the sum
//! over all CPUs since the daemon began, and the CPU that lost the most lately.

use std::collections::BTreeMap;

use crate::reading::CpuReading;

/// The causes, in the order in which they are listed.
pub(crate) const CAUSES: [&str; 4] = ["irq", "softirq", "realtime", "steal"];

/// How long a CPU is looked at. Shorter than the time between two scrapes, so that each scrape has
/// another look; long enough that one interrupt more or less does not show.
const WINDOW_NS: u64 = 10_000_000_000;

/// The time that a CPU lost to each cause of [`CAUSES`], in ns.
pub(crate) fn lost_ns(cpu: &CpuReading) -> [u64; 4] {
    [cpu.irq_ns, cpu.softirq_ns, cpu.rt_ns, cpu.steal_ns]
}

/// What each CPU lost to each cause between two readings. A CPU that has come online meanwhile has no
/// figure of then; where the counters of a CPU went back, it has lost nothing.
fn differences<'a>(
    before: &'a BTreeMap<u32, CpuReading>,
    now: &'a BTreeMap<u32, CpuReading>,
) -> impl Iterator<Item = [u64; 4]> + 'a {
    now.iter().filter_map(|(cpu, now)| {
        let (then, now) = (lost_ns(before.get(cpu)?), lost_ns(now));
        Some(std::array::from_fn(|cause| now[cause].saturating_sub(then[cause])))
    })
}

/// What the CPUs lost, by readings.
#[derive(Debug, Clone, Default)]
pub(crate) struct LostTime {
    last: BTreeMap<u32, CpuReading>,
    total_ns: [u64; 4],
    /// When the window began, and the reading of then.
    since: Option<(u64, BTreeMap<u32, CpuReading>)>,
    worst_milli: BTreeMap<&'static str, u64>,
}

impl LostTime {
    /// Takes in a reading of all CPUs at a moment of the monotonic clock. The same one may come again.
    pub fn update(&mut self, at_ns: u64, cpus: &BTreeMap<u32, CpuReading>) {
        for lost in differences(&self.last, cpus) {
            for (total, lost) in self.total_ns.iter_mut().zip(lost) {
                *total += lost;
            }
        }
        self.last.clone_from(cpus);
        match &self.since {
            Some((since_ns, _)) if at_ns.saturating_sub(*since_ns) < WINDOW_NS => return,
            Some((since_ns, before)) => {
                let elapsed_ns = u128::from(at_ns.saturating_sub(*since_ns).max(1));
                let milli = |ns: u64| (u128::from(ns) * 1000 / elapsed_ns).min(1000) as u64;
                let worst = differences(before, cpus).max_by_key(|lost| lost.iter().sum::<u64>());
                let worst = worst.unwrap_or_default().map(milli);
                self.worst_milli = CAUSES.into_iter().zip(worst).collect();
            }
            None => {}
        }
        self.since = Some((at_ns, cpus.clone()));
    }

    /// What all CPUs lost since the first reading, by cause, in microseconds. It never falls, also when
    /// a CPU goes offline.
    pub fn total_us(&self) -> BTreeMap<&'static str, u64> {
        CAUSES.into_iter().zip(self.total_ns.map(|ns| ns / 1000)).collect()
    }

    /// The share of its time that the CPU which lost the most lost to each cause, in thousandths; empty
    /// until the first window has ended.
    pub fn worst_milli(&self) -> &BTreeMap<&'static str, u64> {
        &self.worst_milli
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cpus(softirq_ms: [u64; 3]) -> BTreeMap<u32, CpuReading> {
        let cpu = |ms: u64| CpuReading {
            softirq_ns: ms * 1_000_000,
            irq_ns: 500_000_000,
            ..CpuReading::default()
        };
        (0..).zip(softirq_ms.map(cpu)).collect()
    }

    #[test]
    fn the_worst_cpu_is_that_of_the_last_window_and_not_of_all_time() {
        let mut lost = LostTime::default();
        lost.update(0, &cpus([9_000, 0, 0]));
        lost.update(WINDOW_NS - 1, &cpus([9_000, 5_000, 0]));
        assert!(lost.worst_milli().is_empty(), "{lost:?}");
        lost.update(WINDOW_NS, &cpus([9_000, 5_000, 1_000]));
        let expected = [("irq", 0), ("softirq", 500), ("realtime", 0), ("steal", 0)];
        assert_eq!(*lost.worst_milli(), BTreeMap::from(expected));
        lost.update(2 * WINDOW_NS, &cpus([9_000, 5_000, 3_500]));
        assert_eq!(lost.worst_milli()["softirq"], 250);
    }

    #[test]
    fn cpus_that_come_or_go_and_counters_that_go_back_are_no_loss() {
        let mut lost = LostTime::default();
        lost.update(0, &cpus([1_000, 2_000, 0]));
        let mut then = cpus([500, 2_000, 0]);
        then.insert(7, CpuReading { rt_ns: WINDOW_NS, ..CpuReading::default() });
        then.remove(&2);
        lost.update(WINDOW_NS, &then);
        assert!(lost.worst_milli().values().all(|milli| *milli == 0), "{lost:?}");
        // More than all of the time cannot be lost, whatever the figures say.
        lost.update(2 * WINDOW_NS, &cpus([900_000, 0, 0]));
        assert_eq!(lost.worst_milli()["softirq"], 1000);
        lost.update(3 * WINDOW_NS, &BTreeMap::new());
        assert_eq!(lost.worst_milli().len(), CAUSES.len());
    }

    #[test]
    fn the_sum_never_falls_and_begins_with_the_daemon() {
        let mut lost = LostTime::default();
        lost.update(0, &cpus([1_000, 2_000, 3_000]));
        assert_eq!(lost.total_us()["softirq"], 0);
        lost.update(1, &cpus([1_001, 2_002, 3_003]));
        // The same reading again.
        lost.update(1, &cpus([1_001, 2_002, 3_003]));
        assert_eq!(lost.total_us()["softirq"], 6_000);
        let mut less = cpus([1_001, 2_002, 3_003]);
        less.remove(&2);
        lost.update(2, &less);
        assert_eq!(lost.total_us()["softirq"], 6_000);
        lost.update(3, &cpus([1_002, 2_002, 4_000]));
        assert_eq!(lost.total_us()["softirq"], 7_000, "what it lost meanwhile is not known");
        lost.update(4, &cpus([0, 2_002, 4_000]));
        assert_eq!(lost.total_us()["softirq"], 7_000);
    }
}
