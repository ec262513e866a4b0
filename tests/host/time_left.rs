//! What takes longer than a moment shows on a terminal how long it takes yet, and nowhere else.

use std::fs::File;
use std::io::Read;
use std::process::{Command, Stdio};

use nix::pty::{Winsize, openpty};

use crate::support::*;

/// Runs a command that would last for long, until its terminal shows how long it takes yet to do this.
fn shows_the_time_left(command: Command, doing: &str) {
    let (left, yet) = (format!("left, {doing}"), format!("yet, {doing}"));
    shows_on_a_terminal(command, |said| said.contains(&left) || said.contains(&yet));
}

/// Runs a command that would last for long, until what it has shown on its terminal is as wanted.
pub fn shows_on_a_terminal(mut command: Command, is_wanted: impl Fn(&str) -> bool) {
    let size = Winsize { ws_row: 24, ws_col: 80, ws_xpixel: 0, ws_ypixel: 0 };
    let pty = openpty(&size, None).unwrap();
    command.env("TERM", "xterm").stdout(Stdio::null()).stderr(pty.slave);
    let mut child = command.spawn().unwrap();
    // It holds the terminal, too.
    drop(command);
    let mut terminal = File::from(pty.master);
    let (mut said, mut bytes) = (Vec::new(), [0; 4096]);
    while !is_wanted(&text(&said)) {
        // Of a broken display the end tells: the terminal is gone then.
        let count = terminal.read(&mut bytes).expect("it ended without a word");
        said.extend_from_slice(&bytes[..count]);
    }
    child.kill().unwrap();
    child.wait().unwrap();
}

#[test]
fn a_long_simulation_shows_on_a_terminal_how_long_it_takes_yet() {
    let host = Host::new();
    // It would take minutes; of a broken display the end tells after a while.
    let words = ["sim", "run", "hogs:tasks=1000,work=100s", "--max-events", "50000000"];
    shows_the_time_left(host.evenkeel_lab(words), "simulating");
}

#[test]
fn a_sweep_shows_on_a_terminal_how_long_it_takes_yet() {
    let host = Host::new();
    let rows = host.path("rows");
    let words = ["sim", "sweep", "hogs:tasks=100,work=1s", "--out", rows.to_str().unwrap()];
    // As all others do, not "0s left".
    let is_wanted = |said: &str| said.contains("0/10 runs, time left unknown yet");
    shows_on_a_terminal(host.evenkeel_lab(words), is_wanted);
}

#[test]
fn noise_without_a_command_shows_how_long_it_lasts_yet() {
    let host = Host::alone();
    let words = ["noise", "hog", "--limit", "30s"];
    shows_the_time_left(host.evenkeel_lab(words), "making noise");
}

#[test]
fn commands_that_watch_for_long_show_how_long_they_take_yet() {
    let host = Host::new();
    for (words, doing) in [
        (&["doctor"][..], "watching CPUs"),
        (&["irq", "status"], "watching interrupts"),
        (&["irq", "plan"], "watching interrupts"),
    ] {
        shows_the_time_left(host.evenkeel([words, &["--watch", "30s"]].concat()), doing);
    }
    // Not where there is no terminal.
    let piped = output(&mut host.evenkeel(["irq", "status", "--watch", "2100ms", "--json"]));
    assert!(piped.status.success(), "{piped:?}");
    assert!(!text(&piped.stderr).contains("watching interrupts"), "{piped:?}");
}
