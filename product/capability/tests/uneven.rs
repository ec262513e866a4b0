//! Tasks of unequal work in a split: which of them change places, on snapshots that the tests build.

#![allow(clippy::expect_used, reason = "tests")]

mod common;

use common::{INTERVAL_NS, MS, cpu, decide, fixed, noisy, snapshot, task};
use evenkeel_capability::{
    Barriers, CpuView, LagParameters, Policy, Reason, Seen, Snapshot, State, TaskView,
};

/// Tasks on two CPUs of 60 % and 100 %, in many short phases.
struct Split {
    cpus: Vec<CpuView>,
    /// CPU of each task, and what it does of each phase, in hundredths of an iteration.
    tasks: Vec<(u32, u64)>,
    phase_ms: u64,
    spins: bool,
    is_fixed: bool,
}

impl Split {
    /// The iterations of the tasks of each CPU.
    fn new(slow: &[u64], fast: &[u64]) -> Self {
        let on = |cpu: u32, parts: &[u64]| -> Vec<(u32, u64)> {
            parts.iter().map(|part| (cpu, part * 100)).collect()
        };
        let tasks = [on(0, slow), on(1, fast)].concat();
        let cpus = vec![noisy(0, 60), cpu(1)];
        Self { cpus, tasks, phase_ms: 1, spins: false, is_fixed: false }
    }

    fn snapshot(&self) -> Snapshot {
        let part_ns = INTERVAL_NS / 2_000;
        let view = |(tid, (cpu, part)): (u32, &(u32, u64))| {
            let run_ns = part * part_ns;
            let spun_ns = if self.spins { run_ns / 10 } else { 0 };
            let wait_ns = INTERVAL_NS - run_ns - INTERVAL_NS / 10;
            let (received_ns, sleeps) = (run_ns, 9);
            let view = task(tid, *cpu);
            let view = TaskView { run_ns, received_ns, spun_ns, wait_ns, sleeps, ..view };
            if self.is_fixed { fixed(view) } else { view }
        };
        let tasks = (1..).zip(&self.tasks).map(view).collect();
        let count = (INTERVAL_NS / (self.phase_ms * MS)) as u32;
        let barriers = Some(Barriers { count, observed_ns: INTERVAL_NS });
        let seen = Seen { spinning: true, asked: true, barriers, ..Seen::default() };
        Snapshot { seen, ..snapshot(self.cpus.clone(), tasks) }
    }

    /// The first exchange: the iterations of its tasks, and how many moves it takes.
    fn exchange(&self) -> (Vec<u64>, usize) {
        let mut state = State::new(Policy::Lag(LagParameters::default()));
        let view = self.snapshot();
        let plans: Vec<_> = (0..8).map(|_| decide(&view, &mut state)).collect();
        let is_uneven = |reason: &Reason| matches!(reason, Reason::Uneven { .. });
        let first = plans.iter().find(|plan| !plan.moves.is_empty());
        let made = first.map(|plan| &plan.moves[..]).unwrap_or_default();
        assert!(made.iter().all(|made| is_uneven(&made.reason)), "{made:?}");
        let part = |tid: u32| self.tasks[tid as usize - 1].1.div_ceil(100);
        (made.iter().map(|made| part(made.task.tid)).collect(), made.len())
    }
}

#[test]
fn tasks_of_more_and_less_work_change_places_if_phases_become_shorter() {
    for (slow, fast, exchanged) in [
        // 9 / 0.6 against 13: one of less work comes.
        (&[3, 3, 3][..], &[3, 3, 3, 2, 2][..], &[3, 2][..]),
        // 7 / 0.6 against 15: one of less work leaves.
        (&[3, 2, 2], &[3, 3, 3, 3, 3], &[3, 2]),
        // 8 / 0.6 against 14 is as good as it can be.
        (&[3, 3, 2], &[3, 3, 3, 3, 2], &[]),
        (&[3, 3, 3], &[3, 3, 3, 3, 3], &[]),
        // The first one works alone between phases: what its neighbours do takes no longer for that.
        (&[3, 3, 2], &[6, 3, 3, 3, 2], &[]),
        (&[6, 3, 3], &[3, 3, 3, 2, 2], &[3, 2]),
    ] {
        let split = Split::new(slow, fast);
        let (mut parts, _) = split.exchange();
        parts.sort_unstable_by(|a, b| b.cmp(a));
        let parts: Vec<u64> = parts.into_iter().map(|part| part.min(3)).collect();
        assert_eq!(parts, exchanged, "{slow:?}, {fast:?}");
    }
}

#[test]
fn tasks_stay_where_their_work_is_not_known_or_another_cpu_is_not_theirs() {
    let uneven = || Split::new(&[3, 3, 3], &[3, 3, 3, 2, 2]);
    assert_eq!(uneven().exchange().1, 2);
    // A phase that an interval cuts is too much of what was seen of them.
    assert_eq!(Split { phase_ms: 50, ..uneven() }.exchange().1, 0);
    // They take time from each other while they wait.
    assert_eq!(Split { spins: true, ..uneven() }.exchange().1, 0);
    assert_eq!(Split { is_fixed: true, ..uneven() }.exchange().1, 0);
}

#[test]
fn only_a_cpu_that_takes_too_long_gives_and_takes() {
    let mut split = Split::new(&[3, 3, 3], &[3, 3, 3, 2, 2]);
    // Others take as long as they should, within one in a hundred.
    for (number, parts) in [(2, [305, 303, 302, 300, 200]), (3, [300, 299, 298, 297, 196])] {
        split.cpus.push(cpu(number));
        split.tasks.extend(parts.map(|part| (number, part)));
    }
    let (parts, moves) = split.exchange();
    assert_eq!((parts.iter().max(), parts.iter().min(), moves), (Some(&3), Some(&2), 2));
}
