//! Figures 7, 8 and 9: the chore-counter. How much of the CPUs its tasks got (avg_chore), how evenly
//! (stdev_chore), and how often they migrated; by balance interval and by number of tasks.

use anyhow::Result;

use super::experiment::{Asymmetry, Experiment, How};
use super::rows::{any_worse, compared_by, panel, point, ratios, span, tally, with_verdicts};
use crate::interleave::{Group, Measurement, Outcome};
use crate::repro::page::number;
use crate::repro::study::{Finding, Panel, Part, Point, Series, Status};
use crate::stats::Judged;

/// Of figure 7: long enough for the longest interval, in s.
const SWEEP_S: f64 = 5.0;
const INTERVALS: [&str; 6] = ["10ms", "50ms", "100ms", "500ms", "1s", "4s"];
/// Of figure 8: as many intervals of 100 ms as a third of the paper's of 1 s, in s.
const COUNTS_S: f64 = 3.0;
const INTERVAL: &str = "100ms";
/// "Similar" and "about 3 %" in the paper: less is no loss.
const SIMILAR: f64 = 0.97;

/// Chores that a rank did in a second on average, in thousands.
fn rate(run: &Measurement) -> Option<f64> {
    (run.seconds > 0.0).then(|| 1e3 / run.seconds)
}

/// stdev_chore / avg_chore, in %.
fn spread_pct(run: &Measurement) -> Option<f64> {
    Some(100.0 * run.spread?)
}

fn migrations(run: &Measurement) -> Option<f64> {
    Some(run.migrations? as f64)
}

fn no_mpi(id: &str, title: &str, claim: &str) -> Part {
    let why = "not run: no MPI here (scripts/setup mpi)".to_owned();
    Part::cannot(id, title, claim, "-", why)
}

/// Figure 7: the impact of the interval.
///
/// # Errors
/// See [`Experiment::judge`].
pub fn intervals(experiment: &Experiment) -> Result<Part> {
    const TITLE: &str = "Figure 7: impact of the balance interval";
    if experiment.mpi.is_none() {
        return Ok(no_mpi("figure-7", TITLE, "the best interval lies between the extremes"));
    }
    let chosen: &[&str] = if experiment.quick { &INTERVALS[2..3] } else { &INTERVALS };
    let mut hows = vec![How::kernel(), How::lag()];
    hows.extend(chosen.iter().flat_map(|at| [How::paper("fifo", at), How::lag_at(at)]));
    let ranks = experiment.cpus() as u32;
    let group = |asymmetry: &Asymmetry| -> Result<Group<'_>> {
        let contestants = hows
            .iter()
            .map(|how| experiment.counted(asymmetry.case(), how, ranks, SWEEP_S))
            .collect::<Result<_>>()?;
        Ok(Group {
            case: asymmetry.name().into(),
            program: "chore_counter".into(),
            reference: None,
            contestants,
        })
    };
    let groups = Asymmetry::ALL.iter().map(group).collect::<Result<Vec<_>>>()?;
    let outcomes = experiment.judge(groups)?;
    let mut panels = Vec::new();
    for asymmetry in Asymmetry::ALL {
        let of_case: Vec<&Outcome> =
            outcomes.iter().filter(|outcome| outcome.case == asymmetry.name()).collect();
        panels.push(sweep(&of_case, chosen, asymmetry, "avg", "chores a second, thousands", rate));
        let y = "stdev_chore / avg_chore, %";
        panels.push(sweep(&of_case, chosen, asymmetry, "stdev", y, spread_pct));
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
    outcomes: &[&Outcome],
    intervals: &[&str],
    asymmetry: Asymmetry,
    what: &str,
    y: &str,
    value: fn(&Measurement) -> Option<f64>,
) -> Panel {
    let of = |name: &str| {
        outcomes
            .iter()
            .find(|outcome| outcome.contestant == name)
            .and_then(|outcome| point(outcome, value))
    };
    let flat = |how: How| Series { points: vec![of(&how.name); intervals.len()], name: how.name };
    let varied = |name: &str, how: fn(&str) -> How| Series {
        name: name.to_owned(),
        points: intervals.iter().map(|interval| of(&how(interval).name)).collect(),
    };
    Panel {
        id: format!("figure-7-{}-{what}", asymmetry.id()),
        title: format!("{what}_chore, {} asymmetry", asymmetry.name()),
        x: "balance interval".into(),
        y: y.into(),
        places: intervals.iter().map(|interval| (*interval).to_owned()).collect(),
        series: vec![
            flat(How::kernel()),
            varied("paper (fifo)", |interval| How::paper("fifo", interval)),
            varied("lag, fixed interval", How::lag_at),
            flat(How::lag()),
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
/// See [`Experiment::judge`].
pub fn task_counts(experiment: &Experiment) -> Result<Part> {
    const TITLE: &str = "Figures 8 and 9: the chore-counter by number of tasks";
    if experiment.mpi.is_none() {
        return Ok(no_mpi("figure-8", TITLE, "similar avg_chore and lower stdev_chore"));
    }
    let cpus = experiment.cpus() as u32;
    let most = if experiment.quick { cpus } else { 2 * cpus + 1 };
    let hows = [How::kernel(), How::paper("fifo", INTERVAL), How::lag()];
    let mut groups = Vec::new();
    for asymmetry in Asymmetry::ALL {
        for tasks in 1..=most {
            let contestants = hows
                .iter()
                .map(|how| experiment.counted(asymmetry.case(), how, tasks, COUNTS_S))
                .collect::<Result<_>>()?;
            groups.push(Group {
                case: asymmetry.name().into(),
                program: tasks.to_string(),
                reference: None,
                contestants,
            });
        }
    }
    let outcomes = experiment.judge(groups)?;
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
        let rates = with_verdicts(panel(&outcomes, case, rate), &outcomes, case);
        let y = "chores a second and task, thousands";
        panels.push(named("figure-8", "avg_chore", y, rates));
        let spreads = panel(&outcomes, case, spread_pct);
        panels.push(named("figure-8", "stdev_chore", "stdev_chore / avg_chore, %", spreads));
        let counts = panel(&outcomes, case, migrations);
        panels.push(named("figure-9", "migrations", "migrations of all tasks in a run", counts));
    }
    let mut findings: Vec<Finding> =
        hows.iter().skip(1).flat_map(|how| count_findings(&outcomes, how)).collect();
    findings.extend(migration_finding(&panels, cpus));
    Ok(Part {
        id: "figure-8".into(),
        title: TITLE.into(),
        method: format!(
            "1 to {most} ranks (2N + 1) for {COUNTS_S} s each (paper: 100 s); the paper's policy at \
             {INTERVAL} (paper: 1 s). With fewer tasks than CPUs the paper assumes the kernel's \
             worst case, a task on the worst CPU; here the kernel puts it where it likes. \
             Migrations are counted by the kernel for each rank, whoever moved it."
        ),
        findings,
        panels,
        ..Part::default()
    })
}

fn count_findings(outcomes: &[Outcome], how: &How) -> Vec<Finding> {
    let is_ours = how.name == How::lag().name;
    let status = if is_ours { Status::reached } else { Status::reproduced };
    let rates: Vec<(&Outcome, Judged)> = ratios(outcomes, &how.name).collect();
    let spreads = compared_by(outcomes, &how.name, |run| run.spread);
    let is_above = |judged: &Judged| judged.comparison.ratio.median < 1.0;
    let above = spreads.iter().filter(|(_, judged)| is_above(judged)).count();
    let similar = rates.iter().all(|(_, judged)| judged.comparison.ratio.median >= SIMILAR);
    vec![
        Finding {
            claim: format!("{}: avg_chore as high as default's, for every task count", how.name),
            paper: if is_ours { "none worse".into() } else { "similar".into() },
            ours: format!("{}; {}", span(&rates), tally(&rates)),
            bound: "1.000x with all CPUs busy".into(),
            status: status(if is_ours { !any_worse(&rates) } else { similar }),
        },
        Finding {
            claim: format!("{}: stdev_chore not above default's, for every task count", how.name),
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
    use super::super::rows::tests::outcome;
    use super::*;

    #[test]
    fn an_uneven_balancer_is_found_out() {
        let times = [1.0, 1.01, 0.99, 1.0];
        let [low, high] = [[0.1, 0.11, 0.1, 0.12], [0.4, 0.41, 0.42, 0.4]];
        let mut outcomes = vec![
            outcome("natural", "2", "default", &times, &low, None),
            outcome("natural", "2", "lag", &times, &high, Some(&times)),
        ];
        let statuses = |outcomes: &[Outcome]| -> Vec<Status> {
            count_findings(outcomes, &How::lag()).iter().map(|one| one.status).collect()
        };
        assert_eq!(statuses(&outcomes), [Status::Reached, Status::Missed]);
        outcomes.swap(0, 1);
        outcomes[0].contestant = "default".into();
        outcomes[1].contestant = "lag".into();
        outcomes[1].judged = outcomes[0].judged.take();
        assert_eq!(statuses(&outcomes), [Status::Reached, Status::Reached]);
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
