//! What the CPUs gave the program during a run: avg(C) and min(C).
//!
//! Capability of CPU c = (1 - (irq + softirq + rt + steal) / elapsed) x speed of c, where speed is
//! relative to the fastest CPU. On the CPU of a hog only the program's fair share of that is to be
//! had, so there it is also multiplied by 1 - h. h is the share that the hog takes from the program
//! when each is pinned there and wants the CPU all the time, and is measured (about 1 s) before the
//! case begins: it depends on sched_autogroup and cgroups, so no formula gives it. What the hog
//! takes beyond its share of a CPU that the program leaves does not count.

use std::collections::BTreeMap;

use evenkeel_machine::CpuSet;

use evenkeel_experiment::accounts::{CpuTimes, Window};

/// Capability of the average and of the worst CPU, 0..=1 of the fastest undisturbed.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Given {
    /// avg(C): what a perfectly balanced program gets.
    pub average: f64,
    /// min(C): what a program with equal, pinned parts gets.
    pub worst: f64,
}

/// What the usable CPUs gave. `speeds` are relative to the fastest (a CPU without one counts as
/// 1); `hog` is the CPU of a hog and its fair share. `None` without a CPU or without time.
pub fn given(
    window: &Window,
    usable: &CpuSet,
    speeds: &BTreeMap<u32, f64>,
    hog: Option<(u32, f64)>,
) -> Option<Given> {
    if usable.is_empty() || window.elapsed_ns == 0 {
        return None;
    }
    let capability = |cpu: u32| {
        let left = 1.0 - window.share(cpu, CpuTimes::taken_ns);
        let fair = hog.filter(|(on, _)| *on == cpu).map_or(1.0, |(_, share)| 1.0 - share);
        left.clamp(0.0, 1.0) * fair * speeds.get(&cpu).copied().unwrap_or(1.0)
    };
    let sum: f64 = usable.iter().map(capability).sum();
    let worst = usable.iter().map(capability).fold(f64::INFINITY, f64::min);
    Some(Given { average: sum / usable.len() as f64, worst })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn close(a: f64, b: f64) {
        assert!((a - b).abs() < 1e-12, "{a} is not {b}");
    }

    #[test]
    fn by_hand() {
        let times = CpuTimes { softirq_ns: 300, irq_ns: 50, rt_ns: 30, steal_ns: 20 };
        let cpus = [(0, times), (1, CpuTimes::default()), (2, times)].into();
        let window = Window { elapsed_ns: 1_000, cpus, foreign_pct: 0.0 };
        let two: CpuSet = "0-1".parse().unwrap();
        let equal = BTreeMap::new();
        let given_two = given(&window, &two, &equal, None).unwrap();
        close(given_two.average, 0.8);
        close(given_two.worst, 0.6);
        // A slow CPU, and a hog that may have two thirds of CPU 0.
        let speeds = [(0, 1.0), (1, 0.25)].into();
        let slow = given(&window, &two, &speeds, Some((0, 2.0 / 3.0))).unwrap();
        close(slow.average, (0.2 + 0.25) / 2.0);
        close(slow.worst, 0.2);
        assert_eq!(given(&window, &CpuSet::new(), &equal, None), None);
        let empty = Window::default();
        assert_eq!(given(&empty, &two, &equal, None), None);
    }

    #[test]
    fn a_clock_that_is_a_little_off_gives_no_negative_capability() {
        let times = CpuTimes { softirq_ns: 1_001, ..CpuTimes::default() };
        let window = Window { elapsed_ns: 1_000, cpus: [(0, times)].into(), foreign_pct: 0.0 };
        let one: CpuSet = "0".parse().unwrap();
        assert_eq!(given(&window, &one, &BTreeMap::new(), None).unwrap().worst, 0.0);
    }
}
