//! Batch jobs: the script, its steps, arrays, and what cannot be wrapped.

use std::process::Command;
use std::time::{Duration, Instant};

use crate::cluster::{Cluster, Wanted, from_root, trackers};
use crate::steps::Step;
use crate::support::*;

/// What a job wrote into its file, once no job is left.
pub fn written(cluster: &Cluster, file: &str) -> Vec<String> {
    cluster.wait_for_nothing_left();
    let text = std::fs::read_to_string(cluster.host.path(file)).unwrap();
    text.lines().map(str::to_owned).collect()
}

pub fn to(cluster: &Cluster, file: &str) -> String {
    format!("--output={}", cluster.host.path(file).display())
}

#[test]
fn a_script_and_its_steps_run_under_the_option_of_sbatch() {
    let test = "a_script_and_its_steps_run_under_the_option_of_sbatch";
    let Some(cluster) = Cluster::start(test, Wanted::default()) else { return };
    let script = "#SBATCH --evenkeel\necho script $0\nsrun -n2 --overcommit echo step\n\
                  srun -n1 --evenkeel=off echo without\nexit 5";
    let job = cluster.sbatch(&["--nodelist=node1", &to(&cluster, "out")], script);
    let lines = written(&cluster, "out");
    let count = |what: &str| lines.iter().filter(|line| line.contains(what)).count();
    assert_eq!((count("script "), count("step"), count("without")), (1, 3, 1), "{lines:?}");
    assert_eq!(count("evenkeel: "), 2, "the script's line and the step's: {lines:?}");
    assert_eq!(count(&format!("step {job}.0 on node1: ")), 1, "{lines:?}");
    assert_eq!(cluster.of_job(job, "ExitCode"), "5:0");
}

#[test]
fn each_job_of_an_array_runs() {
    let Some(cluster) = Cluster::start("each_job_of_an_array_runs", Wanted::default()) else {
        return;
    };
    let script = "srun -n1 echo member $SLURM_ARRAY_TASK_ID";
    let output = format!("{}-%a", to(&cluster, "out"));
    let job = cluster.sbatch(&["--array=1-3", "--evenkeel", &output], script);
    for member in 1..=3 {
        let lines = written(&cluster, &format!("out-{member}"));
        assert!(lines.contains(&format!("member {member}")), "{lines:?}");
        assert_eq!(lines.iter().filter(|line| line.starts_with("evenkeel: ")).count(), 2);
    }
    let report = cluster.report(&[&format!("{job}_2")]);
    assert_eq!(report.status.code(), Some(0), "{report:?}");
    assert!(text(&report.stdout).contains(&format!("Step {job}_2.0 on node")), "{report:?}");
    cluster.wait_for_nothing_left();
}

#[test]
fn a_list_of_programs_runs_without() {
    let Some(cluster) = Cluster::start("a_list_of_programs_runs_without", Wanted::default()) else {
        return;
    };
    let list = cluster.host.path("list");
    std::fs::write(&list, "0 echo first\n1 echo second\n").unwrap();
    let list = list.to_str().unwrap();
    let plain = Step::run(&mut cluster.srun(&["-n2", "--multi-prog", list]));
    let under = Step::run(&mut cluster.srun(&["-n2", "--evenkeel", "--multi-prog", list]));
    under.is_like(&plain);
    assert_eq!(under.stdout, ["first", "second"]);
    under.says("is no program that it can start; the job runs without evenkeel");
    cluster.wait_for_nothing_left();
}

/// Slurm signals all processes of a step, where it tracks them by cgroups only its own children, and of
/// a batch job the script alone.
#[test]
fn each_signal_reaches_the_program_once() {
    for proctrack in trackers() {
        let wanted = Wanted { proctrack, ..Wanted::default() };
        let Some(cluster) = Cluster::start("each_signal_reaches_the_program_once", wanted) else {
            return;
        };
        count_signals(&cluster);
    }
}

fn count_signals(cluster: &Cluster) {
    let counter = cluster.host.path("counter");
    let source = from_root("tests/cluster/counter.c");
    let built = Command::new("cc").args(["-o", counter.to_str().unwrap(), &source]).status();
    assert!(built.unwrap().success());
    let counter = counter.display();
    for (script, batch) in
        [(format!("srun -n1 {counter}"), ""), (format!("exec {counter}"), "--batch")]
    {
        let job = cluster.sbatch(&["--evenkeel", &to(cluster, "out")], &script).to_string();
        let file = cluster.host.path("out");
        let count = |what: &str| {
            let text = std::fs::read_to_string(&file).unwrap_or_default();
            text.lines().filter(|line| *line == what).count()
        };
        wait_for("the program", || count("ready") == 1);
        let target = if batch.is_empty() { format!("{job}.0") } else { job.clone() };
        let send = |signal: &str| {
            let words = [signal, target.as_str(), batch];
            cluster.scancel(words.strip_suffix(&[""]).unwrap_or(&words));
        };
        for sent in 1..=3 {
            send("--signal=USR1");
            wait_for("a signal", || count("got") >= sent);
        }
        send("--signal=USR2");
        cluster.wait_for_nothing_left();
        assert_eq!(count("got"), 3, "{script}");
        assert!(cluster.of_job(job.parse().unwrap(), "ExitCode").starts_with("7:"), "{script}");
    }
}

#[test]
#[ignore = "Slurm holds a requeued job back for two minutes: make cluster-test"]
fn a_requeued_job_runs_again() {
    let Some(cluster) = Cluster::start("a_requeued_job_runs_again", Wanted::default()) else {
        return;
    };
    let script = "echo run ${SLURM_RESTART_COUNT:-0}\nsrun -n2 --overcommit sleep 2";
    let flags = ["--requeue", "--evenkeel", "--open-mode=append", "--nodelist=node1"];
    let number = cluster.sbatch(&[&flags[..], &[&to(&cluster, "out")]].concat(), script);
    let job = number.to_string();
    wait_for("the first step", || !cluster.processes_named("sleep").is_empty());
    cluster.scontrol(&["requeue", &job]);
    wait_for("its end", || {
        cluster.of_job(number, "Restarts") == "1"
            && cluster.processes_named("slurmstepd").is_empty()
    });
    let deadline = Instant::now() + Duration::from_secs(300);
    while cluster.of_job(number, "JobState") != "COMPLETED" {
        assert!(Instant::now() < deadline, "it did not run again");
        std::thread::sleep(Duration::from_secs(1));
    }
    let lines = written(&cluster, "out");
    let is_line = |line: &&String| line.starts_with("run ");
    assert_eq!(lines.iter().filter(is_line).collect::<Vec<_>>(), ["run 0", "run 1"], "{lines:?}");
    let mut again = lines.iter().skip_while(|line| *line != "run 1");
    let step = format!("step {job}.0 on node1: ");
    assert!(again.any(|line| line.contains(&step)), "{lines:?}");
    let report = cluster.report(&[&job]);
    assert_eq!(report.status.code(), Some(0), "{report:?}");
    assert!(text(&report.stdout).contains(&format!("Step {job}.0 on node1:\n")), "{report:?}");
    cluster.wait_for_nothing_left();
}
