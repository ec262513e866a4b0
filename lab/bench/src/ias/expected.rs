//! What exact aggregation would bring together: the keel's own code in the simulator, where no task is
//! late, on the load and the groups of the guest.

use std::sync::Arc;

use anyhow::{Result, bail};
use evenkeel_keel::{Aggregation, IasOptions, Mode, Options, Order};
use evenkeel_machine::Machine;
use evenkeel_sim::program::Workload;
use evenkeel_sim::{FaultPlan, MAX_EVENTS, Outcome, Scheduler, Simulation};

use super::round::{SETTLE, WATCH};

/// The guest's CPUs and pairs.
const MACHINE: &str = "name = \"guest\"\nkinds = [{ cpus = \"0-3\", capability = 1024 }]\n\
                       llcs = [\"0-1\", \"2-3\"]\ncosts = { scan_ns = 0 }\n";
/// No program ends before the measurement does.
const LOAD: &str = "memory:programs=10,threads=100,total=1000";

/// What it would bring.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Exact {
    /// How many of `fair`'s switches between address spaces there are not, 0 to 1.
    pub reduction: f64,
    /// The part of the time in which slaves run what their master runs.
    pub co_scheduled: f64,
}

impl Exact {
    /// With a bonus of so many times what ran last.
    ///
    /// # Errors
    /// It cannot be simulated.
    pub fn simulate(multiple: u64) -> Result<Self> {
        let fair = simulate(Scheduler::Keel(Options::default()), None)?;
        let bonus = Aggregation { pid: 0, agg: 1, bonus_type: 1, bonus_value: multiple, limit: 0 };
        let ias = IasOptions { mode: Mode::Paper, ..IasOptions::default() };
        let options = Options { order: Order::Ias, ias, ..Options::default() };
        let exact = simulate(Scheduler::Exact(options), Some(bonus))?;
        Ok(Self {
            reduction: 1.0 - exact.switches_other as f64 / fair.switches_other.max(1) as f64,
            co_scheduled: exact.same_space_ns as f64 / exact.together_ns.max(1) as f64,
        })
    }
}

fn simulate(scheduler: Scheduler, aggregation: Option<Aggregation>) -> Result<Outcome> {
    let mut workload = Workload::by_name(LOAD, 1)?;
    workload.duration_ns = (SETTLE + WATCH).as_nanos() as u64;
    workload.aggregate(aggregation);
    let simulation = Simulation {
        machine: Machine::parse_toml(MACHINE, "the guest")?,
        scheduler,
        balancer: None,
        workload: Arc::new(workload),
        faults: FaultPlan::default(),
        seed: 1,
        limits: None,
        records: false,
        max_events: MAX_EVENTS,
    };
    let outcome = simulation.run()?;
    match &outcome.end {
        Some(why) => bail!("simulating what to expect: {why}"),
        None => Ok(outcome),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn aggregation_leaves_few_switches_and_much_company() {
        let Exact { reduction, co_scheduled } = Exact::simulate(3).unwrap();
        println!("reduction {reduction:.3}, co-scheduled {co_scheduled:.3}");
        assert!((0.5..1.0).contains(&reduction), "{reduction}");
        assert!((0.5..1.0).contains(&co_scheduled), "{co_scheduled}");
    }
}
