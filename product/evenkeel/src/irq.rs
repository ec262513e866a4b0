//! `evenkeel irq`: where interrupt work runs, what it costs there, and what would be moved. `run` and
//! `once` move it.

pub mod beside;
mod common;
pub mod companion;
mod gate;
mod once;
mod run;
mod signals;
mod trace;

use std::collections::BTreeMap;

use anyhow::Result;
use comfy_table::{CellAlignment, Table, presets};
use evenkeel_irq::{
    Accounting, Aim, Originals, Plan, Snapshot, Source, SourceId, irqbalance_runs, plan_for, watch,
};
use evenkeel_journal::{Standing, runtime_dir};
use evenkeel_machine::CpuSet;
use schemars::JsonSchema;
use serde::Serialize;

pub use self::common::taken_back;

use self::common::{source_of_figures, time, why_none};
use crate::cli::{IrqArgs, IrqPart, IrqPlanArgs, IrqStatusArgs};
use crate::trace_file::TraceFile;

/// Width of the bar of a CPU, in characters.
const BAR: usize = 20;
/// Sources that are named beside a bar.
const NAMED: usize = 3;

/// Shows, plans or moves. Returns the exit code. `trace` is the file of `run --perfetto`.
///
/// # Errors
/// The CPUs are not known, the counters cannot be read, there is no journal, or the program of `--for`
/// does not run.
pub fn main(args: &IrqArgs, trace: Option<TraceFile>) -> Result<i32> {
    match &args.part {
        IrqPart::Status(args) => status(args),
        IrqPart::Plan(args) => show_plan(args),
        IrqPart::Run(args) => run::main(args, trace),
        IrqPart::Once(args) => once::main(args),
    }
}

fn status(args: &IrqStatusArgs) -> Result<i32> {
    let standing = standing();
    let originals = Originals::of(&standing);
    let snapshot = watch(time(args.watch), Aim::Level, &CpuSet::new(), &originals)?;
    if args.json {
        let status = Status { snapshot, standing: standing_words(&standing) };
        println!("{}", serde_json::to_string_pretty(&status)?);
        return Ok(0);
    }
    println!("{}", source_of_figures(&snapshot));
    println!("{}", table(&snapshot));
    picture(&snapshot).iter().for_each(|line| println!("{line}"));
    standing_lines(&standing).iter().for_each(|line| println!("{line}"));
    Ok(0)
}

/// What `status --json` prints.
#[derive(Debug, Serialize, JsonSchema)]
pub struct Status {
    #[serde(flatten)]
    snapshot: Snapshot,
    /// What `irq once` left moved.
    standing: Vec<String>,
}

/// What `irq once` left moved.
fn standing() -> Standing {
    runtime_dir().map(|folder| Standing::read(&folder)).unwrap_or_default()
}

fn standing_words(standing: &Standing) -> Vec<String> {
    let lines = standing.lines.iter().map(|line| {
        let (name, number, before, set) = (&line.name, line.number, &line.before, &line.set);
        format!("{name} (line {number}): CPUs {before} -> CPUs {set}")
    });
    let threads = standing.pins.iter().map(|pin| format!("{}: CPUs {}", pin.task, pin.set));
    lines.chain(threads).collect()
}

/// What stands as `evenkeel irq once` left it, in words; none: nothing.
pub fn standing_lines(standing: &Standing) -> Vec<String> {
    let words = standing_words(standing);
    if words.is_empty() {
        return Vec::new();
    }
    let mut lines = vec!["Moved by `evenkeel irq once`; `evenkeel undo` takes it back:".to_owned()];
    lines.extend(words.into_iter().map(|word| format!("    {word}")));
    lines
}

fn show_plan(args: &IrqPlanArgs) -> Result<i32> {
    let protected = args.program.as_ref().map(|program| program.cpus()).transpose()?;
    let protected = protected.unwrap_or_default();
    let originals = Originals::of(&standing());
    let snapshot = watch(time(args.watch), args.mode, &protected, &originals)?;
    let plan = plan_for(&snapshot, args.mode);
    if args.json {
        println!("{}", serde_json::to_string_pretty(&plan)?);
        return Ok(0);
    }
    println!("{}", source_of_figures(&snapshot));
    picture(&snapshot).iter().for_each(|line| println!("{line}"));
    words(&plan, args.mode).iter().for_each(|line| println!("{line}"));
    if irqbalance_runs() {
        println!(
            "irqbalance runs, and would move lines back: stop it, or let `irq run --take-over` have it \
             leave the moved lines alone."
        );
    }
    Ok(0)
}

fn words(plan: &Plan, aim: Aim) -> Vec<String> {
    let mut lines: Vec<String> = plan.moves.iter().map(|step| format!("move {step}")).collect();
    if lines.is_empty() {
        lines.push(format!("Nothing to move: {}.", why_none(aim)));
    }
    let stays = plan.stays.iter();
    lines.extend(stays.map(|(source, name, held)| format!("stays {name} ({source}): {held}")));
    lines
}

fn table(snapshot: &Snapshot) -> Table {
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    table.set_header([
        "source",
        "name",
        "device",
        "queue",
        "allowed",
        "on",
        "int/s",
        "packets/s",
        "time",
        "note",
    ]);
    for place in 6..9 {
        if let Some(column) = table.column_mut(place) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    let seconds = (snapshot.interval_ns as f64 / 1e9).max(1e-9);
    let rate = |count: u64| format!("{:.0}", count as f64 / seconds);
    for source in &snapshot.sources {
        let has_time =
            snapshot.accounting == Accounting::Exact || matches!(source.id, SourceId::Thread(_));
        let percent = format!("{:.2} %", snapshot.percent(source.total_ns()));
        table.add_row([
            source.id.to_string(),
            source.name.clone(),
            source.device.clone().unwrap_or_default(),
            source.queue.map(|queue| queue.to_string()).unwrap_or_default(),
            source.allowed.to_string(),
            source.effective.to_string(),
            rate(source.interrupts),
            rate(source.packets()),
            if has_time { percent } else { "?".to_owned() },
            source.held.map(|held| held.to_string()).unwrap_or_default(),
        ]);
    }
    table
}

/// One line for each CPU: what interrupts take of it, as a bar, and the sources that take most.
fn picture(snapshot: &Snapshot) -> Vec<String> {
    let mut by_cpu: BTreeMap<u32, Vec<(u64, &Source)>> = BTreeMap::new();
    for source in &snapshot.sources {
        for (cpu, ns) in &source.ns {
            by_cpu.entry(*cpu).or_default().push((*ns, source));
        }
    }
    let loads = snapshot.loads();
    let line = |cpu: &evenkeel_irq::Cpu| {
        let percent = snapshot.percent(loads.get(&cpu.number).copied().unwrap_or(0));
        let filled = ((percent / 100.0 * BAR as f64).ceil() as usize).min(BAR);
        let bar = "#".repeat(filled) + &".".repeat(BAR - filled);
        let mut sources = by_cpu.remove(&cpu.number).unwrap_or_default();
        sources.sort_by_key(|(ns, source)| (std::cmp::Reverse(*ns), source.id));
        let names = sources.iter().take(NAMED);
        let names: Vec<String> = names
            .map(|(ns, source)| format!("{} {:.1} %", source.name, snapshot.percent(*ns)))
            .collect();
        let mark = match (cpu.isolated, cpu.protected) {
            (true, _) => " isolated",
            (false, true) => " protected",
            (false, false) => "",
        };
        let text =
            format!("CPU {:<4} {bar} {percent:>5.1} %{mark}  {}", cpu.number, names.join(", "));
        text.trim_end().to_owned()
    };
    snapshot.cpus.iter().map(line).collect()
}
