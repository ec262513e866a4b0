//! Many simulations, and what they say of a cell.

use anyhow::Result;
use evenkeel_machine::Machine;
use evenkeel_sim::paper002::{Row, TABLES, Table};
use evenkeel_sim::{Grid, Report, Scheduler};

use super::contestant::{Contestant, UNAWARE};
use crate::simulated::{self, Seeds};
pub use crate::simulated::{Value, mean, median};
use crate::study::{Panel, Point, Series};

/// Of each cell.
const SEEDS: Seeds = Seeds { usual: 30, quick: 2 };
/// The slice that was fitted (see `fit`), in us.
pub const SLICE_US: u64 = 120_000;
/// The paper's machines, the smallest first.
pub const SYSTEMS: [&str; 3] = ["amc1", "amc2", "amc3"];

/// One of the paper's 30 cells.
#[derive(Debug, Clone, Copy)]
pub struct Cell {
    /// In which table.
    pub table: &'static Table,
    /// In which row.
    pub row: &'static Row,
}

impl Cell {
    /// Its name as a workload.
    pub fn workload(&self) -> String {
        let Table { system, workload, .. } = self.table;
        format!("paper002:system={system},table={workload},processes={}", self.row.processes)
    }
}

/// Where simulations are made.
pub struct Lab {
    /// One short run of everything.
    pub quick: bool,
    lab: simulated::Lab,
}

impl Lab {
    /// With so many seeds of each cell, if not the usual number.
    ///
    /// # Errors
    /// There is no room for temporary files.
    pub fn new(quick: bool, seeds: Option<usize>) -> Result<Self> {
        Ok(Self { quick, lab: simulated::Lab::new(SEEDS, quick, seeds)? })
    }

    /// The seeds of each cell.
    pub fn seeds(&self) -> u64 {
        self.lab.seeds
    }

    /// The cells of a table.
    pub fn rows(&self, table: &'static Table) -> Vec<Cell> {
        let rows = if self.quick { &table.rows[..1] } else { &table.rows[..] };
        rows.iter().map(|row| Cell { table, row }).collect()
    }

    /// The cells of all tables.
    pub fn cells(&self) -> Vec<Cell> {
        TABLES.iter().flat_map(|table| self.rows(table)).collect()
    }

    /// Simulates workloads on a machine, each with so many seeds.
    ///
    /// # Errors
    /// As [`simulated::Lab::run`].
    pub fn sweep(
        &self,
        workloads: Vec<String>,
        machine: Machine,
        schedulers: Vec<Scheduler>,
        seeds: u64,
    ) -> Result<Runs> {
        let grid = self.lab.grid(workloads, machine, schedulers);
        Ok(Runs(self.lab.run([Grid { seeds: 1..seeds + 1, ..grid }])?))
    }

    /// Simulates cells, each on its machine as `change` makes it, under all contestants.
    ///
    /// # Errors
    /// As [`Self::sweep`].
    pub fn simulate(
        &self,
        cells: &[Cell],
        contestants: &[Contestant],
        slices_us: &[u64],
        seeds: u64,
        change: impl Fn(&mut Machine) -> Result<()>,
    ) -> Result<Runs> {
        let mut runs = Runs::default();
        let mut schedulers = Vec::new();
        for contestant in contestants {
            for slice_us in slices_us {
                schedulers.push(contestant.scheduler(*slice_us)?);
            }
        }
        for system in SYSTEMS {
            let here = cells.iter().filter(|cell| cell.table.system == system);
            let mut machine = Machine::preset(system)?;
            change(&mut machine)?;
            // By the preset's name, so that changed machines are found as the same cells.
            machine.name = system.to_owned();
            let workloads = here.map(Cell::workload).collect();
            runs.0.extend(self.sweep(workloads, machine, schedulers.clone(), seeds)?.0);
        }
        Ok(runs)
    }
}

/// Reports by cell, contestant and seed.
#[derive(Debug, Default)]
pub struct Runs(pub simulated::Runs);

/// The mean turn-around time, in ms.
pub fn tat(report: &Report) -> f64 {
    report.tat.mean_ms
}

impl Runs {
    /// A figure of all runs of this workload, by seed.
    pub fn of(
        &self,
        workload: &str,
        machine: &str,
        contestant: &Contestant,
        slice_us: u64,
        value: Value,
    ) -> Vec<f64> {
        let Ok(scheduler) = contestant.scheduler(slice_us) else { return Vec::new() };
        self.0.of(workload, machine, &scheduler, value)
    }

    /// A figure of a cell, by seed.
    pub fn values(
        &self,
        cell: &Cell,
        contestant: &Contestant,
        slice_us: u64,
        value: Value,
    ) -> Vec<f64> {
        self.of(&cell.workload(), cell.table.system, contestant, slice_us, value)
    }

    /// What a contestant gains over the unaware one in a cell, in percent of the turn-around time, by
    /// seed: both had the same processes.
    pub fn gains_pct(&self, cell: &Cell, contestant: &Contestant, slice_us: u64) -> Vec<f64> {
        let unaware = self.values(cell, &UNAWARE, slice_us, tat);
        let theirs = self.values(cell, contestant, slice_us, tat);
        unaware.iter().zip(&theirs).map(|(unaware, ours)| 100.0 * (1.0 - ours / unaware)).collect()
    }

    /// The median gain of a cell; 0 if nothing was run.
    pub fn gain_pct(&self, cell: &Cell, contestant: &Contestant, slice_us: u64) -> f64 {
        median(&self.gains_pct(cell, contestant, slice_us))
    }

    /// The mean of the median gains of cells.
    pub fn mean_gain_pct(&self, cells: &[Cell], contestant: &Contestant, slice_us: u64) -> f64 {
        mean(cells.iter().map(|cell| self.gain_pct(cell, contestant, slice_us)))
    }
}

/// A panel of cells: a place for each, named by its number of processes, and the values of each series.
pub fn panel(
    id: &str,
    title: &str,
    y: &str,
    cells: &[Cell],
    series: Vec<(String, Vec<Option<Point>>)>,
) -> Panel {
    Panel {
        id: id.to_owned(),
        title: title.to_owned(),
        x: "processes".to_owned(),
        y: y.to_owned(),
        places: cells.iter().map(|cell| cell.row.processes.to_string()).collect(),
        series: series.into_iter().map(|(name, points)| Series { name, points }).collect(),
    }
}

/// A table as the page calls it.
pub fn name_of(table: &Table) -> String {
    format!("{} {}", table.system.to_uppercase(), table.workload.to_uppercase())
}

/// The cells of one machine.
pub fn on<'a>(cells: &'a [Cell], system: &'a str) -> Vec<Cell> {
    cells.iter().filter(|cell| cell.table.system == system).copied().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_are_thirty_cells_and_six_in_short() {
        assert_eq!(Lab::new(false, None).unwrap().cells().len(), 30);
        let quick = Lab::new(true, None).unwrap();
        assert_eq!((quick.cells().len(), quick.seeds()), (6, 2));
        assert_eq!(Lab::new(true, Some(7)).unwrap().seeds(), 7);
    }

    #[test]
    fn gains_are_paired_by_seed() {
        let lab = Lab::new(true, None).unwrap();
        let cells = &lab.cells()[..1];
        let runs = lab.simulate(cells, &[UNAWARE], &[SLICE_US], 3, |_| Ok(())).unwrap();
        assert_eq!(runs.values(&cells[0], &UNAWARE, SLICE_US, tat).len(), 3);
        assert_eq!(runs.gains_pct(&cells[0], &UNAWARE, SLICE_US), [0.0; 3]);
        assert_eq!(runs.gain_pct(&cells[0], &super::super::contestant::OURS, SLICE_US), 0.0);
    }
}
