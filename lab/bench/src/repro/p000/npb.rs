//! Figure 10: the NAS Parallel Benchmarks (and LAMMPS), alone on the machine; and CG by itself, whose
//! barriers are too fine for any balancer to gain.

use anyhow::Result;

use super::experiment::{Asymmetry, Experiment, How, Launch};
use super::rows::{any_worse, panel, ranged, ratios, span, tally, with_verdicts};
use crate::interleave::{Group, Measurement, Outcome};
use crate::repro::study::{Finding, Panel, Part, Status};
use crate::stats::Judged;

/// How long the static loop takes undisturbed, in s.
const LOOP_S: f64 = 1.5;
/// CG as often as takes about as long; and for about 5 s, of which the balancer's start is little.
const CG_TIMES: u32 = 4;
const CG_TIMES_ALONE: u32 = 16;
/// The paper's benchmarks that are not written here.
const NOT_WRITTEN: &str = "bt, ft, is, lu, mg, sp and ua of the NPB: not part of this project";

fn seconds(run: &Measurement) -> Option<f64> {
    Some(run.seconds)
}

/// Each program in each asymmetry by each contestant.
fn groups<'a>(
    experiment: &'a Experiment,
    programs: &[Launch],
    asymmetries: &[Asymmetry],
    hows: &[How],
) -> Vec<Group<'a>> {
    let mut groups = Vec::new();
    for asymmetry in asymmetries {
        for launch in programs {
            let one = |how| experiment.timed(asymmetry.case(), how, launch);
            groups.push(Group {
                case: asymmetry.name().into(),
                program: launch.name.clone(),
                reference: None,
                contestants: hows.iter().map(one).collect(),
            });
        }
    }
    groups
}

/// Figure 10.
///
/// # Errors
/// See [`Experiment::judge`].
pub fn measure(experiment: &Experiment) -> Result<Part> {
    let mut programs =
        vec![experiment.static_loop(LOOP_S), experiment.ep(), experiment.cg(CG_TIMES)];
    let mut not_run = vec![NOT_WRITTEN.to_owned()];
    match experiment.lammps() {
        Ok(lammps) => programs.push(lammps),
        Err(why) => not_run.push(why.to_string()),
    }
    let hows = [How::kernel(), How::paper("fifo", "100ms"), How::lag()];
    let asymmetries = [Asymmetry::Natural, Asymmetry::Static];
    let outcomes = experiment.judge(groups(experiment, &programs, &asymmetries, &hows))?;
    let times = |asymmetry: Asymmetry| Panel {
        id: format!("figure-10-{}", asymmetry.id()),
        title: format!("Time, {} asymmetry", asymmetry.name()),
        x: "program".into(),
        y: "s".into(),
        ..with_verdicts(panel(&outcomes, asymmetry.name(), seconds), &outcomes, asymmetry.name())
    };
    let mut findings = Vec::new();
    for how in &hows[1..] {
        findings.extend(natural(&outcomes, how));
        findings.extend(unequal(&outcomes, how));
    }
    Ok(Part {
        id: "figure-10".into(),
        title: "Figure 10: parallel programs alone, natural and static asymmetry".into(),
        method: "A thread (LAMMPS: a rank) for each CPU. Static asymmetry is emulated: half of \
                 CPU 0's time is taken by softirqs in pieces of 2 ms, which the kernel's scheduler \
                 does not see, as it does not see a core of half the frequency. EP has one \
                 barrier; CG has several in each millisecond, LAMMPS some in each step of some \
                 milliseconds. The paper's policy at 100 ms: its 1 s is as long \
                 as these runs."
            .into(),
        findings,
        panels: asymmetries.map(times).to_vec(),
        not_run,
        ..Part::default()
    })
}

fn of_case<'a>(
    outcomes: &'a [Outcome],
    how: &'a How,
    asymmetry: Asymmetry,
) -> Vec<(&'a Outcome, Judged)> {
    ratios(outcomes, &how.name).filter(|(row, _)| row.case == asymmetry.name()).collect()
}

/// A slowdown of at most the paper's.
fn natural(outcomes: &[Outcome], how: &How) -> Option<Finding> {
    const SLOWDOWN: f64 = 0.03;
    let rows = of_case(outcomes, how, Asymmetry::Natural);
    let small = rows.iter().all(|(_, judged)| {
        judged.comparison.ratio.median >= 1.0 - SLOWDOWN || judged.comparison.ratio.hi >= 1.0
    });
    (!rows.is_empty()).then(|| Finding {
        claim: format!("{}, natural: it costs little where there is nothing to gain", how.name),
        paper: "slowdown of about 3 %".into(),
        ours: format!("default / its time: {}; {}", span(&rows), tally(&rows)),
        bound: "1.000x".into(),
        status: Status::reproduced(small),
    })
}

/// A gain as large as the paper's largest.
fn unequal(outcomes: &[Outcome], how: &How) -> Option<Finding> {
    const SPEEDUP: f64 = 1.085;
    let rows = of_case(outcomes, how, Asymmetry::Static);
    let ratio = |judged: &Judged| judged.comparison.ratio;
    let (best, judged) =
        rows.iter().max_by(|a, b| ratio(&a.1).median.total_cmp(&ratio(&b.1).median))?;
    let bounds = best.runs().filter_map(|run| Some(run.average? / run.worst.filter(|c| *c > 0.0)?));
    let bound = crate::stats::median(&bounds.collect::<Vec<_>>());
    Some(Finding {
        claim: format!("{}, static (emulated): the largest speedup", how.name),
        paper: "8.5 % (1 fast, 3 slow cores)".into(),
        ours: format!("{}: {}x; {}", best.program, ranged(&ratio(judged)), tally(&rows)),
        bound: bound.map_or_else(|| "-".into(), |bound| format!("{bound:.3}x")),
        status: Status::reproduced(ratio(judged).median >= SPEEDUP && !any_worse(&rows)),
    })
}

/// CG: balancing cannot gain, and must cost nothing.
///
/// # Errors
/// See [`Experiment::judge`].
pub fn fine_barriers(experiment: &Experiment) -> Result<Part> {
    let hows = [How::kernel(), How::lag()];
    let cg = [experiment.cg(CG_TIMES_ALONE)];
    let outcomes = experiment.judge(groups(experiment, &cg, &Asymmetry::ALL, &hows))?;
    let rows: Vec<(&Outcome, Judged)> = ratios(&outcomes, &hows[1].name).collect();
    let mut by_asymmetry = Panel {
        id: "cg".into(),
        title: "CG by asymmetry".into(),
        x: "asymmetry".into(),
        y: "s".into(),
        ..Panel::default()
    };
    for asymmetry in Asymmetry::ALL {
        let case = asymmetry.name();
        let one = with_verdicts(panel(&outcomes, case, seconds), &outcomes, case);
        by_asymmetry.append(one, case);
    }
    Ok(Part {
        id: "cg".into(),
        title: "CG: barriers too fine to gain".into(),
        method: format!(
            "NPB's CG, class A, {CG_TIMES_ALONE} times from the start: several barriers in each \
             millisecond."
        ),
        findings: vec![Finding {
            claim: "lag: not worse than default".into(),
            paper: "not worse".into(),
            ours: format!("{}; {}", span(&rows), tally(&rows)),
            bound: "1.000x".into(),
            status: Status::reached(!any_worse(&rows)),
        }],
        panels: vec![by_asymmetry],
        ..Part::default()
    })
}
