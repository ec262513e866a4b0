//! Whether another build of the keel breaks a rule in worlds of all kinds, and whether it decides in any way
//! otherwise than the keel as it is: what `scripts/mutate` asks of each mutant.

#![allow(clippy::unwrap_used)]

mod common;

use common::torture::{complaint, simulation};
use common::{Sim, keel_build};
use evenkeel_keel::{Balance, Gate, Options, Order};
use evenkeel_machine::Machine;
use evenkeel_sim::Simulation;
use evenkeel_sim::program::Workload;

/// Worlds in which everything goes wrong: of each kind some.
const SEEDS: std::ops::Range<u64> = 0..64;
const STEP: usize = 3;
/// How it exits when no rule is broken, and something is decided otherwise.
const DIFFERS: i32 = 3;
/// Worlds in which nothing does, each under all combinations of policies.
const CALM: [(&str, &str); 4] = [
    ("arrivals:tasks=80", "small"),
    ("pool", "hybrid"),
    ("groups:programs=8,threads=6,work=3ms,rounds=3,pause=2ms", "amc1"),
    ("barrier:tasks=24,work=2ms,rounds=6", "small"),
];

fn calm() -> Vec<Simulation> {
    let mut all = Vec::new();
    for (workload, machine) in CALM {
        let workload = Workload::by_name(workload, 1).unwrap();
        for at in 0..8 {
            let options = Options {
                order: Order::ALL[at % 2],
                gate: Gate::ALL[at / 2 % 2],
                balance: Balance::ALL[at / 4],
                ..Options::default()
            };
            let sim = Sim::keel_with(Machine::preset(machine).unwrap(), options);
            all.push(Sim { workload: workload.clone(), ..sim }.simulation());
        }
    }
    all
}

fn torture() -> impl Iterator<Item = Simulation> {
    let keel = keel_build();
    SEEDS.step_by(STEP).map(move |seed| {
        let mut simulation = simulation(seed, keel.as_deref());
        // In half of them no call fails: then who wants to run must be counted rightly.
        if seed % 2 == 1 {
            simulation.faults.fail_one_in = 0;
        }
        simulation
    })
}

/// The histories of the keel as it is are in the file `EVENKEEL_SIM_HISTORIES`, or are written there if
/// there is no such file yet.
#[test]
#[ignore = "needs a build to compare with: scripts/mutate"]
fn another_build_decides_as_the_keel() {
    let path = std::env::var_os("EVENKEEL_SIM_HISTORIES").unwrap();
    let mut histories = String::new();
    for simulation in calm().into_iter().chain(torture()) {
        let outcome = simulation.run().unwrap();
        if let Some(complaint) = complaint(&simulation, &outcome) {
            panic!("{complaint}");
        }
        if simulation.faults.fail_one_in == 0 {
            assert_eq!(outcome.believed_runnable, Some(outcome.runnable));
        }
        histories.push_str(&format!("{:016x}\n", outcome.hash));
    }
    match std::fs::read_to_string(&path) {
        Ok(known) if known == histories => {}
        Ok(_) => std::process::exit(DIFFERS),
        Err(_) => std::fs::write(&path, histories).unwrap(),
    }
}
