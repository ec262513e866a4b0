//! Many simulations, and what they say of a cell.

use anyhow::Result;
use evenkeel_machine::Machine;
use evenkeel_sim::Report;
pub use evenkeel_sim::paper002::Homes;
use evenkeel_sim::paper002::{Reading, Row, TABLES, Table};
use evenkeel_trial::again;

use super::contestant::{UNAWARE, contestants};
use crate::simulated::{self, Seeds, ratios};
pub use crate::simulated::{Lab, Value, mean, median};
use crate::study::{Panel, Point};

/// How many seeds each cell is simulated with.
pub const SEEDS: Seeds = Seeds { usual: 32, quick: 2 };
/// The slice that was fitted (see `fit`), in us.
pub const SLICE_US: u64 = 120_000;
/// The rest of the reading that was fitted.
pub const READING: Reading =
    Reading { pace_pct: 48, random_gap_ns: 2_000_000, almost_gap_ns: 20_000 };
/// The mean of the paper's 30 gains.
pub const PAPERS_MEAN_PCT: f64 = 5.4;
/// The paper's machines, the smallest first.
pub const SYSTEMS: [&str; 3] = ["amc1", "amc2", "amc3"];

/// One of the paper's 30 cells.
#[derive(Debug, Clone, Copy)]
pub struct Cell {
    /// Its table.
    pub table: &'static Table,
    /// Its row in that table.
    pub row: &'static Row,
    /// Where the processes have their memory.
    pub homes: Homes,
}

impl Cell {
    /// Its name as a workload.
    pub fn workload(&self) -> String {
        self.workload_by(&READING)
    }

    /// The same by another reading of the paper.
    fn workload_by(&self, reading: &Reading) -> String {
        let Table { system, workload, .. } = self.table;
        let (processes, homes) = (self.row.processes, self.homes as u64);
        let Reading { pace_pct, random_gap_ns, almost_gap_ns } = *reading;
        let (random_us, almost_us) = (random_gap_ns / 1000, almost_gap_ns / 1000);
        format!(
            "paper002:system={system},table={workload},processes={processes},pace={pace_pct},\
             random={random_us}us,almost={almost_us}us,homes={homes}"
        )
    }

    /// The same processes with memory elsewhere, or told otherwise.
    pub fn with(self, homes: Homes) -> Self {
        Self { homes, ..self }
    }
}

impl Lab {
    /// The cells of a table.
    pub fn rows(&self, table: &'static Table) -> Vec<Cell> {
        let rows = if self.is_quick { &table.rows[..1] } else { &table.rows[..] };
        rows.iter().map(|row| Cell { table, row, homes: Homes::AtFork }).collect()
    }

    /// The cells of all tables.
    pub fn cells(&self) -> Vec<Cell> {
        TABLES.iter().flat_map(|table| self.rows(table)).collect()
    }

    /// Simulates cells, each on its machine as `change` makes it, under the unaware balancer and these
    /// contestants.
    ///
    /// # Errors
    /// Something cannot be simulated.
    pub fn simulate(
        &self,
        cells: &[Cell],
        names: &[&str],
        slice_us: u64,
        seeds: u64,
        change: impl Fn(&mut Machine) -> Result<()>,
    ) -> Result<Runs> {
        let contestants = contestants(&[&[UNAWARE], names].concat(), slice_us)?;
        let mut runs = Runs::default();
        for system in SYSTEMS {
            let here = cells.iter().filter(|cell| cell.table.system == system);
            let mut machine = Machine::preset(system)?;
            change(&mut machine)?;
            // By the preset's name, so that changed machines are found as the same cells.
            machine.name = system.to_owned();
            let workloads: Vec<String> = here.map(Cell::workload).collect();
            runs.0.extend(self.run(&machine, &workloads, &contestants, seeds)?);
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
    /// A figure of a cell, by seed.
    pub fn values(&self, cell: &Cell, name: &str, value: Value) -> Vec<f64> {
        self.0.of(cell.table.system, &cell.workload(), name, value)
    }

    /// The figure with its interval.
    pub fn point(&self, cell: &Cell, name: &str, value: Value) -> Option<Point> {
        Point::of(&self.values(cell, name, value))
    }

    /// By how much a figure is less than under the unaware balancer, in percent, by seed: both had the
    /// same processes.
    pub fn less_pct(&self, cell: &Cell, name: &str, value: Value) -> Vec<f64> {
        self.less_than_pct(cell, (UNAWARE, name), value)
    }

    /// The same against another baseline.
    pub fn less_than_pct(
        &self,
        cell: &Cell,
        (baseline, name): (&str, &str),
        value: Value,
    ) -> Vec<f64> {
        let before = self.values(cell, baseline, value);
        let ratios = ratios(&self.values(cell, name, value), &before);
        ratios.iter().map(|ratio| 100.0 * (1.0 - ratio)).collect()
    }

    /// What a contestant gains in a cell, in percent of the turn-around time, by seed.
    pub fn gains_pct(&self, cell: &Cell, name: &str) -> Vec<f64> {
        self.less_pct(cell, name, tat)
    }

    /// The median gain of a cell; 0 if nothing was run.
    pub fn gain_pct(&self, cell: &Cell, name: &str) -> f64 {
        median(&self.gains_pct(cell, name))
    }

    /// The mean of the median gains of cells.
    pub fn mean_gain_pct(&self, cells: &[Cell], name: &str) -> f64 {
        mean(cells.iter().map(|cell| self.gain_pct(cell, name)))
    }
}

/// A contestant's mean gains, and those of the A/A line: a series for each machine, a point for each of
/// these runs.
pub fn mean_gains(all: &[Runs], cells: &[Cell], name: &str) -> Vec<(String, Vec<Option<Point>>)> {
    let series = |system: &&str| {
        let (here, title) = (on(cells, system), system.to_uppercase());
        [(name.to_owned(), title.clone()), (again(UNAWARE), again(&title))].map(|(name, title)| {
            let gains = all.iter().map(|runs| runs.mean_gain_pct(&here, &name));
            (title, gains.map(|gain| Some(Point::once(gain))).collect())
        })
    };
    SYSTEMS.iter().flat_map(series).collect()
}

/// A panel of cells: a place for each, named by its number of processes.
pub fn panel<S: ToString>(
    id: &str,
    title: &str,
    y: &str,
    cells: &[Cell],
    series: impl IntoIterator<Item = (S, Vec<Option<Point>>)>,
) -> Panel {
    let places = cells.iter().map(|cell| cell.row.processes);
    Panel::new([id, title, "processes", y], places, series)
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
    use evenkeel_sim::program::Workload;

    use super::*;

    #[test]
    fn there_are_thirty_cells_and_six_in_short() {
        assert_eq!(Lab::new(SEEDS, false, None).unwrap().cells().len(), 30);
        assert_eq!(Lab::quick(2).cells().len(), 6);
    }

    #[test]
    fn the_paper_s_mean_gain_is_that_of_its_tables() {
        let gains = TABLES.iter().flat_map(|table| table.rows.iter().map(|row| row.gain_pct));
        assert!((mean(gains) - PAPERS_MEAN_PCT).abs() < 0.05);
    }

    #[test]
    fn a_cell_has_the_processes_of_its_whole_reading() {
        let reading = Reading { pace_pct: 50, random_gap_ns: 3_000_000, almost_gap_ns: 40_000 };
        let all = [Homes::FirstRun, Homes::AtFork, Homes::Real, Homes::RealAtFork];
        for (cell, homes) in Lab::quick(1).cells().iter().zip(all.into_iter().cycle()) {
            let cell = cell.with(homes);
            let mut wanted = cell.table.workload(cell.row.processes, &reading, 1);
            homes.give(cell.table.nodes, &mut wanted.tasks, 1);
            let text = cell.workload_by(&reading);
            let made = Workload::by_name(&text, 1).unwrap();
            assert!(made.tasks == wanted.tasks, "{text}");
        }
    }

    #[test]
    fn gains_are_paired_by_seed() {
        let lab = Lab::quick(2);
        let cells = &lab.cells()[..1];
        let runs = lab.simulate(cells, &[], SLICE_US, 3, |_| Ok(())).unwrap();
        assert_eq!(runs.gains_pct(&cells[0], UNAWARE), [0.0; 3]);
        assert_eq!(
            runs.gain_pct(&cells[0], super::super::contestant::ORACLE),
            0.0,
            "nothing was run"
        );
        // The A/A line has other processes, so that it shows what their draw does.
        let again = runs.gains_pct(&cells[0], "unaware again");
        assert!(again.len() == 3 && again.iter().all(|gain| *gain != 0.0), "{again:?}");
    }
}
