//! Fuzzing: what comes from users, files or the network is read, whatever it is, or refused by an error
//! that says why, and never a panic. Each target has a corpus of real examples in
//! `tests/fixtures/fuzz/TARGET/`, and the mutator makes malformed texts of these. What a target accepts
//! must keep a property, which the head of its file names.
//!
//! The same seed gives the same texts. EVENKEEL_FUZZ sets their number for each target,
//! EVENKEEL_FUZZ_SECONDS the longest time for each, EVENKEEL_FUZZ_SEED the seed (`make fuzz`).
//!
//! | file | what it holds |
//! |---|---|
//! | `target` | the corpus of a target, and the loop over its texts |
//! | `mutator` | malformed texts |
//! | `control` | requests and answers of the control sockets, with their arguments |
//! | `config` | configuration files |
//! | `journal` | journals |
//! | `metrics` | requests of the metrics endpoint |
//! | `packets` | packets, and their hints |
//! | `workloads`, `machines` | files and texts of the simulator |

#![allow(clippy::unwrap_used, clippy::panic)]

mod config;
mod control;
#[path = "../../product/sais/tests/common/edge.rs"]
mod edge;
mod journal;
mod machines;
mod metrics;
mod mutator;
mod packets;
mod target;
mod workloads;
