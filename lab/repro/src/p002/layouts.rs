//! Where the speed cores sit: the paper says only that half of the cores are.

use anyhow::Result;
use evenkeel_machine::{CAPABILITY_SCALE, Machine};

use super::contestant::{ALGORITHM, ORACLE};
use super::runs::{Lab, PAPERS_MEAN_PCT, Runs, SLICE_US, mean_gains};
use crate::study::{Finding, Panel, Part, Status};

const SEEDS: u64 = 10;

/// Whether the `cpu`th CPU of the `node`th of so many nodes is a speed core.
type IsFast = fn(cpu: usize, node: usize, cpus: usize, nodes: usize) -> bool;

const LAYOUTS: [(&str, IsFast); 3] = [
    ("half of each node", |cpu, _, cpus, _| cpu < cpus / 2),
    ("every other node", |_, node, _, _| node % 2 == 0),
    ("the first half of the nodes", |_, node, _, nodes| node < nodes / 2),
];

fn place(machine: &mut Machine, is_fast: IsFast) {
    let nodes = machine.nodes.len();
    for (at, node) in machine.nodes.iter().enumerate() {
        for (index, id) in node.cpus.iter().enumerate() {
            if let Some(cpu) = machine.cpus.iter_mut().find(|cpu| cpu.id == id) {
                let fast = is_fast(index, at, node.cpus.len(), nodes);
                cpu.capability = if fast { CAPABILITY_SCALE } else { CAPABILITY_SCALE / 2 };
            }
        }
    }
}

/// Gains for each layout.
///
/// # Errors
/// Something cannot be simulated.
pub fn measure(lab: &Lab) -> Result<Part> {
    let cells = lab.cells();
    let seeds = lab.seeds.min(SEEDS);
    let simulate = |(_, is_fast): &(&str, IsFast)| {
        lab.simulate(&cells, &[ALGORITHM, ORACLE], SLICE_US, seeds, |machine| {
            place(machine, *is_fast);
            Ok(())
        })
    };
    let all: Vec<Runs> = LAYOUTS.iter().map(simulate).collect::<Result<_>>()?;
    let panel = |id: &str, name: &str| {
        let series = mean_gains(&all, &cells, name);
        let title = format!("Mean gain of {name} by layout");
        let texts = [id, &title, "speed cores", "mean gain over unaware, %"];
        Panel::new(texts, LAYOUTS.map(|(name, _)| name), series)
    };
    let panels = vec![panel("layouts-algorithm", ALGORITHM), panel("layouts-ours", ORACLE)];
    let least: Vec<f64> = all.iter().map(|runs| runs.mean_gain_pct(&cells, ORACLE)).collect();
    let (low, high) = (
        least.iter().copied().fold(f64::INFINITY, f64::min),
        least.iter().copied().fold(f64::NEG_INFINITY, f64::max),
    );
    Ok(Part {
        title: "Where the speed cores sit".into(),
        method:
            "The paper does not say it. The machines have them as half of each node; here they are \
                 put elsewhere, and everything else stays."
                .into(),
        findings: vec![Finding::new(
            "the oracle's mean gain is above the paper's wherever they sit",
            format!("{PAPERS_MEAN_PCT} %"),
            format!("{low:.1} to {high:.1} % on the average of all cells"),
            Status::reached(low > PAPERS_MEAN_PCT),
        )],
        panels,
        ..Part::default()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn half_of_the_cores_are_fast_in_every_layout() {
        for system in ["amc1", "amc2", "amc3"] {
            let preset = Machine::preset(system).unwrap();
            let machines = LAYOUTS.map(|(_, is_fast)| {
                let mut machine = preset.clone();
                place(&mut machine, is_fast);
                machine
            });
            for machine in &machines {
                let fast = machine.cpus.iter().filter(|cpu| cpu.capability == 1024).count();
                assert_eq!(2 * fast, machine.cpus.len());
            }
            assert_eq!(machines[0], preset, "the machines' own layout");
            assert_ne!(machines[1], machines[2]);
        }
    }
}
