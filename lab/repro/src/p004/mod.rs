//! Paper 004: Lim, Min, Eom, "Load-Balancing for Improving User Responsiveness on Multicore Embedded
//! Systems": what its zones do to migrations, waits and throughput, over utilisation and on machines of
//! 8 to 128 CPUs, simulated with the keel's own source.
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

use super::Paper;
use super::simulated::{Lab, Measure, Seeds, Simulated};
use super::study::Part;

const TITLE: &str = "Lim, Min, Eom: Load-Balancing for Improving User Responsiveness on Multicore \
                     Embedded Systems";
/// How many seeds each case is simulated with.
const SEEDS: Seeds = Seeds { usual: 5, quick: 1 };

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
    machines: "machines of 8 to 128 CPUs",
    parts: &PARTS,
    lab: |options| Scale::new(options.quick, options.runs),
};

/// The paper.
pub const PAPER: Paper = Paper {
    number: SIMULATED.number,
    parts: || SIMULATED.names(),
    measure: |chosen, options, so_far| SIMULATED.measure(chosen, options, so_far),
};

/// Where all is simulated.
struct Scale {
    lab: Lab,
    /// The gates over utilisation, once a part needs them.
    seen: OnceCell<Seen>,
}

impl Scale {
    fn new(is_quick: bool, runs: Option<usize>) -> Result<Self> {
        Ok(Self { lab: Lab::new(SEEDS, is_quick, runs)?, seen: OnceCell::new() })
    }

    /// The gates over utilisation: simulated once, for all parts that are about them.
    fn seen(&self) -> Result<&Seen> {
        if self.seen.get().is_none() {
            // It was empty.
            let _ = self.seen.set(Seen::simulate(self)?);
        }
        self.seen.get().context("nothing was simulated over utilisation")
    }
}

fn migrations(report: &Report) -> f64 {
    report.migrations.iter().map(|kind| kind.count).sum::<u64>() as f64 * 1000.0
        / report.makespan_ms
}

/// Migrations to another last-level cache: within one the gate is not asked, unless it is strict.
fn far_migrations(report: &Report) -> f64 {
    let near = ["core", "cache"];
    let far = report.migrations.iter().filter(|kind| !near.contains(&kind.level.as_str()));
    far.map(|kind| kind.count).sum::<u64>() as f64 * 1000.0 / report.makespan_ms
}

/// What needs a kernel with locked runqueues.
fn latency() -> Part {
    Part::cannot(
        "figure-7",
        "Figure 7: the latency of an urgent task",
        "at warm-high a pinned real-time task wakes up sooner under heavy load",
        "72 to 31 us on the average (2.3 times)",
        "a simulated real-time task takes its CPU at once; how often tasks are moved stands with the \
         part `utilisation`, how long CPUs are closed to urgent tasks because they balance, which is \
         what the paper found behind it, with the part `costs`"
            .into(),
    )
}
