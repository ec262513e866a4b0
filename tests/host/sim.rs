//! The simulator from the command line.

use std::process::Command;

use crate::schema::check;
use crate::support::*;
use crate::sweeps::{Crash, crashing_keel};

fn sim(host: &Host, words: &[&str]) -> Command {
    host.evenkeel_lab([&["sim"], words].concat())
}

#[test]
fn a_simulation_is_reported_in_figures_traces_and_pictures() {
    let host = Host::new();
    let (json, trace, svg) = (host.path("json"), host.path("trace"), host.path("svg"));
    let files = [&json, &trace, &svg].map(|path| path.to_str().unwrap());
    let words = ["run", "barrier:tasks=6,work=2ms,rounds=5", "--machine", "amc1"];
    let outputs = ["--json", files[0], "--perfetto", files[1], "--svg", files[2]];
    let done = output(&mut sim(&host, &[&words[..], &outputs[..]].concat()));
    assert_eq!(done.status.code(), Some(0), "{}", text(&done.stderr));
    let report: serde_json::Value =
        serde_json::from_str(&std::fs::read_to_string(&json).unwrap()).unwrap();
    check("sim-run", &report);
    assert_eq!(report["finished"], 6);
    assert_eq!(report["machine"], "amc1");
    let said = text(&done.stdout);
    assert!(said.contains(report["hash"].as_str().unwrap()), "{said}");
    assert!(std::fs::read_to_string(&svg).unwrap().contains("thread0"));
    assert!(!std::fs::read(&trace).unwrap().is_empty());
    // Another process computes the same.
    let again = output(&mut sim(&host, &words));
    assert_eq!(text(&again.stdout), said);
}

#[test]
fn figures_go_alone_to_standard_output() {
    let host = Host::new();
    let done = output(&mut sim(&host, &["run", "hogs:tasks=2,work=1ms", "--json", "-"]));
    assert!(done.status.success(), "{done:?}");
    let report: serde_json::Value = serde_json::from_slice(&done.stdout).unwrap();
    let said = text(&done.stderr);
    assert!(said.contains(report["hash"].as_str().unwrap()), "{said}");
}

#[test]
fn what_has_a_name_is_listed() {
    let host = Host::new();
    let done = output(&mut sim(&host, &["list"]));
    assert_eq!(done.status.code(), Some(0));
    let said = text(&done.stdout);
    assert!(said.contains("  barrier:tasks=8,work=10ms,rounds=20,spread=0\n"), "{said}");
    assert!(said.contains("  small: 2 CPUs, 1 node; capability 1024\n"), "{said}");
    assert!(said.contains("an archive of evenkeel-lab report; host is this one):\n"), "{said}");
    // Each of them can be simulated: with its defaults, until some events have happened.
    let is_listed = |line: &&str| line.starts_with("  ") && !line.starts_with("   ");
    let (workloads, machines) = said.split_once("\nMachines").unwrap();
    let shapes: Vec<&str> = workloads.lines().filter(is_listed).map(str::trim).collect();
    assert!(shapes.len() >= 10, "{shapes:?}");
    for shape in shapes {
        // A machine that has the nodes for paper002.
        let words = ["run", shape, "--machine", "amc1", "--max-events", "1000"];
        let done = output(&mut sim(&host, &words));
        let why = text(&done.stderr);
        let goes_on = why.contains("1000 events have happened, and it is not over");
        assert!(done.status.success() || goes_on, "{shape}: {why}");
    }
    let machines: Vec<&str> = machines.lines().filter(is_listed).map(str::trim).collect();
    assert!(machines.len() >= 2, "{machines:?}");
    for machine in machines {
        let (machine, _) = machine.split_once(':').unwrap();
        let words = ["run", "hogs:tasks=2,work=1ms", "--machine", machine];
        let done = output(&mut sim(&host, &words));
        assert!(done.status.success(), "{machine}: {}", text(&done.stderr));
    }
}

#[test]
fn invalid_arguments_of_sim_are_refused_by_name() {
    let host = Host::new();
    for (words, expected) in [
        (&["run", "hogs", "--machine", "amc9"][..], "evenkeel-lab: no machine preset \"amc9\""),
        (&["run", "hogs", "--machine", "amc9"], "and there is no file of that name\n"),
        (&["run", "hogs:tasks=0"], "tasks=0: expected 1 to 100000"),
        (&["run", "/nonexistent.json"], "cannot read workload /nonexistent.json"),
        // The error names the cause once.
        (
            &["run", "hgos"],
            "hgos: No such file or directory (os error 2); shapes are hogs, barrier",
        ),
        (&["run", "hogs", "--cost", "tea_ns=1"], "there is no such cost"),
        (&["run", "hogs", "--cost", "tick_ns=1"], "costs.tick_ns: is 1, must be"),
        (&["run", "hogs", "--thief", "9:1ms/2ms"], "CPU 9 is not online"),
        (&["run", "hogs", "--slice-us", "1000,2000"], "2 combinations of policies"),
        (
            &["compare", "/nonexistent", "/nonexistent"],
            "rows /nonexistent: No such file or directory (os error 2)\n",
        ),
    ] {
        let done = output(&mut sim(&host, words));
        let said = text(&done.stderr);
        assert_eq!(done.status.code(), Some(2), "{words:?}: {said}");
        assert!(said.contains(expected), "{words:?}: {said}");
    }
}

#[test]
fn a_workload_that_cannot_end_is_no_success() {
    let host = Host::new();
    let done = output(&mut sim(&host, &["run", "hogs", "--max-events", "10"]));
    assert_eq!(done.status.code(), Some(1));
    let said = text(&done.stderr);
    assert!(said.contains("10 events have happened, and it is not over"), "{said}");
    assert!(said.contains("with --seed 1, does it again"), "{said}");
}

#[test]
fn sweeps_are_compared() {
    let host = Host::new();
    let rows = |name: &str, slice: &str| {
        let out = host.path(name).to_str().unwrap().to_owned();
        let load = "arrivals:tasks=12,work=10ms";
        let words = ["sweep", load, "--machine", "small,hybrid", "--seeds", "3", "--out", &out];
        let done = output(&mut sim(&host, &[&words[..], &["--slice-us", slice]].concat()));
        assert_eq!(done.status.code(), Some(0), "{}", text(&done.stderr));
        assert!(text(&done.stdout).starts_with("6 runs; 6 rows"), "{}", text(&done.stdout));
        out
    };
    let (short, long) = (rows("short", "500"), rows("long", "100000"));
    for row in std::fs::read_to_string(&short).unwrap().lines() {
        check("sim-sweep", &serde_json::from_str(row).unwrap());
    }
    let done = output(&mut sim(&host, &["compare", &short, &long]));
    assert_eq!(done.status.code(), Some(0), "{}", text(&done.stderr));
    assert!(text(&done.stdout).contains("better"), "{}", text(&done.stdout));
}

/// Each simulation of a sweep runs in a process of its own: a keel that crashes loses one run, which is
/// named, and which the next sweep tries again.
#[test]
fn a_keel_that_crashes_loses_one_run_of_a_sweep() {
    let host = Host::new();
    let (keel, _) = crashing_keel(&host, Crash::Once);
    let out = host.path("rows");
    let files = ["--keel", keel.to_str().unwrap(), "--out", out.to_str().unwrap()];
    let words = ["sweep", "hogs:tasks=3,work=5ms", "--seeds", "9", "--jobs", "2"];
    let sweep = || output(&mut sim(&host, &[&words[..], &files].concat()));
    let done = sweep();
    let said = text(&done.stdout);
    assert_eq!(done.status.code(), Some(1), "{said}{}", text(&done.stderr));
    assert!(said.starts_with("8 runs; 8 rows"), "{said}");
    assert!(
        said.contains("hogs:tasks=3,work=5ms on small under fair/always/count, seed "),
        "{said}"
    );
    assert!(said.contains("its process ended: signal: "), "{said}");
    assert!(said.contains("1 lost; the same command tries again"), "{said}");
    let done = sweep();
    assert_eq!(done.status.code(), Some(0), "{}", text(&done.stderr));
    assert!(text(&done.stdout).starts_with("1 runs; 9 rows"), "{}", text(&done.stdout));
}

#[test]
fn a_tape_is_replayed() {
    let host = Host::new();
    let tape = host.path("tape");
    let path = tape.to_str().unwrap();
    let words = ["run", "pool", "--machine", "small", "--order", "ias", "--tape", path];
    assert_eq!(output(&mut sim(&host, &words)).status.code(), Some(0));
    let done = output(&mut host.evenkeel_lab(["replay", path]));
    let said = text(&done.stdout);
    assert_eq!(done.status.code(), Some(0), "{said}");
    assert!(
        said.contains("under ias/always/count: ") && said.contains("results the same"),
        "{said}"
    );
    // A tape that ends in the middle of a callback is replayed up to there; a damaged one is refused.
    let bytes = std::fs::read(&tape).unwrap();
    std::fs::write(&tape, &bytes[..bytes.len() - 5]).unwrap();
    let done = output(&mut host.evenkeel_lab(["replay", path]));
    assert_eq!(done.status.code(), Some(2));
    assert!(text(&done.stderr).contains("ends within an entry"), "{}", text(&done.stderr));
}

#[test]
fn the_product_names_the_new_command_for_tapes() {
    let done = output(&mut Host::new().evenkeel(["sched", "--tape", "kernel.tape"]));
    assert_eq!(done.status.code(), Some(2));
    let said = text(&done.stderr);
    assert!(said.contains("evenkeel-lab record kernel.tape"), "{said}");
}

#[test]
fn the_product_names_the_laboratory_for_its_commands() {
    let host = Host::new();
    for (words, expected) in [
        (&["sim", "run", "hogs", "--seed", "2"][..], "this is evenkeel-lab sim run hogs --seed 2"),
        (&["sim", "replay", "keel.tape"], "this is evenkeel-lab replay keel.tape"),
        (&["bench", "noise", "softirq"], "this is evenkeel-lab noise softirq"),
        (&["bench", "--help"], "this is evenkeel-lab bench --help"),
        (&["repro", "002"], "this is evenkeel-lab repro 002"),
    ] {
        let done = output(&mut host.evenkeel(words));
        let said = text(&done.stderr);
        assert_eq!(done.status.code(), Some(2), "{words:?}: {said}");
        assert!(said.contains(expected), "{words:?}: {said}");
    }
}
