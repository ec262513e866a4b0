//! `evenkeel doctor`: what works on this machine, and how unequal its CPUs are now, as text of 80
//! columns or as JSON.

use std::fmt::Write as _;
use std::io::{ErrorKind, Write as _};
use std::path::Path;
use std::time::Duration;

use anyhow::Result;
use comfy_table::{CellAlignment, ContentArrangement, Table, presets};
use evenkeel_host::Accounting;
use evenkeel_host::doctor::{
    Asymmetry, Check, CheckName, CpuNow, Report, Request, State, can_balance, examine,
};
use evenkeel_machine::CAPABILITY_SCALE;

use crate::cli::DoctorArgs;
use crate::config::usable::check_run;
use crate::countdown::shown;
use crate::{config, daemon_client};

/// Width of the text in columns.
const WIDTH: u16 = 80;
/// Up to this many CPUs are all listed.
const LISTED_CPUS: usize = 16;
/// Of more CPUs, this many of the worst are listed.
const WORST_CPUS: usize = 8;

/// Examines the machine and the configuration (`file`, or the default ones), and prints the report.
/// Returns 0 when `evenkeel run` can balance here (even if only with /proc), 1 when it cannot.
///
/// # Errors
/// The file cannot be read or parsed, or standard output cannot be written to.
pub fn main(args: DoctorArgs, file: Option<&Path>) -> Result<i32> {
    let configuration = match file {
        Some(_) => check_run(&config::load(file)?),
        None => default_configuration(),
    };
    let watch = Duration::from_nanos(args.watch.ns);
    let request = request(watch, args.calibrate);
    let report = shown(watch, "watching CPUs", || examine(&request));
    let report = with_configuration(report, configuration);
    let text =
        if args.json { serde_json::to_string_pretty(&report)? + "\n" } else { render(&report) };
    match std::io::stdout().lock().write_all(text.as_bytes()) {
        // The reader has closed the pipe.
        Err(error) if error.kind() != ErrorKind::BrokenPipe => return Err(error.into()),
        _ => {}
    }
    Ok(i32::from(!report.can_balance))
}

/// The text of a report, after watching the CPUs for this long.
pub fn text(watch: Duration) -> String {
    render(&with_configuration(examine(&request(watch, false)), default_configuration()))
}

/// Whether `evenkeel run` takes the default files.
fn default_configuration() -> Result<()> {
    check_run(&config::load(None)?)
}

/// The report with a check of the configuration: with a wrong one, every `evenkeel run` ends at once.
fn with_configuration(mut report: Report, configuration: Result<()>) -> Report {
    let (state, found, meaning, remedy) = match configuration {
        Ok(()) => (State::Ok, "evenkeel run takes it".to_owned(), None, None),
        Err(why) => (
            State::Missing,
            without_excerpt(&format!("{why:#}")),
            Some("evenkeel run and daemon end with code 2 and start nothing".to_owned()),
            Some("evenkeel config check".to_owned()),
        ),
    };
    let name = CheckName::Configuration;
    report.checks.push(Check { name, state, needed: true, found, meaning, remedy });
    report.can_balance = can_balance(&report.checks);
    report
}

/// An error of the TOML parser in one line, without the lines of the file that it shows.
fn without_excerpt(why: &str) -> String {
    let is_excerpt = |line: &str| {
        let number = line.split_once('|').map(|(number, _)| number.trim());
        number.is_some_and(|number| number.chars().all(|c| c.is_ascii_digit()))
    };
    why.lines().filter(|line| !is_excerpt(line)).collect::<Vec<_>>().join(": ")
}

fn request(watch: Duration, calibrate: bool) -> Request {
    Request { watch, calibrate, daemons: daemon_client::sockets() }
}

fn render(report: &Report) -> String {
    let is_wrong =
        |check: &Check| check.name == CheckName::Configuration && check.state == State::Missing;
    let headline = match (report.can_balance, report.accounting) {
        (true, Accounting::Cbinfo | Accounting::Daemon) => {
            "evenkeel run works here, with exact accounting."
        }
        (true, Accounting::Procfs | Accounting::None) => {
            "evenkeel run works here, but only with approximate figures from /proc."
        }
        (false, _) if report.checks.iter().any(is_wrong) => {
            "evenkeel run does not start here: the configuration is wrong."
        }
        (false, _) => "evenkeel run cannot balance here: programs run as they would without it.",
    };
    let mut text = format!("{headline}\n\n{}\n", table(checks(&report.checks)));
    match (&report.asymmetry, &report.not_watched) {
        (Some(asymmetry), _) => text += &asymmetry_now(asymmetry),
        (None, Some(why)) => text += &paragraph(&format!("The CPUs were not watched: {why}.")),
        (None, None) => {}
    }
    if let Some(why) = &report.not_calibrated {
        text += &paragraph(&format!("The speeds were not measured: {why}."));
    }
    text
}

/// One row for each check. A check that is not `ok` also has its meaning and its remedy.
fn checks(checks: &[Check]) -> Table {
    let mut table = plain();
    for check in checks {
        let state = match (check.state, check.needed) {
            (State::Ok, _) => "ok",
            (State::Limited, _) => "limited",
            (State::Missing, false) => "missing",
            (State::Missing, true) => "MISSING",
        };
        let mut said = check.found.clone();
        if check.state != State::Ok {
            for (part, lead) in [(&check.meaning, "so: "), (&check.remedy, "do: ")] {
                if let Some(part) = part {
                    // Writing to a string cannot fail.
                    let _ = write!(said, "\n{lead}{part}");
                }
            }
        }
        table.add_row([state, check.name.title(), &said]);
    }
    table
}

fn asymmetry_now(asymmetry: &Asymmetry) -> String {
    let mut shown: Vec<&CpuNow> = asymmetry.cpus.iter().collect();
    let omitted = if shown.len() > LISTED_CPUS { shown.len() - WORST_CPUS } else { 0 };
    if omitted > 0 {
        shown.sort_by_key(|cpu| (cpu.capability, cpu.cpu));
        shown.truncate(WORST_CPUS);
    }
    let seconds = asymmetry.watched_ns as f64 / 1e9;
    let mut text = format!("The CPUs over {seconds:.2} s, in % of their time:\n\n");
    let _ = writeln!(text, "{}", table(cpus(&shown)));
    if omitted > 0 {
        text.pop();
        let _ = writeln!(text, "  (the {} worst; {omitted} better ones left out)\n", shown.len());
    }
    let share = |capability: u32| f64::from(capability) * 100.0 / f64::from(CAPABILITY_SCALE);
    let _ = writeln!(
        text,
        "Worst CPU {:.0} %, average {:.0} % of the fastest CPU without disturbance.",
        share(asymmetry.min_capability),
        share(asymmetry.avg_capability)
    );
    text += &paragraph(&asymmetry.verdict);
    for remark in &asymmetry.remarks {
        text += &paragraph(remark);
    }
    text
}

fn cpus(shown: &[&CpuNow]) -> Table {
    let mut table = plain();
    table.add_row(["CPU", "irq", "softirq", "RT", "steal", "idle", "runnable", "speed", "left"]);
    for cpu in shown {
        let maybe =
            |value: Option<f64>| value.map_or("?".to_owned(), |value| format!("{value:.1}"));
        table.add_row([
            cpu.cpu.to_string(),
            format!("{:.1}", cpu.irq_pct),
            format!("{:.1}", cpu.softirq_pct),
            maybe(cpu.rt_pct),
            format!("{:.1}", cpu.steal_pct),
            format!("{:.1}", cpu.idle_pct),
            maybe(cpu.runnable),
            format!("{:.2}", f64::from(cpu.speed) / f64::from(CAPABILITY_SCALE)),
            format!("{:.1}", f64::from(cpu.capability) * 100.0 / f64::from(CAPABILITY_SCALE)),
        ]);
    }
    for column in table.column_iter_mut() {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table
}

/// A table without rules, indented by the padding of its first column.
fn plain() -> Table {
    let mut table = Table::new();
    table
        .load_style(presets::NOTHING)
        .set_content_arrangement(ContentArrangement::Dynamic)
        .set_width(WIDTH);
    table
}

fn table(table: Table) -> String {
    table.trim_fmt() + "\n"
}

/// Text broken at blanks to [`WIDTH`] columns.
fn paragraph(text: &str) -> String {
    let mut lines = String::new();
    let mut column = 0;
    for word in text.split_whitespace() {
        let length = word.chars().count();
        if column > 0 && column + 1 + length > usize::from(WIDTH) {
            lines.push('\n');
            column = 0;
        } else if column > 0 {
            lines.push(' ');
            column += 1;
        }
        lines.push_str(word);
        column += length;
    }
    lines.push('\n');
    lines
}

#[cfg(test)]
mod tests {
    use super::*;
    use evenkeel_host::doctor::FORMAT;

    fn cpu(cpu: u32) -> CpuNow {
        CpuNow {
            cpu,
            speed: 1024,
            irq_pct: 0.0,
            softirq_pct: 40.0,
            rt_pct: None,
            steal_pct: 0.0,
            idle_pct: 60.0,
            runnable: Some(1.25),
            capability: 614 + cpu,
        }
    }

    fn report(cpus: u32) -> Report {
        Report {
            format: FORMAT,
            can_balance: true,
            accounting: Accounting::Procfs,
            usable: evenkeel_machine::CpuSet::first(cpus),
            checks: vec![Check {
                name: CheckName::Services,
                state: State::Limited,
                needed: false,
                found: "irqbalance (moves interrupts between CPUs)".repeat(3),
                meaning: Some("much of what it means is in here, at some length ".repeat(4)),
                remedy: Some("nothing".to_owned()),
            }],
            asymmetry: Some(Asymmetry {
                accounting: Accounting::Procfs,
                watched_ns: 1_000_000_000,
                cpus: (0..cpus).map(cpu).collect(),
                min_capability: 614,
                avg_capability: 819,
                bound: Some(1.333),
                is_worth_balancing: true,
                verdict: "CPU 0 loses 40 % to softirqs: the average CPU gives 1.33x as much as \
                          the slowest."
                    .to_owned(),
                remarks: vec!["Bear this in mind. ".repeat(10)],
            }),
            not_watched: None,
            not_calibrated: Some("no such thing".to_owned()),
        }
    }

    #[test]
    fn text_keeps_within_80_columns() {
        for cpus in [2, 16, 17, 300] {
            let text = render(&report(cpus));
            for line in text.lines() {
                assert!(line.chars().count() <= 80, "{line}");
                assert_eq!(line.trim_end(), line);
            }
            assert!(text.contains("so: much of what it means"));
            assert!(text.contains("1.33x"));
            assert!(text.contains("The speeds were not measured: no such thing."));
        }
    }

    #[test]
    fn many_cpus_are_shown_by_the_worst() {
        let text = render(&report(300));
        assert!(text.contains("(the 8 worst; 292 better ones left out)"));
        assert!(text.lines().count() < 40, "{text}");
        assert!(!render(&report(16)).contains("left out"));
    }

    #[test]
    fn a_wrong_configuration_decides_the_first_line() {
        let wrong = config::parse("[run]\npolcy = \"lag\"\n").map(drop);
        let refused = with_configuration(report(2), wrong);
        assert!(!refused.can_balance);
        let text = render(&refused);
        assert!(text.starts_with("evenkeel run does not start here: the configuration"), "{text}");
        assert!(text.contains("polcy") && text.contains("do: evenkeel config check"), "{text}");
        assert!(!text.contains("^^"), "{text}");
        let right = with_configuration(report(2), Ok(()));
        assert!(right.can_balance && render(&right).starts_with("evenkeel run works here"));
    }

    #[test]
    fn the_report_says_why_the_cpus_were_not_watched() {
        let mut report = report(1);
        report.asymmetry = None;
        report.not_watched = Some("with one CPU there is nothing to compare".to_owned());
        let text = render(&report);
        assert!(text.contains("not watched: with one CPU there is nothing to compare."));
    }
}
