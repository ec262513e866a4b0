//! What happened to the packets of a run, warming up included: by the kernel's own counters of the two
//! namespaces, which begin with the run, and by those of the programs that steered; and where they were
//! processed while it was measured, by looks at the sockets.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result};
use evenkeel_sais::Statistics;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::arrivals::Arrivals;
use super::network::{DEVICE, Namespace, Network};
use crate::stats::median;

/// Of one run, or of several.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Traffic {
    /// Segments that the server sent again: the median.
    pub retransmitted: f64,
    /// Segments that others overtook, by what the client acknowledged to the server: of all runs
    /// together. What a full socket or queue drops also lets the next ones come too early, but is sent
    /// again, and not counted. ...
    pub out_of_order: f64,
    /// ... and all that its sockets got (after GRO).
    pub segments: f64,
    /// Of these segments, those that took TCP's fast path for expected headers, in %: the median.
    pub predicted_pct: f64,
    /// Of the strips, those whose last packet was processed on the core of who read it, in %: the
    /// median; `None` where another program read.
    pub home_pct: Option<f64>,
    /// Of the strips, those whose last packet was processed on this core, in %: the median of those runs
    /// in which it took part.
    #[serde(default)]
    pub by_core_pct: BTreeMap<u32, f64>,
    /// Of the packets whose consumer is known to who steers, those that it had processed on its core, in
    /// %: the median; `None` where nobody steered by consumers.
    pub steered_home_pct: Option<f64>,
    /// In hint mode, of the packets whose consumer is known, those that came with a hint of ours, in %:
    /// the median.
    pub hinted_pct: Option<f64>,
    /// Of the runs, those at whose end our program was on the device, in %: `auto` may have no use for
    /// it. `None` where nobody steers.
    pub steering_pct: Option<f64>,
}

impl Traffic {
    /// Of the run that has just ended.
    ///
    /// # Errors
    /// The kernel's counters cannot be read.
    pub(super) fn read(network: &Network, executable: &Path, arrivals: &Arrivals) -> Result<Self> {
        let (client, server) = (counters(&network.client)?, counters(&network.server)?);
        let of =
            |counters: &BTreeMap<String, f64>, name| counters.get(name).copied().unwrap_or(0.0);
        let predicted = of(&client, "TCPHPHits");
        let statistics = steered(executable);
        let share = |share: f64| share * 100.0;
        Ok(Self {
            retransmitted: of(&server, "RetransSegs"),
            out_of_order: OVERTAKEN.map(|name| of(&server, name)).iter().sum(),
            segments: of(&client, SEGMENTS),
            predicted_pct: share(predicted / of(&client, SEGMENTS).max(1.0)),
            home_pct: arrivals.home_pct(),
            by_core_pct: arrivals.by_core_pct(),
            steered_home_pct: statistics.as_ref().and_then(Statistics::share_at_home).map(share),
            hinted_pct: statistics.as_ref().and_then(hinted).map(share),
            steering_pct: statistics
                .as_ref()
                .map(|all| share(f64::from(u8::from(all.xdp != NOT_ON_DEVICE)))),
        })
    }

    /// Of several runs; `None` without any.
    pub fn of_runs(runs: &[Self]) -> Option<Self> {
        let of = |figure: fn(&Self) -> Option<f64>| {
            median(&runs.iter().filter_map(figure).collect::<Vec<f64>>())
        };
        let sum = |figure: fn(&Self) -> f64| runs.iter().map(figure).sum::<f64>();
        let looked: Vec<&Self> = runs.iter().filter(|run| !run.by_core_pct.is_empty()).collect();
        let cores = looked.iter().flat_map(|run| run.by_core_pct.keys().copied());
        let by_core = |core: u32| {
            let share = |run: &&Self| run.by_core_pct.get(&core).copied().unwrap_or(0.0);
            Some((core, median(&looked.iter().map(share).collect::<Vec<f64>>())?))
        };
        let steering: Vec<f64> = runs.iter().filter_map(|run| run.steering_pct).collect();
        Some(Self {
            retransmitted: of(|run| Some(run.retransmitted))?,
            out_of_order: sum(|run| run.out_of_order),
            segments: sum(|run| run.segments),
            predicted_pct: of(|run| Some(run.predicted_pct))?,
            home_pct: of(|run| run.home_pct),
            by_core_pct: cores.filter_map(by_core).collect(),
            steered_home_pct: of(|run| run.steered_home_pct),
            hinted_pct: of(|run| run.hinted_pct),
            steering_pct: (!steering.is_empty())
                .then(|| steering.iter().sum::<f64>() / steering.len() as f64),
        })
    }
}

/// What `auto` says of its XDP mode while it has no use for the program.
const NOT_ON_DEVICE: &str = "no";

/// Counters of the kernel.
const SEGMENTS: &str = "InSegs";
const OUT_OF_ORDER: &str = "TCPOFOQueue";
/// By which of its options TCP found out.
const OVERTAKEN: [&str; 2] = ["TCPSACKReorder", "TCPTSReorder"];

/// Of the segments that a namespace received so far, those that came before others that they follow;
/// and all of them.
///
/// # Errors
/// The kernel's counters cannot be read.
pub(super) fn out_of_order(namespace: &Namespace) -> Result<(u64, u64)> {
    let counters = counters(namespace)?;
    let of = |name| counters.get(name).copied().unwrap_or(0.0) as u64;
    Ok((of(OUT_OF_ORDER), of(SEGMENTS)))
}

/// The counters of a namespace, those of TCP, by name.
fn counters(namespace: &Namespace) -> Result<BTreeMap<String, f64>> {
    namespace.within(|| {
        let mut counters = BTreeMap::new();
        for file in ["snmp", "netstat"] {
            let path = format!("/proc/thread-self/net/{file}");
            let text = fs::read_to_string(&path).with_context(|| format!("cannot read {path}"))?;
            counters.extend(named(&text));
        }
        Ok(counters)
    })
}

/// Of lines in pairs, names and values.
fn named(text: &str) -> Vec<(String, f64)> {
    let lines: Vec<&str> = text.lines().filter(|line| line.starts_with("Tcp")).collect();
    let pairs = lines.chunks_exact(2).flat_map(|pair| pair[0].split(' ').zip(pair[1].split(' ')));
    pairs.filter_map(|(name, value)| Some((name.to_owned(), value.parse().ok()?))).collect()
}

/// What whoever steers the client's device says; `None`: nobody does.
fn steered(executable: &Path) -> Option<Statistics> {
    let run = Command::new(executable).args(["sais", "status", "--json"]).output().ok()?;
    let answers: Vec<Value> = serde_json::from_slice(&run.stdout).ok()?;
    let ours = answers.into_iter().find(|answer| answer["device"] == DEVICE)?;
    serde_json::from_value(ours).ok()
}

/// A hint that was replaced meanwhile is one of ours, too.
fn hinted(statistics: &Statistics) -> Option<f64> {
    let sum = |names: &[&str]| names.iter().map(|name| statistics.total(name)).sum::<u64>() as f64;
    let good = sum(&["hint_echoed", "hint_stale"]);
    let all = good + sum(&["hint_absent", "hint_replayed", "hint_forged", "hint_malformed"]);
    (all > 0.0).then(|| good / all)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_have_the_names_above_them() {
        let text = "Ip: Forwarding InReceives\nIp: 1 9\nTcp: InSegs RetransSegs MaxConn\nTcp: 70 3 -1\n\
                    TcpExt: TCPHPHits TCPOFOQueue\nTcpExt: 35 2\n";
        let counters: BTreeMap<String, f64> = named(text).into_iter().collect();
        assert_eq!((counters["InSegs"], counters["RetransSegs"]), (70.0, 3.0));
        assert_eq!((counters["TCPHPHits"], counters["TCPOFOQueue"]), (35.0, 2.0));
        assert!(!counters.contains_key("InReceives"));
    }

    #[test]
    fn runs_are_summed_up_from_those_that_say_something() {
        let run = |resent, home_pct, steering_pct| Traffic {
            retransmitted: resent,
            out_of_order: resent,
            home_pct,
            by_core_pct: [(resent as u32 % 2, 50.0 + resent)].into(),
            steering_pct,
            ..Traffic::default()
        };
        let runs = [
            run(4.0, None, Some(0.0)),
            run(1.0, Some(99.0), Some(100.0)),
            run(9.0, None, Some(100.0)),
        ];
        let all = Traffic::of_runs(&runs).unwrap();
        assert_eq!((all.retransmitted, all.home_pct), (4.0, Some(99.0)));
        assert_eq!(all.hinted_pct, None);
        // What came out of order is added, and how often it steered is a share of all.
        assert_eq!((all.out_of_order, all.steering_pct.unwrap().round()), (14.0, 67.0));
        assert_eq!(all.by_core_pct, [(0, 0.0), (1, 51.0)].into());
        assert_eq!(Traffic::of_runs(&[]), None);
    }
}
