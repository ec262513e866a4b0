//! `evenkeel irq run`: moves interrupts in rounds until it is told to end, and takes all moves back
//! then. Which move is made is decided by `evenkeel_irq::Rounds`.

use anyhow::{Context, Result};
use evenkeel_control::{END_SIGNALS, watch_signals};
use evenkeel_irq::{Accounting, Event, Mover, Observer, Rounds};
use evenkeel_journal::{UndoReport, failpoint, runtime_dir};
use evenkeel_machine::CpuSet;
use nix::sys::signalfd::SignalFd;

use super::common::{cpus_of, say, say_report, source_of_figures, time, warn};
use super::gate::enter;
use super::signals::is_told_to_end;
use crate::cli::IrqRunArgs;
use crate::exit::{IMPOSSIBLE, UNSUCCESSFUL};
use crate::supervisor;

/// Moves interrupts until SIGTERM or SIGINT, or until the program of `--for` ends. Returns the exit
/// code.
///
/// # Errors
/// There is no journal, or interrupts cannot be observed.
pub fn main(args: &IrqRunArgs) -> Result<i32> {
    failpoint::arm(args.faults.abort_at);
    let signals = watch_signals(&END_SIGNALS).context("cannot wait for signals")?;
    let protected = match cpus_of(args.program.as_ref()) {
        Ok(cpus) => cpus,
        Err(why) => {
            warn(&why.to_string());
            return Ok(UNSUCCESSFUL);
        }
    };
    let directory = runtime_dir()?;
    let _locked = match enter(&directory, args.take_over)? {
        Ok(locked) => locked,
        Err(why) => {
            warn(&why);
            return Ok(IMPOSSIBLE);
        }
    };
    let command = std::env::args_os().map(|word| word.to_string_lossy().into_owned()).collect();
    let supervisor = supervisor::command(&args.faults);
    let mut mover = Mover::open(&directory, command, supervisor, args.take_over)?;
    let talk = Talk { is_json: args.json };
    let ended = rounds(args, &signals, protected, &mut mover, &talk);
    // However it ended.
    let report = mover.close();
    talk.end(&report)?;
    ended.map(|()| i32::from(!report.errors.is_empty()))
}

/// How events are printed.
struct Talk {
    is_json: bool,
}

impl Talk {
    /// What is for people only.
    fn note(&self, what: &str) {
        if !self.is_json {
            say(what);
        }
    }

    fn event(&self, event: &Event) -> Result<()> {
        if self.is_json {
            say(&serde_json::to_string(event)?)
        } else {
            say(&event.to_string())
        }
        Ok(())
    }

    fn end(&self, report: &UndoReport) -> Result<()> {
        if self.is_json {
            say(&serde_json::to_string(&serde_json::json!({ "undone": report }))?);
            report.errors.iter().for_each(|why| warn(&why.to_string()));
        } else {
            say_report(report);
        }
        Ok(())
    }
}

fn rounds(
    args: &IrqRunArgs,
    signals: &SignalFd,
    mut protected: CpuSet,
    mover: &mut Mover,
    talk: &Talk,
) -> Result<()> {
    let mut observer = Observer::start()?;
    if args.take_over {
        observer.take_over();
    }
    let mut rounds = Rounds::default();
    let program = args.program.as_ref();
    let beside = program.map(|program| format!(", away from {program} (CPUs {protected})"));
    let seconds = time(args.interval).as_secs_f64();
    let beside = beside.unwrap_or_default();
    talk.note(&format!("Moving interrupts{beside}, a round every {seconds} s."));
    let mut has_said = false;
    while !is_told_to_end(signals, time(args.interval))? {
        match cpus_of(program) {
            Ok(cpus) => protected = cpus,
            Err(why) => {
                talk.note(&format!("{why}. Interrupts are moved back."));
                return Ok(());
            }
        }
        let snapshot = observer.snapshot(&protected, &mover.originals())?;
        if matches!(snapshot.accounting, Accounting::Counts(_)) && !has_said {
            warn(&format!("{} Lines stay.", source_of_figures(&snapshot)));
            has_said = true;
        }
        for event in rounds.round(snapshot, mover)? {
            talk.event(&event)?;
        }
    }
    Ok(())
}
