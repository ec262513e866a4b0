//! Figure 12 and tables 4 and 5: all programs at once, until the last has ended.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::time::Instant;

use anyhow::{Result, bail};

use super::experiment::{Asymmetry, Experiment, How, Launch, check, command_of};
use super::rows::{panel, ranged, ratios, with_verdicts};
use crate::command::{Ended, Running};
use crate::interleave::{Contestant, Group, Measurement, Outcome};
use crate::mpi::Balanced;
use crate::private_daemon::PrivateDaemon;
use crate::repro::study::{Finding, Panel, Part, Point, Series, Status};
use crate::stats::{Comparison, Verdict, judge};

/// How long the static loop takes undisturbed and alone, in s.
const LOOP_S: f64 = 1.5;
/// CG so often ends with the others. Were it longer, its end would be the total time: two threads
/// that wait for each other many times a millisecond advance slowly among others, and nothing
/// but running both at once helps.
const CG_TIMES: u32 = 2;
/// Chores of 10 us: as long as the static loop.
const CHORES: f64 = 150_000.0;
const INTERVAL: &str = "100ms";
/// What lag is to reach against the kernel alone, under softirqs.
const AIM: f64 = 1.10;
/// The paper's speedups, by asymmetry.
const PAPER_TOTAL_PCT: [f64; 3] = [9.9, 13.3, 24.1];
/// The paper's speedups of `cache` over `fifo`, by asymmetry (table 4).
const PAPER_CACHE_PCT: [f64; 3] = [4.5, 6.4, 4.9];

/// # Errors
/// See [`Experiment::judge`].
pub fn measure(experiment: &Experiment) -> Result<Part> {
    let mut programs =
        vec![experiment.static_loop(LOOP_S), experiment.ep(), experiment.cg(CG_TIMES)];
    let mut not_run = vec![
        "bt, ft, is, lu, mg, sp and ua of the NPB: not part of this project".to_owned(),
        "lammps: its ranks poll while they wait for each other many times a second; several \
         programs on two CPUs then measure the MPI's polling (alone: figure 10)"
            .to_owned(),
    ];
    let chores = format!("{:.0}", experiment.seconds(CHORES));
    let ranks = experiment.cpus() as u32;
    match experiment.chore_counter(ranks, Balanced::Not, &["--chores", &chores]) {
        Ok(launch) => programs.push(launch),
        Err(why) => not_run.push(format!("chore_counter: {why}")),
    }
    let hows = hows();
    let ends = RefCell::new(BTreeMap::new());
    let groups = Asymmetry::ALL.iter().map(|asymmetry| Group {
        case: asymmetry.name().into(),
        program: "all at once".into(),
        reference: None,
        contestants: hows
            .iter()
            .map(|how| contestant(experiment, *asymmetry, how, &programs, &ends))
            .collect(),
    });
    let outcomes = experiment.judge(groups.collect())?;
    let names: Vec<&str> = programs.iter().map(|launch| launch.name.as_str()).collect();
    let mut findings = totals(&outcomes, &hows);
    findings.extend(selections(&outcomes, &hows));
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
             their start). The paper's policy at {INTERVAL} (paper: 1 s, runs of ten minutes).",
            names.join(", ")
        ),
        findings,
        panels: std::iter::once(by_asymmetry(&outcomes))
            .chain(Asymmetry::ALL.map(|asymmetry| by_program(&ends, asymmetry, &hows, &programs)))
            .collect(),
        not_run,
        ..Part::default()
    })
}

/// The kernel alone, the paper's two selections, ours.
fn hows() -> [How; 4] {
    [How::kernel(), How::paper("fifo", INTERVAL), How::paper("cache", INTERVAL), How::lag()]
}

/// When each program ended, in s after the start, in the order of the programs; a list for each run,
/// by asymmetry and contestant.
type Ends = RefCell<BTreeMap<(&'static str, String), Vec<Vec<f64>>>>;

fn contestant<'a>(
    experiment: &'a Experiment,
    asymmetry: Asymmetry,
    how: &How,
    programs: &[Launch],
    ends: &'a Ends,
) -> Contestant<'a> {
    let (how, programs, case) = (how.clone(), programs.to_vec(), asymmetry.case());
    Contestant {
        name: how.name.clone(),
        run: Box::new(move || {
            let daemon = match &how.options {
                None => None,
                Some(options) => Some(PrivateDaemon::start(&experiment.executable, options)?),
            };
            let seen =
                experiment.lab.under(case, None, || all_at_once(&programs, daemon.as_ref()))?;
            let run = (asymmetry.name(), how.name.clone());
            ends.borrow_mut().entry(run).or_default().push(seen.ended.ends);
            Ok(Measurement {
                seconds: seen.ended.seconds,
                foreign_pct: seen.window.foreign_pct,
                average: seen.given.map(|given| given.average),
                worst: seen.given.map(|given| given.worst),
                ..Measurement::default()
            })
        }),
    }
}

/// What became of all of them.
struct All {
    /// From the first start to the last end, in s.
    seconds: f64,
    /// When each of them ended, in s after its own start.
    ends: Vec<f64>,
}

/// Runs them all.
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
    // A thread each, so that whoever ends first is seen first.
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
    Ok(All { seconds, ends: ended.iter().map(|one| one.seconds).collect() })
}

/// One panel with the asymmetries as places.
fn by_asymmetry(outcomes: &[Outcome]) -> Panel {
    let mut joined = Panel {
        id: "figure-12".into(),
        title: "Total time of all programs at once".into(),
        x: "asymmetry".into(),
        y: "s".into(),
        ..Panel::default()
    };
    for asymmetry in Asymmetry::ALL {
        let case = asymmetry.name();
        let time = |run: &Measurement| Some(run.seconds);
        joined.append(with_verdicts(panel(outcomes, case, time), outcomes, case), case);
    }
    joined
}

/// When each program ended.
fn by_program(ends: &Ends, asymmetry: Asymmetry, hows: &[How], programs: &[Launch]) -> Panel {
    let ends = ends.borrow();
    let series = hows.iter().map(|how| {
        let runs = ends.get(&(asymmetry.name(), how.name.clone()));
        let of = |program: usize| {
            let values = runs.into_iter().flatten().filter_map(|run| run.get(program).copied());
            Point::of(&values.collect::<Vec<_>>())
        };
        Series { name: how.name.clone(), points: (0..programs.len()).map(of).collect() }
    });
    Panel {
        id: format!("figure-12-{}", asymmetry.id()),
        title: format!("End of each program, {} asymmetry", asymmetry.name()),
        x: "program".into(),
        y: "s after the start".into(),
        places: programs.iter().map(|launch| launch.name.clone()).collect(),
        series: series.collect(),
    }
}

/// Figure 12.
fn totals(outcomes: &[Outcome], hows: &[How]) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (asymmetry, paper_pct) in Asymmetry::ALL.into_iter().zip(PAPER_TOTAL_PCT) {
        for how in &hows[1..] {
            let row = ratios(outcomes, &how.name).find(|(row, _)| row.case == asymmetry.name());
            let Some((outcome, judged)) = row else { continue };
            let ratio = judged.comparison.ratio;
            let is_ours = how.name == How::lag().name;
            let (paper, status) = if is_ours && asymmetry == Asymmetry::Dynamic {
                (format!("at least {AIM:.2}x"), Status::reached(ratio.median >= AIM))
            } else if is_ours {
                ("not worse".to_owned(), Status::reached(judged.verdict != Verdict::Worse))
            } else {
                let faster = judged.verdict == Verdict::Better;
                (format!("{paper_pct} % faster"), Status::reproduced(faster))
            };
            let bounds = outcome.runs().filter_map(|run| Some(run.average? / run.worst?));
            let bound = crate::stats::median(&bounds.collect::<Vec<_>>());
            findings.push(Finding {
                claim: format!("{}, {}: total time against default", how.name, asymmetry.name()),
                paper,
                ours: format!("{}x", ranged(&ratio)),
                bound: bound.map_or_else(|| "-".into(), |bound| format!("{bound:.3}x")),
                status,
            });
        }
    }
    findings
}

/// Table 4: `cache` against `fifo`.
fn selections(outcomes: &[Outcome], hows: &[How]) -> Vec<Finding> {
    let of = |how: &How, asymmetry: Asymmetry| {
        outcomes.iter().find(|row| row.contestant == how.name && row.case == asymmetry.name())
    };
    let compared: Vec<(Asymmetry, f64, Comparison)> = Asymmetry::ALL
        .into_iter()
        .zip(PAPER_CACHE_PCT)
        .filter_map(|(asymmetry, paper_pct)| {
            let (fifo, cache) = (of(&hows[1], asymmetry)?, of(&hows[2], asymmetry)?);
            Some((asymmetry, paper_pct, cache.compared_with(fifo)?))
        })
        .collect();
    let all: Vec<Comparison> = compared.iter().map(|(_, _, comparison)| *comparison).collect();
    compared
        .iter()
        .zip(judge(&all, 1))
        .map(|((asymmetry, paper_pct, comparison), judged)| Finding {
            claim: format!("table 4, {}: cache against fifo", asymmetry.name()),
            paper: format!("{paper_pct} % faster"),
            ours: format!("{}x, {}", ranged(&comparison.ratio), word(judged.verdict)),
            bound: "-".into(),
            status: Status::reproduced(judged.verdict == Verdict::Better),
        })
        .collect()
}

fn word(verdict: Verdict) -> &'static str {
    match verdict {
        Verdict::Better => "better",
        Verdict::Worse => "worse",
        Verdict::Undecided => "undecided",
    }
}
