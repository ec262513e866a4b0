//! What deciding costs: instructions of a plan on machines of 64 to 1,024 CPUs, and the time of a
//! whole interval (snapshot and plan) with as many real threads as asked for.
//!
//! Instructions are counted by running this command under callgrind (Debian's `valgrind`), because
//! counts repeat exactly and times do not. Without valgrind the counts are left out, and the output
//! says so.

#[path = "../../../product/capability/tests/common/synthetic.rs"]
mod synthetic;

use std::hint::black_box;
use std::path::Path;
use std::process::{Command, Stdio};
use std::rc::Rc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use evenkeel_capability::{LagParameters, Plan, Policy, Snapshot, State, plan};
use evenkeel_host::{AccountingChoice, Freedom, Observer};
use evenkeel_journal::affinity;
use evenkeel_machine::Machine;
use schemars::JsonSchema;
use serde::Serialize;

use crate::cost_page::{Files, Shown};
use crate::crowd::{self, Crowd};
use crate::stats::{Estimate, median};
use evenkeel_experiment::Document;
use evenkeel_experiment::cells::Cells;
use evenkeel_experiment::display::Display;
use evenkeel_experiment::{AimRow, Wanted};

/// The version of [`Report`] as a document.
pub const FORMAT: u32 = 1;

/// CPUs and tasks; about ten tasks a CPU.
const SIZES: [(u32, u32); 5] = [(64, 625), (128, 1250), (256, 2500), (512, 5000), (1024, 10_000)];
/// Rounds after which buffers have their size and lags are steady.
const COLD_ROUNDS: u32 = 10;
/// Rounds that are counted.
const ROUNDS: u32 = 20;
/// Threads of the program in the timed interval.
const CROWD: u32 = 10_000;
/// How much more than n log n the instructions of a plan may grow from the smallest machine to any
/// other.
const MOST_GROWTH: f64 = 1.1;
/// How long all threads may take to start.
const PATIENCE: Duration = Duration::from_secs(60);

/// What to do.
#[derive(Debug)]
pub struct Options {
    /// Where the figures go.
    pub files: Files,
    /// Only plan for this size (CPUs, tasks), under callgrind.
    pub size: Option<(u32, u32)>,
    /// Only be a process with this many sleeping threads.
    pub crowd: Option<u32>,
}

/// One size of machine.
#[derive(Debug, Serialize, JsonSchema)]
struct Row {
    /// CPUs of the machine.
    cpus: u32,
    /// Tasks of the program.
    tasks: u32,
    /// Instructions of one plan; none where valgrind is missing.
    instructions: Option<u64>,
    /// The same per `tasks x log2(tasks)`: constant if growth is n log n.
    per_task_log_task: Option<f64>,
}

/// What deciding costs.
#[derive(Debug, Serialize, JsonSchema)]
pub struct Report {
    /// Plans on machines of several sizes.
    plans: Vec<Row>,
    /// Threads of the program in the timed interval.
    interval_tasks: usize,
    /// How long taking the snapshot takes: the median over the rounds.
    snapshot_ms: f64,
    /// How long planning takes: the median over the rounds.
    plan_ms: f64,
    /// `cbinfo` or `procfs`.
    accounting: String,
    /// What was wanted, and what came out; undecided where instructions were not counted.
    wanted: Vec<AimRow>,
}

/// Runs the part that was asked for. Returns the exit code.
///
/// # Errors
/// When a process cannot be started or observed, or a file cannot be written.
pub fn run(options: &Options) -> Result<i32> {
    if let Some(threads) = options.crowd {
        return crowd::be(threads);
    }
    if let Some((cpus, tasks)) = options.size {
        rounds(cpus, tasks)?;
        return Ok(0);
    }
    let files = options.files.prepare()?;
    let mut plans = Vec::new();
    // Counting takes about as long for each task, and the threads of the interval are counted as tasks.
    let display = Display::counting("tasks");
    let planned = SIZES.iter().map(|(_, tasks)| u64::from(*tasks)).sum::<u64>() + u64::from(CROWD);
    let mut done = 0;
    for (cpus, tasks) in SIZES {
        display.step(done, planned, &format!("counting instructions, {cpus} CPUs"));
        done += u64::from(tasks);
        let instructions = count(cpus, tasks)?;
        let scale = f64::from(tasks) * f64::from(tasks).log2();
        let per_task_log_task = instructions.map(|count| count as f64 / scale);
        plans.push(Row { cpus, tasks, instructions, per_task_log_task });
    }
    display.step(done, planned, "timing a whole interval");
    let report = interval(plans)?;
    display.finish();
    files.write(&Document::new(FORMAT, &report), &shown(&report))?;
    Ok(0)
}

/// What was wanted of the growth of a plan: its instructions for each `tasks x log2(tasks)` where they
/// are the most, by those on the smallest machine. They are counted, so one value decides; where
/// they could not be counted, nothing is decided.
fn wanted(plans: &[Row]) -> Vec<AimRow> {
    let all: Option<Vec<f64>> = plans.iter().map(|row| row.per_task_log_task).collect();
    let growth = all.and_then(|all| Some(all.iter().copied().reduce(f64::max)? / all.first()?));
    let found =
        growth.map(|growth| Estimate { median: growth, lo: growth, hi: growth, coverage: 1.0 });
    let of = |row: Option<&Row>| row.map_or(0, |row| row.cpus);
    let case = format!("{} to {} CPUs", of(plans.first()), of(plans.last()));
    let figure = "most growth beside n log n";
    vec![AimRow::estimated(&case, figure, "plan", found, Wanted::AtMost(MOST_GROWTH))]
}

fn shown(report: &Report) -> Shown<'_> {
    let or_dash = |text: Option<String>| text.unwrap_or_else(|| "-".to_owned());
    let cells = |row: &Row| {
        vec![
            row.cpus.to_string(),
            row.tasks.to_string(),
            or_dash(row.instructions.map(|count| count.to_string())),
            or_dash(row.per_task_log_task.map(|count| format!("{count:.1}"))),
        ]
    };
    let header = ["CPUs", "tasks", "instructions a plan", "per task x log2(tasks)"];
    let table = Cells {
        header: header.map(str::to_owned).into(),
        numbers: (0..header.len()).collect(),
        rows: report.plans.iter().map(cells).collect(),
    };
    let mut sentences = Vec::new();
    if report.plans.iter().all(|row| row.instructions.is_none()) {
        sentences.push("Instructions were not counted: valgrind is not installed.".to_owned());
    }
    sentences.push(format!(
        "A whole interval with {} tasks on this machine: {:.1} ms for the snapshot ({}) of so many \
         real threads, {:.1} ms for the plan of so many busy ones.",
        report.interval_tasks, report.snapshot_ms, report.accounting, report.plan_ms
    ));
    let title = "Benchmarks: what deciding costs";
    Shown { title, table: Some(table), sentences, wanted: &report.wanted, charts: Vec::new() }
}

/// The function that callgrind counts.
#[inline(never)]
fn measured_plan(snapshot: &Snapshot, state: &mut State) -> Result<Plan> {
    Ok(plan(snapshot, state)?)
}

/// Plans for a synthetic program that keeps every CPU busy. Returns the time of each plan in ms.
fn rounds(cpus: u32, tasks: u32) -> Result<Vec<f64>> {
    let mut snapshot = synthetic::snapshot(cpus, tasks, 1);
    let mut state = State::new(Policy::Lag(LagParameters::default()));
    for _ in 0..COLD_ROUNDS {
        let plan = plan(&snapshot, &mut state)?;
        synthetic::advance(&mut snapshot, &plan);
    }
    let mut plans_ms = Vec::new();
    for _ in 0..ROUNDS {
        let start = Instant::now();
        let plan = black_box(measured_plan(black_box(&snapshot), &mut state)?);
        plans_ms.push(start.elapsed().as_secs_f64() * 1e3);
        synthetic::advance(&mut snapshot, &plan);
    }
    Ok(plans_ms)
}

/// Instructions of one plan, averaged over the rounds.
fn count(cpus: u32, tasks: u32) -> Result<Option<u64>> {
    let output = Command::new("valgrind")
        .args(["--tool=callgrind", "--collect-atstart=no", "--callgrind-out-file=/dev/null"])
        .arg("--toggle-collect=*plan_cost::measured_plan*")
        .arg(evenkeel_experiment::executable::own()?)
        .args(["bench", "plan", "--size", &format!("{cpus}x{tasks}")])
        .stdin(Stdio::null())
        .output();
    let output = match output {
        Ok(output) => output,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error).context("cannot run valgrind"),
    };
    let said = String::from_utf8_lossy(&output.stderr);
    let collected = said
        .lines()
        .find_map(|line| line.split_once("Collected :"))
        .and_then(|(_, count)| count.trim().parse::<u64>().ok());
    match collected {
        Some(total) if total > 0 => Ok(Some(total / u64::from(ROUNDS))),
        _ => bail!("valgrind counted nothing:\n{said}"),
    }
}

fn interval(plans: Vec<Row>) -> Result<Report> {
    let crowd = Crowd::start(CROWD)?;
    let machine = Machine::from_sysfs(Path::new("/"))?;
    let mut observer = Observer::new(&machine, AccountingChoice::Auto)?;
    let program = crowd.pid();
    observer.follow(program, program)?;
    let usable = machine.online();
    let begun = Instant::now();
    let mut snapshots_ms = Vec::new();
    while snapshots_ms.len() < ROUNDS as usize {
        if begun.elapsed() > PATIENCE {
            bail!("{CROWD} threads did not start: is there a limit (ulimit -u, pids.max)?");
        }
        std::thread::sleep(Duration::from_millis(20));
        let start = Instant::now();
        let earlier = Rc::clone(observer.last());
        observer.read()?;
        let snapshot = observer.snapshot(&earlier, &[program], &usable, |id, _| Freedom {
            allowed: affinity::get(id.tid as i32).unwrap_or_default(),
            fixed: false,
        });
        if snapshot.is_some_and(|snapshot| snapshot.tasks.len() > CROWD as usize) {
            snapshots_ms.push(start.elapsed().as_secs_f64() * 1e3);
        }
    }
    drop(crowd);
    let plans_ms = rounds(usable.len() as u32, CROWD)?;
    Ok(Report {
        wanted: wanted(&plans),
        plans,
        interval_tasks: observer.last().programs.values().map(|one| one.tasks.len()).sum(),
        snapshot_ms: median(&snapshots_ms).unwrap_or(0.0),
        plan_ms: median(&plans_ms).unwrap_or(0.0),
        accounting: format!("{:?}", observer.accounting()).to_lowercase(),
    })
}

#[cfg(test)]
mod tests {
    use evenkeel_experiment::Reached;

    use super::*;

    #[test]
    fn growth_is_that_beside_n_log_n() {
        let row = |(cpus, tasks): (u32, u32), per_task_log_task| Row {
            cpus,
            tasks,
            instructions: None,
            per_task_log_task,
        };
        let of = |small, middle, large| {
            wanted(&[row(SIZES[0], small), row(SIZES[2], middle), row(SIZES[4], large)])
        };
        let good = of(Some(100.0), Some(105.0), Some(80.0));
        assert_eq!((good[0].found, good[0].reached), (Some(1.05), Some(Reached::Reached)));
        assert_eq!(good[0].case, "64 to 1024 CPUs");
        let missed = |middle, large| of(Some(100.0), Some(middle), Some(large))[0].reached;
        assert_eq!(missed(100.0, 200.0), Some(Reached::Missed));
        assert_eq!(
            missed(200.0, 100.0),
            Some(Reached::Missed),
            "the largest is not always the last"
        );
        let uncounted = of(None, None, None);
        let undecided = Some(Reached::Undecided);
        assert_eq!((uncounted[0].found, uncounted[0].reached), (None, undecided), "no valgrind");
    }
}
