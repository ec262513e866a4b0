//! `evenkeel-lab bench balance`: programs with a thread for each CPU, on unequal CPUs, under the
//! kernel's own scheduler, the keel with and without capability, the user-level balancer, both
//! together, and a peer for unequal CPUs; and what capability costs.
//!
//! | file | what it holds |
//! |---|---|
//! | `round` | how it is measured, in the guest |
//! | `staggered` | hogs that end one after the other |

mod round;
mod staggered;

use anyhow::Result;

use crate::keel::{ENQUEUE_DISPATCH, LAVD, USUAL};
use evenkeel_experiment::guest::{self, Clock, GuestBench, Scheduler, eevdf, keel, peer};
use evenkeel_experiment::{Aim, Contestant, Experiment, Kind, Metric, Options, Wanted, peers};

/// The keel that takes CPUs as equal.
const COUNT: &str = "count";
/// By capability, with active migration.
const CAPABILITY: &str = "capability";
/// By capability, without active migration.
const PLAIN: &str = "capability-plain";
/// `evenkeel run` under the kernel's own scheduler.
const RUN: &str = "run";
/// `evenkeel run` under [`CAPABILITY`].
const BOTH: &str = "both";

const PARTS: &str = "--balance capability --parts active,turns";

const BARRIER: &str = "barrier";
const BARRIER_EFFICIENCY: &str = "barrier-efficiency";
const STAGGERED: &str = "staggered";
const STAGGERED_EFFICIENCY: &str = "staggered-efficiency";
const STAGGERED_TURNAROUND: &str = "staggered-turnaround";

static METRICS: [Metric; 7] = [
    Metric::new(
        BARRIER,
        Kind::Time,
        "a program with a thread on each CPU, which spin until all have come, ten times: so many \
                      s it takes, start-up included",
    ),
    Metric::new(
        BARRIER_EFFICIENCY,
        Kind::Index,
        "the CPU time in which it computed, by what all CPUs had to give in that time: 1 is the \
                      pace of the average CPU",
    ),
    Metric::new(
        STAGGERED,
        Kind::Time,
        "a busy thread for each CPU, the second with twice the work of the first, and so \
                      on, until the last one ends; and again with the most work for the first",
    ),
    Metric::new(
        STAGGERED_TURNAROUND,
        Kind::Time,
        "the same until one of them ends, on average (paper 002's measure)",
    ),
    Metric::new(
        STAGGERED_EFFICIENCY,
        Kind::Index,
        "the CPU time that they had, by what as many of the fastest CPUs had to give as there \
                      still were threads: 1 is no fast CPU idle while a slow one works",
    ),
    Metric::new(
        ENQUEUE_DISPATCH,
        Kind::Cost,
        "a call of enqueue and one of dispatch during hackbench, in instructions",
    ),
    Metric::new(
        USUAL,
        Kind::Cost,
        "the median of enqueue's calls plus that of dispatch's. The mean is of many short calls \
         and a few that pull tasks from other CPUs; their number differs between runs",
    ),
];

/// Runs it, as [`GuestBench::run`] does.
///
/// # Errors
/// As there.
pub fn run(options: &Options) -> Result<i32> {
    bench().run(options)
}

/// Is the staggered hogs: started by the experiment itself, in the guest.
///
/// # Errors
/// A thread cannot be started.
pub fn be_hogs(work: u64) -> Result<i32> {
    staggered::be(work)
}

fn bench() -> GuestBench {
    let mut experiment = Experiment {
        name: "balance",
        title: "Benchmarks: unequal CPUs under the keel",
        intro: "",
        case_word: "machine",
        contestants: vec![
            eevdf(),
            keel(COUNT, "--balance count", "the keel that takes CPUs as equal"),
            keel(
                PLAIN,
                "--balance capability",
                "the keel that balances by capability as in the paper: it migrates only waiting tasks",
            ),
            keel(
                CAPABILITY,
                PARTS,
                "the same with `--parts active,turns`: it migrates running tasks, too",
            ),
            Contestant::new(
                RUN,
                "`evenkeel run` under the kernel's own scheduler",
                Scheduler::Kernel,
            ),
            keel(BOTH, PARTS, "`evenkeel run` under `capability`"),
        ],
        metrics: &METRICS,
        aims: aims(),
        course: guest::COURSE,
        reading: READING,
        lists: vec![guest::machines()],
    };
    experiment.contestants.extend(peers::find(LAVD).map(peer));
    GuestBench {
        experiment,
        programs: &[crate::keel::HACKBENCH],
        clocks: &Clock::ALL,
        nodes: 1,
        limit_s: 300,
        measure: round::measure,
    }
}

fn aims() -> Vec<Aim> {
    let aim = |metric, wanted| Aim::new(CAPABILITY, metric, wanted);
    let mut aims = vec![
        aim(BARRIER_EFFICIENCY, Wanted::AtLeast(0.94)),
        aim(BARRIER_EFFICIENCY, Wanted::Better(LAVD)),
        aim(STAGGERED_EFFICIENCY, Wanted::AtLeast(0.92)),
        // Not worse, by a hundredth at most.
        aim(BARRIER, Wanted::Ratio(0.99, COUNT)),
        aim(BARRIER_EFFICIENCY, Wanted::Ratio(0.99, COUNT)),
        aim(STAGGERED, Wanted::Ratio(0.99, COUNT)),
        aim(STAGGERED_TURNAROUND, Wanted::Ratio(0.99, COUNT)),
        aim(STAGGERED_EFFICIENCY, Wanted::Ratio(0.99, COUNT)),
    ];
    for metric in [ENQUEUE_DISPATCH, USUAL] {
        for contestant in [PLAIN, CAPABILITY] {
            aims.push(Aim::new(contestant, metric, Wanted::AtMostMore(150.0, COUNT)));
        }
    }
    aims
}

const READING: &str = "\
- On the timed machine a real-time thread takes half of CPU 1, a millisecond of two. What it \
really took is measured, and what the CPUs had to give follows from that. Efficiencies are shares \
of CPU time, because the work that an emulated CPU does in it changes with the host's speed.
- Hogs that take turns on the fast CPU all run at the average speed. A scheduler that leaves each \
hog on its first CPU wins or loses by which hog has more to do. By arithmetic, in units of what \
the smaller hog takes on the fast CPU, on average of both orders: without turns the first hog ends \
at 1.5 and the last at 2.25, with turns at 1.33 and 2.33. So with turns hogs end 2 % earlier on \
average, and the last one ends 3.6 % later (`cargo test -p evenkeel-sim --test turns -- \
--nocapture`).
- On the counted machine no CPU time is taken, and only costs are measured, in instructions.
";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_aim_has_a_metric_and_contestants() {
        let experiment = bench().experiment;
        for aim in &experiment.aims {
            assert!(experiment.metric(aim.metric).is_some(), "{aim:?}");
            for name in [Some(aim.contestant), aim.wanted.against()].into_iter().flatten() {
                assert!(experiment.contestants.iter().any(|one| one.name == name), "{aim:?}");
            }
        }
    }
}
