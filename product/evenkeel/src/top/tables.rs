//! From a reading to the tables of the panes. Pure.

use evenkeel_host::doctor::CpuNow;
use evenkeel_host::{Gain, Proven};
use evenkeel_machine::CAPABILITY_SCALE;

use super::interrupts::{Kind, Rate};
use super::model::{Keel, Model, Program, Times};
use super::table::{Cell, Column, Level, Pane, Row, Table};
use crate::decision_text::summarise;

/// Width of the bar of a CPU.
pub const BAR: usize = 10;
/// So many CPUs have a column each in the table of interrupts.
const CPU_COLUMNS: usize = 8;
/// From this capability on a CPU counts as undisturbed, in percent of the fastest ...
const GOOD_PCT: f64 = 95.0;
/// ... and below this one as bad.
const POOR_PCT: f64 = 60.0;

/// The tables of all panes.
pub fn tables(model: &Model) -> [Table; Pane::COUNT] {
    let mut tables =
        [cpus(model), programs(model), decisions(model), interrupts(model), keel(model)];
    if !model.is_read() {
        tables.iter_mut().for_each(|table| table.empty = "Not read yet.".to_owned());
    }
    tables
}

fn cpus(model: &Model) -> Table {
    let columns = vec![
        Column::number("CPU", 4, 0),
        Column::number("left %", 6, 0),
        Column::words("", BAR as u16, 6),
        Column::number("irq", 5, 1),
        Column::number("softirq", 7, 1),
        Column::number("RT", 5, 1),
        Column::number("steal", 5, 1),
        Column::number("tasks", 5, 4),
        Column::number("idle", 5, 3),
        Column::number("runnable", 8, 5),
        Column::number("speed", 5, 2),
    ];
    let figures = model.cpus.figures.as_ref();
    let unwatched = model.cpus.speeds.iter().map(|(number, speed)| unwatched_cpu(*number, *speed));
    let rows = match figures {
        Some(figures) => figures.cpus.iter().map(cpu).collect(),
        None => unwatched.collect(),
    };
    let about = figures.map_or_else(String::new, |figures| {
        format!("in % of {:.1} s, from {}", figures.watched_ns as f64 / 1e9, figures.accounting)
    });
    Table { about, columns, rows, empty: "No CPU can be read from /sys.".to_owned() }
}

/// What is known before the first interval.
fn unwatched_cpu(number: u32, speed: u32) -> Row {
    let mut cells = vec![Cell::number(f64::from(number), number.to_string())];
    cells.resize(10, Cell::words("..."));
    cells[2] = Cell::default();
    cells.push(relative(speed));
    Row { key: number.to_string(), cells }
}

fn relative(speed: u32) -> Cell {
    let speed = f64::from(speed) / f64::from(CAPABILITY_SCALE);
    Cell::number(speed, format!("{speed:.2}"))
}

/// What is left of a CPU, in percent of the fastest one undisturbed.
pub fn left_pct(cpu: &CpuNow) -> f64 {
    f64::from(cpu.capability) * 100.0 / f64::from(CAPABILITY_SCALE)
}

/// What tasks of no special class took, in percent.
pub fn tasks_pct(cpu: &CpuNow) -> f64 {
    let rest = cpu.irq_pct + cpu.softirq_pct + cpu.rt_pct.unwrap_or(0.0) + cpu.steal_pct;
    (100.0 - rest - cpu.idle_pct).max(0.0)
}

fn cpu(cpu: &CpuNow) -> Row {
    let left = left_pct(cpu);
    let level = match left {
        GOOD_PCT.. => Level::Good,
        POOR_PCT.. => Level::Fair,
        _ => Level::Poor,
    };
    let filled = (left / 100.0 * BAR as f64).round().clamp(0.0, BAR as f64) as usize;
    let bar = "#".repeat(filled) + &"-".repeat(BAR - filled);
    let cells = vec![
        Cell::number(f64::from(cpu.cpu), cpu.cpu.to_string()),
        Cell { level, ..Cell::percent(left) },
        Cell { level, ..Cell::number(left, bar) },
        Cell::percent(cpu.irq_pct),
        Cell::percent(cpu.softirq_pct),
        Cell::maybe(cpu.rt_pct, |share| format!("{share:.1}")),
        Cell::percent(cpu.steal_pct),
        Cell::percent(tasks_pct(cpu)),
        Cell::percent(cpu.idle_pct),
        Cell::maybe(cpu.runnable, |tasks| format!("{tasks:.1}")),
        relative(cpu.speed),
    ];
    Row { key: cpu.cpu.to_string(), cells }
}

fn programs(model: &Model) -> Table {
    let columns = vec![
        Column::number("PID", 7, 0),
        Column::words("program", 9, 0).growing(),
        Column::number("thr", 4, 3),
        Column::number("work", 5, 2),
        Column::number("spin", 5, 2),
        Column::number("queue", 5, 4),
        Column::number("sleep", 5, 4),
        Column::words("lever", 7, 1),
        Column::words("gain", 15, 1),
        Column::number("moves", 6, 5),
    ];
    Table {
        about: "threads' time in %".to_owned(),
        columns,
        rows: model.programs.iter().map(program).collect(),
        empty: "No program runs under evenkeel. Start one with: evenkeel run -- CMD".to_owned(),
    }
}

fn program(program: &Program) -> Row {
    let status = &program.status;
    let times = Times::of(&program.threads);
    let pct =
        |of: fn(&Times) -> f64| Cell::maybe(times.as_ref().map(of), |share| format!("{share:.0}"));
    let spin = times.as_ref().and_then(|times| times.spin_pct);
    let threads = Some(program.threads.len()).filter(|count| *count > 0);
    let cells = vec![
        Cell::number(f64::from(status.root), status.root.to_string()),
        Cell::words(program.command()),
        Cell::maybe(threads.map(|count| count as f64), |count| count.to_string()),
        pct(|times| times.work_pct),
        Cell::maybe(spin, |share| format!("{share:.0}")),
        pct(|times| times.queue_pct),
        pct(|times| times.sleep_pct),
        Cell::words(program.lever()),
        gain(program.gain()),
        Cell::number(status.moves as f64, status.moves.to_string()),
    ];
    Row { key: status.root.to_string(), cells }
}

/// How many times as fast, and the interval of that; or how far the measurement is.
fn gain(gain: &Gain) -> Cell {
    let measured = || {
        let ratio = gain.ratio?;
        let interval = match (gain.low, gain.high) {
            (Some(low), Some(high)) => format!(" {low:.2}-{high:.2}"),
            _ => String::new(),
        };
        Some(Cell::number(ratio, format!("{ratio:.2}x{interval}")))
    };
    let word = |word: &str| Cell::number(f64::NEG_INFINITY, word);
    match gain.proven {
        Proven::Nothing => word("-"),
        Proven::Unverified => word("unverified"),
        Proven::Measuring => word("measuring"),
        Proven::Withdrawn => Cell { level: Level::Fair, ..word("withdrawn") },
        Proven::Gains => Cell { level: Level::Good, ..measured().unwrap_or_else(|| word("shown")) },
    }
}

fn decisions(model: &Model) -> Table {
    let columns = vec![
        Column::number("ago", 7, 0),
        Column::number("PID", 7, 2),
        Column::words("program", 12, 1),
        Column::words("decision and reason", 20, 0).growing(),
    ];
    let mut rows: Vec<(u64, Row)> = Vec::new();
    for program in &model.programs {
        let root = program.status.root;
        for decision in &program.status.decisions {
            let text = summarise(decision);
            let key = decision_key(root, decision.at_ns);
            let cells = decision_cells(model, decision.at_ns, root, program.command(), text);
            rows.push((decision.at_ns, Row { key, cells }));
        }
    }
    for answer in model.keel.iter().flat_map(|keel| &keel.answers) {
        let evenkeel_keel::Decision { at_ns, pid, cpu, .. } = *answer;
        let text = format!("task {pid} {} on CPU {cpu}: {}", answer.reason, answer.verdict);
        let cells = decision_cells(model, at_ns, pid, "keel".to_owned(), text);
        rows.push((at_ns, Row { key: answer_key(answer), cells }));
    }
    let empty = if model.have_ended && model.programs.is_empty() {
        "The programs that were balanced have ended."
    } else {
        "Nothing was decided yet."
    };
    // The newest first.
    rows.sort_by_key(|(at_ns, _)| std::cmp::Reverse(*at_ns));
    Table {
        about: "the newest first".to_owned(),
        columns,
        rows: rows.into_iter().map(|(_, row)| row).collect(),
        empty: empty.to_owned(),
    }
}

/// The key of a decision about the program with this first process.
pub fn decision_key(root: u32, at_ns: u64) -> String {
    format!("{root} {at_ns}")
}

/// The key of an answer of the keel's gate.
pub fn answer_key(answer: &evenkeel_keel::Decision) -> String {
    format!("keel {} {} {}", answer.cpu, answer.pid, answer.at_ns)
}

fn decision_cells(model: &Model, at_ns: u64, pid: u32, program: String, text: String) -> Vec<Cell> {
    let ago = model.at_ns.saturating_sub(at_ns) as f64 / 1e9;
    vec![
        Cell::number(ago, format!("{ago:.1}s")),
        Cell::number(f64::from(pid), pid.to_string()),
        Cell::words(program),
        Cell::words(text),
    ]
}

fn interrupts(model: &Model) -> Table {
    let mut columns = vec![
        Column::words("line", 7, 0),
        Column::words("name", 13, 0).growing(),
        Column::number("per s", 7, 0),
        Column::words("most on", 7, 1),
        Column::words("queue", 8, 1),
    ];
    let numbers: Vec<u32> = model.cpus.speeds.iter().map(|(number, _)| *number).collect();
    let has_columns = numbers.len() <= CPU_COLUMNS;
    let shown = if has_columns { numbers } else { Vec::new() };
    columns.extend(shown.iter().map(|cpu| Column::number(format!("CPU {cpu}"), 7, 2)));
    let row = |rate: &Rate| {
        let total = rate.total();
        let most = rate.busiest();
        let mut cells = vec![
            Cell::words(&rate.label),
            Cell::words(name(rate)),
            Cell::number(total, per_s(total)),
            match most {
                Some((cpu, _)) => Cell::number(f64::from(cpu), format!("CPU {cpu}")),
                None => Cell::number(f64::NEG_INFINITY, "-"),
            },
            Cell::words(rate.queue.as_deref().unwrap_or("-")),
        ];
        let of_cpu = |cpu| rate.per_s.get(cpu).copied();
        cells.extend(shown.iter().map(|cpu| Cell::maybe(of_cpu(cpu), per_s)));
        Row { key: interrupt_key(rate), cells }
    };
    let mut rates: Vec<&Rate> = model.interrupts.iter().flatten().collect();
    rates.sort_by(|one, other| other.total().total_cmp(&one.total()));
    let empty = match model.interrupts {
        None => "The first interval has not passed yet.",
        Some(_) => "Neither /proc/interrupts nor /proc/softirqs can be read.",
    };
    Table {
        about: "a second, by /proc/interrupts and softirqs".to_owned(),
        columns,
        rows: rates.into_iter().map(row).collect(),
        empty: empty.to_owned(),
    }
}

/// The key of a line.
pub fn interrupt_key(rate: &Rate) -> String {
    format!("{:?} {}", rate.kind, rate.label)
}

/// What comes on a line, in words.
pub fn name(rate: &Rate) -> String {
    match rate.kind {
        Kind::Interrupt => rate.name.clone(),
        Kind::Softirq => "softirq".to_owned(),
    }
}

fn per_s(rate: f64) -> String {
    if rate > 0.0 && rate < 9.95 { format!("{rate:.1}") } else { format!("{rate:.0}") }
}

fn keel(model: &Model) -> Table {
    let columns = vec![
        Column::words("counter", 16, 0),
        Column::number("per s", 10, 0),
        Column::number("in all", 14, 1),
        Column::words("meaning", 20, 2).growing(),
    ];
    let Some(keel) = &model.keel else {
        let empty = "The keel does not run. Start it as root with: evenkeel sched".to_owned();
        return Table { columns, empty, ..Table::default() };
    };
    let counters = keel.statistics.counters.iter().filter(|(_, count)| **count > 0);
    let mut rows: Vec<(f64, Row)> =
        counters.map(|(name, count)| counter(keel, name, *count)).collect();
    rows.sort_by(|one, other| other.0.total_cmp(&one.0));
    Table {
        about: keel.statistics.policies.join("/"),
        columns,
        rows: rows.into_iter().map(|(_, row)| row).collect(),
        empty: "It has counted nothing yet.".to_owned(),
    }
}

fn counter(keel: &Keel, name: &str, count: u64) -> (f64, Row) {
    let rate = keel.per_s.get(name).copied();
    let cells = vec![
        Cell::words(name),
        Cell::maybe(rate, per_s),
        Cell::number(count as f64, count.to_string()),
        Cell::words(keel.meanings.get(name).map_or("", String::as_str)),
    ];
    (rate.unwrap_or(0.0), Row { key: name.to_owned(), cells })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::top::layout::fitting;
    use crate::top::sample;

    fn texts(table: &Table, row: usize) -> Vec<&str> {
        table.rows[row].cells.iter().map(|cell| cell.text.as_str()).collect()
    }

    #[test]
    fn every_row_has_a_cell_for_each_column_and_a_key_of_its_own() {
        for model in [sample::model(2), sample::model(128), Model::default()] {
            for table in tables(&model) {
                let keys: std::collections::BTreeSet<_> =
                    table.rows.iter().map(|row| &row.key).collect();
                assert_eq!(keys.len(), table.rows.len(), "{table:?}");
                assert!(table.rows.iter().all(|row| row.cells.len() == table.columns.len()));
                assert!(!table.rows.is_empty() || !table.empty.is_empty());
            }
        }
    }

    #[test]
    fn a_cpu_is_shown_with_what_takes_it_by_cause() {
        let [cpus, ..] = tables(&sample::model(2));
        assert_eq!(
            texts(&cpus, 1),
            ["1", "50.0", "#####-----", "1.0", "40.0", "?", "9.0", "30.0", "20.0", "?", "1.00"]
        );
        assert_eq!(cpus.rows[1].cells[1].level, Level::Poor);
        assert_eq!(cpus.about, "in % of 1.0 s, from /proc");
    }

    #[test]
    fn before_the_first_interval_the_cpus_are_there_without_figures() {
        let mut model = sample::model(2);
        (model.cpus.figures, model.interrupts) = (None, None);
        let [cpus, _, _, interrupts, _] = tables(&model);
        assert_eq!(cpus.rows.len(), 2);
        assert_eq!(texts(&cpus, 0)[..4], ["0", "...", "", "..."]);
        assert!(interrupts.empty.contains("first interval"));
    }

    #[test]
    fn a_program_is_shown_with_its_times_lever_and_gain() {
        let [_, programs, ..] = tables(&sample::model(2));
        assert_eq!(
            texts(&programs, 0),
            ["1234", "./lu -n 4", "2", "70", "10", "5", "15", "threads", "1.27x 1.23-1.29", "42"]
        );
        // Nothing is known of the second one.
        assert_eq!(texts(&programs, 1)[2..], ["?", "?", "?", "?", "?", "none", "-", "0"]);
    }

    #[test]
    fn a_gain_is_shown_with_its_interval_or_how_far_it_is() {
        let text = |gain: &Gain| super::gain(gain).text;
        let of = |proven| Gain { proven, ratio: Some(1.2), ..Gain::default() };
        assert_eq!(text(&of(Proven::Gains)), "1.20x");
        assert_eq!(text(&Gain { ratio: None, ..of(Proven::Gains) }), "shown");
        assert_eq!(text(&of(Proven::Withdrawn)), "withdrawn");
        assert_eq!(text(&of(Proven::Measuring)), "measuring");
        assert_eq!(text(&of(Proven::Unverified)), "unverified");
    }

    #[test]
    fn the_newest_decision_of_any_program_comes_first() {
        let [_, _, decisions, ..] = tables(&sample::model(2));
        assert_eq!(texts(&decisions, 0)[..3], ["0.5s", "4711", "keel"]);
        let [ago, pid, program, text] = texts(&decisions, 1)[..] else { panic!("four columns") };
        assert_eq!([ago, pid, program], ["1.0s", "1234", "./lu -n 4"]);
        assert!(text.contains("no moves needed"), "{text}");
    }

    #[test]
    fn decisions_about_programs_that_have_ended_were_made() {
        let empty = |model: &Model| super::decisions(model).empty;
        let mut model = Model { at_ns: 1, ..Model::default() };
        assert_eq!(empty(&model), "Nothing was decided yet.");
        model.have_ended = true;
        assert_eq!(empty(&model), "The programs that were balanced have ended.");
    }

    #[test]
    fn interrupts_have_a_column_for_each_of_a_few_cpus() {
        let [_, _, _, few, _] = tables(&sample::model(2));
        assert_eq!(few.columns.len(), 7);
        assert_eq!(texts(&few, 0), ["NET_RX", "softirq", "800", "CPU 1", "-", "3.0", "797"]);
        assert_eq!(texts(&few, 1), ["36", "virtio1-req.0", "50", "CPU 0", "-", "50", "0"]);
        let [_, _, _, many, _] = tables(&sample::model(128));
        assert_eq!(many.columns.len(), 5);
    }

    #[test]
    fn a_line_of_a_queue_is_shown_with_it_and_found_by_it() {
        let [_, _, _, table, _] = tables(&sample::model_with_queue());
        assert_eq!(table.columns[4].title, "queue");
        assert_eq!(texts(&table, 1), ["36", "virtio2-input.3", "50", "CPU 0", "eth0:3", "50", "0"]);
        // Of a machine with four CPUs all columns fit into 80 characters.
        let [_, _, _, four, _] = tables(&sample::model(4));
        assert_eq!(fitting(&four.columns, 78).len(), four.columns.len());
    }

    #[test]
    fn counters_of_the_keel_have_rates_and_meanings() {
        let [.., keel] = tables(&sample::model(2));
        assert_eq!(keel.about, "fair/zone/count");
        assert_eq!(texts(&keel, 0), ["enqueue", "120", "9000", "Tasks that were enqueued"]);
        assert_eq!(texts(&keel, 1)[..2], ["gate_quiet", "?"]);
        let [.., none] = tables(&Model { at_ns: 1, ..Model::default() });
        assert!(none.empty.contains("evenkeel sched"));
        assert!(tables(&Model::default()).iter().all(|table| table.empty == "Not read yet."));
    }
}
