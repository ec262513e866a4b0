//! What can be tuned of the `lag` policy, and what follows from it.

/// A predicted gain must be this many times the cost.
const GAIN_FACTOR: u64 = 4;

/// Which CPUs a program gets where there are more of them than it has compute tasks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Preference {
    /// Those that have the most to give.
    #[default]
    Capable,
    /// Those that need the least energy for their work, as far as the kernel knows
    /// ([`CpuView::energy_rank`](crate::CpuView::energy_rank)); the program runs at their pace.
    Efficient,
}

/// What can be tuned. Every default is from measurements on the host (`evenkeel-lab bench capability`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LagParameters {
    /// Shortest interval, in nanoseconds; a quarter of it while tasks take turns in phases of 50 to 800
    /// ms, unless the longest interval is not longer.
    pub min_interval_ns: u64,
    /// Longest interval, used at rest, in nanoseconds; never taken to be below the shortest.
    pub max_interval_ns: u64,
    /// Differences below this do not count as asymmetry, in parts per million: of the better rate
    /// where two rates are compared, of the fastest CPU where it is about the program as a whole.
    pub tolerance_ppm: u64,
    /// What one move costs the task that is moved, in nanoseconds.
    pub move_cost_ns: u64,
    /// Share of its pace that a task loses on another NUMA node than the one where it was first
    /// seen and its memory is taken to be, in parts per million: a guess, since how much of a
    /// task's time goes to memory is not known.
    pub remote_loss_ppm: u64,
    /// Which CPUs the program gets where not all are needed.
    pub prefer: Preference,
}

impl Default for LagParameters {
    fn default() -> Self {
        Self {
            min_interval_ns: 50_000_000,
            max_interval_ns: 1_000_000_000,
            tolerance_ppm: 60_000,
            move_cost_ns: 100_000,
            remote_loss_ppm: 200_000,
            prefer: Preference::Capable,
        }
    }
}

impl LagParameters {
    /// The same for figures that come in clock ticks: intervals long enough, and differences large
    /// enough, to mean something at 10 ms a tick.
    pub fn for_ticks(&self) -> Self {
        Self {
            min_interval_ns: self.min_interval_ns.max(400_000_000),
            max_interval_ns: self.max_interval_ns.max(400_000_000),
            tolerance_ppm: self.tolerance_ppm.max(120_000),
            ..*self
        }
    }

    /// A fixed interval, in nanoseconds, instead of the dynamic one.
    pub fn fixed(interval_ns: u64) -> Self {
        Self { min_interval_ns: interval_ns, max_interval_ns: interval_ns, ..Self::default() }
    }

    /// What is left of a rate away from a task's own node.
    pub(super) fn remote_ppm(&self, ppm: u64) -> u64 {
        ppm.saturating_mul(1_000_000 - self.remote_loss_ppm) / 1_000_000
    }

    /// What the exchange of two tasks costs.
    pub(super) fn exchange_cost_ns(&self) -> u64 {
        self.move_cost_ns.saturating_mul(2)
    }

    /// What an exchange must gain.
    pub(super) fn worthwhile_ns(&self) -> u64 {
        self.exchange_cost_ns().saturating_mul(GAIN_FACTOR)
    }
}
