//! What noise costs by calculation alone: the time of a phase on one noisy CPU, and the largest of many
//! such times.

use evenkeel_capability::{
    CpuView, Places, Seen, Snapshot, TaskId, TaskView, WHOLE_WEIGHT, Weighing,
};
use evenkeel_machine::CpuSet;

/// How the time between two points of a period is divided for the distribution of phase times.
const OFFSETS: usize = 20_000;

/// Noise that takes the first part of each period of one CPU.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Theft {
    /// How long it takes the CPU, in ms.
    pub busy_ms: f64,
    /// Its period, in ms; longer than the busy time.
    pub period_ms: f64,
}

impl Theft {
    /// What it leaves of the CPU, 0 to 1.
    pub fn left(&self) -> f64 {
        1.0 - self.busy_ms / self.period_ms
    }

    /// How long so much work takes on that CPU when it begins at this point of a period.
    pub fn time_ms(&self, work_ms: f64, offset_ms: f64) -> f64 {
        let free_ms = self.period_ms - self.busy_ms;
        let wait_ms = (self.busy_ms - offset_ms).max(0.0);
        let first_ms = (self.period_ms - offset_ms).min(free_ms);
        let bursts = ((work_ms - first_ms) / free_ms).ceil().max(0.0);
        wait_ms + work_ms + bursts * self.busy_ms
    }

    /// Times of a phase that begins at any point of a period with the same probability, ascending.
    pub fn times_ms(&self, work_ms: f64) -> Vec<f64> {
        let at = |index: usize| self.period_ms * (index as f64 + 0.5) / OFFSETS as f64;
        let mut times: Vec<f64> =
            (0..OFFSETS).map(|index| self.time_ms(work_ms, at(index))).collect();
        times.sort_unstable_by(f64::total_cmp);
        times
    }

    /// What it leaves of all CPUs of a node of so many, 0 to 1.
    pub fn left_of_node(&self, cpus: u32) -> f64 {
        (f64::from(cpus) - 1.0 + self.left()) / f64::from(cpus)
    }
}

/// The mean; 0 of no values.
pub fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len().max(1) as f64
}

/// The expected maximum of so many values, drawn independently from these, which are ascending: the
/// integral of 1 - F(t)^n.
pub fn expected_max(times: &[f64], draws: u32) -> f64 {
    let count = times.len() as f64;
    // The maximum is the i-th value with probability (i/m)^n - ((i-1)/m)^n.
    let up_to = |index: usize| (index as f64 / count).powf(f64::from(draws));
    let terms = times.iter().enumerate().map(|(at, time)| time * (up_to(at + 1) - up_to(at)));
    terms.sum()
}

/// The expected maximum where each of so many nodes is noisy with this probability, and the others take
/// `quiet`.
pub fn expected_max_of_some(times: &[f64], quiet: f64, nodes: u32, probability: f64) -> f64 {
    // A node's own distribution is a mixture: F(t) = 1 - q + q F_noisy(t), from `quiet` on.
    let count = times.len() as f64;
    let up_to = |index: usize| {
        (1.0 - probability + probability * index as f64 / count).powf(f64::from(nodes))
    };
    let noisy =
        times.iter().enumerate().map(|(at, time)| time.max(quiet) * (up_to(at + 1) - up_to(at)));
    quiet * up_to(0) + noisy.sum::<f64>()
}

/// The weights by which `evenkeel run --shares` divides the loops of a program with one thread on each
/// CPU, by the product's own code; the first CPU has the noise.
pub fn weights(cpus: u32, theft: &Theft, is_realtime: bool) -> Vec<f64> {
    /// After so many intervals an asymmetry is confirmed, and its average has settled.
    const INTERVALS: u32 = 40;
    let parameters = evenkeel_capability::LagParameters::default();
    let interval_ns = parameters.min_interval_ns;
    let stolen_ns = ((1.0 - theft.left()) * interval_ns as f64) as u64;
    let of = |cpu: u32| if cpu == 0 { stolen_ns } else { 0 };
    let interrupts = |cpu| if is_realtime { 0 } else { of(cpu) };
    let realtime = |cpu| if is_realtime { of(cpu) } else { 0 };
    let allowed: CpuSet = (0..cpus).collect();
    let id = |cpu| TaskId { tid: cpu + 1, start: 1 };
    let snapshot = Snapshot {
        interval_ns,
        cpus: (0..cpus)
            .map(|cpu| CpuView {
                cpu,
                core: cpu,
                node: 0,
                speed: WHOLE_WEIGHT,
                energy_rank: None,
                noise_ns: interrupts(cpu),
                rt_ns: realtime(cpu),
                idle_ns: 0,
                foreign_milli: 0,
                rt_milli: 0,
            })
            .collect(),
        tasks: (0..cpus)
            .map(|cpu| TaskView {
                id: id(cpu),
                process: 1,
                cpu,
                queue: 0,
                run_ns: interval_ns - of(cpu),
                spun_ns: 0,
                samples: 0,
                changes: 0,
                received_ns: interval_ns - of(cpu),
                stolen_ns: interrupts(cpu),
                wait_ns: realtime(cpu),
                sleeps: 1,
                runnable: true,
                allowed: allowed.clone(),
                fixed: false,
                working_set_bytes: None,
            })
            .collect(),
        seen: Seen::default(),
    };
    let members = (0..cpus).map(id).collect();
    let mut weighing = Weighing::new(parameters.tolerance_ppm);
    for _ in 0..INTERVALS {
        weighing.weigh(&snapshot, &Places::of(&snapshot, &members));
    }
    weighing.weights().iter().map(|(_, weight)| f64::from(*weight)).collect()
}

#[cfg(test)]
mod tests {
    use rand_xoshiro::Xoshiro256PlusPlus;
    use rand_xoshiro::rand_core::{Rng, SeedableRng};

    use super::*;

    const FINE: Theft = Theft { busy_ms: 2.0, period_ms: 4.0 };

    #[test]
    fn a_phase_waits_for_each_burst_that_meets_it() {
        for (work_ms, offset_ms, time_ms) in [
            // Begun within a burst, at its end, in time to finish, and too late for that.
            (1.0, 0.0, 3.0),
            (1.0, 2.0, 1.0),
            (1.0, 3.0, 1.0),
            (1.0, 3.5, 3.0),
            (2.0, 2.0, 2.0),
            (2.0, 0.0, 4.0),
            (10.0, 2.0, 18.0),
            (10.0, 3.0, 20.0),
        ] {
            assert_eq!(FINE.time_ms(work_ms, offset_ms), time_ms, "{work_ms} at {offset_ms}");
        }
        // Long phases take what the CPU's share of time says.
        let mean = mean(&FINE.times_ms(1000.0));
        assert!((mean - 2000.0).abs() < 2.0, "{mean}");
    }

    #[test]
    fn the_maximum_grows_from_the_mean_to_the_end_of_the_distribution() {
        let times = FINE.times_ms(1.0);
        assert!((expected_max(&times, 1) - mean(&times)).abs() < 1e-9);
        let maxima: Vec<f64> = [1, 10, 100, 10_000].map(|nodes| expected_max(&times, nodes)).into();
        assert!(maxima.is_sorted() && (maxima[3] - 3.0).abs() < 1e-3, "{maxima:?}");
        // Of two values, by hand: 1/4 for the smaller one.
        assert_eq!(expected_max(&[1.0, 2.0], 2), 1.75);
    }

    #[test]
    fn of_nodes_that_are_seldom_noisy_many_have_one() {
        let times = [3.0, 3.0];
        let of = |nodes| expected_max_of_some(&times, 1.0, nodes, 0.001);
        for nodes in [1, 100, 10_000] {
            let expected = 1.0 + 2.0 * (1.0 - 0.999_f64.powf(f64::from(nodes)));
            assert!((of(nodes) - expected).abs() < 1e-9, "{nodes}: {}", of(nodes));
        }
        assert!((expected_max_of_some(&times, 1.0, 5, 1.0) - 3.0).abs() < 1e-9);
        assert_eq!(expected_max_of_some(&times, 1.0, 5, 0.0), 1.0);
    }

    /// As the page says of the model: for work that ends within a free stretch, and for work that is
    /// hardly longer than whole ones.
    #[test]
    fn the_maximum_comes_near_the_end_like_a_power_or_like_the_inverse_of_the_nodes() {
        let gap = |work_ms: f64, end_ms: f64, nodes| {
            end_ms - expected_max(&FINE.times_ms(work_ms), nodes)
        };
        for nodes in [1, 10, 100] {
            // One free stretch and half of another: a quarter of all phases meets two bursts.
            let found = gap(3.0, 7.0, nodes);
            let most = FINE.busy_ms * 0.75_f64.powf(f64::from(nodes));
            assert!(found <= most + 1e-9, "{nodes}: {found}, more than {most}");
        }
        for nodes in [10, 100] {
            let found = gap(2.001, 6.001, nodes);
            let expected = FINE.period_ms / f64::from(nodes + 1);
            assert!((found / expected - 1.0).abs() < 0.05, "{nodes}: {found}, not {expected}");
        }
    }

    /// The mean time of a phase of a job on so many nodes, by drawing. Each node is noisy with this
    /// probability in each phase, and then takes one of these times; a quiet node takes `quiet`.
    fn mean_phase(times: &[f64], quiet: f64, nodes: u32, probability: f64, phases: u32) -> f64 {
        let mut random = Xoshiro256PlusPlus::seed_from_u64(7);
        let is_noisy = |number: u64| (number as f64 / 2f64.powi(64)) < probability;
        // The upper half of a product: no division, and a bias of 2^-64 of the range.
        let index = |number: u64| ((u128::from(number) * times.len() as u128) >> 64) as usize;
        let mut sum = 0.0;
        for _ in 0..phases {
            let mut slowest = quiet;
            for _ in 0..nodes {
                if is_noisy(random.next_u64()) {
                    slowest = slowest.max(times[index(random.next_u64())]);
                }
            }
            sum += slowest;
        }
        sum / f64::from(phases)
    }

    #[test]
    fn what_is_drawn_is_what_is_expected() {
        // So many nodes in all that the mean of what noise adds has a standard error of 2 % at most.
        const DRAWN: u32 = 1_000_000;
        let times = [1.2, 1.5, 2.0, 4.0];
        for nodes in [1, 10, 1000] {
            for probability in [0.01, 1.0] {
                // What noise adds, and not the whole time, of which that may be a small part.
                let expected = expected_max_of_some(&times, 1.0, nodes, probability) - 1.0;
                let drawn = mean_phase(&times, 1.0, nodes, probability, DRAWN / nodes) - 1.0;
                let is_near = (drawn / expected - 1.0).abs() < 0.1;
                assert!(is_near, "{nodes} with {probability}: {drawn}, not {expected}");
            }
            let all = expected_max_of_some(&times, 1.0, nodes, 1.0);
            assert!((expected_max(&times, nodes) - all).abs() < 1e-9, "{nodes}: {all}");
        }
        assert_eq!(mean_phase(&times, 1.0, 100, 0.0, 10), 1.0);
    }

    #[test]
    fn weights_are_what_noise_leaves() {
        for is_realtime in [false, true] {
            let weights = weights(4, &FINE, is_realtime);
            assert_eq!(weights, [512.0, 1024.0, 1024.0, 1024.0], "{is_realtime}");
        }
        assert_eq!(FINE.left_of_node(4), 0.875);
        assert_eq!(FINE.left_of_node(1), 0.5);
    }
}
