//! `evenkeel status`, `explain` and `undo`: what runs, why it did what it did, and taking back what
//! a killed run left.

use std::collections::BTreeMap;
use std::path::PathBuf;

use anyhow::{Result, bail};
use evenkeel_control::Request;
use evenkeel_host::{Decision, Placement, Record};
use evenkeel_journal::{UndoOptions, runtime_dir};

use crate::cli::{ExplainArgs, JsonArgs, UndoArgs};
use crate::daemon;
use crate::sais;
use crate::sched::{ask_keel, keel_line};

/// Where runs of this user are recorded, and for root also nothing else: each sees its own.
fn directory() -> Result<PathBuf> {
    Ok(runtime_dir()?)
}

/// Everything that is balanced, each run by itself and what the daemon looks after.
fn records() -> Result<Vec<Record>> {
    let mut records = evenkeel_host::records(&directory()?)?;
    records.extend(daemon::records());
    Ok(records)
}

/// `evenkeel status`.
///
/// # Errors
/// When the records cannot be read.
pub fn status(args: &JsonArgs) -> Result<i32> {
    let records = records()?;
    if args.json {
        println!("{}", serde_json::to_string_pretty(&records)?);
        return Ok(0);
    }
    if let Some(line) = keel_line()? {
        println!("{line}");
    }
    if records.is_empty() {
        println!("No program runs under evenkeel. Start one with: evenkeel run -- CMD");
    }
    for record in &records {
        println!("{}", headline(record));
        for cpu in &record.cpus {
            println!(
                "    CPU {:<4} {:>5.1} % left for the program",
                cpu.cpu,
                cpu.capability() * 100.0
            );
        }
        if let Some(decision) = record.decisions.last() {
            println!("    last: {}", gist(decision));
        }
    }
    Ok(0)
}

fn headline(record: &Record) -> String {
    let placement = match (record.dry_run, record.placement) {
        (true, _) => "only observed",
        (false, Placement::Soft) => "soft placement",
        (false, Placement::Hard) => "hard placement",
    };
    let balancer = if record.program.is_some() { "daemon" } else { "balancer" };
    format!(
        "{} (pid {}, {balancer} {}): {placement}, {} moves in {} intervals",
        record.command.join(" "),
        record.root,
        record.balancer.tid,
        record.moves,
        record.intervals
    )
}

fn gist(decision: &Decision) -> String {
    let lines = [&decision.news, &decision.moves, &decision.refused, &decision.reasons];
    let said: Vec<&str> = lines.into_iter().flatten().map(String::as_str).collect();
    if said.is_empty() { "nothing to do".to_owned() } else { said.join("; ") }
}

/// `evenkeel explain`.
///
/// # Errors
/// When the records cannot be read, or no such program is balanced.
pub fn explain(args: &ExplainArgs) -> Result<i32> {
    if args.keel {
        return explain_keel(args);
    }
    if args.sais {
        return sais::explain(args.json);
    }
    let mut records = records()?;
    if let Some(pid) = args.pid {
        records.retain(|record| record.root == pid || record.balancer.tid as u32 == pid);
        if records.is_empty() {
            bail!("no program with pid {pid} runs under evenkeel: `evenkeel status` lists them");
        }
    }
    if args.json {
        println!("{}", serde_json::to_string_pretty(&records)?);
        return Ok(0);
    }
    if records.is_empty() {
        println!("No program runs under evenkeel: nothing to explain. (The keel: --keel)");
    }
    if args.pid.is_none()
        && let Err(why) = sais::explain_if_any()
    {
        // What somebody else steers may not be for this user.
        println!("connections: {why:#}");
    }
    for record in &records {
        println!("{}", headline(record));
        let skipped = record.decisions.len().saturating_sub(args.last);
        for decision in record.decisions.iter().skip(skipped) {
            print!("{}", tell(decision));
        }
    }
    Ok(0)
}

/// What the gate of the running keel answered last.
fn explain_keel(args: &ExplainArgs) -> Result<i32> {
    let answer = ask_keel(&Request::new("decisions"), "")?;
    let decisions: Vec<evenkeel_keel::Decision> = serde_json::from_value(answer)?;
    let last = &decisions[decisions.len().saturating_sub(args.last)..];
    if args.json {
        println!("{}", serde_json::to_string_pretty(last)?);
        return Ok(0);
    }
    if last.is_empty() {
        println!("The keel's gate was asked nothing yet, or is always open (--gate always).");
    }
    for decision in last {
        println!("{decision}");
    }
    let statistics: evenkeel_keel::Statistics =
        serde_json::from_value(ask_keel(&Request::new("stats"), "")?)?;
    if let Some(line) = not_asked(&statistics.counters) {
        println!("{line}");
    }
    Ok(0)
}

/// The moves that stand behind no answer, if there were any.
fn not_asked(counters: &BTreeMap<String, u64>) -> Option<String> {
    let moves = counters.get("ungated").filter(|moves| **moves > 0)?;
    let answers = counters.iter().filter(|(name, _)| name.starts_with("gate_"));
    let answers: u64 = answers.map(|(_, count)| count).sum();
    Some(format!(
        "So far the gate answered {answers} times, and was not asked about {moves} moves: of who is new, \
         waited for longer than --max-idle-wait while a CPU idled, lost its CPU to a real-time task, or was \
         on one that is gone or shielded."
    ))
}

/// One decision: the figures first, then what followed from them.
pub fn tell(decision: &Decision) -> String {
    let cpus: Vec<String> = decision
        .cpus
        .iter()
        .map(|(cpu, given, tasks)| {
            let share = *given as f64 / 10.0;
            format!(
                "CPU {cpu}: {share:.0} % for {tasks} task{}",
                if *tasks == 1 { "" } else { "s" }
            )
        })
        .collect();
    let mut text = format!(
        "  {:.3} s, after {:.0} ms: {}\n",
        decision.at_ns as f64 / 1e9,
        decision.interval_ns as f64 / 1e6,
        cpus.join(", ")
    );
    for line in &decision.news {
        text += &format!("    {line}\n");
    }
    for line in &decision.moves {
        text += &format!("    moved {line}\n");
    }
    for line in &decision.refused {
        text += &format!("    refused: {line}\n");
    }
    for line in &decision.reasons {
        text += &format!("    {line}\n");
    }
    text
}

/// `evenkeel undo`.
///
/// # Errors
/// When the journals cannot be found. What could not be taken back is told by exit code 1.
pub fn undo(args: &UndoArgs) -> Result<i32> {
    let report = evenkeel_journal::undo(&directory()?, UndoOptions { force: args.force });
    let code = i32::from(!report.errors.is_empty());
    if args.json {
        println!("{}", serde_json::to_string_pretty(&report)?);
        return Ok(code);
    }
    let freed = report.restored.len() + report.freed.len();
    if freed > 0 {
        println!("{freed} task(s) may use all their CPUs again.");
    }
    for kept in &report.kept {
        println!("{}: left on CPUs {}, which somebody else chose.", kept.task, kept.found);
    }
    for file in &report.turned_back {
        println!("{}: set back to what it was.", file.display());
    }
    for kept in &report.kept_settings {
        println!("{}: left at {}, which somebody else chose.", kept.file.display(), kept.found);
    }
    for foreign in &report.foreign {
        println!("{}: {}", foreign.path.display(), foreign.why);
    }
    for live in &report.live {
        println!(
            "{}: its balancer is alive and looks after it (--force takes back all the same)",
            live.display()
        );
    }
    for damage in &report.damaged {
        println!("{damage}");
    }
    for error in &report.errors {
        eprintln!("evenkeel: {error}");
    }
    let silent = report.kept.is_empty()
        && report.turned_back.is_empty()
        && report.kept_settings.is_empty()
        && report.foreign.is_empty()
        && report.live.is_empty()
        && report.damaged.is_empty()
        && report.errors.is_empty();
    if freed == 0 && silent {
        println!("Nothing to undo.");
    }
    Ok(code)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moves_without_an_answer_are_told() {
        let counters = |moves: u64| {
            let all = [("gate_busy", 3), ("gate_quiet", 4), ("move_wake", 9), ("ungated", moves)];
            BTreeMap::from(all.map(|(name, count)| (name.to_owned(), count)))
        };
        assert_eq!(not_asked(&counters(0)), None);
        assert_eq!(not_asked(&BTreeMap::new()), None);
        let line = not_asked(&counters(2)).unwrap();
        assert!(
            line.starts_with("So far the gate answered 7 times, and was not asked about 2 moves")
        );
    }
}
