//! Standard input, output and error: byte for byte, closed, broken, and given up early.

use std::io::Read;
use std::os::fd::OwnedFd;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Command, Stdio};

use evenkeel_bench::programs::{Installed, Program, field};

use crate::support::*;
use crate::transparency::{assert_same, both};

/// Bytes of every value, in pseudo-random order.
fn noise(length: usize) -> Vec<u8> {
    let mut value = 0x9e37_79b9_7f4a_7c15u64;
    let mut next = || {
        value ^= value << 13;
        value ^= value >> 7;
        value ^= value << 17;
        value as u8
    };
    (0..length).map(|_| next()).collect()
}

#[test]
fn binary_data_passes_through() {
    let host = Host::new();
    let data = noise(8 << 20);
    let run = output_of(&mut host.run(&["-q"], &["cat"]), &data);
    assert!(run.status.success() && run.stderr.is_empty(), "{}", text(&run.stderr));
    assert!(run.stdout == data, "standard output differs");
    let run = output_of(&mut host.run(&["-q"], &["sh", "-c", "cat >&2"]), &data);
    assert!(run.status.success() && run.stdout.is_empty());
    assert!(run.stderr == data, "standard error differs");
    // The summary comes after the program's last byte.
    let run = output_of(&mut host.run(&[], &["sh", "-c", "cat >&2"]), b"no line feed");
    assert!(text(&run.stderr).starts_with("no line feedevenkeel: "), "{}", text(&run.stderr));
}

#[test]
fn a_shell_pipeline_works_in_each_part() {
    let host = Host::new();
    let script = "seq 1 100000 | sort -rn | head -3";
    let (plain, ours) = both(&host, &["sh", "-c", script], |_| {});
    assert_same(script, &plain, &ours);
    assert_eq!(text(&ours.stdout), "100000\n99999\n99998\n");
    // Each part of the pipeline runs under evenkeel.
    let run = format!("'{EVENKEEL}' run -q --");
    let script = format!("{run} seq 1 100000 | {run} sort -rn | {run} head -3");
    let output = output(host.command("sh").args(["-c", &script]));
    assert_eq!(text(&output.stdout), "100000\n99999\n99998\n");
    assert!(output.stderr.is_empty(), "{}", text(&output.stderr));
}

#[test]
fn an_openmp_program_prints_the_same() {
    let host = Host::new();
    let programs = Installed::new().unwrap();
    let path = programs.path(Program::StaticLoop);
    let command = [path.to_str().unwrap(), "--work", "400", "--phases", "4"];
    let (plain, ours) = both(&host, &command, |command| {
        command.env("OMP_NUM_THREADS", "2");
    });
    assert_eq!(wait_status(plain.status), wait_status(ours.status));
    assert!(ours.stderr.is_empty(), "{}", text(&ours.stderr));
    // The same but for the times that the program measures.
    let without_times = |bytes: &[u8]| {
        ["seconds", "computed"].iter().fold(text(bytes), |line, name| {
            let value = field(&line, name).unwrap().to_owned();
            line.replace(&format!("{name}={value}"), &format!("{name}=T"))
        })
    };
    assert_eq!(without_times(&ours.stdout), without_times(&plain.stdout));
}

/// Closes a descriptor before the program starts.
fn close(command: &mut Command, fd: i32) {
    let close = move || {
        // SAFETY: one system call with an integer.
        unsafe { libc::close(fd) };
        Ok(())
    };
    // SAFETY: a system call only.
    unsafe { command.pre_exec(close) };
}

#[test]
fn closed_streams_stay_closed() {
    let host = Host::new();
    let list =
        "for fd in 0 1 2; do if [ -e /proc/$$/fd/$fd ]; then x=$x$fd; fi; done; echo \"$x\" >seen";
    for closed in [vec![0], vec![1], vec![2], vec![0, 2], vec![0, 1, 2]] {
        let mut seen = Vec::new();
        for ours in [false, true] {
            let mut command =
                if ours { host.run(&["-q"], &["sh", "-c", list]) } else { host.command("sh") };
            if !ours {
                command.args(["-c", list]);
            }
            command.current_dir(host.path("home"));
            closed.iter().for_each(|fd| close(&mut command, *fd));
            let output = output(&mut command);
            assert!(output.status.success(), "{output:?}");
            seen.push(std::fs::read_to_string(host.path("home/seen")).unwrap());
        }
        assert_eq!(seen[0], seen[1], "closed: {closed:?}");
    }
    // A program that fails when a stream is closed.
    let (plain, ours) = both(&host, &["cat"], |command| close(command, 0));
    assert_same("cat <&-", &plain, &ours);
    assert_eq!(ours.status.code(), Some(1));
    let (plain, ours) = both(&host, &["echo", "word"], |command| close(command, 1));
    assert_same("echo >&-", &plain, &ours);
    assert_eq!(ours.status.code(), Some(1));
}

/// The writing end of a pipe that has no reader.
fn broken_pipe() -> OwnedFd {
    let (read, write) = std::io::pipe().unwrap();
    drop(read);
    write.into()
}

/// So `evenkeel-lab noise hog -- evenkeel run --json - -- CMD` can be parsed, or piped to `head`.
#[test]
fn noise_leaves_standard_output_to_its_command() {
    let host = Host::alone();
    let noise = |more: &[&str]| host.evenkeel_lab([&["noise", "hog"], more].concat());
    let with = output(&mut noise(&["--", "echo", "{}"]));
    assert_eq!((text(&with.stdout).as_str(), with.status.code()), ("{}\n", Some(0)), "{with:?}");
    assert!(text(&with.stderr).contains("hog noise took"), "{with:?}");
    let limit = ["--limit", "50ms"];
    let without = output(&mut noise(&limit));
    assert!(text(&without.stdout).contains("hog noise took"), "{without:?}");
    let mut closed = noise(&["--", "sh", "-c", "exit 5"]);
    closed.stdout(broken_pipe()).stderr(broken_pipe());
    assert_eq!(ended(&mut closed.spawn().unwrap()).code(), Some(5));
    let mut closed = noise(&limit);
    closed.stdout(broken_pipe()).stderr(Stdio::null());
    assert_eq!(ended(&mut closed.spawn().unwrap()).signal(), Some(libc::SIGPIPE));
}

#[test]
fn a_broken_pipe_kills_as_without_evenkeel() {
    let host = Host::new();
    for ignored in [false, true] {
        let run = |command: &mut Command| {
            let set = move || {
                let to = if ignored { libc::SIG_IGN } else { libc::SIG_DFL };
                // SAFETY: a disposition without a handler.
                unsafe { libc::signal(libc::SIGPIPE, to) };
                Ok(())
            };
            // SAFETY: a system call only.
            unsafe { command.pre_exec(set) };
            command.stdout(broken_pipe()).stderr(Stdio::piped());
            let mut child = command.spawn().unwrap();
            let mut said = String::new();
            child.stderr.take().unwrap().read_to_string(&mut said).unwrap();
            (wait_status(ended(&mut child)), said)
        };
        let plain = run(&mut host.command("yes"));
        let ours = run(&mut host.run(&["-q"], &["yes"]));
        assert_eq!(plain, ours);
        assert_eq!(plain.0, if ignored { 1 << 8 } else { libc::SIGPIPE });
    }
}

#[test]
fn messages_that_are_not_read_do_not_change_the_end() {
    let host = Host::new();
    // A summary, decisions and a warning that cannot be written do not change the exit code.
    let damaged = host.runtime().join("journal");
    for flags in [&[][..], &["--explain", "-vv", "--interval", "20ms"]] {
        let mut command = host.run(flags, &["sh", "-c", "sleep 0.3; exit 9"]);
        command.stderr(broken_pipe());
        assert_eq!(ended(&mut command.spawn().unwrap()).code(), Some(9), "{flags:?}");
    }
    assert!(damaged.exists());
    let mut command = host.run(&[], &["/no/such/command"]);
    assert_eq!(ended(&mut command.stderr(broken_pipe()).spawn().unwrap()).code(), Some(127));
    // A command whose output is meant for a pipe ends as other tools do.
    for command in ["status", "explain", "undo"] {
        let mut command = host.evenkeel([command]);
        let status =
            ended(&mut command.stdout(broken_pipe()).stderr(Stdio::null()).spawn().unwrap());
        assert_eq!(status.signal(), Some(libc::SIGPIPE), "{status}");
    }
}

#[test]
fn an_output_that_the_program_closes_early_is_closed() {
    let host = Host::new();
    // The reader sees the end of the stream then, and not when the program ends.
    let mut command = host.run(&["-q"], &["sh", "-c", "echo word; exec >&-; read line"]);
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut said = String::new();
    child.stdout.take().unwrap().read_to_string(&mut said).unwrap();
    assert_eq!(said, "word\n");
    assert!(child.try_wait().unwrap().is_none(), "it has ended, so this shows nothing");
    drop(child.stdin.take());
    ended(&mut child);
}

#[test]
fn an_input_that_the_program_closes_early_is_closed() {
    let host = Host::new();
    // The writer gets SIGPIPE then.
    let script = format!("yes | '{EVENKEEL}' run -q -- sh -c 'exec <&-; exec sleep 600'");
    let mut writer = host.command("sh");
    let mut shell = writer.args(["-c", &script]).process_group(0).spawn().unwrap();
    let children = format!("/proc/{0}/task/{0}/children", shell.id());
    let is_gone = || {
        // The shell has two children: `yes`, which is to end, and evenkeel.
        let list = std::fs::read_to_string(&children).unwrap();
        let names: Vec<String> = list
            .split_whitespace()
            .filter(|pid| state(pid.parse().unwrap()) != 'Z')
            .map(|pid| std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default())
            .collect();
        names == ["evenkeel\n"]
    };
    wait_for("the end of the writer", is_gone);
    kill(-(shell.id() as i32), libc::SIGTERM);
    ended(&mut shell);
}
