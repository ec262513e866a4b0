//! The user-level balancer on top of the keel.

#![allow(clippy::unwrap_used)]

mod common;

use common::{MS, Sim, hog, paper};
use evenkeel_capability::{LagParameters, Policy, Preference};
use evenkeel_invariants::What;
use evenkeel_machine::{Costs, Machine};
use evenkeel_sim::Outcome;
use evenkeel_sim::program::Interrupts;

#[test]
fn two_threads_run_at_the_average_of_their_cpus() {
    // CPU 0 loses half of its time to interrupts, which the scheduler does not see.
    let source = Interrupts { cpu: 0, run_ns: MS, period_ns: 2 * MS };
    let sim = Sim::keel(paper(2)).tasks(2, hog(3_000 * MS)).interrupts(source);
    let alone = sim.run();
    let balanced = Sim { balancer: Some(Policy::Lag(LagParameters::default())), ..sim }.run();
    assert_eq!(alone.moves, 0);
    assert!(balanced.moves >= 2);
    // 6 s of work at 1.5 CPUs take 4 s.
    assert!(balanced.time_ns < 4_300 * MS, "balanced: {} ms", balanced.time_ns / MS);
    assert!(
        balanced.time_ns * 10 < alone.time_ns * 9,
        "without the balancer: {} ms",
        alone.time_ns / MS
    );
}

#[test]
fn nothing_is_moved_on_equal_cpus() {
    let sim = Sim::keel(paper(4)).tasks(4, hog(2_000 * MS));
    let balanced = Sim { balancer: Some(Policy::Lag(LagParameters::default())), ..sim }.run();
    assert_eq!((balanced.moves, balanced.time_ns), (0, 2_000 * MS));
}

/// What a unit of work needs on CPUs 0 and 1, and on CPUs 2 and 3 of half the speed.
const ENERGY: [u64; 4] = [100, 100, 40, 40];

fn hybrid() -> Machine {
    let text = "name = \"hybrid\"\nkinds = [
        { cpus = \"0-1\", capability = 1024, energy_per_work = 100 },
        { cpus = \"2-3\", capability = 512, energy_per_work = 40 },
    ]\n";
    Machine { costs: Costs::none(), ..Machine::parse_toml(text, "hybrid").unwrap() }
}

/// Threads of 2 s of work each on the hybrid machine, and what their work needed in all, by the time
/// that each CPU was busy.
fn on_hybrid(threads: usize, prefer: Preference) -> (Outcome, u64) {
    let parameters = LagParameters { prefer, ..LagParameters::default() };
    let sim = Sim::keel(hybrid()).tasks(threads, hog(2_000 * MS));
    let sim = Sim { balancer: Some(Policy::Lag(parameters)), ..sim };
    let mut simulation = sim.simulation();
    simulation.records = true;
    let outcome = simulation.run().unwrap();
    assert_eq!((&outcome.end, outcome.broken.len()), (&None, 0), "{}", outcome.dump);
    let (mut since_ns, mut energy) = ([None; 4], 0);
    for event in &outcome.record {
        if let What::Switch { next, .. } = event.what {
            let cpu = event.cpu as usize;
            let speed = if cpu < 2 { 2 } else { 1 };
            if let Some(since_ns) = since_ns[cpu].take() {
                energy += (event.time_ns - since_ns) * speed * ENERGY[cpu];
            }
            since_ns[cpu] = (next != 0).then_some(event.time_ns);
        }
    }
    (outcome, energy)
}

#[test]
fn few_threads_need_less_energy_where_it_is_preferred() {
    let (fast, most) = on_hybrid(2, Preference::Capable);
    let (slow, least) = on_hybrid(2, Preference::Efficient);
    // At half the speed, and at 40 % of the energy, but for the first interval.
    assert!(slow.time_ns > fast.time_ns * 18 / 10 && slow.time_ns < fast.time_ns * 21 / 10);
    assert!(least * 100 < most * 45, "{least} of {most}");
    assert_eq!(slow.moves, 2, "they are kept where they are");
}

#[test]
fn with_as_many_threads_as_cpus_the_preference_changes_nothing() {
    let (one, energy) = on_hybrid(4, Preference::Capable);
    let (other, same) = on_hybrid(4, Preference::Efficient);
    assert_eq!((one.hash, energy), (other.hash, same));
}
