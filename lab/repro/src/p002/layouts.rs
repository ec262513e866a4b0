//! Where the speed cores sit: the paper says only that half of the cores are.

use anyhow::Result;
use evenkeel_machine::{CAPABILITY_SCALE, Machine};

use super::contestant::{ALGORITHM, OURS, UNAWARE};
use super::runs::{Lab, SLICE_US, on};
use crate::study::{Finding, Panel, Part, Point, Series, Status};

const SEEDS: u64 = 10;
/// The mean of the paper's 30 gains.
const PAPERS_MEAN_PCT: f64 = 5.4;

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
    let mut panels = Vec::new();
    let mut least = Vec::new();
    for contestant in [ALGORITHM, OURS] {
        panels.push(Panel {
            id: format!("layouts-{}", if contestant == OURS { "ours" } else { "algorithm" }),
            title: format!("Mean gain of {} by layout", contestant.name),
            x: "speed cores".into(),
            y: "mean gain over unaware, %".into(),
            ..Panel::default()
        });
    }
    for (name, is_fast) in LAYOUTS {
        let seeds = lab.seeds().min(SEEDS);
        let contestants = [UNAWARE, ALGORITHM, OURS];
        let runs = lab.simulate(&cells, &contestants, &[SLICE_US], seeds, |machine| {
            place(machine, is_fast);
            Ok(())
        })?;
        for (panel, contestant) in panels.iter_mut().zip([ALGORITHM, OURS]) {
            let series = ["amc1", "amc2", "amc3"].map(|system| {
                let gain = runs.mean_gain_pct(&on(&cells, system), &contestant, SLICE_US);
                Series { name: system.to_uppercase(), points: vec![Some(Point::once(gain))] }
            });
            panel.append(Panel { series: series.to_vec(), ..Panel::default() }, name);
        }
        least.push(runs.mean_gain_pct(&cells, &OURS, SLICE_US));
    }
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
            "our mean gain is above the paper's wherever they sit",
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
