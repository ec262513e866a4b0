//! What is watched and when; no kernel is needed.

use super::*;
use crate::reading::TaskReading;
use evenkeel_capability::{CpuView, Seen, TaskId, TaskView};

const INTERVAL_NS: u64 = 100_000_000;

/// CPUs with this much noise, beside so many foreign tasks; and tasks that ran for this long.
fn snapshot(cpus: &[(u64, u32)], ran_percent: &[u64]) -> Snapshot {
    let cpus = (0..).zip(cpus).map(|(cpu, (noise_percent, foreign_milli))| CpuView {
        cpu,
        core: cpu,
        node: 0,
        speed: 1024,
        energy_rank: None,
        noise_ns: INTERVAL_NS * noise_percent / 100,
        rt_ns: 0,
        idle_ns: 0,
        foreign_milli: *foreign_milli,
        rt_milli: 0,
    });
    let tasks = (1..).zip(ran_percent).map(|(tid, percent)| TaskView {
        id: TaskId { tid, start: 1 },
        process: 1,
        cpu: 0,
        queue: 0,
        run_ns: INTERVAL_NS * percent / 100,
        spun_ns: 0,
        samples: 0,
        changes: 0,
        received_ns: 0,
        stolen_ns: 0,
        wait_ns: 0,
        sleeps: 0,
        runnable: true,
        allowed: evenkeel_machine::CpuSet::first(2),
        fixed: false,
        working_set_bytes: None,
    });
    Snapshot {
        interval_ns: INTERVAL_NS,
        cpus: cpus.collect(),
        tasks: tasks.collect(),
        seen: Seen::default(),
    }
}

#[test]
fn only_parallel_programs_on_unequal_cpus_are_watched() {
    let is_worth = |cpus: &[(u64, u32)], ran: &[u64]| is_worth_watching(&snapshot(cpus, ran));
    assert!(is_worth(&[(40, 0), (0, 0)], &[60, 100]));
    assert!(is_worth(&[(0, 1000), (0, 0)], &[50, 100]), "beside a hog");
    assert!(!is_worth(&[(1, 0), (0, 0)], &[100, 100]), "equal CPUs");
    assert!(!is_worth(&[(40, 0), (0, 0)], &[100, 5, 0]), "one task computes");
    assert!(!is_worth(&[(40, 0)], &[50, 50]), "one CPU");
    assert!(!is_worth(&[], &[]));
}

#[test]
fn cpus_without_a_task_that_computes_are_left_alone() {
    let task = |cpu, run_ns| TaskReading { cpu, run_ns, ..TaskReading::default() };
    let tasks = [task(3, MIN_RUN_NS), task(5, MIN_RUN_NS - 1), task(1, u64::MAX)];
    let tasks = (1..).zip(tasks).map(|(tid, task)| (TaskId { tid, start: 1 }, task)).collect();
    let program = ProgramReading { tasks, ..ProgramReading::default() };
    assert_eq!(used_cpus([&program].into_iter()), BTreeSet::from([1, 3]));
    assert_eq!(used_cpus([].into_iter()), BTreeSet::new());
}

#[test]
fn nothing_is_attached_before_there_is_a_reason_and_after_it_has_gone() {
    let mut watch = Watch::default();
    assert!(!watch.is_active());
    watch.attend(1, &snapshot(&[(0, 0), (0, 0)], &[100, 100]), false, 1000);
    assert!(!watch.is_active(), "equal CPUs");
    watch.attend(1, &snapshot(&[(40, 0), (0, 0)], &[60, 100]), false, 1000);
    assert!(watch.is_active());
    watch.forget(1);
    assert!(!watch.is_active());
}

#[test]
fn a_program_is_sampled_often_while_its_tasks_spin_although_they_are_exchanged() {
    let is_often = |spun_ns: u64, has_exchanged: bool, later_ns: u64| {
        let mut watch = Watch::default();
        let mut seen = snapshot(&[(40, 0), (0, 0)], &[60, 100]);
        (seen.tasks[1].samples, seen.tasks[1].spun_ns) = (25, spun_ns);
        watch.attend(1, &seen, has_exchanged, 1000);
        watch.is_any_exchanged_in_vain(1000 + later_ns)
    };
    assert!(is_often(INTERVAL_NS / 2, true, 1_999_999_999));
    assert!(!is_often(INTERVAL_NS / 2, true, 2_000_000_000));
    assert!(!is_often(INTERVAL_NS / 20, true, 0), "they hardly spin");
    assert!(!is_often(INTERVAL_NS / 2, false, 0), "none is moved");
}

#[test]
fn what_cannot_be_seen_is_unverified_with_the_reason() {
    let mut watch = Watch::default();
    watch.attend(1, &snapshot(&[(40, 0), (0, 0)], &[60, 100]), false, 1000);
    let why = |watch: &Watch| {
        let mut reading = Reading::default();
        reading.programs.insert(1, ProgramReading::default());
        watch.fill(&mut reading);
        let watched = reading.programs.remove(&1).and_then(|program| program.watched);
        watched.and_then(|watched| watched.unverified).map(|why| why.to_string())
    };
    assert_eq!(why(&watch).as_deref(), Some("its processes are new"));
    let process = |runtimes: &[&str]| Process {
        program: 1,
        pages: String::new(),
        learned: Vec::new(),
        text: Ok(Text {
            ranges: Vec::new(),
            runtimes: runtimes.iter().map(ToString::to_string).collect(),
        }),
    };
    watch.processes.insert(7, process(&[]));
    assert_eq!(why(&watch).as_deref(), Some(NO_RUNTIME));
    watch.processes.insert(8, process(&["libgomp.so.1"]));
    assert_eq!(why(&watch), None);
    watch.processes.insert(9, Process { text: Err(Rc::from("no room")), ..process(&[]) });
    assert_eq!(why(&watch).as_deref(), Some("no room"));
    watch.give_up(&Error::Missing("part"));
    assert!(watch.has_given_up() && why(&watch).unwrap().contains("rebuild evenkeel"));
}
