//! What Slurm's controller sees of evenkeel: nothing. A step makes the same requests with and without.

use std::collections::BTreeMap;

use crate::cluster::{Cluster, Wanted};
use crate::steps::{be_eager, busy};
use crate::support::*;

/// Requests that this test makes while it waits, what nodes tell when they come to it, and what srun
/// asks again until the nodes are ready: how often depends on the time that this takes.
const OTHERS: &[&str] = &["_INFO", "PING", "REGISTRATION", "STATS", "EPILOG", "JOB_READY"];

/// How often the controller was asked for each thing by steps and their jobs.
fn requests(cluster: &Cluster) -> BTreeMap<String, i64> {
    let said = text(&output(&mut cluster.command("sdiag")).stdout);
    let (_, table) = said.split_once("by message type").unwrap();
    let (table, _) = table.split_once("by user").unwrap();
    let counted = table.lines().filter_map(|line| {
        let (name, rest) = line.trim().split_once(char::is_whitespace)?;
        let (_, count) = rest.split_once("count:")?;
        Some((name.to_owned(), count.split_whitespace().next()?.parse().ok()?))
    });
    counted.filter(|(name, _)| !OTHERS.iter().any(|other| name.contains(other))).collect()
}

/// What a step of two busy tasks asks for.
fn asked_by_step(cluster: &Cluster, flags: &[&str]) -> BTreeMap<String, i64> {
    let before = requests(cluster);
    let words = [&["-n2", "--overcommit"], flags, &busy("2")].concat();
    let done = output(&mut cluster.srun(&words));
    assert_eq!(done.status.code(), Some(124), "{}", text(&done.stderr));
    cluster.wait_for_nothing_left();
    let asked = requests(cluster).into_iter();
    let more = asked.map(|(name, count)| {
        let before = before.get(&name).copied().unwrap_or(0);
        (name, count - before)
    });
    more.filter(|(_, count)| *count != 0).collect()
}

#[test]
fn a_step_asks_the_controller_for_nothing_more() {
    let test = "a_step_asks_the_controller_for_nothing_more";
    let Some(cluster) = Cluster::start(test, Wanted::default()) else { return };
    be_eager(&cluster.host);
    let plain = asked_by_step(&cluster, &[]);
    assert!(!plain.is_empty());
    assert_eq!(asked_by_step(&cluster, &["--evenkeel"]), plain);
}
