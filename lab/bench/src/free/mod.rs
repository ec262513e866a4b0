//! `evenkeel-lab bench free`: the same programs run freely under the keel on a real kernel and in the
//! simulator, and what each thread got is compared.
//!
//! | file | what it holds |
//! |---|---|
//! | `load` | the programs |
//! | `round` | both runs, in the guest |
//! | `agreement` | how similar they are |

mod agreement;
mod load;
mod round;

use anyhow::Result;
use evenkeel_keel::{Balance, Options, Order};

use evenkeel_experiment::guest::{self, Clock, GuestBench, keel};
use evenkeel_experiment::{Aim, Experiment, Kind, Metric, Options as Asked, Wanted};

/// The keel with its plain policies.
const FAIR: &str = "fair";
/// The keel with sibling aggregation.
const IAS: &str = "ias";
/// The keel that balances by capability.
const CAPABILITY: &str = "capability";

/// How the contestants are simulated.
fn options(contestant: &str) -> Options {
    match contestant {
        IAS => Options { order: Order::Ias, ..Options::default() },
        CAPABILITY => Options { balance: Balance::Capability, ..Options::default() },
        _ => Options::default(),
    }
}

static METRICS: [Metric; 20] = [
    shares("weights-shares"),
    alike("weights-migrations"),
    real("weights-migrated"),
    simulated("weights-simulated"),
    shares("crowd-shares"),
    alike("crowd-migrations"),
    real("crowd-migrated"),
    simulated("crowd-simulated"),
    shares("periodic-shares"),
    alike("periodic-migrations"),
    real("periodic-migrated"),
    simulated("periodic-simulated"),
    shares("barrier-shares"),
    alike("barrier-migrations"),
    real("barrier-migrated"),
    simulated("barrier-simulated"),
    shares("pool-shares"),
    alike("pool-migrations"),
    real("pool-migrated"),
    simulated("pool-simulated"),
];

const fn shares(name: &'static str) -> Metric {
    let explanation = "the share of the CPU time that the simulator gives to the same threads as the \
                       kernel does; threads that do the same are matched by what they got";
    Metric::new(name, Kind::Index, explanation)
}

const fn alike(name: &'static str) -> Metric {
    let explanation = "how often threads were migrated: the smaller number divided by the larger, or by \
                       the number of threads where that is larger";
    Metric::new(name, Kind::Index, explanation)
}

const fn real(name: &'static str) -> Metric {
    Metric::new(name, Kind::Frequency, "so often the kernel did")
}

const fn simulated(name: &'static str) -> Metric {
    Metric::new(name, Kind::Frequency, "so often the simulator did")
}

/// Runs it, as [`GuestBench::run`] does.
///
/// # Errors
/// As there.
pub fn run(options: &Asked) -> Result<i32> {
    bench().run(options)
}

fn bench() -> GuestBench {
    let contestants = vec![
        keel(FAIR, "", "`evenkeel sched` with its plain policies"),
        keel(IAS, "--order ias", "with the order `ias`"),
        keel(CAPABILITY, "--balance capability", "with the balance `capability`"),
    ];
    let aims = |contestant| {
        METRICS.iter().filter(|metric| metric.kind == Kind::Index).map(move |metric| {
            let least = if metric.name.ends_with("shares") { 0.95 } else { 0.8 };
            Aim::new(contestant, metric.name, Wanted::AtLeast(least))
        })
    };
    let experiment = Experiment {
        name: "free",
        title: "Benchmarks: free runs of the simulator and of a real kernel",
        intro: "",
        case_word: "machine",
        aims: [FAIR, IAS, CAPABILITY].into_iter().flat_map(aims).collect(),
        contestants,
        metrics: &METRICS,
        course: guest::COURSE,
        reading: READING,
        lists: vec![guest::machines()],
    };
    GuestBench {
        experiment,
        programs: &[],
        clocks: &Clock::ALL,
        nodes: 1,
        limit_s: 300,
        measure: round::measure,
    }
}

const READING: &str = "\
- `weights`: busy threads of three nice values; `crowd`: threads that work and sleep at random; \
`periodic`: threads that work a millisecond of ten, beside busy ones; `barrier`: threads that wait \
for each other, beside a busy one; `pool`: clients and servers, beside busy threads. Real threads \
and simulated tasks do the same work and draw the same random times. They are watched after a \
while to settle.
- The simulated machine is the guest as its sysfs describes it, with the simulator's usual costs: \
none of them was fitted to the guest.
- On the counted machine a request reaches another CPU when the emulator executes that CPU next, \
some ms later at most; the simulator's kicks take 2 us. On the timed machine the figures include \
the host's noise.
";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_figures_of_every_load_are_listed() {
        let listed: Vec<&str> = METRICS.iter().map(|metric| metric.name).collect();
        let figures = ["shares", "migrations", "migrated", "simulated"];
        let wanted: Vec<String> = load::all(2)
            .iter()
            .flat_map(|load| figures.map(|what| format!("{}-{what}", load.name)))
            .collect();
        assert_eq!(listed, wanted);
        assert_eq!(bench().experiment.aims.len(), 3 * 2 * 5);
    }

    #[test]
    fn contestants_are_simulated_as_they_run() {
        for contestant in bench().experiment.contestants {
            let guest::Scheduler::Keel(words) = &contestant.how else {
                panic!("{} cannot be simulated", contestant.name);
            };
            let options = options(&contestant.name);
            let named = [options.order.to_string(), options.balance.to_string()];
            let usual = [Order::default().to_string(), Balance::default().to_string()];
            for (named, usual) in named.iter().zip(&usual) {
                assert_eq!(words.contains(&named.as_str()), named != usual, "{words:?} {named}");
            }
        }
    }
}
