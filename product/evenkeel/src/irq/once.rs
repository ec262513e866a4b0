//! `evenkeel irq once`: watches for a while, makes the moves of one plan, and ends. The moves stand:
//! their journal stays, and only `evenkeel undo` takes them back, or a reboot. What they bring is not
//! looked at: that takes a further interval, and `irq run` has one. If this process is killed before it
//! has said so in its journal, they are taken back as those of `irq run`.

use anyhow::{Context, Result};
use evenkeel_control::ServiceSignals;
use evenkeel_irq::{Accounting, Event, Mover, Observer, Program, once};
use evenkeel_journal::{failpoint, runtime_dir};

use super::common::{
    WATCHING, say, say_event, say_report, source_of_figures, time, warn, why_none,
};
use super::gate::{enter, reason_against_aim};
use super::signals::is_told_to_end;
use crate::cli::IrqOnceArgs;
use crate::countdown::shown;
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
    let watch = time(args.watch);
    if shown(watch, WATCHING, || is_told_to_end(&signals, watch, state))? {
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
            say_report(&mover.close(), args.json)?;
            return Err(why.into());
        }
    };
    events.iter().try_for_each(|event| say_event(event, args.json))?;
    let moves = events.iter().filter(|event| matches!(event, Event::Moved(_))).count();
    let tables = events.iter().filter(|event| matches!(event, Event::Spread(_))).count();
    if moves + tables == 0 {
        if !args.json {
            say(&format!("Nothing is moved: {why_none}."));
        }
        say_report(&mover.close(), args.json)?;
        return Ok(0);
    }
    mover.persist()?;
    if !args.json {
        what_stands(moves, tables).iter().for_each(|line| say(line));
    }
    Ok(0)
}

/// What is said of so many moves, and of so many changes of indirection tables, that stand.
fn what_stands(moves: usize, tables: usize) -> Vec<String> {
    let all = moves + tables;
    let mut lines = vec![format!("{all} moved. This stands until `evenkeel undo`, or a reboot.")];
    if tables > 0 {
        // Which buckets are busy is a guess. Only a later interval shows whether it was right.
        lines.push(
            "Whether the change of an RSS indirection table levels its CPUs is not looked at any more: \
             `evenkeel irq run` looks, and takes back a change that does not."
                .to_owned(),
        );
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_of_a_table_is_said_not_to_be_verified() {
        assert_eq!(what_stands(2, 0), ["2 moved. This stands until `evenkeel undo`, or a reboot."]);
        let lines = what_stands(1, 2);
        assert!(lines[0].starts_with("3 moved."), "{lines:?}");
        let [_, more] = &lines[..] else { panic!("two lines: {lines:?}") };
        assert!(more.contains("is not looked at") && more.contains("`evenkeel irq run` looks"));
    }

    #[test]
    fn the_help_says_it_before() {
        let mut command = crate::cli::command();
        let irq = command.find_subcommand_mut("irq").unwrap();
        let help = irq.find_subcommand_mut("once").unwrap().render_long_help().to_string();
        let help = help.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(help.contains("What the moves bring is not measured afterwards"), "{help}");
        assert!(help.contains("evenkeel irq run"), "{help}");
    }
}
