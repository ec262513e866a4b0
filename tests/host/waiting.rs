//! How programs wait is shown: by `status`, by `--explain`, and where it cannot be seen, that and why.

use std::io::{Read, Write};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};

use evenkeel_cbinfo::support as cbinfo_support;
use evenkeel_noise::{Noise, NoiseConfig, NoiseKind};
use evenkeel_skip::skip;

use crate::compiled::Compiled;
use crate::report::json;
use crate::signs::bpf_of;
use crate::support::*;

/// `x` and `y` differ by name: then the CPUs are unequal whatever else runs.
fn unequal(x: u32, y: u32) -> String {
    format!("{x}=1.0,{y}=0.5")
}

/// Starts it, and says the word that the program waits for.
fn start(command: &mut Command) -> Child {
    let command = command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    child.stdin.as_mut().unwrap().write_all(b"\n").unwrap();
    child
}

/// An OpenMP program with threads that wait actively, for a minute of run time at most.
fn phases(host: &Host) -> String {
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/../product/cbinfo/tests/programs/phases.c");
    Compiled::compile(host, source, "phases", &["-fopenmp"]).path
}

/// A run of such a program on CPUs that are unequal by name; without two CPUs or exact accounting `test`
/// is skipped.
fn spinning_run(test: &str) -> Option<(Host, Command)> {
    let (x, y) = two_cpus(test)?;
    if let Err(why) = cbinfo_support() {
        skip(test, why);
        return None;
    }
    let host = Host::new();
    let program = phases(&host);
    let flags = ["--explain", "--speed", &unequal(x, y)];
    let mut command = host.run(&flags, &[&program, "0", "1000", "60000"]);
    command.env("OMP_WAIT_POLICY", "active");
    Some((host, command))
}

/// Ends evenkeel and its program, and returns what it said.
fn end(mut child: Child, host: &Host) -> String {
    kill(child.id() as i32, libc::SIGTERM);
    ended(&mut child);
    // What the program left.
    host.end_all();
    let mut said = String::new();
    child.stderr.take().unwrap().read_to_string(&mut said).unwrap();
    said
}

#[test]
fn threads_that_spin_at_barriers_are_shown() {
    let test = "threads_that_spin_at_barriers_are_shown";
    let Some((host, mut command)) = spinning_run(test) else { return };
    let child = start(&mut command);
    wait_for("what was seen", || {
        let Some(run) = host.status().pop() else { return false };
        let seen = &run["waits"]["spinning"]["seen"];
        let threads = run["threads"].as_array().unwrap();
        seen["spun"].as_u64() > Some(0)
            && run["waits"]["barriers"]["count"].as_u64() > Some(0)
            && threads.iter().any(|thread| thread["spun"]["at"].as_f64() > Some(0.05))
    });
    let status = text(&output(&mut host.evenkeel(["status"])).stdout);
    assert!(status.contains("spins for ") && status.contains(" % ("), "{status}");
    let said = end(child, &host);
    assert!(said.contains("spins for ") && said.contains(" barriers a second"), "{said}");
}

#[test]
fn a_program_without_a_known_runtime_is_unverified() {
    let test = "a_program_without_a_known_runtime_is_unverified";
    let Some((x, y)) = two_cpus(test) else { return };
    if let Err(why) = cbinfo_support() {
        return skip(test, why);
    }
    let host = Host::new();
    let flags = ["--explain", "--speed", &unequal(x, y)];
    let script = "(while :; do :; done) & while :; do :; done";
    let child = start(&mut host.run(&flags, &["sh", "-c", script]));
    let unverified = "spinning unverified: no runtime by which its threads wait is known";
    wait_for("the reason", || {
        text(&output(&mut host.evenkeel(["status"])).stdout).contains(unverified)
    });
    let said = end(child, &host);
    assert!(said.contains(unverified), "{said}");
}

/// For this process and its children, from now on: perf_event_open fails as in a container.
fn forbid_perf_events() -> std::io::Result<()> {
    use libc::{BPF_ABS, BPF_JEQ, BPF_JMP, BPF_K, BPF_LD, BPF_RET, BPF_W};
    let step = |code: u32, k: u32, jf: u8| libc::sock_filter { code: code as u16, jt: 0, jf, k };
    let mut filter = [
        step(BPF_LD | BPF_W | BPF_ABS, 0, 0),
        step(BPF_JMP | BPF_JEQ | BPF_K, libc::SYS_perf_event_open as u32, 1),
        step(BPF_RET | BPF_K, libc::SECCOMP_RET_ERRNO | libc::EACCES as u32, 0),
        step(BPF_RET | BPF_K, libc::SECCOMP_RET_ALLOW, 0),
    ];
    let program = libc::sock_fprog { len: filter.len() as u16, filter: filter.as_mut_ptr() };
    // SAFETY: the filter lives until the calls return; the kernel copies it.
    let is_set = unsafe {
        libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0
            && libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program) == 0
    };
    if is_set { Ok(()) } else { Err(std::io::Error::last_os_error()) }
}

/// The accounting stays exact; spinning alone is not seen.
#[test]
fn where_perf_events_are_forbidden_a_run_goes_on_and_says_so() {
    let test = "where_perf_events_are_forbidden_a_run_goes_on_and_says_so";
    let Some((host, mut command)) = spinning_run(test) else { return };
    // SAFETY: system calls; no memory is allocated.
    unsafe { command.pre_exec(forbid_perf_events) };
    let child = start(&mut command);
    let unverified = "spinning unverified: cbinfo: no perf event can be opened";
    wait_for("the reason", || {
        text(&output(&mut host.evenkeel(["status"])).stdout).contains(unverified)
    });
    let said = end(child, &host);
    assert!(said.contains(unverified), "{said}");
}

#[test]
fn spinning_in_own_code_is_found_or_exchanges_stay_few() {
    let test = "spinning_in_own_code_is_found_or_exchanges_stay_few";
    let Some((x, y)) = two_cpus(test) else { return };
    if let Err(why) = cbinfo_support() {
        return skip(test, why);
    }
    let host = Host::alone();
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/host/own_barrier.c");
    let program = Compiled::compile(&host, source, "own_barrier", &["-pthread", "-s"]).path;
    let limit = std::time::Duration::from_secs(90);
    let config = NoiseConfig { busy_us: 40, period_us: 100, limit };
    let noise = match Noise::start(NoiseKind::Softirq, x, config) {
        Ok(noise) => noise,
        Err(why) if why.is_privilege() => return skip(test, why),
        Err(why) => panic!("{why}"),
    };
    let cpus = format!("{x},{y}");
    let child = start(&mut host.run(&["--explain", "--cpus", &cpus], &[&program]));
    let untold = "it cannot be told yet whether tasks work or spin";
    // Once the threads were seen on both CPUs. Where others want the CPUs, too, threads wait on each of
    // them, which looks alike; then exchanges stay few.
    wait_for("what was seen", || {
        let Some(run) = host.status().pop() else { return false };
        let is_seen = run["waits"]["spinning"]["seen"]["spun"].as_u64() > Some(0);
        let decisions = run["decisions"].as_array().unwrap();
        let mut reasons = decisions.iter().flat_map(|one| one["reasons"].as_array().unwrap());
        is_seen || reasons.any(|reason| reason.as_str().unwrap().starts_with(untold))
    });
    end(child, &host);
    noise.stop().unwrap();
}

/// Barriers every millisecond: nothing that is moved gains anything, and the accounting costs.
#[test]
fn nothing_stays_loaded_where_nothing_is_gained() {
    let test = "nothing_stays_loaded_where_nothing_is_gained";
    let Some((x, y)) = two_cpus(test) else { return };
    if let Err(why) = cbinfo_support() {
        return skip(test, why);
    }
    let host = Host::alone();
    let program = phases(&host);
    let path = host.path("json");
    let (cpus, json_path) = (format!("{x},{y}"), path.to_str().unwrap());
    let flags = ["--cpus", &cpus, "--speed", &unequal(x, y), "--json", json_path];
    let mut command = host.run(&flags, &[&program, "0", "1000", "60000"]);
    let child = start(command.env("OMP_WAIT_POLICY", "active"));
    wait_for("a rest", || host.status().pop().is_some_and(|run| run["resting"] == true));
    let status = text(&output(&mut host.evenkeel(["status"])).stdout);
    assert!(status.contains("nothing is loaded for a while"), "{status}");
    assert_eq!(bpf_of(child.id() as i32), 0);
    let said = end(child, &host);
    assert!(said.contains("; nothing was loaded for "), "{said}");
    let summary = json(&path);
    assert!(summary["rested_ns"].as_u64().unwrap() > 0, "{summary}");
}

#[test]
fn spinning_is_not_seen_in_proc() {
    let Some((x, y)) = two_cpus("spinning_is_not_seen_in_proc") else {
        return;
    };
    let host = Host::new();
    let speed = unequal(x, y);
    let flags = ["--accounting", "procfs", "--runtimes", "libmine.so", "--speed", &speed];
    let child = start(&mut host.run(&flags, &["sh", "-c", "while :; do :; done"]));
    wait_for("the program", || host.status().len() == 1);
    let status = text(&output(&mut host.evenkeel(["status"])).stdout);
    assert!(status.contains("spinning not seen: without cbinfo it looks like work"), "{status}");
    assert_eq!(host.status()[0]["waits"]["spinning"], "not-looked-for");
    let said = end(child, &host);
    assert_eq!(said.matches("--runtimes has no effect").count(), 1, "{said}");
}
