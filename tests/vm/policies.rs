//! The papers' policies on a real kernel: knobs can be turned, and no invariant breaks under loads that
//! make schedulers fail. (That all combinations load: accepted.rs.)

use std::collections::BTreeMap;
use std::io::Write;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::Test;
use crate::hotplug::switch;
use crate::invariants::{crowd, fork_and_exec, hogs};
use crate::roles::role;
use crate::scheduler::{Keel, Scheduler, hasten, loads, state};
use crate::schema::check;
use crate::storms::*;
use crate::support::{EVENKEEL, NOBODY, kill, output, text, wait_for};
use crate::watched::ROUGH;

/// All papers' policies at once, with the gate at the level that refuses most.
pub const FLAGS: &[&str] = &[
    "--order=ias",
    "--gate=zone",
    "--zone=hot",
    "--balance=capability",
    "--parts=home,cost",
    "--capacity=0=1024,1=512",
];
pub const PAPERS: Scheduler = Scheduler::With(FLAGS);

/// On the kernel of all tests.
pub const TESTS: &[Test] = &[
    Test { name: "policies::knobs_turn_while_it_runs", run: knobs_turn_while_it_runs },
    Test { name: "policies::a_knob_turns_while_cpus_come_and_go", run: a_knob_turns_meanwhile },
    Test {
        name: "policies::a_keel_that_is_loaded_again_and_again_ends",
        run: a_keel_that_is_loaded_again_and_again_ends,
    },
    Test { name: "policies::the_gate_refuses_and_opens", run: the_gate_refuses_and_opens },
    Test { name: "policies::a_level_that_is_set_holds", run: a_level_that_is_set_holds },
    Test { name: "policies::compaction_leaves_cpus_alone", run: compaction_leaves_cpus_alone },
    Test { name: "policies::siblings_are_preferred", run: || siblings_are_preferred("rounds") },
    Test {
        name: "policies::siblings_are_preferred_paper",
        run: || siblings_are_preferred("paper"),
    },
    Test { name: "policies::a_configuration_names_programs", run: a_configuration_names_programs },
    Test { name: "policies::settings_outlive_a_restart", run: settings_outlive_a_restart },
    Test {
        name: "policies::the_helper_tries_a_bonus_and_reports_it",
        run: the_helper_tries_a_bonus_and_reports_it,
    },
    Test { name: "policies::impossible_aggregation_is_refused", run: impossible_aggregation },
];

/// All papers' answers at once.
pub const STORMS: &[Test] = &[
    Test { name: "policies::hogs", run: || hogs(PAPERS, ROUGH) },
    Test { name: "policies::a_crowd", run: || crowd(PAPERS, 200) },
    Test { name: "policies::fork_and_exec", run: || fork_and_exec(PAPERS) },
];

fn evenkeel(arguments: &[&str]) -> Output {
    output(hasten(Command::new(EVENKEEL).args(arguments)).stdin(Stdio::null()))
}

/// The output of a command that must succeed.
pub fn said(arguments: &[&str]) -> String {
    let output = evenkeel(arguments);
    assert_eq!(output.status.code(), Some(0), "{arguments:?}: {}", text(&output.stderr));
    text(&output.stdout).trim().to_owned()
}

/// The error of a command that must be refused.
pub fn refused(arguments: &[&str]) -> String {
    error_with(2, arguments)
}

/// The error of a command for a keel, where none runs.
pub fn without_keel(arguments: &[&str]) -> String {
    error_with(3, arguments)
}

fn error_with(code: i32, arguments: &[&str]) -> String {
    let output = evenkeel(arguments);
    assert_eq!(output.status.code(), Some(code), "{arguments:?}: {}", text(&output.stdout));
    text(&output.stderr)
}

fn knobs_turn_while_it_runs() {
    assert!(without_keel(&["zone", "get"]).contains("the keel does not run"));
    let keel = Keel::start(&["--gate", "zone", "--zone", "warm-mid"]);
    assert_eq!(said(&["zone", "get", "balance_level"]), "2");
    said(&["zone", "set", "balance_level", "warm-high"]);
    said(&["zone", "set", "balance_cpus_avg_enable", "1"]);
    let knobs = || -> BTreeMap<String, serde_json::Value> {
        let shown = serde_json::from_str(&said(&["zone", "get", "--json"])).unwrap();
        check("zone-get", &shown);
        serde_json::from_value(shown["knobs"].clone()).unwrap()
    };
    let before = knobs();
    assert_eq!((&before["balance_level"], &before["bal_cpus_avg_enable"]), (&3.into(), &1.into()));
    for (knob, value, expected) in [
        ("balance_level", "5", "from 0 to 4"),
        ("balance_idle_cal", "yes", "from 0 to 1"),
        ("balance_weight_prize_time", "-5", "from 0 to"),
        ("balance", "1", "no such knob"),
    ] {
        assert!(refused(&["zone", "set", knob, value]).contains(expected));
        assert_eq!(knobs(), before, "{knob} changed something");
    }
    // The values outlive a restart for other CPUs.
    let loads_before = loads();
    switch(1, false);
    wait_for("the keel to be loaded anew", || loads() > loads_before && state() == "enabled");
    switch(1, true);
    wait_for("the keel once more", || loads() > loads_before + 1 && state() == "enabled");
    assert_eq!(knobs(), before);
    assert_eq!(keel.end().0, Some(0));
    let keel = Keel::start(&[]);
    assert!(refused(&["zone", "set", "balance_level", "1"]).contains("runs with --gate always"));
    assert_eq!(keel.end().0, Some(0));
}

/// A value that is accepted while the keel is loaded anew for other CPUs holds from then on. An answer
/// waits for one load: where it waited for several loads the client would give up.
fn a_knob_turns_meanwhile() {
    let keel = Keel::start(&["--gate", "zone"]);
    let level = || said(&["zone", "get", "balance_level"]);
    let (mut turns, mut last) = (0_u32, level());
    std::thread::scope(|scope| {
        let cpus = scope.spawn(|| {
            for on in [false, true, false, true] {
                let before = loads();
                switch(1, on);
                wait_for("the keel to be loaded anew", || loads() > before && state() == "enabled");
            }
        });
        while !cpus.is_finished() {
            turns += 1;
            last = (turns % 3 + 1).to_string();
            said(&["zone", "set", "balance_level", &last]);
            assert_eq!(level(), last);
        }
    });
    assert!(turns > 0);
    assert_eq!(level(), last, "after {turns} turns");
    assert_eq!(keel.end().0, Some(0));
}

/// CPUs that come and go all the time undo each load, and the keel is loaded again. A signal ends it all
/// the same.
fn a_keel_that_is_loaded_again_and_again_ends() {
    const AGAIN: &str = "hotplug during the load: the keel is loaded again";
    let mut command = Command::new(EVENKEEL);
    let log = ("EVENKEEL_LOG", "evenkeel_keel::service=debug");
    let mut keel = Keel::spawn(command.arg("sched").env(log.0, log.1));
    let has_ended = AtomicBool::new(false);
    let (code, said) = std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut online = [true; 4];
            // One at a time, so that a load seldom ends with the CPUs that it began with.
            for cpu in [1, 2, 1, 3].into_iter().cycle().take(400) {
                if has_ended.load(Ordering::Relaxed) {
                    break;
                }
                online[cpu] = !online[cpu];
                switch(cpu as u32, online[cpu]);
                // A load must have the time to begin.
                std::thread::sleep(Duration::from_millis(300));
            }
            (1..4).for_each(|cpu| switch(cpu, true));
        });
        keel.wait_said(AGAIN);
        keel.wait_said(AGAIN);
        let ended = keel.end();
        has_ended.store(true, Ordering::Relaxed);
        ended
    });
    assert_eq!(code, Some(0), "{said}");
    assert!(!said.contains(AGAIN), "after the signal:\n{said}");
}

/// Counts how often each counter went up while `load` ran.
pub fn counted(keel: &Keel, load: impl FnOnce()) -> BTreeMap<String, u64> {
    let before = keel.counters();
    load();
    keel.counters().into_iter().map(|(name, count)| (name.clone(), count - before[&name])).collect()
}

/// Threads that sleep most of the time leave all CPUs in the quiet zone; hogs do not.
fn the_gate_refuses_and_opens() {
    let keel = Keel::start(&["--gate", "zone", "--zone", "hot", "--strict"]);
    let rest = || std::thread::sleep(Duration::from_secs(2));
    let quiet = counted(&keel, || {
        let mut idlers = Threads::default();
        for _ in 0..3 * crate::support::all().len() {
            idlers.start(|| {
                spin(Duration::from_millis(1));
                std::thread::sleep(Duration::from_millis(15));
            });
        }
        rest();
        idlers.end();
    });
    assert!(quiet["gate_quiet"] > 0, "{quiet:?}");
    assert_eq!(quiet["gate_open"], 0, "{quiet:?}");
    let explained = said(&["explain", "--keel", "--last", "100"]);
    assert!(explained.contains("refused: the utilisation is not above"), "{explained}");
    let busy = counted(&keel, || {
        let mut hogs = Threads::default();
        for _ in 0..2 * crate::support::all().len() {
            hogs.start(|| spin(Duration::from_millis(10)));
        }
        rest();
        hogs.end();
    });
    assert!(busy["gate_busy"] > 0, "{busy:?}");
    assert_eq!(keel.end().0, Some(0));
}

/// CPUs that are busy for more than half of the time (for less on a busy host, where sleeping tasks
/// oversleep) are above the limit of level `cold`, and below that of `warm-high`: tasks may move
/// there under the first level, and may not under the second.
fn a_level_that_is_set_holds() {
    let keel = Keel::start(&["--gate", "zone", "--zone", "cold", "--strict"]);
    let mut threads = Threads::default();
    for _ in 0..crate::support::all().len() * 3 / 2 {
        threads.start(|| {
            spin(Duration::from_millis(4));
            std::thread::sleep(Duration::from_millis(5));
        });
    }
    let answers = || {
        let counters = counted(&keel, || std::thread::sleep(Duration::from_secs(2)));
        (counters["gate_busy"], counters["gate_quiet"])
    };
    // Waits until the utilisations have settled.
    answers();
    let (allowed, refused) = answers();
    println!("cold: {allowed} allowed, {refused} refused");
    assert!(allowed > refused, "under cold {allowed} moves were allowed, {refused} refused");
    said(&["zone", "set", "balance_level", "3"]);
    let (allowed, refused) = answers();
    println!("warm-high: {allowed} allowed, {refused} refused");
    assert!(refused > allowed, "under warm-high {allowed} moves were allowed, {refused} refused");
    let explained = said(&["explain", "--keel", "--last", "100"]);
    let why = "refused: the utilisation is not above the zone's limit (warm-high: 80 %, CPU ";
    assert!(explained.contains(why), "{explained}");
    threads.end();
    assert_eq!(keel.end().0, Some(0));
}

/// Two threads that hardly do anything need two of four CPUs: the last one is nearly never used.
fn compaction_leaves_cpus_alone() {
    let last = crate::support::all().len() - 1;
    assert!(last >= 3, "it needs four CPUs");
    assert!(refused(&["sched", "--compact"]).contains("--gate zone"));
    let keel = Keel::start(&["--gate", "zone", "--compact"]);
    let seen = Arc::new(Mutex::new(Vec::new()));
    let mut threads = Threads::default();
    for _ in 0..2 {
        let seen = Arc::clone(&seen);
        threads.start(move || {
            std::thread::sleep(Duration::from_millis(10));
            spin(Duration::from_micros(300));
            seen.lock().unwrap().push(nix::sched::sched_getcpu().unwrap());
        });
    }
    // From the first idle CPUs on; the utilisations must have settled.
    wait_for("some wake-ups", || seen.lock().unwrap().len() > 200);
    seen.lock().unwrap().clear();
    wait_for("more wake-ups", || seen.lock().unwrap().len() > 400);
    threads.end();
    let seen = seen.lock().unwrap();
    let on_last = seen.iter().filter(|cpu| **cpu == last).count();
    println!("{on_last} of {} bursts were on the last CPU", seen.len());
    assert!(on_last * 20 < seen.len(), "{on_last} of {} bursts were on the last CPU", seen.len());
    assert_eq!(keel.end().0, Some(0));
}

/// The guest's program under a name of its own.
const SIBLINGS: &str = "/tmp/siblings";

/// Processes that play this role.
fn started(name: &'static str, count: usize) -> Vec<Child> {
    if !Path::new(SIBLINGS).exists() {
        std::os::unix::fs::symlink("/init", SIBLINGS).unwrap();
    }
    let start = |_| {
        let mut command = Command::new(SIBLINGS);
        command.args(role(name).into_iter().skip(1)).stdin(Stdio::piped()).spawn().unwrap()
    };
    (0..count).map(start).collect()
}

/// A process of 24 threads that spin, until its input ends. (Six of them on each CPU: with fewer, its
/// turn is hardly longer than a slice.)
pub fn play_siblings() {
    let mut threads = Threads::default();
    (0..24).for_each(|_| threads.start(|| spin(Duration::from_millis(1))));
    std::io::copy(&mut std::io::stdin(), &mut std::io::sink()).unwrap();
    threads.end();
}

/// A process of eight threads that work and sleep by turns, until its input ends.
pub fn play_pool() {
    let mut threads = Threads::default();
    (0..8).for_each(|_| {
        threads.start(|| {
            spin(Duration::from_millis(2));
            std::thread::sleep(Duration::from_micros(100));
        });
    });
    std::io::copy(&mut std::io::stdin(), &mut std::io::sink()).unwrap();
    threads.end();
}

/// A process that becomes another program when it is told to.
pub fn play_changeling() {
    std::io::stdin().read_line(&mut String::new()).unwrap();
    let become_another = Command::new(SIBLINGS).args(role("siblings").into_iter().skip(1)).exec();
    panic!("{become_another}");
}

fn end_processes(processes: Vec<Child>) {
    for mut process in processes {
        drop(process.stdin.take());
        assert!(process.wait().unwrap().success());
    }
}

fn show() -> serde_json::Value {
    let state = serde_json::from_str(&said(&["ias", "show", "--json"])).unwrap();
    check("ias-show", &state);
    state
}

/// With a bonus, a CPU runs threads of one process in a row, and slaves follow their master. The setting
/// ends with the process.
fn siblings_are_preferred(mode: &str) {
    let keel = Keel::start(&["--order", "ias", "--ias-mode", mode]);
    said(&["ias", "alloc", "0", "1", "2", "3"]);
    assert_eq!(show()["roles"], serde_json::json!({"0": 0, "1": 1, "2": 2, "3": 3}));
    let processes = started("siblings", 3);
    let rest = || std::thread::sleep(Duration::from_secs(4));
    rest();
    let plain = counted(&keel, rest);
    assert_eq!((plain["aggregate"], plain["follow"]), (0, 0), "off by default: {plain:?}");
    let set = said(&["ias", "agg", "--program", "siblings", "--bonus", "5x"]);
    assert!(processes.iter().all(|process| set.contains(&process.id().to_string())), "{set}");
    assert_eq!(show()["spaces"].as_array().unwrap().len(), 3);
    let preferred = counted(&keel, rest);
    assert!(preferred["aggregate"] > 0 && preferred["follow"] > 0, "{preferred:?}");
    let share = |counters: &BTreeMap<String, u64>| {
        let turns = counters["switch"] + counters["aggregate"] + counters["follow"];
        counters["space_switch"] as f64 / turns as f64
    };
    println!(
        "switches of the address space: {:.2} -> {:.2} a turn",
        share(&plain),
        share(&preferred)
    );
    // In their turn, siblings are advanced by half a rotation of all threads at most.
    let most = if mode == "paper" { 0.7 } else { 0.9 };
    assert!(share(&preferred) < most * share(&plain), "{plain:?} {preferred:?}");
    assert!(show()["search"]["searches"].as_u64() > Some(0));
    said(&["ias", "agg", &processes[0].id().to_string(), "--off"]);
    assert_eq!(show()["spaces"].as_array().unwrap().len(), 2);
    end_processes(processes);
    wait_for("what was set to end with the processes", || {
        show()["spaces"].as_array().unwrap().is_empty()
    });
    assert_eq!(keel.end().0, Some(0));
}

/// The configuration of a program holds for the processes that run it, until they end or a user sets
/// something else.
fn a_configuration_names_programs() {
    let config = "/tmp/config.toml";
    let text = "[ias]\ngroups = \"0-1/2-3\"\n[ias.programs.siblings]\nbonus = \"2x\"\nlimit = 7\n";
    std::fs::write(config, text).unwrap();
    let keel = Keel::start(&["--config", config, "--order", "ias"]);
    let spaces = || show()["spaces"].as_array().unwrap().clone();
    let mut processes = started("siblings", 1);
    wait_for("a process to be set", || spaces().len() == processes.len());
    assert!(spaces().iter().all(|space| space["bonus_value"] == 2 && space["limit"] == 7));
    assert_eq!(show()["roles"], serde_json::json!({"0": 0, "1": 1, "2": 2, "3": 3}));
    said(&["ias", "agg", &processes[0].id().to_string(), "--off"]);
    processes.extend(started("siblings", 1));
    let is_set = |pid: u32| spaces().iter().any(|space| space["pid"] == pid);
    let newest = processes.last().unwrap().id();
    wait_for("one that comes later to be set", || is_set(newest));
    assert!(!is_set(processes[0].id()), "it was switched off");
    // The process executes another program, which has the configured name again.
    let mut changeling = started("changeling", 1);
    let pid = changeling[0].id();
    wait_for("one more to be set", || is_set(pid));
    changeling[0].stdin.as_mut().unwrap().write_all(b"now\n").unwrap();
    let threads = || std::fs::read_dir(format!("/proc/{pid}/task")).unwrap().count();
    wait_for("it to be another program", || threads() > 1);
    // `ias show` no longer lists processes that have become another program.
    wait_for("that to be set, too", || is_set(pid));
    processes.extend(changeling);
    signal_all(&processes, libc::SIGSTOP);
    assert_eq!(keel.end().0, Some(0));
    // The configuration also holds for processes that were there before the keel.
    let keel = Keel::start(&["--config", config, "--order", "ias"]);
    signal_all(&processes, libc::SIGCONT);
    wait_for("all to be set by the next keel", || spaces().len() == processes.len());
    assert!(spaces().iter().all(|space| space["bonus_value"] == 2 && space["limit"] == 7));
    end_processes(processes);
    wait_for("what was set to end with the processes", || spaces().is_empty());
    assert_eq!(keel.end().0, Some(0));
}

/// Stops or continues processes: verifying the keel takes long beside busy threads.
fn signal_all(processes: &[Child], signal: i32) {
    processes.iter().for_each(|process| kill(process.id() as i32, signal));
}

/// The keel is loaded anew when CPUs come or go. Settings are kept, whatever the scheduling class of a
/// program's first thread is, and a group is there again when its CPUs are.
fn settings_outlive_a_restart() {
    let mut keel = Keel::start(&["--order", "ias"]);
    said(&["ias", "alloc", "0", "1", "2", "3"]);
    let processes = started("siblings", 2);
    for process in &processes {
        said(&["ias", "set-agg", &process.id().to_string(), "1", "1", "5", "9"]);
    }
    // The first thread starts the others, which may not be of this class: they would keep all CPUs. Then
    // it only waits for its input.
    let param = libc::sched_param { sched_priority: 1 };
    let first = processes[0].id() as i32;
    let class = libc::SCHED_FIFO | libc::SCHED_RESET_ON_FORK;
    // SAFETY: reads a record that lives here.
    assert_eq!(unsafe { libc::sched_setscheduler(first, class, &raw const param) }, 0);
    signal_all(&processes, libc::SIGSTOP);
    let set = |what: &str| show()[what].clone();
    let (roles, spaces) = (set("roles"), set("spaces"));
    assert_eq!(spaces.as_array().unwrap().len(), 2);
    let mut switched = |on: bool| {
        let before = loads();
        switch(3, on);
        wait_for("the keel to be loaded anew", || loads() > before);
        keel.wait_enabled(before);
    };
    switched(false);
    assert_eq!(set("spaces"), spaces);
    assert_eq!(set("roles"), serde_json::json!({"0": 0, "1": 1, "2": 2}));
    let why = refused(&["ias", "alloc", "--groups", "0-1/2-3"]);
    assert!(why.contains("groups \"0-1/2-3\": CPU 3 is not online"), "{why}");
    let why = refused(&["ias", "alloc", "0", "1", "2", "3"]);
    assert!(why.contains("4 roles, but 3 CPUs are online (0-2)"), "{why}");
    switched(true);
    assert_eq!((set("spaces"), set("roles")), (spaces, roles));
    signal_all(&processes, libc::SIGCONT);
    let preferred = counted(&keel, || std::thread::sleep(Duration::from_secs(2)));
    assert!(preferred["aggregate"] > 0, "{preferred:?}");
    end_processes(processes);
    assert_eq!(keel.end().0, Some(0));
}

/// The helper measures what threads get done, tries a bonus, and reports it; a bonus that a user has set
/// stays.
fn the_helper_tries_a_bonus_and_reports_it() {
    let keel = Keel::start(&["--order", "ias", "--ias-auto"]);
    let pools = started("pool", 2);
    let [tried, given] = [&pools[0], &pools[1]].map(|pool| pool.id().to_string());
    said(&["ias", "set-agg", &given, "1", "0", "1000", "0"]);
    wait_for("a bonus to be tried", || show()["found"].get(&tried).is_some());
    let told = said(&["ias", "show"]);
    assert!(told.contains(&format!("ias-auto: process {tried} has ")), "{told}");
    let state = show();
    assert_eq!(state["found"].get(&given), None, "{state}");
    let spaces = state["spaces"].as_array().unwrap().iter();
    let bonus: Vec<_> = spaces
        .filter(|space| space["pid"].as_u64() == given.parse().ok())
        .map(|space| space["bonus_value"].as_u64())
        .collect();
    assert_eq!(bonus, [Some(1_000)]);
    end_processes(pools);
    wait_for("both to be forgotten", || show()["found"].as_object().unwrap().is_empty());
    assert_eq!(keel.end().0, Some(0));
}

/// Each error is exact, and nothing is changed.
fn impossible_aggregation() {
    assert!(without_keel(&["ias", "show"]).contains("the keel does not run"));
    let keel = Keel::start(&[]);
    assert!(
        refused(&["ias", "set-agg", "1", "1", "1", "3", "0"]).contains("runs with --order fair")
    );
    assert_eq!(keel.end().0, Some(0));
    let keel = Keel::start(&["--order", "ias"]);
    // What was set before; the helper's searches go on meanwhile.
    let set = || {
        let state = show();
        [state["roles"].clone(), state["spaces"].clone()]
    };
    let before = set();
    let mut gone = started("siblings", 1);
    let gone_pid = gone[0].id().to_string();
    let threads = format!("/proc/{gone_pid}/task");
    let tids = || {
        std::fs::read_dir(&threads)
            .unwrap()
            .map(|task| text(task.unwrap().file_name().as_encoded_bytes()))
    };
    wait_for("a thread", || tids().count() > 1);
    let thread = tids().find(|tid| *tid != gone_pid).unwrap();
    let why = refused(&["ias", "set-agg", &thread, "1", "1", "3", "0"]);
    assert!(
        why.contains(&format!("process {thread}: there is none of this number; take one")),
        "{why}"
    );
    end_processes(std::mem::take(&mut gone));
    let why = refused(&["ias", "set-agg", &gone_pid, "1", "1", "3", "0"]);
    assert!(why.contains(&format!("process {gone_pid}: there is none of this number")), "{why}");
    for (arguments, expected) in [
        (["99999", "1", "1", "3", "0"], "process 99999: there is none"),
        (["2", "1", "1", "3", "0"], "process 2 is a kernel thread"),
        (["1", "2", "1", "3", "0"], "agg \"2\""),
        (["1", "1", "2", "3", "0"], "bonus_type \"2\""),
        (["1", "1", "0", "18446744073709551616", "0"], "bonus_value"),
        (["1", "1", "0", "3", "x"], "limit \"x\""),
    ] {
        let arguments: Vec<&str> = ["ias", "set-agg"].into_iter().chain(arguments).collect();
        let why = refused(&arguments);
        assert!(why.contains(expected), "{why}");
    }
    for (roles, expected) in [
        (&["0", "1", "2"][..], "3 roles, but 4 CPUs are online"),
        (&["0", "1", "3", "3"], "group 1 has slaves but no master"),
        (&["0", "1", "0", "1"], "group 0 has two masters"),
    ] {
        let arguments: Vec<&str> = ["ias", "alloc"].iter().chain(roles).copied().collect();
        let why = refused(&arguments);
        assert!(why.contains(expected), "{why}");
    }
    assert!(refused(&["ias", "alloc", "--groups", "0-1/2-7"]).contains("CPU 4 is not online"));
    let error = refused(&["ias", "agg", "--program", "no-such-program"]);
    assert!(error.contains("no process runs no-such-program"), "{error}");
    for (arguments, expected) in [
        (
            &["ias", "set-agg", "1", "1", "1", "3", "0"][..],
            "process 1 belongs to user 0: only that",
        ),
        (
            &["ias", "agg", "--program", "/init"],
            "runs /init, but belongs to user 0: only that user",
        ),
        (&["ias", "alloc", "0", "1", "2", "3"], "only root may set the roles of CPUs"),
    ] {
        let other = output(Command::new(EVENKEEL).args(arguments).stdin(Stdio::null()).uid(NOBODY));
        let why = text(&other.stderr);
        assert!(other.status.code() == Some(2) && why.contains(expected), "{why}");
    }
    assert_eq!(set(), before);
    what_becomes_another_program_is_forgotten();
    assert_eq!(keel.end().0, Some(0));
}

/// A setting holds for the address space, and not for the process number.
fn what_becomes_another_program_is_forgotten() {
    let mut changeling = started("changeling", 1);
    let spaces = || show()["spaces"].as_array().unwrap().len();
    said(&["ias", "agg", &changeling[0].id().to_string()]);
    assert_eq!(spaces(), 1);
    changeling[0].stdin.as_mut().unwrap().write_all(b"now\n").unwrap();
    wait_for("what was set to end with the program", || spaces() == 0);
    end_processes(changeling);
}
