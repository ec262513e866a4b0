//! `evenkeel irq`: where interrupt work runs, what it costs there, and what would be moved. `run` and
//! `once` move it.

pub mod beside;
mod cards;
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
    Accounting, Aim, Cpu, Held, Observer, Originals, Plan, Snapshot, Source, SourceId, Stay,
    irqbalance_runs, plan_for, watch,
};
use evenkeel_journal::{Standing, buckets_by_queue, runtime_dir};
use evenkeel_machine::CpuSet;
use schemars::JsonSchema;
use serde::Serialize;

pub use self::common::taken_back;

use self::common::{WATCHING, source_of_figures, time, why_none};
use crate::cli::{IrqArgs, IrqPart, IrqPlanArgs, IrqStatusArgs};
use crate::countdown::shown;
use crate::trace_file::TraceFile;
use crate::wrap::wrapped;

/// Width of the bar of a CPU, in characters.
const BAR: usize = 20;
/// Sources that are named beside a bar ...
const NAMED: usize = 3;
/// ... if they take this much of the CPU: less would be shown as 0.0 %.
const NAMED_PCT: f64 = 0.05;
/// Softirqs that belong to no source.
const OTHER: &str = "softirqs of no line";
/// Sources of which `status` says where their packets are received.
const RECEIVERS: usize = 16;
/// Width of the notes, in columns.
const WIDTH: usize = 80;

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
    let none = CpuSet::new();
    let time = time(args.watch);
    let mut observer = Observer::start(Aim::Level)?;
    observer.watch_consumers();
    shown(time, WATCHING, || std::thread::sleep(time));
    let snapshot = observer.snapshot(&none, &originals)?;
    if args.json {
        let standing = standing_words(&standing);
        let status = Status { format: STATUS_FORMAT, snapshot, standing };
        println!("{}", serde_json::to_string_pretty(&status)?);
        return Ok(0);
    }
    println!("{}", source_of_figures(&snapshot));
    println!("{}\n", table(&snapshot).trim_fmt());
    notes(&snapshot).iter().for_each(|line| println!("{line}"));
    picture(&snapshot).iter().for_each(|line| println!("{line}"));
    receivers(&snapshot).iter().for_each(|line| println!("{line}"));
    cards::lines(&snapshot.devices).iter().for_each(|line| println!("{line}"));
    standing_lines(&standing).iter().for_each(|line| println!("{line}"));
    Ok(0)
}

/// The version of [`Status`].
pub const STATUS_FORMAT: u32 = 1;

/// What `status --json` prints.
#[derive(Debug, Serialize, JsonSchema)]
pub struct Status {
    /// The version of this document.
    format: u32,
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
    let tables = standing.tables.iter().map(|table| {
        let [before, set] = [&table.before, &table.set].map(|table| buckets_by_queue(table));
        format!("{}: buckets by queue {before} -> {set}", table.device)
    });
    let settings = standing.settings.iter().map(|setting| {
        format!("{}: {} -> {}", setting.file.display(), setting.before, setting.set)
    });
    lines.chain(threads).chain(tables).chain(settings).collect()
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

/// The version of [`Planned`].
pub const PLAN_FORMAT: u32 = 2;

/// What `plan --json` prints.
#[derive(Serialize, JsonSchema)]
pub struct Planned {
    /// The version of this document.
    format: u32,
    #[serde(flatten)]
    plan: Plan,
}

fn show_plan(args: &IrqPlanArgs) -> Result<i32> {
    let protected = args.program.as_ref().map(|program| program.cpus()).transpose()?;
    let protected = protected.unwrap_or_default();
    let originals = Originals::of(&standing());
    let time = time(args.watch);
    let snapshot = shown(time, WATCHING, || watch(time, args.mode, &protected, &originals))?;
    let plan = plan_for(&snapshot, args.mode);
    if args.json {
        let plan = Planned { format: PLAN_FORMAT, plan };
        println!("{}", serde_json::to_string_pretty(&plan)?);
        return Ok(0);
    }
    println!("{}", source_of_figures(&snapshot));
    picture(&snapshot).iter().for_each(|line| println!("{line}"));
    words(&plan, args.mode, &snapshot.cpus).iter().for_each(|line| println!("{line}"));
    if irqbalance_runs() {
        println!(
            "irqbalance runs, and would move lines back: stop it, or let `irq run --take-over` have it \
             leave the moved lines alone."
        );
    }
    Ok(0)
}

fn words(plan: &Plan, aim: Aim, cpus: &[Cpu]) -> Vec<String> {
    let mut lines: Vec<String> = plan.moves.iter().map(|step| format!("move {step}")).collect();
    lines.extend(plan.spreads.iter().map(|step| format!("spread {step}")));
    if lines.is_empty() {
        lines.push(format!("Nothing to move: {}.", why_none(aim, cpus)));
    }
    let stays = plan.stays.iter();
    lines.extend(
        stays.map(|Stay { source, name, held }| format!("stays {name} ({source}): {held}")),
    );
    lines
        .extend(plan.unspread.iter().map(|table| format!("stays {}: {}", table.device, table.why)));
    lines
}

fn table(snapshot: &Snapshot) -> Table {
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    table.set_header([
        "source", "name", "device", "allowed", "on", "int/s", "pkt/s", "time", "note",
    ]);
    for place in 5..8 {
        if let Some(column) = table.column_mut(place) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    let reasons = reasons_to_stay(snapshot);
    let seconds = (snapshot.interval_ns as f64 / 1e9).max(1e-9);
    let rate = |count: u64| format!("{:.0}", count as f64 / seconds);
    for source in &snapshot.sources {
        let has_time =
            snapshot.accounting == Accounting::Exact || matches!(source.id, SourceId::Thread(_));
        let percent = format!("{:.2} %", snapshot.percent(source.total_ns()));
        table.add_row([
            source.id.to_string(),
            source.name.clone(),
            device_and_queue(source.device.as_deref(), source.queue),
            source.allowed.to_string(),
            source.effective.to_string(),
            rate(source.interrupts),
            rate(source.packets()),
            if has_time { percent } else { "?".to_owned() },
            source.held.map(|held| note_number(&held, &reasons).to_string()).unwrap_or_default(),
        ]);
    }
    table
}

/// As `eth0:3`; in one column, so that the table fits a terminal of 80 columns.
fn device_and_queue(device: Option<&str>, queue: Option<u32>) -> String {
    let device = device.unwrap_or_default();
    queue.map_or_else(|| device.to_owned(), |queue| format!("{device}:{queue}"))
}

/// Why sources stay where they are: each reason once, in the order of the table.
fn reasons_to_stay(snapshot: &Snapshot) -> Vec<Held> {
    let mut reasons = Vec::new();
    for held in snapshot.sources.iter().filter_map(|source| source.held) {
        if !reasons.contains(&held) {
            reasons.push(held);
        }
    }
    reasons
}

/// The number of a note, which the table has instead of its text: a text would widen every row.
fn note_number(held: &Held, reasons: &[Held]) -> usize {
    reasons.iter().position(|reason| reason == held).map_or(0, |place| place + 1)
}

/// The notes of the table; none: no line at all.
fn notes(snapshot: &Snapshot) -> Vec<String> {
    let reasons = reasons_to_stay(snapshot);
    let note = |reason: &Held| format!("note {}: {reason}", note_number(reason, &reasons));
    let mut lines: Vec<String> =
        reasons.iter().flat_map(|reason| wrapped(&note(reason), WIDTH)).collect();
    if !lines.is_empty() {
        lines.push(String::new());
    }
    lines
}

/// What takes time on a CPU, as the picture names it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Taker<'a> {
    Source(SourceId, &'a str),
    /// Softirqs that belong to no source.
    Other,
}

impl Taker<'_> {
    fn name(&self) -> &str {
        match self {
            Self::Source(_, name) => name,
            Self::Other => OTHER,
        }
    }
}

/// A heading and one line for each CPU: what interrupts take of it, as a bar, and what takes most.
fn picture(snapshot: &Snapshot) -> Vec<String> {
    let mut by_cpu: BTreeMap<u32, Vec<(u64, Taker<'_>)>> = BTreeMap::new();
    for cpu in &snapshot.cpus {
        by_cpu.entry(cpu.number).or_default().push((cpu.other_ns, Taker::Other));
    }
    for source in &snapshot.sources {
        for (cpu, ns) in &source.ns {
            let taker = Taker::Source(source.id, &source.name);
            by_cpu.entry(*cpu).or_default().push((*ns, taker));
        }
    }
    let mut is_other_named = false;
    let loads = snapshot.loads();
    let line = |cpu: &Cpu| {
        let percent = snapshot.percent(loads.get(&cpu.number).copied().unwrap_or(0));
        let filled = ((percent / 100.0 * BAR as f64).ceil() as usize).min(BAR);
        let bar = "#".repeat(filled) + &".".repeat(BAR - filled);
        let mut takers = by_cpu.remove(&cpu.number).unwrap_or_default();
        takers.retain(|(ns, _)| snapshot.percent(*ns) >= NAMED_PCT);
        takers.sort_by_key(|(ns, taker)| (std::cmp::Reverse(*ns), *taker));
        takers.truncate(NAMED);
        is_other_named |= takers.iter().any(|(_, taker)| *taker == Taker::Other);
        let names: Vec<String> = takers
            .iter()
            .map(|(ns, taker)| format!("{} {:.1} %", taker.name(), snapshot.percent(*ns)))
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
    let mut lines =
        vec!["What interrupts take of each CPU, and what takes most of that:".to_owned()];
    lines.extend(snapshot.cpus.iter().map(line));
    if is_other_named {
        lines.push(format!("({OTHER}: of timers, RCU and the scheduler; they cannot be moved)"));
    }
    lines
}

/// A heading and one line for each source that brings what threads receive, the busiest first: on which
/// CPU most of that is received. Without any, no line.
fn receivers(snapshot: &Snapshot) -> Vec<String> {
    let brings = |source: &Source| source.napis.iter().any(|napi| !napi.received_bytes.is_empty());
    let mut sources: Vec<&Source> =
        snapshot.sources.iter().filter(|source| brings(source)).collect();
    sources.sort_by_key(|source| (std::cmp::Reverse(source.total_ns()), source.id));
    let line = |source: &Source| {
        let (cpu, share_pct) = source.consumer()?;
        let (name, id) = (&source.name, source.id);
        let on = &source.effective;
        Some(format!("    {name} ({id}), on CPU {on}: {share_pct} % on CPU {cpu}"))
    };
    let mut lines: Vec<String> = sources.iter().copied().take(RECEIVERS).filter_map(line).collect();
    if sources.len() > RECEIVERS {
        lines.push(format!("    and {} more", sources.len() - RECEIVERS));
    }
    if !lines.is_empty() {
        let heading = "Where threads receive what is brought, by one of eight calls that receive:";
        lines.insert(0, heading.to_owned());
    }
    lines
}

#[cfg(test)]
mod tests {
    use evenkeel_irq::{Napi, StayingTable, Unspread};

    use super::*;

    fn snapshot() -> Snapshot {
        let cpu = |number, other_ns| Cpu {
            number,
            isolated: false,
            protected: false,
            other_ns,
            net_rx: 0,
        };
        let source = |line, ns: u64, held| Source {
            id: SourceId::Line(line),
            name: "virtio0-reporting_vq".to_owned(),
            device: Some("eth0".to_owned()),
            queue: Some(0),
            allowed: CpuSet::first(2),
            effective: CpuSet::first(1),
            interrupts: 12_345,
            ns: [(0, ns)].into(),
            napis: Vec::new(),
            held,
        };
        Snapshot {
            interval_ns: 1_000_000_000,
            accounting: Accounting::Exact,
            cpus: vec![cpu(0, 305_000_000), cpu(1, 0)],
            sources: vec![
                source(24, 1_000, None),
                source(25, 20_000_000, Some(Held::OneCpu)),
                source(26, 0, Some(Held::Managed)),
                source(27, 0, Some(Held::OneCpu)),
            ],
            devices: Vec::new(),
        }
    }

    #[test]
    fn the_table_fits_80_columns_as_its_notes_are_below_it() {
        let text = table(&snapshot()).trim_fmt();
        for line in text.lines() {
            assert!(line.chars().count() <= 80 && line.trim_end() == line, "{text}");
        }
        let ends: Vec<&str> = text.lines().map(|line| &line[line.len() - 2..]).collect();
        assert_eq!(ends, ["te", " %", " 1", " 2", " 1"], "{text}");
        let notes = notes(&snapshot());
        assert!(notes.iter().all(|line| line.chars().count() <= 80), "{notes:#?}");
        assert!(notes[0].starts_with("note 1: its affinity has one CPU"), "{notes:#?}");
        assert!(notes.iter().any(|line| line.starts_with("note 2: managed")), "{notes:#?}");
    }

    #[test]
    fn a_plan_names_changes_of_tables_and_devices_that_stay() {
        let spread = evenkeel_irq::Spread {
            device: "eth0".to_owned(),
            name: "eth0-TxRx-0".to_owned(),
            from_queue: 0,
            to_queue: 1,
            from: 0,
            to: 1,
            buckets: vec![0, 4],
            of_buckets: 4,
            pct: 30.0,
            from_pct: 60.0,
            after_pct: 30.0,
        };
        let plan = Plan {
            spreads: vec![spread],
            unspread: vec![StayingTable { device: "eth1".to_owned(), why: Unspread::NoTable }],
            ..Plan::default()
        };
        let said = words(&plan, Aim::Level, &snapshot().cpus);
        assert!(said[0].starts_with("spread eth0: 2 of 4 buckets of queue 0"), "{said:?}");
        assert!(said[1].starts_with("stays eth1: it has no RSS indirection table"), "{said:?}");
        assert_eq!(said.len(), 2, "{said:?}");
    }

    #[test]
    fn it_is_said_where_packets_are_received() {
        let mut seen = snapshot();
        assert!(receivers(&seen).is_empty());
        let brings = |received_bytes: &[(u32, u64)]| Napi {
            device: "eth0".to_owned(),
            napi_id: 9,
            packets: 1,
            polls: 1,
            received_bytes: received_bytes.iter().copied().collect(),
        };
        seen.sources[0].napis = vec![brings(&[]), brings(&[(0, 1)])];
        seen.sources[1].napis = vec![brings(&[(0, 1), (1, 2)]), brings(&[(1, 1)])];
        let wanted = [
            "Where threads receive what is brought, by one of eight calls that receive:",
            "    virtio0-reporting_vq (line 25), on CPU 0: 75 % on CPU 1",
            "    virtio0-reporting_vq (line 24), on CPU 0: 100 % on CPU 0",
        ];
        assert_eq!(receivers(&seen), wanted);
        seen.sources = vec![seen.sources[0].clone(); 40];
        let lines = receivers(&seen);
        assert_eq!((lines.len(), lines.last().unwrap().as_str()), (18, "    and 24 more"));
    }

    #[test]
    fn what_belongs_to_no_line_is_named_beside_the_bar() {
        let lines = picture(&snapshot());
        assert!(lines[0].starts_with("What interrupts take of each CPU"), "{lines:#?}");
        let wanted = "32.5 %  softirqs of no line 30.5 %, virtio0-reporting_vq 2.0 %";
        assert!(lines[1].ends_with(wanted), "{lines:#?}");
        assert!(lines[2].ends_with(".   0.0 %"), "{lines:#?}");
        assert!(lines[3].contains("cannot be moved"), "{lines:#?}");
        let mut quiet = snapshot();
        quiet.cpus[0].other_ns = 0;
        assert!(!picture(&quiet).iter().any(|line| line.contains("no line")));
    }
}
