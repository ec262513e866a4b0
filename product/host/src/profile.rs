//! Where the threads of a process wait in code of their own: found by where each of them spends its time
//! on faster CPUs and on slower ones.
//!
//! In a program with barriers a thread on a faster CPU has done its share sooner, and waits. If it
//! spins, be it in a runtime without symbols or in a loop of its own, samples find it there, in a few
//! instructions: often on a faster CPU, hardly ever on a slower one. On a faster CPU all other code has
//! the smaller part of its samples.
//!
//! Samples of one thread are compared with samples of the same thread only, since threads may run
//! different code. So the threads must have been on CPUs of both kinds, which takes a few exchanges. The
//! differences are averaged over the threads, so that a phase of the program that falls between two
//! exchanges cancels out: some threads are on faster CPUs in it, others on slower ones.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::ops::Range;

use evenkeel_capability::{CpuView, Snapshot};
use evenkeel_cbinfo::Place;

/// Addresses are counted by 2^4 bytes: a loop that spins is hardly longer, and in a small program the
/// work is next to it.
const SPOT_BITS: u32 = 4;
/// Spots that are this far from each other belong to one loop.
const NEAR_SPOTS: u64 = 2;
/// CPUs that differ by less than this share of the fastest tell nothing: 1/25.
const LEAST_GAP: f64 = 0.04;
/// Samples of a thread on CPUs of either kind from which it counts.
const LEAST_SAMPLES: u32 = 10;
/// Threads that must be compared: with fewer, phases do not cancel out.
const LEAST_THREADS: usize = 2;
/// What all comparisons weigh, from which they are looked at: that of 40 samples on either side.
const LEAST_WEIGHT: f64 = 20.0;
/// A thread is counted anew from half of its samples when it has so many on one side, so that what has
/// ended is forgotten.
const MOST_SAMPLES: u32 = 1024;
/// It is compared again when there are so many times the samples.
const AGAIN_FACTOR: f64 = 1.2;
/// A spot where threads wait has at least this share of the time on faster CPUs above that on slower
/// ones, ...
const LEAST_EXCESS: f64 = 0.03;
/// ... so many times the share there, ...
const LEAST_RATIO: f64 = 3.0;
/// ... and so many standard errors: there are hundreds of spots, and many looks.
const SURE_ERRORS: f64 = 4.0;
/// One that was found stays while it is above this part of these limits.
const STAY_PART: f64 = 0.5;
/// Where no spot may have more than this share of the gap between the CPUs, by two standard errors, no
/// thread waits by spinning.
const NEGLIGIBLE_SHARE: f64 = 0.25;
/// So many ranges of a process are kept, those with most time.
const MOST_RANGES: usize = 4;

/// The kinds of CPUs.
const SLOW: usize = 0;
const FAST: usize = 1;

/// The samples of a program.
#[derive(Debug, Default)]
pub(crate) struct Profile {
    /// Since the interval before.
    latest: Vec<Place>,
    processes: BTreeMap<u32, Process>,
}

/// What is known of a process.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Found {
    /// It can be told where its threads wait by spinning: here, or nowhere.
    pub(crate) is_told: bool,
    /// Addresses, ascending.
    pub(crate) waits: Vec<Range<u64>>,
}

#[derive(Debug, Default)]
struct Process {
    /// Where it is known to wait: nothing is to be found there.
    known: Vec<Range<u64>>,
    threads: BTreeMap<u32, [Side; 2]>,
    /// Of the samples: how many, and the sum of the gaps between the CPUs when they were taken.
    samples: f64,
    gaps: f64,
    /// Samples at the next comparison.
    compare_at: f64,
    found: Found,
}

/// Samples of a thread on CPUs of one kind.
#[derive(Debug, Default)]
struct Side {
    samples: u32,
    by_spot: HashMap<u64, u32>,
}

/// A spot over all threads.
#[derive(Debug, Clone, Copy, Default)]
struct Spot {
    /// Weighted sums of its shares of the time, by kind of CPU, and of both together.
    shares: [f64; 2],
    pooled: f64,
}

impl Profile {
    /// Takes a sample of a task of the program.
    pub(crate) fn note(&mut self, place: Place) {
        self.latest.push(place);
    }

    /// Takes in the interval in which the latest samples were taken.
    pub(crate) fn take_in(&mut self, snapshot: &Snapshot) {
        let latest = std::mem::take(&mut self.latest);
        let process_of: HashMap<u32, u32> =
            snapshot.tasks.iter().map(|task| (task.id.tid, task.process)).collect();
        self.forget_all_but(&process_of);
        let Some((gap, kinds)) = kinds(snapshot) else { return };
        for place in latest {
            let kind = kinds.get(&place.cpu).copied().flatten();
            if let (Some(kind), Some(process)) = (kind, process_of.get(&place.tid)) {
                self.processes.entry(*process).or_default().add(&place, kind, gap);
            }
        }
        self.processes.values_mut().for_each(Process::compare_if_due);
    }

    /// What is known of a process.
    pub(crate) fn found(&self, process: u32) -> Found {
        self.processes.get(&process).map(|process| process.found.clone()).unwrap_or_default()
    }

    /// Whether samples come in by which it may be told soon.
    pub(crate) fn may_tell(&self) -> bool {
        self.processes.values().any(|process| process.threads.len() >= LEAST_THREADS)
    }

    /// Its runtimes are known to wait in these ranges, ascending.
    pub(crate) fn set_known(&mut self, process: u32, known: &[Range<u64>]) {
        let profile = self.processes.entry(process).or_default();
        if profile.known != known {
            profile.known = known.to_vec();
        }
    }

    /// The process runs another program now.
    pub(crate) fn forget(&mut self, process: u32) {
        self.processes.remove(&process);
    }

    fn forget_all_but(&mut self, process_of: &HashMap<u32, u32>) {
        for (process, profile) in &mut self.processes {
            profile.threads.retain(|tid, _| process_of.get(tid) == Some(process));
        }
        let there: HashSet<u32> = process_of.values().copied().collect();
        self.processes.retain(|process, _| there.contains(process));
    }
}

/// How much the CPUs differ, as a share of the fastest, and which of them are of which kind; those in
/// the middle are of none. `None`: they hardly differ.
fn kinds(snapshot: &Snapshot) -> Option<(f64, HashMap<u32, Option<usize>>)> {
    let rate = |cpu: &CpuView| cpu.given_ns(snapshot.interval_ns) as f64;
    let rates = || snapshot.cpus.iter().map(rate);
    let (least, most) = (rates().reduce(f64::min)?, rates().reduce(f64::max)?);
    let third = (most - least) / 3.0;
    let kind_of = |rate: f64| match rate {
        rate if rate <= least + third => Some(SLOW),
        rate if rate >= most - third => Some(FAST),
        _ => None,
    };
    let gap = (most - least) / most.max(1.0);
    (gap >= LEAST_GAP)
        .then(|| (gap, snapshot.cpus.iter().map(|cpu| (cpu.cpu, kind_of(rate(cpu)))).collect()))
}

impl Process {
    fn add(&mut self, place: &Place, kind: usize, gap: f64) {
        let sides = self.threads.entry(place.tid).or_default();
        sides[kind].samples += 1;
        *sides[kind].by_spot.entry(place.address >> SPOT_BITS).or_default() += 1;
        if sides[kind].samples >= MOST_SAMPLES {
            sides.iter_mut().for_each(Side::halve);
        }
        self.samples += 1.0;
        self.gaps += gap;
    }

    fn compare_if_due(&mut self) {
        if self.samples < self.compare_at {
            return;
        }
        self.compare_at = self.samples * AGAIN_FACTOR;
        self.found = self.compare();
        // An old gap says nothing of the samples that are left.
        if self.samples > 4.0 * f64::from(MOST_SAMPLES) {
            (self.samples, self.gaps) = (self.samples / 2.0, self.gaps / 2.0);
            self.compare_at = self.samples * AGAIN_FACTOR;
        }
    }

    fn compare(&self) -> Found {
        let compared = || {
            let is_on_both =
                |sides: &&[Side; 2]| sides.iter().all(|side| side.samples >= LEAST_SAMPLES);
            self.threads.values().filter(is_on_both)
        };
        let mut weight = 0.0;
        let mut spots: HashMap<u64, Spot> = HashMap::new();
        for sides in compared() {
            let [slow, fast] = sides.each_ref().map(|side| f64::from(side.samples));
            let own_weight = slow * fast / (slow + fast);
            weight += own_weight;
            for (kind, side) in sides.iter().enumerate() {
                for (spot, count) in &side.by_spot {
                    let spot = spots.entry(*spot).or_default();
                    let count = f64::from(*count) * own_weight;
                    spot.shares[kind] += count / f64::from(side.samples);
                    spot.pooled += count / (slow + fast);
                }
            }
        }
        if compared().count() < LEAST_THREADS || weight < LEAST_WEIGHT {
            return Found::default();
        }
        let negligible = self.gaps / self.samples.max(1.0) * NEGLIGIBLE_SHARE;
        let mut waits = Vec::new();
        let mut is_told = true;
        for (spot, found) in spots.into_iter().filter(|(spot, _)| !self.is_known(*spot)) {
            let [slow, fast] = found.shares.map(|share| share / weight);
            let pooled = found.pooled / weight;
            let error = (pooled * (1.0 - pooled) / weight).sqrt();
            let excess = fast - slow;
            let part = if self.is_found(spot) { STAY_PART } else { 1.0 };
            let least = LEAST_EXCESS.max(SURE_ERRORS * error) * part;
            if excess >= least && fast >= LEAST_RATIO * part * slow {
                waits.push((spot, excess));
            } else {
                is_told &= excess.max(0.0) + 2.0 * error <= negligible;
            }
        }
        // Having found some of the places, it is known how the threads wait.
        is_told |= !waits.is_empty();
        Found { is_told, waits: ranges(waits) }
    }

    /// Whether threads are known to wait in a spot.
    fn is_known(&self, spot: u64) -> bool {
        has_part_in(&self.known, spot)
    }

    /// Whether the last comparison found that they wait there.
    fn is_found(&self, spot: u64) -> bool {
        has_part_in(&self.found.waits, spot)
    }
}

/// Whether one of the ranges, which ascend, has a part in a spot.
fn has_part_in(ranges: &[Range<u64>], spot: u64) -> bool {
    let (first, end) = (spot << SPOT_BITS, (spot + 1) << SPOT_BITS);
    let after = ranges.partition_point(|range| range.end <= first);
    ranges.get(after).is_some_and(|range| range.start < end)
}

impl Side {
    fn halve(&mut self) {
        self.by_spot.retain(|_, count| {
            *count /= 2;
            *count > 0
        });
        self.samples /= 2;
    }
}

/// The spots as ranges of addresses: those near each other are one, and those with most time stay.
fn ranges(mut spots: Vec<(u64, f64)>) -> Vec<Range<u64>> {
    spots.sort_unstable_by_key(|(spot, _)| *spot);
    let runs = spots.chunk_by(|(one, _), (next, _)| next - one <= NEAR_SPOTS);
    let mut ranges: Vec<(Range<u64>, f64)> = runs
        .filter_map(|run| {
            let (first, last) = (run.first()?.0, run.last()?.0);
            let addresses = first << SPOT_BITS..(last + 1) << SPOT_BITS;
            Some((addresses, run.iter().map(|(_, excess)| excess).sum()))
        })
        .collect();
    ranges.sort_by(|(_, one), (_, other)| other.total_cmp(one));
    ranges.truncate(MOST_RANGES);
    let mut ranges: Vec<Range<u64>> = ranges.into_iter().map(|(range, _)| range).collect();
    ranges.sort_unstable_by_key(|range| range.start);
    ranges
}

#[cfg(test)]
mod tests {
    use super::*;
    use evenkeel_capability::{Seen, TaskId, TaskView};
    use evenkeel_machine::CpuSet;
    use proptest::prelude::*;

    const INTERVAL_NS: u64 = 100_000_000;
    /// Where a thread spins.
    const LOOP: u64 = 0x40_1040;
    const PROCESS: u32 = 7;

    /// xorshift64*.
    struct Dice(u64);

    impl Dice {
        fn below(&mut self, limit: u64) -> u64 {
            self.0 ^= self.0 >> 12;
            self.0 ^= self.0 << 25;
            self.0 ^= self.0 >> 27;
            (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) % limit
        }
    }

    /// A program with a thread for each CPU.
    struct Program {
        profile: Profile,
        dice: Dice,
        /// What is left of each CPU, in percent.
        cpus: Vec<u64>,
        /// The CPU of each thread.
        places: Vec<usize>,
        process_of: fn(usize) -> u32,
        /// Spots of its work; the phase goes through them if `phases`, each in so many intervals.
        work_spots: u64,
        phases: Option<u64>,
        /// Each thread runs other code.
        is_mixed: bool,
        spins: bool,
        intervals: u64,
    }

    impl Program {
        fn new(seed: u64, cpus: &[u64]) -> Self {
            Self {
                profile: Profile::default(),
                dice: Dice(seed | 1),
                cpus: cpus.to_vec(),
                places: (0..cpus.len()).collect(),
                process_of: |_| PROCESS,
                work_spots: 60,
                phases: None,
                is_mixed: false,
                spins: true,
                intervals: 0,
            }
        }

        fn snapshot(&self) -> Snapshot {
            let cpu = |(cpu, percent): (u32, &u64)| CpuView {
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
            };
            let task = |(thread, cpu): (usize, &usize)| TaskView {
                id: TaskId { tid: thread as u32 + 1, start: 1 },
                process: (self.process_of)(thread),
                cpu: *cpu as u32,
                queue: 0,
                run_ns: INTERVAL_NS,
                spun_ns: 0,
                samples: 0,
                changes: 0,
                received_ns: INTERVAL_NS,
                stolen_ns: 0,
                wait_ns: 0,
                sleeps: 1,
                runnable: true,
                allowed: CpuSet::first(8),
                fixed: false,
                working_set_bytes: None,
            };
            Snapshot {
                interval_ns: INTERVAL_NS,
                cpus: (0..).zip(&self.cpus).map(cpu).collect(),
                tasks: self.places.iter().enumerate().map(task).collect(),
                seen: Seen::default(),
            }
        }

        /// An interval with 50 samples of each thread, after which the threads change places.
        fn step(&mut self) {
            let slowest = self.cpus.iter().min().copied().unwrap();
            for (thread, cpu) in self.places.clone().into_iter().enumerate() {
                for _ in 0..50 {
                    let waits = self.dice.below(self.cpus[cpu]) >= slowest;
                    let spot = match self.phases {
                        Some(intervals) => self.intervals / intervals % self.work_spots,
                        None => self.dice.below(self.work_spots),
                    };
                    let own = if self.is_mixed { 1_000 * thread as u64 } else { 0 };
                    let work = 0x50_0000 + ((spot + own) << SPOT_BITS) + self.dice.below(16);
                    let address =
                        if waits && self.spins { LOOP + self.dice.below(9) } else { work };
                    let place = Place { address, tid: thread as u32 + 1, cpu: cpu as u32 };
                    self.profile.note(place);
                }
            }
            self.profile.take_in(&self.snapshot());
            self.intervals += 1;
            self.places.rotate_right(1);
        }

        fn run(&mut self, intervals: usize) -> Found {
            (0..intervals).for_each(|_| self.step());
            self.profile.found(PROCESS)
        }
    }

    fn is_the_loop(found: &Found) -> bool {
        found.is_told && found.waits == std::slice::from_ref(&(0x40_1040..0x40_1050))
    }

    #[test]
    fn the_loop_in_which_threads_wait_is_found_within_half_a_second() {
        for seed in 1..50 {
            for is_mixed in [false, true] {
                let mut program = Program { is_mixed, ..Program::new(seed, &[60, 100]) };
                let found = program.run(5);
                assert!(is_the_loop(&found), "{seed}: {found:?}");
                let found = program.run(100);
                assert!(is_the_loop(&found), "{seed}: {found:?}");
            }
        }
        let found = Program::new(3, &[50, 50, 100, 75, 100, 100]).run(12);
        assert!(is_the_loop(&found), "{found:?}");
    }

    #[test]
    fn nothing_is_found_where_no_thread_spins() {
        for seed in 1..50 {
            for (phases, is_mixed) in [(None, false), (None, true), (Some(3), false)] {
                let mut program =
                    Program { spins: false, phases, is_mixed, ..Program::new(seed, &[60, 100]) };
                for step in 0..60 {
                    let found = program.run(1);
                    assert_eq!(found.waits, [], "{seed}, {phases:?}, {step}");
                }
                let found = program.run(100);
                assert_eq!((found.is_told, found.waits), (true, vec![]), "{seed} {phases:?}");
            }
        }
    }

    #[test]
    fn threads_that_stay_tell_nothing() {
        let mut program = Program::new(3, &[60, 100]);
        for _ in 0..50 {
            program.step();
            program.places = vec![0, 1];
        }
        assert_eq!(program.profile.found(PROCESS), Found::default());
        assert!(program.profile.may_tell());
    }

    #[test]
    fn one_thread_of_a_process_tells_nothing() {
        let mut program =
            Program { process_of: |thread| thread as u32, ..Program::new(3, &[60, 100]) };
        program.run(50);
        assert_eq!(program.profile.found(0), Found::default());
        assert!(!program.profile.may_tell());
    }

    #[test]
    fn equal_cpus_tell_nothing() {
        assert_eq!(Program::new(3, &[98, 100]).run(100), Found::default());
    }

    #[test]
    fn where_a_runtime_is_known_to_wait_nothing_is_found() {
        let mut program = Program::new(3, &[60, 100]);
        let known: &[Range<u64>] = &[0x10..0x20, 0x40_1000..0x40_2000, 0x60_0000..0x60_0001];
        program.profile.set_known(PROCESS, known);
        let found = program.run(20);
        assert_eq!((found.is_told, found.waits), (true, vec![]));
    }

    #[test]
    fn another_program_in_the_process_begins_anew() {
        let mut program = Program::new(3, &[60, 100]);
        assert!(is_the_loop(&program.run(20)));
        program.profile.forget(PROCESS);
        assert_eq!(program.profile.found(PROCESS), Found::default());
        program.spins = false;
        assert_eq!(program.run(100).waits, []);
    }

    #[test]
    fn neighbours_are_one_range_and_those_with_most_time_stay() {
        let spots = (0..9).map(|spot| (spot * 3, spot as f64)).chain([(1, 0.5)]).collect();
        assert_eq!(ranges(spots), [240..256, 288..304, 336..352, 384..400]);
        let near = ranges(vec![(5, 0.1), (4, 0.2), (9, 0.1), (7, 0.1), (20, 0.1)]);
        assert_eq!(near, [64..160, 320..336]);
    }

    proptest! {
        #![proptest_config(ProptestConfig {
            failure_persistence: None,
            cases: 64,
            ..ProptestConfig::default()
        })]

        #[test]
        fn whatever_comes_in_is_counted_without_harm(
            addresses in prop::collection::vec(any::<(u64, u8, u8)>(), 0..400),
            percents in prop::collection::vec(0..=100u64, 0..5),
        ) {
            let mut program = Program::new(1, &percents);
            for chunk in addresses.chunks(50) {
                for (address, tid, cpu) in chunk {
                    let place = Place { address: *address, tid: (*tid).into(), cpu: (*cpu).into() };
                    program.profile.note(place);
                }
                program.profile.take_in(&program.snapshot());
            }
            let found = program.profile.found(PROCESS);
            prop_assert!(found.waits.len() <= MOST_RANGES);
            prop_assert!(found.waits.iter().all(|range| range.start < range.end));
        }
    }
}
