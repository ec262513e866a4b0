//! The keel on a real kernel: it is loaded, ends, is killed or ended by the kernel, and finds CPUs gone.

use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use evenkeel_invariants::Limits;
use evenkeel_journal::affinity;
use evenkeel_machine::CpuSet;
use evenkeel_witness::{FAULT, report_fault};
use serde_json::Value;

use crate::hotplug::switch;
use crate::invariants::UNEQUAL;
use crate::scheduler::{Keel, loads, state};
use crate::schema::check;
use crate::storms::*;
use crate::support::{EVENKEEL, NOBODY, all, just, kill, output, text, wait_for};
use crate::trace::read;
use crate::watched::{ROUGH, watched};
use crate::{Test, boots};

/// On every kernel.
pub const ACCEPTED: &[Test] =
    &[Test { name: "keel::is_accepted_by_the_kernel", run: is_accepted_by_the_kernel }];

/// On every kernel, too, but the one in between.
pub const SHORT: &[Test] = &[
    Test { name: "keel::comes_and_goes", run: comes_and_goes },
    Test { name: "keel::a_fault_ends_it_with_a_report", run: a_fault_ends_it_with_a_report },
];

/// On newer kernels: what differs there from the oldest.
pub const NEWER: &[Test] = &[
    Test { name: "keel::cpus_that_go_and_come", run: || cpus_that_go_and_come(&[]) },
    Test { name: "keel::a_cpu_that_is_taken_is_left", run: || a_cpu_that_is_taken_is_left(&[]) },
    Test {
        name: "keel::a_pinned_task_runs_beside_an_endless_real_time_task",
        run: a_pinned_task_runs_beside_an_endless_real_time_task,
    },
];

/// On a kernel without sched_ext.
pub const WITHOUT: &[Test] =
    &[Test { name: "keel::a_kernel_without_sched_ext", run: a_kernel_without_sched_ext }];

/// On kernels where a scheduler may come and go any number of times.
pub const LOADED_OFTEN: &[Test] = &[
    Test { name: "keel::cpus_that_go_and_come", run: || cpus_that_go_and_come(&[]) },
    Test {
        name: "keel::no_task_is_lost_when_it_is_killed_again_and_again",
        run: no_task_is_lost_when_it_is_killed_again_and_again,
    },
];

/// With CPUs that are not equal, and all that the balance policy can do about that.
pub const UNEQUAL_LONG: &[Test] = &[
    Test { name: "capability::cpus_that_go_and_come", run: || cpus_that_go_and_come(UNEQUAL) },
    Test {
        name: "capability::a_cpu_that_is_taken_is_left",
        run: || a_cpu_that_is_taken_is_left(UNEQUAL),
    },
];

/// On the kernel of all tests.
pub const LONG: &[Test] = &[
    Test { name: "keel::a_second_keel_is_refused", run: a_second_keel_is_refused },
    Test { name: "keel::invalid_options_are_refused", run: invalid_options_are_refused },
    Test { name: "keel::cgroup_limits_are_warned_of", run: cgroup_limits_are_warned_of },
    Test {
        name: "keel::a_restart_forgets_neither_tasks_nor_utilisation",
        run: a_restart_forgets_neither_tasks_nor_utilisation,
    },
    Test { name: "keel::top_shows_what_it_counts", run: top_shows_what_it_counts },
    Test { name: "keel::sysrq_ends_it", run: sysrq_ends_it },
    Test { name: "keel::a_cpu_that_is_taken_is_left", run: || a_cpu_that_is_taken_is_left(&[]) },
    Test { name: "keel::a_stall_ends_it_with_a_report", run: a_stall_ends_it_with_a_report },
];

fn is_accepted_by_the_kernel() {
    let output = output(Command::new(EVENKEEL).args(["sched", "--load-only"]).stdin(Stdio::null()));
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    assert_eq!(state(), "disabled");
}

fn comes_and_goes() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("keel.pftrace");
    for _ in 0..2 {
        let keel = Keel::start(&["--perfetto", path.to_str().unwrap()]);
        let name = std::fs::read_to_string("/sys/kernel/sched_ext/root/ops").unwrap();
        assert!(name.contains("keel"), "{name}");
        watched(ROUGH, |_| {
            let crowd = restless(50);
            std::thread::sleep(Duration::from_secs(2));
            crowd.end();
        });
        // By default the signal would end it. It is read before that of the end.
        kill(keel.process.id() as i32, libc::SIGUSR1);
        let (code, said) = keel.end();
        assert_eq!(code, Some(0), "{said}");
        assert_eq!(said.matches("SIGUSR1: the state is {").count(), 1, "{said}");
        let seen = read(&path);
        seen.assert_sound();
        assert_eq!(seen.on("the keel"), ["fair/always/count"], "{seen:?}");
        assert_eq!(seen.on("changes"), ["ended"], "{seen:?}");
        for counter in ["switch", "CPU 0: capability", "CPU 0: utilisation"] {
            assert!(seen.counters.iter().any(|name| name == counter), "{counter}: {seen:?}");
        }
    }
}

/// `evenkeel top --once` has the policies and the counters of the keel that runs, how often each went up
/// meanwhile, and what it means.
fn top_shows_what_it_counts() {
    let top = || {
        let words = ["top", "--once", "--interval", "500ms"];
        let shown = output(Command::new(EVENKEEL).args(words).stdin(Stdio::null()));
        assert_eq!(shown.status.code(), Some(0), "{}", text(&shown.stderr));
        text(&shown.stdout)
    };
    let keel = Keel::start(&["--gate", "zone"]);
    let crowd = restless(20);
    let said = top();
    crowd.end();
    let pane = said.split_once("\nKeel (fair/zone/count):\n").expect(&said).1;
    let row = pane.lines().find(|line| line.trim_start().starts_with("enqueue ")).expect(&said);
    let words: Vec<&str> = row.split_whitespace().collect();
    let [per_s, in_all] = [words[1], words[2]].map(|word| word.parse::<f64>().unwrap());
    assert!(per_s > 0.0 && in_all > 0.0, "{row}");
    assert!(words.len() > 4, "no meaning: {row}");

    // And as JSON.
    let json = |text: &str| serde_json::from_str::<Value>(text).unwrap();
    let shown = output(Command::new(EVENKEEL).args(["top", "--json"]).stdin(Stdio::null()));
    let screen = json(&text(&shown.stdout));
    check("top", &screen);
    assert!(screen["keel"]["per_s"]["enqueue"].is_number(), "{screen}");
    let mut monitor = Command::new(EVENKEEL);
    monitor.args(["sched", "--monitor", "1", "--json"]).stdin(Stdio::null()).stdout(Stdio::piped());
    let mut monitor = monitor.spawn().unwrap();
    let mut line = String::new();
    BufReader::new(monitor.stdout.take().unwrap()).read_line(&mut line).unwrap();
    check("sched-monitor", &json(&line));
    monitor.kill().unwrap();
    monitor.wait().unwrap();

    let (code, why) = keel.end();
    assert_eq!(code, Some(0), "{why}");
    let said = top();
    assert!(said.contains("The keel does not run."), "{said}");
}

/// A second keel is refused, names the one that runs, and does not disturb it.
fn a_second_keel_is_refused() {
    let keel = Keel::start(&[]);
    let before = loads();
    let second = output(Command::new(EVENKEEL).arg("sched").stdin(Stdio::null()));
    let said = text(&second.stderr);
    assert_eq!(second.status.code(), Some(3), "{said}");
    assert!(said.contains("keel"), "{said}");
    assert_eq!((state().as_str(), loads()), ("enabled", before));
    assert_eq!(keel.end().0, Some(0));
}

/// The error says what is missing and what to do about it, and has an exit code of its own; `evenkeel
/// doctor` says the same.
fn a_kernel_without_sched_ext() {
    assert!(!Path::new("/sys/kernel/sched_ext").exists(), "this kernel has it");
    for flags in [&["sched"][..], &["sched", "--load-only"]] {
        let output = output(Command::new(EVENKEEL).args(flags).stdin(Stdio::null()));
        let said = text(&output.stderr);
        assert_eq!(output.status.code(), Some(3), "{flags:?}: {said}");
        for words in ["this kernel has no sched_ext", "run one from 6.18 on"] {
            assert!(said.contains(words), "{flags:?}: {said}");
        }
    }
    let doctor = output(Command::new(EVENKEEL).arg("doctor").stdin(Stdio::null()));
    let said = text(&doctor.stdout);
    assert!(said.contains("the kernel has no sched_ext"), "{said}");
}

/// The refusal has its reason and an exit code of its own, and nothing is loaded.
fn invalid_options_are_refused() {
    let before = loads();
    for (flags, code, reason) in [
        (["--order", "best"], 2, "there is no such order policy"),
        (["--slice-us", "0"], 2, "expected microseconds"),
        (["--capacity", "0=2000"], 2, "is not a capacity"),
        (["--capacity", "99=512"], 3, "there is no such CPU"),
    ] {
        let output = output(Command::new(EVENKEEL).arg("sched").args(flags).stdin(Stdio::null()));
        let said = text(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{flags:?}: {said}");
        assert!(said.contains(reason), "{flags:?}: {said}");
    }
    let output = output(Command::new(EVENKEEL).arg("sched").stdin(Stdio::null()).uid(NOBODY));
    let said = text(&output.stderr);
    assert_eq!(output.status.code(), Some(3), "{said}");
    assert!(said.contains("no privilege"), "{said}");
    assert_eq!((state().as_str(), loads()), ("disabled", before));
}

/// The keel does not enforce cpu.max: it warns of cgroups that have one.
fn cgroup_limits_are_warned_of() {
    let group = Group::new(100);
    let limit = |text: &str| group.set("cpu.max", text);
    limit("50000 100000");
    let mut keel = Keel::start(&[]);
    let mut said = BufReader::new(keel.process.stderr.take().unwrap()).lines();
    let mut is_warned_of = || said.by_ref().any(|line| line.unwrap().contains("cpu.max"));
    assert!(is_warned_of(), "it says nothing of the limit that there was");
    let counted = keel.counters()["unlimited"];
    assert!(counted >= 1, "the limit was not seen");
    limit("20000 100000");
    assert_eq!(keel.counters()["unlimited"], counted + 1);
    assert!(is_warned_of(), "it says nothing of a new one");
    limit("max 100000");
    assert_eq!(keel.counters()["unlimited"], counted + 1, "that is no limit");
    assert_eq!(keel.end().0, Some(0));
    group.end();
}

/// How often at least, however slow the guest is: in `make vm-test`, and when it soaks.
const KILLS: u32 = 5;
const KILLS_SOAKING: u32 = 20;

/// Each time the kernel's own scheduler takes over, and no task is lost between the two.
fn no_task_is_lost_when_it_is_killed_again_and_again() {
    watched(ROUGH, |witness| {
        let crowd = restless(50);
        let end = Instant::now() + boots::duration();
        let wanted = if boots::soaks() { KILLS_SOAKING } else { KILLS };
        let mut kills = 0;
        while kills < wanted || Instant::now() < end {
            kills += 1;
            let mut keel = Keel::start(&[]);
            std::thread::sleep(Duration::from_millis(20));
            keel.process.kill().unwrap();
            keel.process.wait().unwrap();
            wait_for("the kernel's own scheduler", || state() == "disabled");
            witness.look().unwrap();
        }
        crowd.end();
    });
}

/// `make vm-hotplug`, on each kernel.
pub const HOTPLUG: &[Test] = &[Test {
    name: "keel::no_task_stalls_in_a_thousand_rounds_of_hotplug",
    run: no_task_stalls_in_a_thousand_rounds_of_hotplug,
}];

/// How often a CPU goes and comes back: as often as docs/guide.md says.
const ROUNDS: u32 = 1000;

/// Regression test for a thread of the kernel that once waited when a CPU had come back, until the
/// kernel ended the keel as stalled. Tasks of the keel compete with real-time tasks on each CPU, and the
/// kernel starts its own threads of a CPU anew with each round.
fn no_task_stalls_in_a_thousand_rounds_of_hotplug() {
    let mut keel = Keel::start(&[]);
    let others = all().len() as u32 - 1;
    let crowd = restless(50);
    let mut busy = Threads::default();
    all().iter().for_each(|_| busy.start(|| spin(Duration::from_millis(1))));
    let mut urgent = Threads::default();
    for _ in &busy.tids {
        urgent.start(|| {
            spin(Duration::from_millis(2));
            std::thread::sleep(Duration::from_millis(8));
        });
    }
    urgent.tids.iter().for_each(|tid| set_real_time(*tid, 1));
    let mut done = 0;
    for round in 0..ROUNDS {
        if round % 20 == 0 {
            println!("round {round} {:?}", std::time::SystemTime::now());
        }
        for on in [false, true] {
            let before = loads();
            switch(1 + round % others, on);
            keel.wait_enabled(before);
        }
        done += 1;
    }
    urgent.end();
    busy.end();
    crowd.end();
    let (code, said) = keel.end();
    println!("{done} rounds, {} loads of the keel", loads());
    assert_eq!(code, Some(0), "{said}");
}

/// It is loaded anew each time.
fn cpus_that_go_and_come(flags: &[&str]) {
    let mut keel = Keel::start(flags);
    let others = all().len() as u32 - 1;
    // A CPU that is off idles, though tasks wait.
    watched(Limits { idle_grace_ns: 0, ..ROUGH }, |witness| {
        let crowd = restless(50);
        let end = Instant::now() + boots::duration();
        let mut round = 0;
        // Each is off once at least. In the end all are back.
        while round < 2 * others || round % 2 == 1 || Instant::now() < end {
            let before = loads();
            let change = || switch(1 + round / 2 % others, round % 2 == 1);
            witness.while_cpus_change(change).unwrap();
            keel.wait_enabled(before);
            witness.look().unwrap();
            round += 1;
        }
        crowd.end();
    });
    let (code, said) = keel.end();
    assert_eq!(code, Some(0), "{said}");
}

/// For other CPUs it is loaded anew, and goes on with what it knew. A utilisation that began anew would
/// be below 90 % for more than a tenth of a second.
fn a_restart_forgets_neither_tasks_nor_utilisation() {
    let mut keel = Keel::start(&[]);
    let mut busy = Threads::default();
    busy.start(|| spin(Duration::from_millis(1)));
    affinity::set(busy.tids[0], &just(0)).unwrap();
    wait_for("a busy CPU", || keel.busy_pct()[0] >= 95);
    let maps = keel.maps_of_tasks();
    assert_eq!(maps.len(), 1, "{maps:?}");
    for on in [false, true] {
        let before = loads();
        switch(3, on);
        keel.wait_enabled(before);
        let busy_pct = keel.busy_pct();
        assert!(busy_pct[0] >= 90, "percent busy with CPU 3 {on}: {busy_pct:?}");
        assert_eq!(keel.maps_of_tasks(), maps, "with CPU 3 {on}");
    }
    busy.end();
    assert_eq!(keel.end().0, Some(0));
}

/// A task that a real-time task pushes off its CPU goes on elsewhere, before the real-time task is
/// done. So does a task that comes to a CPU that idled when the real-time task took it.
fn a_cpu_that_is_taken_is_left(flags: &[&str]) {
    std::fs::write("/proc/sys/kernel/sched_rt_runtime_us", "-1").unwrap();
    let keel = Keel::start(flags);
    let mut hogs = Threads::default();
    all().iter().for_each(|_| hogs.start(|| spin(Duration::from_millis(1))));
    std::thread::sleep(Duration::from_millis(500));
    for taking in [Taking::AsItWakes, Taking::AsItRuns, Taking::WhileItIdles].repeat(3) {
        let may_use = |cpus: &CpuSet| {
            hogs.tids.iter().for_each(|tid| affinity::set(*tid, cpus).unwrap());
        };
        let mut late = Threads::default();
        if taking == Taking::WhileItIdles {
            may_use(&all().iter().filter(|cpu| *cpu != 1).collect());
        }
        let thief = thief_on(1, taking);
        if taking == Taking::WhileItIdles {
            may_use(&all());
            late.start(|| spin(Duration::from_millis(1)));
        }
        let tids = || hogs.tids.iter().chain(&late.tids);
        let read = || tids().map(|tid| cpu_time_ns(*tid)).collect::<Vec<_>>();
        let before = read();
        std::thread::sleep(Duration::from_secs(2));
        let got: Vec<u64> = read().iter().zip(before).map(|(now, then)| now - then).collect();
        thief.end();
        late.end();
        // The tasks should have got the same, but the emulator's CPUs are not equally fast.
        let (least, most) = (got.iter().min().unwrap(), got.iter().max().unwrap());
        assert!(*least > most / 4, "{taking:?}: a task was left behind: {got:?} ns");
    }
    hogs.end();
    std::fs::write("/proc/sys/kernel/sched_rt_runtime_us", "950000").unwrap();
    assert_eq!(keel.end().0, Some(0));
}

/// How a real-time task takes a CPU; the kernel tells a scheduler of the first way only.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Taking {
    /// It preempts the task that runs there.
    AsItWakes,
    /// It runs there as an ordinary task, and becomes a real-time task.
    AsItRuns,
    /// The CPU idles.
    WhileItIdles,
}

/// A real-time task that never lets go of the CPU; it has it when this returns.
fn thief_on(cpu: u32, taking: Taking) -> Threads {
    let mut thief = Threads::default();
    let mut is_there = false;
    let (sender, there) = std::sync::mpsc::channel();
    thief.start(move || {
        if !is_there {
            let own = nix::unistd::gettid().as_raw();
            affinity::set(own, &just(cpu)).unwrap();
            set_real_time(own, 10);
            if taking != Taking::AsItRuns {
                std::thread::sleep(Duration::from_millis(10));
            }
            sender.send(()).unwrap();
            is_there = true;
        }
        spin(Duration::from_millis(10));
    });
    there.recv().unwrap();
    thief
}

/// No scheduler can run tasks on a CPU that a real-time task never leaves: the kernel notices after
/// half a minute, and ends the keel, not the task.
fn a_stall_ends_it_with_a_report() {
    std::fs::write("/proc/sys/kernel/sched_rt_runtime_us", "-1").unwrap();
    let mut keel = Keel::start(&[]);
    let mut victim = Threads::default();
    victim.start(|| spin(Duration::from_millis(1)));
    affinity::set(victim.tids[0], &just(1)).unwrap();
    let mut hog = Threads::default();
    hog.start(|| spin(Duration::from_millis(10)));
    affinity::set(hog.tids[0], &just(1)).unwrap();
    set_real_time(hog.tids[0], 10);
    let (code, said) = keel.wait();
    hog.end();
    victim.end();
    std::fs::write("/proc/sys/kernel/sched_rt_runtime_us", "950000").unwrap();
    assert_eq!(code, Some(1), "{said}");
    assert!(said.contains("stall"), "{said}");
    assert!(doctor_warns_of_real_time_tasks());
}

/// Whether `doctor` says that the kernel keeps no time back for tasks of the keel.
fn doctor_warns_of_real_time_tasks() -> bool {
    let doctor = output(Command::new(EVENKEEL).args(["doctor", "--json"]).stdin(Stdio::null()));
    text(&doctor.stdout).contains("keeps no time back")
}

/// For how long a task is watched beside a real-time task. Its part is a twentieth, of which the
/// emulator may take most.
const BESIDE: Duration = Duration::from_secs(12);

/// Newer kernels have a deadline server for tasks of sched_ext. The keel must not keep from it what it
/// could run: a task that may run nowhere else gets on, and the keel stays.
fn a_pinned_task_runs_beside_an_endless_real_time_task() {
    assert!(!doctor_warns_of_real_time_tasks());
    let keel = Keel::start(&[]);
    let mut victim = Threads::default();
    victim.start(|| spin(Duration::from_millis(1)));
    affinity::set(victim.tids[0], &just(1)).unwrap();
    let thief = thief_on(1, Taking::AsItWakes);
    let before = cpu_time_ns(victim.tids[0]);
    std::thread::sleep(BESIDE);
    let got = Duration::from_nanos(cpu_time_ns(victim.tids[0]) - before);
    println!("beside a real-time task it got {got:?} of {BESIDE:?}");
    thief.end();
    victim.end();
    assert_eq!(keel.end().0, Some(0));
    assert!(got > BESIDE / 100, "it got {got:?} of {BESIDE:?}");
}

/// What the kernel takes for a fault ends the keel, which reports the reason and the state of its
/// queues.
fn a_fault_ends_it_with_a_report() {
    let mut keel = Keel::start(&[]);
    let crowd = restless(20);
    report_fault().unwrap();
    let (code, said) = keel.wait();
    crowd.end();
    assert_eq!(code, Some(1), "{said}");
    for words in [FAULT, "keel: order=", "keel: clock=", "keel: home="] {
        assert!(said.contains(words), "no \"{words}\": {said}");
    }
}

/// SysRq-S ends any scheduler at the administrator's wish. That is no fault.
fn sysrq_ends_it() {
    let mut keel = Keel::start(&[]);
    std::fs::write("/proc/sysrq-trigger", "S").unwrap();
    let (code, said) = keel.wait();
    assert_eq!(code, Some(0), "{said}");
    assert!(said.contains("disabled by sysrq-S"), "{said}");
}
