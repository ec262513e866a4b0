//! Ctrl-C and Ctrl-Z in a real terminal, under a process that handles jobs as a shell does.

use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::Child;

use nix::pty::openpty;

use crate::roles::role;
use crate::support::*;

/// A terminal with a shell that runs one job: the counting program, with or without evenkeel.
struct Terminal {
    host: Host,
    keyboard: OwnedFd,
    shell: Child,
}

impl Terminal {
    fn new(with_evenkeel: bool) -> Self {
        let host = Host::new();
        let pty = openpty(None, None).unwrap();
        let job = match with_evenkeel {
            true => [&[EVENKEEL, "run", "-q"], &EAGER[..], &["--"], &role("counter")[..]].concat(),
            false => role("counter"),
        };
        let shell_role = role("shell");
        let mut shell = host.command(shell_role[0]);
        shell
            .args(&shell_role[1..])
            .env("EVENKEEL_TEST_ROLE", "shell")
            .env("JOB", job.join("\n"))
            .env("LOG", host.path("log"))
            .env("REPORT", host.path("report"))
            .stdin(pty.slave.try_clone().unwrap())
            .stdout(pty.slave.try_clone().unwrap())
            .stderr(pty.slave);
        let lead = || {
            // SAFETY: a session of its own with the terminal on descriptor 0; integers only.
            let result = unsafe { libc::setsid() + libc::ioctl(0, libc::TIOCSCTTY, 0) };
            if result < 0 { Err(std::io::Error::last_os_error()) } else { Ok(()) }
        };
        // SAFETY: system calls only.
        unsafe { shell.pre_exec(lead) };
        let shell = shell.spawn().unwrap();
        let terminal = Self { host, keyboard: pty.master, shell };
        wait_for("the program", || terminal.log().contains("@pid="));
        // The program may be ready before its shell has said which job it is.
        wait_for("the shell's word", || {
            terminal.report().iter().any(|line| line.starts_with("job "))
        });
        terminal
    }

    /// What the program said.
    fn log(&self) -> String {
        std::fs::read_to_string(self.host.path("log")).unwrap_or_default()
    }

    /// What the shell saw.
    fn report(&self) -> Vec<String> {
        let text = std::fs::read_to_string(self.host.path("report")).unwrap_or_default();
        text.lines().map(str::to_owned).collect()
    }

    fn said(&self, line: &str) -> usize {
        self.report().iter().filter(|said| *said == line).count()
    }

    fn got(&self, signal: i32) -> usize {
        self.log().matches(&format!("@got={signal:02}")).count()
    }

    fn job(&self) -> i32 {
        self.report()[0].strip_prefix("job ").unwrap().parse().unwrap()
    }

    fn program(&self) -> i32 {
        let log = self.log();
        log.split_once("@pid=").unwrap().1.lines().next().unwrap().parse().unwrap()
    }

    fn press(&self, key: u8) {
        // SAFETY: one byte that lives across the call.
        let written =
            unsafe { libc::write(self.keyboard.as_raw_fd(), std::ptr::from_ref(&key).cast(), 1) };
        assert_eq!(written, 1);
    }

    fn end(mut self) -> Vec<String> {
        assert!(ended(&mut self.shell).success());
        self.report()
    }
}

const CTRL_C: u8 = 3;
const CTRL_D: u8 = 4;
const CTRL_Z: u8 = 26;

#[test]
fn ctrl_c_comes_once() {
    for with_evenkeel in [false, true] {
        let terminal = Terminal::new(with_evenkeel);
        for times in 1..=3 {
            terminal.press(CTRL_C);
            wait_for("the signal", || terminal.got(libc::SIGINT) == times);
            // A signal that evenkeel had passed on would have arrived before this one.
            kill(terminal.job(), libc::SIGUSR1);
            wait_for("the mark", || terminal.got(libc::SIGUSR1) == times);
            assert_eq!(terminal.got(libc::SIGINT), times);
        }
        kill(terminal.job(), libc::SIGTERM);
        let report = terminal.end();
        assert_eq!(report.last().unwrap(), "exited 7", "{report:?}");
    }
}

#[test]
fn ctrl_z_stops_both_and_fg_continues_both() {
    for with_evenkeel in [false, true] {
        let terminal = Terminal::new(with_evenkeel);
        for times in 1..=3 {
            terminal.press(CTRL_Z);
            // The shell sees its child stopped, and the program is stopped, too.
            wait_for("the shell's view", || terminal.said("stopped") == times);
            assert_eq!(state(terminal.job()), 'T');
            assert_eq!(state(terminal.program()), 'T');
            std::fs::write(terminal.host.path("report.fg"), "").unwrap();
            wait_for("the continuation", || state(terminal.program()) != 'T');
            wait_for("ours", || state(terminal.job()) != 'T');
            wait_for("the signal", || terminal.got(libc::SIGCONT) >= times);
            // It works as before.
            kill(terminal.job(), libc::SIGUSR1);
            wait_for("the mark", || terminal.got(libc::SIGUSR1) == times);
        }
        terminal.press(CTRL_D);
        let report = terminal.end();
        assert_eq!(report.last().unwrap(), "exited 0", "{report:?}");
    }
}

#[test]
fn a_program_that_stops_itself_gives_the_terminal_back() {
    // Editors catch SIGTSTP, restore the screen and then stop by SIGSTOP.
    let terminal = Terminal::new(true);
    kill(terminal.program(), libc::SIGSTOP);
    wait_for("the shell's view", || terminal.said("stopped") == 1);
    std::fs::write(terminal.host.path("report.fg"), "").unwrap();
    wait_for("the continuation", || terminal.got(libc::SIGCONT) >= 1);
    terminal.press(CTRL_D);
    assert_eq!(terminal.end().last().unwrap(), "exited 0");
}
