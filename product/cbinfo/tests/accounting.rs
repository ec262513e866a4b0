//! The accounting on this kernel: times add up, and a program is followed with all its tasks.
//!
//! Needs the privilege to load BPF programs; without it, says so and passes.

// In a test a panic is the report, in its helpers too.
#![allow(clippy::unwrap_used)]

use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::unistd::Pid;

use evenkeel_cbinfo::{Cbinfo, CpuAccount, TaskAccount, TaskEvent, support};

fn open() -> Option<Cbinfo> {
    if let Err(why) = support() {
        println!("SKIPPED: {why}");
        return None;
    }
    Some(Cbinfo::open(&[]).unwrap())
}

/// A child that is killed and waited for, however the test ends.
struct Guard(Child);

impl Drop for Guard {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn shell(script: &str) -> Guard {
    let mut command = Command::new("sh");
    let command = command.args(["-c", script]).stdin(Stdio::piped()).stdout(Stdio::null());
    Guard(command.stderr(Stdio::null()).spawn().unwrap())
}

/// Polls until `condition` returns a value, for at most 30 s.
fn until<T>(mut condition: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + Duration::from_secs(30);
    loop {
        if let Some(found) = condition() {
            return found;
        }
        assert!(Instant::now() < deadline, "timed out");
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn all_ns(cpu: &CpuAccount) -> u64 {
    let noise_ns = cpu.noise.irq_ns + cpu.noise.softirq_ns + cpu.noise.rt_ns;
    noise_ns + cpu.idle_ns + cpu.followed_ns + cpu.foreign_ns
}

#[test]
fn every_nanosecond_of_a_cpu_belongs_to_one_activity() {
    let Some(cbinfo) = open() else { return };
    let online = std::thread::available_parallelism().unwrap().get();
    let outer = Instant::now();
    let (before, inner) = (cbinfo.cpus(), Instant::now());
    std::thread::sleep(Duration::from_millis(500));
    let inner_ns = inner.elapsed().as_nanos() as f64;
    let (after, outer_ns) = (cbinfo.cpus(), outer.elapsed().as_nanos() as f64);
    for (then, now) in before.iter().zip(&after).take(online) {
        let all_ns = (all_ns(now) - all_ns(then)) as f64;
        // The accounts were read somewhere between the two, however long this thread was stopped.
        assert!(
            (0.95 * inner_ns..1.05 * outer_ns).contains(&all_ns),
            "CPU {}: {all_ns} ns of {inner_ns} to {outer_ns}",
            now.cpu
        );
        assert_eq!(now.lost_events, 0);
    }
    assert!(after.iter().map(|cpu| cpu.events).sum::<u64>() > 0, "no event in half a second");
}

#[test]
fn a_program_is_followed_through_fork_and_exec_to_its_exit() {
    let Some(mut cbinfo) = open() else { return };
    // Waits for a line, then forks a child that calls exec.
    let mut parent = shell("read line; sleep 60 & wait");
    let root = parent.0.id();
    assert_eq!(cbinfo.follow(root, root).unwrap(), 1);
    assert_eq!(cbinfo.tasks().unwrap().iter().map(|task| task.tid).collect::<Vec<_>>(), [root]);
    drop(parent.0.stdin.take());

    let mut events = Vec::new();
    let child = until(|| {
        events.extend(cbinfo.events().unwrap());
        events.iter().find_map(|event| match event {
            // The parent's own exec may come after spawn has returned.
            TaskEvent::Exec { tgid } if *tgid != root => Some(*tgid),
            _ => None,
        })
    });
    let forked = TaskEvent::Fork { tid: child, tgid: child, parent_tid: root };
    let position = |wanted: TaskEvent| events.iter().position(|event| *event == wanted);
    assert!(position(forked) < position(TaskEvent::Exec { tgid: child }), "{events:?}");
    assert!(position(forked).is_some(), "{events:?}");
    let tasks = cbinfo.tasks().unwrap();
    let programs: Vec<(u32, u32)> = tasks.iter().map(|task| (task.tid, task.program)).collect();
    assert_eq!(programs, [(root, root), (child, root)]);

    // SAFETY: ends the child of our own child.
    unsafe { libc::kill(child as i32, libc::SIGKILL) };
    until(|| {
        events.extend(cbinfo.events().unwrap());
        events.contains(&TaskEvent::Exit { tid: child }).then_some(())
    });
    drop(parent);
    until(|| cbinfo.tasks().unwrap().is_empty().then_some(()));
}

#[test]
fn one_of_several_programs_can_be_forgotten() {
    let Some(mut cbinfo) = open() else { return };
    let programs = [shell("sleep 60 & wait"), shell("sleep 60 & wait")];
    let roots = programs.each_ref().map(|program| program.0.id());
    let tasks_of = |cbinfo: &mut Cbinfo, root: u32| {
        cbinfo.tasks().unwrap().iter().filter(|task| task.program == root).count()
    };
    for root in roots {
        cbinfo.follow(root, root).unwrap();
        until(|| (tasks_of(&mut cbinfo, root) == 2).then_some(()));
    }
    cbinfo.forget(roots[0]).unwrap();
    assert_eq!(roots.map(|root| tasks_of(&mut cbinfo, root)), [0, 2]);
    // And it can be followed again.
    assert_eq!(cbinfo.follow(roots[0], roots[0]).unwrap(), 2);
    assert_eq!(roots.map(|root| tasks_of(&mut cbinfo, root)), [2, 2]);
}

#[test]
fn a_busy_task_runs_waits_or_is_stolen_from_all_the_time() {
    let Some(mut cbinfo) = open() else { return };
    let spinner = shell("while :; do :; done");
    cbinfo.follow(spinner.0.id(), 1).unwrap();
    let look = |cbinfo: &mut Cbinfo| -> TaskAccount { cbinfo.tasks().unwrap()[0] };
    // From its first switch on, all its time is accounted.
    until(|| (look(&mut cbinfo).run_ns > 20_000_000).then_some(()));
    let before = look(&mut cbinfo);
    std::thread::sleep(Duration::from_millis(400));
    let after = look(&mut cbinfo);
    let total = |task: &TaskAccount| task.run_ns + task.stolen_ns + task.wait_ns;
    // By the clock of the readings: it does not matter how long this thread is stopped in between.
    let elapsed_ns = after.now_ns - before.now_ns;
    let share = (total(&after) - total(&before)) as f64 / elapsed_ns as f64;
    assert!((0.9..1.1).contains(&share), "{share}: {before:?} {after:?}");
    assert!(after.runnable);
    // On CPUs of full speed, received time is run time.
    assert_eq!(after.received_ns - before.received_ns, after.run_ns - before.run_ns);
}

/// A figure of /proc/thread-self/status.
fn of_this_thread(name: &str) -> u64 {
    let status = std::fs::read_to_string("/proc/thread-self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with(name)).unwrap();
    line.split_whitespace().last().unwrap().parse().unwrap()
}

struct SetWhenDropped<'a>(&'a AtomicBool);

impl Drop for SetWhenDropped<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[test]
fn sleeps_are_counted_and_neither_naps_nor_being_preempted() {
    let stops = AtomicBool::new(false);
    let usable = sched_getaffinity(Pid::from_raw(0)).unwrap();
    let mut first = CpuSet::new();
    first.set((0..CpuSet::count()).find(|cpu| usable.is_set(*cpu).unwrap()).unwrap()).unwrap();
    std::thread::scope(|scope| {
        // Both want the same CPU.
        scope.spawn(|| {
            sched_setaffinity(Pid::from_raw(0), &first).unwrap();
            while !stops.load(Ordering::Relaxed) {
                std::hint::spin_loop();
            }
        });
        scope.spawn(|| {
            let _end = SetWhenDropped(&stops);
            let Some(mut cbinfo) = open() else { return };
            sched_setaffinity(Pid::from_raw(0), &first).unwrap();
            cbinfo.follow(std::process::id(), 1).unwrap();
            let own = nix::unistd::gettid().as_raw() as u32;
            let mut sleeps = || {
                let tasks = cbinfo.tasks().unwrap();
                tasks.into_iter().find(|task| task.tid == own).unwrap().sleeps
            };
            let figures = ["voluntary_ctxt_switches", "nonvoluntary_ctxt_switches"];
            let (before, [slept, preempted]) = (sleeps(), figures.map(of_this_thread));
            let deadline = Instant::now() + Duration::from_secs(30);
            while of_this_thread(figures[1]) < preempted + 100 {
                assert!(Instant::now() < deadline, "it is not preempted");
                let until = Instant::now() + Duration::from_millis(40);
                while Instant::now() < until {
                    std::hint::spin_loop();
                }
                // Two within a moment are one.
                (0..2).for_each(|_| std::thread::sleep(Duration::from_millis(1)));
            }
            let (counted, said) = (sleeps() - before, of_this_thread(figures[0]) - slept);
            assert!((2 * counted).abs_diff(said) <= said / 5, "{counted} sleeps of {said}");
        });
    });
}

#[test]
fn speed_weights_what_a_task_receives() {
    if support().is_err() {
        open();
        return;
    }
    let mut cbinfo = Cbinfo::open(&[512; 1024]).unwrap();
    let spinner = shell("while :; do :; done");
    cbinfo.follow(spinner.0.id(), 1).unwrap();
    let task = until(|| {
        let task = cbinfo.tasks().unwrap()[0];
        (task.run_ns > 50_000_000).then_some(task)
    });
    let half = task.received_ns as f64 / task.run_ns as f64;
    assert!((0.49..0.51).contains(&half), "{half}");
}

#[test]
fn the_cost_of_an_event_is_counted() {
    let Some(cbinfo) = open() else { return };
    let statistics = cbinfo.measure_cost().unwrap();
    until(|| (cbinfo.cost().runs > 100).then_some(()));
    let cost = cbinfo.cost();
    drop(statistics);
    let ns_per_run = cost.run_ns / cost.runs;
    // The order of magnitude: 100 ns, not 100 us.
    assert!((10..100_000).contains(&ns_per_run), "{cost:?}");
}

#[test]
fn no_cause_takes_more_time_than_passed() {
    // Regressions: steal was counted since boot, and the exit of an interrupt was missed.
    for _ in 0..5 {
        let Some(cbinfo) = open() else { return };
        let start = Instant::now();
        std::thread::sleep(Duration::from_millis(50));
        let accounts = cbinfo.cpus();
        let elapsed_ns = start.elapsed().as_nanos() as u64;
        for cpu in accounts {
            assert!(cpu.noise.steal_ns <= elapsed_ns, "{cpu:?}");
            assert!(cpu.noise.irq_ns <= elapsed_ns / 2, "{cpu:?}");
        }
    }
}
