//! `evenkeel-lab bench ias`: sibling aggregation on a real kernel, in a virtual machine: what it costs,
//! which siblings it brings together, and how long other tasks wait for it.
//!
//! | file | the one thing in it |
//! |---|---|
//! | `metric` | what is measured, and what is wanted |
//! | `expected` | what exact aggregation would bring together, simulated |
//! | `round` | how it is measured, in the guest |
//! | `crowd` | many address spaces of busy threads |
//! | `sched` | the thread that measures does not wait for the threads that it measures |
//! | `turns` | which thread ran when: waits, switches, siblings at the same time |

mod crowd;
mod expected;
mod metric;
mod round;
mod sched;
mod turns;

use anyhow::Result;

use crate::keel::LAVD;
use evenkeel_experiment::guest::{self, Clock, GuestBench, eevdf, keel, peer};
use evenkeel_experiment::{Aim, Experiment, Options, peers};

/// The keel's baseline.
const FAIR: &str = "fair";
/// The order `ias`, and no program aggregates.
const UNSET: &str = "unset";
/// Every program aggregates with a bonus of 0.
const BONUS_0: &str = "bonus-0";
/// Every program aggregates with a bonus of [`MULTIPLE`], and address spaces take turns.
const IAS: &str = "ias";
/// The same in the mode `paper`.
const PAPER: &str = "paper";
/// The bonus is this many times the last run.
const MULTIPLE: u64 = 3;

/// The bonus that programs get under this contestant; `None`: no program aggregates.
fn bonus(contestant: &str) -> Option<u64> {
    match contestant {
        BONUS_0 => Some(0),
        IAS | PAPER => Some(MULTIPLE),
        _ => None,
    }
}

/// Runs it, as [`GuestBench::run`] does.
///
/// # Errors
/// As there.
pub fn run(options: &Options) -> Result<i32> {
    // What is wanted is only asked for on the host: it takes a simulation.
    let is_host = options.inside.is_none() && options.from.is_none();
    let aims =
        if is_host { metric::aims(&expected::Exact::simulate(MULTIPLE)?) } else { Vec::new() };
    bench(aims).run(options)
}

fn bench(aims: Vec<Aim>) -> GuestBench {
    let mut experiment = Experiment {
        name: "ias",
        title: "Benchmarks: sibling aggregation",
        intro: "",
        case_word: "machine",
        contestants: vec![
            keel(FAIR, "--order fair", "`evenkeel sched` with its plain policies"),
            keel(UNSET, "--order ias", "`evenkeel sched --order ias`, and no program aggregates"),
            keel(
                BONUS_0,
                "--order ias",
                "`evenkeel sched --order ias`, all programs with a bonus of 0",
            ),
            keel(
                IAS,
                "--order ias",
                "the same with a bonus of 3 times what ran last (`evenkeel ias agg PID --bonus 3x`)",
            ),
            keel(
                PAPER,
                "--order ias --ias-mode paper",
                "the same in the mode `paper`: siblings go first as far as the bonus allows",
            ),
            eevdf(),
        ],
        metrics: &metric::METRICS,
        aims,
        course: guest::COURSE,
        reading: READING,
        lists: vec![guest::machines()],
    };
    experiment.contestants.extend(peers::find(LAVD).map(peer));
    GuestBench {
        experiment,
        programs: &[round::SYSBENCH],
        clocks: &[Clock::Counted],
        nodes: 1,
        limit_s: 180,
        measure: round::measure,
    }
}

const READING: &str = "\
- An emulator has no caches: what siblings gain by them does not show here. What does is which task \
runs next to which, how often, and what it costs in instructions.
- The ten programs only compute: in an emulator without caches what they would write to memory makes \
no difference, and sysbench's own takes minutes to start there.
- CPUs 0 and 1 are a group, and CPUs 2 and 3 (`set_ias_alloc 0 1 2 3`); under the other contestants the \
same pairs are looked at.
- The aims for switches and company in the mode `paper` are eight tenths of what the simulator gives \
for the keel's own code, on the same load and for as long.
- All threads have had a turn about four times when the watch ends. Waits that have not ended then \
count as long as they were. How even the threads' shares of a second are depends on how many slices \
fit into a second, for `fair` as well: so only the difference is judged.
- Where address spaces take turns, they are to switch a third as often as under `fair`, and waits are \
to be 1.2 times as long at most.
";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whatever_is_wanted_is_measured_of_somebody() {
        let aims = metric::aims(&expected::Exact { reduction: 0.9, co_scheduled: 0.8 });
        let experiment = bench(aims).experiment;
        for aim in &experiment.aims {
            assert!(experiment.metric(aim.metric).is_some(), "{aim:?}");
            let names = || experiment.contestants.iter().map(|one| one.name.as_str());
            assert!(names().any(|name| name == aim.contestant), "{aim:?}");
            assert!(aim.wanted.against().is_none_or(|other| names().any(|name| name == other)));
        }
    }

    #[test]
    fn the_peer_takes_part() {
        assert!(bench(Vec::new()).experiment.contestants.iter().any(|one| one.name == LAVD));
    }

    #[test]
    fn only_ias_has_a_bonus() {
        assert_eq!([FAIR, UNSET, BONUS_0].map(bonus), [None, None, Some(0)]);
        assert_eq!([IAS, PAPER].map(bonus), [Some(3), Some(3)]);
    }
}
