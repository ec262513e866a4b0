//! What is measured of a program under `bench programs`.

use evenkeel_experiment::{Kind, Metric, Sample};
use evenkeel_host::{Proven, Summary};

use crate::capability::{BOUND, MOVES, TIME};
use crate::programs::field;

/// CPU time of evenkeel while it balances.
pub const OWN_CPU: &str = "own CPU";
/// What evenkeel says that its moves gained ...
pub const GAIN: &str = "own gain";
/// ... the lower end of its interval ...
pub const GAIN_LOW: &str = "own gain, low";
/// ... and the upper one; no rows of their own.
pub const GAIN_HIGH: &str = "own gain, high";
/// How often the thread with more to do was on another CPU than the noisy one.
pub const CRITICAL: &str = "critical on quiet CPUs";
/// Moves of a run in which evenkeel saw no gain and withdrew them; no row of its own.
pub const MOVES_WITHDRAWN: &str = "moves, withdrawn";

const OF_TIME: Metric = Metric::new(
    TIME,
    Kind::Time,
    "the time of the whole command, from outside: the start of evenkeel counts",
)
.with_spread();
const OF_BOUND: Metric = Metric::told(
    BOUND,
    Kind::Factor,
    "avg(C) / min(C) during the runs: how much faster than its slowest CPU a perfectly balanced program \
     is. C, a CPU's capability, is the share of its time that interrupts, softirqs, real-time tasks and \
     the hypervisor left, times its relative speed; on a hog's CPU also times the share that the \
     scheduler gives the program beside the hog, which is measured",
);

/// Those of the demo, in the order of its report.
pub static SHORT: [Metric; 2] = [OF_TIME, OF_BOUND];

/// All that have rows, in the order of the report.
pub static METRICS: [Metric; 6] = [
    OF_TIME,
    OF_BOUND,
    Metric::told(MOVES, Kind::Count, "tasks moved in a run"),
    Metric::told(OWN_CPU, Kind::TakenPct, "CPU time of evenkeel while it balances, of one CPU"),
    Metric::told(
        GAIN,
        Kind::Factor,
        "how many times as fast the program ran as without, as evenkeel itself measured it while it ran",
    ),
    Metric::told(
        CRITICAL,
        Kind::SharePct,
        "of the later half of the phases of the uneven loop, those at the end of which the thread with \
         more to do was on a CPU that nothing disturbs",
    ),
];

/// Adds where the program says that the thread with more to do was; others than the uneven loop say
/// nothing. `noisy` is the CPU that the noise falls on.
pub fn add_critical(output: &str, noisy: u32, sample: &mut Sample) {
    let places = field(output, "first_thread").unwrap_or_default().split(',');
    let counts = places.filter_map(|place| {
        let (cpu, count) = place.split_once(':')?;
        Some((cpu.parse::<u32>().ok()?, count.parse::<f64>().ok()?))
    });
    let (mut quiet, mut all) = (0.0, 0.0);
    for (cpu, count) in counts {
        all += count;
        quiet += if cpu == noisy { 0.0 } else { count };
    }
    sample.set(CRITICAL, (all > 0.0).then(|| 100.0 * quiet / all));
}

/// Adds what `evenkeel run` says of a run.
pub fn add(summary: &Summary, sample: &mut Sample) {
    let gain = &summary.gain;
    sample.set(MOVES, Some(summary.moves as f64));
    let own_pct = 100.0 * summary.own_cpu_ns as f64 / summary.elapsed_ns.max(1) as f64;
    sample.set(OWN_CPU, Some(own_pct));
    sample.set(GAIN, gain.ratio);
    sample.set(GAIN_LOW, gain.low);
    sample.set(GAIN_HIGH, gain.high);
    let is_withdrawn = gain.proven == Proven::Withdrawn;
    sample.set(MOVES_WITHDRAWN, is_withdrawn.then_some(summary.moves as f64));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_critical_thread_is_counted_by_its_cpus() {
        let share = |output: &str| {
            let mut sample = Sample::new([(TIME, 1.0)]);
            add_critical(output, 0, &mut sample);
            sample.get(CRITICAL)
        };
        assert_eq!(share("static_loop seconds=1 first_thread=0:25,1:75\n"), Some(75.0));
        assert_eq!(share("static_loop seconds=1 first_thread=1:50,3:50\n"), Some(100.0));
        assert_eq!(share("static_loop seconds=1 first_thread=0:9\n"), Some(0.0));
        assert_eq!(share("ep class=A seconds=1\n"), None);
    }
}
