//! `evenkeel-lab bench keel`: the keel with its plain policies beside the kernel's own scheduler and its
//! peers.
//!
//! | file | the one thing in it |
//! |---|---|
//! | `metric` | what is measured, and what is wanted of the keel |
//! | `round` | how, in the guest |

mod metric;
mod round;

use anyhow::{Result, bail};

pub use metric::{ENQUEUE_DISPATCH, USUAL};
pub use round::{HACKBENCH, costs as callback_costs};

use crate::guest::{self, Clock, Contestant, Experiment};

/// Other schedulers with which a machine can be run every day.
pub const PEERS: [&str; 3] = ["scx_flash", "scx_bpfland", "scx_cosmos"];
/// The keel's name in the report.
const KEEL: &str = "keel";

/// Runs it beside these peers (all of [`PEERS`] if none are named), as [`guest::run`] does.
///
/// # Errors
/// Nobody knows a peer, and as there.
pub fn run(peers: &[String], options: &guest::Options) -> Result<i32> {
    guest::run(&experiment(peers)?, options)
}

fn experiment(peers: &[String]) -> Result<Experiment> {
    if let Some(peer) = peers.iter().find(|peer| !PEERS.contains(&peer.as_str())) {
        bail!("there is no peer {peer:?}: give some of {}", PEERS.join(", "));
    }
    let all = PEERS.map(str::to_owned);
    let peers = if peers.is_empty() { &all } else { peers };
    let mut contestants = vec![
        Contestant::eevdf(),
        Contestant::keel(KEEL, "", "`evenkeel sched` with its plain policies"),
    ];
    contestants.extend(peers.iter().map(|peer| Contestant::peer(peer)));
    Ok(Experiment {
        name: "keel",
        title: "Benchmarks: the keel",
        contestants,
        metrics: &metric::METRICS,
        aims: metric::aims(),
        programs: &[round::HACKBENCH, round::SYSBENCH],
        clocks: &Clock::ALL,
        limit_s: 300,
        reading: READING,
        measure: round::measure,
    })
}

const READING: &str = "\
- Latencies on the counted machine: what one CPU asks of another waits until the emulator executes that \
one, up to some ms, under each contestant alike. They compare contestants; they are not what an \
interrupt takes.
- Costs are in instructions a call: what measuring takes is taken off; calls during which the emulator \
executed another CPU are left out, because they seem to take as long as that.
";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_peer_is_refused() {
        let error = experiment(&["scx_none".into()]).err().unwrap().to_string();
        assert!(error.contains("scx_none") && error.contains("scx_flash"), "{error}");
        assert_eq!(experiment(&[]).unwrap().contestants.len(), 2 + PEERS.len());
    }
}
