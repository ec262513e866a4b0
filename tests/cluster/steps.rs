//! Job steps that end as they should: the option, the one line, and a program that sees no difference.

use std::process::Command;

use evenkeel_machine::CpuSet;

use crate::cluster::{Cluster, Wanted, cpusets_of_jobs, trackers, why_not_confined};
use crate::support::*;

/// How a step ended and what it printed. The lines of its standard error in two parts: evenkeel's, and
/// all others but srun's own.
#[derive(Debug)]
pub struct Step {
    pub code: Option<i32>,
    pub stdout: Vec<String>,
    pub stderr: Vec<String>,
    pub ours: Vec<String>,
}

impl Step {
    pub fn run(command: &mut Command) -> Self {
        let output = output(command);
        // The order among tasks is Slurm's.
        let sorted = |bytes: &[u8]| {
            let mut lines: Vec<String> = text(bytes).lines().map(str::to_owned).collect();
            lines.sort();
            lines
        };
        let is_of = |line: &String, of: &str| line.starts_with(&format!("{of}: "));
        let (ours, others): (Vec<_>, Vec<_>) =
            sorted(&output.stderr).into_iter().partition(|line| is_of(line, "evenkeel"));
        let stderr = others.into_iter().filter(|line| !is_of(line, "srun")).collect();
        Self { code: output.status.code(), stdout: sorted(&output.stdout), stderr, ours }
    }

    /// Its one line has this.
    pub fn says(&self, what: &str) {
        assert!(self.ours.len() == 1 && self.ours[0].contains(what), "not \"{what}\": {self:?}");
    }

    /// The program did the same as in another step.
    pub fn is_like(&self, other: &Self) {
        assert_eq!(self.code, other.code, "{self:?}");
        assert_eq!(self.stdout, other.stdout);
        assert_eq!(self.stderr, other.stderr);
    }
}

/// Has evenkeel move tasks at every opportunity, by the configuration of the job's user.
pub fn be_eager(host: &Host) {
    let folder = host.path("home/.config/evenkeel");
    std::fs::create_dir_all(&folder).unwrap();
    let text = "[run]\npolicy = \"paper\"\ninterval = \"20ms\"\n";
    std::fs::write(folder.join("config.toml"), text).unwrap();
}

/// A program that keeps a CPU busy for some seconds.
pub fn busy(seconds: &str) -> [&str; 5] {
    ["timeout", seconds, "sh", "-c", "while :; do :; done"]
}

/// The same in the words of a shell.
pub fn busy_in_a_script(seconds: &str) -> String {
    busy(seconds).map(|word| format!("'{word}'")).join(" ")
}

#[test]
fn the_option_is_offered_and_its_value_checked() {
    let test = "the_option_is_offered_and_its_value_checked";
    let Some(cluster) = Cluster::start(test, Wanted::default()) else { return };
    for command in ["srun", "sbatch", "salloc"] {
        let help = output(cluster.command(command).arg("--help"));
        assert!(text(&help.stdout).contains("--evenkeel=run|shares|threads=K|watch|off"));
    }
    for value in ["fast", "threads", "threads=1", "threads=17", "threads=2x", "threads="] {
        let refused =
            Step::run(cluster.srun(&[]).arg(format!("--evenkeel={value}")).args(["echo", "ran"]));
        assert!(refused.code != Some(0) && refused.stdout.is_empty(), "{value}: {refused:?}");
        let again = output(cluster.srun(&[]).arg(format!("--evenkeel={value}")).arg("true"));
        let why = format!("--evenkeel={value}: expected run, shares, threads=K");
        assert!(text(&again.stderr).contains(&why), "{again:?}");
    }
    for value in ["run", "shares", "threads=2", "watch"] {
        let taken =
            Step::run(cluster.srun(&[]).arg(format!("--evenkeel={value}")).args(["echo", "ran"]));
        assert!(taken.code == Some(0) && taken.stdout == ["ran"], "{value}: {taken:?}");
        assert!(!taken.ours.is_empty(), "{value}: {taken:?}");
    }
    let off = Step::run(&mut cluster.srun(&["--evenkeel=off", "echo", "ran"]));
    assert!(off.stdout == ["ran"] && off.ours.is_empty(), "{off:?}");
    cluster.wait_for_nothing_left();
}

/// What a value asks of `evenkeel run` reaches the program.
#[test]
fn each_value_does_what_it_says() {
    let test = "each_value_does_what_it_says";
    if two_cpus(test).is_none() {
        return;
    }
    let Some(cluster) = Cluster::start(test, Wanted::default()) else { return };
    let prints = |option: &str, script: &str| {
        let step = Step::run(cluster.srun(&["-n1", option]).args(["sh", "-c", script]));
        assert!(step.code == Some(0) && step.ours.len() == 1, "{option}: {step:?}");
        assert!(!step.ours[0].contains("runs without evenkeel"), "{option}: {step:?}");
        step.stdout
    };
    let threads = prints("--evenkeel=threads=2", "echo $OMP_NUM_THREADS");
    assert_eq!(threads, [(2 * all().len()).to_string()]);
    let library = "grep -q libevenkeel_shares.so /proc/$$/maps && echo loaded";
    assert_eq!(prints("--evenkeel=shares", library), ["loaded"]);
    be_eager(&cluster.host);
    std::thread::scope(|scope| {
        let words = ["-n2", "--overcommit", "--evenkeel=watch"];
        let mut srun = cluster.srun(&words);
        srun.args(busy("2"));
        let step = scope.spawn(move || Step::run(&mut srun));
        let mut watched = Vec::new();
        wait_for("the end of the step", || {
            watched.extend(cluster.host.status());
            assert!(cluster.host.pins().is_empty(), "it is only watched");
            step.is_finished()
        });
        assert!(watched.iter().any(|run| run["dry_run"] == true), "{watched:?}");
        assert!(watched.iter().all(|run| run["moves"] == 0), "{watched:?}");
        step.join().unwrap().says("2 ranks of step ");
    });
    cluster.wait_for_nothing_left();
}

#[test]
fn a_step_does_the_same_and_prints_one_line_more() {
    let test = "a_step_does_the_same_and_prints_one_line_more";
    let Some(cluster) = Cluster::start(test, Wanted::default()) else { return };
    for script in ["echo out; echo err >&2", "echo out; exit 3", "kill -9 $$", "kill -USR1 $$"] {
        let plain = Step::run(&mut cluster.srun(&["-n2", "sh", "-c", script]));
        let under = Step::run(&mut cluster.srun(&["-n2", "--evenkeel", "sh", "-c", script]));
        under.is_like(&plain);
        assert!(plain.ours.is_empty(), "{plain:?}");
        if !script.contains("kill") {
            under.says(" on node1: ");
        }
    }
    // A program that Slurm cannot start gives Slurm's own error.
    for program in ["/no/such/program", "no-such-program", "/etc/hostname", "/tmp"] {
        let plain = Step::run(&mut cluster.srun(&["-n1", program]));
        let under = Step::run(&mut cluster.srun(&["-n1", "--evenkeel", program]));
        assert_eq!(under.code, plain.code, "{program}: {under:?}");
    }
    cluster.wait_for_nothing_left();
}

/// What Slurm does for a task after the plugin was called (TaskProlog, limits, TMPDIR) reaches the
/// program, and evenkeel adds nothing.
#[test]
fn a_task_sees_its_environment_as_without() {
    let test = "a_task_sees_its_environment_as_without";
    let wanted = Wanted { task_plugin: "task/affinity", ..Wanted::default() };
    let Some(cluster) = Cluster::start(test, wanted) else { return };
    // Numbers of the job and of its processes differ, and the plugin's option is Slurm's to pass on.
    let script = "env | grep -vE '^SLURM_(TASK_PID|JOB_?ID|STEP_?ID|.*PORT|.*SPANK.*)=|_SPANK_|^_='; \
                  ulimit -a; umask; pwd; echo \"$0 $*\"; \
                  tr '\\0' ' ' </proc/$$/cmdline; echo; grep -E '^(Sig[BIC]|Cpus)' /proc/self/status; \
                  ls /proc/self/fd";
    let step = |flags: &[&str]| {
        let mut command = cluster.srun(&["-n2", "--propagate=NOFILE,CORE"]);
        Step::run(command.args(flags).args(["sh", "-c", script, "name", "two words", ""]))
    };
    let (plain, under) = (step(&[]), step(&["--evenkeel"]));
    under.is_like(&plain);
    assert!(plain.stdout.iter().any(|line| line == "FROM_TASK_PROLOG=yes"), "{plain:?}");
    assert!(plain.stdout.iter().any(|line| line == "name two words "), "{plain:?}");
    cluster.wait_for_nothing_left();
}

#[test]
fn the_ranks_of_a_step_are_balanced_together_by_one() {
    let test = "the_ranks_of_a_step_are_balanced_together_by_one";
    if two_cpus(test).is_none() {
        return;
    }
    for proctrack in trackers() {
        let wanted = Wanted { proctrack, ..Wanted::default() };
        let Some(cluster) = Cluster::start(test, wanted) else { return };
        be_eager(&cluster.host);
        std::thread::scope(|scope| {
            let step =
                scope.spawn(|| Step::run(cluster.srun(&["-n2", "--evenkeel"]).args(busy("2"))));
            wait_for("moves", || !cluster.host.pins().is_empty() || step.is_finished());
            assert_eq!(cluster.host.status().len(), 1, "one balancer, one program");
            let ended = step.join().unwrap();
            ended.says("evenkeel: 2 ranks of step ");
            ended.says(" on node1: ");
            assert_eq!(ended.code, Some(124), "the code of timeout");
        });
        // At the end of the step, and not some time later.
        assert!(cluster.left().is_empty(), "{:?}", cluster.left());
        cluster.wait_for_nothing_left();
    }
}

/// `srun --mpi=pmi2` sets variables of MPI beside Slurm's own: its ranks are those of the step all the
/// same, with one line for all.
#[test]
fn ranks_with_variables_of_mpi_are_those_of_the_step() {
    let test = "ranks_with_variables_of_mpi_are_those_of_the_step";
    if two_cpus(test).is_none() {
        return;
    }
    let Some(cluster) = Cluster::start(test, Wanted::default()) else { return };
    be_eager(&cluster.host);
    let words = ["-n2", "--overcommit", "--mpi=pmi2", "--evenkeel"];
    let script = format!("echo $PMI_RANK; {}", busy_in_a_script("1"));
    let step = Step::run(cluster.srun(&words).args(["sh", "-c", &script]));
    assert!(step.code == Some(124) && step.stdout == ["0", "1"], "{step:?}");
    step.says("2 ranks of step ");
    step.says(" on node1: ");
    cluster.wait_for_nothing_left();
}

#[test]
fn bound_ranks_are_told_what_frees_them() {
    let test = "bound_ranks_are_told_what_frees_them";
    if two_cpus(test).is_none() {
        return;
    }
    let wanted = Wanted { task_plugin: "task/affinity", ..Wanted::default() };
    let Some(cluster) = Cluster::start(test, wanted) else { return };
    be_eager(&cluster.host);
    let tasks = format!("-n{}", all().len());
    let bound = Step::run(cluster.srun(&[&tasks, "--evenkeel"]).args(busy("1")));
    bound.says(
        "each rank is bound to CPUs of its own, and no thread is moved from there; srun \
                --cpu-bind=none frees them",
    );
    assert!(cluster.host.pins().is_empty());
    let free = ["--cpu-bind=none", "--evenkeel"];
    let free = Step::run(cluster.srun(&[&tasks]).args(free).args(busy("1")));
    assert!(free.ours.len() == 1 && !free.ours[0].contains("bound"), "{free:?}");
    cluster.wait_for_nothing_left();
}

/// Threads are moved within the cpuset that Slurm gives a job, and no process of evenkeel keeps it.
#[test]
fn a_confined_job_uses_its_own_cpus_alone() {
    let test = "a_confined_job_uses_its_own_cpus_alone";
    if two_cpus(test).is_none() {
        return;
    }
    if let Some(why) = why_not_confined() {
        return evenkeel_skip::skip(test, why);
    }
    let wanted = Wanted { task_plugin: "task/affinity,task/cgroup", ..Wanted::default() };
    let Some(cluster) = Cluster::start(test, wanted) else { return };
    be_eager(&cluster.host);
    // Two busy processes on one CPU of several: they have nowhere to go.
    let (allowed, work) = ("grep Cpus_allowed_list /proc/self/status", busy_in_a_script("1"));
    let script = format!("{allowed}; {work} & {work} & wait; {allowed}");
    let one_cpu = |flags: &[&str]| {
        let mut command = cluster.srun(&["-n1", "-c1", "--cpu-bind=none"]);
        Step::run(command.args(flags).args(["sh", "-c", &script]))
    };
    let plain = one_cpu(&[]);
    let lists = plain.stdout.iter().filter_map(|line| line.split_whitespace().nth(1));
    let counts: Vec<usize> = lists.map(|list| list.parse::<CpuSet>().unwrap().len()).collect();
    assert_eq!(counts, [1, 1], "{plain:?}");
    cluster.wait_for_nothing_left();
    let are_removed = cpusets_of_jobs().is_empty();
    std::thread::scope(|scope| {
        let step = scope.spawn(|| one_cpu(&["--evenkeel"]));
        wait_for("the end of the step", || {
            assert!(cluster.host.pins().is_empty(), "there is one CPU");
            step.is_finished()
        });
        let under = step.join().unwrap();
        under.is_like(&plain);
        assert_eq!(under.ours.len(), 1, "{under:?}");
    });
    // All CPUs of the node.
    let tasks = format!("-n{}", all().len());
    std::thread::scope(|scope| {
        let step = scope.spawn(|| {
            let mut command = cluster.srun(&[&tasks, "--cpu-bind=none", "--evenkeel"]);
            Step::run(command.args(busy("2")))
        });
        wait_for("moves", || !cluster.host.pins().is_empty() || step.is_finished());
        assert_eq!(cluster.host.status().len(), 1, "one balancer, one program");
        step.join().unwrap().says(" ranks of step ");
    });
    cluster.wait_for_nothing_left();
    // As without evenkeel.
    let left = cpusets_of_jobs();
    assert!(!are_removed || left.is_empty(), "{left:?}");
}

#[test]
fn two_jobs_on_a_node_have_a_balancer_each() {
    let test = "two_jobs_on_a_node_have_a_balancer_each";
    if two_cpus(test).is_none() {
        return;
    }
    let Some(cluster) = Cluster::start(test, Wanted::default()) else { return };
    be_eager(&cluster.host);
    std::thread::scope(|scope| {
        let start = || {
            scope.spawn(|| {
                let mut command = cluster.srun(&["-n2", "--overcommit", "-c1", "--evenkeel"]);
                Step::run(command.args(busy("2")))
            })
        };
        let jobs = [start(), start()];
        wait_for("both", || {
            cluster.host.status().len() == 2 || jobs.iter().any(|job| job.is_finished())
        });
        let status = cluster.host.status();
        let balancers = status.iter().map(|program| &program["balancer"]["tgid"]);
        let balancers: std::collections::BTreeSet<_> = balancers.map(ToString::to_string).collect();
        assert_eq!(balancers.len(), 2, "{status:?}");
        for job in jobs {
            job.join().unwrap().says("2 ranks of step ");
        }
    });
    cluster.wait_for_nothing_left();
}

#[test]
fn two_nodes_print_a_line_each() {
    let Some(cluster) = Cluster::start("two_nodes_print_a_line_each", Wanted::default()) else {
        return;
    };
    let mut command = cluster.command("srun");
    let step =
        Step::run(command.args(["-N2", "-n4", "--quiet", "--overcommit", "--evenkeel", "true"]));
    assert!(step.code == Some(0) && step.ours.len() == 2, "{step:?}");
    for (line, node) in step.ours.iter().zip(["node1", "node2"]) {
        assert!(line.contains(&format!(" on {node}: ")), "{step:?}");
    }
    cluster.wait_for_nothing_left();
}
