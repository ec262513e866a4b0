//! Machines, contestants, and many simulations of both.

use std::collections::BTreeMap;

use anyhow::Result;
use evenkeel_keel::{Aggregation, Options, Order, Slice};
use evenkeel_machine::Machine;
use evenkeel_sim::{Grid, Report, Scheduler};

use super::paper::{L2_KIB, L2_NS, LINES, MEMORY_NS, SLICE_US};
use crate::simulated::{self, Runs, Seeds, Value, median, ratios};
use crate::study::{Panel, Point, Series};

/// Of each case.
const SEEDS: Seeds = Seeds { usual: 10, quick: 2 };

/// How far siblings may run ahead.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Bonus {
    /// No program aggregates.
    None,
    /// In ns of vruntime: the paper's type 0.
    Ns(u64),
    /// So many times what ran last: its type 1.
    Times(u64),
    /// The helper thread finds it, for each program.
    Auto,
}

/// A scheduler, and how programs aggregate under it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Contestant {
    /// What the page calls it.
    pub name: String,
    /// All programs'.
    pub bonus: Bonus,
    /// All CPUs are one group; otherwise those that share a cache.
    pub is_one_group: bool,
    /// Searches have no end, and cost nothing.
    pub is_exact: bool,
}

impl Contestant {
    /// The keel's baseline.
    pub fn fair() -> Self {
        Self::ias("fair", Bonus::None)
    }

    /// The order `ias`, or `fair` where no program aggregates.
    pub fn ias(name: impl Into<String>, bonus: Bonus) -> Self {
        Self { name: name.into(), bonus, is_one_group: false, is_exact: false }
    }

    /// What it is measured against, if its search had no bound.
    pub fn exact(&self) -> Self {
        Self { name: format!("{}, exact", self.name), is_exact: true, ..self.clone() }
    }

    fn scheduler(&self) -> Result<Scheduler> {
        let order = if self.bonus == Bonus::None { Order::Fair } else { Order::Ias };
        let slice = Slice::from_us(SLICE_US)?;
        let mut options = Options { order, slice, ..Options::default() };
        options.ias.auto = self.bonus == Bonus::Auto;
        Ok(if self.is_exact { Scheduler::Exact(options) } else { Scheduler::Keel(options) })
    }

    fn aggregation(&self) -> Option<Aggregation> {
        let (bonus_type, bonus_value) = match self.bonus {
            Bonus::None | Bonus::Auto => return None,
            Bonus::Ns(ns) => (0, ns),
            Bonus::Times(times) => (1, times),
        };
        Some(Aggregation { pid: 0, agg: 1, bonus_type, bonus_value, limit: 0 })
    }

    /// The bonus in ms, what ran last having had a whole slice; 0 of one that is not known before.
    pub fn bonus_ms(&self) -> f64 {
        match self.bonus {
            Bonus::None | Bonus::Auto => 0.0,
            Bonus::Ns(ns) => ns as f64 / 1e6,
            Bonus::Times(times) => times as f64 * slice_ms(),
        }
    }
}

/// The slice that all have.
pub fn slice_ms() -> f64 {
    SLICE_US as f64 / 1e3
}

/// KiB that a thread writes in a ms if the cache holds them.
pub fn touch() -> u64 {
    (1e6 / (LINES * L2_NS)) as u64
}

/// Where simulations are made.
pub struct Lab {
    /// One short run of everything.
    pub is_quick: bool,
    lab: simulated::Lab,
}

impl Lab {
    /// With so many seeds of each case, if not the usual number.
    ///
    /// # Errors
    /// There is no room for temporary files.
    pub fn new(is_quick: bool, seeds: Option<usize>) -> Result<Self> {
        Ok(Self { is_quick, lab: simulated::Lab::new(SEEDS, is_quick, seeds)? })
    }

    /// Simulates these workloads on a machine under these contestants.
    ///
    /// # Errors
    /// Something cannot be simulated.
    pub fn simulate(
        &self,
        workloads: &[String],
        machine: &Machine,
        contestants: &[Contestant],
    ) -> Result<Seen> {
        self.simulate_seeds(workloads, machine, contestants, self.lab.seeds)
    }

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

    /// The same with at most so many seeds of each.
    ///
    /// # Errors
    /// As [`Self::simulate`].
    pub fn simulate_seeds(
        &self,
        workloads: &[String],
        machine: &Machine,
        contestants: &[Contestant],
        most_seeds: u64,
    ) -> Result<Seen> {
        let mut seen = Seen { machine: machine.name.clone(), runs: BTreeMap::new() };
        for contestant in contestants {
            let mut machine = machine.clone();
            if contestant.is_exact {
                machine.costs.scan_ns = 0;
            }
            let grid = Grid {
                aggregation: contestant.aggregation(),
                together: contestant.is_one_group.then(|| "node".to_owned()),
                seeds: 1..self.lab.seeds.min(most_seeds) + 1,
                ..self.lab.grid(workloads.to_vec(), machine, vec![contestant.scheduler()?])
            };
            seen.runs.insert(contestant.clone(), self.lab.run([grid])?);
        }
        Ok(seen)
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

/// Reports by contestant.
pub struct Seen {
    machine: String,
    runs: BTreeMap<Contestant, Runs>,
}

impl Seen {
    /// A figure of all runs of this workload, by seed.
    ///
    /// # Errors
    /// No slice can be as long as the contestant's.
    pub fn of(&self, workload: &str, contestant: &Contestant, value: Value) -> Result<Vec<f64>> {
        let scheduler = contestant.scheduler()?;
        let runs = self.runs.get(contestant);
        Ok(runs.map_or_else(Vec::new, |runs| runs.of(workload, &self.machine, &scheduler, value)))
    }

    /// Its median.
    ///
    /// # Errors
    /// As [`Self::of`].
    pub fn median(&self, workload: &str, contestant: &Contestant, value: Value) -> Result<f64> {
        Ok(median(&self.of(workload, contestant, value)?))
    }

    /// How many times as large it is as under `fair`, by seed.
    ///
    /// # Errors
    /// As [`Self::of`].
    pub fn by_fair(
        &self,
        workload: &str,
        contestant: &Contestant,
        value: Value,
    ) -> Result<Vec<f64>> {
        Ok(ratios(
            &self.of(workload, contestant, value)?,
            &self.of(workload, &Contestant::fair(), value)?,
        ))
    }

    /// A figure of several contestants with one workload: a place for each.
    ///
    /// # Errors
    /// As [`Self::of`].
    pub fn panel(
        &self,
        (id, y, value): (&str, &str, Value),
        workload: &str,
        contestants: &[Contestant],
    ) -> Result<Panel> {
        let mut points = Vec::new();
        for contestant in contestants {
            points.push(Point::of(&self.of(workload, contestant, value)?));
        }
        Ok(Panel {
            id: id.to_owned(),
            title: y.to_owned(),
            x: "bonus".to_owned(),
            y: y.to_owned(),
            places: contestants.iter().map(|contestant| contestant.name.clone()).collect(),
            series: vec![Series { name: "keel".to_owned(), points }],
        })
    }
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
        let lab = |is_quick| Lab::new(is_quick, None).unwrap();
        assert_eq!(lab(false).shortened(load), load);
        assert_eq!(lab(true).shortened(load), "groups:programs=4,rounds=20,pause=2ms");
    }

    #[test]
    fn contestants_that_only_differ_in_their_bonus_are_told_apart() {
        let lab = Lab::new(true, Some(1)).unwrap();
        let all = [1, 3].map(|times| Contestant::ias(times.to_string(), Bonus::Times(times)));
        let text = "memory:programs=4,threads=10,total=1".to_owned();
        let seen = lab.simulate(std::slice::from_ref(&text), &quad(1.0).unwrap(), &all).unwrap();
        let [one, three] = all.map(|contestant| seen.median(&text, &contestant, spaces).unwrap());
        assert!(three < one, "{three} {one}");
    }
}
