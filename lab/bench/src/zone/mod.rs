//! `evenkeel-lab bench zone`: what the gate `zone` does to urgent tasks and to ordinary ones, by how
//! busy the machine is: latencies, migrations, attempts and throughput under each level, and what a
//! question to the gate costs. The guest has two last-level caches.
//!
//! | file | what it holds |
//! |---|---|
//! | `background` | the load |
//! | `looks` | the cost of balancing, and how long urgent tasks wait for it |
//! | `urgent` | latencies of real-time and of ordinary threads |
//! | `round` | one round, in the guest |

mod background;
mod looks;
mod round;
mod urgent;

use anyhow::Result;

use crate::keel::{ENQUEUE_DISPATCH, LAVD};
use evenkeel_experiment::guest::{self, Clock, EEVDF, GuestBench, eevdf, keel, peer};
use evenkeel_experiment::{Aim, Experiment, Kind, Metric, Options, Wanted, peers};

/// The keel that may balance at any time.
const ALWAYS: &str = "always";
/// The same with the background pinned: only the kernel's own threads may migrate.
const STILL: &str = "still";
/// The paper's level for urgent tasks.
const HIGH: &str = "warm-high";
/// The level that opens first.
const COLD: &str = "cold";
/// The paper's level in its own way.
const STRICT: &str = "strict";

const SELECT_CPU: &str = "select-cpu";
/// How often select_cpu asks the gate.
const ASKED: &str = "gate-asked";

/// The figures beside each load.
macro_rules! metrics {
    ($($load:literal $busy:literal),+) => { [
        $(
            Metric::new(concat!("rt-mean-", $load), Kind::Time, concat!(
                "from the time at which a real-time thread (FIFO 99, one pinned to each CPU; \
                 cyclictest) was to wake up until it runs, ", $busy, ": the mean")),
            Metric::new(concat!("rt-p99-", $load), Kind::Time, "the same: 99 of 100 are faster"),
            Metric::new(concat!("rt-max-", $load), Kind::Time, "the same: the longest"),
            Metric::new(concat!("wake-p99-", $load), Kind::Time,
                "the same of ordinary threads that sleep: 99 of 100 are faster"),
            Metric::new(concat!("moves-", $load), Kind::Frequency,
                "how often threads of the background migrated to another last-level cache; at least one \
                 is counted, so that there are ratios"),
            Metric::new(concat!("tries-", $load), Kind::Frequency,
                "how often the keel looked for tasks to pull"),
            Metric::new(concat!("work-", $load), Kind::Throughput,
                "computations of the background"),
            Metric::new(concat!("direct-", $load), Kind::Frequency,
                "instructions of the keel's code that looks for tasks and pulls them"),
            Metric::new(concat!("delay-", $load), Kind::Cost,
                "by how many instructions that code, which runs with interrupts off, delays a thousand \
                 wake-ups of urgent tasks together, at random times on random CPUs; at least one"),
            Metric::new(concat!("moving-", $load), Kind::Cost,
                "the same of the part of it that walks another CPU's queue and pulls tasks"),
        )+
        Metric::new(SELECT_CPU, Kind::Cost,
            "one call of select_cpu, in instructions, during hackbench: most of the time all CPUs are \
             busy, so that a gate refuses little"),
        Metric::new(ENQUEUE_DISPATCH, Kind::Cost, "one call of enqueue and one of dispatch there"),
        Metric::new(ASKED, Kind::Factor,
            "answers of the gate that counted there, for each call of select_cpu: one that is always \
             open is not asked, and counts all moves"),
    ] };
}

static METRICS: [Metric; 63] = metrics!(
    "20" "while the CPUs are busy for 20 % of the time",
    "40" "for 40 %",
    "60" "for 60 %",
    "75" "for 75 %",
    "95" "for 95 %",
    "full" "while they are busy all the time, and stress-ng and hackbench keep memory, disks, network, \
            message queues and pipes busy"
);

/// Runs it, as [`GuestBench::run`] does.
///
/// # Errors
/// As there.
pub fn run(options: &Options) -> Result<i32> {
    bench().run(options)
}

fn bench() -> GuestBench {
    let mut experiment = Experiment {
        name: "zone",
        title: "Benchmarks: operation zones",
        intro: "",
        case_word: "machine",
        contestants: vec![
            eevdf(),
            keel(ALWAYS, "--gate always", "the keel that may balance at any time"),
            keel(
                STILL,
                "--gate always",
                "the same, each thread of the background pinned to a CPU: nothing is moved",
            ),
            keel(COLD, "--gate zone --zone cold", "balances above 30 %: level 0"),
            keel(
                "warm-low",
                "--gate zone --zone warm-low",
                "balances above 30 %, with scores: level 1",
            ),
            keel(
                "warm-mid",
                "--gate zone --zone warm-mid",
                "balances above 50 %, with scores: level 2",
            ),
            keel(HIGH, "--gate zone --zone warm-high", "balances above 80 %, with scores: level 3"),
            keel("hot", "--gate zone --zone hot", "balances above 80 %: level 4"),
            keel(
                round::MEAN,
                "--gate zone --zone warm-high",
                "level 3 with `bal_cpus_avg_enable` 1: the mean of the CPUs is compared",
            ),
            keel(
                STRICT,
                "--gate zone --zone warm-high --strict",
                "level 3 as the paper has it: a task that waits in the quiet zone goes on to wait \
                 although a CPU idles, and no idle CPU pulls",
            ),
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
        programs: &[urgent::CYCLICTEST, background::STRESS, crate::keel::HACKBENCH],
        clocks: &[Clock::Counted],
        nodes: 2,
        limit_s: 1000,
        measure: round::measure,
    }
}

fn aims() -> Vec<Aim> {
    let high = |metric, wanted| Aim::new(HIGH, metric, wanted);
    let mut aims = Vec::new();
    for metric in ["moves-40", "moves-60", "moves-75"] {
        aims.push(high(metric, Wanted::Ratio(5.0, ALWAYS)));
    }
    for metric in ["tries-40", "tries-60", "tries-75"] {
        aims.push(high(metric, Wanted::Ratio(3.0, ALWAYS)));
    }
    for metric in ["work-40", "work-60", "work-75"] {
        aims.push(high(metric, Wanted::Ratio(0.99, ALWAYS)));
    }
    for metric in ["wake-p99-40", "wake-p99-60", "wake-p99-75"] {
        aims.push(high(metric, Wanted::Ratio(0.97, ALWAYS)));
    }
    for metric in ["rt-mean-40", "rt-mean-60", "rt-mean-75", "rt-p99-40", "rt-p99-60", "rt-p99-75"]
    {
        aims.push(high(metric, Wanted::Ratio(1.0, EEVDF)));
    }
    // Of the latency that migrations add to urgent tasks, warm-high removes at least four fifths.
    for metric in ["rt-mean-40", "rt-mean-60", "rt-mean-75"] {
        aims.push(high(metric, Wanted::Way(0.8, ALWAYS, STILL)));
    }
    // The counted part of that latency: the code that pulls tasks runs with interrupts off.
    for metric in ["moving-40", "moving-60", "moving-75"] {
        aims.push(high(metric, Wanted::Ratio(5.0, ALWAYS)));
    }
    // The paper's figure 7: 72 us become 31 us under heavy stress.
    for contestant in [HIGH, STRICT] {
        aims.push(Aim::new(contestant, "rt-mean-full", Wanted::Ratio(72.0 / 31.0, EEVDF)));
    }
    for metric in [SELECT_CPU, ENQUEUE_DISPATCH] {
        aims.push(Aim::new(COLD, metric, Wanted::AtMostMore(60.0, ALWAYS)));
    }
    let each = Wanted::AtMostMoreEach(60.0, ALWAYS, ASKED);
    aims.push(Aim::new(COLD, SELECT_CPU, each));
    aims
}

const READING: &str = "\
- `eevdf`, `always` and `warm-high` are measured at all loads, `still` and `scx_lavd` from 40 to 75 %, \
`strict` at 60 % and at the paper's full load, the other levels at 60 %, where they differ most.
- The CPUs are under two last-level caches. Within a cache the gate is not asked, except by \
`strict`: so *moves* counts migrations between the caches.
- Computations of the background are counted over all CPUs, of which the emulator executes one \
at a time: the loss of a CPU that idles shows only while all others idle, too. The \
[simulation](004.md) shows it.
- Latencies are in instructions of all CPUs, a thousand a microsecond, because the emulator \
executes one CPU after the other: a latency includes some ten thousand instructions of \
interrupts. They compare contestants.
- What migrations cost urgent tasks is the difference between `always` and `still`; the part of \
it that `warm-high` removes is the difference between `always` and `warm-high`, divided by that. \
Where the cost of migrations cannot be told from chance, that is not defined, and the aim stays \
undecided.
- The three costs that the paper names stand apart: *direct* is `direct-...`, instructions of \
the code that balances; *indirect* is `moves-...`, each of which leaves warm caches behind (the \
emulator does not know the cost of that; the [simulation](004.md) does); *latency* is \
`delay-...` and `moving-...`. These two are counted call by call: at a random time, a CPU is \
within a call of L instructions for the share of the time that such calls take, and an urgent \
task then waits for half of L. They are measured after the others, of `always`, `still` and \
`warm-high` from 40 to 75 %.
- What a question to the gate costs is how many more instructions a call of select_cpu, and one \
of enqueue and one of dispatch, take under `cold` than under `always`. select_cpu does not ask \
where a task cannot do better than stay, so the difference is also shown for each answer. It is \
a balance: for a refused task no idle CPU is looked for, and tasks that stay find other CPUs \
than those that migrate.
";

#[cfg(test)]
mod tests {
    use super::background::Load;
    use super::*;

    #[test]
    fn the_peer_takes_part_and_has_no_counters_of_the_keel() {
        let experiment = bench().experiment;
        let found = experiment.contestants.iter().find(|one| one.name == LAVD);
        assert!(found.is_some_and(|one| !round::is_keel(one)));
        assert!(round::is_keel(experiment.contestant(HIGH).unwrap()));
        assert_eq!(round::loads(LAVD), Load::BAND);
    }

    #[test]
    fn all_that_is_wanted_is_measured() {
        let experiment = bench().experiment;
        for aim in &experiment.aims {
            assert!(experiment.metric(aim.metric).is_some(), "{aim:?}");
            assert!(experiment.contestants.iter().any(|one| one.name == aim.contestant), "{aim:?}");
        }
        for load in Load::ALL {
            assert!(experiment.metric(&format!("tries-{load}")).is_some(), "{load}");
        }
        // Both contestants of an aim are measured at its load.
        for aim in &experiment.aims {
            let both = [Some(aim.contestant), aim.wanted.against()].into_iter().flatten();
            let is_beside = |load: &&Load| load.has(aim.metric);
            for load in Load::ALL.iter().filter(is_beside) {
                both.clone().for_each(|one| assert!(round::loads(one).contains(load), "{aim:?}"));
            }
        }
    }
}
