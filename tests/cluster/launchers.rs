//! MPI's own launchers in a job of two nodes: they find the nodes by Slurm's variables, and start their
//! helper on each by srun. The launcher starts evenkeel with each rank, or Slurm starts it with the
//! launcher's helpers.

use evenkeel_bench::mpi::{CHORE_COUNTER, Kind, Mpi};

use crate::batch::{to, written};
use crate::cluster::{Cluster, Wanted};
use crate::steps::{Step, be_eager, busy_in_a_script};
use crate::support::*;

/// Work of each rank, in chores of about 10 us.
const CHORES: u32 = 20_000;

/// The command of a launcher that starts a rank on each of two nodes. Here both nodes are one host: they
/// reach each other by loopback only, which Open MPI does not use unless it is told to, and it must not
/// find that it could also use shared memory.
fn launcher(kind: Kind) -> &'static str {
    match kind {
        Kind::Mpich => "mpiexec.mpich -bind-to none -ppn 1 -n 2",
        Kind::OpenMpi => {
            "mpiexec.openmpi --allow-run-as-root --bind-to none --map-by node -n 2 \
             --mca oob_tcp_if_include lo --mca btl self,tcp --mca btl_tcp_if_include lo"
        }
    }
}

#[test]
fn ranks_of_each_launcher_are_balanced_on_all_nodes() {
    let test = "ranks_of_each_launcher_are_balanced_on_all_nodes";
    for kind in Kind::ALL {
        let Ok(mpi) = Mpi::find(kind) else {
            evenkeel_skip::skip(test, format!("no {} (scripts/setup mpi)", kind.packages()));
            continue;
        };
        let Some(cluster) = Cluster::start(test, Wanted::default()) else { return };
        let program = mpi.compile(CHORE_COUNTER, &cluster.host.path("")).unwrap();
        let program = format!("{} --chores {CHORES} --barrier-every-us 50000", program.display());
        let launch = |option: &str, started: &str| {
            let output = to(&cluster, "out");
            let flags = ["--nodes=2", "--ntasks=2", "--ntasks-per-node=1", option, &output];
            let job = cluster.sbatch(&flags, &format!("{} {started}", launcher(kind)));
            let lines = written(&cluster, "out");
            assert_eq!(cluster.of_job(job, "ExitCode"), "0:0", "{lines:?}");
            let done = format!("task_chores={CHORES},{CHORES} ");
            assert!(lines.iter().any(|line| line.contains(&done)), "{lines:?}");
            lines.into_iter().filter(|line| line.starts_with("evenkeel: ")).collect::<Vec<_>>()
        };
        let with_each = launch("--evenkeel=off", &format!("{EVENKEEL} run -- {program}"));
        let of_a_rank = with_each.iter().filter(|line| line.contains(": 1 rank of an MPI job: "));
        assert_eq!((of_a_rank.count(), with_each.len()), (2, 2), "{kind:?}: {with_each:?}");
        // The script's own line, and one for each node by the launcher's helper there; but Open MPI does
        // not pass on what its helpers write.
        let with_helpers = launch("--evenkeel", &program);
        let expected = if kind == Kind::Mpich { 3 } else { 1 };
        assert_eq!(with_helpers.len(), expected, "{kind:?}: {with_helpers:?}");
    }
}

/// Slurm itself starts the ranks, which find each other by PMIx, as those of Open MPI do.
#[test]
fn ranks_by_pmix_are_those_of_the_step() {
    let test = "ranks_by_pmix_are_those_of_the_step";
    if two_cpus(test).is_none() {
        return;
    }
    let Some(cluster) = Cluster::start(test, Wanted::default()) else { return };
    be_eager(&cluster.host);
    let step = |flags: &[&str], program: &[&str]| {
        let mut command = cluster.srun(&["-n2", "--overcommit", "--mpi=pmix"]);
        Step::run(command.args(flags).args(program))
    };
    let script = format!("echo $PMIX_RANK; {}", busy_in_a_script("1"));
    let program = ["sh", "-c", &script];
    // Slurm's plugin may be missing, or not fit the PMIx that is here.
    let plain = step(&[], &program);
    if plain.code != Some(124) {
        evenkeel_skip::skip(test, "srun --mpi=pmix starts no program here");
        return cluster.wait_for_nothing_left();
    }
    let under = step(&["--evenkeel"], &program);
    under.is_like(&plain);
    assert_eq!(under.stdout, ["0", "1"]);
    under.says("2 ranks of step ");
    under.says(" on node1: ");
    let refused = step(&["--evenkeel=threads=2"], &["echo", "ran"]);
    assert_eq!(refused.stdout, ["ran", "ran"], "{refused:?}");
    refused.says("--threads is for OpenMP, and this is a rank of an MPI program");
    cluster.wait_for_nothing_left();

    let kind = Kind::OpenMpi;
    let Ok(mpi) = Mpi::find(kind) else {
        return evenkeel_skip::skip(test, format!("no {} (scripts/setup mpi)", kind.packages()));
    };
    let counter = mpi.compile(CHORE_COUNTER, &cluster.host.path("")).unwrap();
    let (counter, chores) = (counter.display().to_string(), CHORES.to_string());
    let program = [counter.as_str(), "--chores", &chores, "--barrier-every-us", "50000"];
    let done = format!("task_chores={CHORES},{CHORES} ");
    let are_done =
        |step: &Step| step.code == Some(0) && step.stdout.iter().any(|line| line.contains(&done));
    if !are_done(&step(&[], &program)) {
        evenkeel_skip::skip(test, "Open MPI does not run under srun --mpi=pmix here");
        return cluster.wait_for_nothing_left();
    }
    let under = step(&["--evenkeel"], &program);
    assert!(are_done(&under), "{under:?}");
    under.says("2 ranks of step ");
    cluster.wait_for_nothing_left();
}
