//! The cells at other lengths of a slice than the one that was fitted.

use anyhow::Result;
use evenkeel_sim::paper002::TABLES;

use super::contestant::{ALGORITHM, OURS, UNAWARE};
use super::runs::{Lab, mean, panel, tat};
use crate::repro::study::{Finding, Part, Point, Status};

/// The keel's default, and nearly until they end.
const SLICES_US: [u64; 2] = [4_000, 240_000];

/// Gains with slices of 4 and 240 ms.
///
/// # Errors
/// Something cannot be simulated.
pub fn measure(lab: &Lab) -> Result<Part> {
    let cells = lab.cells();
    let contestants = [UNAWARE, ALGORITHM, OURS];
    let runs = lab.simulate(&cells, &contestants, &SLICES_US, lab.seeds(), |_| Ok(()))?;
    let mut findings = Vec::new();
    for slice_us in SLICES_US {
        let gains = |contestant| {
            cells.iter().map(|cell| runs.gain_pct(cell, contestant, slice_us)).collect::<Vec<_>>()
        };
        let (algorithm, ours) = (gains(&ALGORITHM), gains(&OURS));
        let as_much = ours.iter().zip(&cells).filter(|(gain, cell)| **gain >= cell.row.gain_pct);
        let as_much = as_much.count();
        let positive = algorithm.iter().filter(|gain| **gain > 0.0).count();
        let ms = slice_us / 1000;
        findings.push(Finding {
            claim: format!("with slices of {ms} ms Algorithm 1 gains"),
            paper: "3.2 to 9.2 %, in all cells".into(),
            ours: format!("{:.1} % on the average, in {positive} cells", mean(algorithm)),
            bound: "-".into(),
            status: Status::reproduced(positive == cells.len()),
        });
        findings.push(Finding {
            claim: format!("with slices of {ms} ms ours gains as much as the paper's"),
            paper: "in all cells".into(),
            ours: format!("in {as_much} of {}, {:.1} % on the average", cells.len(), mean(ours)),
            bound: "-".into(),
            status: Status::reached(as_much == cells.len()),
        });
    }
    let mut panels = Vec::new();
    for table in &TABLES {
        let cells = lab.rows(table);
        let mut series = Vec::new();
        for slice_us in SLICES_US {
            for contestant in [ALGORITHM, OURS] {
                let name = format!("{}, {} ms", contestant.name, slice_us / 1000);
                let gains = |cell| Point::of(&runs.gains_pct(cell, &contestant, slice_us));
                series.push((name, cells.iter().map(gains).collect()));
            }
            let name = format!("unaware time by the paper's, {} ms", slice_us / 1000);
            let ratio = |cell: &super::runs::Cell| {
                let times = runs.values(cell, &UNAWARE, slice_us, tat);
                let ratios = times.iter().map(|ms| 100.0 * ms / cell.row.tat_unaware_ms);
                Point::of(&ratios.collect::<Vec<_>>())
            };
            series.push((name, cells.iter().map(ratio).collect()));
        }
        let name = format!("{} {}", table.system.to_uppercase(), table.workload.to_uppercase());
        let id = format!("slices-{}-{}", table.system, table.workload);
        let title = format!("{name}: gains by the length of a slice");
        panels.push(panel(&id, &title, "%", &cells, series));
    }
    Ok(Part {
        title: "Slices of 4 ms and of 240 ms".into(),
        method: "The paper's balancer is about who runs where, not about turns; but what a balance of \
                 loads is worth depends on how long turns are. With short ones processes that share a \
                 CPU all end late, and who is left alone ends early; with long ones they run one after \
                 the other."
            .into(),
        findings,
        panels,
        ..Part::default()
    })
}
