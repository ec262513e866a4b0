//! MPI's own launchers in a job of two nodes: they find the nodes by Slurm's variables, and start their
//! helper on each by srun. The launcher starts evenkeel with each rank, or Slurm starts it with the
//! launcher's helpers.

use evenkeel_bench::mpi::{CHORE_COUNTER, Kind, Mpi};

use crate::batch::{to, written};
use crate::cluster::{Cluster, Wanted};
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
