//! Paper 004: Lim, Min, Eom, "Load-Balancing for Improving User Responsiveness on Multicore Embedded
//! Systems": what its zones do to migrations, waits and throughput, over utilisation and on machines of
//! 4 to 128 CPUs, simulated with the keel's own source.
//!
//! | file | the one thing in it |
//! |---|---|
//! | `contestant` | which gates take part |
//! | `utilisation` | the gates over utilisation |
//! | `costs` | what balancing costs there: directly, indirectly, and in latency |
//! | `patience` | what it costs and saves to wait longer before the gate is not asked any more |
//! | `workloads` | what the gate costs on the other papers' loads |
//! | `combinations` | all eight combinations of the keel's policies |

mod combinations;
mod contestant;
mod costs;
mod patience;
mod utilisation;
mod workloads;

use std::cell::OnceCell;

use anyhow::{Context, Result};
use evenkeel_sim::Report;

use contestant::WARM_HIGH_LEVEL;
use utilisation::Seen;

use super::simulated::{Measure, Simulated, Simulator};
use super::study::Part;
use super::{Options, Paper};

const TITLE: &str = "Lim, Min, Eom: Load-Balancing for Improving User Responsiveness on Multicore \
                     Embedded Systems";
/// Seeds of each case, unless said otherwise.
const SEEDS: u64 = 5;
const QUICK_SEEDS: u64 = 1;

/// All parts, and what makes them.
const PARTS: [(&str, Measure<Scale>); 6] = [
    ("figure-7", |_| Ok(latency())),
    ("utilisation", utilisation::measure),
    ("costs", costs::measure),
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
    /// The gates over utilisation, once somebody wants them.
    seen: OnceCell<Seen>,
}

impl Scale {
    fn new(options: &Options) -> Result<Self> {
        let usual = if options.quick { QUICK_SEEDS } else { SEEDS };
        Ok(Self {
            simulator: Simulator::new()?,
            is_quick: options.quick,
            seeds: options.runs.map_or(usual, |seeds| seeds as u64),
            seen: OnceCell::new(),
        })
    }

    /// The gates over utilisation: simulated once, for all parts that are about them.
    fn seen(&self) -> Result<&Seen> {
        if self.seen.get().is_none() {
            // It was empty.
            let _ = self.seen.set(Seen::simulate(self)?);
        }
        self.seen.get().context("nothing was simulated over utilisation")
    }

    /// As for a look.
    #[cfg(test)]
    fn quick() -> Self {
        Self {
            simulator: Simulator::new().unwrap(),
            is_quick: true,
            seeds: QUICK_SEEDS,
            seen: OnceCell::new(),
        }
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
        "a simulated real-time task takes its CPU at once; how often anybody is moved stands with the part \
         `utilisation`, how long CPUs are closed to whoever is urgent because they balance, which is what \
         the paper found behind it, with the part `costs`"
            .into(),
    )
}
