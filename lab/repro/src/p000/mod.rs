//! Paper 000: Kim, Eom, Yeom, "Asymmetry-aware load balancing for parallel applications in
//! single-ISA multi-core systems", section 4. Its experiments on this machine.
//!
//! The paper has four cores, a network card that is flooded, runs of 100 s, and a balancer that
//! looks each second. Here runs are some seconds long, and where the paper's interval is not the
//! question its balancer looks ten times as often, so that a run has as many intervals.
//!
//! | file | what it holds |
//! |---|---|
//! | `bench` | programs, contestants, one run, and the turns |
//! | `measured` | what the runs gave: rows, panels, words for findings |
//! | `packets` | figure 6 |
//! | `chores` | figures 7, 8 and 9 |
//! | `npb` | figure 10 |
//! | `traffic` | figure 11 and table 2, as a substitute |
//! | `competition` | figure 12, tables 4 and 5 |
//! | `working_sets` | table 3 |
//! | `ranks` | MPI programs of fixed work: our own figure |

mod bench;
mod chores;
mod competition;
mod measured;
mod npb;
mod packets;
mod ranks;
mod traffic;
mod working_sets;

use anyhow::Result;

use super::study::{Part, Study};
use super::{Options, Paper};
use bench::Bench;

const TITLE: &str = "Kim, Eom, Yeom: Asymmetry-aware load balancing for parallel applications in \
                     single-ISA multi-core systems. Journal of Zhejiang University-SCIENCE C \
                     (Computers & Electronics), 2012";

/// The paper.
pub const PAPER: Paper = Paper { number: "000", parts, measure };

fn parts() -> Vec<&'static str> {
    PARTS.map(|(id, _)| id).to_vec()
}

/// What measures a part.
type Measure = fn(&Bench) -> Result<Part>;

/// All parts, in the paper's order, and what measures them.
const PARTS: [(&str, Measure); 9] = [
    ("figure-6", packets::measure),
    ("figure-7", chores::intervals),
    ("figure-8", chores::task_counts),
    ("figure-10", npb::measure),
    ("figure-11", traffic::measure),
    ("figure-12", competition::measure),
    ("table-3", working_sets::measure),
    ("mpi-loop", ranks::measure),
    ("cg", npb::fine_barriers),
];

/// Measures these parts; `so_far` gets the study after each of them, so that nothing is lost. A part
/// that fails is in it, with the reason.
///
/// # Errors
/// Exact accounting is not possible, there is only one CPU, `so_far` fails, or a signal asked
/// for the end.
fn measure(
    chosen: &[&str],
    options: &Options,
    so_far: &mut dyn FnMut(&Study) -> Result<()>,
) -> Result<Study> {
    let bench = Bench::new(options.executable.clone(), options.quick, options.runs)?;
    let mut study = Study {
        paper: PAPER.number.to_owned(),
        title: TITLE.to_owned(),
        command: options.command.clone(),
        ..Study::default()
    };
    for (id, measure) in PARTS.into_iter().filter(|(id, _)| chosen.contains(id)) {
        bench.message(id);
        let measured = measure(&bench);
        evenkeel_experiment::interrupt::check()?;
        study.parts.push(Part::measured(id, measured, bench.quick));
        bench.lab.quiet()?;
        study.machine = bench.lab.machine();
        so_far(&study)?;
    }
    Ok(study)
}
