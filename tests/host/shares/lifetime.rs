//! Weights over time: they change between regions only, they end with the balancer, and the program's
//! children see the environment as it was.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use evenkeel_journal::affinity;
use evenkeel_machine::CpuSet;
use evenkeel_shares::page::{Effect, PageOwner};

use super::programs::*;
use crate::support::{all, just};

const EQUAL: [u64; 2] = [500, 500];
const SKEWED: [u64; 2] = [231, 769];

/// `steady.c` with two threads, under the library.
fn start(shares: &Shares) -> Steady {
    let program = shares.compile("steady.c", "steady", &[]);
    let mut command = shares.command(program);
    command.arg("2");
    let mut steady = Steady::start(command);
    assert_eq!(steady.line(), "preload=- page=-");
    steady
}

#[test]
fn weights_change_between_regions_only() {
    let Some(mut shares) = Shares::with_weights("weights_change_between_regions_only") else {
        return;
    };
    let mut steady = start(&shares);
    assert_eq!(steady.ask("run"), SKEWED);
    shares.even();
    assert_eq!(steady.ask("run"), EQUAL);
    // The loop before the change and the one after it are of one region.
    assert_eq!(steady.ask("hold"), EQUAL);
    shares.skew();
    assert_eq!(steady.ask("go on"), EQUAL);
    assert_eq!(steady.ask("hold"), SKEWED);
    shares.even();
    assert_eq!(steady.ask("go on"), SKEWED);
    assert_eq!(steady.ask("run"), EQUAL);
    steady.end();
}

#[test]
fn a_team_that_changes_its_size_is_divided_by_its_threads() {
    let test = "a_team_that_changes_its_size_is_divided_by_its_threads";
    let Some(shares) = Shares::with_weights(test) else { return };
    let mut steady = start(&shares);
    assert_eq!(steady.ask("run"), SKEWED);
    for _ in 0..3 {
        assert_eq!(steady.ask("team 1"), [1000]);
        assert_eq!(steady.ask("team 2"), SKEWED);
        // The third one is on the first one's CPU. No iteration may be lost or done twice.
        let three = steady.ask("team 3");
        assert_eq!((three.len(), three.iter().sum::<u64>()), (3, 1000), "{three:?}");
        assert_eq!(steady.ask("team 2"), SKEWED);
    }
    steady.end();
}

/// The kernel moves threads so when a CPU goes offline or leaves their cpuset.
#[test]
fn threads_that_lose_their_cpu_in_a_region_have_other_parts_from_the_next_one_on() {
    let test = "threads_that_lose_their_cpu_in_a_region_have_other_parts_from_the_next_one_on";
    let Some(shares) = Shares::with_weights(test) else { return };
    let mut steady = start(&shares);
    assert_eq!(steady.ask("run"), SKEWED);
    assert_eq!(steady.ask("hold"), SKEWED);
    let tasks = std::fs::read_dir(format!("/proc/{}/task", steady.pid())).unwrap();
    let names = tasks.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let threads: Vec<(i32, CpuSet)> = names
        .map(|name| name.parse().unwrap())
        .map(|tid| (tid, affinity::get(tid).unwrap()))
        .collect();
    let last = just(all().iter().last().unwrap());
    for (tid, _) in &threads {
        affinity::set(*tid, &last).unwrap();
    }
    // The loops of one region agree, wherever its threads are by now.
    assert_eq!(steady.ask("go on"), SKEWED);
    assert_eq!(steady.ask("run"), EQUAL);
    for (tid, mask) in &threads {
        affinity::set(*tid, mask).unwrap();
    }
    assert_eq!(steady.ask("run"), SKEWED);
    steady.end();
}

#[test]
fn a_program_outlives_its_balancer() {
    let Some(mut shares) = Shares::with_weights("a_program_outlives_its_balancer") else { return };
    let mut steady = start(&shares);
    assert_eq!(steady.ask("run"), SKEWED);
    assert_eq!(steady.ask("hold"), SKEWED);
    // The balancer ends in order while the region runs.
    shares.page = PageOwner::create(PATIENCE).unwrap();
    assert_eq!(steady.ask("go on"), SKEWED);
    assert_eq!(steady.ask("run"), EQUAL);
    steady.end();
    // It was killed: the last weights hold until its patience is over.
    shares.skew();
    let mut steady = start(&shares);
    let killed = std::mem::replace(&mut shares.page, PageOwner::create(Duration::ZERO).unwrap());
    std::mem::forget(killed);
    assert_eq!(steady.ask("run"), SKEWED);
    steady.end();
    shares.skew();
    let mut steady = start(&shares);
    assert_eq!(steady.ask("run"), EQUAL);
    steady.end();
}

#[test]
fn the_page_tells_the_threads_of_each_team() {
    let Some(shares) = Shares::with_weights("the_page_tells_the_threads_of_each_team") else {
        return;
    };
    let mut steady = start(&shares);
    assert_eq!(steady.ask("run"), SKEWED);
    let report = shares.report();
    assert_eq!(report.effect(), Effect::Divides);
    // One region that pins, and five with a loop; the first of all has no weights.
    // Each divided loop has a part for both threads.
    assert_eq!((report.regions, report.loops_divided % 2), (6, 0));
    assert!((8..=10).contains(&report.loops_divided), "{report:?}");
    assert!(report.limits().is_empty());
    let pid = steady.pid();
    // A lap ends with the next region, so the last one goes on. Where the threads were before they were
    // pinned decides whether the first region with a loop is divided.
    let laps = |is_divided: bool| -> u64 {
        let of_kind = report.laps.iter().filter(|(site, _)| site.is_divided == is_divided);
        of_kind.map(|(_, laps)| laps.count).sum()
    };
    assert!(report.laps.keys().all(|site| site.tid == pid), "{:?}", report.laps);
    assert!(laps(false) >= 1 && laps(true) >= 3, "{:?}", report.laps);
    assert_eq!(laps(false) + laps(true), 5);
    assert!(report.laps.values().all(|laps| laps.total_ns > 0));
    let mut numbers: Vec<_> = report.threads.iter().map(|thread| thread.number).collect();
    numbers.sort_unstable();
    assert_eq!(numbers, [0, 1]);
    for thread in &report.threads {
        assert_eq!((thread.pid, thread.primary_tid, thread.team_size), (pid, pid, 2));
        assert_eq!(thread.number == 0, thread.tid == pid);
        assert!(Path::new(&format!("/proc/{pid}/task/{}", thread.tid)).exists());
    }
    steady.end();
}

#[test]
fn a_forked_child_has_teams_of_its_own() {
    let test = "a_forked_child_has_teams_of_its_own";
    let Some(mut shares) = Shares::with_weights(test) else { return };
    let mut steady = start(&shares);
    assert_eq!(steady.ask("run"), SKEWED);
    let before = shares.report().threads.len();
    assert_eq!(steady.ask("fork"), SKEWED);
    assert_eq!(steady.ask("run"), SKEWED);
    // The child has ended without a word; its threads are known until they are looked for.
    let threads_of_child = |shares: &Shares| {
        let threads = shares.report().threads;
        assert_eq!(
            threads.len() - before,
            threads.iter().filter(|it| it.pid != steady.pid()).count()
        );
        threads.len() - before
    };
    assert_eq!(threads_of_child(&shares), 2);
    shares.page.forget_dead(|tid| Path::new(&format!("/proc/{tid}")).exists());
    assert_eq!(threads_of_child(&shares), 0);
    steady.end();
}

#[test]
fn children_of_the_program_see_the_environment_as_it_was() {
    let test = "children_of_the_program_see_the_environment_as_it_was";
    let Some(shares) = Shares::with_weights(test) else { return };
    let mut steady = start(&shares);
    steady.tell("exec");
    assert_eq!(steady.line(), "preload=- page=-");
    assert_eq!(steady.ask("run"), EQUAL);
    steady.end();
    // Other libraries stay. A shell in front of the program passes on what the program needs.
    let program = shares.path("steady");
    let mut shell = shares.command("/bin/sh");
    let mut list = std::ffi::OsString::from("libm.so.6:");
    list.push(preloaded());
    shell.args(["-c", "\"$0\" 2; :"]).arg(program).env("LD_PRELOAD", list);
    let mut steady = Steady::start(shell);
    assert_eq!(steady.line(), "preload=libm.so.6 page=-");
    assert_eq!(steady.ask("run"), SKEWED);
    steady.end();
}

#[test]
fn a_page_that_is_gone_or_is_none_is_ignored() {
    let Some(mut shares) = Shares::with_weights("a_page_that_is_gone_or_is_none_is_ignored") else {
        return;
    };
    let program = shares.compile("steady.c", "steady", &[]);
    let address = shares.page.address();
    shares.page = PageOwner::create(PATIENCE).unwrap();
    for value in [&address, "", "/etc/passwd", "/proc/self/fd/0:0123456789abcdef"] {
        let mut command: Command = shares.command(&program);
        command.arg("2").env("EVENKEEL_SHARES", value);
        let mut steady = Steady::start(command);
        assert_eq!(steady.line(), "preload=- page=-");
        assert_eq!(steady.ask("run"), EQUAL, "{value}");
        steady.end();
    }
    assert_eq!(shares.effect(), Effect::NotLoaded);
}
