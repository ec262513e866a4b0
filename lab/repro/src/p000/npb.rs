//! Figure 10: the NAS Parallel Benchmarks (and LAMMPS), alone on the machine; and CG by itself:
//! its barriers are too fine for any balancer to gain.

use anyhow::{Context, Result};

use super::bench::{
    Asymmetry, Bench, Contestant, DEFAULT, LAG, Launch, case, how_of, kernel, lag, paper,
};
use super::measured::{MARGIN, Measured, any_worse, bound_text, ranged, ratio, span, tally};
use crate::study::{Finding, Panel, Part, Status};
use evenkeel_bench::capability::{BOUND, TIME};
use evenkeel_bench::programs::Program;
use evenkeel_experiment::Row;

/// How long the static loop takes undisturbed, in s.
const LOOP_S: f64 = 1.5;
/// CG as often as takes about as long; and for about 5 s, of which the balancer's start is little.
const CG_TIMES: u32 = 4;
const CG_TIMES_ALONE: u32 = 16;
/// The other kernels of the NPB, their class, and how often they are done: one to two seconds here.
const OTHERS: [(Program, &str, u32); 6] = [
    (Program::Bt, "W", 2),
    (Program::Ft, "A", 1),
    (Program::Is, "A", 2),
    (Program::Lu, "W", 1),
    (Program::Mg, "A", 1),
    (Program::Sp, "W", 1),
];
/// The paper's benchmark that the figure lacks.
const NOT_RUN: &str = "ua of the NPB: not written";

/// Each program in each asymmetry by each contestant.
fn measure_programs(
    bench: &Bench,
    programs: &[Launch],
    asymmetries: &[Asymmetry],
    contestants: &[Contestant],
) -> Result<Measured> {
    let in_asymmetry = |asymmetry: &Asymmetry| {
        let name = asymmetry.name();
        programs.iter().map(move |launch| case(name, &launch.name, contestants))
    };
    let cases: Vec<_> = asymmetries.iter().flat_map(in_asymmetry).collect();
    bench.measure(contestants, &cases, |turn| {
        let launch = programs.iter().find(|launch| launch.name == turn.case.program);
        let launch = launch.context("a turn of no program")?;
        bench.timed(Asymmetry::find(&turn.case.name)?.noise(), how_of(turn), launch)
    })
}

/// Figure 10.
///
/// # Errors
/// See [`Bench::measure`].
pub fn measure(bench: &Bench) -> Result<Part> {
    let mut programs = vec![bench.static_loop(LOOP_S), bench.ep(), bench.cg(CG_TIMES)];
    programs.extend(OTHERS.map(|(program, class, times)| bench.npb(program, class, times)));
    let mut not_run = vec![NOT_RUN.to_owned()];
    match bench.lammps() {
        Ok(lammps) => programs.push(lammps),
        Err(why) => not_run.push(why.to_string()),
    }
    let contestants = [kernel(), paper("fifo", "100ms"), lag()];
    let asymmetries = [Asymmetry::Natural, Asymmetry::Static];
    let measured = measure_programs(bench, &programs, &asymmetries, &contestants)?;
    let times = |asymmetry: Asymmetry| Panel {
        id: format!("figure-10-{}", asymmetry.id()),
        title: format!("Time, {} asymmetry", asymmetry.name()),
        x: "program".into(),
        y: "s".into(),
        ..measured.judged_panel(asymmetry.name(), TIME)
    };
    let mut findings = Vec::new();
    for contestant in &contestants[1..] {
        findings.extend(natural(&measured, &contestant.name));
        findings.extend(unequal(&measured, &contestant.name));
    }
    findings.extend(measured.directly(&contestants[1].name, LAG));
    Ok(Part {
        id: "figure-10".into(),
        title: "Figure 10: parallel programs alone, natural and static asymmetry".into(),
        method: "A thread (LAMMPS: a rank) for each CPU. Static asymmetry is emulated: half of \
                 CPU 0's time is taken by softirqs in pieces of 2 ms, which the kernel's scheduler \
                 does not see, as it does not see a core of half the frequency. EP has one \
                 barrier, FT and IS have some in each iteration, the other kernels several in each \
                 millisecond, LAMMPS some in each step of some milliseconds. The paper's policy \
                 at 100 ms: its 1 s is as long as these runs."
            .into(),
        findings,
        panels: asymmetries.map(times).to_vec(),
        not_run,
        ..Part::default()
    })
}

fn rows_of(measured: &Measured, contestant: &str, asymmetry: Asymmetry) -> Vec<Row> {
    let mut rows = measured.ratios(contestant);
    rows.retain(|row| row.case == asymmetry.name());
    rows
}

/// How many of the programs are shown to be slowed down by less than the margin.
fn within_margin((shown, all): (usize, usize)) -> String {
    format!("shown to lose less than {:.0} % in {shown} of {all}", 100.0 * MARGIN)
}

/// A slowdown of at most the paper's, shown in each program.
fn natural(measured: &Measured, contestant: &str) -> Option<Finding> {
    let natural = Asymmetry::Natural;
    let rows = rows_of(measured, contestant, natural);
    let (shown, all) =
        measured.within_margin(DEFAULT, contestant, |record| record.case == natural.name());
    let margin = within_margin((shown, all));
    (!rows.is_empty()).then(|| Finding {
        claim: format!("{contestant}, natural: it costs little where there is nothing to gain"),
        paper: "slowdown of about 3 %".into(),
        ours: format!("default / its time: {}; {}; {margin}", span(&rows), tally(&rows)),
        bound: "1.000x".into(),
        status: Status::reproduced(shown == all),
    })
}

/// A gain as large as the paper's largest.
fn unequal(measured: &Measured, contestant: &str) -> Option<Finding> {
    const SPEEDUP: f64 = 1.085;
    let rows = rows_of(measured, contestant, Asymmetry::Static);
    let best = rows.iter().max_by(|a, b| ratio(a).total_cmp(&ratio(b)))?;
    let bound = measured.report.row(&best.case, &best.program, BOUND, contestant);
    Some(Finding {
        claim: format!("{contestant}, static (emulated): the largest speedup"),
        paper: "8.5 % (1 fast, 3 slow cores)".into(),
        ours: format!("{}: {}x; {}", best.program, ranged(best), tally(&rows)),
        bound: bound_text(bound.map(|bound| bound.median)),
        status: Status::reproduced(ratio(best) >= SPEEDUP && !any_worse(&rows)),
    })
}

/// CG: balancing cannot gain, and must cost nothing.
///
/// # Errors
/// See [`Bench::measure`].
pub fn fine_barriers(bench: &Bench) -> Result<Part> {
    let contestants = [kernel(), lag()];
    let cg = [bench.cg(CG_TIMES_ALONE)];
    let measured = measure_programs(bench, &cg, &Asymmetry::ALL, &contestants)?;
    let rows = measured.ratios(LAG);
    let (shown, all) = measured.within_margin(DEFAULT, LAG, |_| true);
    let margin = within_margin((shown, all));
    let mut by_asymmetry = Panel {
        id: "cg".into(),
        title: "CG by asymmetry".into(),
        x: "asymmetry".into(),
        y: "s".into(),
        ..Panel::default()
    };
    for asymmetry in Asymmetry::ALL {
        let case = asymmetry.name();
        by_asymmetry.append(measured.judged_panel(case, TIME), case);
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
            paper: "at most 3 % slower".into(),
            ours: format!("{}; {}; {margin}", span(&rows), tally(&rows)),
            bound: "1.000x".into(),
            status: Status::reached(all > 0 && shown == all),
        }],
        panels: vec![by_asymmetry],
        ..Part::default()
    })
}
