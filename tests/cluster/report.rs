//! `evenkeel cluster report`: the nodes of a job say by a step of it, or by a job of their own, what
//! they measured.

use std::process::Output;

use crate::cluster::{Cluster, Wanted};
use crate::steps::{Step, be_eager, busy, busy_in_a_script};
use crate::support::*;

fn as_json(done: &Output) -> serde_json::Value {
    serde_json::from_slice(&done.stdout).unwrap_or_else(|why| panic!("{why}: {done:?}"))
}

#[test]
fn a_job_is_reported_node_by_node_while_it_runs_and_after_it() {
    let test = "a_job_is_reported_node_by_node_while_it_runs_and_after_it";
    let Some(cluster) = Cluster::start(test, Wanted::default()) else { return };
    be_eager(&cluster.host);
    let balanced = busy_in_a_script("2");
    // Its last line asks from within the job.
    let script = format!(
        "srun -N2 -n4 --overcommit {balanced}\nsrun -N1 -n1 -w node2 --overcommit true\n\
         '{EVENKEEL}' cluster report $SLURM_JOB_ID; echo asked: $?\nexec sleep 1000"
    );
    let out = cluster.host.path("out");
    let output = format!("--output={}", out.display());
    let job = cluster.sbatch(&["-N2", "--evenkeel", &output], &script).to_string();
    let written = || std::fs::read_to_string(&out).unwrap_or_default();
    wait_for("the report in the job", || written().contains("asked: "));
    let text = written();
    assert!(text.contains("asked: 0\n"), "{text}");
    assert!(text.contains(&format!("Step {job}.0 on node[1-2]:\n  node1: ")), "{text}");
    assert!(text.contains(&format!("Step {job}.1 on node2:\n  node2: ")), "{text}");
    // From outside, while the script runs.
    let running = cluster.report(&[&job, "--json"]);
    let running = as_json(&running);
    let steps = running["steps"].as_array().unwrap();
    assert!(steps.iter().any(|step| step["step"] == 0), "{running:#}");
    cluster.scancel(&[&job]);
    cluster.wait_for_no_process();
    // Now by a job of its own, and the script has its record, too.
    let ended = cluster.report(&[&job, "--json"]);
    assert_eq!(ended.status.code(), Some(0), "{ended:?}");
    let ended = as_json(&ended);
    let step = ended["steps"].as_array().unwrap().iter().find(|step| step["step"] == 0).unwrap();
    let nodes: Vec<_> =
        step["records"].as_array().unwrap().iter().map(|record| &record["node"]).collect();
    assert_eq!(nodes, ["node1", "node2"], "{ended:#}");
    let unknown = cluster.report(&["999999"]);
    assert_eq!(unknown.status.code(), Some(2), "{unknown:?}");
    assert!(crate::support::text(&unknown.stderr).contains("job 999999: Slurm does not know it"));
    let by_name = cluster.report(&[&job, "--nodes", "node1"]);
    assert!(crate::support::text(&by_name.stdout).contains("  node1: "), "{by_name:?}");
    cluster.wait_for_nothing_left();
}

/// srun prints it as it ends, where it sees the records of all nodes: it asks none of them.
#[test]
fn srun_prints_a_line_for_all_nodes_whose_records_it_sees() {
    let test = "srun_prints_a_line_for_all_nodes_whose_records_it_sees";
    let Some(cluster) = Cluster::start(test, Wanted::default()) else { return };
    be_eager(&cluster.host);
    let step = |flags: &[&str]| {
        let mut command = cluster.command("srun");
        command.args(["-N2", "-n4", "--quiet", "--overcommit", "--time=2"]).args(flags);
        Step::run(command.args(busy("1")))
    };
    let of_all = |step: &Step| {
        let lines = step.ours.iter().filter(|line| line.contains(" on 2 nodes: "));
        lines.cloned().collect::<Vec<String>>()
    };
    let without = step(&["--evenkeel"]);
    assert_eq!((without.code, of_all(&without)), (Some(124), Vec::new()), "{without:?}");
    let shared = cluster.host.path("shared");
    std::fs::create_dir(&shared).unwrap();
    let file = cluster.host.path("home/.config/evenkeel/config.toml");
    let config = std::fs::read_to_string(&file).unwrap();
    let table = format!("{config}\n[cluster]\nrecords = \"{}\"\n", shared.display());
    std::fs::write(&file, table).unwrap();
    let with = step(&["--evenkeel"]);
    assert_eq!((with.code, with.ours.len()), (Some(124), 3), "{with:?}");
    let lines = of_all(&with);
    assert!(lines.len() == 1 && lines[0].starts_with("evenkeel: step "), "{with:?}");
    assert!(!lines[0].contains("no record"), "{with:?}");
    let plain = step(&[]);
    assert!(plain.ours.is_empty(), "{plain:?}");
    with.is_like(&plain);
    cluster.wait_for_nothing_left();
}
