//! The weights by which a program's loops are divided: of each CPU, what it gives to one thread of the
//! program there (paper 000, ECPT). That is its capability for as much of the time as the threads there
//! had the CPU when they wanted it or, where that cannot be told, its capability divided by the number
//! of tasks. (The kernel does not divide by their number: a task that wakes often for a moment takes
//! less.) Pure, like the policies. `evenkeel run --shares` hands the weights to the program, and keeps
//! its threads on their CPUs meanwhile.
//!
//! Iterations that go to another thread find their data in another cache, so weights change seldom:
//! they become unequal once the CPUs differ by more than the tolerance, for as many intervals as `lag`
//! asks for; they follow the CPUs where these have changed by more than a few percent; and they are
//! exactly equal again once the CPUs are.

use std::collections::{BTreeMap, BTreeSet};

use crate::lag::{CONFIRMATIONS, HYSTERESIS_PERCENT, LARGE_FACTOR, SMT_LOSS_PPM, above};
use crate::plan::Pin;
use crate::snapshot::{CpuView, Snapshot, TaskId, TaskView};

/// The weight of the CPU that gives most, and of all CPUs where they are alike.
pub const WHOLE_WEIGHT: u32 = 1024;

/// Figures of a CPU are averaged over this time.
const RECENT_NS: u64 = 1_000_000_000;
/// Weights follow a CPU that gives so much more or less than its weight says, in parts per million.
const DRIFT_PPM: u64 = 30_000;
const ALL_PPM: u64 = 1_000_000;

/// Where the threads of a program's teams stay.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Places {
    /// Threads to keep on a CPU: on their own, or on one without a thread.
    pub pins: Vec<Pin>,
    /// How many threads each CPU then has, those included that their user has pinned.
    counts: BTreeMap<u32, u64>,
    /// How far each CPU served the threads that are there now.
    served: BTreeMap<u32, Served>,
}

/// For how long the threads on a CPU wanted it in an interval, and had it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Served {
    threads: u64,
    demand_ns: u64,
    /// The time that interrupts and steal took meanwhile included: by /proc it cannot be told apart.
    on_cpu_ns: u64,
}

impl Served {
    /// What a thread gets of a CPU that gives so much to the task that has it.
    fn share_of(self, given_ppm: u64) -> u64 {
        let got = u128::from(given_ppm) * u128::from(self.on_cpu_ns.min(self.demand_ns));
        // Not more than what the CPU gives.
        (got / u128::from(self.demand_ns.max(1))) as u64
    }
}

impl Places {
    /// One thread for each CPU as far as possible: a thread stays where it is, unless another one is
    /// there, too, and a CPU of the program has none. Threads that do not compute are left out.
    pub fn of(snapshot: &Snapshot, members: &BTreeSet<TaskId>) -> Self {
        let usable: BTreeSet<u32> = snapshot.cpus.iter().map(|cpu| cpu.cpu).collect();
        let computes = |task: &&TaskView| {
            members.contains(&task.id)
                && usable.contains(&task.cpu)
                && task.computes(snapshot.interval_ns)
        };
        let may_leave = |task: &TaskView| {
            !task.fixed && task.allowed.iter().any(|cpu| cpu != task.cpu && usable.contains(&cpu))
        };
        let mut tasks: Vec<&TaskView> = snapshot.tasks.iter().filter(computes).collect();
        tasks.sort_unstable_by_key(|task| (may_leave(task), task.id));
        let mut places = Self::default();
        let mut crowded = Vec::new();
        for task in tasks {
            let served = places.served.entry(task.cpu).or_default();
            served.threads += 1;
            served.demand_ns = served.demand_ns.saturating_add(task.demand_ns());
            let on_cpu_ns = task.run_ns.saturating_add(task.stolen_ns);
            served.on_cpu_ns = served.on_cpu_ns.saturating_add(on_cpu_ns);
            let count = places.counts.entry(task.cpu).or_default();
            if !may_leave(task) {
                *count += 1;
            } else if *count == 0 {
                *count = 1;
                places.pins.push(Pin { task: task.id, cpu: task.cpu });
            } else {
                crowded.push(task);
            }
        }
        let mut free: Vec<&CpuView> =
            snapshot.cpus.iter().filter(|cpu| !places.counts.contains_key(&cpu.cpu)).collect();
        free.sort_by_key(|cpu| {
            (cpu.effective_ns(snapshot.interval_ns), std::cmp::Reverse(cpu.cpu))
        });
        for task in crowded {
            let best = free.iter().rposition(|cpu| task.allowed.contains(cpu.cpu));
            let cpu = best.map_or(task.cpu, |place| free.remove(place).cpu);
            *places.counts.entry(cpu).or_default() += 1;
            places.pins.push(Pin { task: task.id, cpu });
        }
        places
    }

    fn count(&self, cpu: u32) -> u64 {
        self.counts.get(&cpu).copied().unwrap_or(0)
    }

    /// How far a CPU served its threads; none where other threads will be there than were.
    fn served(&self, cpu: u32) -> Option<Served> {
        self.served.get(&cpu).copied().filter(|served| served.threads == self.count(cpu))
    }
}

/// Weighs the CPUs of one program.
#[derive(Debug, Clone)]
pub struct Weighing {
    tolerance_ppm: u64,
    /// By CPU number.
    cpus: Vec<Supply>,
    /// Intervals in which the CPUs differed.
    rounds: u32,
    /// What is in force, by CPU number.
    weights: Vec<(u32, u32)>,
    is_unequal: bool,
    spread_ppm: u64,
}

/// What a CPU gives.
#[derive(Debug, Clone, Copy)]
struct Supply {
    cpu: u32,
    core: u32,
    /// Share of the fastest CPU undisturbed that is there for fair-class tasks.
    effective_ppm: u64,
    /// Tasks of other programs, in thousandths.
    foreign_milli: u64,
    /// What it gives to a thread of the program by how far it served those that are there; not known
    /// where none is.
    served_ppm: Option<u64>,
    /// The time over which it is averaged.
    seen_ns: u64,
}

impl Weighing {
    /// CPUs that differ by less than the tolerance, in parts per million of the better one, are alike.
    pub fn new(tolerance_ppm: u64) -> Self {
        Self {
            tolerance_ppm,
            cpus: Vec::new(),
            rounds: 0,
            weights: Vec::new(),
            is_unequal: false,
            spread_ppm: 0,
        }
    }

    /// Takes another tolerance from now on.
    pub fn set_tolerance(&mut self, tolerance_ppm: u64) {
        self.tolerance_ppm = tolerance_ppm;
    }

    /// Takes in the interval that ended. The threads of the program's teams are in these places.
    pub fn weigh(&mut self, snapshot: &Snapshot, places: &Places) {
        self.smooth(snapshot, places);
        let rates: Vec<(u32, u64)> =
            self.cpus.iter().map(|supply| (supply.cpu, self.rate_ppm(supply, places))).collect();
        // CPUs without a thread of a team have no part in it.
        let used = || rates.iter().filter(|(cpu, _)| places.count(*cpu) > 0).map(|(_, rate)| *rate);
        let (worst_ppm, best_ppm) = (used().min().unwrap_or(0), used().max().unwrap_or(0));
        self.spread_ppm = best_ppm - worst_ppm;
        let tolerance_ppm = match self.is_unequal {
            true => self.tolerance_ppm.saturating_mul(HYSTERESIS_PERCENT) / 100,
            false => self.tolerance_ppm,
        };
        if !above(best_ppm, worst_ppm, tolerance_ppm) {
            self.rounds = 0;
            self.level();
            return;
        }
        self.rounds = self.rounds.saturating_add(1);
        let is_large = above(best_ppm, worst_ppm, tolerance_ppm.saturating_mul(LARGE_FACTOR));
        if !self.is_unequal && self.rounds < CONFIRMATIONS - u32::from(is_large) {
            self.level();
            return;
        }
        let most_ppm = rates.iter().map(|(_, rate)| *rate).max().unwrap_or(0).max(1);
        let wanted: Vec<(u32, u32)> = rates
            .iter()
            .map(|(cpu, rate)| {
                let weight = u64::from(WHOLE_WEIGHT) * rate / most_ppm;
                // Never above the whole: the quotient of a part and its whole.
                (*cpu, (weight as u32).max(1))
            })
            .collect();
        if !self.is_unequal || self.has_drifted(&wanted) {
            self.weights = wanted;
        }
        self.is_unequal = true;
    }

    /// The weight of each CPU of the program, 1 to 1024.
    pub fn weights(&self) -> &[(u32, u32)] {
        &self.weights
    }

    /// The same, where all CPUs are alike.
    pub fn equal(&self) -> impl Iterator<Item = (u32, u32)> {
        self.cpus.iter().map(|supply| (supply.cpu, WHOLE_WEIGHT))
    }

    /// Whether weights differ.
    pub fn is_unequal(&self) -> bool {
        self.is_unequal
    }

    /// Difference between what the best and the worst CPU with a thread of the program give to it, in
    /// parts per million of the fastest CPU undisturbed.
    pub fn spread_ppm(&self) -> u64 {
        self.spread_ppm
    }

    fn level(&mut self) {
        self.is_unequal = false;
        self.weights = self.equal().collect();
    }

    fn has_drifted(&self, wanted: &[(u32, u32)]) -> bool {
        self.weights.len() != wanted.len()
            || self.weights.iter().zip(wanted).any(|(now, wanted)| {
                let (low, high) = (now.1.min(wanted.1), now.1.max(wanted.1));
                now.0 != wanted.0 || above(high.into(), low.into(), DRIFT_PPM)
            })
    }

    fn rate_ppm(&self, supply: &Supply, places: &Places) -> u64 {
        let tasks_milli = places.count(supply.cpu).max(1) * 1000 + supply.foreign_milli;
        let ppm = supply.served_ppm.unwrap_or(supply.effective_ppm * 1000 / tasks_milli);
        let is_sibling = |other: &&Supply| other.core == supply.core && other.cpu != supply.cpu;
        let mut siblings = self.cpus.iter().filter(is_sibling);
        let is_shared = siblings.any(|other| places.count(other.cpu) > 0);
        if is_shared { ppm * (ALL_PPM - SMT_LOSS_PPM) / ALL_PPM } else { ppm }
    }

    /// Takes in the figures of the CPUs; those that are gone are forgotten.
    fn smooth(&mut self, snapshot: &Snapshot, places: &Places) {
        let interval_ns = snapshot.interval_ns.max(1);
        let known: BTreeMap<u32, Supply> =
            self.cpus.iter().map(|supply| (supply.cpu, *supply)).collect();
        let mut cpus: Vec<Supply> = snapshot
            .cpus
            .iter()
            .map(|view| {
                // Not more than a million: the quotient of a part and its whole.
                let ppm = |part_ns: u64| {
                    (u128::from(part_ns) * u128::from(ALL_PPM) / u128::from(interval_ns)) as u64
                };
                // The threads wait for real-time tasks, too.
                let given_ppm = ppm(view.paper_effective_ns(interval_ns));
                let latest = Supply {
                    cpu: view.cpu,
                    core: view.core,
                    effective_ppm: ppm(view.effective_ns(interval_ns)),
                    foreign_milli: view.foreign_milli.into(),
                    served_ppm: places.served(view.cpu).map(|served| served.share_of(given_ppm)),
                    seen_ns: interval_ns.min(RECENT_NS),
                };
                known.get(&view.cpu).map_or(latest, |before| before.towards(latest))
            })
            .collect();
        cpus.sort_unstable_by_key(|supply| supply.cpu);
        self.cpus = cpus;
    }
}

impl Supply {
    /// The average of what was seen lately and of the latest interval, each by its time.
    fn towards(self, latest: Self) -> Self {
        let before_ns = self.seen_ns.min(RECENT_NS - latest.seen_ns);
        let seen_ns = before_ns + latest.seen_ns;
        let mean = |before: u64, now: u64| {
            // Times are a second at most, and figures some millions.
            (before * before_ns + now * latest.seen_ns) / seen_ns.max(1)
        };
        Self {
            effective_ppm: mean(self.effective_ppm, latest.effective_ppm),
            foreign_milli: mean(self.foreign_milli, latest.foreign_milli),
            served_ppm: latest
                .served_ppm
                .map(|served| self.served_ppm.map_or(served, |before| mean(before, served))),
            seen_ns,
            ..latest
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::snapshot::Seen;
    use evenkeel_machine::CpuSet;
    use proptest::prelude::*;

    const INTERVAL_NS: u64 = 50_000_000;
    const TOLERANCE_PPM: u64 = 60_000;

    fn id(tid: u32) -> TaskId {
        TaskId { tid, start: 1 }
    }

    /// CPUs that give so many percent, and a thread on each of these CPUs, which want all of it.
    fn snapshot(percents: &[u64], threads: &[u32]) -> Snapshot {
        // Run time, what noise takes meanwhile, and time waited.
        let parts_ns = |cpu: u32| {
            let percent = percents.get(cpu as usize).copied().unwrap_or(0);
            let threads = threads.iter().filter(|other| **other == cpu).count() as u64;
            let on_cpu_ns = INTERVAL_NS / threads;
            let run_ns = on_cpu_ns * percent / 100;
            (run_ns, on_cpu_ns - run_ns, INTERVAL_NS - on_cpu_ns)
        };
        let cpus = (0..).zip(percents).map(|(cpu, percent)| CpuView {
            cpu,
            core: cpu,
            node: 0,
            speed: 1024,
            energy_rank: None,
            noise_ns: INTERVAL_NS * (100 - percent) / 100,
            rt_ns: 0,
            idle_ns: 0,
            foreign_milli: 0,
            rt_milli: 0,
        });
        let tasks = (0..).zip(threads).map(|(tid, cpu)| TaskView {
            id: id(tid),
            process: 1,
            cpu: *cpu,
            queue: 0,
            run_ns: parts_ns(*cpu).0,
            spun_ns: 0,
            samples: 0,
            changes: 0,
            received_ns: parts_ns(*cpu).0,
            stolen_ns: parts_ns(*cpu).1,
            wait_ns: parts_ns(*cpu).2,
            sleeps: 1,
            runnable: true,
            allowed: CpuSet::first(64),
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

    fn members(count: u32) -> BTreeSet<TaskId> {
        (0..count).map(id).collect()
    }

    fn weigh(weighing: &mut Weighing, snapshot: &Snapshot) -> Vec<u32> {
        let places = Places::of(snapshot, &members(snapshot.tasks.len() as u32));
        weighing.weigh(snapshot, &places);
        weighing.weights().iter().map(|(_, weight)| *weight).collect()
    }

    fn after(intervals: usize, snapshot: &Snapshot) -> (Weighing, Vec<u32>) {
        let mut weighing = Weighing::new(TOLERANCE_PPM);
        let weights = (0..intervals).fold(Vec::new(), |_, _| weigh(&mut weighing, snapshot));
        (weighing, weights)
    }

    #[test]
    fn weights_are_the_capability_of_the_cpus() {
        let (weighing, weights) = after(2, &snapshot(&[60, 100], &[0, 1]));
        assert_eq!(weights, [614, 1024]);
        assert!(weighing.is_unequal() && weighing.spread_ppm() == 400_000);
        // Two threads on a CPU have half of it each.
        let (_, weights) = after(2, &snapshot(&[100, 100], &[0, 1, 1]));
        assert_eq!(weights, [1024, 512]);
        let mut hog = snapshot(&[100, 100], &[0, 1]);
        hog.cpus[0].foreign_milli = 1000;
        let waits = |snapshot: &mut Snapshot, percent: u64| {
            let wait_ns = INTERVAL_NS * percent / 100;
            (snapshot.tasks[0].run_ns, snapshot.tasks[0].wait_ns) =
                (INTERVAL_NS - wait_ns, wait_ns);
        };
        waits(&mut hog, 50);
        assert_eq!(after(2, &hog).1, [512, 1024]);
        // A task that is often there, and takes little.
        waits(&mut hog, 25);
        assert_eq!(after(2, &hog).1, [768, 1024]);
        // A real-time task: its time is not lost twice.
        let mut fifo = snapshot(&[100, 100], &[0, 1]);
        fifo.cpus[0].rt_ns = INTERVAL_NS * 40 / 100;
        waits(&mut fifo, 40);
        assert_eq!(after(2, &fifo).1, [614, 1024]);
        // By /proc, a task has run while interrupts were handled.
        let mut by_proc = snapshot(&[60, 100], &[0, 1]);
        waits(&mut by_proc, 0);
        by_proc.tasks[0].stolen_ns = 0;
        assert_eq!(after(2, &by_proc).1, [614, 1024]);
        // Two threads on one core, and a third one that has a core for itself.
        let mut smt = snapshot(&[100, 100, 100], &[0, 1, 2]);
        smt.cpus[1].core = 0;
        assert_eq!(after(2, &smt).1, [614, 614, 1024]);
    }

    #[test]
    fn equal_cpus_have_exactly_equal_weights() {
        for percents in [&[100, 100][..], &[97, 100], &[60, 60], &[0, 0]] {
            let (weighing, weights) = after(20, &snapshot(percents, &[0, 1]));
            assert_eq!((weights, weighing.is_unequal()), (vec![1024, 1024], false), "{percents:?}");
        }
        // The slow CPU has no thread of the program.
        let (weighing, _) = after(20, &snapshot(&[60, 100, 100], &[1, 2]));
        assert!(!weighing.is_unequal());
    }

    #[test]
    fn an_asymmetry_must_last_before_weights_follow_it() {
        let small = snapshot(&[90, 100], &[0, 1]);
        assert!(!after(2, &small).0.is_unequal() && after(3, &small).0.is_unequal());
        assert!(!after(1, &snapshot(&[50, 100], &[0, 1])).0.is_unequal());
    }

    #[test]
    fn weights_stay_while_cpus_hardly_change_and_end_later_than_they_began() {
        let (mut weighing, weights) = after(10, &snapshot(&[60, 100], &[0, 1]));
        for percent in [61, 60, 59, 61] {
            assert_eq!(weigh(&mut weighing, &snapshot(&[percent, 100], &[0, 1])), weights);
        }
        let follow = |weighing: &mut Weighing, percent| {
            let snapshot = snapshot(&[percent, 100], &[0, 1]);
            (0..60).fold(Vec::new(), |_, _| weigh(weighing, &snapshot))
        };
        let [low, _] = follow(&mut weighing, 80)[..] else { panic!("two CPUs") };
        assert!((790..820).contains(&low), "{low}");
        // 5 % are too few to begin with, and enough to stay.
        assert_ne!(follow(&mut weighing, 95), [1024, 1024]);
        assert_eq!(follow(&mut weighing, 96), [1024, 1024]);
        assert_eq!(follow(&mut weighing, 95), [1024, 1024]);
    }

    #[test]
    fn cpus_that_go_and_come_are_weighed_at_once() {
        let (mut weighing, weights) = after(10, &snapshot(&[60, 100, 80], &[0, 1, 2]));
        assert_eq!(weights, [614, 1024, 819]);
        assert_eq!(weigh(&mut weighing, &snapshot(&[60, 100], &[0, 1])), [614, 1024]);
        let weights = weigh(&mut weighing, &snapshot(&[60, 100, 40], &[0, 1, 2]));
        assert_eq!(weights, [614, 1024, 409]);
        assert_eq!(weigh(&mut weighing, &snapshot(&[60], &[0])), [1024]);
    }

    #[test]
    fn a_thread_that_shares_its_cpu_goes_to_a_free_one() {
        let places = |percents: &[u64], threads: &[u32]| {
            let snapshot = snapshot(percents, threads);
            let mut pins = Places::of(&snapshot, &members(threads.len() as u32)).pins;
            pins.sort_unstable_by_key(|pin| pin.task);
            pins.into_iter().map(|pin| pin.cpu).collect::<Vec<_>>()
        };
        assert_eq!(places(&[60, 100], &[1, 0]), [1, 0]);
        assert_eq!(places(&[60, 100], &[1, 1]), [1, 0]);
        assert_eq!(places(&[60, 100, 80], &[0, 0]), [0, 1]);
        assert_eq!(places(&[60, 100], &[0, 1, 1, 0]), [0, 1, 1, 0]);
    }

    #[test]
    fn what_is_no_member_sleeps_or_is_bound_is_left_where_it_is() {
        let mut snapshot = snapshot(&[60, 100], &[0, 0, 0, 0]);
        snapshot.tasks[1].fixed = true;
        let asleep = &mut snapshot.tasks[2];
        (asleep.run_ns, asleep.stolen_ns, asleep.wait_ns) = (0, 0, 0);
        let places = Places::of(&snapshot, &members(3));
        assert_eq!(places.pins, [Pin { task: id(0), cpu: 1 }]);
        assert_eq!((places.count(0), places.count(1)), (1, 1));
    }

    proptest! {
        #[test]
        fn weights_are_in_their_range_whatever_the_cpus_give(
            rounds in prop::collection::vec(
                (prop::collection::vec(0_u64..=100, 1..6), prop::collection::vec(0_u32..6, 0..9)),
                1..12,
            ),
        ) {
            let mut weighing = Weighing::new(TOLERANCE_PPM);
            for (percents, threads) in rounds {
                let snapshot = snapshot(&percents, &threads);
                let weights = weigh(&mut weighing, &snapshot);
                prop_assert_eq!(weights.len(), percents.len());
                prop_assert!(weights.iter().all(|weight| (1..=WHOLE_WEIGHT).contains(weight)));
                prop_assert!(weighing.is_unequal() || weights.iter().all(|it| *it == WHOLE_WEIGHT));
                let places = Places::of(&snapshot, &members(threads.len() as u32));
                // With one CPU there is nothing to choose, so nothing is pinned.
                let placed = if percents.len() > 1 { places.counts.values().sum() } else { 0 };
                prop_assert_eq!(places.pins.len() as u64, placed);
            }
        }
    }
}
