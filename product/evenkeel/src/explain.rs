//! `evenkeel explain`: why the last decisions went as they did, of the balancer, the keel's gate and the
//! steering of packets.

use std::collections::BTreeMap;

use anyhow::{Result, bail};
use evenkeel_control::Request;
use evenkeel_host::ProgramStatus;
use evenkeel_keel::Decision;
use schemars::JsonSchema;
use serde::Serialize;

use crate::cli::ExplainArgs;
use crate::decision_text::describe;
use crate::keel_client::ask_keel;
use crate::terminal::width;
use crate::wrap::broken;
use crate::{daemon_client, sais, status};

/// The version of [`GateAnswers`].
pub const GATE_FORMAT: u32 = 2;

/// What `explain --keel --json` prints.
#[derive(Serialize, JsonSchema)]
pub struct GateAnswers {
    /// The version of this document.
    format: u32,
    /// The last refusals, oldest first.
    decisions: Vec<Decision>,
}

/// Explains what was asked for: by default, the decisions about all programs and the steering of all
/// connections.
///
/// # Errors
/// The status files cannot be read, no such program is balanced or ended lately, or the keel does not
/// answer.
pub fn main(args: &ExplainArgs) -> Result<i32> {
    if args.keel {
        return explain_keel(args);
    }
    if args.sais {
        return sais::explain(args.json);
    }
    let mut programs = status::read_all()?;
    let mut ended = daemon_client::read_ended();
    if let Some(pid) = args.pid {
        for list in [&mut programs, &mut ended] {
            list.retain(|program| program.root == pid || program.balancer.tid as u32 == pid);
        }
        if programs.is_empty() && ended.is_empty() {
            bail!(
                "no program with pid {pid} runs under evenkeel, or ended lately at the daemon; list \
                 them: evenkeel status"
            );
        }
    }
    for program in programs.iter_mut().chain(&mut ended) {
        let skipped = program.decisions.len().saturating_sub(args.last);
        program.decisions.drain(..skipped);
    }
    if args.json {
        let programs = status::Programs::of(&programs, &ended);
        println!("{}", serde_json::to_string_pretty(&programs)?);
        return Ok(0);
    }
    if programs.is_empty() && args.pid.is_none() {
        let nothing = status::nothing_runs(nix::unistd::Uid::effective().is_root());
        println!("{nothing}: nothing to explain. (For the keel: --keel)");
    }
    if args.pid.is_none()
        && let Err(why) = sais::explain_all()
    {
        // Whatever is wrong there, the programs are explained.
        println!("connections: {why:#}");
    }
    let width = width();
    // The decisions of programs that have ended are told where one of them is asked for.
    let none: &[ProgramStatus] = &[];
    let (told, listed) = if args.pid.is_some() { (&ended[..], none) } else { (none, &ended[..]) };
    for program in programs.iter().chain(told) {
        print!("{}", broken(&format!("{}\n", status::headline(program)), width));
        for decision in &program.decisions {
            print!("{}", broken(&describe(decision, program.started_ns), width));
        }
    }
    for line in status::ended_lines(listed) {
        print!("{}", broken(&format!("{line}\n"), width));
    }
    Ok(0)
}

/// Prints the last refusals of the running keel's gate.
fn explain_keel(args: &ExplainArgs) -> Result<i32> {
    let answer = ask_keel(&Request::new("decisions"), "")?;
    let mut decisions: Vec<Decision> = serde_json::from_value(answer)?;
    let skipped = decisions.len().saturating_sub(args.last);
    decisions.drain(..skipped);
    if args.json {
        let answers = GateAnswers { format: GATE_FORMAT, decisions };
        println!("{}", serde_json::to_string_pretty(&answers)?);
        return Ok(0);
    }
    if decisions.is_empty() {
        println!("The keel's gate has refused nothing yet, or is always open (--gate always).");
        println!("(Users but root see the refusals about their own tasks.)");
    }
    for decision in decisions {
        println!("{decision}");
    }
    let statistics: evenkeel_keel::Statistics =
        serde_json::from_value(ask_keel(&Request::new("stats"), "")?)?;
    if let Some(line) = ungated_moves(&statistics.counters) {
        println!("{line}");
    }
    Ok(0)
}

/// A line about the moves that the gate was not asked about, if there were any.
fn ungated_moves(counters: &BTreeMap<String, u64>) -> Option<String> {
    let moves = counters.get("ungated").filter(|moves| **moves > 0)?;
    let answers = counters.iter().filter(|(name, _)| name.starts_with("gate_"));
    let answers: u64 = answers.map(|(_, count)| count).sum();
    Some(format!(
        "So far the gate answered {answers} times, and was not asked about {moves} moves: of tasks that \
         were new, stayed within a cache, waited for too long while a CPU idled, lost their CPU to a \
         real-time task, or were on a CPU that is offline or shielded."
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moves_without_an_answer_are_reported() {
        let counters = |moves: u64| {
            let all = [("gate_busy", 3), ("gate_quiet", 4), ("move_wake", 9), ("ungated", moves)];
            BTreeMap::from(all.map(|(name, count)| (name.to_owned(), count)))
        };
        assert_eq!(ungated_moves(&counters(0)), None);
        assert_eq!(ungated_moves(&BTreeMap::new()), None);
        let line = ungated_moves(&counters(2)).unwrap();
        assert!(
            line.starts_with("So far the gate answered 7 times, and was not asked about 2 moves")
        );
    }
}
