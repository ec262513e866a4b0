//! `evenkeel-lab bench keel`: the keel with its plain policies beside the kernel's own scheduler and its
//! peers.
//!
//! | file | what it holds |
//! |---|---|
//! | `metric` | what is measured, and what is wanted of the keel |
//! | `round` | how, in the guest |

mod metric;
mod round;

use anyhow::{Context, Result};

pub use metric::{ENQUEUE_DISPATCH, USUAL};
pub use round::{HACKBENCH, costs as callback_costs};

use evenkeel_experiment::guest::{self, Clock, GuestBench, eevdf, keel, peer};
use evenkeel_experiment::{Experiment, Options, peers};

/// Peers for everyday use of a machine: they take part unless others are named.
pub const PEERS: [&str; 4] = ["scx_flash", "scx_bpfland", "scx_cosmos", LAVD];
/// The peer for unequal CPUs and urgent tasks, which also lets little work gather on few CPUs: it takes
/// part in the benchmarks of all policies.
pub const LAVD: &str = "scx_lavd";
/// The keel's name in the report.
const KEEL: &str = "keel";

/// Runs it beside these peers (all of [`PEERS`] if none are named), as [`GuestBench::run`] does.
///
/// # Errors
/// A peer is not in the table, and as there.
pub fn run(peers: &[String], options: &Options) -> Result<i32> {
    bench(peers)?.run(options)
}

fn bench(named: &[String]) -> Result<GuestBench> {
    let daily = PEERS.map(str::to_owned);
    let named = if named.is_empty() { &daily } else { named };
    let mut contestants = vec![eevdf(), keel(KEEL, "", "`evenkeel sched` with its plain policies")];
    let mut rivals = Vec::new();
    for name in named {
        let found = peers::find(name).with_context(|| {
            let names = peers::all().map(|peer| peer.name).collect::<Vec<_>>().join(", ");
            format!("there is no peer {name:?}: give some of {names}")
        })?;
        rivals.push(found.name);
        contestants.push(peer(found));
    }
    let experiment = Experiment {
        name: "keel",
        title: "Benchmarks: the keel",
        intro: "",
        case_word: "machine",
        contestants,
        metrics: &metric::METRICS,
        aims: metric::aims(&rivals),
        course: guest::COURSE,
        reading: READING,
        lists: vec![guest::machines()],
    };
    Ok(GuestBench {
        experiment,
        programs: &[round::HACKBENCH, round::SYSBENCH],
        clocks: &Clock::ALL,
        nodes: 1,
        limit_s: 300,
        measure: round::measure,
    })
}

const READING: &str = "\
- Latencies on the counted machine: a request from one CPU to another waits until the emulator \
executes the other CPU. That takes some ms under each contestant alike. These latencies compare \
contestants; they are not the latency of an interrupt.
- Costs are in instructions a call, without the cost of measuring. Calls during which the emulator \
executed another CPU are left out: they would include that time.
";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_peer_is_refused() {
        let error = bench(&["scx_none".into()]).err().unwrap().to_string();
        assert!(error.contains("scx_none") && error.contains("scx_flash"), "{error}");
        assert_eq!(bench(&[]).unwrap().experiment.contestants.len(), 2 + PEERS.len());
    }

    #[test]
    fn each_peer_of_the_table_takes_part() {
        let table: Vec<_> = peers::all().map(|peer| peer.name).collect();
        assert!(table.iter().all(|name| PEERS.contains(name)), "{table:?}");
    }

    #[test]
    fn each_aim_compares_contestants() {
        let experiment = bench(&[]).unwrap().experiment;
        for aim in &experiment.aims {
            let against = aim.wanted.against();
            for name in [Some(aim.contestant), against].into_iter().flatten() {
                assert!(experiment.contestants.iter().any(|one| one.name == name), "{aim:?}");
            }
        }
        let beside = |peer: &str| {
            experiment.aims.iter().filter(|aim| aim.wanted.against() == Some(peer)).count()
        };
        assert!(PEERS.iter().all(|peer| beside(peer) > 0));
    }
}
