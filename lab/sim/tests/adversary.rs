//! No user makes the tasks of others wait: no task waits for 10 s where a fair scheduler lets it wait
//! for less than 5 s, whatever another user does. And cgroups of different users have their shares.

#![allow(clippy::unwrap_used)]

mod common;

use std::sync::atomic::{AtomicUsize, Ordering};

use common::MS;
use common::adversaries::{self, Adversary, VICTIM};
use common::build::with_fault;
use evenkeel_keel::Options;
use evenkeel_sim::{Outcome, Scheduler, Simulation};

/// What the victim had of the time that both users had, in percent.
fn share_pct(simulation: &Simulation, outcome: &Outcome) -> u64 {
    let (mut mine, mut theirs) = (0, 0);
    for (plan, account) in simulation.workload.tasks.iter().zip(&outcome.accounts) {
        match plan.group {
            0 => {}
            VICTIM => mine += account.ran_ns,
            _ => theirs += account.ran_ns,
        }
    }
    mine * 100 / (mine + theirs)
}

/// The least and the most that a task of a cgroup ran, in ms.
fn ran_ms(simulation: &Simulation, outcome: &Outcome, group: usize) -> (u64, u64) {
    let all = simulation.workload.tasks.iter().zip(&outcome.accounts);
    let ran = all.filter(|(plan, _)| plan.group == group).map(|(_, account)| account.ran_ns / MS);
    ran.fold((u64::MAX, 0), |(least, most), ran| (least.min(ran), most.max(ran)))
}

/// What went wrong in a world; none: nothing did.
fn complaint(adversary: &Adversary) -> Option<String> {
    let Adversary { world, least_share_pct, starving } = adversary;
    let outcome = world.simulation.run().unwrap();
    let longest_ms = outcome.findings.as_ref().map_or(0, |found| found.longest_wait_ns / MS);
    let share_pct = share_pct(&world.simulation, &outcome);
    println!("{}: the longest wait is {longest_ms} ms; the victim had {share_pct} %", world.name);
    let end = outcome.end.as_ref().map(|end| format!("{}: {end}\n{}", world.name, outcome.dump));
    let broken = outcome.broken.first();
    let broken = broken.map(|broken| format!("{}: {}", world.name, broken.violation));
    let robbed = || {
        let what = format!("{}: the victim had {share_pct} % beside the adversary", world.name);
        (share_pct < *least_share_pct).then_some(what)
    };
    // In a short world a turn more is twice as much.
    let starving = starving.filter(|_| outcome.time_ns >= 300_000 * MS);
    let favoured = || {
        let (least_ms, most_ms) = ran_ms(&world.simulation, &outcome, starving?);
        let what = format!("{}: rescued tasks ran {least_ms} to {most_ms} ms", world.name);
        println!("{what}");
        (2 * least_ms < most_ms).then_some(what)
    };
    end.or(broken).or_else(robbed).or_else(favoured)
}

/// Runs all worlds on all CPUs.
fn check(worlds: &[Adversary]) {
    let next = AtomicUsize::new(0);
    let work = || {
        let mut complaints = Vec::new();
        while let Some(world) = worlds.get(next.fetch_add(1, Ordering::Relaxed)) {
            complaints.extend(complaint(world));
        }
        complaints
    };
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let complaints: Vec<String> = std::thread::scope(|scope| {
        let all: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
        all.into_iter().flat_map(|one| one.join().unwrap()).collect()
    });
    assert!(complaints.is_empty(), "{} worlds:\n{}", complaints.len(), complaints.join("\n"));
}

#[test]
fn no_user_makes_others_wait() {
    // fair/always/count, ias/always/count, fair/zone/capability, ias/zone/capability.
    check(&adversaries::all(&[0, 1, 6, 7], 25_000));
}

/// If new tasks do not pay for their first slices, forks gain: the test above would notice.
#[test]
fn without_prepayment_forks_gain() {
    let forgets = with_fault(
        "bpf/keel/task.h",
        "if (t->group != ROOT_GROUP)\n",
        "if (t->group == 1 << 31)\n",
    );
    let storm = adversaries::all(&[0], 25_000);
    let storm = storm.into_iter().find(|one| one.world.name.starts_with("forks of")).unwrap();
    let mut simulation = storm.world.simulation;
    simulation.scheduler = Scheduler::Built(Options::default(), forgets.into());
    let share_pct = share_pct(&simulation, &simulation.run().unwrap());
    assert!(share_pct < storm.least_share_pct, "the victim had {share_pct} %");
}

/// `make sim-adversaries`: twenty minutes under all combinations of policies; of the worlds with
/// EVENKEEL_WORLD in their names, if it is set.
#[test]
#[ignore = "takes long: make sim-adversaries"]
fn soak_with_adversaries() {
    let mut worlds = adversaries::all(&[0, 1, 2, 3, 4, 5, 6, 7], 20 * 60 * 1_000);
    if let Ok(part) = std::env::var("EVENKEEL_WORLD") {
        worlds.retain(|adversary| adversary.world.name.contains(&part));
    }
    assert!(!worlds.is_empty());
    check(&worlds);
}
