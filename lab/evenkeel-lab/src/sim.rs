//! `evenkeel-lab sim` and `replay`: makes a simulation of the flags, and shows its outcome. The
//! simulator itself is in `lab/sim`.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail};
use evenkeel_bench::simulator_speed;
use evenkeel_bench::sweeps::{self, FIGURES};
use evenkeel_capability::{LagParameters, Policy};
use evenkeel_experiment::Document;
use evenkeel_experiment::display::Display;
use evenkeel_experiment::output::{Output, tell};
use evenkeel_keel::{Aggregation, Balance, Options, Order, Parts};
use evenkeel_machine::{Costs, Machine, PRESETS};
use evenkeel_sim::program::{Interrupts, Thief, Workload};
use evenkeel_sim::{
    FaultPlan, Gauge, Grid, JobEngine, Report, Row, SHAPES, STRICT, Scheduler, Simulation, Spread,
    Swept, TORTURE, Told, Workers, history, picture, read_rows, replay, sweep_on, sweep_part,
    trace, work,
};
use evenkeel_tape::Tape;

use crate::cli::{
    CostArgs, EngineName, PolicyArgs, SimArgs, SimBenchArgs, SimCompareArgs, SimPart,
    SimReplayArgs, SimRunArgs, SimSweepArgs,
};
use crate::command_line::command_line;
use crate::report::archive;

/// The version of what `sim run --json` writes.
pub const RUN_FORMAT: u32 = 1;

/// How often an engine tries a job again, if nothing else is asked for.
const RETRIES: u32 = 2;

/// How often it is looked how much of a simulation is done. A shorter one shows nothing.
const LOOK: Duration = Duration::from_millis(200);

/// The exit code when a rule was broken, or a real kernel would have ended the scheduler.
const BROKEN: i32 = 1;

/// Runs the part that the command line names. Returns the exit code.
///
/// # Errors
/// The machine, the workload or a flag makes no sense, or a file cannot be written.
pub fn main(args: SimArgs) -> Result<i32> {
    match args.part {
        SimPart::List => list(),
        SimPart::Run(args) => run(&args),
        SimPart::Sweep(args) => run_sweep(&args),
        SimPart::Compare(args) => compare(&args),
        SimPart::Bench(args) => run_bench(&args),
    }
}

/// Prints what `sim run` and `sim sweep` know by name.
fn list() -> Result<i32> {
    let mut text = String::from(
        "Workloads, with the numbers that may follow a colon, and their defaults (any other name is a \
         file in rt-app's format):\n",
    );
    for (name, numbers, what) in SHAPES {
        text += &format!("  {name}:{numbers}\n      {what}\n");
    }
    text += "\nMachines (any other name is a machine file, hwloc's XML, or an archive of evenkeel-lab \
             report; host is this one):\n";
    for name in PRESETS {
        let machine = Machine::preset(name)?;
        let capabilities: BTreeSet<u32> = machine.cpus.iter().map(|cpu| cpu.capability).collect();
        let capabilities: Vec<String> = capabilities.iter().map(u32::to_string).collect();
        let count = |number: usize, noun: &str| {
            format!("{number} {noun}{}", if number == 1 { "" } else { "s" })
        };
        text += &format!(
            "  {name}: {}, {}; capability {}\n",
            count(machine.cpus.len(), "CPU"),
            count(machine.nodes.len(), "node"),
            capabilities.join(", ")
        );
    }
    std::io::stdout().write_all(text.as_bytes())?;
    Ok(0)
}

fn machine(name: &str, costs: &CostArgs) -> Result<Machine> {
    let mut machine = if name == "host" {
        Machine::from_sysfs(Path::new("/"))?
    } else if PRESETS.contains(&name) || !Path::new(name).exists() {
        Machine::preset(name).map_err(|why| anyhow!("{why}; and there is no file of that name"))?
    } else if Path::new(name).extension().is_some_and(|ending| ending == "xml") {
        Machine::from_hwloc(Path::new(name))?
    } else if Path::new(name).extension().is_some_and(|ending| ending == "tar") {
        archive::machine(Path::new(name))?
    } else {
        Machine::from_toml(Path::new(name))?
    };
    if costs.no_costs {
        machine.costs = Costs::none();
    }
    for cost in &costs.costs {
        let Some((cost, value)) = cost.split_once('=') else {
            bail!("--cost {cost}: expected NAME=VALUE, with one of {}", Costs::NAMES.join(", "));
        };
        let value = value.parse().with_context(|| format!("--cost {cost}={value}"))?;
        machine.costs.set(cost, value, name)?;
    }
    Ok(machine)
}

/// A scheduler for each combination of the policies that the flags name.
fn schedulers(args: &PolicyArgs) -> Result<Vec<Scheduler>> {
    if args.fifo {
        return Ok(vec![Scheduler::Fifo]);
    }
    fn or_default<T: Copy + Default>(given: &[T]) -> Vec<T> {
        if given.is_empty() { vec![T::default()] } else { given.to_vec() }
    }
    if let (Some(parts), false) = (args.parts.first(), args.balance.contains(&Balance::Capability))
    {
        bail!("--parts {parts}: only --balance capability has parts");
    }
    let mut all = Vec::new();
    for order in or_default(&args.order) {
        for gate in or_default(&args.gate) {
            for balance in or_default(&args.balance) {
                // `count` has no parts, so there is one of it.
                let parts = match balance {
                    Balance::Count => vec![Parts::default()],
                    Balance::Capability => or_default(&args.parts),
                };
                for parts in parts {
                    for slice in or_default(&args.slice_us) {
                        let mut options =
                            Options { order, gate, balance, parts, slice, ..Options::default() };
                        if let Some(mode) = args.ias_mode {
                            options.check_order("--ias-mode")?;
                            options.ias.mode = mode;
                        }
                        if args.ias_auto {
                            options.check_order("--ias-auto")?;
                            options.ias.auto = true;
                        }
                        options.compact = args.compact;
                        for knob in &args.knobs {
                            let Some((name, value)) = knob.split_once('=') else {
                                bail!("--knob {knob}: expected NAME=VALUE, like zone=warm-high");
                            };
                            options.set_parameter(name, value)?;
                        }
                        options.check_compact()?;
                        all.push(Scheduler::Keel(options));
                    }
                }
            }
        }
    }
    Ok(all)
}

/// How the threads of all programs aggregate; `None`: they do not.
fn aggregation(args: &PolicyArgs) -> Result<Option<Aggregation>> {
    let Some(bonus) = args.bonus else { return Ok(None) };
    if !args.order.contains(&Order::Ias) {
        bail!("--bonus: only --order ias prefers siblings");
    }
    let (bonus_type, bonus_value) = bonus.type_and_value();
    Ok(Some(Aggregation { pid: 0, agg: 1, bonus_type, bonus_value, limit: 0 }))
}

fn run(args: &SimRunArgs) -> Result<i32> {
    let machine = machine(&args.machine, &args.costs)?;
    let mut scheduler = match &schedulers(&args.policies)?[..] {
        [one] => one.clone(),
        several => bail!("{} combinations of policies: `sim sweep` runs them all", several.len()),
    };
    if let (Some(path), Scheduler::Keel(options)) = (&args.keel, &scheduler) {
        scheduler = built(options, path)?;
    }
    let mut workload = Workload::by_name(&args.workload, args.seed)?;
    workload.thieves.extend(args.thieves.iter().map(|theft| Thief {
        cpu: theft.cpu,
        run_ns: theft.run_ns,
        period_ns: theft.period_ns,
        from_ns: theft.period_ns,
    }));
    workload.interrupts.extend(args.interrupts.iter().map(|theft| Interrupts {
        cpu: theft.cpu,
        run_ns: theft.run_ns,
        period_ns: theft.period_ns,
    }));
    workload.aggregate(aggregation(&args.policies)?);
    workload.together = args.policies.groups.clone();
    workload.check(&machine)?;
    let json = args.json.as_deref().map(Output::prepare).transpose()?;
    let svg = args.svg.as_deref().map(Output::prepare).transpose()?;
    let faults = if args.faults { FaultPlan::ALL } else { FaultPlan::default() };
    let simulation = Simulation {
        machine,
        scheduler,
        balancer: args.balancer.then(|| Policy::Lag(LagParameters::default())),
        workload: Arc::new(workload),
        faults,
        seed: args.seed,
        limits: Some(if args.faults { TORTURE } else { STRICT }),
        records: args.perfetto.is_some() || args.svg.is_some(),
        max_events: args.max_events,
    };
    let outcome = match &args.tape {
        None => shown(|gauge| simulation.run_shown(gauge))?,
        Some(path) => {
            let (outcome, tape) = shown(|gauge| simulation.record(gauge))?;
            tape.write(path)?;
            outcome
        }
    };
    let report = Report::new(&simulation, &outcome);
    if let Some(path) = &args.perfetto {
        std::fs::write(path, trace(&outcome.record, &simulation.workload))
            .with_context(|| format!("cannot write {}", path.display()))?;
    }
    if let Some(output) = &svg {
        let title = format!("{} on {} under {}", report.workload, report.machine, report.scheduler);
        let svg = picture(&outcome.record, outcome.time_ns, &simulation.workload, &title);
        output.write(&svg)?;
    }
    tell([&json, &svg], report.to_string().trim_end_matches('\n'));
    if let Some(output) = json {
        output.write(&(Document::new(RUN_FORMAT, &report).to_json()? + "\n"))?;
    }
    if report.is_good() {
        return Ok(0);
    }
    let mut stderr = std::io::stderr();
    if let Some(end) = &report.end {
        let _ = writeln!(stderr, "{}evenkeel: {end}", outcome.dump);
    }
    let _ = write!(stderr, "{}", history(&outcome, &simulation.workload));
    let _ =
        writeln!(stderr, "evenkeel: the same command, with --seed {}, does it again", args.seed);
    Ok(BROKEN)
}

/// Simulates, and shows meanwhile how much is done.
fn shown<T>(simulate: impl FnOnce(&Arc<Gauge>) -> T) -> T {
    let gauge = Arc::new(Gauge::default());
    std::thread::scope(|scope| {
        // Dropped when the simulation ends, in whatever way: that ends the display.
        let (_running, ended) = mpsc::channel::<()>();
        let read = gauge.clone();
        scope.spawn(move || {
            let display = Display::counting("%");
            while ended.recv_timeout(LOOK) == Err(RecvTimeoutError::Timeout) {
                display.step(read.pct(), 100, "simulating");
            }
            display.finish();
        });
        simulate(&gauge)
    })
}

/// The schedulers of a sweep.
fn sweep_schedulers(args: &SimSweepArgs) -> Result<Vec<Scheduler>> {
    let all = schedulers(&args.policies)?.into_iter();
    all.map(|scheduler| match (&args.keel, scheduler) {
        (Some(path), Scheduler::Keel(options)) => built(&options, path),
        (_, scheduler) => Ok(scheduler),
    })
    .collect()
}

fn run_sweep(args: &SimSweepArgs) -> Result<i32> {
    let machines = args.machines.iter().map(|name| machine(name, &args.costs));
    let grid = Grid {
        workloads: args.workloads.clone(),
        machines: machines.collect::<Result<_>>()?,
        schedulers: sweep_schedulers(args)?,
        aggregation: aggregation(&args.policies)?,
        together: args.policies.groups.clone(),
        seeds: 1..args.seeds + 1,
    };
    if args.worker {
        work(&grid, std::io::stdin().lock(), std::io::stdout().lock())?;
        return Ok(0);
    }
    if args.on == EngineName::Local && (args.part_runs.is_some() || args.retries.is_some()) {
        bail!(
            "--part-runs and --retries are for the jobs of an engine: give --on slurm or --on dask"
        );
    }
    // A worker or a job is started with the same command line, so it has the same grid.
    let program = std::env::current_exe().context("cannot find this program's file")?;
    let worker = || {
        let mut command = Command::new(&program);
        command.args(std::env::args_os().skip(1)).arg("--worker");
        command
    };
    if let Some(part) = args.part {
        let Swept { done, lost, .. } =
            sweep_part(&grid, Workers::Processes(1, &worker), &args.out, part)?;
        println!("part {part}: {done} runs");
        lost.iter().for_each(|lost| println!("{lost}"));
        return Ok(if lost.is_empty() { 0 } else { BROKEN });
    }
    let spread = Spread {
        command: std::iter::once(program.clone().into_os_string())
            .chain(std::env::args_os().skip(1))
            .chain(["--part".into()])
            .collect(),
        part_runs: args.part_runs,
        at_once: args.jobs,
        retries: args.retries.unwrap_or(RETRIES),
    };
    let python = dask_python();
    let engine = match args.on {
        EngineName::Local => {
            let cpus = || std::thread::available_parallelism().map_or(1, usize::from);
            JobEngine::Local(Workers::Processes(args.jobs.unwrap_or_else(cpus), &worker))
        }
        EngineName::Slurm => JobEngine::Slurm(&spread),
        EngineName::Dask => JobEngine::Dask(&spread, &python),
    };
    let display = Display::new();
    let begin = Instant::now();
    let Swept { done, lost, logs } =
        sweep_on(engine, &grid, args.shard, &args.out, &mut |told| match told {
            Told::Done(done, of) => display.step(done as u64, of as u64, "simulating"),
            Told::Said(what) => display.say(&what),
        })?;
    display.finish();
    let seconds = begin.elapsed().as_secs_f64();
    let rows = read_rows(&args.out)?;
    let bad: Vec<&Row> = rows.iter().filter(|row| !row.report.is_good()).collect();
    println!(
        "{done} runs; {} rows in {}, {} of them bad; {seconds:.1} s",
        rows.len(),
        args.out.display(),
        bad.len()
    );
    for Row { report, .. } in bad.iter().take(10) {
        let why = report.end.iter().chain(&report.violations).next();
        println!(
            "{} on {} under {}, seed {}: {}",
            report.workload,
            report.machine,
            report.scheduler,
            report.seed,
            why.map_or("", |why| why)
        );
    }
    for lost in &lost {
        println!("{lost}");
    }
    if !lost.is_empty() {
        println!("{} lost; the same command tries again", lost.len());
    }
    if let Some(logs) = logs {
        println!("the logs of its jobs are {}/log-*", logs.display());
    }
    Ok(if bad.is_empty() && lost.is_empty() { 0 } else { BROKEN })
}

/// A Python that has Dask: the one that the user names, or that `scripts/setup dask` has made.
fn dask_python() -> PathBuf {
    match std::env::var_os("EVENKEEL_DASK_PYTHON").filter(|named| !named.is_empty()) {
        Some(named) => named.into(),
        None => evenkeel_vm::cache().join("dask/bin/python"),
    }
}

fn compare(args: &SimCompareArgs) -> Result<i32> {
    let figure = &FIGURES[args.by as usize];
    let report = sweeps::compare(&read_rows(&args.before)?, &read_rows(&args.after)?, figure);
    if report.rows.is_empty() {
        bail!("nothing is in both: sweep the same workloads and machines");
    }
    print!("{}", sweeps::experiment(figure).terminal(&report));
    Ok(0)
}

/// The keel of another build, in this file.
fn built(options: &Options, path: &Path) -> Result<Scheduler> {
    let bytes = std::fs::read(path).with_context(|| format!("cannot read {}", path.display()))?;
    Ok(Scheduler::Built(options.clone(), bytes.into()))
}

pub fn run_replay(args: &SimReplayArgs) -> Result<i32> {
    let tape = Tape::read(&args.tape)?;
    let scheduler = match &args.keel {
        Some(path) => built(&Options::default(), path)?,
        None => Scheduler::Keel(Options::default()),
    };
    let replayed = replay(&tape, &scheduler)?;
    println!("{} under {}: {replayed}", args.tape.display(), tape.scheduler);
    Ok(if replayed.difference.is_none() { 0 } else { BROKEN })
}

fn run_bench(args: &SimBenchArgs) -> Result<i32> {
    let program = std::env::current_exe().context("cannot find this program's file")?;
    let worker = |words: &[&OsStr]| {
        let mut command = Command::new(&program);
        command.args(["sim", "sweep"]).args(words).arg("--worker");
        command
    };
    let options = evenkeel_experiment::Options {
        json: args.json.clone(),
        markdown: args.markdown.clone(),
        html: args.html.clone(),
        is_quiet: args.quiet,
        command: command_line(),
        ..Default::default()
    };
    simulator_speed::run(&options, worker)
}
