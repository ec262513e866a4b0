//! Processes that tests start: this program again, with one of these "tests" chosen by name. Without
//! the variable EVENKEEL_TEST_ROLE (`cargo test -- --ignored`) they do nothing.

use std::io::Write;
use std::os::fd::AsRawFd;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::sync::OnceLock;

use nix::sys::signal::{SaFlags, SigAction, SigHandler, SigSet, Signal, sigaction};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::{Pid, tcsetpgrp};

use crate::support::say;

fn is_meant(name: &str) -> bool {
    std::env::var("EVENKEEL_TEST_ROLE").is_ok_and(|role| role == name)
}

/// The command that plays a role; set `EVENKEEL_TEST_ROLE` to its name, too.
pub fn role(name: &str) -> Vec<&str> {
    static EXE: OnceLock<String> = OnceLock::new();
    let exe = EXE.get_or_init(|| std::env::current_exe().unwrap().to_str().unwrap().to_owned());
    let test = match name {
        "worker" => "roles::worker",
        "counter" => "roles::counter",
        "storm" => "roles::storm",
        "shell" => "roles::shell",
        "toucher" => "roles::toucher",
        "caller" => "roles::caller",
        "asker" => "roles::asker",
        other => panic!("{other}"),
    };
    let harness = ["--ignored", "--exact", test, "--nocapture", "--test-threads=1", "--quiet"];
    [&[exe.as_str()], &harness[..]].concat()
}

#[test]
#[ignore = "a role"]
fn worker() {
    if is_meant("worker") {
        crate::worker::worker();
    }
}

#[test]
#[ignore = "a role"]
fn caller() {
    if is_meant("caller") {
        crate::quotas::caller();
    }
}

#[test]
#[ignore = "a role"]
fn asker() {
    if is_meant("asker") {
        crate::figures::asker();
    }
}

#[test]
#[ignore = "a role"]
fn toucher() {
    if is_meant("toucher") {
        crate::working_set::toucher();
    }
}

/// Says which signals it gets, each time; SIGTERM ends it with code 7, the end of the standard
/// input with code 0.
#[test]
#[ignore = "a role"]
fn counter() {
    if !is_meant("counter") {
        return;
    }
    extern "C" fn note(signal: i32) {
        let text = [
            b'@',
            b'g',
            b'o',
            b't',
            b'=',
            b'0' + (signal / 10) as u8,
            b'0' + (signal % 10) as u8,
            b'\n',
        ];
        let log = LOG.load(std::sync::atomic::Ordering::Relaxed);
        // SAFETY: write is async-signal-safe; the buffer lives across the call.
        unsafe { libc::write(log, text.as_ptr().cast(), text.len()) };
        if signal == libc::SIGTERM {
            // SAFETY: _exit is async-signal-safe.
            unsafe { libc::_exit(7) };
        }
    }
    static LOG: std::sync::atomic::AtomicI32 = std::sync::atomic::AtomicI32::new(1);
    // Where standard output is a terminal, the words go to a file.
    if let Some(path) = std::env::var_os("LOG") {
        let file = std::fs::OpenOptions::new().append(true).create(true).open(path).unwrap();
        LOG.store(file.as_raw_fd(), std::sync::atomic::Ordering::Relaxed);
        std::mem::forget(file);
    }
    for signal in [
        Signal::SIGHUP,
        Signal::SIGINT,
        Signal::SIGQUIT,
        Signal::SIGTERM,
        Signal::SIGUSR1,
        Signal::SIGUSR2,
        Signal::SIGALRM,
        Signal::SIGURG,
        Signal::SIGCONT,
        Signal::SIGWINCH,
    ] {
        let action =
            SigAction::new(SigHandler::Handler(note), SaFlags::SA_RESTART, SigSet::empty());
        // SAFETY: the handler makes async-signal-safe calls only.
        unsafe { sigaction(signal, &action) }.unwrap();
    }
    for signal in [libc::SIGRTMIN() + 1, libc::SIGRTMAX()] {
        // SAFETY: the same handler.
        unsafe { libc::signal(signal, note as *const () as libc::sighandler_t) };
    }
    let ready = format!("@pid={}\n", std::process::id());
    let log = LOG.load(std::sync::atomic::Ordering::Relaxed);
    // SAFETY: the buffer lives across the call.
    unsafe { libc::write(log, ready.as_ptr().cast(), ready.len()) };
    let mut line = String::new();
    // For a background process, reading from the terminal fails; that is not the end of the input.
    while std::io::stdin().read_line(&mut line).is_ok_and(|length| length > 0) {
        line.clear();
    }
    std::process::exit(0);
}

/// 2,000 short threads at about 1,000 a second beside two busy ones; says how many there were, and
/// how many of them did not see all CPUs.
#[test]
#[ignore = "a role"]
fn storm() {
    if !is_meant("storm") {
        return;
    }
    let end = std::sync::atomic::AtomicBool::new(false);
    let all = crate::support::all();
    let narrow = std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while !end.load(std::sync::atomic::Ordering::Relaxed) {
                    std::hint::spin_loop();
                }
            });
        }
        let mut narrow = 0;
        for _ in 0..2000 {
            let own = || crate::support::mask(nix::unistd::gettid().as_raw());
            narrow += u32::from(scope.spawn(own).join().unwrap() != all);
            std::thread::sleep(std::time::Duration::from_micros(500));
        }
        end.store(true, std::sync::atomic::Ordering::Relaxed);
        narrow
    });
    say("storm", format!("2000 threads, {narrow} narrow"));
    std::process::exit(3);
}

/// What an interactive shell does with a job: a process group of its own in the foreground of the
/// terminal; continued when it was stopped and the file $REPORT.fg appears.
#[test]
#[ignore = "a role"]
fn shell() {
    if !is_meant("shell") {
        return;
    }
    let path = std::env::var("REPORT").unwrap();
    let mut report = std::fs::OpenOptions::new().append(true).create(true).open(&path).unwrap();
    // SAFETY: SIG_IGN is no handler; as shells do, so that they may change the foreground.
    unsafe { nix::sys::signal::signal(Signal::SIGTTOU, SigHandler::SigIgn) }.unwrap();
    let command = std::env::var("JOB").unwrap();
    let words: Vec<&str> = command.split('\n').collect();
    let mut job = Command::new(words[0]);
    job.args(&words[1..]).env("EVENKEEL_TEST_ROLE", "counter").stderr(Stdio::inherit());
    let lead = || {
        // As shells do, in the job too: a job that reads before its shell has run is not stopped.
        // SAFETY: two async-signal-safe system calls, integers only.
        let result = unsafe { libc::tcsetpgrp(0, libc::getpid()) };
        nix::errno::Errno::result(result)?;
        // SAFETY: SIG_DFL is no handler.
        unsafe { nix::sys::signal::signal(Signal::SIGTTOU, SigHandler::SigDfl) }?;
        Ok(())
    };
    // SAFETY: async-signal-safe system calls only.
    unsafe { job.process_group(0).pre_exec(lead) };
    let job = Pid::from_raw(job.spawn().unwrap().id() as i32);
    tcsetpgrp(std::io::stdin(), job).unwrap();
    writeln!(report, "job {job}").unwrap();
    loop {
        match waitpid(job, Some(WaitPidFlag::WUNTRACED)).unwrap() {
            WaitStatus::Stopped(..) => {
                tcsetpgrp(std::io::stdin(), nix::unistd::getpgrp()).unwrap();
                writeln!(report, "stopped").unwrap();
                let fg = format!("{path}.fg");
                crate::support::wait_for("fg", || std::fs::remove_file(&fg).is_ok());
                tcsetpgrp(std::io::stdin(), job).unwrap();
                writeln!(report, "continued").unwrap();
                crate::support::kill(-job.as_raw(), libc::SIGCONT);
            }
            WaitStatus::Exited(_, code) => {
                writeln!(report, "exited {code}").unwrap();
                break;
            }
            WaitStatus::Signaled(_, signal, _) => {
                writeln!(report, "killed {}", signal as i32).unwrap();
                break;
            }
            _ => {}
        }
    }
    std::process::exit(0);
}
