//! The instructions that the keel executes to look for tasks and to migrate them, and how long urgent
//! tasks wait for that code, which runs with interrupts off.

use std::time::{Duration, Instant};

use anyhow::Result;

use evenkeel_experiment::guest::callback::{Cost, Stopwatch};

/// The callback in which load is balanced, ...
const CALLBACK: &str = "dispatch";
/// ... its functions that look for tasks, and, called by these, the one that walks a queue and pulls.
const LOOKING: [&str; 2] = ["balance_idle", "balance_periodic"];
const MOVING: &str = "pull_tasks";
/// How long these are watched, after all other figures: stopwatches take time, too.
const WATCH: Duration = Duration::from_millis(400);
/// Delays are sums over so many wake-ups.
const WAKEUPS: f64 = 1000.0;

/// The cost of balancing.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Looks {
    /// Instructions of the code that balances, in a second.
    pub direct: f64,
    /// By how many instructions that code delays a thousand wake-ups of urgent tasks together, at random
    /// times on random CPUs.
    pub delay: f64,
    /// The same of the code that walks a queue and pulls.
    pub moving: f64,
}

/// Watches the scheduler that is loaded.
///
/// # Errors
/// The kernel refuses a stopwatch.
pub fn watch(cpus: usize) -> Result<Looks> {
    let own_ns = Stopwatch::own_ns()?;
    let within = |function: &str| Stopwatch::within(CALLBACK, function);
    let looking = LOOKING.iter().map(|name| within(name)).collect::<Result<Vec<_>>>()?;
    let looking = watched(looking, own_ns, cpus)?;
    let moving = watched(vec![within(MOVING)?], own_ns, cpus)?;
    Ok(Looks { direct: looking.0, delay: looking.1, moving: moving.1 })
}

/// The instructions in a second, and the delay.
fn watched(stopwatches: Vec<Stopwatch>, own_ns: f64, cpus: usize) -> Result<(f64, f64)> {
    let begun = Instant::now();
    std::thread::sleep(WATCH);
    let elapsed = begun.elapsed();
    let costs = stopwatches.iter().map(Stopwatch::cost).collect::<Result<Vec<Cost>>>()?;
    let direct = costs.iter().map(|cost| cost.all_ns(own_ns)).sum::<f64>();
    let squares = costs.iter().map(|cost| cost.squares_ns2(own_ns)).sum();
    // At least one, so that there are ratios.
    Ok((direct / elapsed.as_secs_f64(), delay(squares, elapsed, cpus).max(1.0)))
}

/// The delay of urgent wake-ups: at a random time, a CPU is within a call of length L for the share of
/// the time that such calls take, and then the task waits for half of L.
fn delay(squares_ns2: f64, elapsed: Duration, cpus: usize) -> f64 {
    WAKEUPS * squares_ns2 / 2.0 / (elapsed.as_nanos() as f64 * cpus as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_calls_delay_more_than_many_short_ones() {
        let second = Duration::from_secs(1);
        // A CPU that is always within calls of 2,000 delays each wake-up by 1,000.
        let always = 500_000.0 * 2000.0 * 2000.0;
        assert_eq!(delay(always, second, 1), WAKEUPS * 1000.0);
        // If the same calls are spread over two CPUs, by half of that.
        assert_eq!(delay(always, second, 2), WAKEUPS * 500.0);
        let shorter = 1_000_000.0 * 1000.0 * 1000.0;
        assert_eq!(delay(shorter, second, 1), WAKEUPS * 500.0);
    }

    /// A function of another name has no stopwatch, and then no contestant is measured.
    #[test]
    fn the_keel_has_the_functions_that_are_watched() {
        let keel = concat!(env!("CARGO_MANIFEST_DIR"), "/../../bpf/keel/migrate.h");
        let keel = std::fs::read_to_string(keel).unwrap();
        let functions = keel.lines().filter(|line| line.starts_with("KEEL_PART "));
        let is_there =
            |name: &str| functions.clone().any(|line| line.contains(&format!(" {name}(")));
        for name in LOOKING.into_iter().chain([MOVING]) {
            assert!(is_there(name), "{name}");
        }
    }
}
