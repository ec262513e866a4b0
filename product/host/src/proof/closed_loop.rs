//! The proof and the `lag` policy together, in a closed loop with the model of a machine.

#[path = "../../../capability/tests/common/mod.rs"]
mod common;

use common::MS;
use common::model::{Core, Outcome, Program, run_from, run_judged};
use evenkeel_capability::{LagParameters, Policy};

use super::{Gain, Proof, Proven};

fn lag() -> Policy {
    Policy::Lag(LagParameters::default())
}

fn cores(percents: &[u64]) -> Vec<Core> {
    let core = |percent: &u64| Core { speed: 1024, left_ppm: percent * 10_000, hogs: 0 };
    percents.iter().map(core).collect()
}

/// Runs the program alone, and under the proof. Its tasks begin evenly spread.
fn both(machine: &[Core], program: &Program) -> (Outcome, Outcome, Gain) {
    let placed: Vec<usize> = (0..program.tasks).map(|task| task % machine.len()).collect();
    let alone = run_from(machine, program, &placed, None, |_, _| {});
    let mut proof = Proof::new(&lag());
    let judged = run_judged(
        machine,
        program,
        &placed,
        Some(lag()),
        |_, _| {},
        |snapshot, plan| proof.judge(snapshot, plan),
    );
    (alone, judged, proof.gain())
}

fn phases(tasks: usize, work_ms: u64, lasts_ms: u64) -> Program {
    let phases = (lasts_ms / work_ms).max(1) as u32;
    Program { tasks, work_ns: work_ms * MS, phases, is_seen: true, ..Program::default() }
}

fn gain_of(alone: &Outcome, judged: &Outcome) -> f64 {
    alone.elapsed_ns as f64 / judged.elapsed_ns as f64
}

#[test]
fn no_program_is_worse_off_under_the_proof() {
    for (percents, tasks) in [
        (&[60, 100][..], 2),
        (&[60, 100], 4),
        (&[60, 100], 8),
        (&[100, 80, 60, 40], 4),
        (&[100, 80, 60, 40], 10),
    ] {
        let machine = cores(percents);
        for work_ms in [1, 5, 20, 100, 400, 1_000] {
            for (sleeps, more_percent) in [(true, 0), (false, 0), (true, 30), (false, 30)] {
                let is_crowded = tasks > machine.len();
                if is_crowded && !sleeps && more_percent > 0 {
                    // How fast that is depends on the CPU that the larger task happens to be on.
                    continue;
                }
                let program = Program {
                    sleeps,
                    more_percent,
                    kernel_balances: is_crowded,
                    // In a first phase nothing is known of it.
                    ..phases(tasks, work_ms, (36_000 / tasks as u64).max(5 * work_ms))
                };
                let (alone, judged, gain) = both(&machine, &program);
                let ratio = gain_of(&alone, &judged);
                assert!(ratio >= 0.98, "{ratio:.3} on {percents:?}: {program:?}, {gain:?}");
            }
        }
    }
}

#[test]
fn a_split_is_proved_and_its_measured_gain_is_the_real_one() {
    for work_ms in [2, 5] {
        let program = Program { sleeps: false, kernel_balances: true, ..phases(8, work_ms, 6_000) };
        let (alone, judged, gain) = both(&cores(&[60, 100]), &program);
        let ratio = gain_of(&alone, &judged);
        assert_eq!(gain.proven, Proven::Gains, "{gain:?}");
        let claimed = gain.ratio.unwrap();
        assert!((claimed / ratio - 1.0).abs() < 0.05, "{claimed:.3} for {ratio:.3}");
        assert!(ratio > 1.2, "{ratio:.3}");
    }
}

#[test]
fn a_split_of_one_long_phase_is_kept_without_a_claim() {
    let program = Program { kernel_balances: true, ..phases(8, 4_000, 4_000) };
    let (alone, judged, gain) = both(&cores(&[60, 100]), &program);
    assert_eq!((gain.proven, gain.ratio), (Proven::Unverified, None), "{gain:?}");
    assert!(gain.to_string().contains("phases are longer"), "{gain}");
    assert!(gain_of(&alone, &judged) >= 0.99);
}

#[test]
fn exchanges_are_proved_and_their_measured_gain_is_the_real_one() {
    for (percents, work_ms, phases_of) in
        [(&[60, 100][..], 20_000, 1), (&[60, 100], 2_000, 10), (&[100, 80, 60, 40], 20_000, 1)]
    {
        let tasks = percents.len();
        let program = Program { sleeps: false, ..phases(tasks, work_ms, work_ms * phases_of) };
        let (alone, judged, gain) = both(&cores(percents), &program);
        let ratio = gain_of(&alone, &judged);
        assert_eq!(gain.proven, Proven::Gains, "{gain:?}");
        let claimed = gain.ratio.unwrap();
        assert!((claimed / ratio - 1.0).abs() < 0.05, "{claimed:.3} for {ratio:.3}: {gain:?}");
    }
}
