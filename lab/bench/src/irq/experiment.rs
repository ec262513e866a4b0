//! The lists of the experiment: figures, aims, contestants.

use evenkeel_experiment::{Aim, Cases, Contestant, Experiment, Kind, Metric, Wanted};

use super::contestant::{BOTH, LEVEL, Method, SOURCE_AWARE};
use super::runner::{HOME_CASE, HOT_CASE};
pub use crate::sais::experiment::{CPU_TIME, GOODPUT};
pub use crate::sais::traffic::{DISORDERED, HOME};

/// Of the program beside a hot queue.
pub const TIME: &str = "time";
pub const AVERAGE: &str = "avg(C)";
pub const OF_AVERAGE: &str = "of avg(C)";
/// Of the network.
pub const RESENT: &str = "resent";
/// Of `irq run`.
pub const MOVES: &str = "moves";

/// All of them, in the order of the report.
pub static METRICS: [Metric; 9] = [
    Metric::new(GOODPUT, Kind::MegabytesPerSecond, "what the consumers got a second"),
    Metric::new(
        CPU_TIME,
        Kind::Time,
        "CPU time for a gigabyte: of both ends, the threads of the queues, the contestant, and all \
         interrupts and softirqs of the machine",
    ),
    Metric::new(TIME, Kind::Time, "the time of the whole program beside a hot queue, from outside"),
    Metric::told(
        OF_AVERAGE,
        Kind::Index,
        "rate of the program / its rate at avg(C), with its 95 % interval; that follows from the \
         program undisturbed, run in each round",
    )
    .with_spread(),
    Metric::told(
        AVERAGE,
        Kind::Index,
        "what all else left of the average CPU for the program, 0..=1: the threads of the queues, both \
         ends of the connections, and the contestant",
    ),
    Metric::told(
        HOME,
        Kind::SharePct,
        "of what consumers received, that with the last packet processed on the CPU of the consumer, by \
         the kernel's word for the socket",
    ),
    Metric::told(MOVES, Kind::Count, "what `irq run` moved in a run, the time to warm up included"),
    Metric::told(RESENT, Kind::Count, "segments that the servers sent again, to warm up included"),
    Metric::told(
        DISORDERED,
        Kind::Count,
        "segments that others overtook, by what the client acknowledged, in all runs together; the time \
         to warm up is included, because `irq run` moves then",
    )
    .summed(),
];

/// The margin within which a contestant is not worse.
const MARGIN: f64 = 0.05;
/// The share of packets at home that is wanted, in %.
const AT_HOME_PCT: f64 = 99.0;
/// The share of avg(C) that is wanted.
const LEVELLED: f64 = 0.9;

/// What is measured.
pub fn experiment() -> Experiment<Method> {
    let contestant = |method: Method| Contestant::new(method.name(), method.explanation(), method);
    Experiment {
        name: "irq",
        title: "Benchmarks: interrupts as a lever",
        intro: "",
        case_word: "case",
        contestants: Method::ALL.into_iter().map(contestant).collect(),
        metrics: &METRICS,
        aims: aims(),
        course: COURSE,
        reading: READING,
        lists: Vec::new(),
    }
}

const COURSE: &str = "\
Two network namespaces with a cable between them. The client's end has a receive queue for each CPU \
(8 at most), and threaded NAPI polls each queue in a kernel thread of its own; a program at the \
server's end chooses the queue of each connection, as a card with a flow director does. Contestants \
run in turn (A B C A B C ...), each with a card of its own, and are compared round by round. Before a \
run is measured, all contestants have as long to warm up as `irq run` needs to move each queue once. \
Both ends share the CPUs of one machine: what one end saves, the other may use.";

const READING: &str = "\
- The card is virtual: its queues are threads, which the kernel's scheduler places, and not interrupt \
lines. irqbalance moves lines only, so here its rows show what it costs, not what it is good for.\n";

fn aims() -> Vec<Aim> {
    let receiving = |ours: Method, metric, wanted| Aim::new(ours.name(), metric, wanted);
    let mut aims = Vec::new();
    for ours in [SOURCE_AWARE, BOTH] {
        for peer in [Method::None, Method::Rps, Method::Rfs, Method::Irqbalance] {
            for metric in [GOODPUT, CPU_TIME] {
                aims.push(receiving(ours, metric, Wanted::NotWorse(MARGIN, peer.name())));
            }
        }
        let at_home = Cases::With(HOME_CASE);
        let better = Wanted::Better(Method::None.name());
        aims.push(receiving(ours, CPU_TIME, better).in_cases(at_home));
        aims.push(receiving(ours, HOME, Wanted::AtLeast(AT_HOME_PCT)).in_cases(at_home));
        aims.push(receiving(ours, DISORDERED, Wanted::AtMost(0.0)));
    }
    let disturbed = |ours: Method, metric, wanted| {
        Aim::new(ours.name(), metric, wanted).in_cases(Cases::With(HOT_CASE))
    };
    let irqbalance = Method::Irqbalance.name();
    aims.push(disturbed(LEVEL, OF_AVERAGE, Wanted::AtLeast(LEVELLED)));
    aims.push(disturbed(LEVEL, TIME, Wanted::NotWorse(MARGIN, Method::None.name())));
    aims.push(disturbed(Method::Beside, TIME, Wanted::Better(irqbalance)));
    // With a starved queue the program would be faster, too.
    for (ours, peer) in [(LEVEL, Method::None.name()), (Method::Beside, irqbalance)] {
        aims.push(disturbed(ours, GOODPUT, Wanted::NotWorse(MARGIN, peer)));
    }
    aims
}

#[cfg(test)]
mod tests {
    use evenkeel_experiment::{Case, Reached, Record, Sample, judge_aims};

    use super::*;

    #[test]
    fn aims_name_contestants_and_figures_that_exist() {
        let experiment = experiment();
        for aim in &experiment.aims {
            experiment.contestant(aim.contestant).unwrap();
            assert!(experiment.metric(aim.metric).is_some(), "{}", aim.metric);
            if let Some(other) = aim.wanted.against() {
                experiment.contestant(other).unwrap();
            }
        }
    }

    #[test]
    fn packets_just_short_of_what_is_wanted_miss_it() {
        let reached = |home_pct: f64| {
            let contestants = vec!["none".to_owned(), SOURCE_AWARE.name().to_owned()];
            let name = format!("8 flows, {HOME_CASE}");
            let mut record = Record::new(&Case { name, contestants, ..Case::default() });
            for line in &mut record.lines {
                line.rounds = vec![Some(Sample::new([(HOME, home_pct)])); 7];
            }
            let aims = judge_aims(&aims(), &METRICS, &[record], 1);
            aims.iter().find(|aim| aim.metric == HOME).and_then(|aim| aim.reached)
        };
        assert_eq!(reached(99.0), Some(Reached::Reached));
        assert_eq!(reached(98.9), Some(Reached::Missed));
    }
}
