//! CPUs that go offline and come online in mid-run, in a sysfs file of the test's own: evenkeel sees the
//! change, the kernel's scheduler does not.

use std::ffi::{CStr, CString};
use std::fs::File;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::os::unix::process::CommandExt;
use std::process::Command;

use evenkeel_machine::CpuSet;

use crate::roles::role;
use crate::support::*;
use crate::worker::Worker;

/// What /sys/devices/system/cpu/online says to commands of the test.
struct Online {
    file: File,
    path: CString,
}

impl Online {
    fn new(host: &Host, cpus: &CpuSet) -> Self {
        let path = host.path("online");
        let file = File::create(&path).unwrap();
        let online = Self { file, path: CString::new(path.as_os_str().as_bytes()).unwrap() };
        online.set(cpus);
        online
    }

    /// Writes the list in one piece of fixed length, so that a reader never sees a part of it.
    fn set(&self, cpus: &CpuSet) {
        let list = format!("{:<20}\n", cpus.to_string());
        self.file.write_all_at(list.as_bytes(), 0).unwrap();
    }

    fn show_to(&self, command: &mut Command) {
        cover(command, &self.path, c"/sys/devices/system/cpu/online");
    }
}

/// Mounts a file over the system's for a command of [`Host`], which has a mount namespace of its own.
pub fn cover(command: &mut Command, ours: &CStr, theirs: &CStr) {
    let (ours, theirs) = (ours.to_owned(), theirs.to_owned());
    let cover = move || {
        let (none, bind) = (std::ptr::null::<libc::c_char>(), libc::MS_BIND);
        // SAFETY: a system call with strings that live across it.
        let result =
            unsafe { libc::mount(ours.as_ptr(), theirs.as_ptr(), none, bind, none.cast()) };
        if result == 0 { Ok(()) } else { Err(std::io::Error::last_os_error()) }
    };
    // SAFETY: a system call only.
    unsafe { command.pre_exec(cover) };
}

/// Waits until the only run has reported `what` later than `after_ns`, and returns when it did.
fn wait_told(host: &Host, what: &str, after_ns: u64) -> u64 {
    let mut told_ns = None;
    wait_for(what, || {
        let runs = host.status();
        let decisions = runs.iter().flat_map(|run| run["decisions"].as_array().unwrap());
        told_ns = decisions
            .filter(|decision| decision["news"].as_array().unwrap().iter().any(|line| line == what))
            .map(|decision| decision["at_ns"].as_u64().unwrap())
            .find(|at_ns| *at_ns > after_ns);
        told_ns.is_some()
    });
    told_ns.unwrap()
}

#[test]
fn a_cpu_that_goes_is_left_and_used_again_when_it_is_back() {
    let test = "a_cpu_that_goes_is_left_and_used_again_when_it_is_back";
    let Some((x, y)) = two_cpus(test).filter(|_| needs_root(test)) else { return };
    let (one, both) = (just(x), [x, y].into_iter().collect::<CpuSet>());
    let (gone, back) = (
        format!("CPU {y} is gone: offline, or taken out of the cpuset"),
        format!("CPU {y} is there now"),
    );
    for placement in ["hard", "soft"] {
        let host = Host::new();
        let online = Online::new(&host, &one);
        let json = host.path("json");
        // The interval is short enough for many moves, and long enough that what was reported is
        // still kept.
        let flags =
            ["--policy", "paper", "--interval", "100ms", "--placement", placement, "--json"];
        let flags = [&flags[..], &[json.to_str().unwrap()]].concat();
        let mut command = host.run(&flags, &role("worker"));
        online.show_to(&mut command);
        let worker = Worker::start_by(command.stderr(std::process::Stdio::piped()), 2);
        host.wait_intervals(20);
        assert_eq!(host.pins(), [], "{placement}: moved, though there is one CPU only");

        // The CPU is offline when evenkeel reads the machine, and comes back later.
        let mut last_ns = 0;
        for _ in 0..2 {
            online.set(&both);
            last_ns = wait_told(&host, &back, last_ns);
            let before = host.pins().len();
            wait_for("moves to both", || {
                let pins = host.pins().split_off(before);
                [x, y].iter().all(|cpu| pins.iter().filter(|pin| pin.1 == *cpu).count() > 2)
            });
            online.set(&one);
            last_ns = wait_told(&host, &gone, last_ns);
            let before = host.pins().len();
            for tid in &worker.threads {
                assert_ne!(mask(*tid), just(y), "{placement}: left on the CPU that is gone");
            }
            host.wait_intervals(20);
            assert_eq!(host.pins().len(), before, "{placement}: moved, though one CPU is left");
        }
        let mut worker = worker;
        worker.let_end();
        let mut said = String::new();
        let mut stderr = worker.evenkeel.stderr.take().unwrap();
        std::io::Read::read_to_string(&mut stderr, &mut said).unwrap();
        assert!(worker.end().success());
        assert!(said.contains("; CPUs came or went 4 times"), "{placement}: {said}");
        let summary: serde_json::Value =
            serde_json::from_slice(&std::fs::read(&json).unwrap()).unwrap();
        assert_eq!((&summary["cpu_changes"], &summary["yielded"]), (&4.into(), &0.into()));
    }
}

#[test]
fn a_run_killed_while_a_cpu_is_offline_is_undone() {
    let test = "a_run_killed_while_a_cpu_is_offline_is_undone";
    let Some((x, y)) = two_cpus(test).filter(|_| needs_root(test)) else { return };
    for placement in ["hard", "soft"] {
        let host = Host::new();
        let online = Online::new(&host, &[x, y].into_iter().collect());
        let flags = [&["-q", "--placement", placement], &EAGER[..]].concat();
        let mut command = host.run(&flags, &role("worker"));
        online.show_to(&mut command);
        let mut worker = Worker::start_by(&mut command, 2);
        worker.wait_moved(&host, 2);
        online.set(&just(x));
        worker.kill_evenkeel();
        wait_for("the supervisor's work", || host.journals().is_empty());
        assert!(worker.is_as(&all()), "{placement}");
        host.status();
    }
}
