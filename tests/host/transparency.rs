//! A program under evenkeel starts as without it, in every respect that it can query, and its end is
//! reported as without it.

use std::ffi::OsStr;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Command, Output};

use crate::support::*;

/// The same program with and without evenkeel, both prepared the same way.
pub fn both(host: &Host, program: &[&str], prepare: impl Fn(&mut Command)) -> (Output, Output) {
    let mut plain = host.command(program[0]);
    plain.args(&program[1..]);
    prepare(&mut plain);
    let mut ours = host.run(&["-q"], program);
    prepare(&mut ours);
    (output(&mut plain), output(&mut ours))
}

/// The same bytes, the same end.
pub fn assert_same(what: &str, plain: &Output, ours: &Output) {
    for (ours, plain) in text(&ours.stdout).lines().zip(text(&plain.stdout).lines()) {
        assert_eq!(ours, plain, "{what}: stdout");
    }
    assert_eq!(text(&ours.stdout), text(&plain.stdout), "{what}: stdout");
    assert_eq!(text(&ours.stderr), text(&plain.stderr), "{what}: stderr");
    assert_eq!(plain.stdout, ours.stdout, "{what}: stdout");
    assert_eq!(wait_status(ours.status), wait_status(plain.status), "{what}: end");
}

fn same(host: &Host, program: &[&str], prepare: impl Fn(&mut Command)) -> String {
    let (plain, ours) = both(host, program, prepare);
    assert_same(&program.join(" "), &plain, &ours);
    text(&ours.stdout)
}

#[test]
fn exit_codes_are_passed_on() {
    let host = Host::new();
    for code in 0..=255 {
        let script = format!("exit {code}");
        let flags: &[&str] =
            if code % 32 == 1 { &["-q"] } else { &["-q", "--accounting", "procfs"] };
        let output = output(&mut host.run(flags, &["sh", "-c", &script]));
        assert_eq!(output.status.code(), Some(code), "{output:?}");
        assert!(output.stdout.is_empty() && output.stderr.is_empty(), "{output:?}");
    }
}

#[test]
fn a_missing_command_ends_with_127() {
    let host = Host::new();
    let not_found = |name: &str| format!("{name}: command not found");
    for (name, why) in [
        ("evenkeel-no-such-command", not_found("evenkeel-no-such-command")),
        ("./no/such/command", not_found("./no/such/command")),
        ("", "the command is empty: give the name of a program".to_owned()),
    ] {
        let output = output(&mut host.run(&[], &[name]));
        assert_eq!(output.status.code(), Some(127), "{output:?}");
        let said = text(&output.stderr);
        assert_eq!(said, format!("evenkeel: {why}\n"));
        assert!(output.stdout.is_empty());
    }
}

#[test]
fn a_directory_of_path_that_may_not_be_searched_is_skipped() {
    if !needs_root("a_directory_of_path_that_may_not_be_searched_is_skipped") {
        return;
    }
    let host = Host::new();
    let closed = host.path("closed");
    std::fs::create_dir(&closed).unwrap();
    std::fs::set_permissions(&closed, PermissionsExt::from_mode(0o700)).unwrap();
    let path = format!("{}:{}", closed.display(), std::env::var("PATH").unwrap());
    let mut command = as_nobody(&host, &["run", "--", "evenkeel-no-such-command"]);
    let output = output(command.env("PATH", path));
    assert_eq!(output.status.code(), Some(127), "{output:?}");
    assert!(text(&output.stderr).contains(": command not found"), "{output:?}");
}

#[test]
fn a_command_that_cannot_be_executed_ends_with_126() {
    let host = Host::new();
    let plain = host.path("plain");
    std::fs::write(&plain, "#!/bin/sh\nexit 0\n").unwrap();
    let orphaned = host.path("orphaned");
    std::fs::write(&orphaned, "#!/no/such/interpreter\n").unwrap();
    std::fs::set_permissions(&orphaned, PermissionsExt::from_mode(0o755)).unwrap();
    let directory = host.path("run");
    for (path, why) in [
        (&plain, "Permission denied"),
        (&directory, "Permission denied"),
        (&plain.join("below"), "Not a directory"),
        // A shell says 126 or 127 here; that the file is there must be said.
        (&orphaned, "interpreter"),
    ] {
        let output = output(&mut host.run(&[], &[path.to_str().unwrap()]));
        let said = text(&output.stderr);
        assert_eq!(output.status.code(), Some(126), "{said}");
        let start = format!("evenkeel: {}: cannot be executed: ", path.display());
        assert!(said.starts_with(&start) && said.contains(why), "{said}");
    }
}

#[test]
fn a_script_without_an_interpreter_line_runs() {
    let host = Host::new();
    let script = host.path("script");
    std::fs::write(&script, "echo \"$1\"; exit 5\n").unwrap();
    std::fs::set_permissions(&script, PermissionsExt::from_mode(0o755)).unwrap();
    let output = output(&mut host.run(&["-q"], &[script.to_str().unwrap(), "word"]));
    assert_eq!((output.status.code(), text(&output.stdout).as_str()), (Some(5), "word\n"));
}

#[test]
fn a_program_killed_by_a_signal_is_reported_so() {
    let host = Host::new();
    // All signals that end a process by default, real-time signals included.
    let fatal = (1..=31).filter(|signal| !(17..=23).contains(signal) && *signal != 28);
    for signal in fatal.chain([34, 40, 64]) {
        let script = format!("kill -{signal} $$; sleep 600");
        let (plain, ours) = both(&host, &["sh", "-c", &script], |_| {});
        assert_eq!(plain.status.signal(), Some(signal), "{plain:?}");
        assert_eq!(ours.status.signal(), Some(signal), "{ours:?}");
        assert!(ours.stderr.is_empty(), "{ours:?}");
    }
    // The exit code that a shell reports.
    let script = format!("'{EVENKEEL}' run -q -- sh -c 'kill -TERM $$'; echo $?");
    let output = output(host.command("sh").args(["-c", &script]));
    assert_eq!(text(&output.stdout), "143\n");
}

#[test]
fn environment_and_directory_stay() {
    let host = Host::new();
    let odd = OsStr::from_bytes(b"\xff\xfe = \n");
    let printed = same(&host, &["env", "-0"], |command| {
        command.env("ODD", odd).env("EMPTY", "").env("OMP_NUM_THREADS", "3");
    });
    assert!(printed.contains("EMPTY="));
    let directory = host.path("home");
    let printed = same(&host, &["pwd", "-P"], |command| {
        command.current_dir(&directory);
    });
    assert!(printed.trim().ends_with("/home"), "{printed}");
}

#[test]
fn arguments_are_passed_on_unchanged() {
    let host = Host::new();
    let words: [&OsStr; 9] = [
        OsStr::new(""),
        OsStr::new(" "),
        OsStr::new("-v"),
        OsStr::new("--help"),
        OsStr::new("--"),
        OsStr::new("a\nb"),
        OsStr::new("*"),
        OsStr::from_bytes(b"\xff\x80"),
        OsStr::new("--abort-at"),
    ];
    for separator in [true, false] {
        let mut plain = host.command("printf");
        plain.arg("%s\\0").args(words);
        let mut ours = host.evenkeel(["run", "-q"]);
        if separator {
            ours.arg("--");
        }
        ours.args(["printf", "%s\\0"]).args(words);
        let (plain, ours) = (output(&mut plain), output(&mut ours));
        assert_same("arguments", &plain, &ours);
        assert_eq!(plain.stdout.iter().filter(|byte| **byte == 0).count(), words.len());
    }
    // Under the paper's name `chcb`, our flags come first, too.
    let name = host.path("chcb");
    std::os::unix::fs::symlink(EVENKEEL, &name).unwrap();
    let output = output(host.command(&name).args(["-q", "echo", "-n", "-v"]));
    assert_eq!(text(&output.stdout), "-v");
}

#[test]
fn limits_umask_and_priority_stay() {
    let host = Host::new();
    let script = "umask; ulimit -a; nice; cat /proc/self/oom_score_adj /proc/self/cgroup; \
                  cut -d' ' -f5,6,7,8 /proc/self/stat; \
                  grep -v -e ^Pid: -e ^Tgid: -e ^NSpid: -e ^NStgid -e ^FDSize -e ^PPid \
                  -e ^Vm -e ^Rss -e ^voluntary -e ^nonvol -e ^SigQ -e ^Hugetlb \
                  -e ^Ngid -e ^TracerPid -e ^Name /proc/self/status; readlink /proc/self/ns/[!m]*";
    same(&host, &["bash", "-c", script], |command| {
        let set = || {
            // SAFETY: system calls with integers and one struct of ours.
            unsafe {
                libc::umask(0o027);
                libc::nice(3);
                let limit = libc::rlimit { rlim_cur: 100, rlim_max: 200 };
                libc::setrlimit(libc::RLIMIT_NOFILE, &limit);
                let limit = libc::rlimit { rlim_cur: 0, rlim_max: 1 << 20 };
                libc::setrlimit(libc::RLIMIT_CORE, &limit);
                libc::setrlimit(libc::RLIMIT_MEMLOCK, &limit);
            }
            Ok(())
        };
        // SAFETY: system calls only.
        unsafe { command.pre_exec(set) };
    });
}

/// Which signals a process ignores or blocks from its start.
#[derive(Clone, Copy, Default)]
struct Signals<'a> {
    ignored: &'a [i32],
    blocked: &'a [i32],
}

fn prepare(command: &mut Command, signals: Signals<'_>) {
    let (ignored, blocked) = (signals.ignored.to_vec(), signals.blocked.to_vec());
    let set = move || {
        // SAFETY: dispositions without handlers, and a mask in a set of ours.
        unsafe {
            libc::signal(libc::SIGPIPE, libc::SIG_DFL);
            for signal in &ignored {
                libc::signal(*signal, libc::SIG_IGN);
            }
            let mut set: libc::sigset_t = std::mem::zeroed();
            libc::sigemptyset(&mut set);
            for signal in &blocked {
                libc::sigaddset(&mut set, *signal);
            }
            libc::sigprocmask(libc::SIG_SETMASK, &set, std::ptr::null_mut());
        }
        Ok(())
    };
    // SAFETY: `set` makes system calls only.
    unsafe { command.pre_exec(set) };
}

#[test]
fn signal_dispositions_and_mask_stay() {
    let host = Host::new();
    let mut seen = Vec::new();
    for signals in [
        Signals::default(),
        Signals { ignored: &[libc::SIGPIPE], ..Default::default() },
        // As nohup does; as a parent that ignores SIGCHLD; as a shell does for `&`.
        Signals { ignored: &[libc::SIGHUP], ..Default::default() },
        Signals { ignored: &[libc::SIGCHLD], ..Default::default() },
        Signals { ignored: &[libc::SIGINT, libc::SIGQUIT], ..Default::default() },
        Signals { ignored: &[libc::SIGUSR1, 40], blocked: &[libc::SIGTERM] },
        Signals {
            blocked: &[libc::SIGCHLD, libc::SIGCONT, libc::SIGUSR2, 41],
            ..Default::default()
        },
    ] {
        let program = ["grep", "-E", "^(SigPnd|ShdPnd|SigBlk|SigIgn|SigCgt)", "/proc/self/status"];
        seen.push(same(&host, &program, |command| prepare(command, signals)));
    }
    seen.dedup();
    assert_eq!(seen.len(), 7, "the test prepared nothing");
}

#[test]
fn inherited_descriptors_stay_open() {
    let host = Host::new();
    let file = std::fs::File::create(host.path("extra")).unwrap();
    let fd = file.as_raw_fd();
    let list = "for fd in /proc/self/fd/*; do echo ${fd##*/} $(readlink $fd); done | \
                sed -e 's/pipe:.*/pipe/' -e '/proc/d' -e '/^[0-9]* *$/d'";
    let printed = same(&host, &["bash", "-c", list], |command| {
        let keep = move || {
            // SAFETY: dup2 takes two integers; the descriptors of the test stay open.
            unsafe {
                for to in [7, 63] {
                    libc::dup2(fd, to);
                    // Where the descriptor has that number already, its close-on-exec flag would stay.
                    libc::fcntl(to, libc::F_SETFD, 0);
                }
            }
            Ok(())
        };
        // SAFETY: system calls only.
        unsafe { command.pre_exec(keep) };
    });
    for number in ["7", "63"] {
        assert!(
            printed.contains(&format!("{number} {}", host.path("extra").display())),
            "{printed}"
        );
    }
}

/// Environment, limits, descriptors with their flags, signals, capabilities and the rest of the status
/// that a program inherits, byte for byte: as root, as root with some capabilities, and as an ordinary
/// user with ambient ones.
#[test]
fn a_program_starts_byte_for_byte_as_without_evenkeel() {
    if !needs_root("a_program_starts_byte_for_byte_as_without_evenkeel") {
        return;
    }
    let host = Host::new();
    by_nobody(&host, &[]);
    // The shell blocks all signals for a moment while it starts a command: the command tells which ones
    // are blocked.
    let script = "for fd in 0 1 2 9; do echo $fd; grep flags /proc/$$/fdinfo/$fd; done; \
                  for fd in /proc/$$/fd/*; do echo ${fd##*/}; done; \
                  cat /proc/$$/environ /proc/$$/limits /proc/$$/oom_score_adj; \
                  grep -E '^(Sig[BIC]|ShdPnd)' /proc/self/status; \
                  grep -E '^(Uid|Gid|Groups|Cap|NoNewPrivs|Seccomp)' /proc/$$/status; \
                  grep -E '^(Umask|THP|Cpus|Mems)' /proc/$$/status; grep -c . /proc/$$/cmdline";
    let users: [&[&str]; 4] = [
        &[],
        &["setpriv", "--bounding-set=-sys_module,-sys_boot", "--inh-caps=+net_raw"],
        &[
            "setpriv",
            "--inh-caps=+sys_nice,+kill",
            "--ambient-caps=+sys_nice,+kill",
            "--reuid=65534",
            "--regid=65534",
            "--clear-groups",
        ],
        &["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "--no-new-privs"],
    ];
    let file = std::fs::File::create(host.path("extra")).unwrap();
    let fd = file.as_raw_fd();
    let mut seen = Vec::new();
    for user in users {
        let run = |evenkeel: &[&str]| {
            let words = [user, evenkeel, &["sh", "-c", script]].concat();
            let mut command = host.command(words[0]);
            command.args(&words[1..]).env("ODD", OsStr::from_bytes(b"\xff = \n"));
            let keep = move || {
                // SAFETY: integers, and descriptors that stay open in the test.
                unsafe {
                    libc::dup2(fd, 9);
                    libc::fcntl(9, libc::F_SETFD, 0);
                    libc::signal(libc::SIGUSR1, libc::SIG_IGN);
                    let limit = libc::rlimit { rlim_cur: 200, rlim_max: 300 };
                    libc::setrlimit(libc::RLIMIT_NOFILE, &limit);
                }
                Ok(())
            };
            // SAFETY: system calls only.
            unsafe { command.pre_exec(keep) };
            output(&mut command)
        };
        let plain = run(&[]);
        assert!(plain.status.success() && plain.stdout.len() > 1000, "{user:?}: {plain:?}");
        assert_same(&user.join(" "), &plain, &run(&[EVENKEEL, "run", "-q", "--"]));
        let status = text(&plain.stdout);
        seen.extend(status.lines().find(|line| line.starts_with("CapEff:")).map(str::to_owned));
    }
    seen.sort();
    seen.dedup();
    assert!(seen.len() >= 3, "the users have the same rights: {seen:?}");
}

#[test]
fn all_cpus_are_seen() {
    let host = Host::new();
    let script = "nproc; taskset -pc $$ | sed 's/.*: //'; getconf _NPROCESSORS_ONLN; \
                  grep ^Cpus_allowed /proc/self/status";
    for placement in ["soft", "hard"] {
        let plain = output(host.command("sh").args(["-c", script]));
        let flags = [&["-q", "--placement", placement], &EAGER[..]].concat();
        let ours = output(&mut host.run(&flags, &["sh", "-c", script]));
        assert_same(placement, &plain, &ours);
    }
}
