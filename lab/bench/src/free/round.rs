//! One round, in the guest: each program by real threads, and simulated on the machine that this is.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use evenkeel_machine::Machine;
use evenkeel_sim::program::Workload;
use evenkeel_sim::{MAX_EVENTS, Scheduler, Share, Simulation, play, shares};

use super::agreement::{migrations, of_migrations, of_shares};
use super::{load, options};
use evenkeel_experiment::Figures;
use evenkeel_experiment::guest::Inside;

/// Until threads are where they belong, and for how long they are watched then.
const SETTLES: Duration = Duration::from_millis(200);
const LASTS: Duration = Duration::from_millis(800);
/// Both draw the same random times.
const SEED: u64 = 1;

/// Measures everything under the contestant that is at work.
///
/// # Errors
/// A thread cannot be started, or the machine cannot be simulated.
pub fn measure(inside: &Inside) -> Result<Figures> {
    let machine = Machine::from_sysfs(Path::new("/"))?;
    let mut figures = Figures::new();
    for load in load::all(inside.cpus) {
        let real = play(&load, SEED, SETTLES, LASTS)?;
        let simulated = simulate(&machine, &inside.contestant.name, &load)?;
        let a_second = |shares: &[Share]| migrations(shares) as f64 / LASTS.as_secs_f64();
        figures.extend(
            [
                ("shares", of_shares(&load.tasks, &real, &simulated)),
                ("migrations", of_migrations(&real, &simulated)),
                ("migrated", a_second(&real)),
                ("simulated", a_second(&simulated)),
            ]
            .map(|(what, figure)| (format!("{}-{what}", load.name), figure)),
        );
    }
    Ok(figures)
}

fn simulate(machine: &Machine, contestant: &str, load: &Workload) -> Result<Vec<Share>> {
    let [settles, lasts] = [SETTLES, LASTS].map(|time| time.as_nanos() as u64);
    let workload = Workload { duration_ns: settles + lasts, ..load.clone() };
    let simulation = Simulation {
        machine: machine.clone(),
        scheduler: Scheduler::Keel(options(contestant)),
        balancer: None,
        workload: Arc::new(workload),
        faults: Default::default(),
        seed: SEED,
        limits: None,
        records: true,
        max_events: MAX_EVENTS,
    };
    let outcome = simulation.run().context("cannot simulate this machine")?;
    if let Some(end) = outcome.end {
        bail!("the simulation of {} ended early: {end}", load.name);
    }
    Ok(shares(load.tasks.len(), &outcome.record, settles, settles + lasts))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is simulated is what is watched: all CPUs are busy, and each program gets its time.
    #[test]
    fn simulated_shares_add_up() {
        let machine = Machine::preset("small").unwrap();
        let cpus = machine.cpus.len();
        for contestant in [super::super::FAIR, super::super::IAS, super::super::CAPABILITY] {
            for load in load::all(cpus) {
                let shares = simulate(&machine, contestant, &load).unwrap();
                let all: u64 = shares.iter().map(|share| share.ran_ns).sum();
                let possible = LASTS.as_nanos() as u64 * cpus as u64;
                assert!(all <= possible, "{}: {all} of {possible}", load.name);
                assert!(all > possible * 3 / 4, "{}: {all} of {possible}", load.name);
                let again = simulate(&machine, contestant, &load).unwrap();
                assert_eq!(shares, again, "{}", load.name);
            }
        }
    }
}
