//! Heterogeneous jobs: components of different sizes on nodes of their own, which one step may span.

use crate::cluster::{Cluster, Wanted};
use crate::steps::{Step, be_eager, busy_in_a_script};
use crate::support::*;

fn start(test: &str) -> Option<Cluster> {
    two_cpus(test)?;
    Cluster::start(test, Wanted { scheduler: "sched/backfill", ..Wanted::default() })
}

/// srun hands the option on once for all components: the last one counts.
#[test]
fn the_option_holds_for_all_components_of_a_step() {
    let Some(cluster) = start("the_option_holds_for_all_components_of_a_step") else { return };
    for (first, second, lines) in [
        ("--evenkeel", "--quiet", 2),
        ("--quiet", "--evenkeel", 2),
        ("--evenkeel", "--evenkeel=off", 0),
    ] {
        let mut command = cluster.srun(&["-n1", first, "echo", "ran", ":"]);
        command.args(["--nodelist=node2", "-n2", "--overcommit", second, "echo", "ran"]);
        let step = Step::run(&mut command);
        assert!(step.code == Some(0) && step.stdout == ["ran"; 3], "{step:?}");
        assert_eq!(step.ours.len(), lines, "{first} {second}: {step:?}");
    }
    cluster.wait_for_nothing_left();
}

/// The first component has one task, the second one has two, which are balanced together.
#[test]
fn all_components_of_a_job_are_reported() {
    let Some(cluster) = start("all_components_of_a_job_are_reported") else { return };
    be_eager(&cluster.host);
    let balanced = busy_in_a_script("2");
    let script = format!(
        "#SBATCH -n1 --nodelist=node1 --evenkeel\n#SBATCH hetjob\n#SBATCH -n2 --nodelist=node2\n\
         srun --het-group=0,1 {balanced}\nsrun --het-group=1 true\n\
         '{EVENKEEL}' cluster report $SLURM_JOB_ID; echo asked: $?"
    );
    let out = cluster.host.path("out");
    let job = cluster.sbatch(&[&format!("--output={}", out.display())], &script);
    let written = || std::fs::read_to_string(&out).unwrap_or_default();
    wait_for("the report in the job", || written().contains("asked: "));
    let text = written();
    assert!(text.contains("asked: 0\n"), "{text}");
    for step in [0, 1] {
        let line = format!("evenkeel: 2 ranks of step {job}.{step} on node2: ");
        let short = format!("evenkeel: step {job}.{step} on node2: ");
        assert_eq!(text.matches(&line).count() + text.matches(&short).count(), 1, "{text}");
    }
    cluster.wait_for_nothing_left();
    // By a job of its own, on the nodes of both components.
    let ended = cluster.report(&[&job.to_string()]);
    let said = crate::support::text(&ended.stdout);
    for said in [&text, &said] {
        assert!(said.contains(&format!("Step {job}.0 on node[1-2]:\n  node1: ")), "{said}");
        assert!(said.contains("\n  node2: 2 ranks"), "{said}");
        assert!(said.contains(&format!("Step {job}.1 on node2:\n  node2: ")), "{said}");
    }
    assert_eq!(ended.status.code(), Some(0), "{ended:?}");
    let component = cluster.report(&[&(job + 1).to_string()]);
    assert_eq!(component.status.code(), Some(2), "{component:?}");
    let why = format!("is a component of the heterogeneous job {job}: name that");
    assert!(crate::support::text(&component.stderr).contains(&why), "{component:?}");
    cluster.wait_for_nothing_left();
}
