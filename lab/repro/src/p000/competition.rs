//! Figure 12 and tables 4 and 5: all programs at once, until the last has ended.
//!
//! While all of them run, the kernel alone keeps every CPU busy, and no time is lost: a program that
//! waits for a thread on a slow CPU leaves its other CPU to the others. A balancer can gain only at
//! the end, where few programs are left. So the gain depends on the programs' lengths, and both
//! cases are measured: programs of about one length, and one that is longer than the others.

use std::time::Instant;

use anyhow::{Result, bail};
use evenkeel_experiment::command::{Ended, Running};
use evenkeel_experiment::{Record, Sample};

use super::bench::{
    Asymmetry, Bench, Contestant, DEFAULT, How, LAG, Launch, case, check, command_of, how_of,
    kernel, lag, paper,
};
use super::measured::{MARGIN, Measured, bound_text, ranged, ratio};
use crate::study::{Finding, Panel, Part, Status};
use evenkeel_bench::capability::{AVERAGE, TIME};
use evenkeel_bench::mpi::Balanced;
use evenkeel_bench::private_daemon::PrivateDaemon;
use evenkeel_stats::Verdict;

/// How long the static loop takes undisturbed and alone, in s: as long as the others, or three times
/// as long (the paper's benchmarks differ more than that).
const LOOP_S: f64 = 1.5;
const LONG_LOOP_S: f64 = 3.0 * LOOP_S;
/// CG runs so often, so that it ends at about the time of the others. Were it longer, its end would be
/// the total time: two threads that wait for each other many times a millisecond advance slowly among
/// others, and nothing but running both at once helps.
const CG_TIMES: u32 = 2;
/// So many chores of 10 us take about as long as the static loop.
const CHORES: f64 = 150_000.0;
const INTERVAL: &str = "100ms";
/// The paper's own.
const PAPER_INTERVAL: &str = "1s";
const ALIKE: &str = "all at once";
const UNLIKE: &str = "all at once, one longer";
/// What lag is to reach against the kernel alone, under softirqs.
const AIM: f64 = 1.10;
/// The paper's speedups, by asymmetry.
const PAPER_TOTAL_PCT: [f64; 3] = [9.9, 13.3, 24.1];
/// The paper's speedups of `cache` over `fifo`, by asymmetry (table 4).
const PAPER_CACHE_PCT: [f64; 3] = [4.5, 6.4, 4.9];

/// Measures figure 12 and tables 4 and 5.
///
/// # Errors
/// See [`Bench::measure`].
pub fn measure(bench: &Bench) -> Result<Part> {
    let mut programs = vec![bench.static_loop(LOOP_S), bench.ep(), bench.cg(CG_TIMES)];
    let mut not_run = vec![
        "bt, ft, is, lu, mg and sp of the NPB: not part of this mix (alone: figure 10)".to_owned(),
        "ua of the NPB: not written".to_owned(),
        "lammps: its ranks poll while they wait for each other many times a second; several \
         programs on two CPUs then measure the MPI's polling (alone: figure 10)"
            .to_owned(),
    ];
    let chores = format!("{:.0}", bench.seconds(CHORES));
    let ranks = bench.cpus() as u32;
    match bench.chore_counter(ranks, Balanced::Not, &["--chores", &chores]) {
        Ok(launch) => programs.push(launch),
        Err(why) => not_run.push(format!("chore_counter: {why}")),
    }
    let mut unlike = programs.clone();
    unlike[0] = bench.static_loop(LONG_LOOP_S);
    let contestants = contestants();
    let mut cases: Vec<_> =
        Asymmetry::ALL.map(|asymmetry| case(asymmetry.name(), ALIKE, &contestants)).into();
    for asymmetry in [Asymmetry::Natural, Asymmetry::Dynamic] {
        cases.push(case(asymmetry.name(), UNLIKE, &[kernel(), lag()]));
    }
    let measured = bench.measure(&contestants, &cases, |turn| {
        let programs = if turn.case.program == ALIKE { &programs } else { &unlike };
        run_all(bench, Asymmetry::find(&turn.case.name)?, how_of(turn), programs)
    })?;
    let names: Vec<&str> = programs.iter().map(|launch| launch.name.as_str()).collect();
    let mut findings = totals(&measured, &contestants);
    findings.extend(selections(&measured, &contestants));
    for fifo in [&contestants[1], &contestants[3]] {
        findings.extend(measured.directly(&fifo.name, LAG));
    }
    findings.push(Finding {
        claim: "table 5: cache misses of fifo and cache".into(),
        paper: "3.3 to 6.3 % fewer".into(),
        ours: "not counted: this command reads no hardware counters".into(),
        bound: "-".into(),
        status: Status::Cannot,
    });
    Ok(Part {
        id: "figure-12".into(),
        title: "Figure 12, tables 4 and 5: all programs at once".into(),
        method: format!(
            "{} start together, each with a thread or rank for each CPU; the time is that of the \
             last to end. One daemon balances them all (they join by process number right after \
             their start). The paper's policy at {INTERVAL}, and by fifo at its own \
             {PAPER_INTERVAL}, too (the paper's runs take ten minutes). They are of about one \
             length; \"{UNLIKE}\" is the same with a static loop three times as long. The \
             bound is what is left if the programs take as long as under natural asymmetry, divided \
             by the average capability.",
            names.join(", ")
        ),
        findings,
        panels: [by_asymmetry(&measured, ALIKE), by_asymmetry(&measured, UNLIKE)]
            .into_iter()
            .chain(Asymmetry::ALL.map(|asymmetry| by_program(&measured, asymmetry, &programs)))
            .collect(),
        not_run,
        ..Part::default()
    })
}

/// The kernel alone, the paper's two selections, one of them at the paper's own interval, ours.
fn contestants() -> [Contestant; 5] {
    let [fifo, cache] = ["fifo", "cache"].map(|selection| paper(selection, INTERVAL));
    [kernel(), fifo, cache, paper("fifo", PAPER_INTERVAL), lag()]
}

/// The figure that says when a program ended, in s after its start.
fn end_of(program: &str) -> String {
    format!("end of {program}")
}

/// One run of all programs at once, balanced by one daemon.
fn run_all(bench: &Bench, asymmetry: Asymmetry, how: &How, programs: &[Launch]) -> Result<Sample> {
    let daemon = match how {
        How::Balancer(options) => Some(PrivateDaemon::start(&bench.executable, options)?),
        How::Kernel | How::EachRank => None,
    };
    let noise = asymmetry.noise();
    let seen = bench.lab.under(noise, None, || all_at_once(programs, daemon.as_ref()))?;
    let mut sample = seen.sample(seen.ended.seconds);
    for (launch, end_s) in programs.iter().zip(&seen.ended.ends_s) {
        sample.set(&end_of(&launch.name), Some(*end_s));
    }
    Ok(sample)
}

/// How long one run of all programs took.
struct All {
    /// From the first start to the last end, in s.
    seconds: f64,
    /// When each of them ended, in s after its own start.
    ends_s: Vec<f64>,
}

/// Starts all programs at once, and waits for their ends.
fn all_at_once(programs: &[Launch], daemon: Option<&PrivateDaemon>) -> Result<All> {
    let start = Instant::now();
    let mut running = Vec::new();
    for launch in programs {
        let one = Running::start(&mut command_of(&launch.words, launch.threads)?)?;
        if let Some(daemon) = daemon {
            daemon.join(one.pid())?;
        }
        running.push(one);
    }
    // A thread for each, so that the first end is seen first.
    let ended: Vec<Ended> = std::thread::scope(|scope| {
        let waiting: Vec<_> =
            running.into_iter().map(|one| scope.spawn(move || one.wait())).collect();
        let join = |thread: std::thread::ScopedJoinHandle<'_, Result<Ended>>| {
            thread.join().unwrap_or_else(|_| bail!("waiting for a program failed"))
        };
        waiting.into_iter().map(join).collect::<Result<_>>()
    })?;
    let seconds = start.elapsed().as_secs_f64();
    for (launch, ended) in programs.iter().zip(&ended) {
        check(launch, ended)?;
    }
    Ok(All { seconds, ends_s: ended.iter().map(|one| one.seconds).collect() })
}

/// One panel with the asymmetries as places.
fn by_asymmetry(measured: &Measured, program: &str) -> Panel {
    let mut joined = Panel {
        id: if program == ALIKE { "figure-12" } else { "figure-12-one-longer" }.into(),
        title: format!("Total time, {program}"),
        x: "asymmetry".into(),
        y: "s".into(),
        ..Panel::default()
    };
    for case in Asymmetry::ALL.map(Asymmetry::name) {
        let mut times = measured.judged_panel(case, TIME);
        // Only the place of this `program` is kept.
        let Some(index) = times.places.iter().position(|place| place == program) else { continue };
        times.series.iter_mut().for_each(|series| series.points.swap(0, index));
        // The longer programs have fewer contestants.
        times.series.retain(|series| series.points[0].is_some());
        joined.append(times, case);
    }
    joined
}

/// When each program ended.
fn by_program(measured: &Measured, asymmetry: Asymmetry, programs: &[Launch]) -> Panel {
    let mut ends = Panel {
        id: format!("figure-12-{}", asymmetry.id()),
        title: format!("End of each program, {} asymmetry", asymmetry.name()),
        x: "program".into(),
        y: "s after the start".into(),
        ..Panel::default()
    };
    for Launch { name, .. } in programs {
        // The first place has the programs of about one length.
        ends.append(measured.panel(asymmetry.name(), &end_of(name)), name);
    }
    ends
}

/// The largest speedup that any balancer can have: the kernel's time over the shortest possible one,
/// which is the time under natural asymmetry divided by the average capability. By medians.
fn bound(measured: &Measured, program: &str, asymmetry: Asymmetry) -> Option<f64> {
    let median = |asymmetry: Asymmetry, metric: &str| {
        Some(measured.report.row(asymmetry.name(), program, metric, DEFAULT)?.median)
    };
    let given = |asymmetry| Some(median(asymmetry, TIME)? * median(asymmetry, AVERAGE)?);
    Some(given(asymmetry)? / given(Asymmetry::Natural)?)
}

/// Figure 12.
fn totals(measured: &Measured, contestants: &[Contestant]) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (asymmetry, paper_pct) in Asymmetry::ALL.into_iter().zip(PAPER_TOTAL_PCT) {
        let both = |contestant| [(contestant, ALIKE), (contestant, UNLIKE)];
        for (Contestant { name, .. }, program) in contestants[1..].iter().flat_map(both) {
            let row = measured.report.row(asymmetry.name(), program, TIME, name);
            let Some(row) = row.filter(|row| row.ratio.is_some()) else { continue };
            let (paper, status) = match (name == LAG, asymmetry) {
                (true, Asymmetry::Dynamic) => {
                    (format!("at least {AIM:.2}x"), Status::reached(ratio(row) >= AIM))
                }
                (true, _) => {
                    let is_meant = |record: &Record| {
                        record.case == asymmetry.name() && record.program == program
                    };
                    let (shown, all) = measured.within_margin(DEFAULT, name, is_meant);
                    let aim = format!("shown to be at most {:.0} % slower", 100.0 * MARGIN);
                    (aim, Status::reached(all > 0 && shown == all))
                }
                (false, _) => {
                    let is_better = row.verdict == Some(Verdict::Better);
                    (format!("{paper_pct} % faster"), Status::reproduced(is_better))
                }
            };
            findings.push(Finding {
                claim: format!(
                    "{name}, {}: total time against default, {program}",
                    asymmetry.name()
                ),
                paper,
                ours: format!("{}x", ranged(row)),
                bound: bound_text(bound(measured, program, asymmetry)),
                status,
            });
        }
    }
    findings
}

/// Table 4: `cache` against `fifo`.
fn selections(measured: &Measured, contestants: &[Contestant]) -> Vec<Finding> {
    let [_, fifo, cache, ..] = contestants else { return Vec::new() };
    let rows = measured.compare(TIME, &fifo.name, &cache.name);
    rows.iter()
        .filter_map(|row| {
            let place = Asymmetry::ALL.iter().position(|one| one.name() == row.case)?;
            Some(Finding {
                claim: format!("table 4, {}: cache against fifo", row.case),
                paper: format!("{} % faster", PAPER_CACHE_PCT[place]),
                ours: format!("{}x, {}", ranged(row), row.verdict?.name()),
                bound: "-".into(),
                status: Status::reproduced(row.verdict == Some(Verdict::Better)),
            })
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::super::measured::tests::{measured, record};
    use super::*;

    #[test]
    fn the_bound_is_what_the_average_capability_allows() {
        let of = |case: &str, seconds: f64, average: f64| {
            let mut record = record(case, ALIKE, &[("default", &[seconds; 4], &[0.0; 4])]);
            for run in record.lines[0].rounds.iter_mut().flatten() {
                run.set(AVERAGE, Some(average));
            }
            record
        };
        // 5 s at a capability of 1 are 6.25 s at 0.8.
        let disturbed = of("dynamic", 7.5, 0.8);
        let both = measured(vec![of("natural", 5.0, 1.0), disturbed.clone()]);
        let found = bound(&both, ALIKE, Asymmetry::Dynamic).unwrap();
        assert!((found - 1.2).abs() < 1e-9, "{found}");
        assert_eq!(bound(&both, UNLIKE, Asymmetry::Dynamic), None);
        assert_eq!(bound(&measured(vec![disturbed]), ALIKE, Asymmetry::Dynamic), None);
    }
}
