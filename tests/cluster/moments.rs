//! Jobs that are cancelled at random moments leave nothing, and neither do those of a node whose daemon
//! is killed, or which the controller gives up, and those at their time limit. EVENKEEL_KILLS says how
//! many are cancelled (8; `make cluster-test`: 200), half of them in cgroups; a daemon is killed a
//! quarter as often. EVENKEEL_KILL_SEED says when.

use std::fs::File;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use crate::cluster::{Cluster, Wanted, trackers};
use crate::steps::{be_eager, busy};
use crate::support::*;

/// From the start of a step to the last moment at which it is cancelled.
const LONGEST: Duration = Duration::from_millis(1500);

/// How long srun may take to end after its step: its plugin asks evenkeel for a line meanwhile, a second
/// at most, and waits for half a second for the end of that. The rest is Slurm's own.
const SRUN_ENDS: Duration = Duration::from_secs(5);

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

/// A step of two tasks that evenkeel balances. What it says goes into `victim.err`.
fn start_victim(cluster: &Cluster, program: &[&str]) -> Child {
    let mut srun = cluster.srun(&["-n2", "--overcommit", "--job-name=victim", "--evenkeel"]);
    let said = File::create(cluster.host.path("victim.err")).unwrap();
    let mut srun = srun.args(program).stderr(said).spawn().unwrap();
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

/// Whether Slurm lost the launch of a step of which srun said this: it tells of something else than exit
/// codes, or does not know how a task ended.
fn is_lost_by_slurm(said: &str) -> bool {
    let is_of_slurm = |line: &&str| line.starts_with("srun: ") || line.starts_with("slurmstepd: ");
    let mut lines = said.lines().filter(is_of_slurm);
    !said.contains(EXITED) || lines.any(|line| !line.contains(EXITED))
}

/// How srun begins to say that tasks ended with an exit code of their own.
const EXITED: &str = "Exited with exit code ";

#[test]
fn what_slurm_says_of_a_lost_launch_is_told_from_an_exit_code() {
    let exited = "evenkeel: 2 ranks\nsrun: error: node1: tasks 0-1: Exited with exit code 124\n";
    assert!(!is_lost_by_slurm(exited) && is_lost_by_slurm(""));
    for said in [
        "srun: error: Task launch for StepId=1.0 failed on node node1: Communication failure",
        "slurmstepd: error: *** STEP 1.0 ON node1 CANCELLED AT 2026-01-01T00:00:00 ***",
    ] {
        assert!(is_lost_by_slurm(&format!("{exited}{said}\n")), "{said}");
    }
}

/// The steps of a node go on when its daemon is killed, and end with the exit code of their program. One
/// that was just being started may be lost, and Slurm says so.
#[test]
fn a_node_whose_daemon_is_killed_has_nothing_left() {
    let test = "a_node_whose_daemon_is_killed_has_nothing_left";
    let Some(mut cluster) = Cluster::start(test, Wanted::default()) else { return };
    be_eager(&cluster.host);
    let (mut moments, kills) = Moments::of(test);
    let (mut survived, rounds) = (0, kills.div_ceil(2));
    for round in 0..rounds {
        let mut srun = start_victim(&cluster, &busy("1"));
        moments.wait();
        // Then its launch is over.
        let is_balanced = !cluster.host.status().is_empty();
        cluster.kill_node(0);
        cluster.start_node(0);
        // A job whose launch was lost is not ended by Slurm before its time limit.
        wait_for("the end of its processes", || cluster.processes_named("timeout").is_empty());
        // What still ends now must not be cancelled. A step may stay if its launch was lost.
        let deadline = Instant::now() + Duration::from_secs(10);
        while !cluster.processes_named("slurmstepd").is_empty() && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(20));
        }
        wait_for_exit(&mut srun, SRUN_ENDS);
        cluster.scancel(&["--name=victim"]);
        let code = ended(&mut srun).code();
        let said = std::fs::read_to_string(cluster.host.path("victim.err")).unwrap();
        let mut codes = said.lines().filter_map(|line| Some(line.split_once(EXITED)?.1));
        assert!(codes.all(|code| code == "124"), "round {round}: {code:?}: {said}");
        assert!(!said.contains("runs without evenkeel"), "round {round}: {said}");
        let is_lost = !is_balanced && is_lost_by_slurm(&said);
        assert!(is_lost || code == Some(124), "round {round}: {code:?}: {said}");
        survived += u64::from(!is_lost);
        cluster.wait_for_no_process();
        assert!(cluster.left().is_empty(), "round {round}: {:?}", cluster.left());
    }
    println!("{test}: {survived} of {rounds} steps ended with the exit code of their program");
    // A kill seldom meets a launch.
    assert!(rounds < 10 || survived > rounds / 2, "{survived} of {rounds}");
    cluster.wait_for_nothing_left();
}

/// Waits for the end of a process, for so long.
fn wait_for_exit(child: &mut Child, patience: Duration) {
    let deadline = Instant::now() + patience;
    while child.try_wait().unwrap().is_none() && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(20));
    }
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
