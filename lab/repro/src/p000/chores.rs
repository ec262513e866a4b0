//! Figures 7, 8 and 9: the chore-counter. How much of the CPUs its tasks got (avg_chore), how evenly
//! (stdev_chore), and how often they migrated; by balance interval and by number of tasks.

use anyhow::Result;
use evenkeel_trial::again;

use super::bench::{
    Asymmetry, Bench, DEFAULT, LAG, NO_MPI, case, how_of, kernel, lag, lag_at, paper,
};
use super::measured::{MIGRATIONS, Measured, RATE, SPREAD, any_worse, point, ratio, span, tally};
use crate::page::number;
use crate::study::{Finding, Panel, Part, Point, Series, Status};

/// How long a run of figure 7 lasts, in s: long enough for the longest interval.
const SWEEP_S: f64 = 5.0;
const INTERVALS: [&str; 6] = ["10ms", "50ms", "100ms", "500ms", "1s", "4s"];
/// How long a run of figure 8 lasts, in s: it has a third of the paper's number of intervals, of 100 ms
/// each where the paper has 1 s.
const COUNTS_S: f64 = 3.0;
const INTERVAL: &str = "100ms";
/// "Similar" and "about 3 %" in the paper: less is no loss.
const SIMILAR: f64 = 0.97;

fn no_mpi(id: &str, title: &str, claim: &str) -> Part {
    Part::cannot(id, title, claim, "-", NO_MPI.to_owned())
}

/// Figure 7: the impact of the interval.
///
/// # Errors
/// See [`Bench::measure`].
pub fn intervals(bench: &Bench) -> Result<Part> {
    const TITLE: &str = "Figure 7: impact of the balance interval";
    if bench.mpi.is_none() {
        return Ok(no_mpi("figure-7", TITLE, "the best interval lies between the extremes"));
    }
    let chosen: &[&str] = if bench.quick { &INTERVALS[2..3] } else { &INTERVALS };
    let mut contestants = vec![kernel(), lag()];
    contestants.extend(chosen.iter().flat_map(|at| [paper("fifo", at), lag_at(at)]));
    let ranks = bench.cpus() as u32;
    let cases =
        Asymmetry::ALL.map(|asymmetry| case(asymmetry.name(), "chore_counter", &contestants));
    let measured = bench.measure(&contestants, &cases, |turn| {
        let noise = Asymmetry::find(&turn.case.name)?.noise();
        bench.counted(noise, how_of(turn), ranks, SWEEP_S)
    })?;
    let mut panels = Vec::new();
    for asymmetry in Asymmetry::ALL {
        let y = "chores a second, thousands";
        panels.push(sweep(&measured, chosen, asymmetry, "avg", y, RATE));
        let y = "stdev_chore / avg_chore, %";
        panels.push(sweep(&measured, chosen, asymmetry, "stdev", y, SPREAD));
    }
    let findings = interval_findings(&panels);
    Ok(Part {
        id: "figure-7".into(),
        title: TITLE.into(),
        method: format!(
            "The chore-counter with a rank for each CPU ({ranks}) for {SWEEP_S} s (paper: 4 tasks, \
             100 s), by interval. `default` and `lag` with its own choice of interval are the same \
             at all places."
        ),
        findings,
        panels,
        ..Part::default()
    })
}

fn sweep(
    measured: &Measured,
    intervals: &[&str],
    asymmetry: Asymmetry,
    what: &str,
    y: &str,
    figure: &str,
) -> Panel {
    let of = |contestant: &str| {
        let record = measured.records.iter().find(|record| record.case == asymmetry.name())?;
        point(record, contestant, figure)
    };
    let flat =
        |name: &str| Series { name: name.to_owned(), points: vec![of(name); intervals.len()] };
    let varied = |name: &str, contestant: &dyn Fn(&str) -> String| Series {
        name: name.to_owned(),
        points: intervals.iter().map(|interval| of(&contestant(interval))).collect(),
    };
    let again = again(DEFAULT);
    Panel {
        id: format!("figure-7-{}-{what}", asymmetry.id()),
        title: format!("{what}_chore, {} asymmetry", asymmetry.name()),
        x: "balance interval".into(),
        y: y.into(),
        places: intervals.iter().map(|interval| (*interval).to_owned()).collect(),
        series: vec![
            flat(DEFAULT),
            varied("paper (fifo)", &|interval| paper("fifo", interval).name),
            varied("lag, fixed interval", &|interval| lag_at(interval).name),
            flat(LAG),
            flat(&again),
        ],
    }
}

/// The value of a series at a place of the panel with this id.
fn at(panels: &[Panel], id: &str, series: usize, place: &str) -> Option<Point> {
    let panel = panels.iter().find(|panel| panel.id == id)?;
    let place = panel.places.iter().position(|other| other == place)?;
    *panel.series.get(series)?.points.get(place)?
}

fn interval_findings(panels: &[Panel]) -> Vec<Finding> {
    const PAPER: usize = 1;
    let median = |id: &str, place: &str| at(panels, id, PAPER, place).map(|point| point.median);
    let mut findings = Vec::new();
    for asymmetry in Asymmetry::ALL {
        let id = format!("figure-7-{}-avg", asymmetry.id());
        if let (Some(short), Some(second)) = (median(&id, "10ms"), median(&id, "1s")) {
            let lost_pct = 100.0 * (1.0 - short / second);
            findings.push(Finding {
                claim: format!(
                    "paper's policy, {}: too short an interval lowers avg_chore",
                    asymmetry.name()
                ),
                paper: "falls (plot)".into(),
                ours: format!("{lost_pct:.1} % less at 10 ms than at 1 s"),
                bound: "-".into(),
                status: Status::reproduced(lost_pct > 1.0),
            });
        }
        let id = format!("figure-7-{}-stdev", asymmetry.id());
        if let (Some(tenth), Some(long)) = (median(&id, "100ms"), median(&id, "4s"))
            && asymmetry != Asymmetry::Natural
        {
            findings.push(Finding {
                claim: format!(
                    "paper's policy, {}: too long an interval raises stdev_chore",
                    asymmetry.name()
                ),
                paper: "rises (plot)".into(),
                ours: format!("{} % at 4 s, {} % at 100 ms", number(long), number(tenth)),
                bound: "0 %".into(),
                status: Status::reproduced(long > 2.0 * tenth),
            });
        }
    }
    findings
}

/// Figures 8 and 9: below, at and above the number of CPUs, and no multiple of it.
///
/// # Errors
/// See [`Bench::measure`].
pub fn task_counts(bench: &Bench) -> Result<Part> {
    const TITLE: &str = "Figures 8 and 9: the chore-counter by number of tasks";
    if bench.mpi.is_none() {
        return Ok(no_mpi("figure-8", TITLE, "similar avg_chore and lower stdev_chore"));
    }
    let cpus = bench.cpus() as u32;
    let most = if bench.quick { cpus } else { 2 * cpus + 1 };
    let contestants = [kernel(), paper("fifo", INTERVAL), lag()];
    let of = |asymmetry: Asymmetry| {
        (1..=most).map(move |tasks: u32| (asymmetry.name(), tasks.to_string()))
    };
    let cases: Vec<_> = Asymmetry::ALL
        .into_iter()
        .flat_map(of)
        .map(|(name, tasks)| case(name, &tasks, &contestants))
        .collect();
    let measured = bench.measure(&contestants, &cases, |turn| {
        let noise = Asymmetry::find(&turn.case.name)?.noise();
        bench.counted(noise, how_of(turn), turn.case.program.parse()?, COUNTS_S)
    })?;
    let mut panels = Vec::new();
    for asymmetry in Asymmetry::ALL {
        let case = asymmetry.name();
        let named = |figure: &str, what: &str, y: &str, panel: Panel| Panel {
            id: format!("{figure}-{}-{what}", asymmetry.id()),
            title: format!("{what}, {case} asymmetry"),
            x: "tasks".into(),
            y: y.into(),
            ..panel
        };
        let rates = measured.judged_panel(case, RATE);
        let y = "chores a second and task, thousands";
        panels.push(named("figure-8", "avg_chore", y, rates));
        let spreads = measured.panel(case, SPREAD);
        panels.push(named("figure-8", "stdev_chore", "stdev_chore / avg_chore, %", spreads));
        let counts = measured.panel(case, MIGRATIONS);
        panels.push(named("figure-9", "migrations", "migrations of all tasks in a run", counts));
    }
    let ours = contestants.iter().skip(1);
    let mut findings: Vec<Finding> =
        ours.flat_map(|contestant| count_findings(&measured, &contestant.name)).collect();
    findings.extend(migration_finding(&panels, cpus));
    Ok(Part {
        id: "figure-8".into(),
        title: TITLE.into(),
        method: format!(
            "1 to {most} ranks (2N + 1) for {COUNTS_S} s each (paper: 100 s); the paper's policy at \
             {INTERVAL} (paper: 1 s). With fewer tasks than CPUs the paper assumes the kernel's \
             worst case, a task on the worst CPU; here the kernel puts it where it likes. \
             Migrations are counted by the kernel for each rank, by whatever it was moved."
        ),
        findings,
        panels,
        ..Part::default()
    })
}

fn count_findings(measured: &Measured, contestant: &str) -> Vec<Finding> {
    let is_ours = contestant == LAG;
    let status = if is_ours { Status::reached } else { Status::reproduced };
    let rates = measured.ratios(contestant);
    let spreads = measured.compare(SPREAD, DEFAULT, contestant);
    let above = spreads.iter().filter(|row| ratio(row) < 1.0).count();
    let is_similar = rates.iter().all(|row| ratio(row) >= SIMILAR);
    vec![
        Finding {
            claim: format!("{contestant}: avg_chore as high as default's, for every task count"),
            paper: if is_ours { "none worse".into() } else { "similar".into() },
            ours: format!("{}; {}", span(&rates), tally(&rates)),
            bound: "1.000x with all CPUs busy".into(),
            status: status(if is_ours { !any_worse(&rates) } else { is_similar }),
        },
        Finding {
            claim: format!("{contestant}: stdev_chore not above default's, for every task count"),
            paper: if is_ours { "none worse".into() } else { "lower".into() },
            ours: format!(
                "{} lower, the median above in {above}; {}",
                span(&spreads),
                tally(&spreads)
            ),
            bound: "0 %".into(),
            status: status(!any_worse(&spreads) && !spreads.is_empty()),
        },
    ]
}

/// Figure 9: the kernel alone migrates where tasks outnumber the CPUs and are no multiple of them.
fn migration_finding(panels: &[Panel], cpus: u32) -> Option<Finding> {
    const DEFAULT: usize = 0;
    let panel = panels.iter().find(|panel| panel.id == "figure-9-natural-migrations")?;
    let (mut uneven, mut even) = (Vec::new(), Vec::new());
    for (place, point) in panel.places.iter().zip(&panel.series.get(DEFAULT)?.points) {
        let tasks: u32 = place.parse().ok()?;
        let is_uneven = tasks > cpus && !tasks.is_multiple_of(cpus);
        if is_uneven { &mut uneven } else { &mut even }.push((*point)?.median);
    }
    let fewest = uneven.iter().copied().fold(f64::INFINITY, f64::min);
    let most = even.iter().copied().fold(0.0, f64::max);
    (!uneven.is_empty()).then(|| Finding {
        claim: "default, natural: many migrations only where tasks outnumber the CPUs and are no \
                multiple of them"
            .into(),
        paper: "so (plot)".into(),
        ours: format!("at least {} there, at most {} elsewhere", number(fewest), number(most)),
        bound: "-".into(),
        status: Status::reproduced(fewest > 2.0 * most),
    })
}

#[cfg(test)]
mod tests {
    use super::super::measured::tests::{measured, record};
    use super::*;

    #[test]
    fn an_uneven_balancer_is_found_out() {
        let times = [1.0, 1.01, 0.99, 1.0];
        let [low, high] = [[0.1, 0.11, 0.1, 0.12], [0.4, 0.41, 0.42, 0.4]];
        let statuses = |default: &[f64], lag: &[f64]| -> Vec<Status> {
            let lines = [("default", &times[..], default), ("lag", &times[..], lag)];
            let measured = measured(vec![record("natural", "2", &lines)]);
            count_findings(&measured, LAG).iter().map(|one| one.status).collect()
        };
        assert_eq!(statuses(&low, &high), [Status::Reached, Status::Missed]);
        assert_eq!(statuses(&high, &low), [Status::Reached, Status::Reached]);
    }

    #[test]
    fn an_even_number_of_tasks_is_not_to_migrate() {
        let status = |counts: [f64; 5]| {
            let points = counts.map(|count| Some(Point::once(count))).to_vec();
            let panel = Panel {
                id: "figure-9-natural-migrations".into(),
                places: (1..=5).map(|tasks: u32| tasks.to_string()).collect(),
                series: vec![Series { name: "default".into(), points }],
                ..Panel::default()
            };
            migration_finding(&[panel], 2).unwrap().status
        };
        assert_eq!(status([1.0, 0.0, 30.0, 2.0, 40.0]), Status::Reproduced);
        assert_eq!(status([1.0, 0.0, 30.0, 25.0, 40.0]), Status::NotReproduced);
        assert_eq!(migration_finding(&[], 2), None);
    }

    #[test]
    fn the_interval_is_judged_by_its_extremes() {
        let panel = |id: &str, values: [f64; 3]| Panel {
            id: id.into(),
            places: ["10ms", "100ms", "1s"].map(String::from).to_vec(),
            series: vec![
                Series::default(),
                Series {
                    name: "paper".into(),
                    points: values.map(|v| Some(Point::once(v))).to_vec(),
                },
            ],
            ..Panel::default()
        };
        let status = |values| interval_findings(&[panel("figure-7-natural-avg", values)])[0].status;
        assert_eq!(status([90.0, 99.0, 100.0]), Status::Reproduced);
        assert_eq!(status([100.0, 99.0, 100.0]), Status::NotReproduced);
    }
}
