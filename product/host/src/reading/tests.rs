//! From readings to snapshots: differences, demand of others, samples, and sources that change.

use super::*;

const PROGRAM: u32 = 1;

fn reading(at_ns: u64, softirq_ns: u64, runnable_ns: u64, run_ns: u64) -> Reading {
    let cpu = CpuReading { softirq_ns, fair_runnable_ns: runnable_ns, ..Default::default() };
    let task = TaskReading { cpu: 0, run_ns, runnable: true, ..Default::default() };
    Reading {
        at_ns,
        cpus: [(0, cpu), (1, CpuReading::default())].into(),
        programs: [(PROGRAM, of_program([(TaskId { tid: 7, start: 1 }, task)]))].into(),
    }
}

fn of_program<const N: usize>(tasks: [(TaskId, TaskReading); N]) -> ProgramReading {
    ProgramReading { tasks: tasks.into(), ..Default::default() }
}

fn facts(cpu: u32) -> CpuFacts {
    CpuFacts { speed: 1024, core: cpu, node: 0, energy_rank: None }
}

fn free(_: TaskId, _: &TaskReading) -> Freedom {
    Freedom { allowed: CpuSet::first(4), fixed: false }
}

#[test]
fn a_snapshot_has_differences_and_own_demand_is_not_foreign() {
    let (earlier, mut later) = (reading(1000, 10, 500, 100), reading(2000, 410, 2100, 700));
    later.cpus.get_mut(&0).unwrap().foreign_ns = 300;
    let snapshot = later.since(&earlier, &[PROGRAM], &CpuSet::first(2), facts, free).unwrap();
    assert_eq!(snapshot.interval_ns, 1000);
    assert_eq!(snapshot.cpus[0].noise_ns, 400);
    // 1600 task-ns were runnable, 600 of them the program's own; but the others ran for 300 only.
    assert_eq!(snapshot.cpus[0].foreign_milli, 300);
    assert_eq!(snapshot.tasks[0].run_ns, 600);
    assert_eq!(snapshot.tasks[0].allowed, CpuSet::first(2));
}

/// Two readings one second apart; the task ran for 600 of 1000 ms, and 30 of 120 samples found it
/// spinning.
fn watched(change: impl Fn(&mut Watched)) -> [Reading; 2] {
    const MS: u64 = 1_000_000;
    let mut both = [reading(MS, 0, 0, 100 * MS), reading(1001 * MS, 0, 0, 700 * MS)];
    for (at, reading) in (0..).zip(&mut both) {
        let program = reading.programs.get_mut(&PROGRAM).unwrap();
        for task in program.tasks.values_mut() {
            (task.samples, task.spun, task.changes) = (80 + 120 * at, 70 + 30 * at, 9 + 4 * at);
        }
        let mut watched = Watched {
            sampled_ns: 600 * MS * at,
            barriers: 5 + 10 * at,
            observed_ns: 20 * MS * (1 + at),
            ..Watched::default()
        };
        change(&mut watched);
        program.watched = Some(watched);
    }
    both
}

#[test]
fn spun_time_is_the_share_of_the_samples_in_the_run_time() {
    let [earlier, later] = watched(|_| {});
    let snapshot = later.since(&earlier, &[PROGRAM], &CpuSet::first(2), facts, free).unwrap();
    let barriers = Some(Barriers { count: 10, observed_ns: 20_000_000 });
    assert_eq!(snapshot.seen, Seen { spinning: true, barriers, ..Seen::default() });
    let TaskView { spun_ns, samples, changes, .. } = snapshot.tasks[0];
    assert_eq!((spun_ns, samples, changes), (150_000_000, 120, 4));
    let waits = later.waits_since(&earlier, PROGRAM);
    assert_eq!(waits, Waits { spinning: Spinning::Seen { samples: 120, spun: 30 }, barriers });
    let [thread] = later.threads_since(&earlier, PROGRAM)[..] else { panic!("one thread") };
    assert_eq!((thread.run_ns, thread.queued_ns, thread.slept_ns), (600_000_000, 0, 400_000_000));
    assert_eq!(thread.spun, Share::of(30, 120));
}

#[test]
fn spinning_that_was_sampled_for_a_short_time_or_cannot_be_told_is_not_seen() {
    let [earlier, later] = watched(|watched| watched.sampled_ns /= 2);
    let snapshot = later.since(&earlier, &[PROGRAM], &CpuSet::first(2), facts, free).unwrap();
    assert_eq!((snapshot.seen.spinning, snapshot.tasks[0].spun_ns), (false, 0));
    assert_eq!(later.waits_since(&earlier, PROGRAM).spinning, Spinning::NotLookedFor);
    assert_eq!(later.threads_since(&earlier, PROGRAM)[0].spun, None);

    let [earlier, later] = watched(|watched| {
        watched.unverified = Some(Rc::from("why"));
        watched.observed_ns = 0;
    });
    let snapshot = later.since(&earlier, &[PROGRAM], &CpuSet::first(2), facts, free).unwrap();
    assert_eq!((snapshot.seen, snapshot.tasks[0].spun_ns), (Seen::default(), 0));
    let why = Spinning::Unverified("why".to_owned());
    assert_eq!(later.waits_since(&earlier, PROGRAM).spinning, why);

    // Not looked for, as at rest.
    let earlier = reading(1000, 0, 0, 100);
    let later = reading(2000, 0, 0, 600);
    assert_eq!(later.waits_since(&earlier, PROGRAM), Waits::default());
}

#[test]
fn counters_go_on_where_those_of_another_source_ended() {
    // The other source has counted for longer, and knew no second task.
    let (last, first) = (reading(1000, 90, 500, 400), reading(1000, 7, 20, 6_000));
    let young = (TaskId { tid: 8, start: 2 }, TaskReading { run_ns: 5, ..Default::default() });
    let mut now = reading(2000, 17, 120, 6_300);
    now.programs.get_mut(&PROGRAM).unwrap().tasks.extend([young]);
    assert_eq!(first.clone().continued(&last, &first).cpus, last.cpus);
    let now = now.continued(&last, &first);
    assert_eq!((now.cpus[&0].softirq_ns, now.cpus[&0].fair_runnable_ns), (100, 600));
    let run_ns: Vec<u64> =
        now.tasks_of(PROGRAM).unwrap().values().map(|task| task.run_ns).collect();
    assert_eq!(run_ns, [700, 5]);
    // So the next snapshot has what was counted since, and no leap.
    let snapshot = now.since(&last, &[PROGRAM], &CpuSet::first(2), facts, free).unwrap();
    assert_eq!((snapshot.tasks[0].run_ns, snapshot.cpus[0].noise_ns), (300, 10));
}

#[test]
fn a_task_that_slept_is_listed_and_its_freedom_is_not_asked() {
    let earlier = reading(1000, 0, 0, 100);
    let is_asked = |change: &dyn Fn(&mut TaskReading)| {
        let mut later = reading(2000, 0, 0, 100);
        let program = later.programs.get_mut(&PROGRAM).unwrap();
        program.tasks.values_mut().for_each(change);
        let mut asked = Vec::new();
        let snapshot = later.since(&earlier, &[PROGRAM], &CpuSet::first(2), facts, |id, task| {
            asked.push(id.tid);
            free(id, task)
        });
        let tasks = snapshot.unwrap().tasks;
        assert_eq!(tasks.len(), 1);
        assert_eq!(tasks[0].may_go_to(1), !asked.is_empty());
        asked == [7]
    };
    assert!(!is_asked(&|task| task.runnable = false));
    assert!(is_asked(&|_| {}));
    // Asleep now, but not all the time.
    assert!(is_asked(&|task| (task.runnable, task.run_ns) = (false, 101)));
    assert!(is_asked(&|task| (task.runnable, task.wait_ns) = (false, 1)));
    assert!(is_asked(&|task| (task.runnable, task.sleeps) = (false, 1)));
}

#[test]
fn another_observed_program_is_foreign() {
    let task = |cpu, run_ns, wait_ns| TaskReading { cpu, run_ns, wait_ns, ..Default::default() };
    let id = |tid| TaskId { tid, start: 1 };
    let reading = |at_ns, ours, theirs, runnable_ns| {
        let cpu = CpuReading { fair_runnable_ns: runnable_ns, ..Default::default() };
        Reading {
            at_ns,
            cpus: [(0, cpu), (1, CpuReading::default())].into(),
            programs: [(1, of_program([(id(7), ours)])), (2, of_program([(id(8), theirs)]))].into(),
        }
    };
    let start = reading(1000, task(0, 0, 0), task(1, 0, 0), 0);
    // Both share CPU 0, and the other program gets twice as much.
    let mut end = reading(2000, task(0, 300, 600), task(0, 600, 300), 1800);
    end.go_on_from(&start);
    let of = |program| end.since(&start, &[program], &CpuSet::first(2), facts, free).unwrap();
    assert_eq!(of(1).tasks.iter().map(|task| task.id.tid).collect::<Vec<_>>(), [7]);
    assert_eq!([of(1).cpus[0].foreign_milli, of(2).cpus[0].foreign_milli], [1800, 450]);
    // Together they have no competitor.
    let both = end.since(&start, &[1, 2], &CpuSet::first(2), facts, free).unwrap();
    assert_eq!((both.cpus[0].foreign_milli, both.tasks.len()), (0, 2));
    // The other program has ended: the time that it used stays used.
    let mut later = reading(3000, task(0, 1300, 600), task(0, 0, 0), 2800);
    later.programs.remove(&2);
    later.go_on_from(&end);
    let after = later.since(&end, &[1], &CpuSet::first(2), facts, free).unwrap();
    assert_eq!((after.cpus[0].foreign_milli, after.tasks[0].run_ns), (0, 1000));
    assert_eq!(later.cpus[&0].observed_ns, 1900);
}

#[test]
fn a_program_that_joins_late_is_no_crowd() {
    const S: u64 = 1_000_000_000;
    let task = |run_ns, wait_ns| TaskReading { run_ns, wait_ns, ..Default::default() };
    let id = |tid| TaskId { tid, start: 1 };
    let reading = |at_ns, tasks| Reading {
        at_ns,
        cpus: [(0, CpuReading::default())].into(),
        programs: [(1, of_program([(id(7), tasks)]))].into(),
    };
    let start = reading(S, task(0, 0));
    let mut end = reading(2 * S, task(S / 2, S / 2));
    end.programs.insert(2, of_program([(id(8), task(3600 * S, 0))]));
    end.go_on_from(&start);
    // A figure that makes no sense does not look like a small one.
    end.cpus.get_mut(&0).unwrap().rt_runnable_ns = u64::MAX;
    let of = |program| end.since(&start, &[program], &CpuSet::first(1), facts, free).unwrap();
    // It can have had the whole CPU, twice what the first program got.
    assert_eq!((of(1).cpus[0].foreign_milli, of(1).cpus[0].rt_milli), (2000, u32::MAX));
    assert_eq!(of(2).tasks[0].run_ns, S);
}

#[test]
fn a_task_that_joins_late_has_not_slept_thousands_of_times() {
    const S: u64 = 1_000_000_000;
    let task = |sleeps| TaskReading { sleeps, runnable: true, ..TaskReading::default() };
    let id = |tid| TaskId { tid, start: 1 };
    let start = Reading { at_ns: S, ..Reading::default() };
    let old_and_new = of_program([(id(7), task(1_000_000)), (id(8), task(3))]);
    let end = Reading { at_ns: 2 * S, programs: [(1, old_and_new)].into(), ..Reading::default() };
    let snapshot = end.since(&start, &[1], &CpuSet::first(1), facts, free).unwrap();
    let sleeps: Vec<u32> = snapshot.tasks.iter().map(|task| task.sleeps).collect();
    assert_eq!(sleeps, [201, 3], "one every 5 ms, and one at each end");
}

#[test]
fn a_cpu_that_comes_online_has_lost_nothing_before() {
    let (mut earlier, later) = (reading(1000, 0, 0, 0), reading(2000, 900, 5000, 0));
    earlier.cpus.remove(&0);
    let snapshot = later.since(&earlier, &[PROGRAM], &CpuSet::first(2), facts, free).unwrap();
    assert_eq!((snapshot.cpus[0].cpu, snapshot.cpus[0].noise_ns), (0, 0));
    assert_eq!(snapshot.cpus[0].foreign_milli, 0);
}

#[test]
fn unusable_cpus_and_empty_intervals_are_left_out() {
    let (earlier, later) = (reading(1000, 0, 0, 0), reading(2000, 0, 0, 0));
    let one: CpuSet = [1].into_iter().collect();
    let snapshot = later.since(&earlier, &[PROGRAM], &one, facts, free).unwrap();
    assert_eq!(snapshot.cpus.iter().map(|cpu| cpu.cpu).collect::<Vec<_>>(), [1]);
    assert!(later.since(&later, &[PROGRAM], &one, facts, free).is_none());
    assert!(earlier.since(&later, &[PROGRAM], &one, facts, free).is_none());
}

/// The kernel's side counts what the policy takes for one sleep.
#[test]
fn what_is_one_sleep_is_the_same_on_both_sides() {
    let header = include_str!("../../../../bpf/cbinfo/cbinfo.h");
    let defined = format!("#define ONE_SLEEP_NS {}\n", evenkeel_capability::ONE_SLEEP_NS);
    assert!(header.contains(&defined), "{defined}");
}
