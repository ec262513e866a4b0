//! The paper's figures (000, section 3.1, equations 4 to 7), in integers: what a CPU gives, and what a
//! task received. Both policies, `lag` and `paper`, plan by them.

use crate::snapshot::{CpuView, Snapshot, TaskView};

impl CpuView {
    /// Time in the interval that noise *and* real-time tasks left for fair-class tasks, weighted by
    /// the CPU's speed (nanoseconds of the fastest CPU).
    ///
    /// The paper counts a real-time task like any other task. For a fair-class program, the time of a
    /// real-time task is as lost as that of an interrupt, so the `lag` policy uses this figure.
    pub fn effective_ns(&self, interval_ns: u64) -> u64 {
        self.weighted(interval_ns.saturating_sub(self.noise_ns.saturating_add(self.rt_ns)))
    }

    /// Whether real-time and deadline tasks left next to nothing of the CPU in the interval, less than a
    /// hundredth. Where the kernel keeps no time back from them, a fair-class task that comes there may
    /// wait until they are done.
    pub fn is_starved(&self, interval_ns: u64) -> bool {
        let left_ns = interval_ns.saturating_sub(self.noise_ns.saturating_add(self.rt_ns));
        left_ns.saturating_mul(100) < interval_ns && self.rt_ns > self.noise_ns
    }

    /// What a task of the program gets of the CPU in the interval, beside the tasks of other programs.
    pub fn given_ns(&self, interval_ns: u64) -> u64 {
        ecpt(self.effective_ns(interval_ns), 1000 + u64::from(self.foreign_milli))
    }

    /// The paper's EC, equation 6: `(User_Time + Idle_Time) x speed`, real-time tasks counting as
    /// user time.
    pub fn paper_effective_ns(&self, interval_ns: u64) -> u64 {
        self.weighted(interval_ns.saturating_sub(self.noise_ns))
    }

    fn weighted(&self, time_ns: u64) -> u64 {
        part(time_ns, u64::from(self.speed), 1024)
    }
}

impl TaskView {
    /// Effective capability that the task received for work: without what it spent on spinning.
    pub fn work_ns(&self) -> u64 {
        if self.spun_ns == 0 {
            return self.received_ns;
        }
        part(self.received_ns, self.run_ns.saturating_sub(self.spun_ns), self.run_ns)
    }

    /// Time in the interval in which the task had work to do, whether it ran or waited for its CPU.
    pub fn busy_ns(&self) -> u64 {
        self.demand_ns().saturating_sub(self.spun_ns.min(self.run_ns))
    }
}

/// The paper's ECPT, equation 7: effective capability per task; all of it for a CPU without a
/// task. `tasks_milli` is the (averaged) number of tasks in thousandths.
pub fn ecpt(effective_ns: u64, tasks_milli: u64) -> u64 {
    // Half a task (one that runs half of the time) must not make it twice what the CPU has.
    part(effective_ns, 1000, tasks_milli.max(1000))
}

/// The bound of a parallel program, equation 3: the average capability of its CPUs, in thousandths
/// of the fastest CPU undisturbed.
pub fn average_per_mille(snapshot: &Snapshot) -> u64 {
    if snapshot.cpus.is_empty() || snapshot.interval_ns == 0 {
        return 0;
    }
    let effective_ns = |cpu: &CpuView| u128::from(cpu.effective_ns(snapshot.interval_ns));
    let sum_ns: u128 = snapshot.cpus.iter().map(effective_ns).sum();
    let whole_ns = u128::from(snapshot.interval_ns) * snapshot.cpus.len() as u128;
    // A part of a whole: never above 1000.
    (sum_ns * 1000 / whole_ns) as u64
}

/// `value * numerator / denominator` without overflow or division by zero.
pub(crate) fn part(value: u64, numerator: u64, denominator: u64) -> u64 {
    let wide = u128::from(value) * u128::from(numerator) / u128::from(denominator.max(1));
    u64::try_from(wide).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::snapshot::Seen;

    fn cpu(speed: u32, noise_ns: u64, rt_ns: u64) -> CpuView {
        CpuView {
            cpu: 0,
            core: 0,
            node: 0,
            speed,
            energy_rank: None,
            noise_ns,
            rt_ns,
            idle_ns: 0,
            foreign_milli: 0,
            rt_milli: 0,
        }
    }

    #[test]
    fn effective_capability_is_what_noise_leaves_times_speed() {
        assert_eq!(cpu(1024, 0, 0).effective_ns(1000), 1000);
        assert_eq!(cpu(1024, 400, 0).effective_ns(1000), 600);
        assert_eq!(cpu(512, 400, 200).effective_ns(1000), 200);
        assert_eq!(cpu(512, 400, 200).paper_effective_ns(1000), 300);
        // Noise above the interval (clock skew) must not wrap.
        assert_eq!(cpu(1024, 1200, 0).effective_ns(1000), 0);
    }

    #[test]
    fn a_cpu_is_starved_by_real_time_tasks_alone() {
        for (noise_ns, rt_ns, is_starved) in
            [(0, 1000, true), (300, 695, true), (0, 990, false), (995, 0, false), (600, 395, false)]
        {
            let view = cpu(1024, noise_ns, rt_ns);
            assert_eq!(view.is_starved(1000), is_starved, "{noise_ns} {rt_ns}");
        }
    }

    #[test]
    fn ecpt_divides_by_tasks_but_never_multiplies() {
        assert_eq!(ecpt(1000, 2000), 500);
        assert_eq!(ecpt(1000, 0), 1000);
        assert_eq!(ecpt(1000, 500), 1000);
    }

    #[test]
    fn the_bound_is_the_average() {
        let snapshot = Snapshot {
            interval_ns: 1000,
            cpus: vec![cpu(1024, 400, 0), cpu(1024, 0, 0)],
            tasks: vec![],
            seen: Seen::default(),
        };
        assert_eq!(average_per_mille(&snapshot), 800);
    }
}
