//! Table `[irq]`: what the daemon does about interrupts. It starts `evenkeel irq run` beside itself,
//! with that command's own checks, journal and confinement, because a process has one journal. That
//! process ends with the daemon, whatever ends it, and takes all moves back then. If it ends by
//! itself, it is started again after a pause.

use std::io;
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use evenkeel_trial::command::{Helper, end_with_us};

use super::gate::reason_against;
use crate::cli::{FaultArgs, IrqOptions};
use crate::exit::IMPOSSIBLE;

/// The pause before a process that ended by itself is started again doubles from this ...
const FIRST_PAUSE: Duration = Duration::from_secs(10);
/// ... to this. One that ran for longer begins anew.
const LONGEST_PAUSE: Duration = Duration::from_secs(600);

/// The process that moves interrupts for the daemon, if there is one.
#[derive(Debug)]
pub struct Companion {
    options: IrqOptions,
    running: Option<Helper>,
    /// It was asked to end, since the options have changed.
    is_ending: bool,
    started: Instant,
    /// When it is to be started; `None`: not at all.
    start: Option<Instant>,
    pause: Duration,
}

impl Companion {
    /// None yet.
    pub fn new(now: Instant) -> Self {
        Self {
            options: IrqOptions::default(),
            running: None,
            is_ending: false,
            started: now,
            start: None,
            pause: FIRST_PAUSE,
        }
    }

    /// Takes these options from now on. [`Companion::look`] acts.
    pub fn follow(&mut self, options: &IrqOptions, now: Instant) {
        if self.running.is_some() && self.options == *options {
            return;
        }
        self.options = options.clone();
        self.pause = FIRST_PAUSE;
        self.start = Some(now);
        // Only one process moves interrupts: the next one is started when this one has ended.
        if let Some(helper) = &self.running {
            helper.ask_to_end();
            self.is_ending = true;
        }
    }

    /// Starts it when it is time, and notices its end. It never waits for it.
    pub fn look(&mut self, faults: &FaultArgs, now: Instant) {
        if let Some(helper) = &mut self.running {
            match helper.0.try_wait() {
                Ok(None) => return,
                Ok(Some(status)) => self.note_end(status, now),
                Err(why) => {
                    tracing::error!("[irq]: interrupts are not moved any more: {why}");
                    self.start = None;
                }
            }
            self.running = None;
        }
        if self.start.is_some_and(|start| start <= now) {
            self.start = None;
            self.launch(faults, now);
        }
    }

    fn note_end(&mut self, status: ExitStatus, now: Instant) {
        if std::mem::take(&mut self.is_ending) {
            self.start = Some(now);
            return;
        }
        if now.saturating_duration_since(self.started) > LONGEST_PAUSE {
            self.pause = FIRST_PAUSE;
        }
        if status.code() == Some(IMPOSSIBLE) {
            tracing::error!(
                "[irq]: interrupts are not moved: its process says that it is impossible"
            );
            self.start = None;
            return;
        }
        let pause = self.pause;
        tracing::error!(
            "[irq]: the process that moves interrupts ended ({status}); again in {pause:?}"
        );
        self.start = Some(now + pause);
        self.pause = (2 * pause).min(LONGEST_PAUSE);
    }

    /// Starts it. What makes it impossible is logged: the daemon balances programs all the same.
    fn launch(&mut self, faults: &FaultArgs, now: Instant) {
        let Some(mode) = self.options.aim() else { return };
        if let Some(why) = reason_against(self.options.takes_over()) {
            tracing::error!("[irq]: interrupts are not moved: {why}");
            return;
        }
        let mut command = Command::new("/proc/self/exe");
        command.arg0("evenkeel");
        command.args(["irq", "run", "--mode", &mode.to_string()]);
        if let Some(interval) = self.options.interval {
            command.args(["--interval", &format!("{}us", interval.0.ns / 1000)]);
        }
        for (is_set, flag) in
            [(self.options.takes_over(), "--take-over"), (faults.no_supervisor, "--no-supervisor")]
        {
            command.args(is_set.then_some(flag));
        }
        command.stdin(Stdio::null());
        end_with_us(&mut command);
        ignore_signals_to_the_daemon(&mut command);
        match command.spawn() {
            Ok(child) => {
                tracing::info!("[irq]: process {} moves interrupts ({mode})", child.id());
                self.running = Some(Helper(child));
                self.started = now;
            }
            Err(why) => tracing::error!("[irq]: interrupts are not moved: {why}"),
        }
    }
}

/// A service manager or a terminal sends to all processes of the service what is meant for the daemon. A
/// signal that is ignored stays so across exec.
fn ignore_signals_to_the_daemon(command: &mut Command) {
    let ignore = || {
        for signal in [libc::SIGHUP, libc::SIGUSR1, libc::SIGUSR2] {
            // SAFETY: takes integers; no handler is called.
            if unsafe { libc::signal(signal, libc::SIG_IGN) } == libc::SIG_ERR {
                return Err(io::Error::last_os_error());
            }
        }
        Ok(())
    };
    // SAFETY: system calls; memory is allocated only to report an error.
    unsafe { command.pre_exec(ignore) };
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt;

    use super::*;

    fn ended(code: i32) -> ExitStatus {
        ExitStatus::from_raw(code << 8)
    }

    #[test]
    fn a_process_that_ends_by_itself_is_started_again_after_longer_and_longer() {
        let begin = Instant::now();
        let mut companion = Companion::new(begin);
        let mut pauses = Vec::new();
        for _ in 0..8 {
            companion.note_end(ended(1), begin);
            pauses.push(companion.start.unwrap().duration_since(begin).as_secs());
        }
        assert_eq!(pauses, [10, 20, 40, 80, 160, 320, 600, 600]);
        // It ran for long: the first pause again.
        let later = begin + LONGEST_PAUSE + Duration::from_secs(1);
        companion.note_end(ended(1), later);
        assert_eq!(companion.start.unwrap().duration_since(later), FIRST_PAUSE);
        // What is impossible stays so until the next reload.
        companion.note_end(ended(IMPOSSIBLE), begin);
        assert_eq!(companion.start, None);
        companion.follow(&IrqOptions::default(), begin);
        assert_eq!(companion.start, Some(begin));
        // The one that was asked to end makes room for the next one at once.
        companion.is_ending = true;
        companion.note_end(ended(0), begin);
        assert_eq!((companion.start, companion.is_ending), (Some(begin), false));
    }
}
