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
use evenkeel_experiment::{Aim, AimRow, MachineInfo, Plan, Reached, Report, Row, Wanted};
use evenkeel_machine::{CpuSet, Machine};
use evenkeel_stats::Verdict;

use super::study::{Finding, Panel, Part, Point, Series, Status, Study};
use super::{Options, Paper};
use evenkeel_bench::sais::contestant::{AUTO, BALANCED, ISSUER, Method, NONE, RUNNER};
use evenkeel_bench::sais::experiment::{CPU_TIME, GOODPUT, experiment};
use evenkeel_bench::sais::parallel::Load;
use evenkeel_bench::sais::runner::{self, Place, Setting, Times};
use evenkeel_bench::sais::with_again;

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
const METHODS: [Method; 5] = [BALANCED, ISSUER, RUNNER, AUTO, NONE];

/// The margin within which `auto` is as fast as no steering.
const MARGIN: f64 = 0.05;

/// The paper's claims, and ours of `auto`. Each finding tells what became of one of them.
fn aims() -> Vec<Aim> {
    let better = Wanted::Better(BALANCED.name());
    vec![
        Aim::new(ISSUER.name(), GOODPUT, better),
        Aim::new(ISSUER.name(), CPU_TIME, better),
        Aim::new(AUTO.name(), GOODPUT, Wanted::NotWorse(MARGIN, NONE.name())),
        Aim::new(Method::Together.name(), GOODPUT, Wanted::Better(Method::Apart.name())),
    ]
}

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
/// The machine cannot be read, `so_far` fails, or a signal asked for the end.
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
    fn run(&self, settings: impl IntoIterator<Item = Setting>) -> Result<Report> {
        let settings = with_again(settings);
        let times = if self.is_quick { QUICK_TIMES } else { TIMES };
        let place = Place { executable: self.executable, cpus: self.cpus, times, programs: None };
        let (experiment, plan) = (experiment(aims()), Plan::fixed(self.runs));
        let records = runner::measure(&experiment, &settings, &plan, place)?;
        let report = Report::new(&experiment, &records, &plan, "");
        let foreign = report.rows.iter().map(|row| row.foreign_pct);
        self.worst_foreign_pct.set(foreign.fold(self.worst_foreign_pct.get(), f64::max));
        Ok(report)
    }

    /// By the number of servers: goodput (figure 5), and CPU time for figures 8 to 11.
    fn links(&self, gbit_per_s: u32, what: &str, paper: &str) -> Result<Part> {
        let servers: &[usize] = if self.is_quick { &[4] } else { &[8, 16, 32, 48] };
        let read = |servers: &usize| {
            let load = Load { servers: *servers, clients: 1, transfer_bytes: MEBIBYTE };
            Setting::read(Some(gbit_per_s), load, &METHODS)
        };
        let report = self.run(servers.iter().map(read))?;
        let x = Axis::new("servers", servers, servers.iter().map(read));
        let faster_claim = format!("source-aware is faster than balanced {what}");
        Ok(Part {
            title: format!("Parallel reads {what}: goodput, and CPU time for figures 8 to 11"),
            method: METHOD.to_owned(),
            findings: vec![
                faster(&report, ISSUER, &faster_claim, paper),
                cheaper(&report, what),
                auto_does_no_harm(&report),
            ],
            panels: panels(&report, &x, &format!("{gbit_per_s}g")),
            ..Part::default()
        })
    }

    /// By the number of clients, which here are processes of one machine.
    fn clients(&self) -> Result<Part> {
        let clients: &[usize] = if self.is_quick { &[2] } else { &[1, 2, 4, 8] };
        let read = |clients: &usize| {
            let load = Load { servers: 8, clients: *clients, transfer_bytes: MEBIBYTE };
            Setting::read(None, load, &METHODS)
        };
        let report = self.run(clients.iter().map(read))?;
        let x = Axis::new("clients", clients, clients.iter().map(read));
        let claim = "with more clients source-aware stays ahead of balanced";
        Ok(Part {
            title: "Figure 12: several clients, 8 servers".to_owned(),
            method: format!(
                "{METHOD} The paper's clients are machines with links of 3 Gb/s each; here they are \
                 processes of one, and the cable between them and the servers is as fast as it goes."
            ),
            findings: vec![
                faster(&report, ISSUER, claim, "+20.46 % at most"),
                auto_does_no_harm(&report),
            ],
            panels: panels(&report, &x, "clients"),
            ..Part::default()
        })
    }

    /// Section VI.
    fn memory(&self) -> Result<Part> {
        let most = if self.is_quick { 1 } else { 2 * self.cpus.len() };
        let applications: Vec<usize> = (1..=most).collect();
        let settings = || applications.iter().copied().map(Setting::memory);
        let report = self.run(settings())?;
        let x = Axis::new("applications", &applications, settings());
        let (together, apart) = (Method::Together.name(), Method::Apart.name());
        let claim = "combining strips on the core that has them is faster";
        Ok(Part {
            title: "Figure 14: strips in memory".to_owned(),
            method: format!(
                "Strips of 64 KiB from 16 files in memory, read by one thread and combined to transfers \
                 of 1 MiB by another, on the same core ({together}) or on two ({apart}). In the \
                 paper the second are processes that the kernel may place anywhere. What changes with \
                 the core is not only where the data is, but also how the two wake each other; and with \
                 fewer applications than cores, those on one core each leave others idle."
            ),
            findings: vec![faster(&report, Method::Together, claim, "+53.23 % at most")],
            panels: vec![goodput(&report, &x, "figure-14", Method::Apart)],
            ..Part::default()
        })
    }
}

const METHOD: &str = "One client asks all servers for strips of 64 KiB, combines them to transfers of \
                      1 MiB and encrypts these (ChaCha20). Client and servers are a process and \
                      threads in two network namespaces, so that they share the machine's CPUs: what \
                      one end saves the other may use. CPU time is that of both ends, of the \
                      steering threads and of all interrupts and softirqs.";

/// The cases of a part as places on an axis.
struct Axis {
    name: &'static str,
    places: Vec<String>,
    cases: Vec<String>,
}

impl Axis {
    fn new(name: &'static str, places: &[usize], settings: impl Iterator<Item = Setting>) -> Self {
        let places = places.iter().map(usize::to_string).collect();
        Self { name, places, cases: settings.map(|setting| setting.name()).collect() }
    }
}

/// What became of one of the [`aims`], case by case.
struct Cases<'a>(Vec<&'a AimRow>);

impl<'a> Cases<'a> {
    fn of(report: &'a Report, method: Method, metric: &str) -> Self {
        let is_meant = |aim: &&AimRow| aim.contestant == method.name() && aim.metric == metric;
        Self(report.aims.iter().filter(is_meant).collect())
    }

    fn count(&self, verdict: Verdict) -> usize {
        self.0.iter().filter(|aim| aim.verdict == Some(verdict)).count()
    }

    /// The ratios, in ascending order.
    fn ratios(&self) -> Vec<f64> {
        let mut ratios: Vec<f64> = self.0.iter().filter_map(|aim| aim.found).collect();
        ratios.sort_by(f64::total_cmp);
        ratios
    }

    /// Better in at least one case, and worse in none.
    fn is_better(&self) -> bool {
        self.count(Verdict::Better) > 0 && self.count(Verdict::Worse) == 0
    }

    fn verdicts(&self) -> String {
        let (better, worse) = (self.count(Verdict::Better), self.count(Verdict::Worse));
        format!("better in {better}, worse in {worse} of {}", self.0.len())
    }
}

fn faster(report: &Report, method: Method, claim: &str, paper: &str) -> Finding {
    let cases = Cases::of(report, method, GOODPUT);
    let best = cases.ratios().last().copied().unwrap_or(f64::NAN);
    Finding {
        claim: claim.into(),
        paper: paper.into(),
        ours: format!("{:+.1} % at most; {}", (best - 1.0) * 100.0, cases.verdicts()),
        bound: "-".into(),
        status: Status::reproduced(cases.is_better()),
    }
}

/// Figures 8 to 11 by what can be measured here.
fn cheaper(report: &Report, what: &str) -> Finding {
    let cases = Cases::of(report, ISSUER, CPU_TIME);
    // How many times as much CPU time, which is the inverse of how many times as good.
    let median = evenkeel_stats::median(&cases.ratios()).map_or(f64::NAN, |ratio| 1.0 / ratio);
    Finding {
        claim: format!(
            "source-aware needs less CPU time for the same data {what} (figures 8 to 11)"
        ),
        paper: "27 to 49 % less waiting, by CPU_CLK_UNHALTED".into(),
        ours: format!(
            "{:+.1} % CPU-s/GB, median of the cases; {}",
            (median - 1.0) * 100.0,
            cases.verdicts()
        ),
        bound: "-".into(),
        status: Status::substitute(cases.is_better()),
    }
}

/// Our own aim, by runs of the same round.
fn auto_does_no_harm(report: &Report) -> Finding {
    let cases = Cases::of(report, AUTO, GOODPUT);
    let compared = cases.0.iter().filter_map(|aim| Some((aim.found?, aim.ci95?)));
    let least = compared.min_by(|(one, _), (other, _)| one.total_cmp(other));
    let reached = cases.0.iter().filter(|aim| aim.reached == Some(Reached::Reached)).count();
    Finding {
        claim: "auto is as fast as no steering at all".into(),
        paper: "at least 0.95x in every case (our aim)".into(),
        ours: match least {
            Some((ratio, [lo, hi])) => format!(
                "{ratio:.2}x ({lo:.2} - {hi:.2}) at least; shown in {reached} of {} cases",
                cases.0.len()
            ),
            None => "not measured".into(),
        },
        bound: "-".into(),
        status: Status::reached(reached > 0 && reached == cases.0.len()),
    }
}

/// Goodput and CPU time.
fn panels(report: &Report, x: &Axis, id: &str) -> Vec<Panel> {
    let costs = Panel {
        id: format!("cpu-{id}"),
        title: "CPU time for a gigabyte".into(),
        x: x.name.into(),
        y: "CPU-s/GB".into(),
        places: x.places.clone(),
        series: METHODS
            .iter()
            .map(|method| {
                let point = |case: &String| {
                    let row = report.row(case, "", CPU_TIME, method.name())?;
                    Some(Point {
                        median: row.median,
                        ci95: row.ci95,
                        runs: row.runs,
                        verdict: None,
                    })
                };
                let points = x.cases.iter().map(point).collect();
                Series { name: method.name().to_owned(), points }
            })
            .collect(),
    };
    vec![goodput(report, x, &format!("goodput-{id}"), BALANCED), costs]
}

/// The goodput of all contestants, against the baseline.
fn goodput(report: &Report, x: &Axis, id: &str, baseline: Method) -> Panel {
    let baseline = baseline.name();
    let mut names: Vec<&str> = report.rows.iter().map(|row| row.contestant.as_str()).collect();
    names.sort_unstable();
    names.dedup();
    names.retain(|name| *name != baseline);
    let point = |case: &String, name: &str| {
        let row: &Row = report.row(case, "", GOODPUT, name)?;
        let (median, ci95) = row.ratio.zip(row.ratio_ci95)?;
        Some(Point { median, ci95, runs: row.runs, verdict: row.verdict })
    };
    Panel {
        id: id.into(),
        title: format!("Goodput against {baseline}"),
        x: x.name.into(),
        y: format!("goodput / that of {baseline}"),
        places: x.places.clone(),
        series: names
            .into_iter()
            .map(|name| Series {
                name: name.into(),
                points: x.cases.iter().map(|case| point(case, name)).collect(),
            })
            .collect(),
    }
}

#[cfg(test)]
mod tests {
    use evenkeel_experiment::{Case, Record, Sample};

    use super::*;

    /// The report of one case, from each contestant's goodput and CPU time for a gigabyte by round.
    fn report(lines: &[(Method, [f64; 8], f64)]) -> Report {
        let contestants = lines.iter().map(|(method, ..)| method.name().to_owned()).collect();
        let mut record = Record::new(&Case { name: "c".into(), contestants, ..Case::default() });
        for (line, (_, goodput, cpu_s)) in record.lines.iter_mut().zip(lines) {
            let sample =
                |goodput: &f64| Some(Sample::new([(GOODPUT, *goodput), (CPU_TIME, *cpu_s)]));
            line.rounds = goodput.iter().map(sample).collect();
        }
        Report::new(&experiment(aims()), &[record], &Plan::fixed(8), "")
    }

    /// A machine that becomes slower meanwhile is slower for all contestants.
    const SLOWING: [f64; 8] = [1000.0, 900.0, 800.0, 700.0, 600.0, 500.0, 400.0, 300.0];

    fn times(factor: f64) -> [f64; 8] {
        SLOWING.map(|goodput| goodput * factor)
    }

    #[test]
    fn losses_are_found_like_gains() {
        let with =
            |goodput, cpu_s| report(&[(BALANCED, SLOWING, 1.0), (ISSUER, times(goodput), cpu_s)]);
        let won = with(1.2, 0.8);
        assert_eq!(faster(&won, ISSUER, "", "").status, Status::Reproduced);
        assert_eq!(cheaper(&won, "").status, Status::Substitute);
        assert!(cheaper(&won, "").ours.starts_with("-20.0 % CPU-s/GB"));
        let lost = with(0.8, 1.25);
        assert_eq!(faster(&lost, ISSUER, "", "").status, Status::NotReproduced);
        assert!(faster(&lost, ISSUER, "", "").ours.contains("-20.0 %"));
        assert_eq!(cheaper(&lost, "").status, Status::NotReproduced);
        // Nothing that was measured is nothing that was shown.
        let nothing = Report::default();
        assert_eq!(faster(&nothing, ISSUER, "", "").status, Status::NotReproduced);
        assert_eq!(cheaper(&nothing, "").status, Status::NotReproduced);
    }

    #[test]
    fn auto_is_compared_with_no_steering_round_by_round() {
        let found = |factor| {
            let auto = (AUTO, times(factor), 1.0);
            auto_does_no_harm(&report(&[(BALANCED, SLOWING, 1.0), auto, (NONE, SLOWING, 1.0)]))
        };
        let good = found(1.0);
        assert_eq!((good.status, &good.ours[..5]), (Status::Reached, "1.00x"));
        assert_eq!(found(0.9).status, Status::Missed);
        // Nothing that was measured is nothing that was shown.
        assert_eq!(auto_does_no_harm(&Report::default()).status, Status::Missed);
    }

    #[test]
    fn a_panel_has_all_but_the_baseline() {
        let report = report(&[(BALANCED, SLOWING, 1.0), (ISSUER, times(1.3), 0.9)]);
        let x = Axis { name: "servers", places: vec!["8".into()], cases: vec!["c".into()] };
        let panels = panels(&report, &x, "x");
        assert_eq!(panels[0].series.len(), 1);
        let point = panels[0].series[0].points[0].unwrap();
        assert!((point.median - 1.3).abs() < 1e-9);
        assert_eq!(point.verdict, Some(Verdict::Better));
        assert_eq!(panels[1].series.len(), METHODS.len());
        assert_eq!(panels[1].series[1].points[0].unwrap().median, 0.9);
    }
}
