//! What the option gains a job on a node with one noisy CPU: figures with a verdict, and no test.

use std::time::Duration;

use crate::cluster::{Cluster, Wanted, from_root};
use crate::support::*;

/// Longer than `evenkeel-lab bench cluster` allows itself.
const LIMIT: Duration = Duration::from_secs(60 * 60);

/// Prints them: `make cluster-test`. EVENKEEL_STARTED names another executable, such as a release build;
/// EVENKEEL_GAIN_JSON a file for the figures, and EVENKEEL_GAIN_MARKDOWN one for a page of them, both
/// from the project's root (`make bench-cluster`); EVENKEEL_GAIN_QUICK=1 has them measured in less than
/// a minute, which decides nothing.
#[test]
#[ignore = "twenty minutes; make cluster-test prints the figures"]
fn the_gain_of_a_job_on_a_noisy_node_is_measured() {
    let test = "the_gain_of_a_job_on_a_noisy_node_is_measured";
    if two_cpus(test).is_none() {
        return;
    }
    if evenkeel_bench::mpi::Mpi::find(evenkeel_bench::mpi::Kind::Mpich).is_err() {
        evenkeel_skip::skip(test, "no MPICH here (scripts/setup mpi installs it)");
        return;
    }
    let program = std::env::var("EVENKEEL_STARTED").ok().map(|path| &*path.leak());
    // Slurm's usual binding is what the gain is compared with.
    let wanted = Wanted { program, task_plugin: "task/affinity", ..Wanted::default() };
    let Some(cluster) = Cluster::start(test, wanted) else { return };
    let mut command = cluster.command(EVENKEEL_LAB);
    command.args(["bench", "cluster", "--node", "node1"]).current_dir(from_root(""));
    let files = [("--json", "EVENKEEL_GAIN_JSON"), ("--markdown", "EVENKEEL_GAIN_MARKDOWN")];
    for (option, variable) in files {
        if let Some(file) = std::env::var_os(variable) {
            command.arg(option).arg(file);
        }
    }
    if std::env::var_os("EVENKEEL_GAIN_QUICK").is_some() {
        command.arg("--quick");
    }
    let done = output_within(&mut command, &[], LIMIT);
    assert!(done.status.success(), "{}{}", text(&done.stdout), text(&done.stderr));
    println!("{}", text(&done.stdout));
    cluster.wait_for_nothing_left();
}
