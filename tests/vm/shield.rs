//! Shielded CPUs on a real kernel: they are cleared and used again, and what cannot be shielded is
//! refused.

use std::time::Duration;

use evenkeel_journal::affinity;
use evenkeel_machine::CpuSet;

use crate::Test;
use crate::hotplug::{runs_on, switch};
use crate::policies::{refused, said, without_keel};
use crate::scheduler::{Keel, loads, state};
use crate::storms::*;
use crate::support::{all, just, wait_for};
use crate::watched::{ROUGH, watched};

/// On the kernel of all tests.
pub const TESTS: &[Test] = &[
    Test {
        name: "shield::work_leaves_shielded_cpus_and_comes_back",
        run: work_leaves_shielded_cpus_and_comes_back,
    },
    Test { name: "shield::the_shield_outlives_a_restart", run: the_shield_outlives_a_restart },
];

/// One hog for each CPU, each alone, and one more that is pinned to CPU 2.
fn work_leaves_shielded_cpus_and_comes_back() {
    assert!(without_keel(&["zone", "shield", "3"]).contains("the keel does not run"));
    let keel = Keel::start(&["--gate", "zone", "--zone", "hot", "--shield", "3"]);
    watched(ROUGH, |witness| {
        let shield = |cpus: &str| {
            assert_eq!(said(&["zone", "shield", cpus]), cpus);
            witness.shield(if cpus == "none" { "" } else { cpus }.parse().unwrap()).unwrap();
        };
        witness.shield(just(3)).unwrap();
        let mut hogs = Threads::default();
        for _ in 0..all().len() {
            hogs.start(|| spin(Duration::from_millis(10)));
        }
        let mut pinned = Threads::default();
        pinned.start(|| spin(Duration::from_millis(10)));
        affinity::set(pinned.tids[0], &just(2)).unwrap();
        let on = || -> CpuSet { hogs.tids.iter().map(|tid| runs_on(*tid)).collect() };
        let are_on = |cpus: &str| on().is_subset(&cpus.parse().unwrap());
        wait_for("them to leave CPU 3", || are_on("0-2"));
        shield("2-3");
        wait_for("them to leave CPU 2, too", || are_on("0-1"));
        assert_eq!(runs_on(pinned.tids[0]), 2);
        assert!(said(&["status"]).contains("zone hot, shield 2-3"));
        let top = said(&["top", "--once", "--interval", "100ms"]);
        let (_, counters) = top.split_once("Keel (fair/zone/count):").unwrap();
        let has_counter = |name: &str| counters.lines().any(|line| line.trim().starts_with(name));
        assert!(has_counter("shield ") && has_counter("enqueue "), "{top}");
        assert!(keel.counters()["shield"] > 0);
        shield("none");
        wait_for("one to come back", || on().contains(3));
        hogs.end();
        pinned.end();
    });
    assert_eq!(keel.end().0, Some(0));
}

/// And what cannot be shielded changes nothing.
fn the_shield_outlives_a_restart() {
    let flag = |cpus| refused(&["sched", "--shield", cpus]);
    assert!(flag("0-3").contains("these are all CPUs that are online; leave at least one"));
    let keel = Keel::start(&["--gate", "zone", "--shield", "1-2"]);
    let loads_before = loads();
    switch(1, false);
    wait_for("the keel to be loaded anew", || loads() > loads_before && state() == "enabled");
    for (cpus, expected) in [
        ("1", "shield 1: CPU 1 is offline; online are 0,2-3"),
        ("0,2-3", "these are all CPUs that are online"),
        ("7", "there is no CPU 7; this machine has 0-3"),
        ("3-2", "runs backwards"),
    ] {
        let why = refused(&["zone", "shield", cpus]);
        assert!(why.contains(expected), "{why}");
    }
    switch(1, true);
    wait_for("the keel once more", || loads() > loads_before + 1 && state() == "enabled");
    let shown: serde_json::Value = serde_json::from_str(&said(&["zone", "get", "--json"])).unwrap();
    let knobs = &shown["knobs"];
    assert_eq!((&knobs["shield"], &knobs["balance_level"]), (&"1-2".into(), &0.into()));
    assert_eq!(keel.end().0, Some(0));
}
