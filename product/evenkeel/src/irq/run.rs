//! `evenkeel irq run`: moves interrupts in rounds until it is told to end, and takes all moves back
//! then. Which move is made is decided by `evenkeel_irq::Rounds`.

use anyhow::{Context, Result};
use evenkeel_control::ServiceSignals;
use evenkeel_irq::{
    Aim, Event, Mover, Observer, Program, ProgramError, Rounds, RunningProgram, Snapshot,
};
use evenkeel_journal::{UndoReport, failpoint, runtime_dir};
use evenkeel_machine::CpuSet;
use serde::Serialize;

use super::common::{say, say_event, say_report, time, warn};
use super::gate::{enter, reason_against_aim};
use super::signals::is_told_to_end;
use super::trace::{Seen, Trace};
use crate::cli::IrqRunArgs;
use crate::exit::IMPOSSIBLE;
use crate::trace_file::TraceFile;
use crate::{confine, supervisor};

/// Moves interrupts until SIGTERM or SIGINT, or until the program of `--for` ends. Returns the exit
/// code. `trace` is the file of `--perfetto`.
///
/// # Errors
/// There is no journal, the program of `--for` does not run, or interrupts cannot be observed.
pub fn main(args: &IrqRunArgs, trace: Option<TraceFile>) -> Result<i32> {
    failpoint::arm(args.faults.abort_at);
    let signals = ServiceSignals::watch().context("cannot wait for signals")?;
    // Found once: its end must be seen even if another process gets its number.
    let program = args.program.as_ref().map(Program::find).transpose();
    let found = program.and_then(|program| Ok((cpus_of(program.as_ref())?, program)));
    let (protected, program) = found?;
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
    let observer = Observer::start(args.mode)?;
    if let Some(why) = reason_against_aim(args.mode, &observer) {
        warn(&why);
        return Ok(IMPOSSIBLE);
    }
    let mut mover = Mover::open(&directory, command, supervisor, args.take_over)?;
    if trace.is_some() {
        confine::remove_only_from(&directory);
    }
    let mut talk = Talk { is_json: args.json, trace: Trace::start(trace) };
    let observed = (observer, protected, program);
    let ended = rounds(args, &signals, observed, &mut mover, &mut talk);
    // However it ended.
    let report = mover.close();
    talk.end(&report)?;
    ended.map(|()| i32::from(!report.errors.is_empty()))
}

/// Where events are told: standard output and the trace.
struct Talk {
    is_json: bool,
    trace: Trace,
}

impl Talk {
    /// Says something that is for people only: not with `--json`.
    fn note(&self, what: &str) {
        if !self.is_json {
            say(what);
        }
    }

    fn event(&mut self, event: &Event) -> Result<()> {
        self.trace.event(event);
        say_event(event, self.is_json)
    }

    fn end(&mut self, report: &UndoReport) -> Result<()> {
        self.trace.end(report);
        say_report(report, self.is_json)
    }
}

/// The CPUs of the program of `--for`; without it, none.
fn cpus_of(program: Option<&RunningProgram>) -> Result<CpuSet, ProgramError> {
    program.map_or_else(|| Ok(CpuSet::new()), RunningProgram::cpus)
}

/// What is logged when SIGUSR1 comes.
#[derive(Default, Serialize)]
struct State {
    rounds: u64,
    moves: u64,
    /// What the last round saw, as `irq status --json` prints it; none: too little for a move.
    seen: Option<Snapshot>,
}

impl State {
    fn in_words(&self) -> String {
        let text = serde_json::to_string(self);
        text.map_or_else(|why| why.to_string(), |text| format!("the state is {text}"))
    }
}

fn rounds(
    args: &IrqRunArgs,
    signals: &ServiceSignals,
    (mut observer, mut protected, running): (Observer, CpuSet, Option<RunningProgram>),
    mover: &mut Mover,
    talk: &mut Talk,
) -> Result<()> {
    if args.take_over {
        observer.take_over();
    }
    let mut rounds = Rounds::new(args.mode);
    let beside =
        args.program.as_ref().map(|program| format!(", away from {program} (CPUs {protected})"));
    let seconds = time(args.interval).as_secs_f64();
    let beside = beside.unwrap_or_default();
    let aim = match args.mode {
        Aim::Level => "to level them",
        Aim::SourceAware => "to where their packets are received",
    };
    let begin = format!("Moving interrupts {aim}{beside}, a round every {seconds} s.");
    talk.note(&begin);
    talk.trace.note("started", &begin);
    if let Some(why) = observer.unmeasured() {
        warn(&format!("interrupt lines stay, because their times cannot be measured: {why}"));
        talk.trace.note("interrupt lines stay", why);
    }
    let mut state = State::default();
    while !is_told_to_end(signals, time(args.interval), || state.in_words())? {
        match cpus_of(running.as_ref()) {
            Ok(cpus) => protected = cpus,
            Err(why) => {
                talk.note(&format!("{why}. Interrupts are moved back."));
                talk.trace.note("moves back", &why.to_string());
                return Ok(());
            }
        }
        let snapshot = observer.observe(&protected, &mover.originals())?;
        talk.trace.round(&Seen {
            machine: observer.machine(),
            protected: &protected,
            taken_pct: observer.taken_pct(),
            snapshot: snapshot.as_ref(),
        });
        state.rounds += 1;
        state.seen.clone_from(&snapshot);
        let events = match snapshot {
            None => rounds.rest(mover)?,
            Some(snapshot) => rounds.round(snapshot, mover)?,
        };
        for event in events {
            state.moves += u64::from(matches!(event, Event::Moved(_)));
            talk.event(&event)?;
        }
    }
    Ok(())
}
