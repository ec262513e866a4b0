//! Paper 002: Mehta, Kanungo, "Capability Aware Dynamic Load Balancer for Asymmetric NUMA Multicore
//! Processors": its 30 cells, simulated again with the keel's own source, and where the gain comes from.
//!
//! The paper simulated, too: it says what machines and processes there were, and not what anything
//! costs. What it leaves open was fitted to one of its columns (`fit`); all else is a prediction.
//!
//! | file | the one thing in it |
//! |---|---|
//! | `contestant` | which balancers take part |
//! | `runs` | many simulations, and the figures of one cell |
//! | `fit` | the reading of what the paper leaves open |
//! | `tables` | the paper's tables: the 30 cells |
//! | `slices` | the same at other lengths of a slice |
//! | `figures` | what else a balancer does to a cell, and which cells are worse |
//! | `readings` | each reading of the paper, with the text that it rests on |
//! | `signals` | what is left where memory is told as a real kernel tells it |
//! | `parts` | what each part of the keel brings |
//! | `causes` | the paper's cause of its gain, and what takes it away here |
//! | `layouts` | where the speed cores sit |
//! | `optimum` | what no balancer can do better |

mod causes;
mod contestant;
mod figures;
mod fit;
mod layouts;
mod optimum;
mod parts;
mod readings;
mod runs;
mod signals;
mod slices;
mod tables;

use super::Paper;
use super::simulated::{Measure, Simulated};
use runs::{Lab, SEEDS};

const TITLE: &str = "Mehta, Kanungo: Capability Aware Dynamic Load Balancer for Asymmetric NUMA \
                     Multicore Processors";

/// All parts, and what makes them.
const PARTS: [(&str, Measure<Lab>); 8] = [
    ("tables", tables::measure),
    ("fit", fit::measure),
    ("readings", readings::measure),
    ("signals", signals::measure),
    ("slices", slices::measure),
    ("parts", parts::measure),
    ("causes", causes::measure),
    ("layouts", layouts::measure),
];

const SIMULATED: Simulated<Lab> = Simulated {
    number: "002",
    title: TITLE,
    machines: "`amc1`, `amc2`, `amc3`",
    parts: &PARTS,
    lab: |options| Lab::new(SEEDS, options.quick, options.runs),
};

/// The paper.
pub const PAPER: Paper = Paper {
    number: SIMULATED.number,
    parts: || SIMULATED.names(),
    measure: |chosen, options, so_far| SIMULATED.measure(chosen, options, so_far),
};
