//! What is left of the oracle's gain where the keel is told of memory as a real kernel tells it.

use anyhow::Result;
use evenkeel_sim::paper002::{ERROR_PCT, LEARNED_AFTER_NS, TABLES};
use evenkeel_trial::again;

use super::contestant::{ALGORITHM, ALGORITHM_WHOLE, ORACLE, OURS, UNAWARE};
use super::figures::{FIGURES, TIME, none_is_worse, worse};
use super::runs::{Cell, Homes, Lab, PAPERS_MEAN_PCT, Runs, SLICE_US, SYSTEMS, name_of, on, panel};
use crate::study::{Finding, Part, Point, Status};

/// Seeds of the cells with all memory where processes first run.
const FIRST_RUN_SEEDS: u64 = 5;

fn with(cells: &[Cell], homes: Homes) -> Vec<Cell> {
    cells.iter().map(|cell| cell.with(homes)).collect()
}

/// The mean gain of all cells, and by machine.
fn mean_gains(runs: &Runs, cells: &[Cell], name: &str) -> String {
    let by_system =
        SYSTEMS.map(|system| format!("{:.1}", runs.mean_gain_pct(&on(cells, system), name)));
    format!("{name} {:.1} % ({})", runs.mean_gain_pct(cells, name), by_system.join(", "))
}

/// All cells with memory and signals as under a real kernel.
///
/// # Errors
/// Something cannot be simulated.
pub fn measure(lab: &Lab) -> Result<Part> {
    let simulate = |cells: &[Cell], names: &[&str], seeds| {
        lab.simulate(cells, names, SLICE_US, seeds, |_| Ok(()))
    };
    let cells = lab.cells();
    let [real, known, first] =
        [Homes::Real, Homes::RealAtFork, Homes::FirstRun].map(|homes| with(&cells, homes));
    let of_real = simulate(&real, &[ALGORITHM, ALGORITHM_WHOLE, OURS], lab.seeds)?;
    let of_known = simulate(&known, &[ORACLE], lab.seeds)?;
    let of_first =
        simulate(&first, &[ALGORITHM, ALGORITHM_WHOLE, OURS], lab.seeds.min(FIRST_RUN_SEEDS))?;
    let gain = of_real.mean_gain_pct(&real, OURS);
    let mut findings = vec![Finding::new(
        "mean gain of ours with signals as a real kernel gives them (AMC1, AMC2, AMC3)",
        format!("{PAPERS_MEAN_PCT} % or more"),
        format!(
            "{}; {}; {}; {}",
            mean_gains(&of_real, &real, OURS),
            mean_gains(&of_known, &known, ORACLE),
            mean_gains(&of_real, &real, ALGORITHM),
            mean_gains(&of_real, &real, ALGORITHM_WHOLE),
        ),
        Status::reached(gain >= PAPERS_MEAN_PCT),
    )];
    for figure in std::iter::once(&TIME).chain(&FIGURES) {
        let worse = worse(&real, &of_real, (UNAWARE, OURS), figure)?;
        let claim = format!("our {} with these signals against unaware", figure.0.name);
        findings.push(none_is_worse(claim, &worse));
    }
    findings.push(Finding::new(
        "mean gains where each process's memory is where it first runs, and no node is told (AMC1, \
         AMC2, AMC3)",
        "-",
        [ALGORITHM, ALGORITHM_WHOLE, OURS]
            .map(|name| mean_gains(&of_first, &first, name))
            .join("; "),
        Status::Reported,
    ));
    let by_table = TABLES.iter().map(|table| {
        let cells = lab.rows(table);
        let gains = |runs: &Runs, homes, name: &str| {
            let of = |cell: &Cell| Point::of(&runs.gains_pct(&cell.with(homes), name));
            (name.to_owned(), cells.iter().map(of).collect::<Vec<_>>())
        };
        let series = [
            gains(&of_real, Homes::Real, ALGORITHM),
            gains(&of_real, Homes::Real, OURS),
            gains(&of_known, Homes::RealAtFork, ORACLE),
            gains(&of_real, Homes::Real, &again(UNAWARE)),
        ];
        let id = format!("signals-{}-{}", table.system, table.workload);
        let title = format!("{}: gain by what the kernel tells", name_of(table));
        panel(&id, &title, "gain over unaware, %", &cells, series)
    });
    Ok(Part {
        title: "Signals as a real kernel gives them".into(),
        method: format!(
            "{} seeds of each cell. Half of the processes have memory on a node that the kernel names \
             at fork: bound there by a mempolicy, or forked without exec, with the parent's memory. A \
             quarter call exec: their memory is where they first run, so that they are placed by load, \
             and kept there by that. A quarter have memory elsewhere, which only shows as they use it: \
             the node is told {} ms after they first run, and for {ERROR_PCT} % of them it is a wrong \
             one. Nodes are drawn at random. The paper says nothing of all this: the mix is ours. The \
             *oracle* has the same memory and is told at fork of all that there is then.",
            lab.seeds,
            LEARNED_AFTER_NS / 1_000_000,
        ),
        findings,
        panels: by_table.collect(),
        ..Part::default()
    })
}

#[cfg(test)]
mod tests {
    use super::super::runs::tat;
    use super::*;

    #[test]
    fn every_cell_has_all_signals() {
        let part = measure(&Lab::quick(2)).unwrap();
        assert_eq!((part.panels.len(), part.findings.len()), (TABLES.len(), 3 + FIGURES.len()));
        for panel in &part.panels {
            let points = panel.series.iter().flat_map(|series| series.points.iter().flatten());
            assert_eq!(points.count(), panel.places.len() * panel.series.len(), "{}", panel.id);
        }
    }

    /// What the kernel tells changes nothing for a balancer that does not ask.
    #[test]
    fn the_oracle_and_ours_differ_only_in_what_they_are_told() {
        let lab = Lab::quick(2);
        let cell = lab.cells()[4];
        let cells = [Homes::Real, Homes::RealAtFork].map(|homes| cell.with(homes));
        let runs = lab.simulate(&cells, &[OURS, ORACLE], SLICE_US, 2, |_| Ok(())).unwrap();
        let times = |name| cells.map(|cell| runs.values(&cell, name, tat));
        let [real, known] = times(UNAWARE);
        assert_eq!(real, known);
        let ([ours, ours_known], [oracle, oracle_known]) = (times(OURS), times(ORACLE));
        assert_eq!((&ours, &ours_known), (&oracle, &oracle_known));
        assert_ne!(ours, ours_known, "it is told earlier, and nothing wrong");
    }
}
