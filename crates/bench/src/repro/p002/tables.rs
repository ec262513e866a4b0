//! The paper's tables: turn-around times and gains of all 30 cells.

use anyhow::Result;
use evenkeel_machine::Machine;
use evenkeel_sim::Report;
use evenkeel_sim::paper002::{Reading, TABLES, Table};
use serde::Serialize;

use super::contestant::{ALGORITHM, ALGORITHM_PLAIN, OURS, UNAWARE};
use super::optimum::{non_preemptive_ms, srpt_ms};
use super::runs::{Cell, Lab, Runs, SLICE_US, Value, mean, on, panel, tat};
use crate::repro::study::{Finding, Panel, Part, Point, Status};
use crate::stats::{Judged, Verdict, compare, judge};

/// The unaware turn-around times are as the paper's to so many percent where they were fitted, ...
const FITTED_ERROR_PCT: f64 = 10.0;
/// ... and on the average so where they are predicted.
const PREDICTED_ERROR_PCT: f64 = 15.0;
/// Algorithm 1 gains in so many of the 30 cells.
const POSITIVE_CELLS: usize = 27;
/// Ours gains so much on the average, in percent.
const MEAN_GAIN_PCT: f64 = 15.0;
/// Nothing may be known to be worse than this ratio.
const WORSE_BY: f64 = 1.02;
/// Seeds of the optima: these hardly vary.
const OPTIMUM_SEEDS: u64 = 5;

/// A cell as the JSON has it.
#[derive(Debug, Serialize)]
struct JsonRow {
    system: String,
    workload: String,
    processes: u64,
    paper_tat_unaware_ms: f64,
    paper_gain_pct: f64,
    tat_unaware_ms: f64,
    gain_algorithm1_pct: f64,
    gain_ours_pct: f64,
    ci95: Intervals,
    optimum_ms: f64,
}

#[derive(Debug, Serialize)]
struct Intervals {
    tat_unaware_ms: [f64; 2],
    gain_algorithm1_pct: [f64; 2],
    gain_ours_pct: [f64; 2],
}

/// A cell, measured.
struct Measured {
    cell: Cell,
    unaware: Point,
    algorithm: Point,
    plain: Point,
    ours: Point,
    non_preemptive_ms: f64,
    srpt_ms: f64,
}

impl Measured {
    fn of(cell: Cell, runs: &Runs, lab: &Lab) -> Result<Self> {
        let zero = Point::once(0.0);
        let gain =
            |contestant| Point::of(&runs.gains_pct(&cell, contestant, SLICE_US)).unwrap_or(zero);
        let machine = Machine::preset(cell.table.system)?;
        let optimum = |of: fn(&evenkeel_sim::program::Workload, &Machine) -> f64| {
            let seeds = 1..=lab.seeds().min(OPTIMUM_SEEDS);
            mean(seeds.map(|seed| {
                of(&cell.table.workload(cell.row.processes, &Reading::default(), seed), &machine)
            }))
        };
        Ok(Self {
            cell,
            unaware: Point::of(&runs.values(&cell, &UNAWARE, SLICE_US, tat)).unwrap_or(zero),
            algorithm: gain(&ALGORITHM),
            plain: gain(&ALGORITHM_PLAIN),
            ours: gain(&OURS),
            non_preemptive_ms: optimum(non_preemptive_ms),
            srpt_ms: optimum(srpt_ms),
        })
    }

    /// How far the unaware time is from the paper's, in percent of that.
    fn error_pct(&self) -> f64 {
        100.0 * (self.unaware.median / self.cell.row.tat_unaware_ms - 1.0)
    }

    fn row(&self) -> JsonRow {
        let Table { system, workload, .. } = self.cell.table;
        JsonRow {
            system: system.to_uppercase(),
            workload: workload.to_uppercase(),
            processes: self.cell.row.processes,
            paper_tat_unaware_ms: self.cell.row.tat_unaware_ms,
            paper_gain_pct: self.cell.row.gain_pct,
            tat_unaware_ms: self.unaware.median,
            gain_algorithm1_pct: self.algorithm.median,
            gain_ours_pct: self.ours.median,
            ci95: Intervals {
                tat_unaware_ms: self.unaware.ci95,
                gain_algorithm1_pct: self.algorithm.ci95,
                gain_ours_pct: self.ours.ci95,
            },
            optimum_ms: self.srpt_ms,
        }
    }
}

/// The 30 cells.
///
/// # Errors
/// Something cannot be simulated.
pub fn measure(lab: &Lab) -> Result<Part> {
    let cells = lab.cells();
    let contestants = [UNAWARE, ALGORITHM, ALGORITHM_PLAIN, OURS];
    let runs = lab.simulate(&cells, &contestants, &[SLICE_US], lab.seeds(), |_| Ok(()))?;
    let measured: Vec<Measured> =
        cells.iter().map(|cell| Measured::of(*cell, &runs, lab)).collect::<Result<_>>()?;
    let rows = measured.iter().map(|one| serde_json::to_value(one.row()));
    let mut findings = reproduced(&measured);
    findings.extend(reached(&measured, &cells, &runs));
    Ok(Part {
        title: "Tables 1 to 3: turn-around times and gains".into(),
        method: format!(
            "{} seeds of each cell, with slices of {} ms; all contestants have the same processes. A \
             gain is what the mean turn-around time is shorter than under the unaware balancer, in \
             percent of that, seed by seed. *Algorithm 1* places new processes by load per capability, \
             *plain placement* as the unaware balancer does (the paper says \"a least loaded core\"). \
             *Ours* is Algorithm 1 with the parts home and cost: it knows on which node each process's \
             memory is, which a kernel knows of a program that has run for a while or has a memory \
             policy, and the paper's balancers do not ask for. The optima are of CPUs that cost nothing \
             with all memory near: nobody can reach them.",
            lab.seeds(),
            SLICE_US / 1000
        ),
        findings,
        panels: panels(&measured, &runs),
        rows: rows.collect::<Result<_, _>>()?,
        ..Part::default()
    })
}

fn finding(claim: &str, paper: String, ours: String, status: Status) -> Finding {
    Finding { claim: claim.to_owned(), paper, ours, bound: "-".to_owned(), status }
}

fn range(values: impl Iterator<Item = f64> + Clone) -> String {
    let (least, most) = (
        values.clone().fold(f64::INFINITY, f64::min),
        values.clone().fold(f64::NEG_INFINITY, f64::max),
    );
    format!("{least:.1} to {most:.1} %, mean {:.1} %", mean(values))
}

/// What the paper says.
fn reproduced(measured: &[Measured]) -> Vec<Finding> {
    let paper = measured.iter().map(|one| one.cell.row.gain_pct);
    let algorithm = measured.iter().map(|one| one.algorithm.median);
    let plain = measured.iter().map(|one| one.plain.median);
    let in_range = algorithm.clone().filter(|gain| (3.0..=10.0).contains(gain)).count();
    let cells = measured.len();
    vec![
        finding(
            "Algorithm 1 gains 4 to 9 % in every cell",
            range(paper),
            format!("{}; 3 to 10 % in {in_range} of {cells}", range(algorithm.clone())),
            Status::reproduced(in_range == cells),
        ),
        finding(
            "the same, with plain placement",
            "-".into(),
            range(plain.clone()),
            Status::reproduced(plain.clone().all(|gain| gain > 0.0)),
        ),
    ]
}

/// What was to be reached.
fn reached(measured: &[Measured], cells: &[Cell], runs: &Runs) -> Vec<Finding> {
    let is_fitted = |one: &&Measured| one.cell.table.system == "amc2";
    let fitted = measured.iter().filter(is_fitted).map(|one| one.error_pct().abs());
    let fitted = fitted.fold(0.0, f64::max);
    let predicted =
        mean(measured.iter().filter(|one| !is_fitted(one)).map(|one| one.error_pct().abs()));
    let positive = measured.iter().filter(|one| one.algorithm.median > 0.0).count();
    let gains = ["amc1", "amc2", "amc3"]
        .map(|system| runs.mean_gain_pct(&on(cells, system), &ALGORITHM, SLICE_US));
    let more = measured.iter().filter(|one| one.ours.median >= one.cell.row.gain_pct).count();
    let ours = measured.iter().map(|one| one.ours.median);
    let mean_gain = mean(ours.clone());
    let mut findings = vec![
        finding(
            "unaware times in AMC2's cells, after the fit",
            format!("within {FITTED_ERROR_PCT} % of the paper's"),
            format!("within {fitted:.1} %"),
            Status::reached(fitted <= FITTED_ERROR_PCT),
        ),
        finding(
            "unaware times in the other cells, predicted",
            format!("mean error {PREDICTED_ERROR_PCT} % at most"),
            format!("{predicted:.1} %"),
            Status::reached(predicted <= PREDICTED_ERROR_PCT),
        ),
        finding(
            "Algorithm 1's gain is positive",
            format!("{POSITIVE_CELLS} of 30 cells"),
            format!("{positive} of {} (the cause: see turns, below)", measured.len()),
            Status::reproduced(positive >= POSITIVE_CELLS),
        ),
        finding(
            "its mean grows from AMC1 to AMC2 to AMC3",
            "4.5, 5.0, 6.6 %".into(),
            format!("{:.1}, {:.1}, {:.1} %", gains[0], gains[1], gains[2]),
            Status::reproduced(gains[0] < gains[1] && gains[1] < gains[2]),
        ),
        finding(
            "our gain is at least the paper's",
            "30 of 30 cells".into(),
            format!("{more} of {}", measured.len()),
            Status::reached(more == measured.len()),
        ),
        finding(
            "our mean gain",
            format!("{MEAN_GAIN_PCT} % or more"),
            range(ours),
            Status::reached(mean_gain >= MEAN_GAIN_PCT),
        ),
    ];
    for (name, value) in [("makespan", makespan as Value), ("99th percentile", p99)] {
        let worse = worse(cells, runs, value);
        let aim = format!("worse by more than {:.0} % in no cell", 100.0 * (WORSE_BY - 1.0));
        let status = Status::reached(worse.is_empty());
        let found = if worse.is_empty() { "none".to_owned() } else { worse.join("; ") };
        findings.push(finding(&format!("our {name} against unaware"), aim, found, status));
    }
    findings
}

fn makespan(report: &Report) -> f64 {
    report.makespan_ms
}

fn p99(report: &Report) -> f64 {
    report.tat.p99_ms
}

fn slowdown(report: &Report) -> f64 {
    report.slowdown_mean
}

/// The cells in which ours is known to be worse by this figure.
fn worse(cells: &[Cell], runs: &Runs, value: Value) -> Vec<String> {
    let compared: Vec<_> = cells
        .iter()
        .filter_map(|cell| {
            let of = |contestant| runs.values(cell, contestant, SLICE_US, value);
            Some((cell, compare(&of(&UNAWARE), &of(&OURS))?))
        })
        .collect();
    let comparisons: Vec<_> = compared.iter().map(|(_, comparison)| *comparison).collect();
    let is_worse = |judged: &Judged| {
        judged.verdict == Verdict::Worse && 1.0 / judged.comparison.ratio.median > WORSE_BY
    };
    compared
        .iter()
        .zip(judge(&comparisons, 1))
        .filter(|(_, judged)| is_worse(judged))
        .map(|((cell, _), judged)| {
            let by = 100.0 * (1.0 / judged.comparison.ratio.median - 1.0);
            format!(
                "{} {} {}: {by:.1} %",
                cell.table.system, cell.table.workload, cell.row.processes
            )
        })
        .collect()
}

fn panels(measured: &[Measured], runs: &Runs) -> Vec<Panel> {
    TABLES
        .iter()
        .flat_map(|table| {
            let of_table: Vec<&Measured> =
                measured.iter().filter(|one| std::ptr::eq(one.cell.table, table)).collect();
            table_panels(table, &of_table, runs)
        })
        .collect()
}

fn table_panels(table: &Table, measured: &[&Measured], runs: &Runs) -> Vec<Panel> {
    let cells: Vec<Cell> = measured.iter().map(|one| one.cell).collect();
    let name = format!("{} {}", table.system.to_uppercase(), table.workload.to_uppercase());
    let id = |figure: &str| format!("{}-{}-{figure}", table.system, table.workload);
    let points = |of: &dyn Fn(&Measured) -> Option<Point>| {
        measured.iter().map(|one| of(one)).collect::<Vec<_>>()
    };
    let once = |of: fn(&Measured) -> f64| points(&|one| Some(Point::once(of(one))));
    let times =
        |contestant| points(&|one| Point::of(&runs.values(&one.cell, contestant, SLICE_US, tat)));
    let by = |value: Value| -> Vec<(String, Vec<Option<Point>>)> {
        [UNAWARE, ALGORITHM, OURS]
            .iter()
            .map(|contestant| {
                let of = |one: &Measured| {
                    Point::of(&runs.values(&one.cell, contestant, SLICE_US, value))
                };
                (contestant.name.to_owned(), points(&of))
            })
            .collect()
    };
    vec![
        panel(
            &id("tat"),
            &format!("{name}: turn-around time"),
            "mean turn-around time, ms",
            &cells,
            vec![
                ("paper, unaware".into(), once(|one| one.cell.row.tat_unaware_ms)),
                (UNAWARE.name.into(), times(&UNAWARE)),
                (ALGORITHM.name.into(), times(&ALGORITHM)),
                (OURS.name.into(), times(&OURS)),
                ("optimum, non-preemptive".into(), once(|one| one.non_preemptive_ms)),
                ("optimum, SRPT".into(), once(|one| one.srpt_ms)),
            ],
        ),
        panel(
            &id("gain"),
            &format!("{name}: gain"),
            "gain over unaware, %",
            &cells,
            vec![
                ("paper".into(), once(|one| one.cell.row.gain_pct)),
                (ALGORITHM.name.into(), points(&|one| Some(one.algorithm))),
                (ALGORITHM_PLAIN.name.into(), points(&|one| Some(one.plain))),
                (OURS.name.into(), points(&|one| Some(one.ours))),
            ],
        ),
        panel(&id("makespan"), &format!("{name}: makespan"), "ms", &cells, by(makespan)),
        panel(
            &id("p99"),
            &format!("{name}: 99th percentile of the turn-around times"),
            "ms",
            &cells,
            by(p99),
        ),
        panel(
            &id("slowdown"),
            &format!("{name}: mean slowdown"),
            "turn-around time by work on a speed core with near memory",
            &cells,
            by(slowdown),
        ),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cell_has_the_agreed_fields() {
        let lab = Lab::new(true, None).unwrap();
        let part = measure(&lab).unwrap();
        assert_eq!((part.rows.len(), part.panels.len()), (6, 30));
        assert!(
            part.panels.iter().all(|panel| panel.places.len() == 1),
            "the short form has one row"
        );
        let row = part.rows[0].as_object().unwrap();
        let mut keys: Vec<&str> = row.keys().map(String::as_str).collect();
        keys.sort_unstable();
        assert_eq!(
            keys,
            [
                "ci95",
                "gain_algorithm1_pct",
                "gain_ours_pct",
                "optimum_ms",
                "paper_gain_pct",
                "paper_tat_unaware_ms",
                "processes",
                "system",
                "tat_unaware_ms",
                "workload",
            ]
        );
        assert_eq!((&row["system"], &row["workload"]), (&"AMC1".into(), &"W1".into()));
        assert_eq!(row["ci95"].as_object().unwrap().len(), 3);
        let (unaware, optimum) = (&row["tat_unaware_ms"], &row["optimum_ms"]);
        assert!(optimum.as_f64() < unaware.as_f64(), "{optimum} {unaware}");
        assert_eq!(part.findings.len(), 10);
    }
}
