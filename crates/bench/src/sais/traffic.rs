//! What happened to the packets of a run, by the kernel's own counters of the two namespaces, which
//! begin with the run, and by those of the programs that steered.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result};
use evenkeel_sais::Statistics;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::network::{DEVICE, Namespace, Network};
use crate::stats::median;

/// Of one run, or the medians of several.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Traffic {
    /// Segments that the server sent again.
    pub retransmitted: f64,
    /// Segments that the client received before those that they follow.
    pub out_of_order: f64,
    /// Of the segments that the client's sockets got (after GRO), those that took TCP's fast path
    /// for expected headers, in %.
    pub predicted_pct: f64,
    /// Of the packets whose consumer is known, those that were processed on its core, in %; `None`
    /// where nobody steered by consumers.
    pub home_pct: Option<f64>,
    /// In hint mode, of the packets whose consumer is known, those that came with a hint of ours, in %.
    pub hinted_pct: Option<f64>,
}

impl Traffic {
    /// Of the run that has just ended.
    ///
    /// # Errors
    /// The kernel's counters cannot be read.
    pub fn read(network: &Network, executable: &Path) -> Result<Self> {
        let (client, server) = (counters(&network.client)?, counters(&network.server)?);
        let of =
            |counters: &BTreeMap<String, f64>, name| counters.get(name).copied().unwrap_or(0.0);
        let predicted = of(&client, "TCPHPHits");
        let statistics = steered(executable);
        let share = |share: f64| share * 100.0;
        Ok(Self {
            retransmitted: of(&server, "RetransSegs"),
            out_of_order: of(&client, "TCPOFOQueue"),
            predicted_pct: share(predicted / of(&client, "InSegs").max(1.0)),
            home_pct: statistics.as_ref().and_then(Statistics::share_at_home).map(share),
            hinted_pct: statistics.as_ref().and_then(hinted).map(share),
        })
    }

    /// The middle of each figure; `None` without any run.
    pub fn medians(runs: &[Self]) -> Option<Self> {
        let of = |figure: fn(&Self) -> Option<f64>| {
            median(&runs.iter().filter_map(figure).collect::<Vec<f64>>())
        };
        Some(Self {
            retransmitted: of(|run| Some(run.retransmitted))?,
            out_of_order: of(|run| Some(run.out_of_order))?,
            predicted_pct: of(|run| Some(run.predicted_pct))?,
            home_pct: of(|run| run.home_pct),
            hinted_pct: of(|run| run.hinted_pct),
        })
    }
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
    fn medians_are_of_those_that_say_something() {
        let run = |out_of_order, home_pct| Traffic { out_of_order, home_pct, ..Traffic::default() };
        let runs = [run(4.0, None), run(1.0, Some(99.0)), run(9.0, None)];
        let medians = Traffic::medians(&runs).unwrap();
        assert_eq!((medians.out_of_order, medians.home_pct), (4.0, Some(99.0)));
        assert_eq!(medians.hinted_pct, None);
        assert_eq!(Traffic::medians(&[]), None);
    }
}
