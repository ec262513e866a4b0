//! Jobs that are cancelled at random moments leave nothing, and neither do those of a node whose daemon
//! is killed, or which the controller gives up, and those at their time limit. EVENKEEL_KILLS says how
//! many are cancelled (8; `make cluster-test`: 200), half of them in cgroups; a daemon is killed a
//! quarter as often. EVENKEEL_KILL_SEED says when.

use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use crate::cluster::{Cluster, Wanted, trackers};
use crate::steps::{be_eager, busy};
use crate::support::*;

/// From the start of a step to the last moment at which it is cancelled.
const LONGEST: Duration = Duration::from_millis(1500);

/// The random moments of a test: the same for the same seed.
struct Moments(u64);

impl Moments {
    /// Those of a test, and how many.
    fn of(test: &str) -> (Self, u64) {
        let number = |name: &str, default: u64| {
            std::env::var(name).map_or(default, |value| value.parse().unwrap())
        };
        let seed = number("EVENKEEL_KILL_SEED", 1);
        println!("{test}: EVENKEEL_KILL_SEED={seed}");
        (Self(seed), number("EVENKEEL_KILLS", 8).div_ceil(2))
    }

    fn wait(&mut self) {
        std::thread::sleep(Duration::from_micros(self.next(LONGEST.as_micros() as u64)));
    }

    /// The next number below `end` (splitmix64).
    fn next(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        (mixed ^ (mixed >> 31)) % end
    }
}

/// A step of two tasks that evenkeel balances.
fn start_victim(cluster: &Cluster, program: &[&str]) -> Child {
    let mut srun = cluster.srun(&["-n2", "--overcommit", "--job-name=victim", "--evenkeel"]);
    let mut srun = srun.args(program).stderr(Stdio::null()).spawn().unwrap();
    let is_running = || cluster.jobs().iter().any(|job| job.ends_with(" R"));
    wait_for("the job", || is_running() || srun.try_wait().unwrap().is_some());
    srun
}

/// Cancelled by SIGTERM, evenkeel leaves nothing, whether the program ends by it or has to be killed.
/// Where all of a step is killed at once, the epilog takes the files away.
fn cancel(test: &str, proctrack: &'static str) {
    let wanted = Wanted { proctrack, ..Wanted::default() };
    let Some(cluster) = Cluster::start(test, wanted) else { return };
    be_eager(&cluster.host);
    let (mut moments, kills) = Moments::of(test);
    let stays = ["timeout", "-s", "KILL", "30", "sh", "-c", "trap '' TERM; while :; do :; done"];
    let ends = busy("30");
    for round in 0..kills {
        let program: &[&str] = if round % 2 == 0 { &stays } else { &ends };
        let is_killed = round % 4 >= 2;
        let mut srun = start_victim(&cluster, program);
        moments.wait();
        let signal: &[&str] = if is_killed { &["--signal=KILL"] } else { &[] };
        cluster.scancel(&[&["--name=victim"], signal].concat());
        ended(&mut srun);
        cluster.wait_for_no_process();
        if is_killed {
            assert!(cluster.epilog(0).status.success());
        }
        assert!(cluster.left().is_empty(), "round {round}: {:?}", cluster.left());
    }
    cluster.wait_for_nothing_left();
}

#[test]
fn a_job_that_is_cancelled_leaves_nothing() {
    cancel("a_job_that_is_cancelled_leaves_nothing", trackers()[0]);
}

#[test]
fn a_job_in_a_cgroup_that_is_cancelled_leaves_nothing() {
    let test = "a_job_in_a_cgroup_that_is_cancelled_leaves_nothing";
    match trackers()[..] {
        [_, of_cgroups] => cancel(test, of_cgroups),
        _ => evenkeel_skip::skip(test, "there is no freezer of cgroup v1"),
    }
}

/// The steps of a node whose daemon is killed go on and end; one that was just being started may fail.
#[test]
fn a_node_whose_daemon_is_killed_has_nothing_left() {
    let test = "a_node_whose_daemon_is_killed_has_nothing_left";
    let Some(mut cluster) = Cluster::start(test, Wanted::default()) else { return };
    be_eager(&cluster.host);
    let (mut moments, kills) = Moments::of(test);
    for round in 0..kills.div_ceil(2) {
        let mut srun = start_victim(&cluster, &busy("1"));
        moments.wait();
        cluster.kill_node(0);
        cluster.start_node(0);
        // A job whose launch was lost is not ended by Slurm before its time limit.
        wait_for("the end of its processes", || cluster.processes_named("timeout").is_empty());
        cluster.scancel(&["--name=victim"]);
        ended(&mut srun);
        cluster.wait_for_no_process();
        assert!(cluster.left().is_empty(), "round {round}: {:?}", cluster.left());
    }
    cluster.wait_for_nothing_left();
}

/// The controller gives a node up: its jobs end, and it is back later.
#[test]
fn a_node_that_was_given_up_has_nothing_left() {
    let test = "a_node_that_was_given_up_has_nothing_left";
    let Some(cluster) = Cluster::start(test, Wanted::default()) else { return };
    be_eager(&cluster.host);
    let mut srun = start_victim(&cluster, &busy("60"));
    wait_for("the balancer", || {
        cluster.host.status().len() == 1 || srun.try_wait().unwrap().is_some()
    });
    let job = cluster.running_job();
    cluster.scontrol(&["update", "nodename=node1", "state=down", "reason=test"]);
    wait_for("the end of the job", || cluster.jobs().is_empty());
    assert_eq!(cluster.of_job(job, "JobState"), "NODE_FAIL");
    // Its exit code depends on how its tasks were ended.
    ended(&mut srun);
    // Refused where the node has answered by now, and is back by itself (ReturnToService).
    output(cluster.command("scontrol").args(["update", "nodename=node1", "state=resume"]));
    wait_for("idle nodes", || cluster.states() == ["idle", "idle"]);
    cluster.wait_for_no_process();
    // Without a SIGTERM before, perhaps.
    assert!(cluster.epilog(0).status.success());
    cluster.wait_for_nothing_left();
}

/// No time limit is below a minute, and Slurm looks for jobs beyond theirs each half minute. It sends a
/// SIGTERM then: nothing is left for the epilog.
#[test]
#[ignore = "it takes two minutes: make cluster-test"]
fn a_job_at_its_time_limit_leaves_nothing() {
    let test = "a_job_at_its_time_limit_leaves_nothing";
    for proctrack in trackers() {
        let Some(cluster) = Cluster::start(test, Wanted { proctrack, ..Wanted::default() }) else {
            return;
        };
        be_eager(&cluster.host);
        let words = ["--time=1", "-n2", "--overcommit", "--evenkeel"];
        let mut srun = cluster.srun(&words);
        let mut srun = srun.args(busy("300")).stderr(Stdio::null()).spawn().unwrap();
        wait_for("the balancer", || {
            cluster.host.status().len() == 1 || srun.try_wait().unwrap().is_some()
        });
        let job = cluster.running_job();
        let deadline = Instant::now() + Duration::from_secs(300);
        while srun.try_wait().unwrap().is_none() {
            assert!(Instant::now() < deadline, "Slurm did not end it");
            std::thread::sleep(Duration::from_millis(100));
        }
        cluster.wait_for_no_process();
        assert_eq!(cluster.of_job(job, "JobState"), "TIMEOUT");
        cluster.wait_for_nothing_left();
    }
}
