//! The keel is the same whoever compiles it: the same seed gives the same history under all
//! compilers and options, with sanitizers, too; and the engine does so in every build of its own.

#![allow(clippy::unwrap_used)]

mod common;

use common::build::compile;
use common::{MS, Sim, paper, torture};
use evenkeel_sim::program::{Op, TaskPlan};

#[test]
fn every_compiler_makes_the_same_keel() {
    let clang = std::env::var("CLANG").unwrap_or_else(|_| "clang".to_owned());
    // What is undefined traps, so that nobody needs a sanitizer's library here.
    let undefined = ["-O1", "-fsanitize=undefined", "-fsanitize-undefined-trap-on-error"];
    let builds = [
        compile("cc", &["-O0"]),
        compile("cc", &["-O3"]),
        compile("cc", &undefined),
        compile(&clang, &["-O2"]),
    ];
    // In the last one CPUs were once asked two things in an order that each compiler chose for itself.
    for seed in [1, 2, 3, 30] {
        let expected = torture::simulation(seed, None).run().unwrap().hash;
        for (at, build) in builds.iter().enumerate() {
            let outcome = torture::simulation(seed, Some(build)).run().unwrap();
            assert_eq!(outcome.hash, expected, "build {at}, seed {seed}");
        }
    }
}

#[test]
fn the_keel_compiles_with_sanitizers() {
    compile("cc", &["-O1", "-fsanitize=address,undefined", "-fno-sanitize-recover"]);
}

/// A number that was computed once, by one build on one machine. It changes with the engine, and
/// with nothing else.
#[test]
fn every_build_of_the_engine_makes_the_same_history() {
    let ops = vec![
        Op::RunAbout(3 * MS),
        Op::SleepAbout(2 * MS),
        Op::Barrier(0),
        Op::Repeat { to: 0, times: 30 },
    ];
    let mut sim = Sim::new(paper(4)).tasks(7, TaskPlan::new("member", ops));
    sim.workload.barriers = vec![7];
    sim.machine.costs = evenkeel_machine::Costs::default();
    assert_eq!(format!("{:016x}", sim.run().hash), "df064bd01ac85d84");
}
