//! The invariants under loads that make schedulers fail, for the kernel's own scheduler (which shows
//! that the checkers are right) and for the keel.

use std::time::Duration;

use evenkeel_invariants::Limits;
use evenkeel_journal::affinity;

use crate::scheduler::Scheduler;
use crate::storms::*;
use crate::support::just;
use crate::watched::{EXACT, ROUGH, for_a_while, rest, watched};
use crate::{Test, boots};

macro_rules! tests_of {
    ($name:literal, $scheduler:expr) => {
        &[
            Test { name: concat!($name, "::hogs"), run: || hogs($scheduler, ROUGH) },
            Test { name: concat!($name, "::a_thousand_threads"), run: || crowd($scheduler, 1000) },
            Test { name: concat!($name, "::fork_and_exec"), run: || fork_and_exec($scheduler) },
            Test { name: concat!($name, "::real_time_hogs"), run: || real_time_hogs($scheduler) },
        ]
    };
}

/// Where instructions are counted.
macro_rules! exact_tests_of {
    ($name:literal, $scheduler:expr) => {
        &[
            Test { name: concat!($name, "::weights"), run: || weights($scheduler) },
            Test { name: concat!($name, "::group_weights"), run: || group_weights($scheduler) },
            Test { name: concat!($name, "::nested_groups"), run: || nested_groups($scheduler) },
            Test { name: concat!($name, "::hogs_exactly"), run: || hogs($scheduler, EXACT) },
        ]
    };
}

pub const KERNEL: &[Test] = tests_of!("kernel", Scheduler::Kernel);
pub const KERNEL_EXACT: &[Test] = exact_tests_of!("kernel", Scheduler::Kernel);
pub const KEEL_EXACT: &[Test] = exact_tests_of!("keel", Scheduler::Keel);
pub const KEEL: &[Test] = tests_of!("keel", Scheduler::Keel);
pub const CAPABILITY: &[Test] = tests_of!("capability", Scheduler::With(UNEQUAL));
pub const CAPABILITY_EXACT: &[Test] = exact_tests_of!("capability", Scheduler::With(&UNEQUAL_ONE));

/// All that the balance policy can do.
const PARTS: [&str; 2] = ["--balance=capability", "--parts=home,cost,active,turns,similar"];
/// CPUs that count as unequal, with all parts of the balance policy, and a gate that is always open.
pub const UNEQUAL: &[&str] = &[PARTS[0], PARTS[1], "--capacity=0-1=1024,2-3=512"];
/// The same for a guest with one CPU.
const UNEQUAL_ONE: [&str; 3] = [PARTS[0], PARTS[1], "--capacity=0=512"];

/// The combinations of policies that are neither the plain ones, nor capability alone, nor all
/// papers' at once (`policies.rs`).
const IAS: &[&str] = &["--order=ias"];
const ZONE: &[&str] = &["--gate=zone", "--zone=hot"];
const IAS_ZONE: &[&str] = &[IAS[0], ZONE[0], ZONE[1]];
const IAS_CAPABILITY: &[&str] = &[IAS[0], PARTS[0], PARTS[1]];
const ZONE_CAPABILITY: &[&str] = &[ZONE[0], ZONE[1], PARTS[0], PARTS[1]];

/// In short.
pub const COMBINED: &[Test] = &[
    Test { name: "ias::a_crowd", run: || crowd(Scheduler::With(IAS), 100) },
    Test { name: "zone::a_crowd", run: || crowd(Scheduler::With(ZONE), 100) },
    Test { name: "ias-zone::a_crowd", run: || crowd(Scheduler::With(IAS_ZONE), 100) },
    Test { name: "ias-capability::a_crowd", run: || crowd(Scheduler::With(IAS_CAPABILITY), 100) },
    Test { name: "zone-capability::a_crowd", run: || crowd(Scheduler::With(ZONE_CAPABILITY), 100) },
];
/// And whole.
pub const SOAKED: [&[Test]; 5] = [
    tests_of!("ias", Scheduler::With(IAS)),
    tests_of!("zone", Scheduler::With(ZONE)),
    tests_of!("ias-zone", Scheduler::With(IAS_ZONE)),
    tests_of!("ias-capability", Scheduler::With(IAS_CAPABILITY)),
    tests_of!("zone-capability", Scheduler::With(ZONE_CAPABILITY)),
];

/// Hogs of three weights that share a CPU.
fn weights(scheduler: Scheduler) {
    // The lightest hog has a thirteenth of the CPU: it waits through twelve turns.
    let limits = Limits { wait_ns: 4 * EXACT.wait_ns, ..EXACT };
    scheduler.under(|| {
        let findings = watched(limits, |witness| {
            let mut hogs = Threads::default();
            for nice in [0, 5, -5] {
                hogs.start(|| spin(Duration::from_millis(10)));
                let tid = *hogs.tids.last().unwrap();
                set_nice(tid, nice);
                affinity::set(tid, &just(0)).unwrap();
            }
            for_a_while(witness, rest);
            hogs.end();
        });
        assert!(findings.shares_judged > 0, "no share was judged");
    });
}

/// How deep the cgroups of `nested_groups` are.
const DEPTHS: [usize; 4] = [1, 3, 12, 31];

/// A hog in a cgroup of each depth, on one CPU: no user gets more of it by nesting cgroups.
fn nested_groups(scheduler: Scheduler) {
    scheduler.under(|| {
        let groups = DEPTHS.map(Nested::new);
        let mut hogs = groups.each_ref().map(|group| {
            let hog = start("hog");
            affinity::set(hog.id() as i32, &just(0)).unwrap();
            group.take(&hog);
            hog
        });
        let pids = hogs.each_ref().map(|hog| hog.id() as i32);
        // Waits until all hogs are in their groups.
        std::thread::sleep(Duration::from_millis(200));
        let before = pids.map(cpu_time_ns);
        std::thread::sleep(boots::duration());
        let after = pids.map(cpu_time_ns);
        hogs.iter_mut().for_each(end);
        groups.into_iter().for_each(Nested::end);
        let got: Vec<u64> =
            after.iter().zip(before).map(|(after, before)| after - before).collect();
        let due = got.iter().sum::<u64>() / DEPTHS.len() as u64;
        assert!(got.iter().all(|got| got.abs_diff(due) * 20 <= due), "at {DEPTHS:?}: {got:?} ns");
    });
}

/// One hog in a group, and two in another group of a third of the weight: they get 6:1:1.
fn group_weights(scheduler: Scheduler) {
    scheduler.under(|| {
        let groups = [Group::new(300), Group::new(100)];
        let mut hogs = [&groups[0], &groups[1], &groups[1]].map(|group| {
            let hog = start("hog");
            affinity::set(hog.id() as i32, &just(0)).unwrap();
            group.take(&hog);
            hog
        });
        let read = || [0, 1, 2].map(|index: usize| cpu_time_ns(hogs[index].id() as i32));
        // Waits until all hogs are in their groups.
        std::thread::sleep(Duration::from_millis(200));
        let before = read();
        std::thread::sleep(boots::duration());
        let after = read();
        let got = [0, 1, 2].map(|index| (after[index] - before[index]) as f64);
        let of_all = got.map(|ns| ns / got.iter().sum::<f64>());
        for hog in &mut hogs {
            end(hog);
        }
        groups.into_iter().for_each(Group::end);
        for (share, due) in of_all.iter().zip([0.75, 0.125, 0.125]) {
            assert!((share - due).abs() < 0.05 * due.max(0.25), "{of_all:?}");
        }
    });
}

/// One more hog than CPUs: each waiting hog must get its turn, and no CPU may be left out.
pub fn hogs(scheduler: Scheduler, limits: Limits) {
    scheduler.under(|| {
        let findings = watched(limits, |witness| {
            let mut hogs = Threads::default();
            for _ in 0..=crate::support::all().len() {
                hogs.start(|| spin(Duration::from_millis(10)));
            }
            for_a_while(witness, rest);
            hogs.end();
        });
        assert!(findings.charges_judged > 0, "no charge was judged");
    });
}

/// Many threads of all habits, with others that change their masks, weights and classes.
pub fn crowd(scheduler: Scheduler, count: u64) {
    scheduler.under(|| {
        watched(ROUGH, |witness| {
            let crowd = restless(count);
            let tormentors = torment(&crowd.tids, 4);
            for_a_while(witness, rest);
            tormentors.end();
            // All threads then see that the test is over.
            for tid in &crowd.tids {
                set_real_time(*tid, 0);
            }
            crowd.end();
        });
    });
}

/// Processes that fork and exec in cgroups of different weights, are moved between these, stopped
/// and killed.
pub fn fork_and_exec(scheduler: Scheduler) {
    scheduler.under(|| {
        watched(ROUGH, |witness| {
            // Each exec costs a tenth of a second here, so few of them are enough.
            let mut processes = Processes::start(8);
            let mut random = Random::new(1);
            let mut forks = start("forks");
            for_a_while(witness, || {
                processes.torment(&mut random);
                std::thread::sleep(Duration::from_millis(5));
            });
            end(&mut forks);
            processes.end();
        });
    });
}

/// Real-time tasks that leave a twentieth of each CPU.
fn real_time_hogs(scheduler: Scheduler) {
    // Waiting tasks may have to wait for these, and a CPU that they leave for a moment is idle.
    let limits = Limits { wait_ns: 10 * ROUGH.wait_ns, ..ROUGH };
    scheduler.under(|| {
        watched(limits, |witness| {
            let crowd = restless(50);
            // Above the hogs: where the host gives a guest little, what these leave is too little to
            // read the events and to end the load.
            let this = nix::unistd::gettid().as_raw();
            set_real_time(this, 20);
            let mut hogs = Threads::default();
            for cpu in crate::support::all().iter() {
                hogs.start(|| {
                    spin(Duration::from_millis(95));
                    std::thread::sleep(Duration::from_millis(5));
                });
                let tid = *hogs.tids.last().unwrap();
                affinity::set(tid, &just(cpu)).unwrap();
                set_real_time(tid, 10);
            }
            for_a_while(witness, rest);
            hogs.end();
            set_real_time(this, 0);
            crowd.end();
        });
    });
}
