//! Suspended jobs: Slurm stops all processes of a step, or freezes them, the balancer included. A
//! program that is stopped alone is a test of `run` (tests/host/signals.rs).

use crate::cluster::{Cluster, Wanted, trackers};
use crate::steps::{Step, be_eager, busy};
use crate::support::*;

/// Suspends the job, and waits until none of its tasks runs: each is stopped, or frozen.
fn suspend(cluster: &Cluster, job: u32) {
    cluster.scontrol(&["suspend", &job.to_string()]);
    wait_for("the stop", || {
        let tasks = cluster.processes_named("sh");
        !tasks.is_empty() && tasks.into_iter().all(|pid| matches!(state(pid), 'T' | 'D'))
    });
    assert_eq!(cluster.of_job(job, "JobState"), "SUSPENDED");
}

#[test]
fn a_suspended_job_goes_on_as_before() {
    let test = "a_suspended_job_goes_on_as_before";
    if two_cpus(test).is_none() {
        return;
    }
    for proctrack in trackers() {
        let Some(cluster) = Cluster::start(test, Wanted { proctrack, ..Wanted::default() }) else {
            return;
        };
        be_eager(&cluster.host);
        let end = cluster.host.path("end");
        let script = format!("while [ ! -e '{}' ]; do :; done", end.display());
        let words = ["-n2", "--overcommit", "--evenkeel", "timeout", "80", "sh", "-c", &script];
        let mut command = cluster.srun(&words);
        let step = std::thread::spawn(move || Step::run(&mut command));
        let moves = || {
            let status = cluster.host.status();
            status.first().and_then(|program| program["moves"].as_u64()).unwrap_or_default()
        };
        wait_for("moves", || moves() > 0 || step.is_finished());
        let job = cluster.running_job();
        for _ in 0..2 {
            suspend(&cluster, job);
            cluster.scontrol(&["resume", &job.to_string()]);
            // Its balancer answers as soon as it goes on.
            let before = moves();
            assert!(before > 0 || step.is_finished(), "its balancer is there");
            wait_for("more moves", || moves() > before || step.is_finished());
        }
        std::fs::write(end, "").unwrap();
        let ended = step.join().unwrap();
        assert_eq!(ended.code, Some(0), "{ended:?}");
        ended.says("2 ranks of step ");
        cluster.wait_for_nothing_left();
    }
}

/// Slurm kills it without a SIGTERM that it could take: what is left is the epilog's.
#[test]
fn a_suspended_job_that_is_cancelled_leaves_nothing() {
    for proctrack in trackers() {
        let test = "a_suspended_job_that_is_cancelled_leaves_nothing";
        let Some(cluster) = Cluster::start(test, Wanted { proctrack, ..Wanted::default() }) else {
            return;
        };
        be_eager(&cluster.host);
        let mut command = cluster.srun(&["-n2", "--overcommit", "--evenkeel"]);
        let step = std::thread::spawn(move || Step::run(command.args(busy("60"))));
        wait_for("the balancer", || cluster.host.status().len() == 1 || step.is_finished());
        let job = cluster.running_job();
        suspend(&cluster, job);
        cluster.scancel(&[&job.to_string()]);
        step.join().unwrap();
        cluster.wait_for_no_process();
        assert!(cluster.epilog(0).status.success());
        cluster.wait_for_nothing_left();
    }
}
