//! Figure 12 and tables 4 and 5: all programs at once, until the last has ended.
//!
//! While all of them run, the kernel alone keeps every CPU busy, and nothing is lost: a program that
//! waits for a thread on a slow CPU leaves its other CPU to the others. What a balancer can gain is
//! at the end, where few programs are left. So it depends on the programs' lengths, and both is
//! measured: programs of about one length, and one that is longer than the others.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::time::Instant;

use anyhow::{Result, bail};

use super::experiment::{Asymmetry, Experiment, How, Launch, check, command_of};
use super::rows::{panel, ranged, ratios, with_verdicts};
use crate::interleave::{Contestant, Group, Measurement, Outcome};
use crate::mpi::Balanced;
use crate::private_daemon::PrivateDaemon;
use crate::repro::study::{Finding, Panel, Part, Point, Series, Status};
use crate::stats::{Comparison, Verdict, judge};
use evenkeel_experiment::command::{Ended, Running};

/// How long the static loop takes undisturbed and alone, in s: as long as the others, or three times
/// as long (the paper's benchmarks differ more than that).
const LOOP_S: f64 = 1.5;
const LONG_LOOP_S: f64 = 3.0 * LOOP_S;
/// CG so often ends with the others. Were it longer, its end would be the total time: two threads
/// that wait for each other many times a millisecond advance slowly among others, and nothing
/// but running both at once helps.
const CG_TIMES: u32 = 2;
/// Chores of 10 us: as long as the static loop.
const CHORES: f64 = 150_000.0;
const INTERVAL: &str = "100ms";
const ALIKE: &str = "all at once";
const UNLIKE: &str = "all at once, one longer";
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
    let mut unlike = programs.clone();
    unlike[0] = experiment.static_loop(LONG_LOOP_S);
    let hows = hows();
    let ends = RefCell::new(BTreeMap::new());
    let group = |name: &str, asymmetry: Asymmetry, hows: &[How], programs: &[Launch]| Group {
        case: asymmetry.name().into(),
        program: name.into(),
        reference: None,
        contestants: hows
            .iter()
            .map(|how| contestant(experiment, name, asymmetry, how, programs, &ends))
            .collect(),
    };
    let mut groups: Vec<Group<'_>> =
        Asymmetry::ALL.map(|asymmetry| group(ALIKE, asymmetry, &hows, &programs)).into();
    let ours = [How::kernel(), How::lag()];
    for asymmetry in [Asymmetry::Natural, Asymmetry::Dynamic] {
        groups.push(group(UNLIKE, asymmetry, &ours, &unlike));
    }
    let outcomes = experiment.judge(groups)?;
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
             their start). The paper's policy at {INTERVAL} (paper: 1 s, runs of ten minutes). \
             They are of about one length; \"{UNLIKE}\" is the same with a static loop three times \
             as long. The bound is what is left if the programs take as long as under natural \
             asymmetry, divided by the average capability.",
            names.join(", ")
        ),
        findings,
        panels: [by_asymmetry(&outcomes, ALIKE), by_asymmetry(&outcomes, UNLIKE)]
            .into_iter()
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
/// by programs, asymmetry and contestant.
type Ends = RefCell<BTreeMap<(String, &'static str, String), Vec<Vec<f64>>>>;

fn contestant<'a>(
    experiment: &'a Experiment,
    group: &str,
    asymmetry: Asymmetry,
    how: &How,
    programs: &[Launch],
    ends: &'a Ends,
) -> Contestant<'a> {
    let (how, programs, case) = (how.clone(), programs.to_vec(), asymmetry.case());
    let group = group.to_owned();
    Contestant {
        name: how.name.clone(),
        run: Box::new(move || {
            let daemon = match &how.options {
                None => None,
                Some(options) => Some(PrivateDaemon::start(&experiment.executable, options)?),
            };
            let seen =
                experiment.lab.under(case, None, || all_at_once(&programs, daemon.as_ref()))?;
            let run = (group.clone(), asymmetry.name(), how.name.clone());
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
fn by_asymmetry(outcomes: &[Outcome], group: &str) -> Panel {
    let outcomes: Vec<Outcome> =
        outcomes.iter().filter(|outcome| outcome.program == group).cloned().collect();
    let mut joined = Panel {
        id: if group == ALIKE { "figure-12" } else { "figure-12-one-longer" }.into(),
        title: format!("Total time, {group}"),
        x: "asymmetry".into(),
        y: "s".into(),
        ..Panel::default()
    };
    for asymmetry in Asymmetry::ALL {
        let case = asymmetry.name();
        if outcomes.iter().any(|outcome| outcome.case == case) {
            let times = panel(&outcomes, case, |run| Some(run.seconds));
            joined.append(with_verdicts(times, &outcomes, case), case);
        }
    }
    joined
}

/// When each program ended.
fn by_program(ends: &Ends, asymmetry: Asymmetry, hows: &[How], programs: &[Launch]) -> Panel {
    let ends = ends.borrow();
    let series = hows.iter().map(|how| {
        let runs = ends.get(&(ALIKE.to_owned(), asymmetry.name(), how.name.clone()));
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

/// What any balancer can gain: default's time / the time that the programs take under natural
/// asymmetry divided by the average capability. By medians.
fn bound(outcomes: &[Outcome], group: &str, asymmetry: Asymmetry) -> Option<f64> {
    let default = |asymmetry: Asymmetry, value: fn(&Measurement) -> Option<f64>| {
        let is_it = |row: &&Outcome| {
            (row.program.as_str(), row.case.as_str(), &row.contestant)
                == (group, asymmetry.name(), &How::kernel().name)
        };
        let values: Vec<f64> = outcomes.iter().find(is_it)?.runs().filter_map(value).collect();
        crate::stats::median(&values)
    };
    let seconds = |run: &Measurement| Some(run.seconds);
    let given =
        |asymmetry| Some(default(asymmetry, seconds)? * default(asymmetry, |run| run.average)?);
    Some(given(asymmetry)? / given(Asymmetry::Natural)?)
}

/// Figure 12.
fn totals(outcomes: &[Outcome], hows: &[How]) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (asymmetry, paper_pct) in Asymmetry::ALL.into_iter().zip(PAPER_TOTAL_PCT) {
        for (how, group) in hows[1..].iter().flat_map(|how| [(how, ALIKE), (how, UNLIKE)]) {
            let row = ratios(outcomes, &how.name)
                .find(|(row, _)| (&*row.case, &*row.program) == (asymmetry.name(), group));
            let Some((_, judged)) = row else { continue };
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
            let bound = bound(outcomes, group, asymmetry);
            findings.push(Finding {
                claim: format!(
                    "{}, {}: total time against default, {group}",
                    how.name,
                    asymmetry.name()
                ),
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
        outcomes.iter().find(|row| {
            (&*row.contestant, &*row.case, &*row.program) == (&*how.name, asymmetry.name(), ALIKE)
        })
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

#[cfg(test)]
mod tests {
    use super::super::rows::tests::outcome;
    use super::*;

    #[test]
    fn the_bound_is_what_the_average_capability_allows() {
        let of = |case: &str, seconds: f64, average: f64| {
            let times = [seconds; 4];
            let mut outcome = outcome(case, ALIKE, "default", &times, &[0.0; 4], None);
            for run in outcome.rounds.iter_mut().flatten() {
                run.average = Some(average);
            }
            outcome
        };
        // 5 s at a capability of 1 are 6.25 s at 0.8.
        let outcomes = [of("natural", 5.0, 1.0), of("dynamic", 7.5, 0.8)];
        let found = bound(&outcomes, ALIKE, Asymmetry::Dynamic).unwrap();
        assert!((found - 1.2).abs() < 1e-9, "{found}");
        assert_eq!(bound(&outcomes, UNLIKE, Asymmetry::Dynamic), None);
        assert_eq!(bound(&outcomes[1..], ALIKE, Asymmetry::Dynamic), None);
    }
}
