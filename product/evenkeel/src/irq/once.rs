//! `evenkeel irq once`: watches for a while, makes the moves of one plan, and ends. The moves stand:
//! their journal stays, and only `evenkeel undo` takes them back, or a reboot. If this process is killed
//! before it has said so in its journal, they are taken back as those of `irq run`.

use anyhow::{Context, Result};
use evenkeel_control::ServiceSignals;
use evenkeel_irq::{Accounting, Event, Mover, Observer, Program, once};
use evenkeel_journal::{failpoint, runtime_dir};

use super::common::{say, say_report, source_of_figures, time, warn, why_none};
use super::gate::{enter, reason_against_aim};
use super::signals::is_told_to_end;
use crate::cli::IrqOnceArgs;
use crate::exit::{IMPOSSIBLE, UNSUCCESSFUL};
use crate::supervisor;

/// Moves interrupts once. Returns the exit code.
///
/// # Errors
/// There is no journal, the program of `--for` does not run, or interrupts cannot be observed or moved;
/// nothing is moved then.
pub fn main(args: &IrqOnceArgs) -> Result<i32> {
    failpoint::arm(args.faults.abort_at);
    let signals = ServiceSignals::watch().context("cannot wait for signals")?;
    let directory = runtime_dir()?;
    let _locked = match enter(&directory, args.take_over)? {
        Ok(locked) => locked,
        Err(why) => {
            warn(&why);
            return Ok(IMPOSSIBLE);
        }
    };
    let protected = args.program.as_ref().map(Program::cpus).transpose()?.unwrap_or_default();
    let command = std::env::args_os().map(|word| word.to_string_lossy().into_owned()).collect();
    let supervisor = supervisor::command(&args.faults);
    let mut observer = Observer::start(args.mode)?;
    if let Some(why) = reason_against_aim(args.mode, &observer) {
        warn(&why);
        return Ok(IMPOSSIBLE);
    }
    let mut mover = Mover::open(&directory, command, supervisor, args.take_over)?;
    if args.take_over {
        observer.take_over();
    }
    let state = || "interrupts are watched, and nothing is moved yet".to_owned();
    if is_told_to_end(&signals, time(args.watch), state)? {
        mover.close();
        warn("a signal came: nothing is moved");
        return Ok(UNSUCCESSFUL);
    }
    let snapshot = observer.snapshot(&protected, &mover.originals())?;
    if matches!(snapshot.accounting, Accounting::Counts(_)) {
        warn(&format!("{} Lines stay.", source_of_figures(&snapshot)));
    }
    let why_none = why_none(args.mode, &snapshot.cpus);
    let events = match once(snapshot, args.mode, &mut mover) {
        Ok(events) => events,
        Err(why) => {
            say_report(&mover.close());
            return Err(why.into());
        }
    };
    events.iter().for_each(|event| say(&event.to_string()));
    let is_move = |event: &&Event| matches!(event, Event::Moved(_) | Event::Spread(_));
    let moved = events.iter().filter(is_move).count();
    if moved == 0 {
        say(&format!("Nothing is moved: {why_none}."));
        say_report(&mover.close());
        return Ok(0);
    }
    mover.persist()?;
    say(&format!("{moved} moved. This stands until `evenkeel undo`, or a reboot."));
    Ok(0)
}
