//! Relative speeds of CPUs by measurement, for machines that do not report them.
//!
//! The fastest of many short bursts counts. Noise makes a burst slower, and noise must not count
//! twice, in the speed and again in the capability.

use std::collections::BTreeMap;
use std::time::Instant;

use evenkeel_journal::{AffinityError, affinity};
use evenkeel_machine::CpuSet;

/// Bursts for each CPU, of about a millisecond each.
const BURSTS: u32 = 20;
/// Rounds of the reference loop in a burst.
const ROUNDS: u64 = 400_000;

/// Measures the work per second on each of `cpus`, in an arbitrary unit that is the same for all. It
/// takes about 20 ms a CPU. The CPUs are measured one after the other, so that SMT siblings do not
/// disturb each other.
///
/// # Errors
/// The calling process may not use one of the CPUs.
pub fn calibrate(cpus: &CpuSet) -> Result<BTreeMap<u32, f64>, AffinityError> {
    // On a thread of its own, so that the caller's mask is never changed.
    let measuring = std::thread::scope(|scope| {
        scope
            .spawn(|| {
                let tid = nix::unistd::gettid().as_raw();
                let mut speeds = BTreeMap::new();
                for cpu in cpus.iter() {
                    affinity::set(tid, &std::iter::once(cpu).collect())?;
                    speeds.insert(cpu, best_burst());
                }
                Ok(speeds)
            })
            .join()
    });
    // The thread does not panic; if it did, there would be no measurement.
    measuring.unwrap_or_else(|_| Ok(BTreeMap::new()))
}

fn best_burst() -> f64 {
    (0..BURSTS).map(|seed| burst(u64::from(seed))).fold(0.0, f64::max)
}

/// Runs a chain of dependent integer operations: bound by the core, not by memory.
fn burst(seed: u64) -> f64 {
    let start = Instant::now();
    let mut value = seed | 1;
    for _ in 0..ROUNDS {
        value ^= value << 13;
        value ^= value >> 7;
        value ^= value << 17;
    }
    std::hint::black_box(value);
    ROUNDS as f64 / start.elapsed().as_secs_f64().max(1e-9)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_cpu_is_measured_and_the_caller_stays_where_it_was() {
        let tid = nix::unistd::gettid().as_raw();
        let before = affinity::get(tid).unwrap();
        let speeds = calibrate(&before).unwrap();
        assert_eq!(speeds.keys().copied().collect::<CpuSet>(), before);
        assert!(speeds.values().all(|speed| *speed > 0.0));
        assert_eq!(affinity::get(tid).unwrap(), before);
    }

    #[test]
    fn a_cpu_that_does_not_exist_is_an_error() {
        assert!(calibrate(&std::iter::once(8000).collect()).is_err());
    }
}
