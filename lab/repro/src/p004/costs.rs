//! What balancing costs, in the paper's three kinds (its section 2): directly, by looking for tasks and
//! moving them; indirectly, by caches that are cold then; and in latency, by CPUs that are closed to
//! urgent tasks meanwhile. The simulations are those of the part `utilisation`.

use anyhow::Result;
use evenkeel_sim::Report;

use super::Scale;
use super::contestant::{ALWAYS, WARM_HIGH};
use super::utilisation::range;
use crate::simulated::Value;
use crate::study::{Finding, Part, Status};

/// How much of the latency that moves cost is to be removed, in percent.
const REMOVED_PCT: f64 = 80.0;
/// Delays are told for so many wake-ups.
const WAKEUPS: f64 = 1000.0;

/// From ms of the whole simulation to ms of each second, of all CPUs together.
fn a_second(ms: f64, report: &Report) -> f64 {
    ms * 1000.0 / report.makespan_ms
}

fn direct(report: &Report) -> f64 {
    a_second(report.balancing_ms, report)
}

fn indirect(report: &Report) -> f64 {
    a_second(report.refill_ms, report)
}

fn both(report: &Report) -> f64 {
    direct(report) + indirect(report)
}

fn latency(report: &Report) -> f64 {
    WAKEUPS * report.closed_ns
}

fn latency_of_moves(report: &Report) -> f64 {
    WAKEUPS * report.closed_by_moves_ns
}

/// What is shown of each size of machine.
const SHOWN: [(&str, &str, Value); 4] = [
    ("direct", "direct: looking for tasks and moving them, ms a second", direct),
    ("indirect", "indirect: filling caches again after moves, ms a second", indirect),
    ("closed", "latency: an urgent task waits for balancing, ns in 1000 wake-ups", latency),
    ("closed-by-moves", "of that for moves, ns in 1000 wake-ups", latency_of_moves),
];

/// All three, of all gates.
///
/// # Errors
/// Something cannot be simulated.
pub fn measure(scale: &Scale) -> Result<Part> {
    let seen = scale.seen()?;
    let mut panels = Vec::new();
    for cpus in &seen.cpus {
        for shown in SHOWN {
            panels.push(seen.panel(*cpus, shown));
        }
    }
    let falls = |claim: &str, value: Value| {
        let (least, most) = range(&seen.in_band(WARM_HIGH, value));
        Finding::new(
            format!(
                "from 40 to 75 % warm-high has less of {claim} than a gate that is always open"
            ),
            "less (no figure)",
            format!("{least:.2} to {most:.2} times as much"),
            Status::reproduced(most < 1.0),
        )
    };
    let (little, much) = range(&seen.all_in_band(ALWAYS, latency_of_moves));
    let removed = |by: f64| 100.0 * (1.0 - by);
    let (least, most) = range(&seen.in_band(WARM_HIGH, latency_of_moves));
    let findings = vec![
        falls("the direct cost", direct),
        falls("the indirect cost", indirect),
        falls("both together", both),
        falls("the latency cost", latency),
        Finding::new(
            "and removes what moves alone cost urgent tasks",
            format!("{REMOVED_PCT:.0} % of it at least (our aim)"),
            format!(
                "{:.0} to {:.0} %, of {little:.1} to {much:.1} ns in 1000 wake-ups with the gate \
                 always open: where CPUs idle, that one moves few tasks but those that wake up, which \
                 takes one lock",
                removed(most),
                removed(least)
            ),
            Status::reached(removed(most) >= REMOVED_PCT),
        ),
    ];
    Ok(Part {
        title: "The three costs apart".into(),
        method: "Of the same simulations. *Direct* is the time of all CPUs in which they look through \
                 domains and queues, and hold two runqueues' locks to move a task; *indirect* the \
                 time in which tasks that were moved fill caches again; what a look, a lock and a \
                 refill take is the simulator's table of costs ([simulator](../simulator.md)). \
                 *Latency* is calculated: looks and moves are made with interrupts off, so an urgent \
                 task that is to wake up at any time on any CPU finds it within a stretch that takes \
                 L in L of all the time, and waits then for half of it; a move closes both CPUs. Of \
                 that, *for moves* is what would not be if the locks took no time. A task that wakes \
                 up and goes to an idle CPU takes one lock as if it stayed: only pulling takes two."
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
    fn each_cost_is_one_of_all_gates_and_they_differ() {
        let part = measure(&Scale::new(true, None).unwrap()).unwrap();
        assert_eq!((part.panels.len(), part.findings.len()), (SHOWN.len(), 5));
        let at_60 = |id: &str, name: &str| {
            let panel = part.panels.iter().find(|panel| panel.id.starts_with(id)).unwrap();
            let of = panel.series.iter().find(|series| series.name == name).unwrap();
            of.points[2].unwrap().median
        };
        assert!(at_60("indirect", WARM_HIGH) < at_60("indirect", "always"));
        for id in ["direct", "closed"] {
            assert!(at_60(id, "always") > 0.0, "{id}");
        }
    }
}
