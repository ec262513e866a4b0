//! Paper 004: Lim, Min, Eom, "Load-Balancing for Improving User Responsiveness on Multicore Embedded
//! Systems": what its zones do to migrations, waits and throughput, over utilisation and on machines of
//! 4 to 128 CPUs, simulated with the keel's own source.
//!
//! | file | the one thing in it |
//! |---|---|
//! | `contestant` | which gates take part |
//! | `utilisation` | the gates over utilisation |
//! | `patience` | what it costs and saves to wait longer before the gate is not asked any more |
//! | `workloads` | what the gate costs on the other papers' loads |
//! | `combinations` | all eight combinations of the keel's policies |

mod combinations;
mod contestant;
mod patience;
mod utilisation;
mod workloads;

use anyhow::Result;
use evenkeel_sim::Report;

use contestant::WARM_HIGH_LEVEL;

use super::simulated::{Measure, Simulated, Simulator};
use super::study::Part;
use super::{Options, Paper};

const TITLE: &str = "Lim, Min, Eom: Load-Balancing for Improving User Responsiveness on Multicore \
                     Embedded Systems";
/// Seeds of each case, unless said otherwise.
const SEEDS: u64 = 5;
const QUICK_SEEDS: u64 = 1;

/// All parts, and what makes them.
const PARTS: [(&str, Measure<Scale>); 5] = [
    ("figure-7", |_| Ok(latency())),
    ("utilisation", utilisation::measure),
    ("patience", patience::measure),
    ("workloads", workloads::measure),
    ("combinations", combinations::measure),
];

const SIMULATED: Simulated<Scale> = Simulated {
    number: "004",
    title: TITLE,
    machines: "machines of 4 to 128 CPUs",
    parts: &PARTS,
    lab: Scale::new,
};

/// The paper.
pub const PAPER: Paper = Paper {
    number: SIMULATED.number,
    parts: || SIMULATED.names(),
    measure: |chosen, options, so_far| SIMULATED.measure(chosen, options, so_far),
};

/// How much is simulated.
struct Scale {
    simulator: Simulator,
    is_quick: bool,
    seeds: u64,
}

impl Scale {
    fn new(options: &Options) -> Result<Self> {
        let usual = if options.quick { QUICK_SEEDS } else { SEEDS };
        Ok(Self {
            simulator: Simulator::new()?,
            is_quick: options.quick,
            seeds: options.runs.map_or(usual, |seeds| seeds as u64),
        })
    }

    /// As for a look.
    #[cfg(test)]
    fn quick() -> Self {
        Self { simulator: Simulator::new().unwrap(), is_quick: true, seeds: QUICK_SEEDS }
    }
}

fn migrations(report: &Report) -> f64 {
    report.migrations.iter().map(|kind| kind.count).sum::<u64>() as f64 * 1000.0
        / report.makespan_ms
}

/// What needs a kernel whose runqueues are locked.
fn latency() -> Part {
    Part::cannot(
        "figure-7",
        "Figure 7: the latency of an urgent task",
        "at warm-high a pinned real-time task wakes up sooner under heavy load",
        "72 to 31 us on the average (2.3 times)",
        "a simulated CPU is never kept from a real-time task by locks; how often anybody is moved, which \
         is what the paper found behind it, stands with the part `utilisation`"
            .into(),
    )
}
