//! Section 2.3, "Overhead of IAS": threads that are created and joined, with a bonus of 0.

use anyhow::Result;
use evenkeel_sim::Report;

use super::lab::{Bonus, FAIR, Lab, quad, time_ms, with_fair};
use crate::simulated::median;
use crate::study::{Finding, Part, Status};

/// Loads on which every decision is compared.
const LOADS: [&str; 3] = ["spawn:threads=5000", "memory:total=2", "tiers:requests=10"];
const QUICK_LOADS: [&str; 1] = ["spawn:threads=200"];

/// The contestant.
const NONE: &str = "bonus 0";

/// The hash of all that happened: where it is the same, everything was. (Of its 64 bits a `f64` keeps
/// 53.)
fn history(report: &Report) -> f64 {
    u64::from_str_radix(&report.hash, 16).map_or(f64::NAN, |hash| hash as f64)
}

/// A bonus of 0 against `fair`.
///
/// # Errors
/// Something cannot be simulated.
pub fn measure(lab: &Lab) -> Result<Part> {
    let loads = if lab.is_quick { &QUICK_LOADS[..] } else { &LOADS[..] };
    let loads: Vec<String> = loads.iter().map(|&load| load.to_owned()).collect();
    let contestants = with_fair([(NONE, Bonus::Times(0))])?;
    let machine = quad(1.0)?;
    let mut free = machine.clone();
    free.costs.scan_ns = 0;
    let (decided, timed) = (
        lab.see(&loads, &free, &contestants, lab.seeds)?,
        lab.see(&loads, &machine, &contestants, lab.seeds)?,
    );
    let (mut same, mut all) = (0, 0);
    for load in &loads {
        let (fair, zero) = (decided.of(load, FAIR, history), decided.of(load, NONE, history));
        same += fair.iter().zip(&zero).filter(|(fair, zero)| fair == zero).count();
        all += fair.len();
    }
    let longer_pct = 100.0 * (median(&timed.by_fair(&loads[0], NONE, time_ms)) - 1.0);
    Ok(Part {
        title: "Overhead: threads that are created and joined, bonus 0".into(),
        method: format!(
            "{}; all programs aggregate with a bonus of 0. First looking at a queue is free: then the \
             whole history must be that under `fair`, event by event (the simulator's hash of it). \
             Then it takes 50 ns an entry, as always here: `ias` looks at the queue's head where \
             `fair` need not. What it costs a real kernel, in instructions, is counted by \
             `evenkeel-lab bench ias`.",
            loads.iter().map(|load| format!("`{load}`")).collect::<Vec<_>>().join(", ")
        ),
        findings: vec![
            Finding::new(
                "with a bonus of 0 threads are scheduled by CFS's priorities",
                "so by construction",
                format!("the same history in {same} of {all} runs"),
                Status::reproduced(same == all),
            ),
            Finding::new(
                "creating and joining threads takes 1 % longer with a bonus of 0",
                "1 %",
                format!("{longer_pct:+.3} % in simulated time"),
                Status::substitute(longer_pct <= 1.0),
            ),
        ],
        ..Part::default()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_different_without_a_bonus() {
        let part = measure(&Lab::quick(2)).unwrap();
        assert_eq!(part.findings[0].ours, "the same history in 2 of 2 runs");
    }
}
