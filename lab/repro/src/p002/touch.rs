//! The cells with memory as a real kernel has it: it is not known where a new process's memory will be;
//! it is where the process first runs. The keel then places new processes without a home, and goes by
//! the node where each first ran.

use std::sync::Arc;

use anyhow::{Result, bail};
use evenkeel_machine::Machine;
use evenkeel_sim::paper002::Reading;
use evenkeel_sim::program::Workload;
use evenkeel_sim::{FaultPlan, MAX_EVENTS, Report, STRICT, Simulation};

use super::contestant::{Contestant, UNAWARE};
use super::runs::{Cell, Lab, SLICE_US, median, tat};
use evenkeel_experiment::interrupt;

/// Seeds: these simulations run one after the other.
pub const SEEDS: u64 = 5;

/// The cell's processes, without homes.
fn homeless(cell: &Cell, seed: u64) -> Workload {
    let mut workload = cell.table.workload(cell.row.processes, &Reading::default(), seed);
    workload.name = cell.workload();
    workload.tasks.iter_mut().for_each(|task| task.home = None);
    workload
}

fn time_ms(cell: &Cell, machine: &Machine, contestant: &Contestant, seed: u64) -> Result<f64> {
    interrupt::check()?;
    let simulation = Simulation {
        machine: machine.clone(),
        scheduler: contestant.scheduler(SLICE_US)?,
        balancer: None,
        workload: Arc::new(homeless(cell, seed)),
        faults: FaultPlan::default(),
        seed,
        limits: Some(STRICT),
        records: false,
        max_events: MAX_EVENTS,
    };
    let report = Report::new(&simulation, &simulation.run()?);
    if let Some(why) = report.end.iter().chain(&report.violations).next() {
        bail!("{} without homes under {}, seed {seed}: {why}", cell.workload(), contestant.name);
    }
    Ok(tat(&report))
}

/// The cells' median gains over the unaware balancer, for each contestant.
///
/// # Errors
/// Something cannot be simulated.
pub fn gains_pct(lab: &Lab, cells: &[Cell], contestants: &[Contestant]) -> Result<Vec<Vec<f64>>> {
    let mut gains = vec![Vec::new(); contestants.len()];
    for cell in cells {
        let machine = Machine::preset(cell.table.system)?;
        let mut of_cell = vec![Vec::new(); contestants.len()];
        for seed in 1..=lab.seeds().min(SEEDS) {
            let unaware = time_ms(cell, &machine, &UNAWARE, seed)?;
            for (all, contestant) in of_cell.iter_mut().zip(contestants) {
                all.push(100.0 * (1.0 - time_ms(cell, &machine, contestant, seed)? / unaware));
            }
        }
        gains.iter_mut().zip(&of_cell).for_each(|(all, gains)| all.push(median(gains)));
    }
    Ok(gains)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_homes_it_is_the_same_work() {
        let cell = Lab::new(true, None).unwrap().cells()[0];
        let known = Workload::by_name(&cell.workload(), 3).unwrap();
        let homeless = homeless(&cell, 3);
        assert!(known.tasks.iter().all(|task| task.home.is_some()));
        assert!(homeless.tasks.iter().all(|task| task.home.is_none()));
        let work = |workload: &Workload| {
            let tasks = workload.tasks.iter();
            tasks.map(|task| (task.arrives_ns, task.space, task.ops.clone())).collect::<Vec<_>>()
        };
        assert_eq!(work(&known), work(&homeless));
    }

    #[test]
    fn the_unaware_balancer_gains_nothing_over_itself() {
        let lab = Lab::new(true, None).unwrap();
        let cells = &lab.cells()[..1];
        assert_eq!(gains_pct(&lab, cells, &[UNAWARE]).unwrap(), [[0.0]]);
    }
}
