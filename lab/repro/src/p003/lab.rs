//! Machines, contestants, and many simulations of both.

use anyhow::Result;
use evenkeel_keel::{Aggregation, Mode, Options, Order, Slice};
use evenkeel_machine::Machine;
use evenkeel_sim::{Report, Scheduler};
use evenkeel_trial::again;

use super::paper::{L2_KIB, L2_NS, LINES, MEMORY_NS, SLICE_US};
pub use crate::simulated::Lab;
use crate::simulated::{Contestant, How, Runs, Seeds, Value, contestant, median, ratios};
use crate::study::{Panel, Point};

/// How many seeds each case is simulated with.
pub const SEEDS: Seeds = Seeds { usual: 10, quick: 2 };

/// How far siblings may run ahead.
#[derive(Debug, Clone, Copy)]
pub enum Bonus {
    /// In ns of vruntime: the paper's type 0.
    Ns(u64),
    /// So many times what ran last: its type 1.
    Times(u64),
    /// The helper thread finds it, for each program.
    Auto,
}

impl Bonus {
    /// The bonus in ms, what ran last having had a whole slice; 0 of one that is not known before.
    pub fn ms(self) -> f64 {
        match self {
            Self::Auto => 0.0,
            Self::Ns(ns) => ns as f64 / 1e6,
            Self::Times(times) => times as f64 * slice_ms(),
        }
    }
}

/// The name of the keel's baseline, under which no program aggregates.
pub const FAIR: &str = "fair";

fn options(order: Order) -> Result<Options> {
    Ok(Options { order, slice: Slice::from_us(SLICE_US)?, ..Options::default() })
}

/// The keel's baseline.
///
/// # Errors
/// No slice can be as long as the paper's.
pub fn fair() -> Result<Contestant> {
    Ok(contestant(FAIR, Scheduler::Keel(options(Order::Fair)?)))
}

/// The order `ias` in the mode `paper`, all programs with the same bonus.
///
/// # Errors
/// As [`fair`].
pub fn ias(name: &str, bonus: Bonus) -> Result<Contestant> {
    let mut options = options(Order::Ias)?;
    options.ias.mode = Mode::Paper;
    let kind = match bonus {
        Bonus::Auto => None,
        Bonus::Ns(ns) => Some((0, ns)),
        Bonus::Times(times) => Some((1, times)),
    };
    options.ias.auto = kind.is_none();
    let aggregation = kind.map(|(bonus_type, bonus_value)| Aggregation {
        pid: 0,
        agg: 1,
        bonus_type,
        bonus_value,
        limit: 0,
    });
    Ok(contestant(name, How { aggregation, ..Scheduler::Keel(options).into() }))
}

/// `fair` first, and `ias` with these bonuses by name.
///
/// # Errors
/// As [`fair`].
pub fn with_fair<N: AsRef<str>>(
    bonuses: impl IntoIterator<Item = (N, Bonus)>,
) -> Result<Vec<Contestant>> {
    let all = bonuses.into_iter().map(|(name, bonus)| ias(name.as_ref(), bonus));
    std::iter::once(fair()).chain(all).collect()
}

/// The slice that all have.
pub fn slice_ms() -> f64 {
    SLICE_US as f64 / 1e3
}

/// KiB that a thread writes in a ms if the cache holds them.
pub fn touch() -> u64 {
    (1e6 / (LINES * L2_NS)) as u64
}

impl Lab {
    /// A load that takes long, for a quick run: a part of its rounds or requests.
    pub fn shortened(&self, load: &str) -> String {
        const PART: u64 = 50;
        if !self.is_quick {
            return load.to_owned();
        }
        let numbers = load.split(',').map(|number| match number.split_once('=') {
            Some((name @ ("rounds" | "requests"), count)) => {
                let count = count.parse::<u64>().map_or(1, |count| (count / PART).max(1));
                format!("{name}={count}")
            }
            _ => number.to_owned(),
        });
        numbers.collect::<Vec<_>>().join(",")
    }

    /// Simulates these workloads on a machine under these contestants, with at most so many seeds.
    ///
    /// # Errors
    /// Something cannot be simulated.
    pub fn see(
        &self,
        workloads: &[String],
        machine: &Machine,
        contestants: &[Contestant],
        most_seeds: u64,
    ) -> Result<Seen> {
        let runs = self.run(machine, workloads, contestants, self.seeds.min(most_seeds))?;
        Ok(Seen { machine: machine.name.clone(), runs })
    }
}

/// The paper's machine: four cores, two to an L2 cache. `fetch`: how many times as fast as one line
/// after the other, each with the paper's latency, memory is fetched.
///
/// # Errors
/// None that could happen.
pub fn quad(fetch: f64) -> Result<Machine> {
    machine("core 2 quad", "0-3", "\"0-1\", \"2-3\"", fetch)
}

/// One half of it.
///
/// # Errors
/// As [`quad`].
pub fn duo() -> Result<Machine> {
    machine("two cores", "0-1", "\"0-1\"", 1.0)
}

fn machine(name: &str, cpus: &str, caches: &str, fetch: f64) -> Result<Machine> {
    let fetch_ns = (LINES * MEMORY_NS / fetch) as u64;
    let text = format!(
        "name = \"{name}\"\nkinds = [{{ cpus = \"{cpus}\", capability = 1024 }}]\nllcs = [{caches}]\n\
         costs = {{ cache_kib = {L2_KIB}, fetch_ns = {fetch_ns} }}\n"
    );
    Ok(Machine::parse_toml(&text, name)?)
}

/// What was simulated on a machine.
pub struct Seen {
    machine: String,
    runs: Runs,
}

impl Seen {
    /// Takes in what was simulated on the same machine.
    pub fn extend(&mut self, other: Self) {
        self.runs.extend(other.runs);
    }

    /// A figure of all runs of this workload, by seed.
    pub fn of(&self, workload: &str, name: &str, value: Value) -> Vec<f64> {
        self.runs.of(&self.machine, workload, name, value)
    }

    /// The figure with its interval.
    pub fn point(&self, workload: &str, name: &str, value: Value) -> Option<Point> {
        Point::of(&self.of(workload, name, value))
    }

    /// Its median.
    pub fn median(&self, workload: &str, name: &str, value: Value) -> f64 {
        median(&self.of(workload, name, value))
    }

    /// How many times as large it is as under `fair`, by seed.
    pub fn by_fair(&self, workload: &str, name: &str, value: Value) -> Vec<f64> {
        ratios(&self.of(workload, name, value), &self.of(workload, FAIR, value))
    }

    /// A figure with one workload: a place for each contestant and for the A/A line of `fair`.
    pub fn panel(
        &self,
        (id, y, value): (&str, &str, Value),
        workload: &str,
        contestants: &[Contestant],
    ) -> Panel {
        let names = names(contestants);
        let points = names.iter().map(|name| self.point(workload, name, value)).collect();
        Panel::new([id, y, "bonus", y], names, [("keel", points)])
    }
}

/// The names of contestants, `fair` among them, and of its A/A line.
pub fn names(contestants: &[Contestant]) -> Vec<String> {
    let all = contestants.iter().map(|one| one.name.clone());
    all.chain([again(FAIR)]).collect()
}

/// Switches to another address space a second.
pub fn spaces(report: &Report) -> f64 {
    report.switches_other_space as f64 * 1e3 / report.makespan_ms
}

/// How long a CPU runs one address space in a row, in ms.
pub fn run_ms(report: &Report) -> f64 {
    report.ran_ms / report.switches_other_space.max(1) as f64
}

/// How much slaves run what their master runs.
pub fn co_scheduled(report: &Report) -> f64 {
    report.co_scheduled
}

/// Until all is done.
pub fn time_ms(report: &Report) -> f64 {
    report.makespan_ms
}

/// 99 of 100 waits for a CPU are no longer.
pub fn wait_ms(report: &Report) -> f64 {
    report.wait.p99_ms
}

/// Jain's index of the tasks' rates of progress.
pub fn fairness(report: &Report) -> f64 {
    report.fairness
}

/// What is shown of contestants besides the time.
pub const SHOWN: [(&str, &str, Value); 5] = [
    ("spaces", "switches to another address space, 1/s", spaces),
    ("run", "a CPU runs one address space in a row, ms", run_ms),
    ("together", "slaves run what their master runs, part of the time", co_scheduled),
    ("wait", "p99 wait for a CPU, ms", wait_ms),
    ("fairness", "Jain's index of the threads' progress", fairness),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_papers_machine_has_two_caches() {
        let quad = quad(1.0).unwrap();
        assert_eq!(quad.llc_cpus(0).to_string(), "0-1");
        assert_eq!(quad.llc_cpus(quad.cpu(3).unwrap().llc).to_string(), "2-3");
        assert_eq!((quad.costs.cache_kib, quad.costs.fetch_ns), (3072, 1190));
        assert_eq!(touch(), 11_160);
    }

    #[test]
    fn quick_runs_have_a_part_of_the_rounds() {
        let load = "groups:programs=4,rounds=1000,pause=2ms";
        assert_eq!(Lab::new(SEEDS, false, None).unwrap().shortened(load), load);
        assert_eq!(Lab::quick(2).shortened(load), "groups:programs=4,rounds=20,pause=2ms");
    }
}
