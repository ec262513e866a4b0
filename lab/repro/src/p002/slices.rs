//! The cells at other lengths of a slice than the one that was fitted.

use anyhow::Result;
use evenkeel_sim::paper002::{TABLES, Table};

use super::contestant::{ALGORITHM, ORACLE, UNAWARE};
use super::figures::{FIGURES, none_is_worse, worse};
use super::runs::{Cell, Lab, Runs, Value, mean, median, name_of, panel, tat};
use crate::simulated::with_again;
use crate::study::{Finding, Panel, Part, Point, Status};

/// The keel's default, and nearly until they end.
const SLICES_US: [u64; 2] = [4_000, 240_000];

/// What a gain is paid with, if anything: the mean of all cells of each other figure.
fn besides(cells: &[Cell], runs: &Runs, name: &str) -> String {
    let means = FIGURES.each_ref().map(|(metric, value)| {
        let medians = cells.iter().map(|cell| median(&runs.less_pct(cell, name, *value)));
        // A smaller figure is negative here.
        format!("{} {:+.1} %", metric.name, 0.0 - mean(medians))
    });
    means.join(", ")
}

/// What else a slice of this length does in a table's cells.
fn others(table: &'static Table, lab: &Lab, runs: &Runs, slice_us: u64) -> Panel {
    let (cells, ms) = (lab.rows(table), slice_us / 1000);
    let mut series = Vec::new();
    for name in shown() {
        let others = FIGURES.iter().map(|(metric, value)| (metric.name, *value));
        for (figure, value) in std::iter::once(("turn-around time", tat as Value)).chain(others) {
            let points = cells.iter().map(|cell| Point::of(&runs.less_pct(cell, &name, value)));
            series.push((format!("{name}, {figure}"), points.collect()));
        }
    }
    let id = format!("slices-{}-{}-{ms}ms", table.system, table.workload);
    let title = format!("{}: all figures with slices of {ms} ms", name_of(table));
    panel(&id, &title, "less than unaware by, %", &cells, series)
}

/// The names with gains that are shown: the two, and the A/A line of the unaware balancer.
fn shown() -> Vec<String> {
    let mut names = with_again([UNAWARE, ALGORITHM, ORACLE]);
    names.remove(0);
    names
}

/// Gains with slices of 4 and 240 ms.
///
/// # Errors
/// Something cannot be simulated.
pub fn measure(lab: &Lab) -> Result<Part> {
    let cells = lab.cells();
    let all: Vec<Runs> = SLICES_US
        .iter()
        .map(|us| lab.simulate(&cells, &[ALGORITHM, ORACLE], *us, lab.seeds, |_| Ok(())))
        .collect::<Result<_>>()?;
    let mut findings = Vec::new();
    for (slice_us, runs) in SLICES_US.iter().zip(&all) {
        let gains = |name| cells.iter().map(|cell| runs.gain_pct(cell, name)).collect::<Vec<f64>>();
        let (algorithm, oracle) = (gains(ALGORITHM), gains(ORACLE));
        let as_much = oracle.iter().zip(&cells).filter(|(gain, cell)| **gain >= cell.row.gain_pct);
        let as_much = as_much.count();
        let positive = algorithm.iter().filter(|gain| **gain > 0.0).count();
        let ms = slice_us / 1000;
        findings.push(Finding::new(
            format!("with slices of {ms} ms Algorithm 1 gains"),
            "3.2 to 9.2 %, in all cells",
            format!(
                "{:.1} % on the average, in {positive} cells; on the average of all cells {}",
                mean(algorithm),
                besides(&cells, runs, ALGORITHM)
            ),
            Status::reproduced(positive == cells.len()),
        ));
        findings.push(Finding::new(
            format!("with slices of {ms} ms the oracle gains as much as the paper's"),
            "in all cells",
            format!(
                "in {as_much} of {}, {:.1} % on the average; on the average of all cells {}",
                cells.len(),
                mean(oracle),
                besides(&cells, runs, ORACLE)
            ),
            Status::reached(as_much == cells.len()),
        ));
        for figure in &FIGURES {
            let worse = worse(&cells, runs, (UNAWARE, ORACLE), figure)?;
            let name = figure.0.name;
            let claim = format!("with slices of {ms} ms the oracle's {name} against unaware");
            findings.push(none_is_worse(claim, &worse));
        }
    }
    let mut panels = Vec::new();
    for table in &TABLES {
        let cells = lab.rows(table);
        let mut series = Vec::new();
        for (slice_us, runs) in SLICES_US.iter().zip(&all) {
            let ms = slice_us / 1000;
            for name in shown() {
                let gains = |cell| Point::of(&runs.gains_pct(cell, &name));
                series.push((format!("{name}, {ms} ms"), cells.iter().map(gains).collect()));
            }
            let ratio = |cell: &Cell| {
                let times = runs.values(cell, UNAWARE, tat);
                let ratios = times.iter().map(|ms| 100.0 * ms / cell.row.tat_unaware_ms);
                Point::of(&ratios.collect::<Vec<_>>())
            };
            let name = format!("unaware time by the paper's, {ms} ms");
            series.push((name, cells.iter().map(ratio).collect()));
        }
        let name = name_of(table);
        let id = format!("slices-{}-{}", table.system, table.workload);
        let title = format!("{name}: gains by the length of a slice");
        panels.push(panel(&id, &title, "%", &cells, series));
        let each = SLICES_US.iter().zip(&all);
        panels.extend(each.map(|(slice_us, runs)| others(table, lab, runs, *slice_us)));
    }
    Ok(Part {
        title: "Slices of 4 ms and of 240 ms".into(),
        method: "The paper's balancer decides where processes run, not how long their turns are; but \
                 what a balance of loads is worth depends on how long turns are. With short ones \
                 processes that share a CPU all end late, and a process that is alone ends early; \
                 with long ones they run one after the other. A gain is told together with what it \
                 may be paid with: when the last process ends, how late the latest ones are, and how \
                 much slower each is than alone."
            .into(),
        findings,
        panels,
        ..Part::default()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_length_has_all_figures() {
        let part = measure(&Lab::quick(2)).unwrap();
        assert_eq!(part.panels.len(), TABLES.len() * (1 + SLICES_US.len()));
        assert_eq!(part.findings.len(), SLICES_US.len() * (2 + FIGURES.len()));
        for ms in SLICES_US.map(|us| us / 1000) {
            for name in FIGURES.each_ref().map(|(metric, _)| metric.name) {
                let is_told = |one: &&Finding| {
                    one.claim.contains(&format!("{ms} ms")) && one.ours.contains(name)
                };
                assert_eq!(part.findings.iter().filter(is_told).count(), 2, "{ms} {name}");
            }
        }
        for panel in &part.panels {
            let points = panel.series.iter().flat_map(|series| series.points.iter().flatten());
            assert_eq!(points.count(), panel.places.len() * panel.series.len(), "{}", panel.id);
        }
    }

    #[test]
    fn less_is_of_what_it_was() {
        let lab = Lab::quick(2);
        let cell = lab.cells()[0];
        let runs = lab.simulate(&[cell], &[ORACLE], SLICES_US[0], 2, |_| Ok(())).unwrap();
        assert_eq!(runs.less_pct(&cell, UNAWARE, tat), [0.0; 2]);
        assert!(besides(&[cell], &runs, UNAWARE).starts_with("makespan +0.0 %, "));
    }
}
