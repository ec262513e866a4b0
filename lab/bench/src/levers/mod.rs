//! `evenkeel-lab bench programs`: the three levers of the product on parallel programs that people run,
//! beside the kernel alone, pinning, and the best split that can be made by hand.
//!
//! | file | what it holds |
//! |---|---|
//! | `table` | noises, contestants, programs, and which contestant runs which program |
//! | `claims` | what is claimed of which cells, and what became of it |
//! | `demo`, `sentence` | three programs with the lever that fits each, and what came of it |
//! | `plan` | which cells are measured, in which order; `--only` |
//! | `state`, `cell` | what is measured so far, and the way on from there |
//! | `bench` | one cell |
//! | `launch`, `packaged` | one run of a program; programs of Debian's packages |
//! | `metric` | the figures |

mod bench;
mod cell;
mod claims;
mod demo;
mod launch;
mod metric;
mod packaged;
mod plan;
mod sentence;
mod state;
mod table;

use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Result, bail, ensure};
use evenkeel_experiment::display::Display;
use evenkeel_experiment::output::{Output, is_standard_output};
use evenkeel_experiment::{
    Experiment, List, MachineInfo, Options, Plan, Report, Section, commit, host,
};

pub use packaged::MELT;
pub use plan::patterns;

use crate::stats::MAX_RUNS;
use bench::Bench;
use claims::Judged;
use plan::{Cell, Pattern};
use state::{DETAIL, Filled, State};
use table::{How, NOISES};

/// The name of the benchmark.
const NAME: &str = "programs";
/// Rounds of a cell to begin with: 6 is the least that a true 95 % interval needs.
const ROUNDS: usize = 7;
/// Undecided contestants of a cell get so many more at a time.
const MORE_ROUNDS: usize = 4;
/// After this time a cell gets no more rounds.
const CELL_BUDGET: Duration = Duration::from_secs(20 * 60);
/// Rounds of the short form.
const QUICK_ROUNDS: usize = 3;
/// For how long cells are begun, in hours, where nothing else is asked for.
pub const HOURS: f64 = 3.0;

/// What is asked for. [`Options::quick`] is the short form: one program, two noises, three rounds.
#[derive(Debug, Clone, Default)]
pub struct Asked {
    /// The executable `evenkeel`.
    pub executable: PathBuf,
    /// Patterns of cells, as `PROGRAM/NOISE/CONTESTANT`; none: all.
    pub only: Vec<String>,
    /// Of those only the claimed cells, with the contestants that the claims need.
    pub is_for_claims: bool,
    /// For how long cells are begun, in hours.
    pub hours: f64,
    /// The demo instead, in [`Options::runs`] rounds.
    pub is_demo: bool,
    /// What any experiment can be asked for.
    pub options: Options,
}

/// Measures the cells that are not in the file of `--json` yet, and reports on all.
///
/// # Errors
/// A pattern names nothing, the file holds something else, or nothing can be measured.
pub fn run(asked: &Asked) -> Result<i32> {
    if asked.is_demo {
        return demo::run(asked);
    }
    let experiment = experiment();
    experiment.run(&asked.options, || measure_all(&experiment, asked))
}

fn experiment() -> Experiment<How> {
    let noises = NOISES.iter().map(|noise| (noise.name(), noise.explanation));
    Experiment {
        name: NAME,
        title: "Benchmarks: the three levers on parallel programs",
        intro: INTRO,
        case_word: "noise",
        contestants: table::contestants(),
        metrics: &metric::METRICS,
        // The claims are families of their own: see `claims`.
        aims: Vec::new(),
        course: COURSE,
        reading: table::PROGRAMS,
        lists: vec![List { title: "Noises", items: noises.collect() }],
    }
}

const INTRO: &str = "\
Cells that are marked *no claim* were measured as time allowed: nothing is claimed of them. Those that \
are marked with a commit were measured at that one, and kept.
";

const COURSE: &str = "\
A cell is a program under a noise. In it the contestants run in turn (A B C A B C ...), so that what \
changes on the machine meets all of them alike, and are compared run by run. Times are of the whole \
command, from outside. Runs that other programs disturbed (more than 5 % of the CPU time) are repeated. \
Contestants that are undecided in their cell get more rounds, up to 15. The claims and their cells were \
chosen before measuring; each claim is judged by itself, corrected (Holm) for the number of its cells. \
`run` *shown to lose less than 2 %* is the test of the other verdicts against 0.98 times the baseline: \
undecided is not shown. Where 15 rounds do not show it, `run` and the baseline get as many more at \
once as that takes in nine of ten trials of what is as good as the baseline, by the spread so far; 150 \
in all at most.";

fn plan_of(is_quick: bool) -> Plan {
    if is_quick {
        return Plan { max_repeats: 0, ..Plan::fixed(QUICK_ROUNDS) };
    }
    Plan {
        initial_runs: ROUNDS,
        step: MORE_ROUNDS,
        max_runs: MAX_RUNS,
        budget: CELL_BUDGET,
        margin: Some(claims::NOT_INFERIOR),
        ..Plan::default()
    }
}

fn measure_all(experiment: &Experiment<How>, asked: &Asked) -> Result<Report> {
    let options = &asked.options;
    ensure!(
        asked.hours.is_finite() && asked.hours > 0.0,
        "--hours {}: no cell would be begun; give more than 0",
        asked.hours
    );
    let only = asked.only.iter().map(|text| Pattern::parse(text)).collect::<Result<Vec<_>>>()?;
    let mut cells = if options.quick { plan::quick_cells() } else { plan::cells(&only) };
    if asked.is_for_claims {
        cells = plan::of_claims(cells);
        ensure!(!cells.is_empty(), "nothing is claimed of the cells of --only: leave --claims out");
    }
    let plan = plan_of(options.quick);
    let mut state = match &options.json {
        Some(path) if is_standard_output(path) => {
            bail!("--json is read again to go on, and standard output cannot be: give a file")
        }
        Some(path) => State::load(NAME, path, options.quick)?,
        None => State { is_quick: options.quick, ..State::default() },
    };
    let json = options.json.as_deref().map(Output::prepare).transpose()?;
    let usable = host::usable_cpus()?;
    ensure!(usable.len() > 1, "unequal CPUs need two, and only CPU {usable} may be used here");
    let bench = Bench::new(asked.executable.clone(), usable)?;
    let commit = commit();
    let mut told = Told { refused: bench.refused().to_vec(), ..Told::default() };
    told.why_not_exact = bench.why_not_exact();
    for cell in &mut cells {
        let is_refused = |name: &str| told.refused.iter().any(|(refused, _)| refused == name);
        cell.contestants.retain(|name| !is_refused(name));
    }
    let display = Display::new();
    let (start, count) = (Instant::now(), cells.len());
    let budget = Duration::from_secs_f64(3600.0 * asked.hours);
    let mut number = 0;
    // What was said of the machine when other cells were measured is kept.
    let earlier = state.notes.clone();
    let machine = |bench: &Bench| {
        let mut machine = bench.machine();
        let notes = std::mem::take(&mut machine.notes);
        machine.notes = earlier.clone().into_iter().chain(notes).collect();
        machine
    };
    // Both the measurement and what is saved need the bench, one after the other.
    let bench = std::cell::RefCell::new(bench);
    told.filled = state.fill(
        &cells,
        &commit,
        budget,
        &|| start.elapsed(),
        &mut |cell| {
            number += 1;
            display.say(&format!("cell {}, {number} of at most {count}", cell.name()));
            let of_cell = |_| claims::margin(cell.program.name, cell.noise.name());
            let plan = Plan { margin: plan.margin.map(of_cell), ..plan };
            bench.borrow_mut().measure(experiment, cell, &plan, &commit, &display)
        },
        &mut |state| {
            let Some(json) = &json else { return Ok(()) };
            let machine = machine(&bench.borrow());
            let told = Told { is_running: true, ..told.clone() };
            let report = report(experiment, state, &cells, &plan, &commit, machine, &told)?;
            json.write(&Report { command: options.command.clone(), ..report }.to_json()?)
        },
    )?;
    display.finish();
    let machine = machine(&bench.borrow());
    let report = report(experiment, &state, &cells, &plan, &commit, machine, &told)?;
    Ok(Report { command: options.command.clone(), ..report })
}

/// What is to be said beside the figures.
#[derive(Debug, Clone, Default)]
struct Told {
    /// Contestants that `evenkeel run` refuses, and why.
    refused: Vec<(String, String)>,
    why_not_exact: Option<String>,
    filled: Filled,
    /// It goes on.
    is_running: bool,
}

/// The report on all cells that are measured so far. Of the cells that were asked for and belong to a
/// claim, those that are missing count as undecided.
fn report(
    experiment: &Experiment<How>,
    state: &State,
    asked: &[Cell],
    plan: &Plan,
    commit: &str,
    machine: MachineInfo,
    told: &Told,
) -> Result<Report> {
    let mut cells: Vec<&cell::Measured> = state.cells.iter().collect();
    cells.sort_by_key(|cell| claims::place(&cell.program, &cell.noise).unwrap_or(usize::MAX));
    let records: Vec<_> = cells.iter().map(|cell| cell.record(commit)).collect();
    let mut report = Report::new(experiment, &records, plan, "");
    report.machine = machine;
    let is_measured = |cell: &Cell| state.find(cell).is_some();
    let missing = asked.iter().filter(|cell| !is_measured(cell)).map(|cell| Judged {
        program: cell.program.name,
        noise: cell.noise.name(),
        record: None,
    });
    let measured = cells.iter().zip(&records).map(|(cell, record)| Judged {
        program: &cell.program,
        noise: &cell.noise,
        record: Some(record.clone()),
    });
    let (aims, sentences) =
        claims::judge(&measured.chain(missing).collect::<Vec<_>>(), plan.looks());
    report.aims = aims;
    report.said = said(state, told);
    let sections =
        [Section::new("Claims", sentences), Section::plain("Not measured", not_measured(told))];
    report.sections.extend(sections.into_iter().filter(|section| !section.items.is_empty()));
    report.details.insert(DETAIL.into(), serde_json::to_value(state)?);
    Ok(report)
}

fn why_not_exact(why: Option<&str>) -> Option<String> {
    let why = why?;
    Some(format!(
        "Exact accounting is not possible: {why}. What interrupts and real-time tasks take is not shown."
    ))
}

fn said(state: &State, told: &Told) -> Vec<String> {
    let mut said: Vec<String> = why_not_exact(told.why_not_exact.as_deref()).into_iter().collect();
    if state.is_quick {
        said.push("The short form: it shows that it works and decides nothing.".to_owned());
    }
    if told.is_running {
        said.push("It is not finished: the same command goes on from here.".to_owned());
    }
    let left = told.filled.left.len();
    if left > 0 {
        said.push(format!(
            "Cells for which there was no time: {left}. The same command goes on with them."
        ));
    }
    said
}

/// A sentence for each program, cell and contestant that was asked for and cannot be measured here.
/// Where a program fails in all its cells for one reason, that is said once.
fn not_measured(told: &Told) -> Vec<String> {
    let mut items: Vec<String> = Vec::new();
    let impossible = &told.filled.impossible;
    let program = |cell: &str| cell.split('/').next().unwrap_or_default().to_owned();
    for (cell, why) in impossible {
        let its = program(cell);
        let of_program: Vec<_> =
            impossible.iter().filter(|(other, _)| program(other) == its).collect();
        let is_one_reason = of_program.len() > 1 && of_program.iter().all(|(_, one)| one == why);
        let what = if is_one_reason { &its } else { cell };
        let item = format!("{what}: not measured: {}", why.replace('\n', " "));
        if !items.contains(&item) {
            items.push(item);
        }
    }
    let refused = told.refused.iter();
    items.extend(refused.map(|(contestant, why)| format!("{contestant}: not measured: {why}")));
    items.extend(told.filled.left.iter().map(|cell| format!("{cell}: not measured: no time")));
    items
}

#[cfg(test)]
mod tests {
    use super::cell::tests::measured;
    use super::table::{DEFAULT, RUN};
    use super::*;

    fn state() -> State {
        let runs: &[&[(&str, f64)]] = &[&[("time", 2.0), ("moves", 0.0), ("own CPU", 0.1)][..]; 7];
        let lines = [(DEFAULT, runs), (RUN, runs)];
        let mut other = measured("is.W-gcc/hog", &lines);
        other.commit = "def".into();
        State { cells: vec![other, measured("lu.W-gcc/none", &lines)], ..State::default() }
    }

    fn page(state: &State, only: &[&str], told: &Told) -> String {
        let only: Vec<Pattern> = only.iter().map(|text| Pattern::parse(text).unwrap()).collect();
        let cells = plan::cells(&only);
        let machine = MachineInfo { model: "Test".into(), cpus: 2, ..MachineInfo::default() };
        let plan = plan_of(false);
        let experiment = experiment();
        let report =
            report(&experiment, state, &cells, &plan, "abc", machine.clone(), told).unwrap();
        assert_eq!(State::of(&report).unwrap(), *state);
        experiment.page(&Report { command: "evenkeel-lab bench programs".into(), ..report })
    }

    #[test]
    fn the_page_marks_cells_and_names_what_is_not_measured() {
        let gone = |cell: &str| (cell.to_owned(), "package lammps is not installed".to_owned());
        let told = Told {
            refused: vec![("run --shares".into(), "`evenkeel run --shares` is refused: x".into())],
            filled: Filled {
                impossible: vec![
                    gone("lammps/none"),
                    gone("lammps/udp"),
                    ("lu.W-gcc/udp".into(), "not permitted".into()),
                ],
                left: vec!["sp.W-gcc/none".into()],
                ..Filled::default()
            },
            ..Told::default()
        };
        let text = page(&state(), &["lu.W-gcc/none", "lammps/none"], &told);
        for part in [
            "| none | lu.W-gcc | default | 2.000 s |",
            "| none | lu.W-gcc | run | 2.000 s | 1.000 | undecided | 0 | 0.10 % | 7 |",
            "| hog (no claim; at def) | is.W-gcc | run |",
            "| lu.W-gcc | time | run | shown to lose less than 2 % against default | 1.000 | reached |",
            "| lammps | time | run | shown to lose less than 2 % against default | - | undecided |",
            "- `run` is not inferior to the kernel alone: **not shown**, 2 of its 32 cells;",
            "- lammps: not measured: package lammps is not installed\n- lu.W-gcc/udp: not measured",
            "- run --shares: not measured: `evenkeel run --shares` is refused: x",
            "- sp.W-gcc/none: not measured: no time",
            "- Cells for which there was no time: 1. The same command goes on with them.",
            "- `hog`: another user's endless ordinary program",
            "A/A: ",
        ] {
            assert!(text.contains(part), "{part:?} is missing in\n{text}");
        }
    }

    #[test]
    fn cells_of_no_claim_bring_no_aims() {
        let mut state = state();
        state.cells.truncate(1);
        let text = page(&state, &["is.W-gcc/hog"], &Told::default());
        assert!(!text.contains("## Wanted") && !text.contains("## Claims"), "{text}");
    }

    #[test]
    fn what_makes_no_sense_is_refused_before_anything_runs() {
        let asked = |hours: f64, only: &str| Asked {
            hours,
            only: vec![only.to_owned()],
            executable: "/bin/false".into(),
            ..Asked::default()
        };
        let error = |asked: &Asked| run(asked).unwrap_err().to_string();
        assert!(error(&asked(0.0, "lu")).contains("--hours 0"));
        assert!(error(&asked(f64::NAN, "lu")).contains("--hours NaN"));
        assert!(error(&asked(1.0, "ua")).contains("no program \"ua\""));
        let claims = Asked { is_for_claims: true, ..asked(1.0, "is/hog") };
        assert!(error(&claims).contains("nothing is claimed"));
    }
}
