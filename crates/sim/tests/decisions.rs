//! Whether another build of the keel decides in any way otherwise than the keel as it is: what
//! `scripts/mutate` asks of a mutant that broke no rule.

#![allow(clippy::unwrap_used)]

mod common;

use std::sync::Arc;

use common::torture::simulation;
use common::{Sim, keel_build};
use evenkeel_keel::{Balance, Gate, Options, Order};
use evenkeel_machine::Machine;
use evenkeel_sim::Simulation;
use evenkeel_sim::program::Workload;

/// Worlds in which everything goes wrong.
const SEEDS: std::ops::Range<u64> = 0..16;
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

/// The histories of the keel as it is are in the file `EVENKEEL_SIM_HISTORIES`, or are written there if
/// there is no such file yet.
#[test]
#[ignore = "needs a build to compare with: scripts/mutate"]
fn another_build_decides_as_the_keel() {
    let keel: Option<Arc<[u8]>> = keel_build();
    let path = std::env::var_os("EVENKEEL_SIM_HISTORIES").unwrap();
    let torture = SEEDS.map(|seed| simulation(seed, keel.as_deref()));
    let mut histories = calm().into_iter().chain(torture).map(|simulation| {
        let outcome = simulation.run().unwrap();
        format!("{:016x}\n", outcome.hash)
    });
    match std::fs::read_to_string(&path) {
        Ok(known) => {
            for (known, found) in known.split_inclusive('\n').zip(histories) {
                assert_eq!(known, found);
            }
        }
        Err(_) => std::fs::write(&path, histories.by_ref().collect::<String>()).unwrap(),
    }
}
