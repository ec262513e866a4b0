//! `evenkeel-lab bench programs --demo`, which is `make demo`: three programs by the kernel alone
//! (twice: A/A), by `evenkeel run`, and with the lever that fits the program; then one sentence.

use std::time::Duration;

use anyhow::{Result, bail, ensure};
use evenkeel_experiment::display::Display;
use evenkeel_experiment::{Absent, Experiment, Plan, Record, Report, host, interrupt};
use evenkeel_machine::CpuSet;

use super::bench::Bench;
use super::metric;
use super::plan::Cell;
use super::sentence::{Cause, sentence};
use super::table::{DEFAULT, How, NOISES, Program, RUN, SHARES, THREADS, programs, static_loop};
use super::{Asked, experiment, why_not_exact};

/// Rounds: 6 is the least that a true 95 % interval needs.
const ROUNDS: usize = 6;
/// How long a run of a program takes at most, undisturbed and as far as whole repeats allow it.
const RUN_TIME: Duration = Duration::from_millis(1_600);
/// After this time no run of a program is repeated.
const BUDGET: Duration = Duration::from_secs(50);

/// What is shown: a loop with one barrier, a program with a barrier every few ms by clang, and one with
/// few barriers by gcc. Each under the noise and with the lever that it stands for.
fn shown() -> [(Program, &'static str, &'static str); 3] {
    let npb = |name: &str, repeats| {
        let all = programs();
        let program = all.into_iter().find(|one| one.name == name);
        program.map_or_else(static_loop, |program| Program { repeats, ..program })
    };
    [
        (static_loop(), "softirq", RUN),
        (npb("sp.W-clang", 2), "softirq-fine", SHARES),
        (npb("ep.W-gcc", 8), "softirq-fine", THREADS),
    ]
}

/// A program under a noise, by the kernel alone, by `run`, and with a lever.
fn cell(program: Program, noise: &str, lever: &str) -> Cell {
    let noise = NOISES.iter().find(|one| one.name() == noise).unwrap_or(&NOISES[0]);
    let mut contestants = vec![DEFAULT, RUN, lever];
    contestants.dedup();
    let contestants = contestants.into_iter().map(str::to_owned).collect();
    Cell { program, noise, is_claimed: false, contestants }
}

/// What can be shown on so many CPUs, and what has to be said. Without a second CPU nothing is unequal.
fn cells(usable: &CpuSet) -> (Vec<Cell>, Vec<String>) {
    if usable.len() < 2 {
        let said = format!(
            "Only CPU {usable} may be used here, and unequal CPUs cannot be shown with one: give this \
             process two CPUs or more. Only what evenkeel costs where it can do nothing is measured."
        );
        return (vec![cell(static_loop(), "none", RUN)], vec![said]);
    }
    (shown().map(|(program, noise, lever)| cell(program, noise, lever)).into(), Vec::new())
}

/// What is shown where softirqs cannot be made: another program can always.
fn instead() -> (Cell, String) {
    let said = "Instead another program takes its share of one CPU.".to_owned();
    (cell(static_loop(), "hog", RUN), said)
}

fn plan(rounds: usize) -> Plan {
    Plan { max_repeats: 1, budget: BUDGET, ..Plan::fixed(rounds) }
}

/// Measures and reports.
///
/// # Errors
/// A file cannot be written, or nothing can be measured.
pub fn run(asked: &Asked) -> Result<i32> {
    let experiment = Experiment { metrics: &metric::SHORT, ..experiment() };
    experiment.run(&asked.options, || measure_all(&experiment, asked))
}

fn measure_all(experiment: &Experiment<How>, asked: &Asked) -> Result<Report> {
    let rounds = asked.options.runs.unwrap_or(ROUNDS);
    ensure!(rounds > 0, "--runs 0 measures nothing: give at least 1, better 6 for a 95 % interval");
    let plan = plan(rounds);
    let usable = host::usable_cpus()?;
    let (cells, said) = cells(&usable);
    let mut bench = Bench::new(asked.executable.clone(), usable)?;
    let display = Display::new();
    let mut demo = Demo { said, ..Demo::default() };
    demo.said.extend(why_not_exact(bench.why_not_exact().as_deref()));
    for (contestant, why) in bench.refused() {
        demo.said.push(format!("{contestant}: not measured: {why}"));
    }
    for mut cell in cells {
        cell.program = bench.shortened(cell.program, RUN_TIME);
        demo.measure(experiment, &mut bench, cell, &plan, &display)?;
    }
    if demo.measured.is_empty() {
        let (cell, said) = instead();
        demo.said.push(said);
        demo.measure(experiment, &mut bench, cell, &plan, &display)?;
    }
    display.finish();
    if demo.measured.is_empty() {
        let why: Vec<String> = demo.absent.iter().map(Absent::words).collect();
        bail!("nothing can be shown here: {}", why.join("; "));
    }
    Ok(demo.report(experiment, &bench, &plan, &asked.options.command))
}

/// What was measured so far.
#[derive(Default)]
struct Demo {
    measured: Vec<(Cell, Record)>,
    absent: Vec<Absent>,
    said: Vec<String>,
}

impl Demo {
    fn measure(
        &mut self,
        experiment: &Experiment<How>,
        bench: &mut Bench,
        mut cell: Cell,
        plan: &Plan,
        display: &Display,
    ) -> Result<()> {
        interrupt::check()?;
        let refused = bench.refused();
        cell.contestants.retain(|name| !refused.iter().any(|(one, _)| one == name));
        let contestants = cell.contestants.join(", ");
        display.say(&format!("{} under {}: {contestants}", cell.program.name, cell.noise.name()));
        match bench.record(experiment, &cell, plan, display)? {
            Ok(record) => self.measured.push((cell, record)),
            Err(why) => self.absent.push(Absent {
                case: cell.noise.name().to_owned(),
                program: cell.program.name.to_owned(),
                why,
            }),
        }
        Ok(())
    }

    fn report(
        self,
        experiment: &Experiment<How>,
        bench: &Bench,
        plan: &Plan,
        command: &str,
    ) -> Report {
        let causes = self.measured.iter().map(|(Cell { noise, .. }, _)| {
            let (cpu, share) = bench.taken(noise);
            Cause { noise, cpu, share }
        });
        let causes: Vec<Cause> = causes.collect();
        let records: Vec<Record> = self.measured.into_iter().map(|(_, record)| record).collect();
        let mut report = Report::new(experiment, &records, plan, command);
        report.machine = bench.machine();
        report.absent = self.absent;
        report.said = self.said;
        report.sentence = sentence(&report, &causes);
        report
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cpus(list: &str) -> CpuSet {
        list.parse().unwrap()
    }

    fn shown_as(cells: &[Cell]) -> Vec<String> {
        let words = |cell: &Cell| format!("{}: {}", cell.name(), cell.contestants.join(", "));
        cells.iter().map(words).collect()
    }

    #[test]
    fn three_programs_each_with_the_lever_that_fits() {
        let (cells, said) = cells(&cpus("0-1"));
        assert!(said.is_empty());
        assert_eq!(
            shown_as(&cells),
            [
                "static_loop/softirq: default, run",
                "sp.W-clang/softirq-fine: default, run, run --shares",
                "ep.W-gcc/softirq-fine: default, run, run --threads 4",
            ]
        );
        // Each contestant is one that runs the program.
        let contestants = super::super::table::contestants();
        for cell in &cells {
            for name in &cell.contestants {
                let how = contestants.iter().find(|one| one.name == *name).unwrap().how;
                assert_eq!(cell.program.why_not(how), None, "{} {name}", cell.name());
            }
        }
    }

    #[test]
    fn one_cpu_shows_the_cost_only() {
        let (cells, said) = cells(&cpus("3"));
        assert_eq!(shown_as(&cells), ["static_loop/none: default, run"]);
        assert!(said[0].starts_with("Only CPU 3 may be used"), "{said:?}");
    }

    #[test]
    fn without_softirqs_another_program_disturbs() {
        let (cell, said) = instead();
        assert_eq!(shown_as(&[cell]), ["static_loop/hog: default, run"]);
        assert!(said.contains("another program"), "{said}");
    }

    #[test]
    fn rounds_are_fixed_and_judged_once() {
        let plan = plan(ROUNDS);
        assert_eq!((plan.initial_runs, plan.max_runs, plan.looks()), (6, 6, 1));
        let options = evenkeel_experiment::Options { runs: Some(0), ..Default::default() };
        let error = run(&Asked { options, ..Asked::default() }).unwrap_err().to_string();
        assert!(error.contains("--runs 0"), "{error}");
    }
}
