//! MPI programs of fixed work: how near to the average CPU they run, under the kernel alone, with one
//! balancer around the launcher, and with one in front of each rank. Our own figure.

use std::ffi::OsString;

use anyhow::Result;

use super::experiment::{Experiment, How, Launch};
use super::rows::{panel, point, with_verdicts};
use crate::capability::Case;
use crate::interleave::{Contestant, Group, Measurement, Outcome};
use crate::mpi::Balanced;
use crate::repro::study::{Finding, Panel, Part, Status};

/// Chores of 10 us that keep a CPU busy for about 3 s.
const CHORES: f64 = 300_000.0;
const CASES: [Case; 2] = [Case::Softirq, Case::FifoSpin];
const EACH: &str = "lag, each rank";
/// What a 2- or 4-rank loop is to reach.
const AIM: f64 = 0.93;

fn efficiency(run: &Measurement) -> Option<f64> {
    run.efficiency
}

/// # Errors
/// See [`Experiment::judge`].
pub fn measure(experiment: &Experiment) -> Result<Part> {
    const TITLE: &str = "MPI programs of fixed work";
    if experiment.mpi.is_none() {
        let why = "not run: no MPI here (scripts/setup mpi)".to_owned();
        let aim = format!("{AIM}");
        return Ok(Part::cannot("mpi-loop", TITLE, "efficiency", &aim, why));
    }
    let cpus = experiment.cpus() as u32;
    let mut groups = Vec::new();
    for case in CASES {
        for ranks in [cpus, 2 * cpus] {
            groups.push(group(experiment, case, ranks)?);
        }
    }
    let outcomes = experiment.judge(groups)?;
    let panels = CASES.map(|case| Panel {
        id: format!("mpi-loop-{}", case.name()),
        title: format!("MPI loop, {}", case.name()),
        x: "ranks".into(),
        y: "efficiency (1 = the pace of the average CPU)".into(),
        ..with_verdicts(panel(&outcomes, case.name(), efficiency), &outcomes, case.name())
    });
    Ok(Part {
        id: "mpi-loop".into(),
        title: TITLE.into(),
        method: format!(
            "The chore-counter with the same number of chores for each rank (about 3 s of a CPU in \
             all), no barrier but the last; ranks that wait poll. `{EACH}` is `mpiexec ... evenkeel \
             run -- app`: the ranks find each other and share one balancer; `lag` is `evenkeel run \
             -- mpiexec ...`. The pace of the average CPU follows from the same program \
             undisturbed, run in each round."
        ),
        findings: outcomes.iter().filter_map(finding).collect(),
        panels: panels.to_vec(),
        ..Part::default()
    })
}

fn group(experiment: &Experiment, case: Case, ranks: u32) -> Result<Group<'_>> {
    let per_rank = experiment.seconds(CHORES) * experiment.cpus() as f64 / f64::from(ranks);
    let chores = format!("{per_rank:.0}");
    let launch = |balanced: Balanced<'_>| -> Result<Launch> {
        experiment.chore_counter(ranks, balanced, &["--chores", &chores])
    };
    let alone = launch(Balanced::Not)?;
    // Each rank's balancer would write the same file: none is asked for.
    let each: Vec<OsString> = vec![
        experiment.executable.clone().into_os_string(),
        "--config".into(),
        "/dev/null".into(),
        "run".into(),
        "-q".into(),
        "--".into(),
    ];
    let in_front = launch(Balanced::EachRank(&each))?;
    let mut reference = experiment.timed(Case::None, &How::kernel(), &alone);
    reference.name = "reference".into();
    let mut each = experiment.timed(case, &How::kernel(), &in_front);
    each.name = EACH.into();
    let contestants: Vec<Contestant<'_>> = vec![
        experiment.timed(case, &How::kernel(), &alone),
        experiment.timed(case, &How::lag(), &alone),
        each,
    ];
    Ok(Group {
        case: case.name().into(),
        program: ranks.to_string(),
        reference: Some(reference),
        contestants,
    })
}

fn finding(outcome: &Outcome) -> Option<Finding> {
    if outcome.contestant == "default" {
        return None;
    }
    let point = point(outcome, efficiency)?;
    let [lo, hi] = point.ci95;
    Some(Finding {
        claim: format!(
            "{}, {}, {} ranks: median efficiency",
            outcome.contestant, outcome.case, outcome.program
        ),
        paper: format!("at least {AIM}"),
        ours: format!("{:.3} ({lo:.3} - {hi:.3})", point.median),
        bound: "1.000".into(),
        status: Status::reached(point.median >= AIM),
    })
}
