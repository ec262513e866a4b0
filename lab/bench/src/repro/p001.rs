//! Paper 001: Zou, Sun, Ma, Duan, "A source-aware interrupt scheduling for modern parallel I/O
//! systems", sections V and VI. Its experiments on this machine.
//!
//! The paper has a client with eight cores and 48 server machines; here both ends are network
//! namespaces of one machine, and share its CPUs. Its baseline is irqbalance, which puts interrupts on
//! the least loaded cores; here that is `sais attach --policy least-loaded`, which does so for each
//! request.

use std::cell::Cell;
use std::path::Path;
use std::time::Duration;

use anyhow::Result;
use evenkeel_machine::{CpuSet, Machine};

use super::study::{Finding, Panel, Part, Point, Series, Status, Study};
use super::{Options, Paper};
use crate::interleave::{Outcome, Plan};
use crate::sais::contestant::Contestant;
use crate::sais::parallel::Load;
use crate::sais::table::{Row, SI_IRQBALANCE, SI_SAIS};
use crate::sais::{Experiment, Measured, Read, Times, memory_case};
use crate::stats::Verdict;
use evenkeel_experiment::MachineInfo;

const TITLE: &str = "Zou, Sun, Ma, Duan: A source-aware interrupt scheduling for modern parallel I/O \
                     systems. IEEE 26th International Parallel and Distributed Processing Symposium, \
                     2012";

/// The paper.
pub const PAPER: Paper = Paper { number: "001", parts, measure };

fn parts() -> Vec<&'static str> {
    PARTS.to_vec()
}

/// All parts, in the paper's order.
const PARTS: [&str; 5] = ["one-gigabit", "figure-5", "figure-6", "figure-12", "figure-14"];

/// What stands for irqbalance first, then the paper's policy (i), then what came of it.
const CONTESTANTS: [Contestant; 5] = [
    BALANCED,
    SOURCE_AWARE,
    Contestant::Flow("runner"),
    Contestant::Flow("auto"),
    Contestant::None,
];
const BALANCED: Contestant = Contestant::Flow("least-loaded");
const SOURCE_AWARE: Contestant = Contestant::Flow("issuer");

const MEBIBYTE: usize = 1 << 20;
/// Runs of each contestant, and how long each lasts.
const RUNS: usize = 6;
const TIMES: Times =
    Times { warm_up: Duration::from_millis(1500), measured: Duration::from_millis(700) };
const QUICK_RUNS: usize = 2;
const QUICK_TIMES: Times =
    Times { warm_up: Duration::from_millis(50), measured: Duration::from_millis(150) };

/// How much of it is measured.
struct Scale<'a> {
    executable: &'a Path,
    cpus: &'a CpuSet,
    is_quick: bool,
    runs: usize,
    /// What others took of the machine in the row where that was the most, in %.
    worst_foreign_pct: Cell<f64>,
}

/// Measures these parts; `so_far` gets the study after each of them, so that nothing is lost. A part
/// that fails is in it, with the reason.
///
/// # Errors
/// The machine cannot be read, `so_far` fails, or somebody asked for the end.
fn measure(
    chosen: &[&str],
    options: &Options,
    so_far: &mut dyn FnMut(&Study) -> Result<()>,
) -> Result<Study> {
    let cpus = Machine::from_sysfs(Path::new("/"))?.online();
    let usual = if options.quick { QUICK_RUNS } else { RUNS };
    let scale = Scale {
        executable: &options.executable,
        cpus: &cpus,
        is_quick: options.quick,
        runs: options.runs.unwrap_or(usual),
        worst_foreign_pct: Cell::new(0.0),
    };
    let mut study = Study {
        paper: PAPER.number.to_owned(),
        title: TITLE.to_owned(),
        command: options.command.clone(),
        machine: MachineInfo::read(),
        ..Study::default()
    };
    for id in chosen {
        let measured = match *id {
            "one-gigabit" => scale.links(1, "at 1 Gb/s", "+6.05 % at most"),
            "figure-5" => scale.links(3, "at 3 Gb/s", "+23.57 % at most, with 48 servers"),
            "figure-6" => Ok(caches()),
            "figure-12" => scale.clients(),
            _ => scale.memory(),
        };
        evenkeel_experiment::interrupt::check()?;
        study.parts.push(Part::measured(id, measured, scale.is_quick));
        let worst = format!("{:.1} % of the CPU time", scale.worst_foreign_pct.get());
        study.machine.notes.insert("others, in the most disturbed row".into(), worst);
        so_far(&study)?;
    }
    Ok(study)
}

/// What needs counters of the processor.
fn caches() -> Part {
    Part::cannot(
        "figure-6",
        "Figures 6 and 7: L2 cache misses",
        "source-aware, fewer accesses miss the L2 cache",
        "almost 40 % fewer at 3 Gb/s",
        "no hardware counters here; CPU time for a gigabyte stands with figures 5 and 12".into(),
    )
}

impl Scale<'_> {
    fn run(&self, applications: Vec<usize>, reads: Vec<Read>) -> Result<Measured> {
        let plan = Plan { initial_runs: self.runs, max_runs: self.runs, ..Plan::default() };
        let times = if self.is_quick { QUICK_TIMES } else { TIMES };
        let Self { executable, cpus, .. } = self;
        let experiment =
            Experiment { executable, cpus, plan, times, applications, reads, programs: None };
        let measured = experiment.measure()?;
        let foreign = measured.rows.iter().filter_map(|row| row.foreign_pct);
        self.worst_foreign_pct.set(foreign.fold(self.worst_foreign_pct.get(), f64::max));
        Ok(measured)
    }

    /// By the number of servers: goodput (figure 5), and CPU time for figures 8 to 11.
    fn links(&self, gbit_per_s: u32, what: &str, paper: &str) -> Result<Part> {
        let servers: &[usize] = if self.is_quick { &[4] } else { &[8, 16, 32, 48] };
        let read = |servers: &usize| Read {
            gbit_per_s: Some(gbit_per_s),
            load: Load { servers: *servers, clients: 1, transfer_bytes: MEBIBYTE },
            contestants: &CONTESTANTS,
        };
        let places: Vec<String> = servers.iter().map(usize::to_string).collect();
        let reads: Vec<Read> = servers.iter().map(read).collect();
        let cases: Vec<String> = reads.iter().map(Read::case).collect();
        let Measured { rows, outcomes, .. } = self.run(Vec::new(), reads)?;
        let panels = panels(&rows, &cases, &places, &format!("{gbit_per_s}g"), "servers");
        Ok(Part {
            title: format!("Parallel reads {what}: goodput, and CPU time for figures 8 to 11"),
            method: METHOD.to_owned(),
            findings: vec![
                faster(
                    &rows,
                    &cases,
                    &format!("source-aware is faster than balanced {what}"),
                    paper,
                ),
                cheaper(&rows, &cases, what),
                auto_does_no_harm(&outcomes, &cases),
            ],
            panels,
            ..Part::default()
        })
    }

    /// By the number of clients, which here are processes of one machine.
    fn clients(&self) -> Result<Part> {
        let clients: &[usize] = if self.is_quick { &[2] } else { &[1, 2, 4, 8] };
        let read = |clients: &usize| Read {
            gbit_per_s: None,
            load: Load { servers: 8, clients: *clients, transfer_bytes: MEBIBYTE },
            contestants: &CONTESTANTS,
        };
        let places: Vec<String> = clients.iter().map(usize::to_string).collect();
        let reads: Vec<Read> = clients.iter().map(read).collect();
        let cases: Vec<String> = reads.iter().map(Read::case).collect();
        let Measured { rows, outcomes, .. } = self.run(Vec::new(), reads)?;
        let claim = "with more clients source-aware stays ahead of balanced";
        Ok(Part {
            title: "Figure 12: several clients, 8 servers".to_owned(),
            method: format!(
                "{METHOD} The paper's clients are machines with links of 3 Gb/s each; here they are \
                 processes of one, and the cable between them and the servers is as fast as it goes."
            ),
            findings: vec![
                faster(&rows, &cases, claim, "+20.46 % at most"),
                auto_does_no_harm(&outcomes, &cases),
            ],
            panels: panels(&rows, &cases, &places, "clients", "clients"),
            ..Part::default()
        })
    }

    /// Section VI.
    fn memory(&self) -> Result<Part> {
        let most = if self.is_quick { 1 } else { 2 * self.cpus.len() };
        let applications: Vec<usize> = (1..=most).collect();
        let cases: Vec<String> = applications.iter().copied().map(memory_case).collect();
        let places: Vec<String> = applications.iter().map(usize::to_string).collect();
        let rows = self.run(applications, Vec::new())?.rows;
        let ratios = ratios(&rows, &cases, SI_SAIS);
        let best = ratios.iter().copied().fold(f64::NAN, f64::max);
        let is_better = decided(&rows, &cases, SI_SAIS, Verdict::Better) > 0;
        Ok(Part {
            title: "Figure 14: strips in memory".to_owned(),
            method: format!(
                "Strips of 64 KiB from 16 files in memory, read by one thread and combined to transfers \
                 of 1 MiB by another, on the same core ({SI_SAIS}) or on two ({SI_IRQBALANCE}). In the \
                 paper the second are processes that the kernel may place anywhere. What changes with \
                 the core is not only where the data is, but also how the two wake each other; and with \
                 fewer applications than cores, those on one core each leave others idle."
            ),
            findings: vec![Finding {
                claim: "combining strips on the core that has them is faster".into(),
                paper: "+53.23 % at most".into(),
                ours: format!("{:+.1} % at most", (best - 1.0) * 100.0),
                bound: "-".into(),
                status: Status::reproduced(is_better),
            }],
            panels: vec![goodput(
                &rows,
                &cases,
                &places,
                "figure-14",
                "applications",
                SI_IRQBALANCE,
            )],
            ..Part::default()
        })
    }
}

const METHOD: &str = "One client asks all servers for strips of 64 KiB, combines them to transfers of \
                      1 MiB and encrypts these (ChaCha20). Client and servers are a process and \
                      threads in two network namespaces, so that they share the machine's CPUs: what \
                      one end saves the other may use. CPU time is that of both ends, of the steering threads and of \
                      all interrupts and softirqs.";

fn row<'a>(rows: &'a [Row], case: &str, contestant: &str) -> Option<&'a Row> {
    rows.iter().find(|row| row.case == case && row.contestant == contestant)
}

/// Goodput against the baseline, case by case.
fn ratios(rows: &[Row], cases: &[String], contestant: &str) -> Vec<f64> {
    cases.iter().filter_map(|case| row(rows, case, contestant)?.vs_baseline).collect()
}

fn decided(rows: &[Row], cases: &[String], contestant: &str, verdict: Verdict) -> usize {
    let has =
        |case: &&String| row(rows, case, contestant).is_some_and(|r| r.verdict == Some(verdict));
    cases.iter().filter(has).count()
}

fn faster(rows: &[Row], cases: &[String], claim: &str, paper: &str) -> Finding {
    let name = SOURCE_AWARE.name();
    let best = ratios(rows, cases, &name).into_iter().fold(f64::NAN, f64::max);
    let better = decided(rows, cases, &name, Verdict::Better);
    let worse = decided(rows, cases, &name, Verdict::Worse);
    Finding {
        claim: claim.into(),
        paper: paper.into(),
        ours: format!(
            "{:+.1} % at most; better in {better}, worse in {worse} of {}",
            (best - 1.0) * 100.0,
            cases.len()
        ),
        bound: "-".into(),
        status: Status::reproduced(better > 0 && worse == 0),
    }
}

/// Figures 8 to 11 by what can be measured here.
fn cheaper(rows: &[Row], cases: &[String], what: &str) -> Finding {
    let cost = |case: &String, who: Contestant| row(rows, case, &who.name())?.cpu_s_per_gb;
    let ratio = |case: &String| Some(cost(case, SOURCE_AWARE)? / cost(case, BALANCED)?);
    let ratios: Vec<f64> = cases.iter().filter_map(ratio).collect();
    let median = crate::stats::median(&ratios).unwrap_or(f64::NAN);
    Finding {
        claim: format!(
            "source-aware needs less CPU time for the same data {what} (figures 8 to 11)"
        ),
        paper: "27 to 49 % less waiting, by CPU_CLK_UNHALTED".into(),
        ours: format!(
            "{:+.1} % CPU-s/GB, median of {} cases",
            (median - 1.0) * 100.0,
            ratios.len()
        ),
        bound: "-".into(),
        status: Status::substitute(median < 1.0),
    }
}

/// Our own aim, by runs of the same round.
fn auto_does_no_harm(outcomes: &[Outcome], cases: &[String]) -> Finding {
    let of = |case: &String, who: Contestant| {
        let is_meant = |one: &&Outcome| one.case == *case && one.contestant == who.name();
        outcomes.iter().find(is_meant)
    };
    let compared = |case: &String| {
        let (auto, none) = (of(case, Contestant::Flow("auto"))?, of(case, Contestant::None)?);
        Some(auto.compared_by(none, |run| Some(run.seconds))?.ratio)
    };
    let mut ratios: Vec<_> = cases.iter().filter_map(compared).collect();
    ratios.sort_by(|one, other| one.median.total_cmp(&other.median));
    let least = ratios.first();
    Finding {
        claim: "auto is as fast as no steering at all".into(),
        paper: "at least 0.95x in every case (our aim)".into(),
        ours: match least {
            Some(ratio) => format!(
                "{:.2}x ({:.2} - {:.2}) at least, {} cases",
                ratio.median,
                ratio.lo,
                ratio.hi,
                ratios.len()
            ),
            None => "not measured".into(),
        },
        bound: "-".into(),
        status: Status::reached(least.is_some_and(|ratio| ratio.median >= 0.95)),
    }
}

/// Goodput and CPU time.
fn panels(rows: &[Row], cases: &[String], places: &[String], id: &str, x: &str) -> Vec<Panel> {
    let costs = Panel {
        id: format!("cpu-{id}"),
        title: "CPU time for a gigabyte".into(),
        x: x.into(),
        y: "CPU-s/GB".into(),
        places: places.to_vec(),
        series: CONTESTANTS
            .iter()
            .map(|who| {
                let point =
                    |case: &String| row(rows, case, &who.name())?.cpu_s_per_gb.map(Point::once);
                Series { name: who.name(), points: cases.iter().map(point).collect() }
            })
            .collect(),
    };
    let id = format!("goodput-{id}");
    vec![goodput(rows, cases, places, &id, x, &BALANCED.name()), costs]
}

/// Of all contestants, against the baseline.
fn goodput(
    rows: &[Row],
    cases: &[String],
    places: &[String],
    id: &str,
    x: &str,
    baseline: &str,
) -> Panel {
    let mut names: Vec<&str> = rows.iter().map(|row| row.contestant.as_str()).collect();
    names.sort_unstable();
    names.dedup();
    names.retain(|name| *name != baseline);
    let point = |case: &String, name: &str| {
        let row = row(rows, case, name)?;
        let (median, ci95) = row.vs_baseline.zip(row.vs_baseline_ci95)?;
        Some(Point { median, ci95, runs: row.runs, verdict: row.verdict })
    };
    Panel {
        id: id.into(),
        title: format!("Goodput against {baseline}"),
        x: x.into(),
        y: format!("goodput / that of {baseline}"),
        places: places.to_vec(),
        series: names
            .into_iter()
            .map(|name| Series {
                name: name.into(),
                points: cases.iter().map(|case| point(case, name)).collect(),
            })
            .collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::interleave::Measurement;

    fn measured(
        contestant: Contestant,
        vs_baseline: f64,
        cpu_s_per_gb: f64,
        verdict: Verdict,
    ) -> Row {
        Row {
            case: "c".into(),
            contestant: contestant.name(),
            mb_per_s: Some(1000.0),
            vs_baseline: (contestant != BALANCED).then_some(vs_baseline),
            vs_baseline_ci95: Some([vs_baseline; 2]),
            verdict: Some(verdict),
            cpu_s_per_gb: Some(cpu_s_per_gb),
            traffic: None,
            foreign_pct: None,
            runs: 6,
            failed: None,
        }
    }

    #[test]
    fn losses_are_found_like_gains() {
        let cases = ["c".to_owned()];
        let rows = |verdict, ratio, cost| {
            vec![
                measured(BALANCED, 1.0, 1.0, Verdict::Undecided),
                measured(SOURCE_AWARE, ratio, cost, verdict),
                measured(Contestant::Flow("auto"), ratio, cost, verdict),
                measured(Contestant::None, 1.0, 1.0, Verdict::Undecided),
            ]
        };
        let won = rows(Verdict::Better, 1.2, 0.8);
        assert_eq!(faster(&won, &cases, "", "").status, Status::Reproduced);
        assert_eq!(cheaper(&won, &cases, "").status, Status::Substitute);
        let lost = rows(Verdict::Worse, 0.8, 1.2);
        assert_eq!(faster(&lost, &cases, "", "").status, Status::NotReproduced);
        assert!(faster(&lost, &cases, "", "").ours.contains("-20.0 %"));
        assert_eq!(cheaper(&lost, &cases, "").status, Status::NotReproduced);
        // Nothing that was measured is nothing that was shown.
        assert_eq!(faster(&[], &cases, "", "").status, Status::NotReproduced);
    }

    #[test]
    fn auto_is_compared_with_nobody_round_by_round() {
        let outcome = |who: Contestant, seconds: [f64; 3]| Outcome {
            case: "c".into(),
            program: "transfer".into(),
            contestant: who.name(),
            rounds: seconds
                .map(|seconds| Some(Measurement { seconds, ..Measurement::default() }))
                .into(),
            judged: None,
            repeated: 0,
            failed: None,
        };
        // A machine that becomes slower meanwhile is slower for both.
        let none = outcome(Contestant::None, [1.0, 2.0, 3.0]);
        let found = |seconds| {
            let outcomes = [none.clone(), outcome(Contestant::Flow("auto"), seconds)];
            auto_does_no_harm(&outcomes, &["c".to_owned()])
        };
        let good = found([1.01, 2.02, 3.03]);
        assert_eq!((good.status, &good.ours[..5]), (Status::Reached, "0.99x"));
        assert_eq!(found([1.1, 2.2, 3.3]).status, Status::Missed);
        // Nothing that was measured is nothing that was shown.
        assert_eq!(auto_does_no_harm(&[], &["c".to_owned()]).status, Status::Missed);
    }

    #[test]
    fn a_panel_has_all_but_the_baseline() {
        let rows = vec![
            measured(BALANCED, 1.0, 1.0, Verdict::Undecided),
            measured(SOURCE_AWARE, 1.3, 0.9, Verdict::Better),
        ];
        let panels = panels(&rows, &["c".into()], &["8".into()], "x", "servers");
        assert_eq!(panels[0].series.len(), 1);
        assert_eq!(panels[0].series[0].points[0].unwrap().median, 1.3);
        assert_eq!(panels[1].series.len(), CONTESTANTS.len());
        assert_eq!(panels[1].series[1].points[0].unwrap().median, 0.9);
    }
}
