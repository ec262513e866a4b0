//! Properties of the plan for any snapshot, under both policies.

#![allow(clippy::expect_used, reason = "tests")]

mod common;

use std::collections::{BTreeMap, BTreeSet};

use common::{INTERVAL_NS, MS, apply, cpu, decide, moves, task};
use evenkeel_capability::{
    Barriers, CpuView, LagParameters, PaperParameters, Plan, Policy, Preference, Reason, Seen,
    Selection, Snapshot, State, TaskId, TaskView, plan,
};
use evenkeel_machine::CpuSet;
use proptest::prelude::*;

const MAX_CPUS: u32 = 12;

/// Any policy with valid parameters.
fn any_policy() -> impl Strategy<Value = Policy> {
    prop_oneof![
        Just(Policy::Lag(LagParameters::default())),
        Just(Policy::Lag(LagParameters::default().for_ticks())),
        (1u64..3_000).prop_map(|ms| Policy::Lag(LagParameters::fixed(ms * MS))),
        Just(Policy::Lag(LagParameters {
            prefer: Preference::Efficient,
            ..LagParameters::default()
        })),
        Just(Policy::Paper(PaperParameters::default())),
        Just(Policy::Paper(PaperParameters {
            interval_ns: 100 * MS,
            selection: Selection::Cache,
            placed_at_start: true,
        })),
    ]
}

fn any_cpu(number: u32) -> impl Strategy<Value = CpuView> {
    let rt_ns = prop_oneof![9 => 0..INTERVAL_NS / 2, 1 => Just(2 * INTERVAL_NS)];
    let taken = (0..INTERVAL_NS * 11 / 10, rt_ns);
    // A core of its own, or shared by two.
    let core = prop_oneof![Just(number), Just(number / 2)];
    let speed = (1u32..=1024, prop::option::weighted(0.95, 0u32..3));
    (core, 0u32..3, speed, taken, 0u32..4000, 0u32..1500).prop_map(
        move |(core, node, (speed, energy_rank), (noise_ns, rt_ns), foreign_milli, rt_milli)| {
            CpuView {
                core,
                node,
                speed,
                energy_rank,
                noise_ns,
                rt_ns,
                foreign_milli,
                rt_milli,
                ..cpu(number)
            }
        },
    )
}

fn any_task(tid: u32) -> impl Strategy<Value = TaskView> {
    let mask = prop_oneof![3 => Just(CpuSet::first(64)), 1 => any::<u16>().prop_map(|bits| {
        CpuSet::from_words(&[u64::from(bits)])
    })];
    (
        0..MAX_CPUS + 2,
        mask,
        prop::bool::weighted(0.15),
        prop::bool::weighted(0.8),
        (0..=100u64, 0..=100u64, 0..=100u64, 0..=120u64),
        0u32..40,
        prop::option::of(0u64..1 << 30),
        0u64..50,
    )
        .prop_map(
            move |(
                cpu,
                allowed,
                fixed,
                runnable,
                (run, stolen, wait, spun),
                sleeps,
                set,
                queue,
            )| {
                TaskView {
                    allowed,
                    fixed,
                    runnable,
                    run_ns: INTERVAL_NS / 100 * run,
                    spun_ns: INTERVAL_NS / 10_000 * run * spun,
                    samples: (run * spun) as u32 % 64,
                    changes: sleeps % 64,
                    received_ns: INTERVAL_NS / 100 * run,
                    stolen_ns: INTERVAL_NS / 100 * stolen.min(100 - run),
                    wait_ns: INTERVAL_NS / 100 * wait.min(100 - run),
                    sleeps,
                    working_set_bytes: set,
                    queue,
                    ..task(tid, cpu)
                }
            },
        )
}

fn any_seen() -> impl Strategy<Value = Seen> {
    let barriers = prop::option::of((0..200u32, 0..=INTERVAL_NS));
    let kinds = (any::<bool>(), any::<bool>(), any::<bool>());
    (kinds, barriers).prop_map(|((spinning, redefined, asked), barriers)| Seen {
        spinning,
        may_be_told: !spinning,
        redefined,
        asked,
        barriers: barriers.map(|(count, observed_ns)| Barriers { count, observed_ns }),
    })
}

fn any_snapshot() -> impl Strategy<Value = Snapshot> {
    (1..=MAX_CPUS, 0..=40u32).prop_flat_map(|(cpus, tasks)| {
        let cpus: Vec<_> = (0..cpus).map(any_cpu).collect();
        let tasks: Vec<_> = (0..tasks).map(|tid| any_task(tid + 1)).collect();
        (cpus, tasks, any_seen()).prop_map(|(cpus, tasks, seen)| Snapshot {
            interval_ns: INTERVAL_NS,
            cpus,
            tasks,
            seen,
        })
    })
}

/// A snapshot of tasks that compute all the time and may use any CPU, on CPUs without hogs.
fn busy_snapshot() -> impl Strategy<Value = Snapshot> {
    (1..=MAX_CPUS, 0..=40u32).prop_flat_map(|(count, tasks)| {
        let percents = prop::collection::vec(5..=100u64, count as usize);
        let places = prop::collection::vec(0..count, tasks as usize);
        (percents, places).prop_map(|(percents, places)| {
            common::snapshot(
                (0..).zip(percents).map(|(cpu, percent)| common::noisy(cpu, percent)).collect(),
                (1..).zip(places).map(|(tid, cpu)| task(tid, cpu)).collect(),
            )
        })
    })
}

/// Checks the rules for every plan.
fn check(plan: &Plan, snapshot: &Snapshot, policy: &Policy) {
    let tasks: BTreeMap<TaskId, &TaskView> =
        snapshot.tasks.iter().map(|task| (task.id, task)).collect();
    let usable: BTreeSet<u32> = snapshot.cpus.iter().map(|view| view.cpu).collect();
    let mut moved = BTreeSet::new();
    for made in &plan.moves {
        let task = tasks[&made.task];
        assert!(!task.fixed, "a fixed task is moved: {made:?}");
        assert!(
            task.allowed.contains(made.to),
            "a task is moved to a CPU that its mask forbids: {made:?}"
        );
        assert!(usable.contains(&made.to), "a task is moved to a CPU that is not listed: {made:?}");
        assert_eq!(task.cpu, made.from, "{made:?}");
        assert_ne!(made.from, made.to);
        let starved = |view: &&CpuView| view.is_starved(snapshot.interval_ns);
        let has_rest = !snapshot.cpus.iter().filter(starved).any(|view| view.cpu == made.to);
        // The paper counts a real-time task like any other task.
        let is_paper = matches!(policy, Policy::Paper(_));
        assert!(has_rest || is_paper, "a task is moved to where real-time tasks run: {made:?}");
        assert!(moved.insert(made.task), "moved twice: {made:?}");
        assert!(!made.reason.to_string().is_empty());
    }
    // An exchange is two consecutive moves in opposite directions.
    let halves: Vec<_> = plan
        .moves
        .iter()
        .filter(|made| {
            let alone = |reason: &Reason| {
                matches!(
                    reason,
                    Reason::MoreRoom { .. }
                        | Reason::LessEnergy { .. }
                        | Reason::Pull { .. }
                        | Reason::Placed { .. }
                )
            };
            !alone(&made.reason)
        })
        .collect();
    assert_eq!(halves.len() % 2, 0);
    for pair in halves.chunks(2) {
        assert_eq!((pair[0].from, pair[0].to), (pair[1].to, pair[1].from));
    }
    assert!(!plan.moves.is_empty() || !plan.reasons.is_empty(), "neither moves nor reasons");
    let place_of = |task: TaskId| {
        let made = plan.moves.iter().find(|made| made.task == task);
        made.map_or(tasks[&task].cpu, |made| made.to)
    };
    let mut pinned = BTreeSet::new();
    for pin in &plan.pins {
        assert_eq!(pin.cpu, place_of(pin.task), "a pin must not move a task: {pin:?}");
        let task = tasks[&pin.task];
        assert!(!task.fixed && task.allowed.contains(pin.cpu) && usable.contains(&pin.cpu));
        assert!(pinned.insert(pin.task), "pinned twice: {pin:?}");
    }
    let may_pin = match policy {
        Policy::Lag(LagParameters { prefer: Preference::Efficient, .. }) => true,
        Policy::Lag(_) => tasks.len() > usable.len(),
        Policy::Paper(_) => false,
    };
    assert!(plan.pins.is_empty() || may_pin, "{plan:?}");
    match policy {
        Policy::Paper(parameters) => assert_eq!(plan.interval_ns, parameters.interval_ns),
        Policy::Lag(parameters) => assert!(
            (parameters.min_interval_ns..=parameters.max_interval_ns).contains(&plan.interval_ns)
        ),
    }
}

fn room_moves(plan: &Plan) -> usize {
    plan.moves.iter().filter(|made| matches!(made.reason, Reason::MoreRoom { .. })).count()
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn every_plan_obeys_the_rules(
        policy in any_policy(),
        snapshots in prop::collection::vec(any_snapshot(), 1..6),
    ) {
        let mut state = State::new(policy.clone());
        for snapshot in &snapshots {
            // Every asymmetry is confirmed by the third time.
            for _ in 0..3 {
                let plan = decide(snapshot, &mut state);
                check(&plan, snapshot, &policy);
                for (_, lag_ns) in state.lags_ns() {
                    prop_assert!(lag_ns <= 20_000 * MS);
                }
            }
        }
    }

    #[test]
    fn the_order_of_the_input_does_not_matter(
        policy in any_policy(),
        mut snapshots in prop::collection::vec(any_snapshot(), 1..4),
        seed in any::<u64>(),
    ) {
        let (mut state, mut other) = (State::new(policy.clone()), State::new(policy));
        let mut dice = common::Dice(seed);
        for snapshot in &mut snapshots {
            let mut shuffled = snapshot.clone();
            for index in (1..shuffled.cpus.len()).rev() {
                shuffled.cpus.swap(index, dice.below(index as u64 + 1) as usize);
            }
            for index in (1..shuffled.tasks.len()).rev() {
                shuffled.tasks.swap(index, dice.below(index as u64 + 1) as usize);
            }
            for _ in 0..3 {
                let (one, two) = (decide(snapshot, &mut state), decide(&shuffled, &mut other));
                prop_assert_eq!(one, two);
            }
        }
    }

    #[test]
    fn moves_for_more_room_come_in_one_plan(mut snapshot in busy_snapshot()) {
        let mut state = State::new(Policy::Lag(LagParameters::default()));
        let mut seen = Vec::new();
        for _ in 0..6 {
            let plan = decide(&snapshot, &mut state);
            seen.push(room_moves(&plan));
            apply(&plan, &mut snapshot);
        }
        // Unconfirmed once or twice, then all moves, then no more.
        let first = seen.iter().position(|moves| *moves > 0).unwrap_or(2);
        prop_assert!([1, 2].contains(&first), "{:?}", seen);
        prop_assert!(seen[first + 1..].iter().all(|moves| *moves == 0), "{:?}", seen);
    }

    #[test]
    fn moves_for_more_room_end_with_masks_and_hogs_too(mut snapshot in any_snapshot()) {
        // The same figures again and again: no task may move for ever.
        for task in &mut snapshot.tasks {
            (task.run_ns, task.wait_ns, task.stolen_ns) = (INTERVAL_NS, 0, 0);
            (task.received_ns, task.runnable) = (INTERVAL_NS, true);
        }
        let mut state = State::new(Policy::Lag(LagParameters::default()));
        let mut last = 0;
        for _ in 0..12 {
            let plan = decide(&snapshot, &mut state);
            last = room_moves(&plan);
            apply(&plan, &mut snapshot);
        }
        prop_assert_eq!(last, 0);
    }

    #[test]
    fn a_symmetric_machine_with_equal_counts_is_left_alone(
        policy in any_policy(),
        cpus in 1..=MAX_CPUS,
        per_cpu in 1..4u32,
        percent in 1..=100u64,
        fixed in any::<u64>(),
        seen in any_seen(),
    ) {
        let tasks = (0..cpus * per_cpu).map(|tid| {
            let task = common::received(task(tid + 1, tid % cpus), percent);
            TaskView { fixed: fixed >> tid & 1 == 1, ..task }
        });
        let mut snapshot = common::snapshot(
            (0..cpus).map(|cpu| common::noisy(cpu, percent)).collect(),
            tasks.collect(),
        );
        snapshot.seen = seen;
        let mut state = State::new(policy.clone());
        let mut interval_ns = 0;
        for _ in 0..30 {
            let plan = decide(&snapshot, &mut state);
            prop_assert_eq!(moves(&plan), []);
            interval_ns = plan.interval_ns;
        }
        if let Policy::Lag(parameters) = policy {
            prop_assert_eq!(interval_ns, parameters.max_interval_ns);
        }
    }

    #[test]
    fn hostile_figures_do_no_harm(
        policy in any_policy(),
        numbers in prop::collection::vec(prop_oneof![
            Just(0), Just(1), Just(u64::MAX), Just(u64::MAX / 2 + 1), any::<u64>()
        ], 60),
        (least, most, cost, tolerance) in any::<(u64, u64, u64, u64)>(),
    ) {
        let policy = match policy {
            Policy::Lag(_) => Policy::Lag(LagParameters {
                min_interval_ns: least.max(1),
                max_interval_ns: most.max(least).max(1),
                tolerance_ppm: tolerance,
                move_cost_ns: cost,
                remote_loss_ppm: numbers[0],
                prefer: if numbers[1] % 2 == 0 { Preference::Capable } else { Preference::Efficient },
            }),
            other => other,
        };
        let mut next = numbers.iter().copied().cycle();
        let mut number = || next.next().unwrap_or(0);
        let mut state = State::new(policy.clone());
        for _ in 0..5 {
            let cpus = (0..3).map(|cpu| CpuView {
                cpu: [0, 4_000, 8_191][cpu],
                core: number() as u32,
                node: number() as u32,
                speed: (number() % 1024) as u32 + 1,
                energy_rank: Some(number() as u32),
                noise_ns: number(),
                rt_ns: number(),
                idle_ns: number(),
                foreign_milli: number() as u32,
                rt_milli: number() as u32,
            });
            let cpus: Vec<_> = cpus.collect();
            let tasks = (0..6).map(|tid| TaskView {
                run_ns: number(),
                spun_ns: number(),
                samples: number() as u32,
                changes: number() as u32,
                received_ns: number(),
                stolen_ns: number(),
                wait_ns: number(),
                sleeps: number() as u32,
                queue: number(),
                allowed: [0, 4_000, 8_191].into_iter().collect(),
                ..task(tid, [0, 0, 4_000, 4_000, 8_191, u32::MAX][tid as usize])
            });
            let tasks: Vec<_> = tasks.collect();
            let barriers = Some(Barriers { count: number() as u32, observed_ns: number() });
            let seen = Seen { spinning: true, barriers, ..Seen::default() };
            let snapshot = Snapshot { interval_ns: number().max(1), cpus, tasks, seen };
            let plan = decide(&snapshot, &mut state);
            check(&plan, &snapshot, &policy);
            let _ = evenkeel_capability::average_per_mille(&snapshot);
        }
    }

    #[test]
    fn a_refused_snapshot_leaves_the_state_as_it_was(
        policy in any_policy(),
        good in any_snapshot(),
        twin in any::<prop::sample::Index>(),
    ) {
        prop_assume!(!good.tasks.is_empty());
        let mut bad = good.clone();
        bad.tasks.push(bad.tasks[twin.index(bad.tasks.len())].clone());
        let (mut state, mut other) = (State::new(policy.clone()), State::new(policy));
        decide(&good, &mut state);
        decide(&good, &mut other);
        prop_assert!(plan(&bad, &mut state).is_err());
        prop_assert_eq!(format!("{state:?}"), format!("{other:?}"));
        prop_assert_eq!(plan(&good, &mut state), plan(&good, &mut other));
    }
}
