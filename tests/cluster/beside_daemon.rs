//! Steps on a node where root's daemon runs: it gives the balancer of a user's step its figures, and has
//! the steps of all users in its metrics. And nodes that have no rights for BPF.

use std::process::{Child, Command};

use serde_json::Value;

use crate::cluster::{Cluster, Wanted};
use crate::steps::{Step, be_eager, busy};
use crate::support::*;

/// Root's daemon on the nodes, which are one host; it is killed when this is dropped.
struct Daemon {
    child: Child,
}

impl Daemon {
    fn start(cluster: &Cluster) -> Self {
        // Whole before the wait: if that fails, the daemon is killed all the same.
        let daemon = Self { child: cluster.host.evenkeel(["daemon"]).spawn().unwrap() };
        let socket = cluster.host.runtime().join("daemon.sock");
        wait_for("the daemon", || std::os::unix::net::UnixStream::connect(&socket).is_ok());
        daemon
    }

    /// Its figures, which its metrics are made of.
    fn figures(cluster: &Cluster) -> Value {
        let socket = cluster.host.runtime().join("daemon.sock");
        let request = evenkeel_control::Request::new("stats");
        evenkeel_control::ask(&socket, &request).unwrap()
    }

    fn end(mut self) {
        kill(self.child.id() as i32, libc::SIGTERM);
        assert!(ended(&mut self.child).success());
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Runs a step beside the daemon, which is told of it meanwhile. Returns how it ended, and the most
/// programs that the daemon gave figures of.
fn beside(cluster: &Cluster, command: &mut Command) -> (Step, u64) {
    let number = |name: &str| Daemon::figures(cluster)[name].as_u64().unwrap();
    let mut observed = 0;
    let step = std::thread::scope(|scope| {
        let step = scope.spawn(|| Step::run(command));
        wait_for("what the balancer tells", || {
            observed = observed.max(number("observed"));
            number("run_programs") == 1 || step.is_finished()
        });
        assert!(!step.is_finished(), "the daemon was not told: {:?}", step.join());
        assert_eq!(number("programs"), 0, "the daemon balances nothing");
        let figures = Daemon::figures(cluster);
        let gains = figures["run_gains"].as_object().unwrap().values();
        assert_eq!(gains.filter_map(Value::as_u64).sum::<u64>(), 1, "{figures:#}");
        observed = observed.max(number("observed"));
        step.join().unwrap()
    });
    wait_for("the end at the daemon", || {
        std::thread::sleep(std::time::Duration::from_millis(100));
        number("run_programs") == 0 && number("observed") == 0
    });
    (step, observed)
}

#[test]
fn a_step_of_root_is_in_the_metrics_of_its_node() {
    let test = "a_step_of_root_is_in_the_metrics_of_its_node";
    if two_cpus(test).is_none() {
        return;
    }
    let Some(cluster) = Cluster::start(test, Wanted::default()) else { return };
    be_eager(&cluster.host);
    let daemon = Daemon::start(&cluster);
    let words = [&["-n2", "--overcommit", "--evenkeel"][..], &busy("8")].concat();
    let (step, observed) = beside(&cluster, &mut cluster.srun(&words));
    assert_eq!((step.code, observed), (Some(124), 0), "{step:?}");
    step.says("2 ranks of step ");
    daemon.end();
    cluster.wait_for_nothing_left();
}

/// The ranks are not the daemon's to move: their user's own balancer has its figures.
#[test]
fn a_users_step_has_the_figures_of_roots_daemon() {
    let test = "a_users_step_has_the_figures_of_roots_daemon";
    if two_cpus(test).is_none() {
        return;
    }
    let Some(cluster) = Cluster::start(test, Wanted::default()) else { return };
    be_eager(&cluster.host);
    let daemon = Daemon::start(&cluster);
    let is_exact = Daemon::figures(&cluster)["exact"] == 1;
    // As seen in the cluster: /run/user/65534.
    let runtime = cluster.host.path(&format!("run/user/{NOBODY}"));
    std::fs::create_dir_all(&runtime).unwrap();
    let srun = ["srun", "-n2", "--overcommit", "--quiet", "--time=2", "--evenkeel"];
    let mut command = by_nobody(&cluster.host, &[&srun[..], &busy("8")].concat());
    std::os::unix::fs::chown(&runtime, Some(NOBODY), Some(NOBODY)).unwrap();
    command
        .env("SLURM_CONF", cluster.host.path("slurm.conf"))
        .env("XDG_RUNTIME_DIR", format!("/run/user/{NOBODY}"))
        .current_dir("/tmp");
    let (step, observed) = beside(&cluster, &mut command);
    assert_eq!(step.code, Some(124), "{step:?}");
    step.says("2 ranks of step ");
    // Both ranks are one program there.
    assert_eq!(observed, u64::from(is_exact), "{step:?}");
    step.says(if is_exact { "figures from the daemon's cbinfo" } else { "figures from /proc" });
    daemon.end();
    cluster.wait_for_nothing_left();
}

/// A site may take these rights from all that slurmd starts.
#[test]
fn a_node_without_rights_for_bpf_balances_by_figures_of_proc() {
    let test = "a_node_without_rights_for_bpf_balances_by_figures_of_proc";
    if two_cpus(test).is_none() {
        return;
    }
    let wanted = Wanted { has_bpf: false, ..Wanted::default() };
    let Some(cluster) = Cluster::start(test, wanted) else { return };
    be_eager(&cluster.host);
    let step = |cluster: &Cluster| {
        let words = [&["-n2", "--overcommit", "--evenkeel"][..], &busy("2")].concat();
        let step = Step::run(&mut cluster.srun(&words));
        assert_eq!(step.code, Some(124), "{step:?}");
        step.says("2 ranks of step ");
        step
    };
    step(&cluster).says("figures from /proc");
    cluster.wait_for_nothing_left();
    // Root's daemon was not started by slurmd, and has them.
    let daemon = Daemon::start(&cluster);
    let is_exact = Daemon::figures(&cluster)["exact"] == 1;
    let said = if is_exact { "figures from the daemon's cbinfo" } else { "figures from /proc" };
    step(&cluster).says(said);
    daemon.end();
    cluster.wait_for_nothing_left();
}
