//! `evenkeel irq run`: moves interrupts in rounds until it is told to end, and takes all moves back
//! then. Which move is made is decided by `evenkeel_irq::Rounds`.

use std::fs::File;
use std::io::Write;
use std::os::fd::AsFd;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use evenkeel_irq::{Accounting, Mover, Observer, Program, ProgramError, Rounds, irqbalance_runs};
use evenkeel_journal::{failpoint, runtime_dir};
use evenkeel_machine::CpuSet;
use nix::errno::Errno;
use nix::fcntl::{FcntlArg, fcntl};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};

use super::common::{NO_PROGRAM, source_of_figures, time};
use crate::cli::IrqRunArgs;
use crate::supervisor;

/// Exit code when interrupts cannot be moved here, by this user, or now.
const IMPOSSIBLE: i32 = 3;
/// In the folder of sockets and journals: locked by the one process that moves interrupts.
const LOCK: &str = "irq.lock";

/// Moves interrupts until SIGTERM or SIGINT, or until the program of `--for` ends. Returns the exit
/// code.
///
/// # Errors
/// There is no journal, or interrupts cannot be observed.
pub fn main(args: &IrqRunArgs) -> Result<i32> {
    failpoint::arm(args.faults.abort_at);
    let signals = watch_signals().context("cannot wait for signals")?;
    let protected = match cpus_of(args.program.as_ref()) {
        Ok(cpus) => cpus,
        Err(why) => {
            warn(&why.to_string());
            return Ok(NO_PROGRAM);
        }
    };
    let directory = runtime_dir()?;
    let locked = lock(&directory)?;
    let _locked = match (locked, reason_against()) {
        (Ok(_), Some(why)) | (Err(why), _) => {
            warn(&why);
            return Ok(IMPOSSIBLE);
        }
        (Ok(file), None) => file,
    };
    let command = std::env::args_os().map(|word| word.to_string_lossy().into_owned()).collect();
    let mut mover = Mover::open(&directory, command, supervisor::command(&args.faults))?;
    let ended = rounds(args, &signals, protected, &mut mover);
    // However it ended.
    let report = mover.close();
    for file in &report.restored_settings {
        say(&format!("{}: set back to its earlier value.", file.display()));
    }
    for kept in &report.kept_settings {
        let file = kept.file.display();
        say(&format!("{file}: left at {}, which another process set.", kept.found));
    }
    report.errors.iter().for_each(|why| warn(&why.to_string()));
    ended.map(|()| i32::from(!report.errors.is_empty()))
}

/// What makes every move impossible, and what to do.
fn reason_against() -> Option<String> {
    if !nix::unistd::geteuid().is_root() {
        return Some("only root may move interrupts: run it as root".to_owned());
    }
    irqbalance_runs().then(|| {
        "irqbalance runs, and would move lines back: stop it first (systemctl stop irqbalance)"
            .to_owned()
    })
}

fn rounds(
    args: &IrqRunArgs,
    signals: &SignalFd,
    mut protected: CpuSet,
    mover: &mut Mover,
) -> Result<()> {
    let mut observer = Observer::start()?;
    let mut rounds = Rounds::default();
    let program = args.program.as_ref();
    let beside = program.map(|program| format!(", away from {program} (CPUs {protected})"));
    let seconds = time(args.interval).as_secs_f64();
    say(&format!("Moving interrupts{}, a round every {seconds} s.", beside.unwrap_or_default()));
    let mut has_said = false;
    while !is_told_to_end(signals, time(args.interval))? {
        match cpus_of(program) {
            Ok(cpus) => protected = cpus,
            Err(why) => {
                say(&format!("{why}. Interrupts are moved back."));
                return Ok(());
            }
        }
        let snapshot = observer.snapshot(&protected, &mover.originals())?;
        if matches!(snapshot.accounting, Accounting::Counts(_)) && !has_said {
            say(&format!("{} Lines stay.", source_of_figures(&snapshot)));
            has_said = true;
        }
        for event in rounds.round(snapshot, mover)? {
            say(&event.to_string());
        }
    }
    Ok(())
}

fn cpus_of(program: Option<&Program>) -> Result<CpuSet, ProgramError> {
    program.map_or_else(|| Ok(CpuSet::new()), Program::cpus)
}

/// Locks the file of the one that runs, for as long as this process lives; or says which one runs. A
/// lock by fcntl(2): the kernel tells its process, and the supervisor does not inherit it.
fn lock(directory: &Path) -> Result<Result<File, String>> {
    let path = directory.join(LOCK);
    let open = File::options().create(true).truncate(false).write(true).open(&path);
    let file = open.with_context(|| path.display().to_string())?;
    let mut whole = libc::flock {
        l_type: libc::F_WRLCK as libc::c_short,
        l_whence: libc::SEEK_SET as libc::c_short,
        l_start: 0,
        l_len: 0,
        l_pid: 0,
    };
    match fcntl(&file, FcntlArg::F_SETLK(&whole)) {
        Ok(_) => return Ok(Ok(file)),
        Err(Errno::EAGAIN | Errno::EACCES) => {}
        Err(why) => return Err(why).with_context(|| path.display().to_string()),
    }
    fcntl(&file, FcntlArg::F_GETLK(&mut whole))?;
    let runs = match whole.l_pid {
        pid @ 1.. => format!("process {pid}"),
        _ => "a process of another PID namespace".to_owned(),
    };
    Ok(Err(format!("{runs} moves interrupts already (evenkeel irq run): end it first")))
}

fn watch_signals() -> Result<SignalFd, Errno> {
    let mut watched = SigSet::empty();
    watched.add(Signal::SIGTERM);
    watched.add(Signal::SIGINT);
    watched.thread_block()?;
    SignalFd::with_flags(&watched, SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK)
}

/// Waits this long; true: a signal came.
fn is_told_to_end(signals: &SignalFd, interval: Duration) -> Result<bool> {
    let end = Instant::now() + interval;
    loop {
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Ok(false);
        }
        let mut readable = [PollFd::new(signals.as_fd(), PollFlags::POLLIN)];
        // Rounded up: a last part of a millisecond is not spent spinning.
        let patience = left + Duration::from_millis(1);
        match poll(&mut readable, PollTimeout::try_from(patience).unwrap_or(PollTimeout::ZERO)) {
            Ok(_) | Err(Errno::EINTR) => {}
            Err(why) => return Err(why.into()),
        }
        if signals.read_signal()?.is_some() {
            return Ok(true);
        }
    }
}

/// Not by println, which panics when standard output is closed.
fn say(what: &str) {
    let _ = writeln!(std::io::stdout(), "{what}");
}

fn warn(what: &str) {
    let _ = writeln!(std::io::stderr(), "evenkeel: {what}");
}
