//! The loop of the live screen: waits for a reading, a key or a signal, and draws.

use std::fs::File;
use std::io::{IsTerminal, stdin};
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use anyhow::{Context, Result};
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{SigSet, SigmaskHow, Signal, kill, sigprocmask};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use nix::unistd::Pid;

use super::inputs::{Input, Inputs};
use super::keys::{Action, Key, State};
use super::model::Model;
use super::screen::{Screen, has_colours, next_key};
use super::table::{Pane, Table};
use super::tables::tables;
use super::view::{Look, draw};
use crate::terminal::{HeldLog, hold_log};
use crate::watch::set_watched;

/// Signals that end the screen; the exit code is that of a program that they have killed.
const ENDING: [Signal; 4] = [Signal::SIGHUP, Signal::SIGINT, Signal::SIGQUIT, Signal::SIGTERM];
/// What a shell adds to the number of a signal.
const KILLED: i32 = 128;
/// How long a balancer may take to answer a key. The screen does not change meanwhile.
const PATIENCE: Duration = Duration::from_secs(1);

/// Shows the screen until a key or a signal ends it. Returns the exit code.
///
/// # Errors
/// The terminal cannot be controlled or is gone, or no thread can be started.
pub fn show(interval: Duration) -> Result<i32> {
    // Before threads start: they inherit the mask in which these signals are blocked.
    let signals = watch_signals().context("signals")?;
    let keyboard = keyboard()?;
    // Declared before the screen, so dropped after it: log lines go to the terminal once that is back.
    let log = hold_log();
    let inputs = Inputs::start(interval).context("a thread for readings")?;
    let look = Look { has_colours: has_colours(std::env::var_os("NO_COLOR")) };
    let mut live = Live {
        screen: Screen::take()?,
        inputs,
        tables: tables(&Model::default()),
        model: Model::default(),
        state: State::default(),
        look,
    };
    live.inputs.take_keys(next_key).context("a thread for keys")?;
    loop {
        live.draw(&log)?;
        let mut polled = [
            PollFd::new(signals.as_fd(), PollFlags::POLLIN),
            PollFd::new(live.inputs.ready(), PollFlags::POLLIN),
            // Keys are read by a thread of their own. This tells when the terminal is gone.
            PollFd::new(keyboard.as_fd(), PollFlags::empty()),
        ];
        match poll(&mut polled, PollTimeout::NONE) {
            Ok(_) | Err(Errno::EINTR) => {}
            Err(why) => return Err(why).context("waiting for keys"),
        }
        let [signal, input, gone] = polled.map(|polled| polled.any().unwrap_or(false));
        if signal && let Some(code) = live.take_signals(&signals)? {
            return Ok(code);
        }
        if gone {
            return Ok(KILLED + Signal::SIGHUP as i32);
        }
        if input && live.take_inputs()? {
            return Ok(0);
        }
    }
}

struct Live {
    screen: Screen,
    inputs: Inputs,
    model: Model,
    tables: [Table; Pane::COUNT],
    state: State,
    look: Look,
}

impl Live {
    /// Draws, with what was logged meanwhile among the notes.
    fn draw(&mut self, log: &HeldLog) -> Result<()> {
        let known = self.model.notes.len();
        self.model.notes.extend(log.lines());
        let Self { screen, model, tables, state, look, .. } = self;
        let drawn = screen.draw(|buffer| draw(buffer, model, tables, state, *look));
        self.model.notes.truncate(known);
        Ok(drawn?)
    }

    /// Returns whether the screen is to end.
    fn take_inputs(&mut self) -> Result<bool> {
        for input in self.inputs.take()? {
            match input {
                // A reading may have been on its way when the screen was frozen: it is left out.
                Input::Reading(model) if !self.state.is_frozen => {
                    self.tables = tables(&model);
                    self.model = *model;
                }
                Input::Reading(_) => {}
                Input::Key(key) => {
                    if self.press(key)? {
                        return Ok(true);
                    }
                }
            }
        }
        Ok(false)
    }

    /// Returns whether the screen is to end.
    fn press(&mut self, key: Key) -> Result<bool> {
        match self.state.press(key, &self.tables) {
            Action::Draw => {}
            Action::Redraw => self.screen.forget(),
            Action::Quit => return Ok(true),
            // Process 0: the whole job, sudo included, as the terminal itself would stop it.
            Action::Suspend => self.screen.lend(|| stop(Pid::from_raw(0)))?,
            Action::Freeze => self.inputs.order(false),
            Action::Thaw => self.inputs.order(true),
            Action::Watch => self.state.said = self.watch_or_balance(),
        }
        Ok(false)
    }

    /// Asks the balancer of the chosen program only to watch it, or to balance it again. Returns the
    /// sentence that the screen shows.
    fn watch_or_balance(&mut self) -> String {
        let key = self.state.chosen(Pane::Programs, &self.tables[Pane::Programs.index()]);
        let mut programs = self.model.programs.iter_mut().map(|program| &mut program.status);
        let chosen = programs.find(|status| Some(status.root.to_string().as_str()) == key);
        let Some(status) = chosen else { return "no program is chosen".to_owned() };
        let watch = !status.dry_run;
        let (result, root) = (set_watched(status, watch, PATIENCE), status.root);
        if result.is_ok() {
            // The next reading will say so, but a frozen screen gets none.
            status.dry_run = watch;
            self.tables = tables(&self.model);
        }
        match result {
            Ok(()) if watch => format!("{root} is only watched: l has it balanced again"),
            Ok(()) => format!("{root} is balanced again"),
            Err(why) => format!("{why:#}"),
        }
    }

    /// Returns the exit code, if a signal ends the screen.
    fn take_signals(&mut self, signals: &SignalFd) -> Result<Option<i32>> {
        while let Some(info) = signals.read_signal()? {
            match Signal::try_from(info.ssi_signo as i32) {
                Ok(signal) if ENDING.contains(&signal) => {
                    return Ok(Some(KILLED + signal as i32));
                }
                Ok(Signal::SIGTSTP) => self.screen.lend(|| stop(Pid::this()))?,
                // The next picture has the new size.
                _ => {}
            }
        }
        Ok(None)
    }
}

/// Signals come by a descriptor, so that none ends this process while the terminal is changed.
fn watch_signals() -> Result<SignalFd, Errno> {
    let mut watched = SigSet::empty();
    ENDING.iter().for_each(|signal| watched.add(*signal));
    watched.add(Signal::SIGTSTP);
    watched.add(Signal::SIGWINCH);
    sigprocmask(SigmaskHow::SIG_BLOCK, Some(&watched), None)?;
    SignalFd::with_flags(&watched, SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK)
}

/// Where keys come from: standard input, or the terminal where that is something else.
fn keyboard() -> Result<OwnedFd> {
    if stdin().is_terminal() {
        return stdin().as_fd().try_clone_to_owned().context("standard input");
    }
    let terminal = File::open("/dev/tty");
    let terminal = terminal.context("no keyboard: /dev/tty; print once: evenkeel top --once")?;
    Ok(terminal.into())
}

/// Stops this process, or its job, until it is continued. A job that no shell looks after goes on, as
/// the kernel has it.
fn stop(processes: Pid) {
    let mut only = SigSet::empty();
    only.add(Signal::SIGTSTP);
    // None of these fails: signal and set are valid.
    let _ = kill(processes, Signal::SIGTSTP);
    let _ = sigprocmask(SigmaskHow::SIG_UNBLOCK, Some(&only), None);
    let _ = sigprocmask(SigmaskHow::SIG_BLOCK, Some(&only), None);
}
