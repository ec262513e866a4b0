//! `evenkeel top` in a real terminal, under a process that handles jobs as a shell does: what it shows
//! of a real run, what keys do, and that the terminal is as before however it ends. And its plain text.

use std::fs::File;
use std::io::{ErrorKind, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::pty::{OpenptyResult, Winsize, openpty};
use nix::sys::termios::{Termios, tcgetattr};

use crate::roles::role;
use crate::running_daemon::{Daemon, lone_worker};
use crate::support::*;
use crate::worker::Worker;

/// A terminal, what is to be seen on it, and a shell that runs `evenkeel top` there.
struct Terminal {
    host: Host,
    pty: OpenptyResult,
    keyboard: File,
    seen: vt100::Parser,
    /// All that was written to it.
    written: Vec<u8>,
    before: Termios,
    shell: Child,
}

impl Terminal {
    fn new(flags: &[&str]) -> Self {
        Self::with(Host::new(), flags)
    }

    fn with(host: Host, flags: &[&str]) -> Self {
        Self::by(host, flags, |_| {})
    }

    /// `change` may change what the shell is started with.
    fn by(host: Host, flags: &[&str], change: impl FnOnce(&mut Command)) -> Self {
        let size = Winsize { ws_row: 24, ws_col: 80, ws_xpixel: 0, ws_ypixel: 0 };
        let pty = openpty(&size, None).unwrap();
        let keyboard = File::from(pty.master.try_clone().unwrap());
        fcntl(&keyboard, FcntlArg::F_SETFL(OFlag::O_NONBLOCK)).unwrap();
        let before = tcgetattr(&pty.slave).unwrap();
        let shell_role = role("shell");
        let mut shell = host.command(shell_role[0]);
        shell
            .args(&shell_role[1..])
            .env("EVENKEEL_TEST_ROLE", "shell")
            .env("JOB", [&[executable().as_str(), "top"], flags].concat().join("\n"))
            .env("REPORT", host.path("report"))
            .env("TERM", "xterm-256color")
            .env_remove("NO_COLOR")
            .stdin(pty.slave.try_clone().unwrap())
            .stdout(pty.slave.try_clone().unwrap())
            .stderr(pty.slave.try_clone().unwrap());
        let lead = || {
            // SAFETY: a session of its own with the terminal on descriptor 0; integers only.
            let result = unsafe { libc::setsid() + libc::ioctl(0, libc::TIOCSCTTY, 0) };
            if result < 0 { Err(std::io::Error::last_os_error()) } else { Ok(()) }
        };
        // SAFETY: system calls only.
        unsafe { shell.pre_exec(lead) };
        change(&mut shell);
        let shell = shell.spawn().unwrap();
        let seen = vt100::Parser::new(24.try_into().unwrap(), 80.try_into().unwrap(), 0);
        let written = Vec::new();
        let mut terminal = Self { host, pty, keyboard, seen, written, before, shell };
        terminal.wait_for_text("q quit");
        wait_for("the shell's word", || terminal.said("job ").is_some());
        terminal
    }

    /// What is on the screen now.
    fn text(&mut self) -> String {
        let mut bytes = [0; 65536];
        loop {
            match self.keyboard.read(&mut bytes) {
                Ok(count) => {
                    self.seen.process(&bytes[..count]);
                    self.written.extend(&bytes[..count]);
                }
                Err(why) if why.kind() == ErrorKind::WouldBlock => break,
                Err(why) => panic!("{why}"),
            }
        }
        self.seen.screen().contents()
    }

    fn wait_for_screen(&mut self, what: &str, is_there: impl Fn(&str) -> bool) {
        let mut text = String::new();
        let found = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            wait_for(what, || {
                text = self.text();
                is_there(&text)
            });
        }));
        assert!(found.is_ok(), "no {what} on the screen:\n{text}");
    }

    fn wait_for_text(&mut self, wanted: &str) {
        self.wait_for_screen(wanted, |text| text.contains(wanted));
    }

    fn press(&mut self, keys: &str) {
        self.keyboard.write_all(keys.as_bytes()).unwrap();
    }

    /// The rest of the first line of the shell's report that begins so.
    fn said(&self, beginning: &str) -> Option<String> {
        let report = std::fs::read_to_string(self.host.path("report")).unwrap_or_default();
        report.lines().find_map(|line| line.strip_prefix(beginning)).map(str::to_owned)
    }

    fn job(&self) -> i32 {
        self.said("job ").unwrap().parse().unwrap()
    }

    fn assert_as_before(&mut self) {
        self.text();
        let now = tcgetattr(&self.pty.slave).unwrap();
        assert_eq!(now, self.before, "the terminal has other settings");
        let screen = self.seen.screen();
        assert!(!screen.alternate_screen() && !screen.hide_cursor());
    }

    /// Waits until `evenkeel top` ends with this exit code, and the terminal is as before.
    fn end(mut self, code: i32) {
        // Its last words must be read, or it could not end.
        wait_for("the end", || {
            self.text();
            self.shell.try_wait().unwrap().is_some()
        });
        assert_eq!(self.said("exited "), Some(code.to_string()));
        self.assert_as_before();
    }
}

/// A program under `evenkeel run`.
fn sleep(host: &Host) -> Child {
    let run = host.run(&["-q"], &["sleep", "4711"]).spawn().unwrap();
    wait_for("the run", || !host.status().is_empty());
    run
}

fn end(mut run: Child) {
    kill(run.id() as i32, libc::SIGTERM);
    ended(&mut run);
}

#[test]
fn top_shows_a_run_obeys_keys_and_gives_the_terminal_back() {
    let host = Host::new();
    let run = sleep(&host);
    let mut terminal = Terminal::with(host, &["--interval", "100ms"]);
    let taken = tcgetattr(&terminal.pty.slave).unwrap();
    assert_ne!(taken, terminal.before, "keys come one by one");
    assert!(terminal.seen.screen().alternate_screen());
    terminal.wait_for_text("sleep 4711");
    terminal.wait_for_text("> CPUs");
    // Figures of an interval: the bar of a CPU.
    terminal.wait_for_text("###");
    // Whatever is pressed, what it does is seen before the next key.
    terminal.press("\t");
    terminal.wait_for_text("> Programs");
    terminal.press("\r");
    terminal.wait_for_text("Programs: the chosen row in full");
    terminal.wait_for_text(&format!("balancer {}", run.id()));
    terminal.press("\u{1b}");
    terminal.wait_for_text("> Programs");
    terminal.press("s");
    terminal.wait_for_text("by PID");
    terminal.press("/nothing");
    terminal.wait_for_text("Only Programs with: nothing");
    terminal.wait_for_text("No row has that text.");
    terminal.press("\u{1b}");
    terminal.wait_for_screen("end of the filter", |text| !text.contains("Only Programs"));
    terminal.press(" ");
    terminal.wait_for_text("FROZEN");
    terminal.press(" ");
    terminal.wait_for_screen("thaw", |text| !text.contains("FROZEN"));
    terminal.press("?");
    terminal.wait_for_text("draw the whole screen anew");
    terminal.press("?\u{1b}[D");
    terminal.wait_for_text("> CPUs");
    // Another size.
    terminal.seen.set_size(40.try_into().unwrap(), 120.try_into().unwrap());
    let size = Winsize { ws_row: 40, ws_col: 120, ws_xpixel: 0, ws_ypixel: 0 };
    // SAFETY: a descriptor that is open, and a size that lives across the call.
    let set = unsafe { libc::ioctl(terminal.pty.master.as_raw_fd(), libc::TIOCSWINSZ, &size) };
    assert_eq!(set, 0);
    terminal.wait_for_screen("foot in line 40", |text| {
        text.lines().nth(39).is_some_and(|line| line.contains("q quit"))
    });
    // When the program ends, it goes from the screen.
    end(run);
    terminal.wait_for_text("No program runs under evenkeel");
    terminal.press("q");
    terminal.end(0);
}

#[test]
fn l_has_a_program_only_watched_and_balanced_again() {
    let test = "l_has_a_program_only_watched_and_balanced_again";
    if two_cpus(test).is_none() {
        return;
    }
    let flags = [&["--placement", "hard"][..], &EAGER].concat();
    for is_daemon in [false, true] {
        let host = Host::new();
        let daemon = is_daemon.then(|| Daemon::start(&host, &flags));
        let worker = match is_daemon {
            true => lone_worker(&host),
            false => Worker::start(&host, &flags),
        };
        if is_daemon {
            let joined = output(&mut host.evenkeel(["join", &worker.pid.to_string()]));
            assert!(joined.status.success(), "{joined:?}");
        }
        worker.wait_moved(&host, 2);
        let mut terminal = Terminal::with(host, &["--interval", "100ms"]);
        terminal.press("2");
        terminal.wait_for_text("> Programs");
        terminal.wait_for_text(&format!("{} ", worker.pid));
        terminal.press("l");
        terminal.wait_for_text("is only watched");
        wait_for("masks as before", || worker.is_as(&all()));
        terminal.wait_for_text(" watched ");
        let pins = || worker.threads.iter().map(|tid| terminal.host.pins_of(*tid)).sum::<usize>();
        let before = pins();
        terminal.host.wait_intervals(5);
        assert_eq!(pins(), before, "moved, though it is only to be watched");
        terminal.press("l");
        terminal.wait_for_text("is balanced again");
        wait_for("moves", || {
            worker.threads.iter().map(|tid| terminal.host.pins_of(*tid)).sum::<usize>() > before
        });
        assert!(worker.end().success());
        if let Some(daemon) = daemon {
            daemon.end();
        }
        terminal.press("q");
        terminal.end(0);
    }
}

/// `evenkeel watch`, where no terminal is.
#[test]
fn a_command_does_what_l_does() {
    if two_cpus("a_command_does_what_l_does").is_none() {
        return;
    }
    let flags = [&["--placement", "hard"][..], &EAGER].concat();
    for is_daemon in [false, true] {
        let host = Host::new();
        let daemon = is_daemon.then(|| Daemon::start(&host, &flags));
        let worker = match is_daemon {
            true => lone_worker(&host),
            false => Worker::start(&host, &flags),
        };
        let pid = worker.pid.to_string();
        if is_daemon {
            let joined = output(&mut host.evenkeel(["join", &pid]));
            assert!(joined.status.success(), "{joined:?}");
        }
        worker.wait_moved(&host, 2);
        let said = |words: &[&str]| {
            let done = output(&mut host.evenkeel([&["watch"][..], words].concat()));
            assert!(done.status.success() && done.stderr.is_empty(), "{words:?}: {done:?}");
            text(&done.stdout)
        };
        assert!(said(&[&pid]).contains(&format!("evenkeel watch {pid} --off has it balanced")));
        wait_for("masks as before", || worker.is_as(&all()));
        let pins = || worker.threads.iter().map(|tid| host.pins_of(*tid)).sum::<usize>();
        let before = pins();
        host.wait_intervals(5);
        assert_eq!(pins(), before, "moved, though it is only to be watched");
        // Of a run, its own number names the program, too.
        let name = if is_daemon { worker.pid } else { worker.pid_of_evenkeel() };
        let again = said(&[&name.to_string(), "--off"]);
        assert_eq!(again, format!("The program of process {pid} is balanced again.\n"));
        wait_for("moves", || pins() > before);
        assert!(worker.end().success());
        let gone = output(&mut host.evenkeel(["watch", &pid]));
        if !is_daemon {
            assert_eq!(gone.status.code(), Some(2), "{gone:?}");
            assert!(text(&gone.stderr).contains("evenkeel status"), "{gone:?}");
        }
        if let Some(daemon) = daemon {
            daemon.end();
        }
    }
}

#[test]
fn l_is_refused_where_nothing_can_be_moved() {
    if two_cpus("l_is_refused_where_nothing_can_be_moved").is_none() {
        return;
    }
    let host = Host::new();
    let worker = Worker::start(&host, &[&["--dry-run"][..], &EAGER].concat());
    host.wait_intervals(1);
    let mut terminal = Terminal::with(host, &["--interval", "100ms"]);
    terminal.press("2");
    terminal.wait_for_text("> Programs");
    terminal.wait_for_text(" watched ");
    terminal.press("l");
    terminal.wait_for_text("its balancer moves nothing (--dry-run, or no journal)");
    let command = output(&mut terminal.host.evenkeel(["watch", &worker.pid.to_string()]));
    assert_eq!(command.status.code(), Some(2), "{command:?}");
    let why = format!("evenkeel: {}: its balancer moves nothing", worker.pid);
    assert!(text(&command.stderr).starts_with(&why), "{command:?}");
    assert!(worker.end().success());
    terminal.press("q");
    terminal.end(0);
}

#[test]
fn top_gives_the_terminal_back_at_every_signal() {
    for signal in [libc::SIGTERM, libc::SIGINT, libc::SIGHUP, libc::SIGQUIT] {
        let terminal = Terminal::new(&[]);
        kill(terminal.job(), signal);
        terminal.end(128 + signal);
    }
    let mut terminal = Terminal::new(&[]);
    terminal.press("\u{3}");
    terminal.end(0);
}

#[test]
fn top_gives_the_terminal_back_while_it_is_stopped() {
    for by_key in [true, false] {
        let mut terminal = Terminal::new(&["--interval", "100ms"]);
        match by_key {
            true => terminal.press("\u{1a}"),
            false => kill(terminal.job(), libc::SIGTSTP),
        }
        wait_for("the shell's view", || terminal.said("stopped").is_some());
        terminal.assert_as_before();
        std::fs::write(terminal.host.path("report.fg"), "").unwrap();
        wait_for("the continuation", || terminal.said("continued").is_some());
        terminal.wait_for_screen("picture", |text| text.contains("> CPUs"));
        assert!(terminal.seen.screen().alternate_screen());
        terminal.press("q");
        terminal.end(0);
    }
}

/// Whether a colour is chosen: 30 to 38, 40 to 48 or 90 to 107 of SGR (console_codes(4)).
fn has_colour(written: &[u8]) -> bool {
    let text = String::from_utf8_lossy(written);
    text.split("\u{1b}[").skip(1).any(|sequence| {
        let Some((codes, _)) = sequence.split_once('m') else { return false };
        // Another sequence with an m in the text behind it has a letter before that.
        let codes = codes.split(';').map(str::parse::<u32>).collect::<Result<Vec<_>, _>>();
        let is_colour = |code: &u32| matches!(code, 30..=38 | 40..=48 | 90..=107);
        codes.is_ok_and(|codes| codes.iter().any(is_colour))
    })
}

#[test]
fn top_has_no_colours_where_its_user_wants_none() {
    assert!(has_colour(b"\x1b[0;32mfree") && !has_colour(b"\x1b[38;1Hm\x1b[39;49m\x1b[m"));
    for no_color in [None, Some("1")] {
        let mut terminal = Terminal::by(Host::new(), &["--interval", "100ms"], |shell| {
            shell.envs(no_color.map(|value| ("NO_COLOR", value)));
        });
        terminal.wait_for_text("###");
        if no_color.is_none() {
            // Without it there are some, or the test would show nothing.
            wait_for("a colour", || {
                terminal.text();
                has_colour(&terminal.written)
            });
        } else {
            terminal.press("?");
            terminal.wait_for_text("draw the whole screen anew");
            terminal.press("?");
            terminal.wait_for_text("###");
            let text = String::from_utf8_lossy(&terminal.written);
            assert!(!has_colour(&terminal.written), "{text:?}");
        }
        terminal.press("q");
        terminal.end(0);
    }
}

/// What is tested; EVENKEEL_STARTED names another one, such as a release build.
fn executable() -> String {
    std::env::var("EVENKEEL_STARTED").unwrap_or_else(|_| EVENKEEL.to_owned())
}

/// The goal of its design is 0.5 % of a CPU, with a reading each second. It is meant for what users run:
/// without optimisation more is allowed.
fn most_of_a_cpu() -> f64 {
    if executable() == EVENKEEL { 0.02 } else { 0.005 }
}

/// CPU time of all threads of a process so far.
fn cpu_time(pid: i32) -> Duration {
    let threads = std::fs::read_dir(format!("/proc/{pid}/task")).unwrap();
    let of_thread = |thread: std::fs::DirEntry| -> u64 {
        let times = std::fs::read_to_string(thread.path().join("schedstat")).unwrap();
        times.split(' ').next().unwrap().parse().unwrap()
    };
    Duration::from_nanos(threads.map(|thread| of_thread(thread.unwrap())).sum())
}

fn assert_costs_little(terminal: &mut Terminal) {
    terminal.wait_for_text("###");
    let job = terminal.job();
    let (begun, before) = (Instant::now(), cpu_time(job));
    while begun.elapsed() < Duration::from_secs(5) {
        terminal.text();
        std::thread::sleep(Duration::from_millis(100));
    }
    let (spent, limit) = (cpu_time(job) - before, begun.elapsed().mul_f64(most_of_a_cpu()));
    assert!(spent <= limit, "{spent:?} of CPU time, at most {limit:?} are allowed");
    assert!(spent > Duration::ZERO);
}

#[test]
fn top_costs_little() {
    let mut terminal = Terminal::new(&[]);
    assert_costs_little(&mut terminal);
    terminal.press("q");
    terminal.end(0);
}

/// Beside nothing there is little to read and to draw: here it also asks a daemon, and shows programs
/// with their threads and decisions.
#[test]
fn top_costs_little_beside_a_daemon_and_programs() {
    let test = "top_costs_little_beside_a_daemon_and_programs";
    if two_cpus(test).is_none() {
        return;
    }
    let host = Host::new();
    let daemon = Daemon::start(&host, &EAGER);
    let workers = [(); 3].map(|()| lone_worker(&host));
    for worker in &workers {
        let joined = output(&mut host.evenkeel(["join", &worker.pid.to_string()]));
        assert!(joined.status.success(), "{joined:?}");
    }
    let mut terminal = Terminal::with(host, &[]);
    terminal.press("2");
    for worker in &workers {
        terminal.wait_for_text(&format!("{} ", worker.pid));
    }
    assert_costs_little(&mut terminal);
    workers.into_iter().for_each(|worker| assert!(worker.end().success()));
    daemon.end();
    terminal.press("q");
    terminal.end(0);
}

/// The lines of a section.
fn section<'t>(text: &'t str, title: &str) -> Vec<&'t str> {
    let lines = text.lines().skip_while(|line| !line.starts_with(title));
    lines.skip(1).take_while(|line| !line.is_empty()).collect()
}

fn check_plain(text: &str) {
    assert!(!text.contains('\u{1b}'), "{text}");
    let cpus = section(text, "CPUs");
    let titles: Vec<&str> = cpus[0].split_whitespace().collect();
    assert_eq!(titles[..5], ["CPU", "left", "%", "irq", "softirq"], "{text}");
    let online = std::fs::read_to_string("/sys/devices/system/cpu/online").unwrap();
    let online: evenkeel_machine::CpuSet = online.trim().parse().unwrap();
    assert_eq!(cpus.len() - 1, online.len(), "{text}");
    for line in &cpus[1..] {
        let left: f64 = line.split_whitespace().nth(1).unwrap().parse().unwrap();
        assert!((0.0..=100.0).contains(&left), "{line}");
    }
    for title in ["Decisions", "Interrupts", "Keel"] {
        assert!(!section(text, title).is_empty(), "{title}: {text}");
    }
}

#[test]
fn top_prints_plain_text_once_where_it_cannot_draw() {
    let host = Host::new();
    let run = sleep(&host);
    for flags in [&["top", "--once", "--interval", "100ms"][..], &["top", "--interval", "100ms"]] {
        let top = output(&mut host.evenkeel(flags));
        assert!(top.status.success() && top.stderr.is_empty(), "{top:?}");
        let text = text(&top.stdout);
        check_plain(&text);
        let programs = section(&text, "Programs");
        assert!(programs.iter().any(|line| line.contains(" sleep 4711 ")), "{text}");
    }
    end(run);
}

#[test]
fn top_works_without_privilege() {
    if !needs_root("top_works_without_privilege") {
        return;
    }
    let host = Host::new();
    let top = output(&mut as_nobody(&host, &["top", "--interval", "100ms"]));
    assert!(top.status.success() && top.stderr.is_empty(), "{top:?}");
    let text = text(&top.stdout);
    check_plain(&text);
    assert!(text.contains("from /proc"), "{text}");
    assert!(text.contains("Not exact, because: top loads nothing itself"), "{text}");
}

#[test]
fn top_has_the_figures_programs_and_decisions_of_a_daemon() {
    let test = "top_has_the_figures_programs_and_decisions_of_a_daemon";
    if !needs_root(test) || two_cpus(test).is_none() {
        return;
    }
    if let Err(why) = evenkeel_cbinfo::support() {
        evenkeel_skip::skip(test, why);
        return;
    }
    let host = Host::new();
    let daemon = Daemon::start(&host, &EAGER);
    let worker = lone_worker(&host);
    assert!(output(&mut host.evenkeel(["join", &worker.pid.to_string()])).status.success());
    worker.wait_moved(&host, 2);
    let top = output(&mut host.evenkeel(["top", "--once", "--interval", "300ms"]));
    assert!(top.status.success() && top.stderr.is_empty(), "{top:?}");
    let text = text(&top.stdout);
    check_plain(&text);
    assert!(text.contains("from the daemon's cbinfo"), "{text}");
    // By /proc nothing would be known of real-time tasks.
    let first = section(&text, "CPUs")[1].split_whitespace().nth(4).unwrap();
    assert!(first.parse::<f64>().is_ok(), "{text}");
    let pid = worker.pid.to_string();
    let of_worker = |title| {
        let lines = section(&text, title).into_iter();
        lines.filter(|line| line.split_whitespace().any(|word| word == pid)).collect::<Vec<_>>()
    };
    let [program] = of_worker("Programs")[..] else { panic!("one program: {text}") };
    assert!(program.contains(" threads "), "{program}");
    assert!(of_worker("Decisions").iter().any(|line| line.contains("from CPU")), "{text}");
    daemon.end();
    assert!(worker.end().success());
}
